/* SPDX-License-Identifier: MIT */
/*
 * cpu.so: 4-bit experts on a CPU. One table for each instruction set, best first, so
 * that a report says which one runs and why a better one does not.
 */
#include "cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <math.h>

/* What open() gives: the highest level that [plugin cpu] isa allows. */
static const enum level limits[LEVELS] = {
	LEVEL_PLAIN,      LEVEL_AVX2,       LEVEL_AVXVNNI,
	LEVEL_AVX512VNNI, LEVEL_AVX512BF16, LEVEL_AMX,
};

static int is_in(uint32_t levels, enum level level)
{
	return (levels >> level & 1) != 0;
}

/* The operating system gives tiles to a process that asks. That of another machine,
 * whose facts these are, is not here to be asked. */
static int may_use_tiles(struct moek_verdict *no_out)
{
	int error = is_in(cpu_levels_here(), LEVEL_AMX) ? cpu_ask_for_tiles() : 0;
	char note[64];

	if (error == 0)
		return 1;
	snprintf(note, sizeof(note), "ARCH_REQ_XCOMP_PERM was denied, error %d", error);
	moek_refuse(no_out, MOEK_RULE_ISA, LEVEL_AMX);
	return moek_refuse_note(no_out, note);
}

static int32_t supports_device(const enum level *limit, enum level level,
                               const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	if (device->kind != MOEK_HOST)
		return moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
	if (level == LEVEL_PLAIN)
		return 1;
	if (cpu_kernels(level) == NULL) {
		moek_refuse(no_out, MOEK_RULE_ISA, level);
		return moek_refuse_note(no_out, "not compiled in");
	}
	if (level > *limit) {
		moek_refuse(no_out, MOEK_RULE_ISA, level);
		return moek_refuse_note(no_out, "isa in [plugin cpu] limits it");
	}
	if (!is_in(cpu_levels_of_words(device->features), level)) {
		/* most of today's CPUs have neither tiles nor VNNI without AVX-512:
		 * that is another kind of device, not one that lacks something */
		moek_refuse(no_out,
		            level == LEVEL_AMX || level == LEVEL_AVXVNNI
		                    ? MOEK_RULE_DEVICE_KIND
		                    : MOEK_RULE_ISA,
		            level);
		return moek_refuse_note(no_out, cpu_level_names[level]);
	}
	return level != LEVEL_AMX || may_use_tiles(no_out);
}

static int32_t supports_weight(const struct moek_problem *problem,
                               const struct moek_scheme *scheme,
                               struct moek_verdict *no_out)
{
	static const uint64_t weights[] = { MOEK_INT4, MOEK_INT8, MOEK_MXFP4,
		                            MOEK_BF16, MOEK_F16,  MOEK_F32 };
	static const uint64_t scales[] = { MOEK_F16, MOEK_BF16, MOEK_F32 };
	static const uint64_t e8m0[] = { MOEK_E8M0 };
	static const uint64_t groups[] = { 16, 32, 64, 128, 0 };
	const int int8 = scheme->weight == MOEK_INT8;
	static const uint64_t block[] = { 32 };

	no_out->projection = scheme == &problem->down ? MOEK_DOWN : MOEK_GATE_UP;
	if (scheme->weight != MOEK_INT4 && scheme->weight != MOEK_MXFP4 && !int8 &&
	    !cpu_is_rows(scheme))
		return moek_refuse_values(no_out, MOEK_RULE_WEIGHT, scheme->weight,
		                          weights, 6);
	if (scheme->column_groups)
		return moek_refuse(no_out, MOEK_RULE_COLUMN_GROUPS,
		                   scheme->column_groups);
	if (cpu_is_rows(scheme))
		return 1;
	if (scheme->weight == MOEK_MXFP4) {
		if (scheme->scale != MOEK_E8M0)
			return moek_refuse_values(no_out, MOEK_RULE_SCALE,
			                          scheme->scale, e8m0, 1);
		if (scheme->group_size != 32)
			return moek_refuse_values(no_out, MOEK_RULE_GROUP_SIZE,
			                          scheme->group_size, block, 1);
		if (scheme->zero_points)
			return moek_refuse(no_out, MOEK_RULE_ZERO_POINTS, 1);
		return 1;
	}
	if (scheme->scale != MOEK_F16 && scheme->scale != MOEK_BF16 &&
	    scheme->scale != MOEK_F32)
		return moek_refuse_values(no_out, MOEK_RULE_SCALE, scheme->scale,
		                          scales, 3);
	if (scheme->group_size % STEP != 0 && (int8 || scheme->group_size != 16)) {
		moek_refuse_values(no_out, MOEK_RULE_GROUP_SIZE, scheme->group_size,
		                   int8 ? groups + 1 : groups, int8 ? 4 : 5);
		return moek_refuse_note(no_out, "or another multiple of 32");
	}
	return 1;
}

