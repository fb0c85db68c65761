/* SPDX-License-Identifier: MIT */
/* forward() fails: for the device, as it may, or with a status that is not its to give.
 */
#include "fake_layer.h"

static int32_t forward_device(void *layer, const struct moek_batch *batch)
{
	(void)layer;
	(void)batch;
	return MOEK_DEVICE;
}

static int32_t forward_odd(void *layer, const struct moek_batch *batch)
{
	(void)layer;
	(void)batch;
	return 5;
}

static const struct moek_experts device = { LAYER_EXPERTS("device"), LAYER_MADE,
	                                    .workspace_shapes = fake_workspace_shapes,
	                                    .finalize = fake_reduced,
	                                    .forward = forward_device };
static const struct moek_experts odd = { LAYER_EXPERTS("odd"), LAYER_MADE,
	                                 .workspace_shapes = fake_workspace_shapes,
	                                 .finalize = fake_reduced,
	                                 .forward = forward_odd };
static const struct moek_experts *const experts[] = { &device, &odd, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("forward_fails",
	                                                             experts) };
