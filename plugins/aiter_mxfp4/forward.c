/* SPDX-License-Identifier: MIT */
#include "mxfp4.h"

#include <string.h>

#define INSTANCE(suffix)                                                               \
	"mxfp4_gate_up_decode_" suffix, "mxfp4_down_decode_" suffix,                   \
		"mxfp4_gate_up_tile_" suffix, "mxfp4_down_tile_" suffix

const char *const mxfp4_kernel_names[MXFP4_KERNELS + 1] = {
	"mxfp4_sort",
	"mxfp4_tiles",
	"mxfp4_reduce",
	"mxfp4_flat_begin",
	"mxfp4_flat_end",
	"mxfp4_quantise_a4_f32",
	"mxfp4_quantise_a4_f16",
	"mxfp4_quantise_a4_bf16",
	"mxfp4_quantise_a8_f32",
	"mxfp4_quantise_a8_f16",
	"mxfp4_quantise_a8_bf16",
	INSTANCE("a4"),
	INSTANCE("a8"),
	INSTANCE("f16"),
	INSTANCE("bf16"),
	NULL,
};

uint64_t mxfp4_decode_tokens(const struct moek_problem *problem)
{
	uint64_t most = MXFP4_DECODE_SLOTS / problem->top_k;

	return most < MXFP4_DECODE_TOKENS ? most : MXFP4_DECODE_TOKENS;
}

static int format_of(const struct moek_problem *problem)
{
	switch (problem->activations) {
	case MOEK_A8_FP8_STATIC:
		return MXFP4_A8;
	case MOEK_A16:
		return problem->input_type == MOEK_F16 ? MXFP4_F16 : MXFP4_BF16;
	default:
		return MXFP4_A4;
	}
}

/* ------------------------------------------------------------------------- workspace
 */

enum { QUANTISING = 1, SORTING, TILING, GATE_UP, DOWN, REDUCING };
enum {
	ACTIVATED,
	ACTIVATED_SCALES,
	QUANTISED,
	QUANTISED_SCALES,
	SLOTS,
	FLAT_IDS,
	FLAT_WEIGHTS,
	FLAT_OUTPUT,
	SORTED,
	FIRST,
	TILE_LIST,
	BUFFERS
};

int32_t mxfp4_workspace(const struct moek_problem *problem, int flat,
                        uint64_t max_tokens, struct moek_buffer *buffers_out,
                        uint32_t capacity)
{
	/* bounded by the rules of supports_shape(): no product here can overflow */
	const uint64_t tokens = max_tokens < MXFP4_CHUNK ? max_tokens : MXFP4_CHUNK;
	const uint64_t slots = tokens * problem->top_k;
	const int format = format_of(problem), a4 = format == MXFP4_A4,
		  a8 = format == MXFP4_A8;
	const uint32_t count = max_tokens <= mxfp4_decode_tokens(problem) ? SORTED
	                                                                  : BUFFERS;
	struct moek_buffer all[BUFFERS];
	struct mxfp4_layout layout;
	uint64_t in, between, few;
	uint32_t i;

	if (!mxfp4_layout(problem, &layout))
		return MOEK_BAD_ARGUMENT;
	in = (uint64_t)layout.gate_up.steps * MXFP4_STEP;
	between = (uint64_t)layout.down.steps * MXFP4_STEP;
	all[ACTIVATED] = gpu_buffer(
		"activated", a4 || a8 ? MOEK_U8 : problem->input_type,
		slots * (a4 ? between / 2 : between), GATE_UP, DOWN);
	all[ACTIVATED_SCALES] = gpu_buffer("activated_scales", MOEK_U8,
	                                   a4 ? slots * (between / MXFP4_BLOCK) : 0,
	                                   GATE_UP, DOWN);
	all[QUANTISED] = gpu_buffer("quantised", MOEK_U8,
	                            a4   ? tokens * (in / 2)
	                            : a8 ? slots * in
	                                 : 0,
	                            QUANTISING, GATE_UP);
	all[QUANTISED_SCALES] = gpu_buffer("quantised_scales", MOEK_U8,
	                                   a4 ? tokens * (in / MXFP4_BLOCK) : 0,
	                                   QUANTISING, GATE_UP);
	all[SLOTS] = gpu_buffer("slots", MOEK_F32, slots * problem->hidden, DOWN,
	                        REDUCING);
	few = tokens < AITER_MOST_TOKENS ? tokens : AITER_MOST_TOKENS;
	if (!flat)
		few = 0;
	all[FLAT_IDS] = gpu_buffer("flat_ids", MOEK_I32, few * problem->top_k, SORTING,
	                           DOWN);
	all[FLAT_WEIGHTS] = gpu_buffer("flat_weights", MOEK_F32, few * problem->top_k,
	                               SORTING, DOWN);
	/* eight bytes behind the rows are AITER's to use */
	all[FLAT_OUTPUT] = gpu_buffer("flat_output", MOEK_BF16,
	                              flat ? few * problem->hidden + 4 : 0, SORTING,
	                              REDUCING);
	all[SORTED] = gpu_buffer("sorted_slots", MOEK_I32, slots, SORTING, DOWN);
	all[FIRST] = gpu_buffer("expert_first", MOEK_I32, problem->experts_local + 2,
	                        SORTING, DOWN);
	all[TILE_LIST] = gpu_buffer("tiles", MOEK_I32,
	                            4 * gpu_most_tiles(problem, slots), TILING, DOWN);
	for (i = 0; i < count && i < capacity; i++)
		buffers_out[i] = all[i];
	return (int32_t)count;
}