static int is_4_bit(const struct moek_scheme *scheme)
{
	return scheme->weight == MOEK_INT4 || scheme->weight == MOEK_MXFP4;
}

static int32_t supports_quant_scheme(void *plugin, const struct moek_problem *problem,
                                     struct moek_verdict *no_out)
{
	static const uint64_t kinds[] = { MOEK_A16, MOEK_A8_INT8 };
	static const uint64_t types[] = { MOEK_BF16, MOEK_F16, MOEK_F32 };

	(void)plugin;
	if (!supports_weight(problem, &problem->gate_up, no_out) ||
	    !supports_weight(problem, &problem->down, no_out))
		return 0;
	no_out->projection = 0;
	if (problem->activations != MOEK_A16 && problem->activations != MOEK_A8_INT8)
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATIONS,
		                          problem->activations, kinds, 2);
	if (problem->activations == MOEK_A8_INT8 &&
	    (!is_4_bit(&problem->gate_up) || !is_4_bit(&problem->down))) {
		moek_refuse_values(no_out, MOEK_RULE_ACTIVATIONS, problem->activations,
		                   kinds, 1);
		return moek_refuse_note(no_out, "int8 activations: 4-bit weights only");
	}
	if (problem->activations == MOEK_A8_INT8 &&
	    problem->activations_group != STEP) {
		moek_refuse(no_out, MOEK_RULE_ACTIVATIONS, problem->activations);
		return moek_refuse_note(no_out,
		                        "int8 activations in groups of 32 only");
	}
	if (problem->input_type != MOEK_BF16 && problem->input_type != MOEK_F16 &&
	    problem->input_type != MOEK_F32)
		return moek_refuse_values(no_out, MOEK_RULE_INPUT_TYPE,
		                          problem->input_type, types, 3);
	if (problem->output_type != MOEK_BF16 && problem->output_type != MOEK_F16 &&
	    problem->output_type != MOEK_F32)
		return moek_refuse_values(no_out, MOEK_RULE_OUTPUT_TYPE,
		                          problem->output_type, types, 3);
	return 1;
}

static int32_t supports_activation(void *plugin, const struct moek_problem *problem,
                                   struct moek_verdict *no_out)
{
	(void)plugin;
	if (problem->activation < MOEK_SILU || problem->activation > MOEK_SITU)
		return moek_refuse(no_out, MOEK_RULE_ACTIVATION, problem->activation);
	if (problem->activation == MOEK_RELU2 && problem->gated)
		return moek_refuse(no_out, MOEK_RULE_GATED, problem->gated);
	return 1;
}

static int32_t supports_parallel(void *plugin, const struct moek_problem *problem,
                                 struct moek_verdict *no_out)
{
	(void)plugin;
	(void)problem;
	(void)no_out;
	return 1; /* maps and input weights are the core's; a shard is just smaller */
}

static int32_t supports_shape(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	struct plan plan;

	(void)plugin;
	/* slots are numbered by int32 */
	if (problem->top_k == 0 || problem->top_k > INT32_MAX)
		return moek_refuse_above(no_out, MOEK_RULE_TOP_K, problem->top_k,
		                         INT32_MAX);
	if (problem->max_tokens > INT32_MAX / problem->top_k)
		return moek_refuse_above(no_out, MOEK_RULE_TOKENS, problem->max_tokens,
		                         INT32_MAX / problem->top_k);
	if (problem->experts_local >= INT32_MAX)
		return moek_refuse_above(no_out, MOEK_RULE_EXPERTS,
		                         problem->experts_local, INT32_MAX - 1);
	if (!cpu_plan(problem, &plan))
		return moek_refuse(no_out, MOEK_RULE_INDEX_RANGE, problem->hidden);
	return 1;
}

static void problem_size(void *plugin, const struct moek_problem *problem,
                         struct moek_sizes *sizes_out)
{
	struct plan plan;

