/* SPDX-License-Identifier: MIT */
/* The arithmetic, one row or one block at a time. */
#ifndef EMULATION_KERNELS_H
#define EMULATION_KERNELS_H

#include <moek/formats.h>
#include <moek/problem.h>

#define TILE_TOKENS 32 /* tokens that share one dequantised panel */
#define TILE_ROWS 128  /* outputs of one task */
#define PANEL_ROWS 4   /* outputs that are dequantised together */
#define PANEL_COLUMNS 128
#define LANES 8 /* tokens side by side in a block */

/** One projection of one expert as it is kept. Parts that the scheme lacks are NULL. */
struct matrix {
	uint32_t weight, scale; /* enum moek_type */
	uint64_t rows, columns, row_bytes, groups, group_size;
	const uint8_t *codes, *zeros;
	const void *scales;
	const uint32_t *column_group;
	const float *bias;
	float input_scale;
};

/** Element @i of @values, which hold F32, F16, BF16 or E8M0. */
float element(uint32_t type, const void *values, uint64_t i);

/** @count elements of @values from @first on, as fp32. */
void widen(uint32_t type, const void *values, uint64_t first, uint64_t count,
           float *values_out);

/** @count fp32 to @type (F32, F16, BF16), each rounded once. */
void narrow(uint32_t type, const float *values, uint64_t count, void *values_out);

/** @value rounded to @type and back. */
float round_to(uint32_t type, float value);

/** Weights [row][first .. first+count-1] as fp32. */
void dequantise(const struct matrix *matrix, uint64_t row, uint64_t first,
                uint64_t count, float *weights_out);

/**
 * sums[r * TILE_TOKENS + t] += panel[r * PANEL_COLUMNS + k] * columns[k * LANES + t],
 * for r < PANEL_ROWS, t < LANES (or the first half of them), k = 0 .. count-1 in this
 * order. All three are aligned to 16.
 */
void multiply_block(const float *panel, const float *columns, uint64_t count,
                    float *sums);
void multiply_half_block(const float *panel, const float *columns, uint64_t count,
                         float *sums);

/** The function between the GEMMs; @up is not looked at when not gated. */
float activate(const struct moek_problem *problem, float gate, float up);

/** Magnitudes of its two derivatives, a clamp counted as the straight line. */
void slopes(const struct moek_problem *problem, float gate, float up, float *gate_out,
            float *up_out);

/** A row as the GEMM after it multiplies it: quantised and back, as the problem says.
 */
void quantise(const struct moek_problem *problem, float *row, uint64_t count,
              float input_scale);

#endif
