/* SPDX-License-Identifier: MIT */
/* Leaves the sum to the core. "good": a slot is its input row times (1 + local expert);
 * what is not routed is left as it came. "forgets": one routed slot is not written.
 * "by_tokens": reduces one token, leaves the slots of more. */
#include "fake_layer.h"

static uint32_t slots(void *plugin, const struct moek_problem *problem, uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	(void)tokens;
	return MOEK_SLOTS;
}

/* One token is reduced, more are not. */
static uint32_t slots_if_many(void *plugin, const struct moek_problem *problem,
                              uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	return tokens == 1 ? MOEK_REDUCED : MOEK_SLOTS;
}

static void write_slots(const struct moek_batch *batch, uint64_t end)
{
	uint64_t top_k = batch->output.rows / batch->input.rows;

	for (uint64_t slot = 0; slot < end; slot++) {
		const float *from = fake_row(&batch->input, slot / top_k);

		if (batch->topk_ids[slot] < 0)
			continue;
		for (uint64_t c = 0; c < batch->output.columns; c++)
			fake_row(&batch->output,
			         slot)[c] = from[c] *
			                    (float)(1 + batch->topk_ids[slot]);
	}
}

static int32_t forward(void *layer, const struct moek_batch *batch)
{
	(void)layer;
	write_slots(batch, batch->output.rows);
	return MOEK_OK;
}

static int32_t forward_by_tokens(void *layer, const struct moek_batch *batch)
{
	return batch->input.rows == 1 ? fake_forward(layer, batch)
	                              : forward(layer, batch);
}

static int32_t forward_forgets(void *layer, const struct moek_batch *batch)
{
	(void)layer;
	write_slots(batch, batch->output.rows - 1);
	return MOEK_OK;
}

static const struct moek_experts good = { LAYER_EXPERTS("good"), LAYER_MADE,
	                                  .workspace_shapes = fake_workspace_shapes,
	                                  .finalize = slots, .forward = forward };
static const struct moek_experts forgets = { LAYER_EXPERTS("forgets"), LAYER_MADE,
	                                     .workspace_shapes = fake_workspace_shapes,
	                                     .finalize = slots,
	                                     .forward = forward_forgets };
static const struct moek_experts by_tokens = {
	LAYER_EXPERTS("by_tokens"), LAYER_MADE,
	.workspace_shapes = fake_workspace_shapes, .finalize = slots_if_many,
	.forward = forward_by_tokens
};
static const struct moek_experts *const experts[] = { &good, &forgets, &by_tokens,
	                                              NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("leaves_slots",
	                                                             experts) };
