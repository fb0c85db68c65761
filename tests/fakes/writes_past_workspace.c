/* SPDX-License-Identifier: MIT */
/* Slices more from its workspace than it asked for: one element after the end, or
 * before the start. */
#include "fake_layer.h"

static int32_t forward_after(void *layer, const struct moek_batch *batch)
{
	float *rows = batch->buffers[0];
	uint64_t elements = 16 * 2 *
	                    batch->input.columns; /* of the largest batch of the test */

	for (uint64_t i = 0; i <= elements; i++)
		rows[i] = 0;
	return fake_forward(layer, batch);
}

static int32_t forward_before(void *layer, const struct moek_batch *batch)
{
	((float *)batch->buffers[0])[-1] = 0;
	return fake_forward(layer, batch);
}

static const struct moek_experts after = { LAYER_EXPERTS("after"), LAYER_MADE,
	                                   .workspace_shapes = rows_shape,
	                                   .finalize = fake_reduced,
	                                   .forward = forward_after };
static const struct moek_experts before = { LAYER_EXPERTS("before"), LAYER_MADE,
	                                    .workspace_shapes = rows_shape,
	                                    .finalize = fake_reduced,
	                                    .forward = forward_before };
static const struct moek_experts *const experts[] = { &after, &before, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN(
	"writes_past_workspace", experts) };
