/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <check.h>

#include <moek/formats.h>

/* What a format's bits mean, from the definition: sign, exponent, fraction, with
 * subnormals. No infinities or NaN. */
static double defined(uint32_t bits, int exponent_bits, int fraction_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1;
	int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
	int fraction = (int)bits & ((1 << fraction_bits) - 1);
	double size = exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
	                            : ldexp(fraction + (1 << fraction_bits),
	                                    exponent - bias - fraction_bits);

	return bits >> (exponent_bits + fraction_bits) & 1 ? -size : size;
}

static void same(float got, double want)
{
	ck_assert_msg((double)got == want && !signbit(got) == !signbit(want),
	              "%a, expected %a", (double)got, want);
}

/* ---- bf16 ---- */

static uint32_t narrow_bf16(float value)
{
	return moek_bf16_from_f32(value);
}

static uint32_t narrow_f16(float value)
{
	return moek_f16_from_f32(value);
}

static uint32_t narrow_e4m3(float value)
{
	return moek_e4m3_from_f32(value);
}

/*
 * All roundings of a format: every value comes back, every tie between neighbours goes
 * to the even one, and the fp32 on both sides of the tie to the nearer. @last is the
 * code of the largest finite value.
 */
static void all_roundings(uint32_t (*narrow)(float), uint32_t last, uint32_t sign,
                          const int bits[2])
{
	uint32_t code;

	for (code = 0; code <= last; code++) {
		double here = defined(code, bits[0], bits[1]);
		double next = defined(code + 1, bits[0], bits[1]);
		float tie = (float)((here + next) / 2);
		uint32_t even = code + (code & 1);

		ck_assert_uint_eq(narrow((float)here), code);
		ck_assert_uint_eq(narrow(-(float)here), code | sign);
		if (code == last)
			break;
		ck_assert(here < (double)tie && (double)tie < next);
		ck_assert_uint_eq(narrow(tie), even);
		ck_assert_uint_eq(narrow(-tie), even | sign);
		ck_assert_uint_eq(narrow(nextafterf(tie, 0.0f)), code);
		ck_assert_uint_eq(narrow(nextafterf(tie, INFINITY)), code + 1);
	}
}

START_TEST(bf16_is_the_upper_half)
{
	uint32_t code;

	for (code = 0; code < 0x8000; code++) {
		float value = moek_bf16_to_f32((uint16_t)code);

		ck_assert_uint_eq(moek_f32_bits(value), code << 16);
		if (code < 0x7f80)
			same(value, defined(code, 8, 7));
	}
}
END_TEST

START_TEST(bf16_rounds_to_nearest_even)
{
	static const int bits[] = { 8, 7 };

	all_roundings(narrow_bf16, 0x7f7f, 0x8000, bits);
	ck_assert_uint_eq(moek_bf16_from_f32(0.1f), 0x3dcd);
	ck_assert_uint_eq(moek_bf16_from_f32(3.14159274f), 0x4049);
	ck_assert_uint_eq(moek_bf16_from_f32(moek_f32_from_bits(0x3f808000)), 0x3f80);
	ck_assert_uint_eq(moek_bf16_from_f32(moek_f32_from_bits(0x3f818000)), 0x3f82);
	ck_assert_uint_eq(moek_bf16_from_f32(moek_f32_from_bits(0x3f808001)), 0x3f81);
	ck_assert_uint_eq(moek_bf16_from_f32(moek_f32_from_bits(0x7f7fffff)), 0x7f80);
	ck_assert_uint_eq(moek_bf16_from_f32(65504.0f), 0x4780);
	ck_assert_uint_eq(moek_bf16_from_f32(1e-40f), 0x0001);
	/* the tie between the largest and infinity, and one below it */
	ck_assert_uint_eq(moek_bf16_from_f32(moek_f32_from_bits(0x7f7f8000)), 0x7f80);
	ck_assert_uint_eq(moek_bf16_from_f32(moek_f32_from_bits(0x7f7f7fff)), 0x7f7f);
	ck_assert_uint_eq(moek_bf16_from_f32(-INFINITY), 0xff80);
}
END_TEST

