/* SPDX-License-Identifier: MIT */
/*
 * A forward goes in rounds of `chunk` tokens of each rank. A round's records travel to
 * the ranks that hold the experts while the round before is computed, and its results
 * travel back while the next one is. Ranks without tokens take part with empty
 * messages.
 */
#include "config.h"

#include "parallel/ep.h"

#include <string.h>

#include <moek/formats.h>

#include "parallel/workspace.h"

#define BLOCK 1024u /* columns of sums on a worker's stack */

struct run {
	struct moek_ep_layer *layer;
	struct moek_ep_workspace *workspace;
	const struct moek_forward *forward;
	uint64_t tokens, rounds; /* of this rank; of the rank with most */
	struct side *side;       /* whose tokens are summed */
	int32_t status;          /* of the backend */
	struct moek_error error;
};

/* ---- arguments ---- */

static int32_t check_rows(const struct moek_problem *p, const struct moek_rows *rows,
                          const char *name, uint32_t type, struct moek_error *error_out)
{
	const char *wrong = NULL;

	if (rows->columns != p->hidden)
		wrong = "has another number of columns than hidden";
	else if (rows->type != type)
		wrong = "has another type than the problem says";
	else if (rows->row_stride != 0 && rows->row_stride < rows->columns)
		wrong = "has a row_stride below its columns";
	else if (rows->space != 0)
		wrong = "is on a device; copy the rows to host memory";
	else if (rows->data == NULL && rows->rows != 0)
		wrong = "is NULL";
	if (wrong == NULL)
		return MOEK_OK;
	return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
	               "parallel forward: %s %s", name, wrong);
}

static int32_t check_forward(const struct run *run, struct moek_error *error_out)
{
	const struct moek_problem *p = &run->layer->problem;
	const struct moek_forward *f = run->forward;
	int32_t status;

	if (run->workspace == NULL || f == NULL ||
	    f->struct_size < MOEK_FORWARD_SIZE_1_0)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		               "parallel forward: no workspace, no struct, or a short "
		               "struct_size");
	if (run->workspace->sizes.choices < p->max_tokens * p->top_k ||
	    run->workspace->sizes.out <
	            run->layer->chunk * run->layer->fan_out * run->layer->record_bytes)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_WORKSPACE,
		               "parallel forward: the workspace was made without this "
		               "layer");
	if (f->workspace != NULL || f->stream != NULL || f->trace != NULL)
		return ep_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
			"parallel forward: its struct has a workspace, a stream or "
			"a trace");
	if (f->input.rows > p->max_tokens)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_TOKENS,
		               "parallel forward: %llu tokens, max_tokens is %llu",
		               (unsigned long long)f->input.rows,
		               (unsigned long long)p->max_tokens);
	if (f->input.rows != f->output.rows)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		               "parallel forward: %llu output rows, must be %llu",
		               (unsigned long long)f->output.rows,
		               (unsigned long long)f->input.rows);
	if (f->input.rows != 0 && (f->topk_ids == NULL || f->topk_weights == NULL))
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		               "parallel forward: topk_ids or topk_weights is NULL");
	status = check_rows(p, &f->input, "input", p->input_type, error_out);
	return status != MOEK_OK
	               ? status
	               : check_rows(p, &f->output, "output", p->output_type, error_out);
}

/* ---- where choices go ---- */

/** The group of ranks for one choice; @before are those of the token's choices so far.
 */
static int32_t choose_group(const struct moek_ep_layer *layer, int32_t expert,
                            uint64_t token, const int32_t *before, uint64_t count)
{
	const int32_t *owners;
	uint64_t replicas;

	if (expert < 0 || (uint64_t)expert >= layer->problem.experts)
		return NOWHERE;
	owners = layer->owners + layer->owner_starts[expert];
	replicas = layer->owner_starts[expert + 1] - layer->owner_starts[expert];
	if (replicas == 1)
		return owners[0];
	for (uint64_t i = 0; i < replicas; i++)
		if (owners[i] == layer->group)
			return owners[i];
	for (uint64_t i = 0; i < replicas; i++)
		for (uint64_t k = 0; k < count; k++)
			if (before[k] == owners[i])
				return owners[i];
	return owners[(token + (uint64_t)layer->group) % replicas];
}

