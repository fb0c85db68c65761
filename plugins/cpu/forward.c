/* SPDX-License-Identifier: MIT */
/*
 * One forward: pack the input, gate_up and the function, down, sum the slots. Work is
 * cut into pieces of one expert's panels, each a long contiguous stream; whoever is
 * free takes the next. Every value is computed by one task in one order, so the bits do
 * not depend on the number of workers or on who did what.
 */
#include "cpu.h"

#include <string.h>

/* Tokens of a piece: their packed rows stay in the L2 cache. */
#define CHUNK 96u
/* Weights of a piece, unless the expert has fewer. */
#define LEAST_BYTES 131072u
/* Prefetch distance within one stream. */
#define AHEAD_BYTES 12288u
/* So few tokens are packed and summed by the caller alone. */
#define FEW_TOKENS 4u
/* So many slots go to a kernel for many, where there is one. */
#define MANY_FROM (TILE + 1)
/* Tokens of a task that packs or sums. */
#define ROWS_AT_ONCE 8u

enum { PACKED_INPUT, HIDDEN, OUTPUTS, ORDER, STARTS, PIECES, GATHERED, BUFFERS };

/** Some panels of one expert for some of its slots. */
struct piece {
	uint32_t expert;
	uint32_t slots;       /* how many */
	uint64_t first_slot;  /* in order of experts */
	uint64_t first, last; /* units: steps of the hidden row, or panels of down */
};

