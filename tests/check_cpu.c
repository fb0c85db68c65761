/* SPDX-License-Identifier: MIT */
/* plugins/cpu: the layout, and every instruction set of this machine against emulation.
 */
#include "config.h" /* syscall numbers */

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <float.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <moek/formats.h>
#include "tools/kernelcheck/naive.h"
#include "plugins/cpu/cpu.h"

extern const struct moek_plugin moek_plugin_v1;

static const struct moek_experts *emulation;

/* ---- random problems ---- */

static uint64_t seed;

static uint64_t random_bits(void)
{
	/* xorshift64*, Vigna 2016 */
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return seed * UINT64_C(0x2545f4914f6cdd1d);
}

static uint32_t below(uint32_t limit)
{
	return (uint32_t)((random_bits() >> 32) * limit >> 32);
}

static float uniform(void)
{
	return (float)(random_bits() >> 40) / 8388608.0f - 1.0f;
}

static void store(uint32_t type, void *to, uint64_t i, float value)
{
	uint16_t bits;

	if (type == MOEK_F32) {
		memcpy((uint8_t *)to + i * 4, &value, 4);
		return;
	}
	bits = type == MOEK_BF16 ? moek_bf16_from_f32(value) : moek_f16_from_f32(value);
	memcpy((uint8_t *)to + i * 2, &bits, 2);
}

static float fetch(uint32_t type, const void *from, uint64_t i)
{
	uint16_t bits;
	float value;

	if (type == MOEK_F32) {
		memcpy(&value, (const uint8_t *)from + i * 4, 4);
		return value;
	}
	memcpy(&bits, (const uint8_t *)from + i * 2, 2);
	return type == MOEK_BF16 ? moek_bf16_to_f32(bits) : moek_f16_to_f32(bits);
}

static void *bytes(uint64_t count)
{
	void *memory = aligned_alloc(64, (count + 127) / 64 * 64);

	ck_assert_ptr_nonnull(memory);
	memset(memory, 0xff, (count + 127) / 64 * 64); /* NaN, whatever it is read as */
	return memory;
}

static struct moek_matrix random_matrix(const struct moek_scheme *scheme, uint64_t rows,
                                        uint64_t columns)
{
	uint64_t group = scheme->group_size != 0 ? scheme->group_size : columns;
	uint64_t groups = (columns + group - 1) / group, i;
	int unquantised = cpu_is_rows(scheme);
	uint64_t code_bytes = rows * (!unquantised                 ? (columns + 1) / 2
	                              : scheme->weight == MOEK_F32 ? columns * 4
	                                                           : columns * 2);
	struct moek_matrix matrix = {
		.struct_size = MOEK_MATRIX_SIZE_1_0,
		.weight = scheme->weight,
		.rows = rows,
		.columns = columns,
		.group_size = group,
		.scale = scheme->scale,
	};
	uint8_t *codes = bytes(code_bytes), *scales = bytes(rows * groups * 4);

	for (i = 0; i < code_bytes; i++)
		codes[i] = (uint8_t)random_bits();
	for (i = 0; unquantised && i < rows * columns; i++)
		store(scheme->weight, codes, i, 0.1f * uniform());
	for (i = 0; !unquantised && i < rows * groups; i++)
		if (scheme->scale == MOEK_E8M0)
			scales[i] = (uint8_t)(121 + below(3));
		else
			store(scheme->scale, scales, i, 0.02f + 0.01f * uniform());
	matrix.codes = codes;
	matrix.scales = scales;
	if (unquantised) {
		free(scales);
		matrix.scales = NULL;
	}
	if (scheme->zero_points) {
		uint8_t *zeros = bytes(rows * groups);

		for (i = 0; i < rows * groups; i++)
			zeros[i] = (uint8_t)below(17);
		matrix.zeros = zeros;
	}
	if (scheme->bias) {
		float *bias = bytes(rows * sizeof(float));

		for (i = 0; i < rows; i++)
			bias[i] = uniform();
		matrix.bias = bias;
	}
	return matrix;
}

static void free_matrix(struct moek_matrix *matrix)
{
	free((void *)(uintptr_t)matrix->codes);
	free((void *)(uintptr_t)matrix->scales);
	free((void *)(uintptr_t)matrix->zeros);
	free((void *)(uintptr_t)matrix->bias);
}

struct sample {
	struct moek_problem problem;
	uint64_t tokens;
	struct moek_expert *experts;
	void *input;
	int32_t *ids;
	float *weights;
};

static void make(struct sample *sample)
{
	const struct moek_problem *p = &sample->problem;
	uint64_t i, k;

	sample->experts = calloc(p->experts_local, sizeof(*sample->experts));
	ck_assert_ptr_nonnull(sample->experts);
	for (i = 0; i < p->experts_local; i++) {
		struct moek_expert *e = &sample->experts[i];

		e->gate = random_matrix(&p->gate_up, p->intermediate, p->hidden);
		if (p->gated)
			e->up = random_matrix(&p->gate_up, p->intermediate, p->hidden);
		e->down = random_matrix(&p->down, p->hidden, p->intermediate);
	}
	sample->input = bytes(sample->tokens * p->hidden * 4);
	for (i = 0; i < sample->tokens * p->hidden; i++)
		store(p->input_type, sample->input, i, uniform());
	sample->ids = bytes(sample->tokens * p->top_k * 4);
	sample->weights = bytes(sample->tokens * p->top_k * 4);
	for (i = 0; i < sample->tokens; i++)
		for (k = 0; k < p->top_k; k++) {
			uint64_t slot = i * p->top_k + k;

			sample->ids[slot] = (int32_t)below((uint32_t)p->experts_local +
			                                   1) -
			                    1;
			sample->weights[slot] = uniform();
		}
}

