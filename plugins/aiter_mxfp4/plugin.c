/* SPDX-License-Identifier: MIT */
/*
 * MXFP4 experts on gfx950, with activations of 4, 8 or 16 bits: one table for each, one
 * set of rules. What the kernels do not do is refused here, by name and number.
 */
#include "mxfp4.h"

#include <stdio.h>
#include <string.h>

#include "../gpu/rules.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

enum use { USE_AUTO, USE_ON, USE_OFF };

struct plugin {
	struct gpu_plugin gpu; /* first: its hooks are the kit's */
	enum use use_aiter;
	struct aiter aiter;
};

/* ----------------------------------------------------------------------------- rules
 */

static int32_t supports_device(void *self, const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	const struct plugin *plugin = self;

	if (!gpu_supports_device(mxfp4_images, device, no_out))
		return 0;
	if (plugin->use_aiter != USE_ON || plugin->aiter.state == AITER_FOUND)
		return 1;
	/* what was asked for is not there: nothing else stands in for it */
	moek_refuse(no_out, MOEK_RULE_DEPENDENCY, 0);
	return moek_refuse_note(no_out, plugin->aiter.cause);
}

static int32_t supports_scheme(const struct moek_problem *problem,
                               const uint64_t *activations, uint32_t count,
                               struct moek_verdict *no_out)
{
	uint32_t i;

	if (!gpu_supports_both(problem, gpu_supports_mxfp4, no_out))
		return 0;
	for (i = 0; i < count; i++)
		if (problem->activations ==
		    activations[i]) /* codes are made from any */
			return gpu_supports_types(
				problem, problem->activations != MOEK_A16, no_out);
	return moek_refuse_values(no_out, MOEK_RULE_ACTIVATIONS, problem->activations,
	                          activations, count);
}

static int32_t supports_w4a4(void *self, const struct moek_problem *problem,
                             struct moek_verdict *no_out)
{
	static const uint64_t activations[] = { MOEK_A4_MXFP4_EVEN,
		                                MOEK_A4_MXFP4_ROUND_UP };

	(void)self;
	return supports_scheme(problem, activations, COUNT(activations), no_out);
}

static int32_t has_input_scale(const struct moek_scheme *scheme,
                               struct moek_verdict *no_out)
{
	if (scheme->input_scale)
		return 1;
	moek_refuse(no_out, MOEK_RULE_SCALE, 0);
	return moek_refuse_note(no_out, "fp8 activations without an input scale");
}

static int32_t supports_w4a8(void *self, const struct moek_problem *problem,
                             struct moek_verdict *no_out)
{
	static const uint64_t activations[] = { MOEK_A8_FP8_STATIC };

	(void)self;
	return supports_scheme(problem, activations, COUNT(activations), no_out) &&
	       gpu_supports_both(problem, has_input_scale, no_out);
}

static int32_t supports_w4a16(void *self, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	static const uint64_t activations[] = { MOEK_A16 };

	(void)self;
	return supports_scheme(problem, activations, COUNT(activations), no_out);
}

/* ----------------------------------------------------------------------------- plans
 */

static void problem_size(void *self, const struct moek_problem *problem,
                         struct moek_sizes *sizes_out)
{
	struct mxfp4_layout layout;

	(void)self;
	memset(sizes_out, 0, sizeof(*sizes_out));
	sizes_out->struct_size = MOEK_SIZES_SIZE_1_0;
	if (!mxfp4_layout(problem, &layout))
		return;
	sizes_out->hidden = (uint64_t)layout.gate_up.steps * MXFP4_STEP;
	sizes_out->intermediate = (uint64_t)layout.down.steps * MXFP4_STEP;
	sizes_out->gate_up_columns = layout.gate_up.rows;
}

/* do AITER's kernels run the small batches of this problem? */
static int runs_aiter(const struct plugin *plugin, const struct moek_problem *problem)
{
	return aiter_covers(&plugin->aiter, problem);
}

static int32_t workspace_shapes(void *self, const struct moek_problem *problem,
                                uint64_t max_tokens, uint32_t workers,
                                struct moek_buffer *buffers_out, uint32_t capacity)
{
	(void)workers;
	return mxfp4_workspace(problem, runs_aiter(self, problem), max_tokens,
	                       buffers_out, capacity);
}

static uint32_t finalize(void *self, const struct moek_problem *problem,
                         uint64_t tokens)
{
	(void)self;
	(void)problem;
	(void)tokens;
	return MOEK_REDUCED;
}

