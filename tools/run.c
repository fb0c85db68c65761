/* SPDX-License-Identifier: MIT */
/* moek run: choose, prepare and run each expert layer; compare, or print norms and
 * times. */
#include "config.h"

#include "tools/capsule.h"
#include "tools/numbers.h"
#include "tools/outcome.h"
#include "tools/ranks.h"
#include "tools/work.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define RANDOM_TOKENS 16

struct run {
	const struct options *options;
	struct session session;
	struct expected_file against; /* file NULL: random rows */
	uint64_t max_tokens;          /* of the largest layer */
	uint32_t file_type;           /* of hidden_in; 0 without --against */
	struct writer writer;
	/* so far: */
	uint64_t layers, wrong_layers;
	double worst_share;
	char worst_layer[64];
};

/* ---- before anything is read: tokens, types, and who runs it ---- */

static uint32_t compute_type(const struct run *run, uint32_t otherwise)
{
	return run->options->type != 0 ? run->options->type
	       : run->file_type != 0   ? run->file_type
	                               : otherwise;
}

static void set_problem(const struct run *run, struct moek_problem *problem)
{
	tool_set_activations(run->options, problem);
	problem->max_tokens = run->max_tokens;
	problem->input_type = compute_type(run, problem->input_type);
	if (run->options->type != 0)
		problem->output_type = run->options->type;
	else if (run->file_type != 0)
		problem->output_type =
			MOEK_F32; /* what is compared is not rounded first */
}

static uint64_t limit_tokens(const struct run *run, uint64_t tokens)
{
	uint64_t most = run->options->tokens;

	return most > 0 && most < tokens ? most : tokens;
}

static int32_t open_against(struct run *run, struct moek_error *error_out)
{
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	uint64_t count = moek_checkpoint_layers(run->session.checkpoint);
	int32_t status;

	run->against.path = run->options->against;
	status = moek_safetensors_open(run->against.path, &run->against.file,
	                               error_out);
	for (uint64_t i = 0; status == MOEK_OK && i < count; i++) {
		uint64_t tokens;
		uint32_t type;

		if (moek_checkpoint_layer(run->session.checkpoint, i, &info) !=
		            MOEK_OK ||
		    !tool_wants_layer(run->options, info.number))
			continue;
		status = expected_input(&run->against, info.name, &tokens, &type,
		                        error_out);
		if (status == MOEK_OK && run->file_type != 0 && type != run->file_type)
			status = tool_error(error_out, MOEK_BAD_FILE,
			                    "%s: %s.hidden_in is %s, before it was %s",
			                    run->against.path, info.name,
			                    moek_type_name(type),
			                    moek_type_name(run->file_type));
		if (status != MOEK_OK)
			break;
		run->file_type = type;
		tokens = limit_tokens(run, tokens);
		run->max_tokens = tokens > run->max_tokens ? tokens : run->max_tokens;
	}
	return status;
}

/** A rounding before a quantiser of few bits turns into other codes, which no allowance
 *  made of roundings covers. */
static int32_t check_comparable(const struct run *run,
                                const struct moek_problem *problem, const char *label,
                                struct moek_error *error_out)
{
	if (run->file_type == 0 || problem->input_type == run->file_type ||
	    problem->activations == MOEK_A16)
		return MOEK_OK;
	return tool_error(
		error_out, MOEK_BAD_ARGUMENT,
		"%s: %s input is rounded to other codes of activations %s than "
		"the %s of %s: compare without --type",
		label, moek_type_name(problem->input_type),
		moek_activations_name(problem->activations),
		moek_type_name(run->file_type), run->against.path);
}

static int32_t print_choice(struct run *run, const struct moek_choice *choice,
                            struct moek_error *error_out)
{
	int as_json = (int)run->options->json;
	char *text = moek_choice_report(choice, as_json ? MOEK_JSON : MOEK_TEXT);

	if (text == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "no memory for the report");
	if (as_json) {
		writer_value(&run->writer, NULL, text);
	} else {
		tool_print(text);
		putchar('\n');
	}
	moek_free(text);
	return MOEK_OK;
}

/** Ask once for each kind of layer, so that a refusal comes before any weight is read.
 */
static int32_t choose_all(struct run *run, struct moek_error *error_out)
{
	struct alike alike;
	int32_t status = MOEK_OK;

	for (uint64_t from = 0;
	     status == MOEK_OK && tool_alike(run->options, &run->session, from, &alike);
	     from = alike.first + alike.count) {
		struct moek_choice *choice = NULL;

		set_problem(run, &alike.problem);
		status = check_comparable(run, &alike.problem, alike.label, error_out);
		if (status != MOEK_OK)
			return status;
		status = moek_choose(run->session.registry, &alike.problem,
		                     run->options->backend, alike.label, &choice,
		                     error_out);
		/* of a refusal the error has one line for each candidate */
		if (status == MOEK_OK || (choice != NULL && run->options->json)) {
			struct moek_error ignored;
			int32_t printed = print_choice(
				run, choice, status == MOEK_OK ? error_out : &ignored);

			if (status == MOEK_OK)
				status = printed;
		}
		moek_choice_destroy(choice);
	}
	return status;
}

