/* SPDX-License-Identifier: MIT */
/*
 * The smallest backend that is complete: bf16 experts, SiLU, on the host.
 * plugins/README.md walks through it from top to bottom; check_install.sh builds it
 * outside the tree.
 */
#include <moek/experts.h>
#include <moek/formats.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what it accepts: one question each ---- */

static int32_t supports_device(void *plugin, const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	(void)plugin;
	if (device->kind != MOEK_HOST)
		return moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
	return 1;
}

static int32_t supports_quant_scheme(void *plugin, const struct moek_problem *problem,
                                     struct moek_verdict *no_out)
{
	const uint64_t bf16 = MOEK_BF16, a16 = MOEK_A16;

	(void)plugin;
	if (problem->gate_up.weight != MOEK_BF16) {
		no_out->projection = MOEK_GATE_UP;
		return moek_refuse_values(no_out, MOEK_RULE_WEIGHT,
		                          problem->gate_up.weight, &bf16, 1);
	}
	if (problem->down.weight != MOEK_BF16) {
		no_out->projection = MOEK_DOWN;
		return moek_refuse_values(no_out, MOEK_RULE_WEIGHT,
		                          problem->down.weight, &bf16, 1);
	}
	if (problem->activations != MOEK_A16)
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATIONS,
		                          problem->activations, &a16, 1);
	if (problem->input_type != MOEK_BF16)
		return moek_refuse_values(no_out, MOEK_RULE_INPUT_TYPE,
		                          problem->input_type, &bf16, 1);
	return 1; /* any output type: the core writes it, see finalize() */
}

static int32_t supports_activation(void *plugin, const struct moek_problem *problem,
                                   struct moek_verdict *no_out)
{
	const uint64_t silu = MOEK_SILU;

	(void)plugin;
	if (problem->activation != MOEK_SILU)
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATION,
		                          problem->activation, &silu, 1);
	return 1; /* limits, biases and ungated layers never come: see `understands` */
}

static int32_t supports_parallel(void *plugin, const struct moek_problem *problem,
                                 struct moek_verdict *no_out)
{
	(void)plugin;
	(void)problem;
	(void)no_out;
	return 1;
}

/** Bytes of one expert, or 0 when they, or those of all experts, do not fit 64 bits. */
static uint64_t expert_bytes(const struct moek_problem *problem)
{
	int overflow = 0;
	uint64_t elements = moek_size_multiply(problem->hidden, problem->intermediate,
	                                       &overflow);
	uint64_t bytes = moek_size_multiply(elements, 3 * sizeof(uint16_t), &overflow);

	moek_size_multiply(bytes, problem->experts_local, &overflow);
	return overflow ? 0 : bytes;
}

static int32_t supports_shape(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	(void)plugin;
	if (expert_bytes(problem) == 0)
		return moek_refuse(no_out, MOEK_RULE_INDEX_RANGE,
		                   problem->experts_local);
	return 1;
}

/* ---- what it will need ---- */

static void problem_size(void *plugin, const struct moek_problem *problem,
                         struct moek_sizes *sizes_out)
{
	(void)plugin;
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
	(void)max_tokens; /* one row for each worker, however many tokens */
	(void)workers;
	if (capacity >= 1)
		buffers_out[0] = (struct moek_buffer){
			.name = "activated",
			.elements = problem->intermediate,
			.align = 64,
			.type = MOEK_F32,
			.per_worker = 1,
		};
	return 1;
}

/** One fp32 row for each slot; the core weighs, sums and rounds them. */
static uint32_t finalize(void *plugin, const struct moek_problem *problem,
                         uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	(void)tokens;
	return MOEK_SLOTS;
}

static void numerics(void *plugin, const struct moek_problem *problem,
                     struct moek_numerics *numerics_out)
{
	(void)plugin;
	memset(numerics_out, 0, sizeof(*numerics_out));
	numerics_out->struct_size = MOEK_NUMERICS_SIZE_1_0;
	numerics_out->accumulator = MOEK_F32;
	/* 16: the activation, the router weight, and the products' own roundings */
	numerics_out->terms = problem->hidden + problem->intermediate + problem->top_k +
	                      16;
	numerics_out->roundings = 1;
	numerics_out->repeatable = 1;
	strcpy(numerics_out->text, "plain loops, fp32 sums in column order");
}

static uint64_t prepared_size(void *plugin, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	(void)plugin;
	*align_out = 64;
	return problem->experts_local * expert_bytes(problem);
}

/* ---- one layer ---- */

struct layer {
	uint64_t hidden, intermediate, top_k, expert_elements;
	uint16_t *weights; /* of each expert: gate rows, up rows, down rows */
};

static int32_t create(void *plugin, const struct moek_device *device,
                      const struct moek_problem *problem, void *weights,
                      void **layer_out)
{
	struct layer *layer = malloc(sizeof(*layer));

	(void)plugin;
	(void)device;
	if (layer == NULL)
		return MOEK_NO_MEMORY;
	layer->hidden = problem->hidden;
	layer->intermediate = problem->intermediate;
	layer->top_k = problem->top_k;
	layer->expert_elements = expert_bytes(problem) / sizeof(uint16_t);
	layer->weights = weights;
	*layer_out = layer;
	return MOEK_OK;
}

