/* SPDX-License-Identifier: MIT */
/*
 * What AITER's flat kernels do, as they are documented, from the argument block alone:
 * each byte of it is looked at. Written without the plugin's headers: a layout that the
 * plugin gets wrong is read wrong here.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#include "cpu_kernel.h"

enum { BLOCK_BYTES = 480 };

/* the block, unpacked: a slot of 16 bytes for each field */
struct call {
	uint16_t *out;
	const uint16_t *x;
	const uint8_t *gate_up, *down, *gate_up_scales, *down_scales;
	const int32_t *ids;
	const float *weights;
	uint64_t dim, inter, tokens, experts, top_k, columns;
	uint64_t gate_up_row, down_row, gate_up_expert, down_expert;
	uint64_t gate_up_scale_expert, down_scale_expert;
};

static uint64_t field(const uint8_t *block, unsigned int slot, unsigned int bytes)
{
	uint64_t value = 0;
	unsigned int i;

	for (i = 0; i < bytes; i++)
		value |= (uint64_t)block[16 * slot + i] << 8 * i;
	return value;
}

static void *pointer(const uint8_t *block, unsigned int slot)
{
	return (void *)(uintptr_t)field(block, slot, 8);
}

/* what no field covers is zero */
static const char *check_rest(const uint8_t *block)
{
	unsigned int i;

	for (i = 0; i < BLOCK_BYTES; i++) {
		unsigned int slot = i / 16, used = slot < 12 ? 8 : slot < 28 ? 4 : 0;

		if (i % 16 >= used && block[i] != 0)
			return "a byte between the fields is not zero";
	}
	return NULL;
}

static const char *check_fields(const uint8_t *block, const struct call *c)
{
	unsigned int slot;

	for (slot = 0; slot < 12; slot++) {
		int none = slot == 5 || slot == 8; /* scales of x, smooth scales */

		if ((pointer(block, slot) == NULL) != none)
			return "a pointer is missing, or one too many";
	}
	if (field(block, 16, 4) != 2 * c->dim || field(block, 19, 4) != 2 * c->dim)
		return "bytes of a row of x or of the output";
	if (c->gate_up_row != c->dim / 2 || c->down_row != c->inter / 2)
		return "bytes of a row of weights";
	if (c->gate_up_expert != c->gate_up_row * 2 * c->inter ||
	    c->down_expert != c->down_row * c->dim)
		return "bytes of an expert's weights";
	if (field(block, 24, 4) != 0 || field(block, 26, 4) != 0)
		return "stride of smooth scales, or persistent groups";
	if (c->columns * field(block, 27, 4) != c->inter)
		return "number of groups";
	return NULL;
}

/* where the shuffles put a byte of a row, and the scale of a block */
static float weight_at(const uint8_t *codes, const uint8_t *scales, uint64_t row,
                       uint64_t column, uint64_t row_bytes)
{
	uint64_t byte = column / 2, block = column / 32;
	uint64_t padded = (row_bytes / 16 + 7) / 8 * 8;
	uint64_t at = row / 16 * 16 * row_bytes + byte / 32 * 512 +
	              byte % 32 / 16 * 256 + row % 16 * 16 + byte % 16;
	uint64_t scale = row / 32 * 32 * padded + block / 8 * 256 + block % 4 * 64 +
	                 row % 16 * 4 + block % 8 / 4 * 2 + row % 32 / 16;

	return moek_mxfp4_value(codes[at] >> column % 2 * 4 & 15, scales[scale]);
}

static void quantise(float *row, uint64_t count)
{
	uint64_t first, i;

	for (first = 0; first < count; first += 32) {
		float amax = 0;
		uint8_t scale;

		for (i = first; i < first + 32; i++)
			amax = isfinite(row[i]) && isfinite(amax)
			               ? fmaxf(amax, fabsf(row[i]))
			               : INFINITY;
		scale = moek_mxfp4_scale_round_up(amax);
		for (i = first; i < first + 32; i++)
			row[i] = moek_mxfp4_value(moek_mxfp4_code(row[i], scale),
			                          scale);
	}
}

static float dot(const uint8_t *codes, const uint8_t *scales, uint64_t row,
                 uint64_t row_bytes, const float *x, uint64_t first, uint64_t end)
{
	double sum = 0;
	uint64_t i;

	for (i = first; i < end; i++)
		sum += (double)weight_at(codes, scales, row, i, row_bytes) *
		       (double)x[i];
	return (float)sum;
}

