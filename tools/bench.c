/* SPDX-License-Identifier: MIT */
/* moek bench: layers of models against the limits of this machine. */
#include "config.h"

#include "tools/numbers.h"
#include "tools/plot.h"
#include "tools/rig.h"
#include "tools/routing.h"
#include "tools/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define REPETITIONS 15
#define MOST_SECONDS 10.0 /* of one point, unless two repetitions take longer */
#define CACHES 4          /* the layers of a subject are so many times the last cache */
#define MOST_LAYERS 64
#define FEWEST_UNDISTURBED 3

/** One backend, with enough layers that weights come from memory. */
struct subject {
	char request[128];
	char backend[96]; /* its name, once chosen */
	struct moek_layer *layers[MOST_LAYERS];
	uint64_t layer_count, turn;
	struct moek_workspace *workspace;
};

/** One repetition. */
struct sample {
	double seconds, bytes, read; /* `read`: GB/s just before */
	int disturbed;
};

/** One backend with so many tokens on so many threads. */
struct point {
	struct subject *subject;
	uint64_t tokens, pool;
	struct sample *samples;
	uint64_t count, undisturbed;
	double spent;
};

/** One shape, scheme and activations: all that is run in turns. */
struct series {
	struct moek_problem problem;
	char shape[32], scheme[32], activations[16];
	struct shape_weights weights;
	struct subject subjects[2];
	uint64_t subject_count;
	struct point *points;
	uint64_t point_count;
	uint64_t repetitions, capacity; /* wanted of each point, and room for */
	void *input, *output;
	int32_t *ids;
	float *topk_weights;
	struct routing routing;
};

struct result {
	char backend[96], shape[32], scheme[32], activations[16];
	uint64_t tokens, threads;
	double ms, spread, share, ratio; /* `ratio`: to the first of --compare, or 0 */
	enum limit limit;
	double intensity, gop_per_second;
};

struct bench {
	const struct options *options;
	struct rig rig;
	int skewed;
	const char *first, *second; /* of --compare */
	int first_length;
	struct result *results;
	uint64_t result_count, result_capacity;
	uint64_t disturbed, all; /* points */
};

/* ---- one repetition ---- */

static double used_seconds(long *interrupted_out)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	*interrupted_out = usage.ru_nivcsw;
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int32_t forward(struct series *series, struct subject *subject, uint64_t tokens,
                       struct moek_error *error_out)
{
	const struct moek_problem *problem = &series->problem;
	struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = { series->input, tokens, problem->hidden, 0,
		           problem->input_type, 0 },
		.output = { series->output, tokens, problem->hidden, 0,
		            problem->output_type, 0 },
		.topk_ids = series->ids,
		.topk_weights = series->topk_weights,
		.workspace = subject->workspace,
	};

	return moek_layer_forward(subject->layers[subject->turn], &forward, error_out);
}

static int32_t repeat(struct bench *bench, struct series *series, struct point *point,
                      struct moek_error *error_out)
{
	struct probe *probe = &bench->rig.probes[point->pool];
	struct subject *subject = point->subject;
	struct sample *sample = &point->samples[point->count];
	double threads = probe->workers->count, used, start;
	long before, after;
	int32_t status;

	sample->bytes = (double)routing_draw(&series->routing, point->tokens,
	                                     series->ids) *
	                (double)shape_expert_bytes(&series->problem);
	rig_use(&bench->rig, point->pool);
	subject->turn = (subject->turn + 1) % subject->layer_count;
	probe_wait(probe);
	for (int limit = LIMIT_INT8; limit < LIMIT_FP32; limit++)
		probe_peak(probe, (enum limit)limit);
	sample->read = probe_read(probe, &bench->rig.memory);
	used = used_seconds(&before);
	start = seconds_now();
	status = forward(series, subject, point->tokens, error_out);
	sample->seconds = seconds_now() - start;
	used = used_seconds(&after) - used;
	sample->disturbed = after != before && used < 0.93 * threads * sample->seconds;
	if (status != MOEK_OK)
		return status;
	point->count++;
	point->undisturbed += sample->disturbed ? 0 : 1;
	point->spent += sample->seconds;
	return MOEK_OK;
}

static int finished(const struct series *series, const struct point *point)
{
	return point->undisturbed >= series->repetitions ||
	       point->count >= series->capacity ||
	       (point->count > 1 && point->spent > MOST_SECONDS);
}

static void show_progress(const struct series *series, uint64_t round)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r%s %s %s: repetition %llu of %llu\033[K",
		        series->shape, series->scheme, series->activations,
		        (unsigned long long)round + 1,
		        (unsigned long long)series->repetitions);
}