START_TEST(a_nan_stays_a_nan)
{
	/* payloads whose upper bits are zero would turn into infinity if cut */
	static const uint32_t nans[] = { 0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001,
		                         0xffffffff };
	size_t i;

	for (i = 0; i < sizeof(nans) / sizeof(nans[0]); i++) {
		float nan = moek_f32_from_bits(nans[i]);

		ck_assert(isnan(moek_bf16_to_f32(moek_bf16_from_f32(nan))));
		ck_assert(isnan(moek_f16_to_f32(moek_f16_from_f32(nan))));
		ck_assert(isnan(moek_e4m3_to_f32(moek_e4m3_from_f32(nan))));
		ck_assert_uint_eq(moek_bf16_from_f32(nan) >> 15, nans[i] >> 31);
		ck_assert_uint_eq(moek_f16_from_f32(nan) >> 15, nans[i] >> 31);
	}
}
END_TEST

/* ---- fp16 ---- */

START_TEST(f16_widens_exactly)
{
	uint32_t code;

	for (code = 0; code < 0x10000; code++) {
		float value = moek_f16_to_f32((uint16_t)code);

		if ((code & 0x7fff) < 0x7c00)
			same(value, defined(code, 5, 10));
		else if ((code & 0x7fff) == 0x7c00)
			same(value,
			     code & 0x8000 ? (double)-INFINITY : (double)INFINITY);
		else
			ck_assert(isnan(value));
	}
	same(moek_f16_to_f32(0x0001), 0x1p-24);
	same(moek_f16_to_f32(0x03ff), 0x1.ff8p-15);
	same(moek_f16_to_f32(0x0400), 0x1p-14);
	same(moek_f16_to_f32(0x7bff), 65504);
	same(moek_f16_to_f32(0x2e66), 0.0999755859375);
}
END_TEST

START_TEST(f16_rounds_to_nearest_even)
{
	static const int bits[] = { 5, 10 };

	all_roundings(narrow_f16, 0x7bff, 0x8000, bits);
	ck_assert_uint_eq(moek_f16_from_f32(65519.996f), 0x7bff);
	ck_assert_uint_eq(moek_f16_from_f32(65520.0f), 0x7c00);
	ck_assert_uint_eq(moek_f16_from_f32(-1e9f), 0xfc00);
	ck_assert_uint_eq(moek_f16_from_f32(INFINITY), 0x7c00);
	ck_assert_uint_eq(moek_f16_from_f32(moek_f32_from_bits(1)), 0);
	ck_assert_uint_eq(moek_f16_from_f32(moek_f32_from_bits(0x80000001)), 0x8000);
}
END_TEST

/* ---- fp8 ---- */

START_TEST(e4m3_widens_exactly)
{
	uint32_t code;

	for (code = 0; code < 0x100; code++)
		if ((code & 0x7f) == 0x7f)
			ck_assert(isnan(moek_e4m3_to_f32((uint8_t)code)));
		else
			same(moek_e4m3_to_f32((uint8_t)code), defined(code, 4, 3));
	same(moek_e4m3_to_f32(0x01), 0.001953125);
	same(moek_e4m3_to_f32(0x07), 0.013671875);
	same(moek_e4m3_to_f32(0x08), 0.015625);
	same(moek_e4m3_to_f32(0x38), 1);
	same(moek_e4m3_to_f32(0x3c), 1.5);
	same(moek_e4m3_to_f32(0x40), 2);
	same(moek_e4m3_to_f32(0x7e), 448);
	same(moek_e4m3_to_f32(0x80), -0.0);
	same(moek_e4m3_to_f32(0xb8), -1);
	same(moek_e4m3_to_f32(0xfe), -448);
}
END_TEST

START_TEST(e4m3_rounds_to_nearest_even_and_saturates)
{
	static const int bits[] = { 4, 3 };

	all_roundings(narrow_e4m3, 0x7e, 0x80, bits);
	ck_assert_uint_eq(moek_e4m3_from_f32(449.0f), 0x7e);
	ck_assert_uint_eq(moek_e4m3_from_f32(480.0f), 0x7e);
	ck_assert_uint_eq(moek_e4m3_from_f32(1e30f), 0x7e);
	ck_assert_uint_eq(moek_e4m3_from_f32(-INFINITY), 0xfe);
	ck_assert_uint_eq(moek_fp8_code(-3.0f, 2.0f), 0xbc);
	ck_assert_uint_eq(moek_fp8_code(1000.0f, 2.0f), 0x7e);
}
END_TEST

