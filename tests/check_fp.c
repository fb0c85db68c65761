/* SPDX-License-Identifier: MIT */
/* fp4 and fp8 experts one by one: Quark, compressed-tensors, DeepSeek. */
#include "config.h"

#include "core/codec.h"
#include "model.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#define EXPERTS "model.layers.0.mlp.experts."

static void configure(unsigned hidden, unsigned intermediate, const char *more)
{
	char text[2048];

	snprintf(text, sizeof(text), "\"quantization_config\":{%s}", more);
	write_config("qwen3_moe", hidden, intermediate, text);
}

static const char *const modules[] = { "gate_proj", "up_proj", "down_proj" };

/** "...experts.E.MODULE" + @suffix */
static const char *name_of(int i, const char *suffix)
{
	static char name[128];

	snprintf(name, sizeof(name), EXPERTS "%d.%s%s", i / 3, modules[i % 3], suffix);
	return name;
}

/* ---- fp4 ---- */

/* V-MX-2, then the first 32 columns of V-MX-3: neither repeats, so that swapped nibbles
 * and split halves show. */
static const uint8_t blocks[2][16] = {
	{ 0xa3, 0x81, 0x6f, 0x4d, 0x2b, 0x09, 0xe7, 0xc5, 0xf8, 0xd6, 0xb4, 0x92, 0x70,
	  0x5e, 0x3c, 0x1a },
	{ 0xca, 0x2c, 0x11, 0xc6, 0x3a, 0x25, 0x69, 0xda, 0x03, 0x40, 0x05, 0x22, 0xa3,
	  0x05, 0x57, 0x11 },
};
static const uint8_t block_scales[2] = { 0x7d, 0x77 };
static const float first[2][8] = {
	{ 0.375f, -0.25f, 0.125f, -0.0f, -1.5f, 1, -0.75f, 0.5f },
	{ -1 / 256.0f, -2 / 256.0f, -2 / 256.0f, 1 / 256.0f, 0.5f / 256, 0.5f / 256,
	  4 / 256.0f, -2 / 256.0f },
};

struct form {
	const char *config, *codes, *codes_dtype, *scales, *scales_dtype, *format;
	uint32_t activations;
};

#define QUARK(inputs)                                                                  \
	"\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":"   \
	"\"fp4\",\"group_size\":32,\"scale_format\":\"e8m0\"},\"input_"                \
	"tensors\":" inputs "}"
#define DYNAMIC(mode)                                                                  \
	"{\"dtype\":\"fp4\",\"is_dynamic\":true,\"scale_calculation_mode\":\"" mode    \
	"\"}"
#define CT(inputs)                                                                     \
	"\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\"," \
	"\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"num_"       \
	"bits\":4,"                                                                    \
	"\"type\":\"float\",\"group_size\":32},\"input_activations\":" inputs "}}"

static const struct form forms[] = {
	{ QUARK("null"), ".weight", "U8", ".weight_scale", "U8",
	  "quark mxfp4, activations a16", MOEK_A16 },
	{ QUARK(DYNAMIC("even")), ".weight", "U8", ".weight_scale", "U8",
	  "quark mxfp4, activations mxfp4_even", MOEK_A4_MXFP4_EVEN },
	{ CT("null"), ".weight_packed", "U8", ".weight_scale", "U8",
	  "compressed-tensors mxfp4, activations a16", MOEK_A16 },
	{ CT("{\"num_bits\":4,\"type\":\"float\",\"group_size\":32,\"dynamic\":true}"),
	  ".weight_packed", "U8", ".weight_scale", "U8",
	  "compressed-tensors mxfp4, activations mxfp4_even", MOEK_A4_MXFP4_EVEN },
	{ "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]", ".weight", "I8",
	  ".scale", "F8_E8M0", "deepseek mxfp4, activations a16", MOEK_A16 },
};

static float stored_scale = 0.25f, up_scale;
static int odd_scale; /* 1: 0xff of row 5, second block of expert 0's gate */

