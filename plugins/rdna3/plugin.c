/* SPDX-License-Identifier: MIT */
/*
 * int4 and MXFP4 experts with 16-bit activations on RDNA3 cards. Two tables, one set of
 * rules: what the kernels do not do is refused here, by name and number.
 */
#include "rdna3.h"

#include <stddef.h>
#include <string.h>

#include "../gpu/facts.h"

_Static_assert(RDNA3_F32 == (int)MOEK_F32 && RDNA3_F16 == (int)MOEK_F16 &&
                       RDNA3_BF16 == (int)MOEK_BF16 && RDNA3_E8M0 == (int)MOEK_E8M0,
               "types");
_Static_assert(RDNA3_SILU == (int)MOEK_SILU && RDNA3_GELU == (int)MOEK_GELU &&
                       RDNA3_GELU_TANH == (int)MOEK_GELU_TANH &&
                       RDNA3_SWIGLU_OAI == (int)MOEK_SWIGLU_OAI &&
                       RDNA3_SWIGLU_STEP == (int)MOEK_SWIGLU_STEP &&
                       RDNA3_SITU == (int)MOEK_SITU,
               "activations");

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

struct plugin {
	struct moek_host host;
	struct gpu_context context;
	struct gpu_driver driver;
	struct gpu_facts_paths paths;
	pthread_mutex_t lock; /* guards what follows */
	struct {
		int loaded;
		uint32_t ordinal;
		void *kernels[RDNA3_KERNELS];
	} code[RDNA3_MAX_DEVICES];
};

/* ----------------------------------------------------------------------------- rules
 */

static const struct rdna3_image *find_image(const char *arch)
{
	const struct rdna3_image *image;

	for (image = rdna3_images; image->arch != NULL; image++)
		if (strcmp(image->arch, arch) == 0)
			return image;
	return NULL;
}

/* "gfx1100, gfx1101": what this file has code for */
static void note_archs(struct moek_verdict *no_out)
{
	const struct rdna3_image *image;
	char note[sizeof(no_out->note)] = "";

	for (image = rdna3_images; image->arch != NULL; image++) {
		if (strlen(note) + strlen(image->arch) + 3 > sizeof(note))
			break;
		if (note[0] != '\0')
			strcat(note, ", ");
		strcat(note, image->arch);
	}
	moek_refuse_note(no_out,
	                 note[0] != '\0' ? note : "built without a GPU compiler");
}

static int32_t supports_device(void *plugin, const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	(void)plugin;
	if (device->kind != MOEK_HIP)
		return moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
	if (find_image(device->arch) == NULL) {
		moek_refuse(no_out, MOEK_RULE_DEVICE_ARCH, 0);
		note_archs(no_out);
		return 0;
	}
	return 1;
}

static int32_t in_projection(struct moek_verdict *no_out, uint32_t projection)
{
	no_out->projection = projection;
	return 0;
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
	static const uint64_t weight[] = { MOEK_MXFP4 }, scale[] = { MOEK_E8M0 };
	static const uint64_t group[] = { 32 };

	if (scheme->weight != MOEK_MXFP4)
		return moek_refuse_values(no_out, MOEK_RULE_WEIGHT, scheme->weight,
		                          weight, 1);
	if (scheme->scale != MOEK_E8M0)
		return moek_refuse_values(no_out, MOEK_RULE_SCALE, scheme->scale, scale,
		                          1);
	if (scheme->group_size != 32)
		return moek_refuse_values(no_out, MOEK_RULE_GROUP_SIZE,
		                          scheme->group_size, group, 1);
	if (scheme->zero_points)
		return moek_refuse(no_out, MOEK_RULE_ZERO_POINTS, 1);
	return supports_common(scheme, no_out);
}

static int32_t supports_types(const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	static const uint64_t activations[] = { MOEK_A16 };
	static const uint64_t inputs[] = { MOEK_F16, MOEK_BF16 };
	static const uint64_t outputs[] = { MOEK_F16, MOEK_BF16, MOEK_F32 };

	if (problem->activations != MOEK_A16)
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATIONS,
		                          problem->activations, activations, 1);
	if (problem->input_type != MOEK_F16 && problem->input_type != MOEK_BF16)
		return moek_refuse_values(no_out, MOEK_RULE_INPUT_TYPE,
		                          problem->input_type, inputs, COUNT(inputs));
	if (problem->output_type != MOEK_F16 && problem->output_type != MOEK_BF16 &&
	    problem->output_type != MOEK_F32)
		return moek_refuse_values(no_out, MOEK_RULE_OUTPUT_TYPE,
		                          problem->output_type, outputs,
		                          COUNT(outputs));
	return 1;
}

