/* SPDX-License-Identifier: MIT */
/* Outputs beside the reference's: within what a backend declares, or not. */
#ifndef MOEK_CORE_AGREE_H
#define MOEK_CORE_AGREE_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_outputs {
	const struct moek_problem *problem;   /* types and activations */
	const struct moek_numerics *numerics; /* as the backend declares them */
	const struct moek_rows *got;          /* on the host */
	const float *wanted, *magnitudes; /* the reference's; wanted is not rounded */
};

/** Shares are errors in terms of what is allowed: over 1 is too much; infinite where a
 *  NaN or an infinity is on one side only. */
struct moek_agreement {
	uint64_t rows_over;
	double worst; /* the largest share of a row or of an element in it */
	uint64_t row,
		column; /* where; column is hidden when the row as a whole is off */
	double got, wanted,
		allowed; /* there; with a row, lengths: error, wanted, allowed */
};

/**
 * An element may be off by terms * eps(accumulator) * S + roundings * eps(input) * S
 * and the rounding to the output. S is the worst that can happen, and lets much pass at
 * 16 bits. Roundings do not all point one way: so a row as a whole, of 32 columns or
 * more, may be off by roundings * eps(input) + eps(output) / 2 of its length and what
 * sqrt(terms) additions make. Where activations are quantised, a code at a tie may
 * turn: that counts as a part of one code's step.
 */
void moek_agree(const struct moek_outputs *outputs,
                struct moek_agreement *agreement_out);

/** "output[3][17] is 0.5, emulation.any says 0.25, 0.001 is allowed" */
void moek_agreement_text(const struct moek_agreement *agreement, uint64_t hidden,
                         const char *reference, char *text_out, size_t bytes);

#endif