static void unmake(struct sample *sample)
{
	uint64_t i;

	for (i = 0; i < sample->problem.experts_local; i++) {
		free_matrix(&sample->experts[i].gate);
		free_matrix(&sample->experts[i].up);
		free_matrix(&sample->experts[i].down);
	}
	free(sample->experts);
	free(sample->input);
	free(sample->ids);
	free(sample->weights);
}

/* ---- running one ---- */

static void backwards(void *self, uint64_t tasks,
                      void (*body)(void *arg, uint64_t i, uint32_t worker), void *arg)
{
	uint32_t count = *(const uint32_t *)self;
	uint64_t i;

	for (i = tasks; i-- > 0;)
		body(arg, i, (uint32_t)(i % count));
}

/* What `experts` makes of a sample, as fp32; with magnitudes if not NULL. */
static float *run(const struct moek_experts *experts, const struct sample *sample,
                  uint32_t worker_count, struct moek_trace *trace)
{
	const struct moek_problem *p = &sample->problem;
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
	struct moek_device device = { .struct_size = MOEK_DEVICE_SIZE_1_0 };
	struct moek_buffer buffers[MOEK_MAX_BUFFERS];
	void *memory[MOEK_MAX_BUFFERS];
	struct moek_workers workers = { MOEK_WORKERS_SIZE_1_0, worker_count,
		                        &worker_count, backwards };
	uint64_t align, i, outputs = sample->tokens * p->hidden;
	void *weights, *layer = NULL, *output = bytes(outputs * 4);
	float *result = bytes(outputs * sizeof(float));
	int32_t count, k;
	struct moek_batch batch = {
		.struct_size = MOEK_BATCH_SIZE_1_0,
		.input = { sample->input, sample->tokens, p->hidden, 0, p->input_type,
		           0 },
		.output = { output, sample->tokens, p->hidden, 0, p->output_type, 0 },
		.topk_ids = sample->ids,
		.topk_weights = sample->weights,
		.buffers = memory,
		.workers = &workers,
		.trace = trace,
	};

	ck_assert_msg(experts->supports_quant_scheme(NULL, p, &no) &&
	                      experts->supports_activation(NULL, p, &no) &&
	                      experts->supports_parallel(NULL, p, &no) &&
	                      experts->supports_shape(NULL, p, &no),
	              "%s refuses by rule %u", experts->name, no.rule);
	weights = bytes(experts->prepared_size(NULL, p, &align));
	ck_assert_int_eq(experts->create(NULL, &device, p, weights, &layer), MOEK_OK);
	for (i = 0; i < p->experts_local; i++)
		ck_assert_int_eq(experts->load_expert(layer, i, &sample->experts[i]),
		                 0);
	ck_assert_int_eq(experts->finish(layer), MOEK_OK);
	count = experts->workspace_shapes(NULL, p, sample->tokens, worker_count,
	                                  buffers, MOEK_MAX_BUFFERS);
	ck_assert_int_gt(count, 0);
	for (k = 0; k < count; k++) {
		uint64_t each = buffers[k].type == MOEK_U8 ? 1 : 4;
		uint64_t copies = buffers[k].per_worker ? worker_count : 1;
		uint64_t size = (buffers[k].elements * each + 63) / 64 * 64;

		memory[k] = bytes(size * copies);
		if (buffers[k].zeroed)
			memset(memory[k], 0, size * copies);
	}
	batch.buffer_count = (uint32_t)count;
	ck_assert_int_eq(experts->forward(layer, &batch), MOEK_OK);
	experts->destroy(layer);
	for (i = 0; i < outputs; i++)
		result[i] = fetch(p->output_type, output, i);
	for (k = 0; k < count; k++)
		free(memory[k]);
	free(weights);
	free(output);
	return result;
}

static double epsilon(uint32_t type)
{
	return type == MOEK_F32 ? FLT_EPSILON : type == MOEK_F16 ? 0x1p-10 : 0x1p-7;
}

static void agree(const struct moek_experts *experts, const struct sample *sample,
                  const char *name)
{
	const struct moek_problem *p = &sample->problem;
	uint64_t outputs = sample->tokens * p->hidden, i;
	float *size = bytes(outputs * sizeof(float)), *want, *got;
	struct moek_trace trace = { .struct_size = MOEK_TRACE_SIZE_1_0,
		                    .magnitudes = size };
	struct moek_numerics numerics = { 0 };
	double error_sum = 0, sum = 0, worst = 0, relative;

	want = run(emulation, sample, 1, &trace);
	got = run(experts, sample, 1, NULL);
	experts->numerics(NULL, p, &numerics);
	for (i = 0; i < outputs; i++) {
		double allowed = ((double)numerics.terms * FLT_EPSILON +
		                  numerics.roundings * epsilon(p->input_type)) *
		                         (double)size[i] +
		                 epsilon(p->output_type) * fabs((double)want[i]);
		/* a code on the other side of a tie is 1/127 of its group's largest */
		if (p->activations == MOEK_A8_INT8)
			allowed += (double)size[i] / 127 * 0.02;
		double error = fabs((double)got[i] - (double)want[i]);

		ck_assert_msg(error <= allowed,
		              "%s, %s: output[%llu] is %a, emulation says %a, "
		              "allowed %g",
		              experts->name, name, (unsigned long long)i,
		              (double)got[i], (double)want[i], allowed);
		if (allowed > 0 && error / allowed > worst)
			worst = error / allowed;
		error_sum += error * error;
		sum += (double)want[i] * (double)want[i];
	}
	/* what is allowed grows with cancellation, the norm of all errors does not: the
	 * few values that fall on the other side of a rounding */
	relative = sqrt(error_sum / sum);
	ck_assert_msg(relative <= (p->input_type == MOEK_F32 ? 1e-6 : 1e-4),
	              "%s, %s: relative error %g", experts->name, name, relative);
	if (getenv("CHECK_CPU_SHOW") != NULL)
		printf("%-12s %-24s %.4f of what is allowed, relative %g\n",
		       experts->name, name, worst, relative);
	free(size);
	free(want);
	free(got);
}