static int32_t supports_quant_int4(void *plugin, const struct moek_problem *problem,
                                   struct moek_verdict *no_out)
{
	(void)plugin;
	if (!supports_int4(&problem->gate_up, no_out))
		return in_projection(no_out, MOEK_GATE_UP);
	if (!supports_int4(&problem->down, no_out))
		return in_projection(no_out, MOEK_DOWN);
	return supports_types(problem, no_out);
}

static int32_t supports_quant_mxfp4(void *plugin, const struct moek_problem *problem,
                                    struct moek_verdict *no_out)
{
	(void)plugin;
	if (!supports_mxfp4(&problem->gate_up, no_out))
		return in_projection(no_out, MOEK_GATE_UP);
	if (!supports_mxfp4(&problem->down, no_out))
		return in_projection(no_out, MOEK_DOWN);
	return supports_types(problem, no_out);
}

static int32_t supports_activation(void *plugin, const struct moek_problem *problem,
                                   struct moek_verdict *no_out)
{
	static const uint64_t functions[] = { MOEK_SILU,        MOEK_GELU,
		                              MOEK_GELU_TANH,   MOEK_SWIGLU_OAI,
		                              MOEK_SWIGLU_STEP, MOEK_SITU };
	uint32_t i;

	(void)plugin;
	if (!problem->gated)
		return moek_refuse(no_out, MOEK_RULE_GATED, 0);
	for (i = 0; i < COUNT(functions); i++)
		if (problem->activation == functions[i])
			break;
	if (i == COUNT(functions))
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATION,
		                          problem->activation, functions,
		                          COUNT(functions));
	if (problem->activation == MOEK_SITU && problem->limit != 0.0f) {
		/* its formula has no clamp: dropping the limit would be silent */
		moek_refuse(no_out, MOEK_RULE_LIMIT, 1);
		return moek_refuse_note(no_out, "situ has no limit");
	}
	return 1;
}

static int32_t supports_parallel(void *plugin, const struct moek_problem *problem,
                                 struct moek_verdict *no_out)
{
	(void)plugin;
	if ((problem->must_understand & MOEK_WEIGHT_ON_INPUT) != 0 &&
	    problem->top_k != 1)
		return moek_refuse_above(no_out, MOEK_RULE_WEIGHT_ON_INPUT,
		                         problem->top_k, 1);
	if ((problem->must_understand & MOEK_ROW_STRIDE) != 0)
		return moek_refuse(no_out, MOEK_RULE_ROW_STRIDE, 1);
	if ((problem->must_understand & MOEK_LORA) != 0)
		return moek_refuse(no_out, MOEK_RULE_LORA, 1);
	return 1;
}

