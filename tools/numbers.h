/* SPDX-License-Identifier: MIT */
/* Rows of bf16, fp16 and fp32 as plain numbers, and how exact each type is. */
#ifndef MOEK_TOOLS_NUMBERS_H
#define MOEK_TOOLS_NUMBERS_H

#include <moek/moek.h>

/** Bytes of one element; 0 for a type that rows cannot have. */
uint64_t row_type_bytes(uint32_t type);
/** Element @i of @data, which may be unaligned. */
float row_get(const void *data, uint32_t type, uint64_t i);
/** Rounded to nearest even. @data is aligned. */
void row_set(void *data, uint32_t type, uint64_t i, float value);

/** Largest relative error of one rounding to @type: 2^-24 for fp32. */
double unit_roundoff(uint32_t type);
/** Largest absolute error of a rounding to @type among its subnormals. */
double least_roundoff(uint32_t type);

/** 64 random bits; @state is any number at first. */
uint64_t next_random(uint64_t *state);

/** Close to normal, variance 1, from @seed alone: the same on every machine. */
void fill_random(void *data, uint32_t type, uint64_t count, uint64_t seed);

/** calloc() of count * other * bytes that knows about overflow; NULL: no memory. */
void *alloc_array(uint64_t count, uint64_t other, uint64_t bytes);

double seconds_now(void);

#endif
