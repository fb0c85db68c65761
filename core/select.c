/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/select.h"

#include "core/choice.h"
#include "core/golden.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/problem.h"
#include "core/registry.h"
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranking ---- */

static int is_degraded(const struct moek_choice *choice)
{
	const struct moek_entrant *winner = &choice->entrants[choice->winner];

	for (size_t i = 0; i < choice->count; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];
		uint32_t state = entrant->state;

		/* whoever asked for one backend alone has got it */
		if (i == choice->winner ||
		    entrant->verdict.rule == MOEK_RULE_NOT_REQUIRED)
			continue;
		if (i < choice->winner &&
		    (state == MOEK_STATE_UNUSABLE || state == MOEK_STATE_BROKEN ||
		     state == MOEK_STATE_FAILED))
			return 1;
		if (winner->rank_class == MOEK_EMULATION &&
		    (state == MOEK_STATE_MISSING || state == MOEK_STATE_UNUSABLE ||
		     state == MOEK_STATE_BROKEN || state == MOEK_STATE_DISABLED))
			return 1;
	}
	return 0;
}

/** The first that is ready wins; the texts of all are made. */
static void decide(struct moek_choice *choice)
{
	choice->winner = choice->count;
	for (size_t i = 0; i < choice->count; i++) {
		struct moek_entrant *entrant = &choice->entrants[i];

		if (entrant->state == MOEK_STATE_READY) {
			if (choice->winner == choice->count) {
				choice->winner = i;
				entrant->state = MOEK_STATE_CHOSEN;
				moek_refuse(&entrant->verdict, MOEK_RULE_NONE, 0);
			} else {
				moek_refuse(&entrant->verdict, MOEK_RULE_OUTRANKED, 0);
			}
			entrant->found[0] = '\0';
		}
		moek_candidate_write(entrant);
	}
	choice->degraded = 0;
	choice->is_past_preferred = 0;
	if (choice->winner == choice->count)
		return;
	choice->degraded = is_degraded(choice);
	choice->is_past_preferred = choice->request.mode == MOEK_PREFER &&
	                            choice->entrants[choice->winner].place.preferred ==
	                                    MOEK_NOT_NAMED;
	choice->backend = moek_candidate_backend(&choice->entrants[choice->winner],
	                                         &choice->problem);
}

/* ---- telling ---- */

/** By the request, so that nobody needs to be told. */
static int is_set_aside(const struct moek_entrant *entrant)
{
	return entrant->verdict.rule == MOEK_RULE_NOT_REQUIRED ||
	       entrant->verdict.rule == MOEK_RULE_EXCLUDED;
}

/** One line of a report in words. Returns its length as snprintf does. */
static int describe(const struct moek_entrant *entrant, char *text_out, size_t bytes)
{
	return snprintf(text_out, bytes, "%s: %s: %s%s%s%s", entrant->name,
	                moek_state_name(entrant->state), entrant->found,
	                entrant->accepted[0] != '\0' ? " (accepts " : "",
	                entrant->accepted, entrant->accepted[0] != '\0' ? ")" : "");
}

/** Each distinct cause once: failures that somebody expected not to happen louder. */
static void log_entrants(const struct moek_choice *choice)
{
	for (size_t i = 0; i < choice->count; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];
		int failed = entrant->state == MOEK_STATE_BROKEN ||
		             entrant->state == MOEK_STATE_UNUSABLE ||
		             entrant->state == MOEK_STATE_FAILED;
		int lacks = entrant->state == MOEK_STATE_MISSING ||
		            entrant->state == MOEK_STATE_DISABLED ||
		            entrant->state == MOEK_STATE_ABSENT;
		uint32_t level = entrant->is_named && (failed || lacks) ? MOEK_LOG_ERROR
		                 : entrant->is_listed && failed ? MOEK_LOG_WARNING
		                                                : MOEK_LOG_INFO;
		char line[960], key[sizeof(line) + 8];

		if ((!failed && !lacks) || is_set_aside(entrant))
			continue;
		describe(entrant, line, sizeof(line));
		snprintf(key, sizeof(key), "%u %s", level, line);
		moek_log_once(moek_registry_log(choice->registry), level, key, "%s",
		              line);
	}
}