/* --------------------------------------------------------------------------- kernels
 */

static void fill_args(const struct mxfp4_layer *layer, const struct moek_batch *batch,
                      struct mxfp4_args *args)
{
	const struct moek_problem *problem = &layer->problem;

	memset(args, 0, sizeof(*args));
	gpu_fill_routing(problem, batch, &args->routing);
	gpu_fill_activation(problem, &args->activation);
	args->weights = layer->weights;
	args->activated = batch->buffers[ACTIVATED];
	args->activated_scales = batch->buffers[ACTIVATED_SCALES];
	args->quantised = batch->buffers[QUANTISED];
	args->quantised_scales = batch->buffers[QUANTISED_SCALES];
	args->slots_out = batch->buffers[SLOTS];
	args->flat_ids = batch->buffers[FLAT_IDS];
	args->flat_weights = batch->buffers[FLAT_WEIGHTS];
	args->flat_output = batch->buffers[FLAT_OUTPUT];
	if (batch->buffer_count == BUFFERS) {
		args->routing.sorted = batch->buffers[SORTED];
		args->routing.first = batch->buffers[FIRST];
		args->routing.tiles = batch->buffers[TILE_LIST];
	}
	args->gate_up = layer->layout.gate_up;
	args->down = layer->layout.down;
	args->hidden = (unsigned int)problem->hidden;
	args->intermediate = (unsigned int)problem->intermediate;
	args->input_type = problem->input_type;
	args->output_type = problem->output_type;
	args->round_up = problem->activations == MOEK_A4_MXFP4_ROUND_UP;
}

struct launch {
	int kernel;
	struct gpu_grid grid;
};

static int32_t run(const struct mxfp4_layer *layer, const struct launch *launches,
                   unsigned int count, struct mxfp4_args *args, void *stream)
{
	int32_t status = MOEK_OK;
	unsigned int i;

	for (i = 0; status == MOEK_OK && i < count; i++)
		status = gpu_launch(&layer->context, layer->kernels[launches[i].kernel],
		                    &launches[i].grid, args, stream);
	return status;
}

/* what comes before both: codes of the input, if it is quantised */
static int32_t quantise(const struct mxfp4_layer *layer, struct mxfp4_args *args,
                        void *stream)
{
	const int format = format_of(&layer->problem);
	const uint64_t blocks = (uint64_t)layer->layout.gate_up.steps * 4;
	const struct launch launch = {
		MXFP4_QUANTISE + 3 * format + (int)layer->problem.input_type - MOEK_F32,
		{ format == MXFP4_A8 ? args->routing.slots : args->routing.tokens,
		  (blocks + 255) / 256, 256 }
	};

	if (format != MXFP4_A4 && format != MXFP4_A8)
		return MOEK_OK;
	return run(layer, &launch, 1, args, stream);
}

/* AITER's kernel for a batch of this size, or NULL */
static const struct aiter_kernel *find_flat(const struct mxfp4_layer *layer,
                                            const struct gpu_routing *routing)
{
	if (layer->aiter == NULL || routing->tokens > AITER_MOST_TOKENS ||
	    routing->slots > AITER_MOST_SLOTS)
		return NULL;
	return aiter_choose(layer->aiter, &layer->problem, routing->slots,
	                    layer->device.compute_units);
}

