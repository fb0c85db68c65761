/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/compare.h"
#include "tools/numbers.h"
#include "tools/tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_ALLOWANCE 1e-6

struct allowance derive_allowance(const struct moek_problem *problem,
                                  const struct moek_numerics *numerics,
                                  uint32_t file_type)
{
	double terms = (double)numerics->terms;
	double roundings = (double)numerics->roundings;
	/* of the expected file, summed in plain fp32; 16 for the biases, the
	 * activation, the router weight and the products' own roundings */
	double chain = (double)problem->hidden + (double)problem->intermediate +
	               (double)problem->top_k + 16;

	if (file_type != problem->input_type)
		roundings += 1;
	return (struct allowance){
		.per_magnitude = terms * unit_roundoff(numerics->accumulator) +
		                 roundings * unit_roundoff(problem->input_type) +
		                 chain * unit_roundoff(MOEK_F32),
		.per_output = unit_roundoff(problem->output_type),
		.least = least_roundoff(problem->output_type),
	};
}

/** Error of one element in shares of its allowance; more than 1, and NaN, are wrong. */
static struct comparison compare_element(const struct allowance *allowance, double got,
                                         double expected, double magnitude)
{
	struct comparison one = {
		.got = got,
		.expected = expected,
		.error = fabs(got - expected),
		.allowance = allowance->per_magnitude * magnitude +
		             allowance->per_output * fabs(expected) + allowance->least,
	};

	if (got == expected || (isnan(got) && isnan(expected)))
		one.error = 0; /* infinities too: their difference is NaN */
	else if (isfinite(one.error) && isfinite(one.allowance))
		one.share = one.error / one.allowance;
	else
		one.share = INFINITY;
	one.wrong = one.share > 1;
	return one;
}

struct comparison compare_outputs(const struct allowance *allowance,
                                  const struct moek_rows *output, const float *expected,
                                  const float *magnitudes)
{
	struct comparison worst = { 0 };

	for (uint64_t i = 0; i < output->rows * output->columns; i++) {
		struct comparison one = compare_element(
			allowance, (double)row_get(output->data, output->type, i),
			(double)expected[i], (double)magnitudes[i]);
		uint64_t wrong = worst.wrong + one.wrong;

		if (i == 0 || one.share > worst.share) {
			worst = one;
			worst.row = i / output->columns;
			worst.column = i % output->columns;
		}
		worst.wrong = wrong;
	}
	return worst;
}

static int holds(const int32_t *ids, uint64_t count, int32_t id)
{
	for (uint64_t i = 0; i < count; i++)
		if (ids[i] == id)
			return 1;
	return 0;
}

static int same_set(const int32_t *a, const int32_t *b, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (!holds(a, count, b[i]) || !holds(b, count, a[i]))
			return 0;
	return 1;
}

/** Largest difference of weights, expert by expert: the order of equals is free. */
static double weight_difference(const int32_t *ids, const float *weights,
                                const int32_t *expected_ids, const float *expected,
                                uint64_t count)
{
	double worst = 0;

	for (uint64_t i = 0; i < count; i++) {
		for (uint64_t k = 0; k < count; k++) {
			double difference;

			if (ids[i] != expected_ids[k])
				continue;
			difference = fabs((double)weights[i] - (double)expected[k]);
			if (!(difference <= worst)) /* NaN counts as the worst */
				worst = isnan(difference) ? INFINITY : difference;
		}
	}
	return worst;
}

/**
 * Sum of |x * w| of each expert's logit for one row. The products come from the router
 * itself: row k holds x[k] in column k and zeros elsewhere.
 */
static int32_t logit_magnitudes(const struct routed *routed,
                                const struct expected *expected, uint64_t token,
                                double *sums_out, struct moek_error *error_out)
{
	enum { BLOCK = 32 };
	uint64_t hidden = routed->hidden, experts = routed->router.experts;
	float *rows = alloc_array(BLOCK + 1, hidden, sizeof(float));
	float *products = alloc_array(BLOCK + 1, experts, sizeof(float));
	struct moek_rows input = { .data = rows, .columns = hidden, .type = MOEK_F32 };
	int32_t status = MOEK_OK;

	if (rows == NULL || products == NULL)
		status = tool_error(error_out, MOEK_NO_MEMORY,
		                    "no memory for router rows");
	for (uint64_t first = 0; status == MOEK_OK && first < hidden; first += BLOCK) {
		uint64_t count = hidden - first < BLOCK ? hidden - first : BLOCK;

		/* one more row of zeros gives the bias that stands in every product */
		memset(rows, 0, (BLOCK + 1) * hidden * sizeof(float));
		for (uint64_t k = 0; k < count; k++)
			rows[k * hidden + first + k] = row_get(
				expected->input, expected->type,
				token * hidden + first + k);
		input.rows = count + 1;
		status = moek_checkpoint_logits(routed->checkpoint, routed->index,
		                                &input, products, error_out);
		for (uint64_t e = 0; status == MOEK_OK && e < experts; e++) {
			double bias = (double)products[count * experts + e];

			sums_out[e] += first == 0 ? fabs(bias) : 0;
			for (uint64_t k = 0; k < count; k++)
				sums_out[e] += fabs((double)products[k * experts + e] -
				                    bias);
		}
	}
	free(rows);
	free(products);
	return status;
}

