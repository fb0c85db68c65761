/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <fenv.h>
#include <float.h>
#include <string.h>

#include <moek/formats.h>

#include "core/layer.h"
#include "core/reduce.h"
#include "core/settings.h"
#include "core/shadow.h"
#include "core/status.h"
#include "core/threads.h"

#define SCALED_COLUMNS 256 /* converted at a time on a worker's stack */

/** One forward on its way. */
struct run {
	struct moek_layer *layer;
	const struct moek_forward *forward;
	struct moek_workspace *workspace;
	struct moek_error *error_out;
	uint64_t tokens, choices; /* choices = tokens * top_k */
	int staged;               /* host rows of a layer on a device */
	uint32_t finalize;
	void *buffers[MOEK_PLAN_MOST];
	struct moek_batch batch;
	uint64_t before; /* hash of what must not change */
};

/* ---- arguments ---- */

static int32_t bad(struct moek_error *error_out, const char *text)
{
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE, "forward: %s",
	                 text);
}

static uint64_t stride_of(const struct moek_rows *rows)
{
	return rows->row_stride != 0 ? rows->row_stride : rows->columns;
}

static char *row_at(const struct moek_rows *rows, uint64_t row)
{
	return (char *)rows->data + row * stride_of(rows) * moek_type_bytes(rows->type);
}

/** From the first to the last byte of the rows; 0: does not fit the address space. */
static uint64_t span_of(const struct moek_rows *rows)
{
	int overflow = 0;
	uint64_t elements = moek_add(
		moek_multiply(rows->rows - 1, stride_of(rows), &overflow),
		rows->columns, &overflow);
	uint64_t bytes = moek_multiply(elements, moek_type_bytes(rows->type),
	                               &overflow);

	moek_add((uintptr_t)rows->data, bytes, &overflow);
	return overflow ? 0 : bytes;
}

static int overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
	uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;

	return first < second + b_bytes && second < first + a_bytes;
}

static int32_t check_number(struct moek_error *error_out, const char *name,
                            uint64_t found, uint64_t expected)
{
	if (found == expected)
		return MOEK_OK;
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
	                 "forward: %s %llu, must be %llu", name,
	                 (unsigned long long)found, (unsigned long long)expected);
}

static int32_t check_rows(const struct moek_layer *layer, const char *name,
                          const struct moek_rows *rows, uint32_t type,
                          struct moek_error *error_out)
{
	if (rows->columns != layer->problem.hidden)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_HIDDEN,
		                 "forward: %s has %llu columns, hidden is %llu", name,
		                 (unsigned long long)rows->columns,
		                 (unsigned long long)layer->problem.hidden);
	if (rows->type != type)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "forward: %s is %s, the problem says %s", name,
		                 moek_type_name(rows->type), moek_type_name(type));
	if (stride_of(rows) < rows->columns ||
	    (stride_of(rows) != rows->columns &&
	     (layer->problem.must_understand & MOEK_ROW_STRIDE) == 0))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_ROW_STRIDE,
		                 "forward: %s has row_stride %llu for %llu columns%s",
		                 name, (unsigned long long)rows->row_stride,
		                 (unsigned long long)rows->columns,
		                 stride_of(rows) < rows->columns
		                         ? ""
		                         : ", and the problem has no row_stride");
	if (rows->space > 1 || (rows->space == 1 && !layer->on_device))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "forward: %s is in space %u, the layer is on the %s",
		                 name, rows->space,
		                 layer->on_device ? "device" : "host");
	if (rows->data == NULL || (uintptr_t)rows->data % moek_type_bytes(type) != 0)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "forward: %s is %s", name,
		                 rows->data == NULL ? "NULL"
		                                    : "not aligned to its elements");
	if (span_of(rows) == 0)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "forward: %s does not fit the address space", name);
	return MOEK_OK;
}

