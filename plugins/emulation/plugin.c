/* SPDX-License-Identifier: MIT */
/* The meaning of every scheme, in plain C on any machine. Read README.md for what is
 * computed; load.c keeps the weights, forward.c runs them, kernels.c does the
 * arithmetic. */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "emulation.h"
#include "kernels.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int is_one_of(uint64_t value, const uint64_t *values, size_t count)
{
	while (count > 0)
		if (values[--count] == value)
			return 1;
	return 0;
}

static int32_t supports_device(void *plugin, const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	(void)plugin;
	if (device->kind != MOEK_HOST)
		return moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
	return 1;
}

static const uint64_t float_types[] = { MOEK_F32, MOEK_F16, MOEK_BF16 };
static const uint64_t scale_types[] = { MOEK_F32, MOEK_F16, MOEK_BF16, MOEK_E8M0 };
static const uint64_t weight_types[] = { MOEK_INT4, MOEK_MXFP4, MOEK_INT8,
	                                 MOEK_F32,  MOEK_F16,   MOEK_BF16 };

/* What only codes with a scale have. */
static int32_t supports_rows(const struct moek_scheme *s, struct moek_verdict *no_out)
{
	if (s->scale != 0)
		return moek_refuse(no_out, MOEK_RULE_SCALE, s->scale);
	if (s->zero_points)
		return moek_refuse(no_out, MOEK_RULE_ZERO_POINTS, s->zero_points);
	if (s->column_groups)
		return moek_refuse(no_out, MOEK_RULE_COLUMN_GROUPS, s->column_groups);
	return 1;
}

static int32_t supports_mxfp4(const struct moek_scheme *s, struct moek_verdict *no_out)
{
	const uint64_t scale = MOEK_E8M0, group = MOEK_MX_BLOCK;

	if (s->scale != scale)
		return moek_refuse_values(no_out, MOEK_RULE_SCALE, s->scale, &scale, 1);
	if (s->group_size != group)
		return moek_refuse_values(no_out, MOEK_RULE_GROUP_SIZE, s->group_size,
		                          &group, 1);
	if (s->zero_points)
		return moek_refuse(no_out, MOEK_RULE_ZERO_POINTS, s->zero_points);
	return 1;
}

static int32_t supports_scheme(const struct moek_problem *p,
                               const struct moek_scheme *s, struct moek_verdict *no_out)
{
	if (!is_one_of(s->weight, weight_types, COUNT(weight_types)))
		return moek_refuse_values(no_out, MOEK_RULE_WEIGHT, s->weight,
		                          weight_types, COUNT(weight_types));
	if (p->activations == MOEK_A8_FP8_STATIC && !s->input_scale) {
		moek_refuse(no_out, MOEK_RULE_ACTIVATIONS, p->activations);
		return moek_refuse_note(no_out,
		                        "static activations need an input scale");
	}
	if (is_one_of(s->weight, float_types, COUNT(float_types)))
		return supports_rows(s, no_out);
	if (s->weight == MOEK_MXFP4)
		return supports_mxfp4(s, no_out);
	if (!is_one_of(s->scale, scale_types, COUNT(scale_types)))
		return moek_refuse_values(no_out, MOEK_RULE_SCALE, s->scale,
		                          scale_types, COUNT(scale_types));
	return 1;
}

static int32_t supports_quant_scheme(void *plugin, const struct moek_problem *problem,
                                     struct moek_verdict *no_out)
{
	static const uint64_t activations[] = { MOEK_A16, MOEK_A8_FP8_STATIC,
		                                MOEK_A8_INT8, MOEK_A4_MXFP4_EVEN,
		                                MOEK_A4_MXFP4_ROUND_UP };

	(void)plugin;
	if (!is_one_of(problem->activations, activations, COUNT(activations)))
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATIONS,
		                          problem->activations, activations,
		                          COUNT(activations));
	if (problem->activations == MOEK_A8_INT8 && problem->activations_group == 0) {
		moek_refuse(no_out, MOEK_RULE_ACTIVATIONS, problem->activations);
		return moek_refuse_note(no_out, "activations_group is 0");
	}
	if (!supports_scheme(problem, &problem->gate_up, no_out)) {
		no_out->projection = MOEK_GATE_UP;
		return 0;
	}
	if (!supports_scheme(problem, &problem->down, no_out)) {
		no_out->projection = MOEK_DOWN;
		return 0;
	}
	if (!is_one_of(problem->input_type, float_types, COUNT(float_types)))
		return moek_refuse_values(no_out, MOEK_RULE_INPUT_TYPE,
		                          problem->input_type, float_types,
		                          COUNT(float_types));
	if (!is_one_of(problem->output_type, float_types, COUNT(float_types)))
		return moek_refuse_values(no_out, MOEK_RULE_OUTPUT_TYPE,
		                          problem->output_type, float_types,
		                          COUNT(float_types));
	return 1;
}

static int32_t supports_activation(void *plugin, const struct moek_problem *problem,
                                   struct moek_verdict *no_out)
{
	const uint64_t not_gated = 0;