static const struct moek_experts *table(enum level level)
{
	const struct moek_experts *const *experts = moek_plugin_v1.experts;

	while (*experts != NULL &&
	       strcmp((*experts)->name, cpu_level_names[level]) != 0)
		experts++;
	ck_assert_ptr_nonnull(*experts);
	return *experts;
}

static int is_here(int level)
{
	return cpu_kernels((enum level)level) != NULL &&
	       (cpu_levels_here() >> level & 1) != 0;
}

/* ---- cases ---- */

#define INT4(scale_type, group)                                                        \
	{                                                                              \
		.weight = MOEK_INT4, .scale = scale_type, .group_size = group          \
	}
#define INT4_ZEROS(scale_type, group)                                                  \
	{                                                                              \
		.weight = MOEK_INT4, .scale = scale_type, .group_size = group,         \
		.zero_points = 1                                                       \
	}
#define MXFP4                                                                          \
	{                                                                              \
		.weight = MOEK_MXFP4, .scale = MOEK_E8M0, .group_size = 32             \
	}
#define MXFP4_BIAS                                                                     \
	{                                                                              \
		.weight = MOEK_MXFP4, .scale = MOEK_E8M0, .group_size = 32, .bias = 1  \
	}
#define ROWS_OF_TYPE(type)                                                             \
	{                                                                              \
		.weight = type                                                         \
	}
#define PROBLEM(h, i, type)                                                            \
	.experts = 5, .experts_local = 5, .top_k = 3, .hidden = h, .intermediate = i,  \
	.max_tokens = 64, .input_type = type, .output_type = type, .gated = 1,         \
	.shards = 1

static const struct {
	const char *name;
	uint64_t tokens;
	struct moek_problem problem;
} cases[] = {
	{ "int4 g32",
	  7,
	  { PROBLEM(128, 96, MOEK_BF16), .activation = MOEK_SILU,
	    .gate_up = INT4(MOEK_F16, 32), .down = INT4(MOEK_F16, 32) } },
	{ "int4 g32 fp16",
	  7,
	  { PROBLEM(128, 96, MOEK_F16), .activation = MOEK_SILU,
	    .gate_up = INT4(MOEK_BF16, 32), .down = INT4(MOEK_BF16, 32) } },
	{ "int4 g32 fp32",
	  7,
	  { PROBLEM(128, 96, MOEK_F32), .activation = MOEK_SILU,
	    .gate_up = INT4(MOEK_F32, 32), .down = INT4(MOEK_F32, 32) } },
	{ "int4 g16",
	  9,
	  { PROBLEM(80, 112, MOEK_BF16), .activation = MOEK_GELU,
	    .gate_up = INT4(MOEK_F16, 16), .down = INT4(MOEK_BF16, 16) } },
	{ "int4 g64, g128",
	  9,
	  { PROBLEM(320, 192, MOEK_BF16), .activation = MOEK_GELU_TANH,
	    .gate_up = INT4(MOEK_BF16, 64), .down = INT4(MOEK_F16, 128) } },
	{ "int4 channel",
	  33,
	  { PROBLEM(96, 160, MOEK_BF16), .activation = MOEK_SWIGLU_STEP, .limit = 7,
	    .gate_up = INT4(MOEK_F32, 0), .down = INT4(MOEK_F32, 0) } },
	{ "zeros g32",
	  5,
	  { PROBLEM(96, 64, MOEK_BF16), .activation = MOEK_SILU, .limit = 1,
	    .gate_up = INT4_ZEROS(MOEK_F16, 32), .down = INT4_ZEROS(MOEK_F16, 32) } },
	{ "zeros g16, g128",
	  5,
	  { PROBLEM(48, 272, MOEK_F16), .activation = MOEK_SILU,
	    .gate_up = INT4_ZEROS(MOEK_F16, 16), .down = INT4_ZEROS(MOEK_BF16, 128) } },
	{ "odd sizes",
	  3,
	  { PROBLEM(45, 37, MOEK_BF16), .activation = MOEK_SITU, .alpha = 4, .beta = 25,
	    .gate_up = INT4_ZEROS(MOEK_F16, 32), .down = INT4(MOEK_F16, 16) } },
	{ "tiny",
	  2,
	  { PROBLEM(1, 1, MOEK_F32), .activation = MOEK_SILU,
	    .gate_up = INT4(MOEK_F16, 32), .down = INT4_ZEROS(MOEK_F16, 16) } },
	{ "mxfp4 gpt-oss",
	  11,
	  { PROBLEM(96, 160, MOEK_BF16), .activation = MOEK_SWIGLU_OAI, .alpha = 1.702f,
	    .beta = 1, .limit = 7, .gate_up = MXFP4_BIAS, .down = MXFP4_BIAS } },
	{ "mxfp4 odd",
	  6,
	  { PROBLEM(90, 70, MOEK_F32), .activation = MOEK_SILU, .gate_up = MXFP4,
	    .down = MXFP4_BIAS } },
	{ "mixed",
	  6,
	  { PROBLEM(64, 64, MOEK_F16), .activation = MOEK_SILU, .gate_up = MXFP4,
	    .down = INT4_ZEROS(MOEK_F32, 64) } },
	{ "bf16 rows",
	  7,
	  { PROBLEM(128, 96, MOEK_BF16), .activation = MOEK_SILU,
	    .gate_up = ROWS_OF_TYPE(MOEK_BF16), .down = ROWS_OF_TYPE(MOEK_BF16) } },
	{ "bf16 rows, fp16 in, odd",
	  9,
	  { PROBLEM(45, 37, MOEK_F16), .activation = MOEK_GELU,
	    .gate_up = ROWS_OF_TYPE(MOEK_BF16), .down = ROWS_OF_TYPE(MOEK_BF16) } },
	{ "fp16 and fp32 rows",
	  5,
	  { PROBLEM(70, 33, MOEK_BF16), .activation = MOEK_SILU,
	    .gate_up = ROWS_OF_TYPE(MOEK_F16), .down = ROWS_OF_TYPE(MOEK_F32) } },
	{ "fp32 and fp16 rows",
	  2,
	  { PROBLEM(64, 90, MOEK_F32), .activation = MOEK_SILU,
	    .gate_up = ROWS_OF_TYPE(MOEK_F32), .down = ROWS_OF_TYPE(MOEK_F16) } },
	{ "bf16 rows and int4",
	  6,
	  { PROBLEM(64, 64, MOEK_BF16), .activation = MOEK_SILU,
	    .gate_up = ROWS_OF_TYPE(MOEK_BF16), .down = INT4_ZEROS(MOEK_F32, 64) } },
	{ "many tokens",
	  60,
	  { PROBLEM(64, 64, MOEK_BF16), .activation = MOEK_SILU,
	    .gate_up = INT4(MOEK_F16, 32), .down = MXFP4 } },
};

