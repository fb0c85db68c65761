/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/tensors.h"
#include "kit.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>
#include <moek/moek.h>

/* ---- the same layer from memory and from the checkpoint ---- */

static struct moek_checkpoint *open_fixture(const char *name)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };
	const char *path = kit_path(
		kit_path(getenv("MOEK_TEST_SOURCE"), "fixtures/checkpoints"), name);

	ck_assert_msg(moek_checkpoint_open(NULL, path, &checkpoint, &error) == MOEK_OK,
	              "%s", error.text);
	return checkpoint;
}

static void take(const struct moek_source *source, uint64_t expert, void *scratch,
                 struct moek_expert *expert_out)
{
	struct moek_error error = { .text = "" };

	memset(expert_out, 0, sizeof(*expert_out));
	ck_assert_msg(source->expert(source->self, expert, scratch, expert_out,
	                             &error) == MOEK_OK,
	              "%s", error.text);
}

static size_t row_bytes(const struct moek_matrix *m)
{
	return m->weight == MOEK_INT4 || m->weight == MOEK_MXFP4 ? (m->columns + 1) / 2
	       : m->weight == MOEK_F32                           ? m->columns * 4
	                                                         : m->columns * 2;
}

static void expect_same(const struct moek_matrix *a, const struct moek_matrix *b)
{
	size_t scale = a->scale == MOEK_F32 ? 4 : a->scale == MOEK_E8M0 ? 1 : 2;
	size_t groups = (a->columns + a->group_size - 1) / a->group_size;

	ck_assert_uint_eq(a->struct_size, b->struct_size);
	ck_assert_uint_eq(a->weight, b->weight);
	ck_assert_uint_eq(a->scale, b->scale);
	ck_assert_uint_eq(a->rows, b->rows);
	ck_assert_uint_eq(a->columns, b->columns);
	ck_assert_uint_eq(a->group_size, b->group_size);
	ck_assert_mem_eq(a->codes, b->codes, a->rows * row_bytes(a));
	ck_assert_int_eq(a->scales == NULL, b->scales == NULL);
	ck_assert_int_eq(a->zeros == NULL, b->zeros == NULL);
	ck_assert_int_eq(a->bias == NULL, b->bias == NULL);
	ck_assert_ptr_null(a->column_group);
	if (a->scales != NULL)
		ck_assert_mem_eq(a->scales, b->scales, a->rows * groups * scale);
	if (a->bias != NULL)
		ck_assert_mem_eq(a->bias, b->bias, a->rows * sizeof(float));
}

