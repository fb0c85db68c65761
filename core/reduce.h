/* SPDX-License-Identifier: MIT */
/* From slots to tokens, on the host. */
#ifndef MOEK_CORE_REDUCE_H
#define MOEK_CORE_REDUCE_H

#include <moek/moek.h>

struct moek_reduction {
	const float
		*slots; /* [tokens * top_k][columns]; rows not routed are not read */
	const int32_t *ids;   /* [tokens][top_k]; negative: not routed */
	const float *weights; /* [tokens][top_k], or NULL: 1 */
	uint64_t top_k;
	struct moek_rows
		output; /* [tokens][columns] of bf16, fp16 or fp32, on the host */
};

/**
 * output = sum of weight * slot in fp32, in slot order, rounded once; exactly 0 where
 * nothing is routed. The same bits for any number of workers.
 */
void moek_reduce(const struct moek_workers *workers,
                 const struct moek_reduction *reduction);

/** @columns fp32 values to a row of @type (bf16, fp16 or fp32), rounded once each;
 * back. */
void moek_row_from_f32(uint32_t type, const float *values, uint64_t columns,
                       void *row_out);
void moek_row_to_f32(uint32_t type, const void *row, uint64_t columns,
                     float *values_out);

#endif
