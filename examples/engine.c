/* SPDX-License-Identifier: MIT */
/*
 * How an inference engine enters: it has read the model itself, brings its own threads,
 * and hands over bf16 rows, int32 ids and fp32 router weights.
 *
 * The same layer is made twice, from stacked tensors in memory and from a callback that
 * fills one expert at a time; both must give the same bits.
 */
#include <moek/moek.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 8, TOP_K = 2, HIDDEN = 64, INTERMEDIATE = 96, GROUP = 32, TOKENS = 5 };
enum { THREADS = 3 };

/* ---- what the engine holds: compressed-tensors int4, as vLLM stacks it ---- */

struct model {
	uint32_t gate_up[EXPERTS][2 * INTERMEDIATE][HIDDEN / 8];
	uint16_t gate_up_scales[EXPERTS][2 * INTERMEDIATE][HIDDEN / GROUP];
	uint32_t down[EXPERTS][HIDDEN][INTERMEDIATE / 8];
	uint16_t down_scales[EXPERTS][HIDDEN][INTERMEDIATE / GROUP];
};

static uint32_t next(uint32_t *state)
{
	return *state = *state * 1664525u + 1013904223u;
}

static void fill_words(uint32_t *words, size_t count, uint32_t seed)
{
	for (size_t i = 0; i < count; i++)
		words[i] = next(&seed);
}

/** bf16 numbers from 0.0078 to 0.0156. */
static void fill_scales(uint16_t *scales, size_t count, uint32_t seed)
{
	for (size_t i = 0; i < count; i++)
		scales[i] = (uint16_t)(0x3c00u | next(&seed) >> 25);
}

static void fill_model(struct model *model)
{
	fill_words(&model->gate_up[0][0][0], sizeof(model->gate_up) / 4, 1);
	fill_scales(&model->gate_up_scales[0][0][0], sizeof(model->gate_up_scales) / 2,
	            2);
	fill_words(&model->down[0][0][0], sizeof(model->down) / 4, 3);
	fill_scales(&model->down_scales[0][0][0], sizeof(model->down_scales) / 2, 4);
}

/* ---- way one: the stacked tensors, as they are ---- */

static int32_t from_tensors(const struct moek_problem *problem,
                            const struct model *model, struct moek_source *source_out,
                            struct moek_error *error_out)
{
	const struct moek_stack gate_up = {
		.struct_size = MOEK_INIT(STACK),
		.layout = MOEK_LAYOUT_PACKED,
		.codes = model->gate_up,
		.codes_bytes = sizeof(model->gate_up),
		.scales = model->gate_up_scales,
		.scales_bytes = sizeof(model->gate_up_scales),
		.gate_order = MOEK_GATE_FIRST,
	};
	const struct moek_stack down = {
		.struct_size = MOEK_INIT(STACK),
		.layout = MOEK_LAYOUT_PACKED,
		.codes = model->down,
		.codes_bytes = sizeof(model->down),
		.scales = model->down_scales,
		.scales_bytes = sizeof(model->down_scales),
	};

	return moek_tensors_source(problem, &gate_up, &down, source_out, error_out);
}

/* ---- way two: a callback that fills one expert; called from several threads ---- */

static void fill_matrix(struct moek_matrix *matrix, uint64_t rows, uint64_t columns,
                        const void *codes, const void *scales)
{
	matrix->weight = MOEK_INT4;
	matrix->rows = rows;
	matrix->columns = columns;
	matrix->group_size = GROUP;
	matrix->codes =
		codes; /* eight nibbles of a little-endian word: low nibble first */
	matrix->scales = scales;
	matrix->scale = MOEK_BF16;
}

static int32_t fill_expert(void *self, uint64_t expert, void *scratch,
                           struct moek_expert *expert_out, struct moek_error *error_out)
{
	const struct model *model = self;

	(void)scratch;   /* nothing to convert here, so nothing to keep */
	(void)error_out; /* nothing can fail */
	fill_matrix(&expert_out->gate, INTERMEDIATE, HIDDEN, model->gate_up[expert],
	            model->gate_up_scales[expert]);
	fill_matrix(&expert_out->up, INTERMEDIATE, HIDDEN,
	            model->gate_up[expert][INTERMEDIATE],
	            model->gate_up_scales[expert][INTERMEDIATE]);
	fill_matrix(&expert_out->down, HIDDEN, INTERMEDIATE, model->down[expert],
	            model->down_scales[expert]);
	return MOEK_OK;
}

/* ---- the engine's own threads ---- */

struct job {
	void (*body)(void *arg, uint64_t i, uint32_t worker);
	void *arg;
	uint64_t tasks;
	uint32_t worker;
};

static void *run_share(void *argument)
{
	const struct job *job = argument;

	for (uint64_t i = job->worker; i < job->tasks; i += THREADS)
		job->body(job->arg, i, job->worker);
	return NULL;
}

