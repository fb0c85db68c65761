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

/* most tiles that `slots` can make: full ones, and a short one for each expert in use
 */
static uint64_t most_tiles(const struct moek_problem *problem, uint64_t slots)
{
	uint64_t local = problem->experts_local;

	return slots / RDNA3_TILE_TOKENS + (slots < local ? slots : local);
}

static void plan_buffer(struct moek_buffer *buffer, const char *name, uint32_t type,
                        uint64_t elements, uint32_t first_stage, uint32_t last_stage)
{
	memset(buffer, 0, sizeof(*buffer));
	buffer->name = name;
	buffer->type = type;
	buffer->elements = elements;
	buffer->align = 256;
	buffer->first_stage = first_stage;
	buffer->last_stage = last_stage;
}

int32_t rdna3_workspace(const struct moek_problem *problem, uint64_t max_tokens,
                        struct moek_buffer *buffers_out, uint32_t capacity)
{
	/* bounded by the rules of supports_shape(): no product here can overflow */
	uint64_t tokens = max_tokens < RDNA3_CHUNK ? max_tokens : RDNA3_CHUNK;
	uint64_t slots = tokens * problem->top_k;
	struct moek_buffer all[BUFFERS];
	uint32_t count = max_tokens <= rdna3_decode_tokens(problem) ? 1 : BUFFERS, i;

	plan_buffer(&all[ACTIVATED], "activated", problem->input_type,
	            slots * problem->intermediate, GATE_UP, DOWN);
	plan_buffer(&all[SLOTS], "slots", MOEK_F32, slots * problem->hidden, DOWN,
	            REDUCING);
	plan_buffer(&all[SORTED], "sorted_slots", MOEK_I32, slots, SORTING, DOWN);
	plan_buffer(&all[FIRST], "expert_first", MOEK_I32, problem->experts_local + 2,
	            SORTING, DOWN);
	plan_buffer(&all[TILE_LIST], "tiles", MOEK_I32, 4 * most_tiles(problem, slots),
	            TILING, DOWN);
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

struct grid {
	uint64_t x, y;
	unsigned int threads;
};

static int32_t launch(const struct rdna3_layer *layer, void *kernel,
                      const struct grid *grid, struct rdna3_args *args, void *stream)
{
	void *arguments[] = { args };

	if (grid->x == 0)
		return MOEK_OK;
	return gpu_status(&layer->context,
	                  layer->context.driver->launch(
				  kernel, (unsigned int)grid->x, (unsigned int)grid->y,
				  1, grid->threads, 1, 1, 0, stream, arguments, NULL),
	                  "launching a kernel");
}

static void fill_args(const struct rdna3_layer *layer, const struct moek_batch *batch,
                      struct rdna3_args *args)
{
	const struct moek_problem *problem = &layer->problem;

