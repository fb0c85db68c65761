/* SPDX-License-Identifier: MIT */
/*
 * The prepared layout is the one that AITER's kernels read, so that either may run.
 * Gate rows stand before up rows. Both, and rows of down, are padded to 128, and so are
 * columns, with zero codes, zero biases and scales of 1: where no padding is needed,
 * codes and scales are byte for byte what AITER's shuffle_weight(16, 16) and
 * e8m0_shuffle make.
 *
 *   codes   [expert][row / 16][16 bytes of columns][row % 16][16 bytes]: 64 lanes find
 *           their parts of a multiply side by side
 *   scales  [expert][row / 32][block / 8][block % 4][row % 16][block / 4 % 2][row / 16
 * % 2]: a lane finds in one word what two tiles need in two steps
 */
#include "mxfp4.h"

#include <string.h>

enum { ALIGN = 256, SCALE_ROWS = 256, SCALE_COLUMNS = 8, SCALE_OF_ONE = 0x7f };

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

/* bytes of the scales of all experts; rows are padded once, behind the last */
static uint64_t all_scales(const struct mxfp4_plane *plane, uint64_t experts)
{
	return round_up(experts * plane->rows, SCALE_ROWS) * plane->scale_columns;
}

/* append the parts of a projection; returns the new end */
static uint64_t plan_plane(const struct moek_scheme *scheme, uint64_t rows,
                           uint64_t columns, uint64_t experts, uint64_t offset,
                           struct mxfp4_plane *plane)
{
	memset(plane, 0, sizeof(*plane));
	plane->rows = (unsigned int)rows;
	plane->steps = (unsigned int)(round_up(columns, MXFP4_STEP) / MXFP4_STEP);
	plane->blocks = (unsigned int)(columns / MXFP4_BLOCK);
	plane->scale_columns = (unsigned int)round_up((uint64_t)plane->steps * 4,
	                                              SCALE_COLUMNS);
	plane->codes_bytes = rows * plane->steps * (MXFP4_STEP / 2);
	plane->scales_bytes = rows * plane->scale_columns;
	plane->has_bias = scheme->bias;
	plane->has_input_scale = scheme->input_scale;
	plane->codes = offset;
	offset = round_up(offset + experts * plane->codes_bytes, ALIGN);
	plane->scales = offset;
	offset = round_up(offset + all_scales(plane, experts), ALIGN);
	plane->bias = offset;
	if (scheme->bias)
		offset = round_up(offset + experts * rows * sizeof(float), ALIGN);
	plane->input_scales = offset;
	if (scheme->input_scale)
		offset = round_up(offset + experts * sizeof(float), ALIGN);
	return offset;
}

int mxfp4_layout(const struct moek_problem *problem, struct mxfp4_layout *layout_out)
{
	const uint64_t hidden = round_up(problem->hidden, MXFP4_STEP);
	const uint64_t intermediate = round_up(problem->intermediate, MXFP4_STEP);
	const uint64_t experts = problem->experts_local;
	int overflow = 0;
	uint64_t end;

	/* supports_shape() bounds one projection to 2^30 weights before padding: 64
	 * bytes for each of them, and for each row, are far more than there will be */
	moek_size_multiply(experts,
	                   (hidden * intermediate + hidden + intermediate) * 64,
	                   &overflow);
	if (overflow)
		return 0;
	layout_out->experts = experts;
	end = plan_plane(&problem->gate_up, 2 * intermediate, problem->hidden, experts,
	                 0, &layout_out->gate_up);
	layout_out->bytes = plan_plane(&problem->down, hidden, problem->intermediate,
	                               experts, end, &layout_out->down);
	return 1;
}

static void plane_pieces(const struct mxfp4_layout *layout,
                         const struct mxfp4_plane *plane, uint64_t local,
                         struct mxfp4_piece *pieces_out)
{
	uint64_t tail = 0;

	if (local + 1 == layout->experts) /* and the rows behind the last expert */
		tail = all_scales(plane, layout->experts) -
		       layout->experts * plane->scales_bytes;
	pieces_out[0].offset = plane->codes + local * plane->codes_bytes;
	pieces_out[0].bytes = plane->codes_bytes;
	pieces_out[1].offset = plane->scales + local * plane->scales_bytes;
	pieces_out[1].bytes = plane->scales_bytes + tail;
	pieces_out[2].offset = plane->bias + local * plane->rows * sizeof(float);
	pieces_out[2].bytes = plane->has_bias ? plane->rows * sizeof(float) : 0;
	pieces_out[3].offset = plane->input_scales + local * sizeof(float);
	pieces_out[3].bytes = plane->has_input_scale ? sizeof(float) : 0;
}

uint64_t mxfp4_pieces(const struct mxfp4_layout *layout, uint64_t local,
                      struct mxfp4_piece *pieces_out)
{
	uint64_t bytes = 0;
	int i;

	plane_pieces(layout, &layout->gate_up, local, pieces_out);
	plane_pieces(layout, &layout->down, local, pieces_out + MXFP4_PIECES / 2);
	for (i = 0; i < MXFP4_PIECES; i++)
		bytes += pieces_out[i].bytes;
	return bytes;
}

/* rows of a matrix to rows first, first + 1 .. of a plane; parts: its four pieces */
static void pack_matrix(const struct mxfp4_plane *plane,
                        const struct moek_matrix *matrix, uint64_t first,
                        unsigned char *const *parts)
{
	const unsigned char *codes = matrix->codes, *scales = matrix->scales;
	const uint64_t blocks = plane->blocks;
	uint64_t row, i;

	for (row = 0; row < matrix->rows; row++) {
		uint64_t at = first + row;
		unsigned char *tile = parts[0] +
		                      at / 16 * 16 * plane->steps * (MXFP4_STEP / 2);
		unsigned char *words = parts[1] + at / 32 * 32 * plane->scale_columns;

		for (i = 0; i < blocks; i++) {
			memcpy(tile + i * 256 + at % 16 * 16,
			       codes + (row * blocks + i) * 16, 16);
			words[i / 8 * 256 + i % 4 * 64 + at % 16 * 4 + i % 8 / 4 * 2 +
			      at % 32 / 16] = scales[row * blocks + i];
		}
		if (plane->has_bias)
			memcpy(parts[2] + at * sizeof(float), &matrix->bias[row],
			       sizeof(float));
	}
}

void mxfp4_pack(const struct mxfp4_layout *layout, uint64_t local,
                const struct moek_expert *expert, unsigned char *prepared_out)
{
	struct mxfp4_piece pieces[MXFP4_PIECES];
	unsigned char *parts[MXFP4_PIECES];
	int i;

	mxfp4_pieces(layout, local, pieces);
	for (i = 0; i < MXFP4_PIECES; i++) {
		parts[i] = prepared_out;
		memset(prepared_out, i % 4 == 1 ? SCALE_OF_ONE : 0, pieces[i].bytes);
		prepared_out += pieces[i].bytes;
	}
	pack_matrix(&layout->gate_up, &expert->gate, 0, parts);
	pack_matrix(&layout->gate_up, &expert->up, layout->gate_up.rows / 2, parts);
	pack_matrix(&layout->down, &expert->down, 0, parts + MXFP4_PIECES / 2);
	if (layout->gate_up.has_input_scale)
		memcpy(parts[3], &expert->gate.input_scale, sizeof(float));
	if (layout->down.has_input_scale)
		memcpy(parts[7], &expert->down.input_scale, sizeof(float));
}