/* ---- E8M0 and E2M1 ---- */

START_TEST(e8m0_is_a_power_of_two)
{
	int byte;

	for (byte = 0; byte < 255; byte++)
		same(moek_e8m0_to_f32((uint8_t)byte), ldexp(1, byte - 127));
	ck_assert(isnan(moek_e8m0_to_f32(255)));
	ck_assert_uint_eq(moek_f32_bits(moek_e8m0_to_f32(0x00)), 0x00400000);
	ck_assert_uint_eq(moek_f32_bits(moek_e8m0_to_f32(0x01)), 0x00800000);
	ck_assert_uint_eq(moek_f32_bits(moek_e8m0_to_f32(0xfe)), 0x7f000000);
	same(moek_e8m0_to_f32(0x77), 0x1p-8);
	same(moek_e8m0_to_f32(0x7f), 1);
	same(moek_e8m0_to_f32(0x80), 2);
}
END_TEST

static const double e2m1_values[] = { 0, .5, 1, 1.5, 2, 3, 4, 6 };

START_TEST(e2m1_values_and_signs)
{
	uint32_t code;

	for (code = 0; code < 16; code++) {
		double want = code & 8 ? -e2m1_values[code & 7] : e2m1_values[code & 7];

		same(moek_e2m1_to_f32(code), want);
		ck_assert_uint_eq(moek_e2m1_from_f32((float)want), code);
		if ((code & 7) != 0) /* a format of 2 exponent bits, bias 1 */
			same(moek_e2m1_to_f32(code), defined(code, 2, 1));
	}
}
END_TEST

START_TEST(ex_r1_ties_of_e2m1)
{
	static const struct {
		float tie;
		uint32_t below, at, above;
	} ties[] = { { .25f, 0, 0, 1 },  { .75f, 1, 2, 2 }, { 1.25f, 2, 2, 3 },
		     { 1.75f, 3, 4, 4 }, { 2.5f, 4, 4, 5 }, { 3.5f, 5, 6, 6 },
		     { 5, 6, 6, 7 } };
	size_t i;

	for (i = 0; i < sizeof(ties) / sizeof(ties[0]); i++) {
		float tie = ties[i].tie;

		ck_assert_uint_eq(moek_e2m1_from_f32(nextafterf(tie, 0)),
		                  ties[i].below);
		ck_assert_uint_eq(moek_e2m1_from_f32(tie), ties[i].at);
		ck_assert_uint_eq(moek_e2m1_from_f32(nextafterf(tie, 9)),
		                  ties[i].above);
		ck_assert_uint_eq(moek_e2m1_from_f32(-tie), ties[i].at | 8);
	}
	ck_assert_uint_eq(moek_e2m1_from_f32(7), 7);
	ck_assert_uint_eq(moek_e2m1_from_f32(INFINITY), 7);
	ck_assert_uint_eq(moek_e2m1_from_f32(-1e30f), 15);
	same(moek_e2m1_to_f32(moek_e2m1_from_f32(-.25f)), -0.0);
	same(moek_e2m1_to_f32(moek_e2m1_from_f32(-2.5f)), -2);
}
END_TEST

/* ---- weights ---- */

START_TEST(ex_mx1_all_codes_low_nibble_first)
{
	static const uint8_t row[] = { 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
		                       0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe };
	double ones = 0, ramp = 0;
	uint32_t c;

	for (c = 0; c < 32; c++) {
		uint32_t code = moek_nibble(row, c);
		double want = (c & 8 ? -1 : 1) * e2m1_values[c & 7];

		ck_assert_uint_eq(code, c % 16);
		same(moek_mxfp4_value(code, 127), want);
		same(moek_mxfp4_value(code, 128), want * 2);
		same(moek_mxfp4_value(code, 126), want / 2);
		ones += (double)moek_mxfp4_value(code, 131);
		ramp += c * (double)moek_mxfp4_value(code, 127);
	}
	ck_assert_double_eq(ones, 0); /* EX-MX2 */
	ck_assert_double_eq(ramp, -288);
}
END_TEST

