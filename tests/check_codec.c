/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/codec.h"
#include "model.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>
#include <moek/moek.h>

/* ---- compressed-tensors ---- */

#define EXPERTS "model.layers.0.mlp.experts."

/** quantization_config of one group with these weights. */
static const char *packed_config(const char *weights)
{
	static char text[1024];

	snprintf(text, sizeof(text),
	         "\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
	         "\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{"
	         "\"targets\":[\"Linear\"],\"input_activations\":null,\"weights\":{%s}}"
	         "}}",
	         weights);
	return text;
}

/** The tensors of one packed matrix; NULL: filled with a pattern. */
struct packed {
	const char *module; /* "0.gate_proj" */
	unsigned rows, columns, groups;
	const uint32_t *codes, *zeros, *order;
	const char *scale_dtype;
	const void *scales;
	int no_shape, wide_shape;
	unsigned pack;            /* codes in a word; 0: 8 */
	const void *other_scales; /* of the model's other matrices */
};

static void add_packed(struct kit_file *file, const struct packed *p)
{
	const int32_t narrow[2] = { (int32_t)p->rows, (int32_t)p->columns };
	const int64_t wide[2] = { p->rows, p->columns };
	unsigned pack = p->pack != 0 ? p->pack : 8;
	char name[128];

	snprintf(name, sizeof(name), EXPERTS "%s.weight_packed", p->module);
	add_sized(file, name, "I32", p->codes, 2, p->rows,
	          (p->columns + pack - 1) / pack, 0, 0);
	snprintf(name, sizeof(name), EXPERTS "%s.weight_scale", p->module);
	add_sized(file, name, p->scale_dtype != NULL ? p->scale_dtype : "BF16",
	          p->scales, 2, p->rows, p->groups, 0, 0);
	if (p->zeros != NULL) {
		snprintf(name, sizeof(name), EXPERTS "%s.weight_zero_point", p->module);
		add_sized(file, name, "I32", p->zeros, 2, (p->rows + pack - 1) / pack,
		          p->groups, 0, 0);
	}
	if (p->order != NULL) {
		snprintf(name, sizeof(name), EXPERTS "%s.weight_g_idx", p->module);
		add_sized(file, name, "I32", p->order, 1, p->columns, 0, 0, 0);
	}
	if (p->no_shape)
		return;
	snprintf(name, sizeof(name), EXPERTS "%s.weight_shape", p->module);
	kit_add(file, name, p->wide_shape ? "I64" : "I32", "2",
	        p->wide_shape ? (const void *)wide : narrow);
}

/** A whole packed model around @gate, which is expert 0's: the others take its form. */
static void add_packed_model(struct kit_file *file, const struct packed *gate,
                             unsigned group)
{
	static const uint32_t filler[64] = { 0 };
	unsigned hidden = gate->columns, intermediate = gate->rows;

	add_sized(file, "model.layers.0.mlp.gate.weight", "BF16", NULL, 2, 2, hidden, 0,
	          0);
	add_packed(file, gate);
	for (unsigned i = 1; i < 6; i++) {
		static const char *const modules[6] = { "0.gate_proj", "0.up_proj",
			                                "0.down_proj", "1.gate_proj",
			                                "1.up_proj",   "1.down_proj" };
		int is_down = i % 3 == 2;
		struct packed p = {
			.module = modules[i],
			.rows = is_down ? hidden : intermediate,
			.columns = is_down ? intermediate : hidden,
			.zeros = gate->zeros != NULL ? filler : NULL,
			.order = gate->order != NULL ? filler : NULL,
			.scale_dtype = gate->scale_dtype,
			.no_shape = gate->no_shape,
			.wide_shape = gate->wide_shape,
			.pack = gate->pack,
			.scales = gate->other_scales,
		};

		p.groups = group == 0 ? 1 : (p.columns + group - 1) / group;
		add_packed(file, &p);
	}
}

static void expect_gate(const float *rows, unsigned count)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_error error = { .text = "" };
	struct taken taken;

	ck_assert_msg(take(checkpoint, 0, 0, &taken, &error) == MOEK_OK, "%s",
	              error.text);
	ck_assert_uint_ge(taken.expert.gate.rows, count);
	for (unsigned r = 0; r < count; r++)
		expect_row(&taken.expert.gate, r, rows + r * taken.expert.gate.columns);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}

static const uint32_t ct1_codes[4] = { 0xfea98710, 0xf0883d5b, 0x76543210, 0xfedcba98 };
static const uint16_t ct1_bf16[4] = { 0x3f00, 0x3e80, 0x3f80, 0x3e00 };
static const uint16_t ct1_f16[4] = { 0x3800, 0x3400, 0x3c00, 0x3000 };
static const float ct1_f32[4] = { 0.5f, 0.25f, 1.0f, 0.125f };
static const float ct1_want[32] = {
	-4,     -3.5f, -.5f, 0,     .5f,   1,     3,   3.5f,  .75f, -.75f, 1.25f,
	-1.25f, 0,     0,    -2,    1.75f, -8,    -7,  -6,    -5,   -4,    -3,
	-2,     -1,    0,    .125f, .25f,  .375f, .5f, .625f, .75f, .875f
};

START_TEST(packed_symmetric_codes) /* V-CT-1, with each type of scale */
{
	static const struct {
		const char *dtype;
		const void *scales;
	} scales[] = { { "BF16", ct1_bf16 }, { "F16", ct1_f16 }, { "F32", ct1_f32 } };
	struct packed gate = {
		.module = "0.gate_proj", .rows = 2, .columns = 16, .groups = 2
	};
	struct kit_file file = { 0 };

	gate.codes = ct1_codes;
	gate.scale_dtype = scales[_i].dtype;
	gate.scales = scales[_i].scales;
	gate.wide_shape = _i == 1;
	gate.no_shape = _i == 2;
	write_config("qwen3_moe", 16, 2,
	             packed_config("\"num_bits\":4,\"group_size\":8"));
	add_packed_model(&file, &gate, 8);
	save(&file);
	expect_gate(ct1_want, 2);
}
END_TEST

