/* SPDX-License-Identifier: MIT */
#include "forward.h"

#include <stdio.h>
#include <string.h>

int32_t gpu_launch(const struct gpu_context *context, void *kernel,
                   const struct gpu_grid *grid, void *arguments, void *stream)
{
	void *all[] = { arguments };

	if (grid->x == 0)
		return MOEK_OK;
	return gpu_status(context,
	                  context->driver->launch(
				  kernel, (unsigned int)grid->x, (unsigned int)grid->y,
				  1, grid->threads, 1, 1, 0, stream, all, NULL),
	                  "launching a kernel");
}

struct moek_buffer gpu_buffer(const char *name, uint32_t type, uint64_t elements,
                              uint32_t first_stage, uint32_t last_stage)
{
	const struct moek_buffer buffer = {
		.name = name,
		.type = type,
		.elements = elements,
		.align = 256,
		.first_stage = first_stage,
		.last_stage = last_stage,
	};

	return buffer;
}

uint64_t gpu_most_tiles(const struct moek_problem *problem, uint64_t slots)
{
	uint64_t local = problem->experts_local;

	return slots / GPU_TILE_ROWS + (slots < local ? slots : local);
}

static int32_t complain(const struct gpu_context *context, const char *plugin,
                        const char *what)
{
	char text[128];

	snprintf(text, sizeof(text), "%.40s: %s", plugin, what);
	context->host->log(context->host->self, 3, text);
	return MOEK_BAD_ARGUMENT;
}

int32_t gpu_check_batch(const struct gpu_context *context, const char *plugin,
                        const struct moek_problem *problem,
                        const struct moek_batch *batch)
{
	uint64_t in = batch->input.row_stride, out = batch->output.row_stride;

	if ((uintptr_t)batch->input.data % 16 != 0)
		return complain(context, plugin,
		                "input rows are not aligned to 16 bytes");
	if ((in != 0 && in != problem->hidden) || (out != 0 && out != problem->hidden))
		return complain(context, plugin,
		                "rows of input and output must be adjacent");
	return MOEK_OK;
}

void gpu_fill_routing(const struct moek_problem *problem,
                      const struct moek_batch *batch, struct gpu_routing *routing_out)
{
	memset(routing_out, 0, sizeof(*routing_out));
	routing_out->expert_map = batch->expert_map;
	routing_out->top_k = (unsigned int)problem->top_k;
	routing_out->experts = (unsigned int)problem->experts;
	routing_out->experts_local = (unsigned int)problem->experts_local;
	routing_out->weight_on_input = (problem->must_understand &
	                                MOEK_WEIGHT_ON_INPUT) != 0;
}

void gpu_fill_activation(const struct moek_problem *problem,
                         struct gpu_activation *activation_out)
{
	activation_out->function = problem->activation;
	activation_out->alpha = problem->alpha;
	activation_out->beta = problem->beta;
	activation_out->limit = problem->limit;
}

void gpu_fill_tokens(const struct moek_problem *problem, const struct moek_batch *batch,
                     uint64_t first, uint64_t tokens, struct gpu_routing *routing,
                     const void **input_out, void **output_out)
{
	const uint64_t in_bytes = problem->input_type == MOEK_F32 ? 4 : 2;
	const uint64_t out_bytes = problem->output_type == MOEK_F32 ? 4 : 2;

	routing->tokens = (unsigned int)tokens;
	routing->slots = (unsigned int)(tokens * problem->top_k);
	routing->topk_ids = batch->topk_ids + first * problem->top_k;
	if (batch->topk_weights != NULL)
		routing->topk_weights = batch->topk_weights + first * problem->top_k;
	*input_out = (const char *)batch->input.data +
	             first * problem->hidden * in_bytes;
	*output_out = (char *)batch->output.data + first * problem->hidden * out_bytes;
}