static int is_first(const int32_t *groups, uint64_t k)
{
	for (uint64_t i = 0; i < k; i++)
		if (groups[i] == groups[k])
			return 0;
	return 1;
}

static int *counts_of(const struct moek_ep_layer *layer, int *table, int rank)
{
	return table + (uint64_t)rank * (1 + layer->most_rounds);
}

/** All choices, and how many records each rank gets in each round. */
static void route(struct run *run)
{
	struct moek_ep_layer *layer = run->layer;
	uint64_t top_k = layer->problem.top_k;
	uint64_t rounds = (run->tokens + layer->chunk - 1) / layer->chunk;

	for (int r = 0; r < layer->ep->ranks; r++) {
		int *counts = counts_of(layer, layer->counts_out, r);

		memset(counts, 0, (1 + layer->most_rounds) * sizeof(*counts));
		counts[0] = (int)rounds;
	}
	for (uint64_t t = 0; t < run->tokens; t++) {
		int32_t *groups = run->workspace->groups + t * top_k;

		for (uint64_t k = 0; k < top_k; k++) {
			groups[k] = choose_group(layer,
			                         run->forward->topk_ids[t * top_k + k],
			                         t, groups, k);
			if (groups[k] == NOWHERE || !is_first(groups, k))
				continue;
			for (int s = 0; s < layer->shards; s++)
				counts_of(layer, layer->counts_out,
				          groups[k] * layer->shards +
				                  s)[1 + t / layer->chunk]++;
		}
	}
}

/** Tell all ranks what they will get; a status in place of rounds when it is none. */
static int32_t exchange_counts(struct run *run, int32_t status)
{
	struct moek_ep_layer *layer = run->layer;
	int width = (int)(1 + layer->most_rounds), bad = status != MOEK_OK;

	for (int r = 0; bad && r < layer->ep->ranks; r++)
		counts_of(layer, layer->counts_out, r)[0] = status;
	MPI_Alltoall(layer->counts_out, width, MPI_INT, layer->counts_in, width,
	             MPI_INT, layer->ep->communicator);
	for (int r = 0; r < layer->ep->ranks; r++) {
		int rounds = counts_of(layer, layer->counts_in, r)[0];

		if (rounds < 0)
			bad = 1;
		else if ((uint64_t)rounds > run->rounds)
			run->rounds = (uint64_t)rounds;
	}
	return bad ? moek_ep_agree(layer->ep, status, &run->error) : MOEK_OK;
}

/* ---- dispatch ---- */

static int *side_counts(const struct run *run, const struct side *side, int which)
{
	return side->counts + which * run->layer->ep->ranks;
}

/** Starts from counts; how many there are in all. */
static uint64_t add_up(const int *counts, int ranks, int *starts_out)
{
	int sum = 0;

	for (int r = 0; r < ranks; r++) {
		starts_out[r] = sum;
		sum += counts[r];
	}
	return (uint64_t)sum;
}

/** The choices of a token that @group computes. */
static void write_choices(const struct run *run, uint64_t token, int32_t group,
                          uint8_t *record)
{
	const struct moek_ep_layer *layer = run->layer;
	uint64_t top_k = layer->problem.top_k, first = token * top_k;
	int32_t *ids = (int32_t *)(void *)(record + layer->row_bytes);

	for (uint64_t k = 0; k < top_k; k++)
		ids[k] = run->workspace->groups[first + k] == group
		                 ? run->forward->topk_ids[first + k]
		                 : NOWHERE;
	if (layer->with_weights)
		memcpy(ids + top_k, run->forward->topk_weights + first,
		       top_k * sizeof(float));
}

