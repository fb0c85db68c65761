/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/bench_mpi.h"

#include "tools/machine.h"
#include "tools/numbers.h"
#include "tools/rig.h"
#include "tools/routing.h"
#include "tools/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <moek/parallel.h>

#define REPETITIONS 15
#define MOST_SECONDS 10.0 /* of one point, unless two repetitions take longer */
#define CACHES 4          /* the layers of a rank are so many times the last cache */
#define MOST_LAYERS 64
#define MOST_RESULTS 4096

/** What one forward took, of all ranks; all double, for one MPI_Reduce. */
struct sample {
	double seconds, compute, wait; /* of the rank where it is most */
	double slots;                  /* likewise */
	double bytes, all_slots;       /* sums */
};

struct result {
	char backend[96], shape[32], scheme[32], activations[16];
	uint64_t tokens;
	int ranks;
	double ms, spread, wire_bytes, compute, load, speedup;
};

struct bench {
	const struct options *options;
	struct machine machine;
	uint64_t threads;            /* of a rank */
	int rank, count, neighbours; /* `neighbours`: ranks of this machine */
	int skewed;
	struct result *results; /* of rank 0 */
	uint64_t result_count;
};

/** One shape on the first so many ranks. */
struct series {
	struct bench *bench;
	MPI_Comm ranks;
	int rank, count;
	struct result names;
	struct moek_problem problem; /* of this rank's shard */
	uint64_t most_tokens;        /* of all ranks */
	struct moek_registry *registry;
	struct moek_ep *ep;
	struct moek_ep_layer *layers[MOST_LAYERS];
	uint64_t layer_count, turn;
	struct moek_ep_workspace *workspace;
	struct routing routing;
	void *input, *output; /* of this rank's tokens */
	int32_t *ids;         /* of all tokens */
	float *weights;
	double *ms;
};

/* ---- layers ---- */

static uint64_t first_token(const struct series *series, uint64_t tokens, int rank)
{
	return tokens * (uint64_t)rank / (uint64_t)series->count;
}

/** Of --parallel experts,tensor=T: columns of intermediate for this rank, whole groups.
 */
static int32_t take_shard(struct series *series, struct moek_error *error_out)
{
	struct moek_problem *p = &series->problem;
	uint32_t shards = series->bench->options->tensor;
	uint64_t piece = p->down.group_size > 0 ? p->down.group_size : 2;
	uint64_t pieces = p->intermediate / piece;

	if (shards <= 1)
		return MOEK_OK;
	if (p->intermediate % piece != 0 || pieces < shards)
		return tool_error(error_out, MOEK_REFUSED,
		                  "%s: %u tensor shards of intermediate %llu in groups "
		                  "of %llu",
		                  series->names.shape, shards,
		                  (unsigned long long)p->intermediate,
		                  (unsigned long long)piece);
	p->shards = shards;
	p->shard = (uint32_t)series->rank % shards;
	p->intermediate = (pieces * (p->shard + 1) / shards -
	                   pieces * p->shard / shards) *
	                  piece;
	return MOEK_OK;
}

/** So many that a rank's weights are 4 times the last cache, as memory allows. 0: not
 * one, but on more ranks perhaps. */
static int32_t count_layers(const struct series *series, uint64_t *count_out,
                            struct moek_error *error_out)
{
	const struct bench *bench = series->bench;
	const struct moek_problem *p = &series->problem;
	uint64_t groups = (uint64_t)series->count / (p->shards > 1 ? p->shards : 1);
	uint64_t here = (p->experts + groups - 1) / groups;
	/* a backend pads */
	uint64_t layer = shape_expert_bytes(p) * here / 8 * 9;
	uint64_t memory = bench->options->memory_gib > 0
	                          ? bench->options->memory_gib << 30
	                          : bench->machine.available_bytes / 4 * 3;
	uint64_t wanted = CACHES * bench->machine.last_cache_bytes / layer + 1;
	uint64_t mine, fewest;