static void sample_of(size_t i, struct sample *sample)
{
	memset(sample, 0, sizeof(*sample));
	sample->problem = cases[i].problem;
	sample->problem.struct_size = MOEK_PROBLEM_SIZE_1_0;
	sample->tokens = cases[i].tokens;
	seed = i + 1;
}

static void check_levels(struct sample *sample, const char *name)
{
	int level;

	make(sample);
	for (level = 0; level < LEVELS; level++)
		if (is_here(level))
			agree(table((enum level)level), sample, name);
	unmake(sample);
}

START_TEST(agrees_with_emulation)
{
	struct sample sample;

	sample_of((size_t)_i, &sample);
	check_levels(&sample, cases[_i].name);
}
END_TEST

START_TEST(agrees_when_not_gated)
{
	struct sample sample;

	sample_of((size_t)_i, &sample);
	sample.problem.gated = 0;
	if (sample.problem.activation == MOEK_SILU) {
		sample.problem.activation = MOEK_RELU2;
		sample.problem.limit = 0;
	}
	check_levels(&sample, cases[_i].name);
}
END_TEST

START_TEST(agrees_with_int8_activations)
{
	struct sample sample;

	sample_of((size_t)_i, &sample);
	sample.problem.activations = MOEK_A8_INT8;
	sample.problem.activations_group = 32;
	if (cpu_is_rows(&sample.problem.gate_up) || cpu_is_rows(&sample.problem.down)) {
		struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };

		ck_assert_int_eq(
			table(LEVEL_PLAIN)
				->supports_quant_scheme(NULL, &sample.problem, &no),
			0);
		ck_assert_uint_eq(no.rule, MOEK_RULE_ACTIVATIONS);
		ck_assert_uint_eq(no.accepted[0], MOEK_A16);
		return;
	}
	check_levels(&sample, cases[_i].name);
}
END_TEST

START_TEST(gives_the_same_bits_for_any_number_of_workers)
{
	struct sample sample;
	float *one, *other;
	uint32_t workers;
	int level;

	sample_of((size_t)_i, &sample);
	make(&sample);
	for (level = 0; level < LEVELS; level++) {
		if (!is_here(level))
			continue;
		one = run(table((enum level)level), &sample, 1, NULL);
		for (workers = 2; workers < 100; workers *= 7) {
			other = run(table((enum level)level), &sample, workers, NULL);
			ck_assert_mem_eq(one, other,
			                 sample.tokens * sample.problem.hidden *
			                         sizeof(float));
			free(other);
		}
		free(one);
	}
	unmake(&sample);
}
END_TEST

START_TEST(gives_a_token_the_same_bits_whoever_shares_its_experts)
{
	struct sample sample, alone;
	uint64_t i, row;
	float *all, *one;
	int level;

	sample_of((size_t)_i, &sample);
	make(&sample);
	row = sample.problem.hidden * (sample.problem.input_type == MOEK_F32 ? 4 : 2);
	/* tiles sum in another order than the dot products of few tokens */
	for (level = 0; level <= LEVEL_AVX512BF16; level++) {
		if (!is_here(level))
			continue;
		all = run(table((enum level)level), &sample, 1, NULL);
		for (i = 0; i < sample.tokens; i++) {
			alone = sample;
			alone.tokens = 1;
			alone.input = (uint8_t *)sample.input + i * row;
			alone.ids += i * sample.problem.top_k;
			alone.weights += i * sample.problem.top_k;
			one = run(table((enum level)level), &alone, 1, NULL);
			ck_assert_msg(
				memcmp(one, all + i * sample.problem.hidden,
			               sample.problem.hidden * sizeof(float)) == 0,
				"%s, %s: token %llu alone differs", cases[_i].name,
				cpu_level_names[level], (unsigned long long)i);
			free(one);
		}
		free(all);
	}
	unmake(&sample);
}
END_TEST

/* ---- the whole layer against float64 ---- */

static float gaussian(void)
{
	float sum = 0;
	int i;

	for (i = 0; i < 12; i++)
		sum += uniform();
	return sum / 2;
}

/* In float64 with nothing rounded, neither between the GEMMs nor by a scheme of
 * activations. */
static void exact(const struct sample *sample, double *y_out)
{
	const struct moek_problem *p = &sample->problem;
	double *x = calloc(p->hidden + p->intermediate, sizeof(*x)), *a = x + p->hidden;
	double size;
	uint64_t t, i;

	ck_assert_ptr_nonnull(x);
	for (t = 0; t < sample->tokens; t++) {
		const struct moek_expert *e = &sample->experts[sample->ids[t]];

		for (i = 0; i < p->hidden; i++)
			x[i] = (double)fetch(p->input_type, sample->input,
			                     t * p->hidden + i);
		for (i = 0; i < p->intermediate; i++)
			a[i] = naive_activate(p, naive_dot(&e->gate, i, x, &size),
			                      naive_dot(&e->up, i, x, &size));
		for (i = 0; i < p->hidden; i++)
			y_out[t * p->hidden + i] = naive_dot(&e->down, i, a, &size) *
			                           (double)sample->weights[t];
	}
	free(x);
}

