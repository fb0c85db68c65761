/* SPDX-License-Identifier: MIT */
/* Groups A, L, C and W: the plugin's tables, asked directly. */
#include "config.h"

#include "tools/kernelcheck/case.h"
#include "tools/verify/subject.h"
#include "tools/verify/verify.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define RUBBISH 64 /* bytes beyond a struct, as a later version would have */

static const char *name_of(const struct subject *subject, uint32_t table)
{
	static char name[96];

	snprintf(name, sizeof(name), "%s.%s", subject->plugin->name,
	         subject->plugin->experts[table]->name);
	return name;
}

/** Load and open; 0 when that failed, which has been said. */
static int begin(const struct verify_task *task, struct subject *subject_out)
{
	const char *why = subject_load(task->plugin, subject_out);
	int32_t status;

	if (why != NULL) {
		verify_say(task, VERIFY_FAILED, "", "%s", why);
		return 0;
	}
	subject_host_begin(&subject_out->host);
	status = subject_out->plugin->open(&subject_out->host.table,
	                                   &subject_out->handle);
	if (status != MOEK_OK)
		verify_say(task, VERIFY_FAILED, "", "open() failed with %d (%s)",
		           status, moek_status_name(status));
	return status == MOEK_OK;
}

static void end(struct subject *subject)
{
	subject->plugin->close(subject->handle);
}

/** The next problem of the table that the core would ask @experts about, from @index.
 */
static int next_problem(const struct moek_experts *experts, uint64_t *index,
                        struct moek_problem *problem_out)
{
	while (*index < case_count()) {
		struct kernel_case c;

		case_at((*index)++, &c);
		c.problem.max_tokens = c.tokens + 7;
		/* what is for devices alone the core does itself on the host */
		if (moek_problem_check(&c.problem, NULL) == MOEK_OK &&
		    (c.problem.must_understand & ~experts->understands) == 0) {
			*problem_out = c.problem;
			return 1;
		}
	}
	return 0;
}

/** The same for one that it accepts. */
static int next_accepted(const struct subject *subject, uint32_t table, uint64_t *index,
                         struct moek_problem *problem_out)
{
	const struct moek_experts *experts = subject->plugin->experts[table];
	struct moek_verdict no;

	while (next_problem(experts, index, problem_out))
		if (subject_ask(subject, experts, problem_out, &no))
			return 1;
	return 0;
}

/* ---- A ---- */

/** The enumerations that a plugin must look at. */
static const struct {
	const char *name;
	size_t at;
} enumerations[] = {
	{ "gate_up.weight", offsetof(struct moek_problem, gate_up.weight) },
	{ "down.weight", offsetof(struct moek_problem, down.weight) },
	{ "activations", offsetof(struct moek_problem, activations) },
	{ "input_type", offsetof(struct moek_problem, input_type) },
	{ "activation", offsetof(struct moek_problem, activation) },
};

static int refuses_unknown(const struct verify_task *task,
                           const struct subject *subject, uint32_t table,
                           const struct moek_problem *problem)
{
	const uint32_t unknown = 0xffff;

	for (size_t i = 0; i < sizeof(enumerations) / sizeof(enumerations[0]); i++) {
		struct moek_problem changed = *problem;
		struct moek_verdict no;

		memcpy((char *)&changed + enumerations[i].at, &unknown,
		       sizeof(unknown));
		if (subject_ask(subject, subject->plugin->experts[table], &changed,
		                &no)) {
			verify_say(task, VERIFY_FAILED, name_of(subject, table),
			           "says yes to %s = 0xffff", enumerations[i].name);
			return 0;
		}
		if (no.rule == MOEK_RULE_NONE) {
			verify_say(task, VERIFY_FAILED, name_of(subject, table),
			           "refuses %s = 0xffff without a rule",
			           enumerations[i].name);
			return 0;
		}
	}
	return 1;
}