START_TEST(packed_rows_that_end_inside_a_word) /* V-CT-2, EX-CT1; short last groups */
{
	static const uint32_t codes[4] = { 0x0fedcba9, 0x00000087, 0xa4bf9870,
		                           0x0000003d };
	static const float scales[4] = { 1, 2, .5f, 4 };
	static const float want[20] = { 1,  2,    3, 4,   5,    6,    7,  -8, -2, 0,
		                        -4, -.5f, 0, .5f, 3.5f, 1.5f, -2, 1,  20, -20 };
	const struct packed gate = { .module = "0.gate_proj",
		                     .rows = 2,
		                     .columns = 10,
		                     .groups = 2,
		                     .codes = codes,
		                     .scale_dtype = "F32",
		                     .scales = scales };
	struct kit_file file = { 0 };

	write_config("qwen3_moe", 10, 2,
	             packed_config("\"num_bits\":4,\"group_size\":8"));
	add_packed_model(&file, &gate, 8);
	save(&file);
	expect_gate(want, 2);
}
END_TEST

START_TEST(packed_channel_scales)
{
	static const uint32_t codes[2] = { 0xfea98710, 0xf0883d5b };
	static const float scale[1] = { 0.5f };
	static const float want[16] = { -4,   -3.5f, -.5f, 0,     .5f, 1, 3,  3.5f,
		                        1.5f, -1.5f, 2.5f, -2.5f, 0,   0, -4, 3.5f };
	static const char *const weights[] = {
		"\"num_bits\":4,\"strategy\":\"channel\",\"group_size\":null",
		"\"num_bits\":4,\"group_size\":-1",
		"\"num_bits\":4,\"group_size\":32", /* wider than a row */
	};
	const struct packed gate = { .module = "0.gate_proj",
		                     .rows = 1,
		                     .columns = 16,
		                     .groups = 1,
		                     .codes = codes,
		                     .scale_dtype = "F32",
		                     .scales = scale };
	struct kit_file file = { 0 };

	write_config("qwen3_moe", 16, 1, packed_config(weights[_i]));
	add_packed_model(&file, &gate, 0);
	save(&file);
	expect_gate(want, 1);
}
END_TEST

/** int8: four codes a word; the rows end inside one. */
START_TEST(packed_eight_bits) /* V-CT-5 */
{
	static const uint32_t codes[4] = { 0xff807f00, 0x00008281, 0x03020100,
		                           0x0000feff };
	static const uint32_t zeros[2] = { 0x0000ff80, 0x00000a00 };
	static const float scales[4] = { 0.5f, 2, 1, 0.25f };
	static const float symmetric[12] = { -64,  -0.5f, 0,    63.5f, 2,      4,
		                             -128, -127,  -126, -125,  31.75f, 31.5f };
	static const float asymmetric[12] = { -64,  -0.5f, 0,    63.5f, 258,    260,
		                              -255, -254,  -253, -252,  61.25f, 61 };
	struct packed gate = { .module = "0.gate_proj",
		               .rows = 2,
		               .columns = 6,
		               .groups = 2,
		               .pack = 4,
		               .codes = codes,
		               .scale_dtype = "F32",
		               .scales = scales };
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	struct moek_checkpoint *checkpoint;
	struct kit_file file = { 0 };

	write_config("qwen3_moe", 6, 2,
	             packed_config("\"num_bits\":8,\"group_size\":4"));
	add_packed_model(&file, &gate, 4);
	save(&file);
	expect_gate(symmetric, 2);
	checkpoint = open_ok(folder);
	moek_checkpoint_layer(checkpoint, 0, &info);
	ck_assert_str_eq(info.format, "compressed-tensors int8, group 4");
	moek_checkpoint_close(checkpoint);

	/* row 0: 0x80 and 0x00; row 1: 0xff and 0x0a */
	gate.zeros = zeros;
	add_packed_model(&file, &gate, 4);
	save(&file);
	write_config("qwen3_moe", 6, 2,
	             packed_config("\"num_bits\":8,\"group_size\":4,"
	                           "\"symmetric\":false"));
	expect_gate(asymmetric, 2);
	write_config("qwen3_moe", 6, 2,
	             packed_config("\"num_bits\":4,\"group_size\":4,"
	                           "\"symmetric\":false"));
	EXPECT_ERROR(MOEK_BAD_FILE, "0.gate_proj.weight_packed: found I32 [2, 2], "
	                            "expected I32 [2, 1]");
}
END_TEST

START_TEST(packed_eight_bits_have_four_zero_points_a_word)
{
	static const uint32_t codes[6] = { 0x03020100, 0x03020100, 0x03020100,
		                           0x03020100, 0x03020100, 0x03020100 };
	/* of the first group, then of the second; rows 0 to 3, then 4 and 5 */
	static const uint32_t zeros[4] = { 0x04030201, 0x14131211, 0x00000605,
		                           0x00001615 };
	static const float ones[12] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
	const struct packed gate = { .module = "0.gate_proj",
		                     .rows = 6,
		                     .columns = 4,
		                     .groups = 2,
		                     .pack = 4,
		                     .codes = codes,
		                     .zeros = zeros,
		                     .scale_dtype = "F32",
		                     .scales = ones };
	struct kit_file file = { 0 };
	float want[24];

	for (int i = 0; i < 24; i++)
		want[i] = (float)(i % 4 - (1 + i / 4) - (i % 4 / 2 * 16));
	add_packed_model(&file, &gate, 2);
	save(&file);
	write_config("qwen3_moe", 4, 6,
	             packed_config("\"num_bits\":8,\"group_size\":2,"
	                           "\"symmetric\":false"));
	expect_gate(want, 6);
	/* four columns fill one word of either */
	write_config(
		"qwen3_moe", 4, 6,
		packed_config("\"num_bits\":8,\"group_size\":2,\"symmetric\":false}"
	                      "},\"group_1\":{\"weights\":{\"num_bits\":4,"
	                      "\"group_size\":2,\"symmetric\":false"));
	EXPECT_ERROR(MOEK_REFUSED, "several config_groups fit the experts of layers.0");
}
END_TEST

