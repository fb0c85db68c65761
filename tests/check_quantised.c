/* SPDX-License-Identifier: MIT */
/* GPTQ, AWQ and what AutoRound writes in either layout. */
#include "config.h"

#include "core/codec.h"
#include "model.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#define EXPERTS "model.layers.0.mlp.experts."

/* The matrix of V-GPTQ-1 and V-AWQ-1: code (k + n) mod 16, 8 x 8, one group. */
static const uint32_t gptq_codes[8] = {
	0x76543210, 0x87654321, 0x98765432, 0xa9876543,
	0xba987654, 0xcba98765, 0xdcba9876, 0xedcba987
};
static const uint32_t awq_codes[8] = { 0x75316420, 0x86427531, 0x97538642, 0xa8649753,
	                               0xb975a864, 0xca86b975, 0xdb97ca86, 0xeca8db97 };
static const uint32_t gptq_zeros_v1 = 0x70ef8767, gptq_zeros_v2 = 0x81f09878;
static const uint32_t awq_zeros = 0x8f971088;
static const float scales[8] = { 0.5f, 0.5f, 0.25f, 1, 2, 0.125f, 0.5f, 1 };
static const int zero_points[8] = { 8, 7, 8, 9, 0, 15, 1, 8 };

/** Zero points: 8 everywhere, or as the vector has them; version 1 cannot tell 0 from
 * 16, and is read as 16. */
enum zeros { EIGHTS, AS_GIVEN, AS_IN_V1 };

static void expected_row(unsigned n, enum zeros zeros, float *row)
{
	int zero = zeros == EIGHTS                            ? 8
	           : zeros == AS_IN_V1 && zero_points[n] == 0 ? 16
	                                                      : zero_points[n];

	for (unsigned k = 0; k < 8; k++)
		row[k] = (float)((int)((k + n) % 16) - zero) * scales[n];
}

/** Experts of 8 x 8: the vector, in every matrix. */
struct eight {
	const uint32_t *codes, *zeros; /* zeros NULL: no tensor */
	int codes_turned;              /* AWQ: [8][1], not [1][8] */
	const int32_t *order;          /* g_idx, or NULL */
	const char *scale_dtype;
};

static void add_eight(const struct eight *e)
{
	static const char *const modules[] = { "gate_proj", "up_proj", "down_proj" };
	struct kit_file file = { 0 };
	uint16_t halves[8];
	char name[128];

	for (int i = 0; i < 8; i++)
		halves[i] = strcmp(e->scale_dtype, "F16") == 0
		                    ? moek_f16_from_f32(scales[i])
		                    : moek_bf16_from_f32(scales[i]);
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,8", NULL);
	for (int i = 0; i < 6; i++) {
		int length = snprintf(name, sizeof(name), EXPERTS "%d.%s", i / 3,
		                      modules[i % 3]);

		strcpy(name + length, ".qweight");
		kit_add(&file, name, "I32", e->codes_turned ? "8,1" : "1,8", e->codes);
		strcpy(name + length, ".scales");
		kit_add(&file, name, e->scale_dtype, "1,8",
		        strcmp(e->scale_dtype, "F32") == 0 ? (const void *)scales
		                                           : halves);
		strcpy(name + length, ".qzeros");
		if (e->zeros != NULL)
			kit_add(&file, name, "I32", "1,1", e->zeros);
		strcpy(name + length, ".g_idx");
		if (e->order != NULL)
			kit_add(&file, name, "I32", "8", e->order);
	}
	save(&file);
}

static void configure(const char *more)
{
	char text[2048];

	snprintf(text, sizeof(text), "\"quantization_config\":{%s}", more);
	write_config("qwen3_moe", 8, 8, text);
}

/** Every matrix of both experts is the vector; @format names what was found. */
static void expect_eight(enum zeros zeros, const char *format)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	struct moek_error error = { .text = "" };
	struct taken taken;
	float row[8];

	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 0, &info), MOEK_OK);
	ck_assert_str_eq(info.format, format);
	for (uint64_t e = 0; e < 2; e++) {
		ck_assert_msg(take(checkpoint, 0, e, &taken, &error) == MOEK_OK, "%s",
		              error.text);
		for (unsigned n = 0; n < 8; n++) {
			expected_row(n, zeros, row);
			expect_row(&taken.expert.gate, n, row);
			expect_row(&taken.expert.up, n, row);
			expect_row(&taken.expert.down, n, row);
		}
		drop(&taken);
	}
	moek_checkpoint_close(checkpoint);
}

