/* SPDX-License-Identifier: MIT */
/* What the fakes share: a host backend that says yes to everything and does nothing.
 * Each fake changes one thing of it. */
#ifndef MOEK_TEST_FAKE_H
#define MOEK_TEST_FAKE_H

#include <moek/experts.h>

#include <string.h>

#define EVERYTHING (~UINT64_C(0))

static inline int32_t fake_any_host(void *plugin, const struct moek_device *device,
                                    struct moek_verdict *no_out)
{
	(void)plugin;
	return device->kind == MOEK_HOST
	               ? 1
	               : moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
}

static inline int32_t fake_yes(void *plugin, const struct moek_problem *problem,
                               struct moek_verdict *no_out)
{
	(void)plugin;
	(void)problem;
	(void)no_out;
	return 1;
}

static inline void fake_problem_size(void *plugin, const struct moek_problem *problem,
                                     struct moek_sizes *sizes_out)
{
	(void)plugin;
	sizes_out->struct_size = MOEK_SIZES_SIZE_1_0;
	sizes_out->hidden = problem->hidden;
	sizes_out->intermediate = problem->intermediate;
	sizes_out->gate_up_columns = (problem->gated ? 2 : 1) * problem->intermediate;
}

static inline int32_t fake_workspace_shapes(void *plugin,
                                            const struct moek_problem *problem,
                                            uint64_t max_tokens, uint32_t workers,
                                            struct moek_buffer *buffers_out,
                                            uint32_t capacity)
{
	(void)plugin;
	(void)problem;
	(void)max_tokens;
	(void)workers;
	(void)buffers_out;
	(void)capacity;
	return 0;
}

static inline uint32_t fake_reduced(void *plugin, const struct moek_problem *problem,
                                    uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	(void)tokens;
	return MOEK_REDUCED;
}

static inline void fake_numerics(void *plugin, const struct moek_problem *problem,
                                 struct moek_numerics *numerics_out)
{
	(void)plugin;
	numerics_out->struct_size = MOEK_NUMERICS_SIZE_1_0;
	numerics_out->accumulator = MOEK_F32;
	numerics_out->terms = problem->hidden + problem->intermediate;
	numerics_out->repeatable = 1;
	memcpy(numerics_out->text, "fake: zeros", sizeof("fake: zeros"));
}

static inline uint64_t fake_prepared_size(void *plugin,
                                          const struct moek_problem *problem,
                                          uint64_t *align_out)
{
	(void)plugin;
	(void)problem;
	*align_out = 64;
	return 64;
}

/** The layer of a fake: what forward() needs to write zeros. */
struct fake_layer {
	uint64_t hidden;
	void *plugin;
};

static inline int32_t fake_create(void *plugin, const struct moek_device *device,
                                  const struct moek_problem *problem, void *weights,
                                  void **layer_out)
{
	struct fake_layer *layer = weights; /* 64 bytes are enough for us */

	(void)device;
	layer->hidden = problem->hidden;
	layer->plugin = plugin;
	*layer_out = layer;
	return MOEK_OK;
}

static inline int32_t fake_load_expert(void *layer, uint64_t local,
                                       const struct moek_expert *expert)
{
	(void)layer;
	(void)local;
	(void)expert;
	return MOEK_OK;
}

static inline int32_t fake_finish(void *layer)
{
	(void)layer;
	return MOEK_OK;
}

static inline int32_t fake_forward(void *layer, const struct moek_batch *batch)
{
	const struct fake_layer *mine = layer;
	const struct moek_rows *output = &batch->output;
	uint64_t bytes = output->type == MOEK_F32 ? 4 : 2;
	uint64_t stride = output->row_stride != 0 ? output->row_stride
	                                          : output->columns;

	for (uint64_t row = 0; row < output->rows; row++)
		memset((char *)output->data + row * stride * bytes, 0,
		       mine->hidden * bytes);
	return MOEK_OK;
}

static inline void fake_destroy(void *layer)
{
	(void)layer;
}

