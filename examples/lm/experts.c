/* SPDX-License-Identifier: MIT */
/* All that a host says to libmoek about expert layers. Once per layer: problem, choose,
 * source, create. Once per model: a workspace. Per forward: logits, route, forward. */
#include "lm.h"

#include <moek/formats.h>

#include <stdlib.h>

/* The checkpoint may be closed once all layers are made; this host keeps it for the
 * router, whose weights are in its files. */
static struct moek_layer *make_layer(struct moek_registry *registry,
                                     struct lm_experts *experts, size_t index,
                                     const struct lm_experts_options *options)
{
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE) };
	struct moek_choice *choice = NULL;
	struct moek_layer *layer = NULL;
	struct moek_error error;

	moek_checkpoint_layer(experts->checkpoint, index, &info);
	moek_checkpoint_problem(experts->checkpoint, index, &problem);
	problem.max_tokens = options->max_tokens;
	problem.input_type = experts->type;
	problem.output_type = experts->type;
	if (options->change != NULL)
		lm_must(moek_problem_parse(options->change, &problem, &error), &error);

	lm_must(moek_choose(registry, &problem, options->request, info.name, &choice,
	                    &error),
	        &error);
	lm_must(moek_checkpoint_source(experts->checkpoint, index, &source, &error),
	        &error);
	lm_must(moek_layer_create(choice, &source, NULL, &layer, &error), &error);
	moek_source_close(&source);
	moek_choice_destroy(choice); /* the layer keeps its own */
	return layer;
}

struct lm_experts *lm_experts_open(struct moek_registry *registry,
                                   struct moek_checkpoint *checkpoint,
                                   const struct lm_experts_options *options)
{
	struct lm_experts *experts = lm_allocate(1, sizeof(*experts));
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_error error;
	size_t rows = options->max_tokens;

	experts->checkpoint = checkpoint;
	experts->layers = moek_checkpoint_layers(checkpoint);
	experts->max_tokens = rows;
	experts->type = options->type;
	experts->layer = lm_allocate(experts->layers, sizeof(struct moek_layer *));
	experts->routers = lm_allocate(experts->layers, sizeof(struct moek_router));
	for (size_t i = 0; i < experts->layers; i++) {
		experts->layer[i] = make_layer(registry, experts, i, options);
		experts->routers[i].struct_size = MOEK_ROUTER_SIZE_1_0;
		moek_checkpoint_router(checkpoint, i, &experts->routers[i]);
	}
	lm_must(moek_workspace_create(experts->layer, experts->layers, NULL, 0,
	                              &experts->workspace, &error),
	        &error);

	moek_checkpoint_problem(checkpoint, 0, &problem);
	experts->hidden = problem.hidden;
	experts->logits = lm_allocate(rows, problem.experts * sizeof(float));
	experts->ids = lm_allocate(rows, problem.top_k * sizeof(int32_t));
	experts->weights = lm_allocate(rows, problem.top_k * sizeof(float));
	experts->in = lm_allocate(rows, problem.hidden * sizeof(float));
	experts->out = lm_allocate(rows, problem.hidden * sizeof(float));
	return experts;
}

void lm_experts_close(struct lm_experts *experts)
{
	moek_workspace_destroy(experts->workspace);
	for (size_t i = 0; i < experts->layers; i++)
		moek_layer_destroy(experts->layer[i]);
	free(experts->layer);
	free(experts->routers);
	free(experts->ids);
	free(experts->logits);
	free(experts->weights);
	free(experts->in);
	free(experts->out);
	free(experts);
}

const char *lm_experts_backend(const struct lm_experts *experts)
{
	return moek_choice_winner(moek_layer_choice(experts->layer[0]));
}

/* This host's own stream is fp32; the experts may take less. */
static void round_rows(const float *in, size_t count, uint16_t *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = moek_bf16_from_f32(in[i]);
}

static void widen_rows(const uint16_t *in, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = moek_bf16_to_f32(in[i]);
}

void lm_experts_run(struct lm_experts *experts, size_t index, const float *in,
                    size_t count, float *out)
{
	int is_bf16 = experts->type == MOEK_BF16;
	struct moek_rows rows = {
		(void *)(uintptr_t)in, count, experts->hidden, 0, MOEK_F32, 0
	};
	struct moek_forward forward = { .struct_size = MOEK_INIT(FORWARD) };
	struct moek_error error;
	double begun;

	lm_must(moek_checkpoint_logits(experts->checkpoint, index, &rows,
	                               experts->logits, &error),
	        &error);
	lm_must(moek_route(&experts->routers[index], experts->logits, count,
	                   experts->ids, experts->weights, &error),
	        &error);

	forward.input = rows;
	forward.output = rows;
	forward.output.data = out;
	if (is_bf16) {
		round_rows(in, count * experts->hidden, experts->in);
		forward.input.data = experts->in;
		forward.output.data = experts->out;
		forward.input.type = forward.output.type = MOEK_BF16;
	}
	forward.topk_ids = experts->ids;
	forward.topk_weights = experts->weights;
	forward.workspace = experts->workspace;
	begun = lm_seconds();
	lm_must(moek_layer_forward(experts->layer[index], &forward, &error), &error);
	experts->seconds += lm_seconds() - begun;
	if (is_bf16)
		widen_rows(experts->out, count * experts->hidden, out);
}