static const struct {
	const char *name;
	struct moek_scheme scheme;
	uint32_t input_type, activations;
	double most; /* relative to the length of all outputs */
} errors[] = {
	{ "int4 g32, bf16", INT4(MOEK_BF16, 32), MOEK_BF16, MOEK_A16, 2e-3 },
	{ "int4 g32, fp32", INT4(MOEK_BF16, 32), MOEK_F32, MOEK_A16, 1e-6 },
	{ "int4 g32, int8", INT4(MOEK_BF16, 32), MOEK_BF16, MOEK_A8_INT8, 1.3e-2 },
	{ "mxfp4, bf16", MXFP4, MOEK_BF16, MOEK_A16, 2e-3 },
	{ "mxfp4, int8", MXFP4, MOEK_BF16, MOEK_A8_INT8, 1.3e-2 },
	{ "bf16 rows, bf16", ROWS_OF_TYPE(MOEK_BF16), MOEK_BF16, MOEK_A16, 2e-3 },
};

START_TEST(is_near_float64)
{
	struct sample sample = {
		.tokens = 8,
		.problem = { PROBLEM(1024, 512, MOEK_BF16), .activation = MOEK_SILU },
	};
	struct moek_problem *p = &sample.problem;
	uint64_t outputs = sample.tokens * p->hidden, i;
	double *want = calloc(outputs, sizeof(*want));
	int level;

	ck_assert_ptr_nonnull(want);
	seed = 77;
	p->struct_size = MOEK_PROBLEM_SIZE_1_0;
	p->top_k = 1;
	p->gate_up = p->down = errors[_i].scheme;
	p->input_type = errors[_i].input_type;
	p->output_type = MOEK_F32;
	p->activations = errors[_i].activations;
	p->activations_group = p->activations == MOEK_A8_INT8 ? 32 : 0;
	make(&sample);
	for (i = 0; i < outputs; i++)
		store(p->input_type, sample.input, i, 0.1f * gaussian());
	for (i = 0; i < sample.tokens; i++)
		sample.ids[i] = (int32_t)(i % p->experts);
	exact(&sample, want);
	for (level = 0; level < LEVELS; level++) {
		double error = 0, length = 0;
		float *got;

		if (!is_here(level))
			continue;
		got = run(table((enum level)level), &sample, 1, NULL);
		for (i = 0; i < outputs; i++) {
			error += ((double)got[i] - want[i]) *
			         ((double)got[i] - want[i]);
			length += want[i] * want[i];
		}
		error = sqrt(error / length);
		if (getenv("CHECK_CPU_SHOW") != NULL)
			printf("%-12s %-24s %.2e from float64\n",
			       cpu_level_names[level], errors[_i].name, error);
		ck_assert_msg(error <= errors[_i].most,
		              "%s, %s: %.2e from float64, at most %.1e is promised",
		              cpu_level_names[level], errors[_i].name, error,
		              errors[_i].most);
		free(got);
	}
	free(want);
	unmake(&sample);
}
END_TEST

/* ---- the layout ---- */

/* Code, scale bits and zero of one weight, read back from a packed matrix. */
static void unpack(const struct layout *layout, const uint8_t *packed,
                   uint64_t packed_row, uint64_t column, uint32_t *code,
                   uint32_t *scale, uint32_t *zero)
{
	uint64_t r = packed_row % ROWS, step = column / STEP, k = column % STEP;
	const uint8_t *unit = packed + packed_row / ROWS * layout->panel_bytes +
	                      step / layout->unit_steps *
	                              (layout->head_bytes +
	                               layout->unit_steps * STEP_BYTES);
	uint64_t set = layout->sets == 1              ? 0
	               : layout->format == MXFP4_PAIR ? step % 2
	                                              : k / 16;
	const uint8_t *at = unit + layout->head_bytes +
	                    step % layout->unit_steps * STEP_BYTES +
	                    (k / 8 * ROWS + r) * 4;
	uint32_t dword;

	memcpy(&dword, at, sizeof(dword));
	*code = dword >> (k % 8 * 4) & 15;
	*scale = 0;
	memcpy(scale, unit + (set * ROWS + r) * layout->scale_bytes,
	       layout->scale_bytes);
	*zero = unit[layout->sets * ROWS * layout->scale_bytes + set * ROWS + r];
}

/* Bits of one weight of unquantised rows, the same way. */
static uint32_t unpack_row(const struct layout *layout, const uint8_t *packed,
                           uint64_t packed_row, uint64_t column)
{
	uint64_t r = packed_row % ROWS, k = column % STEP;
	uint64_t size = layout->format == ROWS_F32 ? 4 : 2;
	const uint8_t *step = packed + packed_row / ROWS * layout->panel_bytes +
	                      column / STEP * ROWS * STEP * size;
	uint32_t bits = 0;

	if (layout->format == ROWS_BF16)
		memcpy(&bits,
		       step + ((k / 8 * 4 + k % 4) * ROWS + r) * 4 + k % 8 / 4 * 2, 2);
	else
		memcpy(&bits, step + (k * ROWS + r) * size, size);
	return bits;
}

