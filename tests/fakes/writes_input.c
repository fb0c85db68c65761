/* SPDX-License-Identifier: MIT */
/* Writes what is not its own: the input, the router's ids or weights, the space between
 * output rows. */
#include "fake_layer.h"

static int32_t forward_input(void *layer, const struct moek_batch *batch)
{
	fake_row(&batch->input, batch->input.rows - 1)[0] += 1;
	return fake_forward(layer, batch);
}

static int32_t forward_weights(void *layer, const struct moek_batch *batch)
{
	((float *)(uintptr_t)batch->topk_weights)[1] *= 2;
	return fake_forward(layer, batch);
}

static int32_t forward_gap(void *layer, const struct moek_batch *batch)
{
	int32_t status = fake_forward(layer, batch);

	fake_row(&batch->output, 0)[batch->output.columns] += 1;
	return status;
}

#define WRITES(what)                                                                   \
	{                                                                              \
		LAYER_EXPERTS(#what), LAYER_MADE,                                      \
			.workspace_shapes = fake_workspace_shapes,                     \
			.finalize = fake_reduced, .forward = forward_##what            \
	}
static const struct moek_experts input = WRITES(input);
static const struct moek_experts weights = WRITES(weights);
static const struct moek_experts gap = WRITES(gap);
static const struct moek_experts *const experts[] = { &input, &weights, &gap, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("writes_input",
	                                                             experts) };
