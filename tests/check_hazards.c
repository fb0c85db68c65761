/* SPDX-License-Identifier: MIT */
/*
 * Every format has mistakes that readers of it have made. Here each is made on purpose:
 * a second reader, written from the format's description alone, agrees with the codec
 * to the bit; the same reader with one mistake must disagree, or these tensors could
 * not tell the mistake from the truth.
 */
#include "config.h"

#include "model.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#define EXPERTS "model.layers.0.mlp.experts."
#define HIDDEN 64u
#define INTERMEDIATE 32u
#define GROUP 16u
#define SQUARE 8u /* of fp8 blocks: 8 rows, 16 columns */

/** A projection as stored: random numbers of the largest size that any format has. */
struct raw {
	unsigned rows, columns;
	union {
		uint32_t words[HIDDEN * INTERMEDIATE / 4];
		uint8_t bytes[HIDDEN * INTERMEDIATE];
	} codes;
	uint32_t zeros[64];
	uint16_t halves[512];          /* scales */
	uint8_t exponents[2 * HIDDEN]; /* the same as e8m0 */
	float floats[64];              /* the same as fp32 */
};

static struct raw raw[6]; /* gate, up, down of two experts */

static void fill(void)
{
	uint32_t state = 7;

	for (int i = 0; i < 6; i++) {
		int is_down = i % 3 == 2;

		raw[i].rows = is_down ? HIDDEN : INTERMEDIATE;
		raw[i].columns = is_down ? INTERMEDIATE : HIDDEN;
		for (size_t w = 0; w < sizeof(raw[i].codes.words) / 4; w++)
			raw[i].codes.words[w] = kit_random(&state) ^ kit_random(&state)
			                                                     << 16;
		for (size_t z = 0; z < 64; z++) {
			raw[i].zeros[z] = kit_random(&state) ^ kit_random(&state) << 16;
			/* a stored 15 of GPTQ is a case of its own, see check_quantised
			 */
			for (unsigned n = 0; n < 32; n += 4)
				if ((raw[i].zeros[z] >> n & 15) == 15)
					raw[i].zeros[z] ^= UINT32_C(8) << n;
			raw[i].floats[z] = (float)(1 + kit_random(&state) % 999) / 256;
		}
		for (size_t s = 0; s < sizeof(raw[i].exponents); s++)
			raw[i].exponents[s] = (uint8_t)(110 + kit_random(&state) % 24);
		for (size_t s = 0; s < 512; s++)
			raw[i].halves[s] = moek_f16_from_f32(
				(float)(1 + kit_random(&state) % 999) / 4096);
	}
}

static unsigned nibble(uint32_t word, unsigned i)
{
	return word >> (4 * i) & 15;
}

static unsigned groups_of(const struct raw *m)
{
	return m->columns / GROUP;
}

/* ---- the readers; wrong 0 is right, the others are the mistakes in their order ----
 */

/* codes [rows][columns / 8], the first column lowest, 8 above; zero points
 * [rows / 8][groups], the first row lowest; scales [rows][groups] */
static float read_packed(const struct raw *m, unsigned r, unsigned c, int wrong)
{
	unsigned groups = groups_of(m), g = c / GROUP, at = r * groups + g,
		 place = c % 8;
	uint32_t word = m->codes.words[r * (m->columns / 8) + c / 8];
	int code, zero = (int)nibble(m->zeros[r / 8 * groups + g], r % 8);

	if (wrong == 1) /* high nibble first */
		place ^= 1;
	if (wrong == 2) /* first column highest */
		place = 7 - place;
	code = (int)nibble(word, place);
	if (wrong == 3) /* two's complement */
		code = (code ^ 8);
	if (wrong == 4) /* zero points packed along groups */
		zero = (int)nibble(m->zeros[at / 8], at % 8);
	if (wrong == 5) /* a zero point off by one, as in GPTQ */
		zero++;
	if (wrong == 6) /* scales transposed */
		at = g * m->rows + r;
	if (wrong == 7) /* groups counted along rows */
		at = (r / GROUP * m->columns + c) % (m->rows * groups);
	return (float)(code - zero) * moek_f16_to_f32(m->halves[at]);
}