	(void)plugin;
	sizes_out->struct_size = MOEK_SIZES_SIZE_1_0;
	sizes_out->hidden = problem->hidden;
	sizes_out->intermediate = problem->intermediate;
	sizes_out->gate_up_columns = problem->intermediate * (problem->gated ? 2 : 1);
	if (!cpu_plan(problem, &plan))
		return;
	sizes_out->hidden = plan.gate_up.steps * STEP;
	if (plan.down.panels * ROWS > sizes_out->hidden)
		sizes_out->hidden = plan.down.panels * ROWS;
	sizes_out->intermediate = plan.down.steps * STEP;
	sizes_out->gate_up_columns = plan.gate_up.panels * ROWS;
}

static uint32_t finalize(void *plugin, const struct moek_problem *problem,
                         uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	(void)tokens;
	return MOEK_REDUCED;
}

static uint64_t prepared_size(void *plugin, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	struct plan plan;

	(void)plugin;
	*align_out = LINE;
	return cpu_plan(problem, &plan) ? plan.bytes : 0;
}

/* Additions between an activation and the sum of its row: inside a unit, then over
 * units. */
static uint64_t chain(const struct layout *layout, uint32_t arithmetic)
{
	uint64_t steps = layout->unit_steps;
	uint64_t units = (layout->steps + steps - 1) / steps * layout->sets;
	uint64_t inside = arithmetic == BY_INT8 ? steps + 2 : steps * STEP + 2;

	return inside + units + 1;
}

static void numerics(enum level level, const struct moek_problem *problem,
                     struct moek_numerics *numerics_out)
{
	static const char *const texts[ARITHMETICS] = {
		[BY_F32] = "fp32 multiply-add, fp32 sums, fixed order",
		[BY_BF16] =
			"bf16 dot, fp32 sums, fixed order; subnormals count as zero",
		[BY_INT8] = "int8 dot of groups of 32, exact; fp32 sums, fixed order",
	};
	uint32_t arithmetic = cpu_arithmetic(cpu_kernels(level), problem);
	struct plan plan;

	if (!cpu_plan(problem, &plan))
		return;
	numerics_out->struct_size = MOEK_NUMERICS_SIZE_1_0;
	numerics_out->accumulator = MOEK_F32;
	/* 16: the function between, an exponential and a division */
	numerics_out->terms = chain(&plan.gate_up, arithmetic) +
	                      chain(&plan.down, arithmetic) + problem->top_k + 16;
	numerics_out->roundings = problem->activations == MOEK_A16 &&
	                          problem->input_type != MOEK_F32;
	numerics_out->repeatable = 1;
	strcpy(numerics_out->text, texts[arithmetic]);
}

static int32_t create(enum level level, const struct moek_problem *problem,
                      void *weights, void **layer_out)
{
	struct cpu_layer *layer;

	/* the facts may have been another machine's */
	if (cpu_kernels(level) == NULL || !is_in(cpu_levels_here(), level) ||
	    (level == LEVEL_AMX && cpu_ask_for_tiles() != 0))
		return MOEK_DEVICE;
	layer = calloc(1, sizeof(*layer));
	if (layer == NULL)
		return MOEK_NO_MEMORY;
	if (!cpu_plan(problem, &layer->plan)) {
		free(layer);
		return MOEK_BAD_ARGUMENT;
	}
	layer->problem = *problem;
	layer->kernels = cpu_kernels(level);
	layer->weights = weights;
	layer->function = (struct function){
		.kind = problem->activation,
		.gated = problem->gated,
		.alpha = problem->alpha,
		.beta = problem->beta,
		.limit = problem->limit,
	};
	cpu_packing(&layer->plan.gate_up, layer->kernels, problem, &layer->input);
	cpu_packing(&layer->plan.down, layer->kernels, problem, &layer->hidden);
	*layer_out = layer;
	return MOEK_OK;
}

static int32_t finish(void *layer)
{
	(void)layer;
	return MOEK_OK;
}

static void destroy(void *layer)
{
	free(layer);
}