struct run {
	const struct cpu_layer *layer;
	const struct moek_batch *batch;
	uint8_t *packed_input, *hidden;
	uint8_t *gathered; /* of each worker: the rows of a piece, side by side */
	float *outputs;    /* [tokens * top_k][padded hidden] */
	int32_t *order;    /* slots sorted by expert, then by number */
	int32_t *starts;   /* [experts_local + 1]: where an expert's slots begin */
	struct piece *pieces;
	uint64_t piece_count, piece_capacity;
	uint64_t input_bytes, hidden_bytes; /* of a packed row */
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* A line between rows keeps rows of 4096 bytes out of each other's cache sets. */
static uint64_t packed_row_bytes(const struct layout *layout,
                                 const struct packing *packing)
{
	return layout->steps * packing->step_bytes + LINE;
}

/* Room for the rows of a piece, a multiple of LINE. */
static uint64_t gathered_bytes(const struct layout *layout,
                               const struct packing *packing)
{
	return (CHUNK * packed_row_bytes(layout, packing) + LINE - 1) / LINE * LINE;
}

static uint64_t output_columns(const struct plan *plan)
{
	return plan->down.panels * ROWS;
}

/* ---- plan of the workspace ---- */

static uint64_t most_chunks(const struct moek_problem *problem, uint64_t slots)
{
	return least(problem->experts_local, slots) + slots / CHUNK;
}

static uint64_t most_pieces(const struct moek_problem *problem, uint64_t slots,
                            uint32_t workers)
{
	return most_chunks(problem, slots) + 64 * (uint64_t)workers;
}

int32_t cpu_workspace_shapes(const struct kernels *kernels,
                             const struct moek_problem *problem, uint64_t max_tokens,
                             uint32_t workers, struct moek_buffer *buffers_out,
                             uint32_t capacity)
{
	static const char *const names[BUFFERS] = {
		"packed_input", "hidden", "outputs",  "order",
		"starts",       "pieces", "gathered",
	};
	static const uint32_t types[BUFFERS] = { MOEK_U8,  MOEK_U8, MOEK_F32, MOEK_I32,
		                                 MOEK_I32, MOEK_U8, MOEK_U8 };
	static const uint32_t last_stage[BUFFERS] = { 1, 2, 3, 3, 2, 2, 1 };
	static const uint32_t first_stage[BUFFERS] = { 0, 1, 2, 0, 0, 0, 1 };
	struct packing input, hidden;
	uint64_t elements[BUFFERS], slots;
	struct plan plan;
	int overflow = 0;
	uint32_t i;

	if (!cpu_plan(problem, &plan))
		return MOEK_BAD_ARGUMENT;
	cpu_packing(&plan.gate_up, kernels, problem, &input);
	cpu_packing(&plan.down, kernels, problem, &hidden);
	slots = moek_size_multiply(max_tokens, problem->top_k, &overflow);
	elements[PACKED_INPUT] = moek_size_multiply(
		max_tokens, packed_row_bytes(&plan.gate_up, &input), &overflow);
	elements[HIDDEN] = moek_size_multiply(
		slots, packed_row_bytes(&plan.down, &hidden), &overflow);
	elements[OUTPUTS] = moek_size_multiply(slots, output_columns(&plan), &overflow);
	elements[ORDER] = slots;
	elements[STARTS] = problem->experts_local + 1;
	elements[PIECES] = moek_size_multiply(most_pieces(problem, slots, workers),
	                                      sizeof(struct piece), &overflow);
	/* a line where nothing is gathered */
	elements[GATHERED] = LINE;
	if (kernels->many[input.arithmetic][plan.gate_up.format] != NULL)
		elements[GATHERED] = gathered_bytes(&plan.gate_up, &input);
	if (overflow)
		return MOEK_BAD_ARGUMENT;
	for (i = 0; i < BUFFERS && i < capacity; i++)
		buffers_out[i] = (struct moek_buffer){
			.name = names[i],
			.elements = elements[i],
			.align = LINE,
			.type = types[i],
			.first_stage = first_stage[i],
			.last_stage = last_stage[i],
			.per_worker = i == GATHERED,
		};
	return BUFFERS;
}

/* ---- who does what ---- */

static void sort_slots(struct run *run)
{
	const int32_t *ids = run->batch->topk_ids;
	uint64_t experts = run->layer->problem.experts_local, e, i;
	uint64_t slots = run->batch->input.rows * run->layer->problem.top_k;
	int32_t *starts = run->starts, sum = 0;

	/* counts, then ends, then (as slots are placed from the back) starts */
	memset(starts, 0, (experts + 1) * sizeof(*starts));
	for (i = 0; i < slots; i++)
		if (ids[i] >= 0)
			starts[ids[i]]++;
	for (e = 0; e < experts; e++) {
		sum += starts[e];
		starts[e] = sum;
	}
	starts[experts] = sum;
	for (i = slots; i-- > 0;)
		if (ids[i] >= 0)
			run->order[--starts[ids[i]]] = (int32_t)i;
}

/* What a unit of an expert with so many slots costs: reading it, or computing it. */
static uint64_t unit_cost(uint64_t slots)
{
	return most(slots, TILE);
}

/* Slots of the next chunk when `left` are left: chunks of nearly equal size. */
static uint64_t chunk_slots(uint64_t left)
{
	uint64_t chunks = (left + CHUNK - 1) / CHUNK;

	return chunks == 0 ? 0 : (left + chunks - 1) / chunks;
}

static uint64_t total_cost(const struct run *run, uint64_t units)
{
	uint64_t experts = run->layer->problem.experts_local, cost = 0, e;

	for (e = 0; e < experts; e++) {
		uint64_t left = (uint64_t)(run->starts[e + 1] - run->starts[e]), slots;

		for (; left > 0; left -= slots) {
			slots = chunk_slots(left);
			cost += unit_cost(slots) * units;
		}
	}
	return cost;
}

/*
 * Cut the work of one GEMM into pieces, large ones first: each at most the share of
 * what is left that keeps all workers busy to the end.
 */
static void cut(struct run *run, uint64_t units, uint64_t unit_bytes)
{
	uint64_t experts = run->layer->problem.experts_local;
	uint64_t shares = run->batch->workers->count == 1
	                          ? 1
	                          : 2 * (uint64_t)run->batch->workers->count;
	uint64_t least_units = (LEAST_BYTES + unit_bytes - 1) / unit_bytes;
	uint64_t remaining = total_cost(run, units), e, done;
	uint64_t spare = run->piece_capacity -
	                 most_chunks(&run->layer->problem,
	                             (uint64_t)run->starts[experts]);

	run->piece_count = 0;
	for (e = 0; e < experts; e++) {
		uint64_t at = (uint64_t)run->starts[e];
		uint64_t left = (uint64_t)run->starts[e + 1] - at, slots;

		for (; left > 0; left -= slots, at += slots) {
			slots = chunk_slots(left);
			for (done = 0; done < units;) {
				uint64_t share = remaining / shares / unit_cost(slots);
				uint64_t take = most(share, least_units);

				/* no scraps, and all that is left when pieces run short
				 */
				if (units - done < take + least_units || spare == 0)
					take = units - done;
				else
					spare--;
				run->pieces[run->piece_count++] = (struct piece){
					.expert = (uint32_t)e,
					.slots = (uint32_t)slots,
					.first_slot = at,
					.first = done,
					.last = done + take,
				};
				done += take;
				remaining -= take * unit_cost(slots);
			}
		}
	}
}

static void each(const struct run *run, uint64_t tasks,
                 void (*body)(void *arg, uint64_t i, uint32_t worker))
{
	const struct moek_workers *workers = run->batch->workers;
	struct run copy = *run;
	uint64_t i;

	if (tasks == 1 || workers->count == 1)
		for (i = 0; i < tasks; i++)
			body(&copy, i, 0);
	else
		workers->parallel_for(workers->self, tasks, body, &copy);
}

/* ---- packing the input ---- */

static const void *row_of(const struct moek_rows *rows, uint64_t row)
{
	uint64_t stride = rows->row_stride != 0 ? rows->row_stride : rows->columns;
	uint64_t bytes = rows->type == MOEK_F32 ? 4 : 2;

	return (const uint8_t *)rows->data + row * stride * bytes;
}

static void pack_row(const struct run *run, uint64_t token)
{
	const struct cpu_layer *layer = run->layer;
	const struct moek_rows *input = &run->batch->input;
	const uint8_t *from = row_of(input, token);
	uint8_t *to = run->packed_input + token * run->input_bytes;
	uint64_t bytes = input->type == MOEK_F32 ? 4 : 2, step;
	float values[STEP];

	for (step = 0; step < layer->plan.gate_up.steps; step++) {
		uint64_t first = step * STEP, count = 0;

		if (first < input->columns)
			count = least(STEP, input->columns - first);
		if (count < STEP)
			memset(values, 0, sizeof(values));
		if (count > 0)
			layer->kernels->widen(input->type, from + first * bytes, count,
			                      values);
		layer->kernels->pack(&layer->input, values, to);
		to += layer->input.step_bytes;
	}
}

static void pack_rows(void *arg, uint64_t i, uint32_t worker)
{
	const struct run *run = arg;
	uint64_t token = i * ROWS_AT_ONCE;
	uint64_t last = least(token + ROWS_AT_ONCE, run->batch->input.rows);

	(void)worker;
	for (; token < last; token++)
		pack_row(run, token);
}

/* ---- a GEMM over a piece ---- */

/* Most slots of one kernel call. */
static uint64_t most_rows(const struct cpu_layer *layer, const struct layout *layout,
                          const struct packing *packing, uint64_t slots)
{
	return slots >= MANY_FROM && layer->kernels->many[packing->arithmetic]
	                                                 [layout->format] != NULL
	               ? MANY
	               : TILE;
}

static uint64_t tile_count(uint64_t slots, uint64_t rows)
{
	return (slots + rows - 1) / rows;
}

/* Where the tiles of a piece are cut: nearly equal, so that none has one token only,
 * and none of a kernel for many so few as another does. */
static uint64_t tile_start(uint64_t slots, uint64_t tiles, uint64_t tile)
{
	return slots * tile / tiles;
}

static void run_kernel(const struct kernels *kernels, const struct packing *packing,
                       struct panel *panel)
{
	if (panel->count > TILE)
		kernels->many[packing->arithmetic][panel->layout->format](panel);
	else
		kernels->panel[packing->arithmetic][panel->layout->format]
			      [panel->count - 1](panel);
}

/* Does the processor see by itself what a panel reads next? A kernel must read it once,
 * from the first line to the last, and hardly compute: so measured. */
static int is_stream(const struct layout *layout, const struct packing *packing,
                     uint64_t slots)
{
	if (layout->format >= ROWS_BF16)
		return slots <= TILE;
	return packing->arithmetic == BY_INT8 && slots == 1;
}

/* The stream to prefetch while a panel runs for the `nth` of `calls` times of its unit.
 */
static void set_ahead(struct panel *panel, uint64_t unit_bytes, uint64_t nth,
                      uint64_t calls, uint64_t panels)
{
	const struct layout *layout = panel->layout;
	uint64_t lines = unit_bytes / LINE, per_call, call_lines;

	if (calls == panels) { /* one tile: a little ahead in the same stream */
		panel->ahead = panel->weights + AHEAD_BYTES;
		panel->ahead_lines = (layout->panel_bytes / LINE + layout->steps - 1) /
		                     layout->steps;
		return;
	}
	/* several: the next unit, spread over the tiles of this one */
	per_call = (lines + calls - 1) / calls;
	call_lines = (per_call + layout->steps - 1) / layout->steps;
	panel->ahead = panel->weights - nth % panels * layout->panel_bytes +
	               unit_bytes + nth * call_lines * layout->steps * LINE;
	panel->ahead_lines = nth * call_lines * layout->steps < lines ? call_lines : 0;
}

static void add_bias(struct panel *panel, const float *bias, uint64_t count)
{
	uint64_t t, r;

	for (t = 0; t < count; t++)
		for (r = 0; r < ROWS; r++)
			panel->sums[t][r] += bias[r];
}

static void trace_gate_up(const struct run *run, uint64_t slot, uint64_t first,
                          const float *gate, const float *up, const float *result)
{
	const struct moek_trace *trace = run->batch->trace;
	const struct moek_problem *problem = &run->layer->problem;
	uint64_t width = problem->intermediate, i;

	for (i = 0; i < HALF && first + i < width; i++) {
		if (trace->gate_up != NULL) {
			float *row = trace->gate_up +
			             slot * width * (problem->gated ? 2 : 1);

			row[first + i] = gate[i];
			if (problem->gated)
				row[width + first + i] = up[i];
		}
		if (trace->activated != NULL)
			trace->activated[slot * width + first + i] = result[i];
	}
}

/* The function over 16 columns of one slot; columns of padding become 0. */
static void activate_half(const struct run *run, uint64_t slot, uint64_t first,
                          const float *gate, const float *up, float *to)
{
	const struct cpu_layer *layer = run->layer;
	uint64_t width = layer->problem.intermediate, i;

	layer->kernels->activate(&layer->function, gate, up, to);
	for (i = first < width ? width - first : 0; i < HALF; i++)
		to[i] = 0.0f;
	if (run->batch->trace != NULL)
		trace_gate_up(run, slot, first, gate, up, to);
}

struct unit_sums {
	struct panel panels[2]; /* the second one when gated */
};

/* The sums of a tile become one packed step of its hidden rows. */
static void finish_tile(const struct run *run, const struct piece *piece, uint64_t unit,
                        uint64_t first, uint64_t count, const struct unit_sums *sums)
{
	const struct cpu_layer *layer = run->layer;
	float values[STEP];
	uint64_t t, half;

	for (t = 0; t < count; t++) {
		uint64_t place = piece->first_slot + first + t;
		uint64_t slot = (uint64_t)run->order[place];

		for (half = 0; half < 2; half++) {
			const float *row = layer->problem.gated
			                           ? sums->panels[half].sums[t]
			                           : sums->panels[0].sums[t] +
			                                     half * HALF;

			activate_half(run, slot, unit * STEP + half * HALF, row,
			              row + HALF, values + half * HALF);
		}
		layer->kernels->pack(&layer->hidden, values,
		                     run->hidden + place * run->hidden_bytes +
		                             unit * layer->hidden.step_bytes);
	}
}

static const uint8_t *input_row(const struct run *run, uint64_t place)
{
	uint64_t slot = (uint64_t)run->order[place];

	return run->packed_input + slot / run->layer->problem.top_k * run->input_bytes;
}

/* A kernel for many rows reads them in step, again and again. */
static const uint8_t *gather(const struct run *run, const struct piece *piece,
                             uint32_t worker)
{
	const struct cpu_layer *layer = run->layer;
	uint8_t *to = run->gathered +
	              worker * gathered_bytes(&layer->plan.gate_up, &layer->input);
	uint64_t i;

	for (i = 0; i < piece->slots; i++)
		memcpy(to + i * run->input_bytes, input_row(run, piece->first_slot + i),
		       run->input_bytes);
	return to;
}

static void gate_up_piece(void *arg, uint64_t i, uint32_t worker)
{
	const struct run *run = arg;
	const struct piece *piece = &run->pieces[i];
	const struct cpu_layer *layer = run->layer;
	const struct layout *layout = &layer->plan.gate_up;
	const uint8_t *weights = layer->weights +
	                         piece->expert * layer->plan.expert_bytes;
	const float *bias = (const float *)(const void *)(weights +
	                                                  layout->panels *
	                                                          layout->panel_bytes);
	uint64_t panels = layout->gated ? 2 : 1;
	uint64_t rows = most_rows(layer, layout, &layer->input, piece->slots);
	uint64_t tiles = tile_count(piece->slots, rows);
	uint64_t unit, tile, p, t;
	int stream = is_stream(layout, &layer->input, piece->slots);
	const uint8_t *gathered = rows == MANY ? gather(run, piece, worker) : NULL;
	struct unit_sums sums;

	for (unit = piece->first; unit < piece->last; unit++)
		for (tile = 0; tile < tiles; tile++) {
			uint64_t first = tile_start(piece->slots, tiles, tile);
			uint64_t count = tile_start(piece->slots, tiles, tile + 1) -
			                 first;

			for (p = 0; p < panels; p++) {
				struct panel *panel = &sums.panels[p];
				uint64_t at = unit * panels + p;

				panel->layout = layout;
				panel->weights = weights + at * layout->panel_bytes;
				panel->count = count;
				for (t = 0; t < count; t++)
					panel->rows[t] =
						gathered != NULL
							? gathered +
								  (first +
					                           t) * run->input_bytes
							: input_row(run,
					                            piece->first_slot +
					                                    first + t);
				panel->ahead = panel->weights;
				panel->ahead_lines = 0;
				if (!stream)
					set_ahead(panel, panels * layout->panel_bytes,
					          tile * panels + p, tiles * panels,
					          panels);
				run_kernel(layer->kernels, &layer->input, panel);
				if (layout->bias)
					add_bias(panel, bias + at * ROWS, count);
			}
			finish_tile(run, piece, unit, first, count, &sums);
		}
}

static void down_piece(void *arg, uint64_t i, uint32_t worker)
{
	const struct run *run = arg;
	const struct piece *piece = &run->pieces[i];
	const struct cpu_layer *layer = run->layer;
	const struct layout *layout = &layer->plan.down;
	const uint8_t *weights = layer->weights +
	                         piece->expert * layer->plan.expert_bytes +
	                         layer->plan.gate_up.bytes;
	const float *bias = (const float *)(const void *)(weights +
	                                                  layout->panels *
	                                                          layout->panel_bytes);
	uint64_t tiles = tile_count(
		piece->slots, most_rows(layer, layout, &layer->hidden, piece->slots));
	uint64_t unit, tile, t;
	uint64_t width = output_columns(&layer->plan);
	int stream = is_stream(layout, &layer->hidden, piece->slots);
	struct panel panel;

	(void)worker;
	for (unit = piece->first; unit < piece->last; unit++)
		for (tile = 0; tile < tiles; tile++) {
			uint64_t first = piece->first_slot +
			                 tile_start(piece->slots, tiles, tile);
			uint64_t count = piece->first_slot +
			                 tile_start(piece->slots, tiles, tile + 1) -
			                 first;

			panel.layout = layout;
			panel.weights = weights + unit * layout->panel_bytes;
			panel.count = count;
			for (t = 0; t < count; t++)
				panel.rows[t] = run->hidden +
				                (first + t) * run->hidden_bytes;
			panel.ahead = panel.weights;
			panel.ahead_lines = 0;
			if (!stream)
				set_ahead(&panel, layout->panel_bytes, tile, tiles, 1);
			run_kernel(layer->kernels, &layer->hidden, &panel);
			if (layout->bias)
				add_bias(&panel, bias + unit * ROWS, count);
			for (t = 0; t < count; t++)
				memcpy(run->outputs +
				               (uint64_t)run->order[first + t] * width +
				               unit * ROWS,
				       panel.sums[t], sizeof(panel.sums[t]));
		}
}

/* ---- summing the slots ---- */

/* Not a kernel: their files fuse products with sums, and here the bits are to be those
 * of the core's sum of slots. */
static void add_slot(float weight, const float *values, float *sums)
{
	for (uint32_t i = 0; i < ROWS; i++) {
		float product = weight * values[i];

		sums[i] += product;
	}
}

static void sum_token(const struct run *run, uint64_t token)
{
	const struct moek_batch *batch = run->batch;
	const struct cpu_layer *layer = run->layer;
	uint64_t top_k = layer->problem.top_k, width = output_columns(&layer->plan);
	uint64_t bytes = batch->output.type == MOEK_F32 ? 4 : 2, column, k;
	/* the rows are the caller's to be written */
	uint8_t *to = (uint8_t *)batch->output.data +
	              ((const uint8_t *)row_of(&batch->output, token) -
	               (const uint8_t *)batch->output.data);
	float sums[ROWS];

	for (column = 0; column < layer->problem.hidden; column += ROWS) {
		memset(sums, 0, sizeof(sums));
		for (k = 0; k < top_k; k++) {
			uint64_t slot = token * top_k + k;
			const float *row = run->outputs + slot * width + column;
			float weight = batch->topk_weights != NULL
			                       ? batch->topk_weights[slot]
			                       : 1;

			if (batch->topk_ids[slot] >= 0)
				add_slot(weight, row, sums);
		}
		layer->kernels->narrow(batch->output.type, sums,
		                       least(ROWS, layer->problem.hidden - column),
		                       to + column * bytes);
	}
}

static void sum_tokens(void *arg, uint64_t i, uint32_t worker)
{
	const struct run *run = arg;
	uint64_t token = i * ROWS_AT_ONCE;
	uint64_t last = least(token + ROWS_AT_ONCE, run->batch->input.rows);

	(void)worker;
	for (; token < last; token++)
		sum_token(run, token);
}

static void trace_slots(const struct run *run)
{
	struct moek_trace *trace = run->batch->trace;
	const struct moek_problem *problem = &run->layer->problem;
	uint64_t slots = run->batch->input.rows * problem->top_k, i;
	uint64_t width = output_columns(&run->layer->plan);

	if (trace->gate_up != NULL)
		trace->filled |= MOEK_TRACE_GATE_UP;
	if (trace->activated != NULL)
		trace->filled |= MOEK_TRACE_ACTIVATED;
	if (trace->slots == NULL)
		return;
	for (i = 0; i < slots; i++)
		if (run->batch->topk_ids[i] >= 0)
			memcpy(trace->slots + i * problem->hidden,
			       run->outputs + i * width,
			       problem->hidden * sizeof(float));
	trace->filled |= MOEK_TRACE_SLOTS;
}

/* ---- the whole ---- */

static void start(struct run *run, const struct cpu_layer *layer,
                  const struct moek_batch *batch)
{
	uint64_t slots = batch->input.rows * layer->problem.top_k;

	run->layer = layer;
	run->batch = batch;
	run->packed_input = batch->buffers[PACKED_INPUT];
	run->hidden = batch->buffers[HIDDEN];
	run->outputs = batch->buffers[OUTPUTS];
	run->order = batch->buffers[ORDER];
	run->starts = batch->buffers[STARTS];
	run->pieces = batch->buffers[PIECES];
	run->gathered = batch->buffers[GATHERED];
	run->piece_count = 0;
	run->piece_capacity = most_pieces(&layer->problem, slots,
	                                  batch->workers->count);
	run->input_bytes = packed_row_bytes(&layer->plan.gate_up, &layer->input);
	run->hidden_bytes = packed_row_bytes(&layer->plan.down, &layer->hidden);
}

/* All rows: by the caller when they are too few to share. */
static void each_row(const struct run *run,
                     void (*rows)(void *arg, uint64_t i, uint32_t worker))
{
	struct run copy = *run;
	uint64_t tokens = run->batch->input.rows;

	if (tokens <= FEW_TOKENS)
		rows(&copy, 0, 0);
	else
		each(run, (tokens + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, rows);
}

int32_t cpu_forward(void *layer_, const struct moek_batch *batch)
{
	const struct cpu_layer *layer = layer_;
	const struct plan *plan = &layer->plan;
	struct run run;

	if (batch->buffer_count < BUFFERS || batch->workers == NULL ||
	    batch->workers->count == 0)
		return MOEK_BAD_ARGUMENT;
	start(&run, layer, batch);
	each_row(&run, pack_rows);
	sort_slots(&run);
	cut(&run, plan->down.steps,
	    plan->gate_up.panel_bytes * (plan->gate_up.gated ? 2 : 1));
	each(&run, run.piece_count, gate_up_piece);
	cut(&run, plan->down.panels, plan->down.panel_bytes);
	each(&run, run.piece_count, down_piece);
	each_row(&run, sum_tokens);
	if (batch->trace != NULL)
		trace_slots(&run);
	return MOEK_OK;
}
