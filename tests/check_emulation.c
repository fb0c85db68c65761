/* SPDX-License-Identifier: MIT */
#include "config.h"

/* The real emulation.so, without the core: worked numbers of others, and every scheme
 * against naive.c, stage by stage. */
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include <moek/experts.h>

#include "kernelcheck/naive.h"
#include "kernelcheck/weights.h"

static const struct moek_experts *any;

static void open_emulation(void)
{
	const struct moek_plugin *plugin;
	char path[4096];
	void *file;

	snprintf(path, sizeof(path), "%s/emulation.so", getenv("MOEK_TEST_PLUGINS"));
	file = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	ck_assert_msg(file != NULL, "%s", dlerror());
	plugin = dlsym(file, "moek_plugin_v1");
	ck_assert_ptr_nonnull(plugin);
	ck_assert_str_eq(plugin->name, "emulation");
	any = plugin->experts[0];
	ck_assert_ptr_null(plugin->experts[1]);
	ck_assert_str_eq(any->name, "any");
}

/* ---- a core of a few lines ---- */

struct rig {
	struct moek_problem problem;
	struct moek_expert *experts;
	void *layer, *weights;
	const float *topk_weights; /* NULL: do not multiply */
	uint32_t workers;
};

static void reversed(void *self, uint64_t tasks,
                     void (*body)(void *, uint64_t, uint32_t), void *arg)
{
	uint32_t count = *(const uint32_t *)self;

	while (tasks-- > 0)
		body(arg, tasks, (uint32_t)(tasks % count));
}

static int32_t ask(const struct moek_problem *problem, struct moek_verdict *verdict)
{
	memset(verdict, 0, sizeof(*verdict));
	verdict->struct_size = MOEK_VERDICT_SIZE_1_0;
	return any->supports_quant_scheme(problem, verdict) &&
	       any->supports_activation(problem, verdict) &&
	       any->supports_parallel(problem, verdict) &&
	       any->supports_shape(problem, verdict);
}

static void rig_open(struct rig *rig)
{
	struct moek_verdict verdict;
	uint64_t align, bytes, e;

	ck_assert_msg(ask(&rig->problem, &verdict), "refused: rule %u", verdict.rule);
	bytes = any->prepared_size(&rig->problem, &align);
	ck_assert_uint_ne(bytes, 0);
	rig->weights = aligned_alloc(align, (bytes + align - 1) / align * align);
	ck_assert_ptr_nonnull(rig->weights);
	memset(rig->weights, 0xff, bytes);
	ck_assert_int_eq(
		any->create(NULL, NULL, &rig->problem, rig->weights, &rig->layer), 0);
	for (e = 0; e < rig->problem.experts_local; e++)
		ck_assert_int_eq(any->load_expert(rig->layer, e, &rig->experts[e]), 0);
	ck_assert_int_eq(any->finish(rig->layer), 0);
	if (rig->workers == 0)
		rig->workers = 1;
}

static void rig_close(struct rig *rig)
{
	any->destroy(rig->layer);
	free(rig->weights);
}

/* Buffers full of NaN, exactly as large as asked for. */
static void **plan(const struct rig *rig, uint64_t tokens, uint32_t *count_out)
{
	struct moek_buffer shapes[MOEK_MAX_BUFFERS];
	int32_t count = any->workspace_shapes(&rig->problem, tokens, rig->workers,
	                                      shapes, MOEK_MAX_BUFFERS);
	void **buffers = calloc(MOEK_MAX_BUFFERS, sizeof(*buffers));
	int32_t i;

	ck_assert_int_gt(count, 0);
	for (i = 0; i < count; i++) {
		uint64_t bytes = shapes[i].elements * 4, copies = 1;

		ck_assert(shapes[i].type == MOEK_F32 || shapes[i].type == MOEK_I32);
		if (shapes[i].per_worker) {
			copies = rig->workers;
			bytes = (bytes + shapes[i].align - 1) / shapes[i].align *
			        shapes[i].align;
		}
		/* the end of a buffer is the end of its memory: a tool sees what is
		 * beyond */
		if (posix_memalign(&buffers[i], shapes[i].align, bytes * copies) != 0)
			ck_abort();
		memset(buffers[i], 0xff, bytes * copies);
	}
	*count_out = (uint32_t)count;
	return buffers;
}

static void rig_run(const struct rig *rig, const struct moek_rows *input,
                    const struct moek_rows *output, const int32_t *ids,
                    struct moek_trace *trace)
{
	uint32_t worker_count = rig->workers, i;
	const struct moek_workers workers = { MOEK_WORKERS_SIZE_1_0, worker_count,
		                              &worker_count, reversed };
	struct moek_batch batch = { .struct_size = MOEK_BATCH_SIZE_1_0,
		                    .input = *input,
		                    .output = *output,
		                    .topk_ids = ids,
		                    .topk_weights = rig->topk_weights,
		                    .workers = &workers,
		                    .trace = trace };
	void **buffers = plan(rig, input->rows, &batch.buffer_count);

	batch.buffers = buffers;
	ck_assert_int_eq(any->forward(rig->layer, &batch), 0);
	for (i = 0; i < batch.buffer_count; i++)
		free(buffers[i]);
	free(buffers);
}

static struct moek_rows rows_of(void *data, uint64_t rows, uint64_t columns,
                                uint32_t type)
{
	const struct moek_rows r = { data, rows, columns, 0, type, 0 };

	return r;
}