	memory /= (uint64_t)bench->neighbours;
	mine = memory / layer < wanted ? memory / layer : wanted;
	mine = mine < MOST_LAYERS ? mine : MOST_LAYERS;
	MPI_Allreduce(&mine, &fewest, 1, MPI_UINT64_T, MPI_MIN, series->ranks);
	*count_out = fewest;
	if (fewest > 0 || series->count < bench->count)
		return MOEK_OK;
	return tool_error(error_out, MOEK_NO_MEMORY,
	                  "%s %s: %d ranks need about %.1f GiB each; more ranks, a "
	                  "smaller shape, or --memory",
	                  series->names.shape, series->names.scheme, series->count,
	                  (double)layer / 0x1p30);
}

static int32_t make_layers(struct series *series, uint64_t count,
                           struct moek_error *error_out)
{
	const struct options *o = series->bench->options;
	struct shape_weights weights = { 0 };
	const struct moek_ep_layer_options options = {
		.struct_size = MOEK_INIT(EP_LAYER_OPTIONS),
		.combine = o->combine,
		.wire = o->wire,
		.problem = &series->problem,
		.request = o->backend,
		.label = series->names.shape,
	};
	int32_t status = shape_weights_make(&series->problem, &weights)
	                         ? MOEK_OK
	                         : tool_error(
					   error_out, MOEK_NO_MEMORY,
					   "no memory for the weights of one expert");
	struct moek_source source = shape_source(&weights);

	status = moek_ep_agree(series->ep, status, error_out);
	for (; status == MOEK_OK && series->layer_count < count;
	     series->layer_count++) {
		struct moek_ep_layer *layer = NULL;

		status = moek_ep_layer_create(series->ep, &options, &source, &layer,
		                              error_out);
		if (status != MOEK_OK)
			break;
		series->layers[series->layer_count] = layer;
	}
	shape_weights_free(&weights);
	return status == MOEK_OK
	               ? moek_ep_workspace_create(series->layers, count,
	                                          &series->workspace, error_out)
	               : status;
}

static int32_t make_rows(struct series *series, struct moek_error *error_out)
{
	const struct moek_problem *p = &series->problem;
	uint64_t all = series->most_tokens, slots = all * p->top_k;

	series->input = alloc_array(p->max_tokens, p->hidden,
	                            row_type_bytes(p->input_type));
	series->output = alloc_array(p->max_tokens, p->hidden,
	                             row_type_bytes(p->output_type));
	series->ids = alloc_array(all, p->top_k, sizeof(int32_t));
	series->weights = alloc_array(all, p->top_k, sizeof(float));
	series->ms = alloc_array(1000, 1, sizeof(double));
	if (!routing_make(p, series->bench->skewed, series->bench->options->seed,
	                  &series->routing) ||
	    series->input == NULL || series->output == NULL || series->ids == NULL ||
	    series->weights == NULL || series->ms == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "%s: no memory for %llu rows", series->names.shape,
		                  (unsigned long long)all);
	fill_random(series->input, p->input_type, p->max_tokens * p->hidden, 1);
	for (uint64_t i = 0; i < slots; i++)
		series->weights[i] = 1.0f / (float)p->top_k;
	return MOEK_OK;
}

static int32_t make_series(struct series *series, struct moek_error *error_out)
{
	struct options options = *series->bench->options;
	const struct list *tokens = shape_tokens(&options);
	uint64_t layers = 0;
	int32_t status;

	for (uint64_t i = 0; i < tokens->count; i++)
		if (tokens->values[i] > series->most_tokens)
			series->most_tokens = tokens->values[i];
	options.threads = series->bench->threads;
	status = tool_registry(&options, &series->registry, error_out);
	status = moek_ep_open(series->ranks,
	                      status == MOEK_OK ? series->registry : NULL, &series->ep,
	                      error_out);
	if (status != MOEK_OK)
		return status;
	series->problem.max_tokens = (series->most_tokens + (uint64_t)series->count -
	                              1) /
	                             (uint64_t)series->count;
	status = take_shard(series, error_out);
	if (status == MOEK_OK)
		status = make_rows(series, error_out);
	status = moek_ep_agree(series->ep, status, error_out);
	if (status == MOEK_OK)
		status = count_layers(series, &layers, error_out);
	return status == MOEK_OK && layers > 0 ? make_layers(series, layers, error_out)
	                                       : status;
}