/* ---- what came of it ---- */

static void report(struct run *run, const struct outcome *outcome)
{
	if (run->options->json)
		outcome_write(&run->writer, outcome);
	else
		outcome_print(outcome);
	fflush(stdout);
	run->layers++;
	run->wrong_layers += outcome_is_wrong(outcome) ? 1 : 0;
	if (run->layers == 1 || outcome->outputs.share > run->worst_share) {
		run->worst_share = outcome->outputs.share;
		snprintf(run->worst_layer, sizeof(run->worst_layer), "%s",
		         outcome->layer);
	}
}

static int32_t judge_against(const struct run *run, struct work *work,
                             struct outcome *outcome, struct moek_error *error_out)
{
	struct moek_numerics numerics = { .struct_size = MOEK_INIT(NUMERICS) };
	struct routed routed = {
		.checkpoint = work->session->checkpoint,
		.index = work->index,
		.hidden = work->problem.hidden,
		.router = work->router,
		.logits = work->logits,
		.ids = work->ids,
		.weights = work->weights,
	};
	struct moek_rows output = work_output(work);
	struct allowance allowance;
	int32_t status = work_magnitudes(work, error_out);

	if (status != MOEK_OK)
		return status;
	status = moek_choice_numerics(moek_layer_choice(work->shown), &numerics);
	if (status != MOEK_OK)
		return tool_error(error_out, status, "%s: no declared arithmetic",
		                  work->name);
	if (work->parallel != NULL) /* slots are asked for one by one, then summed */
		numerics.terms += work->problem.top_k * work->problem.shards;
	allowance = derive_allowance(&work->problem, &numerics, work->expected.type);
	if (run->options->wire != 0) /* E4M3 */
		allowance.per_magnitude += 0x1p-4;
	if (run->options->combine != 0) /* each rank's sum is rounded */
		allowance.per_magnitude += unit_roundoff(work->problem.output_type);
	outcome->outputs = compare_outputs(&allowance, &output, work->expected.output,
	                                   work->magnitudes);
	outcome->routing_known = work->expected.logits != NULL;
	if (!outcome->routing_known)
		return MOEK_OK;
	return compare_routing(&routed, &work->expected, &outcome->routing, error_out);
}

static void judge_random(const struct work *work, struct outcome *outcome)
{
	double sum = 0;

	for (uint64_t i = 0; i < work->tokens * work->problem.hidden; i++) {
		double value = (double)row_get(work->output, work->problem.output_type,
		                               i);

		if (isfinite(value))
			sum += value * value;
		else
			outcome->not_finite++;
	}
	outcome->norm = sqrt(sum);
}

static int is_reference(const struct moek_layer *layer)
{
	return strncmp(moek_choice_winner(moek_layer_choice(layer)), "emulation.",
	               10) == 0;
}

static int32_t judge(struct run *run, struct work *work, struct moek_error *error_out)
{
	struct outcome outcome = {
		.layer = work->name,
		.backend = moek_choice_winner(moek_layer_choice(work->shown)),
		.tokens = work->tokens,
		.elements = work->tokens * work->problem.hidden,
		.weight_bytes = moek_layer_weight_bytes(work->shown),
		.workspace_bytes = moek_layer_workspace_bytes(work->shown),
		.seconds = work->seconds,
		.compared = run->against.file != NULL,
		.shadow = { .struct_size = MOEK_INIT(SHADOW) },
	};
	int32_t status = MOEK_OK;

	moek_layer_shadow(work->shown, &outcome.shadow);
	/* who is the reference needs no shadow */
	outcome.wants_shadow = run->options->shadow != 0 && !is_reference(work->shown);

	if (outcome.compared)
		status = judge_against(run, work, &outcome, error_out);
	else
		judge_random(work, &outcome);
	if (status == MOEK_OK)
		report(run, &outcome);
	if (status == MOEK_OK && run->options->capsule != NULL &&
	    (!run->options->capsule_on_error || outcome_is_wrong(&outcome)))
		status = capsule_write(work, 1, error_out);
	return status;
}