/** Experts of 32 x 64: rows of two blocks, in turns the first and the second first. */
static void add_fp4(const struct form *form, const char *input_scale_shape)
{
	struct kit_file file = { 0 };
	uint8_t codes[64][2][16], scales[64][2];

	for (int r = 0; r < 64; r++)
		for (int b = 0; b < 2; b++) {
			memcpy(codes[r][b], blocks[(r + b) % 2], 16);
			scales[r][b] = (uint8_t)(block_scales[(r + b) % 2] + r);
		}
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,64", NULL);
	for (int i = 0; i < 6; i++) {
		int is_down = i % 3 == 2; /* [64][32]: one block a row */

		kit_add(&file, name_of(i, form->codes), form->codes_dtype,
		        is_down ? "64,16" : "32,32", codes);
		if (odd_scale && i == 0)
			scales[5][1] = 0xff;
		kit_add(&file, name_of(i, form->scales), form->scales_dtype,
		        is_down ? "64,1" : "32,2", scales);
		scales[5][1] = (uint8_t)(block_scales[0] + 5);
		if (input_scale_shape != NULL)
			kit_add(&file, name_of(i, ".input_scale"), "F32",
			        input_scale_shape,
			        i == 1 && up_scale != 0 ? &up_scale : &stored_scale);
	}
	save(&file);
}

static void expect_fp4(const struct form *form, float input_scale)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	struct moek_problem problem = { .struct_size = MOEK_PROBLEM_SIZE_1_0 };
	struct moek_error error = { .text = "" };
	struct taken taken;

	moek_checkpoint_layer(checkpoint, 0, &info);
	moek_checkpoint_problem(checkpoint, 0, &problem);
	ck_assert_str_eq(info.format, form->format);
	ck_assert_uint_eq(problem.activations, form->activations);
	problem.max_tokens = 1;
	ck_assert_msg(moek_problem_check(&problem, &error) == MOEK_OK, "%s",
	              error.text);
	for (uint64_t e = 0; e < 2; e++) {
		ck_assert_msg(take(checkpoint, 0, e, &taken, &error) == MOEK_OK, "%s",
		              error.text);
		for (unsigned r = 0; r < 32; r++)
			for (unsigned c = 0; c < 64; c++) {
				unsigned which = (r + c / 32) % 2;
				float got = weight_at(&taken.expert.up, r, c);

				if (c % 32 < 8)
					ck_assert(got ==
					          first[which][c % 32] *
					                  (float)(UINT32_C(1) << r));
			}
		/* its rows are one block: row 3 is the second block of row 1 */
		ck_assert(weight_at(&taken.expert.down, 3, 5) == first[0][5] * 2);
		ck_assert(taken.expert.down.input_scale == input_scale);
		drop(&taken);
	}
	moek_checkpoint_close(checkpoint);
}

/** Of expert 0's gate. */
static float gate_at(uint64_t row, uint64_t column)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_error error = { .text = "" };
	struct taken taken;
	float weight;

	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_OK);
	weight = weight_at(&taken.expert.gate, row, column);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
	return weight;
}

START_TEST(reads_mxfp4_by_each_name)
{
	configure(64, 32, forms[_i].config);
	add_fp4(&forms[_i], NULL);
	expect_fp4(&forms[_i], 0);
}
END_TEST

START_TEST(static_inputs_bring_their_scale)
{
	struct form form = forms[0];

	form.config = QUARK("{\"dtype\":\"fp8_e4m3\",\"is_dynamic\":false}");
	form.format = "quark mxfp4, activations fp8_static";
	form.activations = MOEK_A8_FP8_STATIC;
	configure(64, 32, form.config);
	add_fp4(&form, "1");
	expect_fp4(&form, 0.25f);
	add_fp4(&form, "");
	expect_fp4(&form, 0.25f);
	add_fp4(&form, NULL);
	EXPECT_ERROR(MOEK_BAD_FILE, "no tensor " EXPERTS "0.gate_proj.input_scale");
}
END_TEST