static int32_t run_points(struct bench *bench, struct series *series,
                          struct moek_error *error_out)
{
	int32_t status = MOEK_OK;
	int more = 1;

	for (uint64_t i = 0; status == MOEK_OK && i < series->point_count; i++) {
		struct point *point = &series->points[i];

		status = repeat(bench, series, point, error_out);
		/* the first touches memory; it is the only one when it takes long */
		if (status == MOEK_OK && point->spent < MOST_SECONDS)
			point->count = point->undisturbed = 0;
	}
	for (uint64_t round = 0; status == MOEK_OK && more; round++) {
		show_progress(series, round);
		more = 0;
		for (uint64_t i = 0; status == MOEK_OK && i < series->point_count;
		     i++) {
			struct point *point = &series->points[i];

			if (finished(series, point))
				continue;
			status = repeat(bench, series, point, error_out);
			more = 1;
		}
	}
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	return status;
}

/* ---- what came of it ---- */

/** The fastest arithmetic of this machine that the activations allow. */
static enum limit arithmetic(const struct moek_problem *problem, const double *best)
{
	enum limit limit = problem->activations == MOEK_A8_INT8 ? LIMIT_INT8
	                   : problem->input_type == MOEK_BF16   ? LIMIT_BF16
	                                                        : LIMIT_FP32;

	return best[limit] > 0 ? limit : LIMIT_FP32;
}

static void judge(struct bench *bench, const struct series *series,
                  const struct point *point, struct result *result)
{
	const struct moek_problem *problem = &series->problem;
	const double *best = bench->rig.probes[point->pool].best;
	enum limit peak = arithmetic(problem, best);
	double operations = 6 * (double)problem->hidden *
	                    (double)problem->intermediate *
	                    (double)(point->tokens * problem->top_k);
	int all = point->undisturbed < FEWEST_UNDISTURBED;
	double ms[3 * 1000], shares[3 * 1000], bytes = 0;
	uint64_t count = 0, by_read = 0;

	for (uint64_t i = 0; i < point->count; i++) {
		const struct sample *sample = &point->samples[i];
		double to_read = sample->bytes / sample->read / 1e9;
		double to_compute = operations / best[peak] / 1e9;

		if (sample->disturbed && !all)
			continue;
		ms[count] = sample->seconds * 1e3;
		shares[count++] = (to_read > to_compute ? to_read : to_compute) /
		                  sample->seconds;
		by_read += to_read > to_compute ? 1 : 0;
		bytes += sample->bytes;
	}
	result->spread = quartile_spread(ms, count);
	result->ms = median(ms, count);
	result->share = median(shares, count);
	result->limit = 2 * by_read > count ? LIMIT_READ : peak;
	result->intensity = operations * (double)count / bytes;
	result->gop_per_second = operations / result->ms / 1e6;
	bench->disturbed += all ? 1 : 0;
	bench->all++;
}

static int32_t keep_results(struct bench *bench, const struct series *series,
                            struct moek_error *error_out)
{
	for (uint64_t i = 0; i < series->point_count; i++) {
		const struct point *point = &series->points[i];
		struct result *result;

		if (bench->result_count == bench->result_capacity) {
			uint64_t capacity = 2 * bench->result_capacity + 16;
			struct result *results = realloc(bench->results,
			                                 capacity * sizeof(*results));

			if (results == NULL)
				return tool_error(error_out, MOEK_NO_MEMORY,
				                  "no memory for the results");
			bench->results = results;
			bench->result_capacity = capacity;
		}
		result = &bench->results[bench->result_count++];
		memset(result, 0, sizeof(*result));
		strcpy(result->backend, point->subject->backend);
		strcpy(result->shape, series->shape);
		strcpy(result->scheme, series->scheme);
		strcpy(result->activations, series->activations);
		result->tokens = point->tokens;
		result->threads = bench->rig.probes[point->pool].workers->count;
		judge(bench, series, point, result);
		if (point->subject == &series->subjects[1])
			result->ratio = result->ms / result[-1].ms;
	}
	return MOEK_OK;
}

/* ---- layers ---- */

static uint64_t most(const uint64_t *values, uint64_t count)
{
	uint64_t largest = 0;

	for (uint64_t i = 0; i < count; i++)
		largest = values[i] > largest ? values[i] : largest;
	return largest;
}

/** So many layers that their weights are 4 times the last cache, as memory allows; 0:
 * not even one. */