static struct moek_matrix f32_matrix(uint64_t rows, uint64_t columns,
                                     const float *values)
{
	const struct moek_matrix m = { .struct_size = MOEK_MATRIX_SIZE_1_0,
		                       .weight = MOEK_F32,
		                       .rows = rows,
		                       .columns = columns,
		                       .group_size = columns,
		                       .codes = values };

	return m;
}

static struct moek_problem problem_2x2(uint64_t experts, uint64_t top_k)
{
	const struct moek_problem p = { .struct_size = MOEK_PROBLEM_SIZE_1_0,
		                        .experts = experts,
		                        .experts_local = experts,
		                        .top_k = top_k,
		                        .hidden = 2,
		                        .intermediate = 2,
		                        .max_tokens = 1,
		                        .gate_up = { .weight = MOEK_F32 },
		                        .down = { .weight = MOEK_F32 },
		                        .input_type = MOEK_F32,
		                        .output_type = MOEK_F32,
		                        .activation = MOEK_SILU,
		                        .gated = 1,
		                        .shards = 1 };

	return p;
}

#define ck_assert_near(value, expected)                                                \
	ck_assert_double_eq_tol((double)(value), (double)(expected),                   \
	                        1.5e-7 * fmax(1.0, fabs((double)(expected))))

/* ---- worked numbers ---- */

static const float fw1_gate[2][4] = { { 1, 0, 0, 1 }, { 0, 1, 1, 0 } };
static const float fw1_up[2][4] = { { 1, 1, 1, -1 }, { 2, 0, 0, 2 } };
static const float fw1_down[2][4] = { { 1, 2, 3, 4 }, { 1, 0, 0, 1 } };

static void fw1_experts(struct moek_expert *experts)
{
	int e;

	for (e = 0; e < 2; e++) {
		experts[e].gate = f32_matrix(2, 2, fw1_gate[e]);
		experts[e].up = f32_matrix(2, 2, fw1_up[e]);
		experts[e].down = f32_matrix(2, 2, fw1_down[e]);
	}
}

START_TEST(ex_fw1_stage_by_stage)
{
	static const float z[] = { 1, 2, 3, -1, 2, 1, 2, 4 };
	static const float a[] = { 2.1931757f, -1.7615942f, 3.5231883f, 2.9242343f };
	static const float y[] = { -1.3300126f, -0.4668494f, 3.5231883f, 2.9242343f };
	const int32_t ids[] = { 0, 1 };
	const float weights[] = { 0.75f, 0.25f };
	struct moek_expert experts[2] = { 0 };
	struct rig rig = { .problem = problem_2x2(2, 2),
		           .experts = experts,
		           .topk_weights = weights };
	float x[] = { 1, 2 }, out[2], gate_up[8], activated[4], slots[4];
	struct moek_trace trace = { .struct_size = MOEK_TRACE_SIZE_1_0,
		                    .gate_up = gate_up,
		                    .activated = activated,
		                    .slots = slots };
	struct moek_rows input = rows_of(x, 1, 2, MOEK_F32);
	struct moek_rows output = rows_of(out, 1, 2, MOEK_F32);
	int i;

	fw1_experts(experts);
	rig_open(&rig);
	rig_run(&rig, &input, &output, ids, &trace);
	rig_close(&rig);

	ck_assert_uint_eq(trace.filled,
	                  MOEK_TRACE_GATE_UP | MOEK_TRACE_ACTIVATED | MOEK_TRACE_SLOTS);
	for (i = 0; i < 8; i++)
		ck_assert(gate_up[i] == z[i]);
	for (i = 0; i < 4; i++) {
		ck_assert_near(activated[i], a[i]);
		ck_assert_near(slots[i], y[i]);
	}
	ck_assert_near(out[0], -0.1167124);
	ck_assert_near(out[1], 0.3809215);
}
END_TEST

START_TEST(ex_fw2_router_weight_on_output_and_on_input)
{
	const int32_t ids[] = { 0 };
	const float weight = 0.5f;
	struct moek_expert experts[2] = { 0 };
	struct rig rig = { .problem = problem_2x2(2, 1), .experts = experts };
	float x[] = { 1, 2 }, half[] = { 0.5f, 1 }, out[2];
	struct moek_rows input = rows_of(x, 1, 2, MOEK_F32);
	struct moek_rows weighed = rows_of(half, 1, 2, MOEK_F32);
	struct moek_rows output = rows_of(out, 1, 2, MOEK_F32);

	fw1_experts(experts);
	rig_open(&rig);
	rig.topk_weights = &weight;
	rig_run(&rig, &input, &output, ids, NULL);
	ck_assert_near(out[0], -0.6650063);
	ck_assert_near(out[1], -0.2334247);
	/* on the input: the core multiplies, and no weights come here */
	rig.topk_weights = NULL;
	rig_run(&rig, &weighed, &output, ids, NULL);
	ck_assert_near(out[0], -0.2642141);
	ck_assert_near(out[1], -0.0615837);
	rig_close(&rig);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("emulation");
	TCase *worked = tcase_create("worked numbers");

	tcase_add_checked_fixture(worked, open_emulation, NULL);
	tcase_add_test(worked, ex_fw1_stage_by_stage);
	tcase_add_test(worked, ex_fw2_router_weight_on_output_and_on_input);
	suite_add_tcase(s, worked);
	return s;
}

int main(void)
{
	SRunner *runner = srunner_create(suite());
	int failed;

	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