/* The hooks do not say which table they were called through, so each has its own. */
#define TABLE(isa, isa_level)                                                          \
	static int32_t supports_device_##isa(void *plugin,                             \
	                                     const struct moek_device *device,         \
	                                     struct moek_verdict *no_out)              \
	{                                                                              \
		return supports_device(plugin, isa_level, device, no_out);             \
	}                                                                              \
	static int32_t workspace_##isa(                                                \
		void *plugin, const struct moek_problem *problem, uint64_t max_tokens, \
		uint32_t workers, struct moek_buffer *buffers_out, uint32_t capacity)  \
	{                                                                              \
		(void)plugin;                                                          \
		return cpu_workspace_shapes(cpu_kernels(isa_level), problem,           \
		                            max_tokens, workers, buffers_out,          \
		                            capacity);                                 \
	}                                                                              \
	static void numerics_##isa(void *plugin, const struct moek_problem *problem,   \
	                           struct moek_numerics *numerics_out)                 \
	{                                                                              \
		(void)plugin;                                                          \
		numerics(isa_level, problem, numerics_out);                            \
	}                                                                              \
	static int32_t create_##isa(void *plugin, const struct moek_device *device,    \
	                            const struct moek_problem *problem, void *weights, \
	                            void **layer_out)                                  \
	{                                                                              \
		(void)plugin;                                                          \
		(void)device;                                                          \
		return create(isa_level, problem, weights, layer_out);                 \
	}                                                                              \
	static const struct moek_experts isa = {                                       \
		.struct_size = MOEK_EXPERTS_SIZE_1_0,                                  \
		.rank_class = (isa_level) == LEVEL_PLAIN ? MOEK_GENERIC : MOEK_NATIVE, \
		.name = #isa,                                                          \
		.understands = MOEK_ZERO_POINTS | MOEK_BIAS | MOEK_LIMIT |             \
		               MOEK_ALPHA_BETA | MOEK_NOT_GATED | MOEK_EXPERT_MAP |    \
		               MOEK_WEIGHT_ON_INPUT | MOEK_ROW_STRIDE |                \
		               MOEK_DETERMINISTIC | MOEK_PARTIAL_SUM,                  \
		.supports_device = supports_device_##isa,                              \
		.supports_quant_scheme = supports_quant_scheme,                        \
		.supports_activation = supports_activation,                            \
		.supports_parallel = supports_parallel,                                \
		.supports_shape = supports_shape,                                      \
		.problem_size = problem_size,                                          \
		.workspace_shapes = workspace_##isa,                                   \
		.finalize = finalize,                                                  \
		.numerics = numerics_##isa,                                            \
		.prepared_size = prepared_size,                                        \
		.create = create_##isa,                                                \
		.load_expert = cpu_load_expert,                                        \
		.finish = finish,                                                      \
		.forward = cpu_forward,                                                \
		.destroy = destroy,                                                    \
	};

#if defined(__x86_64__)
TABLE(amx, LEVEL_AMX)
TABLE(avx512bf16, LEVEL_AVX512BF16)
TABLE(avx512vnni, LEVEL_AVX512VNNI)
TABLE(avxvnni, LEVEL_AVXVNNI)
TABLE(avx2, LEVEL_AVX2)
#endif
TABLE(plain, LEVEL_PLAIN)

static int32_t plugin_open(const struct moek_host *host, void **plugin_out)
{
	const char *isa = host->option(host->self, "isa");
	int level = LEVELS - 1;

	if (isa != NULL && strcmp(isa, "auto") != 0)
		while (level >= 0 && strcmp(isa, cpu_level_names[level]) != 0)
			level--;
	if (level < 0) {
		host->log(host->self, 3,
		          "isa in [plugin cpu] is none of auto, amx, avx512bf16, "
		          "avx512vnni, avxvnni, avx2, plain");
		return MOEK_BAD_CONFIG;
	}
	*plugin_out = (void *)(uintptr_t)&limits[level];
	return MOEK_OK;
}

static void plugin_close(void *plugin)
{
	(void)plugin;
}

static const char *const options[] = { "isa", NULL };
static const struct moek_experts *const tables[] = {
#if defined(__x86_64__)
	&amx,   &avx512bf16, &avx512vnni, &avxvnni, &avx2,
#endif
	&plain, NULL
};

/* no isa: plain C runs on every CPU of the file's machine, and the device is asked for
 * what the others need */
#define IN_COMMON                                                                      \
	"id=cpu\nversion=0.1.0\ndevices=host\nformats=int4,int8,mxfp4,bf16,fp16,"      \
	"fp32\n"
#if defined(__x86_64__)
MOEK_PLUGIN_NOTE(
	IN_COMMON
	"class=native\nisa-run=avx2,avx_vnni,avx512_vnni,avx512_bf16,amx_tile\n");
#else
MOEK_PLUGIN_NOTE(IN_COMMON "class=generic\n");
#endif

extern MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1;
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "cpu",
	.version = "0.1.0",
	.options = options,
	.experts = tables,
	.open = plugin_open,
	.close = plugin_close,
};