	memset(args, 0, sizeof(*args));
	args->expert_map = batch->expert_map;
	args->weights = layer->weights;
	args->activated = batch->buffers[ACTIVATED];
	if (batch->buffer_count == BUFFERS) {
		args->slots_out = batch->buffers[SLOTS];
		args->sorted = batch->buffers[SORTED];
		args->first = batch->buffers[FIRST];
		args->tiles = batch->buffers[TILE_LIST];
	}
	args->expert_bytes = layer->layout.expert_bytes;
	args->gate_up = layer->layout.gate_up;
	args->down = layer->layout.down;
	args->top_k = (unsigned int)problem->top_k;
	args->experts = (unsigned int)problem->experts;
	args->experts_local = (unsigned int)problem->experts_local;
	args->hidden = (unsigned int)problem->hidden;
	args->intermediate = (unsigned int)problem->intermediate;
	args->output_type = problem->output_type;
	args->activation = problem->activation;
	args->weight_on_input = (problem->must_understand & MOEK_WEIGHT_ON_INPUT) != 0;
	args->alpha = problem->alpha;
	args->beta = problem->beta;
	args->limit = problem->limit;
}

/* the part of the batch from token `first` on */
static void fill_tokens(const struct rdna3_layer *layer, const struct moek_batch *batch,
                        uint64_t first, uint64_t tokens, struct rdna3_args *args)
{
	const struct moek_problem *problem = &layer->problem;
	uint64_t out_bytes = problem->output_type == MOEK_F32 ? 4 : 2;

	args->tokens = (unsigned int)tokens;
	args->slots = (unsigned int)(tokens * problem->top_k);
	args->input = (const char *)batch->input.data + first * problem->hidden * 2;
	args->output = (char *)batch->output.data + first * problem->hidden * out_bytes;
	args->topk_ids = batch->topk_ids + first * problem->top_k;
	if (batch->topk_weights != NULL)
		args->topk_weights = batch->topk_weights + first * problem->top_k;
}

static int32_t decode(const struct rdna3_layer *layer, struct rdna3_args *args,
                      void *stream)
{
	const struct moek_problem *problem = &layer->problem;
	const struct grid gate_up = { args->slots, problem->intermediate / RDNA3_ROWS,
		                      256 };
	const struct grid down = { problem->hidden / RDNA3_ROWS, 1, 256 };
	int32_t status = launch(
		layer, find_kernel(layer, &problem->gate_up, RDNA3_GATE_UP_DECODE),
		&gate_up, args, stream);

	if (status == MOEK_OK)
		status = launch(layer,
		                find_kernel(layer, &problem->down, RDNA3_DOWN_DECODE),
		                &down, args, stream);
	return status;
}

static int32_t prefill(const struct rdna3_layer *layer, struct rdna3_args *args,
                       void *stream)
{
	const struct moek_problem *problem = &layer->problem;
	const uint64_t tiles = most_tiles(problem, args->slots);
	const uint64_t wide = RDNA3_TILE_WAVES;
	const struct {
		void *kernel;
		struct grid grid;
	} steps[] = {
		{ layer->kernels[RDNA3_SORT], { problem->experts_local, 1, 256 } },
		{ layer->kernels[RDNA3_TILES], { 1, 1, 256 } },
		{ find_kernel(layer, &problem->gate_up, RDNA3_GATE_UP_TILE),
		  { tiles, (problem->intermediate / 16 + wide - 1) / wide, 128 } },
		{ find_kernel(layer, &problem->down, RDNA3_DOWN_TILE),
		  { tiles, (problem->hidden / 32 + wide - 1) / wide, 128 } },
		{ layer->kernels[RDNA3_REDUCE],
		  { args->tokens, (problem->hidden + 255) / 256, 256 } },
	};
	int32_t status = MOEK_OK;
	unsigned int i;

	for (i = 0; status == MOEK_OK && i < sizeof(steps) / sizeof(steps[0]); i++)
		status = launch(layer, steps[i].kernel, &steps[i].grid, args, stream);
	return status;
}

/* 16-byte loads and whole elements: what an allocator of a device always gives */
static int32_t check_batch(const struct rdna3_layer *layer,
                           const struct moek_batch *batch)
{
	const struct moek_host *host = layer->context.host;
	uint64_t stride = batch->input.row_stride;

	if ((uintptr_t)batch->input.data % 16 != 0) {
		host->log(host->self, 3,
		          "rdna3: input rows are not aligned to 16 bytes");
		return MOEK_BAD_ARGUMENT;
	}
	if ((stride != 0 && stride != layer->problem.hidden) ||
	    (batch->output.row_stride != 0 &&
	     batch->output.row_stride != layer->problem.hidden)) {
		host->log(host->self, 3,
		          "rdna3: rows of input and output must be adjacent");
		return MOEK_BAD_ARGUMENT;
	}
	return MOEK_OK;
}

int32_t rdna3_forward(void *self, const struct moek_batch *batch)
{
	const struct rdna3_layer *layer = self;
	const uint64_t tokens = batch->input.rows;
	struct rdna3_args args;
	uint64_t first, some;
	int before;
	int32_t status = check_batch(layer, batch);

	if (status != MOEK_OK)
		return status;
	status = gpu_enter(&layer->context, layer->device.ordinal, &before);
	if (status != MOEK_OK)
		return status;
	fill_args(layer, batch, &args);
	if (tokens <= rdna3_decode_tokens(&layer->problem)) {
		fill_tokens(layer, batch, 0, tokens, &args);
		status = decode(layer, &args, batch->stream);
	} else {
		for (first = 0; status == MOEK_OK && first < tokens; first += some) {
			some = tokens - first < RDNA3_CHUNK ? tokens - first
			                                    : RDNA3_CHUNK;
			fill_tokens(layer, batch, first, some, &args);
			status = prefill(layer, &args, batch->stream);
		}
	}
	gpu_leave(&layer->context, before);
	return status;
}