static const char *arithmetic(const struct moek_problem *problem)
{
	switch (problem->activations) {
	case MOEK_A4_MXFP4_EVEN:
		return "mxfp4 times mxfp4 (shared exponent: even), fp32 sums, fixed "
		       "order";
	case MOEK_A4_MXFP4_ROUND_UP:
		return "mxfp4 times mxfp4 (shared exponent: round up), fp32 sums, "
		       "fixed "
		       "order";
	case MOEK_A8_FP8_STATIC:
		return "mxfp4 times e4m3 (static scales), fp32 sums, fixed order";
	default:
		return problem->input_type == MOEK_F16
		               ? "exact fp16 weights times fp16, fp32 sums, scale per "
		                 "block, fixed order"
		               : "exact bf16 weights times bf16, fp32 sums, scale per "
		                 "block, fixed order";
	}
}

static void numerics(void *self, const struct moek_problem *problem,
                     struct moek_numerics *numerics_out)
{
	memset(numerics_out, 0, sizeof(*numerics_out));
	numerics_out->struct_size = MOEK_NUMERICS_SIZE_1_0;
	if (runs_aiter(self, problem)) {
		/* each group adds its part to bf16, in any order; all else is less than
		 * one of these */
		numerics_out->accumulator = MOEK_BF16;
		numerics_out->terms = problem->top_k *
		                              (problem->intermediate / MXFP4_BLOCK) +
		                      1;
		strcpy(numerics_out->text,
		       "up to 16 tokens AITER's: mxfp4 times mxfp4 (round up), bf16 "
		       "atomics; above fp32 sums");
		return;
	}
	numerics_out->accumulator = MOEK_F32;
	/* both GEMMs, the slots, and what a block adds: scale, waves, bias */
	numerics_out->terms = problem->hidden + problem->intermediate + problem->top_k +
	                      32;
	/* 16-bit activations: the activated row; a weight on the input multiplies the
	 * fp32 sum, where the definition rounds the input row. Quantised rows are those
	 * of the definition */
	if (problem->activations == MOEK_A16)
		numerics_out->roundings = (problem->must_understand &
		                           MOEK_WEIGHT_ON_INPUT) != 0
		                                  ? 2
		                                  : 1;
	numerics_out->repeatable = 1;
	strcpy(numerics_out->text, arithmetic(problem));
}

static uint64_t prepared_size(void *self, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	struct mxfp4_layout layout;

	(void)self;
	*align_out = 256;
	return mxfp4_layout(problem, &layout) ? layout.bytes : 0;
}

/* ---------------------------------------------------------------------------- layers
 */

/* all that a batch of this problem may choose */
static int32_t load_aiter(struct plugin *plugin, const struct moek_device *device,
                          const struct moek_problem *problem)
{
	int32_t status = MOEK_OK;
	uint32_t i;

	for (i = 0; status == MOEK_OK && i < plugin->aiter.count; i++)
		if (plugin->aiter.kernels[i].function == problem->activation &&
		    problem->intermediate % plugin->aiter.kernels[i].columns == 0)
			status = aiter_load(&plugin->gpu, device,
			                    &plugin->aiter.kernels[i]);
	return status;
}

static int32_t create(void *self, const struct moek_device *device,
                      const struct moek_problem *problem, void *weights,
                      void **layer_out)
{
	static const struct gpu_code code = { mxfp4_images, mxfp4_kernel_names };
	struct plugin *plugin = self;
	struct moek_host *host = &plugin->gpu.host;
	struct mxfp4_layer *layer;
	void *const *kernels = NULL;
	int32_t status = gpu_plugin_code(&plugin->gpu, device, &code, &kernels);

	if (status != MOEK_OK)
		return status;
	layer = host->alloc(host->self, sizeof(*layer), 64);
	if (layer == NULL)
		return MOEK_NO_MEMORY;
	layer->context = plugin->gpu.context;
	layer->device = *device;
	layer->problem = *problem;
	mxfp4_layout(problem, &layer->layout);
	layer->weights = weights;
	layer->kernels = kernels;
	layer->aiter = NULL;
	if (runs_aiter(plugin, problem)) {
		layer->aiter = &plugin->aiter;
		status = load_aiter(plugin, device, problem);
	}
	if (status != MOEK_OK) {
		host->free(host->self, layer);
		return status;
	}
	*layer_out = layer;
	return MOEK_OK;
}

/* packed on the host, then copied: threads that load at once each have their own copy
 */
static int32_t load_expert(void *self, uint64_t local, const struct moek_expert *expert)
{
	const struct mxfp4_layer *layer = self;
	const struct moek_host *host = layer->context.host;
	struct mxfp4_piece pieces[MXFP4_PIECES];
	const uint64_t bytes = mxfp4_pieces(&layer->layout, local, pieces);
	unsigned char *staging = host->alloc(host->self, bytes, 64), *from = staging;
	int32_t status = MOEK_OK;
	int i;

	if (staging == NULL)
		return MOEK_NO_MEMORY;
	mxfp4_pack(&layer->layout, local, expert, staging);
	for (i = 0; status == MOEK_OK && i < MXFP4_PIECES; i++) {
		if (pieces[i].bytes != 0)
			status = gpu_copy(&layer->context, &layer->device,
			                  layer->weights + pieces[i].offset, from,
			                  pieces[i].bytes, MOEK_TO_DEVICE, NULL);
		from += pieces[i].bytes;
	}
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
	struct mxfp4_layer *layer = self;
	const struct moek_host *host;

	if (layer == NULL)
		return;
	host = layer->context.host;
	host->free(host->self, layer);
}