static uint64_t count_layers(const struct bench *bench, const struct series *series,
                             uint64_t *needed_out)
{
	const struct moek_problem *problem = &series->problem;
	/* a backend pads, and each slot of a batch has rows of its own */
	uint64_t layer = shape_expert_bytes(problem) * problem->experts / 8 * 9;
	uint64_t slots = problem->max_tokens * problem->top_k;
	uint64_t rows = slots * (problem->hidden + 3 * problem->intermediate) * 4;
	uint64_t memory = bench->options->memory_gib > 0
	                          ? bench->options->memory_gib << 30
	                          : bench->rig.machine.available_bytes / 4 * 3;
	uint64_t wanted = CACHES * bench->rig.machine.last_cache_bytes / layer + 1;
	uint64_t fixed = shape_expert_bytes(problem) + series->subject_count * rows;
	uint64_t each = layer * series->subject_count;

	*needed_out = fixed + each;
	if (memory < fixed + each)
		return 0;
	if (wanted > (memory - fixed) / each)
		wanted = (memory - fixed) / each;
	return wanted < MOST_LAYERS ? wanted : MOST_LAYERS;
}

static int32_t make_layers(struct bench *bench, struct series *series,
                           struct subject *subject, uint64_t count,
                           struct moek_error *error_out)
{
	struct moek_source source = shape_source(&series->weights);
	struct moek_choice *choice = NULL;
	int32_t status = moek_choose(bench->rig.registry, &series->problem,
	                             subject->request, series->shape, &choice,
	                             error_out);

	while (status == MOEK_OK && subject->layer_count < count) {
		status = moek_layer_create(choice, &source, NULL,
		                           &subject->layers[subject->layer_count],
		                           error_out);
		subject->layer_count += status == MOEK_OK ? 1 : 0;
	}
	moek_choice_destroy(choice);
	if (status != MOEK_OK)
		return status;
	snprintf(subject->backend, sizeof(subject->backend), "%s",
	         moek_choice_winner(moek_layer_choice(subject->layers[0])));
	return moek_workspace_create(subject->layers, subject->layer_count, NULL, 0,
	                             &subject->workspace, error_out);
}

static int32_t make_subjects(struct bench *bench, struct series *series,
                             struct moek_error *error_out)
{
	const char *backend = bench->options->backend;
	uint64_t needed, layers;
	int32_t status = MOEK_OK;

	if (bench->first != NULL) {
		series->subject_count = 2;
		snprintf(series->subjects[0].request, 128, "require %.*s",
		         bench->first_length, bench->first);
		snprintf(series->subjects[1].request, 128, "require %s", bench->second);
	} else {
		series->subject_count = 1;
		snprintf(series->subjects[0].request, 128, "%s",
		         backend != NULL ? backend : "auto");
	}
	layers = count_layers(bench, series, &needed);
	if (layers == 0)
		return tool_error(
			error_out, MOEK_NO_MEMORY,
			"%s %s: needs about %.1f GiB, %s %.1f GiB; a smaller shape, "
			"fewer tokens, or --memory",
			series->shape, series->scheme, (double)needed / 0x1p30,
			bench->options->memory_gib > 0 ? "--memory allows"
						       : "3/4 of what is free is",
			bench->options->memory_gib > 0
				? (double)bench->options->memory_gib
				: (double)bench->rig.machine.available_bytes * 0.75 /
					  0x1p30);
	if (!shape_weights_make(&series->problem, &series->weights))
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "no memory for the weights of one expert");
	rig_use_all(&bench->rig);
	for (uint64_t i = 0; status == MOEK_OK && i < series->subject_count; i++)
		status = make_layers(bench, series, &series->subjects[i], layers,
		                     error_out);
	shape_weights_free(&series->weights);
	return status;
}

static int32_t make_rows(const struct bench *bench, struct series *series,
                         struct moek_error *error_out)
{
	const struct moek_problem *problem = &series->problem;
	uint64_t tokens = problem->max_tokens, top_k = problem->top_k;

	series->input = alloc_array(tokens, problem->hidden,
	                            row_type_bytes(problem->input_type));
	series->output = alloc_array(tokens, problem->hidden,
	                             row_type_bytes(problem->output_type));
	series->ids = alloc_array(tokens, top_k, sizeof(int32_t));
	series->topk_weights = alloc_array(tokens, top_k, sizeof(float));
	if (!routing_make(problem, bench->skewed, bench->options->seed,
	                  &series->routing) ||
	    series->input == NULL || series->output == NULL || series->ids == NULL ||
	    series->topk_weights == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "%s: no memory for %llu rows", series->shape,
		                  (unsigned long long)tokens);
	fill_random(series->input, problem->input_type, tokens * problem->hidden, 1);
	for (uint64_t i = 0; i < tokens * top_k; i++)
		series->topk_weights[i] = 1.0f / (float)top_k;
	return MOEK_OK;
}

