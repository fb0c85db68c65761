/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "kernels.h"

float element(uint32_t type, const void *values, uint64_t i)
{
	switch (type) {
	case MOEK_F32:
		return ((const float *)values)[i];
	case MOEK_F16:
		return moek_f16_to_f32(((const uint16_t *)values)[i]);
	case MOEK_BF16:
		return moek_bf16_to_f32(((const uint16_t *)values)[i]);
	default: /* E8M0: supports_quant_scheme lets nothing else in */
		return moek_e8m0_to_f32(((const uint8_t *)values)[i]);
	}
}

void widen(uint32_t type, const void *values, uint64_t first, uint64_t count,
           float *values_out)
{
	const float *singles = (const float *)values + first;
	const uint16_t *halves = (const uint16_t *)values + first;
	uint64_t i;

	if (type == MOEK_F32) {
		memcpy(values_out, singles, count * sizeof(*singles));
	} else if (type == MOEK_BF16) {
		for (i = 0; i < count; i++)
			values_out[i] = moek_bf16_to_f32(halves[i]);
	} else {
		for (i = 0; i < count; i++)
			values_out[i] = moek_f16_to_f32(halves[i]);
	}
}

void narrow(uint32_t type, const float *values, uint64_t count, void *values_out)
{
	uint16_t *halves = values_out;
	uint64_t i;

	if (type == MOEK_F32) {
		memcpy(values_out, values, count * sizeof(*values));
	} else if (type == MOEK_BF16) {
		for (i = 0; i < count; i++)
			halves[i] = moek_bf16_from_f32(values[i]);
	} else {
		for (i = 0; i < count; i++)
			halves[i] = moek_f16_from_f32(values[i]);
	}
}

float round_to(uint32_t type, float value)
{
	if (type == MOEK_BF16)
		return moek_bf16_to_f32(moek_bf16_from_f32(value));
	if (type == MOEK_F16)
		return moek_f16_to_f32(moek_f16_from_f32(value));
	return value;
}

/* ---- weights ---- */

/* Columns first .. first+count-1 of a row of nibbles that share scale and zero. */
static void dequantise_int4(const uint8_t *restrict row, uint64_t first, uint64_t count,
                            float zero, float scale, float *restrict out)
{
	uint64_t i;

	if (first % 2 != 0 && count != 0) {
		*out++ = ((float)(row[first / 2] >> 4) - zero) * scale;
		first++, count--;
	}
	row += first / 2;
	for (i = 0; i < count / 2; i++) {
		out[2 * i] = ((float)(row[i] & 15) - zero) * scale;
		out[2 * i + 1] = ((float)(row[i] >> 4) - zero) * scale;
	}
	if (count % 2 != 0)
		out[count - 1] = ((float)(row[i] & 15) - zero) * scale;
}

static void dequantise_mxfp4(const uint8_t *row, uint64_t first, uint64_t count,
                             float scale, float *out)
{
	uint64_t i;

	for (i = 0; i < count; i++)
		out[i] = moek_e2m1_to_f32(moek_nibble(row, first + i)) * scale;
}

static void dequantise_int8(const uint8_t *restrict row, uint64_t count, float zero,
                            float scale, float *restrict out)
{
	uint64_t i;

	for (i = 0; i < count; i++)
		out[i] = ((float)row[i] - zero) * scale;
}

/* Columns that share group @group of their row. */
static void dequantise_run(const struct matrix *m, uint64_t row, uint64_t group,
                           uint64_t first, uint64_t count, float *out)
{
	const uint8_t *codes = m->codes + row * m->row_bytes;
	uint64_t at = row * m->groups + group;
	float scale = element(m->scale, m->scales, at);
	float middle = m->weight == MOEK_INT8 ? 128.0f : 8.0f;
	float zero = m->zeros != NULL ? (float)m->zeros[at] : middle;

	if (m->weight == MOEK_INT4)
		dequantise_int4(codes, first, count, zero, scale, out);
	else if (m->weight == MOEK_INT8)
		dequantise_int8(codes + first, count, zero, scale, out);
	else
		dequantise_mxfp4(codes, first, count, scale, out);
}

void dequantise(const struct matrix *matrix, uint64_t row, uint64_t first,
                uint64_t count, float *weights_out)
{
	uint64_t end = first + count, column = first, run;

	if (matrix->scale == 0) {
		widen(matrix->weight, matrix->codes + row * matrix->row_bytes, first,
		      count, weights_out);
		return;
	}
	for (; column < end; column += run, weights_out += run) {
		uint64_t group = column / matrix->group_size;

		run = (group + 1) * matrix->group_size - column;
		if (matrix->column_group != NULL) {
			group = matrix->column_group[column];
			run = 1;
		}
		run = run < end - column ? run : end - column;
		dequantise_run(matrix, row, group, column, run, weights_out);
	}
}