/** A scale that is no number, or none at all, is told once with its count. */
START_TEST(packed_scales_that_are_odd_are_counted)
{
	static const uint16_t odd[2][4] = { { 0x3f80, 0x7fc0, 0xff80, 0x3f80 },
		                            { 0x3f80, 0x0000, 0x3f80, 0x8000 } };
	static const char *const says[2] = { "are NaN or infinite", "are zero" };
	static uint16_t ones[64];
	struct kit_file file = { 0 };
	struct heard heard;
	char expected[128];

	for (int i = 0; i < 64; i++)
		ones[i] = 0x3f80;
	write_config("qwen3_moe", 16, 2,
	             packed_config("\"num_bits\":4,\"group_size\":8"));
	for (int i = 0; i < 2; i++) {
		const struct packed gate = { .module = "0.gate_proj",
			                     .rows = 2,
			                     .columns = 16,
			                     .groups = 2,
			                     .scales = odd[i],
			                     .other_scales = ones };

		add_packed_model(&file, &gate, 8);
		save(&file);
		take_all_heard(&heard);
		ck_assert_uint_eq(heard.warnings, 1);
		snprintf(expected, sizeof(expected),
		         EXPERTS "0.gate_proj: 2 of 4 scales %s: so are their weights",
		         says[i]);
		ck_assert_str_eq(heard.last, expected);
	}
}
END_TEST

START_TEST(packed_zero_points) /* V-CT-3 */
{
	static const uint32_t zeros[2] = { 0x6a7f9850, 0x0000003d };
	static const uint8_t zero_of[10] = { 0, 5, 8, 9, 15, 7, 10, 6, 13, 3 };
	float scales[10], want[80];
	struct packed gate = { .module = "0.gate_proj",
		               .rows = 10,
		               .columns = 8,
		               .groups = 1,
		               .zeros = zeros,
		               .scale_dtype = "F32" };
	struct kit_file file = { 0 };

	/* row 1: q -8, 0, 7, 3 is stored 0, 8, 15, 11 */
	uint32_t row[10] = { 0, 0x0000bf80 };

	for (unsigned r = 0; r < 10; r++) {
		scales[r] = 0.5f;
		for (unsigned c = 0; c < 8; c++)
			want[r * 8 + c] = ((float)(row[r] >> 4 * c & 15) -
			                   (float)zero_of[r]) *
			                  0.5f;
	}
	ck_assert_float_eq(want[8], -2.5f);
	ck_assert_float_eq(want[9], 1.5f);
	ck_assert_float_eq(want[10], 5);
	ck_assert_float_eq(want[11], 3);
	gate.codes = row;
	gate.scales = scales;
	write_config(
		"qwen3_moe", 8, 10,
		packed_config("\"num_bits\":4,\"group_size\":8,\"symmetric\":false"));
	add_packed_model(&file, &gate, 8);
	save(&file);
	expect_gate(want, 10);
}
END_TEST

START_TEST(packed_activation_order) /* V-CT-4, and -1: nothing was set */
{
	static const uint32_t codes[1] = { 0xfca97640 };
	static const uint32_t orders[2][8] = { { 1, 0, 0, 1, 1, 0, 1, 0 },
		                               { UINT32_MAX, 0, 0, 1, 1, 0, 1, 0 } };
	static const float scales[2] = { 0.5f, 2 };
	static const float want[2][8] = { { -16, -2, -1, -2, 2, 1, 8, 3.5f },
		                          { -4, -2, -1, -.5f, 2, 4, 8, 14 } };
	const struct packed gate = { .module = "0.gate_proj",
		                     .rows = 1,
		                     .columns = 8,
		                     .groups = 2,
		                     .codes = codes,
		                     .order = orders[_i],
		                     .scale_dtype = "F32",
		                     .scales = scales };
	struct kit_file file = { 0 };

	write_config("qwen3_moe", 8, 1,
	             packed_config(
			     "\"num_bits\":4,\"group_size\":4,\"actorder\":\"group\""));
	add_packed_model(&file, &gate, 4);
	save(&file);
	expect_gate(want[_i], 1);
}
END_TEST

START_TEST(a_column_of_no_group_is_an_error)
{
	static const uint32_t order[8] = { 0, 1, 2, 0, 0, 0, 0, 0 };
	const struct packed gate = { .module = "0.gate_proj",
		                     .rows = 1,
		                     .columns = 8,
		                     .groups = 2,
		                     .order = order };
	struct moek_error error = { .text = "" };
	struct moek_checkpoint *checkpoint;
	struct kit_file file = { 0 };
	struct taken taken;

	write_config(
		"qwen3_moe", 8, 1,
		packed_config("\"num_bits\":4,\"group_size\":4,\"actorder\":true"));
	add_packed_model(&file, &gate, 4);
	save(&file);
	checkpoint = open_ok(folder);
	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text,
	                             "0.gate_proj.weight_g_idx: column 2 has "
	                             "group 2, expected 0 .. 1"));
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_shape_that_contradicts_the_config_is_an_error)
{
	const int64_t shape[2] = { 2, 24 };
	struct packed gate = { .module = "0.gate_proj",
		               .rows = 2,
		               .columns = 16,
		               .groups = 2,
		               .no_shape = 1 };
	struct moek_error error = { .text = "" };
	struct moek_checkpoint *checkpoint;
	struct kit_file file = { 0 };
	struct taken taken;

	write_config("qwen3_moe", 16, 2,
	             packed_config("\"num_bits\":4,\"group_size\":8"));
	add_packed_model(&file, &gate, 8);
	kit_add(&file, EXPERTS "0.gate_proj.weight_shape", "I64", "2", shape);
	save(&file);
	checkpoint = open_ok(folder);
	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text,
	                             "0.gate_proj.weight_shape: holds [2, 24], "
	                             "expected [2, 16]"));
	drop(&taken);
	ck_assert_int_eq(take(checkpoint, 0, 1, &taken, &error), MOEK_OK);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

