/* SPDX-License-Identifier: MIT */
/* Random experts and inputs in the canonical form: every row, group and expert differs,
 * so that no permutation of them goes unseen. */
#ifndef KERNELCHECK_WEIGHTS_H
#define KERNELCHECK_WEIGHTS_H

#include <moek/problem.h>

/** splitmix64: the next of @state. */
uint64_t random_next(uint64_t *state);
/** In [low, high). */
float random_float(uint64_t *state, float low, float high);

/** What a set of experts has beside plain random values. */
enum weights_kind {
	WEIGHTS_PLAIN = 0,
	WEIGHTS_ZERO_SCALES = 1, /* every fifth group */
	WEIGHTS_EXTREME_SCALES =
		2, /* E8M0: the smallest and large ones, where sums stay finite */
	WEIGHTS_ALL_LARGEST = 4 /* every code the largest */
};

/** Expert 0 .. experts_local-1. NULL: no memory. */
struct moek_expert *weights_create(const struct moek_problem *problem, uint64_t seed,
                                   uint32_t kind);
void weights_free(const struct moek_problem *problem, struct moek_expert *experts);

/** Bytes of one element of a float type. */
uint64_t float_bytes(uint32_t type);
float float_get(uint32_t type, const void *values, uint64_t i);
void float_put(uint32_t type, void *values, uint64_t i, float value);

#endif