/** Points in the order of the table: threads, tokens, backends side by side. */
static int32_t make_points(struct bench *bench, struct series *series,
                           const struct list *tokens, struct moek_error *error_out)
{
	uint64_t count = bench->rig.pool_count * tokens->count * series->subject_count;

	series->points = alloc_array(count, 1, sizeof(*series->points));
	for (uint64_t i = 0; series->points != NULL && i < count; i++) {
		struct point *point = &series->points[i];
		uint64_t cell = i / series->subject_count;

		point->subject = &series->subjects[i % series->subject_count];
		point->tokens = tokens->values[cell % tokens->count];
		point->pool = cell / tokens->count;
		point->samples = alloc_array(series->capacity, 1,
		                             sizeof(*point->samples));
		series->point_count++;
		if (point->samples == NULL)
			break;
	}
	if (series->points == NULL ||
	    series->points[series->point_count - 1].samples == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY, "no memory for samples");
	return MOEK_OK;
}

static void free_series(struct series *series)
{
	for (uint64_t i = 0; i < series->point_count; i++)
		free(series->points[i].samples);
	for (uint64_t i = 0; i < series->subject_count; i++) {
		struct subject *subject = &series->subjects[i];

		moek_workspace_destroy(subject->workspace);
		while (subject->layer_count > 0)
			moek_layer_destroy(subject->layers[--subject->layer_count]);
	}
	free(series->points);
	free(series->input);
	free(series->output);
	free(series->ids);
	free(series->topk_weights);
	routing_free(&series->routing);
}

/* ---- all series ---- */

static int32_t run_series(void *self, const struct shape_request *request,
                          struct moek_error *error_out)
{
	struct bench *bench = self;
	const struct list *tokens = shape_tokens(bench->options);
	struct series series = { 0 };
	int32_t status = shape_problem(request, &series.problem, error_out);

	if (status != MOEK_OK)
		return status;
	shape_name(request, &series.problem, series.shape, series.scheme,
	           series.activations);
	series.problem.max_tokens = most(tokens->values, tokens->count);
	series.repetitions = bench->options->repetitions > 0
	                             ? bench->options->repetitions
	                             : REPETITIONS;
	series.capacity = 3 * series.repetitions;
	status = make_rows(bench, &series, error_out);
	if (status == MOEK_OK)
		status = make_subjects(bench, &series, error_out);
	if (status == MOEK_OK)
		status = make_points(bench, &series, tokens, error_out);
	if (status == MOEK_OK)
		status = run_points(bench, &series, error_out);
	if (status == MOEK_OK)
		status = keep_results(bench, &series, error_out);
	free_series(&series);
	return status;
}

/** What the command line names, checked before anything runs. */
static int32_t check_series(void *self, const struct shape_request *request,
                            struct moek_error *error_out)
{
	struct moek_problem problem;

	(void)self;
	return shape_problem(request, &problem, error_out);
}

/* ---- output ---- */

static void print_results(const struct bench *bench)
{
	rig_print(&bench->rig);
	printf("%-18s %-12s %-11s %-18s %6s %7s %10s %6s %6s  %s\n", "shape", "scheme",
	       "activations", "backend", "tokens", "threads", "ms", "spread", "share",
	       "limit");
	for (uint64_t i = 0; i < bench->result_count; i++) {
		const struct result *r = &bench->results[i];

		printf("%-18s %-12s %-11s %-18s %6llu %7llu %10.4g %5.0f%% %6.2f  %s",
		       r->shape, r->scheme, r->activations, r->backend,
		       (unsigned long long)r->tokens, (unsigned long long)r->threads,
		       r->ms, 100 * r->spread, r->share, limit_names[r->limit]);
		if (r->ratio > 0)
			printf(", %.2f times %s", r->ratio, r[-1].backend);
		putchar('\n');
	}
}

