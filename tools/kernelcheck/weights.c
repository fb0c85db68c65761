/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#include "weights.h"

uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

float random_float(uint64_t *state, float low, float high)
{
	return low + (high - low) * ((float)(random_next(state) >> 40) / 16777216.0f);
}

uint64_t float_bytes(uint32_t type)
{
	return type == MOEK_F32 ? 4 : type == MOEK_E8M0 ? 1 : 2;
}

float float_get(uint32_t type, const void *values, uint64_t i)
{
	if (type == MOEK_F32)
		return ((const float *)values)[i];
	if (type == MOEK_E8M0)
		return moek_e8m0_to_f32(((const uint8_t *)values)[i]);
	return type == MOEK_BF16 ? moek_bf16_to_f32(((const uint16_t *)values)[i])
	                         : moek_f16_to_f32(((const uint16_t *)values)[i]);
}

void float_put(uint32_t type, void *values, uint64_t i, float value)
{
	if (type == MOEK_F32)
		((float *)values)[i] = value;
	else if (type == MOEK_E8M0) /* the power of two below */
		((uint8_t *)values)[i] = (uint8_t)(moek_f32_bits(value) >> 23 & 255u);
	else
		((uint16_t *)values)[i] = type == MOEK_BF16 ? moek_bf16_from_f32(value)
		                                            : moek_f16_from_f32(value);
}

static int make_codes(struct moek_matrix *m, uint64_t *state, uint32_t kind)
{
	uint32_t w = m->weight;
	uint64_t row_bytes, i;
	uint8_t *codes;

	if (w == MOEK_INT4 || w == MOEK_MXFP4)
		row_bytes = (m->columns + 1) / 2;
	else
		row_bytes = m->columns * (w == MOEK_INT8 ? 1 : float_bytes(w));
	codes = malloc(m->rows * row_bytes + 1);
	m->codes = codes;
	if (codes == NULL)
		return 0;
	if (w != MOEK_INT4 && w != MOEK_MXFP4 && w != MOEK_INT8) {
		float size = 1.5f / sqrtf((float)m->columns);

		for (i = 0; i < m->rows * m->columns; i++)
			float_put(w, codes, i,
			          kind & WEIGHTS_ALL_LARGEST
			                  ? size
			                  : random_float(state, -size, size));
		return 1;
	}
	for (i = 0; i < m->rows * row_bytes; i++)
		codes[i] = (uint8_t)random_next(state);
	if (kind & WEIGHTS_ALL_LARGEST)
		memset(codes, w == MOEK_MXFP4 ? 0x77 : 0xff, m->rows * row_bytes);
	return 1;
}

static int make_scales(struct moek_matrix *m, uint64_t *state, uint32_t kind)
{
	uint64_t grid = m->rows * ((m->columns - 1) / m->group_size + 1), i;
	float size = m->weight == MOEK_INT8   ? 0.02f
	             : m->weight == MOEK_INT4 ? 0.3f
	                                      : 0.5f;
	void *scales = malloc(grid * float_bytes(m->scale));

	m->scales = scales;
	if (scales == NULL)
		return 0;
	size /= sqrtf((float)m->columns);
	for (i = 0; i < grid; i++) {
		float_put(m->scale, scales, i, random_float(state, 0.4f, 1.6f) * size);
		if (kind & WEIGHTS_ZERO_SCALES && i % 5 == 0) {
			if (m->scale == MOEK_E8M0)
				((uint8_t *)scales)[i] = 0;
			else
				float_put(m->scale, scales, i, 0.0f);
		}
		if (kind & WEIGHTS_EXTREME_SCALES && m->scale == MOEK_E8M0)
			((uint8_t *)scales)[i] = (uint8_t)(i % 7 * 21 + i % 3);
	}
	return 1;
}