/** @test on every accepted problem of every table, until one is failed and said. */
static void for_accepted(const struct verify_task *task,
                         int (*test)(const struct verify_task *task,
                                     const struct subject *subject, uint32_t table,
                                     const struct moek_problem *problem))
{
	struct subject subject;

	if (!begin(task, &subject))
		return;
	for (uint32_t table = 0; table < subject.count; table++) {
		struct moek_problem problem;
		uint64_t index = 0, count = 0;
		int good = 1;

		while (good && next_accepted(&subject, table, &index, &problem)) {
			good = test(task, &subject, table, &problem);
			count++;
		}
		if (good && count != 0)
			verify_say(task, VERIFY_PASSED, name_of(&subject, table), "%s",
			           "");
		else if (good)
			verify_say(task, VERIFY_UNRUN, name_of(&subject, table),
			           "claims no case of the kit's table");
	}
	end(&subject);
}

static void unknown_values(const struct verify_task *task)
{
	for_accepted(task, refuses_unknown);
}

static int takes_longer(const struct verify_task *task, const struct subject *subject,
                        uint32_t table, const struct moek_problem *problem)
{
	const struct moek_experts *experts = subject->plugin->experts[table];
	struct {
		struct moek_problem problem;
		unsigned char rubbish[RUBBISH];
	} longer = { .problem = *problem };
	struct moek_verdict no;
	uint64_t align, longer_align;

	memset(longer.rubbish, 0xa5, sizeof(longer.rubbish));
	longer.problem.struct_size += RUBBISH;
	if (subject_ask(subject, experts, &longer.problem, &no) &&
	    experts->prepared_size(subject->handle, &longer.problem, &longer_align) ==
	            experts->prepared_size(subject->handle, problem, &align) &&
	    align == longer_align)
		return 1;
	verify_say(task, VERIFY_FAILED, name_of(subject, table),
	           "answers otherwise when the problem's struct is longer");
	return 0;
}

static void longer_structs(const struct verify_task *task)
{
	struct subject subject;
	struct {
		struct moek_host host;
		unsigned char rubbish[RUBBISH];
	} longer;

	for_accepted(task, takes_longer);
	if (subject_load(task->plugin, &subject) != NULL)
		return;
	subject_host_begin(&subject.host);
	memset(&longer, 0xa5, sizeof(longer));
	longer.host = subject.host.table;
	longer.host.struct_size += RUBBISH;
	if (subject.plugin->open(&longer.host, &subject.handle) == MOEK_OK) {
		end(&subject);
		verify_say(task, VERIFY_PASSED, "host", "%s", "");
	} else {
		verify_say(task, VERIFY_FAILED, "host",
		           "open() fails when the host's struct is longer");
	}
}

/* ---- L ---- */

static void open_and_close(const struct verify_task *task)
{
	struct subject subject;

	for (int i = 0; i < 100; i++) {
		if (!begin(task, &subject))
			return;
		end(&subject);
		if (subject.host.in_use != 0) {
			verify_say(task, VERIFY_FAILED, "",
			           "%lld pieces of the host's memory are kept after "
			           "close()",
			           (long long)subject.host.in_use);
			return;
		}
	}
	verify_say(task, VERIFY_PASSED, "", "%s", "");
}

static void two_contexts(const struct verify_task *task)
{
	struct subject one, two;
	struct moek_problem problem;
	struct moek_verdict no, other;
	uint64_t index = 0;
	int same = 1;

	if (!begin(task, &one))
		return;
	if (!begin(task, &two)) {
		end(&one);
		return;
	}
	while (same && next_problem(one.plugin->experts[0], &index, &problem))
		same = subject_ask(&one, one.plugin->experts[0], &problem, &no) ==
		               subject_ask(&two, two.plugin->experts[0], &problem,
		                           &other) &&
		       memcmp(&no, &other, sizeof(no)) == 0;
	end(&one);
	index = 0;
	while (same && next_accepted(&two, 0, &index, &problem))
		;
	end(&two);
	if (same)
		verify_say(task, VERIFY_PASSED, "", "%s", "");
	else
		verify_say(task, VERIFY_FAILED, "", "opened twice, it answers twice");
}

static void no_memory(const struct verify_task *task)
{
	struct subject subject;
	const char *why = subject_load(task->plugin, &subject);

	for (uint64_t fail_at = 1; why == NULL; fail_at++) {
		int32_t status;

		subject_host_begin(&subject.host);
		subject.host.fail_at = fail_at;
		subject.handle = &subject;
		status = subject.plugin->open(&subject.host.table, &subject.handle);
		if (status == MOEK_OK)
			end(&subject);
		else if (subject.handle != &subject)
			why = "open() fails and writes its output";
		if (subject.host.in_use != 0)
			why = "memory of the host is kept";
		if (subject.host.allocations < fail_at)
			break;
		if (status == MOEK_OK)
			continue; /* it does without */
		if (status != MOEK_NO_MEMORY)
			why = "open() fails for want of memory with another status";
	}
	verify_say(task, why == NULL ? VERIFY_PASSED : VERIFY_FAILED, "", "%s",
	           why != NULL ? why : "");
}