START_TEST(v_mx_2_an_aperiodic_block)
{
	static const uint8_t row[] = { 0xa3, 0x81, 0x6f, 0x4d, 0x2b, 0x09, 0xe7, 0xc5,
		                       0xf8, 0xd6, 0xb4, 0x92, 0x70, 0x5e, 0x3c, 0x1a };
	static const double want[] = { .375,  -.25,  .125,  -.0,   -1.5, 1,    -.75,
		                       .5,    -.375, .25,   -.125, 0,    1.5,  -1,
		                       .75,   -.5,   -.0,   -1.5,  1,    -.75, .5,
		                       -.375, .25,   -.125, 0,     1.5,  -1,   .75,
		                       -.5,   .375,  -.25,  .125 };
	uint32_t c;

	for (c = 0; c < 32; c++)
		same(moek_mxfp4_value(moek_nibble(row, c), 0x7d), want[c]);
}
END_TEST

/* Rows of amd/Qwen3.8-27B-Quark-AWQ-MXFP4: gate_proj row 0 and down_proj row 0, 128
 * columns. */
START_TEST(v_mx_3_real_weights)
{
	static const char *const hex[] = {
		"ca2c11c63a2569da03400522a305571192d9eafd0d6fee42b9c12db5cbee3b6c"
		"41441e2c94a73c305d5ba52a1cba4e5e9ce94dc2265b5154db02d49bddba4273",
		"0abf6eefaf61a5773fa7cbfdb0e3cd9dc12640410d09ba99991d3ca3105e90a3"
		"390255c30a5120a4c10103a92e35c9a14a152ae0ea21d0554f20d24440d4aa59"
	};
	static const uint8_t scales[2][4] = { { 0x77, 0x77, 0x77, 0x77 },
		                              { 0x76, 0x77, 0x77, 0x77 } };
	static const double first[2][8] = { { -1, -2, -2, 1, .5, .5, 4, -2 },
		                            { -1, 0, -6, -1.5, -4, 4, -6, -4 } };
	uint8_t row[64];
	double sum = 0;
	uint32_t r, c;

	for (r = 0; r < 2; r++) {
		for (c = 0; c < 64; c++) {
			const char digits[] = { hex[r][2 * c], hex[r][2 * c + 1],
				                '\0' };

			row[c] = (uint8_t)strtoul(digits, NULL, 16);
		}
		for (c = 0; c < 8; c++)
			ck_assert_double_eq((double)moek_mxfp4_value(
						    moek_nibble(row, c), scales[r][0]),
			                    ldexp(first[r][c], scales[r][0] - 127));
		for (c = 0; c < 128 && r == 0; c++)
			sum += (double)moek_mxfp4_value(moek_nibble(row, c),
			                                scales[r][c / 32]);
	}
	ck_assert_double_eq(sum, -0.03125);
}
END_TEST

START_TEST(mxfp4_edge_scales)
{
	uint32_t code;

	for (code = 0; code < 16; code++) {
		double value = (code & 8 ? -1 : 1) * e2m1_values[code & 7];

		same(moek_mxfp4_value(code, 0), ldexp(value, -127));
		if ((code & 7) < 6) /* 4 and 6 times 2^127 are beyond fp32 */
			same(moek_mxfp4_value(code, 254),
			     (code & 7) >= 4
			             ? (code & 8 ? (double)-INFINITY : (double)INFINITY)
			             : ldexp(value, 127));
		ck_assert(isnan(moek_mxfp4_value(code, 255)));
	}
}
END_TEST

START_TEST(int4_values)
{
	/* EX-CT1: signed -8 -1 0 1 7 3 -4 2, scale 1/2, word a4bf9870 */
	static const uint8_t ct1[] = { 0x70, 0x98, 0xbf, 0xa4 };
	static const double want1[] = { -4, -.5, 0, .5, 3.5, 1.5, -2, 1 };
	/* V-CT-1 row 0: scales 1/2 and 1/4 */
	static const uint8_t row0[] = {
		0x10, 0x87, 0xa9, 0xfe, 0x5b, 0x3d, 0x88, 0xf0
	};
	static const double want0[] = { -4,  -3.5, -.5,  0,     .5, 1, 3,  3.5,
		                        .75, -.75, 1.25, -1.25, 0,  0, -2, 1.75 };
	/* V-CT-3 row 1: zero -3 + 8, codes -8 0 7 3 + 8, scale 1/2 */
	static const uint32_t codes3[] = { 0, 8, 15, 11 };
	static const double want3[] = { -2.5, 1.5, 5, 3 };
	uint32_t c;

	for (c = 0; c < 8; c++)
		same(moek_int4_value(moek_nibble(ct1, c), 8, .5f), want1[c]);
	for (c = 0; c < 16; c++)
		same(moek_int4_value(moek_nibble(row0, c), 8, c < 8 ? .5f : .25f),
		     want0[c]);
	for (c = 0; c < 4; c++)
		same(moek_int4_value(codes3[c], 5, .5f), want3[c]);
	/* GPTQ stores 15 for a zero of 16 */
	same(moek_int4_value(0, 16, .25f), -4);
}
END_TEST

