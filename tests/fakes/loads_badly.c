/* SPDX-License-Identifier: MIT */
/* Says yes five times, then fails while the layer is made: for memory or device, as it
 * may, or by a late refusal, as it may not. */
#include "fake_layer.h"

#include <stdlib.h>

static int32_t create_refuses(void *plugin, const struct moek_device *device,
                              const struct moek_problem *problem, void *weights,
                              void **layer_out)
{
	(void)plugin;
	(void)device;
	(void)problem;
	(void)weights;
	(void)layer_out;
	return MOEK_REFUSED;
}

static int32_t create_own(void *plugin, const struct moek_device *device,
                          const struct moek_problem *problem, void *weights,
                          void **layer_out)
{
	(void)plugin;
	(void)device;
	(void)problem;
	(void)weights;
	/* not in the core's memory: a leak checker sees a destroy() that is not called
	 */
	*layer_out = malloc(16);
	return *layer_out != NULL ? MOEK_OK : MOEK_NO_MEMORY;
}

static void destroy_own(void *layer)
{
	free(layer);
}

static int32_t load_no_memory(void *layer, uint64_t local,
                              const struct moek_expert *expert)
{
	(void)layer;
	(void)expert;
	return local == 2 ? MOEK_NO_MEMORY : MOEK_OK;
}

static int32_t load_odd(void *layer, uint64_t local, const struct moek_expert *expert)
{
	(void)layer;
	(void)expert;
	return local == 2 ? MOEK_BAD_FILE : MOEK_OK;
}

static int32_t finish_device(void *layer)
{
	(void)layer;
	return MOEK_DEVICE;
}

#define LOADS(the_name, the_create, the_load, the_finish)                              \
	{                                                                              \
		.struct_size = MOEK_EXPERTS_SIZE_1_0, .rank_class = MOEK_NATIVE,       \
		.name = (the_name), .understands = EVERYTHING,                         \
		.supports_device = fake_any_host, .supports_quant_scheme = fake_yes,   \
		.supports_activation = fake_yes, .supports_parallel = fake_yes,        \
		.supports_shape = fake_yes, .problem_size = fake_problem_size,         \
		LAYER_RUN, .numerics = fake_numerics,                                  \
		.prepared_size = fake_prepared_size, .create = (the_create),           \
		.load_expert = (the_load), .finish = (the_finish),                     \
		.destroy = destroy_own                                                 \
	}
static const struct moek_experts table[] = {
	LOADS("refuses", create_refuses, fake_load_expert, fake_finish),
	LOADS("memory", create_own, load_no_memory, fake_finish),
	LOADS("odd", create_own, load_odd, fake_finish),
	LOADS("finish", create_own, fake_load_expert, finish_device),
};
static const struct moek_experts *const experts[] = { &table[0], &table[1], &table[2],
	                                              &table[3], NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("loads_badly",
	                                                             experts) };
