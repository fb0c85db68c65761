/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"

/** One case on its way. */
struct checking {
	const struct bed *bed;
	const struct material *material;
	const struct kernel_case *c;
	const char *backend;
	struct reference reference;
	struct answer *answer;
};

__attribute__((format(printf, 3, 4))) static int
say(struct answer *answer, enum outcome outcome, const char *format, ...)
{
	va_list args;

	answer->outcome = outcome;
	va_start(args, format);
	vsnprintf(answer->text, sizeof(answer->text), format, args);
	va_end(args);
	return 0;
}

uint64_t check_backends(const struct bed *bed, const struct moek_problem *problem,
                        char names_out[][64], uint64_t capacity)
{
	struct moek_candidate candidate = { .struct_size = MOEK_CANDIDATE_SIZE_1_0 };
	size_t length = strlen(bed->plugin);
	struct moek_choice *choice = NULL;
	uint64_t i, count = 0;

	moek_choose(bed->many, problem, "auto", NULL, &choice, NULL);
	for (i = 0; choice != NULL && i < moek_choice_candidates(choice); i++) {
		moek_choice_candidate(choice, i, &candidate);
		if (strncmp(candidate.name, bed->plugin, length) != 0 ||
		    (candidate.name[length] != '.' && candidate.name[length] != '\0') ||
		    count == capacity)
			continue;
		snprintf(names_out[count++], 64, "%s", candidate.name);
	}
	moek_choice_destroy(choice);
	return count;
}

/* Whether the backend would run it; if not, a skip that says why. */
static int is_ready(struct checking *k)
{
	struct moek_candidate c = { .struct_size = MOEK_CANDIDATE_SIZE_1_0 };
	struct moek_choice *choice = NULL;
	struct moek_error error = { .text = "" };
	int ready = 0;
	uint64_t i;

	moek_choose(k->bed->many, &k->material->problem, "auto", NULL, &choice, &error);
	say(k->answer, FAILED, "%s is no candidate: %s", k->backend, error.text);
	for (i = 0; choice != NULL && i < moek_choice_candidates(choice); i++) {
		moek_choice_candidate(choice, i, &c);
		if (strcmp(c.name, k->backend) != 0)
			continue;
		ready = c.state == MOEK_STATE_CHOSEN || c.state == MOEK_STATE_READY;
		if (c.state == MOEK_STATE_BROKEN || c.state == MOEK_STATE_FAILED ||
		    c.state == MOEK_STATE_MISSING)
			say(k->answer, FAILED, "%s: %s", moek_state_name(c.state),
			    c.found);
		else
			say(k->answer, SKIPPED, "%s, %s: %s%s%s",
			    moek_state_name(c.state), moek_rule_name(c.verdict->rule),
			    c.found, c.accepted[0] != '\0' ? ", accepts " : "",
			    c.accepted);
	}
	moek_choice_destroy(choice);
	return ready;
}

int check_output(const struct material *material, const struct kernel_case *c,
                 const struct moek_numerics *numerics, struct reference *reference,
                 const struct rows *rows, struct answer *answer_out)
{
	const struct moek_problem *p = &material->problem;
	const struct expected expected = {
		.tokens = material->tokens.count,
		.hidden = p->hidden,
		.values = material->tokens.count * p->top_k * p->intermediate,
		.want = reference->output,
		.magnitudes = reference->magnitudes,
		.flips = reference->flips,
		.input_type = p->input_type,
		.output_type = rows->type,
		.numerics = numerics,
		.uneven = (c->twist & TWIST_UNEVEN) != 0,
	};
	float *got = malloc((expected.tokens * expected.hidden + 1) * sizeof(*got));
	struct finding finding = { 0, "out of memory" };
	int same = 0;

	if (got != NULL) {
		rows_widen(rows, got);
		same = compare(&expected, got, &finding);
	}
	free(got);
	if (finding.worst > answer_out->worst)
		answer_out->worst = finding.worst;
	return same ? 1 : say(answer_out, FAILED, "%s", finding.text);
}