/** Those that are not as they should be: "plugin missing, other.experts broken". */
static void why_degraded(const struct moek_choice *choice, char *text_out, size_t bytes)
{
	size_t used = 0;

	text_out[0] = '\0';
	for (size_t i = 0; i < choice->count && used < bytes; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];

		if (i == choice->winner || entrant->state == MOEK_STATE_READY ||
		    entrant->state == MOEK_STATE_REFUSED ||
		    entrant->state == MOEK_STATE_ABSENT ||
		    entrant->verdict.rule == MOEK_RULE_NOT_REQUIRED)
			continue;
		used += (size_t)snprintf(text_out + used, bytes - used, "%s%s %s",
		                         used != 0 ? ", " : "", entrant->name,
		                         moek_state_name(entrant->state));
	}
}

/** on_degraded: allow, warn or error. */
static int32_t judge_degraded(const struct moek_choice *choice,
                              struct moek_error *error_out)
{
	struct moek_log *log = moek_registry_log(choice->registry);
	const char *policy = moek_settings_value(choice->registry->settings,
	                                         "on_degraded");
	const char *winner = choice->entrants[choice->winner].name;
	char why[600], key[700];

	why_degraded(choice, why, sizeof(why));
	if (choice->is_past_preferred) {
		snprintf(key, sizeof(key), "preferred %s %s", winner, why);
		moek_log_once(log, MOEK_LOG_WARNING, key,
		              "%s was chosen, which is none of those preferred",
		              winner);
	}
	if (!choice->degraded || strcmp(policy, "allow") == 0)
		return MOEK_OK;
	if (strcmp(policy, "error") == 0)
		return moek_fail(
			error_out, MOEK_REFUSED, 0,
			"degraded: only %s would run %s (%s), and on_degraded = error",
			winner, choice->label[0] != '\0' ? choice->label : "it", why);
	snprintf(key, sizeof(key), "degraded %s %s", winner, why);
	moek_log_once(log, MOEK_LOG_WARNING, key, "degraded: %s was chosen (%s)",
	              winner, why);
	return MOEK_OK;
}

/** Is the machine such that this candidate could have run? Those are told first. */
static int is_near(const struct moek_entrant *entrant)
{
	return entrant->device != NULL || entrant->state == MOEK_STATE_BROKEN;
}

/** Lines of an error's text, as far as they fit. */
struct lines {
	char text[sizeof(((struct moek_error *)NULL)->text)];
	size_t used, left_out;
};

#define LEFT_OUT_BYTES 64 /* kept free, to say how many lines are missing */

__attribute__((format(printf, 2, 3))) static void add_line(struct lines *lines,
                                                           const char *format, ...)
{
	size_t room = sizeof(lines->text) - LEFT_OUT_BYTES - lines->used;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(lines->text + lines->used, room, format, arguments);
	va_end(arguments);
	if (length < 0 || (size_t)length >= room) {
		lines->text[lines->used] = '\0';
		lines->left_out++;
		return;
	}
	lines->used += (size_t)length;
}

static void add_candidates(struct lines *lines, const struct moek_choice *choice,
                           int near)
{
	for (size_t i = 0; i < choice->count; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];
		char line[960];

		if (is_near(entrant) != near ||
		    entrant->verdict.rule == MOEK_RULE_NOT_REQUIRED)
			continue;
		describe(entrant, line, sizeof(line));
		add_line(lines, "\n  %s", line);
	}
}

static void add_searched(struct lines *lines, const struct moek_registry *registry)
{
	for (size_t i = 0; i < registry->searched_count; i++) {
		const struct moek_searched *searched = &registry->searched[i];

		if (searched->error != 0)
			add_line(lines, "\nsearched %s: %s", searched->folder->path,
			         strerror(searched->error));
		else
			add_line(lines, "\nsearched %s: %zu plugin%s",
			         searched->folder->path, searched->plugins,
			         searched->plugins == 1 ? "" : "s");
	}
}

