/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/ranks.h"

#include "tools/bench_mpi.h"
#include "tools/numbers.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <moek/parallel.h>

/** Of one rank, over all layers; all uint64_t. */
struct done {
	uint64_t experts;      /* that the source was asked for */
	uint64_t weight_bytes; /* of those, in the file */
	uint64_t slots, rows_out, bytes_out;
	uint64_t compute, wait; /* microseconds, of the fastest forwards */
};

struct mpi_ranks {
	struct ranks table;
	struct moek_ep *ep;
	struct done done;
	int fp8;
};

/** What work->parallel is. */
struct parallel {
	struct moek_ep_layer *layer;
	struct moek_ep_workspace *workspace;
	uint64_t first, tokens; /* this rank's */
};

static struct mpi_ranks *of(struct ranks *ranks)
{
	return (struct mpi_ranks *)ranks;
}

static int32_t open_ranks(struct ranks *ranks, struct moek_registry *registry,
                          struct moek_error *error)
{
	return moek_ep_open(MPI_COMM_WORLD, registry, &of(ranks)->ep, error);
}

static int32_t agree(struct ranks *ranks, int32_t status, struct moek_error *error)
{
	return moek_ep_agree(of(ranks)->ep, status, error);
}

static int32_t same_checkpoint(struct ranks *ranks, struct moek_checkpoint *checkpoint,
                               struct moek_error *error)
{
	return moek_ep_same_checkpoint(of(ranks)->ep, checkpoint, error);
}

/* ---- layers ---- */

/** A source that counts what is asked of it. */
struct counted {
	struct moek_source source;
	_Atomic uint64_t experts;
};

static int32_t give(void *self, uint64_t expert, void *scratch,
                    struct moek_expert *expert_out, struct moek_error *error_out)
{
	struct counted *counted = self;

	counted->experts++;
	return counted->source.expert(counted->source.self, expert, scratch, expert_out,
	                              error_out);
}

static uint64_t first_token(const struct ranks *ranks, uint64_t tokens, int rank)
{
	return tokens * (uint64_t)rank / (uint64_t)ranks->count;
}

/** The whole layer's problem, for one rank's share of the tokens. */
static struct moek_problem whole_problem(const struct ranks *ranks,
                                         const struct work *work)
{
	struct moek_problem problem = work->problem;
	uint64_t count = (uint64_t)ranks->count;

	problem.experts_local = problem.experts;
	problem.must_understand &= ~MOEK_EXPERT_MAP;
	problem.max_tokens = (work->tokens + count - 1) / count;
	return problem;
}

static int32_t create(struct ranks *ranks, struct work *work, struct parallel *parallel,
                      struct moek_error *error)
{
	const struct moek_problem problem = whole_problem(ranks, work);
	const struct moek_ep_layer_options options = {
		.struct_size = MOEK_INIT(EP_LAYER_OPTIONS),
		.combine = work->options->combine,
		.wire = work->options->wire,
		.problem = &problem,
		.request = work->options->backend,
		.label = work->name,
	};
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	struct counted counted = { .source.struct_size = MOEK_INIT(SOURCE) };
	struct moek_source source;
	struct done *done = &of(ranks)->done;
	int32_t status = moek_checkpoint_source(work->session->checkpoint, work->index,
	                                        &counted.source, error);

	status = agree(ranks, status, error);
	if (status != MOEK_OK)
		return status;
	source = counted.source;
	source.self = &counted;
	source.expert = give;
	status = moek_ep_layer_create(of(ranks)->ep, &options, &source,
	                              &parallel->layer, error);
	moek_source_close(&counted.source);
	if (status != MOEK_OK)
		return status;
	moek_checkpoint_layer(work->session->checkpoint, work->index, &info);
	done->experts += counted.experts;
	done->weight_bytes += info.read_bytes / problem.experts * counted.experts;
	return moek_ep_workspace_create(&parallel->layer, 1, &parallel->workspace,
	                                error);
}

static int32_t make(struct ranks *ranks, struct work *work, struct moek_error *error)
{
	struct parallel *parallel = calloc(1, sizeof(*parallel));
	int32_t status = agree(ranks,
	                       parallel != NULL ? MOEK_OK
	                                        : tool_error(error, MOEK_NO_MEMORY,
	                                                     "no memory for a layer"),
	                       error);

	work->parallel = parallel;
	if (status != MOEK_OK)
		return status;
	parallel->first = first_token(ranks, work->tokens, ranks->rank);
	parallel->tokens = first_token(ranks, work->tokens, ranks->rank + 1) -
	                   parallel->first;
	status = create(ranks, work, parallel, error);
	if (status == MOEK_OK)
		work->shown = moek_ep_layer_local(parallel->layer);
	return status;
}

static struct moek_rows share(const struct parallel *parallel, void *data,
                              const struct work *work, uint32_t type)
{
	return (struct moek_rows){
		.data = (char *)data +
		        parallel->first * work->problem.hidden * row_type_bytes(type),
		.rows = parallel->tokens,
		.columns = work->problem.hidden,
		.type = type,
	};
}

static int32_t forward(struct ranks *ranks, struct work *work, struct moek_error *error)
{
	struct parallel *parallel = work->parallel;
	uint64_t choices = parallel->first * work->problem.top_k;
	const struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = share(parallel, work->input, work, work->problem.input_type),
		.output = share(parallel, work->output, work,
		                work->problem.output_type),
		.topk_ids = work_ids(work) + choices,
		.topk_weights = work_weights(work) + choices,
	};

	(void)ranks;
	return moek_ep_forward(parallel->layer, parallel->workspace, &forward, error);
}

