/* SPDX-License-Identifier: MIT */
#include "compare.h"

#include <math.h>
#include <stdio.h>

/* Fewer values than this have no average worth asking for. */
#define VALUES_LEAST 128

double compare_eps(uint32_t type)
{
	return type == MOEK_BF16 ? 0x1p-7 : type == MOEK_F16 ? 0x1p-10 : 0x1p-23;
}

/* Half a unit in the last place of a value of a type. */
static double half_unit(uint32_t type, double value)
{
	int least = type == MOEK_BF16 ? -133 : type == MOEK_F16 ? -24 : -149;
	int digits = type == MOEK_BF16 ? 8 : type == MOEK_F16 ? 11 : 24, exponent;

	frexp(value, &exponent);
	exponent = exponent - digits > least ? exponent - digits : least;
	return ldexp(0.5, exponent);
}

static double largest(uint32_t type)
{
	return type == MOEK_BF16  ? 0x1.fep127
	       : type == MOEK_F16 ? 65504.0
	                          : 0x1.fffffep127;
}

/* What an element may be off before it is rounded to the output type. */
static double allowed(const struct expected *e, uint64_t i)
{
	const struct moek_numerics *n = e->numerics;
	double unit = (double)n->terms * compare_eps(n->accumulator) +
	              n->roundings * compare_eps(e->input_type);

	return unit * (double)e->magnitudes[i] + (e->flips != NULL ? e->flips[i] : 0);
}

/* The part of its allowance that an element uses; infinite if it is wrong outright. */
static double used(const struct expected *e, uint64_t i, double got)
{
	double want = (double)e->want[i], most = allowed(e, i), error;

	if (isnan(want) || isnan(got))
		return isnan(want) && isnan(got) ? 0 : (double)INFINITY;
	if (isinf(want))
		return got == want ? 0 : (double)INFINITY;
	if (!isfinite(most)) /* a bound that bounds nothing is no bound */
		return (double)INFINITY;
	if (isinf(got)) /* as rounding made it, if the type ends there */
		return fabs(want) + most >= largest(e->output_type) &&
		                       signbit(got) == signbit(want)
		               ? 0
		               : (double)INFINITY;
	error = fabs(got - want);
	if (error == 0)
		return 0;
	return error / (most + half_unit(e->output_type, got));
}

static int check_elements(const struct expected *e, const float *got, struct finding *f)
{
	uint64_t i, at = 0;

	f->worst = 0;
	for (i = 0; i < e->tokens * e->hidden; i++) {
		double part = used(e, i, (double)got[i]);

		if (part > f->worst) {
			f->worst = part;
			at = i;
		}
	}
	if (f->worst <= 1)
		return 1;
	snprintf(f->text, sizeof(f->text),
	         "output[%llu][%llu] is %a, emulation says %a, %g is allowed",
	         (unsigned long long)(at / e->hidden),
	         (unsigned long long)(at % e->hidden), (double)got[at],
	         (double)e->want[at],
	         allowed(e, at) + half_unit(e->output_type, (double)got[at]));
	return 0;
}

/* Sums over elements that are finite on both sides. */
struct sums {
	double wants, errors, both, bounds, flips;
};

static void add(const struct expected *e, const float *got, uint64_t i, struct sums *s)
{
	double want = (double)e->want[i], error = (double)got[i] - want;
	/* errors of n additions of either sign: sqrt(n) of them, four deviations */
	double bound = 4 * sqrt((double)e->numerics->terms) *
	               compare_eps(e->numerics->accumulator) * (double)e->magnitudes[i];
	double flip = e->flips != NULL ? e->flips[i] : 0;

	if (!isfinite(want) || !isfinite(error))
		return;
	s->wants += want * want;
	s->errors += error * error;
	s->both += error * want;
	s->bounds += (bound + flip) * (bound + flip);
	s->flips += flip * fabs(want);
}

static int check_tokens(const struct expected *e, const float *got, struct finding *f)
{
	uint64_t token, h;

	for (token = 0; token < e->tokens && e->hidden >= 32; token++) {
		struct sums s = { 0, 0, 0, 0, 0 };
		double error, most;

		for (h = 0; h < e->hidden; h++)
			add(e, got, token * e->hidden + h, &s);
		most = (e->numerics->roundings * compare_eps(e->input_type) +
		        compare_eps(e->output_type) / 2) *
		               sqrt(s.wants) +
		       sqrt(s.bounds);
		error = sqrt(s.errors);
		if (error > 0 && error / most > f->worst)
			f->worst = error / most;
		if (error <= most)
			continue;
		snprintf(f->text, sizeof(f->text),
		         "token %llu is off by %.3g of its length, %.3g is allowed",
		         (unsigned long long)token, error / sqrt(s.wants),
		         most / sqrt(s.wants));
		return 0;
	}
	return 1;
}

static int check_slope(const struct expected *e, const float *got, struct finding *f)
{
	double input = compare_eps(e->input_type), output = compare_eps(e->output_type);
	/* an error in one activated value reaches all columns of its token */
	double count = fmin((double)e->values, (double)(e->tokens * e->hidden)) / 4;
	struct sums s = { 0, 0, 0, 0, 0 };
	double most;
	uint64_t i;

	if (count < VALUES_LEAST || e->numerics->accumulator != MOEK_F32)
		return 1;
	for (i = 0; i < e->tokens * e->hidden; i++)
		add(e, got, i, &s);
	if (s.wants == 0)
		return 1;
	most = 8 * sqrt((e->numerics->roundings * input * input + output * output) /
	                12 / count) +
	       s.flips / s.wants + 0x1p-16;
	if (fabs(s.both / s.wants) <= most)
		return 1;
	snprintf(f->text, sizeof(f->text),
	         "all in all %.6f of what emulation says, 1 within %.2g is allowed",
	         1 + s.both / s.wants, most);
	return 0;
}

int compare(const struct expected *expected, const float *got,
            struct finding *finding_out)
{
	finding_out->text[0] = '\0';
	return check_elements(expected, got, finding_out) &&
	       (expected->uneven || (check_tokens(expected, got, finding_out) &&
	                             check_slope(expected, got, finding_out)));
}