static void write_results(const struct bench *bench)
{
	struct writer writer = { 0 };

	writer_open(&writer, NULL, '{');
	rig_write(&writer, &bench->rig);
	writer_open(&writer, "results", '[');
	for (uint64_t i = 0; i < bench->result_count; i++) {
		const struct result *r = &bench->results[i];

		writer_open(&writer, NULL, '{');
		writer_string(&writer, "backend", r->backend);
		writer_string(&writer, "shape", r->shape);
		writer_string(&writer, "scheme", r->scheme);
		writer_string(&writer, "activations", r->activations);
		writer_number(&writer, "tokens", r->tokens);
		writer_number(&writer, "threads", r->threads);
		writer_real(&writer, "ms", r->ms);
		writer_real(&writer, "spread", r->spread);
		writer_real(&writer, "share_of_limit", r->share);
		writer_string(&writer, "limit", limit_names[r->limit]);
		writer_close(&writer, '}');
	}
	writer_close(&writer, ']');
	writer_close(&writer, '}');
}

static int32_t draw(const struct bench *bench, struct moek_error *error_out)
{
	struct plot_point *points = alloc_array(bench->result_count, 1,
	                                        sizeof(*points));
	char(*titles)[224] = alloc_array(bench->result_count, 1, sizeof(*titles));
	uint64_t count = 0;
	int32_t status;

	if (points == NULL || titles == NULL) {
		status = tool_error(error_out, MOEK_NO_MEMORY,
		                    "no memory for the plot");
		goto done;
	}
	/* a series of the plot: all tokens of one backend on so many threads */
	for (uint64_t i = 0; i < bench->result_count; i++) {
		const struct result *r = &bench->results[i];
		uint64_t place = count;

		snprintf(titles[i], sizeof(titles[i]), "%s, %s %s %s, %llu thread%s",
		         r->backend, r->shape, r->scheme, r->activations,
		         (unsigned long long)r->threads, r->threads == 1 ? "" : "s");
		while (place > 0 && strcmp(points[place - 1].title, titles[i]) != 0)
			place--;
		if (place == 0)
			place = count;
		memmove(&points[place + 1], &points[place],
		        (count - place) * sizeof(*points));
		points[place] = (struct plot_point){ titles[i], r->intensity,
			                             r->gop_per_second };
		count++;
	}
	status = plot_roofline(bench->options->plot, &bench->rig, points, count,
	                       error_out);
done:
	free(points);
	free(titles);
	return status;
}

/* ---- the command ---- */

/** The words of --routing and --compare. */
static int32_t read_words(struct bench *bench, struct moek_error *error_out)
{
	const char *pair = bench->options->compare;
	const char *comma = pair != NULL ? strchr(pair, ',') : NULL;
	int32_t status = routing_read(bench->options, &bench->skewed, error_out);

	if (status != MOEK_OK || pair == NULL)
		return status;
	if (comma == NULL || comma == pair || comma[1] == '\0' ||
	    strchr(comma + 1, ',') != NULL || strlen(pair) > 100)
		return tool_error(error_out, MOEK_BAD_ARGUMENT,
		                  "--compare %s: not two backends A,B", pair);
	if (bench->options->backend != NULL)
		return tool_error(error_out, MOEK_BAD_ARGUMENT,
		                  "--compare and --backend: one or the other");
	bench->first = pair;
	bench->first_length = (int)(comma - pair);
	bench->second = comma + 1;
	return MOEK_OK;
}

static int32_t run_bench(struct bench *bench, struct moek_error *error_out)
{
	const char *plot = bench->options->plot;
	int possible = 1;
	int32_t status = read_words(bench, error_out);

	if (status == MOEK_OK)
		status = shapes_each(bench->options, check_series, bench, error_out);
	if (status != MOEK_OK)
		return status;
	if (plot != NULL)
		status = plot_check(plot, &possible, error_out);
	if (plot != NULL && !possible) {
		tool_say("warning: --plot %s: there is no gnuplot, so nothing is drawn",
		         plot);
		plot = NULL;
	}
	if (status == MOEK_OK)
		status = rig_open(bench->options, &bench->rig, error_out);
	if (status == MOEK_OK)
		status = shapes_each(bench->options, run_series, bench, error_out);
	if (status != MOEK_OK)
		return status;
	if (bench->disturbed > 0)
		tool_say("warning: others used the processors: of %llu of %llu points "
		         "no %d repetitions were undisturbed, so all count",
		         (unsigned long long)bench->disturbed,
		         (unsigned long long)bench->all, FEWEST_UNDISTURBED);
	if (bench->options->json)
		write_results(bench);
	else
		print_results(bench);
	return plot != NULL ? draw(bench, error_out) : MOEK_OK;
}

int command_bench(const struct options *options)
{
	struct bench bench = { .options = options };
	struct moek_error error;
	int32_t status = run_bench(&bench, &error);

	rig_close(&bench.rig);
	free(bench.results);
	return status == MOEK_OK ? TOOL_DONE : tool_fail(&error);
}
