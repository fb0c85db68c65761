/* SPDX-License-Identifier: MIT */
/*
 * Four stages: the input as fp32 and the slots sorted by expert; gate_up and
 * activation; down; the weighted sum. A task of the two middle ones is one tile of
 * tokens of one expert times one block of outputs. How the work is cut never changes
 * the order of a sum.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "emulation.h"
#include "kernels.h"

struct run {
	const struct layer *layer;
	const struct moek_batch *batch;
	uint64_t first, tokens; /* of the batch, this time */
	float *input;           /* [tokens][hidden] */
	int32_t *order;         /* routed slots, by expert, ascending within one */
	int32_t *starts;        /* [experts_local + 1] */
	int32_t *tiles;         /* [tile_count][3]: expert, first in order, count */
	uint64_t tile_count;
	float *activated; /* [tokens * top_k][intermediate] */
	float *slots;     /* [tokens * top_k][hidden] */
	bool magnitudes;  /* sums of magnitudes in place of values */
};

int32_t plan_workspace(const struct moek_problem *problem, uint64_t max_tokens,
                       struct moek_buffer *buffers_out)
{
	uint64_t tokens = max_tokens < CHUNK_TOKENS ? max_tokens : CHUNK_TOKENS;
	int overflow = 0;
	uint64_t slots = moek_size_multiply(tokens, problem->top_k, &overflow);
	const struct moek_buffer plan[BUFFERS] = {
		[BUFFER_INPUT] = { "input",
		                   moek_size_multiply(tokens, problem->hidden,
		                                      &overflow),
		                   64, MOEK_F32, 0, 1, 0, 0, 0 },
		[BUFFER_ORDER] = { "order", slots, 64, MOEK_I32, 0, 2, 0, 0, 0 },
		[BUFFER_STARTS] = { "starts", problem->experts_local + 1, 64, MOEK_I32,
		                    0, 2, 0, 0, 0 },
		[BUFFER_TILES] = { "tiles", moek_size_multiply(slots, 3, &overflow), 64,
		                   MOEK_I32, 0, 2, 0, 0, 0 },
		[BUFFER_ACTIVATED] = { "activated",
		                       moek_size_multiply(slots, problem->intermediate,
		                                          &overflow),
		                       64, MOEK_F32, 1, 3, 0, 0, 0 },
		[BUFFER_SLOTS] = { "slots",
		                   moek_size_multiply(slots, problem->hidden,
		                                      &overflow),
		                   64, MOEK_F32, 2, 3, 0, 0, 0 },
		[BUFFER_COLUMNS] = { "columns", TILE_TOKENS * PANEL_COLUMNS, 64,
		                     MOEK_F32, 1, 2, 0, 1, 0 },
		[BUFFER_PANEL] = { "panel", PANEL_ROWS * PANEL_COLUMNS, 64, MOEK_F32, 1,
		                   2, 0, 1, 0 },
		[BUFFER_SUMS] = { "sums", 4 * TILE_ROWS * TILE_TOKENS, 64, MOEK_F32, 1,
		                  2, 0, 1, 0 },
	};
	uint64_t i;

	for (i = 0; i < BUFFERS; i++)
		moek_size_multiply(plan[i].elements, 4, &overflow);
	if (overflow)
		return MOEK_BAD_ARGUMENT;
	memcpy(buffers_out, plan, sizeof(plan));
	return BUFFERS;
}

/* A worker's copy of a buffer whose size is a multiple of its alignment. */
static float *scratch(const struct run *run, enum buffer buffer, uint32_t worker,
                      uint64_t elements)
{
	return (float *)run->batch->buffers[buffer] + worker * elements;
}

static void parallel(const struct run *run, uint64_t tasks,
                     void (*body)(void *arg, uint64_t i, uint32_t worker))
{
	const struct moek_workers *workers = run->batch->workers;

	if (tasks != 0)
		workers->parallel_for(workers->self, tasks, body,
		                      (void *)(uintptr_t)run);
}

