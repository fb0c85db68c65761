/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* Scores are computed in double and rounded once to fp32: every C library then gives
 * the same scores, and so the same ties. */

struct scratch {
	float *scores; /* [experts]: what a weight is made of */
	float *keys;   /* [experts]: what is chosen by; -inf: after all others */
	uint8_t *out;  /* [experts], then [groups]: 1: masked or chosen already */
};

static int32_t bad(struct moek_error *error_out, const char *name, uint64_t found,
                   const char *expected)
{
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_INVALID,
	                 "router: %s %llu, must be %s", name, (unsigned long long)found,
	                 expected);
}

static int32_t check_groups(const struct moek_router *r, struct moek_error *error_out)
{
	if (r->groups <= 1)
		return MOEK_OK;
	if (r->experts % r->groups != 0)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_INVALID,
		                 "router: experts %llu are not divisible by groups %u",
		                 (unsigned long long)r->experts, r->groups);
	if (r->groups_kept == 0 || r->groups_kept > r->groups)
		return bad(error_out, "groups_kept", r->groups_kept, "1 .. groups");
	if (r->top_k > r->experts / r->groups * r->groups_kept)
		return bad(error_out, "top_k", r->top_k,
		           "at most the experts of groups_kept");
	return MOEK_OK;
}

static int32_t check_factors(const struct moek_router *r, struct moek_error *error_out)
{
	if (!isfinite(r->scaling) || !isfinite(r->epsilon) || r->epsilon < 0 ||
	    !isfinite(r->jitter) || r->jitter < 0)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_INVALID,
			"router: scaling %g, epsilon %g, jitter %g: must be finite, "
			"epsilon and jitter >= 0",
			(double)r->scaling, (double)r->epsilon, (double)r->jitter);
	if (r->jitter > 0 && (r->top_k != 2 || r->scoring != MOEK_SOFTMAX ||
	                      r->groups > 1 || r->bias != NULL || r->renormalise != 0))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_INVALID,
		                 "router: jitter goes with softmax, top_k 2, no "
		                 "groups, no bias, "
		                 "no renormalise");
	return MOEK_OK;
}

static int32_t check_router(const struct moek_router *r, struct moek_error *error_out)
{
	int32_t status;

	if (r == NULL || r->struct_size < MOEK_ROUTER_SIZE_1_0)
		return bad(error_out, "struct_size", r == NULL ? 0 : r->struct_size,
		           "MOEK_ROUTER_SIZE_1_0");
	if (r->scoring < MOEK_SOFTMAX || r->scoring > MOEK_SQRT_SOFTPLUS)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_UNKNOWN_VALUE,
			"router: scoring %u is not known to moek " PACKAGE_VERSION,
			r->scoring);
	if (r->experts == 0 || r->experts > INT32_MAX)
		return bad(error_out, "experts", r->experts, "1 .. 2147483647");
	if (r->top_k == 0 || r->top_k > r->experts)
		return bad(error_out, "top_k", r->top_k, "1 .. experts");
	status = check_groups(r, error_out);
	return status != MOEK_OK ? status : check_factors(r, error_out);
}

/** Lowest index with the highest key among those not out; all may have -inf. */
static uint64_t best(const float *keys, const uint8_t *out, uint64_t count)
{
	uint64_t found = count;

	for (uint64_t i = 0; i < count; i++)
		if (!out[i] && (found == count || keys[i] > keys[found]))
			found = i;
	return found;
}

static float finite_or(float value, float otherwise)
{
	return isfinite(value) ? value : otherwise;
}

static void softmax(const float *logits, uint64_t count, float *scores_out)
{
	double most = -INFINITY, sum = 0;

	for (uint64_t i = 0; i < count; i++)
		if (isfinite(logits[i]) && (double)logits[i] > most)
			most = (double)logits[i];
	for (uint64_t i = 0; i < count; i++)
		if (isfinite(logits[i]))
			sum += exp((double)logits[i] - most);
	for (uint64_t i = 0; i < count; i++)
		scores_out[i] = isfinite(logits[i])
		                        ? (float)(exp((double)logits[i] - most) / sum)
		                        : 0.0f;
}

static float sigmoid(float logit)
{
	return finite_or((float)(1 / (1 + exp(-(double)logit))), 0);
}

static float sqrt_softplus(float logit)
{
	double l = (double)logit;

	/* log(1 + e^l) without overflow */
	return finite_or((float)sqrt(fmax(l, 0) + log1p(exp(-fabs(l)))), 0);
}

static void score(uint32_t scoring, const float *logits, uint64_t count,
                  float *scores_out)
{
	if (scoring == MOEK_SOFTMAX) {
		softmax(logits, count, scores_out);
		return;
	}
	for (uint64_t i = 0; i < count; i++)
		scores_out[i] = scoring == MOEK_SIGMOID ? sigmoid(logits[i])
		                                        : sqrt_softplus(logits[i]);
}

