/* SPDX-License-Identifier: MIT */
/*
 * int4 and MXFP4 experts with 16-bit activations on RDNA3 cards. Two tables, one set of
 * rules: what the kernels do not do is refused here, by name and number.
 */
#include "rdna3.h"

#include <stddef.h>
#include <string.h>

#include "../gpu/rules.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

/* ----------------------------------------------------------------------------- rules
 */

static int32_t supports_device(void *plugin, const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	(void)plugin;
	return gpu_supports_device(rdna3_images, device, no_out);
}

/* what both tables demand of a projection */
static int32_t supports_common(const struct moek_scheme *scheme,
                               struct moek_verdict *no_out)
{
	if (scheme->column_groups)
		return moek_refuse(no_out, MOEK_RULE_COLUMN_GROUPS, 1);
	if (scheme->input_scale)
		return moek_refuse(no_out, MOEK_RULE_ACTIVATIONS, MOEK_A8_FP8_STATIC);
	return 1;
}

static int32_t supports_int4(const struct moek_scheme *scheme,
                             struct moek_verdict *no_out)
{
	static const uint64_t weight[] = { MOEK_INT4 },
			      scale[] = { MOEK_F16, MOEK_BF16 };
	static const uint64_t group[] = { 32, 64, 128, 0 };

	if (scheme->weight != MOEK_INT4)
		return moek_refuse_values(no_out, MOEK_RULE_WEIGHT, scheme->weight,
		                          weight, 1);
	if (scheme->scale != MOEK_F16 && scheme->scale != MOEK_BF16)
		return moek_refuse_values(no_out, MOEK_RULE_SCALE, scheme->scale, scale,
		                          2);
	if (scheme->group_size != 0 && scheme->group_size != 32 &&
	    scheme->group_size != 64 && scheme->group_size != 128)
		return moek_refuse_values(no_out, MOEK_RULE_GROUP_SIZE,
		                          scheme->group_size, group, COUNT(group));
	return supports_common(scheme, no_out);
}

static int32_t supports_mxfp4(const struct moek_scheme *scheme,
                              struct moek_verdict *no_out)
{
	return gpu_supports_mxfp4(scheme, no_out) && supports_common(scheme, no_out);
}

static int32_t supports_types(const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	static const uint64_t activations[] = { MOEK_A16 };

	if (problem->activations != MOEK_A16)
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATIONS,
		                          problem->activations, activations, 1);
	return gpu_supports_types(problem, 0, no_out);
}

static int32_t supports_quant_int4(void *plugin, const struct moek_problem *problem,
                                   struct moek_verdict *no_out)
{
	(void)plugin;
	return gpu_supports_both(problem, supports_int4, no_out) &&
	       supports_types(problem, no_out);
}

static int32_t supports_quant_mxfp4(void *plugin, const struct moek_problem *problem,
                                    struct moek_verdict *no_out)
{
	(void)plugin;
	return gpu_supports_both(problem, supports_mxfp4, no_out) &&
	       supports_types(problem, no_out);
}

/* ----------------------------------------------------------------------------- plans
 */

static void problem_size(void *plugin, const struct moek_problem *problem,
                         struct moek_sizes *sizes_out)
{
	(void)plugin;
	memset(sizes_out, 0, sizeof(*sizes_out));
	sizes_out->struct_size = MOEK_SIZES_SIZE_1_0;
	sizes_out->hidden = problem->hidden;
	sizes_out->intermediate = problem->intermediate;
	sizes_out->gate_up_columns = 2 * problem->intermediate;
}

static int32_t workspace_shapes(void *plugin, const struct moek_problem *problem,
                                uint64_t max_tokens, uint32_t workers,
                                struct moek_buffer *buffers_out, uint32_t capacity)
{
	(void)plugin;
	(void)workers;
	return rdna3_workspace(problem, max_tokens, buffers_out, capacity);
}

static uint32_t finalize(void *plugin, const struct moek_problem *problem,
                         uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	(void)tokens;
	return MOEK_REDUCED;
}

static void numerics(void *plugin, const struct moek_problem *problem,
                     struct moek_numerics *numerics_out)
{
	(void)plugin;
	memset(numerics_out, 0, sizeof(*numerics_out));
	numerics_out->struct_size = MOEK_NUMERICS_SIZE_1_0;
	numerics_out->accumulator = MOEK_F32;
	/* both GEMMs, the slots, and what a block adds: scale, two halves, waves, bias
	 */
	numerics_out->terms = problem->hidden + problem->intermediate + problem->top_k +
	                      32;
	/* the activated row; a weight on the input multiplies the fp32 sum, where the
	 * definition rounds the input row */
	numerics_out->roundings = (problem->must_understand & MOEK_WEIGHT_ON_INPUT) != 0
	                                  ? 2
	                                  : 1;
	numerics_out->repeatable = 1;
	strcpy(numerics_out->text, problem->input_type == MOEK_F16
	                                   ? "exact fp16 weights times fp16, fp32 "
	                                     "sums, scale per group, fixed order"
	                                   : "exact bf16 weights times bf16, fp32 "
	                                     "sums, scale per group, fixed order");
}