static const struct refusal {
	const char *config; /* inside quantization_config */
	uint32_t rule;
	const char *says;
} refusals[] = {
	{ "\"quant_method\":\"bitsandbytes\"", MOEK_RULE_WEIGHT, "\"bitsandbytes\"" },
	{ "\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\"",
	  MOEK_RULE_WEIGHT,
	  "format is not read, only pack-quantized is: nvfp4-pack-quantized" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"format\":"
	  "\"mxfp4-pack-quantized\"}}",
	  MOEK_RULE_WEIGHT, "mxfp4-pack-quantized" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"W8A8\":["
	  "\"Linear\"]}",
	  MOEK_RULE_WEIGHT, "preset is not read: W8A8" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"weights\":{"
	  "\"num_bits\":3,\"group_size\":8}}}",
	  MOEK_RULE_WEIGHT, "num_bits is not read, only 4 and 8 are: 3" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"weights\":{"
	  "\"num_bits\":4,\"type\":\"float\"}}}",
	  MOEK_RULE_WEIGHT, "type is not read, only int is: float" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"weights\":{"
	  "\"num_bits\":4,\"strategy\":\"tensor\"}}}",
	  MOEK_RULE_GROUP_SIZE,
	  "strategy is not read, only group and channel are: tensor" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"weights\":{"
	  "\"num_bits\":4,\"strategy\":\"group\",\"group_size\":0}}}",
	  MOEK_RULE_GROUP_SIZE, "group_size is not in" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"weights\":{"
	  "\"num_bits\":4}}}",
	  MOEK_RULE_GROUP_SIZE, "group_size is not in" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"weights\":{"
	  "\"num_bits\":4,\"group_size\":8,\"actorder\":\"odd\"}}}",
	  MOEK_RULE_COLUMN_GROUPS, "actorder is not known: odd" },
	{ "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"
	  "\"input_activations\":{\"num_bits\":8},\"weights\":{\"num_bits\":4}}}",
	  MOEK_RULE_ACTIVATIONS, "quantised activations" },
	{ "\"quant_method\":\"compressed-tensors\",\"sparsity_config\":{\"format\":"
	  "\"sparse-24-bitmask\"}",
	  MOEK_RULE_WEIGHT, "sparse-24-bitmask" },
	{ "\"quant_method\":\"compressed-tensors\",\"transform_config\":{\"config_"
	  "groups\":{}}",
	  MOEK_RULE_WEIGHT, "rotated weights" },
};

START_TEST(a_variant_that_is_not_read_is_refused_by_name)
{
	const struct packed gate = {
		.module = "0.gate_proj", .rows = 2, .columns = 16, .groups = 2
	};
	struct moek_error error = { .text = "" };
	struct kit_file file = { 0 };
	char config[1024];

	snprintf(config, sizeof(config), "\"quantization_config\":{%s}",
	         refusals[_i].config);
	write_config("qwen3_moe", 16, 2, config);
	add_packed_model(&file, &gate, 8);
	save(&file);
	ck_assert_int_eq(open_here(&error), MOEK_REFUSED);
	ck_assert_uint_eq(error.rule, refusals[_i].rule);
	ck_assert_msg(strstr(error.text, refusals[_i].says) != NULL, "%s", error.text);
	ck_assert_ptr_nonnull(strstr(error.text, "config.json"));
}
END_TEST

START_TEST(the_tensors_tell_which_group_is_meant)
{
	static const char groups[] =
		"\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
		"\"config_groups\":{"
		"\"z\":{\"weights\":{\"num_bits\":3,\"group_size\":8}},"
		"\"a\":{\"targets\":[\"re:.*attn.*\"],\"weights\":{\"num_bits\":8,"
		"\"group_size\":8}},"
		"\"b\":{\"targets\":[\"re:.*mlp.*\"],\"weights\":{\"num_bits\":4,"
		"\"group_size\":%s}},"
		"\"c\":{\"targets\":[\"x\"],\"weights\":{\"num_bits\":4,\"group_size\":"
		"%s}}}}";
	const struct packed gate = { .module = "0.gate_proj",
		                     .rows = 2,
		                     .columns = 16,
		                     .groups = 2,
		                     .codes = ct1_codes,
		                     .scale_dtype = "F32",
		                     .scales = ct1_f32 };
	struct kit_file file = { 0 };
	char config[1024];

	add_packed_model(&file, &gate, 8);
	save(&file);
	snprintf(config, sizeof(config), groups, "8", "4");
	write_config("qwen3_moe", 16, 2, config);
	expect_gate(ct1_want, 2);
	snprintf(config, sizeof(config), groups, "4", "2");
	write_config("qwen3_moe", 16, 2, config);
	EXPECT_ERROR(MOEK_REFUSED, "num_bits is not read, only 4 and 8 are: 3");
	snprintf(config, sizeof(config), groups, "8", "12"); /* both have two groups */
	write_config("qwen3_moe", 16, 2, config);
	EXPECT_ERROR(MOEK_REFUSED, "several config_groups fit the experts of layers.0");
}
END_TEST

START_TEST(what_the_scheme_does_not_have_may_not_be_there)
{
	static const uint32_t some[16] = { 0 };
	struct packed gate = {
		.module = "0.gate_proj", .rows = 2, .columns = 16, .groups = 2
	};
	struct kit_file file = { 0 };

	write_config("qwen3_moe", 16, 2,
	             packed_config("\"num_bits\":4,\"group_size\":8"));
	gate.zeros = some;
	add_packed_model(&file, &gate, 8);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "model.safetensors: tensor " EXPERTS
	             "0.gate_proj.weight_zero_point: found I32 [1, 2], expected none");
	gate.zeros = NULL;
	gate.order = some;
	add_packed_model(&file, &gate, 8);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE, "weight_g_idx: found I32 [16], expected none");
	gate.order = NULL;
	add_packed_model(&file, &gate, 8);
	kit_add(&file, EXPERTS "1.up_proj.bias", "BF16", "2", NULL);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE, "1.up_proj.bias: found BF16 [2], expected none");
}
END_TEST

START_TEST(the_group_size_is_declared_never_inferred)
{
	const struct packed gate = {
		.module = "0.gate_proj", .rows = 2, .columns = 16, .groups = 2
	};
	struct kit_file file = { 0 };

	add_packed_model(&file, &gate, 8);
	save(&file);
	write_config("qwen3_moe", 16, 2,
	             packed_config("\"num_bits\":4,\"group_size\":4"));
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "tensor " EXPERTS "0.gate_proj.weight_scale: found BF16 [2, 2], "
	             "expected BF16 F16 F32 [2, 4]");
}
END_TEST