/* ---- activations ---- */

START_TEST(ex_r2_and_v_mx_enc_shared_exponents)
{
	static const struct {
		float amax;
		int even, round_up;
	} rows[] = { { 1, -2, -2 },     { 3, -1, -1 },     { 3.5f, 0, 0 },
		     { 4, 0, 0 },       { 5, 0, 0 },       { 6, 0, 0 },
		     { 6.5f, 0, 1 },    { 6.99f, 0, 1 },   { 7, 1, 1 },
		     { 12, 1, 1 },      { 13, 1, 2 },      { 14, 2, 2 },
		     { 1.74f, -2, -1 }, { 1.75f, -1, -1 }, { 3.4f, -1, 0 },
		     { 6.01f, 0, 1 },   { 8, 1, 1 },       { 0.1f, -6, -5 } };
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ck_assert_int_eq(moek_mxfp4_scale_even(rows[i].amax),
		                 rows[i].even + 127);
		ck_assert_int_eq(moek_mxfp4_scale_round_up(rows[i].amax),
		                 rows[i].round_up + 127);
	}
}
END_TEST

/* Around every power of two and every border inside, against the definitions in double.
 */
START_TEST(shared_exponents_everywhere)
{
	static const uint32_t fractions[] = { 0,        1,        0x3fffff,
		                              0x400000, 0x400001, 0x5fffff,
		                              0x600000, 0x600001, 0x7fffff };
	uint32_t exponent, i;

	for (exponent = 0; exponent < 255; exponent++)
		for (i = 0; i < 9; i++) {
			uint32_t bits = exponent << 23 | fractions[i];
			float amax = moek_f32_from_bits(bits);
			int top = exponent == 0 ? -126 : (int)exponent - 127;
			int byte = moek_mxfp4_scale_round_up(amax);
			int even = top - 2 + 127 +
			           (exponent != 0 && fractions[i] >= 0x600000);

			/* smallest power by which amax is at most 6, from byte 0 on */
			ck_assert(ldexp((double)amax, 127 - byte) <= 6);
			ck_assert(byte == 0 || ldexp((double)amax, 128 - byte) > 6);
			ck_assert_int_eq(moek_mxfp4_scale_even(amax),
			                 even < 0 ? 0 : even);
			ck_assert_int_eq(moek_mxfp4_scale_even(-amax),
			                 even < 0 ? 0 : even);
		}
	ck_assert_int_eq(moek_mxfp4_scale_even(INFINITY), 255);
	ck_assert_int_eq(moek_mxfp4_scale_round_up(-INFINITY), 255);
	ck_assert_int_eq(moek_mxfp4_scale_even(NAN), 255);
	ck_assert_int_eq(moek_mxfp4_scale_round_up(NAN), 255);
}
END_TEST

struct block {
	float values[8];
	uint8_t scale;
	uint8_t codes[8];
	double back[8];
};

static void check_block(const struct block *b, uint8_t scale)
{
	int i;

	ck_assert_uint_eq(scale, b->scale);
	for (i = 0; i < 8; i++) {
		ck_assert_uint_eq(moek_mxfp4_code(b->values[i], scale), b->codes[i]);
		same(moek_mxfp4_value(b->codes[i], scale), b->back[i]);
	}
}

START_TEST(ex_r3_two_valid_answers)
{
	static const struct block even = { { 6.9f, 3.45f, 1, -.3f, .2f, 0, -6.9f,
		                             2.5f },
		                           127,
		                           { 7, 5, 2, 9, 0, 0, 15, 4 },
		                           { 6, 3, 1, -.5, 0, 0, -6, 2 } };
	static const struct block up = { { 6.9f, 3.45f, 1, -.3f, .2f, 0, -6.9f, 2.5f },
		                         128,
		                         { 5, 3, 1, 8, 0, 0, 13, 2 },
		                         { 6, 3, 1, -.0, 0, 0, -6, 2 } };

	check_block(&even, moek_mxfp4_scale_even(6.9f));
	check_block(&up, moek_mxfp4_scale_round_up(6.9f));
}
END_TEST