static int32_t run_layer(struct run *run, uint64_t index,
                         const struct moek_layer_info *info,
                         struct moek_error *error_out)
{
	struct work work = {
		.options = run->options,
		.session = &run->session,
		.against = &run->against,
		.name = info->name,
		.number = info->number,
		.index = index,
		.problem = { .struct_size = MOEK_INIT(PROBLEM) },
	};
	int32_t status;

	tool_problem(&run->session, index, &work.problem);
	set_problem(run, &work.problem);
	status = work_start(&work, error_out);
	if (status == MOEK_OK) {
		status = work_forward(&work, error_out);
		if (status != MOEK_OK && run->options->capsule != NULL) {
			struct moek_error second;

			if (capsule_write(&work, 0, &second) != MOEK_OK)
				tool_say("%s", second.text);
		}
	}
	if (status == MOEK_OK)
		status = ranks_agree(run->session.ranks, judge(run, &work, error_out),
		                     error_out);
	work_end(&work);
	return status;
}

static int32_t run_layers(struct run *run, struct moek_error *error_out)
{
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	uint64_t count = moek_checkpoint_layers(run->session.checkpoint);
	int32_t status = MOEK_OK;

	if (run->options->json)
		writer_open(&run->writer, "layers", '[');
	else
		outcome_print_heading(run->against.file != NULL);
	for (uint64_t i = 0; status == MOEK_OK && i < count; i++)
		if (moek_checkpoint_layer(run->session.checkpoint, i, &info) ==
		            MOEK_OK &&
		    tool_wants_layer(run->options, info.number))
			status = run_layer(run, i, &info, error_out);
	if (run->options->json)
		writer_close(&run->writer, ']');
	return status;
}

static void print_end(struct run *run)
{
	unsigned long long layers = run->layers, wrong = run->wrong_layers;
	const char *plural = layers == 1 ? "" : "s";
	struct ranks *ranks = run->session.ranks;

	if (ranks != NULL)
		ranks->report(ranks, run->options->json ? &run->writer : NULL);

	if (run->options->json)
		writer_bool(&run->writer, "agrees", wrong == 0);
	else if (wrong > 0)
		printf("\n%llu of %llu layer%s wrong\n", wrong, layers, plural);
	else if (run->against.file != NULL)
		printf("\n%llu layer%s agree%s with %s; "
		       "the worst error is %.1f%% of its allowance (%s)\n",
		       layers, plural, layers == 1 ? "s" : "", run->against.path,
		       100 * run->worst_share, run->worst_layer);
	else
		printf("\n%llu layer%s ran on %llu random rows, seed %llu\n", layers,
		       plural, (unsigned long long)run->max_tokens,
		       (unsigned long long)run->options->seed);
}

static int32_t run_all(struct run *run, struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	if (run->options->against != NULL)
		status = open_against(run, error_out);
	else
		run->max_tokens = run->options->tokens > 0 ? run->options->tokens
		                                           : RANDOM_TOKENS;
	status = ranks_agree(run->session.ranks, status, error_out);
	if (status != MOEK_OK)
		return status;
	if (run->options->json)
		writer_open(&run->writer, "choices", '[');
	status = choose_all(run, error_out);
	status = ranks_agree(run->session.ranks, status, error_out);
	if (run->options->json)
		writer_close(&run->writer, ']');
	if (status == MOEK_OK)
		status = run_layers(run, error_out);
	if (status == MOEK_OK)
		print_end(run);
	return status;
}

int command_run(const struct options *options)
{
	struct run run = { .options = options };
	struct moek_error error;
	int code = TOOL_DONE;

	if (options->against != NULL &&
	    (options->experts != NULL ||
	     (options->shards > 1 && options->tensor <= 1))) {
		tool_say("run: --shard and --experts give a part of each sum: not with "
		         "--against");
		return TOOL_USAGE;
	}
	if (options->parallel && options->capsule != NULL) {
		tool_say("run: a capsule is of one process: not with --parallel");
		return TOOL_USAGE;
	}
	if (tool_open(options, &run.session, &error) != MOEK_OK)
		return tool_fail(&error);
	if (options->json) {
		writer_open(&run.writer, NULL, '{');
		writer_string(&run.writer, "checkpoint", options->checkpoint);
		writer_string(&run.writer, "against", options->against);
		if (options->parallel)
			writer_string(&run.writer, "wire",
			              options->wire != 0 ? "fp8" : "as_is");
	}
	if (run_all(&run, &error) != MOEK_OK) {
		fflush(stdout);
		code = tool_fail(&error);
		if (options->json)
			writer_string(&run.writer, "error", error.text);
	} else if (run.wrong_layers > 0) {
		code = TOOL_REFUSED;
	}
	if (options->json)
		writer_close(&run.writer, '}');
	moek_safetensors_close(run.against.file);
	tool_close(&run.session);
	return code;
}
