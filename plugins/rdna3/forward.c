/* SPDX-License-Identifier: MIT */
#include "rdna3.h"

#include <string.h>

#define INSTANCE(suffix)                                                               \
	"rdna3_gate_up_decode_" suffix, "rdna3_down_decode_" suffix,                   \
		"rdna3_gate_up_tile_" suffix, "rdna3_down_tile_" suffix

/* format (int4, int4 with zero points, mxfp4) times type (fp16, bf16) */
const char *const rdna3_kernel_names[RDNA3_KERNELS + 1] = {
	"rdna3_sort",
	"rdna3_tiles",
	"rdna3_reduce",
	INSTANCE("int4_f16"),
	INSTANCE("int4_bf16"),
	INSTANCE("int4_zeros_f16"),
	INSTANCE("int4_zeros_bf16"),
	INSTANCE("mxfp4_f16"),
	INSTANCE("mxfp4_bf16"),
	NULL,
};

uint64_t rdna3_decode_tokens(const struct moek_problem *problem)
{
	uint64_t most = RDNA3_DECODE_SLOTS / problem->top_k;

	return most < RDNA3_DECODE_TOKENS ? most : RDNA3_DECODE_TOKENS;
}

/* ------------------------------------------------------------------------- workspace
 */

enum { SORTING = 1, TILING, GATE_UP, DOWN, REDUCING };
enum { ACTIVATED, SLOTS, SORTED, FIRST, TILE_LIST, BUFFERS };

int32_t rdna3_workspace(const struct moek_problem *problem, uint64_t max_tokens,
                        struct moek_buffer *buffers_out, uint32_t capacity)
{
	/* bounded by the rules of supports_shape(): no product here can overflow */
	uint64_t tokens = max_tokens < RDNA3_CHUNK ? max_tokens : RDNA3_CHUNK;
	uint64_t slots = tokens * problem->top_k;
	struct moek_buffer all[BUFFERS];
	uint32_t count = max_tokens <= rdna3_decode_tokens(problem) ? 1 : BUFFERS, i;

	all[ACTIVATED] = gpu_buffer("activated", problem->input_type,
	                            slots * problem->intermediate, GATE_UP, DOWN);
	all[SLOTS] = gpu_buffer("slots", MOEK_F32, slots * problem->hidden, DOWN,
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

static int format_of(const struct moek_scheme *scheme)
{
	if (scheme->weight == MOEK_MXFP4)
		return RDNA3_MXFP4;
	return scheme->zero_points ? RDNA3_INT4_ZEROS : RDNA3_INT4;
}

static void *find_kernel(const struct rdna3_layer *layer,
                         const struct moek_scheme *scheme, int which)
{
	int instance = 2 * format_of(scheme) + (layer->problem.input_type == MOEK_BF16);

	return layer->kernels[RDNA3_INSTANCES + 4 * instance + which];
}

static void fill_args(const struct rdna3_layer *layer, const struct moek_batch *batch,
                      struct rdna3_args *args)
{
	const struct moek_problem *problem = &layer->problem;

	memset(args, 0, sizeof(*args));
	gpu_fill_routing(problem, batch, &args->routing);
	gpu_fill_activation(problem, &args->activation);
	args->weights = layer->weights;
	args->activated = batch->buffers[ACTIVATED];
	if (batch->buffer_count == BUFFERS) {
		args->slots_out = batch->buffers[SLOTS];
		args->routing.sorted = batch->buffers[SORTED];
		args->routing.first = batch->buffers[FIRST];
		args->routing.tiles = batch->buffers[TILE_LIST];
	}
	args->expert_bytes = layer->layout.expert_bytes;
	args->gate_up = layer->layout.gate_up;
	args->down = layer->layout.down;
	args->hidden = (unsigned int)problem->hidden;
	args->intermediate = (unsigned int)problem->intermediate;
	args->output_type = problem->output_type;
}

static int32_t decode(const struct rdna3_layer *layer, struct rdna3_args *args,
                      void *stream)
{
	const struct moek_problem *problem = &layer->problem;
	const struct gpu_grid gate_up = { args->routing.slots,
		                          problem->intermediate / RDNA3_ROWS, 256 };
	const struct gpu_grid down = { problem->hidden / RDNA3_ROWS, 1, 256 };
	int32_t status = gpu_launch(
		&layer->context,
		find_kernel(layer, &problem->gate_up, RDNA3_GATE_UP_DECODE), &gate_up,
		args, stream);

	if (status == MOEK_OK)
		status = gpu_launch(
			&layer->context,
			find_kernel(layer, &problem->down, RDNA3_DOWN_DECODE), &down,
			args, stream);
	return status;
}

static int32_t prefill(const struct rdna3_layer *layer, struct rdna3_args *args,
                       void *stream)
{
	const struct moek_problem *problem = &layer->problem;
	const uint64_t tiles = gpu_most_tiles(problem, args->routing.slots);
	const uint64_t wide = RDNA3_TILE_WAVES;
	const struct {
		void *kernel;
		struct gpu_grid grid;
	} steps[] = {
		{ layer->kernels[RDNA3_SORT], { problem->experts_local, 1, 256 } },
		{ layer->kernels[RDNA3_TILES], { 1, 1, 256 } },
		{ find_kernel(layer, &problem->gate_up, RDNA3_GATE_UP_TILE),
		  { tiles, (problem->intermediate / 16 + wide - 1) / wide, 128 } },
		{ find_kernel(layer, &problem->down, RDNA3_DOWN_TILE),
		  { tiles, (problem->hidden / 32 + wide - 1) / wide, 128 } },
		{ layer->kernels[RDNA3_REDUCE],
		  { args->routing.tokens, (problem->hidden + 255) / 256, 256 } },
	};
	int32_t status = MOEK_OK;
	unsigned int i;

	for (i = 0; status == MOEK_OK && i < sizeof(steps) / sizeof(steps[0]); i++)
		status = gpu_launch(&layer->context, steps[i].kernel, &steps[i].grid,
		                    args, stream);
	return status;
}

int32_t rdna3_forward(void *self, const struct moek_batch *batch)
{
	const struct rdna3_layer *layer = self;
	const uint64_t tokens = batch->input.rows;
	struct rdna3_args args;
	uint64_t first, some;
	int before;
	int32_t status = gpu_check_batch(&layer->context, "rdna3", &layer->problem,
	                                 batch);

	if (status != MOEK_OK)
		return status;
	status = gpu_enter(&layer->context, layer->device.ordinal, &before);
	if (status != MOEK_OK)
		return status;
	fill_args(layer, batch, &args);
	if (tokens <= rdna3_decode_tokens(&layer->problem)) {
		gpu_fill_tokens(&layer->problem, batch, 0, tokens, &args.routing,
		                &args.input, &args.output);
		status = decode(layer, &args, batch->stream);
	} else {
		for (first = 0; status == MOEK_OK && first < tokens; first += some) {
			some = tokens - first < RDNA3_CHUNK ? tokens - first
			                                    : RDNA3_CHUNK;
			gpu_fill_tokens(&layer->problem, batch, first, some,
			                &args.routing, &args.input, &args.output);
			status = prefill(layer, &args, batch->stream);
		}
	}
	gpu_leave(&layer->context, before);
	return status;
}