/* ---- products ---- */

/* Four lanes, which every compiler maps to what the machine has. The lanes are tokens,
 * so the sum over columns of each output stays in order. */
typedef float lanes __attribute__((vector_size(16), may_alias));

void multiply_block(const float *panel, const float *columns, uint64_t count,
                    float *sums)
{
	lanes low[PANEL_ROWS], high[PANEL_ROWS];
	uint64_t k;
	int r;

	for (r = 0; r < PANEL_ROWS; r++) {
		low[r] = *(const lanes *)(sums + r * TILE_TOKENS);
		high[r] = *(const lanes *)(sums + r * TILE_TOKENS + 4);
	}
	for (k = 0; k < count; k++) {
		lanes x = *(const lanes *)(columns + k * LANES);
		lanes y = *(const lanes *)(columns + k * LANES + 4);

		for (r = 0; r < PANEL_ROWS; r++) {
			float weight = panel[(uint64_t)r * PANEL_COLUMNS + k];

			low[r] += weight * x;
			high[r] += weight * y;
		}
	}
	for (r = 0; r < PANEL_ROWS; r++) {
		*(lanes *)(sums + r * TILE_TOKENS) = low[r];
		*(lanes *)(sums + r * TILE_TOKENS + 4) = high[r];
	}
}

void multiply_half_block(const float *panel, const float *columns, uint64_t count,
                         float *sums)
{
	lanes low[PANEL_ROWS];
	uint64_t k;
	int r;

	for (r = 0; r < PANEL_ROWS; r++)
		low[r] = *(const lanes *)(sums + r * TILE_TOKENS);
	for (k = 0; k < count; k++) {
		lanes x = *(const lanes *)(columns + k * LANES);

		for (r = 0; r < PANEL_ROWS; r++)
			low[r] += panel[(uint64_t)r * PANEL_COLUMNS + k] * x;
	}
	for (r = 0; r < PANEL_ROWS; r++)
		*(lanes *)(sums + r * TILE_TOKENS) = low[r];
}

/* ---- between the GEMMs: in double, so that the fp32 result does not depend on whose
 * expf() is installed ---- */

static double sigmoid(double x)
{
	return 1.0 / (1.0 + exp(-x));
}

/* NaN stays NaN. */
static double at_most(double x, double limit)
{
	return x > limit ? limit : x;
}

static double clamp(double x, double limit)
{
	return x > limit ? limit : x < -limit ? -limit : x;
}

static const double sqrt_half = 0.70710678118654752440;
static const double sqrt_2_over_pi = 0.79788456080286535588;

static double gelu(double g)
{
	return 0.5 * g * (1.0 + erf(g * sqrt_half));
}

static double gelu_tanh(double g)
{
	return 0.5 * g * (1.0 + tanh(sqrt_2_over_pi * (g + 0.044715 * g * g * g)));
}

/* The part of g alone, and its derivative; g is clamped already, where that comes
 * first. */
static double gate_part(const struct moek_problem *p, double g)
{
	switch (p->activation) {
	case MOEK_GELU:
		return gelu(g);
	case MOEK_GELU_TANH:
		return gelu_tanh(g);
	case MOEK_RELU2:
		return g > 0 || isnan(g) ? g * g : 0.0;
	case MOEK_SWIGLU_OAI:
		return g * sigmoid((double)p->alpha * g);
	case MOEK_SITU:
		return (double)p->alpha * tanh(g / (double)p->alpha) * sigmoid(g);
	default: /* SILU, SWIGLU_STEP */
		return g * sigmoid(g);
	}
}

static double gate_slope(const struct moek_problem *p, double g)
{
	double s = sigmoid(g), t;

	switch (p->activation) {
	case MOEK_GELU:
		return 0.5 * (1.0 + erf(g * sqrt_half)) +
		       g * 0.5 * sqrt_2_over_pi * exp(-0.5 * g * g);
	case MOEK_GELU_TANH:
		t = tanh(sqrt_2_over_pi * (g + 0.044715 * g * g * g));
		return 0.5 * (1.0 + t) + 0.5 * g * (1.0 - t * t) * sqrt_2_over_pi *
		                                 (1.0 + 3.0 * 0.044715 * g * g);
	case MOEK_RELU2:
		return 2.0 * g;
	case MOEK_SWIGLU_OAI:
		s = sigmoid((double)p->alpha * g);
		return s * (1.0 + (double)p->alpha * g * (1.0 - s));
	case MOEK_SITU:
		t = tanh(g / (double)p->alpha);
		return (1.0 - t * t) * s + (double)p->alpha * t * s * (1.0 - s);
	default:
		return s * (1.0 + g * (1.0 - s));
	}
}