/** An engine would wake its pool here; starting threads keeps the example short. */
static void parallel_for(void *self, uint64_t tasks,
                         void (*body)(void *arg, uint64_t i, uint32_t worker),
                         void *arg)
{
	struct job jobs[THREADS];
	pthread_t threads[THREADS];
	int started[THREADS] = { 0 };

	(void)self;
	for (uint32_t worker = 0; worker < THREADS; worker++) {
		jobs[worker] = (struct job){ body, arg, tasks, worker };
		if (worker > 0)
			started[worker] = pthread_create(&threads[worker], NULL,
			                                 run_share, &jobs[worker]) == 0;
	}
	for (uint32_t worker = 0; worker < THREADS; worker++) {
		if (started[worker])
			pthread_join(threads[worker], NULL);
		else
			run_share(&jobs[worker]);
	}
}

/* ---- one layer from either source, one forward ---- */

static int32_t run_layer(struct moek_choice *choice, const struct moek_source *source,
                         uint16_t output[TOKENS][HIDDEN], struct moek_error *error_out)
{
	static uint16_t input[TOKENS][HIDDEN];
	/* -1 and EXPERTS are no experts: such a slot adds exactly zero */
	static const int32_t ids[TOKENS][TOP_K] = {
		{ 0, 7 }, { 3, 1 }, { 2, -1 }, { 5, 5 }, { EXPERTS, 6 }
	};
	static const float weights[TOKENS][TOP_K] = {
		{ 0.5f, 0.5f }, { 0.9f, 0.1f }, { 1, 0 }, { 0.25f, 0.75f }, { 0, 1 }
	};
	struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = { input, TOKENS, HIDDEN, HIDDEN, MOEK_BF16, 0 },
		.output = { output, TOKENS, HIDDEN, HIDDEN, MOEK_BF16, 0 },
		.topk_ids = ids[0],
		.topk_weights = weights[0],
	};
	struct moek_layer *layer = NULL;
	int32_t status;

	fill_scales(&input[0][0], TOKENS * HIDDEN, 5);
	status = moek_layer_create(choice, source, NULL, &layer, error_out);
	if (status == MOEK_OK)
		status = moek_workspace_create(&layer, 1, NULL, 0, &forward.workspace,
		                               error_out);
	if (status == MOEK_OK)
		status = moek_layer_forward(layer, &forward, error_out);
	moek_workspace_destroy(forward.workspace);
	moek_layer_destroy(layer);
	return status;
}

static void print_log(void *self, uint32_t level, const char *text)
{
	(void)self;
	(void)level;
	fprintf(stderr, "engine: %s\n", text);
}

int main(void)
{
	static struct model model;
	static uint16_t outputs[2][TOKENS][HIDDEN];
	const struct moek_workers workers = { .struct_size = MOEK_INIT(WORKERS),
		                              .count = THREADS,
		                              .parallel_for = parallel_for };
	const struct moek_registry_options options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.workers = &workers,
		.log = print_log,
	};
	struct moek_problem problem = {
		.struct_size = MOEK_INIT(PROBLEM),
		.experts = EXPERTS,
		.experts_local = EXPERTS,
		.top_k = TOP_K,
		.hidden = HIDDEN,
		.intermediate = INTERMEDIATE,
		.max_tokens = TOKENS,
		.gate_up = { .weight = MOEK_INT4,
		             .scale = MOEK_BF16,
		             .group_size = GROUP },
		.down = { .weight = MOEK_INT4,
		          .scale = MOEK_BF16,
		          .group_size = GROUP },
		.input_type = MOEK_BF16,
		.output_type = MOEK_BF16,
		.activation = MOEK_SILU,
		.gated = 1,
		.shards = 1,
	};
	struct moek_source tensors = { .struct_size = MOEK_INIT(SOURCE) };
	const struct moek_source callback = { .struct_size = MOEK_INIT(SOURCE),
		                              .self = &model,
		                              .expert = fill_expert };
	struct moek_registry *registry = NULL;
	struct moek_choice *choice = NULL;
	struct moek_error error;
	int32_t status;
	int same;

	fill_model(&model);
	if ((status = moek_registry_open(&options, &registry, &error)) ||
	    (status = moek_choose(registry, &problem, "auto", "engine", &choice,
	                          &error)) ||
	    (status = from_tensors(&problem, &model, &tensors, &error)) ||
	    (status = run_layer(choice, &tensors, outputs[0], &error)) ||
	    (status = run_layer(choice, &callback, outputs[1], &error)))
		fprintf(stderr, "engine: %s: %s\n", moek_status_name(status),
		        error.text);
	same = memcmp(outputs[0], outputs[1], sizeof(outputs[0])) == 0;
	if (status == MOEK_OK)
		printf("%s: tensors and callback give %s bits on %d threads of the "
		       "host\n",
		       moek_choice_winner(choice), same ? "the same" : "other",
		       THREADS);
	moek_source_close(&tensors);
	moek_choice_destroy(choice);
	moek_registry_close(registry);
	return status == MOEK_OK && same ? 0 : 1;
}
