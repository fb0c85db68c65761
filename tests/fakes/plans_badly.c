/* SPDX-License-Identifier: MIT */
/* Plans that the core cannot follow: each backend one of them. */
#include "fake_layer.h"

static int32_t align_3(void *plugin, const struct moek_problem *problem,
                       uint64_t max_tokens, uint32_t workers,
                       struct moek_buffer *buffers_out, uint32_t capacity)
{
	int32_t count = rows_shape(plugin, problem, max_tokens, workers, buffers_out,
	                           capacity);

	buffers_out[0].align = 3;
	return count;
}

static int32_t too_many(void *plugin, const struct moek_problem *problem,
                        uint64_t max_tokens, uint32_t workers,
                        struct moek_buffer *buffers_out, uint32_t capacity)
{
	(void)plugin;
	(void)problem;
	(void)max_tokens;
	(void)workers;
	(void)buffers_out;
	return (int32_t)capacity + 1;
}

static int32_t too_large(void *plugin, const struct moek_problem *problem,
                         uint64_t max_tokens, uint32_t workers,
                         struct moek_buffer *buffers_out, uint32_t capacity)
{
	(void)plugin;
	(void)problem;
	(void)max_tokens;
	(void)workers;
	(void)buffers_out;
	(void)capacity;
	return MOEK_NO_MEMORY;
}

static uint32_t neither(void *plugin, const struct moek_problem *problem,
                        uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	return tokens > 3 ? 7 : MOEK_REDUCED;
}

static uint64_t prepared_nothing(void *plugin, const struct moek_problem *problem,
                                 uint64_t *align_out)
{
	(void)plugin;
	(void)problem;
	*align_out = 64;
	return 0;
}

static uint64_t prepared_oddly(void *plugin, const struct moek_problem *problem,
                               uint64_t *align_out)
{
	(void)plugin;
	(void)problem;
	*align_out = 48;
	return 64;
}

static uint64_t prepared_vast(void *plugin, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	(void)plugin;
	(void)problem;
	*align_out = 64;
	return UINT64_C(1) << 60;
}

#define PLANS(the_name, the_shapes, the_finalize, the_size)                            \
	{                                                                              \
		.struct_size = MOEK_EXPERTS_SIZE_1_0, .rank_class = MOEK_NATIVE,       \
		.name = (the_name), .understands = EVERYTHING,                         \
		.supports_device = fake_any_host, .supports_quant_scheme = fake_yes,   \
		.supports_activation = fake_yes, .supports_parallel = fake_yes,        \
		.supports_shape = fake_yes, .problem_size = fake_problem_size,         \
		.workspace_shapes = (the_shapes), .finalize = (the_finalize),          \
		.numerics = fake_numerics, .prepared_size = (the_size), LAYER_MADE,    \
		.forward = fake_forward, .destroy = fake_destroy                       \
	}
static const struct moek_experts table[] = {
	PLANS("align", align_3, fake_reduced, fake_prepared_size),
	PLANS("many", too_many, fake_reduced, fake_prepared_size),
	PLANS("large", too_large, fake_reduced, fake_prepared_size),
	PLANS("neither", fake_workspace_shapes, neither, fake_prepared_size),
	PLANS("nothing", fake_workspace_shapes, fake_reduced, prepared_nothing),
	PLANS("oddly", fake_workspace_shapes, fake_reduced, prepared_oddly),
	PLANS("vast", fake_workspace_shapes, fake_reduced, prepared_vast),
};
static const struct moek_experts *const experts[] = { &table[0], &table[1], &table[2],
	                                              &table[3], &table[4], &table[5],
	                                              &table[6], NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("plans_badly",
	                                                             experts) };
