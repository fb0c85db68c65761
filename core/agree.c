/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/agree.h"

#include <math.h>
#include <stdio.h>

#include <moek/formats.h>

#include "core/reduce.h"
#include "core/status.h"

#define COLUMNS_LEAST 32 /* of a row that is held to its length */
#define WIDENED 256      /* elements at a time */

/** Of fp32, fp16 and bf16, the output types. */
struct kind {
	double eps, largest;
	int digits, least; /* of the significand; exponent of the smallest number */
};

static struct kind kind_of(uint32_t type)
{
	if (type == MOEK_BF16)
		return (struct kind){ 0x1p-7, 0x1.fep127, 8, -133 };
	if (type == MOEK_F16)
		return (struct kind){ 0x1p-10, 65504, 11, -24 };
	return (struct kind){ 0x1p-23, 0x1.fffffep127, 24, -149 };
}

/** What turned codes of activations may do, beside roundings. */
static double turned(uint32_t activations)
{
	switch (activations) {
	case MOEK_A16:
		return 0;
	case MOEK_A8_INT8:
		return 0x1p-7;
	case MOEK_A8_FP8_STATIC:
		return 0x1p-4;
	default: /* four bits */
		return 0x1p-3;
	}
}

struct judge {
	const struct moek_outputs *outputs;
	struct kind output;
	double per_magnitude;         /* of S, for an element */
	double per_length, per_chain; /* of a row: of its length, of each S */
	struct moek_agreement *agreement;
};

/** Half a unit in the last place of @value. */
static double half_unit(const struct kind *kind, double value)
{
	int exponent;

	frexp(value, &exponent);
	exponent -= kind->digits;
	return ldexp(0.5, exponent > kind->least ? exponent : kind->least);
}

static double share_of(const struct judge *judge, double got, double wanted,
                       double allowed)
{
	if (isnan(got) || isnan(wanted))
		return isnan(got) && isnan(wanted) ? 0 : (double)INFINITY;
	if (got == wanted || !isfinite(allowed))
		return 0;
	/* as rounding makes it, if the type ends there */
	if (isinf(got) && fabs(wanted) + allowed >= judge->output.largest &&
	    signbit(got) == signbit(wanted))
		return 0;
	if (!isfinite(got) || !isfinite(wanted))
		return (double)INFINITY;
	return fabs(got - wanted) / allowed;
}

/** Squares of a row's elements that are finite on both sides. */
struct squares {
	double wanted, errors, chains;
};

static void note(const struct judge *judge, double share, uint64_t row, uint64_t column,
                 const double numbers[3])
{
	struct moek_agreement *a = judge->agreement;

	if (share <= a->worst)
		return;
	a->worst = share;
	a->row = row;
	a->column = column;
	a->got = numbers[0];
	a->wanted = numbers[1];
	a->allowed = numbers[2];
}

/** Share of the worst element. */
static double judge_elements(const struct judge *judge, uint64_t row,
                             struct squares *squares)
{
	const struct moek_rows *got = judge->outputs->got;
	uint64_t stride = got->row_stride != 0 ? got->row_stride : got->columns;
	const char *data = (const char *)got->data +
	                   row * stride * moek_type_bytes(got->type);
	float values[WIDENED];
	double worst = 0;

	for (uint64_t c = 0; c < got->columns; c++) {
		uint64_t at = row * got->columns + c, left = got->columns - c;
		double wanted = (double)judge->outputs->wanted[at], value, share, error;
		double magnitude = (double)judge->outputs->magnitudes[at];
		double chain = judge->per_chain * magnitude;

		if (c % WIDENED == 0)
			moek_row_to_f32(got->type,
			                data + c * moek_type_bytes(got->type),
			                left < WIDENED ? left : WIDENED, values);
		value = (double)values[c % WIDENED];
		share = judge->per_magnitude * magnitude +
		        half_unit(&judge->output, value);
		error = value - wanted;
		note(judge, share_of(judge, value, wanted, share), row, c,
		     (const double[]){ value, wanted, share });
		share = share_of(judge, value, wanted, share);
		worst = share > worst ? share : worst;
		if (!isfinite(error) || !isfinite(chain))
			continue;
		squares->wanted += wanted * wanted;
		squares->errors += error * error;
		squares->chains += chain * chain;
	}
	return worst;
}

static void judge_row(const struct judge *judge, uint64_t row)
{
	uint64_t columns = judge->outputs->got->columns;
	struct squares squares = { 0, 0, 0 };
	double worst = judge_elements(judge, row, &squares);
	double length = sqrt(squares.wanted), error = sqrt(squares.errors);
	double allowed = judge->per_length * length + sqrt(squares.chains) +
	                 sqrt((double)columns) * half_unit(&judge->output, 0);

	if (columns >= COLUMNS_LEAST) {
		note(judge, error / allowed, row, columns,
		     (const double[]){ error, length, allowed });
		worst = error / allowed > worst ? error / allowed : worst;
	}
	judge->agreement->rows_over += worst > 1;
}

void moek_agree(const struct moek_outputs *outputs,
                struct moek_agreement *agreement_out)
{
	const struct moek_numerics *numerics = outputs->numerics;
	struct kind input = kind_of(outputs->problem->input_type);
	double accumulator = kind_of(numerics->accumulator).eps;
	double roundings = numerics->roundings * input.eps +
	                   turned(outputs->problem->activations);
	struct judge judge = { .outputs = outputs,
		               .output = kind_of(outputs->got->type),
		               .agreement = agreement_out };

	*agreement_out = (struct moek_agreement){ .worst = 0 };
	judge.per_magnitude = (double)numerics->terms * accumulator + roundings;
	judge.per_length = roundings + judge.output.eps / 2;
	/* errors of n additions of either sign: sqrt(n) of them, four deviations */
	judge.per_chain = 4 * sqrt((double)numerics->terms) * accumulator;
	for (uint64_t row = 0; row < outputs->got->rows; row++)
		judge_row(&judge, row);
}

void moek_agreement_text(const struct moek_agreement *agreement, uint64_t hidden,
                         const char *reference, char *text_out, size_t bytes)
{
	const struct moek_agreement *a = agreement;

	if (a->column == hidden)
		snprintf(text_out, bytes,
		         "output row %llu is off by %.3g of its length beside %s, %.3g "
		         "is "
		         "allowed",
		         (unsigned long long)a->row, a->got / a->wanted, reference,
		         a->allowed / a->wanted);
	else
		snprintf(text_out, bytes,
		         "output[%llu][%llu] is %.9g, %s says %.9g, %.3g is allowed",
		         (unsigned long long)a->row, (unsigned long long)a->column,
		         a->got, reference, a->wanted, a->allowed);
}
