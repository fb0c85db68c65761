/* SPDX-License-Identifier: MIT */
/* Grouped-query attention over a cache, with q and k norms, sinks and a sliding window
 * where the model has them. */
#include "lm.h"

#include <math.h>

struct attention {
	const struct lm_model *model;
	const struct lm_attention *weights;
	const struct lm_cache *cache;
	const struct lm_token *tokens;
	struct lm_room *room;
	float *keys, *values; /* of this layer: [sequences][positions][width] */
};

/* Norm and turn q and k of one token; put k and v where later tokens find them. */
static void place_token(void *arg, uint64_t t, uint32_t worker)
{
	const struct attention *job = arg;
	const struct lm_model *model = job->model;
	const struct lm_token *token = &job->tokens[t];
	size_t size = model->head_size, width = job->cache->width;
	size_t row = token->sequence * job->cache->positions + token->position;
	float *cosines = job->room->cosines + t * size / 2;
	float *sines = job->room->sines + t * size / 2;
	float *q = job->room->q + t * model->heads * size;
	float *k = job->room->k + t * width;
	const float *v = job->room->v + t * width;

	(void)worker;
	lm_rotary_angles(&model->rotary, token->position, cosines, sines);
	for (size_t h = 0; h < model->heads; h++, q += size) {
		if (job->weights->q_norm != NULL)
			lm_norm(q, job->weights->q_norm, model->epsilon, size, q);
		lm_rotate(q, cosines, sines, size / 2);
	}
	for (size_t h = 0; h < model->kv_heads; h++) {
		if (job->weights->k_norm != NULL)
			lm_norm(k + h * size, job->weights->k_norm, model->epsilon,
			        size, k + h * size);
		lm_rotate(k + h * size, cosines, sines, size / 2);
	}
	for (size_t i = 0; i < width; i++) {
		job->keys[row * width + i] = k[i];
		job->values[row * width + i] = v[i];
	}
}

/* exp(score - most) in place; the sum of them all, the sink's too. A sink is a key
 * without a value: it takes a share and gives nothing. */
static float weigh(float *scores, size_t count, const float *sink)
{
	float most = sink != NULL ? *sink : -INFINITY, sum = 0;

	for (size_t i = 0; i < count; i++)
		most = scores[i] > most ? scores[i] : most;
	for (size_t i = 0; i < count; i++) {
		scores[i] = expf(scores[i] - most);
		sum += scores[i];
	}
	return sink != NULL ? sum + expf(*sink - most) : sum;
}

/* One head of one token. The result takes q's place. */
static void attend_head(void *arg, uint64_t i, uint32_t worker)
{
	const struct attention *job = arg;
	const struct lm_model *model = job->model;
	const struct lm_token *token = &job->tokens[i / model->heads];
	size_t size = model->head_size, width = job->cache->width;
	size_t head = i % model->heads, last = token->position;
	size_t window = job->weights->window;
	size_t first = window > 0 && last >= window ? last - window + 1 : 0;
	size_t count = last - first + 1;
	size_t offset = (token->sequence * job->cache->positions + first) * width +
	                head / (model->heads / model->kv_heads) * size;
	const float *keys = job->keys + offset, *values = job->values + offset;
	float *scores = job->room->scores + worker * job->cache->positions;
	float *q = job->room->q + i * size;
	float scale = 1 / sqrtf((float)size), sum;

	for (size_t k = 0; k < count; k++)
		scores[k] = lm_dot(q, keys + k * width, size) * scale;
	sum = weigh(scores, count,
	            job->weights->sinks != NULL ? &job->weights->sinks[head] : NULL);
	for (size_t d = 0; d < size; d++)
		q[d] = 0;
	for (size_t k = 0; k < count; k++) {
		float share = scores[k] / sum;

		for (size_t d = 0; d < size; d++)
			q[d] += share * values[k * width + d];
	}
}

void lm_attend(const struct lm_model *model, size_t layer, struct lm_cache *cache,
               const struct lm_token *tokens, size_t count, struct lm_room *room)
{
	const struct lm_attention *weights = &model->blocks[layer].attention;
	const struct moek_workers *workers = model->workers;
	size_t offset = layer * cache->sequences * cache->positions * cache->width;
	struct attention job = { model,
		                 weights,
		                 cache,
		                 tokens,
		                 room,
		                 cache->keys + offset,
		                 cache->values + offset };

	lm_linear_run(workers, &weights->q, room->normed, count, room->q);
	lm_linear_run(workers, &weights->k, room->normed, count, room->k);
	lm_linear_run(workers, &weights->v, room->normed, count, room->v);
	workers->parallel_for(workers->self, count, place_token, &job);
	workers->parallel_for(workers->self, count * model->heads, attend_head, &job);
	lm_linear_run(workers, &weights->o, room->q, count, room->added);
}