static int32_t check_overlap(const struct moek_layer *layer,
                             const struct moek_forward *forward,
                             struct moek_error *error_out)
{
	const struct moek_rows *output = &forward->output;
	uint64_t bytes = span_of(output);
	uint64_t choices = forward->input.rows * layer->problem.top_k;
	const char *with = NULL;

	if (overlap(output->data, bytes, forward->input.data, span_of(&forward->input)))
		with = "input";
	else if (overlap(output->data, bytes, forward->topk_ids, choices * 4))
		with = "topk_ids";
	else if (overlap(output->data, bytes, forward->topk_weights, choices * 4))
		with = "topk_weights";
	if (with == NULL)
		return MOEK_OK;
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
	                 "forward: output overlaps %s", with);
}

static int32_t check_workspace(const struct moek_layer *layer,
                               const struct moek_forward *forward,
                               struct moek_error *error_out)
{
	const struct moek_workspace *workspace = forward->workspace;

	if (workspace == NULL)
		return bad(error_out, "workspace is NULL");
	if (!moek_space_same(&workspace->space, &layer->space))
		return bad(error_out,
		           "the workspace is on another device than the layer");
	if (layer->on_device && workspace->blocks == NULL &&
	    (layer->plan.guarded != 0 || layer->plan.poisoned != 0 ||
	     layer->plan.zeroed != 0))
		return bad(error_out, "the workspace was not created for this layer");
	if (layer->shadow != NULL && !moek_shadow_fits(layer->shadow, workspace))
		return bad(error_out,
		           "the workspace has no room for the layer's shadow; "
		           "create it with this layer in the list");
	if (workspace->bytes < layer->plan.bytes ||
	    ((uintptr_t)workspace->memory & (layer->plan.align - 1)) != 0)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_WORKSPACE,
		                 "forward: the workspace has %llu bytes, %s needs %llu "
		                 "aligned to "
		                 "%llu; create it with this layer in the list",
		                 (unsigned long long)workspace->bytes,
		                 layer->backend->name,
		                 (unsigned long long)layer->plan.bytes,
		                 (unsigned long long)layer->plan.align);
	return MOEK_OK;
}

static int32_t check_forward(const struct moek_layer *layer,
                             const struct moek_forward *forward,
                             struct moek_error *error_out)
{
	const struct moek_problem *p = &layer->problem;
	int32_t status;

	if (forward->input.rows > p->max_tokens)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_TOKENS,
		                 "forward: %llu tokens, max_tokens is %llu",
		                 (unsigned long long)forward->input.rows,
		                 (unsigned long long)p->max_tokens);
	if ((status = check_number(error_out, "output rows", forward->output.rows,
	                           forward->input.rows)) != MOEK_OK ||
	    (status = check_rows(layer, "input", &forward->input, p->input_type,
	                         error_out)) != MOEK_OK ||
	    (status = check_rows(layer, "output", &forward->output, p->output_type,
	                         error_out)) != MOEK_OK ||
	    (status = check_number(error_out, "space of the output",
	                           forward->output.space, forward->input.space)) !=
	            MOEK_OK)
		return status;
	if (forward->topk_ids == NULL || forward->topk_weights == NULL)
		return bad(error_out, forward->topk_ids == NULL
		                              ? "topk_ids is NULL"
		                              : "topk_weights is NULL");
	if (((uintptr_t)forward->topk_ids | (uintptr_t)forward->topk_weights) % 4 != 0)
		return bad(error_out,
		           "topk_ids or topk_weights is not aligned to 4 bytes");
	if (forward->stream != NULL && forward->input.space == 0)
		return bad(error_out, "a stream goes with rows on a device");
	status = check_overlap(layer, forward, error_out);
	return status != MOEK_OK ? status : check_workspace(layer, forward, error_out);
}

/* ---- checks of what a backend did to rows on the host ---- */