START_TEST(an_input_scale_of_zero_is_an_error)
{
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };
	struct taken taken;

	configure(64, 32, QUARK("{\"dtype\":\"fp8_e4m3\",\"is_dynamic\":false}"));
	stored_scale = 0;
	add_fp4(&forms[0], "1");
	stored_scale = 0.25f;
	checkpoint = open_ok(folder);
	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "0.gate_proj.input_scale: found 0, "
	                                         "expected a number above 0"));
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(gate_and_up_share_their_input_scale)
{
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };
	struct taken taken;

	configure(64, 32, QUARK("{\"dtype\":\"fp8_e4m3\",\"is_dynamic\":false}"));
	up_scale = 0.5f;
	add_fp4(&forms[0], "1");
	up_scale = 0;
	checkpoint = open_ok(folder);
	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "0.up_proj.input_scale: found 0.5, "
	                                         "expected 0.25, as gate has"));
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_scale_of_ff_is_told_once_whatever_its_name)
{
	struct heard heard;
	char expected[128];

	odd_scale = 1;
	configure(64, 32, forms[_i].config);
	add_fp4(&forms[_i], NULL);
	odd_scale = 0;
	take_all_heard(&heard);
	ck_assert_uint_eq(heard.warnings, 1);
	snprintf(expected, sizeof(expected),
	         EXPERTS
	         "0.gate_proj: 1 of 64 scales are NaN or infinite: so are their "
	         "weights");
	ck_assert_str_eq(heard.last, expected);
	ck_assert_float_nan(gate_at(5, 40));
	ck_assert(gate_at(5, 31) == gate_at(5, 31));
	ck_assert(gate_at(6, 40) == gate_at(6, 40));
}
END_TEST

/* compressed-tensors: what else config_groups may say */
static const struct {
	const char *config, *format;
} group_configs[] = {
	{ "\"config_groups\":{\"MXFP4\":[\"Linear\"]}",
	  "compressed-tensors mxfp4, activations mxfp4_even" },
	{ "\"config_groups\":{\"MXFP4A16\":[\"Linear\"]}",
	  "compressed-tensors mxfp4, activations a16" },
	{ "\"format\":\"mixed-precision\",\"config_groups\":{\"a\":{\"weights\":{"
	  "\"num_bits\":8,\"type\":\"float\"},\"input_activations\":{\"num_bits\":8}},"
	  "\"b\":{\"weights\":{\"num_bits\":4,\"type\":\"float\",\"group_size\":32}}}",
	  "compressed-tensors mxfp4, activations a16" },
};

START_TEST(groups_of_other_weights_are_for_other_modules)
{
	struct form form = forms[2];
	char config[1024];

	snprintf(config, sizeof(config), "\"quant_method\":\"compressed-tensors\",%s",
	         group_configs[_i].config);
	form.format = group_configs[_i].format;
	form.activations = _i == 0 ? MOEK_A4_MXFP4_EVEN : MOEK_A16;
	configure(64, 32, config);
	add_fp4(&form, NULL);
	expect_fp4(&form, 0);
}
END_TEST

#define FP4_GROUP(inputs)                                                              \
	"{\"weights\":{\"num_bits\":4,\"type\":\"float\",\"group_size\":32},"          \
	"\"input_activations\":" inputs "}"

static const struct {
	const char *config, *says;
} group_refusals[] = {
	{ "\"format\":\"pack-quantized\",\"config_groups\":{}",
	  "format is pack-quantized, read is: mxfp4-pack-quantized" },
	{ "\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":4,\"type\":\"float\","
	  "\"group_size\":16}}}",
	  "no config_group has weights of type float, num_bits 4 and group_size 32" },
	{ "\"config_groups\":{\"W4A16\":[\"Linear\"]}", "no config_group has weights" },
	{ "\"config_groups\":{\"a\":" FP4_GROUP("null") ",\"b\":" FP4_GROUP(
		  "{\"num_bits\":8,\"type\":\"float\"}") "}",
	  "config_groups of MXFP4 differ in input_activations" },
	{ "\"config_groups\":{\"a\":" FP4_GROUP(
		  "{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}") "}",
	  "input_activations are not read" },
	{ "\"config_groups\":{\"a\":" FP4_GROUP(
		  "{\"num_bits\":4,\"type\":\"float\",\"group_size\":32}") "}",
	  "input_activations are not read" },
};

START_TEST(groups_that_do_not_fit_are_refused_by_name)
{
	char config[1024];

	snprintf(config, sizeof(config), "\"quant_method\":\"compressed-tensors\",%s",
	         group_refusals[_i].config);
	configure(64, 32, config);
	add_fp4(&forms[2], NULL);
	EXPECT_ERROR(MOEK_REFUSED, group_refusals[_i].says, "config.json");
}
END_TEST

