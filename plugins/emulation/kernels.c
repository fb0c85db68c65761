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

/* Not inlined: gcc forgets `restrict` when it inlines, and then does not vectorise. */
#define ALONE __attribute__((noinline))

/* @pairs bytes of two codes, low nibble first, that share scale and zero. */
ALONE static void unpack_int4(const uint8_t *restrict bytes, uint64_t pairs, float zero,
                              float scale, float *restrict out)
{
	uint64_t i;

	for (i = 0; i < pairs; i++) {
		out[2 * i] = ((float)(bytes[i] & 15) - zero) * scale;
		out[2 * i + 1] = ((float)(bytes[i] >> 4) - zero) * scale;
	}
}

ALONE static void unpack_int8(const uint8_t *restrict bytes, uint64_t count, float zero,
                              float scale, float *restrict out)
{
	uint64_t i;

	for (i = 0; i < count; i++)
		out[i] = ((float)bytes[i] - zero) * scale;
}

/* moek_e2m1_to_f32() without its table: twice the magnitude of 0 .. 7 is 0 1 2 3 4 6
 * 8 12. */
static inline float e2m1(uint32_t code)
{
	int32_t low = (int32_t)(code & 7u);
	int32_t twice = low + (low > 4 ? low - 4 : 0) + (low > 6 ? 2 : 0);

	return moek_f32_from_bits(moek_f32_bits((float)twice * 0.5f) | (code & 8u)
	                                                                       << 28);
}

ALONE static void unpack_mxfp4(const uint8_t *restrict bytes, uint64_t pairs,
                               float scale, float *restrict out)
{
	uint64_t i;

	for (i = 0; i < pairs; i++) {
		out[2 * i] = e2m1(bytes[i] & 15u) * scale;
		out[2 * i + 1] = e2m1((uint32_t)bytes[i] >> 4) * scale;
	}
}

static float one_nibble(uint32_t weight, const uint8_t *row, uint64_t column,
                        float zero, float scale)
{
	uint32_t code = moek_nibble(row, column);

	return weight == MOEK_INT4 ? ((float)code - zero) * scale : e2m1(code) * scale;
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

	uint64_t pairs;

	if (m->weight == MOEK_INT8) {
		unpack_int8(codes + first, count, zero, scale, out);
		return;
	}
	if (first % 2 != 0) {
		*out++ = one_nibble(m->weight, codes, first++, zero, scale);
		count--;
	}
	pairs = count / 2;
	if (m->weight == MOEK_INT4)
		unpack_int4(codes + first / 2, pairs, zero, scale, out);
	else
		unpack_mxfp4(codes + first / 2, pairs, scale, out);
	if (count % 2 != 0)
		out[count - 1] = one_nibble(m->weight, codes, first + count - 1, zero,
		                            scale);
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
 * so the sum over columns of each output stays in order. Rows are written out: gcc
 * keeps an array of accumulators in memory. */
typedef float lanes __attribute__((vector_size(16), may_alias));

static lanes load(const float *at)
{
	return *(const lanes *)at;
}

static void store(float *at, lanes value)
{
	*(lanes *)at = value;
}

void multiply_block(const float *panel, const float *columns, uint64_t count,
                    float *sums)
{
	const float *w0 = panel, *w1 = w0 + PANEL_COLUMNS, *w2 = w1 + PANEL_COLUMNS,
		    *w3 = w2 + PANEL_COLUMNS;
	float *s0 = sums, *s1 = s0 + TILE_TOKENS, *s2 = s1 + TILE_TOKENS,
	      *s3 = s2 + TILE_TOKENS;
	lanes a0 = load(s0), a1 = load(s1), a2 = load(s2), a3 = load(s3);
	lanes b0 = load(s0 + 4), b1 = load(s1 + 4), b2 = load(s2 + 4),
	      b3 = load(s3 + 4);
	uint64_t k;

	for (k = 0; k < count; k++, columns += LANES) {
		lanes x = load(columns), y = load(columns + 4);

		a0 += w0[k] * x;
		b0 += w0[k] * y;
		a1 += w1[k] * x;
		b1 += w1[k] * y;
		a2 += w2[k] * x;
		b2 += w2[k] * y;
		a3 += w3[k] * x;
		b3 += w3[k] * y;
	}
	store(s0, a0);
	store(s1, a1);
	store(s2, a2);
	store(s3, a3);
	store(s0 + 4, b0);
	store(s1 + 4, b1);
	store(s2 + 4, b2);
	store(s3 + 4, b3);
}

void multiply_half_block(const float *panel, const float *columns, uint64_t count,
                         float *sums)
{
	const float *w0 = panel, *w1 = w0 + PANEL_COLUMNS, *w2 = w1 + PANEL_COLUMNS,
		    *w3 = w2 + PANEL_COLUMNS;
	float *s0 = sums, *s1 = s0 + TILE_TOKENS, *s2 = s1 + TILE_TOKENS,
	      *s3 = s2 + TILE_TOKENS;
	lanes a0 = load(s0), a1 = load(s1), a2 = load(s2), a3 = load(s3);
	uint64_t k;

	for (k = 0; k < count; k++, columns += LANES) {
		lanes x = load(columns);

		a0 += w0[k] * x;
		a1 += w1[k] * x;
		a2 += w2[k] * x;
		a3 += w3[k] * x;
	}
	store(s0, a0);
	store(s1, a1);
	store(s2, a2);
	store(s3, a3);
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

/* erfc and the sigmoid: 1 + erf and 1 + tanh cancel for negative g. */
static double gelu(double g)
{
	return 0.5 * g * erfc(-g * sqrt_half);
}

static double gelu_tanh(double g)
{
	return g * sigmoid(2.0 * sqrt_2_over_pi * (g + 0.044715 * g * g * g));
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
		return g > 0 ? 2.0 * g : 0.0; /* smooth: no kink at 0 */
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