static inline int32_t fake_open(const struct moek_host *host, void **plugin_out)
{
	*plugin_out = (void *)(uintptr_t)host;
	return MOEK_OK;
}

static inline void fake_close(void *plugin)
{
	(void)plugin;
}

/* Tables piece by piece: a fake leaves out the piece that it does its own way. */
#define FAKE_ID(the_name, the_class) .rank_class = (the_class), .name = (the_name)
#define FAKE_DEVICE .supports_device = fake_any_host
#define FAKE_PROBLEM                                                                   \
	.supports_quant_scheme = fake_yes, .supports_activation = fake_yes,            \
	.supports_parallel = fake_yes
#define FAKE_PLANS                                                                     \
	.problem_size = fake_problem_size, .workspace_shapes = fake_workspace_shapes,  \
	.finalize = fake_reduced, .numerics = fake_numerics,                           \
	.prepared_size = fake_prepared_size
#define FAKE_LAYER                                                                     \
	.load_expert = fake_load_expert, .finish = fake_finish, .destroy = fake_destroy
#define FAKE_SIZE .struct_size = MOEK_EXPERTS_SIZE_1_0
#define FAKE_SHAPE .understands = EVERYTHING, .supports_shape = fake_yes
#define FAKE_CREATE .create = fake_create
#define FAKE_FORWARD .forward = fake_forward

#define FAKE_EXPERTS(the_name, the_class)                                              \
	FAKE_SIZE, FAKE_EXPERTS_BUT_SIZE(the_name, the_class)
#define FAKE_EXPERTS_BUT_SIZE(the_name, the_class)                                     \
	FAKE_ID(the_name, the_class), FAKE_DEVICE, FAKE_PROBLEM, FAKE_SHAPE,           \
		FAKE_PLANS, FAKE_LAYER, FAKE_CREATE, FAKE_FORWARD
#define FAKE_EXPERTS_BUT_SHAPE(the_name, the_class)                                    \
	FAKE_SIZE, FAKE_ID(the_name, the_class), FAKE_DEVICE, FAKE_PROBLEM,            \
		FAKE_PLANS, FAKE_LAYER, FAKE_CREATE, FAKE_FORWARD
#define FAKE_EXPERTS_BUT_DEVICE(the_name, the_class)                                   \
	FAKE_SIZE, FAKE_ID(the_name, the_class), FAKE_PROBLEM, FAKE_PLANS, FAKE_LAYER, \
		FAKE_CREATE, FAKE_FORWARD, .supports_shape = fake_yes
#define FAKE_EXPERTS_BUT_CREATE(the_name, the_class)                                   \
	FAKE_SIZE, FAKE_ID(the_name, the_class), FAKE_DEVICE, FAKE_PROBLEM,            \
		FAKE_SHAPE, FAKE_PLANS, FAKE_LAYER, FAKE_FORWARD
#define FAKE_EXPERTS_BUT_FORWARD(the_name, the_class)                                  \
	FAKE_SIZE, FAKE_ID(the_name, the_class), FAKE_DEVICE, FAKE_PROBLEM,            \
		FAKE_SHAPE, FAKE_PLANS, FAKE_LAYER, FAKE_CREATE

#define FAKE_PLUGIN(the_name, the_experts)                                             \
	.struct_size = MOEK_PLUGIN_SIZE_1_0, FAKE_PLUGIN_BUT_SIZE(the_name, the_experts)
#define FAKE_PLUGIN_BUT_SIZE(the_name, the_experts)                                    \
	.abi_major = MOEK_ABI_MAJOR, .abi_minor = MOEK_ABI_MINOR, .name = (the_name),  \
	.version = "0", .experts = (the_experts), .open = fake_open,                   \
	.close = fake_close
#define FAKE_PLUGIN_BUT_OPEN(the_name, the_experts)                                    \
	.struct_size = MOEK_PLUGIN_SIZE_1_0, .abi_major = MOEK_ABI_MAJOR,              \
	.abi_minor = MOEK_ABI_MINOR, .name = (the_name), .version = "0",               \
	.experts = (the_experts), .close = fake_close

#endif