START_TEST(the_first_glob_that_fits_says)
{
	struct form form = forms[0];
	char config[1024];

	snprintf(
		config, sizeof(config),
		"%s,\"layer_quant_config\":{\"*lm_head\":{},\"*experts*\":{\"weight\":{"
		"\"dtype\":\"fp4\",\"group_size\":32,\"scale_format\":\"e8m0\"},"
		"\"input_tensors\":" DYNAMIC("even") "}}",
		form.config);
	form.format = "quark mxfp4, activations mxfp4_even";
	form.activations = MOEK_A4_MXFP4_EVEN;
	configure(64, 32, config);
	add_fp4(&form, NULL);
	expect_fp4(&form, 0);
}
END_TEST

static const struct {
	const char *config;
	int32_t status;
	const char *says;
} refusals[] = {
	{ QUARK(DYNAMIC("ceil")), MOEK_REFUSED,
	  "scale_calculation_mode is ceil, read is: even" },
	{ QUARK("{\"dtype\":\"fp8_e4m3\",\"is_dynamic\":true}"), MOEK_REFUSED,
	  "input_tensors.dtype is fp8_e4m3, read is: fp4 and dynamic, or fp8_e4m3 and "
	  "static" },
	{ "\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":"
	  "\"int4\"}}",
	  MOEK_REFUSED, "weight.dtype is int4, read is: fp4" },
	{ "\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":"
	  "\"fp4\","
	  "\"group_size\":16,\"scale_format\":\"e8m0\"}}",
	  MOEK_REFUSED, "group_size is 16, read is: 32" },
	{ "\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":"
	  "\"fp4\","
	  "\"group_size\":32,\"scale_format\":\"float\"}}",
	  MOEK_REFUSED, "scale_format is float, read is: e8m0" },
	{ "\"quant_method\":\"quark\"", MOEK_REFUSED, "weight.dtype is missing" },
	{ "\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":"
	  "\"fp4\",\"group_size\":32,\"scale_format\":\"e8m0\"},\"output_tensors\":{}}",
	  MOEK_REFUSED, "output_tensors are not read" },
	{ CT("null"), MOEK_BAD_FILE,
	  "asks for pack-quantized int4 or int8, but the experts of layers.0 are "
	  "stored as "
	  "quark "
	  "mxfp4" },
};

START_TEST(a_variant_that_is_not_read_is_refused_by_name)
{
	configure(64, 32, refusals[_i].config);
	add_fp4(&forms[0], NULL);
	EXPECT_ERROR(refusals[_i].status, refusals[_i].says);
}
END_TEST

START_TEST(blocks_must_fill_the_columns)
{
	configure(64, 48, forms[0].config);
	add_fp4(&forms[0], NULL);
	EXPECT_ERROR(MOEK_BAD_FILE, "intermediate 48 is no multiple of 32");
}
END_TEST

START_TEST(scales_of_another_shape_are_named)
{
	struct form form = forms[0];
	struct kit_file file = { 0 };

	configure(64, 32, form.config);
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,64", NULL);
	for (int i = 0; i < 6; i++) {
		kit_add(&file, name_of(i, ".weight"), "U8",
		        i % 3 == 2 ? "64,16" : "32,32", NULL);
		/* turned: counted along the rows */
		kit_add(&file, name_of(i, ".weight_scale"), "U8",
		        i % 3 == 2 ? "1,64" : "2,32", NULL);
	}
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE, "0.gate_proj.weight_scale", "found U8 [2, 32]",
	             "expected U8 F8_E8M0 [32, 2]");
}
END_TEST

/* ---- fp8 ---- */

/* V-F8-1: 3 x 5 in tiles of 2 x 2, ragged both ways */
static const uint8_t tile_codes[15] = { 0x38, 0x40, 0x30, 0xb8, 0x38, 0x3c, 0x38, 0x38,
	                                0x38, 0xc0, 0x7e, 0x01, 0x38, 0x00, 0x34 };
static const float tile_scales[6] = { 2, 0.5f, 4, 0.25f, 1, 8 };
static const float tile_want[15] = { 2,    4,  0.25f, -0.5f,          4, 3, 2, 0.5f,
	                             0.5f, -8, 112,   0.00048828125f, 1, 0, 6 };

static int odd_code; /* 1: a NaN in down */
static const char *code_dtype = "F8_E4M3";

