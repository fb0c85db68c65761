/* SPDX-License-Identifier: MIT */
/* Expert layers of real models by name, and random weights for them. */
#ifndef MOEK_TOOLS_SHAPES_H
#define MOEK_TOOLS_SHAPES_H

#include "tools/tool.h"

/** What --shape, --scheme, --group, --activations and --type say, for one layer. Names
 * are not NUL-ended: they lie in a list with commas. */
struct shape_request {
	const char *shape, *scheme, *activations;
	int shape_length, scheme_length, activations_length;
	uint64_t group;
	uint32_t type;
};

/** The problem of @request; max_tokens is left to the caller. */
int32_t shape_problem(const struct shape_request *request,
                      struct moek_problem *problem_out, struct moek_error *error_out);

/** What tables call it. */
void shape_name(const struct shape_request *request, const struct moek_problem *problem,
                char shape_out[32], char scheme_out[32], char activations_out[16]);

/** Call @each for every shape, scheme and activations that @options name, up to the first
 * failure. */
int32_t shapes_each(const struct options *options,
                    int32_t (*each)(void *self, const struct shape_request *request,
                                    struct moek_error *error_out),
                    void *self, struct moek_error *error_out);

/** --tokens, or the usual ones. */
const struct list *shape_tokens(const struct options *options);

/** Bytes of one expert as a file holds it: codes, scales, biases. Sizes of shapes are
 * small enough not to overflow. */
uint64_t shape_expert_bytes(const struct moek_problem *problem);

/** One expert of random weights, which all experts of a layer have the values of. */
struct shape_weights {
	struct moek_expert expert;
	void *codes, *scales;
	float *biases;
};
int shape_weights_make(const struct moek_problem *problem,
                       struct shape_weights *weights_out);
void shape_weights_free(struct shape_weights *weights);
/** Gives that expert for each one. Borrows @weights. */
struct moek_source shape_source(struct shape_weights *weights);

#endif