static uint64_t prepared_size(void *plugin, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	struct rdna3_layout layout;

	(void)plugin;
	*align_out = 256;
	return rdna3_layout(problem, &layout)
	               ? problem->experts_local * layout.expert_bytes
	               : 0;
}

/* ----------------------------------------------------------------------------- layers
 */

static int32_t create(void *self, const struct moek_device *device,
                      const struct moek_problem *problem, void *weights,
                      void **layer_out)
{
	static const struct gpu_code code = { rdna3_images, rdna3_kernel_names };
	struct gpu_plugin *plugin = self;
	struct rdna3_layer *layer;
	void *const *kernels = NULL;
	int32_t status = gpu_plugin_code(plugin, device, &code, &kernels);

	if (status != MOEK_OK)
		return status;
	layer = plugin->host.alloc(plugin->host.self, sizeof(*layer), 64);
	if (layer == NULL)
		return MOEK_NO_MEMORY;
	layer->context = plugin->context;
	layer->device = *device;
	layer->problem = *problem;
	rdna3_layout(problem, &layer->layout);
	layer->weights = weights;
	layer->kernels = kernels;
	*layer_out = layer;
	return MOEK_OK;
}

/* packed on the host, then copied: threads that load at once each have their own copy
 */
static int32_t load_expert(void *self, uint64_t local, const struct moek_expert *expert)
{
	const struct rdna3_layer *layer = self;
	const struct moek_host *host = layer->context.host;
	const uint64_t bytes = layer->layout.expert_bytes;
	unsigned char *staging = host->alloc(host->self, bytes, 64);
	int32_t status;

	if (staging == NULL)
		return MOEK_NO_MEMORY;
	rdna3_pack(&layer->layout, expert, staging);
	status = gpu_copy(&layer->context, &layer->device,
	                  layer->weights + local * bytes, staging, bytes,
	                  MOEK_TO_DEVICE, NULL);
	host->free(host->self, staging);
	return status;
}

static int32_t finish(void *self)
{
	(void)self;
	return MOEK_OK;
}

static void destroy(void *self)
{
	struct rdna3_layer *layer = self;
	const struct moek_host *host;

	if (layer == NULL)
		return;
	host = layer->context.host;
	host->free(host->self, layer);
}

/* ---------------------------------------------------------------------------- plugin
 */

static int32_t plugin_open(const struct moek_host *host, void **plugin_out)
{
	struct gpu_plugin *plugin = host->alloc(host->self, sizeof(*plugin), 64);

	if (plugin == NULL)
		return MOEK_NO_MEMORY;
	memset(plugin, 0, sizeof(*plugin));
	gpu_plugin_begin(plugin, host);
	*plugin_out = plugin;
	return MOEK_OK;
}

static void plugin_close(void *self)
{
	struct gpu_plugin *plugin = self;
	struct moek_host host = plugin->host;

	gpu_plugin_end(plugin);
	host.free(host.self, plugin);
}

#define UNDERSTANDS                                                                    \
	(MOEK_BIAS | MOEK_LIMIT | MOEK_ALPHA_BETA | MOEK_EXPERT_MAP |                  \
	 MOEK_WEIGHT_ON_INPUT | MOEK_DETERMINISTIC | MOEK_CAPTURE | MOEK_PARTIAL_SUM)

#define HOOKS                                                                          \
	.supports_device = supports_device,                                            \
	.supports_activation = gpu_supports_activation,                                \
	.supports_parallel = gpu_supports_parallel,                                    \
	.supports_shape = gpu_supports_shape, .problem_size = problem_size,            \
	.workspace_shapes = workspace_shapes, .finalize = finalize,                    \
	.numerics = numerics, .prepared_size = prepared_size, .create = create,        \
	.load_expert = load_expert, .finish = finish, .forward = rdna3_forward,        \
	.destroy = destroy

static const struct moek_experts w4a16 = {
	.struct_size = MOEK_EXPERTS_SIZE_1_0,
	.rank_class = MOEK_NATIVE,
	.name = "w4a16",
	.understands = UNDERSTANDS | MOEK_ZERO_POINTS,
	.supports_quant_scheme = supports_quant_int4,
	HOOKS,
};

static const struct moek_experts w4a16_mxfp4 = {
	.struct_size = MOEK_EXPERTS_SIZE_1_0,
	.rank_class = MOEK_NATIVE,
	.name = "w4a16_mxfp4",
	.understands = UNDERSTANDS,
	.supports_quant_scheme = supports_quant_mxfp4,
	HOOKS,
};

static const struct moek_experts *const experts[] = { &w4a16, &w4a16_mxfp4, NULL };

/* runtime: the HIP library; sysfs, kfd: where the operating system shows its cards */
static const char *const options[] = { "runtime", "sysfs", "kfd", NULL };

MOEK_PLUGIN_NOTE("id=rdna3\nversion=0.1.0\nclass=native\ndevices=hip\n"
                 "formats=int4,mxfp4\nneeds=libamdhip64.so\n");

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "rdna3",
	.version = "0.1.0",
	.options = options,
	.experts = experts,
	.open = plugin_open,
	.close = plugin_close,
	.list = gpu_plugin_list,
	.alloc = gpu_plugin_alloc,
	.free = gpu_plugin_free,
	.copy = gpu_plugin_copy,
	.wait = gpu_plugin_wait,
};