/** gate and up of 3 x 5; down of 5 x 3 is all ones with a scale of one. */
static void add_fp8(const char *suffix, const char *dtype, const char *shape,
                    const void *scales, const char *down_shape)
{
	struct kit_file file = { 0 };
	uint8_t ones[15];
	float unit[15];

	for (int i = 0; i < 15; i++) {
		ones[i] = 0x38;
		unit[i] = 1;
	}
	if (odd_code)
		ones[7] = 0xff;
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,5", NULL);
	for (int i = 0; i < 6; i++) {
		int is_down = i % 3 == 2;

		kit_add(&file, name_of(i, ".weight"), code_dtype,
		        is_down ? "5,3" : "3,5", is_down ? ones : tile_codes);
		kit_add(&file, name_of(i, suffix), is_down ? "F32" : dtype,
		        is_down ? down_shape : shape,
		        is_down ? (const void *)unit : scales);
	}
	save(&file);
}

static void expect_fp8(const float *want, const char *format)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	struct moek_error error = { .text = "" };
	static const float ones[3] = { 1, 1, 1 };
	struct taken taken;

	moek_checkpoint_layer(checkpoint, 0, &info);
	ck_assert_str_eq(info.format, format);
	ck_assert_msg(take(checkpoint, 0, 1, &taken, &error) == MOEK_OK, "%s",
	              error.text);
	for (unsigned r = 0; r < 3; r++)
		expect_row(&taken.expert.gate, r, want + 5 * r);
	expect_row(&taken.expert.down, 4, ones);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}

START_TEST(fp8_blocks_multiply_and_may_be_ragged)
{
	static const uint8_t e8m0[6] = { 128, 126, 129, 125, 127, 130 };
	const char *format = "fp8 e4m3, blocks of 2 x 2, read as fp32 rows";

	configure(5, 3, "\"quant_method\":\"fp8\",\"weight_block_size\":[2,2]");
	add_fp8(".weight_scale_inv", "F32", "2,3", tile_scales, "3,2");
	expect_fp8(tile_want, format);
	add_fp8(".weight_scale_inv", "U8", "2,3", e8m0, "3,2");
	expect_fp8(tile_want, format);
	add_fp8(".weight_scale_inv", "F32", "3,2", tile_scales, "3,2"); /* turned */
	EXPECT_ERROR(MOEK_BAD_FILE, "weight_scale_inv", "found F32 [3, 2]", "[2, 3]");
	configure(5, 3,
	          "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	          "\"weights\":{\"block_structure\":[2,2]}}}");
	add_fp8(".weight_scale", "F32", "2,3", tile_scales, "3,2");
	expect_fp8(tile_want, format);
}
END_TEST

START_TEST(fp8_scales_of_rows_and_of_the_tensor)
{
	static const float rows[3] = { 2, 0.5f, 0.25f }, all[1] = { 4 };
	float want[15];

	for (int i = 0; i < 15; i++)
		want[i] = moek_e4m3_to_f32(tile_codes[i]) * rows[i / 5];
	configure(5, 3, "\"quant_method\":\"compressed-tensors\",\"config_groups\":{}");
	add_fp8(".weight_scale", "F32", "3,1", rows, "5,1");
	expect_fp8(want, "fp8 e4m3, a scale for each row, read as fp32 rows");
	configure(5, 3, "\"quant_method\":\"fp8\"");
	for (int i = 0; i < 15; i++)
		want[i] = moek_e4m3_to_f32(tile_codes[i]) * 4;
	add_fp8(".weight_scale", "F32", "1", all, "1");
	expect_fp8(want, "fp8 e4m3, a scale for each tensor, read as fp32 rows");
	add_fp8(".weight_scale", "F32", "", all, "");
	expect_fp8(want, "fp8 e4m3, a scale for each tensor, read as fp32 rows");
}
END_TEST

