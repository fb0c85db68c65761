/* SPDX-License-Identifier: MIT */
/* Outputs and routing beside what is expected, each with an allowance that is derived.
 */
#ifndef MOEK_TOOLS_COMPARE_H
#define MOEK_TOOLS_COMPARE_H

#include "tools/expected.h"

/** How far an output y may be from what is expected: per_magnitude * S + per_output *
 * |y|
 *  + least. See moek run --help. */
struct allowance {
	double per_magnitude, per_output, least;
};

/** @file_type: of the input as the file has it; the problem's, when it was not rounded.
 */
struct allowance derive_allowance(const struct moek_problem *problem,
                                  const struct moek_numerics *numerics,
                                  uint32_t file_type);

/** The worst element is the one with the largest share of its allowance. */
struct comparison {
	uint64_t wrong; /* elements beyond their allowance */
	uint64_t row, column;
	double got, expected, error, allowance;
	double share; /* error / allowance; infinite where a NaN is on one side only */
};

/** @output [tokens][hidden] of @type, @expected and @magnitudes in fp32. */
struct comparison compare_outputs(const struct allowance *allowance,
                                  const struct moek_rows *output, const float *expected,
                                  const float *magnitudes);

struct routing {
	uint64_t tokens;
	uint64_t ties;        /* other experts, but as close as fp32 sums can tell */
	uint64_t wrong;       /* other experts, or a weight off by more than 1e-6 */
	uint64_t wrong_token; /* the first of them */
	double weight_error;  /* the largest, over tokens with the same experts */
};

/** What moek's own routing needs, and what came of it. */
struct routed {
	struct moek_checkpoint *checkpoint;
	uint64_t index; /* of the layer */
	uint64_t hidden;
	struct moek_router router;
	const float *logits;  /* [tokens][experts] */
	const int32_t *ids;   /* [tokens][top_k] */
	const float *weights; /* [tokens][top_k] */
};

/** moek's routing of expected->input beside the file's. Needs expected->logits. */
int32_t compare_routing(const struct routed *routed, const struct expected *expected,
                        struct routing *routing_out, struct moek_error *error_out);

#endif