static void gather(struct ranks *ranks, struct work *work)
{
	const struct parallel *parallel = work->parallel;
	struct moek_ep_stats stats = { .struct_size = MOEK_INIT(EP_STATS) };
	struct done *done = &of(ranks)->done;
	uint64_t bytes = work->problem.hidden *
	                 row_type_bytes(work->problem.output_type);
	MPI_Datatype row;

	/* whole rows are counted: bytes may be more than an int holds */
	MPI_Type_contiguous((int)bytes, MPI_BYTE, &row);
	MPI_Type_commit(&row);
	for (int r = 0; r < ranks->count; r++) {
		uint64_t first = first_token(ranks, work->tokens, r);
		uint64_t last = first_token(ranks, work->tokens, r + 1);

		MPI_Bcast((char *)work->output + first * bytes, (int)(last - first),
		          row, r, MPI_COMM_WORLD);
	}
	MPI_Type_free(&row);
	moek_ep_layer_stats(parallel->layer, &stats);
	done->slots += stats.slots;
	done->rows_out += stats.rows_out;
	done->bytes_out += stats.bytes_out;
	done->compute += (uint64_t)(1e6 * stats.compute_seconds);
	done->wait += (uint64_t)(1e6 * stats.wait_seconds);
}

static void end(struct ranks *ranks, struct work *work)
{
	struct parallel *parallel = work->parallel;

	(void)ranks;
	if (parallel == NULL)
		return;
	moek_ep_workspace_destroy(parallel->workspace);
	moek_ep_layer_destroy(parallel->layer);
	free(parallel);
	work->parallel = NULL;
}

static void add(struct ranks *ranks, float *values, uint64_t count)
{
	(void)ranks;
	while (count != 0) {
		int some = count < INT_MAX ? (int)count : INT_MAX;

		MPI_Allreduce(MPI_IN_PLACE, values, some, MPI_FLOAT, MPI_SUM,
		              MPI_COMM_WORLD);
		values += some;
		count -= (uint64_t)some;
	}
}

/* ---- report ---- */

static void print_done(int rank, const struct done *done)
{
	printf("%4d  %7llu  %10.2f  %9llu  %9llu  %11.1f  %7.2f ms  %7.2f ms\n", rank,
	       (unsigned long long)done->experts, (double)done->weight_bytes / 1048576,
	       (unsigned long long)done->slots, (unsigned long long)done->rows_out,
	       (double)done->bytes_out / 1024, (double)done->compute / 1000,
	       (double)done->wait / 1000);
}

static void write_done(struct writer *writer, int rank, const struct done *done)
{
	writer_open(writer, NULL, '{');
	writer_number(writer, "rank", (uint64_t)rank);
	writer_number(writer, "experts_read", done->experts);
	writer_number(writer, "weight_bytes_read", done->weight_bytes);
	writer_number(writer, "slots", done->slots);
	writer_number(writer, "rows_sent", done->rows_out);
	writer_number(writer, "bytes_sent", done->bytes_out);
	writer_real(writer, "compute_seconds", (double)done->compute / 1e6);
	writer_real(writer, "wait_seconds", (double)done->wait / 1e6);
	writer_close(writer, '}');
}

static void report(struct ranks *ranks, struct writer *writer)
{
	if (writer != NULL)
		writer_open(writer, "ranks", '[');
	else if (of(ranks)->fp8)
		puts("\nrows travelled in fp8: e4m3, e8m0 for each 128 columns");
	if (writer == NULL)
		puts("\nrank  experts    MiB read      slots  rows sent     KiB sent   "
		     "  "
		     "computed      waited");
	for (int r = 0; r < ranks->count; r++) {
		struct done done = of(ranks)->done;

		MPI_Bcast(&done, (int)sizeof(done), MPI_BYTE, r, MPI_COMM_WORLD);
		if (writer != NULL)
			write_done(writer, r, &done);
		else
			print_done(r, &done);
	}
	if (writer != NULL)
		writer_close(writer, ']');
}

static void close_ranks(struct ranks *ranks)
{
	moek_ep_close(of(ranks)->ep);
	of(ranks)->ep = NULL;
}

/* ---- the job ---- */

int ranks_run(const struct command *command, struct options *options, char **arguments)
{
	struct mpi_ranks ranks = {
		.table = { .open = open_ranks,
		           .agree = agree,
		           .same_checkpoint = same_checkpoint,
		           .make = make,
		           .forward = forward,
		           .gather = gather,
		           .end = end,
		           .add = add,
		           .report = report,
		           .close = close_ranks },
	};
	int code, given;

	(void)arguments;
	MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given);
	MPI_Comm_rank(MPI_COMM_WORLD, &ranks.table.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks.table.count);
	if (ranks.table.rank != 0) {
		tool_quiet();
		if (freopen("/dev/null", "w", stdout) == NULL)
			MPI_Abort(MPI_COMM_WORLD, TOOL_REFUSED);
	}
	options->ranks = &ranks.table;
	ranks.fp8 = options->wire == MOEK_WIRE_FP8;
	if (options->tensor > 1 && ranks.table.count % (int)options->tensor != 0) {
		tool_say("%s: tensor=%u does not divide %d ranks", command->name,
		         options->tensor, ranks.table.count);
		MPI_Finalize();
		return TOOL_USAGE;
	}
	if (options->tensor > 1 && command->bit == COMMAND_RUN) {
		options->shards = options->tensor;
		options->shard = (uint32_t)ranks.table.rank % options->tensor;
	}
	code = command->bit == COMMAND_BENCH ? bench_ranks(options)
	                                     : command->run(options);
	fflush(stdout);
	MPI_Finalize();
	return code;
}