static void expect_same_layer(struct moek_checkpoint *checkpoint, uint64_t layer,
                              const struct moek_stack *gate_up,
                              const struct moek_stack *down)
{
	struct moek_source file, memory;
	struct moek_problem problem;
	struct moek_error error = { .text = "" };
	void *scratches[2];

	ck_assert_int_eq(moek_checkpoint_problem(checkpoint, layer, &problem), MOEK_OK);
	ck_assert_int_eq(moek_checkpoint_source(checkpoint, layer, &file, &error),
	                 MOEK_OK);
	ck_assert_msg(moek_tensors_source(&problem, gate_up, down, &memory, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	scratches[0] = malloc(file.scratch_bytes);
	scratches[1] = malloc(memory.scratch_bytes);
	for (uint64_t e = 0; e < problem.experts; e++) {
		struct moek_expert a, b;

		take(&file, e, scratches[0], &a);
		take(&memory, e, scratches[1], &b);
		expect_same(&a.gate, &b.gate);
		expect_same(&a.up, &b.up);
		expect_same(&a.down, &b.down);
	}
	free(scratches[0]);
	free(scratches[1]);
	moek_source_close(&memory);
	ck_assert_ptr_null(memory.self);
	moek_source_close(&file);
}

static void tensor_of(struct moek_checkpoint *checkpoint, const char *format,
                      unsigned expert, struct moek_tensor *tensor_out)
{
	struct moek_error error = { .text = "" };
	char name[128];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(name, sizeof(name), format, expert);
#pragma GCC diagnostic pop
	ck_assert_msg(moek_checkpoint_tensor(checkpoint, name, tensor_out, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
}

START_TEST(blocks_in_memory_are_the_layer_of_the_file)
{
	struct moek_checkpoint *checkpoint = open_fixture("tiny-gptoss-mxfp4");
	struct moek_stack stacks[2] = { 0 };

	for (int i = 0; i < 2; i++) {
		struct moek_stack *s = &stacks[i];
		struct moek_tensor t;
		const char *part = i == 0 ? "gate_up" : "down";
		char name[128];

		s->struct_size = MOEK_STACK_SIZE_1_0;
		s->layout = MOEK_LAYOUT_BLOCKS;
		s->gate_order = i == 0 ? MOEK_GATE_INTERLEAVED : 0;
		s->bias_type = MOEK_BF16;
		snprintf(name, sizeof(name),
		         "model.layers.1.mlp.experts.%s_proj_blocks", part);
		tensor_of(checkpoint, name, 0, &t);
		s->codes = t.data;
		s->codes_bytes = t.bytes;
		snprintf(name, sizeof(name),
		         "model.layers.1.mlp.experts.%s_proj_scales", part);
		tensor_of(checkpoint, name, 0, &t);
		s->scales = t.data;
		s->scales_bytes = t.bytes;
		snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%s_proj_bias",
		         part);
		tensor_of(checkpoint, name, 0, &t);
		s->bias = t.data;
		s->bias_bytes = t.bytes;
	}
	expect_same_layer(checkpoint, 1, &stacks[0], &stacks[1]);
	moek_checkpoint_close(checkpoint);
}
END_TEST

/** Stack a tensor of every expert; gate and up in @order. Returns its bytes. */
static size_t stack_tensors(struct moek_checkpoint *checkpoint, const char *suffix,
                            uint32_t order, uint8_t **data_out)
{
	static const char *const modules[3] = { "gate_proj", "up_proj", "down_proj" };
	int is_down = order == 0;
	uint8_t *data = NULL;
	size_t all = 0, stride = 0;

	for (unsigned e = 0; e < 16; e++)
		for (int part = is_down ? 2 : 0; part < (is_down ? 3 : 2); part++) {
			int second = (part == 1) != (order == MOEK_UP_FIRST);
			struct moek_tensor t;
			char name[128];

			snprintf(name, sizeof(name),
			         "model.layers.2.mlp.experts.%%u.%s.%s", modules[part],
			         suffix);
			tensor_of(checkpoint, name, e, &t);
			if (data == NULL) {
				all = 16 * (is_down ? 1 : 2) * t.bytes;
				data = malloc(all);
			}
			stride = t.bytes / t.shape[0];
			for (size_t r = 0; r < t.shape[0]; r++) {
				size_t row = is_down ? r
				             : order == MOEK_GATE_INTERLEAVED
				                     ? 2 * r + (size_t)part
				                     : r + (second ? t.shape[0] : 0);

				row += e * t.shape[0] * (is_down ? 1 : 2);
				memcpy(data + row * stride,
				       (const uint8_t *)t.data + r * stride, stride);
			}
		}
	*data_out = data;
	return all;
}

static void stack_layer(struct moek_checkpoint *checkpoint, uint32_t layout,
                        uint32_t order, struct moek_stack *stack)
{
	uint8_t *codes, *scales = NULL;

	memset(stack, 0, sizeof(*stack));
	stack->struct_size = MOEK_STACK_SIZE_1_0;
	stack->layout = layout;
	stack->gate_order = order;
	if (layout == MOEK_LAYOUT_PACKED) {
		stack->codes_bytes = stack_tensors(checkpoint, "weight_packed", order,
		                                   &codes);
		stack->scales_bytes = stack_tensors(checkpoint, "weight_scale", order,
		                                    &scales);
	} else {
		stack->codes_bytes = stack_tensors(checkpoint, "weight", order, &codes);
	}
	stack->codes = codes;
	stack->scales = scales;
}

START_TEST(stacks_in_any_order_are_the_layer_of_the_file)
{
	static const struct {
		const char *folder;
		uint32_t layout;
	} models[2] = { { "tiny-qwen3moe-ct-sym-g32", MOEK_LAYOUT_PACKED },
		        { "tiny-qwen3moe-bf16", MOEK_LAYOUT_ROWS } };
	struct moek_checkpoint *checkpoint = open_fixture(models[_i / 3].folder);
	struct moek_stack gate_up, down;

	stack_layer(checkpoint, models[_i / 3].layout,
	            MOEK_GATE_FIRST + (uint32_t)_i % 3, &gate_up);
	stack_layer(checkpoint, models[_i / 3].layout, 0, &down);
	expect_same_layer(checkpoint, 2, &gate_up, &down);
	free((void *)(uintptr_t)gate_up.codes);
	free((void *)(uintptr_t)gate_up.scales);
	free((void *)(uintptr_t)down.codes);
	free((void *)(uintptr_t)down.scales);
	moek_checkpoint_close(checkpoint);
}
END_TEST

/* ---- small problems ---- */

/** int4, asymmetric, H 10, I 5: rows and groups that end inside a word. */
static struct moek_problem small_problem(void)
{
	const struct moek_scheme scheme = { .weight = MOEK_INT4,
		                            .scale = MOEK_F16,
		                            .group_size = 4,
		                            .zero_points = 1,
		                            .bias = 1 };
	struct moek_problem p = { .struct_size = MOEK_PROBLEM_SIZE_1_0 };

	p.experts = p.experts_local = 3;
	p.top_k = 1;
	p.hidden = 10;
	p.intermediate = 5;
	p.gate_up = p.down = scheme;
	p.input_type = p.output_type = MOEK_BF16;
	p.activation = MOEK_SILU;
	p.gated = 1;
	p.shards = 1;
	return p;
}

/* gate_up: 10 rows of 10 columns, 3 groups; down: 10 rows of 5 columns, 2 groups */
static uint8_t gate_up_codes[3 * 10 * 2 * 4], down_codes[3 * 10 * 1 * 4];
static uint16_t gate_up_scales[3 * 10 * 3], down_scales[3 * 10 * 2];
static uint8_t gate_up_zeros[3 * 2 * 3 * 4], down_zeros[3 * 2 * 2 * 4];
static uint16_t gate_up_bias[3 * 10];
static float down_bias[3 * 10];

static void fill(void *data, size_t bytes)
{
	uint32_t state = (uint32_t)bytes;

	for (size_t i = 0; i < bytes; i++)
		((uint8_t *)data)[i] = (uint8_t)(kit_random(&state) >> 16);
}

static void small_stacks(struct moek_stack *gate_up, struct moek_stack *down)
{
	const struct moek_stack stacks[2] = {
		{ MOEK_STACK_SIZE_1_0, MOEK_LAYOUT_PACKED, gate_up_codes,
		  sizeof(gate_up_codes), gate_up_scales, sizeof(gate_up_scales),
		  gate_up_zeros, sizeof(gate_up_zeros), gate_up_bias,
		  sizeof(gate_up_bias), MOEK_BF16, MOEK_GATE_INTERLEAVED },
		{ MOEK_STACK_SIZE_1_0, MOEK_LAYOUT_PACKED, down_codes,
		  sizeof(down_codes), down_scales, sizeof(down_scales), down_zeros,
		  sizeof(down_zeros), down_bias, sizeof(down_bias), MOEK_F32, 0 },
	};

	fill(gate_up_codes, sizeof(gate_up_codes));
	fill(gate_up_zeros, sizeof(gate_up_zeros));
	fill(gate_up_scales, sizeof(gate_up_scales));
	fill(gate_up_bias, sizeof(gate_up_bias));
	fill(down_codes, sizeof(down_codes));
	*gate_up = stacks[0];
	*down = stacks[1];
}

START_TEST(zero_points_follow_their_rows)
{
	struct moek_problem problem = small_problem();
	struct moek_stack gate_up, down;
	struct moek_source source;
	struct moek_error error = { .text = "" };
	void *scratch;

	small_stacks(&gate_up, &down);
	ck_assert_msg(moek_tensors_source(&problem, &gate_up, &down, &source, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	scratch = malloc(source.scratch_bytes);
	for (unsigned e = 0; e < 3; e++) {
		struct moek_expert expert;

		take(&source, e, scratch, &expert);
		for (unsigned part = 0; part < 2; part++) {
			const struct moek_matrix *m = part == 0 ? &expert.gate
			                                        : &expert.up;

			ck_assert_uint_eq(m->rows, 5);
			ck_assert_uint_eq(m->group_size, 4);
			for (unsigned r = 0; r < 5; r++) {
				unsigned row = 2 * r + part; /* of the stack */

				for (unsigned g = 0; g < 3; g++) {
					const uint8_t *word = gate_up_zeros +
					                      ((e * 2 + row / 8) * 3 +
					                       g) * 4;

					ck_assert_uint_eq(m->zeros[r * 3 + g],
					                  moek_nibble(word, row % 8));
					ck_assert_uint_eq(
						((const uint16_t *)
					                 m->scales)[r * 3 + g],
						gate_up_scales[(e * 10 + row) * 3 + g]);
				}
				for (unsigned c = 0; c < 10; c++)
					ck_assert_uint_eq(
						moek_nibble((const uint8_t *)m->codes +
					                            r * 5,
					                    c),
						moek_nibble(gate_up_codes +
					                            (e * 10 + row) * 8,
					                    c));
				ck_assert_uint_eq(moek_f32_bits(m->bias[r]),
				                  (uint32_t)gate_up_bias[e * 10 + row]
				                          << 16);
			}
		}
	}
	free(scratch);
	moek_source_close(&source);
}
END_TEST

START_TEST(without_a_gate_all_rows_are_the_gate)
{
	static const uint16_t codes[2 * 2 * 2] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct moek_problem p = small_problem();
	struct moek_stack stack = { .struct_size = MOEK_STACK_SIZE_1_0,
		                    .layout = MOEK_LAYOUT_ROWS };
	const struct moek_scheme plain = { .weight = MOEK_BF16 };
	struct moek_error error = { .text = "" };
	struct moek_source source;
	struct moek_expert expert;

	p.experts = p.experts_local = p.hidden = p.intermediate = 2;
	p.gate_up = p.down = plain;
	p.gated = 0;
	p.activation = MOEK_RELU2;
	stack.codes = codes;
	stack.codes_bytes = sizeof(codes);
	ck_assert_msg(moek_tensors_source(&p, &stack, &stack, &source, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	take(&source, 1, NULL, &expert); /* all in place: no scratch is touched */
	ck_assert_uint_eq(expert.gate.rows, 2);
	ck_assert_ptr_eq(expert.gate.codes, codes + 4);
	ck_assert_uint_eq(expert.up.rows, 0);
	ck_assert_ptr_eq(expert.down.codes, codes + 4);
	moek_source_close(&source);
}
END_TEST

START_TEST(rows_at_an_odd_address_are_copied)
{
	static uint8_t bytes[2 * 2 * 2 * 4 + 1];
	struct moek_problem p = small_problem();
	struct moek_stack gate_up = { .struct_size = MOEK_STACK_SIZE_1_0,
		                      .layout = MOEK_LAYOUT_ROWS },
			  down;
	const struct moek_scheme plain = { .weight = MOEK_F32 };
	struct moek_error error = { .text = "" };
	struct moek_source source;
	struct moek_expert expert;
	void *scratch;

	fill(bytes, sizeof(bytes));
	p.experts = p.experts_local = p.hidden = 2;
	p.intermediate = 1;
	p.gate_up = p.down = plain;
	gate_up.codes = bytes + 1;
	gate_up.codes_bytes = 2 * 2 * 2 * 4;
	gate_up.gate_order = MOEK_UP_FIRST;
	down = gate_up;
	down.codes_bytes = 2 * 2 * 1 * 4;
	ck_assert_msg(moek_tensors_source(&p, &gate_up, &down, &source, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	scratch = malloc(source.scratch_bytes);
	take(&source, 1, scratch, &expert);
	ck_assert_uint_eq((uintptr_t)expert.gate.codes % 4, 0);
	ck_assert_mem_eq(expert.gate.codes, bytes + 1 + 24, 8);
	ck_assert_mem_eq(expert.up.codes, bytes + 1 + 16, 8);
	free(scratch);
	moek_source_close(&source);
}
END_TEST

/* Each breaks one thing. */
static void change(int which, struct moek_problem *p, struct moek_stack *gate_up,
                   struct moek_stack *down)
{
	switch (which) {
	case 0:
		gate_up->codes_bytes--;
		break;
	case 1:
		down->scales_bytes += 2;
		break;
	case 2:
		gate_up->zeros_bytes = 3 * 10 * 3;
		break;
	case 3:
		down->zeros = NULL;
		down->zeros_bytes = 0;
		break;
	case 4:
		gate_up->bias_bytes = 0;
		gate_up->bias = NULL;
		break;
	case 5:
		gate_up->codes = NULL;
		break;
	case 6:
		gate_up->layout = MOEK_LAYOUT_BLOCKS;
		break;
	case 7:
		down->layout = 99;
		break;
	case 8:
		gate_up->gate_order = 4;
		break;
	case 9:
		gate_up->bias_type = MOEK_I32;
		break;
	case 10:
		p->down.column_groups = 1;
		break;
	case 11:
		p->gate_up.input_scale = 1;
		break;
	case 12:
		p->down.zero_points = 0; /* and the stack has them */
		break;
	case 13:
		p->hidden = UINT64_C(1) << 62;
		break;
	case 14:
		gate_up->struct_size = 0;
		break;
	default:
		p->top_k = 0;
		break;
	}
}

static const char *const complaints[] = {
	"tensors: gate_up.codes: found 239 bytes at an address, expected 240",
	"tensors: down.scales: found 122 bytes at an address, expected 120",
	"tensors: gate_up.zeros: found 90 bytes at an address, expected 72",
	"tensors: down.zeros: found 0 bytes at NULL, expected 48",
	"tensors: gate_up.bias: found 0 bytes at NULL, expected 60",
	"tensors: gate_up.codes: found 240 bytes at NULL, expected 240",
	"tensors: gate_up.layout 3 does not hold weight int4",
	"tensors: down.layout 99 does not hold weight int4",
	"tensors: gate_up.gate_order 4 is not known",
	"tensors: gate_up.bias_type 7, expected bf16, fp16 or fp32",
	"tensors: down: a stack has no column_groups",
	"tensors: gate_up: a stack has no input_scale",
	"tensors: down.zeros: found 48 bytes at an address, expected 0",
	"does not fit 64 bits",
	"tensors: gate_up.layout 0 does not hold weight int4",
	"top_k is 0",
};

START_TEST(stacks_that_do_not_fit_the_problem_are_refused)
{
	struct moek_problem problem = small_problem();
	struct moek_stack gate_up, down;
	struct moek_source source = { 0 };
	struct moek_error error = { .text = "" };

	small_stacks(&gate_up, &down);
	change(_i, &problem, &gate_up, &down);
	ck_assert_int_eq(
		moek_tensors_source(&problem, &gate_up, &down, &source, &error),
		MOEK_BAD_ARGUMENT);
	ck_assert_ptr_null(source.self);
	ck_assert_msg(strstr(error.text, complaints[_i]) != NULL,
	              "\"%s\" is not in: %s", complaints[_i], error.text);
}
END_TEST

START_TEST(what_is_not_given_is_an_error)
{
	struct moek_problem problem = small_problem();
	struct moek_stack gate_up, down;
	struct moek_source source;
	struct moek_error error = { .text = "" };
	struct moek_expert expert;

	small_stacks(&gate_up, &down);
	ck_assert_int_eq(moek_tensors_source(NULL, &gate_up, &down, &source, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_tensors_source(&problem, NULL, &down, &source, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_tensors_source(&problem, &gate_up, NULL, &source, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_tensors_source(&problem, &gate_up, &down, NULL, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(
		moek_tensors_source(&problem, &gate_up, &down, &source, &error),
		MOEK_OK);
	ck_assert_int_eq(source.expert(source.self, 3, NULL, &expert, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text, "tensors: expert 3 of 3");
	moek_source_close(&source);
	moek_source_close(&source); /* is empty now */
	moek_source_close(NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tensors");
	TCase *tests = tcase_create("tensors");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, blocks_in_memory_are_the_layer_of_the_file);
	tcase_add_loop_test(tests, stacks_in_any_order_are_the_layer_of_the_file, 0, 6);
	tcase_add_test(tests, zero_points_follow_their_rows);
	tcase_add_test(tests, without_a_gate_all_rows_are_the_gate);
	tcase_add_test(tests, rows_at_an_odd_address_are_copied);
	tcase_add_loop_test(tests, stacks_that_do_not_fit_the_problem_are_refused, 0,
	                    (int)(sizeof(complaints) / sizeof(complaints[0])));
	tcase_add_test(tests, what_is_not_given_is_an_error);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
