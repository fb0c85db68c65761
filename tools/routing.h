/* SPDX-License-Identifier: MIT */
/* Experts drawn at random for the tokens of a benchmark. */
#ifndef MOEK_TOOLS_ROUTING_H
#define MOEK_TOOLS_ROUTING_H

#include "tools/tool.h"

struct routing {
	uint64_t experts, top_k, random; /* `random`: state of next_random() */
	int skewed;
	int32_t *order;     /* [experts]: which expert is the n-th */
	double *cumulative; /* [experts]: of skewed routing */
	uint8_t *hit;       /* [experts] */
};

/** What --routing says. */
int32_t routing_read(const struct options *options, int *skewed_out,
                     struct moek_error *error_out);

/** 1, or 0: no memory. routing_free() in any case. */
int routing_make(const struct moek_problem *problem, int skewed, uint64_t seed,
                 struct routing *routing_out);
void routing_free(struct routing *routing);

/** New experts for each token, no one twice: @ids_out[tokens][top_k]. How many
 * different ones there are. */
uint64_t routing_draw(struct routing *routing, uint64_t tokens, int32_t *ids_out);

#endif