static uint64_t hash(uint64_t state, const void *data, uint64_t bytes)
{
	const unsigned char *at = data;
	uint64_t word = 0;

	for (; bytes >= sizeof(word); bytes -= sizeof(word), at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		state = (state ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		state ^= state >> 32;
	}
	for (; bytes != 0; bytes--)
		state = (state ^ *at++) * UINT64_C(0x9e3779b97f4a7c15);
	return state;
}

/** Of everything the caller owns and the backend must leave alone. */
static uint64_t hash_inputs(const struct run *run)
{
	const struct moek_rows *input = &run->forward->input,
			       *output = &run->forward->output;
	uint64_t bytes = input->columns * moek_type_bytes(input->type), state = 1;
	uint64_t used = output->columns * moek_type_bytes(output->type);
	uint64_t whole = stride_of(output) * moek_type_bytes(output->type);

	for (uint64_t t = 0; t < run->tokens; t++)
		state = hash(state, row_at(input, t), bytes);
	for (uint64_t t = 0; t + 1 < run->tokens && whole > used; t++)
		state = hash(state, row_at(output, t) + used, whole - used);
	state = hash(state, run->forward->topk_ids, run->choices * sizeof(int32_t));
	return hash(state, run->forward->topk_weights, run->choices * sizeof(float));
}

static void poison_rows(const struct moek_rows *rows)
{
	for (uint64_t t = 0; t < rows->rows; t++)
		memset(row_at(rows, t), 0xff,
		       rows->columns * moek_type_bytes(rows->type));
}

static int is_poison(const struct moek_rows *rows, const char *row, uint64_t column)
{
	uint64_t bytes = moek_type_bytes(rows->type);

	for (uint64_t i = 0; i < bytes; i++)
		if (row[column * bytes + i] != '\xff')
			return 0;
	return 1;
}

static int is_zero(const struct moek_rows *rows, const char *row, uint64_t column)
{
	float value;

	moek_row_to_f32(rows->type, row + column * moek_type_bytes(rows->type), 1,
	                &value);
	return value == 0;
}

/** A row of the caller with the poison's own pattern would be taken for the backend's.
 */
static int input_has_poison(const struct run *run, uint64_t token)
{
	const struct moek_rows *input = &run->forward->input;

	for (uint64_t c = 0; c < input->columns; c++)
		if (is_poison(input, row_at(input, token), c))
			return 1;
	return 0;
}

static int is_routed(const struct run *run, uint64_t token)
{
	uint64_t top_k = run->layer->problem.top_k;

	for (uint64_t j = 0; j < top_k; j++)
		if (run->batch.topk_ids[token * top_k + j] >= 0)
			return 1;
	return 0;
}

static int32_t check_row(const struct run *run, uint64_t row, uint64_t token,
                         int routed)
{
	const struct moek_rows *rows = &run->batch.output;
	const char *what = run->finalize == MOEK_SLOTS ? "slot" : "output";
	const char *name = run->layer->backend->name, *data = row_at(rows, row);

	for (uint64_t c = 0; c < rows->columns; c++) {
		if (is_poison(rows, data, c) && !input_has_poison(run, token))
			return moek_fail(run->error_out, MOEK_PLUGIN,
			                 MOEK_RULE_WORKSPACE,
			                 "%s: forward did not write %s row %llu, "
			                 "column %llu, or "
			                 "made it from workspace that nobody wrote",
			                 name, what, (unsigned long long)row,
			                 (unsigned long long)c);
		if (!routed && !is_zero(rows, data, c))
			return moek_fail(run->error_out, MOEK_PLUGIN, MOEK_RULE_NONE,
			                 "%s: output row %llu, column %llu is not 0, "
			                 "its token has "
			                 "no routed expert",
			                 name, (unsigned long long)row,
			                 (unsigned long long)c);
	}
	return MOEK_OK;
}

/** Everything that the backend had to write is written. */
static int32_t check_written(const struct run *run)
{
	uint64_t top_k = run->layer->problem.top_k;
	int32_t status = MOEK_OK;

	if (run->finalize == MOEK_SLOTS) {
		for (uint64_t s = 0; s < run->choices && status == MOEK_OK; s++)
			if (run->batch.topk_ids[s] >= 0)
				status = check_row(run, s, s / top_k, 1);
		return status;
	}
	for (uint64_t t = 0; t < run->tokens && status == MOEK_OK; t++)
		status = check_row(run, t, t, is_routed(run, t));
	return status;
}

/* ---- layers on the host ---- */

static void *own_buffer(const struct run *run, enum moek_own own)
{
	uint32_t at = run->layer->own[own];

	return at != MOEK_OWN_NONE ? run->buffers[at] : NULL;
}

/** Local experts, or -1 for everything that is none. */
static void clean_ids(const struct run *run, int32_t *ids_out)
{
	const struct moek_layer *layer = run->layer;

	for (uint64_t i = 0; i < run->choices; i++) {
		int32_t id = run->forward->topk_ids[i];

		if (id < 0 || (uint64_t)id >= layer->problem.experts)
			id = -1;
		else if (layer->map != NULL)
			id = layer->map[id];
		ids_out[i] = id;
	}
}

/** One token's row times its only router weight, rounded once. */
static void scale_row(void *arg, uint64_t token, uint32_t worker)
{
	const struct run *run = arg;
	const struct moek_rows *from = &run->forward->input, *to = &run->batch.input;
	uint64_t bytes = moek_type_bytes(to->type);
	float weight = run->forward->topk_weights[token], values[SCALED_COLUMNS];

	(void)worker;
	/* not routed: nobody may read the row, its weight may be anything */
	if (run->batch.topk_ids[token] < 0) {
		memset(row_at(to, token), 0, to->columns * bytes);
		return;
	}
	for (uint64_t c = 0; c < to->columns; c += SCALED_COLUMNS) {
		uint64_t count = to->columns - c < SCALED_COLUMNS ? to->columns - c
		                                                  : SCALED_COLUMNS;

		moek_row_to_f32(to->type, row_at(from, token) + c * bytes, count,
		                values);
		for (uint64_t i = 0; i < count; i++)
			values[i] *= weight;
		moek_row_from_f32(to->type, values, count,
		                  row_at(to, token) + c * bytes);
	}
}

static void fill_host_batch(struct run *run)
{
	const struct moek_layer *layer = run->layer;
	struct moek_batch *batch = &run->batch;
	int32_t *ids = own_buffer(run, MOEK_OWN_IDS);

	clean_ids(run, ids);
	batch->topk_ids = ids;
	batch->topk_weights = run->forward->topk_weights;
	batch->workers = layer->workers;
	if (layer->own[MOEK_OWN_INPUT] == MOEK_OWN_NONE)
		return;
	batch->topk_weights = NULL;
	batch->input.data = own_buffer(run, MOEK_OWN_INPUT);
	batch->input.row_stride = 0;
	moek_parallel_for(layer->workers, run->tokens, scale_row, run);
}

/** How the calling thread computes, as far as C can tell. */
struct fp_state {
	int rounding;
	int flushes; /* numbers below the smallest normal one become 0 */
	fenv_t all;
};

static void take_fp_state(struct fp_state *state_out)
{
	volatile float smallest = FLT_MIN, below = FLT_MIN / 2;

	fegetenv(&state_out->all);
	state_out->rounding = fegetround();
	state_out->flushes = smallest * 0.5f == 0 || below * 2 == 0;
}

static int32_t check_fp_state(const struct run *run, const struct fp_state *before)
{
	struct fp_state after;

	take_fp_state(&after);
	if (after.rounding == before->rounding && after.flushes == before->flushes)
		return MOEK_OK;
	fesetenv(&before->all);
	return moek_fail(run->error_out, MOEK_PLUGIN, MOEK_RULE_SIDE_EFFECT,
	                 "%s: forward left its thread %s", run->layer->backend->name,
	                 after.rounding != before->rounding
	                         ? "rounding in another direction"
	                 : after.flushes ? "flushing small numbers to 0"
	                                 : "no longer flushing small numbers to 0");
}

static int32_t call_forward(struct run *run)
{
	const struct moek_layer *layer = run->layer;
	struct fp_state before;
	int32_t status;

	if ((layer->checks & MOEK_CHECK_FP_STATE) != 0)
		take_fp_state(&before);
	status = layer->backend->experts->forward(layer->handle, &run->batch);
	if (status != MOEK_OK)
		return moek_layer_hook_failed(layer->backend, "forward", status,
		                              run->error_out);
	if ((layer->checks & MOEK_CHECK_FP_STATE) != 0)
		return check_fp_state(run, &before);
	return MOEK_OK;
}

/** Where the backend writes: the caller's rows, or one row for each slot. */
static int32_t point_output(struct run *run, const struct moek_rows *output)
{
	const struct moek_layer *layer = run->layer;
	const struct moek_backend *backend = layer->backend;

	run->batch.output = *output;
	run->finalize = backend->experts->finalize(backend->plugin_handle,
	                                           &backend->problem, run->tokens);
	if (run->finalize == MOEK_REDUCED)
		return MOEK_OK;
	if (run->finalize != MOEK_SLOTS || layer->own[MOEK_OWN_SLOTS] == MOEK_OWN_NONE)
		return moek_fail(
			run->error_out, MOEK_PLUGIN, MOEK_RULE_NONE,
			"%s: finalize answers %u for %llu tokens, unlike before",
			backend->name, run->finalize, (unsigned long long)run->tokens);
	run->batch.output = (struct moek_rows){ .data = own_buffer(run, MOEK_OWN_SLOTS),
		                                .rows = run->choices,
		                                .columns = output->columns,
		                                .type = MOEK_F32,
		                                .space = output->space };
	return MOEK_OK;
}

static void reduce_on_host(const struct run *run)
{
	struct moek_reduction reduction = { .slots = run->batch.output.data,
		                            .ids = run->batch.topk_ids,
		                            .weights = run->batch.topk_weights,
		                            .top_k = run->layer->problem.top_k,
		                            .output = run->forward->output };

	moek_reduce(run->layer->workers, &reduction);
}

static int32_t check_after(const struct run *run)
{
	const char *name = run->layer->backend->name;
	int32_t status = moek_plan_end(&run->layer->plan, run->workspace, NULL, name,
	                               run->error_out);

	if (status != MOEK_OK)
		return status;
	if ((run->layer->checks & MOEK_CHECK_INPUTS) != 0 &&
	    hash_inputs(run) != run->before)
		return moek_fail(
			run->error_out, MOEK_PLUGIN, MOEK_RULE_NONE,
			"%s: forward changed its input, topk_ids, topk_weights or the "
			"space between output rows",
			name);
	return (run->layer->checks & MOEK_CHECK_POISON) != 0 ? check_written(run)
	                                                     : MOEK_OK;
}

static int32_t run_on_host(struct run *run)
{
	const struct moek_forward *forward = run->forward;
	int32_t status = point_output(run, &forward->output);

	if (status != MOEK_OK)
		return status;
	fill_host_batch(run);
	if ((run->layer->checks & MOEK_CHECK_INPUTS) != 0)
		run->before = hash_inputs(run);
	if ((run->layer->checks & MOEK_CHECK_POISON) != 0)
		poison_rows(&forward->output);
	status = call_forward(run);
	if (status == MOEK_OK)
		status = check_after(run);
	if (status == MOEK_OK && run->finalize == MOEK_SLOTS)
		reduce_on_host(run);
	return status;
}

/* ---- layers on a device ---- */

/** Copy host rows to packed rows on the device, or back. */
static int32_t copy_rows(const struct run *run, const struct moek_rows *host,
                         char *device, uint32_t direction)
{
	uint64_t bytes = host->columns * moek_type_bytes(host->type), rows = host->rows;
	int32_t status = MOEK_OK;

	if (stride_of(host) == host->columns) {
		bytes *= rows;
		rows = 1;
	}
	for (uint64_t t = 0; t < rows && status == MOEK_OK; t++) {
		char *there = device + t * bytes, *here = row_at(host, t);

		status = direction == MOEK_TO_DEVICE
		                 ? moek_space_copy(&run->workspace->space, there, here,
		                                   bytes, direction, NULL,
		                                   run->error_out)
		                 : moek_space_copy(&run->workspace->space, here, there,
		                                   bytes, direction, NULL,
		                                   run->error_out);
	}
	return status;
}

/** Host tokens to the device; *output_out is where their results will be. */
static int32_t stage_in(struct run *run, struct moek_rows *output_out)
{
	const struct moek_forward *forward = run->forward;
	const struct moek_space *space = &run->workspace->space;
	void *ids = own_buffer(run, MOEK_OWN_IDS);
	void *weights = own_buffer(run, MOEK_OWN_WEIGHTS);
	void *input = own_buffer(run, MOEK_OWN_INPUT);
	int32_t status = copy_rows(run, &forward->input, input, MOEK_TO_DEVICE);

	if (status == MOEK_OK)
		status = moek_space_copy(space, ids, forward->topk_ids,
		                         run->choices * sizeof(int32_t), MOEK_TO_DEVICE,
		                         NULL, run->error_out);
	if (status == MOEK_OK)
		status = moek_space_copy(space, weights, forward->topk_weights,
		                         run->choices * sizeof(float), MOEK_TO_DEVICE,
		                         NULL, run->error_out);
	run->batch.topk_ids = ids;
	run->batch.topk_weights = weights;
	run->batch.input.data = input;
	run->batch.input.row_stride = 0;
	run->batch.input.space = 1;
	output_out->data = own_buffer(run, MOEK_OWN_OUTPUT);
	output_out->row_stride = 0;
	output_out->space = 1;
	return status;
}

static int32_t reduce_on_device(struct run *run, const struct moek_rows *output)
{
	const struct moek_layer *layer = run->layer;
	struct moek_rows slots = run->batch.output;
	int32_t status;

	run->batch.output = *output;
	status = layer->backend->experts->reduce(layer->handle, &run->batch, &slots);
	if (status == MOEK_OK)
		return MOEK_OK;
	return moek_layer_hook_failed(layer->backend, "reduce", status, run->error_out);
}

static int32_t run_on_device(struct run *run)
{
	const struct moek_layer *layer = run->layer;
	struct moek_rows output = run->forward->output;
	int32_t status = MOEK_OK;

	run->batch.topk_ids = run->forward->topk_ids;
	run->batch.topk_weights = run->forward->topk_weights;
	run->batch.expert_map = layer->device_map;
	run->batch.stream = run->forward->stream;
	if (run->staged)
		status = stage_in(run, &output);
	if (status != MOEK_OK || (status = point_output(run, &output)) != MOEK_OK ||
	    (status = call_forward(run)) != MOEK_OK)
		return status;
	if (run->finalize == MOEK_SLOTS)
		status = reduce_on_device(run, &output);
	if (status == MOEK_OK && run->staged)
		status = copy_rows(run, &run->forward->output, output.data,
		                   MOEK_TO_HOST);
	if (status == MOEK_OK && run->staged)
		status = moek_space_wait(&run->workspace->space, NULL, run->error_out);
	if (status == MOEK_OK)
		status = moek_plan_end(&layer->plan, run->workspace,
		                       run->forward->stream, layer->backend->name,
		                       run->error_out);
	return status;
}

/* ---- both ---- */

static int32_t run_taken(struct run *run)
{
	const struct moek_layer *layer = run->layer;
	int32_t status = moek_plan_begin(&layer->plan, run->workspace,
	                                 run->forward->stream, run->buffers,
	                                 run->error_out);

	if (status != MOEK_OK)
		return status;
	run->batch = (struct moek_batch){ .struct_size = MOEK_BATCH_SIZE_1_0,
		                          .buffer_count = layer->buffers,
		                          .input = run->forward->input,
		                          .buffers = run->buffers,
		                          .trace = run->forward->trace };
	return layer->on_device ? run_on_device(run) : run_on_host(run);
}

/** Its buffer of this kind in memory that is at rest. */
static void *own_rows(const struct moek_layer *layer,
                      const struct moek_workspace *workspace, enum moek_own own)
{
	return workspace->memory + layer->plan.placed[layer->own[own]].offset;
}

int32_t moek_forward_reference(struct moek_layer *layer,
                               struct moek_workspace *workspace,
                               const struct moek_forward *like,
                               struct moek_wanted *wanted_out,
                               struct moek_error *error_out)
{
	float *values = own_rows(layer, workspace, MOEK_OWN_OUTPUT);
	struct moek_trace trace = { .struct_size = MOEK_TRACE_SIZE_1_0,
		                    .magnitudes = own_rows(layer, workspace,
		                                           MOEK_OWN_MAGNITUDES) };
	struct moek_forward forward = *like;
	struct run run = { .layer = layer,
		           .forward = &forward,
		           .workspace = workspace,
		           .error_out = error_out,
		           .tokens = like->input.rows,
		           .choices = like->input.rows * layer->problem.top_k };
	int32_t status;

	forward.output = (struct moek_rows){
		values, like->input.rows, layer->problem.hidden, 0, MOEK_F32, 0
	};
	forward.stream = NULL;
	forward.trace = &trace;
	status = run_taken(&run);
	if (status == MOEK_OK && (trace.filled & MOEK_TRACE_MAGNITUDES) == 0)
		status = moek_fail(error_out, MOEK_PLUGIN, MOEK_RULE_NONE,
		                   "%s: gives no sums of magnitudes",
		                   layer->backend->name);
	if (status == MOEK_OK)
		*wanted_out = (struct moek_wanted){ values, trace.magnitudes };
	return status;
}

int32_t moek_layer_forward(struct moek_layer *layer, const struct moek_forward *forward,
                           struct moek_error *error_out)
{
	struct run run = { .layer = layer, .forward = forward, .error_out = error_out };
	int32_t status;

	if (layer == NULL || forward == NULL ||
	    forward->struct_size < MOEK_FORWARD_SIZE_1_0)
		return bad(error_out, layer == NULL ? "layer is NULL"
		                      : forward == NULL
		                              ? "its struct is NULL"
		                              : "its struct has a short struct_size");
	if (forward->input.rows == 0)
		return check_number(error_out, "output rows", forward->output.rows, 0);
	status = check_forward(layer, forward, error_out);
	if (status != MOEK_OK)
		return status;
	run.tokens = forward->input.rows;
	run.choices = run.tokens * layer->problem.top_k;
	run.staged = layer->on_device && forward->input.space == 0;
	run.workspace = forward->workspace;
	if (!moek_take(&layer->busy))
		return moek_fail(error_out, MOEK_BUSY, MOEK_RULE_NONE,
		                 "forward: the layer is in use by another call");
	if (moek_take(&run.workspace->busy)) {
		status = run_taken(&run);
		if (status == MOEK_OK && layer->shadow != NULL)
			moek_shadow_follow(layer, forward);
		moek_release(&run.workspace->busy);
	} else {
		status = moek_fail(
			error_out, MOEK_BUSY, MOEK_RULE_NONE,
			"forward: the workspace is in use by another forward");
	}
	moek_release(&layer->busy);
	return status;
}