/* ---- plain rows, and every family ---- */

/** The weight of a part, exact in bf16 and different from its neighbours. */
static float value_of(unsigned expert, int part, unsigned row, unsigned column)
{
	return (float)((expert * 101 + (unsigned)part * 53 + row * 7 + column * 3) %
	               127) -
	       63.0f;
}

/** Where a stack or one matrix keeps its rows. */
struct shape {
	int is_stack, is_turned, order;
};

static void add_values(struct kit_file *file, const char *name, unsigned expert,
                       int part, const struct shape *shape, unsigned hidden,
                       unsigned intermediate)
{
	int has_both = shape->is_stack && part != MOEK_PART_DOWN;
	unsigned rows = (part == MOEK_PART_DOWN ? hidden : intermediate) *
	                (has_both ? 2 : 1);
	unsigned columns = part == MOEK_PART_DOWN ? intermediate : hidden;
	unsigned experts = shape->is_stack ? 2 : 1;
	uint16_t *data = calloc((size_t)experts * rows * columns, sizeof(*data));

	for (unsigned e = 0; e < experts; e++)
		for (unsigned r = 0; r < rows; r++)
			for (unsigned c = 0; c < columns; c++) {
				int is_up = has_both &&
				            (shape->order == MOEK_GATE_INTERLEAVED
				                     ? r % 2 == 1
				                     : r >= intermediate);
				unsigned row = !has_both ? r
				               : shape->order == MOEK_GATE_INTERLEAVED
				                       ? r / 2
				                       : r % intermediate;
				float value = value_of(shape->is_stack ? e : expert,
				                       is_up ? MOEK_PART_UP : part, row,
				                       c);
				size_t at = shape->is_turned
				                    ? ((size_t)e * columns + c) * rows +
				                              r
				                    : ((size_t)e * rows + r) * columns +
				                              c;

				data[at] = moek_bf16_from_f32(value);
			}
	if (shape->is_stack)
		add_sized(file, name, "BF16", data, 3, 2,
		          shape->is_turned ? columns : rows,
		          shape->is_turned ? rows : columns, 0);
	else
		add_sized(file, name, "BF16", data, 2, rows, columns, 0, 0);
	free(data);
}

static void expect_values(unsigned expert, unsigned hidden, unsigned intermediate)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_error error = { .text = "" };
	struct taken taken;
	const struct moek_matrix *parts[3] = { &taken.expert.gate, &taken.expert.up,
		                               &taken.expert.down };

	ck_assert_uint_eq(moek_checkpoint_layers(checkpoint), 1);
	ck_assert_msg(take(checkpoint, 0, expert, &taken, &error) == MOEK_OK, "%s",
	              error.text);
	for (int part = 0; part < MOEK_PARTS; part++) {
		const struct moek_matrix *m = parts[part];

		ck_assert_uint_eq(m->weight, MOEK_BF16);
		ck_assert_uint_eq(m->rows,
		                  part == MOEK_PART_DOWN ? hidden : intermediate);
		ck_assert_uint_eq(m->columns,
		                  part == MOEK_PART_DOWN ? intermediate : hidden);
		ck_assert_uint_eq(m->group_size, m->columns);
		ck_assert_uint_eq((uintptr_t)m->codes % 2, 0);
		ck_assert_ptr_null(m->scales);
		for (unsigned r = 0; r < m->rows; r++)
			for (unsigned c = 0; c < m->columns; c++)
				ck_assert_float_eq(weight_at(m, r, c),
				                   value_of(expert, part, r, c));
	}
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}

static const struct family_case {
	const char *type;
	const char *root;       /* "model.layers.0." */
	const char *modules[3]; /* gate, up, down below the layer; %u: the expert; up
	                           NULL: stacked */
	const char *router;
	const char *correction;
	int router_bias;
	struct shape shape;
} families[] = {
	{ "mixtral",
	  "model.",
	  { "block_sparse_moe.experts.%u.w1.weight",
	    "block_sparse_moe.experts.%u.w3.weight",
	    "block_sparse_moe.experts.%u.w2.weight" },
	  "block_sparse_moe.gate.weight",
	  NULL,
	  0,
	  { 0, 0, 0 } },
#define LINEAR                                                                         \
	{                                                                              \
		"mlp.experts.%u.gate_proj.weight", "mlp.experts.%u.up_proj.weight",    \
			"mlp.experts.%u.down_proj.weight"                              \
	}
	{ "qwen2_moe", "model.", LINEAR, "mlp.gate.weight", NULL, 0, { 0, 0, 0 } },
	{ "qwen3_moe", "model.", LINEAR, "mlp.gate.weight", NULL, 0, { 0, 0, 0 } },
	{ "qwen3_next", "model.", LINEAR, "mlp.gate.weight", NULL, 0, { 0, 0, 0 } },
	{ "olmoe", "model.", LINEAR, "mlp.gate.weight", NULL, 0, { 0, 0, 0 } },
	{ "deepseek_v2", "model.", LINEAR, "mlp.gate.weight", NULL, 0, { 0, 0, 0 } },
	{ "deepseek_v3",
	  "model.",
	  LINEAR,
	  "mlp.gate.weight",
	  "mlp.gate.e_score_correction_bias",
	  0,
	  { 0, 0, 0 } },
	{ "kimi_k2",
	  "language_model.model.",
	  LINEAR,
	  "mlp.gate.weight",
	  "mlp.gate.e_score_correction_bias",
	  0,
	  { 0, 0, 0 } },
	{ "glm4_moe",
	  "model.",
	  LINEAR,
	  "mlp.gate.weight",
	  "mlp.gate.e_score_correction_bias",
	  0,
	  { 0, 0, 0 } },
	{ "granitemoe",
	  "model.",
	  { "block_sparse_moe.input_linear.weight", NULL,
	    "block_sparse_moe.output_linear.weight" },
	  "block_sparse_moe.router.layer.weight",
	  NULL,
	  0,
	  { 1, 0, MOEK_GATE_FIRST } },
#define FUSED                                                                          \
	{                                                                              \
		"mlp.experts.gate_up_proj", NULL, "mlp.experts.down_proj"              \
	}
	{ "qwen3_5_moe",
	  "model.language_model.",
	  FUSED,
	  "mlp.gate.weight",
	  NULL,
	  0,
	  { 1, 0, MOEK_GATE_FIRST } },
	{ "qwen3_moe",
	  "model.",
	  FUSED,
	  "mlp.gate.weight",
	  NULL,
	  0,
	  { 1, 0, MOEK_GATE_FIRST } },
	{ "gpt_oss",
	  "model.",
	  FUSED,
	  "mlp.router.weight",
	  NULL,
	  1,
	  { 1, 1, MOEK_GATE_INTERLEAVED } },
	{ "llama4",
	  "language_model.model.",
	  { "feed_forward.experts.gate_up_proj", NULL,
	    "feed_forward.experts.down_proj" },
	  "feed_forward.router.weight",
	  NULL,
	  0,
	  { 1, 1, MOEK_GATE_FIRST } },
};

