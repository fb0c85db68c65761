/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/numbers.h"

#include <moek/formats.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t row_type_bytes(uint32_t type)
{
	return type == MOEK_F32 ? 4 : type == MOEK_BF16 || type == MOEK_F16 ? 2 : 0;
}

float row_get(const void *data, uint32_t type, uint64_t i)
{
	const unsigned char *at = (const unsigned char *)data +
	                          i * row_type_bytes(type);
	uint16_t half;
	float value;

	if (type == MOEK_F32) {
		memcpy(&value, at, sizeof(value));
		return value;
	}
	memcpy(&half, at, sizeof(half));
	return type == MOEK_BF16 ? moek_bf16_to_f32(half) : moek_f16_to_f32(half);
}

void row_set(void *data, uint32_t type, uint64_t i, float value)
{
	if (type == MOEK_F32)
		((float *)data)[i] = value;
	else if (type == MOEK_BF16)
		((uint16_t *)data)[i] = moek_bf16_from_f32(value);
	else
		((uint16_t *)data)[i] = moek_f16_from_f32(value);
}

double unit_roundoff(uint32_t type)
{
	switch (type) {
	case MOEK_BF16:
		return ldexp(1, -8);
	case MOEK_F16:
		return ldexp(1, -11);
	default:
		return ldexp(1, -24);
	}
}

double least_roundoff(uint32_t type)
{
	switch (type) {
	case MOEK_BF16:
		return ldexp(1, -134);
	case MOEK_F16:
		return ldexp(1, -25);
	default:
		return ldexp(1, -150);
	}
}

/** splitmix64 (Steele, Lea, Flood 2014): one state word, every seed is good. */
uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

void fill_random(void *data, uint32_t type, uint64_t count, uint64_t seed)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t bits = next_random(&seed);
		/* four uniform numbers of 16 bits: their sum has variance 4/12 *
		 * 65536^2 */
		int64_t sum = (int64_t)(bits & 0xffff) +
		              (int64_t)(bits >> 16 & 0xffff) +
		              (int64_t)(bits >> 32 & 0xffff) + (int64_t)(bits >> 48) -
		              131070;

		row_set(data, type, i, (float)sum / 37837.2f);
	}
}

void *alloc_array(uint64_t count, uint64_t other, uint64_t bytes)
{
	int overflow = 0;
	uint64_t all = moek_size_multiply(
		count, moek_size_multiply(other, bytes, &overflow), &overflow);

	if (overflow || all > SIZE_MAX)
		return NULL;
	return calloc(1, all > 0 ? (size_t)all : 1);
}

double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
