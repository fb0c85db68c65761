/* SPDX-License-Identifier: MIT */
/*
 * libmoek-mpi on the ranks of one job, in TAP from rank 0. Linked with its objects, so
 * that calls of MPI and of malloc can be counted here.
 *   check_ep equal    the bits of one process, and the bytes that were sent
 *   check_ep faults   one report for all ranks
 *   check_ep killed   the last rank kills itself; the job must end
 */
#define _DEFAULT_SOURCE /* mprotect */

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <moek/formats.h>
#include <moek/parallel.h>

#include "tools/kernelcheck/weights.h"

#define MOST_RANKS 8
#define MOST_SHARDS 4

static int rank, ranks, cases, failed_cases;
static int failures; /* of the case, on this rank */

static void expect(int holds, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void expect(int holds, const char *format, ...)
{
	va_list arguments;

	if (holds || failures++ > 5)
		return;
	fprintf(stderr, "# rank %d: ", rank);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static void end_case(const char *name)
{
	int all = 0;

	MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	failures = 0;
	cases++;
	failed_cases += all != 0;
	if (rank == 0) {
		printf("%s %d - %d ranks: %s\n", all != 0 ? "not ok" : "ok", cases,
		       ranks, name);
		fflush(stdout);
	}
}

/* ---- what is counted ---- */

static uint64_t bytes_sent, messages_of_rows;

static void count_rows(const int *counts, MPI_Datatype type)
{
	int size;

	MPI_Type_size(type, &size);
	for (int r = 0; r < ranks; r++)
		if (r != rank)
			bytes_sent += (uint64_t)counts[r] * (uint64_t)size;
	messages_of_rows++;
}

int MPI_Ialltoallv(const void *out, const int out_counts[], const int out_starts[],
                   MPI_Datatype out_type, void *in, const int in_counts[],
                   const int in_starts[], MPI_Datatype in_type, MPI_Comm communicator,
                   MPI_Request *request)
{
	count_rows(out_counts, out_type);
	return PMPI_Ialltoallv(out, out_counts, out_starts, out_type, in, in_counts,
	                       in_starts, in_type, communicator, request);
}

int MPI_Alltoallv(const void *out, const int out_counts[], const int out_starts[],
                  MPI_Datatype out_type, void *in, const int in_counts[],
                  const int in_starts[], MPI_Datatype in_type, MPI_Comm communicator)
{
	count_rows(out_counts, out_type);
	return PMPI_Alltoallv(out, out_counts, out_starts, out_type, in, in_counts,
	                      in_starts, in_type, communicator);
}

static uint64_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
int __real_posix_memalign(void **address, size_t align, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
int __wrap_posix_memalign(void **address, size_t align, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
	allocations++;
	return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
	allocations++;
	return __real_calloc(count, bytes);
}

int __wrap_posix_memalign(void **address, size_t align, size_t bytes)
{
	allocations++;
	return __real_posix_memalign(address, align, bytes);
}

/* libmoek's own, for one rank to have another */
static const char *version = "1";
const char *moek_version(void)
{
	return version;
}

/* ---- a case ---- */

#define INT4 "weight=int4,group_size=32,scale=bf16"
#define MXFP4 "weight=mxfp4,group_size=32,scale=e8m0"
#define INT8 INT4 ",activations=int8,activations_group=32"
#define CPU "require cpu.avx2"
#define VNNI "require cpu.avx512vnni"
#define SLOW "require cpu.plain"
#define DOT "require cpu.avx512bf16"
#define PLAIN "require emulation"
#define B MOEK_BF16
#define F MOEK_F32

enum placing { CONTIGUOUS, STRIDED, UNEVEN, REPLICAS, PLACINGS };
enum routing { SPREAD, SKEWED, SOME_UNROUTED, ROUTINGS };

struct job {
	const char *name, *scheme, *backend;
	enum placing placing;
	enum routing routing;
	int idle; /* odd ranks have no tokens */
	uint32_t input_type, output_type;
	uint64_t tokens, top_k, chunk;
	uint32_t combine;
	int weight_on_input;
	uint64_t stride; /* elements between rows of input and output, beyond hidden */
	int shards;      /* of each expert; 0: whole */
	uint32_t wire;
};

struct data {
	struct moek_problem problem;
	struct moek_expert *experts, *serve; /* all; what the source gives */
	struct moek_expert *cut[MOST_SHARDS];
	uint8_t placement[MOST_RANKS * 64];
	/* of all ranks' tokens, in order of ranks */
	uint64_t all, first, mine;
	uint8_t *input, *seen, *want, *got; /* `seen`: the input as experts get it */
	int32_t *ids;
	float *weights;
	uint64_t asked; /* bit of each expert the source was asked for */
	int fails;      /* the source does */
};

static int32_t give(void *self, uint64_t expert, void *scratch,
                    struct moek_expert *expert_out, struct moek_error *error_out)
{
	struct data *data = self;

	(void)scratch;
	if (data->fails) {
		memset(error_out, 0, sizeof(*error_out));
		error_out->status = MOEK_BAD_FILE;
		snprintf(error_out->text, sizeof(error_out->text),
		         "w.safetensors: gone");
		return MOEK_BAD_FILE;
	}
	__atomic_fetch_or(&data->asked, UINT64_C(1) << expert, __ATOMIC_RELAXED);
	*expert_out = data->serve[expert];
	return MOEK_OK;
}

static struct moek_source source_of(struct data *data)
{
	return (struct moek_source){ .struct_size = MOEK_SOURCE_SIZE_1_0,
		                     .self = data,
		                     .expert = give };
}

static uint64_t tokens_of(const struct job *job, int of)
{
	if (job->idle && of % 2 == 1)
		return 0;
	return job->tokens + (uint64_t)of; /* never the same twice */
}

static int shards_of(const struct job *job)
{
	return job->shards > 1 ? job->shards : 1;
}

/** What experts are placed on. */
static int groups_of(const struct job *job)
{
	return ranks / shards_of(job);
}

static void place(const struct job *job, struct data *data)
{
	uint64_t experts = data->problem.experts;
	int groups = groups_of(job);

	memset(data->placement, 0, sizeof(data->placement));
	for (uint64_t e = 0; e < experts; e++) {
		uint64_t r = e % (uint64_t)groups;

		if (job->placing == UNEVEN) /* the last rank holds nothing */
			r = e < 2 ? 0
			          : (e * e) % (uint64_t)(groups > 2 ? groups - 1 : 1);
		data->placement[r * experts + e] = 1;
		if (job->placing == REPLICAS && e < 4)
			data->placement[(r + 1) % (uint64_t)groups * experts + e] = 1;
		if (job->placing == REPLICAS && e == 0)
			for (int all = 0; all < groups; all++)
				data->placement[(uint64_t)all * experts] = 1;
	}
}

/* ---- shards of 4-bit experts, cut by other means than core/shard.c ---- */

/** Rows @first .. of gate or up. */
static void cut_rows(struct moek_matrix *m, uint64_t first, uint64_t rows)
{
	m->codes = (const char *)m->codes + first * m->columns / 2;
	m->scales = (const char *)m->scales + first * (m->columns / m->group_size) *
	                                              (m->scale == MOEK_E8M0 ? 1 : 2);
	m->rows = rows;
}

static const void *cut_bytes(const void *from, uint64_t rows, uint64_t all,
                             uint64_t first, uint64_t bytes)
{
	char *to = calloc(rows, bytes);

	for (uint64_t r = 0; r < rows; r++)
		memcpy(to + r * bytes, (const char *)from + r * all + first, bytes);
	return to;
}

static void cut_columns(struct moek_matrix *m, uint64_t first, uint64_t columns)
{
	uint64_t scale = m->scale == MOEK_E8M0 ? 1 : 2;

	m->codes = cut_bytes(m->codes, m->rows, m->columns / 2, first / 2, columns / 2);
	m->scales = cut_bytes(m->scales, m->rows, m->columns / m->group_size * scale,
	                      first / m->group_size * scale,
	                      columns / m->group_size * scale);
	m->columns = columns;
}

static void cut_experts(const struct job *job, struct data *data)
{
	uint64_t width = data->problem.intermediate / (uint64_t)shards_of(job);

	for (int s = 0; s < job->shards; s++) {
		data->cut[s] = calloc(data->problem.experts, sizeof(*data->cut[s]));
		for (uint64_t e = 0; e < data->problem.experts; e++) {
			struct moek_expert *expert = &data->cut[s][e];

			*expert = data->experts[e];
			cut_rows(&expert->gate, (uint64_t)s * width, width);
			cut_rows(&expert->up, (uint64_t)s * width, width);
			cut_columns(&expert->down, (uint64_t)s * width, width);
		}
	}
}

static void free_cut(struct data *data)
{
	for (int s = 0; s < MOST_SHARDS; s++) {
		for (uint64_t e = 0; data->cut[s] != NULL && e < data->problem.experts;
		     e++) {
			free((void *)(uintptr_t)data->cut[s][e].down.codes);
			free((void *)(uintptr_t)data->cut[s][e].down.scales);
		}
		free(data->cut[s]);
	}
}

/* ---- fp8, by other means than parallel/wire.c ---- */

/** Row elements @first .. @last - 1 as MOEK_WIRE_FP8 leaves them. */
static void round_group(uint32_t type, const void *from, void *to, uint64_t first,
                        uint64_t last)
{
	double largest = 0, scale = 0x1p-127;

	for (uint64_t i = first; i < last; i++)
		largest = fmax(largest, fabs((double)float_get(type, from, i)));
	while (largest > 448 * scale)
		scale *= 2;
	for (uint64_t i = first; i < last; i++) {
		double x = (double)float_get(type, from, i);
		int exponent;
		double step, rounded, allowed;

		frexp(x / scale, &exponent);
		/* 3 bits behind the leading one; below 2^-6 the steps stay equal */
		step = x == 0 || exponent - 1 < -6 ? 0x1p-9 * scale
		                                   : ldexp(scale, exponent - 1 - 3);
		rounded = nearbyint(x / step) * step;
		float_put(type, to, i, (float)rounded);
		allowed = fmax(0x1p-4 * fabs(x), 0x1p-10 * scale);
		expect(fabs((double)float_get(type, to, i) - x) <= allowed,
		       "%a became %a, allowed %a", x, rounded, allowed);
	}
}

static void round_rows(struct data *data)
{
	const struct moek_problem *p = &data->problem;
	uint64_t bytes = data->all * p->hidden * float_bytes(p->input_type);

	data->seen = calloc(bytes + 1, 1);
	for (uint64_t t = 0; t < data->all; t++)
		for (uint64_t c = 0; c < p->hidden; c += 128)
			round_group(p->input_type, data->input, data->seen,
			            t * p->hidden + c,
			            t * p->hidden + (c + 128 < p->hidden ? c + 128
			                                                 : p->hidden));
	expect(memcmp(data->seen, data->input, bytes) != 0, "nothing was rounded");
}

static void route(const struct job *job, struct data *data, uint64_t *state)
{
	uint64_t experts = data->problem.experts;

	for (uint64_t t = 0; t < data->all; t++) {
		uint64_t first = random_next(state) % experts,
			 step = 1 + random_next(state) % 3;

		for (uint64_t k = 0; k < job->top_k; k++) {
			uint64_t at = t * job->top_k + k;

			data->ids[at] = (int32_t)((first + k * step) % experts);
			if (job->routing == SKEWED)
				data->ids[at] = (int32_t)k;
			if (job->routing == SOME_UNROUTED &&
			    (at % 3 == 0 || t % 5 == 0))
				data->ids[at] = t % 2 ? -1 : (int32_t)experts;
			data->weights[at] = random_float(state, -1, 1);
		}
	}
}

static void make_data(const struct job *job, struct data *data)
{
	char text[512];
	uint64_t state = 7, in, out;
	struct moek_error error;
	struct moek_problem *p = &data->problem;

	memset(data, 0, sizeof(*data));
	for (int r = 0; r < ranks; r++) {
		data->first += r < rank ? tokens_of(job, r) : 0;
		data->all += tokens_of(job, r);
	}
	data->mine = tokens_of(job, rank);
	p->struct_size = MOEK_INIT(PROBLEM);
	snprintf(text, sizeof(text),
	         "experts=13,top_k=%llu,hidden=%d,intermediate=%d,max_tokens=%llu,"
	         "activation=silu,gated=1,%s",
	         (unsigned long long)job->top_k, job->wire ? 160 : 96,
	         job->shards ? 128 : 64, (unsigned long long)data->all, job->scheme);
	if (moek_problem_parse(text, p, &error) != MOEK_OK) {
		fprintf(stderr, "%s\n", error.text);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	p->input_type = job->input_type;
	p->output_type = job->output_type;
	if (job->weight_on_input)
		p->must_understand |= MOEK_WEIGHT_ON_INPUT;
	in = float_bytes(p->input_type);
	out = float_bytes(p->output_type);
	data->serve = data->experts = weights_create(p, 11, WEIGHTS_PLAIN);
	cut_experts(job, data);
	data->input = calloc(data->all * p->hidden + 1, in);
	data->want = calloc(data->all * p->hidden + 1, out);
	data->got = calloc(data->mine * p->hidden + 1, out);
	data->ids = calloc(data->all * p->top_k + 1, sizeof(int32_t));
	data->weights = calloc(data->all * p->top_k + 1, sizeof(float));
	memset(data->got, 0x55, data->mine * p->hidden * out);
	for (uint64_t i = 0; i < data->all * p->hidden; i++)
		float_put(p->input_type, data->input, i,
		          random_float(&state, -2, 2) *
		                  (job->wire && i / 32 % 2 ? 0x1p-14f : 1.0f));
	data->seen = data->input;
	if (job->wire)
		round_rows(data);
	route(job, data, &state);
	place(job, data);
}

static void free_data(struct data *data)
{
	free_cut(data);
	weights_free(&data->problem, data->experts);
	if (data->seen != data->input)
		free(data->seen);
	free(data->input);
	free(data->want);
	free(data->got);
	free(data->ids);
	free(data->weights);
}

static struct moek_registry *open_registry(const char *dirs_of,
                                           const struct moek_setting *setting)
{
	const char *dirs[2] = { getenv(dirs_of), NULL };
	struct moek_registry_options options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.threads = (uint32_t)(1 + rank % 2), /* must not matter */
		.config_file = "",
		.plugin_dirs = dirs,
		.settings = setting,
		.setting_count = setting != NULL,
		.checks = 1,
		.ignore_environment = 1,
	};
	struct moek_registry *registry = NULL;
	struct moek_error error;

	if (moek_registry_open(&options, &registry, &error) != MOEK_OK) {
		fprintf(stderr, "# %s\n", error.text);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return registry;
}

/* ---- one process ---- */

static struct moek_rows rows_of(void *data, uint64_t rows, const struct moek_problem *p,
                                uint32_t type)
{
	return (struct moek_rows){
		.data = data, .rows = rows, .columns = p->hidden, .type = type
	};
}

/** All tokens on @ids, to @output. 0: the backend is not here, or refuses. */
static int run_alone_on(const struct job *job, struct moek_registry *registry,
                        struct data *data, const int32_t *ids, void *output)
{
	struct moek_source source = source_of(data);
	struct moek_choice *choice = NULL;
	struct moek_layer *layer = NULL;
	struct moek_workspace *workspace = NULL;
	struct moek_error error;
	const struct moek_problem *p = &data->problem;
	struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = rows_of(data->seen, data->all, p, p->input_type),
		.output = rows_of(output, data->all, p, p->output_type),
		.topk_ids = ids,
		.topk_weights = data->weights,
	};
	int ran;

	if (moek_choose(registry, p, job->backend, NULL, &choice, &error) != MOEK_OK) {
		moek_choice_destroy(choice);
		return 0;
	}
	ran = moek_layer_create(choice, &source, NULL, &layer, &error) == MOEK_OK &&
	      moek_workspace_create(&layer, 1, NULL, 0, &workspace, &error) == MOEK_OK;
	forward.workspace = workspace;
	ran = ran && moek_layer_forward(layer, &forward, &error) == MOEK_OK;
	expect(ran, "one process: %s", ran ? "" : error.text);
	moek_workspace_destroy(workspace);
	moek_layer_destroy(layer);
	moek_choice_destroy(choice);
	return ran;
}

static int run_alone(const struct job *job, struct moek_registry *registry,
                     struct data *data)
{
	return run_alone_on(job, registry, data, data->ids, data->want);
}

/* ---- where choices go, worked out by other means ---- */

static int holds(const struct job *job, const struct data *data, int of, int32_t expert)
{
	uint64_t experts = data->problem.experts, r = (uint64_t)of;
	uint64_t groups = (uint64_t)groups_of(job);
	uint64_t each = experts / groups, more = experts % groups, first;

	if (job->placing != CONTIGUOUS)
		return data->placement[r * experts + (uint64_t)expert];
	first = r * each + (r < more ? r : more);
	return (uint64_t)expert >= first &&
	       (uint64_t)expert < first + each + (r < more);
}

/** The group for choice @at, by the rule of moek_ep_forward(); @to: of those before. */
static int group_of(const struct job *job, const struct data *data, int source,
                    uint64_t token, uint64_t at, const int *to)
{
	uint64_t k = at % job->top_k;
	int list[MOST_RANKS], count = 0;
	int32_t id = data->ids[at];

	if (id < 0 || (uint64_t)id >= data->problem.experts)
		return -1;
	if (holds(job, data, source, id))
		return source;
	for (int r = 0; r < groups_of(job); r++)
		if (holds(job, data, r, id))
			list[count++] = r;
	for (int i = 0; i < count; i++)
		for (uint64_t before = at - k; before < at; before++)
			if (to[before] == list[i])
				return list[i];
	return list[(token + (uint64_t)source) % (uint64_t)count];
}

/** The group that computes each choice of all tokens, or -1. */
static int *goes_to(const struct job *job, const struct data *data)
{
	uint64_t at = 0;
	int *to = calloc(data->all * job->top_k + 1, sizeof(*to));

	for (int source = 0; source < ranks; source++)
		for (uint64_t t = 0; t < tokens_of(job, source); t++)
			for (uint64_t k = 0; k < job->top_k; k++, at++)
				to[at] = group_of(job, data, source / shards_of(job), t,
				                  at, to);
	return to;
}

/* ---- many ---- */

static struct moek_forward my_forward(const struct data *data)
{
	const struct moek_problem *p = &data->problem;
	uint64_t in = float_bytes(p->input_type);

	return (struct moek_forward){
		.struct_size = MOEK_INIT(FORWARD),
		.input = rows_of(data->input + data->first * p->hidden * in, data->mine,
		                 p, p->input_type),
		.output = rows_of(data->got, data->mine, p, p->output_type),
		.topk_ids = data->ids + data->first * p->top_k,
		.topk_weights = data->weights + data->first * p->top_k,
	};
}

static void expect_equal(const struct data *data)
{
	const struct moek_problem *p = &data->problem;
	uint64_t bytes = p->hidden * float_bytes(p->output_type);

	for (uint64_t t = 0; t < data->mine; t++)
		expect(memcmp(data->got + t * bytes,
		              data->want + (data->first + t) * bytes, bytes) == 0,
		       "token %llu differs from one process: %a, not %a",
		       (unsigned long long)t,
		       (double)float_get(p->output_type, data->got, t * p->hidden),
		       (double)float_get(p->output_type, data->want,
		                         (data->first + t) * p->hidden));
}
/** What this rank must send: each row once to each other rank that computes some of it,
 *  and one result for each slot, or each row, that came from others. */
static uint64_t formula(const struct job *job, const struct data *data)
{
	const struct moek_problem *p = &data->problem;
	int partial = job->combine == MOEK_COMBINE_RANKS;
	uint64_t plain = p->hidden * float_bytes(p->input_type);
	uint64_t row = ((job->wire ? p->hidden + (p->hidden + 127) / 128 : plain) + 3) /
	               4 * 4;
	uint64_t record = row + p->top_k * (partial || job->weight_on_input ? 8 : 4);
	uint64_t result = p->hidden * (partial ? float_bytes(p->output_type) : 4);
	uint64_t bytes = 0;
	int *to = goes_to(job, data);

	for (uint64_t t = 0; t < data->all; t++) {
		int mine = t >= data->first && t < data->first + data->mine;

		for (int r = 0; r < ranks; r++) {
			uint64_t slots = 0;

			for (uint64_t k = 0; k < p->top_k; k++)
				slots += to[t * p->top_k + k] == r / shards_of(job);
			if (slots != 0 && mine && r != rank)
				bytes += record;
			if (slots != 0 && !mine && r == rank)
				bytes += (partial ? 1 : slots) * result;
		}
	}
	free(to);
	return bytes;
}

/** Make data->want what MOEK_COMBINE_RANKS says: what each rank would compute by
 * itself, rounded, summed in the order of ranks. */
static void want_sums_of_ranks(const struct job *job, struct moek_registry *registry,
                               struct data *data)
{
	const struct moek_problem *p = &data->problem;
	uint64_t choices = data->all * p->top_k, elements = data->all * p->hidden;
	int *to = goes_to(job, data);
	int32_t *ids = calloc(choices + 1, sizeof(*ids));
	float *sums = calloc(elements + 1, sizeof(*sums));
	void *part = calloc(elements + 1, float_bytes(p->output_type));

	for (int r = 0; r < ranks; r++) {
		for (uint64_t i = 0; i < choices; i++)
			ids[i] = to[i] == r ? data->ids[i] : -1;
		run_alone_on(job, registry, data, ids, part);
		for (uint64_t i = 0; i < elements; i++)
			sums[i] += float_get(p->output_type, part, i);
	}
	for (uint64_t i = 0; i < elements; i++)
		float_put(p->output_type, data->want, i, sums[i]);
	free(to);
	free(ids);
	free(sums);
	free(part);
}

/** The slots' rows that shard @s has, alone in one process. */
static int run_shard(const struct job *job, struct moek_registry *registry,
                     const struct data *data, int s, float *rows_out)
{
	struct data one = *data;
	uint64_t row = data->problem.hidden * float_bytes(data->problem.input_type);
	int ran;

	one.all = data->all * job->top_k;
	one.problem.max_tokens = one.all;
	one.problem.top_k = 1;
	one.problem.output_type = MOEK_F32;
	one.problem.intermediate /= (uint64_t)job->shards;
	one.problem.shards = (uint32_t)job->shards;
	one.problem.shard = (uint32_t)s;
	one.serve = data->cut[s];
	one.seen = calloc(one.all + 1, row);
	one.weights = calloc(one.all + 1, sizeof(float));
	for (uint64_t i = 0; i < one.all; i++) {
		memcpy(one.seen + i * row, data->seen + i / job->top_k * row, row);
		one.weights[i] = 1;
	}
	ran = run_alone_on(job, registry, &one, data->ids, rows_out);
	free(one.seen);
	free(one.weights);
	return ran;
}

/** Make data->want what shards say: their rows of a slot summed in order, weighed,
 * slots summed in order. That must be close to what whole experts say: of 128 products
 * each is in sums off by at most 2^-24, of magnitudes taken as 4 times the largest
 * output. */
static void want_sums_of_shards(const struct job *job, struct moek_registry *registry,
                                struct data *data)
{
	const struct moek_problem *p = &data->problem;
	uint64_t elements = data->all * p->top_k * p->hidden;
	float *part = calloc(elements + 1, sizeof(float));
	float *sum = calloc(elements + 1, sizeof(float));
	double unit = p->output_type == MOEK_F32 ? 0x1p-24 : 0x1p-8, largest = 0;

	for (int s = 0; s < job->shards; s++) {
		run_shard(job, registry, data, s, part);
		for (uint64_t i = 0; i < elements; i++)
			sum[i] = s == 0 ? part[i] : sum[i] + part[i];
	}
	for (uint64_t i = 0; i < data->all * p->hidden; i++)
		largest = fmax(largest,
		               fabs((double)float_get(p->output_type, data->want, i)));
	for (uint64_t i = 0; i < data->all * p->hidden; i++) {
		double whole = (double)float_get(p->output_type, data->want, i);
		float y = 0;

		for (uint64_t k = 0; k < p->top_k; k++) {
			uint64_t at = i / p->hidden * p->top_k + k;
			float product = data->weights[at] *
			                sum[at * p->hidden + i % p->hidden];

			if (data->ids[at] >= 0 && (uint64_t)data->ids[at] < p->experts)
				y += product;
		}
		float_put(p->output_type, data->want, i, y);
		expect(fabs((double)y - whole) <=
		               2 * unit * fabs(whole) + 0x1p-15 * largest,
		       "output %llu is %a in shards, %a whole", (unsigned long long)i,
		       (double)y, whole);
	}
	free(part);
	free(sum);
}

/** Rows further apart, or back: @to_stride and @from_stride in elements. */
static void copy_rows(const struct data *data, uint32_t type, void *to,
                      uint64_t to_stride, const void *from, uint64_t from_stride)
{
	uint64_t bytes = float_bytes(type);

	for (uint64_t t = 0; t < data->mine; t++)
		memcpy((char *)to + t * to_stride * bytes,
		       (const char *)from + t * from_stride * bytes,
		       data->problem.hidden * bytes);
}

/** The forward with rows that are not adjacent. */
static int32_t forward_apart(const struct job *job, struct moek_ep_layer *layer,
                             struct moek_ep_workspace *workspace, struct data *data,
                             struct moek_forward forward, struct moek_error *error)
{
	const struct moek_problem *p = &data->problem;
	uint64_t stride = p->hidden + job->stride;
	void *input = calloc(data->mine * stride + 1, 4);
	void *output = calloc(data->mine * stride + 1, 4);
	int32_t status;

	copy_rows(data, p->input_type, input, stride, forward.input.data, p->hidden);
	forward.input.data = input;
	forward.output.data = output;
	forward.input.row_stride = forward.output.row_stride = stride;
	status = moek_ep_forward(layer, workspace, &forward, error);
	copy_rows(data, p->output_type, data->got, p->hidden, output, stride);
	for (uint64_t t = 0; t < data->mine; t++)
		for (uint64_t c = p->hidden; c < stride; c++)
			expect(float_get(p->output_type, output, t * stride + c) == 0,
			       "wrote between rows");
	free(input);
	free(output);
	return status;
}

static void check_asked(const struct job *job, const struct data *data)
{
	for (uint64_t e = 0; e < data->problem.experts; e++)
		expect(((data->asked >> e) & 1) ==
		               (uint64_t)holds(job, data, rank / shards_of(job),
		                               (int32_t)e),
		       "expert %llu was %sread", (unsigned long long)e,
		       (data->asked >> e) & 1 ? "" : "not ");
}

static void run_together(const struct job *job, struct moek_registry *registry,
                         struct data *data)
{
	struct moek_problem problem = data->problem;
	struct moek_ep_layer_options options = {
		.struct_size = MOEK_INIT(EP_LAYER_OPTIONS),
		.combine = job->combine,
		.wire = job->wire,
		.problem = &problem,
		.placement = job->placing == CONTIGUOUS ? NULL : data->placement,
		.request = job->backend,
		.chunk_tokens = job->chunk,
	};
	struct moek_ep_stats stats = { .struct_size = MOEK_INIT(EP_STATS) };
	struct moek_forward forward = my_forward(data);
	struct moek_source source = source_of(data);
	struct moek_ep *ep = NULL;
	struct moek_ep_layer *layer = NULL;
	struct moek_ep_workspace *workspace = NULL;
	struct moek_error error = { 0 };
	uint64_t before;

	data->asked = 0;
	if (job->shards) {
		want_sums_of_shards(job, registry, data);
		problem.shards = (uint32_t)job->shards;
		problem.shard = (uint32_t)(rank % job->shards);
		problem.intermediate /= problem.shards;
		data->serve = data->cut[problem.shard];
		data->asked = 0;
	}
	if (moek_ep_open(MPI_COMM_WORLD, registry, &ep, &error) != MOEK_OK ||
	    moek_ep_layer_create(ep, &options, &source, &layer, &error) != MOEK_OK ||
	    moek_ep_workspace_create(&layer, 1, &workspace, &error) != MOEK_OK) {
		expect(0, "%s", error.text);
		goto done;
	}
	check_asked(job, data);
	for (int again = 0; again < 2; again++) {
		bytes_sent = messages_of_rows = 0;
		before = allocations;
		expect(moek_ep_forward(layer, workspace, &forward, &error) == MOEK_OK,
		       "%s", error.text);
		expect(allocations == before, "forward allocated");
	}
	moek_ep_layer_stats(layer, &stats);
	expect(stats.wire == job->wire, "wire is %u in stats", stats.wire);
	expect(stats.bytes_out == bytes_sent, "%llu bytes in stats, %llu were sent",
	       (unsigned long long)stats.bytes_out, (unsigned long long)bytes_sent);
	expect(bytes_sent == formula(job, data), "%llu bytes sent, must be %llu",
	       (unsigned long long)bytes_sent, (unsigned long long)formula(job, data));
	if (job->stride != 0)
		expect(forward_apart(job, layer, workspace, data, forward, &error) ==
		               MOEK_OK,
		       "%s", error.text);
	if (job->combine == MOEK_COMBINE_RANKS)
		want_sums_of_ranks(job, registry, data);
	expect_equal(data);
done:
	moek_ep_workspace_destroy(workspace);
	moek_ep_layer_destroy(layer);
	moek_ep_close(ep);
}

/* clang-format off */
static const struct job jobs[] = {
	/* name                         scheme backend place     routing  idle in out tokens k chunk
	   combine weight_on_input stride shards wire */
	{ "int4, contiguous, emulation", INT4, PLAIN, CONTIGUOUS, SPREAD, 0, B, B, 9, 4, 0, 0, 0, 0, 0, 0 },
	{ "mxfp4, contiguous, emulation", MXFP4, PLAIN, CONTIGUOUS, SPREAD, 0, B, F, 9, 4, 0, 0, 0, 0, 0, 0 },
	{ "int4, strided, cpu", INT4, CPU, STRIDED, SPREAD, 0, B, B, 40, 4, 0, 0, 0, 0, 0, 0 },
	{ "mxfp4, strided, cpu", MXFP4, CPU, STRIDED, SPREAD, 0, B, F, 40, 4, 0, 0, 0, 0, 0, 0 },
	{ "int4, strided, cpu.plain", INT4, SLOW, STRIDED, SPREAD, 0, B, B, 12, 4, 0, 0, 0, 0, 0, 0 },
	{ "int4 by int8, strided, cpu.avx512vnni", INT8, VNNI, STRIDED, SPREAD, 0, B, F, 40, 4, 7, 0, 0, 0, 0, 0 },
	{ "mxfp4, contiguous, cpu.avx512vnni", MXFP4, VNNI, CONTIGUOUS, SPREAD, 0, B, F, 40, 4, 7, 0, 0, 0, 0, 0 },
	{ "int4, strided, cpu.avx512bf16", INT4, DOT, STRIDED, SPREAD, 0, B, F, 40, 4, 7, 0, 0, 0, 0, 0 },
	{ "int4, cpu.avx512bf16, rounds of one token", INT4, DOT, STRIDED, SPREAD, 0, B, F, 20, 4, 1, 0, 0, 0, 0, 0 },
	{ "mxfp4, cpu.avx512bf16, rounds of one token", MXFP4, DOT, STRIDED, SPREAD, 0, B, F, 20, 4, 1, 0, 0, 0, 0, 0 },
	{ "one token", INT4, CPU, STRIDED, SPREAD, 0, B, B, 1, 6, 0, 0, 0, 0, 0, 0 },
	{ "rounds of 7 tokens", INT4, CPU, STRIDED, SPREAD, 0, B, B, 40, 4, 7, 0, 0, 0, 0, 0 },
	{ "rounds of one token", MXFP4, PLAIN, CONTIGUOUS, SPREAD, 0, F, F, 6, 3, 1, 0, 0, 0, 0, 0 },
	{ "all tokens to one rank", INT4, CPU, CONTIGUOUS, SKEWED, 0, B, B, 33, 3, 0, 0, 0, 0, 0, 0 },
	{ "idle ranks", INT4, CPU, STRIDED, SPREAD, 1, B, B, 33, 4, 8, 0, 0, 0, 0, 0 },
	{ "idle and skewed", MXFP4, CPU, CONTIGUOUS, SKEWED, 1, B, B, 33, 2, 8, 0, 0, 0, 0, 0 },
	{ "a rank without experts", MXFP4, CPU, UNEVEN, SPREAD, 0, B, B, 20, 4, 6, 0, 0, 0, 0, 0 },
	{ "replicas", INT4, CPU, REPLICAS, SPREAD, 0, B, B, 40, 5, 9, 0, 0, 0, 0, 0 },
	{ "replicas, skewed", MXFP4, CPU, REPLICAS, SKEWED, 1, B, F, 40, 4, 9, 0, 0, 0, 0, 0 },
	{ "choices that are not routed", INT4, CPU, STRIDED, SOME_UNROUTED, 0, B, B, 31, 3, 5, 0, 0, 0, 0, 0 },
	{ "fp16 rows", INT4, CPU, STRIDED, SPREAD, 0, MOEK_F16, MOEK_F16, 12, 4, 0, 0, 0, 0, 0, 0 },
	{ "rows that are not adjacent", INT4, CPU, STRIDED, SPREAD, 0, B, B, 21, 3, 4, 0, 0, 5, 0, 0 },
	{ "weights on the input", INT4, CPU, STRIDED, SPREAD, 0, B, B, 21, 1, 4, 0, 1, 0, 0, 0 },
	{ "every expert of a token", INT4, PLAIN, STRIDED, SPREAD, 0, B, B, 5, 13, 2, 0, 0, 0, 0, 0 },
	{ "sums of ranks, bf16", INT4, CPU, STRIDED, SPREAD, 0, B, B, 40, 4, 7, 1, 0, 0, 0, 0 },
	{ "sums of ranks, fp32", MXFP4, CPU, REPLICAS, SPREAD, 1, B, F, 40, 4, 7, 1, 0, 0, 0, 0 },
	{ "sums of ranks, not routed", MXFP4, CPU, STRIDED, SOME_UNROUTED, 0, B, F, 9, 4, 7, 1, 0, 0, 0, 0 },
	{ "sums of ranks, weights on the input", INT4, CPU, STRIDED, SPREAD, 0, B, B, 9, 1, 0, 1, 1, 0, 0, 0 },
	{ "2 shards, int4, emulation", INT4, PLAIN, CONTIGUOUS, SPREAD, 0, B, B, 9, 4, 4, 0, 0, 0, 2, 0 },
	{ "2 shards, mxfp4, emulation", MXFP4, PLAIN, STRIDED, SOME_UNROUTED, 1, B, F, 9, 4, 4, 0, 0, 0, 2, 0 },
	{ "2 shards, int4, cpu", INT4, CPU, STRIDED, SPREAD, 0, B, B, 30, 4, 7, 0, 0, 0, 2, 0 },
	{ "2 shards, mxfp4, cpu, skewed", MXFP4, CPU, REPLICAS, SKEWED, 0, B, F, 30, 4, 7, 0, 0, 0, 2, 0 },
	{ "4 shards, int4, cpu", INT4, CPU, CONTIGUOUS, SPREAD, 0, B, B, 30, 4, 7, 0, 0, 0, 4, 0 },
	{ "4 shards, mxfp4, cpu", MXFP4, CPU, CONTIGUOUS, SPREAD, 1, B, F, 30, 4, 7, 0, 0, 0, 4, 0 },
	{ "fp8 on the wire, int4", INT4, CPU, STRIDED, SPREAD, 0, B, B, 30, 4, 7, 0, 0, 0, 0, 1 },
	{ "fp8 on the wire, mxfp4, fp32 rows", MXFP4, PLAIN, REPLICAS, SPREAD, 1, F, F, 9, 4, 4, 0, 0, 0, 0, 1 },
	{ "fp8 on the wire, sums of ranks", INT4, CPU, STRIDED, SPREAD, 0, B, F, 30, 4, 7, 1, 0, 3, 0, 1 },
	{ "fp8 on the wire, 2 shards", MXFP4, CPU, STRIDED, SPREAD, 0, B, B, 30, 4, 7, 0, 0, 0, 2, 1 },
};
/* clang-format on */

static void check_equal(void)
{
	struct moek_registry *registry = open_registry("MOEK_TEST_PLUGINS", NULL);

	for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
		struct data data;

		if (ranks % shards_of(&jobs[i]) != 0)
			continue;
		make_data(&jobs[i], &data);
		if (run_alone(&jobs[i], registry, &data)) {
			run_together(&jobs[i], registry, &data);
			end_case(jobs[i].name);
		} else if (rank == 0) {
			printf("ok %d - %d ranks: %s # skip no such backend\n", ++cases,
			       ranks, jobs[i].name);
		} else {
			cases++;
		}
		free_data(&data);
	}
	moek_registry_close(registry);
}

/* ---- faults ---- */

static const struct job usual = { "",        INT4,      PLAIN, STRIDED, SPREAD, 0,
	                          MOEK_BF16, MOEK_BF16, 9,     4,       0,      0,
	                          0,         0,         0,     0 };

/** All were told the same: @status, and a text that names @failed_rank, with @part in
 * it. */
static void expect_told(int32_t status, const struct moek_error *error,
                        int32_t expected, int failed_rank, const char *part)
{
	char begin[40];

	snprintf(begin, sizeof(begin), "rank %d of %d: ", failed_rank, ranks);
	expect(status == expected && error->status == expected,
	       "status %d, must be %d: %s", status, expected, error->text);
	expect(strncmp(error->text, begin, strlen(begin)) == 0,
	       "'%s' does not begin '%s'", error->text, begin);
	expect(strstr(error->text, part) != NULL, "'%s' is not in '%s'", part,
	       error->text);
}

static int32_t try_layer(struct moek_ep *ep, struct data *data, const char *request,
                         struct moek_ep_layer **layer_out, struct moek_error *error)
{
	struct moek_ep_layer_options options = {
		.struct_size = MOEK_INIT(EP_LAYER_OPTIONS),
		.wire = data->problem.input_type == MOEK_F16 ? MOEK_WIRE_FP8
		                                             : MOEK_WIRE_AS_IS,
		.problem = &data->problem,
		.placement = data->placement,
		.request = request,
	};
	struct moek_source source = source_of(data);

	memset(error, 0, sizeof(*error));
	*layer_out = NULL;
	return moek_ep_layer_create(ep, &options, &source, layer_out, error);
}

static void layers_that_fail(struct moek_ep *ep)
{
	struct moek_ep_layer *layer;
	struct moek_error error;
	struct data data;
	int32_t status;

	make_data(&usual, &data);
	data.fails = rank == 1;
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect_told(status, &error, MOEK_BAD_FILE, 1, "w.safetensors: gone");
	expect(layer == NULL, "a layer was made");
	end_case("weights that one rank cannot read");
	data.fails = 0;

	status = try_layer(ep, &data, rank == 1 ? "require nobody" : PLAIN, &layer,
	                   &error);
	expect_told(status, &error, MOEK_REFUSED, 1, "nobody");
	end_case("a backend that one rank lacks");

	data.problem.max_tokens += rank == 1;
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect_told(status, &error, MOEK_BAD_ARGUMENT, 1, "max_tokens");
	end_case("another problem on one rank");
	data.problem.max_tokens -= rank == 1;

	data.placement[3] ^= rank == 1;
	data.placement[13 + 3] ^= rank == 1;
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect_told(status, &error, MOEK_BAD_ARGUMENT, 1, "placement");
	end_case("another placement on one rank");

	place(&usual, &data);
	memset(data.placement, 0, 13); /* nobody has what rank 0 had */
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect_told(status, &error, MOEK_BAD_ARGUMENT, 0, "no rank holds expert 0");
	end_case("an expert that nobody holds");
	place(&usual, &data);

	memset(data.placement, 1, 13);
	data.problem.shards = 2;
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect_told(status, &error, MOEK_BAD_ARGUMENT, 0,
	            "2 tensor shards do not divide 3");
	data.problem.shards = 3;
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect_told(status, &error, MOEK_BAD_ARGUMENT, 1,
	            "of shard 0, must be of shard 1");
	end_case("shards that are not those of the ranks");
	data.problem.shards = 1;
	place(&usual, &data);

	data.problem.input_type = MOEK_F16;
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect_told(status, &error, MOEK_REFUSED, 0, "fp8 on the wire from fp16");
	end_case("fp8 from fp16");
	data.problem.input_type = MOEK_BF16;

	status = try_layer(ep, &data, rank == 1 ? "require cpu" : PLAIN, &layer,
	                   &error);
	if (strstr(error.text, "not installed") == NULL) {
		expect_told(status, &error, MOEK_REFUSED, 1, "another backend");
		end_case("another backend on one rank");
	}
	free_data(&data);
}

/** emulation takes groups of 48, cpu does not. */
static void a_backend_that_refuses(struct moek_ep *ep)
{
	struct moek_ep_layer *layer;
	struct moek_error error;
	struct job job = usual;
	struct data data;
	int32_t status;

	job.scheme = "weight=int4,group_size=48,scale=bf16";
	make_data(&job, &data);
	status = try_layer(ep, &data, rank == ranks - 1 ? "require cpu" : PLAIN, &layer,
	                   &error);
	expect_told(status, &error, MOEK_REFUSED, ranks - 1, "group_size 48");
	end_case("a backend that refuses on one rank");
	free_data(&data);
}

static void forwards_that_fail(struct moek_ep *ep, struct moek_registry *registry)
{
	struct moek_ep_layer *layer;
	struct moek_ep_workspace *workspace = NULL;
	struct moek_error error;
	struct moek_forward forward;
	struct data data;
	int32_t status;

	make_data(&usual, &data);
	run_alone(&usual, registry, &data);
	status = try_layer(ep, &data, PLAIN, &layer, &error);
	expect(status == MOEK_OK, "%s", error.text);
	status = moek_ep_workspace_create(&layer, 1, &workspace, &error);
	expect(status == MOEK_OK, "%s", error.text);
	forward = my_forward(&data);
	forward.input.columns += rank == 1;
	status = moek_ep_forward(layer, workspace, &forward, &error);
	expect_told(status, &error, MOEK_BAD_ARGUMENT, 1, "input has another number");
	forward = my_forward(&data);
	forward.input.space = rank == 2;
	status = moek_ep_forward(layer, workspace, &forward, &error);
	expect_told(status, &error, MOEK_BAD_ARGUMENT, 2, "input is on a device");
	forward = my_forward(&data);
	status = moek_ep_forward(layer, workspace, &forward, &error);
	expect(status == MOEK_OK, "%s", error.text);
	expect_equal(&data);
	end_case("rows that are wrong on one rank, and then right");
	moek_ep_workspace_destroy(workspace);
	moek_ep_layer_destroy(layer);
	free_data(&data);
}

/** Only rank 0 gets rows, so only there the backend fails. */
static void a_backend_that_fails(void)
{
	struct moek_registry *registry = open_registry("MOEK_TEST_FAKES", NULL);
	struct job job = usual;
	struct moek_ep *ep = NULL;
	struct moek_ep_layer *layer = NULL;
	struct moek_ep_workspace *workspace = NULL;
	struct moek_forward forward;
	struct moek_error error;
	struct data data;
	int32_t status;

	job.routing = SKEWED;
	job.placing = STRIDED;
	make_data(&job, &data);
	for (uint64_t i = 0; i < data.all * job.top_k; i++)
		data.ids[i] = 0;
	status = moek_ep_open(MPI_COMM_WORLD, registry, &ep, &error);
	if (status == MOEK_OK)
		status = try_layer(ep, &data, "require forward_fails", &layer, &error);
	if (status == MOEK_OK)
		status = moek_ep_workspace_create(&layer, 1, &workspace, &error);
	expect(status == MOEK_OK, "%s", error.text);
	forward = my_forward(&data);
	if (status == MOEK_OK) {
		status = moek_ep_forward(layer, workspace, &forward, &error);
		expect_told(status, &error, MOEK_DEVICE, 0, "forward_fails");
	}
	end_case("a backend that fails on one rank");
	moek_ep_workspace_destroy(workspace);
	moek_ep_layer_destroy(layer);
	moek_ep_close(ep);
	moek_registry_close(registry);
	free_data(&data);
}

static void ranks_that_differ(struct moek_registry *registry)
{
	const struct moek_setting setting = { "registry", "on_degraded", "allow" };
	struct moek_registry *other = open_registry("MOEK_TEST_PLUGINS", &setting);
	struct moek_error error = { 0 };
	struct moek_ep *ep = NULL;
	int32_t status;

	version = rank == 1 ? "0.0.9" : "0.1.0";
	status = moek_ep_open(MPI_COMM_WORLD, registry, &ep, &error);
	expect_told(status, &error, MOEK_BAD_CONFIG, 1, "0.0.9, not 0.1.0");
	expect(ep == NULL, "opened");
	end_case("another version on one rank");
	version = "1";

	status = moek_ep_open(MPI_COMM_WORLD, rank == 1 ? other : registry, &ep,
	                      &error);
	expect_told(
		status, &error, MOEK_BAD_CONFIG, 1,
		"[registry] on_degraded = allow, not [registry] on_degraded = warn");
	end_case("another setting on one rank");
	moek_registry_close(other);
}

/** Change one byte of a router, in this process alone. */
static void train_further(const struct moek_checkpoint *checkpoint)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	for (uint64_t i = 0; i < moek_checkpoint_tensors(checkpoint); i++) {
		struct moek_tensor tensor = { .struct_size = MOEK_INIT(TENSOR) };
		uint32_t use = 0;

		if (moek_checkpoint_tensor_at(checkpoint, i, &tensor, &use) == NULL ||
		    use != MOEK_USE_ROUTER)
			continue;
		/* a private mapping: the file stays as it is */
		if (mprotect((void *)((uintptr_t)tensor.data / page * page), page,
		             PROT_READ | PROT_WRITE) == 0)
			*(char *)(uintptr_t)tensor.data ^= 1;
		return;
	}
}

static void checkpoints_that_differ(struct moek_ep *ep, struct moek_registry *registry)
{
	const char *source = getenv("MOEK_TEST_SOURCE");
	struct moek_checkpoint *checkpoint[2] = { NULL, NULL };
	char path[2][1024];
	struct moek_error error = { 0 };
	int32_t status;

	snprintf(path[0], 1024, "%s/fixtures/checkpoints/tiny-gptoss-mxfp4", source);
	snprintf(path[1], 1024, "%s/fixtures/checkpoints/tiny-qwen3moe-bf16", source);
	for (int i = 0; i < 2; i++)
		expect(moek_checkpoint_open(registry, path[i], &checkpoint[i],
		                            &error) == MOEK_OK,
		       "%s", error.text);
	status = moek_ep_same_checkpoint(ep, checkpoint[0], &error);
	expect(status == MOEK_OK, "%s", error.text);
	status = moek_ep_same_checkpoint(ep, checkpoint[rank == 1], &error);
	expect_told(status, &error, MOEK_BAD_FILE, 1, "another checkpoint");
	end_case("another checkpoint on one rank");
	if (rank == 1)
		train_further(checkpoint[0]);
	status = moek_ep_same_checkpoint(ep, checkpoint[0], &error);
	expect_told(status, &error, MOEK_BAD_FILE, 1, "another checkpoint");
	end_case("another router on one rank");
	moek_checkpoint_close(checkpoint[0]);
	moek_checkpoint_close(checkpoint[1]);
}

static void check_faults(void)
{
	struct moek_registry *registry = open_registry("MOEK_TEST_PLUGINS", NULL);
	struct moek_ep *ep = NULL;
	struct moek_error error = { 0 };

	ranks_that_differ(registry);
	if (moek_ep_open(MPI_COMM_WORLD, registry, &ep, &error) == MOEK_OK) {
		checkpoints_that_differ(ep, registry);
		layers_that_fail(ep);
		a_backend_that_refuses(ep);
		forwards_that_fail(ep, registry);
	} else {
		expect(0, "%s", error.text);
		end_case("ranks agree");
	}
	moek_ep_close(ep);
	moek_registry_close(registry);
	a_backend_that_fails();
}

/** The last rank ends in the middle of a forward of the others. */
static void be_killed(void)
{
	struct moek_registry *registry = open_registry("MOEK_TEST_PLUGINS", NULL);
	struct moek_ep *ep = NULL;
	struct moek_ep_layer *layer = NULL;
	struct moek_ep_workspace *workspace = NULL;
	struct moek_error error = { 0 };
	struct moek_forward forward;
	struct data data;

	make_data(&usual, &data);
	if (moek_ep_open(MPI_COMM_WORLD, registry, &ep, &error) != MOEK_OK ||
	    try_layer(ep, &data, PLAIN, &layer, &error) != MOEK_OK ||
	    moek_ep_workspace_create(&layer, 1, &workspace, &error) != MOEK_OK)
		exit(0); /* the test wants another code */
	forward = my_forward(&data);
	if (rank == ranks - 1)
		raise(SIGKILL);
	moek_ep_forward(layer, workspace, &forward, &error);
	exit(0);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc == 2 && strcmp(argv[1], "faults") == 0)
		check_faults();
	else if (argc == 2 && strcmp(argv[1], "killed") == 0)
		be_killed();
	else
		check_equal();
	if (rank == 0)
		printf("1..%d\n", cases);
	MPI_Finalize();
	return failed_cases != 0;
}
