/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/numbers.h"
#include "tools/ranks.h"
#include "tools/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define REPEATS 3

struct progress {
	const char *layer;
	double start;
	int shown;
};

static void show_progress(void *self, uint64_t done, uint64_t all)
{
	struct progress *progress = self;

	if (!isatty(STDERR_FILENO) || seconds_now() - progress->start < 1)
		return;
	fprintf(stderr, "\r%s: %llu of %llu experts prepared", progress->layer,
	        (unsigned long long)done, (unsigned long long)all);
	progress->shown = 1;
}

/** A layer on the backend that @request gives, and its workspace. */
static int32_t make_layer(const struct work *work, const char *request,
                          struct moek_layer **layer_out,
                          struct moek_workspace **workspace_out,
                          struct moek_error *error_out)
{
	struct progress progress = { .layer = work->name, .start = seconds_now() };
	struct moek_layer_options options = {
		.struct_size = MOEK_INIT(LAYER_OPTIONS),
		.expert_map = work->session->expert_map,
		.progress = show_progress,
		.progress_self = &progress,
	};
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE) };
	struct moek_choice *choice = NULL;
	struct moek_layer *layer = NULL;
	int32_t status = moek_choose(work->session->registry, &work->problem, request,
	                             work->name, &choice, error_out);

	if (status == MOEK_OK)
		status = moek_checkpoint_source(work->session->checkpoint, work->index,
		                                &source, error_out);
	if (status != MOEK_OK) {
		moek_choice_destroy(choice);
		return status;
	}
	status = moek_layer_create(choice, &source, &options, &layer, error_out);
	if (progress.shown)
		fputs("\r\033[K", stderr);
	moek_source_close(&source);
	moek_choice_destroy(choice);
	if (status != MOEK_OK)
		return status;
	status = moek_workspace_create(&layer, 1, NULL, 0, workspace_out, error_out);
	if (status != MOEK_OK) {
		moek_layer_destroy(layer);
		return status;
	}
	*layer_out = layer;
	return MOEK_OK;
}

/** Input rows of the problem's type, from the file or from the seed. */
static int32_t make_input(struct work *work, struct moek_error *error_out)
{
	uint64_t hidden = work->problem.hidden;
	uint32_t type = work->problem.input_type;

	work->input = alloc_array(work->tokens, hidden, row_type_bytes(type));
	work->output = alloc_array(work->tokens, hidden,
	                           row_type_bytes(work->problem.output_type));
	if (work->input == NULL || work->output == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "%s: no memory for %llu rows", work->name,
		                  (unsigned long long)work->tokens);
	if (work->against->file == NULL) {
		fill_random(work->input, type, work->tokens * hidden,
		            work->options->seed + work->number * UINT64_C(0x100000000));
		return MOEK_OK;
	}
	for (uint64_t i = 0; i < work->tokens * hidden; i++)
		row_set(work->input, type, i,
		        row_get(work->expected.input, work->expected.type, i));
	return MOEK_OK;
}

/** Rows that the router cannot route by themselves: random rows get random logits. */
static int32_t route_anyhow(struct work *work, const char *reason,
                            struct moek_error *error_out)
{
	const struct moek_problem *problem = &work->problem;

	if (work->against->file != NULL)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: %s, so %s must have %s.topk_ids and no logits",
		                  work->name, reason, work->against->path, work->name);
	tool_say("warning: %s: %s: it is routed at random", work->name, reason);
	work->router = (struct moek_router){ .struct_size = MOEK_INIT(ROUTER),
		                             .scoring = MOEK_SOFTMAX,
		                             .experts = problem->experts,
		                             .top_k = problem->top_k };
	fill_random(work->logits, MOEK_F32, work->tokens * problem->experts,
	            ~(work->options->seed + work->number * UINT64_C(0x100000000)));
	return moek_route(&work->router, work->logits, work->tokens, work->ids,
	                  work->weights, error_out);
}

/** The router's own choice, from the rows as the file has them. */
static int32_t route(struct work *work, struct moek_error *error_out)
{
	const struct moek_problem *problem = &work->problem;
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	struct moek_rows input = {
		.data = work->against->file != NULL ? work->expected.input
		                                    : work->input,
		.rows = work->tokens,
		.columns = problem->hidden,
		.type = work->against->file != NULL ? work->expected.type
		                                    : problem->input_type,
	};
	int32_t status;

	work->router.struct_size = MOEK_INIT(ROUTER);
	work->logits = alloc_array(work->tokens, problem->experts, sizeof(float));
	work->ids = alloc_array(work->tokens, problem->top_k, sizeof(int32_t));
	work->weights = alloc_array(work->tokens, problem->top_k, sizeof(float));
	if (work->logits == NULL || work->ids == NULL || work->weights == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "%s: no memory for routing", work->name);
	if (moek_checkpoint_layer(work->session->checkpoint, work->index, &info) ==
	            MOEK_OK &&
	    info.unrouted[0] != '\0')
		return route_anyhow(work, info.unrouted, error_out);
	if (moek_checkpoint_router(work->session->checkpoint, work->index,
	                           &work->router) != MOEK_OK)
		return tool_error(error_out, MOEK_BAD_FILE, "%s: %s has no router",
		                  work->options->checkpoint, work->name);
	status = moek_checkpoint_logits(work->session->checkpoint, work->index, &input,
	                                work->logits, error_out);
	if (status != MOEK_OK)
		return status;
	return moek_route(&work->router, work->logits, work->tokens, work->ids,
	                  work->weights, error_out);
}

const int32_t *work_ids(const struct work *work)
{
	return work->expected.ids != NULL ? work->expected.ids : work->ids;
}