static uint64_t stride(const struct moek_rows *rows)
{
	return rows->row_stride != 0 ? rows->row_stride : rows->columns;
}

/* Expert of a slot of this run, or -1. */
static int32_t expert_of(const struct run *run, uint64_t slot)
{
	const struct moek_problem *problem = &run->layer->problem;
	int32_t id = run->batch->topk_ids[run->first * problem->top_k + slot];

	return id >= 0 && (uint64_t)id < problem->experts_local ? id : -1;
}

/* ---- stage 0 ---- */

static void prepare_token(void *arg, uint64_t token, uint32_t worker)
{
	const struct run *run = arg;
	const struct moek_problem *problem = &run->layer->problem;
	const struct moek_rows *input = &run->batch->input;
	float *row = run->input + token * problem->hidden;

	(void)worker;
	widen(problem->input_type, input->data, (run->first + token) * stride(input),
	      problem->hidden, row);
	if (problem->activations != MOEK_A8_FP8_STATIC) /* its scale is the expert's */
		quantise(problem, row, problem->hidden, 0.0f);
}

/* A stable counting sort: each expert's slots, ascending; then tiles of at most
 * TILE_TOKENS of them. */
static void sort_slots(struct run *run)
{
	const struct moek_problem *problem = &run->layer->problem;
	uint64_t slots = run->tokens * problem->top_k, slot, e;
	int32_t *starts = run->starts, at, end;

	memset(starts, 0, (problem->experts_local + 1) * sizeof(*starts));
	for (slot = 0; slot < slots; slot++)
		starts[expert_of(run, slot) + 1]++; /* the unrouted are counted first */
	starts[0] = 0;
	for (e = 0; e < problem->experts_local; e++)
		starts[e + 1] += starts[e];
	for (slot = 0; slot < slots; slot++)
		if (expert_of(run, slot) >= 0)
			run->order[starts[expert_of(run, slot)]++] = (int32_t)slot;

	/* starts[e] is now where e ends */
	run->tile_count = 0;
	for (e = 0, at = 0; e < problem->experts_local; e++)
		for (end = starts[e]; at < end;) {
			int32_t *tile = run->tiles + 3 * run->tile_count++;
			int32_t count = end - at < TILE_TOKENS ? end - at : TILE_TOKENS;

			tile[0] = (int32_t)e;
			tile[1] = at;
			tile[2] = count;
			at += count;
		}
}

/* ---- stages 1 and 2 ---- */

/** One tile of tokens by one block of outputs. */
struct task {
	const struct run *run;
	uint64_t expert, tokens; /* of the tile */
	const int32_t *slots;    /* [tokens] */
	uint64_t row, rows;      /* the outputs */
	struct matrix matrices[2];
	int count;           /* of matrices: they share the input */
	const float *source; /* the input: row slot / divisor of `columns` columns */
	uint64_t divisor;
	bool quantise; /* the input is to be quantised by this expert's scale */
	float *columns, *panel, *sums;
};

static void view(const struct layer *layer, const struct moek_scheme *scheme,
                 const struct layout *l, const uint8_t *at, struct matrix *matrix_out)
{
	const struct matrix m = {
		.weight = scheme->weight,
		.scale = scheme->scale,
		.rows = l->rows,
		.columns = l->columns,
		.row_bytes = l->row_bytes,
		.groups = l->groups,
		.group_size = l->group_size,
		.codes = at + l->codes,
		.zeros = scheme->zero_points ? at + l->zeros : NULL,
		.scales = at + l->scales,
		.column_group = scheme->column_groups
		                        ? (const void *)(at + l->column_group)
		                        : NULL,
		.bias = scheme->bias ? (const void *)(at + l->bias) : NULL,
	};

	(void)layer;
	*matrix_out = m;
	memcpy(&matrix_out->input_scale, at, sizeof(matrix_out->input_scale));
}

