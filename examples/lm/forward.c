/* SPDX-License-Identifier: MIT */
#include "lm.h"

#include <stdlib.h>
#include <string.h>

struct lm_runner *lm_runner_open(const struct lm_model *model,
                                 struct lm_experts *experts, size_t sequences,
                                 size_t positions)
{
	struct lm_runner *runner = lm_allocate(1, sizeof(*runner));
	struct lm_room *room = &runner->room;
	size_t width = model->kv_heads * model->head_size;
	size_t cached = model->layers * sequences * positions,
	       rows = experts->max_tokens;

	runner->model = model;
	runner->experts = experts;
	runner->cache = (struct lm_cache){
		.sequences = sequences,
		.positions = positions,
		.width = width,
		.keys = lm_allocate(cached, width * sizeof(float)),
		.values = lm_allocate(cached, width * sizeof(float)),
	};
	room->stream = lm_allocate(rows, model->hidden * sizeof(float));
	room->normed = lm_allocate(rows, model->hidden * sizeof(float));
	room->added = lm_allocate(rows, model->hidden * sizeof(float));
	room->last = lm_allocate(rows, model->hidden * sizeof(float));
	room->q = lm_allocate(rows, model->heads * model->head_size * sizeof(float));
	room->k = lm_allocate(rows, width * sizeof(float));
	room->v = lm_allocate(rows, width * sizeof(float));
	room->cosines = lm_allocate(rows, model->head_size / 2 * sizeof(float));
	room->sines = lm_allocate(rows, model->head_size / 2 * sizeof(float));
	room->scores = lm_allocate(model->workers->count, positions * sizeof(float));
	return runner;
}

void lm_runner_close(struct lm_runner *runner)
{
	struct lm_room *room = &runner->room;
	float *rows[] = { room->stream, room->normed, room->added, room->last,
		          room->q,      room->k,      room->v,     room->cosines,
		          room->sines,  room->scores };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		free(rows[i]);
	free(runner->cache.keys);
	free(runner->cache.values);
	free(runner);
}

static void norm_rows(const struct lm_runner *runner, const float *weight, size_t count)
{
	size_t hidden = runner->model->hidden;

	for (size_t t = 0; t < count; t++)
		lm_norm(runner->room.stream + t * hidden, weight,
		        runner->model->epsilon, hidden,
		        runner->room.normed + t * hidden);
}

static void add_rows(const struct lm_runner *runner, size_t count)
{
	for (size_t i = 0; i < count * runner->model->hidden; i++)
		runner->room.stream[i] += runner->room.added[i];
}

static void run_block(struct lm_runner *runner, size_t layer,
                      const struct lm_token *tokens, size_t count)
{
	const struct lm_block *block = &runner->model->blocks[layer];
	struct lm_room *room = &runner->room;

	norm_rows(runner, block->attention_norm, count);
	lm_attend(runner->model, layer, &runner->cache, tokens, count, room);
	add_rows(runner, count);
	norm_rows(runner, block->experts_norm, count);
	lm_experts_run(runner->experts, layer, room->normed, count, room->added);
	add_rows(runner, count);
}

/* Logits of the wanted ones; returns how many these are. */
static size_t run_head(struct lm_runner *runner, const struct lm_token *tokens,
                       size_t count, float *logits_out)
{
	const struct lm_model *model = runner->model;
	struct lm_room *room = &runner->room;
	size_t wanted = 0;

	norm_rows(runner, model->norm, count);
	for (size_t t = 0; t < count; t++)
		if (tokens[t].wanted)
			memcpy(room->last + wanted++ * model->hidden,
			       room->normed + t * model->hidden,
			       model->hidden * sizeof(float));
	if (wanted > 0)
		lm_linear_run(model->workers, &model->head, room->last, wanted,
		              logits_out);
	return wanted;
}

void lm_run(struct lm_runner *runner, const struct lm_token *tokens, size_t count,
            float *logits_out)
{
	const struct lm_model *model = runner->model;
	size_t hidden = model->hidden, most = runner->experts->max_tokens;
	double begun = lm_seconds();

	/* more than one forward takes: what comes later finds the keys of what came
	 * before */
	for (size_t first = 0; first < count; first += most) {
		const struct lm_token *some = tokens + first;
		size_t rows = count - first < most ? count - first : most;

		for (size_t t = 0; t < rows; t++)
			memcpy(runner->room.stream + t * hidden,
			       model->embedding + some[t].id * hidden,
			       hidden * sizeof(float));
		for (size_t layer = 0; layer < model->layers; layer++) {
			run_block(runner, layer, some, rows);
			if (runner->trace != NULL)
				memcpy(runner->trace + (layer * count + first) * hidden,
				       runner->room.added,
				       rows * hidden * sizeof(float));
		}
		logits_out += run_head(runner, some, rows, logits_out) *
		              model->vocabulary;
	}
	runner->tokens += count;
	runner->seconds += lm_seconds() - begun;
}

uint32_t lm_greedy(const float *logits, size_t vocabulary)
{
	size_t best = 0;

	for (size_t i = 1; i < vocabulary; i++)
		if (logits[i] > logits[best])
			best = i;
	return (uint32_t)best;
}