/* one slot: each group of columns adds its part to bf16 */
static void run_slot(const struct call *c, uint64_t token, uint64_t slot, float *x,
                     float *h)
{
	const uint64_t e = (uint64_t)c->ids[slot];
	const uint8_t *gate_up = c->gate_up + e * c->gate_up_expert;
	const uint8_t *gate_up_scales = c->gate_up_scales + e * c->gate_up_scale_expert;
	const uint8_t *down = c->down + e * c->down_expert;
	const uint8_t *down_scales = c->down_scales + e * c->down_scale_expert;
	uint64_t i, first;

	for (i = 0; i < c->dim; i++)
		x[i] = moek_bf16_to_f32(c->x[token * c->dim + i]);
	quantise(x, c->dim);
	for (i = 0; i < c->inter; i++) {
		double g = (double)dot(gate_up, gate_up_scales, i, c->gate_up_row, x, 0,
		                       c->dim);
		double u = (double)dot(gate_up, gate_up_scales, c->inter + i,
		                       c->gate_up_row, x, 0, c->dim);

		h[i] = (float)(g / (1 + exp(-g)) * u);
	}
	quantise(h, c->inter);
	for (first = 0; first < c->inter; first += c->columns)
		for (i = 0; i < c->dim; i++) {
			uint16_t *out = &c->out[token * c->dim + i];
			float part = c->weights[slot] * dot(down, down_scales, i,
			                                    c->down_row, h, first,
			                                    first + c->columns);

			*out = moek_bf16_from_f32(moek_bf16_to_f32(*out) + part);
		}
}

/* for the test: the block as it came */
static void keep_block(const uint8_t *block)
{
	const char *path = getenv("FAKEHIP_KERNARG");
	FILE *file = path != NULL ? fopen(path, "a") : NULL;

	if (file == NULL)
		return;
	fwrite(block, 1, BLOCK_BYTES, file);
	fclose(file);
}

static const char *run(const uint8_t *block, const unsigned int *grid, uint64_t columns)
{
	const struct call c = {
		.out = pointer(block, 0),
		.x = pointer(block, 1),
		.gate_up = pointer(block, 2),
		.down = pointer(block, 4),
		.gate_up_scales = pointer(block, 6),
		.down_scales = pointer(block, 7),
		.ids = pointer(block, 9),
		.weights = pointer(block, 10),
		.dim = field(block, 12, 4),
		.inter = field(block, 13, 4),
		.tokens = field(block, 14, 4),
		.experts = field(block, 15, 4),
		.top_k = field(block, 25, 4),
		.columns = columns,
		.gate_up_row = field(block, 17, 4),
		.down_row = field(block, 18, 4),
		.gate_up_expert = field(block, 20, 4),
		.down_expert = field(block, 21, 4),
		.gate_up_scale_expert = field(block, 22, 4),
		.down_scale_expert = field(block, 23, 4),
	};
	const char *error = check_rest(block);
	uint64_t slot;
	float *rows;

	if (error == NULL)
		error = check_fields(block, &c);
	if (error != NULL)
		return error;
	if (grid[0] != c.inter / columns || grid[1] != c.top_k || grid[2] != c.tokens)
		return "the grid is not groups x top_k x tokens";
	for (slot = 0; slot < c.tokens * c.top_k; slot++)
		if (c.ids[slot] < 0 || (uint64_t)c.ids[slot] >= c.experts)
			return "an id that is no expert";
	for (slot = 0; slot < 4; slot++) {
		if (c.out[c.tokens * c.dim + slot] != 0)
			return "the eight bytes behind the output are not zero";
		c.out[c.tokens * c.dim + slot] = 0x7fc0;
	}
	keep_block(block);
	rows = malloc((c.dim + c.inter) * sizeof(*rows));
	if (rows == NULL)
		return "out of memory";
	memset(c.out, 0, c.tokens * c.dim * sizeof(*c.out));
	for (slot = 0; slot < c.tokens * c.top_k; slot++)
		run_slot(&c, slot / c.top_k, slot, rows, rows + c.dim);
	free(rows);
	return NULL;
}

static const char *run_128(const void *block, const unsigned int *grid)
{
	return run(block, grid, 128);
}

static const char *run_256(const void *block, const unsigned int *grid)
{
	return run(block, grid, 256);
}

const struct gpu_cpu_kernel aiter_cpu_kernels[] = {
	{ "_ZN5aiter50fmoe_bf16_pertokenMXfp4_g1u1_flat_novs_silu_16x128E", NULL, NULL,
	  BLOCK_BYTES, 256, 64, run_128 },
	{ "_ZN5aiter50fmoe_bf16_pertokenMXfp4_g1u1_flat_novs_silu_16x256E", NULL, NULL,
	  BLOCK_BYTES, 256, 64, run_256 },
	{ NULL, NULL, NULL, 0, 0, 0, NULL },
};
