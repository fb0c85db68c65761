/* SPDX-License-Identifier: MIT */
/* fp32 throughout; every sum in one fixed order, whatever the number of workers. */
#include "lm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8  /* rows of a matrix side by side */
#define TOKENS 4 /* that share what is loaded of a matrix */
#define TOKENS_TASK 32
#define BLOCKS_TASK 8

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));

static size_t divide_up(size_t a, size_t b)
{
	return (a + b - 1) / b;
}

void lm_linear_make(struct lm_linear *linear, const float *weight, float *bias,
                    size_t rows, size_t columns)
{
	float *packed = lm_allocate(divide_up(rows, LANES) * columns * LANES,
	                            sizeof(float));

	for (size_t r = 0; r < rows; r++)
		for (size_t c = 0; c < columns; c++)
			packed[(r / LANES * columns + c) * LANES + r % LANES] =
				weight[r * columns + c];
	*linear = (struct lm_linear){ packed, bias, rows, columns };
}

void lm_linear_free(struct lm_linear *linear)
{
	free(linear->packed);
	free(linear->bias);
}

struct product {
	const struct lm_linear *linear;
	const float *in;
	float *out;
	size_t count, block_tasks;
};

static void store(const struct product *job, size_t token, size_t block,
                  const lanes *sum)
{
	const struct lm_linear *linear = job->linear;
	size_t row = block * LANES, rows = linear->rows - row;
	float *out = job->out + token * linear->rows + row;

	for (size_t i = 0; i < LANES && i < rows; i++)
		out[i] = linear->bias != NULL ? (*sum)[i] + linear->bias[row + i]
		                              : (*sum)[i];
}

/* 4 tokens by 8 rows: the sums stay in registers. Where tokens run out the last one is
 * taken again and not stored. */
static void tile(const struct product *job, size_t token, size_t tokens, size_t block)
{
	size_t columns = job->linear->columns;
	const float *w = job->linear->packed + block * columns * LANES;
	const float *x[TOKENS];
	lanes sum0 = { 0 }, sum1 = { 0 }, sum2 = { 0 }, sum3 = { 0 };

	for (size_t t = 0; t < TOKENS; t++)
		x[t] = job->in + (token + (t < tokens ? t : tokens - 1)) * columns;
	for (size_t c = 0; c < columns; c++) {
		lanes row;

		memcpy(&row, w + c * LANES, sizeof(row));
		sum0 += row * x[0][c];
		sum1 += row * x[1][c];
		sum2 += row * x[2][c];
		sum3 += row * x[3][c];
	}
	store(job, token, block, &sum0);
	if (tokens > 1)
		store(job, token + 1, block, &sum1);
	if (tokens > 2)
		store(job, token + 2, block, &sum2);
	if (tokens > 3)
		store(job, token + 3, block, &sum3);
}

static void product_task(void *arg, uint64_t i, uint32_t worker)
{
	const struct product *job = arg;
	size_t first = i / job->block_tasks * TOKENS_TASK;
	size_t block = i % job->block_tasks * BLOCKS_TASK;
	size_t last = first + TOKENS_TASK < job->count ? first + TOKENS_TASK
	                                               : job->count;
	size_t blocks = divide_up(job->linear->rows, LANES);

	(void)worker;
	for (size_t b = block; b < block + BLOCKS_TASK && b < blocks; b++)
		for (size_t t = first; t < last; t += TOKENS)
			tile(job, t, last - t < TOKENS ? last - t : TOKENS, b);
}

void lm_linear_run(const struct moek_workers *workers, const struct lm_linear *linear,
                   const float *in, size_t count, float *out)
{
	struct product job = { linear, in, out, count,
		               divide_up(linear->rows, (size_t)LANES * BLOCKS_TASK) };

	workers->parallel_for(workers->self,
	                      divide_up(count, TOKENS_TASK) * job.block_tasks,
	                      product_task, &job);
}

float lm_dot(const float *a, const float *b, size_t count)
{
	lanes sum = { 0 };
	float total = 0;
	size_t i = 0;

	for (; i + LANES <= count; i += LANES) {
		lanes x, y;

		memcpy(&x, a + i, sizeof(x));
		memcpy(&y, b + i, sizeof(y));
		sum += x * y;
	}
	for (size_t lane = 0; lane < LANES; lane++)
		total += sum[lane];
	for (; i < count; i++)
		total += a[i] * b[i];
	return total;
}

void lm_norm(const float *in, const float *weight, float epsilon, size_t count,
             float *out)
{
	float factor = 1 / sqrtf(lm_dot(in, in, count) / (float)count + epsilon);

	for (size_t i = 0; i < count; i++)
		out[i] = in[i] * factor * weight[i];
}

void lm_rotary_angles(const struct lm_rotary *rotary, size_t position, float *cosines,
                      float *sines)
{
	for (size_t i = 0; i < rotary->half; i++) {
		float angle = (float)position * rotary->inverse[i];

		cosines[i] = cosf(angle) * rotary->scale;
		sines[i] = sinf(angle) * rotary->scale;
	}
}

/* Pairs are half a head apart, as transformers has them. */
void lm_rotate(float *head, const float *cosines, const float *sines, size_t half)
{
	for (size_t i = 0; i < half; i++) {
		float x = head[i], y = head[i + half];

		head[i] = x * cosines[i] - y * sines[i];
		head[i + half] = y * cosines[i] + x * sines[i];
	}
}