/** Here the weights are kept as they come; a real kernel packs and pads them. */
static int32_t load_expert(void *self, uint64_t local, const struct moek_expert *expert)
{
	struct layer *layer = self;
	uint64_t elements = layer->hidden * layer->intermediate;
	uint16_t *to = layer->weights + local * layer->expert_elements;

	memcpy(to, expert->gate.codes, elements * sizeof(uint16_t));
	memcpy(to + elements, expert->up.codes, elements * sizeof(uint16_t));
	memcpy(to + 2 * elements, expert->down.codes, elements * sizeof(uint16_t));
	return MOEK_OK;
}

static int32_t finish(void *self)
{
	(void)self;
	return MOEK_OK;
}

struct forward {
	const struct layer *layer;
	const struct moek_batch *batch;
};

static float dot_bf16(const uint16_t *weights, const uint16_t *input, uint64_t columns)
{
	float sum = 0;

	for (uint64_t i = 0; i < columns; i++)
		sum += moek_bf16_to_f32(weights[i]) * moek_bf16_to_f32(input[i]);
	return sum;
}

static float dot_f32(const uint16_t *weights, const float *input, uint64_t columns)
{
	float sum = 0;

	for (uint64_t i = 0; i < columns; i++)
		sum += moek_bf16_to_f32(weights[i]) * input[i];
	return sum;
}

/** gate_up and the activation of one slot, rounded once to the activation type. */
static void activate(const struct layer *layer, const uint16_t *gate,
                     const uint16_t *input, float *activated)
{
	const uint16_t *up = gate + layer->hidden * layer->intermediate;

	for (uint64_t row = 0; row < layer->intermediate; row++) {
		float g = dot_bf16(gate + row * layer->hidden, input, layer->hidden);
		float u = dot_bf16(up + row * layer->hidden, input, layer->hidden);

		activated[row] = moek_bf16_to_f32(
			moek_bf16_from_f32(g / (1 + expf(-g)) * u));
	}
}

/** Slot @i: one token's one choice. Its row starts at @i times hidden. */
static void run_slot(void *arg, uint64_t i, uint32_t worker)
{
	const struct forward *forward = arg;
	const struct layer *layer = forward->layer;
	const struct moek_batch *batch = forward->batch;
	int32_t local = batch->topk_ids[i];
	/* copies for workers lie `elements` apart, rounded up to the alignment */
	float *activated = (float *)batch->buffers[0] +
	                   worker * ((layer->intermediate + 15) / 16 * 16);
	const uint16_t *input = (const uint16_t *)batch->input.data +
	                        i / layer->top_k * layer->hidden;
	float *output = (float *)batch->output.data + i * layer->hidden;
	const uint16_t *gate, *down;

	if (local < 0)
		return; /* not routed: the core does not read this row */
	gate = layer->weights + (uint64_t)local * layer->expert_elements;
	down = gate + 2 * layer->hidden * layer->intermediate;
	activate(layer, gate, input, activated);
	for (uint64_t row = 0; row < layer->hidden; row++)
		output[row] = dot_f32(down + row * layer->intermediate, activated,
		                      layer->intermediate);
}

static int32_t forward(void *self, const struct moek_batch *batch)
{
	struct forward forward = { self, batch };

	batch->workers->parallel_for(batch->workers->self,
	                             batch->input.rows * forward.layer->top_k, run_slot,
	                             &forward);
	return MOEK_OK;
}

static void destroy(void *self)
{
	free(self);
}

/* ---- the tables ---- */

static const struct moek_experts bf16 = {
	.struct_size = MOEK_EXPERTS_SIZE_1_0,
	.rank_class = MOEK_GENERIC,
	.name = "bf16",
	.understands = MOEK_DETERMINISTIC,
	.supports_device = supports_device,
	.supports_quant_scheme = supports_quant_scheme,
	.supports_activation = supports_activation,
	.supports_parallel = supports_parallel,
	.supports_shape = supports_shape,
	.problem_size = problem_size,
	.workspace_shapes = workspace_shapes,
	.finalize = finalize,
	.numerics = numerics,
	.prepared_size = prepared_size,
	.create = create,
	.load_expert = load_expert,
	.finish = finish,
	.forward = forward,
	.destroy = destroy,
};

static const struct moek_experts *const experts[] = { &bf16, NULL };

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	(void)host;
	*plugin_out = NULL;
	return MOEK_OK;
}

static void close_plugin(void *plugin)
{
	(void)plugin;
}

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "plain",
	.version = "1",
	.experts = experts,
	.open = open_plugin,
	.close = close_plugin,
};

MOEK_PLUGIN_NOTE("id=plain\nversion=1\nclass=generic\ndevices=host\nformats=bf16\n");
