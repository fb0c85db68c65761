/* SPDX-License-Identifier: MIT */
/*
 * The model of the matrix operations of 64 lanes, against products of whole matrices.
 * Where an element and its scale lie in the lanes is written down here once more, from
 * the tables of AMD's composable_kernel and not from mfma.h.
 */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/gpu/fibers.h"

#define GPU_WAVE 64
#include "plugins/gpu/mfma.h"

enum { DEEP = 128 };

/* two matrices of codes, their scales, and what one wave is to make of them */
static struct {
	int a_format, b_format;
	unsigned int byte; /* of the word that holds the scale of B */
	uint8_t a[16][DEEP], b[16][DEEP];
	uint8_t a_scale[16][4], b_scale[16][4];
	float c[16][16], d[16][16];
} job;

static uint32_t seed;

static uint32_t random_bits(void)
{
	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

static float decode(int format, uint8_t code)
{
	return format == GPU_FP4 ? moek_e2m1_to_f32(code) : moek_e4m3_to_f32(code);
}

/* element v (of 32) of a lane is this k: FP4 in one run, FP8 in two of 16, 64 apart */
static unsigned int column_of(int format, unsigned int lane, unsigned int v)
{
	if (format == GPU_FP4)
		return lane / 16 * 32 + v;
	return v < 16 ? lane / 16 * 16 + v : 64 + lane / 16 * 16 + v - 16;
}

static struct gpu_operand operand(int format, uint8_t (*codes)[DEEP], unsigned int lane)
{
	struct gpu_operand out;
	unsigned int v;

	memset(&out, 0xa5, sizeof(out)); /* what FP4 does not use may hold anything */
	memset(&out, 0, format == GPU_FP4 ? 16 : 32);
	for (v = 0; v < 32; v++) {
		uint32_t code = codes[lane % 16][column_of(format, lane, v)];

		if (format == GPU_FP4)
			out.u[v / 8] |= code << 4 * (v % 8);
		else
			out.u[v / 4] |= code << 8 * (v % 4);
	}
	return out;
}

static void multiply(const void *kernel, const void *args)
{
	const unsigned int lane = gpu_thread();
	const struct gpu_operand a = operand(job.a_format, job.a, lane);
	const struct gpu_operand b = operand(job.b_format, job.b, lane);
	/* the other bytes of the word must not be looked at */
	const uint32_t noise = 0x05f00af0u & ~(255u << 8 * job.byte);
	const uint32_t a_scale = job.a_scale[lane % 16][lane / 16] | 0xffffff00u;
	const uint32_t b_scale = (uint32_t)job.b_scale[lane % 16][lane / 16]
	                                 << 8 * job.byte |
	                         noise;
	struct gpu_sums c;
	unsigned int i;

	(void)kernel;
	(void)args;
	for (i = 0; i < 4; i++)
		c.f[i] = job.c[4 * (lane / 16) + i][lane % 16];
	c = gpu_mfma_scale(a, b, c, job.a_format, job.b_format, 0, a_scale, job.byte,
	                   b_scale);
	for (i = 0; i < 4; i++)
		job.d[4 * (lane / 16) + i][lane % 16] = c.f[i];
}

static void run(int reverse)
{
	struct gpu_launch launch = {
		.call = multiply,
		.grid = { 1, 1, 1 },
		.threads = 64,
		.wave = 64,
		.reverse = reverse,
	};
	const char *error;

	ck_assert_msg(gpu_fibers_run(&launch, &error) == 0, "%s", error);
}

static double expected(unsigned int row, unsigned int column)
{
	double sum = (double)job.c[row][column];
	unsigned int k;

	for (k = 0; k < DEEP; k++)
		sum += (double)decode(job.a_format, job.a[row][k]) *
		       (double)moek_e8m0_to_f32(job.a_scale[row][k / 32]) *
		       (double)decode(job.b_format, job.b[column][k]) *
		       (double)moek_e8m0_to_f32(job.b_scale[column][k / 32]);
	return sum;
}

static const int formats[][2] = { { GPU_FP4, GPU_FP4 },
	                          { GPU_FP8, GPU_FP4 },
	                          { GPU_FP4, GPU_FP8 },
	                          { GPU_FP8, GPU_FP8 } };

static uint8_t random_code(int format)
{
	uint8_t code = (uint8_t)random_bits();

	if (format == GPU_FP4)
		return code & 15;
	return (code & 0x7f) == 0x7f ? 0 : code;
}

/* formats x byte of the scale's word, scales of all sizes */
START_TEST(multiplies_by_mixed_scales)
{
	unsigned int i, k, r;

	seed = (uint32_t)_i + 1;
	job.a_format = formats[_i / 4][0];
	job.b_format = formats[_i / 4][1];
	job.byte = (unsigned int)_i % 4;
	for (r = 0; r < 16; r++) {
		for (k = 0; k < DEEP; k++) {
			job.a[r][k] = random_code(job.a_format);
			job.b[r][k] = random_code(job.b_format);
		}
		for (i = 0; i < 4; i++) {
			job.a_scale[r][i] = (uint8_t)(120 + random_bits() % 12);
			job.b_scale[r][i] = (uint8_t)(120 + random_bits() % 12);
		}
		for (i = 0; i < 16; i++)
			job.c[r][i] = (float)(random_bits() % 100);
	}
	for (i = 0; i < 2; i++) {
		run((int)i);
		for (r = 0; r < 16; r++)
			for (k = 0; k < 16; k++)
				ck_assert_msg(job.d[r][k] == (float)expected(r, k),
				              "[%u][%u] is %g, expected %g", r, k,
				              (double)job.d[r][k], expected(r, k));
	}
}
END_TEST

/* one element of A meets one of B only where k is the same, whatever the formats */
START_TEST(an_element_meets_that_of_its_column)
{
	const uint8_t one[] = { [GPU_FP4] = 2, [GPU_FP8] = 0x38 };
	unsigned int k, other;

	memset(&job, 0, sizeof(job));
	memset(job.a_scale, 127, sizeof(job.a_scale));
	memset(job.b_scale, 127, sizeof(job.b_scale));
	job.a_format = formats[_i][0];
	job.b_format = formats[_i][1];
	for (k = 0; k < DEEP; k += 5)
		for (other = 0; other < DEEP; other += k == 0 ? 1 : 17) {
			unsigned int at = k == 0 ? other : (k + other) % DEEP;

			job.a[3][k] = one[job.a_format];
			job.b[11][at] = one[job.b_format];
			job.b_scale[11][at / 32] = 130;
			run(0);
			ck_assert(job.d[3][11] == (k == at ? 8.0f : 0.0f));
			ck_assert(job.d[11][3] == 0.0f);
			job.a[3][k] = job.b[11][at] = 0;
			job.b_scale[11][at / 32] = 127;
		}
}
END_TEST

START_TEST(a_scale_of_255_is_nan_for_its_row_alone)
{
	memset(&job, 0, sizeof(job));
	memset(job.a_scale, 127, sizeof(job.a_scale));
	memset(job.b_scale, 127, sizeof(job.b_scale));
	job.a_format = job.b_format = GPU_FP4;
	job.a_scale[5][2] = 255;
	run(0);
	ck_assert(job.d[5][0] != job.d[5][0]);
	ck_assert(job.d[4][0] == 0.0f);
}
END_TEST

/* ---- 16 bits ---- */

static uint16_t wide[2][16][32];
static int is_f16;

static void multiply16(const void *kernel, const void *args)
{
	const unsigned int lane = gpu_thread();
	struct gpu_u32x4 a, b;
	struct gpu_sums c;
	unsigned int i;

	(void)kernel;
	(void)args;
	memcpy(&a, &wide[0][lane % 16][lane / 16 * 8], 16);
	memcpy(&b, &wide[1][lane % 16][lane / 16 * 8], 16);
	for (i = 0; i < 4; i++)
		c.f[i] = job.c[4 * (lane / 16) + i][lane % 16];
	c = is_f16 ? gpu_mfma_f16(a, b, c) : gpu_mfma_bf16(a, b, c);
	for (i = 0; i < 4; i++)
		job.d[4 * (lane / 16) + i][lane % 16] = c.f[i];
}

START_TEST(multiplies_16_bit_floats)
{
	const struct gpu_launch launch = {
		.call = multiply16, .grid = { 1, 1, 1 }, .threads = 64, .wave = 64
	};
	unsigned int r, k, i;
	const char *error;

	seed = 9;
	is_f16 = _i;
	for (r = 0; r < 16; r++)
		for (k = 0; k < 32; k++)
			for (i = 0; i < 2; i++) {
				float value = (float)(int32_t)(random_bits() % 64) - 32;

				wide[i][r][k] = is_f16 ? moek_f16_from_f32(value)
				                       : moek_bf16_from_f32(value);
			}
	ck_assert_int_eq(gpu_fibers_run(&launch, &error), 0);
	for (r = 0; r < 16; r++)
		for (i = 0; i < 16; i++) {
			float sum = job.c[r][i]; /* small integers: exact */

			for (k = 0; k < 32; k++)
				sum += gpu_widen(wide[0][r][k],
				                 is_f16 ? GPU_F16 : GPU_BF16) *
				       gpu_widen(wide[1][i][k],
				                 is_f16 ? GPU_F16 : GPU_BF16);
			ck_assert(job.d[r][i] == sum);
		}
}
END_TEST

/* the quantiser of kernels is that of the definition, special values included */
START_TEST(kernels_quantise_by_the_definition)
{
	static const float amax[] = {
		0, 1, 3, 3.5f, 4, 5, 6, 6.5f, 6.99f, 7, 12, 13, 14
	};
	/* EX-R2: even, round up; exponent, where there is one */
	static const int exponents[][2] = {
		{ -2, -2 }, { -1, -1 }, { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 },
		{ 0, 1 },   { 0, 1 },   { 1, 1 }, { 1, 1 }, { 1, 2 }, { 2, 2 }
	};
	const float nan = moek_f32_from_bits(0x7fc00000u);
	size_t i;

	for (i = 1; i < sizeof(amax) / sizeof(amax[0]); i++) {
		uint32_t largest = gpu_larger(gpu_larger(0, amax[i] / 2), -amax[i]);

		ck_assert_int_eq((int)gpu_mxfp4_scale(largest, 0) - 127,
		                 exponents[i - 1][0]);
		ck_assert_int_eq((int)gpu_mxfp4_scale(largest, 1) - 127,
		                 exponents[i - 1][1]);
	}
	ck_assert_uint_eq(gpu_mxfp4_scale(gpu_larger(gpu_larger(0, nan), 1.0f), 0),
	                  255);
	ck_assert_uint_eq(gpu_mxfp4_scale(gpu_larger(0, -1.0f / 0.0f), 1), 255);
	ck_assert_uint_eq(gpu_mxfp4_code(nan, 255), 0);
	ck_assert_uint_eq(gpu_mxfp4_code(-0.3f, 127), 9);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu_mfma");
	TCase *t = tcase_create("gpu_mfma");
	SRunner *runner;
	int failed;

#ifdef __SANITIZE_THREAD__
	printf("skipped: fibers do not run under the thread sanitizer\n");
	return 77;
#endif
	tcase_add_loop_test(t, multiplies_by_mixed_scales, 0, 16);
	tcase_add_loop_test(t, an_element_meets_that_of_its_column, 0, 4);
	tcase_add_test(t, a_scale_of_255_is_nan_for_its_row_alone);
	tcase_add_loop_test(t, multiplies_16_bit_floats, 0, 2);
	tcase_add_test(t, kernels_quantise_by_the_definition);
	suite_add_tcase(s, t);
	runner = srunner_create(s);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