/* ---------------------------------------------------------------------------- plugin
 */

/* use_aiter and aiter_dir; what is wrong has been told */
static int32_t read_options(struct plugin *plugin)
{
	const struct moek_host *host = &plugin->gpu.host;
	const char *use = host->option(host->self, "use_aiter");
	char text[256];

	plugin->use_aiter = USE_AUTO;
	if (use != NULL && strcmp(use, "on") == 0)
		plugin->use_aiter = USE_ON;
	else if (use != NULL && strcmp(use, "off") == 0)
		plugin->use_aiter = USE_OFF;
	else if (use != NULL && strcmp(use, "auto") != 0) {
		snprintf(text, sizeof(text),
		         "use_aiter = %.100s: expected auto, on or off", use);
		host->log(host->self, 3, text);
		return MOEK_BAD_CONFIG;
	}
	if (plugin->use_aiter == USE_OFF)
		return MOEK_OK;
	aiter_find(&plugin->aiter, host->option(host->self, "aiter_dir"));
	if (plugin->aiter.state == AITER_BROKEN) {
		snprintf(text, sizeof(text), "AITER's kernels are not used: %.100s",
		         plugin->aiter.cause);
		host->log(host->self, 4, text);
	}
	return MOEK_OK;
}

static int32_t plugin_open(const struct moek_host *host, void **plugin_out)
{
	struct plugin *plugin = host->alloc(host->self, sizeof(*plugin), 64);
	int32_t status;

	if (plugin == NULL)
		return MOEK_NO_MEMORY;
	memset(plugin, 0, sizeof(*plugin));
	gpu_plugin_begin(&plugin->gpu, host);
	status = read_options(plugin);
	if (status != MOEK_OK) {
		gpu_plugin_end(&plugin->gpu);
		host->free(host->self, plugin);
		return status;
	}
	*plugin_out = plugin;
	return MOEK_OK;
}

static void plugin_close(void *self)
{
	struct plugin *plugin = self;
	struct moek_host host = plugin->gpu.host;

	aiter_end(&plugin->aiter, &host);
	gpu_plugin_end(&plugin->gpu);
	host.free(host.self, plugin);
}

#define TABLE(name_, scheme_)                                                          \
	{                                                                              \
		.struct_size = MOEK_EXPERTS_SIZE_1_0, .rank_class = MOEK_NATIVE,       \
		.name = name_,                                                         \
		.understands = MOEK_BIAS | MOEK_LIMIT | MOEK_ALPHA_BETA |              \
		               MOEK_EXPERT_MAP | MOEK_WEIGHT_ON_INPUT |                \
		               MOEK_DETERMINISTIC | MOEK_CAPTURE | MOEK_PARTIAL_SUM,   \
		.supports_device = supports_device, .supports_quant_scheme = scheme_,  \
		.supports_activation = gpu_supports_activation,                        \
		.supports_parallel = gpu_supports_parallel,                            \
		.supports_shape = gpu_supports_shape, .problem_size = problem_size,    \
		.workspace_shapes = workspace_shapes, .finalize = finalize,            \
		.numerics = numerics, .prepared_size = prepared_size,                  \
		.create = create, .load_expert = load_expert, .finish = finish,        \
		.forward = mxfp4_forward, .destroy = destroy                           \
	}

static const struct moek_experts w4a4 = TABLE("w4a4", supports_w4a4);
static const struct moek_experts w4a8 = TABLE("w4a8", supports_w4a8);
static const struct moek_experts w4a16 = TABLE("w4a16", supports_w4a16);

static const struct moek_experts *const experts[] = { &w4a4, &w4a8, &w4a16, NULL };

/* runtime: the HIP library; sysfs, kfd: where the operating system shows its cards;
 * use_aiter: auto, on, off; aiter_dir: where AITER's code objects are */
static const char *const options[] = { "runtime",   "sysfs",     "kfd",
	                               "use_aiter", "aiter_dir", NULL };

MOEK_PLUGIN_NOTE("id=aiter_mxfp4\nversion=0.1.0\nclass=native\ndevices=hip\n"
                 "arch=gfx950\nformats=mxfp4\nneeds=libamdhip64.so\n");

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "aiter_mxfp4",
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