/** The rule of what was required, or of the only candidate: what a program looks at. */
static uint32_t rule_of_refusal(const struct moek_choice *choice)
{
	for (size_t i = 0; i < choice->count; i++)
		if (choice->request.mode == MOEK_REQUIRE &&
		    choice->entrants[i].is_named)
			return choice->entrants[i].verdict.rule;
	return choice->count == 1 ? choice->entrants[0].verdict.rule : MOEK_RULE_NONE;
}

/** The error that carries the report: one line for each candidate. */
static int32_t refuse(const struct moek_choice *choice, struct moek_error *error_out)
{
	const struct moek_request *request = &choice->request;
	const char *label = choice->label[0] != '\0' ? choice->label : "the problem";
	struct lines lines = { .used = 0 };

	if (request->mode == MOEK_REQUIRE)
		add_line(&lines, "%s, which is required, does not run %.200s:",
		         request->names[0], label);
	else
		add_line(&lines, "no backend runs %.200s%s", label,
		         choice->count == 0 ? ": none is installed" : ":");
	add_candidates(&lines, choice, 1);
	add_candidates(&lines, choice, 0);
	add_searched(&lines, choice->registry);
	if (lines.left_out != 0)
		snprintf(lines.text + lines.used, LEFT_OUT_BYTES,
		         "\n(%zu more lines: see the report)", lines.left_out);
	return moek_fail(error_out, MOEK_REFUSED, rule_of_refusal(choice), "%s",
	                 lines.text);
}

/** Nobody has won, though one would run it. */
static void withdraw(struct moek_choice *choice, const char *cause)
{
	struct moek_entrant *winner = &choice->entrants[choice->winner];

	winner->state = MOEK_STATE_READY;
	snprintf(winner->found, sizeof(winner->found), "would run it, but %s", cause);
	choice->winner = choice->count;
}

/** The end of a choice that is decided: MOEK_OK, or MOEK_REFUSED and nobody has won. */
static int32_t conclude(struct moek_choice *choice, struct moek_error *error_out)
{
	const struct moek_lock *lock = choice->registry->held;
	int32_t status;

	if (choice->winner == choice->count)
		return refuse(choice, error_out);
	status = judge_degraded(choice, error_out);
	if (status != MOEK_OK) {
		withdraw(choice, "degraded, and on_degraded = error");
		return status;
	}
	if (lock != NULL)
		status = moek_lock_hold_choice(lock, choice, error_out);
	if (status != MOEK_OK)
		withdraw(choice, "another is locked");
	return status;
}

/* ---- choosing ---- */

struct moek_choice *moek_choice_new(struct moek_registry *registry, const char *label)
{
	struct moek_choice *choice = calloc(1, sizeof(*choice));

	if (choice == NULL)
		return NULL;
	choice->owners = 1;
	choice->registry = registry;
	choice->label = strdup(label != NULL ? label : "");
	if (choice->label == NULL) {
		free(choice);
		return NULL;
	}
	return choice;
}

/** Those before the winner that a golden test has found to compute something else. */
static void recall_golden(struct moek_choice *choice)
{
	for (size_t i = 0; i < choice->count; i++) {
		struct moek_entrant *entrant = &choice->entrants[i];
		struct moek_cause cause;

		if (entrant->state != MOEK_STATE_READY)
			continue;
		if (!moek_golden_recall(choice->registry, entrant, &choice->problem,
		                        &cause))
			return;
		moek_candidate_settle(entrant, MOEK_STATE_FAILED, MOEK_RULE_GOLDEN,
		                      cause.text);
	}
}

int32_t moek_choose(struct moek_registry *registry, const struct moek_problem *problem,
                    const char *request, const char *label,
                    struct moek_choice **choice_out, struct moek_error *error_out)
{
	struct moek_choice *choice;
	int32_t status;

