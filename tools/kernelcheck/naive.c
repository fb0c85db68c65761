/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "naive.h"

/* Sign, exponent and fraction of any small format: bias, fraction bits. */
static double small_float(uint32_t bits, int exponent_bits, int fraction_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1;
	int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
	int fraction = (int)bits & ((1 << fraction_bits) - 1);
	double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;

	if (exponent == (1 << exponent_bits) - 1 && exponent_bits > 4)
		return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
	if (exponent == 0)
		return sign * ldexp(fraction, 1 - bias - fraction_bits);
	return sign *
	       ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static double value_of(uint32_t type, const void *values, uint64_t i)
{
	switch (type) {
	case MOEK_F32:
		return (double)((const float *)values)[i];
	case MOEK_F16:
		return small_float(((const uint16_t *)values)[i], 5, 10);
	case MOEK_BF16:
		return small_float(((const uint16_t *)values)[i], 8, 7);
	default:
		return ((const uint8_t *)values)[i] == 255
		               ? (double)NAN
		               : ldexp(1.0, ((const uint8_t *)values)[i] - 127);
	}
}

double naive_weight(const struct moek_matrix *matrix, uint64_t row, uint64_t column)
{
	static const double e2m1[] = { 0, .5, 1, 1.5, 2, 3, 4, 6 };
	uint64_t groups = (matrix->columns + matrix->group_size - 1) /
	                  matrix->group_size;
	uint64_t group = matrix->column_group != NULL ? matrix->column_group[column]
	                                              : column / matrix->group_size;
	const uint8_t *codes = matrix->codes;
	int code, zero;

	if (matrix->scale == 0)
		return value_of(matrix->weight, codes, row * matrix->columns + column);
	if (matrix->weight == MOEK_INT8) {
		code = codes[row * matrix->columns + column];
		zero = 128;
	} else {
		code = codes[row * ((matrix->columns + 1) / 2) + column / 2];
		code = column % 2 != 0 ? code / 16 : code % 16;
		zero = 8;
	}
	if (matrix->zeros != NULL)
		zero = matrix->zeros[row * groups + group];
	group += row * groups;
	if (matrix->weight == MOEK_MXFP4)
		return (code >= 8 ? -1.0 : 1.0) * e2m1[code % 8] *
		       value_of(matrix->scale, matrix->scales, group);
	return (double)(float)((code - zero) *
	                       value_of(matrix->scale, matrix->scales, group));
}

double naive_dot(const struct moek_matrix *matrix, uint64_t row, const double *x,
                 double *size_out)
{
	double sum = matrix->bias != NULL ? (double)matrix->bias[row] : 0.0;
	double size = fabs(sum);
	uint64_t c;

	for (c = 0; c < matrix->columns; c++) {
		double product = naive_weight(matrix, row, c) * x[c];

		sum += product;
		size += fabs(product);
	}
	*size_out = size;
	return sum;
}

/* Unlike fmin() it lets a NaN pass. */
static double at_most(double value, double limit)
{
	return value > limit ? limit : value;
}

double naive_activate(const struct moek_problem *problem, double gate, double up)
{
	double limit = problem->limit > 0 ? (double)problem->limit : (double)INFINITY;
	double alpha = (double)problem->alpha, beta = (double)problem->beta, a;

	if (problem->activation != MOEK_SWIGLU_STEP)
		gate = at_most(gate, limit);
	up = -at_most(-at_most(up, limit), limit);
	switch (problem->activation) {
	case MOEK_SILU:
		a = gate / (1 + exp(-gate));
		break;
	case MOEK_GELU:
		a = gate * erfc(-gate / sqrt(2.0)) / 2;
		break;
	case MOEK_GELU_TANH: /* (1 + tanh x) / 2 is the sigmoid of 2 x */
		a = gate / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) *
		                    (gate + 0.044715 * pow(gate, 3))));
		break;
	case MOEK_RELU2:
		a = pow(-at_most(-gate, 0), 2);
		break;
	case MOEK_SWIGLU_OAI:
		a = gate / (1 + exp(-alpha * gate));
		up += beta;
		break;
	case MOEK_SWIGLU_STEP:
		a = at_most(gate / (1 + exp(-gate)), limit);
		break;
	default:
		a = alpha * tanh(gate / alpha) / (1 + exp(-gate));
		up = beta > 0 ? beta * tanh(up / beta) : up;
	}
	return problem->gated ? a * up : a;
}

/* Nearest multiple of 2^exponent, ties to even: the default rounding of nearbyint. */
static double nearest(double value, int exponent)
{
	return ldexp(nearbyint(ldexp(value, -exponent)), exponent);
}