/**
 * A tie: the expected experts come out when each logit is moved by no more than two
 * fp32 sums of it may differ, those expected up and those chosen instead down. This
 * holds for every kind of router, since it asks the router.
 */
static int32_t is_tie(const struct routed *routed, const struct expected *expected,
                      uint64_t token, const int32_t *expected_ids, int *tie_out,
                      struct moek_error *error_out)
{
	uint64_t experts = routed->router.experts, top_k = routed->router.top_k;
	const int32_t *ids = routed->ids + token * top_k;
	double *sums = alloc_array(experts, 1, sizeof(double));
	float *moved = alloc_array(experts, 1, sizeof(float));
	float *weights = alloc_array(top_k, 1, sizeof(float));
	int32_t *moved_ids = alloc_array(top_k, 1, sizeof(int32_t));
	int32_t status;

	if (sums == NULL || moved == NULL || weights == NULL || moved_ids == NULL) {
		status = tool_error(error_out, MOEK_NO_MEMORY, "no memory for a tie");
		goto done;
	}
	status = logit_magnitudes(routed, expected, token, sums, error_out);
	if (status != MOEK_OK)
		goto done;
	for (uint64_t e = 0; e < experts; e++) {
		double slack = 2 * (double)routed->hidden * unit_roundoff(MOEK_F32) *
		               sums[e];
		double logit = (double)routed->logits[token * experts + e];
		int mine = holds(ids, top_k, (int32_t)e);
		int theirs = holds(expected_ids, top_k, (int32_t)e);

		moved[e] = (float)(logit + slack * (theirs - mine));
	}
	status = moek_route(&routed->router, moved, 1, moved_ids, weights, error_out);
	if (status == MOEK_OK)
		*tie_out = same_set(moved_ids, expected_ids, top_k);
done:
	free(sums);
	free(moved);
	free(weights);
	free(moved_ids);
	return status;
}

static void count_wrong(struct routing *routing, uint64_t token)
{
	if (routing->wrong++ == 0)
		routing->wrong_token = token;
}

static int32_t compare_token(const struct routed *routed,
                             const struct expected *expected, uint64_t token,
                             const int32_t *ids, const float *weights,
                             struct routing *routing, struct moek_error *error_out)
{
	uint64_t top_k = routed->router.top_k, at = token * top_k;
	int32_t status;
	int tie = 0;

	if (same_set(routed->ids + at, ids + at, top_k)) {
		double difference = weight_difference(routed->ids + at,
		                                      routed->weights + at, ids + at,
		                                      weights + at, top_k);

		if (difference > routing->weight_error)
			routing->weight_error = difference;
		if (difference > WEIGHT_ALLOWANCE)
			count_wrong(routing, token);
		return MOEK_OK;
	}
	status = is_tie(routed, expected, token, ids + at, &tie, error_out);
	if (status != MOEK_OK)
		return status;
	if (tie)
		routing->ties++;
	else
		count_wrong(routing, token);
	return MOEK_OK;
}

/** The file's choice; where it has logits only, what the router makes of them. */
static int32_t expected_choice(const struct routed *routed,
                               const struct expected *expected, int32_t **ids_out,
                               float **weights_out, struct moek_error *error_out)
{
	uint64_t tokens = expected->tokens, top_k = routed->router.top_k;
	int32_t *ids = alloc_array(tokens, top_k, sizeof(int32_t));
	float *weights = alloc_array(tokens, top_k, sizeof(float));
	int32_t status = MOEK_OK;

	if (ids == NULL || weights == NULL) {
		status = tool_error(error_out, MOEK_NO_MEMORY, "no memory for routing");
	} else if (expected->ids != NULL) {
		memcpy(ids, expected->ids, tokens * top_k * sizeof(int32_t));
		memcpy(weights, expected->weights, tokens * top_k * sizeof(float));
	} else {
		status = moek_route(&routed->router, expected->logits, tokens, ids,
		                    weights, error_out);
	}
	if (status != MOEK_OK) {
		free(ids);
		free(weights);
		return status;
	}
	*ids_out = ids;
	*weights_out = weights;
	return MOEK_OK;
}

int32_t compare_routing(const struct routed *routed, const struct expected *expected,
                        struct routing *routing_out, struct moek_error *error_out)
{
	struct routing routing = { .tokens = expected->tokens };
	int32_t *ids;
	float *weights;
	int32_t status = expected_choice(routed, expected, &ids, &weights, error_out);

	if (status != MOEK_OK)
		return status;
	for (uint64_t token = 0; status == MOEK_OK && token < expected->tokens; token++)
		status = compare_token(routed, expected, token, ids, weights, &routing,
		                       error_out);
	if (status == MOEK_OK)
		*routing_out = routing;
	free(ids);
	free(weights);
	return status;
}