static int run_once(struct checking *k, const struct runner *runner,
                    const struct tokens *tokens, struct rows *rows)
{
	struct moek_error error = { .text = "" };
	const char *broken;

	rows_poison(rows);
	if (runner_forward(runner, tokens, rows, NULL, &error) != MOEK_OK)
		return say(k->answer, FAILED, "forward: %s", error.text);
	broken = rows_broken(rows);
	return broken == NULL ? 1 : say(k->answer, FAILED, "%s", broken);
}

/* The same rows again: the same bits if that is declared, else within the allowance. */
static int same_again(struct checking *k, const struct moek_numerics *numerics,
                      const struct rows *first, const struct rows *again,
                      const char *when)
{
	if (!numerics->repeatable)
		return check_output(k->material, k->c, numerics, &k->reference, again,
		                    k->answer);
	if (memcmp(first->memory, again->memory, first->bytes) == 0)
		return 1;
	return say(k->answer, FAILED, "declared repeatable, but other bits %s", when);
}

static int run_many(struct checking *k, const struct runner *runner, struct rows *rows)
{
	const struct material *m = k->material;
	struct rows larger, again;
	int good;

	if (!rows_make(m->larger.count, rows->columns, rows->stride, rows->type,
	               &larger))
		return say(k->answer, FAILED, "out of memory");
	good = run_once(k, runner, &m->larger, &larger) &&
	       run_once(k, runner, &m->tokens, rows) &&
	       check_output(m, k->c, &runner->numerics, &k->reference, rows, k->answer);
	rows_free(&larger);
	if (!good ||
	    !rows_make(rows->rows, rows->columns, rows->stride, rows->type, &again))
		return 0;
	good = run_once(k, runner, &m->tokens, &again) &&
	       same_again(k, &runner->numerics, rows, &again, "when run twice");
	rows_free(&again);
	return good;
}

/* @rows: what many workers gave. */
static int run_one(struct checking *k, const struct rows *rows)
{
	const struct material *m = k->material;
	struct moek_error error = { .text = "" };
	char request[80];
	struct runner runner;
	struct rows alone;
	int good;

	snprintf(request, sizeof(request), "require %s", k->backend);
	if (runner_open(k->bed->one, &m->problem, &m->source, m->map, request, &runner,
	                &error) != MOEK_OK)
		return say(k->answer, FAILED, "with one worker: %s", error.text);
	good = rows_make(rows->rows, rows->columns, rows->stride, rows->type, &alone);
	good = good && run_once(k, &runner, &m->tokens, &alone) &&
	       same_again(k, &runner.numerics, rows, &alone, "with one worker");
	rows_free(&alone);
	runner_close(&runner);
	return good;
}

static int expect(struct checking *k, const struct moek_numerics *numerics)
{
	struct moek_error error = { .text = "" };

	if (reference_make(k->bed, k->material, &k->reference, &error) != MOEK_OK)
		return say(k->answer, FAILED, "emulation: %s", error.text);
	/* emulation itself is held to the definitions */
	if ((strncmp(k->backend, "emulation.", 10) == 0 &&
	     !reference_from_naive(k->material, &k->reference)) ||
	    !reference_flips(k->material, numerics, &k->reference))
		return say(k->answer, FAILED, "out of memory");
	return 1;
}

void check_case(const struct bed *bed, const struct material *material,
                const struct kernel_case *c, const char *backend,
                struct answer *answer_out)
{
	struct checking k = { bed, material, c, backend, { 0 }, answer_out };
	const struct moek_problem *p = &material->problem;
	struct moek_error error = { .text = "" };
	char request[80];
	struct runner runner;
	struct rows rows = { 0 };

	memset(answer_out, 0, sizeof(*answer_out));
	if (!is_ready(&k))
		return;
	snprintf(request, sizeof(request), "require %s", backend);
	if (runner_open(bed->many, p, &material->source, material->map, request,
	                &runner, &error) != MOEK_OK) {
		say(answer_out, FAILED, "%s", error.text);
		return;
	}
	if (!rows_make(material->tokens.count, p->hidden, material->tokens.stride,
	               p->output_type, &rows))
		say(answer_out, FAILED, "out of memory");
	else if (expect(&k, &runner.numerics) && run_many(&k, &runner, &rows) &&
	         run_one(&k, &rows))
		say(answer_out, PASSED, "%s", "");
	reference_free(&k.reference);
	rows_free(&rows);
	runner_close(&runner);
}