/* The factor made of u, and its derivative. */
static double up_part(const struct moek_problem *p, double u)
{
	double beta = (double)p->beta;

	if (p->activation == MOEK_SWIGLU_OAI)
		return u + beta;
	if (p->activation == MOEK_SITU && beta > 0)
		return beta * tanh(u / beta);
	return u;
}

static double up_slope(const struct moek_problem *p, double u)
{
	double beta = (double)p->beta, t;

	if (p->activation != MOEK_SITU || beta <= 0)
		return 1.0;
	t = tanh(u / beta);
	return 1.0 - t * t;
}

/* g and u after the clamps that come first; the limit of SWIGLU_STEP on g comes last.
 */
static double clamp_gate(const struct moek_problem *p, double g)
{
	return p->limit > 0 && p->activation != MOEK_SWIGLU_STEP
	               ? at_most(g, (double)p->limit)
	               : g;
}

static double clamp_up(const struct moek_problem *p, double u)
{
	return p->limit > 0 ? clamp(u, (double)p->limit) : u;
}

static double limit_product(const struct moek_problem *p, double product)
{
	return p->limit > 0 && p->activation == MOEK_SWIGLU_STEP
	               ? at_most(product, (double)p->limit)
	               : product;
}

float activate(const struct moek_problem *problem, float gate, float up)
{
	double g = limit_product(problem,
	                         gate_part(problem, clamp_gate(problem, (double)gate)));

	return (float)(problem->gated
	                       ? g * up_part(problem, clamp_up(problem, (double)up))
	                       : g);
}

void slopes(const struct moek_problem *problem, float gate, float up, float *gate_out,
            float *up_out)
{
	double g = clamp_gate(problem, (double)gate), u = clamp_up(problem, (double)up);
	double product = limit_product(problem, gate_part(problem, g));

	*gate_out = (float)fabs(gate_slope(problem, g) *
	                        (problem->gated ? up_part(problem, u) : 1.0));
	*up_out = problem->gated ? (float)fabs(product * up_slope(problem, u)) : 0.0f;
}

/* ---- activations ---- */

/* Largest magnitude; infinity when one is not finite. */
static float largest(const float *values, uint64_t count)
{
	float most = 0;
	uint64_t i;

	for (i = 0; i < count; i++) {
		float size = fabsf(values[i]);

		if (!(size <= 3.402823466e38f))
			return INFINITY;
		most = size > most ? size : most;
	}
	return most;
}

static void spoil(float *values, uint64_t count)
{
	uint64_t i;

	for (i = 0; i < count; i++)
		values[i] = NAN;
}

static void quantise_mxfp4(uint32_t rule, float *values, uint64_t count)
{
	float amax = largest(values, count);
	uint8_t scale = rule == MOEK_A4_MXFP4_EVEN ? moek_mxfp4_scale_even(amax)
	                                           : moek_mxfp4_scale_round_up(amax);
	uint64_t i;

	if (scale == 255) {
		spoil(values, count);
		return;
	}
	for (i = 0; i < count; i++)
		values[i] = moek_mxfp4_value(moek_mxfp4_code(values[i], scale), scale);
}

static void quantise_int8(float *values, uint64_t count)
{
	float amax = largest(values, count), scale = moek_int8_scale(amax);
	uint64_t i;

	if (amax == INFINITY) {
		spoil(values, count);
		return;
	}
	for (i = 0; i < count; i++)
		values[i] = (float)moek_int8_code(values[i], scale) * scale;
}

void quantise(const struct moek_problem *problem, float *row, uint64_t count,
              float input_scale)
{
	uint64_t block = problem->activations == MOEK_A8_INT8
	                         ? problem->activations_group
	                         : MOEK_MX_BLOCK;
	uint64_t i, n;

	if (problem->activations == MOEK_A16)
		return;
	if (problem->activations == MOEK_A8_FP8_STATIC) {
		for (i = 0; i < count; i++)
			row[i] = moek_e4m3_to_f32(moek_fp8_code(row[i], input_scale)) *
			         input_scale;
		return;
	}
	for (i = 0; i < count; i += n) {
		n = block < count - i ? block : count - i;
		if (problem->activations == MOEK_A8_INT8)
			quantise_int8(row + i, n);
		else
			quantise_mxfp4(problem->activations, row + i, n);
	}
}
