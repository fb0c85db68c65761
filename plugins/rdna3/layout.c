/* SPDX-License-Identifier: MIT */
/*
 * The prepared layout. Of gate_up, a tile is 16 gate rows and the 16 up rows beside
 * them, of down 16 rows. Codes go [tile][block of 32 columns][row][16 bytes], so that a
 * wave loads 512 adjacent bytes and a lane has one row and 32 columns with one scale.
 * Scales and zero points go [tile][group][row], biases [tile][row]. Sizes need no
 * padding: every row and column count is a multiple of 32.
 */
#include "rdna3.h"

#include <string.h>

static uint64_t align_up(uint64_t offset)
{
	return (offset + 255u) & ~UINT64_C(255);
}

static void plan_groups(const struct moek_scheme *scheme, uint64_t columns,
                        struct rdna3_plane *plane)
{
	uint64_t group = scheme->group_size;

	plane->blocks = (unsigned int)(columns / RDNA3_BLOCK);
	plane->group_shift = 0;
	if (group == 0 || group >= columns) { /* one for the row */
		plane->groups = 1;
		plane->group_shift = 31;
		return;
	}
	while ((uint64_t)RDNA3_BLOCK << plane->group_shift < group)
		plane->group_shift++;
	plane->groups = (unsigned int)((columns + group - 1) / group);
}

/* append the parts of a projection of `rows` rows; returns the new end */
static uint64_t plan_plane(const struct moek_scheme *scheme, uint64_t rows,
                           uint64_t columns, uint64_t offset, struct rdna3_plane *plane)
{
	memset(plane, 0, sizeof(*plane));
	plan_groups(scheme, columns, plane);
	plane->scale = scheme->scale;
	plane->has_bias = scheme->bias;
	plane->codes = offset;
	offset = align_up(offset + rows * columns / 2);
	plane->scales = offset;
	offset = align_up(offset +
	                  rows * plane->groups * (scheme->scale == MOEK_E8M0 ? 1 : 2));
	plane->zeros = offset;
	if (scheme->zero_points)
		offset = align_up(offset + rows * plane->groups);
	plane->bias = offset;
	if (scheme->bias)
		offset = align_up(offset + rows * sizeof(float));
	return offset;
}

int rdna3_layout(const struct moek_problem *problem, struct rdna3_layout *layout_out)
{
	int overflow = 0;
	uint64_t end;

	/* supports_shape() bounds hidden * intermediate, so one expert cannot overflow
	 */
	end = plan_plane(&problem->gate_up, 2 * problem->intermediate, problem->hidden,
	                 0, &layout_out->gate_up);
	layout_out->expert_bytes = plan_plane(&problem->down, problem->hidden,
	                                      problem->intermediate, end,
	                                      &layout_out->down);
	moek_size_multiply(problem->experts_local, layout_out->expert_bytes, &overflow);
	return !overflow;
}

/* nibbles k = 0..7 to bits 0, 16, 4, 20, 8, 24, 12, 28 */
static uint32_t spread(uint32_t word)
{
	uint32_t even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;

	even = (even | even >> 4) & 0x00ff00ffu;
	odd = (odd | odd >> 4) & 0x00ff00ffu;
	return ((even | even >> 8) & 0xffffu) | (odd | odd >> 8) << 16;
}

/* where one row of a matrix goes: lane `lane` of `lanes` in tile `tile` */
struct place {
	uint64_t tile, lanes, lane;
};

static void pack_codes(const struct rdna3_plane *plane,
                       const struct moek_matrix *matrix, uint64_t row,
                       const struct place *at, unsigned char *prepared)
{
	const unsigned char *from = (const unsigned char *)matrix->codes +
	                            row * (matrix->columns / 2);
	uint64_t block, i;

	for (block = 0; block < plane->blocks; block++) {
		unsigned char *to = prepared + plane->codes +
		                    ((at->tile * plane->blocks + block) * at->lanes +
		                     at->lane) *
		                            16;

		for (i = 0; i < 16; i += 4) {
			const unsigned char *b = from + block * 16 + i;
			uint32_t word = spread((uint32_t)b[0] | (uint32_t)b[1] << 8 |
			                       (uint32_t)b[2] << 16 |
			                       (uint32_t)b[3] << 24);

			to[i] = (unsigned char)word;
			to[i + 1] = (unsigned char)(word >> 8);
			to[i + 2] = (unsigned char)(word >> 16);
			to[i + 3] = (unsigned char)(word >> 24);
		}
	}
}

static void pack_groups(const struct rdna3_plane *plane,
                        const struct moek_matrix *matrix, uint64_t row,
                        const struct place *at, unsigned char *prepared)
{
	const uint64_t bytes = plane->scale == GPU_E8M0 ? 1 : 2;
	const unsigned char *scales = matrix->scales;
	uint64_t group;

	for (group = 0; group < plane->groups; group++) {
		uint64_t from = row * plane->groups + group;
		uint64_t to = (at->tile * plane->groups + group) * at->lanes + at->lane;

		memcpy(prepared + plane->scales + to * bytes, scales + from * bytes,
		       bytes);
		if (matrix->zeros != NULL)
			prepared[plane->zeros + to] = matrix->zeros[from];
	}
}

/* rows of a matrix into lanes first_lane .. first_lane + 15 of tiles of `lanes` lanes
 */
static void pack_matrix(const struct rdna3_plane *plane,
                        const struct moek_matrix *matrix, uint64_t lanes,
                        uint64_t first_lane, unsigned char *prepared)
{
	uint64_t row;

	for (row = 0; row < matrix->rows; row++) {
		const struct place at = { row / RDNA3_ROWS, lanes,
			                  first_lane + row % RDNA3_ROWS };

		pack_codes(plane, matrix, row, &at, prepared);
		pack_groups(plane, matrix, row, &at, prepared);
		if (plane->has_bias)
			memcpy(prepared + plane->bias +
			               (at.tile * lanes + at.lane) * sizeof(float),
			       &matrix->bias[row], sizeof(float));
	}
}

void rdna3_pack(const struct rdna3_layout *layout, const struct moek_expert *expert,
                unsigned char *prepared_out)
{
	memset(prepared_out, 0, (size_t)layout->expert_bytes);
	pack_matrix(&layout->gate_up, &expert->gate, 2 * RDNA3_ROWS, 0, prepared_out);
	pack_matrix(&layout->gate_up, &expert->up, 2 * RDNA3_ROWS, RDNA3_ROWS,
	            prepared_out);
	pack_matrix(&layout->down, &expert->down, RDNA3_ROWS, 0, prepared_out);
}
