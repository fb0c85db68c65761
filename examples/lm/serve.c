/* SPDX-License-Identifier: MIT */
/* Serving: tokens of different requests share every forward, so that an expert that is
 * read once serves them all. */
#include "lm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** A place in the cache and who has it. */
struct slot {
	struct lm_request *request; /* NULL: free */
	size_t position;            /* of the next token */
	uint32_t next;
};

/* The tokens of one slot in the coming forward: the prompt, or the token just chosen.
 */
static size_t add_tokens(struct slot *slot, uint32_t sequence, struct lm_token *tokens)
{
	const struct lm_request *request = slot->request;
	int begins = slot->position == 0;
	size_t count = begins ? request->prompt_count : 1;

	for (size_t i = 0; i < count; i++)
		tokens[i] = (struct lm_token){
			.id = begins ? request->prompt[i] : slot->next,
			.sequence = sequence,
			.position = (uint32_t)slot->position++,
			.wanted = i + 1 == count,
		};
	return count;
}

/* Take the token that came out; the slot is free again when it was the last. */
static int take_token(struct slot *slot, uint32_t id)
{
	struct lm_request *request = slot->request;

	slot->next = id;
	request->answer[request->answer_count++] = id;
	if (request->token != NULL)
		request->token(id);
	if ((id == request->end || request->answer_count == request->most)) {
		slot->request = NULL;
		return 1;
	}
	return 0;
}

void lm_serve(struct lm_runner *runner, struct lm_request *requests, size_t count,
              size_t batch)
{
	size_t vocabulary = runner->model->vocabulary, longest = 1, begun = 0, done = 0;
	struct slot *slots = lm_allocate(batch, sizeof(*slots));
	struct lm_token *tokens;
	float *logits = lm_allocate(batch, vocabulary * sizeof(float));

	for (size_t i = 0; i < count; i++)
		if (requests[i].prompt_count > longest)
			longest = requests[i].prompt_count;
	tokens = lm_allocate(batch, longest * sizeof(*tokens));
	while (done < count) {
		const float *row = logits;
		size_t used = 0;

		for (size_t s = 0; s < batch; s++) {
			if (slots[s].request == NULL && begun < count)
				slots[s] = (struct slot){
					.request = &requests[begun++]
				};
			if (slots[s].request != NULL)
				used += add_tokens(&slots[s], (uint32_t)s,
				                   tokens + used);
		}
		lm_run(runner, tokens, used, logits);
		for (size_t s = 0; s < batch; s++) {
			if (slots[s].request == NULL)
				continue;
			done += (size_t)take_token(&slots[s],
			                           lm_greedy(row, vocabulary));
			row += vocabulary;
		}
	}
	free(logits);
	free(tokens);
	free(slots);
}

uint32_t *lm_tokens(const struct lm_model *model, const char *text, size_t bytes,
                    size_t *count_out)
{
	uint32_t *tokens = lm_allocate(bytes + 1, sizeof(*tokens));

	if (model->vocabulary > 256)
		lm_stop(LM_BAD_INPUT,
		        "%s: a vocabulary of %zu is not that of bytes; give tokens "
		        "with --ids",
		        model->path, model->vocabulary);
	tokens[0] = '\n';
	for (size_t i = 0; i < bytes; i++)
		tokens[i + 1] = (unsigned char)text[i];
	for (size_t i = 0; i < bytes + 1; i++)
		if (tokens[i] >= model->vocabulary)
			lm_stop(LM_BAD_INPUT,
			        "byte 0x%02x at %zu is outside the vocabulary of %zu",
			        (unsigned)tokens[i], i, model->vocabulary);
	*count_out = bytes + 1;
	return tokens;
}

uint32_t *lm_tokens_parse(const struct lm_model *model, const char *text,
                          size_t *count_out)
{
	uint32_t *tokens = lm_allocate(strlen(text) + 1, sizeof(*tokens));
	size_t count = 0;

	for (;;) {
		char *end;
		unsigned long id = strtoul(text, &end, 10);

		if (end == text || *text < '0' || *text > '9' ||
		    (*end != ',' && *end != '\0'))
			lm_stop(LM_USAGE, "--ids: \"%s\" is not a list of numbers",
			        text);
		if (id >= model->vocabulary)
			lm_stop(LM_BAD_INPUT, "id %lu is outside the vocabulary of %zu",
			        id, model->vocabulary);
		tokens[count++] = (uint32_t)id;
		if (*end == '\0')
			break;
		text = end + 1;
	}
	*count_out = count;
	return tokens;
}

/* ---- speed ---- */

enum { BENCH_PROMPT = 16, BENCH_ANSWER = 16, BENCH_MOST = 32, BENCH_BAR = 40 };

struct speed {
	size_t batch;
	double tokens, share; /* a second; of the time, in experts */
};

/* @batch requests at a time, again until it took a quarter of a second. */
static struct speed measure(const struct lm_model *model, struct lm_experts *experts,
                            size_t batch)
{
	static uint32_t prompts[BENCH_MOST][BENCH_PROMPT],
		answers[BENCH_MOST][BENCH_ANSWER];
	struct lm_runner *runner = lm_runner_open(model, experts, batch,
	                                          BENCH_PROMPT + BENCH_ANSWER);
	struct lm_request requests[BENCH_MOST];
	struct speed speed = { .batch = batch };
	uint32_t state = 1;

	for (size_t i = 0; i < batch; i++)
		for (size_t t = 0; t < BENCH_PROMPT; t++) {
			state = state * 1664525u + 1013904223u;
			prompts[i][t] = (state >> 8) % (uint32_t)model->vocabulary;
		}
	experts->seconds = 0;
	do {
		for (size_t i = 0; i < batch; i++)
			requests[i] = (struct lm_request){ .prompt = prompts[i],
				                           .prompt_count = BENCH_PROMPT,
				                           .most = BENCH_ANSWER,
				                           .answer = answers[i],
				                           .end = UINT32_MAX };
		lm_serve(runner, requests, batch, batch);
	} while (runner->seconds < 0.25);
	speed.tokens = (double)runner->tokens / runner->seconds;
	speed.share = experts->seconds / runner->seconds;
	lm_runner_close(runner);
	return speed;
}

void lm_bench(const struct lm_model *model, struct lm_experts *experts,
              const struct lm_score_options *options)
{
	struct speed speeds[6];
	size_t count = sizeof(speeds) / sizeof(speeds[0]);
	double most = 0;

	for (size_t i = 0; i < count; i++) {
		speeds[i] = measure(model, experts, (size_t)1 << i);
		most = speeds[i].tokens > most ? speeds[i].tokens : most;
	}
	if (options->json) {
		printf("{\"backend\": ");
		lm_print_json(lm_experts_backend(experts));
		printf(", \"bench\": [");
		for (size_t i = 0; i < count; i++)
			printf("%s{\"batch\": %zu, \"tokens_per_second\": %.1f, "
			       "\"share_in_experts\": %.3f}",
			       i > 0 ? ", " : "", speeds[i].batch, speeds[i].tokens,
			       speeds[i].share);
		printf("]}\n");
		return;
	}
	printf("%s: prompts of %d tokens, answers of %d\n", lm_experts_backend(experts),
	       BENCH_PROMPT, BENCH_ANSWER);
	printf("batch  tokens/s  in experts\n");
	for (size_t i = 0; i < count; i++) {
		int bar = (int)(BENCH_BAR * speeds[i].tokens / most + 0.5);

		printf("%5zu %9.0f %10.0f%%  %.*s\n", speeds[i].batch, speeds[i].tokens,
		       100 * speeds[i].share, bar,
		       "########################################");
	}
}
