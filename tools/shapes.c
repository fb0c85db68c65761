/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/numbers.h"
#include "tools/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes from the config.json of each model. */
static const struct shape {
	const char *name;
	uint64_t experts, top_k, hidden, intermediate;
	uint32_t activation, bias;
} shapes[] = {
	{ "qwen3-30b-a3b", 128, 8, 2048, 768, MOEK_SILU, 0 },
	{ "qwen3-235b-a22b", 128, 8, 4096, 1536, MOEK_SILU, 0 },
	{ "gpt-oss-20b", 32, 4, 2880, 2880, MOEK_SWIGLU_OAI, 1 },
	{ "gpt-oss-120b", 128, 4, 2880, 2880, MOEK_SWIGLU_OAI, 1 },
	{ "mixtral-8x7b", 8, 2, 4096, 14336, MOEK_SILU, 0 },
	{ "olmoe-1b-7b", 64, 8, 2048, 1024, MOEK_SILU, 0 },
	{ "phi-3.5-moe", 16, 2, 4096, 6400, MOEK_SILU, 0 },
	{ "glm-4.5-air", 128, 8, 4096, 1408, MOEK_SILU, 0 },
	{ "deepseek-v2-lite", 64, 6, 2048, 1408, MOEK_SILU, 0 },
	{ "deepseek-v3", 256, 8, 7168, 2048, MOEK_SILU, 0 },
	{ "kimi-k2", 384, 8, 7168, 2048, MOEK_SILU, 0 },
	/* 32 of the 256 experts, and all choices fall on these */
	{ "deepseek-v3-slice", 32, 8, 7168, 2048, MOEK_SILU, 0 },
	/* no model's: for trying the command out */
	{ "tiny", 16, 4, 256, 128, MOEK_SILU, 0 },
};

static const struct named_scheme {
	const char *name;
	struct moek_scheme scheme; /* group_size 0: as --group says */
} schemes[] = {
	{ "int4", { .weight = MOEK_INT4, .scale = MOEK_BF16 } },
	{ "mxfp4", { .weight = MOEK_MXFP4, .scale = MOEK_E8M0, .group_size = 32 } },
	{ "bf16", { .weight = MOEK_BF16 } },
};

