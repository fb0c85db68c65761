/* SPDX-License-Identifier: MIT */
/* What a model says, held against what it should say: the text, the answers of tasks.
 */
#include "lm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 256, ROWS_RUN = 64 };

/* ---- text ---- */

static double surprise(const float *logits, size_t count, uint32_t id)
{
	double most = logits[lm_greedy(logits, count)], sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += exp(logits[i] - most);
	return most + log(sum) - logits[id];
}

/* Windows of text as sequences of their own, every logit wanted; the byte after each
 * token is what should come. */
static size_t window_tokens(const char *text, size_t windows, struct lm_token *tokens)
{
	for (size_t i = 0; i < windows * WINDOW; i++)
		tokens[i] = (struct lm_token){ (unsigned char)text[i],
			                       (uint32_t)(i / WINDOW),
			                       (uint32_t)(i % WINDOW), 1 };
	return windows * WINDOW;
}

/* The windows of a file that are to be scored; the byte after the last is there too. */
static char *read_text(const struct lm_model *model,
                       const struct lm_score_options *options, size_t *windows_out)
{
	size_t bytes, windows, count;
	char *text = lm_read(options->file, &bytes);

	free(lm_tokens(model, text, bytes, &count)); /* all are in the vocabulary */
	if (bytes <= WINDOW)
		lm_stop(LM_BAD_INPUT, "%s: %zu bytes, needs at least %d", options->file,
		        bytes, WINDOW + 1);
	if (model->context < WINDOW)
		lm_stop(LM_BAD_INPUT, "%s: a context of %zu, scoring needs %d",
		        model->path, model->context, WINDOW);
	windows = (bytes - 1) / WINDOW;
	*windows_out = options->limit > 0 && options->limit < windows ? options->limit
	                                                              : windows;
	return text;
}

void lm_score_loss(const struct lm_model *model, struct lm_experts *experts,
                   const struct lm_score_options *options)
{
	size_t windows, at_once = experts->max_tokens / WINDOW;
	char *text = read_text(model, options, &windows);
	struct lm_runner *runner;
	struct lm_token *tokens;
	float *logits;
	double sum = 0;

	at_once = at_once > 0 ? at_once : 1;
	runner = lm_runner_open(model, experts, at_once, WINDOW);
	tokens = lm_allocate(at_once * WINDOW, sizeof(*tokens));
	logits = lm_allocate(at_once * WINDOW, model->vocabulary * sizeof(float));
	for (size_t first = 0; first < windows; first += at_once) {
		size_t some = windows - first < at_once ? windows - first : at_once;
		const char *part = text + first * WINDOW;
		size_t count = window_tokens(part, some, tokens);

		lm_run(runner, tokens, count, logits);
		for (size_t i = 0; i < count; i++)
			sum += surprise(logits + i * model->vocabulary,
			                model->vocabulary, (unsigned char)part[i + 1]);
	}
	sum /= (double)(windows * WINDOW);
	if (options->json) {
		printf("{\"backend\": ");
		lm_print_json(lm_experts_backend(experts));
		printf(", \"heldout_bytes\": %zu, \"nats_per_byte\": %.6f, "
		       "\"tokens_per_second\": %.1f, \"share_in_experts\": %.3f}\n",
		       windows * WINDOW, sum, (double)runner->tokens / runner->seconds,
		       experts->seconds / runner->seconds);
	} else {
		printf("%.6f nats per byte over %zu bytes, %s, %.0f tokens/s, %.0f%% "
		       "in "
		       "experts\n",
		       sum, windows * WINDOW, lm_experts_backend(experts),
		       (double)runner->tokens / runner->seconds,
		       100 * experts->seconds / runner->seconds);
	}
	free(logits);
	free(tokens);
	lm_runner_close(runner);
	free(text);
}

/* ---- tasks ---- */

struct row {
	const char *task, *prompt;
	uint32_t *tokens; /* newline, prompt, answer, newline */
	size_t prompt_count, count;
	int right;
};