static const void *input_row(const struct run *run, uint64_t token)
{
	const struct moek_rows *input = &run->forward->input;
	uint64_t stride = input->row_stride != 0 ? input->row_stride : input->columns;

	return (const uint8_t *)input->data +
	       token * stride * (input->type == MOEK_F32 ? 4 : 2);
}

/** Places of a token's sums: records lie by rank, so ascending places are ascending
 * ranks. */
static void insert_place(int32_t *places, uint64_t count, int place)
{
	for (; count > 0 && places[count - 1] > place; count--)
		places[count] = places[count - 1];
	places[count] = place;
}

/** The records of a token, one for each rank; @at: the next one of each. */
static void pack_token(const struct run *run, struct side *side, uint64_t token,
                       int *at)
{
	const struct moek_ep_layer *layer = run->layer;
	uint64_t top_k = layer->problem.top_k, fan_out = layer->fan_out, count = 0;
	const int32_t *groups = run->workspace->groups + (side->first + token) * top_k;
	int32_t *places = side->places + token * fan_out;
	const uint8_t *row = NULL; /* as it travels */

	for (uint64_t k = 0; k < top_k; k++) {
		if (groups[k] == NOWHERE || !is_first(groups, k))
			continue;
		for (int s = 0; s < layer->shards; s++, count++) {
			int place = at[groups[k] * layer->shards + s]++;
			uint8_t *record = side->out +
			                  (uint64_t)place * layer->record_bytes;

			if (row == NULL)
				wire_write(layer, input_row(run, side->first + token),
				           record);
			else
				memcpy(record, row, layer->row_bytes);
			row = record;
			write_choices(run, side->first + token, groups[k], record);
			if (layer->combine == MOEK_COMBINE_RANKS)
				insert_place(places, count, place);
		}
	}
	if (layer->combine == MOEK_COMBINE_RANKS)
		for (; count < fan_out; count++)
			places[count] = NOWHERE;
}

/** Where the rows of each slot will come back. */
static void place_slots(const struct run *run, struct side *side)
{
	int ranks = run->layer->ep->ranks, shards = run->layer->shards;
	int *counts = side_counts(run, side, RESULT_IN_COUNT);
	int *starts = side_counts(run, side, RESULT_IN_START);
	int *next = run->workspace->cursors;
	uint64_t top_k = run->layer->problem.top_k, choices = side->tokens * top_k;
	const int32_t *to = run->workspace->groups + side->first * top_k;
	int32_t *place = side->places;

	memset(counts, 0, (size_t)ranks * sizeof(*counts));
	for (uint64_t i = 0; i < choices; i++)
		for (int s = 0; to[i] != NOWHERE && s < shards; s++)
			counts[to[i] * shards + s]++;
	add_up(counts, ranks, starts);
	memcpy(next, starts, (size_t)ranks * sizeof(*next));
	for (uint64_t i = 0; i < choices; i++)
		for (int s = 0; s < shards; s++)
			*place++ = to[i] != NOWHERE ? next[to[i] * shards + s]++
			                            : NOWHERE;
}