const float *work_weights(const struct work *work)
{
	return work->expected.ids != NULL ? work->expected.weights : work->weights;
}

static int32_t forward(const struct work *work, struct moek_layer *layer,
                       struct moek_workspace *workspace, struct moek_rows *output,
                       struct moek_trace *trace, struct moek_error *error_out)
{
	struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = { .data = work->input,
		           .rows = work->tokens,
		           .columns = work->problem.hidden,
		           .type = work->problem.input_type },
		.output = *output,
		.topk_ids = work_ids(work),
		.topk_weights = work_weights(work),
		.workspace = workspace,
		.trace = trace,
	};

	return moek_layer_forward(layer, &forward, error_out);
}

static struct moek_rows output_rows(const struct work *work, void *data)
{
	return (struct moek_rows){
		.data = data,
		.rows = work->tokens,
		.columns = work->problem.hidden,
		.type = work->problem.output_type,
	};
}

int32_t work_forward(struct work *work, struct moek_error *error_out)
{
	struct moek_rows output = output_rows(work, work->output);
	struct ranks *ranks = work->session->ranks;
	double start = seconds_now();
	double all = 0;
	int32_t status = MOEK_OK;

	/* ranks keep step, whatever their clocks say */
	for (int i = 0; status == MOEK_OK && i < REPEATS && (ranks != NULL || all < 1);
	     i++) {
		double before = seconds_now();
		double took;

		status = ranks != NULL ? ranks->forward(ranks, work, error_out)
		                       : forward(work, work->layer, work->workspace,
		                                 &output, NULL, error_out);
		took = seconds_now() - before;
		work->seconds = i == 0 || took < work->seconds ? took : work->seconds;
		all = seconds_now() - start;
	}
	if (status == MOEK_OK && ranks != NULL)
		ranks->gather(ranks, work);
	return status;
}

/** The sums of magnitudes from @layer, if it is one that knows them. */
static int32_t trace_magnitudes(struct work *work, struct moek_layer *layer,
                                struct moek_workspace *workspace, void *output,
                                int *known_out, struct moek_error *error_out)
{
	struct moek_rows rows = output_rows(work, output);
	struct moek_trace trace = {
		.struct_size = MOEK_INIT(TRACE),
		.magnitudes = work->magnitudes,
	};
	int32_t status = forward(work, layer, workspace, &rows, &trace, error_out);

	*known_out = (trace.filled & MOEK_TRACE_MAGNITUDES) != 0;
	return status;
}

int32_t work_magnitudes(struct work *work, struct moek_error *error_out)
{
	struct moek_layer *layer = NULL;
	struct moek_workspace *workspace = NULL;
	void *output = alloc_array(work->tokens, work->problem.hidden,
	                           row_type_bytes(work->problem.output_type));
	struct ranks *ranks = work->session->ranks;
	int32_t status = MOEK_OK;
	int known = 0;

	work->magnitudes = alloc_array(work->tokens, work->problem.hidden,
	                               sizeof(float));
	if (output == NULL || work->magnitudes == NULL) {
		status = tool_error(error_out, MOEK_NO_MEMORY,
		                    "%s: no memory for magnitudes", work->name);
		goto done;
	}
	if (work->layer != NULL)
		status = trace_magnitudes(work, work->layer, work->workspace, output,
		                          &known, error_out);
	if (status != MOEK_OK || known)
		goto done;
	status = make_layer(work, "require emulation", &layer, &workspace, error_out);
	if (status != MOEK_OK)
		goto done;
	status = trace_magnitudes(work, layer, workspace, output, &known, error_out);
	if (status == MOEK_OK && !known)
		status = tool_error(error_out, MOEK_PLUGIN,
		                    "%s: emulation gives no sums of magnitudes",
		                    work->name);
	moek_workspace_destroy(workspace);
	moek_layer_destroy(layer);
done:
	free(output);
	/* each rank has the sums of its own experts, over all tokens */
	status = ranks_agree(ranks, status, error_out);
	if (status == MOEK_OK && ranks != NULL)
		ranks->add(ranks, work->magnitudes,
		           work->tokens * work->problem.hidden);
	return status;
}

struct moek_rows work_output(const struct work *work)
{
	return output_rows(work, work->output);
}

int32_t work_start(struct work *work, struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	work->tokens = work->problem.max_tokens;
	if (work->against->file != NULL) {
		status = expected_read(work->against, work->name, &work->problem,
		                       work->problem.max_tokens, &work->expected,
		                       error_out);
		work->tokens = work->expected.tokens;
	}
	if (status == MOEK_OK)
		status = make_input(work, error_out);
	/* what the file routes without logits to compare with needs no router */
	if (status == MOEK_OK &&
	    (work->expected.ids == NULL || work->expected.logits != NULL))
		status = route(work, error_out);
	status = ranks_agree(work->session->ranks, status, error_out);
	if (status != MOEK_OK)
		return status;
	if (work->session->ranks != NULL)
		return work->session->ranks->make(work->session->ranks, work, error_out);
	status = make_layer(work, work->options->backend, &work->layer, &work->workspace,
	                    error_out);
	work->shown = work->layer;
	return status;
}

void work_end(struct work *work)
{
	if (work->session->ranks != NULL)
		work->session->ranks->end(work->session->ranks, work);
	moek_workspace_destroy(work->workspace);
	moek_layer_destroy(work->layer);
	expected_free(&work->expected);
	free(work->input);
	free(work->output);
	free(work->ids);
	free(work->weights);
	free(work->logits);
	free(work->magnitudes);
}
