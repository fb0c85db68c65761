/* SPDX-License-Identifier: MIT */
/**
 * Number formats, defined once for everybody: bf16, fp16, fp8 (e4m3), E8M0, E2M1 (the
 * elements of MXFP4), int4, and the rules by which activations are quantised. Plain C on
 * single values; kernels have their own fast versions and are tested against these.
 *
 * Sources: OCP Microscaling Formats 1.0; IEEE 754. Round to nearest, ties to even,
 * unless said otherwise. Does not depend on the rounding mode or on flush-to-zero, except
 * where a product is formed (moek_int4_value and its like).
 */
#ifndef MOEK_FORMATS_H
#define MOEK_FORMATS_H

#include <stdint.h>

/* How a function here is declared. Code for a GPU defines it as its compiler needs, and
 * memcpy with it. */
#ifndef MOEK_FORMAT
#include <string.h>
#define MOEK_FORMAT static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MOEK_MX_BLOCK 32 /* columns that share an E8M0 scale */

MOEK_FORMAT uint32_t moek_f32_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

MOEK_FORMAT float moek_f32_from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* ---- bf16: the upper half of an fp32 ---- */

MOEK_FORMAT float moek_bf16_to_f32(uint16_t bits)
{
	return moek_f32_from_bits((uint32_t)bits << 16);
}

/** Overflow goes to infinity; a NaN stays a (quiet) NaN. */
MOEK_FORMAT uint16_t moek_bf16_from_f32(float value)
{
	uint32_t bits = moek_f32_bits(value);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40u);
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* ---- fp16: 1 sign, 5 exponent, 10 fraction ---- */

MOEK_FORMAT float moek_f16_to_f32(uint16_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
	uint32_t exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;

	if (exponent == 31u)
		return moek_f32_from_bits(sign | 0x7f800000u | fraction << 13);
	if (exponent != 0)
		return moek_f32_from_bits(sign | (exponent + 112u) << 23 | fraction << 13);
	if (fraction == 0)
		return moek_f32_from_bits(sign);
	/* subnormal: shift the leading one up to bit 10 */
	exponent = 113u;
	while ((fraction & 0x400u) == 0) {
		fraction <<= 1;
		exponent--;
	}
	return moek_f32_from_bits(sign | exponent << 23 | (fraction & 0x3ffu) << 13);
}

/** Overflow goes to infinity; a NaN stays a (quiet) NaN. */
MOEK_FORMAT uint16_t moek_f16_from_f32(float value)
{
	uint32_t bits = moek_f32_bits(value);
	uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
	uint32_t shift, fraction, half;

	if (size > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00u);
	if (size >= 0x477ff000u) /* 65520, which rounds to infinity */
		return (uint16_t)(sign | 0x7c00u);
	if (size >= 0x38800000u) { /* 2^-14: normal */
		size += 0xfffu + (size >> 13 & 1u);
		return (uint16_t)(sign | (size - 0x38000000u) >> 13);
	}
	if (size < 0x33000000u) /* under 2^-25: nearer to zero */
		return (uint16_t)sign;
	shift = 126u - (size >> 23);
	fraction = (size & 0x7fffffu) | 0x800000u;
	half = 1u << (shift - 1);
	fraction += half - 1u + (fraction >> shift & 1u);
	return (uint16_t)(sign | fraction >> shift);
}

/* ---- fp8 e4m3 (FN): bias 7, no infinities, 0x7f and 0xff are NaN, largest 448 ---- */

MOEK_FORMAT float moek_e4m3_to_f32(uint8_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x80u) << 24;
	uint32_t exponent = bits >> 3 & 15u, fraction = bits & 7u;

	if ((bits & 0x7fu) == 0x7fu)
		return moek_f32_from_bits(sign | 0x7fc00000u);
	if (exponent != 0)
		return moek_f32_from_bits(sign | (exponent + 120u) << 23 | fraction << 20);
	/* subnormal: fraction * 2^-9, exact */
	return moek_f32_from_bits(sign | moek_f32_bits((float)fraction * 0.001953125f));
}

/** Saturates at 448, infinities included; a NaN stays a NaN. */
MOEK_FORMAT uint8_t moek_e4m3_from_f32(float value)
{
	uint32_t bits = moek_f32_bits(value);
	uint32_t sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
	uint32_t shift, fraction, half;

	if (size > 0x7f800000u)
		return (uint8_t)(sign | 0x7fu);
	if (size >= 0x43e00000u) /* 448 */
		return (uint8_t)(sign | 0x7eu);
	if (size >= 0x3c800000u) { /* 2^-6: normal; 447.99 rounds up to 448, not beyond */
		size += 0x7ffffu + (size >> 20 & 1u);
		return (uint8_t)(sign | (size - 0x3c000000u) >> 20);
	}
	if (size < 0x3a800000u) /* under 2^-10: nearer to zero */
		return (uint8_t)sign;
	shift = 141u - (size >> 23);
	fraction = (size & 0x7fffffu) | 0x800000u;
	half = 1u << (shift - 1);
	fraction += half - 1u + (fraction >> shift & 1u);
	return (uint8_t)(sign | fraction >> shift);
}

/* ---- E8M0: a power of two, 2^(byte - 127) ---- */