START_TEST(fp8_that_is_odd_or_asks_for_more_is_told)
{
	static const float odd[3] = { 2, 0, 0.25f }, rows[3] = { 2, 0.5f, 0.25f };
	static const uint8_t nan[6] = { 128, 126, 255, 125, 127, 130 };
	struct heard heard;

	configure(5, 3, "\"quant_method\":\"compressed-tensors\",\"config_groups\":{}");
	add_fp8(".weight_scale", "F32", "3,1", odd, "5,1");
	take_all_heard(&heard);
	ck_assert_uint_eq(heard.warnings, 1);
	ck_assert_ptr_nonnull(strstr(heard.last,
	                             "0.gate_proj.weight: 1 of 3 scales are "
	                             "zero"));
	configure(5, 3, "\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"");
	add_fp8(".weight_scale", "F32", "3,1", rows, "5,1");
	take_all_heard(&heard);
	ck_assert_uint_eq(heard.warnings, 1);
	ck_assert_ptr_nonnull(strstr(heard.last, "asks for dynamic fp8 inputs"));
	configure(5, 3, "\"quant_method\":\"fp8\",\"weight_block_size\":[2,2]");
	add_fp8(".weight_scale_inv", "U8", "2,3", nan, "3,2");
	take_all_heard(&heard);
	ck_assert_uint_eq(heard.warnings, 1);
	ck_assert_ptr_nonnull(strstr(heard.last, "1 of 6 scales are NaN"));
	odd_code = 1;
	add_fp8(".weight_scale_inv", "F32", "2,3", tile_scales, "3,2");
	odd_code = 0;
	take_all_heard(&heard);
	ck_assert_uint_eq(heard.warnings, 1);
	ck_assert_ptr_nonnull(strstr(heard.last, "0.down_proj.weight: 1 of 15 weights "
	                                         "are NaN"));
}
END_TEST

START_TEST(fp8_of_another_kind_is_named)
{
	configure(5, 3, "\"quant_method\":\"fp8\",\"weight_block_size\":[2,2]");
	code_dtype = "F8_E5M2";
	add_fp8(".weight_scale_inv", "F32", "2,3", tile_scales, "3,2");
	code_dtype = "F8_E4M3";
	EXPECT_ERROR(MOEK_BAD_FILE, "model.safetensors: tensor " EXPERTS
	                            "0.gate_proj.weight: found F8_E5M2 [3, 5], "
	                            "expected F8_E4M3 [3, 5]");
}
END_TEST

START_TEST(a_block_size_that_is_none_is_named)
{
	add_fp8(".weight_scale_inv", "F32", "2,3", tile_scales, "3,2");
	configure(5, 3, "\"quant_method\":\"fp8\",\"weight_block_size\":[0,2]");
	EXPECT_ERROR(MOEK_BAD_FILE, "weight_block_size is not two numbers");
	configure(5, 3, "\"quant_method\":\"fp8\",\"weight_block_size\":[2]");
	EXPECT_ERROR(MOEK_BAD_FILE, "weight_block_size is not two numbers");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("fp");
	TCase *tests = tcase_create("fp");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, reads_mxfp4_by_each_name, 0,
	                    (int)(sizeof(forms) / sizeof(forms[0])));
	tcase_add_test(tests, static_inputs_bring_their_scale);
	tcase_add_test(tests, an_input_scale_of_zero_is_an_error);
	tcase_add_test(tests, gate_and_up_share_their_input_scale);
	tcase_add_loop_test(tests, a_scale_of_ff_is_told_once_whatever_its_name, 0,
	                    (int)(sizeof(forms) / sizeof(forms[0])));
	tcase_add_loop_test(tests, groups_of_other_weights_are_for_other_modules, 0,
	                    (int)(sizeof(group_configs) / sizeof(group_configs[0])));
	tcase_add_loop_test(tests, groups_that_do_not_fit_are_refused_by_name, 0,
	                    (int)(sizeof(group_refusals) / sizeof(group_refusals[0])));
	tcase_add_test(tests, the_first_glob_that_fits_says);
	tcase_add_loop_test(tests, a_variant_that_is_not_read_is_refused_by_name, 0,
	                    (int)(sizeof(refusals) / sizeof(refusals[0])));
	tcase_add_test(tests, blocks_must_fill_the_columns);
	tcase_add_test(tests, scales_of_another_shape_are_named);
	tcase_add_test(tests, fp8_blocks_multiply_and_may_be_ragged);
	tcase_add_test(tests, fp8_scales_of_rows_and_of_the_tensor);
	tcase_add_test(tests, fp8_that_is_odd_or_asks_for_more_is_told);
	tcase_add_test(tests, fp8_of_another_kind_is_named);
	tcase_add_test(tests, a_block_size_that_is_none_is_named);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