static void check_packed_rows(const struct layout *layout,
                              const struct moek_matrix *matrix, const uint8_t *packed,
                              int part)
{
	uint64_t row, column, size = layout->format == ROWS_F32 ? 4 : 2;

	for (row = 0; row < matrix->rows; row++)
		for (column = 0; column < matrix->columns; column++) {
			uint64_t at = row;
			uint32_t want = 0;

			if (layout->gated)
				at = row / 16 * 32 + (uint64_t)part * 16 + row % 16;
			memcpy(&want,
			       (const uint8_t *)matrix->codes +
			               (row * matrix->columns + column) * size,
			       size);
			ck_assert_uint_eq(unpack_row(layout, packed, at, column), want);
		}
}

static void check_packing(const struct layout *layout, const struct moek_matrix *matrix,
                          const uint8_t *packed, int part)
{
	uint64_t row, column,
		groups = (matrix->columns + layout->group - 1) / layout->group;

	if (layout->format >= ROWS_BF16) {
		check_packed_rows(layout, matrix, packed, part);
		return;
	}
	for (row = 0; row < matrix->rows; row++)
		for (column = 0; column < matrix->columns; column++) {
			uint64_t at = row;
			uint64_t group = row * groups + column / layout->group;
			uint32_t code, scale, zero, want = 0;

			if (layout->gated)
				at = row / 16 * 32 + (uint64_t)part * 16 + row % 16;
			unpack(layout, packed, at, column, &code, &scale, &zero);
			ck_assert_uint_eq(
				code,
				moek_nibble((const uint8_t *)matrix->codes +
			                            row * ((matrix->columns + 1) / 2),
			                    column));
			memcpy(&want,
			       (const uint8_t *)matrix->scales +
			               group * layout->scale_bytes,
			       layout->scale_bytes);
			ck_assert_uint_eq(scale, want);
			if (matrix->zeros != NULL)
				ck_assert_uint_eq(zero, matrix->zeros[group]);
		}
}

START_TEST(packs_every_weight_where_the_layout_says)
{
	struct sample sample;
	struct plan plan;
	uint8_t *packed;

	sample_of((size_t)_i, &sample);
	make(&sample);
	ck_assert_int_eq(cpu_plan(&sample.problem, &plan), 1);
	packed = bytes(plan.gate_up.bytes);
	cpu_pack_matrix(&plan.gate_up, &sample.experts[0].gate, &sample.experts[0].up,
	                packed);
	check_packing(&plan.gate_up, &sample.experts[0].gate, packed, 0);
	check_packing(&plan.gate_up, &sample.experts[0].up, packed, 1);
	free(packed);
	packed = bytes(plan.down.bytes);
	cpu_pack_matrix(&plan.down, &sample.experts[0].down, NULL, packed);
	check_packing(&plan.down, &sample.experts[0].down, packed, 0);
	free(packed);
	unmake(&sample);
}
END_TEST

START_TEST(writes_every_byte_of_the_prepared_weights)
{
	struct sample sample;
	struct plan plan;
	uint8_t *packed[2];
	int i;

	sample_of((size_t)_i, &sample);
	make(&sample);
	ck_assert_int_eq(cpu_plan(&sample.problem, &plan), 1);
	for (i = 0; i < 2; i++) {
		packed[i] = bytes(plan.expert_bytes);
		memset(packed[i], i * 0x55, plan.expert_bytes);
		cpu_pack_matrix(&plan.gate_up, &sample.experts[0].gate,
		                &sample.experts[0].up, packed[i]);
		cpu_pack_matrix(&plan.down, &sample.experts[0].down, NULL,
		                packed[i] + plan.gate_up.bytes);
	}
	ck_assert_mem_eq(packed[0], packed[1], plan.expert_bytes);
	free(packed[0]);
	free(packed[1]);
	unmake(&sample);
}
END_TEST

/* ---- values that are no numbers ---- */

START_TEST(keeps_a_nan_or_an_infinity_in_its_own_token)
{
	static const float bad[] = { NAN, INFINITY, -INFINITY };
	struct sample sample;
	uint64_t hidden, i;
	float *got, *want;
	int level;

	sample_of(0, &sample);
	sample.problem.activations = _i % 2 == 0 ? MOEK_A16 : MOEK_A8_INT8;
	sample.problem.activations_group = _i % 2 == 0 ? 0 : 32;
	make(&sample);
	hidden = sample.problem.hidden;
	for (i = 0; i < sample.tokens * sample.problem.top_k; i++)
		sample.ids[i] = (int32_t)(i % 5);
	store(MOEK_BF16, sample.input, 2 * hidden + 5, bad[_i / 2]);
	want = run(emulation, &sample, 1, NULL);
	for (level = 0; level < LEVELS; level++) {
		if (!is_here(level))
			continue;
		got = run(table((enum level)level), &sample, 1, NULL);
		for (i = 0; i < sample.tokens * hidden; i++) {
			ck_assert_int_eq(isfinite(got[i]), i / hidden != 2);
			ck_assert_int_eq(isfinite(got[i]), isfinite(want[i]));
		}
		free(got);
	}
	free(want);
	unmake(&sample);
}
END_TEST

START_TEST(reads_scale_byte_0_as_2_to_minus_127_and_255_as_nan)
{
	struct sample sample;
	uint8_t *scales;
	float *got;
	int level;

	sample_of(10, &sample);
	sample.problem.gate_up.bias = sample.problem.down.bias = 0;
	make(&sample);
	memset(sample.ids, 0, sample.tokens * sample.problem.top_k * 4);
	scales = (uint8_t *)(uintptr_t)sample.experts[0].down.scales;
	memset(scales, 0, 5 * sample.problem.hidden); /* 160 / 32 groups */
	scales[5 * 7 + 1] = 255;
	for (level = 0; level < LEVELS; level++) {
		uint64_t i;

		if (!is_here(level))
			continue;
		got = run(table((enum level)level), &sample, 1, NULL);
		for (i = 0; i < sample.problem.hidden; i++)
			if (i == 7)
				ck_assert(isnan(got[i]));
			else
				ck_assert(fabsf(got[i]) < 1e-33f);
		free(got);
	}
	unmake(&sample);
}
END_TEST

