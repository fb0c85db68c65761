/* SPDX-License-Identifier: MIT */
/* Emulation, built in under another name, with a fault of the kind that outputs of
 * single layers hide well: [plugin damaged] fault =
 *
 *   none      none: the same numbers as emulation
 *   dropped   expert 3 of every layer adds nothing
 *   zero      the zero point of int4 weights is one too low: code - 7 for code - 8
 *   swapped   gate and up rows change places
 *   no_zeros  zero points are not looked at
 *   no_limit  the limit is not looked at
 *   lies      create() says no after five yeses
 *   past      forward() writes before its first buffer
 *   input     forward() changes its input
 *   crashes   forward() aborts
 *   hangs     forward() does not come back
 *   rounds    forward() leaves the thread rounding upwards
 *   flushes   forward() leaves it flushing small numbers to 0, where that is known */
#include <moek/experts.h>

#include <fenv.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/** plugins/emulation/plugin.c, compiled with its symbol renamed. */
extern const struct moek_plugin moek_emulation_v1;

static enum fault {
	NONE,
	DROPPED,
	ZERO,
	SWAPPED,
	NO_ZEROS,
	NO_LIMIT,
	LIES,
	PAST,
	INPUT,
	CRASHES,
	HANGS,
	ROUNDS,
	FLUSHES,
	FAULTS
} fault;
static const char *const faults[FAULTS] = { "none",     "dropped",  "zero",  "swapped",
	                                    "no_zeros", "no_limit", "lies",  "past",
	                                    "input",    "crashes",  "hangs", "rounds",
	                                    "flushes" };

static const struct moek_experts *sound(void)
{
	return moek_emulation_v1.experts[0];
}

static int32_t supports_device(void *plugin, const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	return sound()->supports_device(plugin, device, no_out);
}

static int32_t supports_quant_scheme(void *plugin, const struct moek_problem *problem,
                                     struct moek_verdict *no_out)
{
	return sound()->supports_quant_scheme(plugin, problem, no_out);
}

static int32_t supports_activation(void *plugin, const struct moek_problem *problem,
                                   struct moek_verdict *no_out)
{
	return sound()->supports_activation(plugin, problem, no_out);
}

static int32_t supports_parallel(void *plugin, const struct moek_problem *problem,
                                 struct moek_verdict *no_out)
{
	return sound()->supports_parallel(plugin, problem, no_out);
}

static int32_t supports_shape(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	return sound()->supports_shape(plugin, problem, no_out);
}

static void problem_size(void *plugin, const struct moek_problem *problem,
                         struct moek_sizes *sizes_out)
{
	sound()->problem_size(plugin, problem, sizes_out);
}

static int32_t workspace_shapes(void *plugin, const struct moek_problem *problem,
                                uint64_t max_tokens, uint32_t workers,
                                struct moek_buffer *buffers_out, uint32_t capacity)
{
	return sound()->workspace_shapes(plugin, problem, max_tokens, workers,
	                                 buffers_out, capacity);
}

static uint32_t finalize(void *plugin, const struct moek_problem *problem,
                         uint64_t tokens)
{
	return sound()->finalize(plugin, problem, tokens);
}

static void numerics(void *plugin, const struct moek_problem *problem,
                     struct moek_numerics *numerics_out)
{
	sound()->numerics(plugin, problem, numerics_out);
}

static uint64_t prepared_size(void *plugin, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	return sound()->prepared_size(plugin, problem, align_out);
}

struct damaged {
	void *layer; /* emulation's */
	uint64_t top_k;
};

static int32_t create(void *plugin, const struct moek_device *device,
                      const struct moek_problem *problem, void *weights,
                      void **layer_out)
{
	struct damaged *damaged = malloc(sizeof(*damaged));
	struct moek_problem other = *problem;
	int32_t status;

	if (fault == LIES) {
		free(damaged);
		return MOEK_REFUSED;
	}
	if (fault == NO_LIMIT)
		other.limit = 0;
	if (damaged == NULL)
		return MOEK_NO_MEMORY;
	damaged->top_k = problem->top_k;
	status = sound()->create(plugin, device, &other, weights, &damaged->layer);
	if (status != MOEK_OK) {
		free(damaged);
		return status;
	}
	*layer_out = damaged;
	return MOEK_OK;
}

