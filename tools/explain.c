/* SPDX-License-Identifier: MIT */
/* moek explain: who would run it, and why the others would not. */
#include "config.h"

#include "tools/writer.h"
#include "tools/tool.h"

#include <stdlib.h>

#define TOKENS 1024 /* of one forward, when nothing is said */

/** Print the report of one choice; a refusal is an answer too, told by the exit code.
 */
static int explain(struct moek_registry *registry, const struct options *options,
                   const struct moek_problem *problem, const char *label,
                   struct writer *writer)
{
	struct moek_choice *choice = NULL;
	struct moek_error error;
	int32_t status = moek_choose(registry, problem, options->backend, label,
	                             &choice, &error);
	char *text;

	if (choice == NULL)
		return tool_fail(&error);
	text = moek_choice_report(choice, options->json ? MOEK_JSON : MOEK_TEXT);
	moek_choice_destroy(choice);
	if (text == NULL) {
		tool_say("no memory for the report");
		return TOOL_REFUSED;
	}
	if (options->json)
		writer_value(writer, NULL, text);
	else
		tool_print(text);
	moek_free(text);
	return tool_status(status);
}

static void set_types(const struct options *options, struct moek_problem *problem)
{
	tool_set_activations(options, problem);
	problem->max_tokens = options->tokens > 0 ? options->tokens : TOKENS;
	if (options->type != 0)
		problem->input_type = problem->output_type = options->type;
}

static int explain_checkpoint(const struct options *options, struct writer *writer)
{
	struct session session;
	struct moek_error error;
	struct alike alike;
	int worst = TOOL_DONE;

	if (tool_open(options, &session, &error) != MOEK_OK)
		return tool_fail(&error);
	for (uint64_t from = 0; tool_alike(options, &session, from, &alike);
	     from = alike.first + alike.count) {
		int code;

		set_types(options, &alike.problem);
		code = explain(session.registry, options, &alike.problem, alike.label,
		               writer);
		worst = code > worst ? code : worst;
	}
	tool_close(&session);
	return worst;
}

static int explain_problem(const struct options *options, struct writer *writer)
{
	struct moek_problem problem = {
		.struct_size = MOEK_INIT(PROBLEM),
		.activation = MOEK_SILU,
		.gated = 1,
		.shards = 1,
	};
	struct moek_registry *registry;
	struct moek_error error;
	int code;

	problem.input_type = problem.output_type = MOEK_BF16;
	set_types(options, &problem);
	if (moek_problem_parse(options->problem, &problem, &error) != MOEK_OK)
		return tool_fail(&error);
	if (problem.experts_local == 0)
		problem.experts_local = problem.experts;
	if (tool_registry(options, &registry, &error) != MOEK_OK)
		return tool_fail(&error);
	code = explain(registry, options, &problem, "problem", writer);
	moek_registry_close(registry);
	return code;
}

int command_explain(const struct options *options)
{
	struct writer writer = { 0 };
	int code;

	if (options->json)
		writer_open(&writer, NULL, '[');
	code = options->problem != NULL ? explain_problem(options, &writer)
	                                : explain_checkpoint(options, &writer);
	if (options->json)
		writer_close(&writer, ']');
	return code;
}
