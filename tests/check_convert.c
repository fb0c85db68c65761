/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/store.h"
#include "kit.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moek/formats.h>
#include <moek/moek.h>

static const char *folder;

static void set_up(void)
{
	folder = kit_folder();
}

static const char *fixture(const char *name)
{
	return kit_path(kit_path(getenv("MOEK_TEST_SOURCE"), "fixtures/checkpoints"),
	                name);
}

static struct moek_checkpoint *open_ok(const char *path)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_msg(moek_checkpoint_open(NULL, path, &checkpoint, &error) == MOEK_OK,
	              "%s", error.text);
	return checkpoint;
}

static struct moek_conversion to(uint32_t weight, uint64_t group, uint32_t zero_points)
{
	return (struct moek_conversion){ .struct_size = MOEK_INIT(CONVERSION),
		                         .weight = weight,
		                         .group_size = group,
		                         .zero_points = zero_points,
		                         .layout = MOEK_LAYOUT_PACKED };
}

static const struct moek_conversion as_gpt_oss = {
	.struct_size = MOEK_INIT(CONVERSION),
	.weight = MOEK_MXFP4,
	.group_size = 32,
	.layout = MOEK_LAYOUT_BLOCKS,
};

/** FOLDER/NAME, made of the fixture @model. */
static const char *converted(const char *model, const char *name,
                             const struct moek_conversion *conversion)
{
	struct moek_checkpoint *checkpoint = open_ok(fixture(model));
	const char *path = kit_path(folder, name);
	struct moek_error error = { .text = "" };

	ck_assert_msg(moek_checkpoint_convert(checkpoint, path, conversion, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	moek_checkpoint_close(checkpoint);
	return path;
}

/** It is refused with @status, the error has @says, and nothing is left. */
static void expect_refusal(const char *source, const struct moek_conversion *conversion,
                           int32_t status, const char *says)
{
	struct moek_checkpoint *checkpoint = open_ok(source);
	const char *path = kit_path(folder, "refused");
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(moek_checkpoint_convert(checkpoint, path, conversion, &error),
	                 status);
	ck_assert_msg(strstr(error.text, says) != NULL, "\"%s\" is not in: %s", says,
	              error.text);
	ck_assert_int_ne(access(path, F_OK), 0);
	ck_assert_int_ne(access(kit_path(folder, "refused.part"), F_OK), 0);
	moek_checkpoint_close(checkpoint);
}

/* ---- experts as numbers ---- */

/** An expert of a layer with the memory behind it. */
struct held {
	struct moek_source source;
	void *scratch;
	struct moek_expert expert;
};

static void hold(struct moek_checkpoint *checkpoint, uint64_t layer, uint64_t number,
                 struct held *held)
{
	struct moek_error error = { .text = "" };

	memset(held, 0, sizeof(*held));
	held->source.struct_size = MOEK_INIT(SOURCE);
	ck_assert_msg(moek_checkpoint_source(checkpoint, layer, &held->source,
	                                     &error) == MOEK_OK,
	              "%s", error.text);
	held->scratch = malloc(held->source.scratch_bytes + 1);
	ck_assert_msg(held->source.expert(held->source.self, number, held->scratch,
	                                  &held->expert, &error) == MOEK_OK,
	              "%s", error.text);
}

static void let_go(struct held *held)
{
	moek_source_close(&held->source);
	free(held->scratch);
}

static float half(uint32_t type, const void *data, uint64_t i)
{
	return type == MOEK_F32    ? ((const float *)data)[i]
	       : type == MOEK_BF16 ? moek_bf16_to_f32(((const uint16_t *)data)[i])
	                           : moek_f16_to_f32(((const uint16_t *)data)[i]);
}

/** One weight, and the scale that it has; 0: none. */
static float weight_of(const struct moek_matrix *m, uint64_t row, uint64_t column,
                       float *scale_out)
{
	uint64_t groups = (m->columns + m->group_size - 1) / m->group_size;
	uint64_t at = row * groups + column / m->group_size;
	uint32_t code;

	*scale_out = 0;
	if (m->scale == 0)
		return half(m->weight, m->codes, row * m->columns + column);
	code = moek_nibble((const uint8_t *)m->codes + row * m->columns / 2, column);
	if (m->weight == MOEK_MXFP4) {
		*scale_out = moek_e8m0_to_f32(((const uint8_t *)m->scales)[at]);
		return moek_mxfp4_value(code, ((const uint8_t *)m->scales)[at]);
	}
	*scale_out = half(m->scale, m->scales, at);
	return moek_int4_value(code, m->zeros != NULL ? m->zeros[at] : 8, *scale_out);
}

/* ---- rounding ---- */

static const struct {
	uint32_t group, zero_points;
} schemes[] = { { 32, 0 }, { 64, 0 }, { 128, 0 }, { 32, 1 }, { 64, 1 }, { 128, 1 } };

/**
 * No weight is further from its value than half a step, and a bit: the scale is rounded
 * to bf16, by up to 2^-8 of itself, so the ends of the span, 7.5 steps from 0 or 15
 * from each other, may come to lie that much outside. That no rounding is one-sided
 * shows in the mean distance, a quarter of a step, and in the mean offset.
 */
static void check_rounding(const struct moek_matrix *was, const struct moek_matrix *is,
                           int zero_points)
{
	double most = 0.5 + (zero_points ? 15.0 : 7.5) / 256;
	double sum = 0, offset = 0;

	ck_assert_uint_eq(was->rows, is->rows);
	ck_assert_uint_eq(was->columns, is->columns);
	for (uint64_t r = 0; r < was->rows; r++)
		for (uint64_t c = 0; c < was->columns; c++) {
			float none, scale;
			double difference = (double)weight_of(is, r, c, &scale) -
			                    (double)weight_of(was, r, c, &none);

			ck_assert_msg(fabs(difference) <= most * (double)scale,
			              "row %llu column %llu: off by %g steps",
			              (unsigned long long)r, (unsigned long long)c,
			              difference / (double)scale);
			sum += fabs(difference) / (double)scale;
			offset += difference / (double)scale;
		}
	sum /= (double)(was->rows * was->columns);
	offset /= (double)(was->rows * was->columns);
	ck_assert_msg(sum > 0.2 && sum < 0.27, "mean distance: %g steps", sum);
	ck_assert_msg(fabs(offset) < 0.02, "mean offset: %g steps", offset);
}

START_TEST(rounds_to_the_nearest_int4)
{
	struct moek_conversion conversion = to(MOEK_INT4, schemes[_i].group,
	                                       schemes[_i].zero_points);
	struct moek_checkpoint *was = open_ok(fixture("tiny-qwen3moe-bf16"));
	struct moek_checkpoint *is = open_ok(
		converted("tiny-qwen3moe-bf16", "int4", &conversion));
	struct moek_problem problem = { .struct_size = MOEK_PROBLEM_SIZE_1_0 };
	struct held before, after;

	ck_assert_int_eq(moek_checkpoint_problem(is, 0, &problem), MOEK_OK);
	ck_assert_uint_eq(problem.gate_up.weight, MOEK_INT4);
	ck_assert_uint_eq(problem.down.group_size, schemes[_i].group);
	ck_assert_uint_eq(problem.down.zero_points, schemes[_i].zero_points);
	for (uint64_t e = 0; e < 16; e += 5) {
		hold(was, e % 4, e, &before);
		hold(is, e % 4, e, &after);
		check_rounding(&before.expert.gate, &after.expert.gate,
		               (int)schemes[_i].zero_points);
		check_rounding(&before.expert.up, &after.expert.up,
		               (int)schemes[_i].zero_points);
		check_rounding(&before.expert.down, &after.expert.down,
		               (int)schemes[_i].zero_points);
		let_go(&after);
		let_go(&before);
	}
	moek_checkpoint_close(is);
	moek_checkpoint_close(was);
}
END_TEST

/** Every weight of layer @layer is the same number. */
static void expect_same(struct moek_checkpoint *one, struct moek_checkpoint *other,
                        uint64_t layer)
{
	struct moek_problem problem = { .struct_size = MOEK_PROBLEM_SIZE_1_0 };

	moek_checkpoint_problem(one, layer, &problem);
	for (uint64_t e = 0; e < problem.experts; e++) {
		struct held a, b;

		hold(one, layer, e, &a);
		hold(other, layer, e, &b);
		for (int part = 0; part < 3; part++) {
			const struct moek_matrix *x = &a.expert.gate + part;
			const struct moek_matrix *y = &b.expert.gate + part;
			float scale;

			ck_assert_uint_eq(x->rows, y->rows);
			ck_assert_int_eq(x->bias != NULL, y->bias != NULL);
			for (uint64_t r = 0; r < x->rows; r++) {
				if (x->bias != NULL)
					ck_assert(x->bias[r] == y->bias[r]);
				for (uint64_t c = 0; c < x->columns; c++)
					ck_assert(weight_of(x, r, c, &scale) ==
					          weight_of(y, r, c, &scale));
			}
		}
		let_go(&b);
		let_go(&a);
	}
}

START_TEST(keeps_what_the_new_format_can_hold)
{
	static const struct {
		const char *model;
		uint32_t weight, layout;
	} exact[] = {
		{ "tiny-qwen3moe-ct-sym-g32", MOEK_F32, MOEK_LAYOUT_PACKED },
		{ "tiny-qwen3moe-bf16", MOEK_BF16, MOEK_LAYOUT_PACKED },
		{ "tiny-gptoss-mxfp4", MOEK_MXFP4, MOEK_LAYOUT_BLOCKS },
	};
	struct moek_conversion conversion = exact[_i].weight == MOEK_MXFP4
	                                            ? as_gpt_oss
	                                            : to(exact[_i].weight, 0, 0);
	struct moek_checkpoint *was = open_ok(fixture(exact[_i].model));
	struct moek_checkpoint *is = open_ok(
		converted(exact[_i].model, "same", &conversion));

	expect_same(was, is, 0);
	expect_same(was, is, 3);
	moek_checkpoint_close(is);
	moek_checkpoint_close(was);
}
END_TEST

/* ---- the rest of the folder ---- */

START_TEST(copies_every_other_tensor_and_file)
{
	struct moek_conversion conversion = to(MOEK_INT4, 32, 0);
	const char *path;
	struct moek_safetensors *from = NULL;
	struct moek_checkpoint *is;
	struct moek_error error = { .text = "" };
	const char *const files[] = { "tasks.tsv", "heldout.txt" };
	uint64_t copied = 0, experts = 0;
	double number = 0;

	path = converted("tiny-qwen3moe-bf16", "copy", &conversion);
	is = open_ok(path);
	ck_assert_int_eq(moek_safetensors_open(kit_path(fixture("tiny-qwen3moe-bf16"),
	                                                "model.safetensors"),
	                                       &from, &error),
	                 MOEK_OK);
	for (uint64_t i = 0; i < moek_safetensors_count(from); i++) {
		const char *name = moek_safetensors_name(from, i, NULL);
		struct moek_tensor was, now;

		moek_safetensors_tensor(from, name, &was, NULL);
		if (strstr(name, ".experts.") != NULL) {
			experts++;
			ck_assert_int_ne(moek_checkpoint_tensor(is, name, &now, NULL),
			                 MOEK_OK);
			continue;
		}
		copied++;
		ck_assert_int_eq(moek_checkpoint_tensor(is, name, &now, NULL), MOEK_OK);
		ck_assert_str_eq(was.dtype, now.dtype);
		ck_assert_uint_eq(was.rank, now.rank);
		ck_assert_mem_eq(was.shape, now.shape, sizeof(was.shape));
		ck_assert_uint_eq(was.bytes, now.bytes);
		ck_assert_mem_eq(was.data, now.data, was.bytes);
	}
	ck_assert_uint_eq(experts, 4 * 16 * 3);
	ck_assert_uint_gt(copied, 4 * 8);
	for (size_t i = 0; i < 2; i++) {
		size_t bytes, copy_bytes;
		char *was = kit_read(kit_path(fixture("tiny-qwen3moe-bf16"), files[i]),
		                     &bytes);
		char *now = kit_read(kit_path(kit_path(folder, "copy"), files[i]),
		                     &copy_bytes);

		ck_assert_uint_eq(bytes, copy_bytes);
		ck_assert_mem_eq(was, now, bytes);
		free(now);
		free(was);
	}
	/* what the config says otherwise stays; expected/ is no file of the model */
	ck_assert_int_eq(moek_checkpoint_number(is, "rope_theta", &number, NULL),
	                 MOEK_OK);
	ck_assert_int_ne(access(kit_path(kit_path(folder, "copy"), "expected"), F_OK),
	                 0);
	moek_safetensors_close(from);
	moek_checkpoint_close(is);
}
END_TEST

START_TEST(writes_files_of_a_bounded_size)
{
	struct moek_conversion conversion = to(MOEK_INT4, 32, 1);
	struct moek_checkpoint *one, *several;
	const char *path;

	one = open_ok(converted("tiny-qwen3moe-bf16", "one", &conversion));
	conversion.file_bytes = 1 << 20;
	path = converted("tiny-qwen3moe-bf16", "several", &conversion);
	ck_assert_int_eq(access(kit_path(path, "model.safetensors"), F_OK), -1);
	ck_assert_int_eq(
		access(kit_path(path, "model-00002-of-00006.safetensors"), F_OK), 0);
	several = open_ok(path);
	expect_same(one, several, 2);
	moek_checkpoint_close(several);
	moek_checkpoint_close(one);
}
END_TEST

START_TEST(aligns_every_tensor_to_its_elements)
{
	static const struct {
		const char *dtype, *data;
		uint64_t elements, bytes;
	} kinds[] = { { "U8", "abc", 3, 3 },
		      { "I64", "abcdefgh", 1, 8 },
		      { "BF16", "abcdef", 3, 6 },
		      { "F32", "abcd", 1, 4 } };
	struct moek_store *store = NULL;
	struct moek_safetensors *file = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(moek_store_open(folder, 1000, &store, &error), MOEK_OK);
	for (size_t i = 0; i < 4; i++) {
		struct moek_tensor tensor = { .dtype = kinds[i].dtype,
			                      .rank = 1,
			                      .shape = { kinds[i].elements },
			                      .bytes = kinds[i].bytes };

		ck_assert_int_eq(moek_store_add(store, kinds[i].dtype, &tensor, &error),
		                 MOEK_OK);
	}
	ck_assert_int_eq(moek_store_begin(store, &error), MOEK_OK);
	for (size_t i = 4; i-- > 0;)
		ck_assert_int_eq(moek_store_write(store, i, 0, kinds[i].data,
		                                  kinds[i].bytes, &error),
		                 MOEK_OK);
	ck_assert_int_eq(moek_store_end(store, &error), MOEK_OK);
	moek_store_close(store);
	ck_assert_msg(moek_safetensors_open(kit_path(folder, "model.safetensors"),
	                                    &file, &error) == MOEK_OK,
	              "%s", error.text);
	for (size_t i = 0; i < 4; i++) {
		struct moek_tensor tensor;

		ck_assert_int_eq(
			moek_safetensors_tensor(file, kinds[i].dtype, &tensor, &error),
			MOEK_OK);
		ck_assert_uint_eq((uintptr_t)tensor.data %
		                          (kinds[i].bytes / kinds[i].elements),
		                  0);
		ck_assert_mem_eq(tensor.data, kinds[i].data, kinds[i].bytes);
	}
	moek_safetensors_close(file);
}
END_TEST

/* ---- refused ---- */

START_TEST(overwrites_nothing)
{
	struct moek_checkpoint *checkpoint = open_ok(fixture("tiny-qwen3moe-bf16"));
	struct moek_conversion conversion = to(MOEK_INT4, 32, 0);
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(
		moek_checkpoint_convert(checkpoint, folder, &conversion, &error),
		MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "is there already"));
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(refuses_what_the_format_cannot_hold)
{
	char bf16[4096], oss[4096];
	struct moek_conversion conversion = to(MOEK_INT4, 32, 0);

	strcpy(bf16, fixture("tiny-qwen3moe-bf16"));
	strcpy(oss, fixture("tiny-gptoss-mxfp4"));
	expect_refusal(oss, &conversion, MOEK_REFUSED,
	               "keeps all experts in one tensor");
	conversion = to(MOEK_INT4, 48, 0);
	expect_refusal(bf16, &conversion, MOEK_BAD_ARGUMENT,
	               "group_size is 48, expected 32, 64 or 128");
	conversion = to(MOEK_MXFP4, 32, 1);
	expect_refusal(bf16, &conversion, MOEK_BAD_ARGUMENT,
	               "zero_points are for int4");
	conversion = to(MOEK_INT8, 32, 0);
	expect_refusal(bf16, &conversion, MOEK_BAD_ARGUMENT, "weight is int8");
	conversion = to(MOEK_BF16, 32, 0);
	expect_refusal(bf16, &conversion, MOEK_BAD_ARGUMENT, "expected 0");
	conversion = to(MOEK_INT4, 32, 0);
	conversion.layout = MOEK_LAYOUT_BLOCKS;
	expect_refusal(bf16, &conversion, MOEK_BAD_ARGUMENT, "layout is 3");
}
END_TEST

static const char small_config[] =
	"{ \"model_type\": \"mixtral\", \"num_hidden_layers\": 1, "
	"\"num_local_experts\": 2,"
	" \"num_experts_per_tok\": 1, \"hidden_size\": %u, \"intermediate_size\": 32,"
	" \"hidden_act\": \"silu\", \"dtype\": \"float16\", \"rope_theta\": 0.1,"
	" \"an_odd_number\": 0.30000000000000004 }";

/** A model of two experts; weight @at of the second one's w2 is @value. */
static const char *small_model(unsigned hidden, size_t at, float value,
                               const char *extra)
{
	struct kit_file file = { 0 };
	float *data = calloc(32 * 64, sizeof(*data));
	const char *path = kit_path(folder, "small");
	char text[512], shape[32], name[96];

	snprintf(text, sizeof(text), "mkdir -p %s", path);
	ck_assert_int_eq(system(text), 0);
	snprintf(text, sizeof(text), small_config, hidden);
	kit_write(kit_path(path, "config.json"), text, strlen(text));
	snprintf(shape, sizeof(shape), "2,%u", hidden);
	kit_add(&file, "model.layers.0.block_sparse_moe.gate.weight", "F32", shape,
	        data);
	for (int e = 0; e < 2; e++)
		for (int w = 1; w <= 3; w++) {
			snprintf(
				name, sizeof(name),
				"model.layers.0.block_sparse_moe.experts.%d.w%d.weight",
				e, w);
			snprintf(shape, sizeof(shape), w == 2 ? "%u,32" : "32,%u",
			         hidden);
			data[at] = e == 1 && w == 2 ? value : 0;
			kit_add(&file, name, "F32", shape, data);
		}
	if (extra != NULL)
		kit_add(&file, extra, "I32", "2,2", data);
	kit_save(&file, kit_path(path, "model.safetensors"));
	free(data);
	return kit_path(folder, "small");
}

START_TEST(leaves_nothing_behind_on_failure)
{
	struct moek_conversion conversion = to(MOEK_INT4, 32, 0);

	expect_refusal(small_model(64, 32 * 3 + 1, NAN, NULL), &conversion,
	               MOEK_BAD_FILE,
	               "layers.0: expert 1, down, row 3: a weight is not finite");
	expect_refusal(small_model(64, 5, INFINITY, NULL), &conversion, MOEK_BAD_FILE,
	               "down, row 0: a weight is not finite");
	/* 7.5 * 65504 is the most that an fp16 scale can span */
	expect_refusal(small_model(64, 5, 500000.0f, NULL), &conversion, MOEK_BAD_FILE,
	               "the scale of a group does not fit the model's type");
	expect_refusal(small_model(48, 0, 1, NULL), &conversion, MOEK_REFUSED,
	               "hidden 48 is no multiple of 32");
}
END_TEST

START_TEST(refuses_a_model_with_other_tensors_quantised)
{
	struct moek_conversion packed = to(MOEK_INT4, 32, 0), rows = to(MOEK_F32, 0, 0);
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };

	/* the first conversion makes the experts packed; one more tensor is so already
	 */
	checkpoint = open_ok(
		small_model(64, 1, 1, "model.layers.0.self_attn.q_proj.weight_packed"));
	ck_assert_int_eq(moek_checkpoint_convert(checkpoint, kit_path(folder, "packed"),
	                                         &packed, &error),
	                 MOEK_OK);
	moek_checkpoint_close(checkpoint);
	expect_refusal(kit_path(folder, "packed"), &rows, MOEK_REFUSED,
	               "q_proj.weight_packed is quantised as the experts are");
}
END_TEST

START_TEST(keeps_zeros_and_every_digit_of_the_config)
{
	struct moek_conversion conversion = to(MOEK_INT4, 32, _i != 0);
	struct moek_checkpoint *checkpoint = open_ok(small_model(64, 1, 1, NULL));
	struct moek_error error = { .text = "" };
	const struct moek_matrix *down;
	struct held held;
	double number = 0;
	float scale;

	ck_assert_msg(moek_checkpoint_convert(checkpoint, kit_path(folder, "zeros"),
	                                      &conversion, &error) == MOEK_OK,
	              "%s", error.text);
	moek_checkpoint_close(checkpoint);
	checkpoint = open_ok(kit_path(folder, "zeros"));
	hold(checkpoint, 0, 1, &held);
	down = &held.expert.down;
	ck_assert(fabsf(weight_of(down, 0, 1, &scale) - 1.0f) <= 0.53f * scale);
	ck_assert(weight_of(down, 0, 0, &scale) == 0);
	ck_assert(weight_of(down, 1, 0, &scale) == 0);
	ck_assert(scale == 1); /* 0 would look like damage */
	let_go(&held);
	moek_checkpoint_number(checkpoint, "an_odd_number", &number, NULL);
	ck_assert(number == 0.30000000000000004);
	moek_checkpoint_close(checkpoint);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("convert");
	TCase *tcase = tcase_create("convert");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(tcase, set_up, kit_clean);
	tcase_add_loop_test(tcase, rounds_to_the_nearest_int4, 0, 6);
	tcase_add_loop_test(tcase, keeps_what_the_new_format_can_hold, 0, 3);
	tcase_add_test(tcase, copies_every_other_tensor_and_file);
	tcase_add_test(tcase, writes_files_of_a_bounded_size);
	tcase_add_test(tcase, aligns_every_tensor_to_its_elements);
	tcase_add_test(tcase, overwrites_nothing);
	tcase_add_test(tcase, refuses_what_the_format_cannot_hold);
	tcase_add_test(tcase, leaves_nothing_behind_on_failure);
	tcase_add_test(tcase, refuses_a_model_with_other_tensors_quantised);
	tcase_add_loop_test(tcase, keeps_zeros_and_every_digit_of_the_config, 0, 2);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
