/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/kernelcheck/weights.h"

#define SECONDS 1.0 /* of one measurement, about */
#define RUNS_MOST 200u
#define BATCHES 16

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Experts that a batch touches: their weights are what has to be read. */
static uint64_t touched(const struct moek_problem *p, const struct tokens *t)
{
	uint8_t *seen = calloc(p->experts, 1);
	uint64_t i, count = 0;

	for (i = 0; seen != NULL && i < t->count * p->top_k; i++)
		if (t->ids[i] >= 0 && (uint64_t)t->ids[i] < p->experts)
			count += seen[t->ids[i]]++ == 0;
	free(seen);
	return count;
}

int32_t bench(const struct runner *runner, const struct tokens *batches, uint64_t count,
              struct timing *timing_out, struct moek_error *error_out)
{
	const struct moek_problem *p = &runner->problem;
	double times[RUNS_MOST], start, end, until;
	struct timing t = { 0 };
	struct rows rows;
	int32_t status;
	uint64_t i;

	if (!rows_make(batches[0].count, p->hidden, p->hidden, p->output_type, &rows))
		return MOEK_NO_MEMORY;
	/* once for the pages and the threads */
	status = runner_forward(runner, &batches[count - 1], &rows, NULL, error_out);
	until = now() + SECONDS;
	while (status == MOEK_OK && t.runs < RUNS_MOST &&
	       (t.runs < 3 || now() < until)) {
		start = now();
		status = runner_forward(runner, &batches[t.runs % count], &rows, NULL,
		                        error_out);
		end = now();
		times[t.runs++] = end - start;
	}
	rows_free(&rows);
	if (status != MOEK_OK)
		return status;
	qsort(times, t.runs, sizeof(times[0]), ascending);
	t.low = times[t.runs / 4];
	t.median = times[t.runs / 2];
	t.high = times[t.runs - 1 - t.runs / 4];
	for (i = 0; i < count; i++)
		t.expert_bytes += (double)touched(p, &batches[i]) / (double)count;
	t.expert_bytes *= (double)moek_layer_weight_bytes(runner->layer) /
	                  (double)p->experts_local;
	t.flops = 2.0 * (double)(batches[0].count * p->top_k) * (double)p->hidden *
	          (double)p->intermediate * (p->gated ? 3 : 2);
	*timing_out = t;
	return MOEK_OK;
}

/* ---- models ---- */

/* Rows of the pool, over what one expert needs: each expert starts at another of them.
 */
#define POOL_ROWS 61

static void window(const struct moek_matrix *pool, uint64_t expert,
                   struct moek_matrix *matrix_out)
{
	uint64_t shift = expert % POOL_ROWS, groups, row_bytes;

	*matrix_out = *pool;
	matrix_out->rows -= POOL_ROWS;
	groups = pool->scale == 0 ? 0 : (pool->columns - 1) / pool->group_size + 1;
	row_bytes = pool->weight == MOEK_INT4 || pool->weight == MOEK_MXFP4
	                    ? (pool->columns + 1) / 2
	                    : pool->columns * float_bytes(pool->weight);
	matrix_out->codes = (const uint8_t *)pool->codes + shift * row_bytes;
	if (pool->scales != NULL)
		matrix_out->scales = (const uint8_t *)pool->scales +
		                     shift * groups * float_bytes(pool->scale);
	if (pool->zeros != NULL)
		matrix_out->zeros = pool->zeros + shift * groups;
	if (pool->bias != NULL)
		matrix_out->bias = pool->bias + shift;
}

static int32_t give_window(void *self, uint64_t expert, void *scratch,
                           struct moek_expert *expert_out, struct moek_error *error_out)
{
	const struct model *m = self;

	(void)scratch;
	(void)error_out;
	window(&m->pool.gate, expert, &expert_out->gate);
	if (m->problem.gated)
		window(&m->pool.up, expert, &expert_out->up);
	window(&m->pool.down, expert, &expert_out->down);
	return MOEK_OK;
}

/* gate and up have `intermediate` rows, down has `hidden`: two pools, one part of each.
 */
static int make_pool(struct model *m, uint64_t seed)
{
	struct moek_problem p = m->problem;
	struct moek_expert *wide, *deep, swap;

	p.experts_local = 1;
	p.intermediate += POOL_ROWS;
	wide = weights_create(&p, seed, WEIGHTS_PLAIN);
	p = m->problem;
	p.experts_local = 1;
	p.hidden += POOL_ROWS;
	deep = weights_create(&p, seed + 1, WEIGHTS_PLAIN);
	if (wide != NULL && deep != NULL) {
		swap = *wide;
		m->pool = *wide;
		m->pool.down = deep->down;
		deep->down = swap.down; /* each is freed once */
		memset(wide, 0, sizeof(*wide));
	}
	p.experts_local = 1;
	weights_free(&p, wide);
	weights_free(&p, deep);
	return m->pool.down.codes != NULL;
}

static int make_batch(const struct moek_problem *p, uint64_t count, struct tokens *t,
                      uint64_t *state)
{
	uint64_t i, j, slots = count * p->top_k;

	t->count = count;
	t->stride = p->hidden;
	t->input = malloc(count * p->hidden * float_bytes(p->input_type));
	t->ids = malloc(slots * sizeof(*t->ids));
	t->weights = malloc(slots * sizeof(*t->weights));
	if (t->input == NULL || t->ids == NULL || t->weights == NULL)
		return 0;
	for (i = 0; i < count * p->hidden; i++)
		float_put(p->input_type, t->input, i, random_float(state, -1, 1));
	for (i = 0; i < slots; i++) {
		int again = 1;

		t->weights[i] = random_float(state, 0.02f, 0.3f);
		while (again) {
			t->ids[i] = (int32_t)(random_next(state) % p->experts);
			for (again = 0, j = i - i % p->top_k; j < i; j++)
				again |= t->ids[j] == t->ids[i];
		}
	}
	return 1;
}

int model_make(const struct kernel_case *c, uint64_t seed, struct model *model_out)
{
	struct model *m = model_out;
	uint64_t state = seed, i;

	memset(m, 0, sizeof(*m));
	m->problem = c->problem;
	m->problem.max_tokens = c->tokens;
	m->source = (struct moek_source){ .struct_size = MOEK_SOURCE_SIZE_1_0,
		                          .self = m,
		                          .expert = give_window };
	m->batches = calloc(BATCHES, sizeof(*m->batches));
	if (m->batches == NULL || !make_pool(m, seed)) {
		model_free(m);
		return 0;
	}
	for (; m->batch_count < BATCHES; m->batch_count++)
		if (!make_batch(&m->problem, c->tokens, &m->batches[m->batch_count],
		                &state)) {
			m->batch_count++;
			model_free(m);
			return 0;
		}
	m->experts = calloc(m->problem.experts, sizeof(*m->experts));
	for (i = 0; m->experts != NULL && i < m->problem.experts; i++)
		give_window(m, i, NULL, &m->experts[i], NULL);
	return m->experts != NULL;
}

void model_free(struct model *model)
{
	struct moek_problem p = model->problem;
	struct moek_expert *pool = malloc(sizeof(*pool));
	uint64_t i;

	for (i = 0; i < model->batch_count; i++) {
		free(model->batches[i].input);
		free(model->batches[i].ids);
		free(model->batches[i].weights);
	}
	free(model->batches);
	free(model->experts);
	p.experts_local = 1;
	if (pool != NULL) {
		*pool = model->pool;
		weights_free(&p, pool);
	}
	memset(model, 0, sizeof(*model));
}