	if (registry == NULL || problem == NULL || choice_out == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0, "%s is NULL",
		                 registry == NULL  ? "registry"
		                 : problem == NULL ? "problem"
		                                   : "choice_out");
	choice = moek_choice_new(registry, label);
	if (choice == NULL)
		return moek_fail_memory(error_out, "choice");
	status = moek_request_parse(request, &choice->request, error_out);
	if (status == MOEK_OK)
		status = moek_problem_read(problem, &choice->problem, error_out);
	if (status == MOEK_OK)
		status = moek_candidates_ask(choice, MOEK_ASK_PROBLEM, error_out);
	if (status != MOEK_OK) {
		moek_choice_destroy(choice);
		return status;
	}
	recall_golden(choice);
	decide(choice);
	log_entrants(choice);
	status = conclude(choice, error_out);
	*choice_out = choice;
	return status;
}

int32_t moek_choose_reference(struct moek_registry *registry,
                              const struct moek_problem *problem,
                              struct moek_choice **choice_out,
                              struct moek_error *error_out)
{
	struct moek_choice *choice = moek_choice_new(registry, "reference");
	int32_t status;

	if (choice == NULL)
		return moek_fail_memory(error_out, "choice");
	choice->problem = *problem;
	status = moek_candidates_ask_reference(choice, error_out);
	if (status == MOEK_OK) {
		decide(choice);
		if (choice->count == 0)
			status = moek_fail(
				error_out, MOEK_REFUSED, 0,
				"no backend of class emulation is installed");
		else if (choice->winner == choice->count)
			status = refuse(choice, error_out);
	}
	if (status == MOEK_OK)
		*choice_out = choice;
	else
		moek_choice_destroy(choice);
	return status;
}

int32_t moek_choice_of(struct moek_registry *registry,
                       const struct moek_backend *backend,
                       const struct moek_problem *problem,
                       struct moek_choice **choice_out, struct moek_error *error_out)
{
	struct moek_choice *choice = moek_choice_new(registry, NULL);
	struct moek_entrant *entrant;

	if (choice == NULL)
		return moek_fail_memory(error_out, "choice");
	entrant = calloc(1, sizeof(*entrant));
	if (entrant == NULL) {
		moek_choice_destroy(choice);
		return moek_fail_memory(error_out, "choice");
	}
	snprintf(entrant->name, sizeof(entrant->name), "%s", backend->name);
	entrant->state = MOEK_STATE_CHOSEN;
	entrant->device = backend->device;
	choice->entrants = entrant;
	choice->count = 1;
	choice->problem = *problem;
	choice->backend = *backend;
	choice->backend.name = entrant->name;
	choice->backend.problem = moek_candidate_problem(problem, backend->device);
	*choice_out = choice;
	return MOEK_OK;
}

struct moek_choice *moek_choice_retain(struct moek_choice *choice)
{
	__atomic_add_fetch(&choice->owners, 1, __ATOMIC_RELAXED);
	return choice;
}