/* ---- levels and options ---- */

#define WORDS_AVX2 "fma avx2 f16c"
#define WORDS_AVX512 WORDS_AVX2 " avx512f avx512bw avx512vl avx512dq avx512_vnni"

static const struct {
	const char *words;
	uint32_t levels;
} words[] = {
	{ NULL, 1 << LEVEL_PLAIN },
	{ "", 1 << LEVEL_PLAIN },
	{ "asimd fp asimddp i8mm bf16", 1 << LEVEL_PLAIN },
	{ WORDS_AVX2, 1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 },
	{ "fma avx2x f16c", 1 << LEVEL_PLAIN },
	{ WORDS_AVX2 " avx_vnni",
	  1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 | 1 << LEVEL_AVXVNNI },
	{ WORDS_AVX2 " avx_vnni_int8", 1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 },
	{ WORDS_AVX512 "2", 1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 },
	{ WORDS_AVX512, 1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 | 1 << LEVEL_AVX512VNNI },
	{ "avx512_bf16 " WORDS_AVX512, 1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 |
	                                       1 << LEVEL_AVX512VNNI |
	                                       1 << LEVEL_AVX512BF16 },
	/* what stands below is lacking */
	{ WORDS_AVX2 " avx512_bf16", 1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 },
	{ "avx_vnni", 1 << LEVEL_PLAIN },
	{ WORDS_AVX512 " amx_tile amx_bf16",
	  1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 | 1 << LEVEL_AVX512VNNI },
	{ WORDS_AVX512 " avx512_bf16 amx_tile amx_int8",
	  1 << LEVEL_PLAIN | 1 << LEVEL_AVX2 | 1 << LEVEL_AVX512VNNI |
	          1 << LEVEL_AVX512BF16 },
	{ WORDS_AVX512 " avx_vnni avx512_bf16 amx_bf16 amx_tile", (1 << LEVELS) - 1 },
};

START_TEST(knows_levels_by_whole_words)
{
	ck_assert_uint_eq(cpu_levels_of_words(words[_i].words), words[_i].levels);
}
END_TEST

static const char *option_of(void *self, const char *key)
{
	return strcmp(key, "isa") == 0 ? self : NULL;
}

static void keep_quiet(void *self, uint32_t level, const char *text)
{
	(void)self;
	(void)level;
	(void)text;
}

static int32_t open_with(const char *isa, void **plugin_out)
{
	const struct moek_host host = { .struct_size = MOEK_HOST_SIZE_1_0,
		                        .self = (void *)(uintptr_t)isa,
		                        .log = keep_quiet,
		                        .option = option_of };

	return moek_plugin_v1.open(&host, plugin_out);
}

START_TEST(runs_no_level_above_the_option_of_its_own_registry)
{
	const struct moek_device device = {
		.struct_size = MOEK_DEVICE_SIZE_1_0,
		.features =
			"fma avx2 f16c avx512_bf16 avx512f avx512bw avx512vl avx512dq "
			"avx512_vnni"
	};
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
	void *narrow, *wide, *none;

	if (cpu_kernels(LEVEL_AVX2) == NULL || cpu_kernels(LEVEL_AVX512BF16) == NULL)
		return;
	ck_assert_int_eq(open_with("avx2", &narrow), MOEK_OK);
	ck_assert_int_eq(open_with("auto", &wide), MOEK_OK);
	ck_assert_int_eq(table(LEVEL_AVX2)->supports_device(narrow, &device, &no), 1);
	ck_assert_int_eq(table(LEVEL_PLAIN)->supports_device(narrow, &device, &no), 1);
	ck_assert_int_eq(table(LEVEL_AVX512BF16)->supports_device(narrow, &device, &no),
	                 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_ISA);
	ck_assert_int_eq(table(LEVEL_AVX512BF16)->supports_device(wide, &device, &no),
	                 1);
	ck_assert_int_eq(open_with("avx3", &none), MOEK_BAD_CONFIG);
}
END_TEST

