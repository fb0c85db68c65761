/* SPDX-License-Identifier: MIT */
#include "config.h"

/* The real emulation.so, without the core: worked numbers of others, and every scheme
 * against naive.c, stage by stage. */
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include <moek/experts.h>

#include "tools/kernelcheck/naive.h"
#include "tools/kernelcheck/weights.h"

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
	int threads; /* real ones */
};

static void reversed(void *self, uint64_t tasks,
                     void (*body)(void *, uint64_t, uint32_t), void *arg)
{
	uint32_t count = *(const uint32_t *)self;

	while (tasks-- > 0)
		body(arg, tasks, (uint32_t)(tasks % count));
}

struct crew {
	uint64_t tasks;
	void (*body)(void *arg, uint64_t i, uint32_t worker);
	void *arg;
	atomic_uint_fast64_t next;
	atomic_uint worker;
};

static void *work(void *arg)
{
	struct crew *crew = arg;
	uint32_t worker = atomic_fetch_add(&crew->worker, 1);
	uint64_t i;

	while ((i = atomic_fetch_add(&crew->next, 1)) < crew->tasks)
		crew->body(crew->arg, i, worker);
	return NULL;
}

static void threaded(void *self, uint64_t tasks,
                     void (*body)(void *, uint64_t, uint32_t), void *arg)
{
	uint32_t count = *(const uint32_t *)self, i;
	struct crew crew = { .tasks = tasks, .body = body, .arg = arg };
	pthread_t threads[16];

	for (i = 0; i < count; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &crew), 0);
	for (i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

static int32_t ask(const struct moek_problem *problem, struct moek_verdict *verdict)
{
	memset(verdict, 0, sizeof(*verdict));
	verdict->struct_size = MOEK_VERDICT_SIZE_1_0;
	return any->supports_quant_scheme(NULL, problem, verdict) &&
	       any->supports_activation(NULL, problem, verdict) &&
	       any->supports_parallel(NULL, problem, verdict) &&
	       any->supports_shape(NULL, problem, verdict);
}

static void rig_open(struct rig *rig)
{
	struct moek_verdict verdict;
	uint64_t align, bytes, e;

	ck_assert_msg(ask(&rig->problem, &verdict), "refused: rule %u", verdict.rule);
	bytes = any->prepared_size(NULL, &rig->problem, &align);
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
	int32_t count = any->workspace_shapes(NULL, &rig->problem, tokens, rig->workers,
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
		                              &worker_count,
		                              rig->threads ? threaded : reversed };
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

/* The references have 8 to 10 digits; the sums here a few fp32 roundings. */
#define ck_assert_near(value, expected)                                                \
	ck_assert_double_eq_tol((double)(value), (double)(expected),                   \
	                        3e-7 * fmax(1.0, fabs((double)(expected))))

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

/* V-E2E: three experts of 2 x 2. */
static const float e2e_gate[3][4] = { { 1, 0, 0, 1 },
	                              { .5f, .5f, 1, -1 },
	                              { -1, 1, 2, 0 } };
static const float e2e_up[3][4] = { { 1, 1, 1, -1 }, { 2, 0, 0, 2 }, { 1, 0, 0, -1 } };
static const float e2e_down[3][4] = { { 1, 2, 3, 4 },
	                              { -1, .5f, .25f, 1 },
	                              { .5f, 0, 0, -2 } };

struct e2e {
	struct rig rig;
	struct moek_expert experts[3];
	float x[2], out[2], slots[6];
	struct moek_rows input, output;
	struct moek_trace trace;
};

static void e2e_open(struct e2e *t, const struct moek_problem *problem,
                     const float *biases)
{
	int e;

	memset(t, 0, sizeof(*t));
	for (e = 0; e < 3; e++) {
		t->experts[e].gate = f32_matrix(2, 2, e2e_gate[e]);
		t->experts[e].up = f32_matrix(2, 2, e2e_up[e]);
		t->experts[e].down = f32_matrix(2, 2, e2e_down[e]);
		if (biases == NULL)
			continue;
		t->experts[e].gate.bias = biases;
		t->experts[e].up.bias = biases + 2;
		t->experts[e].down.bias = biases + 4;
	}
	t->rig.problem = *problem;
	t->rig.experts = t->experts;
	t->x[0] = 1;
	t->x[1] = -.5f;
	t->input = rows_of(t->x, 1, 2, MOEK_F32);
	t->output = rows_of(t->out, 1, 2, MOEK_F32);
	t->trace.struct_size = MOEK_TRACE_SIZE_1_0;
	t->trace.slots = t->slots;
	rig_open(&t->rig);
}

static void e2e_run(struct e2e *t, const int32_t *ids, const float *weights)
{
	t->rig.topk_weights = weights;
	rig_run(&t->rig, &t->input, &t->output, ids, &t->trace);
}

START_TEST(v_e2e_silu)
{
	static const double experts[] = { -0.200781714, -0.0360341384, -0.894269108,
		                          -1.15608965,  -0.136819143,  -1.76159416 };
	const struct moek_problem all = problem_2x2(3, 3), two = problem_2x2(3, 2);
	const int32_t ids_all[] = { 0, 1, 2 }, ids_two[] = { 0, 2 };
	const float a[] = { .679178699f, .320821301f },
		    b[] = { .589797664f, .278600689f };
	struct e2e t;
	int i;

	e2e_open(&t, &all, NULL);
	e2e_run(&t, ids_all, NULL);
	for (i = 0; i < 6; i++)
		ck_assert_near(t.slots[i], experts[i]);
	rig_close(&t.rig);

	e2e_open(&t, &two, NULL);
	e2e_run(&t, ids_two, a);
	ck_assert_near(t.out[0], -0.180261159);
	ck_assert_near(t.out[1], -0.589630548);
	e2e_run(&t, ids_two, b);
	ck_assert_near(t.out[0], -0.156538493);
	ck_assert_near(t.out[1], -0.512034197);
	rig_close(&t.rig);
}
END_TEST

START_TEST(v_e2e_gpt_oss)
{
	static const float biases[] = { .1f, -.1f, 0, .5f, .01f, -.02f };
	struct moek_problem problem = problem_2x2(3, 2);
	const int32_t ids[] = { 0, 2 };
	const float weights[] = { .679178699f, .320821301f };
	struct e2e t;

	problem.gate_up.bias = problem.down.bias = 1;
	problem.activation = MOEK_SWIGLU_OAI;
	problem.alpha = 1.702f;
	problem.beta = 1;
	problem.limit = 7;
	e2e_open(&t, &problem, biases);
	e2e_run(&t, ids, weights);
	ck_assert_near(t.slots[0], 0.486818445);
	ck_assert_near(t.slots[1], 2.36371273);
	ck_assert_near(t.slots[2], -0.108291209);
	ck_assert_near(t.slots[3], -7.3318582);
	ck_assert_near(t.out[0], 0.295894592);
	ck_assert_near(t.out[1], -0.746832948);
	rig_close(&t.rig);
}
END_TEST

START_TEST(v_e2e_llama_weights_the_input)
{
	const struct moek_problem problem = problem_2x2(3, 1);
	const int32_t ids[] = { 0 };
	const float weight = .731058579f;
	struct e2e t;

	e2e_open(&t, &problem, NULL);
	e2e_run(&t, ids, &weight); /* the wrong place is another number */
	ck_assert_near(t.out[0], -0.146783194);
	ck_assert_near(t.out[1], -0.026343066);
	t.x[0] *= weight;
	t.x[1] *= weight;
	e2e_run(&t, ids, NULL);
	ck_assert_near(t.out[0], -0.147995679);
	ck_assert_near(t.out[1], -0.115605586);
	rig_close(&t.rig);
}
END_TEST

/* ---- every weight, seen through a token that picks its column ---- */

static void see_weights(const struct moek_scheme *scheme,
                        const struct moek_matrix *matrix, float *seen_out)
{
	uint64_t n = matrix->columns, rows = matrix->rows, c;
	struct moek_problem problem = problem_2x2(1, 1);
	float *one = calloc(n * n, sizeof(float)),
	      *zeros = calloc(n * rows, sizeof(float));
	float *out = calloc(n * n, sizeof(float)),
	      *seen = calloc(n * rows, sizeof(float));
	int32_t *ids = calloc(n, sizeof(*ids));
	struct moek_expert expert = { .gate = *matrix,
		                      .down = f32_matrix(n, rows, zeros) };
	struct rig rig = { .problem = problem, .experts = &expert };
	struct moek_trace trace = { .struct_size = MOEK_TRACE_SIZE_1_0,
		                    .gate_up = seen };
	struct moek_rows input = rows_of(one, n, n, MOEK_F32);
	struct moek_rows output = rows_of(out, n, n, MOEK_F32);

	rig.problem.hidden = n;
	rig.problem.intermediate = rows;
	rig.problem.gated = 0;
	rig.problem.gate_up = *scheme;
	rig.problem.gate_up.zero_points = matrix->zeros != NULL;
	rig.problem.gate_up.column_groups = matrix->column_group != NULL;
	for (c = 0; c < n; c++)
		one[c * n + c] = 1;
	rig_open(&rig);
	rig_run(&rig, &input, &output, ids, &trace);
	rig_close(&rig);
	for (c = 0; c < n * rows; c++)
		seen_out[c % rows * n + c / rows] = seen[c];
	free(one);
	free(zeros);
	free(out);
	free(seen);
	free(ids);
}

static struct moek_matrix coded(uint32_t weight, uint64_t rows, uint64_t columns,
                                uint64_t group_size, const void *codes)
{
	const struct moek_matrix m = { .struct_size = MOEK_MATRIX_SIZE_1_0,
		                       .weight = weight,
		                       .rows = rows,
		                       .columns = columns,
		                       .group_size = group_size,
		                       .codes = codes };

	return m;
}

START_TEST(ex_w4_a_gemm_that_is_exact)
{
	static const float want[] = { -1.3125f, 1.5f,  4.3125f, 7.125f,
		                      6.9375f,  6.75f, 6.5625f, 3.375f };
	static const uint32_t types[] = { MOEK_F32, MOEK_BF16, MOEK_F16 };
	uint8_t codes[8 * 16] = { 0 };
	uint16_t scales[8], x[32];
	float down[32 * 8] = { 0 }, single[32], z[8];
	uint32_t out[32];
	const int32_t ids[] = { 0 };
	struct moek_expert expert = { .down = f32_matrix(32, 8, down) };
	struct rig rig = { .problem = problem_2x2(1, 1), .experts = &expert };
	struct moek_trace trace = { .struct_size = MOEK_TRACE_SIZE_1_0, .gate_up = z };
	const uint32_t type = types[_i];
	struct moek_rows input = rows_of(type == MOEK_F32 ? (void *)single : x, 1, 32,
	                                 type);
	struct moek_rows output = rows_of(out, 1, 32, type);
	uint64_t n, k;

	for (n = 0; n < 8; n++) {
		for (k = 0; k < 32; k++)
			codes[n * 16 + k / 2] |= (uint8_t)((n + 3 * k) % 16
			                                   << k % 2 * 4);
		float_put(type == MOEK_F32 ? MOEK_BF16 : type, scales, n, 0.125f);
	}
	for (k = 0; k < 32; k++) {
		single[k] = ((float)(k % 5) - 2) / 2;
		float_put(type == MOEK_F32 ? MOEK_BF16 : type, x, k, single[k]);
	}
	/* the words of the reference, little endian: row 0 of column 0 is 52fc9630 */
	ck_assert_uint_eq(codes[0], 0x30);
	ck_assert_uint_eq(codes[3], 0x52);
	expert.gate = coded(MOEK_INT4, 8, 32, 32, codes);
	expert.gate.scales = scales;
	expert.gate.scale = type == MOEK_F32 ? MOEK_BF16 : type;
	rig.problem.hidden = 32;
	rig.problem.intermediate = 8;
	rig.problem.gated = 0;
	rig.problem.input_type = rig.problem.output_type = type;
	rig.problem.gate_up.weight = MOEK_INT4;
	rig.problem.gate_up.scale = expert.gate.scale;
	rig.problem.gate_up.group_size = 32;
	rig_open(&rig);
	rig_run(&rig, &input, &output, ids, &trace);
	rig_close(&rig);
	for (n = 0; n < 8; n++)
		ck_assert(z[n] == want[n]);
}
END_TEST

START_TEST(ex_ct1_v_ct_1_and_v_ct_3)
{
	static const uint8_t ct1[] = { 0x70, 0x98, 0xbf, 0xa4 };
	static const float want_ct1[] = { -4, -.5f, 0, .5f, 3.5f, 1.5f, -2, 1 };
	static const uint8_t vct1[] = {
		0x10, 0x87, 0xa9, 0xfe, 0x5b, 0x3d, 0x88, 0xf0,
		0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe
	};
	static const uint16_t bf16[] = { 0x3f00, 0x3e80, 0x3f80, 0x3e00 };
	static const uint16_t f16[] = { 0x3800, 0x3400, 0x3c00, 0x3000 };
	static const float want_vct1[] = { -4,   -3.5f, -.5f, 0,     .5f,   1,
		                           3,    3.5f,  .75f, -.75f, 1.25f, -1.25f,
		                           0,    0,     -2,   1.75f, -8,    -7,
		                           -6,   -5,    -4,   -3,    -2,    -1,
		                           0,    .125f, .25f, .375f, .5f,   .625f,
		                           .75f, .875f };
	static const uint8_t vct3[] = { 0x80, 0xbf }, zero3[] = { 5 };
	static const float want_vct3[] = { -2.5f, 1.5f, 5, 3 }, half = .5f;
	struct moek_scheme scheme = { .weight = MOEK_INT4,
		                      .scale = MOEK_F32,
		                      .group_size = 8 };
	struct moek_matrix m = coded(MOEK_INT4, 1, 8, 8, ct1);
	float seen[32];

	m.scales = &half;
	m.scale = MOEK_F32;
	see_weights(&scheme, &m, seen);
	ck_assert_mem_eq(seen, want_ct1, sizeof(want_ct1));

	m = coded(MOEK_INT4, 2, 16, 8, vct1);
	m.scales = bf16;
	m.scale = scheme.scale = MOEK_BF16;
	see_weights(&scheme, &m, seen);
	ck_assert_mem_eq(seen, want_vct1, sizeof(want_vct1));
	m.scales = f16;
	m.scale = scheme.scale = MOEK_F16;
	see_weights(&scheme, &m, seen);
	ck_assert_mem_eq(seen, want_vct1, sizeof(want_vct1));

	m = coded(MOEK_INT4, 1, 4, 4, vct3);
	m.scales = &half;
	m.zeros = zero3;
	m.scale = scheme.scale = MOEK_F32;
	scheme.group_size = 0;
	see_weights(&scheme, &m, seen);
	ck_assert_mem_eq(seen, want_vct3, sizeof(want_vct3));
}
END_TEST

START_TEST(v_ct_4_activation_order)
{
	static const uint8_t codes[] = { 0x40, 0x76, 0xa9, 0xfc };
	static const uint32_t group[] = { 1, 0, 0, 1, 1, 0, 1, 0 };
	static const float scales[] = { .5f, 2 };
	static const float want[] = { -16, -2, -1, -2, 2, 1, 8, 3.5f };
	const struct moek_scheme scheme = { .weight = MOEK_INT4,
		                            .scale = MOEK_F32,
		                            .group_size = 4 };
	struct moek_matrix m = coded(MOEK_INT4, 1, 8, 4, codes);
	float seen[8];

	m.scales = scales;
	m.scale = MOEK_F32;
	m.column_group = group;
	see_weights(&scheme, &m, seen);
	ck_assert_mem_eq(seen, want, sizeof(want));
}
END_TEST

/* V-GPTQ-1 in canonical form: u[k][n] = (k + n) mod 16, zeros and scales per output. */
START_TEST(v_gptq_1_zero_points)
{
	static const uint8_t zeros[] = { 8, 7, 8, 9, 0, 15, 1, 8 };
	static const float scales[] = { .5f, .5f, .25f, 1, 2, .125f, .5f, 1 };
	const struct moek_scheme scheme = { .weight = MOEK_INT4,
		                            .scale = MOEK_F32,
		                            .group_size = 8 };
	uint8_t codes[32] = { 0 };
	struct moek_matrix m = coded(MOEK_INT4, 8, 8, 8, codes);
	float seen[64];
	uint64_t n, k;

	for (n = 0; n < 8; n++)
		for (k = 0; k < 8; k++)
			codes[n * 4 + k / 2] |= (uint8_t)((k + n) % 16 << k % 2 * 4);
	m.scales = scales;
	m.scale = MOEK_F32;
	m.zeros = zeros;
	see_weights(&scheme, &m, seen);
	for (k = 0; k < 8; k++) {
		ck_assert(seen[0 * 8 + k] == -4 + .5f * (float)k);
		ck_assert(seen[1 * 8 + k] == -3 + .5f * (float)k);
		ck_assert(seen[4 * 8 + k] == 8 + 2 * (float)k);
		ck_assert(seen[5 * 8 + k] == -1.25f + .125f * (float)k);
	}
}
END_TEST

START_TEST(v_mx_2_and_edge_scales)
{
	static const uint8_t row[] = { 0xa3, 0x81, 0x6f, 0x4d, 0x2b, 0x09, 0xe7, 0xc5,
		                       0xf8, 0xd6, 0xb4, 0x92, 0x70, 0x5e, 0x3c, 0x1a };
	static const float want[] = { .375f, -.25f, .125f, -0.f, -1.5f, 1, -.75f, .5f };
	const struct moek_scheme scheme = { .weight = MOEK_MXFP4,
		                            .scale = MOEK_E8M0,
		                            .group_size = 32 };
	struct moek_matrix m = coded(MOEK_MXFP4, 1, 32, 32, row);
	uint8_t scale = 0x7d;
	float seen[32];
	int c;

	m.scales = &scale;
	m.scale = MOEK_E8M0;
	see_weights(&scheme, &m, seen);
	for (c = 0; c < 8; c++) /* -0 times 1, after +0, is +0 */
		ck_assert(seen[c] == want[c]);
	scale = 0;
	see_weights(&scheme, &m, seen);
	ck_assert(seen[0] == 0x1.8p-127f && seen[1] == -0x1p-127f &&
	          seen[2] == 0x1p-128f);
	scale = 254;
	see_weights(&scheme, &m, seen);
	ck_assert(isnan(seen[0])); /* some of these are infinite: 0 times that */
}
END_TEST

START_TEST(int8_weights)
{
	static const uint8_t codes[] = { 0, 127, 128, 255 }, zero[] = { 100 };
	static const float want[] = { -64, -.5f, 0, 63.5f },
			   shifted[] = { -50, 13.5f, 14, 77.5f };
	static const uint16_t half = 0x3f00;
	const struct moek_scheme scheme = { .weight = MOEK_INT8,
		                            .scale = MOEK_BF16,
		                            .group_size = 0 };
	struct moek_matrix m = coded(MOEK_INT8, 1, 4, 4, codes);
	float seen[4];

	m.scales = &half;
	m.scale = MOEK_BF16;
	see_weights(&scheme, &m, seen);
	ck_assert_mem_eq(seen, want, sizeof(want));
	m.zeros = zero;
	see_weights(&scheme, &m, seen);
	ck_assert_mem_eq(seen, shifted, sizeof(shifted));
}
END_TEST

/* ---- the function between the GEMMs ---- */

struct activation_row {
	uint32_t activation, gated;
	float alpha, beta, limit, g, u;
	double value;
};

/* clang-format off */
static const struct activation_row activations[] = {
	{ MOEK_SILU, 1, 0, 0, 0, 1, 2, 1.4621171573 },
	{ MOEK_SILU, 1, 0, 0, 0, -2, .5f, -0.119202922 },
	{ MOEK_SILU, 1, 0, 0, 0, 8, -9, -71.9758548 },
	{ MOEK_SILU, 1, 0, 0, 0, 12, 12, 143.999115 },
	{ MOEK_SILU, 1, 0, 0, 10, 12, 12, 99.9954602 },
	{ MOEK_SILU, 1, 0, 0, 10, 8, -9, -71.9758548 },
	{ MOEK_SILU, 1, 0, 0, 7, 10, -9, -48.9553584915 },
	{ MOEK_SILU, 0, 0, 0, 0, 1, 2, 0.7310585786 },
	{ MOEK_GELU, 1, 0, 0, 0, 1, 2, 1.6826894921 },
	{ MOEK_GELU, 0, 0, 0, 0, 1, 2, 0.84134474605 },
	{ MOEK_GELU_TANH, 1, 0, 0, 0, 1, 2, 1.6823839813 },
	{ MOEK_GELU_TANH, 1, 0, 0, 0, -2, .5f, -0.022701153 },
	{ MOEK_GELU_TANH, 1, 0, 0, 0, 8, -9, -72.0 },
	{ MOEK_GELU_TANH, 1, 0, 0, 0, 12, 12, 144 },
	{ MOEK_RELU2, 0, 0, 0, 0, 1, 2, 1 },
	{ MOEK_RELU2, 0, 0, 0, 0, -2, .5f, 0 },
	{ MOEK_RELU2, 0, 0, 0, 0, 8, -9, 64 },
	{ MOEK_RELU2, 0, 0, 0, 0, 12, 12, 144 },
	{ MOEK_SWIGLU_OAI, 1, 1.702f, 1, 7, 1, 2, 2.5373872978 },
	{ MOEK_SWIGLU_OAI, 1, 1.702f, 1, 7, -2, .5f, -0.0965120653 },
	{ MOEK_SWIGLU_OAI, 1, 1.702f, 1, 7, 8, -9, -41.9997187698 },
	{ MOEK_SWIGLU_OAI, 1, 1.702f, 1, 7, 12, 12, 55.999625 },
	{ MOEK_SWIGLU_OAI, 1, 1.702f, 1, 7, 10, -9, -41.9997187698 },
	{ MOEK_SWIGLU_OAI, 1, 1.702f, 1, 7, -10, 9, -3.2463690e-6 },
	{ MOEK_SWIGLU_OAI, 1, 1, 0, 0, 1, 2, 1.4621171573 },
	{ MOEK_SWIGLU_STEP, 1, 0, 0, 7, 1, 2, 1.4621171573 },
	{ MOEK_SWIGLU_STEP, 1, 0, 0, 7, -2, .5f, -0.119202922 },
	{ MOEK_SWIGLU_STEP, 1, 0, 0, 7, 8, -9, -49 },
	{ MOEK_SWIGLU_STEP, 1, 0, 0, 7, 12, 12, 49 },
	{ MOEK_SWIGLU_STEP, 1, 0, 0, 7, 10, 9, 49 },
	{ MOEK_SITU, 1, 4, 25, 0, 1, 2, 1.4293511316 },
	{ MOEK_SITU, 1, 4, 25, 0, -2, .5f, -0.110156744 },
	{ MOEK_SITU, 1, 4, 25, 0, 8, -9, -33.2684247 },
	{ MOEK_SITU, 1, 4, 25, 0, 12, 12, 44.4034097 },
	{ MOEK_SITU, 1, 4, 0, 0, 1, 2, 1.4323991137 },
	/* far from zero nothing overflows on the way */
	{ MOEK_SILU, 1, 0, 0, 0, -1000, 1, -0.0 },
	{ MOEK_SILU, 1, 0, 0, 0, 1000, 1, 1000 },
	{ MOEK_GELU_TANH, 1, 0, 0, 0, -1e6f, 1, -0.0 },
	{ MOEK_SITU, 1, 4, 25, 0, -1e6f, 1e6f, -0.0 },
};
/* clang-format on */
#define ACTIVATIONS ((int)(sizeof(activations) / sizeof(activations[0])))

static const float unit_gate[] = { 1, 0 }, unit_up[] = { 0, 1 }, unit_down[] = { 1, 1 };

START_TEST(activation_tables)
{
	const struct activation_row *row = &activations[_i];
	struct moek_expert expert = { .gate = f32_matrix(1, 2, unit_gate),
		                      .up = f32_matrix(1, 2, unit_up),
		                      .down = f32_matrix(2, 1, unit_down) };
	struct rig rig = { .problem = problem_2x2(1, 1), .experts = &expert };
	float x[] = { row->g, row->u }, out[2], activated;
	const int32_t ids[] = { 0 };
	struct moek_trace trace = { .struct_size = MOEK_TRACE_SIZE_1_0,
		                    .activated = &activated };
	struct moek_rows input = rows_of(x, 1, 2, MOEK_F32);
	struct moek_rows output = rows_of(out, 1, 2, MOEK_F32);

	rig.problem.intermediate = 1;
	rig.problem.activation = row->activation;
	rig.problem.gated = row->gated;
	rig.problem.alpha = row->alpha;
	rig.problem.beta = row->beta;
	rig.problem.limit = row->limit;
	rig_open(&rig);
	rig_run(&rig, &input, &output, ids, &trace);
	rig_close(&rig);
	/* the tables have 8 to 10 digits */
	ck_assert_msg(fabs((double)activated - row->value) <= 3e-7 * fabs(row->value),
	              "row %d: %.10g, expected %.10g", _i, (double)activated,
	              row->value);
}
END_TEST

/* ---- every scheme, stage by stage, against double ---- */

struct scheme_case {
	const char *name;
	struct moek_scheme gate_up, down;
	uint32_t activations, activations_group;
	uint32_t activation, gated;
	float alpha, beta, limit;
	uint32_t input_type, output_type;
	uint64_t experts, top_k, hidden, intermediate, tokens;
};

#define INT4(scale_, group, zero, order, bias_)                                        \
	{                                                                              \
		MOEK_INT4, scale_, group, zero, order, bias_, 0, 0                     \
	}
#define INT8(scale_, group, zero, order)                                               \
	{                                                                              \
		MOEK_INT8, scale_, group, zero, order, 0, 0, 0                         \
	}
#define MX(bias_)                                                                      \
	{                                                                              \
		MOEK_MXFP4, MOEK_E8M0, 32, 0, 0, bias_, 0, 0                           \
	}
#define MX8                                                                            \
	{                                                                              \
		MOEK_MXFP4, MOEK_E8M0, 32, 0, 0, 0, 1, 0                               \
	}
#define ROWS(type, bias_)                                                              \
	{                                                                              \
		type, 0, 0, 0, 0, bias_, 0, 0                                          \
	}

static const struct scheme_case schemes[] = {
	{ "int4 g32", INT4(MOEK_BF16, 32, 0, 0, 0), INT4(MOEK_BF16, 32, 0, 0, 0),
	  MOEK_A16, 0, MOEK_SILU, 1, 0, 0, 0, MOEK_BF16, MOEK_BF16, 3, 2, 128, 96, 5 },
	{ "int4 short groups, bias", INT4(MOEK_F16, 32, 1, 0, 1),
	  INT4(MOEK_F16, 48, 1, 0, 1), MOEK_A16, 0, MOEK_GELU, 1, 0, 0, 3, MOEK_F16,
	  MOEK_F16, 2, 2, 139, 141, 7 },
	{ "int4 channel, fp32 scales", INT4(MOEK_F32, 0, 1, 0, 0),
	  INT4(MOEK_F32, 0, 0, 0, 0), MOEK_A16, 0, MOEK_GELU_TANH, 1, 0, 0, 0, MOEK_F32,
	  MOEK_F32, 2, 1, 33, 35, 3 },
	{ "int4 activation order", INT4(MOEK_BF16, 16, 1, 1, 0),
	  INT4(MOEK_BF16, 7, 1, 1, 0), MOEK_A16, 0, MOEK_SITU, 1, 4, 25, 0, MOEK_BF16,
	  MOEK_F32, 2, 2, 65, 51, 4 },
	{ "int4 groups of one", INT4(MOEK_E8M0, 1, 1, 0, 0),
	  INT4(MOEK_E8M0, 3, 0, 0, 0), MOEK_A16, 0, MOEK_SWIGLU_STEP, 1, 0, 0, .5f,
	  MOEK_F32, MOEK_BF16, 2, 2, 9, 11, 4 },
	{ "int8", INT8(MOEK_BF16, 32, 0, 0), INT8(MOEK_F32, 20, 1, 1), MOEK_A16, 0,
	  MOEK_SILU, 1, 0, 0, 0, MOEK_BF16, MOEK_BF16, 2, 2, 70, 130, 3 },
	{ "mxfp4 as gpt-oss", MX(1), MX(1), MOEK_A16, 0, MOEK_SWIGLU_OAI, 1, 1.702f, 1,
	  7, MOEK_BF16, MOEK_BF16, 4, 4, 90, 90, 6 },
	{ "bf16 rows", ROWS(MOEK_BF16, 0), ROWS(MOEK_BF16, 1), MOEK_A16, 0, MOEK_SILU,
	  1, 0, 0, 0, MOEK_BF16, MOEK_BF16, 5, 5, 64, 48, 3 },
	{ "fp16 rows, not gated", ROWS(MOEK_F16, 1), ROWS(MOEK_F16, 0), MOEK_A16, 0,
	  MOEK_RELU2, 0, 0, 0, 0, MOEK_F16, MOEK_F32, 3, 2, 31, 257, 3 },
	{ "fp32 rows", ROWS(MOEK_F32, 0), ROWS(MOEK_F32, 0), MOEK_A16, 0, MOEK_SILU, 0,
	  0, 0, 2, MOEK_F32, MOEK_F16, 1, 1, 1, 1, 2 },
	{ "mixed", MX(0), INT4(MOEK_BF16, 64, 0, 0, 1), MOEK_A16, 0, MOEK_SILU, 1, 0, 0,
	  0, MOEK_F16, MOEK_BF16, 3, 3, 96, 160, 4 },
	{ "w4a4 even", MX(1), MX(0), MOEK_A4_MXFP4_EVEN, 0, MOEK_SILU, 1, 0, 0, 0,
	  MOEK_BF16, MOEK_BF16, 3, 2, 100, 77, 5 },
	{ "w4a4 round up", MX(0), MX(0), MOEK_A4_MXFP4_ROUND_UP, 0, MOEK_SWIGLU_OAI, 1,
	  1.702f, 1, 7, MOEK_F32, MOEK_F32, 3, 2, 64, 160, 5 },
	{ "w4a8 fp8", MX8, MX8, MOEK_A8_FP8_STATIC, 0, MOEK_SILU, 1, 0, 0, 0, MOEK_BF16,
	  MOEK_BF16, 3, 2, 64, 70, 5 },
	{ "w4a8 int8", INT4(MOEK_BF16, 32, 0, 0, 0), INT4(MOEK_BF16, 32, 0, 0, 0),
	  MOEK_A8_INT8, 40, MOEK_SILU, 1, 0, 0, 0, MOEK_BF16, MOEK_F32, 3, 2, 100, 70,
	  5 },
	{ "w8a8", INT8(MOEK_F32, 0, 0, 0), INT8(MOEK_F32, 0, 0, 0), MOEK_A8_INT8, 1000,
	  MOEK_GELU, 0, 0, 0, 0, MOEK_F16, MOEK_F16, 2, 2, 200, 130, 3 },
	{ "one expert, many tokens", INT4(MOEK_BF16, 32, 1, 0, 1),
	  INT4(MOEK_BF16, 32, 1, 0, 1), MOEK_A16, 0, MOEK_SILU, 1, 0, 0, 0, MOEK_BF16,
	  MOEK_BF16, 1, 1, 40, 40, 75 },
};
#define SCHEMES ((int)(sizeof(schemes) / sizeof(schemes[0])))

static struct moek_problem problem_of(const struct scheme_case *c)
{
	const struct moek_problem p = { .struct_size = MOEK_PROBLEM_SIZE_1_0,
		                        .activations = c->activations,
		                        .experts = c->experts,
		                        .experts_local = c->experts,
		                        .top_k = c->top_k,
		                        .hidden = c->hidden,
		                        .intermediate = c->intermediate,
		                        .max_tokens = c->tokens,
		                        .gate_up = c->gate_up,
		                        .down = c->down,
		                        .input_type = c->input_type,
		                        .output_type = c->output_type,
		                        .activation = c->activation,
		                        .gated = c->gated,
		                        .alpha = c->alpha,
		                        .beta = c->beta,
		                        .limit = c->limit,
		                        .activations_group = c->activations_group,
		                        .shards = 1 };

	return p;
}

/** A random batch and everything that comes out of it. */
struct full {
	struct rig rig;
	uint64_t tokens, slots, width; /* of gate_up */
	void *x, *out;
	int32_t *ids;
	float *weights;
	struct moek_trace trace;
	struct moek_rows input, output;
};

static void full_open(struct full *f, const struct moek_problem *problem,
                      uint64_t tokens)
{
	uint64_t state = 7, i, slots = tokens * problem->top_k;

	memset(f, 0, sizeof(*f));
	f->rig.problem = *problem;
	f->rig.workers = 3;
	f->rig.experts = weights_create(problem, 11, WEIGHTS_PLAIN);
	f->tokens = tokens;
	f->slots = slots;
	f->width = problem->intermediate * (problem->gated ? 2 : 1);
	f->x = calloc(tokens * problem->hidden, 4);
	f->out = calloc(tokens * problem->hidden, 4);
	f->ids = calloc(slots, sizeof(*f->ids));
	f->weights = calloc(slots, sizeof(*f->weights));
	for (i = 0; i < tokens * problem->hidden; i++)
		float_put(problem->input_type, f->x, i, random_float(&state, -3, 3));
	for (i = 0; i < slots; i++) {
		f->ids[i] = (int32_t)(random_next(&state) % problem->experts);
		if (i % 7 == 3)
			f->ids[i] = i % 2 ? -1 : (int32_t)problem->experts;
		f->weights[i] = random_float(&state, 0.05f, 1);
	}
	memset(f->out, 0xff, tokens * problem->hidden * 4);
	f->rig.topk_weights = f->weights;
	f->input = rows_of(f->x, tokens, problem->hidden, problem->input_type);
	f->output = rows_of(f->out, tokens, problem->hidden, problem->output_type);
	f->trace.struct_size = MOEK_TRACE_SIZE_1_0;
	f->trace.gate_up = calloc(slots * f->width, 4);
	f->trace.activated = calloc(slots * problem->intermediate, 4);
	f->trace.slots = calloc(slots * problem->hidden, 4);
	f->trace.magnitudes = calloc(tokens * problem->hidden, 4);
	f->trace.quantised_input = calloc(tokens * problem->hidden, 4);
	rig_open(&f->rig);
}

static void full_close(struct full *f)
{
	rig_close(&f->rig);
	weights_free(&f->rig.problem, f->rig.experts);
	free(f->x);
	free(f->out);
	free(f->ids);
	free(f->weights);
	free(f->trace.gate_up);
	free(f->trace.activated);
	free(f->trace.slots);
	free(f->trace.magnitudes);
	free(f->trace.quantised_input);
}

static int routed(const struct full *f, uint64_t slot)
{
	return f->ids[slot] >= 0 && (uint64_t)f->ids[slot] < f->rig.problem.experts;
}

/* Half a unit in the last place for each term of a chain. */
#define UNIT 0x1p-24

/* By differences. The straight line goes on beyond a clamp: it is measured inside of
 * it, or, where the clamp comes after the sigmoid, without it. */
static double slope_of(const struct moek_problem *problem, double g, double u,
                       int of_up)
{
	struct moek_problem p = *problem;
	double h = 1e-5 * fmax(1, fabs(of_up ? u : g)), limit = (double)p.limit;

	if (limit > 0)
		u = fmax(fmin(u, limit - 2 * h), 2 * h - limit);
	if (limit > 0 && p.activation != MOEK_SWIGLU_STEP)
		g = fmin(g, limit - 2 * h);
	else if (!of_up)
		p.limit = 0;
	if (of_up)
		return fabs(naive_activate(&p, g, u + h) -
		            naive_activate(&p, g, u - h)) /
		       (2 * h);
	return fabs(naive_activate(&p, g + h, u) - naive_activate(&p, g - h, u)) /
	       (2 * h);
}

static void check_gate_up(const struct full *f, uint64_t slot, const float *x,
                          double *sizes)
{
	const struct moek_problem *p = &f->rig.problem;
	const struct moek_expert *expert = &f->rig.experts[f->ids[slot]];
	const float *z = f->trace.gate_up + slot * f->width;
	double *wide = calloc(p->hidden, sizeof(*wide));
	float *row = calloc(p->hidden, sizeof(*row));
	uint64_t i;

	naive_quantise(p, x, p->hidden, expert->gate.input_scale, row);
	ck_assert(f->trace.filled & MOEK_TRACE_QUANTISED_INPUT);
	for (i = 0; i < p->hidden; i++) {
		wide[i] = (double)row[i];
		ck_assert(f->trace.quantised_input[slot / p->top_k * p->hidden + i] ==
		          row[i]);
	}
	for (i = 0; i < f->width; i++) {
		const struct moek_matrix *m = i < p->intermediate ? &expert->gate
		                                                  : &expert->up;
		double want = naive_dot(m, i % p->intermediate, wide, &sizes[i]);

		ck_assert_msg(fabs((double)z[i] - want) <=
		                      (double)(p->hidden + 2) * UNIT * sizes[i],
		              "slot %u, gate_up[%u] is %a, expected %a", (unsigned)slot,
		              (unsigned)i, (double)z[i], want);
	}
	free(wide);
	free(row);
}

static void check_activated(const struct full *f, uint64_t slot)
{
	const struct moek_problem *p = &f->rig.problem;
	const struct moek_expert *expert = &f->rig.experts[f->ids[slot]];
	const float *z = f->trace.gate_up + slot * f->width;
	const float *activated = f->trace.activated + slot * p->intermediate;
	float *want = calloc(p->intermediate, sizeof(*want));
	uint64_t i;

	for (i = 0; i < p->intermediate; i++)
		want[i] = (float)naive_activate(
			p, (double)z[i], p->gated ? (double)z[p->intermediate + i] : 0);
	if (p->activations == MOEK_A16)
		for (i = 0; i < p->intermediate; i++)
			want[i] = (float)naive_round(p->input_type, (double)want[i]);
	else
		naive_quantise(p, want, p->intermediate, expert->down.input_scale,
		               want);
	for (i = 0; i < p->intermediate; i++)
		ck_assert_msg(activated[i] == want[i],
		              "slot %u, activated[%u] is %a, expected %a",
		              (unsigned)slot, (unsigned)i, (double)activated[i],
		              (double)want[i]);
	free(want);
}

static void check_slots(const struct full *f, uint64_t slot, const double *sizes,
                        double *magnitudes)
{
	const struct moek_problem *p = &f->rig.problem;
	const struct moek_expert *expert = &f->rig.experts[f->ids[slot]];
	const float *z = f->trace.gate_up + slot * f->width;
	const float *got = f->trace.slots + slot * p->hidden;
	double *a = calloc(2 * p->intermediate, sizeof(*a)),
	       *bound = a + p->intermediate, size, u;
	uint64_t i, h, c;

	for (i = 0; i < p->intermediate; i++) {
		a[i] = (double)f->trace.activated[slot * p->intermediate + i];
		u = p->gated ? (double)z[p->intermediate + i] : 0;
		bound[i] = fabs(a[i]) + slope_of(p, (double)z[i], u, 0) * sizes[i];
		if (p->gated)
			bound[i] += slope_of(p, (double)z[i], u, 1) *
			            sizes[p->intermediate + i];
	}
	for (h = 0; h < p->hidden; h++) {
		double want = naive_dot(&expert->down, h, a, &size);

		ck_assert_msg(fabs((double)got[h] - want) <=
		                      (double)(p->intermediate + 2) * UNIT * size,
		              "slot %u, column %u is %a, expected %a", (unsigned)slot,
		              (unsigned)h, (double)got[h], want);
		size = expert->down.bias != NULL ? fabs((double)expert->down.bias[h])
		                                 : 0;
		for (c = 0; c < p->intermediate; c++)
			size += fabs(naive_weight(&expert->down, h, c)) * bound[c];
		magnitudes[h] += size * (double)f->weights[slot];
	}
	free(a);
}

static void check_output(const struct full *f, uint64_t token, const double *magnitudes)
{
	const struct moek_problem *p = &f->rig.problem;
	uint64_t h, j;

	for (h = 0; h < p->hidden; h++) {
		double size = (double)f->trace.magnitudes[token * p->hidden + h];
		float sum = 0,
		      got = float_get(p->output_type, f->out, token * p->hidden + h);

		for (j = token * p->top_k; j < (token + 1) * p->top_k; j++)
			if (routed(f, j))
				sum += f->weights[j] *
				       f->trace.slots[j * p->hidden + h];
		ck_assert_msg((double)got == naive_round(p->output_type, (double)sum),
		              "token %u, column %u is %a, expected %a rounded",
		              (unsigned)token, (unsigned)h, (double)got, (double)sum);
		ck_assert_msg(fabs(size - magnitudes[h]) <= 1e-3 * magnitudes[h],
		              "token %u, column %u: magnitude %g, expected %g",
		              (unsigned)token, (unsigned)h, size, magnitudes[h]);
	}
}

static void check_stages(const struct full *f)
{
	const struct moek_problem *p = &f->rig.problem;
	double *sizes = calloc(f->width, sizeof(*sizes)), *magnitudes;
	float *x = calloc(p->hidden, sizeof(*x));
	uint64_t token, j, i;

	for (token = 0; token < f->tokens; token++) {
		magnitudes = calloc(p->hidden, sizeof(*magnitudes));
		for (i = 0; i < p->hidden; i++)
			x[i] = float_get(p->input_type, f->x, token * p->hidden + i);
		for (j = token * p->top_k; j < (token + 1) * p->top_k; j++) {
			if (!routed(f, j))
				continue;
			check_gate_up(f, j, x, sizes);
			check_activated(f, j);
			check_slots(f, j, sizes, magnitudes);
		}
		check_output(f, token, magnitudes);
		free(magnitudes);
	}
	free(sizes);
	free(x);
}

START_TEST(every_scheme_stage_by_stage)
{
	const struct moek_problem problem = problem_of(&schemes[_i]);
	struct full f;

	full_open(&f, &problem, schemes[_i].tokens);
	rig_run(&f.rig, &f.input, &f.output, f.ids, &f.trace);
	check_stages(&f);
	full_close(&f);
}
END_TEST

START_TEST(same_bits_for_any_number_of_workers_and_any_trace)
{
	const struct moek_problem problem = problem_of(&schemes[_i]);
	uint64_t bytes = schemes[_i].tokens * problem.hidden *
	                 float_bytes(problem.output_type);
	uint32_t workers;
	struct full f;
	void *first;

	full_open(&f, &problem, schemes[_i].tokens);
	rig_run(&f.rig, &f.input, &f.output, f.ids, &f.trace);
	first = malloc(bytes);
	ck_assert_ptr_nonnull(first);
	memcpy(first, f.out, bytes);
	for (workers = 1; workers <= 4; workers += 3) {
		memset(f.out, 0xff, bytes);
		f.rig.workers = workers;
		f.rig.threads = workers > 1;
		rig_run(&f.rig, &f.input, &f.output, f.ids, NULL);
		ck_assert_mem_eq(f.out, first, bytes);
	}
	free(first);
	full_close(&f);
}
END_TEST

/* A batch longer than what one pass takes: each token as if it were alone. */
START_TEST(long_batches_are_cut_and_nobody_sees_it)
{
	struct scheme_case c = schemes[_i];
	struct moek_problem problem;
	uint64_t token, bytes;
	uint16_t alone[16];
	struct moek_rows one, out;
	struct full f;

	c.hidden = 16;
	c.intermediate = 8;
	problem = problem_of(&c);
	full_open(&f, &problem, 2 * 1024 + 3);
	bytes = problem.hidden * float_bytes(problem.output_type);
	rig_run(&f.rig, &f.input, &f.output, f.ids, &f.trace);
	for (token = 1000; token < f.tokens; token += 131) {
		one = rows_of((uint8_t *)f.x + token * 32, 1, 16, problem.input_type);
		out = rows_of(alone, 1, 16, problem.output_type);
		f.rig.topk_weights = f.weights + token * problem.top_k;
		rig_run(&f.rig, &one, &out, f.ids + token * problem.top_k, NULL);
		ck_assert_mem_eq(alone, (uint8_t *)f.out + token * bytes, bytes);
	}
	f.tokens -= 2000; /* the traces of the last pass stand in their place */
	f.x = (uint8_t *)f.x + 2000 * 32;
	f.out = (uint8_t *)f.out + 2000 * bytes;
	f.ids += 2000 * problem.top_k;
	f.weights += 2000 * problem.top_k;
	f.trace.gate_up += 2000 * problem.top_k * f.width;
	f.trace.activated += 2000 * problem.top_k * 8;
	f.trace.slots += 2000 * problem.top_k * 16;
	f.trace.magnitudes += 2000 * 16;
	f.trace.quantised_input += 2000 * 16;
	check_stages(&f);
	f.x = (uint8_t *)f.x - 2000 * 32;
	f.out = (uint8_t *)f.out - 2000 * bytes;
	f.ids -= 2000 * problem.top_k;
	f.weights -= 2000 * problem.top_k;
	f.trace.gate_up -= 2000 * problem.top_k * f.width;
	f.trace.activated -= 2000 * problem.top_k * 8;
	f.trace.slots -= 2000 * problem.top_k * 16;
	f.trace.magnitudes -= 2000 * 16;
	f.trace.quantised_input -= 2000 * 16;
	full_close(&f);
}
END_TEST

START_TEST(strided_rows_and_what_lies_between)
{
	const struct moek_problem problem = problem_of(&schemes[0]);
	uint64_t tokens = schemes[0].tokens, hidden = problem.hidden, t, c;
	uint16_t *wide = calloc(tokens * 200, 2), *out = calloc(tokens * 150, 2);
	struct moek_rows input = rows_of(wide, tokens, hidden, MOEK_BF16);
	struct moek_rows output = rows_of(out, tokens, hidden, MOEK_BF16);
	struct full f;

	full_open(&f, &problem, tokens);
	rig_run(&f.rig, &f.input, &f.output, f.ids, NULL);
	input.row_stride = 200;
	output.row_stride = 150;
	for (t = 0; t < tokens * 150; t++)
		out[t] = 0x1234;
	for (t = 0; t < tokens; t++)
		memcpy(wide + t * 200, (uint16_t *)f.x + t * hidden, hidden * 2);
	rig_run(&f.rig, &input, &output, f.ids, NULL);
	for (t = 0; t < tokens; t++) {
		ck_assert_mem_eq(out + t * 150, (uint16_t *)f.out + t * hidden,
		                 hidden * 2);
		for (c = hidden; c < 150; c++)
			ck_assert_uint_eq(out[t * 150 + c], 0x1234);
	}
	full_close(&f);
	free(wide);
	free(out);
}
END_TEST

START_TEST(nobody_routed_is_exactly_zero)
{
	const struct moek_problem problem = problem_of(&schemes[6]);
	uint64_t i;
	struct full f;

	full_open(&f, &problem, 3);
	for (i = 0; i < f.slots; i++)
		f.ids[i] = i % 3 == 0 ? INT32_MIN : i % 3 == 1 ? INT32_MAX : -1;
	memset(f.x, 0xff, 3 * problem.hidden * 2); /* NaN, which nobody may use */
	rig_run(&f.rig, &f.input, &f.output, f.ids, NULL);
	for (i = 0; i < 3 * problem.hidden; i++)
		ck_assert_uint_eq(((uint16_t *)f.out)[i], 0);
	full_close(&f);
}
END_TEST

START_TEST(a_nan_in_one_token_stays_there)
{
	const struct moek_problem problem = problem_of(&schemes[_i]);
	uint64_t bytes = float_bytes(problem.output_type), hidden = problem.hidden, i;
	uint8_t *clean;
	struct full f;

	full_open(&f, &problem, schemes[_i].tokens);
	for (i = 0; i < f.slots; i++)
		f.ids[i] = (int32_t)(i % problem.experts);
	rig_run(&f.rig, &f.input, &f.output, f.ids, NULL);
	clean = malloc(f.tokens * hidden * bytes);
	ck_assert_ptr_nonnull(clean);
	memcpy(clean, f.out, f.tokens * hidden * bytes);
	float_put(problem.input_type, f.x, hidden + hidden / 2, NAN);
	rig_run(&f.rig, &f.input, &f.output, f.ids, NULL);
	for (i = 0; i < hidden; i++)
		ck_assert(isnan(float_get(problem.output_type, f.out, hidden + i)));
	memcpy((uint8_t *)f.out + hidden * bytes, clean + hidden * bytes,
	       hidden * bytes);
	ck_assert_mem_eq(f.out, clean, f.tokens * hidden * bytes);
	free(clean);
	full_close(&f);
}
END_TEST

/* An E8M0 byte of 255 in down: the rows that have it, of the tokens routed there. */
START_TEST(a_nan_scale_spoils_its_rows_only)
{
	const struct moek_problem problem = problem_of(&schemes[6]);
	uint64_t groups = (problem.intermediate + 31) / 32, h, t;
	uint8_t *scales;
	struct full f;

	full_open(&f, &problem, 4);
	for (t = 0; t < f.slots; t++)
		f.ids[t] = t / problem.top_k == 2 ? 1 : 0;
	scales = (uint8_t *)(uintptr_t)f.rig.experts[1].down.scales;
	scales[5 * groups + 1] = 255;
	ck_assert_int_eq(any->load_expert(f.rig.layer, 1, &f.rig.experts[1]), 0);
	rig_run(&f.rig, &f.input, &f.output, f.ids, NULL);
	for (t = 0; t < 4; t++)
		for (h = 0; h < problem.hidden; h++)
			ck_assert_int_eq(!isnan(float_get(problem.output_type, f.out,
			                                  t * problem.hidden + h)),
			                 !(t == 2 && h == 5));
	full_close(&f);
}
END_TEST

/* ---- what it says before anything runs ---- */

static void refused(const struct moek_problem *problem, uint32_t rule,
                    uint32_t projection)
{
	struct moek_verdict verdict;

	ck_assert_int_eq(ask(problem, &verdict), 0);
	ck_assert_uint_eq(verdict.rule, rule);
	ck_assert_uint_eq(verdict.projection, projection);
}

START_TEST(refuses_what_has_no_meaning)
{
	const struct moek_problem int4 = problem_of(&schemes[0]),
				  mx = problem_of(&schemes[6]);
	const struct moek_problem rows = problem_of(&schemes[7]),
				  fp8 = problem_of(&schemes[13]);
	struct moek_problem p;
	struct moek_verdict verdict;

	ck_assert(ask(&int4, &verdict) && ask(&mx, &verdict) && ask(&rows, &verdict) &&
	          ask(&fp8, &verdict));
#define REFUSED(base, change, rule, projection)                                        \
	(p = (base), (change), refused(&p, rule, projection))
	REFUSED(int4, p.gate_up.weight = MOEK_F8_E4M3, MOEK_RULE_WEIGHT, MOEK_GATE_UP);
	REFUSED(int4, p.down.weight = 99, MOEK_RULE_WEIGHT, MOEK_DOWN);
	REFUSED(int4, p.down.scale = 0, MOEK_RULE_SCALE, MOEK_DOWN);
	REFUSED(int4, p.down.scale = MOEK_U8, MOEK_RULE_SCALE, MOEK_DOWN);
	REFUSED(mx, p.down.scale = MOEK_BF16, MOEK_RULE_SCALE, MOEK_DOWN);
	REFUSED(mx, p.gate_up.group_size = 16, MOEK_RULE_GROUP_SIZE, MOEK_GATE_UP);
	REFUSED(mx, p.gate_up.zero_points = 1, MOEK_RULE_ZERO_POINTS, MOEK_GATE_UP);
	REFUSED(rows, p.gate_up.scale = MOEK_F32, MOEK_RULE_SCALE, MOEK_GATE_UP);
	REFUSED(rows, p.gate_up.zero_points = 1, MOEK_RULE_ZERO_POINTS, MOEK_GATE_UP);
	REFUSED(rows, p.gate_up.column_groups = 1, MOEK_RULE_COLUMN_GROUPS,
	        MOEK_GATE_UP);
	REFUSED(fp8, p.down.input_scale = 0, MOEK_RULE_ACTIVATIONS, MOEK_DOWN);
	REFUSED(int4, p.activations = 77, MOEK_RULE_ACTIVATIONS, 0);
	REFUSED(int4, p.activations = MOEK_A8_INT8, MOEK_RULE_ACTIVATIONS, 0);
	REFUSED(int4, p.input_type = MOEK_F8_E4M3, MOEK_RULE_INPUT_TYPE, 0);
	REFUSED(int4, p.output_type = MOEK_I32, MOEK_RULE_OUTPUT_TYPE, 0);
	REFUSED(int4, p.activation = 8, MOEK_RULE_ACTIVATION, 0);
	REFUSED(int4, p.activation = 0, MOEK_RULE_ACTIVATION, 0);
	REFUSED(int4, p.activation = MOEK_RELU2, MOEK_RULE_GATED, 0);
	REFUSED(int4, p.limit = -1, MOEK_RULE_LIMIT, 0);
	REFUSED(int4, p.limit = NAN, MOEK_RULE_LIMIT, 0);
	REFUSED(int4, p.activation = MOEK_SITU, MOEK_RULE_ALPHA_BETA, 0);
	REFUSED(int4, p.beta = INFINITY, MOEK_RULE_ALPHA_BETA, 0);
	REFUSED(int4, p.hidden = 0, MOEK_RULE_HIDDEN, 0);
	REFUSED(int4, p.intermediate = 0, MOEK_RULE_INTERMEDIATE, 0);
	REFUSED(int4, p.top_k = 0, MOEK_RULE_TOP_K, 0);
	REFUSED(int4, p.top_k = INT32_MAX, MOEK_RULE_TOP_K, 0);
	REFUSED(int4, p.experts_local = INT32_MAX, MOEK_RULE_EXPERTS, 0);
	REFUSED(int4, p.hidden = UINT64_MAX, MOEK_RULE_INDEX_RANGE, 0);
	REFUSED(int4, p.intermediate = UINT64_MAX / 256, MOEK_RULE_INDEX_RANGE, 0);
	REFUSED(int4, p.hidden = p.intermediate = UINT64_C(1) << 31,
	        MOEK_RULE_INDEX_RANGE, 0);
}
END_TEST

START_TEST(runs_on_the_host_only)
{
	struct moek_device device = { .struct_size = MOEK_DEVICE_SIZE_1_0,
		                      .kind = MOEK_HOST };
	struct moek_verdict verdict = { 0 };

	ck_assert(any->supports_device(NULL, &device, &verdict));
	device.kind = MOEK_HIP;
	ck_assert(!any->supports_device(NULL, &device, &verdict));
	ck_assert_uint_eq(verdict.rule, MOEK_RULE_DEVICE_KIND);
}
END_TEST

/* Kimi-K2: more than 2^32 weights. Planned, not allocated. */
START_TEST(big_layers_are_planned_in_64_bits)
{
	struct moek_problem p = problem_of(&schemes[0]);
	struct moek_buffer few[MOEK_MAX_BUFFERS], many[MOEK_MAX_BUFFERS];
	uint64_t align, matrix = UINT64_C(7168) * 2048, bytes;
	int32_t count, i;
	struct moek_verdict verdict;

	p.experts = p.experts_local = 384;
	p.top_k = 8;
	p.hidden = 7168;
	p.intermediate = 2048;
	ck_assert(ask(&p, &verdict));
	bytes = any->prepared_size(NULL, &p, &align);
	/* half a byte a weight, two bytes for 32, and under 1 KiB an expert of our own
	 */
	ck_assert_uint_ge(bytes, 384 * 3 * (matrix / 2 + matrix / 16));
	ck_assert_uint_lt(bytes, 384 * (3 * (matrix / 2 + matrix / 16) + 1024));
	count = any->workspace_shapes(NULL, &p, 1, 4, few, MOEK_MAX_BUFFERS);
	ck_assert_int_eq(
		any->workspace_shapes(NULL, &p, UINT64_MAX, 4, many, MOEK_MAX_BUFFERS),
		count);
	for (i = 0; i < count; i++) /* never shrinks */
		ck_assert_uint_ge(many[i].elements, few[i].elements);
	ck_assert_int_eq(any->workspace_shapes(NULL, &p, 1, 4, few, 0), count);
}
END_TEST

START_TEST(says_what_its_arithmetic_is)
{
	struct moek_problem p = problem_of(&schemes[0]);
	struct moek_numerics n;
	struct moek_sizes sizes;

	any->numerics(NULL, &p, &n);
	ck_assert_uint_eq(n.struct_size, MOEK_NUMERICS_SIZE_1_0);
	ck_assert_uint_eq(n.accumulator, MOEK_F32);
	ck_assert_uint_eq(n.roundings, 1);
	ck_assert_uint_eq(n.repeatable, 1);
	ck_assert_uint_eq(n.terms, 128 + 96 + 2 + 16);
	p.input_type = MOEK_F32;
	any->numerics(NULL, &p, &n);
	ck_assert_uint_eq(n.roundings, 0);
	any->problem_size(NULL, &p, &sizes);
	ck_assert_uint_eq(sizes.gate_up_columns, 192);
	p.gated = 0;
	any->problem_size(NULL, &p, &sizes);
	ck_assert_uint_eq(sizes.gate_up_columns, 96);
	ck_assert_uint_eq(any->finalize(NULL, &p, 3), MOEK_REDUCED);
}
END_TEST

START_TEST(an_expert_that_contradicts_the_problem_is_not_loaded)
{
	const struct moek_problem problem = problem_of(&schemes[3]);
	const uint32_t *group;
	struct moek_expert e;
	struct full f;
	uint32_t *wrong;

	full_open(&f, &problem, 1);
#define CONTRADICTS(change)                                                            \
	do {                                                                           \
		e = f.rig.experts[0];                                                  \
		(change);                                                              \
		ck_assert_int_eq(any->load_expert(f.rig.layer, 0, &e),                 \
		                 MOEK_BAD_ARGUMENT);                                   \
	} while (0)
	CONTRADICTS(e.gate.rows++);
	CONTRADICTS(e.up.columns--);
	CONTRADICTS(e.down.weight = MOEK_MXFP4);
	CONTRADICTS(e.down.group_size = 8);
	CONTRADICTS(e.up.scale = MOEK_F16);
	CONTRADICTS(e.up.scales = NULL);
	CONTRADICTS(e.up.codes = NULL);
	CONTRADICTS(e.up.zeros = NULL);
	CONTRADICTS(e.up.column_group = NULL);
	CONTRADICTS(e.down.bias = (const float *)e.down.scales);
	group = f.rig.experts[0].gate.column_group;
	wrong = malloc(problem.hidden * sizeof(*wrong));
	ck_assert_ptr_nonnull(wrong);
	memcpy(wrong, group, problem.hidden * sizeof(*wrong));
	wrong[problem.hidden - 1] = 5; /* of 5 */
	CONTRADICTS(e.gate.column_group = wrong);
	ck_assert_int_eq(any->load_expert(f.rig.layer, 0, &f.rig.experts[0]), MOEK_OK);
	free(wrong);
	full_close(&f);
}
END_TEST

START_TEST(static_scales_must_be_there_and_agree)
{
	const struct moek_problem problem = problem_of(&schemes[13]);
	struct moek_expert e;
	struct full f;

	full_open(&f, &problem, 1);
	CONTRADICTS(e.up.input_scale *= 2);
	CONTRADICTS(e.down.input_scale = 0);
	CONTRADICTS(e.down.input_scale = NAN);
	CONTRADICTS(e.gate.input_scale = e.up.input_scale = INFINITY);
	ck_assert_int_eq(any->load_expert(f.rig.layer, 0, &f.rig.experts[0]), MOEK_OK);
	full_close(&f);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("emulation");
	TCase *worked = tcase_create("worked numbers"),
	      *whole = tcase_create("every scheme");
	TCase *hooks = tcase_create("hooks");

	tcase_add_checked_fixture(worked, open_emulation, NULL);
	tcase_add_test(worked, ex_fw1_stage_by_stage);
	tcase_add_test(worked, ex_fw2_router_weight_on_output_and_on_input);
	tcase_add_test(worked, v_e2e_silu);
	tcase_add_test(worked, v_e2e_gpt_oss);
	tcase_add_test(worked, v_e2e_llama_weights_the_input);
	tcase_add_loop_test(worked, ex_w4_a_gemm_that_is_exact, 0, 3);
	tcase_add_test(worked, ex_ct1_v_ct_1_and_v_ct_3);
	tcase_add_test(worked, v_ct_4_activation_order);
	tcase_add_test(worked, v_gptq_1_zero_points);
	tcase_add_test(worked, v_mx_2_and_edge_scales);
	tcase_add_test(worked, int8_weights);
	tcase_add_loop_test(worked, activation_tables, 0, ACTIVATIONS);
	suite_add_tcase(s, worked);

	tcase_add_checked_fixture(whole, open_emulation, NULL);
	tcase_add_loop_test(whole, every_scheme_stage_by_stage, 0, SCHEMES);
	tcase_add_loop_test(whole, same_bits_for_any_number_of_workers_and_any_trace, 0,
	                    SCHEMES);
	tcase_add_loop_test(whole, a_nan_in_one_token_stays_there, 0, SCHEMES);
	tcase_add_test(whole, a_nan_scale_spoils_its_rows_only);
	tcase_add_loop_test(whole, long_batches_are_cut_and_nobody_sees_it, 0, 1);
	tcase_add_loop_test(whole, long_batches_are_cut_and_nobody_sees_it, 11, 12);
	tcase_add_test(whole, strided_rows_and_what_lies_between);
	tcase_add_test(whole, nobody_routed_is_exactly_zero);
	suite_add_tcase(s, whole);

	tcase_add_checked_fixture(hooks, open_emulation, NULL);
	tcase_add_test(hooks, refuses_what_has_no_meaning);
	tcase_add_test(hooks, runs_on_the_host_only);
	tcase_add_test(hooks, big_layers_are_planned_in_64_bits);
	tcase_add_test(hooks, says_what_its_arithmetic_is);
	tcase_add_test(hooks, an_expert_that_contradicts_the_problem_is_not_loaded);
	tcase_add_test(hooks, static_scales_must_be_there_and_agree);
	suite_add_tcase(s, hooks);
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
