/* SPDX-License-Identifier: MIT */
/* How far a backend may be from emulation, and whether it is. */
#ifndef KERNELCHECK_COMPARE_H
#define KERNELCHECK_COMPARE_H

#include <moek/experts.h>

/** Distance from 1 to the next value of F32, F16, BF16. */
double compare_eps(uint32_t type);

struct expected {
	uint64_t tokens, hidden;
	uint64_t values;   /* activated values that went into them, for the average */
	const float *want; /* [tokens][hidden], not rounded to the output type */
	const float *magnitudes; /* [tokens][hidden]: S */
	const double *flips;     /* [tokens][hidden], or NULL */
	uint32_t input_type, output_type;
	const struct moek_numerics *numerics;
	int uneven; /* 1: values are no plain random mix, so nothing is asked of
	               averages */
};

struct finding {
	double worst;   /* error of an element or a token beside its allowance: at most 1 */
	char text[256]; /* what is wrong, or empty */
};

/**
 * Each element: |got - want| <= terms * eps(accumulator) * S + roundings * eps(input) *
 * S
 * + flips + half a unit in the last place of got. A NaN equals a NaN only, an infinity
 * itself.
 *
 * S is the worst that can happen, so that bound alone lets much pass where a type is
 * coarse. Roundings of a random mix do not all point one way; therefore also, for each
 * token of 32 columns or more, the relative L2 error is at most roundings * eps(input)
 * + eps(output) / 2 and what sqrt(terms) additions make, and over all outputs the slope
 * of got over want is 1 within 8 standard deviations: a factor, a lost expert, or
 * rounding towards zero does not pass.
 *
 * Returns 1 when all holds.
 */
int compare(const struct expected *expected, const float *got,
            struct finding *finding_out);

#endif
