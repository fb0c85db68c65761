/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/reduce.h"

#include <assert.h>
#include <string.h>

#include <moek/formats.h>

#include "core/status.h"
#include "core/threads.h"

#define BLOCK 1024 /* columns of one task: 4 KiB of sums stay in the first cache */

void moek_row_from_f32(uint32_t type, const float *values, uint64_t columns,
                       void *row_out)
{
	uint16_t *half = row_out;

	switch (type) {
	case MOEK_F32:
		memcpy(row_out, values, columns * sizeof(float));
		return;
	case MOEK_BF16:
		for (uint64_t i = 0; i < columns; i++)
			half[i] = moek_bf16_from_f32(values[i]);
		return;
	default:
		assert(type == MOEK_F16);
		for (uint64_t i = 0; i < columns; i++)
			half[i] = moek_f16_from_f32(values[i]);
	}
}

void moek_row_to_f32(uint32_t type, const void *row, uint64_t columns,
                     float *values_out)
{
	const uint16_t *half = row;

	switch (type) {
	case MOEK_F32:
		memcpy(values_out, row, columns * sizeof(float));
		return;
	case MOEK_BF16:
		for (uint64_t i = 0; i < columns; i++)
			values_out[i] = moek_bf16_to_f32(half[i]);
		return;
	default:
		assert(type == MOEK_F16);
		for (uint64_t i = 0; i < columns; i++)
			values_out[i] = moek_f16_to_f32(half[i]);
	}
}

static void add_slot(const float *slot, float weight, uint64_t columns, float *sums)
{
	for (uint64_t i = 0; i < columns; i++) {
		/* two statements: no compiler may fuse them, so all give the same bits
		 */
		float product = weight * slot[i];

		sums[i] += product;
	}
}

static uint64_t blocks_of(const struct moek_reduction *reduction)
{
	return (reduction->output.columns + BLOCK - 1) / BLOCK;
}

static void reduce_block(void *arg, uint64_t i, uint32_t worker)
{
	const struct moek_reduction *r = arg;
	const struct moek_rows *out = &r->output;
	uint64_t token = i / blocks_of(r), first = i % blocks_of(r) * BLOCK;
	uint64_t columns = out->columns - first < BLOCK ? out->columns - first : BLOCK;
	uint64_t stride = out->row_stride != 0 ? out->row_stride : out->columns;
	float sums[BLOCK];

	(void)worker;
	memset(sums, 0, columns * sizeof(float));
	for (uint64_t slot = token * r->top_k; slot < (token + 1) * r->top_k; slot++)
		if (r->ids[slot] >= 0)
			add_slot(r->slots + slot * out->columns + first,
			         r->weights != NULL ? r->weights[slot] : 1.0f, columns,
			         sums);
	moek_row_from_f32(out->type, sums, columns,
	                  (char *)out->data + (token * stride + first) *
	                                              moek_type_bytes(out->type));
}

void moek_reduce(const struct moek_workers *workers,
                 const struct moek_reduction *reduction)
{
	struct moek_reduction mine = *reduction;

	moek_parallel_for(workers, mine.output.rows * blocks_of(&mine), reduce_block,
	                  &mine);
}
