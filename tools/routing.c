/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/routing.h"

#include "tools/numbers.h"

#include <stdlib.h>
#include <string.h>

int32_t routing_read(const struct options *options, int *skewed_out,
                     struct moek_error *error_out)
{
	const char *routing = options->routing;

	*skewed_out = routing != NULL && strcmp(routing, "skewed") == 0;
	if (routing != NULL && !*skewed_out && strcmp(routing, "uniform") != 0)
		return tool_error(error_out, MOEK_BAD_ARGUMENT,
		                  "--routing %s: not uniform or skewed", routing);
	return MOEK_OK;
}

int routing_make(const struct moek_problem *problem, int skewed, uint64_t seed,
                 struct routing *routing_out)
{
	double sum = 0;

	*routing_out = (struct routing){
		.experts = problem->experts,
		.top_k = problem->top_k,
		.random = seed,
		.skewed = skewed,
		.order = alloc_array(problem->experts, 1, sizeof(int32_t)),
		.cumulative = alloc_array(problem->experts, 1, sizeof(double)),
		.hit = alloc_array(problem->experts, 1, 1),
	};
	if (routing_out->order == NULL || routing_out->cumulative == NULL ||
	    routing_out->hit == NULL)
		return 0;
	for (uint64_t i = 0; i < problem->experts; i++) {
		routing_out->order[i] = (int32_t)i;
		routing_out->cumulative[i] = sum += 1.0 / (double)(i + 1);
	}
	return 1;
}

void routing_free(struct routing *routing)
{
	free(routing->order);
	free(routing->cumulative);
	free(routing->hit);
}

/** A number from 0 to below 1. */
static double random_share(struct routing *routing)
{
	return (double)(next_random(&routing->random) >> 11) * 0x1p-53;
}

static int32_t pick(struct routing *routing)
{
	uint64_t low = 0, high = routing->experts - 1;
	double at;

	if (!routing->skewed)
		return (int32_t)(next_random(&routing->random) % routing->experts);
	at = random_share(routing) * routing->cumulative[high];
	while (low < high) {
		uint64_t middle = (low + high) / 2;

		if (routing->cumulative[middle] > at)
			high = middle;
		else
			low = middle + 1;
	}
	return routing->order[low];
}

static void shuffle(struct routing *routing)
{
	for (uint64_t i = routing->experts; i > 1; i--) {
		uint64_t other = next_random(&routing->random) % i;
		int32_t expert = routing->order[other];

		routing->order[other] = routing->order[i - 1];
		routing->order[i - 1] = expert;
	}
}

uint64_t routing_draw(struct routing *routing, uint64_t tokens, int32_t *ids_out)
{
	uint64_t top_k = routing->top_k, count = 0;

	memset(routing->hit, 0, routing->experts);
	shuffle(routing);
	for (uint64_t slot = 0; slot < tokens * top_k; slot++) {
		int32_t *row = ids_out + slot / top_k * top_k;
		uint64_t k = slot % top_k, other;

		do {
			row[k] = pick(routing);
			for (other = 0; other < k && row[other] != row[k]; other++)
				;
		} while (other < k);
		count += !routing->hit[row[k]];
		routing->hit[row[k]] = 1;
	}
	return count;
}
