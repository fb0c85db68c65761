/* SPDX-License-Identifier: MIT */
/* moek explain: who would run it, and why the others would not. moek lock: the same,
 * kept. */
#include "config.h"

#include "tools/writer.h"
#include "tools/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 1024 /* of one forward, when nothing is said */

/** What is done with a choice, which is the taker's. Exit code. */
struct taker {
	int (*take)(struct taker *taker, struct moek_choice *choice, int32_t status);
	const struct options *options;
	struct writer writer;         /* of explain */
	struct moek_choice **choices; /* of lock */
	uint64_t count;
	int (*end)(struct taker *taker, struct moek_registry *registry); /* or NULL */
};

static int choose(struct taker *taker, struct moek_registry *registry,
                  const struct moek_problem *problem, const char *label)
{
	struct moek_choice *choice = NULL;
	struct moek_error error;
	int32_t status = moek_choose(registry, problem, taker->options->backend, label,
	                             &choice, &error);

	return choice == NULL ? tool_fail(&error) : taker->take(taker, choice, status);
}

static void set_types(const struct options *options, struct moek_problem *problem)
{
	tool_set_activations(options, problem);
	problem->max_tokens = options->tokens > 0 ? options->tokens : TOKENS;
	if (options->type != 0)
		problem->input_type = problem->output_type = options->type;
}

static int choose_for_checkpoint(struct taker *taker)
{
	const struct options *options = taker->options;
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
		code = choose(taker, session.registry, &alike.problem, alike.label);
		worst = code > worst ? code : worst;
	}
	if (taker->end != NULL && worst == TOOL_DONE)
		worst = taker->end(taker, session.registry);
	tool_close(&session);
	return worst;
}

static int choose_for_problem(struct taker *taker)
{
	const struct options *options = taker->options;
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
	code = choose(taker, registry, &problem, "problem");
	if (taker->end != NULL && code == TOOL_DONE)
		code = taker->end(taker, registry);
	moek_registry_close(registry);
	return code;
}

static int choose_for_all(struct taker *taker)
{
	return taker->options->problem != NULL ? choose_for_problem(taker)
	                                       : choose_for_checkpoint(taker);
}

/* ---- explain ---- */

/** Print the report; a refusal is an answer too, told by the exit code. */
static int print_report(struct taker *taker, struct moek_choice *choice, int32_t status)
{
	char *text = moek_choice_report(choice,
	                                taker->options->json ? MOEK_JSON : MOEK_TEXT);

	moek_choice_destroy(choice);
	if (text == NULL) {
		tool_say("no memory for the report");
		return TOOL_REFUSED;
	}
	if (taker->options->json)
		writer_value(&taker->writer, NULL, text);
	else
		tool_print(text);
	moek_free(text);
	return tool_status(status);
}

int command_explain(const struct options *options)
{
	struct taker taker = { .take = print_report, .options = options };
	int code;

	if (options->json)
		writer_open(&taker.writer, NULL, '[');
	code = choose_for_all(&taker);
	if (options->json)
		writer_close(&taker.writer, ']');
	return code;
}

/* ---- lock ---- */

static int keep(struct taker *taker, struct moek_choice *choice, int32_t status)
{
	struct moek_choice **choices = realloc(taker->choices,
	                                       (taker->count + 1) * sizeof(*choices));

	if (choices == NULL) {
		moek_choice_destroy(choice);
		tool_say("no memory for the choices");
		return TOOL_REFUSED;
	}
	taker->choices = choices;
	choices[taker->count++] = choice;
	if (status != MOEK_OK)
		tool_say("nobody runs all of it, so nothing is locked; see moek "
		         "explain");
	return tool_status(status);
}

/** All of @text as the file @path, or no change. 0: errno says why. */
static int write_whole(const char *path, const char *text)
{
	char beside[4096];
	FILE *file;
	int good;

	if (snprintf(beside, sizeof(beside), "%s.new", path) >= (int)sizeof(beside)) {
		errno = ENAMETOOLONG;
		return 0;
	}
	file = fopen(beside, "we");
	if (file == NULL)
		return 0;
	good = fputs(text, file) >= 0;
	good = fclose(file) == 0 && good && rename(beside, path) == 0;
	if (!good) {
		int error = errno;

		remove(beside);
		errno = error;
	}
	return good;
}

static int write_lock(struct taker *taker, struct moek_registry *registry)
{
	const char *path = taker->options->output != NULL ? taker->options->output
	                                                  : "moek.lock";
	char *text = moek_registry_lock(
		registry, (const struct moek_choice *const *)taker->choices,
		taker->count);
	int code = TOOL_DONE;

	if (text == NULL) {
		tool_say("no memory for the lock");
		return TOOL_REFUSED;
	}
	if (strcmp(path, "-") == 0) {
		tool_print(text);
	} else if (!write_whole(path, text)) {
		tool_say("%s: cannot write: %s", path, strerror(errno));
		code = TOOL_REFUSED;
	} else {
		printf("%s: %llu choice%s; --locked %s, or lock = FILE in moek.ini, "
		       "holds to "
		       "it\n",
		       path, (unsigned long long)taker->count,
		       taker->count == 1 ? "" : "s", path);
	}
	moek_free(text);
	return code;
}

int command_lock(const struct options *options)
{
	struct taker taker = { .take = keep, .options = options, .end = write_lock };
	int code = choose_for_all(&taker);

	while (taker.count > 0)
		moek_choice_destroy(taker.choices[--taker.count]);
	free(taker.choices);
	return code;
}