static void start_dispatch(struct run *run, uint64_t round)
{
	struct moek_ep_layer *layer = run->layer;
	struct side *side = &run->workspace->sides[round % SIDES];
	int ranks = layer->ep->ranks, *at = run->workspace->cursors;
	int *out = side_counts(run, side, OUT_COUNT);
	int *in = side_counts(run, side, IN_COUNT);
	uint64_t left;

	side->first = round * layer->chunk;
	left = run->tokens > side->first ? run->tokens - side->first : 0;
	side->tokens = left < layer->chunk ? left : layer->chunk;
	for (int r = 0; r < ranks; r++) {
		out[r] = counts_of(layer, layer->counts_out, r)[1 + round];
		in[r] = counts_of(layer, layer->counts_in, r)[1 + round];
		if (r != layer->ep->rank)
			layer->stats.rows_out += (uint64_t)out[r];
	}
	add_up(out, ranks, side_counts(run, side, OUT_START));
	add_up(in, ranks, side_counts(run, side, IN_START));
	memcpy(at, side_counts(run, side, OUT_START), (size_t)ranks * sizeof(*at));
	for (uint64_t t = 0; t < side->tokens; t++)
		pack_token(run, side, t, at);
	if (layer->combine == MOEK_COMBINE_SLOTS) {
		place_slots(run, side);
	} else {
		memcpy(side_counts(run, side, RESULT_IN_COUNT), out,
		       (size_t)ranks * sizeof(int));
		memcpy(side_counts(run, side, RESULT_IN_START),
		       side_counts(run, side, OUT_START), (size_t)ranks * sizeof(int));
	}
	MPI_Ialltoallv(side->out, out, side_counts(run, side, OUT_START), layer->record,
	               side->in, in, side_counts(run, side, IN_START), layer->record,
	               layer->ep->communicator, &side->dispatch);
}

/* ---- compute ---- */

static uint8_t *local_row(const struct run *run, uint64_t row)
{
	const struct moek_problem *p = &run->layer->local_problem;

	return run->workspace->local_input +
	       row * p->hidden * (p->input_type == MOEK_F32 ? 4 : 2);
}

/** One row for each slot of a record. */
static uint64_t take_slots(struct run *run, const uint8_t *record, uint64_t row)
{
	const struct moek_ep_layer *layer = run->layer;
	const int32_t *ids = (const int32_t *)(const void *)(record + layer->row_bytes);
	const float *weights = (const float *)(const void *)(ids +
	                                                     layer->problem.top_k);
	uint64_t first = row;

	for (uint64_t k = 0; k < layer->problem.top_k; k++) {
		if (ids[k] == NOWHERE)
			continue;
		if (row == first)
			wire_read(layer, record, local_row(run, row));
		else
			memcpy(local_row(run, row), local_row(run, first),
			       (size_t)(local_row(run, 1) - local_row(run, 0)));
		run->workspace->local_ids[row] = ids[k];
		run->workspace->local_weights[row] = layer->with_weights ? weights[k]
		                                                         : 1.0f;
		row++;
	}
	run->layer->stats.slots += row - first;
	return row - first;
}

/** One row for the record. */
static uint64_t take_record(struct run *run, const uint8_t *record, uint64_t row)
{
	uint64_t top_k = run->layer->problem.top_k;
	const uint8_t *ids = record + run->layer->row_bytes;

	wire_read(run->layer, record, local_row(run, row));
	memcpy(run->workspace->local_ids + row * top_k, ids, top_k * sizeof(int32_t));
	memcpy(run->workspace->local_weights + row * top_k,
	       ids + top_k * sizeof(int32_t), top_k * sizeof(float));
	for (uint64_t k = 0; k < top_k; k++)
		run->layer->stats.slots += run->workspace->local_ids[row * top_k + k] !=
		                           NOWHERE;
	return 1;
}

static int32_t run_local(struct run *run, struct side *side, uint64_t rows)
{
	const struct moek_ep_layer *layer = run->layer;
	const struct moek_problem *p = &layer->local_problem;
	const struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = { .data = run->workspace->local_input,
		           .rows = rows,
		           .columns = p->hidden,
		           .type = p->input_type },
		.output = { .data = side->results_out,
		            .rows = rows,
		            .columns = p->hidden,
		            .type = p->output_type },
		.topk_ids = run->workspace->local_ids,
		.topk_weights = run->workspace->local_weights,
		.workspace = run->workspace->local,
	};

	return rows == 0 ? MOEK_OK
	                 : moek_layer_forward(layer->local, &forward, &run->error);
}