/* One code up is one zero point down, but for the highest code, which stays. */
static uint8_t *raise_codes(struct moek_matrix *matrix)
{
	const uint8_t *codes = matrix->codes;
	uint64_t bytes = matrix->rows * ((matrix->columns + 1) / 2);
	uint8_t *raised = malloc(bytes);

	if (raised == NULL)
		abort();
	for (uint64_t i = 0; i < bytes; i++) {
		uint32_t low = codes[i] & 15u, high = codes[i] >> 4;

		low += low < 15;
		high += high < 15;
		raised[i] = (uint8_t)(high << 4 | low);
	}
	matrix->codes = raised;
	return raised;
}

/* As if all were symmetric. */
static uint8_t *level_zeros(struct moek_matrix *matrix)
{
	uint64_t groups = (matrix->columns - 1) / matrix->group_size + 1;
	uint8_t *zeros = malloc(matrix->rows * groups);

	if (zeros == NULL)
		abort();
	memset(zeros, 8, matrix->rows * groups);
	matrix->zeros = zeros;
	return zeros;
}

static int32_t load_expert(void *layer, uint64_t local,
                           const struct moek_expert *expert)
{
	const struct damaged *damaged = layer;
	struct moek_expert other = *expert;
	uint8_t *raised[3] = { NULL };
	int32_t status;

	if (fault == ZERO && expert->gate.weight == MOEK_INT4) {
		raised[0] = raise_codes(&other.gate);
		raised[1] = raise_codes(&other.up);
		raised[2] = raise_codes(&other.down);
	}
	if (fault == SWAPPED && other.up.rows != 0) {
		other.gate = expert->up;
		other.up = expert->gate;
	}
	if (fault == NO_ZEROS && expert->gate.zeros != NULL) {
		raised[0] = level_zeros(&other.gate);
		raised[1] = level_zeros(&other.up);
		raised[2] = level_zeros(&other.down);
	}
	status = sound()->load_expert(damaged->layer, local, &other);
	for (int i = 0; i < 3; i++)
		free(raised[i]);
	return status;
}

static int32_t finish(void *layer)
{
	const struct damaged *damaged = layer;

	return sound()->finish(damaged->layer);
}

/** What there is to do beside the forward. */
static void misbehave(const struct moek_batch *batch)
{
	if (fault == PAST && batch->buffer_count != 0)
		((unsigned char *)batch->buffers[0])[-1] ^= 1;
	if (fault == INPUT)
		*(unsigned char *)batch->input.data ^= 1;
	if (fault == CRASHES)
		abort();
	while (fault == HANGS)
		pause();
	if (fault == ROUNDS)
		fesetround(FE_UPWARD);
#ifdef __SSE__
	if (fault == FLUSHES)
		__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8000);
#endif
}

static int32_t forward(void *layer, const struct moek_batch *batch)
{
	const struct damaged *damaged = layer;
	struct moek_batch other = *batch;
	uint64_t count = batch->input.rows * damaged->top_k;
	int32_t *ids, status;

	misbehave(batch);
	if (fault != DROPPED)
		return sound()->forward(damaged->layer, batch);
	ids = malloc(count * sizeof(*ids));
	if (ids == NULL)
		abort();
	for (uint64_t i = 0; i < count; i++)
		ids[i] = batch->topk_ids[i] == 3 ? -1 : batch->topk_ids[i];
	other.topk_ids = ids;
	status = sound()->forward(damaged->layer, &other);
	free(ids);
	return status;
}

static void destroy(void *layer)
{
	struct damaged *damaged = layer;

	sound()->destroy(damaged->layer);
	free(damaged);
}

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	const char *name = host->option(host->self, "fault");

	if (name == NULL)
		name = "none";
	fault = NONE;
	for (int i = 0; i < FAULTS; i++)
		if (strcmp(faults[i], name) == 0)
			fault = (enum fault)i;
	return moek_emulation_v1.open(host, plugin_out);
}

static void close_plugin(void *plugin)
{
	moek_emulation_v1.close(plugin);
}

static const struct moek_experts any = {
	.struct_size = MOEK_EXPERTS_SIZE_1_0,
	.rank_class = MOEK_NATIVE,
	.name = "any",
	.understands = MOEK_ZERO_POINTS | MOEK_BIAS | MOEK_LIMIT | MOEK_ALPHA_BETA,
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

static const struct moek_experts *const experts[] = { &any, NULL };
static const char *const options[] = { "fault", NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "damaged",
	.version = "0",
	.options = options,
	.experts = experts,
	.open = open_plugin,
	.close = close_plugin,
};