static void free_series(struct series *series)
{
	moek_ep_workspace_destroy(series->workspace);
	while (series->layer_count > 0)
		moek_ep_layer_destroy(series->layers[--series->layer_count]);
	moek_ep_close(series->ep);
	moek_registry_close(series->registry);
	routing_free(&series->routing);
	free(series->input);
	free(series->output);
	free(series->ids);
	free(series->weights);
	free(series->ms);
}

/* ---- one repetition ---- */

static int32_t repeat(struct series *series, uint64_t tokens, struct sample *sample_out,
                      struct moek_error *error_out)
{
	const struct moek_problem *p = &series->problem;
	uint64_t first = first_token(series, tokens, series->rank);
	uint64_t mine = first_token(series, tokens, series->rank + 1) - first;
	struct moek_ep_layer *layer = series->layers[series->turn];
	const struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = { series->input, mine, p->hidden, 0, p->input_type, 0 },
		.output = { series->output, mine, p->hidden, 0, p->output_type, 0 },
		.topk_ids = series->ids + first * p->top_k,
		.topk_weights = series->weights + first * p->top_k,
	};
	struct moek_ep_stats stats = { .struct_size = MOEK_INIT(EP_STATS) };
	struct sample sample;
	double start;
	int32_t status;

	routing_draw(&series->routing, tokens, series->ids);
	series->turn = (series->turn + 1) % series->layer_count;
	MPI_Barrier(series->ranks);
	start = seconds_now();
	status = moek_ep_forward(layer, series->workspace, &forward, error_out);
	sample.seconds = seconds_now() - start;
	if (status != MOEK_OK)
		return status;
	moek_ep_layer_stats(layer, &stats);
	sample.compute = stats.compute_seconds;
	sample.wait = stats.wait_seconds;
	sample.slots = sample.all_slots = (double)stats.slots;
	sample.bytes = (double)stats.bytes_out;
	MPI_Allreduce(&sample, sample_out, 4, MPI_DOUBLE, MPI_MAX, series->ranks);
	MPI_Allreduce(&sample.bytes, &sample_out->bytes, 2, MPI_DOUBLE, MPI_SUM,
	              series->ranks);
	return MOEK_OK;
}

static void show_progress(const struct series *series, uint64_t tokens,
                          uint64_t repetition)
{
	if (series->bench->rank == 0 && isatty(STDERR_FILENO))
		fprintf(stderr,
		        "\r%s %s %s on %d ranks, %llu tokens: repetition %llu\033[K",
		        series->names.shape, series->names.scheme,
		        series->names.activations, series->count,
		        (unsigned long long)tokens, (unsigned long long)repetition);
}

/** The same shape and tokens on the fewest ranks. */
static const struct result *find_first(const struct bench *bench,
                                       const struct result *of)
{
	const struct result *r = bench->results;

	while (r != of &&
	       (r->tokens != of->tokens || strcmp(r->shape, of->shape) != 0 ||
	        strcmp(r->scheme, of->scheme) != 0 ||
	        strcmp(r->activations, of->activations) != 0))
		r++;
	return r;
}

static void keep(const struct series *series, uint64_t tokens, uint64_t count,
                 const struct sample *sum)
{
	struct bench *bench = series->bench;
	struct result *result = &bench->results[bench->result_count];
	double n = (double)count;

	bench->result_count += bench->result_count + 1 < MOST_RESULTS;
	*result = series->names;
	result->tokens = tokens;
	result->ranks = series->count;
	result->spread = quartile_spread(series->ms, count);
	result->ms = median(series->ms, count);
	result->wire_bytes = sum->bytes / n;
	result->compute = sum->compute / sum->seconds;
	result->load = sum->slots * series->count / sum->all_slots;
	result->speedup = find_first(bench, result)->ms / result->ms;
}

static int32_t run_point(struct series *series, uint64_t tokens,
                         struct moek_error *error_out)
{
	uint64_t wanted = series->bench->options->repetitions > 0
	                          ? series->bench->options->repetitions
	                          : REPETITIONS;
	struct sample sum = { 0 }, sample;
	uint64_t count = 0;
	/* the first touches memory */
	int32_t status = repeat(series, tokens, &sample, error_out);