/** It opens, and taking expert 0 fails with all words of @says. */
static void expect_load_error(const char *const *says)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_error error = { .text = "" };
	struct taken taken;

	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_BAD_FILE);
	for (; *says != NULL; says++)
		ck_assert_msg(strstr(error.text, *says) != NULL, "\"%s\" is not in: %s",
		              *says, error.text);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}

#define EXPECT_LOAD_ERROR(...)                                                         \
	expect_load_error((const char *const[]){ __VA_ARGS__, NULL })

#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8,\"desc_act\":false,"
#define AWQ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":8,"
#define ROUND "\"quant_method\":\"auto-round\",\"bits\":4,\"group_size\":8,"

static const struct {
	const char *config;
	const uint32_t *codes, *zeros;
	enum zeros expected;
	const char *scale_dtype, *format;
} vectors[] = {
	{ GPTQ "\"sym\":false", gptq_codes, &gptq_zeros_v1, AS_IN_V1, "F16",
	  "gptq v1 int4 asymmetric, group 8" },
	{ GPTQ "\"sym\":false,\"checkpoint_format\":\"gptq\"", gptq_codes,
	  &gptq_zeros_v1, AS_IN_V1, "BF16", "gptq v1 int4 asymmetric, group 8" },
	{ GPTQ "\"sym\":false,\"checkpoint_format\":\"gptq_v2\"", gptq_codes,
	  &gptq_zeros_v2, AS_GIVEN, "F32", "gptq v2 int4 asymmetric, group 8" },
	{ GPTQ "\"sym\":true", gptq_codes, NULL, EIGHTS, "F16",
	  "gptq v1 int4, group 8" },
	{ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1,\"sym\":false",
	  gptq_codes, &gptq_zeros_v1, AS_IN_V1, "F16",
	  "gptq v1 int4 asymmetric, channel" },
	{ AWQ "\"zero_point\":true,\"version\":\"gemm\"", awq_codes, &awq_zeros,
	  AS_GIVEN, "F16", "awq int4 asymmetric, group 8" },
	{ "\"quant_method\":\"awq\",\"w_bit\":4,\"q_group_size\":8,\"zero_point\":true,"
	  "\"version\":\"GEMM\"",
	  awq_codes, &awq_zeros, AS_GIVEN, "BF16", "awq int4 asymmetric, group 8" },
	{ AWQ "\"zero_point\":false", awq_codes, NULL, EIGHTS, "F16",
	  "awq int4, group 8" },
	{ ROUND "\"sym\":false,\"packing_format\":\"auto_round:auto_gptq\"", gptq_codes,
	  &gptq_zeros_v1, AS_IN_V1, "F16", "auto-round gptq int4 asymmetric, group 8" },
	{ ROUND "\"sym\":false,\"packing_format\":\"auto_round:gptqmodel\"", gptq_codes,
	  &gptq_zeros_v2, AS_GIVEN, "F16", "auto-round gptq int4 asymmetric, group 8" },
	{ ROUND "\"sym\":false,\"packing_format\":\"auto_round:auto_awq\"", awq_codes,
	  &awq_zeros, AS_GIVEN, "F16", "auto-round awq int4 asymmetric, group 8" },
};

/* V-GPTQ-1 and V-AWQ-1: one matrix in both layouts, and in both versions of GPTQ. The
 * codes differ from row to row and from column to column, so a nibble in the wrong
 * place, words along the other axis, or a zero point off by one does not go by. */
START_TEST(reads_the_same_matrix_in_every_layout)
{
	const struct eight eight = { .codes = vectors[_i].codes,
		                     .zeros = vectors[_i].zeros,
		                     .codes_turned = vectors[_i].codes == awq_codes,
		                     .scale_dtype = vectors[_i].scale_dtype };

	configure(vectors[_i].config);
	add_eight(&eight);
	expect_eight(vectors[_i].expected, vectors[_i].format);
}
END_TEST

/* A symmetric file stores 7 in version 1 and 8 in version 2; AutoRound's older names
 * say neither, and need not. */