static void start_task(const struct run *run, uint64_t i, uint64_t rows,
                       uint32_t worker, struct task *task_out)
{
	uint64_t blocks = (rows - 1) / TILE_ROWS + 1, row = i % blocks * TILE_ROWS;
	const int32_t *tile = run->tiles + 3 * (i / blocks);
	const struct task task = {
		.run = run,
		.expert = (uint64_t)tile[0],
		.tokens = (uint64_t)tile[2],
		.slots = run->order + tile[1],
		.row = row,
		.rows = rows - row < TILE_ROWS ? rows - row : TILE_ROWS,
		.columns = scratch(run, BUFFER_COLUMNS, worker,
		                   TILE_TOKENS * PANEL_COLUMNS),
		.panel = scratch(run, BUFFER_PANEL, worker, PANEL_ROWS * PANEL_COLUMNS),
		.sums = scratch(run, BUFFER_SUMS, worker, 4 * TILE_ROWS * TILE_TOKENS),
	};

	*task_out = task;
}

/* Columns first .. first+count-1 of the tile's input, LANES tokens side by side. */
static void gather(const struct task *task, uint64_t first, uint64_t count,
                   bool absolute)
{
	const struct moek_problem *problem = &task->run->layer->problem;
	const struct matrix *m = &task->matrices[0];
	uint64_t lanes = (task->tokens + LANES - 1) / LANES * LANES, t, k;
	float row[PANEL_COLUMNS];

	for (t = 0; t < lanes; t++) {
		float *to = task->columns + t / LANES * PANEL_COLUMNS * LANES +
		            t % LANES;

		if (t < task->tokens)
			memcpy(row,
			       task->source +
			               (uint64_t)task->slots[t] / task->divisor *
			                       m->columns +
			               first,
			       count * sizeof(*row));
		else
			memset(row, 0, sizeof(row));
		if (task->quantise)
			quantise(problem, row, count, m->input_scale);
		for (k = 0; k < count; k++)
			to[k * LANES] = absolute ? fabsf(row[k]) : row[k];
	}
}

static void fill_panel(const struct task *task, const struct matrix *m, uint64_t row,
                       const uint64_t columns[2], bool absolute)
{
	uint64_t last = task->row + task->rows, i, k;

	for (i = 0; i < PANEL_ROWS; i++) {
		float *to = task->panel + i * PANEL_COLUMNS;

		/* past the last row: something finite, which nobody reads */
		dequantise(m, row + i < last ? row + i : last - 1, columns[0],
		           columns[1], to);
		for (k = 0; absolute && k < columns[1]; k++)
			to[k] = fabsf(to[k]);
	}
}

/* sums[matrix][row][token]: the sum over the columns, in their order, from +0. */
static void multiply(const struct task *task, bool absolute, float *sums)
{
	uint64_t columns[2], row, t;
	int i;

	memset(sums, 0, (size_t)task->count * TILE_ROWS * TILE_TOKENS * sizeof(*sums));
	for (columns[0] = 0; columns[0] < task->matrices[0].columns;
	     columns[0] += columns[1]) {
		columns[1] = task->matrices[0].columns - columns[0];
		columns[1] = columns[1] < PANEL_COLUMNS ? columns[1] : PANEL_COLUMNS;
		gather(task, columns[0], columns[1], absolute);
		for (i = 0; i < task->count; i++)
			for (row = 0; row < task->rows; row += PANEL_ROWS) {
				float *to = sums + ((uint64_t)i * TILE_ROWS + row) *
				                           TILE_TOKENS;

				fill_panel(task, &task->matrices[i], task->row + row,
				           columns, absolute);
				for (t = 0; t < task->tokens; t += LANES) {
					const float *x = task->columns +
					                 t * PANEL_COLUMNS;

					if (task->tokens - t > LANES / 2)
						multiply_block(task->panel, x,
						               columns[1], to + t);
					else
						multiply_half_block(task->panel, x,
						                    columns[1], to + t);
				}
			}
	}
}

static float bias(const struct matrix *m, uint64_t row)
{
	return m->bias != NULL ? m->bias[row] : 0.0f;
}