/* a whole layer in AITER's one launch, between two of ours */
static int32_t flat(const struct mxfp4_layer *layer, const struct aiter_kernel *kernel,
                    struct mxfp4_args *args, void *stream)
{
	const struct mxfp4_plane *gate_up = &layer->layout.gate_up;
	const struct mxfp4_plane *down = &layer->layout.down;
	const struct aiter_call call = {
		.output = args->flat_output,
		.input = args->input,
		.gate_up = layer->weights + gate_up->codes,
		.gate_up_scales = layer->weights + gate_up->scales,
		.down = layer->weights + down->codes,
		.down_scales = layer->weights + down->scales,
		.topk_ids = args->flat_ids,
		.topk_weights = args->flat_weights,
		.tokens = args->routing.tokens,
		.gate_up_scale_stride = gate_up->scales_bytes,
		.down_scale_stride = down->scales_bytes,
	};
	const struct launch begin = { MXFP4_FLAT_BEGIN, { 1, 1, 256 } };
	const struct launch end = { MXFP4_FLAT_END,
		                    { args->routing.tokens,
		                      (layer->problem.hidden + 255) / 256, 256 } };
	int32_t status = run(layer, &begin, 1, args, stream);

	if (status == MOEK_OK)
		status = aiter_launch(&layer->context, kernel, layer->device.ordinal,
		                      &layer->problem, &call, stream);
	return status == MOEK_OK ? run(layer, &end, 1, args, stream) : status;
}

static int32_t pass(const struct mxfp4_layer *layer, struct mxfp4_args *args,
                    void *stream)
{
	const struct moek_problem *problem = &layer->problem;
	const int first = MXFP4_INSTANCES + 4 * format_of(problem);
	const uint64_t slots = args->routing.slots, local = problem->experts_local;
	const uint64_t gate_up = layer->layout.gate_up.rows / 2 / MXFP4_PANEL;
	const uint64_t down = layer->layout.down.rows / MXFP4_DOWN_PANEL;
	const uint64_t tiles = gpu_most_tiles(problem, slots), wide = MXFP4_WAVES;
	const struct gpu_grid reduce = { args->routing.tokens,
		                         (problem->hidden + 255) / 256, 256 };
	const struct launch decode[] = {
		{ first + MXFP4_GATE_UP_DECODE, { slots, gate_up, 256 } },
		{ first + MXFP4_DOWN_DECODE, { slots, down, 256 } },
		{ MXFP4_REDUCE, reduce },
	};
	const struct launch prefill[] = {
		{ MXFP4_SORT, { local, 1, 256 } },
		{ MXFP4_TILES, { 1, 1, 256 } },
		{ first + MXFP4_GATE_UP_TILE, { tiles, gate_up / wide, 256 } },
		{ first + MXFP4_DOWN_TILE, { tiles, (down + wide - 1) / wide, 256 } },
		{ MXFP4_REDUCE, reduce },
	};
	const struct aiter_kernel *kernel = find_flat(layer, &args->routing);
	int32_t status;

	if (kernel != NULL)
		return flat(layer, kernel, args, stream);
	status = quantise(layer, args, stream);
	if (status != MOEK_OK)
		return status;
	if (args->routing.tokens <= mxfp4_decode_tokens(problem))
		return run(layer, decode, 3, args, stream);
	return run(layer, prefill, 5, args, stream);
}

int32_t mxfp4_forward(void *self, const struct moek_batch *batch)
{
	const struct mxfp4_layer *layer = self;
	const uint64_t tokens = batch->input.rows;
	struct mxfp4_args args;
	uint64_t first, some;
	int before;
	int32_t status = gpu_check_batch(&layer->context, "aiter_mxfp4",
	                                 &layer->problem, batch);

	if (status != MOEK_OK)
		return status;
	status = gpu_enter(&layer->context, layer->device.ordinal, &before);
	if (status != MOEK_OK)
		return status;
	fill_args(layer, batch, &args);
	for (first = 0; status == MOEK_OK && first < tokens; first += some) {
		some = tokens - first < MXFP4_CHUNK ? tokens - first : MXFP4_CHUNK;
		gpu_fill_tokens(&layer->problem, batch, first, some, &args.routing,
		                &args.input, &args.output);
		status = pass(layer, &args, batch->stream);
	}
	gpu_leave(&layer->context, before);
	return status;
}