START_TEST(a_symmetric_file_must_store_8_in_its_own_way)
{
	const uint32_t sevens = 0x77777777, eights = 0x88888888, mixed = 0x77177777;
	struct eight eight = { .codes = gptq_codes,
		               .zeros = &sevens,
		               .scale_dtype = "F16" };

	configure(GPTQ "\"sym\":true");
	add_eight(&eight);
	expect_eight(EIGHTS, "gptq v1 int4, group 8");
	eight.zeros = &eights;
	add_eight(&eight);
	EXPECT_LOAD_ERROR("experts.0.gate_proj.qzeros",
	                  "stored zero point of 8, expected 7",
	                  "checkpoint_format gptq;", "looks like the other version");
	configure(GPTQ "\"sym\":true,\"checkpoint_format\":\"gptq_v2\"");
	add_eight(&eight);
	expect_eight(EIGHTS, "gptq v2 int4, group 8");
	eight.zeros = &sevens;
	add_eight(&eight);
	EXPECT_LOAD_ERROR("stored zero point of 7, expected 8",
	                  "checkpoint_format gptq_v2;", "looks like the other version");
	eight.zeros = &mixed;
	configure(GPTQ "\"sym\":true");
	add_eight(&eight);
	EXPECT_LOAD_ERROR("stored zero point of 1, expected 7");
	configure(ROUND "\"sym\":true,\"packing_format\":\"auto_round\"");
	EXPECT_LOAD_ERROR("stored zero point of 1, expected 8");
	eight.zeros = &sevens;
	add_eight(&eight);
	expect_eight(EIGHTS, "auto-round gptq int4, group 8");
	eight.zeros = &eights;
	add_eight(&eight);
	expect_eight(EIGHTS, "auto-round gptq int4, group 8");
}
END_TEST

/* EX-ZP2 in both versions; EX-ZP3: taken for the other one, every weight is off by a
 * scale, which nothing in an asymmetric file can tell. */
START_TEST(zero_points_are_those_of_the_version_declared)
{
	static const struct {
		const char *version;
		uint32_t word;
		int shift;
	} cases[] = { { "gptq", 0x76543210, 0 },
		      { "gptq_v2", 0x87654321, 0 },
		      { "gptq", 0x87654321, 1 } };
	struct eight eight = { .codes = gptq_codes,
		               .zeros = &cases[_i].word,
		               .scale_dtype = "F16" };
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };
	struct taken taken;
	char config[256];

	snprintf(config, sizeof(config),
	         GPTQ "\"sym\":false,\"checkpoint_format\":\"%s\"", cases[_i].version);
	configure(config);
	add_eight(&eight);
	checkpoint = open_ok(folder);
	ck_assert_int_eq(take(checkpoint, 0, 0, &taken, &error), MOEK_OK);
	for (unsigned n = 0; n < 8; n++)
		for (unsigned k = 0; k < 8; k++) {
			int zero = (int)n + 1 + cases[_i].shift;

			ck_assert(weight_at(&taken.expert.gate, n, k) ==
			          (float)((int)((k + n) % 16) - zero) * scales[n]);
		}
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_stored_15_means_16_and_warns_once)
{
	const uint32_t zeros = 0x7777777f;
	const struct eight eight = { .codes = gptq_codes,
		                     .zeros = &zeros,
		                     .scale_dtype = "F16" };
	struct heard heard;
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };
	struct taken taken;

	configure(GPTQ "\"sym\":false");
	add_eight(&eight);
	take_all_heard(&heard);
	ck_assert_uint_eq(heard.warnings, 1);
	ck_assert_ptr_nonnull(strstr(heard.last, "gate_proj.qzeros"));
	ck_assert_ptr_nonnull(strstr(heard.last, "16"));
	checkpoint = open_ok(folder);
	ck_assert_int_eq(take(checkpoint, 0, 1, &taken, &error), MOEK_OK);
	ck_assert_uint_eq(taken.expert.gate.zeros[0], 16);
	ck_assert(weight_at(&taken.expert.gate, 0, 3) == (3 - 16) * 0.5f);
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}
END_TEST

/* ---- groups of columns ---- */

/** 16 columns of codes 0 .. 15 in 8 rows, two groups with scales 1 and 4. */
static void add_two_groups(const int32_t *order)
{
	static const char *const modules[] = { "gate_proj", "up_proj", "down_proj" };
	struct kit_file file = { 0 };
	uint32_t codes[2][8];
	uint16_t halves[2][8];
	char name[128];

	for (int n = 0; n < 8; n++) {
		codes[0][n] = 0x76543210;
		codes[1][n] = 0xfedcba98;
		halves[0][n] = moek_f16_from_f32(1);
		halves[1][n] = moek_f16_from_f32(4);
	}
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,16", NULL);
	for (int i = 0; i < 6; i++) {
		int is_down = i % 3 == 2; /* [16][8]: one group, not told apart here */
		int length = snprintf(name, sizeof(name), EXPERTS "%d.%s", i / 3,
		                      modules[i % 3]);

		strcpy(name + length, ".qweight");
		kit_add(&file, name, "I32", is_down ? "1,16" : "2,8", codes);
		strcpy(name + length, ".scales");
		kit_add(&file, name, "F16", is_down ? "1,16" : "2,8", halves);
		strcpy(name + length, ".g_idx");
		if (!is_down && order != NULL)
			kit_add(&file, name, "I32", "16", order);
	}
	save(&file);
	write_config("qwen3_moe", 16, 8,
	             "\"quantization_config\":{" GPTQ "\"sym\":true}");
}