void moek_choice_destroy(struct moek_choice *choice)
{
	if (choice == NULL ||
	    __atomic_sub_fetch(&choice->owners, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	free(choice->entrants);
	free(choice->label);
	free(choice);
}

/** A copy with one owner. */
static struct moek_choice *copy_choice(const struct moek_choice *choice)
{
	struct moek_choice *copy = moek_choice_new(choice->registry, choice->label);
	char *label;

	if (copy == NULL)
		return NULL;
	label = copy->label;
	*copy = *choice;
	copy->owners = 1;
	copy->label = label;
	copy->entrants = malloc((choice->count + 1) * sizeof(*copy->entrants));
	if (copy->entrants == NULL) {
		moek_choice_destroy(copy);
		return NULL;
	}
	memcpy(copy->entrants, choice->entrants,
	       choice->count * sizeof(*copy->entrants));
	return copy;
}

int32_t moek_choice_next(const struct moek_choice *choice, int32_t status,
                         const char *cause, struct moek_choice **next_out,
                         struct moek_error *error_out)
{
	struct moek_choice *next;
	struct moek_entrant *failed;
	int32_t result;

	if (choice->winner == choice->count)
		return moek_fail(error_out, MOEK_REFUSED, 0, "nobody was chosen");
	next = copy_choice(choice);
	if (next == NULL)
		return moek_fail_memory(error_out, "choice");
	failed = &next->entrants[next->winner];
	moek_candidate_settle(failed, MOEK_STATE_FAILED,
	                      status == MOEK_NO_MEMORY ? MOEK_RULE_MEMORY
	                      : status == MOEK_PLUGIN  ? MOEK_RULE_GOLDEN
	                                               : MOEK_RULE_CREATE,
	                      cause);
	decide(next);
	log_entrants(next);
	result = next->request.mode == MOEK_REQUIRE ? refuse(next, error_out)
	                                            : conclude(next, error_out);
	if (result != MOEK_OK) {
		moek_choice_destroy(next);
		return result;
	}
	*next_out = next;
	return MOEK_OK;
}

int32_t moek_survey(struct moek_registry *registry, enum moek_asked asked,
                    struct moek_choice **survey_out, struct moek_error *error_out)
{
	struct moek_choice *survey = moek_choice_new(registry, NULL);
	int32_t status;

	if (survey == NULL)
		return moek_fail_memory(error_out, "survey");
	status = moek_candidates_ask(survey, asked, error_out);
	if (status != MOEK_OK) {
		moek_choice_destroy(survey);
		return status;
	}
	for (size_t i = 0; i < survey->count; i++)
		moek_candidate_write(&survey->entrants[i]);
	*survey_out = survey;
	return MOEK_OK;
}

/* ---- asking a choice ---- */

const struct moek_backend *moek_choice_backend(const struct moek_choice *choice)
{
	return choice->winner != choice->count ? &choice->backend : NULL;
}

struct moek_registry *moek_choice_registry(const struct moek_choice *choice)
{
	return choice->registry;
}

const struct moek_problem *moek_choice_problem(const struct moek_choice *choice)
{
	return &choice->problem;
}

uint64_t moek_choice_candidates(const struct moek_choice *choice)
{
	return choice->count;
}

int32_t moek_choice_candidate(const struct moek_choice *choice, uint64_t index,
                              struct moek_candidate *candidate_out)
{
	const struct moek_entrant *entrant;
	struct moek_candidate candidate = { .struct_size = MOEK_CANDIDATE_SIZE_1_0 };
	uint32_t bytes = candidate_out->struct_size;

	if (index >= choice->count || bytes < MOEK_CANDIDATE_SIZE_1_0)
		return MOEK_BAD_ARGUMENT;
	entrant = &choice->entrants[index];
	candidate.state = entrant->state;
	candidate.name = entrant->name;
	candidate.path = entrant->path;
	candidate.source = entrant->source;
	candidate.found = entrant->found;
	candidate.accepted = entrant->accepted;
	candidate.verdict = &entrant->verdict;
	memcpy(candidate_out, &candidate, sizeof(candidate));
	return MOEK_OK;
}

const char *moek_choice_winner(const struct moek_choice *choice)
{
	return choice->winner != choice->count ? choice->entrants[choice->winner].name
	                                       : NULL;
}

int32_t moek_choice_degraded(const struct moek_choice *choice)
{
	return choice->degraded;
}

const struct moek_device *moek_choice_device(const struct moek_choice *choice)
{
	return choice->winner != choice->count ? choice->entrants[choice->winner].device
	                                       : NULL;
}

uint64_t moek_choice_weight_bytes(const struct moek_choice *choice)
{
	uint64_t align;

	return choice->winner == choice->count
	               ? 0
	               : choice->backend.experts->prepared_size(
				 choice->backend.plugin_handle,
				 &choice->backend.problem, &align);
}

int32_t moek_choice_numerics(const struct moek_choice *choice,
                             struct moek_numerics *numerics_out)
{
	struct moek_numerics numerics = { .struct_size = MOEK_NUMERICS_SIZE_1_0 };

	if (choice->winner == choice->count)
		return MOEK_REFUSED;
	choice->backend.experts->numerics(choice->backend.plugin_handle,
	                                  &choice->backend.problem, &numerics);
	numerics.struct_size = MOEK_NUMERICS_SIZE_1_0;
	numerics.text[sizeof(numerics.text) - 1] = '\0';
	*numerics_out = numerics;
	return MOEK_OK;
}