static const char *tensor_name(const struct family_case *f, const char *module,
                               unsigned expert)
{
	static char name[160];
	int used = snprintf(name, sizeof(name), "%slayers.0.", f->root);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(name + used, sizeof(name) - (size_t)used, module, expert);
#pragma GCC diagnostic pop
	return name;
}

static void add_family(struct kit_file *file, const struct family_case *f,
                       unsigned hidden, unsigned intermediate)
{
	add_sized(file, tensor_name(f, f->router, 0), "BF16", NULL, 2, 2, hidden, 0, 0);
	if (f->router_bias)
		kit_add(file, tensor_name(f, "mlp.router.bias", 0), "BF16", "2", NULL);
	if (f->correction != NULL)
		kit_add(file, tensor_name(f, f->correction, 0), "F32", "2", NULL);
	for (unsigned e = 0; e < (f->shape.is_stack ? 1 : 2); e++)
		for (int part = 0; part < MOEK_PARTS; part++)
			if (f->modules[part] != NULL)
				add_values(file, tensor_name(f, f->modules[part], e), e,
				           part, &f->shape, hidden, intermediate);
}

START_TEST(finds_the_experts_of_each_family)
{
	/* sizes that a turned or swapped reading would not survive, and square ones
	 * that no shape check can tell apart */
	static const unsigned sizes[2][2] = { { 6, 4 }, { 8, 8 } };
	struct kit_file file = { 0 };

	for (int i = 0; i < 2; i++) {
		write_config(families[_i].type, sizes[i][0], sizes[i][1], "");
		add_family(&file, &families[_i], sizes[i][0], sizes[i][1]);
		save(&file);
		expect_values(0, sizes[i][0], sizes[i][1]);
		expect_values(1, sizes[i][0], sizes[i][1]);
	}
}
END_TEST

START_TEST(rows_at_an_odd_address_are_copied)
{
	struct kit_file file = { 0 };

	write_config("qwen3_moe", 6, 4, "");
	kit_add(&file, "odd", "U8", "1", NULL);
	add_family(&file, &families[2], 6, 4);
	save(&file);
	expect_values(1, 6, 4);
}
END_TEST

START_TEST(a_bias_of_each_expert_is_read)
{
	static const char *const modules[3] = { "gate_proj", "up_proj", "down_proj" };
	struct kit_file file = { 0 };
	struct moek_checkpoint *checkpoint;
	struct moek_problem problem;
	struct moek_error error;
	struct taken taken;

	write_config("qwen3_moe", 6, 4, "");
	add_family(&file, &families[2], 6, 4);
	for (unsigned i = 0; i < 6; i++) {
		char name[128];
		float bias[6];

		for (unsigned r = 0; r < 6; r++)
			bias[r] = (float)(i * 10 + r);
		snprintf(name, sizeof(name), EXPERTS "%u.%s.bias", i / 3,
		         modules[i % 3]);
		kit_add(&file, name, "F32", i % 3 == 2 ? "6" : "4", bias);
	}
	save(&file);
	checkpoint = open_ok(folder);
	ck_assert_int_eq(moek_checkpoint_problem(checkpoint, 0, &problem), MOEK_OK);
	ck_assert_uint_eq(problem.gate_up.bias, 1);
	ck_assert_uint_eq(problem.down.bias, 1);
	ck_assert_int_eq(take(checkpoint, 0, 1, &taken, &error), MOEK_OK);
	ck_assert_float_eq(taken.expert.gate.bias[3], 33);
	ck_assert_float_eq(taken.expert.up.bias[0], 40);
	ck_assert_float_eq(taken.expert.down.bias[5], 55);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_bias_that_expert_0_does_not_have_is_an_error)
{
	struct kit_file file = { 0 };

	write_config("qwen3_moe", 6, 4, "");
	add_family(&file, &families[2], 6, 4);
	kit_add(&file, EXPERTS "1.down_proj.bias", "BF16", "6", NULL);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "tensor " EXPERTS "1.down_proj.bias: expert 0 has no bias");
}
END_TEST

START_TEST(an_expert_of_another_precision_is_named)
{
	struct kit_file file = { 0 };
	char *at;

	write_config("qwen3_moe", 6, 4, "");
	add_family(&file, &families[2], 6, 4);
	at = strstr(file.header, "1.up_proj.weight");
	memcpy(strstr(at, "\"BF16\""), "\"I16\" ", 6);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "tensor " EXPERTS "1.up_proj.weight: found I16 [4, 6], "
	             "expected BF16 [4, 6]");
}
END_TEST