static void expect_groups(const int32_t *groups, uint32_t column_groups)
{
	struct moek_checkpoint *checkpoint = open_ok(folder);
	struct moek_problem problem = { .struct_size = MOEK_PROBLEM_SIZE_1_0 };
	struct moek_error error = { .text = "" };
	struct taken taken;

	moek_checkpoint_problem(checkpoint, 0, &problem);
	ck_assert_uint_eq(problem.gate_up.column_groups, column_groups);
	ck_assert_uint_eq(problem.down.column_groups, 0);
	ck_assert_msg(take(checkpoint, 0, 1, &taken, &error) == MOEK_OK, "%s",
	              error.text);
	ck_assert_int_eq(taken.expert.gate.column_group != NULL, (int)column_groups);
	for (unsigned k = 0; k < 16; k++)
		ck_assert(weight_at(&taken.expert.gate, 5, k) ==
		          (float)((int)k - 8) * (groups[k] == 0 ? 1.0f : 4.0f));
	drop(&taken);
	moek_checkpoint_close(checkpoint);
}

START_TEST(columns_keep_their_groups_in_any_order)
{
	static const int32_t in_order[16] = { 0, 0, 0, 0, 0, 0, 0, 0,
		                              1, 1, 1, 1, 1, 1, 1, 1 };
	static const int32_t mixed[16] = { 1, 0, 0, 1, 1, 0, 1, 0,
		                           0, 0, 1, 1, 1, 0, 1, 0 };
	static const int32_t negative[16] = { -1, 0, 0, -1, 1, -2, 1, 0,
		                              0,  0, 1, 1,  1, 0,  1, 0 };

	add_two_groups(NULL);
	expect_groups(in_order, 0);
	/* in order, though stored: every backend may run it */
	add_two_groups(in_order);
	expect_groups(in_order, 0);
	add_two_groups(mixed);
	expect_groups(mixed, 1);
	add_two_groups(negative); /* counted from the end, as Python does */
	expect_groups(mixed, 1);
}
END_TEST

START_TEST(a_group_that_is_none_is_an_error)
{
	static const int32_t beyond[16] = { 0, 0, 0, 2, 0, 0, 0, 0,
		                            1, 1, 1, 1, 1, 1, 1, 1 };
	static const int32_t below[16] = { 0, 0, 0, -3, 0, 0, 0, 0,
		                           1, 1, 1, 1,  1, 1, 1, 1 };

	add_two_groups(beyond);
	EXPECT_LOAD_ERROR("gate_proj.g_idx", "group 2 for column 3, expected 0 .. 1");
	add_two_groups(below);
	EXPECT_LOAD_ERROR("gate_proj.g_idx", "group -3 for column 3, expected 0 .. 1");
}
END_TEST

/* ---- refused ---- */