/* "task TAB prompt TAB answer": cut in place. */
static void cut_row(const char *file, size_t line, char *text, char *fields[3])
{
	for (int i = 0; i < 3; i++) {
		char *tab = strchr(text, '\t');

		if ((tab == NULL) != (i == 2))
			lm_stop(LM_BAD_INPUT,
			        "%s:%zu: must be task, prompt and answer with tabs "
			        "between",
			        file, line);
		fields[i] = text;
		if (tab != NULL) {
			*tab = '\0';
			text = tab + 1;
		}
	}
}

static void make_row(const struct lm_model *model, char *fields[3], struct row *row)
{
	size_t prompt = strlen(fields[1]), answer = strlen(fields[2]);
	char *line = lm_allocate(prompt + answer + 2, 1);

	memcpy(line, fields[1], prompt);
	memcpy(line + prompt, fields[2], answer);
	line[prompt + answer] = '\n';
	*row = (struct row){ .task = fields[0],
		             .prompt = fields[1],
		             .prompt_count = prompt + 1 };
	row->tokens = lm_tokens(model, line, prompt + answer + 1, &row->count);
	free(line);
	if (row->count > model->context)
		lm_stop(LM_BAD_INPUT,
		        "%zu tokens of prompt and answer, the context is %zu",
		        row->count, model->context);
}

/* At most @options->limit rows of each task, in the order of the file. */
static struct row *read_rows(const struct lm_model *model, char *text,
                             const struct lm_score_options *options, size_t *count_out)
{
	size_t lines = 0, count = 0, of_task = 0, line = 0;
	struct row *rows;
	char *fields[3];

	for (const char *c = text; *c != '\0'; c++)
		lines += *c == '\n';
	rows = lm_allocate(lines + 1, sizeof(*rows));
	for (char *at = strtok(text, "\n"); at != NULL; at = strtok(NULL, "\n")) {
		cut_row(options->file, ++line, at, fields);
		if (count > 0 && strcmp(rows[count - 1].task, fields[0]) != 0)
			of_task = 0;
		if (options->limit == 0 || of_task++ < options->limit)
			make_row(model, fields, &rows[count++]);
	}
	if (count == 0)
		lm_stop(LM_BAD_INPUT, "%s: no rows", options->file);
	*count_out = count;
	return rows;
}

static size_t longest(const struct row *rows, size_t count)
{
	size_t most = 0;

	for (size_t i = 0; i < count; i++)
		most = rows[i].count > most ? rows[i].count : most;
	return most;
}

/* Some rows in one forward: an answer is right when each of its tokens is the greedy
 * one after those before it, which is what generating them would give. */
static void judge(struct lm_runner *runner, struct row *rows, size_t count,
                  struct lm_token *tokens, float *logits)
{
	size_t used = 0, vocabulary = runner->model->vocabulary;

	for (size_t r = 0; r < count; r++)
		for (size_t i = 0; i + 1 < rows[r].count; i++)
			tokens[used++] = (struct lm_token){
				rows[r].tokens[i], (uint32_t)r, (uint32_t)i,
				i + 1 >= rows[r].prompt_count
			};
	lm_run(runner, tokens, used, logits);
	for (size_t r = 0; r < count; r++) {
		rows[r].right = 1;
		for (size_t i = rows[r].prompt_count; i < rows[r].count; i++) {
			if (lm_greedy(logits, vocabulary) != rows[r].tokens[i])
				rows[r].right = 0;
			logits += vocabulary;
		}
	}
}

static struct lm_runner *judge_all(const struct lm_model *model,
                                   struct lm_experts *experts, struct row *rows,
                                   size_t count)
{
	size_t most = longest(rows, count);
	struct lm_runner *runner = lm_runner_open(model, experts, ROWS_RUN, most);
	struct lm_token *tokens = lm_allocate(ROWS_RUN * most, sizeof(*tokens));
	float *logits = lm_allocate(ROWS_RUN * most, model->vocabulary * sizeof(float));

	for (size_t i = 0; i < count; i += ROWS_RUN)
		judge(runner, rows + i, count - i < ROWS_RUN ? count - i : ROWS_RUN,
		      tokens, logits);
	free(logits);
	free(tokens);
	return runner;
}