#if defined(__x86_64__) && defined(SYS_arch_prctl)
/* From here on the operating system says no to what `cpu_ask_for_tiles` asks. */
static void deny_tiles(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

START_TEST(refuses_tiles_that_the_system_denies)
{
	const struct moek_device device = {
		.struct_size = MOEK_DEVICE_SIZE_1_0,
		.features = words[sizeof(words) / sizeof(words[0]) - 1].words,
	};
	const enum level all = LEVEL_AMX;
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
	void *layer = NULL;
	struct sample sample;

	if (is_here(LEVEL_AMX)) /* it does not deny them yet */
		ck_assert_int_eq(table(LEVEL_AMX)->supports_device(
					 (void *)(uintptr_t)&all, &device, &no),
		                 1);
	deny_tiles();
	ck_assert_int_eq(cpu_ask_for_tiles(), EPERM);
	if (!is_here(LEVEL_AMX))
		return;
	ck_assert_int_eq(table(LEVEL_AMX)->supports_device((void *)(uintptr_t)&all,
	                                                   &device, &no),
	                 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_ISA);
	ck_assert_ptr_nonnull(strstr(no.note, "denied"));
	sample_of(0, &sample);
	ck_assert_int_eq(
		table(LEVEL_AMX)->create(NULL, &device, &sample.problem, NULL, &layer),
		MOEK_DEVICE);
}
END_TEST
#endif

START_TEST(calls_a_level_absent_that_few_cpus_have)
{
	static const struct {
		enum level level;
		uint32_t rule;
	} rules[] = {
		{ LEVEL_AMX, MOEK_RULE_DEVICE_KIND },
		{ LEVEL_AVX512BF16, MOEK_RULE_ISA },
		{ LEVEL_AVX512VNNI, MOEK_RULE_ISA },
		{ LEVEL_AVXVNNI, MOEK_RULE_DEVICE_KIND },
	};
	const struct moek_device device = { .struct_size = MOEK_DEVICE_SIZE_1_0,
		                            .features = WORDS_AVX2 };
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
	const enum level all = LEVELS - 1;
	size_t i;

	for (i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		if (cpu_kernels(rules[i].level) == NULL)
			continue;
		ck_assert_int_eq(table(rules[i].level)
		                         ->supports_device((void *)(uintptr_t)&all,
		                                           &device, &no),
		                 0);
		ck_assert_uint_eq(no.rule, rules[i].rule);
	}
}
END_TEST

START_TEST(refuses_what_it_does_not_run)
{
	const struct moek_experts *experts = table(LEVEL_PLAIN);
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
	struct sample sample;

	sample_of(0, &sample);
	ck_assert_int_eq(experts->supports_quant_scheme(NULL, &sample.problem, &no), 1);
	sample.problem.down.group_size = 24;
	ck_assert_int_eq(experts->supports_quant_scheme(NULL, &sample.problem, &no), 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_GROUP_SIZE);
	ck_assert_uint_eq(no.projection, MOEK_DOWN);
	ck_assert_uint_eq(no.found, 24);
	sample_of(0, &sample);
	sample.problem.gate_up.column_groups = 1;
	ck_assert_int_eq(experts->supports_quant_scheme(NULL, &sample.problem, &no), 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_COLUMN_GROUPS);
	sample_of(0, &sample);
	sample.problem.activations = MOEK_A8_INT8;
	sample.problem.activations_group = 128;
	ck_assert_int_eq(experts->supports_quant_scheme(NULL, &sample.problem, &no), 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_ACTIVATIONS);
	sample_of(0, &sample);
	sample.problem.hidden = UINT64_MAX / 2;
	ck_assert_int_eq(experts->supports_shape(NULL, &sample.problem, &no), 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_INDEX_RANGE);
}
END_TEST

START_TEST(loads_no_expert_of_another_shape)
{
	const struct moek_experts *experts = table(LEVEL_PLAIN);
	const struct moek_device device = { .struct_size = MOEK_DEVICE_SIZE_1_0 };
	struct moek_expert expert;
	struct sample sample;
	uint64_t align;
	void *weights, *layer;

	sample_of(6, &sample); /* with zero points */
	make(&sample);
	weights = bytes(experts->prepared_size(NULL, &sample.problem, &align));
	ck_assert_int_eq(
		experts->create(NULL, &device, &sample.problem, weights, &layer), 0);
	expert = sample.experts[0];
	ck_assert_int_eq(experts->load_expert(layer, 0, &expert), MOEK_OK);
	ck_assert_int_eq(experts->load_expert(layer, 5, &expert), MOEK_BAD_ARGUMENT);
	expert.down.columns++;
	ck_assert_int_eq(experts->load_expert(layer, 0, &expert), MOEK_BAD_ARGUMENT);
	expert = sample.experts[0];
	*(uint8_t *)(uintptr_t)expert.up.zeros = 17;
	ck_assert_int_eq(experts->load_expert(layer, 0, &expert), MOEK_BAD_ARGUMENT);
	experts->destroy(layer);
	free(weights);
	unmake(&sample);
}
END_TEST

/* ---- set up ---- */

static void open_emulation(void)
{
	const char *folder = getenv("MOEK_TEST_PLUGINS");
	const struct moek_plugin *plugin;
	char path[4096];
	void *file;

	ck_assert_ptr_nonnull(folder);
	snprintf(path, sizeof(path), "%s/emulation.so", folder);
	file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(file != NULL, "%s", dlerror());
	plugin = dlsym(file, "moek_plugin_v1");
	ck_assert_ptr_nonnull(plugin);
	emulation = plugin->experts[0];
}

int main(void)
{
	const int count = sizeof(cases) / sizeof(cases[0]);
	Suite *suite = suite_create("cpu");
	TCase *compare = tcase_create("compare"), *layout = tcase_create("layout");
	SRunner *runner;
	int failed;

	tcase_add_unchecked_fixture(compare, open_emulation, NULL);
	tcase_set_timeout(compare, 60);
	tcase_add_loop_test(compare, agrees_with_emulation, 0, count);
	tcase_add_loop_test(compare, agrees_when_not_gated, 0, count);
	tcase_add_loop_test(compare, agrees_with_int8_activations, 0, count);
	tcase_add_loop_test(compare, gives_the_same_bits_for_any_number_of_workers, 0,
	                    count);
	tcase_add_loop_test(compare,
	                    gives_a_token_the_same_bits_whoever_shares_its_experts, 0,
	                    count);
	tcase_add_loop_test(compare, is_near_float64, 0,
	                    (int)(sizeof(errors) / sizeof(errors[0])));
	tcase_add_loop_test(compare, keeps_a_nan_or_an_infinity_in_its_own_token, 0, 6);
	tcase_add_test(compare, reads_scale_byte_0_as_2_to_minus_127_and_255_as_nan);
	tcase_add_loop_test(layout, knows_levels_by_whole_words, 0,
	                    (int)(sizeof(words) / sizeof(words[0])));
	tcase_add_test(layout, runs_no_level_above_the_option_of_its_own_registry);
#if defined(__x86_64__) && defined(SYS_arch_prctl)
	tcase_add_test(layout, refuses_tiles_that_the_system_denies);
#endif
	tcase_add_test(layout, calls_a_level_absent_that_few_cpus_have);
	tcase_add_test(layout, refuses_what_it_does_not_run);
	tcase_add_test(layout, loads_no_expert_of_another_shape);
	tcase_add_loop_test(layout, packs_every_weight_where_the_layout_says, 0, count);
	tcase_add_loop_test(layout, writes_every_byte_of_the_prepared_weights, 0,
	                    count);
	suite_add_tcase(suite, compare);
	suite_add_tcase(suite, layout);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