/** How good a group is: its best key, with a bias the sum of its two best. */
static float group_key(const float *keys, uint64_t count, int two)
{
	float first = -INFINITY, second = -INFINITY;

	for (uint64_t i = 0; i < count; i++) {
		if (keys[i] > first) {
			second = first;
			first = keys[i];
		} else if (keys[i] > second) {
			second = keys[i];
		}
	}
	return two && count > 1 ? first + second : first;
}

/** Put the experts of the groups that are not kept out. */
static void mask_groups(const struct moek_router *r, struct scratch *s)
{
	uint64_t size = r->experts / r->groups;
	uint8_t *kept = s->out + r->experts;

	memset(kept, 0, r->groups);
	for (uint32_t n = 0; n < r->groups_kept; n++) {
		uint32_t found = r->groups;
		float most = 0;

		for (uint32_t g = 0; g < r->groups; g++) {
			float key = group_key(s->keys + g * size, size,
			                      r->bias != NULL);

			if (!kept[g] && (found == r->groups || key > most)) {
				found = g;
				most = key;
			}
		}
		kept[found] = 1;
	}
	for (uint64_t e = 0; e < r->experts; e++)
		s->out[e] = !kept[e / size];
}

static void weigh(const struct moek_router *r, const int32_t *ids, float *weights)
{
	float scaling = r->scaling != 0 ? r->scaling : 1.0f;
	double divisor = 1, sum = (double)r->epsilon;

	if (r->renormalise != 0) {
		for (uint64_t j = 0; j < r->top_k; j++)
			sum += (double)weights[j];
		if (sum > 0)
			divisor = sum;
	}
	for (uint64_t j = 0; j < r->top_k; j++) {
		double factor = r->expert_scale != NULL
		                        ? (double)r->expert_scale[ids[j]]
		                        : 1;

		weights[j] = (float)((double)weights[j] / divisor * (double)scaling *
		                     factor);
	}
}

static void route_token(const struct moek_router *r, const float *logits,
                        struct scratch *s, int32_t *ids, float *weights)
{
	if (r->score_chosen == 0)
		score(r->scoring, logits, r->experts, s->scores);
	for (uint64_t e = 0; e < r->experts; e++) {
		float key = r->score_chosen != 0 ? logits[e] : s->scores[e];

		s->keys[e] = finite_or(r->bias != NULL ? key + r->bias[e] : key,
		                       -INFINITY);
	}
	memset(s->out, 0, r->experts);
	if (r->groups > 1)
		mask_groups(r, s);
	for (uint64_t j = 0; j < r->top_k; j++) {
		uint64_t e = best(s->keys, s->out, r->experts);

		s->out[e] = 1;
		ids[j] = (int32_t)e;
		weights[j] = r->score_chosen != 0 ? logits[e] : s->scores[e];
	}
	if (r->score_chosen != 0) {
		memcpy(s->keys, weights, r->top_k * sizeof(float));
		score(r->scoring, s->keys, r->top_k, weights);
	}
	weigh(r, ids, weights);
}

/** Sparsemixer: each pick is weighed by a softmax over those close enough to it. */
static void route_jitter(const struct moek_router *r, const float *logits,
                         struct scratch *s, int32_t *ids, float *weights)
{
	for (uint64_t e = 0; e < r->experts; e++)
		s->keys[e] = finite_or(logits[e], -INFINITY);
	memset(s->out, 0, r->experts);
	for (uint64_t j = 0; j < 2; j++) {
		uint64_t pick = best(s->keys, s->out, r->experts);
		double most = (double)s->keys[pick], sum = 0;

		for (uint64_t e = 0; e < r->experts; e++) {
			double l = (double)s->keys[e];

			if (s->out[e] || !isfinite(l))
				continue;
			if (l == most ||
			    (most - l) / fmax(fabs(l), most) <= 2 * (double)r->jitter)
				sum += exp(l - most);
		}
		s->out[pick] = 1;
		ids[j] = (int32_t)pick;
		weights[j] = sum > 0 ? (float)(1 / sum) : 0.0f;
	}
	weigh(r, ids, weights);
}

int32_t moek_route(const struct moek_router *router, const float *logits,
                   uint64_t tokens, int32_t *ids_out, float *weights_out,
                   struct moek_error *error_out)
{
	struct scratch scratch;
	int32_t status = check_router(router, error_out);
	float *memory;

	if (status != MOEK_OK || tokens == 0)
		return status;
	if (logits == NULL || ids_out == NULL || weights_out == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "router: logits, ids_out or weights_out is NULL");
	memory = malloc(router->experts * (2 * sizeof(float) + 1) + router->groups);
	if (memory == NULL)
		return moek_fail_memory(error_out, "scores of the router");
	scratch.scores = memory;
	scratch.keys = memory + router->experts;
	scratch.out = (uint8_t *)(memory + 2 * router->experts);
	for (uint64_t t = 0; t < tokens; t++) {
		const float *row = logits + t * router->experts;
		int32_t *ids = ids_out + t * router->top_k;
		float *weights = weights_out + t * router->top_k;

		if (router->jitter > 0)
			route_jitter(router, row, &scratch, ids, weights);
		else
			route_token(router, row, &scratch, ids, weights);
	}
	free(memory);
	return MOEK_OK;
}