/* z = W x + b of one slot and one output. */
static float finished(const struct task *task, const float *sums, int i, uint64_t r,
                      uint64_t t)
{
	return sums[((uint64_t)i * TILE_ROWS + r) * TILE_TOKENS + t] +
	       bias(&task->matrices[i], task->row + r);
}

static float finished_magnitude(const struct task *task, const float *sums, int i,
                                uint64_t r, uint64_t t)
{
	return sums[((uint64_t)i * TILE_ROWS + r) * TILE_TOKENS + t] +
	       fabsf(bias(&task->matrices[i], task->row + r));
}

/* |a| + |df/dg| Sg + |df/du| Su, from the activated value that lies there. */
static float activated_magnitude(const struct task *task, const float z[2], uint64_t r,
                                 uint64_t t, float activated)
{
	const struct moek_problem *problem = &task->run->layer->problem;
	const float *sums = task->sums + 2 * TILE_ROWS * TILE_TOKENS;
	float slope[2], size = fabsf(activated);
	int i;

	slopes(problem, z[0], z[1], &slope[0], &slope[1]);
	for (i = 0; i < task->count; i++)
		size += slope[i] * finished_magnitude(task, sums, i, r, t);
	return size;
}

static void trace_gate_up(const struct task *task, uint64_t slot, uint64_t r,
                          const float z[2])
{
	const struct run *run = task->run;
	const struct moek_trace *trace = run->batch->trace;
	const struct moek_problem *problem = &run->layer->problem;
	uint64_t width = problem->intermediate * (uint64_t)task->count;
	int i;

	if (trace == NULL || trace->gate_up == NULL)
		return;
	slot += run->first * problem->top_k;
	for (i = 0; i < task->count; i++)
		trace->gate_up[slot * width + (uint64_t)i * problem->intermediate +
		               task->row + r] = z[i];
}

static void finish_gate_up(const struct task *task)
{
	const struct run *run = task->run;
	const struct moek_problem *problem = &run->layer->problem;
	uint64_t r, t;

	for (t = 0; t < task->tokens; t++) {
		uint64_t slot = (uint64_t)task->slots[t];
		float *to = run->activated + slot * problem->intermediate + task->row;

		for (r = 0; r < task->rows; r++) {
			float z[2] = { finished(task, task->sums, 0, r, t), 0.0f };

			if (task->count > 1)
				z[1] = finished(task, task->sums, 1, r, t);
			if (run->magnitudes) {
				to[r] = activated_magnitude(task, z, r, t, to[r]);
				continue;
			}
			trace_gate_up(task, slot, r, z);
			to[r] = activate(problem, z[0], z[1]);
			if (problem->activations == MOEK_A16)
				to[r] = round_to(problem->input_type, to[r]);
		}
	}
}

static void gate_up_task(void *arg, uint64_t i, uint32_t worker)
{
	const struct run *run = arg;
	const struct layer *layer = run->layer;
	const struct moek_problem *problem = &layer->problem;
	const uint8_t *at;
	struct task task;

	start_task(run, i, problem->intermediate, worker, &task);
	at = layer->weights + task.expert * layer->expert_bytes;
	view(layer, &problem->gate_up, &layer->gate_up, at, &task.matrices[0]);
	task.count = 1;
	if (problem->gated)
		view(layer, &problem->gate_up, &layer->gate_up,
		     at + layer->gate_up.bytes, &task.matrices[task.count++]);
	task.source = run->input;
	task.divisor = problem->top_k;
	task.quantise = problem->activations == MOEK_A8_FP8_STATIC;
	multiply(&task, false, task.sums);
	if (run->magnitudes)
		multiply(&task, true, task.sums + 2 * TILE_ROWS * TILE_TOKENS);
	finish_gate_up(&task);
}

static const uint8_t *down_of(const struct layer *layer, uint64_t expert)
{
	return layer->weights + expert * layer->expert_bytes +
	       layer->gate_up.bytes * (layer->problem.gated ? 2 : 1);
}