double naive_round(uint32_t type, double value)
{
	int digits = type == MOEK_F16 ? 11 : type == MOEK_BF16 ? 8 : 24;
	int least = type == MOEK_F16 ? -24 : type == MOEK_BF16 ? -133 : -149, exponent;
	double largest = type == MOEK_F16 ? 65504.0
	                                  : ldexp(2.0 - ldexp(1.0, 1 - digits), 127);

	if (!isfinite(value) || value == 0)
		return value;
	frexp(value, &exponent);
	value = nearest(value, exponent - digits > least ? exponent - digits : least);
	return fabs(value) > largest ? copysign((double)INFINITY, value) : value;
}

/* ---- activations ---- */

static double e4m3(double value)
{
	int exponent;

	if (isnan(value))
		return value;
	if (fabs(value) >= 448)
		return copysign(448.0, value);
	frexp(value, &exponent);
	value = nearest(value, exponent - 4 > -9 ? exponent - 4 : -9);
	return fabs(value) > 448 ? copysign(448.0, value) : value;
}

static double e2m1(double value)
{
	int exponent;

	if (fabs(value) >= 6)
		return copysign(6.0, value);
	frexp(value, &exponent);
	return nearest(value, exponent - 2 > -1 ? exponent - 2 : -1);
}

static int shared_exponent(uint32_t rule, double amax)
{
	int exponent;
	double fraction = frexp(amax, &exponent); /* in [1/2, 1) */

	if (amax == 0)
		return -127;
	if (rule == MOEK_A4_MXFP4_EVEN) /* 1.75 or more counts as 2 */
		exponent = exponent - 1 + (fraction >= 0.875) - 2;
	else /* 6 = 0.75 * 2^3 */
		exponent = exponent - 3 + (fraction > 0.75);
	return exponent < -127 ? -127 : exponent;
}

static void quantise_block(const struct moek_problem *problem, const float *row,
                           uint64_t count, float *row_out)
{
	double amax = 0;
	float scale;
	uint64_t i;
	int exponent, finite = 1;

	for (i = 0; i < count; i++) {
		finite = finite && isfinite(row[i]);
		amax = fmax(amax, fabs((double)row[i]));
	}
	exponent = shared_exponent(problem->activations, amax);
	scale = (float)amax / 127.0f;
	for (i = 0; i < count; i++) {
		if (!finite)
			row_out[i] = NAN;
		else if (problem->activations == MOEK_A8_INT8)
			row_out[i] = scale > 0 ? (float)nearbyint(
							 (double)(row[i] / scale)) *
			                                 scale
			                       : 0.0f;
		else
			row_out[i] = (float)ldexp(
				e2m1(ldexp((double)row[i], -exponent)), exponent);
	}
}

void naive_quantise(const struct moek_problem *problem, const float *row,
                    uint64_t count, float input_scale, float *row_out)
{
	uint64_t block = problem->activations == MOEK_A8_INT8
	                         ? problem->activations_group
	                         : 32;
	uint64_t i;

	if (problem->activations == MOEK_A8_FP8_STATIC) {
		for (i = 0; i < count; i++)
			row_out[i] = (float)e4m3((double)(row[i] / input_scale)) *
			             input_scale;
		return;
	}
	for (i = 0; i < count; i += block)
		if (problem->activations != MOEK_A16)
			quantise_block(problem, row + i,
			               block < count - i ? block : count - i,
			               row_out + i);
	for (i = 0; problem->activations == MOEK_A16 && i < count; i++)
		row_out[i] = row[i];
}

int naive_slot(const struct moek_problem *problem, const struct moek_expert *expert,
               const float *x, double *y_out)
{
	uint64_t n = problem->intermediate,
		 width = n > problem->hidden ? n : problem->hidden;
	double *values = calloc(2 * width, sizeof(*values)), *a = values + width, size;
	float *row = calloc(2 * width, sizeof(*row));
	uint64_t i;

	if (values == NULL || row == NULL) {
		free(values);
		free(row);
		return 0;
	}
	naive_quantise(problem, x, problem->hidden, expert->gate.input_scale, row);
	for (i = 0; i < problem->hidden; i++)
		values[i] = (double)row[i];
	for (i = 0; i < n; i++) {
		double g = naive_dot(&expert->gate, i, values, &size);
		double u = problem->gated ? naive_dot(&expert->up, i, values, &size)
		                          : 0;

		row[i] = (float)naive_activate(problem, g, u);
		if (problem->activations == MOEK_A16)
			row[i] = (float)naive_round(problem->input_type,
			                            (double)row[i]);
	}
	naive_quantise(problem, row, n, expert->down.input_scale, row + width);
	for (i = 0; i < n; i++)
		a[i] = (double)row[width + i];
	for (i = 0; i < problem->hidden; i++)
		y_out[i] = naive_dot(&expert->down, i, a, &size);
	free(values);
	free(row);
	return 1;
}