static const struct {
	const char *config;
	int is_awq;
	int32_t status;
	const char *says;
} refusals[] = {
	{ "\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":8,\"sym\":true", 0,
	  MOEK_REFUSED, "bits is 3, read is: 4" },
	{ "\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":8,\"sym\":true", 0,
	  MOEK_REFUSED, "bits is 8, read is: 4" },
	{ "\"quant_method\":\"gptq\",\"group_size\":8,\"sym\":true", 0, MOEK_REFUSED,
	  "bits is 0" },
	{ GPTQ "\"sym\":true,\"checkpoint_format\":\"marlin\"", 0, MOEK_REFUSED,
	  "checkpoint_format is \"marlin\", read are: gptq, gptq_v2" },
	{ GPTQ "\"sym\":\"yes\"", 0, MOEK_BAD_FILE, "neither sym nor zero_point" },
	{ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0,\"sym\":true", 0,
	  MOEK_BAD_FILE, "group_size is 0, expected -1 or 1" },
	{ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":4,\"sym\":true", 0,
	  MOEK_BAD_FILE, "found F16 [1, 8], expected F16 BF16 F32 [2, 8]" },
	{ AWQ "\"zero_point\":true,\"version\":\"gemv\"", 1, MOEK_REFUSED,
	  "version is \"gemv\"" },
	{ AWQ "\"zero_point\":true,\"version\":\"gemv_fast\"", 1, MOEK_REFUSED,
	  "read is: gemm" },
	{ AWQ "\"zero_point\":false", 1, MOEK_BAD_FILE,
	  "found zero points, expected none" },
	{ AWQ "\"zero_point\":true", 0, MOEK_BAD_FILE,
	  "quant_method awq asks for awq, but the experts of layers.0 are stored as "
	  "gptq" },
	{ GPTQ "\"sym\":true", 1, MOEK_BAD_FILE,
	  "quant_method gptq asks for gptq, but the experts of layers.0 are stored as "
	  "awq" },
	{ ROUND "\"sym\":true,\"packing_format\":\"auto_round:auto_awq\"", 0,
	  MOEK_REFUSED,
	  "packing_format is \"auto_round:auto_awq\", but the experts of layers.0 are "
	  "stored "
	  "as GPTQ" },
	{ ROUND "\"sym\":true,\"packing_format\":\"auto_round:auto_gptq\"", 1,
	  MOEK_REFUSED, "stored as AWQ" },
	{ ROUND "\"sym\":true", 1, MOEK_REFUSED, "packing_format is \"(missing)\"" },
	{ ROUND "\"sym\":false,\"packing_format\":\"auto_round\"", 0, MOEK_REFUSED,
	  "does not say how zero points are stored" },
	{ "\"quant_method\":\"exl3\"", 0, MOEK_REFUSED,
	  "\"exl3\" is not read; read are: none, compressed-tensors, mxfp4, quark, "
	  "gptq, "
	  "auto-round, awq, fp8" },
};

START_TEST(a_variant_that_is_not_read_is_refused_by_name)
{
	const struct eight eight = { .codes = gptq_codes,
		                     .zeros = &gptq_zeros_v1,
		                     .codes_turned = refusals[_i].is_awq,
		                     .scale_dtype = "F16" };

	configure(refusals[_i].config);
	add_eight(&eight);
	EXPECT_ERROR(refusals[_i].status, refusals[_i].says);
}
END_TEST

START_TEST(sizes_that_words_do_not_fill_are_named)
{
	const struct eight gptq = { .codes = gptq_codes, .scale_dtype = "F16" };
	const struct eight awq = { .codes = awq_codes,
		                   .codes_turned = 1,
		                   .scale_dtype = "F16" };

	write_config("qwen3_moe", 8, 12,
	             "\"quantization_config\":{" GPTQ "\"sym\":true}");
	add_eight(&gptq);
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "GPTQ packs eight codes, and 12 x 8 is no multiple");
	write_config("qwen3_moe", 12, 8,
	             "\"quantization_config\":{" GPTQ "\"sym\":true}");
	EXPECT_ERROR(MOEK_BAD_FILE, "mlp.gate.weight");
	write_config("qwen3_moe", 8, 12,
	             "\"quantization_config\":{" AWQ "\"zero_point\":false}");
	add_eight(&awq);
	EXPECT_ERROR(MOEK_BAD_FILE, "AWQ packs eight codes, and 12 x 8 is no multiple");
}
END_TEST

START_TEST(one_group_needs_no_order)
{
	static const int32_t order[8] = { 0 };
	const struct eight eight = { .codes = gptq_codes,
		                     .zeros = &gptq_zeros_v2,
		                     .order = order,
		                     .scale_dtype = "F16" };

	configure(
		"\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1,\"sym\":false,"
		"\"desc_act\":true,\"checkpoint_format\":\"gptq_v2\"");
	add_eight(&eight);
	expect_eight(AS_GIVEN, "gptq v2 int4 asymmetric, channel");
}
END_TEST

START_TEST(a_missing_tensor_is_named)
{
	const struct eight gptq = { .codes = gptq_codes, .scale_dtype = "F16" };
	const struct eight awq = { .codes = awq_codes,
		                   .codes_turned = 1,
		                   .scale_dtype = "F16" };

	configure(GPTQ "\"sym\":false");
	add_eight(&gptq);
	EXPECT_ERROR(MOEK_BAD_FILE, "no tensor " EXPERTS "0.gate_proj.qzeros");
	configure(AWQ "\"zero_point\":true");
	add_eight(&awq);
	EXPECT_ERROR(MOEK_BAD_FILE, "no tensor " EXPERTS "0.gate_proj.qzeros");
}
END_TEST

