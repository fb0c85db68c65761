/* SPDX-License-Identifier: MIT */
/* Adds to workspace that it did not ask to be zeroed. */
#include "fake_layer.h"

static int32_t forward(void *layer, const struct moek_batch *batch)
{
	const float *rows = batch->buffers[0];

	(void)layer;
	for (uint64_t row = 0; row < batch->output.rows; row++)
		fill_row(&batch->output, row, rows[row] + 1);
	return MOEK_OK;
}

static const struct moek_experts any = { LAYER_EXPERTS("any"), LAYER_MADE,
	                                 .workspace_shapes = rows_shape,
	                                 .finalize = fake_reduced, .forward = forward };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("reads_unzeroed",
	                                                             experts) };