	(void)plugin;
	if (problem->activation < MOEK_SILU || problem->activation > MOEK_SITU)
		return moek_refuse(no_out, MOEK_RULE_ACTIVATION, problem->activation);
	if (problem->gated > (problem->activation != MOEK_RELU2))
		return moek_refuse_values(no_out, MOEK_RULE_GATED, problem->gated,
		                          &not_gated, 1);
	if (!(problem->limit >= 0 && problem->limit <= FLT_MAX)) {
		moek_refuse(no_out, MOEK_RULE_LIMIT, 0);
		return moek_refuse_note(no_out, "the limit is negative or not finite");
	}
	if (!(problem->alpha >= -FLT_MAX && problem->alpha <= FLT_MAX) ||
	    !(problem->beta >= -FLT_MAX && problem->beta <= FLT_MAX) ||
	    (problem->activation == MOEK_SITU && !(problem->alpha > 0))) {
		moek_refuse(no_out, MOEK_RULE_ALPHA_BETA, 0);
		return moek_refuse_note(no_out,
		                        "alpha or beta is not finite, or situ's alpha "
		                        "is not positive");
	}
	return 1;
}

/* Ids are local already, and one shard is a layer like any other. */
static int32_t supports_parallel(void *plugin, const struct moek_problem *problem,
                                 struct moek_verdict *no_out)
{
	(void)plugin;
	(void)problem;
	(void)no_out;
	return 1;
}

static int32_t supports_shape(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	const uint64_t most = INT32_MAX / CHUNK_TOKENS;
	struct moek_buffer buffers[BUFFERS];
	struct layer layer;

	(void)plugin;
	if (problem->hidden == 0)
		return moek_refuse(no_out, MOEK_RULE_HIDDEN, 0);
	if (problem->intermediate == 0)
		return moek_refuse(no_out, MOEK_RULE_INTERMEDIATE, 0);
	if (problem->top_k == 0)
		return moek_refuse(no_out, MOEK_RULE_TOP_K, 0);
	if (problem->top_k > most) /* slots are counted in 32 bits */
		return moek_refuse_above(no_out, MOEK_RULE_TOP_K, problem->top_k, most);
	if (problem->experts_local >= INT32_MAX) /* as ids are */
		return moek_refuse_above(no_out, MOEK_RULE_EXPERTS,
		                         problem->experts_local, INT32_MAX - 1);
	if (!layer_sizes(problem, &layer)) {
		moek_refuse(no_out, MOEK_RULE_INDEX_RANGE, problem->experts_local);
		return moek_refuse_note(no_out,
		                        "the bytes of all experts do not fit 64 bits");
	}
	if (plan_workspace(problem, CHUNK_TOKENS, buffers) < 0) {
		moek_refuse(no_out, MOEK_RULE_INDEX_RANGE, problem->hidden);
		return moek_refuse_note(
			no_out, "the bytes of the workspace do not fit 64 bits");
	}
	return 1;
}

static void problem_size(void *plugin, const struct moek_problem *problem,
                         struct moek_sizes *sizes_out)
{
	(void)plugin;
	sizes_out->struct_size = MOEK_SIZES_SIZE_1_0;
	sizes_out->hidden = problem->hidden;
	sizes_out->intermediate = problem->intermediate;
	sizes_out->gate_up_columns = problem->intermediate * (problem->gated ? 2 : 1);
}

static int32_t workspace_shapes(void *plugin, const struct moek_problem *problem,
                                uint64_t max_tokens, uint32_t workers,
                                struct moek_buffer *buffers_out, uint32_t capacity)
{
	struct moek_buffer buffers[BUFFERS];
	int32_t count = plan_workspace(problem, max_tokens, buffers);

	(void)plugin;
	(void)workers;
	if (count > 0 && capacity != 0)
		memcpy(buffers_out, buffers,
		       (capacity < BUFFERS ? capacity : BUFFERS) * sizeof(buffers[0]));
	return count;
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
	uint32_t rounds = problem->activations == MOEK_A16 &&
	                                  problem->input_type != MOEK_F32
	                          ? 1
	                          : 0;

	(void)plugin;
	memset(numerics_out, 0, sizeof(*numerics_out));
	numerics_out->struct_size = MOEK_NUMERICS_SIZE_1_0;
	numerics_out->accumulator = MOEK_F32;
	/* 16: the biases, the activation, the router weight, products' own roundings */
	numerics_out->terms = problem->hidden + problem->intermediate + problem->top_k +
	                      16;
	numerics_out->roundings = rounds;
	numerics_out->repeatable = 1;
	snprintf(numerics_out->text, sizeof(numerics_out->text),
	         "fp32 products and sums in column order, %s, slots in order",
	         problem->activations != MOEK_A16 ? "activations quantised twice"
	         : rounds                         ? "one rounding between the GEMMs"
	                                          : "no rounding between");
}

static uint64_t prepared_size(void *plugin, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	struct layer layer;

	(void)plugin;
	*align_out = 64;
	return layer_sizes(problem, &layer)
	               ? problem->experts_local * layer.expert_bytes
	               : 0;
}

static const struct moek_experts any = {
	.struct_size = MOEK_EXPERTS_SIZE_1_0,
	.rank_class = MOEK_EMULATION,
	.name = "any",
	.understands = MOEK_ZERO_POINTS | MOEK_COLUMN_GROUPS | MOEK_BIAS | MOEK_LIMIT |
	               MOEK_ALPHA_BETA | MOEK_NOT_GATED | MOEK_EXPERT_MAP |
	               MOEK_WEIGHT_ON_INPUT | MOEK_ROW_STRIDE | MOEK_DETERMINISTIC |
	               MOEK_PARTIAL_SUM,
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

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	*plugin_out = (void *)(uintptr_t)host;
	return MOEK_OK;
}

static void close_plugin(void *plugin)
{
	(void)plugin;
}

static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "emulation",
	.version = "0.1.0",
	.experts = experts,
	.open = open_plugin,
	.close = close_plugin,
};
