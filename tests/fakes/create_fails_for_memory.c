/* SPDX-License-Identifier: MIT */
/* Says yes five times; then there is no memory for the layer. */
#include "fake.h"

static int32_t create(void *plugin, const struct moek_device *device,
                      const struct moek_problem *problem, void *weights,
                      void **layer_out)
{
	(void)plugin;
	(void)device;
	(void)problem;
	(void)weights;
	(void)layer_out;
	return MOEK_NO_MEMORY;
}

static const struct moek_experts any = {
	FAKE_EXPERTS_BUT_CREATE("any", MOEK_NATIVE),
	.create = create,
};
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("create_fails_for_memory", experts),
};