/* ---- layers that the config leaves out ---- */

static const struct {
	const char *config;
	int32_t status; /* of a model whose experts are plain all the same */
} exemptions[] = {
	{ GPTQ "\"sym\":true,\"dynamic\":{\"-:.*experts.*\":{}}", MOEK_OK },
	{ GPTQ "\"sym\":true,\"dynamic\":{\"-:.*\\\\.layers\\\\.0\\\\..*\":{}}",
	  MOEK_OK },
	{ GPTQ "\"sym\":true,\"dynamic\":{\"-:.*\\\\.layers\\\\.1\\\\..*\":{}}",
	  MOEK_BAD_FILE },
	{ GPTQ "\"sym\":true,\"dynamic\":{\"+:.*experts.*\":{\"bits\":8}}",
	  MOEK_BAD_FILE },
	{ GPTQ "\"sym\":true,\"dynamic\":{\"-:(?!a).*\":{}}", MOEK_REFUSED },
	{ GPTQ "\"sym\":true,\"modules_to_not_convert\":[\"model.layers.0\"]",
	  MOEK_OK },
	{ AWQ "\"zero_point\":true,\"modules_to_not_convert\":[\"experts\"]", MOEK_OK },
	{ AWQ "\"zero_point\":true,\"modules_to_not_convert\":[\"shared\"]",
	  MOEK_BAD_FILE },
	{ GPTQ "\"sym\":true,\"modules_to_not_convert\":[\"experts\"]", MOEK_BAD_FILE },
	{ ROUND "\"sym\":true,\"extra_config\":{\"model.layers.0.mlp.experts\":{"
	        "\"bits\":16}}",
	  MOEK_OK },
	{ ROUND
	  "\"sym\":true,\"extra_config\":{\"model.layers.0.mlp.experts\":{\"bits\":8}}",
	  MOEK_BAD_FILE },
	{ "\"quant_method\":\"compressed-tensors\",\"ignore\":[\"re:.*mlp.experts."
	  "\\\\d+.*\"]",
	  MOEK_OK },
	{ "\"quant_method\":\"compressed-tensors\",\"ignore\":[\"re:mlp.experts.*\"]",
	  MOEK_BAD_FILE },
	{ "\"quant_method\":\"compressed-tensors\",\"ignore\":[\"re:.*(?=x)\"]",
	  MOEK_REFUSED },
};

START_TEST(follows_the_rules_that_exempt_modules)
{
	struct kit_file file = { 0 };
	struct moek_error error = { .text = "" };
	char name[128];

	configure(exemptions[_i].config);
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,8", NULL);
	for (int i = 0; i < 6; i++) {
		static const char *const modules[] = { "gate_proj", "up_proj",
			                               "down_proj" };

		snprintf(name, sizeof(name), EXPERTS "%d.%s.weight", i / 3,
		         modules[i % 3]);
		kit_add(&file, name, "BF16", "8,8", NULL);
	}
	save(&file);
	ck_assert_msg(open_here(&error) == exemptions[_i].status, "%d: %s",
	              error.status, error.text);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("quantised");
	TCase *tests = tcase_create("quantised");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, reads_the_same_matrix_in_every_layout, 0,
	                    (int)(sizeof(vectors) / sizeof(vectors[0])));
	tcase_add_test(tests, a_symmetric_file_must_store_8_in_its_own_way);
	tcase_add_loop_test(tests, zero_points_are_those_of_the_version_declared, 0, 3);
	tcase_add_test(tests, a_stored_15_means_16_and_warns_once);
	tcase_add_test(tests, columns_keep_their_groups_in_any_order);
	tcase_add_test(tests, a_group_that_is_none_is_an_error);
	tcase_add_loop_test(tests, a_variant_that_is_not_read_is_refused_by_name, 0,
	                    (int)(sizeof(refusals) / sizeof(refusals[0])));
	tcase_add_test(tests, sizes_that_words_do_not_fill_are_named);
	tcase_add_test(tests, one_group_needs_no_order);
	tcase_add_test(tests, a_missing_tensor_is_named);
	tcase_add_loop_test(tests, follows_the_rules_that_exempt_modules, 0,
	                    (int)(sizeof(exemptions) / sizeof(exemptions[0])));
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