/* A whole row, since its blocks may lie across the tasks that made it. */
static void quantise_slot(void *arg, uint64_t slot, uint32_t worker)
{
	const struct run *run = arg;
	const struct layer *layer = run->layer;
	const struct moek_problem *problem = &layer->problem;
	int32_t expert = expert_of(run, slot);
	float input_scale;

	(void)worker;
	if (expert < 0)
		return;
	memcpy(&input_scale, down_of(layer, (uint64_t)expert), sizeof(input_scale));
	quantise(problem, run->activated + slot * problem->intermediate,
	         problem->intermediate, input_scale);
}

static void down_task(void *arg, uint64_t i, uint32_t worker)
{
	const struct run *run = arg;
	const struct layer *layer = run->layer;
	const struct moek_problem *problem = &layer->problem;
	struct task task;
	uint64_t r, t;

	start_task(run, i, problem->hidden, worker, &task);
	view(layer, &problem->down, &layer->down, down_of(layer, task.expert),
	     &task.matrices[0]);
	task.count = 1;
	task.source = run->activated;
	task.divisor = 1;
	multiply(&task, run->magnitudes, task.sums);
	for (t = 0; t < task.tokens; t++) {
		float *to = run->slots + (uint64_t)task.slots[t] * problem->hidden +
		            task.row;

		for (r = 0; r < task.rows; r++)
			to[r] = run->magnitudes
			                ? finished_magnitude(&task, task.sums, 0, r, t)
			                : finished(&task, task.sums, 0, r, t);
	}
}

/* ---- stage 3 ---- */

/* Columns first .. first+count-1 of a token, slots in order from +0. */
static void sum_slots(const struct run *run, uint64_t token, const uint64_t columns[2],
                      float *sums)
{
	const struct moek_problem *problem = &run->layer->problem;
	const float *weights = run->batch->topk_weights;
	uint64_t j, h;

	memset(sums, 0, columns[1] * sizeof(*sums));
	for (j = 0; j < problem->top_k; j++) {
		uint64_t slot = token * problem->top_k + j;
		const float *row = run->slots + slot * problem->hidden + columns[0];
		float weight = 1.0f; /* exact: as if not multiplied */

		if (expert_of(run, slot) < 0)
			continue;
		if (weights != NULL)
			weight = weights[run->first * problem->top_k + slot];
		if (run->magnitudes)
			weight = fabsf(weight);
		for (h = 0; h < columns[1]; h++)
			sums[h] += weight * row[h];
	}
}

static void reduce_token(void *arg, uint64_t token, uint32_t worker)
{
	const struct run *run = arg;
	const struct moek_problem *problem = &run->layer->problem;
	const struct moek_rows *output = &run->batch->output;
	uint64_t row = run->first + token, columns[2];
	uint64_t size = problem->output_type == MOEK_F32 ? 4 : 2;
	float sums[PANEL_COLUMNS];

	(void)worker;
	for (columns[0] = 0; columns[0] < problem->hidden; columns[0] += columns[1]) {
		columns[1] = problem->hidden - columns[0];
		columns[1] = columns[1] < PANEL_COLUMNS ? columns[1] : PANEL_COLUMNS;
		sum_slots(run, token, columns, sums);
		if (run->magnitudes)
			memcpy(run->batch->trace->magnitudes + row * problem->hidden +
			               columns[0],
			       sums, columns[1] * sizeof(*sums));
		else
			narrow(problem->output_type, sums, columns[1],
			       (uint8_t *)output->data +
			               (row * stride(output) + columns[0]) * size);
	}
}

/* ---- what tests ask for ---- */