START_TEST(config_and_tensors_must_name_the_same_format)
{
	const struct packed gate = {
		.module = "0.gate_proj", .rows = 2, .columns = 16, .groups = 2
	};
	struct kit_file file = { 0 };

	add_packed_model(&file, &gate, 8);
	save(&file);
	write_config("qwen3_moe", 16, 2, "");
	EXPECT_ERROR(
		MOEK_BAD_FILE, "config.json: quant_method (none) asks for plain rows",
		"the experts of layers.0 are stored as pack-quantized int4 or int8");
	write_config("qwen3_moe", 16, 2,
	             "\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
	EXPECT_ERROR(MOEK_BAD_FILE, "quant_method mxfp4 asks for mxfp4 blocks");
	write_config("qwen3_moe", 16, 2, "\"quantization_config\":{\"bits\":4}");
	EXPECT_ERROR(MOEK_BAD_FILE, "quant_method is missing");
	write_config("qwen3_moe", 16, 2, "\"quantization_config\":\"gptq\"");
	EXPECT_ERROR(MOEK_BAD_FILE, "quantization_config is not an object");
}
END_TEST

START_TEST(plain_rows_that_the_config_leaves_out_are_read)
{
	static const char *const lists[] = { "model.layers.0.mlp.experts.0.gate_proj",
		                             "model.layers.0.mlp",
		                             "model.layers.*.experts.*",
		                             "re:.*\\\\.experts" };
	static const char *const others[] = { "model.layers.0.mlp.expert", "lm_head",
		                              "re:layers.*" };
	struct kit_file file = { 0 };
	char config[512];

	add_family(&file, &families[2], 6, 4);
	save(&file);
	for (int i = 0; i < 7; i++) {
		snprintf(config, sizeof(config),
		         "\"quantization_config\":{\"quant_method\":\"compressed-"
		         "tensors\","
		         "\"ignore\":[\"%s\"],\"config_groups\":{\"W4A16\":[\"Linear\"]"
		         "}}",
		         i < 4 ? lists[i] : others[i - 4]);
		write_config("qwen3_moe", 6, 4, config);
		if (i < 4)
			expect_values(1, 6, 4);
		else
			EXPECT_ERROR(MOEK_BAD_FILE,
			             "asks for pack-quantized int4 or int8");
	}
}
END_TEST

/* ---- MXFP4 blocks ---- */

/** A gpt-oss model of H = I = 32 whose gate_up blocks and scales are given. */
static void add_blocks_model(struct kit_file *file, const uint8_t *blocks,
                             const uint8_t *scales, const uint16_t *bias)
{
	kit_add(file, "model.layers.0.mlp.router.weight", "BF16", "2,32", NULL);
	kit_add(file, "model.layers.0.mlp.router.bias", "BF16", "2", NULL);
	kit_add(file, EXPERTS "gate_up_proj_blocks", "U8", "2,64,1,16", blocks);
	kit_add(file, EXPERTS "gate_up_proj_scales", "U8", "2,64,1", scales);
	kit_add(file, EXPERTS "gate_up_proj_bias", "BF16", "2,64", bias);
	kit_add(file, EXPERTS "down_proj_blocks", "U8", "2,32,1,16", NULL);
	kit_add(file, EXPERTS "down_proj_scales", "F8_E8M0", "2,32,1", NULL);
	kit_add(file, EXPERTS "down_proj_bias", "BF16", "2,32", NULL);
	save(file);
	write_config("gpt_oss", 32, 32,
	             "\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
}

static const uint8_t mx1[16] = { 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
	                         0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe };
static const float mx1_want[32] = { 0,     0.5f, 1,  1.5f,  2,  3,  4,  6,
	                            -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6,
	                            0,     0.5f, 1,  1.5f,  2,  3,  4,  6,
	                            -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6 };
static const uint8_t mx2[16] = { 0xa3, 0x81, 0x6f, 0x4d, 0x2b, 0x09, 0xe7, 0xc5,
	                         0xf8, 0xd6, 0xb4, 0x92, 0x70, 0x5e, 0x3c, 0x1a };
static const float mx2_want[32] = { 0.375f, -0.25f, 0.125f,  -0.0f,   -1.5f,   1,
	                            -0.75f, 0.5f,   -0.375f, 0.25f,   -0.125f, 0,
	                            1.5f,   -1,     0.75f,   -0.5f,   -0.0f,   -1.5f,
	                            1,      -0.75f, 0.5f,    -0.375f, 0.25f,   -0.125f,
	                            0,      1.5f,   -1,      0.75f,   -0.5f,   0.375f,
	                            -0.25f, 0.125f };

START_TEST(blocks_and_their_order_of_rows) /* V-MX-1, V-MX-2, V-GO-1 */
{
	static uint8_t blocks[2 * 64 * 16], scales[2 * 64];
	static uint16_t bias[2 * 64];
	struct kit_file file = { 0 };
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };
	struct taken taken;

	/* expert 1: gate 0 is V-MX-1, up 0 V-MX-2, gate 1 V-MX-2, up 1 V-MX-1 */
	memcpy(blocks + 64 * 16, mx1, 16);
	memcpy(blocks + 65 * 16, mx2, 16);
	memcpy(blocks + 66 * 16, mx2, 16);
	memcpy(blocks + 67 * 16, mx1, 16);
	scales[64] = scales[67] = 0x7f;
	scales[65] = scales[66] = 0x7d;
	for (unsigned i = 0; i < 128; i++)
		bias[i] = moek_bf16_from_f32((float)i);
	add_blocks_model(&file, blocks, scales, bias);
	checkpoint = open_ok(folder);
	ck_assert_msg(take(checkpoint, 0, 1, &taken, &error) == MOEK_OK, "%s",
	              error.text);
	ck_assert_uint_eq(taken.expert.gate.weight, MOEK_MXFP4);
	ck_assert_uint_eq(taken.expert.gate.group_size, 32);
	expect_row(&taken.expert.gate, 0, mx1_want);
	expect_row(&taken.expert.up, 0, mx2_want);
	expect_row(&taken.expert.gate, 1, mx2_want);
	expect_row(&taken.expert.up, 1, mx1_want);
	ck_assert_float_eq(taken.expert.gate.bias[1], 66);
	ck_assert_float_eq(taken.expert.up.bias[31], 127);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_scale_of_ff_makes_its_block_nan_and_warns_once)
{
	static uint8_t blocks[2 * 64 * 16], scales[2 * 64];
	struct heard heard;
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };
	struct kit_file file = { 0 };
	struct taken taken;

	memset(scales, 0x7f, sizeof(scales));
	scales[1] = 0xff; /* up 0 of expert 0 */
	scales[66] = 0xff;
	memcpy(blocks, mx1, 16);
	memcpy(blocks + 16, mx1, 16);
	memcpy(blocks + 48, mx1, 16);
	add_blocks_model(&file, blocks, scales, NULL);
	take_all_heard(&heard);
	ck_assert_uint_eq(heard.warnings, 1);
	ck_assert_str_eq(heard.last, "model.layers.0.mlp.experts.gate_up_proj: 1 of 32 "
	                             "scales are NaN or infinite: so are their "
	                             "weights");
	checkpoint = open_ok(folder);
	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_OK);
	expect_row(&taken.expert.gate, 0, mx1_want);
	expect_row(&taken.expert.up, 1, mx1_want);
	for (unsigned c = 0; c < 32; c++)
		ck_assert(weight_at(&taken.expert.up, 0, c) !=
		          weight_at(&taken.expert.up, 0, c));
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(blocks_of_the_wrong_size_are_named)
{
	struct kit_file file = { 0 };

	add_blocks_model(&file, NULL, NULL, NULL);
	write_config("gpt_oss", 64, 32,
	             "\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "mlp.router.weight: found BF16 [2, 32], "
	             "expected BF16 F16 F32 [2, 64] (config.json: 2 experts, "
	             "hidden 64, intermediate 32)");
	write_config("gpt_oss", 32, 64,
	             "\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
	EXPECT_ERROR(MOEK_BAD_FILE, "gate_up_proj_blocks: found U8 [2, 64, 1, 16], "
	                            "expected U8 [2, 128, 1, 16]");
	write_config("gpt_oss", 32, 40,
	             "\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
	EXPECT_ERROR(MOEK_BAD_FILE, "intermediate 40 is no multiple of 32");
}
END_TEST

/* ---- real checkpoints ---- */

static const char *const models[] = { "tiny-qwen3moe-ct-sym-g32", "tiny-gptoss-mxfp4",
	                              "tiny-qwen3moe-gptq-sym-g32",
	                              "tiny-qwen3moe-quark-mxfp4" };

static void compare_matrix(const struct moek_safetensors *expected, unsigned expert,
                           const char *part, const struct moek_matrix *m)
{
	struct moek_tensor tensor;
	struct moek_error error;
	char name[64];

	snprintf(name, sizeof(name), "layers.1.experts.%u.%s", expert, part);
	ck_assert_int_eq(moek_safetensors_tensor(expected, name, &tensor, &error),
	                 MOEK_OK);
	ck_assert_uint_eq(tensor.rank, 2);
	ck_assert_uint_eq(tensor.shape[0], m->rows);
	ck_assert_uint_eq(tensor.shape[1], m->columns);
	for (uint64_t r = 0; r < m->rows; r++)
		for (uint64_t c = 0; c < m->columns; c++) {
			float want = moek_scalar(tensor.data, MOEK_F32,
			                         r * m->columns + c);
			float got = weight_at(m, r, c);

			ck_assert_msg(moek_f32_bits(got) == moek_f32_bits(want),
			              "%s [%llu][%llu]: %a, expected %a", name,
			              (unsigned long long)r, (unsigned long long)c,
			              (double)got, (double)want);
		}
}

START_TEST(dequantises_as_the_writing_tool_does)
{
	const char *path = kit_path(
		kit_path(getenv("MOEK_TEST_SOURCE"), "fixtures/checkpoints"),
		models[_i]);
	struct moek_checkpoint *checkpoint = open_ok(path);
	struct moek_safetensors *expected = NULL;
	struct moek_error error;
	static const unsigned experts[] = { 3, 5 };

	ck_assert_int_eq(
		moek_safetensors_open(kit_path(path, "expected/dequant.safetensors"),
	                              &expected, &error),
		MOEK_OK);
	for (size_t i = 0; i < 2; i++) {
		struct taken taken;

		ck_assert_int_eq(take(checkpoint, 1, experts[i], &taken, &error),
		                 MOEK_OK);
		compare_matrix(expected, experts[i], "gate", &taken.expert.gate);
		compare_matrix(expected, experts[i], "up", &taken.expert.up);
		compare_matrix(expected, experts[i], "down", &taken.expert.down);
		drop(&taken);
	}
	moek_safetensors_close(expected);
	moek_checkpoint_close(checkpoint);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("codec");
	TCase *tests = tcase_create("codec");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, packed_symmetric_codes, 0, 3);
	tcase_add_test(tests, packed_rows_that_end_inside_a_word);
	tcase_add_loop_test(tests, packed_channel_scales, 0, 3);
	tcase_add_test(tests, packed_eight_bits);
	tcase_add_test(tests, packed_eight_bits_have_four_zero_points_a_word);
	tcase_add_test(tests, packed_scales_that_are_odd_are_counted);
	tcase_add_test(tests, packed_zero_points);
	tcase_add_loop_test(tests, packed_activation_order, 0, 2);
	tcase_add_test(tests, a_column_of_no_group_is_an_error);
	tcase_add_test(tests, a_shape_that_contradicts_the_config_is_an_error);
	tcase_add_loop_test(tests, a_variant_that_is_not_read_is_refused_by_name, 0,
	                    (int)(sizeof(refusals) / sizeof(refusals[0])));
	tcase_add_test(tests, the_tensors_tell_which_group_is_meant);
	tcase_add_test(tests, what_the_scheme_does_not_have_may_not_be_there);
	tcase_add_test(tests, the_group_size_is_declared_never_inferred);
	tcase_add_loop_test(tests, finds_the_experts_of_each_family, 0,
	                    (int)(sizeof(families) / sizeof(families[0])));
	tcase_add_test(tests, rows_at_an_odd_address_are_copied);
	tcase_add_test(tests, a_bias_of_each_expert_is_read);
	tcase_add_test(tests, a_bias_that_expert_0_does_not_have_is_an_error);
	tcase_add_test(tests, an_expert_of_another_precision_is_named);
	tcase_add_test(tests, config_and_tensors_must_name_the_same_format);
	tcase_add_test(tests, plain_rows_that_the_config_leaves_out_are_read);
	tcase_add_test(tests, blocks_and_their_order_of_rows);
	tcase_add_test(tests, a_scale_of_ff_makes_its_block_nan_and_warns_once);
	tcase_add_test(tests, blocks_of_the_wrong_size_are_named);
	tcase_add_loop_test(tests, dequantises_as_the_writing_tool_does, 0, 4);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