/* The same by generating, @batch requests at a time. */
static struct lm_runner *answer_all(const struct lm_model *model,
                                    struct lm_experts *experts, struct row *rows,
                                    size_t count, size_t batch)
{
	size_t most = longest(rows, count);
	struct lm_runner *runner = lm_runner_open(model, experts, batch, most);
	struct lm_request *requests = lm_allocate(count, sizeof(*requests));
	uint32_t *answers = lm_allocate(count * most, sizeof(*answers));

	for (size_t i = 0; i < count; i++)
		requests[i] = (struct lm_request){
			.prompt = rows[i].tokens,
			.prompt_count = rows[i].prompt_count,
			.most = rows[i].count - rows[i].prompt_count,
			.end = '\n',
			.answer = answers + i * most,
		};
	lm_serve(runner, requests, count, batch);
	for (size_t i = 0; i < count; i++)
		rows[i].right = requests[i].answer_count == requests[i].most &&
		                memcmp(requests[i].answer,
		                       rows[i].tokens + rows[i].prompt_count,
		                       requests[i].most * sizeof(uint32_t)) == 0;
	free(answers);
	free(requests);
	return runner;
}

/* Rows of one task lie together; returns how many, from the first on. */
static size_t rate(const struct row *rows, size_t count, double *rate_out)
{
	size_t of_task = 0, right = 0;

	while (of_task < count && strcmp(rows[of_task].task, rows[0].task) == 0)
		right += (size_t)rows[of_task++].right;
	*rate_out = (double)right / (double)of_task;
	return of_task;
}

static double mean_rate(const struct row *rows, size_t count)
{
	double sum = 0, one;
	size_t tasks = 0;

	for (size_t i = 0; i < count; tasks++) {
		i += rate(rows + i, count - i, &one);
		sum += one;
	}
	return sum / (double)tasks;
}

static void print_tasks_json(const struct lm_runner *runner, const struct row *rows,
                             size_t count)
{
	const char *comma = "";

	printf("{\"backend\": ");
	lm_print_json(lm_experts_backend(runner->experts));
	printf(", \"exact_match\": %.4f, \"rows\": %zu, \"tasks\": {",
	       mean_rate(rows, count), count);
	for (size_t i = 0; i < count; comma = ", ") {
		const char *task = rows[i].task;
		double one;

		i += rate(rows + i, count - i, &one);
		printf("%s", comma);
		lm_print_json(task);
		printf(": %.4f", one);
	}
	printf("}, \"wrong\": [");
	comma = "";
	for (size_t i = 0; i < count; i++)
		if (!rows[i].right) {
			printf("%s", comma);
			lm_print_json(rows[i].prompt);
			comma = ", ";
		}
	printf("], \"tokens_per_second\": %.1f, \"share_in_experts\": %.3f}\n",
	       (double)runner->tokens / runner->seconds,
	       runner->experts->seconds / runner->seconds);
}

static void print_tasks(const struct lm_runner *runner, const struct row *rows,
                        size_t count)
{
	for (size_t i = 0; i < count;) {
		const char *task = rows[i].task;
		double one;
		size_t of_task = rate(rows + i, count - i, &one);

		printf("%-10s %.4f of %zu\n", task, one, of_task);
		i += of_task;
	}
	for (size_t i = 0; i < count; i++)
		if (!rows[i].right)
			printf("wrong: %s\n", rows[i].prompt);
	printf("exact match %.4f, %s, %.0f tokens/s, %.0f%% in experts\n",
	       mean_rate(rows, count), lm_experts_backend(runner->experts),
	       (double)runner->tokens / runner->seconds,
	       100 * runner->experts->seconds / runner->seconds);
}

void lm_score_tasks(const struct lm_model *model, struct lm_experts *experts,
                    const struct lm_score_options *options)
{
	size_t bytes, count;
	char *text = lm_read(options->file, &bytes);
	struct row *rows = read_rows(model, text, options, &count);
	struct lm_runner *runner;

	if (options->batch > 0)
		runner = answer_all(model, experts, rows, count, options->batch);
	else
		runner = judge_all(model, experts, rows, count);
	if (options->json)
		print_tasks_json(runner, rows, count);
	else
		print_tasks(runner, rows, count);
	lm_runner_close(runner);
	for (size_t i = 0; i < count; i++)
		free(rows[i].tokens);
	free(rows);
	free(text);
}