static void trace_rows(const struct run *run)
{
	const struct moek_trace *trace = run->batch->trace;
	const struct moek_problem *problem = &run->layer->problem;
	uint64_t slots = run->tokens * problem->top_k,
		 before = run->first * problem->top_k;
	uint64_t slot;

	for (slot = 0; slot < slots; slot++) {
		if (expert_of(run, slot) < 0)
			continue;
		if (trace->activated != NULL)
			memcpy(trace->activated +
			               (before + slot) * problem->intermediate,
			       run->activated + slot * problem->intermediate,
			       problem->intermediate * sizeof(float));
		if (trace->slots != NULL)
			memcpy(trace->slots + (before + slot) * problem->hidden,
			       run->slots + slot * problem->hidden,
			       problem->hidden * sizeof(float));
	}
}

/* Static scales belong to experts: the input as quantised is one thing only when all of
 * them have the same. Returns 0 when not. */
static bool common_input_scale(const struct layer *layer, float *scale_out)
{
	uint64_t e;

	for (e = 1; e < layer->problem.experts_local; e++)
		if (memcmp(layer->weights, layer->weights + e * layer->expert_bytes,
		           sizeof(*scale_out)) != 0)
			return false;
	memcpy(scale_out, layer->weights, sizeof(*scale_out));
	return true;
}

static void trace_input(const struct run *run)
{
	const struct layer *layer = run->layer;
	struct moek_trace *trace = run->batch->trace;
	uint64_t count = run->tokens * layer->problem.hidden;
	float *to = trace->quantised_input, scale = 0.0f;

	if (to == NULL)
		return;
	to += run->first * layer->problem.hidden;
	memcpy(to, run->input, count * sizeof(*to));
	if (layer->problem.activations == MOEK_A8_FP8_STATIC) {
		if (!common_input_scale(layer, &scale))
			return;
		quantise(&layer->problem, to, count, scale);
	}
	trace->filled |= MOEK_TRACE_QUANTISED_INPUT;
}

static void run_stages(struct run *run)
{
	const struct moek_problem *problem = &run->layer->problem;
	uint64_t gate_up_blocks = (problem->intermediate - 1) / TILE_ROWS + 1;
	uint64_t down_blocks = (problem->hidden - 1) / TILE_ROWS + 1;
	bool trace = run->batch->trace != NULL && !run->magnitudes;

	parallel(run, run->tokens, prepare_token);
	if (trace)
		trace_input(run);
	sort_slots(run);
	parallel(run, run->tile_count * gate_up_blocks, gate_up_task);
	if (problem->activations != MOEK_A16 && !run->magnitudes)
		parallel(run, run->tokens * problem->top_k, quantise_slot);
	parallel(run, run->tile_count * down_blocks, down_task);
	parallel(run, run->tokens, reduce_token);
	if (trace)
		trace_rows(run);
}

int32_t forward(void *layer, const struct moek_batch *batch)
{
	struct run run = {
		.layer = layer,
		.batch = batch,
		.input = batch->buffers[BUFFER_INPUT],
		.order = batch->buffers[BUFFER_ORDER],
		.starts = batch->buffers[BUFFER_STARTS],
		.tiles = batch->buffers[BUFFER_TILES],
		.activated = batch->buffers[BUFFER_ACTIVATED],
		.slots = batch->buffers[BUFFER_SLOTS],
	};
	struct moek_trace *trace = batch->trace;
	uint64_t left = batch->input.rows;

	for (; left != 0; left -= run.tokens, run.first += run.tokens) {
		run.tokens = left < CHUNK_TOKENS ? left : CHUNK_TOKENS;
		run.magnitudes = false;
		run_stages(&run);
		run.magnitudes = trace != NULL && trace->magnitudes != NULL;
		if (run.magnitudes)
			run_stages(&run);
	}
	if (trace != NULL)
		trace->filled |= (trace->gate_up != NULL ? MOEK_TRACE_GATE_UP : 0) |
		                 (trace->activated != NULL ? MOEK_TRACE_ACTIVATED : 0) |
		                 (trace->slots != NULL ? MOEK_TRACE_SLOTS : 0) |
		                 (trace->magnitudes != NULL ? MOEK_TRACE_MAGNITUDES
		                                            : 0);
	return MOEK_OK;
}