static int32_t supports_shape(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	(void)plugin;
	/* kernels index the codes of one projection with 32 bits */
	const uint64_t most = UINT64_C(1) << 30;

	if (problem->hidden == 0 || problem->hidden % 32 != 0)
		return moek_refuse_multiple(no_out, MOEK_RULE_HIDDEN, problem->hidden,
		                            32);
	if (problem->intermediate == 0 || problem->intermediate % 32 != 0)
		return moek_refuse_multiple(no_out, MOEK_RULE_INTERMEDIATE,
		                            problem->intermediate, 32);
	if (problem->top_k == 0 || problem->top_k > RDNA3_MAX_TOP_K)
		return moek_refuse_above(no_out, MOEK_RULE_TOP_K, problem->top_k,
		                         RDNA3_MAX_TOP_K);
	if (problem->experts > RDNA3_MAX_EXPERTS)
		return moek_refuse_above(no_out, MOEK_RULE_EXPERTS, problem->experts,
		                         RDNA3_MAX_EXPERTS);
	if (problem->hidden > most / problem->intermediate)
		return moek_refuse_above(no_out, MOEK_RULE_INDEX_RANGE, problem->hidden,
		                         most / problem->intermediate);
	return 1;
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

/* the kernels of a device: loaded once, kept until close */
static int32_t find_code(struct plugin *plugin, const struct moek_device *device,
                         void *const **kernels_out)
{
	const struct rdna3_image *image = find_image(device->arch);
	int32_t status = MOEK_DEVICE;
	uint32_t i;

	if (image == NULL || plugin->driver.state != GPU_READY)
		return MOEK_DEVICE;
	pthread_mutex_lock(&plugin->lock);
	for (i = 0; i < RDNA3_MAX_DEVICES; i++) {
		if (plugin->code[i].loaded &&
		    plugin->code[i].ordinal != device->ordinal)
			continue;
		status = MOEK_OK;
		if (!plugin->code[i].loaded)
			status = gpu_load_kernels(&plugin->context, device, image->code,
			                          rdna3_kernel_names,
			                          plugin->code[i].kernels);
		if (status == MOEK_OK) {
			plugin->code[i].loaded = 1;
			plugin->code[i].ordinal = device->ordinal;
			*kernels_out = plugin->code[i].kernels;
		}
		break;
	}
	pthread_mutex_unlock(&plugin->lock);
	return status;
}

static int32_t create(void *self, const struct moek_device *device,
                      const struct moek_problem *problem, void *weights,
                      void **layer_out)
{
	struct plugin *plugin = self;
	struct rdna3_layer *layer;
	void *const *kernels = NULL;
	int32_t status = find_code(plugin, device, &kernels);

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
	struct plugin *plugin = host->alloc(host->self, sizeof(*plugin), 64);
	const char *sysfs, *kfd;

	if (plugin == NULL)
		return MOEK_NO_MEMORY;
	memset(plugin, 0, sizeof(*plugin));
	memcpy(&plugin->host, host,
	       host->struct_size < sizeof(*host) ? host->struct_size : sizeof(*host));
	sysfs = host->option(host->self, "sysfs");
	kfd = host->option(host->self, "kfd");
	plugin->paths.sysfs = sysfs != NULL ? sysfs : "/sys";
	plugin->paths.kfd = kfd != NULL ? kfd : "/dev/kfd";
	plugin->context.driver = &plugin->driver;
	plugin->context.host = &plugin->host;
	pthread_mutex_init(&plugin->lock, NULL);
	*plugin_out = plugin;
	return MOEK_OK;
}

static void plugin_close(void *self)
{
	struct plugin *plugin = self;
	struct moek_host host = plugin->host;

	pthread_mutex_destroy(&plugin->lock);
	host.free(host.self, plugin);
}

static uint32_t list(void *self, struct moek_device *devices_out, uint32_t capacity)
{
	struct plugin *plugin = self;
	uint32_t count;

	pthread_mutex_lock(&plugin->lock);
	if (plugin->driver.state == GPU_UNTRIED)
		gpu_driver_open(&plugin->driver,
		                plugin->host.option(plugin->host.self, "runtime"));
	count = gpu_facts_list(&plugin->driver, &plugin->paths, devices_out, capacity);
	pthread_mutex_unlock(&plugin->lock);
	return count;
}

static int32_t device_alloc(void *self, const struct moek_device *device,
                            uint64_t bytes, void **address_out)
{
	return gpu_alloc(&((struct plugin *)self)->context, device, bytes, address_out);
}

static void device_free(void *self, const struct moek_device *device, void *address)
{
	gpu_free(&((struct plugin *)self)->context, device, address);
}

static int32_t device_copy(void *self, const struct moek_device *device, void *to,
                           const void *from, uint64_t bytes, uint32_t direction,
                           void *stream)
{
	return gpu_copy(&((struct plugin *)self)->context, device, to, from, bytes,
	                direction, stream);
}

static int32_t device_wait(void *self, const struct moek_device *device, void *stream)
{
	return gpu_wait(&((struct plugin *)self)->context, device, stream);
}

#define UNDERSTANDS                                                                    \
	(MOEK_BIAS | MOEK_LIMIT | MOEK_ALPHA_BETA | MOEK_EXPERT_MAP |                  \
	 MOEK_WEIGHT_ON_INPUT | MOEK_DETERMINISTIC | MOEK_CAPTURE | MOEK_PARTIAL_SUM)

#define HOOKS                                                                          \
	.supports_device = supports_device,                                            \
	.supports_activation = supports_activation,                                    \
	.supports_parallel = supports_parallel, .supports_shape = supports_shape,      \
	.problem_size = problem_size, .workspace_shapes = workspace_shapes,            \
	.finalize = finalize, .numerics = numerics, .prepared_size = prepared_size,    \
	.create = create, .load_expert = load_expert, .finish = finish,                \
	.forward = rdna3_forward, .destroy = destroy

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
	.list = list,
	.alloc = device_alloc,
	.free = device_free,
	.copy = device_copy,
	.wait = device_wait,
};