static int make_zeros(struct moek_matrix *m, uint64_t *state)
{
	uint64_t grid = m->rows * ((m->columns - 1) / m->group_size + 1), i;
	uint8_t *zeros = malloc(grid);

	m->zeros = zeros;
	for (i = 0; zeros != NULL && i < grid; i++)
		zeros[i] = m->weight == MOEK_INT8
		                   ? (uint8_t)(96 + random_next(state) % 64)
		                   : (uint8_t)(random_next(state) % 16);
	return zeros != NULL;
}

/* Each group keeps its size, but its columns are anywhere. */
static int make_column_group(struct moek_matrix *m, uint64_t *state)
{
	uint32_t *group = malloc(m->columns * sizeof(*group)), swap;
	uint64_t c, other;

	m->column_group = group;
	if (group == NULL)
		return 0;
	for (c = 0; c < m->columns; c++)
		group[c] = (uint32_t)(c / m->group_size);
	for (c = m->columns - 1; c > 0; c--) {
		other = random_next(state) % (c + 1);
		swap = group[c];
		group[c] = group[other];
		group[other] = swap;
	}
	return 1;
}

static int make_bias(struct moek_matrix *m, uint64_t *state)
{
	float *bias = malloc(m->rows * sizeof(*bias));
	uint64_t i;

	m->bias = bias;
	for (i = 0; bias != NULL && i < m->rows; i++)
		bias[i] = random_float(state, -0.5f, 0.5f);
	return bias != NULL;
}

struct shape {
	uint64_t rows, columns;
	uint32_t kind;
};

static int make_matrix(const struct moek_scheme *s, const struct shape *shape,
                       uint64_t *state, struct moek_matrix *m)
{
	memset(m, 0, sizeof(*m));
	m->struct_size = MOEK_MATRIX_SIZE_1_0;
	m->weight = s->weight;
	m->scale = s->scale;
	m->rows = shape->rows;
	m->columns = shape->columns;
	m->group_size = s->group_size != 0 ? s->group_size : shape->columns;
	m->input_scale = s->input_scale ? 0.015625f : 0.0f;
	if (shape->rows == 0)
		return 1;
	return make_codes(m, state, shape->kind) &&
	       (!s->scale || make_scales(m, state, shape->kind)) &&
	       (!s->zero_points || make_zeros(m, state)) &&
	       (!s->column_groups || make_column_group(m, state)) &&
	       (!s->bias || make_bias(m, state));
}

struct moek_expert *weights_create(const struct moek_problem *problem, uint64_t seed,
                                   uint32_t kind)
{
	struct moek_expert *experts = calloc(problem->experts_local, sizeof(*experts));
	const struct shape gate = { problem->intermediate, problem->hidden, kind };
	const struct shape up = { problem->gated ? problem->intermediate : 0,
		                  problem->hidden, kind };
	const struct shape down = { problem->hidden, problem->intermediate, kind };
	uint64_t e, state = seed;

	for (e = 0; experts != NULL && e < problem->experts_local; e++)
		if (!make_matrix(&problem->gate_up, &gate, &state, &experts[e].gate) ||
		    !make_matrix(&problem->gate_up, &up, &state, &experts[e].up) ||
		    !make_matrix(&problem->down, &down, &state, &experts[e].down)) {
			weights_free(problem, experts);
			return NULL;
		}
	return experts;
}

static void free_matrix(struct moek_matrix *m)
{
	free((void *)(uintptr_t)m->codes);
	free((void *)(uintptr_t)m->scales);
	free((void *)(uintptr_t)m->zeros);
	free((void *)(uintptr_t)m->column_group);
	free((void *)(uintptr_t)m->bias);
}

void weights_free(const struct moek_problem *problem, struct moek_expert *experts)
{
	uint64_t e;

	for (e = 0; experts != NULL && e < problem->experts_local; e++) {
		free_matrix(&experts[e].gate);
		free_matrix(&experts[e].up);
		free_matrix(&experts[e].down);
	}
	free(experts);
}
