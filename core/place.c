/* SPDX-License-Identifier: MIT */
/* Expert parallel: which rank holds which expert. Knows nothing of how ranks speak. */
#include "config.h"

#include <moek/moek.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

struct placer {
	const struct moek_placing *placing;
	uint64_t most;      /* experts of one rank */
	uint64_t *replicas; /* [experts] */
	uint64_t *order;    /* [experts] */
	uint64_t *held;     /* [ranks]: how many experts */
	double *loads;      /* [ranks] */
	uint8_t *placement;
};

static int32_t check(const struct moek_placing *p, struct moek_error *error_out)
{
	if (p == NULL || p->struct_size < MOEK_PLACING_SIZE_1_0 || p->experts == 0 ||
	    p->ranks == 0 || p->experts > INT32_MAX || p->ranks > INT32_MAX)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
		                 "place: no experts, no ranks, or too many");
	if (p->most != 0 && (p->experts - 1) / p->ranks >= p->most)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
			"place: %llu experts do not fit %llu ranks of %llu, it "
			"takes %llu",
			(unsigned long long)p->experts, (unsigned long long)p->ranks,
			(unsigned long long)p->most,
			(unsigned long long)((p->experts - 1) / p->ranks + 1));
	if (p->most != 0 && p->loads == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
		                 "place: most is given and loads are not");
	for (uint64_t e = 0; p->loads != NULL && e < p->experts; e++)
		if (!(p->loads[e] >= 0) || isinf(p->loads[e]))
			return moek_fail(
				error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
				"place: the load of expert %llu is %g, must be 0 "
				"or more",
				(unsigned long long)e, p->loads[e]);
	return MOEK_OK;
}

/** The first experts % ranks ranks hold one more. */
static void deal_out(const struct moek_placing *p, uint8_t *placement)
{
	uint64_t each = p->experts / p->ranks, more = p->experts % p->ranks, e = 0;

	for (uint64_t r = 0; r < p->ranks && !p->strided; r++)
		for (uint64_t n = 0; n < each + (r < more); n++)
			placement[r * p->experts + e++] = 1;
	for (e = 0; e < p->experts && p->strided; e++)
		placement[e % p->ranks * p->experts + e] = 1;
}

static double share_of(const struct placer *placer, uint64_t expert)
{
	return placer->placing->loads[expert] / (double)placer->replicas[expert];
}

/** Free places go to whatever expert has most load on each of its replicas. */
static void replicate(struct placer *placer)
{
	uint64_t experts = placer->placing->experts, ranks = placer->placing->ranks;
	int overflow = 0;
	uint64_t places = moek_multiply(placer->most, ranks, &overflow);

	for (uint64_t e = 0; e < experts; e++)
		placer->replicas[e] = 1;
	for (uint64_t spare = places - experts; spare != 0 && !overflow; spare--) {
		uint64_t hottest = experts;

		for (uint64_t e = 0; e < experts; e++)
			if (placer->replicas[e] < ranks && share_of(placer, e) > 0 &&
			    (hottest == experts ||
			     share_of(placer, e) > share_of(placer, hottest)))
				hottest = e;
		if (hottest == experts)
			return;
		placer->replicas[hottest]++;
	}
}

/** Heaviest replicas first; of the same weight, the lower expert. */
static void sort_experts(struct placer *placer)
{
	for (uint64_t e = 0; e < placer->placing->experts; e++) {
		uint64_t at = e;

		for (; at > 0 &&
		       share_of(placer, placer->order[at - 1]) < share_of(placer, e);
		     at--)
			placer->order[at] = placer->order[at - 1];
		placer->order[at] = e;
	}
}

/** The rank with the least load that has room and not this expert; ranks: there is
 * none. */
static uint64_t least_loaded(const struct placer *placer, uint64_t expert)
{
	const struct moek_placing *p = placer->placing;
	uint64_t best = p->ranks;

	for (uint64_t r = 0; r < p->ranks; r++)
		if (placer->held[r] < placer->most &&
		    !placer->placement[r * p->experts + expert] &&
		    (best == p->ranks || placer->loads[r] < placer->loads[best] ||
		     (placer->loads[r] == placer->loads[best] &&
		      placer->held[r] < placer->held[best])))
			best = r;
	return best;
}

static void balance(struct placer *placer)
{
	uint64_t experts = placer->placing->experts;

	replicate(placer);
	sort_experts(placer);
	for (uint64_t i = 0; i < experts; i++) {
		uint64_t e = placer->order[i], wanted = placer->replicas[e], had = 0;

		for (; had < wanted; had++) {
			uint64_t r = least_loaded(placer, e);

			/* ranks with room left all have it: it has one replica less */
			if (r == placer->placing->ranks)
				break;
			placer->placement[r * experts + e] = 1;
			placer->held[r]++;
			placer->loads[r] += share_of(placer, e);
		}
	}
}

static void sum_shares(const struct moek_placing *p, const uint8_t *placement,
                       double *shares_out)
{
	double all = 0;

	memset(shares_out, 0, p->ranks * sizeof(*shares_out));
	for (uint64_t e = 0; e < p->experts; e++) {
		double load = p->loads != NULL ? p->loads[e] : 1;
		uint64_t replicas = 0;

		for (uint64_t r = 0; r < p->ranks; r++)
			replicas += placement[r * p->experts + e];
		for (uint64_t r = 0; r < p->ranks; r++)
			if (placement[r * p->experts + e])
				shares_out[r] += load / (double)replicas;
		all += load;
	}
	for (uint64_t r = 0; r < p->ranks && all > 0; r++)
		shares_out[r] /= all;
}

static int32_t place_by_load(const struct moek_placing *p, uint8_t *placement,
                             struct moek_error *error_out)
{
	struct placer placer = {
		.placing = p,
		.most = p->most,
		.replicas = calloc(p->experts, sizeof(uint64_t)),
		.order = calloc(p->experts, sizeof(uint64_t)),
		.held = calloc(p->ranks, sizeof(uint64_t)),
		.loads = calloc(p->ranks, sizeof(double)),
		.placement = placement,
	};
	int32_t status = MOEK_OK;

	if (placer.replicas == NULL || placer.order == NULL || placer.held == NULL ||
	    placer.loads == NULL)
		status = moek_fail_memory(error_out, "placing experts");
	else
		balance(&placer);
	free(placer.replicas);
	free(placer.order);
	free(placer.held);
	free(placer.loads);
	return status;
}

int32_t moek_place(const struct moek_placing *placing, uint8_t *placement_out,
                   double *shares_out, struct moek_error *error_out)
{
	int32_t status = check(placing, error_out);

	if (status == MOEK_OK && placement_out == NULL)
		status = moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                   "place: placement_out is NULL");
	if (status != MOEK_OK)
		return status;
	memset(placement_out, 0, placing->ranks * placing->experts);
	if (placing->most == 0)
		deal_out(placing, placement_out);
	else
		status = place_by_load(placing, placement_out, error_out);
	if (status == MOEK_OK && shares_out != NULL)
		sum_shares(placing, placement_out, shares_out);
	return status;
}