	while (status == MOEK_OK && count < wanted &&
	       (count < 2 || sum.seconds < MOST_SECONDS)) {
		show_progress(series, tokens, count + 1);
		status = repeat(series, tokens, &sample, error_out);
		series->ms[count++] = sample.seconds * 1e3;
		sum.seconds += sample.seconds;
		sum.compute += sample.compute;
		sum.slots += sample.slots;
		sum.all_slots += sample.all_slots;
		sum.bytes += sample.bytes;
	}
	if (series->bench->rank == 0 && isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	if (status == MOEK_OK && series->bench->rank == 0)
		keep(series, tokens, count, &sum);
	return status;
}

/** The backend's name, from the first rank that has experts: rank 0 always has. */
static void name_backend(struct series *series)
{
	const struct moek_layer *local = moek_ep_layer_local(series->layers[0]);

	snprintf(series->names.backend, sizeof(series->names.backend), "%s",
	         local != NULL ? moek_choice_winner(moek_layer_choice(local)) : "");
}

static int32_t run_ranks(struct series *series, struct moek_error *error_out)
{
	const struct list *tokens = shape_tokens(series->bench->options);
	int32_t status;

	MPI_Comm_rank(series->ranks, &series->rank);
	status = make_series(series, error_out);
	if (status == MOEK_OK && series->layer_count > 0)
		name_backend(series);
	for (uint64_t i = 0;
	     status == MOEK_OK && series->layer_count > 0 && i < tokens->count; i++)
		status = run_point(series, tokens->values[i], error_out);
	free_series(series);
	return status;
}

/** Wait for those who measure without taking their processors. */
static void wait_for_all(void)
{
	const struct timespec nap = { .tv_nsec = 2000000 };
	MPI_Request request;
	int done = 0;

	MPI_Ibarrier(MPI_COMM_WORLD, &request);
	for (;;) {
		MPI_Test(&request, &done, MPI_STATUS_IGNORE);
		if (done)
			return;
		nanosleep(&nap, NULL);
	}
}

/** On 1, 2, 4 ... groups of ranks, and on all. */
static int next_count(const struct bench *bench, int count)
{
	int least = bench->options->tensor > 1 ? (int)bench->options->tensor : 1;

	if (count == 0)
		return least;
	return count == bench->count || 2 * count <= bench->count ? 2 * count
	                                                          : bench->count;
}

static int32_t run_series(void *self, const struct shape_request *request,
                          struct moek_error *error_out)
{
	struct bench *bench = self;
	struct moek_problem problem;
	int32_t status = shape_problem(request, &problem, error_out);