static void compute(struct run *run, struct side *side)
{
	struct moek_ep_layer *layer = run->layer;
	const int *in = side_counts(run, side, IN_COUNT);
	int *out = side_counts(run, side, RESULT_OUT_COUNT);
	const uint8_t *record = side->in;
	uint64_t rows = 0;
	double start;
	int32_t status;

	for (int r = 0; r < layer->ep->ranks; r++) {
		uint64_t first = rows;

		for (int i = 0; i < in[r]; i++, record += layer->record_bytes)
			rows += layer->combine == MOEK_COMBINE_SLOTS
			                ? take_slots(run, record, rows)
			                : take_record(run, record, rows);
		out[r] = (int)(rows - first);
		if (r != layer->ep->rank)
			layer->stats.results_out += rows - first;
	}
	add_up(out, layer->ep->ranks, side_counts(run, side, RESULT_OUT_START));
	start = MPI_Wtime();
	/* after a failure the others still wait for rows, of whatever value */
	status = run->status == MOEK_OK ? run_local(run, side, rows) : MOEK_OK;
	if (status != MOEK_OK)
		run->status = status;
	layer->stats.compute_seconds += MPI_Wtime() - start;
}

static void start_combine(struct run *run, struct side *side)
{
	struct moek_ep_layer *layer = run->layer;

	MPI_Ialltoallv(side->results_out, side_counts(run, side, RESULT_OUT_COUNT),
	               side_counts(run, side, RESULT_OUT_START), layer->result,
	               side->results_in, side_counts(run, side, RESULT_IN_COUNT),
	               side_counts(run, side, RESULT_IN_START), layer->result,
	               layer->ep->communicator, &side->combine);
}

/* ---- sum ---- */

static void widen(uint32_t type, const void *row, uint64_t count, float *values)
{
	const uint16_t *half = row;

	if (type == MOEK_F32)
		memcpy(values, row, count * sizeof(*values));
	else if (type == MOEK_BF16)
		for (uint64_t i = 0; i < count; i++)
			values[i] = moek_bf16_to_f32(half[i]);
	else
		for (uint64_t i = 0; i < count; i++)
			values[i] = moek_f16_to_f32(half[i]);
}

static void narrow(uint32_t type, const float *values, uint64_t count, void *row)
{
	uint16_t *half = row;

	if (type == MOEK_F32)
		memcpy(row, values, count * sizeof(*values));
	else if (type == MOEK_BF16)
		for (uint64_t i = 0; i < count; i++)
			half[i] = moek_bf16_from_f32(values[i]);
	else
		for (uint64_t i = 0; i < count; i++)
			half[i] = moek_f16_from_f32(values[i]);
}

static void add(const float *row, float weight, uint64_t count, float *sums)
{
	for (uint64_t i = 0; i < count; i++) {
		/* two statements: never fused, so the bits are those of the core's sum
		 */
		float product = weight * row[i];

		sums[i] += product;
	}
}

/** Columns first .. first+count-1 of result row @place. */
static void read_result(const struct run *run, int32_t place, uint64_t first,
                        uint64_t count, float *row_out)
{
	const struct moek_ep_layer *layer = run->layer;
	uint32_t type = layer->combine == MOEK_COMBINE_SLOTS
	                        ? MOEK_F32
	                        : layer->problem.output_type;

	widen(type,
	      run->side->results_in + (uint64_t)place * layer->result_bytes +
	              first * (type == MOEK_F32 ? 4 : 2),
	      count, row_out);
}

/** Of all that came back for @token: shards of a slot first, then slots, or ranks. */
static void sum_block(const struct run *run, uint64_t token, uint64_t first,
                      uint64_t count, float *sums)
{
	const struct moek_ep_layer *layer = run->layer;
	const struct moek_problem *p = &layer->problem;
	int by_slot = layer->combine == MOEK_COMBINE_SLOTS;
	int weigh = by_slot && (p->must_understand & MOEK_WEIGHT_ON_INPUT) == 0;
	uint64_t most = by_slot ? p->top_k : layer->fan_out;
	uint64_t shards = by_slot ? (uint64_t)layer->shards : 1;
	const int32_t *places = run->side->places + token * most * shards;
	const float *weights = run->forward->topk_weights +
	                       (run->side->first + token) * p->top_k;
	float row[BLOCK], shard[BLOCK];

	memset(sums, 0, count * sizeof(*sums));
	for (uint64_t k = 0; k < most; k++, places += shards) {
		if (places[0] == NOWHERE)
			continue;
		read_result(run, places[0], first, count, row);
		for (uint64_t s = 1; s < shards; s++) {
			read_result(run, places[s], first, count, shard);
			add(shard, 1.0f, count, row);
		}
		add(row, weigh ? weights[k] : 1.0f, count, sums);
	}
}