/* ---- C ---- */

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/** What is wrong with the answers of @table about @problem, or NULL. */
static const char *judge_answers(const struct subject *subject, uint32_t table,
                                 const struct moek_problem *problem)
{
	const struct moek_experts *experts = subject->plugin->experts[table];
	struct moek_problem copy = *problem;
	struct moek_verdict no, again;
	double start = seconds();
	int answer = subject_ask(subject, experts, &copy, &no);
	double took = seconds() - start;

	if (memcmp(&copy, problem, sizeof(copy)) != 0)
		return "a question changes the problem";
	if (subject_ask(subject, experts, &copy, &again) != answer ||
	    (!answer && memcmp(&no, &again, sizeof(no)) != 0))
		return "the same question has two answers";
	if (!answer && no.rule == MOEK_RULE_NONE)
		return "a no without a rule";
	if (!answer && memchr(no.note, '\0', sizeof(no.note)) == NULL)
		return "a no whose note has no end";
	start = seconds();
	subject_ask(subject, experts, &copy, &again);
	if (seconds() - start < took)
		took = seconds() - start;
	return took > 4e-3 ? "four questions take more than 4 ms" : NULL;
}

static void claims(const struct verify_task *task)
{
	struct subject subject;

	if (!begin(task, &subject))
		return;
	for (uint32_t table = 0; table < subject.count; table++) {
		struct moek_problem problem;
		uint64_t index = 0;
		const char *why = NULL;

		while (why == NULL &&
		       next_problem(subject.plugin->experts[table], &index, &problem))
			why = judge_answers(&subject, table, &problem);
		verify_say(task, why == NULL ? VERIFY_PASSED : VERIFY_FAILED,
		           name_of(&subject, table), "%s", why != NULL ? why : "");
	}
	end(&subject);
}

/* ---- W ---- */

/** Of all buffers for @tokens; negative: the plan is none. */
static int64_t workspace_elements(const struct subject *subject,
                                  const struct moek_experts *experts,
                                  const struct moek_problem *problem, uint64_t tokens)
{
	struct moek_buffer buffers[MOEK_MAX_BUFFERS] = { { 0 } };
	int32_t count = experts->workspace_shapes(subject->handle, problem, tokens, 2,
	                                          buffers, MOEK_MAX_BUFFERS);
	int64_t elements = 0;

	if (count < 0 || count > (int32_t)MOEK_MAX_BUFFERS)
		return -1;
	for (int32_t i = 0; i < count; i++)
		elements += (int64_t)buffers[i].elements;
	return elements;
}

static int grows(const struct verify_task *task, const struct subject *subject,
                 uint32_t table, const struct moek_problem *problem)
{
	static const uint64_t tokens[] = { 1, 2, 3, 16, 17, 64, 1000 };
	const struct moek_experts *experts = subject->plugin->experts[table];
	int64_t before = 0;

	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		int64_t now;

		if (tokens[i] > problem->max_tokens)
			break;
		now = workspace_elements(subject, experts, problem, tokens[i]);
		if (now < before) {
			verify_say(task, VERIFY_FAILED, name_of(subject, table),
			           "its workspace %s at %llu tokens",
			           now < 0 ? "has no plan" : "shrinks",
			           (unsigned long long)tokens[i]);
			return 0;
		}
		before = now;
	}
	return 1;
}

static void workspaces(const struct verify_task *task)
{
	for_accepted(task, grows);
}

const struct verify_case verify_table_cases[] = {
	{ "A.unknown_values", unknown_values },
	{ "A.longer_structs", longer_structs },
	{ "L.open_and_close", open_and_close },
	{ "L.two_contexts", two_contexts },
	{ "L.no_memory", no_memory },
	{ "C.claims", claims },
	{ "W.grows", workspaces },
	{ NULL, NULL },
};