	for (int count = next_count(bench, 0);
	     status == MOEK_OK && count <= bench->count;
	     count = next_count(bench, count)) {
		struct series series = { .bench = bench,
			                 .count = count,
			                 .problem = problem };
		int in = bench->rank < count;

		shape_name(request, &problem, series.names.shape, series.names.scheme,
		           series.names.activations);
		MPI_Comm_split(MPI_COMM_WORLD, in ? 0 : MPI_UNDEFINED, bench->rank,
		               &series.ranks);
		if (in) {
			status = run_ranks(&series, error_out);
			MPI_Comm_free(&series.ranks);
		}
		wait_for_all();
		MPI_Bcast(&status, 1, MPI_INT32_T, 0, MPI_COMM_WORLD);
	}
	return status;
}

/* ---- output ---- */

static void print_results(const struct bench *bench)
{
	const struct options *o = bench->options;

	machine_print(&bench->machine);
	printf("\n%d ranks of %llu threads; rows travel %s, %s come back; "
	       "experts%s\n\n",
	       bench->count, (unsigned long long)bench->threads,
	       o->wire == MOEK_WIRE_FP8 ? "in fp8 (e4m3, e8m0 for each 128 columns)"
	                                : "as they are",
	       o->combine == MOEK_COMBINE_RANKS ? "sums of ranks" : "slots",
	       o->tensor > 1 ? " and tensor shards" : "");
	printf("%-18s %-12s %-11s %-18s %6s %6s %10s %6s %12s %8s %6s %8s\n", "shape",
	       "scheme", "activations", "backend", "tokens", "ranks", "ms", "spread",
	       "KiB sent", "slowest", "load", "speed-up");
	for (uint64_t i = 0; i < bench->result_count; i++) {
		const struct result *r = &bench->results[i];

		printf("%-18s %-12s %-11s %-18s %6llu %6d %10.4g %5.0f%% %12.1f "
		       "%7.0f%% "
		       "%6.2f %8.2f\n",
		       r->shape, r->scheme, r->activations, r->backend,
		       (unsigned long long)r->tokens, r->ranks, r->ms, 100 * r->spread,
		       r->wire_bytes / 1024, 100 * r->compute, r->load, r->speedup);
	}
}

static void write_results(const struct bench *bench)
{
	const struct options *o = bench->options;
	struct writer writer = { 0 };

	writer_open(&writer, NULL, '{');
	machine_write(&writer, &bench->machine);
	writer_number(&writer, "ranks", (uint64_t)bench->count);
	writer_number(&writer, "threads", bench->threads);
	writer_number(&writer, "tensor", o->tensor > 1 ? o->tensor : 1);
	writer_string(&writer, "wire", o->wire == MOEK_WIRE_FP8 ? "fp8" : "as_is");
	writer_string(&writer, "combine",
	              o->combine == MOEK_COMBINE_RANKS ? "ranks" : "slots");
	writer_open(&writer, "results", '[');
	for (uint64_t i = 0; i < bench->result_count; i++) {
		const struct result *r = &bench->results[i];

		writer_open(&writer, NULL, '{');
		writer_string(&writer, "backend", r->backend);
		writer_string(&writer, "shape", r->shape);
		writer_string(&writer, "scheme", r->scheme);
		writer_string(&writer, "activations", r->activations);
		writer_number(&writer, "tokens", r->tokens);
		writer_number(&writer, "ranks", (uint64_t)r->ranks);
		writer_real(&writer, "ms", r->ms);
		writer_real(&writer, "spread", r->spread);
		writer_real(&writer, "bytes_sent", r->wire_bytes);
		writer_real(&writer, "slowest_share", r->compute);
		writer_real(&writer, "load", r->load);
		writer_real(&writer, "speed_up", r->speedup);
		writer_close(&writer, '}');
	}
	writer_close(&writer, ']');
	writer_close(&writer, '}');
}

/* ---- the command ---- */

static int32_t check_options(struct bench *bench, struct moek_error *error_out)
{
	const struct options *o = bench->options;

	if (o->compare != NULL || o->plot != NULL || o->thread_list.count > 1)
		return tool_error(error_out, MOEK_BAD_ARGUMENT,
		                  "bench --parallel takes no --compare, no --plot and "
		                  "one number of --threads");
	return routing_read(o, &bench->skewed, error_out);
}

static void look_around(struct bench *bench)
{
	MPI_Comm here;

	machine_read(&bench->machine);
	MPI_Comm_rank(MPI_COMM_WORLD, &bench->rank);
	MPI_Comm_size(MPI_COMM_WORLD, &bench->count);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
	                    &here);
	MPI_Comm_size(here, &bench->neighbours);
	MPI_Comm_free(&here);
	bench->threads = bench->machine.cpus / (uint64_t)bench->neighbours;
	if (bench->options->thread_list.count > 0)
		bench->threads = bench->options->thread_list.values[0];
	else if (bench->threads == 0)
		bench->threads = 1;
}

int bench_ranks(const struct options *options)
{
	struct bench bench = { .options = options };
	struct moek_error error = { 0 };
	int32_t status;

	look_around(&bench);
	status = check_options(&bench, &error);
	bench.results = alloc_array(MOST_RESULTS, 1, sizeof(*bench.results));
	if (status == MOEK_OK && bench.results == NULL)
		status = tool_error(&error, MOEK_NO_MEMORY,
		                    "no memory for the results");
	if (status == MOEK_OK)
		status = shapes_each(options, run_series, &bench, &error);
	if (status == MOEK_OK && bench.rank == 0 && options->json)
		write_results(&bench);
	else if (status == MOEK_OK && bench.rank == 0)
		print_results(&bench);
	free(bench.results);
	return status == MOEK_OK ? TOOL_DONE : tool_fail(&error);
}