/* codes [columns / 8][rows], the first column lowest; zero points less one
 * [groups][rows / 8]; scales [groups][rows] */
static float read_gptq(const struct raw *m, unsigned r, unsigned c, int wrong)
{
	unsigned groups = groups_of(m), g = c / GROUP, at = g * m->rows + r;
	uint32_t word = m->codes.words[c / 8 * m->rows + r];
	int code = (int)nibble(word, wrong == 1 ? c % 8 ^ 1 : c % 8);
	int zero = (int)nibble(m->zeros[g * (m->rows / 8) + r / 8], r % 8) + 1;

	if (wrong == 2) /* the other version */
		zero--;
	if (wrong == 3) /* words along rows, as AWQ has them */
		code = (int)nibble(m->codes.words[c * (m->rows / 8) + r / 8], r % 8);
	if (wrong == 4) /* [rows][columns / 8] */
		code = (int)nibble(m->codes.words[r * (m->columns / 8) + c / 8], c % 8);
	if (wrong == 5) /* zero points turned */
		zero = (int)nibble(m->zeros[r / 8 * groups + g], r % 8) + 1;
	if (wrong == 6) /* scales turned */
		at = r * groups + g;
	if (wrong == 7) /* AWQ's order of zero points */
		zero = (int)nibble(m->zeros[g * (m->rows / 8) + r / 8],
		                   (r % 8) / 2 + r % 2 * 4) +
		       1;
	return (float)(code - zero) * moek_f16_to_f32(m->halves[at]);
}

/* codes [columns][rows / 8], rows 0 2 4 6 1 3 5 7 from the lowest; zero points
 * [groups][rows / 8] in the same order; scales [groups][rows] */