START_TEST(ex_r4_one_answer)
{
	static const struct block both = { { 7, 6.9f, 3.45f, 1, -.3f, .2f, 0, -7 },
		                           128,
		                           { 6, 5, 3, 1, 8, 0, 0, 14 },
		                           { 8, 6, 3, 1, -.0, 0, 0, -8 } };

	check_block(&both, moek_mxfp4_scale_even(7));
	check_block(&both, moek_mxfp4_scale_round_up(7));
}
END_TEST

/* Every code under every scale comes back, up to what fp32 can hold. */
START_TEST(mxfp4_codes_come_back)
{
	uint32_t scale, code;

	for (scale = 0; scale < 255; scale++)
		for (code = 0; code < 16; code++) {
			float value = moek_mxfp4_value(code, (uint8_t)scale);

			if (isfinite(value))
				ck_assert_uint_eq(
					moek_mxfp4_code(value, (uint8_t)scale), code);
		}
}
END_TEST

START_TEST(int8_codes_round_to_nearest_even)
{
	float scale = moek_int8_scale(127.0f);
	int i;

	ck_assert_float_eq(scale, 1.0f);
	for (i = -127; i <= 127; i++)
		ck_assert_int_eq(moek_int8_code((float)i * 0.25f, 0.25f), i);
	for (i = -126; i <= 126; i++) {
		int even = i + (i & 1);

		ck_assert_int_eq(moek_int8_code((float)i + 0.5f, 1.0f), even);
		ck_assert_int_eq(moek_int8_code((float)i + 0.498f, 1.0f), i);
		ck_assert_int_eq(moek_int8_code((float)i + 0.502f, 1.0f), i + 1);
	}
	ck_assert_int_eq(moek_int8_code(127.4f, 1.0f), 127);
	ck_assert_int_eq(moek_int8_code(300.0f, 1.0f), 127);
	ck_assert_int_eq(moek_int8_code(-300.0f, 1.0f), -127);
	ck_assert_int_eq(moek_int8_code(5.0f, 0.0f), 0);
	ck_assert_int_eq(moek_int8_code(NAN, 1.0f), -127);
	ck_assert_float_eq(moek_int8_scale(0.0f), 0.0f);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("formats");
	TCase *floats = tcase_create("floats"), *codes = tcase_create("codes");

	tcase_add_test(floats, bf16_is_the_upper_half);
	tcase_add_test(floats, bf16_rounds_to_nearest_even);
	tcase_add_test(floats, a_nan_stays_a_nan);
	tcase_add_test(floats, f16_widens_exactly);
	tcase_add_test(floats, f16_rounds_to_nearest_even);
	tcase_add_test(floats, e4m3_widens_exactly);
	tcase_add_test(floats, e4m3_rounds_to_nearest_even_and_saturates);
	tcase_add_test(floats, e8m0_is_a_power_of_two);
	tcase_add_test(codes, e2m1_values_and_signs);
	tcase_add_test(codes, ex_r1_ties_of_e2m1);
	tcase_add_test(codes, ex_mx1_all_codes_low_nibble_first);
	tcase_add_test(codes, v_mx_2_an_aperiodic_block);
	tcase_add_test(codes, v_mx_3_real_weights);
	tcase_add_test(codes, mxfp4_edge_scales);
	tcase_add_test(codes, int4_values);
	tcase_add_test(codes, ex_r2_and_v_mx_enc_shared_exponents);
	tcase_add_test(codes, shared_exponents_everywhere);
	tcase_add_test(codes, ex_r3_two_valid_answers);
	tcase_add_test(codes, ex_r4_one_answer);
	tcase_add_test(codes, mxfp4_codes_come_back);
	tcase_add_test(codes, int8_codes_round_to_nearest_even);
	suite_add_tcase(s, floats);
	suite_add_tcase(s, codes);
	return s;
}

int main(void)
{
	SRunner *runner = srunner_create(suite());
	int failed;

	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