static int same(const char *name, const char *text, int length)
{
	return strlen(name) == (size_t)length &&
	       strncmp(name, text, (size_t)length) == 0;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int32_t unknown(struct moek_error *error_out, const char *option,
                       const char *text, int length, const char *known)
{
	return tool_error(error_out, MOEK_BAD_ARGUMENT,
	                  "--%s %.*s: not known; there are %s", option, length, text,
	                  known);
}

static int32_t unknown_shape(const struct shape_request *request,
                             struct moek_error *error_out)
{
	char known[512];
	size_t used = 0;

	for (size_t i = 0; i < COUNT(shapes); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
		                         i > 0 ? ", " : "", shapes[i].name);
	return unknown(error_out, "shape", request->shape, request->shape_length,
	               known);
}

int32_t shape_problem(const struct shape_request *request,
                      struct moek_problem *problem_out, struct moek_error *error_out)
{
	const struct shape *shape = shapes;
	const struct named_scheme *scheme = schemes;
	int int8 = same("int8", request->activations, request->activations_length);

	while (shape < shapes + COUNT(shapes) &&
	       !same(shape->name, request->shape, request->shape_length))
		shape++;
	if (shape == shapes + COUNT(shapes))
		return unknown_shape(request, error_out);
	while (scheme < schemes + COUNT(schemes) &&
	       !same(scheme->name, request->scheme, request->scheme_length))
		scheme++;
	if (scheme == schemes + COUNT(schemes))
		return unknown(error_out, "scheme", request->scheme,
		               request->scheme_length, "int4, mxfp4 and bf16");
	if (!int8 && !same("a16", request->activations, request->activations_length))
		return unknown(error_out, "activations", request->activations,
		               request->activations_length, "a16 and int8");
	*problem_out = (struct moek_problem){
		.struct_size = MOEK_INIT(PROBLEM),
		.activations = int8 ? MOEK_A8_INT8 : MOEK_A16,
		.activations_group = int8 ? 32 : 0,
		.experts = shape->experts,
		.experts_local = shape->experts,
		.top_k = shape->top_k,
		.hidden = shape->hidden,
		.intermediate = shape->intermediate,
		.input_type = request->type != 0 ? request->type : MOEK_BF16,
		.output_type = request->type != 0 ? request->type : MOEK_BF16,
		.activation = shape->activation,
		.gated = 1,
		.gate_up = scheme->scheme,
		.shards = 1,
	};
	if (shape->activation == MOEK_SWIGLU_OAI) {
		problem_out->alpha = 1.702f;
		problem_out->beta = 1;
		problem_out->limit = 7;
	}
	if (scheme->scheme.weight == MOEK_INT4)
		problem_out->gate_up.group_size = request->group;
	problem_out->gate_up.bias = shape->bias;
	problem_out->down = problem_out->gate_up;
	return MOEK_OK;
}

void shape_name(const struct shape_request *request, const struct moek_problem *problem,
                char shape_out[32], char scheme_out[32], char activations_out[16])
{
	snprintf(shape_out, 32, "%.*s", request->shape_length, request->shape);
	snprintf(activations_out, 16, "%.*s", request->activations_length,
	         request->activations);
	if (problem->gate_up.weight != MOEK_INT4)
		snprintf(scheme_out, 32, "%.*s", request->scheme_length,
		         request->scheme);
	else if (request->group == 0)
		strcpy(scheme_out, "int4 channel");
	else
		snprintf(scheme_out, 32, "int4 g%llu",
		         (unsigned long long)request->group);
}

/** The next name of a list with commas: 1, or 0 at its end. Begin with *at NULL. */
static int next_name(const char *list, const char **at, int *length)
{
	if (*at == NULL)
		*at = list;
	else if ((*at)[*length] == '\0')
		return 0;
	else
		*at += *length + 1;
	*length = (int)strcspn(*at, ",");
	return 1;
}

int32_t shapes_each(const struct options *options,
                    int32_t (*each)(void *self, const struct shape_request *request,
                                    struct moek_error *error_out),
                    void *self, struct moek_error *error_out)
{
	const char *all = options->shape != NULL ? options->shape : "qwen3-30b-a3b";
	const char *schemes_of = options->scheme != NULL ? options->scheme : "int4";
	const char *inputs = options->activations != NULL ? options->activations
	                                                  : "a16";
	struct shape_request r = { .group = options->group, .type = options->type };
	int32_t status = MOEK_OK;

	for (r.shape = NULL; next_name(all, &r.shape, &r.shape_length);)
		for (r.scheme = NULL;
		     next_name(schemes_of, &r.scheme, &r.scheme_length);)
			for (r.activations = NULL; next_name(inputs, &r.activations,
			                                     &r.activations_length);) {
				status = each(self, &r, error_out);
				if (status != MOEK_OK)
					return status;
			}
	return status;
}

const struct list *shape_tokens(const struct options *options)
{
	static const struct list usual = { 3, { 1, 16, 256 } };

	return options->token_list.count > 0 ? &options->token_list : &usual;
}

/* ---- weights ---- */

static uint64_t code_bytes(const struct moek_scheme *scheme, uint64_t rows,
                           uint64_t columns)
{
	return rows * (scheme->weight == MOEK_BF16 ? 2 * columns : (columns + 1) / 2);
}

static uint64_t group_count(const struct moek_scheme *scheme, uint64_t columns)
{
	uint64_t size = scheme->group_size > 0 ? scheme->group_size : columns;

	return scheme->scale == 0 ? 0 : (columns + size - 1) / size;
}

static uint64_t scale_bytes(const struct moek_scheme *scheme, uint64_t rows,
                            uint64_t columns)
{
	return rows * group_count(scheme, columns) *
	       (scheme->scale == MOEK_E8M0 ? 1 : 2);
}

uint64_t shape_expert_bytes(const struct moek_problem *problem)
{
	const struct moek_scheme *scheme = &problem->gate_up;
	uint64_t hidden = problem->hidden, width = problem->intermediate;

	return code_bytes(scheme, 2 * width, hidden) +
	       code_bytes(scheme, hidden, width) +
	       scale_bytes(scheme, 2 * width, hidden) +
	       scale_bytes(scheme, hidden, width) +
	       (scheme->bias ? (2 * width + hidden) * sizeof(float) : 0);
}

/** Small numbers of either sign; none is special. */
static void fill_codes(const struct moek_scheme *scheme, void *codes, uint64_t bytes)
{
	uint64_t seed = 1, bits = 0;

	for (uint64_t i = 0; i < bytes / 2; i++) {
		uint16_t *code = (uint16_t *)codes + i;

		if (i % 4 == 0)
			bits = next_random(&seed);
		*code = (uint16_t)(bits >> i % 4 * 16);
		if (scheme->weight == MOEK_BF16) /* 2^-8 to 2^-4 */
			*code = (uint16_t)((*code & 0x81ffu) + 0x3b80u);
	}
}

static void fill_scales(const struct moek_scheme *scheme, void *scales, uint64_t bytes)
{
	uint64_t seed = 2;

	for (uint64_t i = 0; i < bytes; i++)
		if (scheme->scale == MOEK_E8M0)
			((uint8_t *)scales)[i] = (uint8_t)(119 +
			                                   next_random(&seed) % 2);
		else if (i % 2 == 0) /* bf16, 2^-9 to 2^-7 */
			((uint16_t *)scales)[i / 2] = (uint16_t)(0x3b00 +
			                                         next_random(&seed) %
			                                                 256);
}

static struct moek_matrix matrix_at(const struct moek_problem *problem, uint64_t rows,
                                    uint64_t columns,
                                    const struct shape_weights *weights)
{
	const struct moek_scheme *scheme = &problem->gate_up;

	return (struct moek_matrix){
		.struct_size = MOEK_MATRIX_SIZE_1_0,
		.weight = scheme->weight,
		.rows = rows,
		.columns = columns,
		.group_size = scheme->group_size > 0 ? scheme->group_size : columns,
		.codes = weights->codes,
		.scales = scheme->scale != 0 ? weights->scales : NULL,
		.bias = scheme->bias ? weights->biases : NULL,
		.scale = scheme->scale,
	};
}

int shape_weights_make(const struct moek_problem *problem,
                       struct shape_weights *weights_out)
{
	const struct moek_scheme *scheme = &problem->gate_up;
	uint64_t hidden = problem->hidden, width = problem->intermediate;
	/* the three matrices have equally many codes, but not scales: channels */
	uint64_t codes = code_bytes(scheme, width, hidden) + hidden + width;
	uint64_t scales = scale_bytes(scheme, width, hidden) +
	                  scale_bytes(scheme, hidden, width);

	memset(weights_out, 0, sizeof(*weights_out));
	weights_out->codes = malloc(codes);
	weights_out->scales = malloc(scales + 1);
	weights_out->biases = alloc_array(hidden + width, 1, sizeof(float));
	if (weights_out->codes == NULL || weights_out->scales == NULL ||
	    weights_out->biases == NULL) {
		shape_weights_free(weights_out);
		return 0;
	}
	fill_codes(scheme, weights_out->codes, codes);
	fill_scales(scheme, weights_out->scales, scales);
	weights_out->expert.gate = matrix_at(problem, width, hidden, weights_out);
	weights_out->expert.up = weights_out->expert.gate;
	weights_out->expert.down = matrix_at(problem, hidden, width, weights_out);
	return 1;
}

void shape_weights_free(struct shape_weights *weights)
{
	free(weights->codes);
	free(weights->scales);
	free(weights->biases);
	memset(weights, 0, sizeof(*weights));
}

static int32_t give_expert(void *self, uint64_t expert, void *scratch,
                           struct moek_expert *expert_out, struct moek_error *error_out)
{
	const struct shape_weights *weights = self;

	(void)expert;
	(void)scratch;
	(void)error_out;
	*expert_out = weights->expert;
	return MOEK_OK;
}

struct moek_source shape_source(struct shape_weights *weights)
{
	return (struct moek_source){ .struct_size = MOEK_INIT(SOURCE),
		                     .self = weights,
		                     .expert = give_expert };
}