static float read_awq(const struct raw *m, unsigned r, unsigned c, int wrong)
{
	static const unsigned inverse[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
	unsigned g = c / GROUP, place = (r % 8) / 2 + r % 2 * 4, at = g * m->rows + r;
	unsigned code_place = place, zero_place = place;
	uint32_t word = m->codes.words[c * (m->rows / 8) + r / 8];
	uint32_t zeros = m->zeros[g * (m->rows / 8) + r / 8];
	int zero;

	if (wrong == 1) /* no interleave */
		code_place = zero_place = r % 8;
	if (wrong == 2) /* undone the other way */
		code_place = zero_place = inverse[r % 8];
	if (wrong == 3) /* of the weights alone */
		zero_place = r % 8;
	if (wrong == 4) /* of the zero points alone */
		code_place = r % 8;
	if (wrong == 5) /* along columns */
		word = m->codes.words[(c / 8 * 8 + (c % 8) / 2 + c % 2 * 4) *
		                              (m->rows / 8) +
		                      r / 8];
	if (wrong == 6) /* words along columns, as GPTQ has them */
		word = m->codes.words[c / 8 * m->rows + r], code_place = c % 8;
	if (wrong == 8) /* scales turned */
		at = r * groups_of(m) + g;
	zero = (int)nibble(zeros, zero_place) + (wrong == 7); /* 7: GPTQ's plus one */
	return (float)((int)nibble(word, code_place) - zero) *
	       moek_f16_to_f32(m->halves[at]);
}

/* codes [rows][columns / 2], the first column low; exponents [rows][columns / 32] */
static float read_mxfp4(const struct raw *m, unsigned r, unsigned c, int wrong)
{
	static const float values[16] = { 0,     .5f,  1,  1.5f,  2,  3,  4,  6,
		                          -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6 };
	unsigned blocks = m->columns / 32, at = r * blocks + c / 32;
	const uint8_t *row = m->codes.bytes + r * (m->columns / 2);
	unsigned code = row[c / 2] >> (c % 2 * 4) & 15u;
	int bias = 127;

	if (wrong == 1) /* high nibble first */
		code = row[c / 2] >> ((c % 2 ^ 1) * 4) & 15u;
	if (wrong == 2) /* low nibbles are a block's first half, as in GGUF */
		code = row[c / 32 * 16 + c % 16] >> (c % 32 / 16 * 4) & 15u;
	if (wrong == 3) /* scales transposed */
		at = c / 32 * m->rows + r;
	if (wrong == 4) /* an exponent with fp32's bias less one */
		bias = 126;
	if (wrong == 5) /* GGUF's doubled table */
		bias = 128;
	if (wrong == 6) /* blocks counted along rows */
		at = (r / 32 * m->columns + c) % (m->rows * blocks);
	if (wrong == 7) /* an integer */
		return ldexpf((float)code - 8, m->exponents[at] - bias);
	return ldexpf(values[code], m->exponents[at] - bias);
}

/* e4m3 [rows][columns]; one fp32 for 8 rows x 16 columns, which multiplies */
static float read_fp8(const struct raw *m, unsigned r, unsigned c, int wrong)
{
	unsigned across = m->columns / GROUP, at = r / SQUARE * across + c / GROUP;
	unsigned code = m->codes.bytes[r * m->columns + c] & 127u;
	int exponent = (int)(code >> 3), mantissa = (int)(code & 7);
	float sign = (m->codes.bytes[r * m->columns + c] & 128u) != 0 ? -1.0f : 1.0f,
	      value;

	if (wrong == 1) /* scales transposed */
		at = c / GROUP * (m->rows / SQUARE) + r / SQUARE;
	if (wrong == 2) /* the block's sides exchanged */
		at = r / GROUP * (m->columns / SQUARE) + c / SQUARE;
	value = exponent == 0 ? ldexpf((float)mantissa, -9)
	                      : ldexpf((float)(8 + mantissa), exponent - 10);
	if (wrong == 3) /* e4m3fnuz: bias 8 */
		value /= 2;
	if (wrong == 4) /* e5m2 */
		value = code >> 2 == 0 ? ldexpf((float)(code & 3), -16)
		                       : ldexpf((float)(4 + (code & 3)),
		                                (int)(code >> 2) - 17);
	if (wrong == 5) /* divides */
		return sign * value / m->floats[at];
	return sign * value * m->floats[at];
}

/* ---- as checkpoints ---- */

static const char *name_of(int i, const char *suffix)
{
	static const char *const modules[] = { "gate_proj", "up_proj", "down_proj" };
	static char name[128];

	snprintf(name, sizeof(name), EXPERTS "%d.%s.%s", i / 3, modules[i % 3], suffix);
	return name;
}

static void add_packed(struct kit_file *file, int i)
{
	const struct raw *m = &raw[i];
	const int32_t shape[2] = { (int32_t)m->rows, (int32_t)m->columns };
	unsigned groups = groups_of(m);

	add_sized(file, name_of(i, "weight_packed"), "I32", m->codes.words, 2, m->rows,
	          m->columns / 8, 0, 0);
	add_sized(file, name_of(i, "weight_scale"), "F16", m->halves, 2, m->rows,
	          groups, 0, 0);
	add_sized(file, name_of(i, "weight_zero_point"), "I32", m->zeros, 2,
	          m->rows / 8, groups, 0, 0);
	kit_add(file, name_of(i, "weight_shape"), "I32", "2", shape);
}

static void add_gptq(struct kit_file *file, int i)
{
	const struct raw *m = &raw[i];

	add_sized(file, name_of(i, "qweight"), "I32", m->codes.words, 2, m->columns / 8,
	          m->rows, 0, 0);
	add_sized(file, name_of(i, "qzeros"), "I32", m->zeros, 2, groups_of(m),
	          m->rows / 8, 0, 0);
	add_sized(file, name_of(i, "scales"), "F16", m->halves, 2, groups_of(m),
	          m->rows, 0, 0);
}

static void add_awq(struct kit_file *file, int i)
{
	const struct raw *m = &raw[i];

	add_sized(file, name_of(i, "qweight"), "I32", m->codes.words, 2, m->columns,
	          m->rows / 8, 0, 0);
	add_sized(file, name_of(i, "qzeros"), "I32", m->zeros, 2, groups_of(m),
	          m->rows / 8, 0, 0);
	add_sized(file, name_of(i, "scales"), "F16", m->halves, 2, groups_of(m),
	          m->rows, 0, 0);
}

static void add_quark(struct kit_file *file, int i)
{
	const struct raw *m = &raw[i];

	add_sized(file, name_of(i, "weight"), "U8", m->codes.bytes, 2, m->rows,
	          m->columns / 2, 0, 0);
	add_sized(file, name_of(i, "weight_scale"), "U8", m->exponents, 2, m->rows,
	          m->columns / 32, 0, 0);
}

static void add_fp8(struct kit_file *file, int i)
{
	struct raw *m = &raw[i];

	for (size_t b = 0; b < sizeof(m->codes.bytes); b++)
		if ((m->codes.bytes[b] & 127) == 127) /* NaN equals nothing */
			m->codes.bytes[b] ^= 64;
	add_sized(file, name_of(i, "weight"), "F8_E4M3", m->codes.bytes, 2, m->rows,
	          m->columns, 0, 0);
	add_sized(file, name_of(i, "weight_scale_inv"), "F32", m->floats, 2,
	          m->rows / SQUARE, m->columns / GROUP, 0, 0);
}

static const struct format {
	const char *config;
	void (*add)(struct kit_file *file, int i);
	float (*read)(const struct raw *m, unsigned r, unsigned c, int wrong);
	int mistakes;
} formats[] = {
	{ "\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
	  "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_"
	  "bits\":4,"
	  "\"group_size\":16,\"symmetric\":false}}}",
	  add_packed, read_packed, 7 },
	{ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":16,\"desc_act\":false,"
	  "\"sym\":false",
	  add_gptq, read_gptq, 7 },
	{ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":16,\"zero_point\":true,"
	  "\"version\":\"gemm\"",
	  add_awq, read_awq, 8 },
	{ "\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":"
	  "\"fp4\",\"group_size\":32,\"scale_format\":\"e8m0\"},\"input_tensors\":"
	  "null}",
	  add_quark, read_mxfp4, 7 },
	{ "\"quant_method\":\"fp8\",\"weight_block_size\":[8,16]", add_fp8, read_fp8,
	  5 },
};

/** Weights of the taken experts that a reader with mistake @wrong reads otherwise. */
static unsigned differing(struct moek_checkpoint *checkpoint,
                          const struct format *format, int wrong)
{
	struct moek_error error = { .text = "" };
	struct taken taken;
	unsigned count = 0;

	for (int i = 0; i < 6; i++) {
		const struct raw *m = &raw[i];
		const struct moek_matrix *matrices[3] = { &taken.expert.gate,
			                                  &taken.expert.up,
			                                  &taken.expert.down };

		ck_assert_msg(take(checkpoint, 0, (uint64_t)i / 3, &taken, &error) ==
		                      MOEK_OK,
		              "%s", error.text);
		ck_assert_uint_eq(matrices[i % 3]->rows, m->rows);
		ck_assert_uint_eq(matrices[i % 3]->columns, m->columns);
		for (unsigned r = 0; r < m->rows; r++)
			for (unsigned c = 0; c < m->columns; c++)
				count += weight_at(matrices[i % 3], r, c) !=
				         format->read(m, r, c, wrong);
		drop(&taken);
	}
	return count;
}

START_TEST(every_mistake_of_a_reader_shows)
{
	const struct format *format = &formats[_i];
	struct moek_checkpoint *checkpoint;
	struct kit_file file = { 0 };
	char text[1024];

	fill();
	snprintf(text, sizeof(text), "\"quantization_config\":{%s}", format->config);
	write_config("qwen3_moe", HIDDEN, INTERMEDIATE, text);
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,64", NULL);
	for (int i = 0; i < 6; i++)
		format->add(&file, i);
	save(&file);
	checkpoint = open_ok(folder);
	ck_assert_uint_eq(differing(checkpoint, format, 0), 0);
	for (int wrong = 1; wrong <= format->mistakes; wrong++) {
		unsigned count = differing(checkpoint, format, wrong);

		/* most weights of any matrix: no mistake hides in a corner */
		ck_assert_msg(count > 6 * HIDDEN * INTERMEDIATE / 3,
		              "format %d, mistake %d: %u weights differ", _i, wrong,
		              count);
	}
	moek_checkpoint_close(checkpoint);
}
END_TEST

/* ---- gpt-oss: rows of gate and up in turns ---- */

/** Row of the file of row @r of gate or up. */
static unsigned row_in_file(int up, unsigned r, int wrong)
{
	switch (wrong) {
	case 1: /* halves */
		return up ? INTERMEDIATE + r : r;
	case 2: /* up first */
		return 2 * r + !up;
	default:
		return 2 * r + (unsigned)up;
	}
}

/** Weights that rows taken in the order of mistake @wrong would have otherwise. */
static unsigned misplaced(const struct moek_expert *expert, const struct raw *fused,
                          int wrong)
{
	unsigned count = 0;

	for (int up = 0; up < 2; up++)
		for (unsigned r = 0; r < INTERMEDIATE; r++)
			for (unsigned c = 0; c < HIDDEN; c++)
				count += weight_at(up ? &expert->up : &expert->gate, r,
				                   c) !=
				         read_mxfp4(fused, row_in_file(up, r, wrong), c,
				                    0);
	return count;
}

START_TEST(rows_in_turns_are_not_halves)
{
	static uint8_t codes[2][2 * INTERMEDIATE][HIDDEN / 2];
	static uint8_t scales[2][2 * INTERMEDIATE][HIDDEN / 32];
	struct kit_file file = { 0 };
	struct moek_checkpoint *checkpoint;
	struct moek_error error = { .text = "" };
	struct taken taken;

	fill();
	for (int e = 0; e < 2; e++) {
		raw[e].rows = 2 * INTERMEDIATE;
		raw[e].columns = HIDDEN;
		memcpy(codes[e], raw[e].codes.bytes, sizeof(codes[e]));
		memcpy(scales[e], raw[e].exponents, sizeof(scales[e]));
	}
	kit_add(&file, "model.layers.0.mlp.router.weight", "BF16", "2,64", NULL);
	kit_add(&file, "model.layers.0.mlp.router.bias", "BF16", "2", NULL);
	kit_add(&file, EXPERTS "gate_up_proj_blocks", "U8", "2,64,2,16", codes);
	kit_add(&file, EXPERTS "gate_up_proj_scales", "U8", "2,64,2", scales);
	kit_add(&file, EXPERTS "gate_up_proj_bias", "BF16", "2,64", NULL);
	kit_add(&file, EXPERTS "down_proj_blocks", "U8", "2,64,1,16", NULL);
	kit_add(&file, EXPERTS "down_proj_scales", "U8", "2,64,1", NULL);
	kit_add(&file, EXPERTS "down_proj_bias", "BF16", "2,64", NULL);
	save(&file);
	write_config("gpt_oss", HIDDEN, INTERMEDIATE,
	             "\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
	checkpoint = open_ok(folder);
	for (unsigned e = 0; e < 2; e++) {
		ck_assert_msg(take(checkpoint, 0, e, &taken, &error) == MOEK_OK, "%s",
		              error.text);
		ck_assert_uint_eq(misplaced(&taken.expert, &raw[e], 0), 0);
		for (int wrong = 1; wrong < 3; wrong++)
			ck_assert_uint_gt(misplaced(&taken.expert, &raw[e], wrong),
			                  INTERMEDIATE * HIDDEN / 2);
		drop(&taken);
	}
	moek_checkpoint_close(checkpoint);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("hazards");
	TCase *tests = tcase_create("formats");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, every_mistake_of_a_reader_shows, 0,
	                    (int)(sizeof(formats) / sizeof(formats[0])));
	tcase_add_test(tests, rows_in_turns_are_not_halves);
	suite_add_tcase(suite, tests);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