/** 0 is the subnormal 2^-127; 255 is NaN. */
MOEK_FORMAT float moek_e8m0_to_f32(uint8_t byte)
{
	if (byte == 0)
		return moek_f32_from_bits(0x00400000u);
	if (byte == 255)
		return moek_f32_from_bits(0x7fc00000u);
	return moek_f32_from_bits((uint32_t)byte << 23);
}

/* ---- E2M1: 0 0.5 1 1.5 2 3 4 6, bit 3 is the sign; 8 is -0 ---- */

MOEK_FORMAT float moek_e2m1_to_f32(uint32_t code)
{
	static const float magnitude[8] = { 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f };
	float value = magnitude[code & 7u];

	return code & 8u ? -value : value;
}

/** Ties to the even code; above 5 is 6. The sign is kept, also of zero. Not for NaN. */
MOEK_FORMAT uint32_t moek_e2m1_from_f32(float value)
{
	float size = value < 0 ? -value : value;
	uint32_t sign = moek_f32_bits(value) >> 28 & 8u;
	uint32_t code;

	if (size <= 0.25f)
		code = 0;
	else if (size < 0.75f)
		code = 1;
	else if (size <= 1.25f)
		code = 2;
	else if (size < 1.75f)
		code = 3;
	else if (size <= 2.5f)
		code = 4;
	else if (size < 3.5f)
		code = 5;
	else if (size <= 5.0f)
		code = 6;
	else
		code = 7;
	return sign | code;
}

/* ---- weights: one value from its code ---- */

/** Code `column` of a row of nibbles: the low nibble is the even column. */
MOEK_FORMAT uint32_t moek_nibble(const uint8_t *row, uint64_t column)
{
	return (uint32_t)row[column / 2] >> (column % 2 * 4) & 15u;
}

/** The difference is exact; one rounding, where the scale has over 19 significant bits. */
MOEK_FORMAT float moek_int4_value(uint32_t code, uint32_t zero, float scale)
{
	return (float)((int32_t)code - (int32_t)zero) * scale;
}

/** Exact, but for the subnormal range, where one rounding may occur. */
MOEK_FORMAT float moek_mxfp4_value(uint32_t code, uint8_t scale)
{
	return moek_e2m1_to_f32(code) * moek_e8m0_to_f32(scale);
}

/* ---- activations: how a block of a row becomes codes ---- */

/**
 * Shared exponent byte of an MXFP4 block from its largest magnitude. `even`: amax
 * rounded to one mantissa bit, then floor(log2) - 2. A zero block counts as 2^-126. A
 * block with an infinity or a NaN gets 255.
 */
MOEK_FORMAT uint8_t moek_mxfp4_scale_even(float amax)
{
	uint32_t bits = moek_f32_bits(amax) & 0x7fffffffu;
	int32_t exponent;

	if (bits >= 0x7f800000u)
		return 255;
	exponent = (int32_t)((bits + 0x200000u) >> 23) - 2;
	return (uint8_t)(exponent < 0 ? 0 : exponent > 254 ? 254 : exponent);
}

/** `round_up`: the smallest power of two by which amax comes to at most 6. */
MOEK_FORMAT uint8_t moek_mxfp4_scale_round_up(float amax)
{
	uint32_t bits = moek_f32_bits(amax) & 0x7fffffffu;
	uint32_t exponent = bits >> 23, fraction = bits & 0x7fffffu;
	int32_t byte;

	if (bits >= 0x7f800000u)
		return 255;
	/* 6 is 1.5 * 2^2: a significand over 1.5 needs the next power */
	byte = (int32_t)exponent - 2 + (fraction > 0x400000u);
	return (uint8_t)(byte < 0 ? 0 : byte);
}

/** One element of an MXFP4 block whose scale byte is `scale` (not 255): its E2M1 code. */
MOEK_FORMAT uint32_t moek_mxfp4_code(float value, uint8_t scale)
{
	/* dividing by a power of two in two exact steps: 2^127 has no fp32 inverse */
	float half = moek_f32_from_bits(0x3f000000u);

	if (scale == 254)
		return moek_e2m1_from_f32(value * half * moek_f32_from_bits(0x00800000u));
	return moek_e2m1_from_f32(value * moek_f32_from_bits((254u - scale) << 23));
}

/** One element under a static fp8 scale: value / scale to e4m3, saturating. */
MOEK_FORMAT uint8_t moek_fp8_code(float value, float scale)
{
	return moek_e4m3_from_f32(value / scale);
}

/** Scale of an int8 group from its largest magnitude; 0 for a group of zeros. */
MOEK_FORMAT float moek_int8_scale(float amax)
{
	return amax / 127.0f;
}

/** One element of an int8 group: value / scale to nearest, ties to even; 0 if scale is 0.
 *  Not for NaN (which gives -127, so that nothing is undefined). */
MOEK_FORMAT int32_t moek_int8_code(float value, float scale)
{
	/* adding 1.5 * 2^23 leaves the nearest integer in the low bits */
	float quotient = scale > 0 ? value / scale : 0.0f;
	volatile float shifted;

	quotient = quotient > -127.0f ? quotient : -127.0f;
	quotient = quotient < 127.0f ? quotient : 127.0f;
	shifted = quotient + 12582912.0f;
	return (int32_t)(shifted - 12582912.0f);
}

#ifdef __cplusplus
}
#endif

#endif