static void sum_token(void *arg, uint64_t token, uint32_t worker)
{
	const struct run *run = arg;
	const struct moek_rows *output = &run->forward->output;
	uint64_t bytes = output->type == MOEK_F32 ? 4 : 2;
	uint64_t stride = output->row_stride != 0 ? output->row_stride
	                                          : output->columns;
	uint8_t *to = (uint8_t *)output->data +
	              (run->side->first + token) * stride * bytes;
	float sums[BLOCK];

	(void)worker;
	for (uint64_t first = 0; first < output->columns; first += BLOCK) {
		uint64_t count = output->columns - first < BLOCK
		                         ? output->columns - first
		                         : BLOCK;

		sum_block(run, token, first, count, sums);
		narrow(output->type, sums, count, to + first * bytes);
	}
}

static void wait(struct run *run, MPI_Request *request)
{
	double start = MPI_Wtime();

	MPI_Wait(request, MPI_STATUS_IGNORE);
	run->layer->stats.wait_seconds += MPI_Wtime() - start;
}

static void finish(struct run *run, uint64_t round)
{
	const struct moek_workers *workers = moek_registry_workers(
		run->layer->ep->registry);

	run->side = &run->workspace->sides[round % SIDES];
	wait(run, &run->side->combine);
	if (run->side->tokens != 0)
		workers->parallel_for(workers->self, run->side->tokens, sum_token, run);
}

/* ---- the whole ---- */

static int32_t run_rounds(struct run *run)
{
	struct moek_ep_layer *layer = run->layer;
	MPI_Request request;
	int mine, worst = MOEK_OK;

	if (run->rounds == 0)
		return MOEK_OK;
	start_dispatch(run, 0);
	for (uint64_t round = 0; round < run->rounds; round++) {
		struct side *side = &run->workspace->sides[round % SIDES];

		if (round + 1 < run->rounds)
			start_dispatch(run, round + 1);
		wait(run, &side->dispatch);
		compute(run, side);
		start_combine(run, side);
		if (round > 0)
			finish(run, round - 1);
	}
	mine = run->status;
	MPI_Iallreduce(&mine, &worst, 1, MPI_INT, MPI_MIN, layer->ep->communicator,
	               &request);
	finish(run, run->rounds - 1);
	wait(run, &request);
	layer->stats.bytes_out = layer->stats.rows_out * layer->record_bytes +
	                         layer->stats.results_out * layer->result_bytes;
	return worst == MOEK_OK ? MOEK_OK
	                        : moek_ep_agree(layer->ep, run->status, &run->error);
}

int32_t moek_ep_forward(struct moek_ep_layer *layer,
                        struct moek_ep_workspace *workspace,
                        const struct moek_forward *forward,
                        struct moek_error *error_out)
{
	struct run run = { .layer = layer, .workspace = workspace, .forward = forward };
	int32_t status;

	if (layer == NULL)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		               "parallel forward: layer is NULL");
	memset(&layer->stats, 0, sizeof(layer->stats));
	status = check_forward(&run, &run.error);
	if (status == MOEK_OK) {
		run.tokens = forward->input.rows;
		route(&run);
	}
	status = exchange_counts(&run, status);
	if (status == MOEK_OK)
		status = run_rounds(&run);
	if (status != MOEK_OK && error_out != NULL)
		*error_out = run.error;
	return status;
}
