/* SPDX-License-Identifier: MIT */
/*
 * rdna3.so, unmodified, through its table: on tests/fakes/fakehip.so, which runs the
 * kernels on the CPU, against sums in double precision. Rules first: they need no
 * runtime.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/experts.h>
#include <moek/formats.h>

#include "plugins/rdna3/rdna3.h"
#include "tests/gpu/sysfs.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ------------------------------------------------------------------ a host for plugins
 */

static char sysfs[256], runtime[512];
static char last_log[512];

static void host_log(void *self, uint32_t level, const char *text)
{
	(void)self;
	(void)level;
	snprintf(last_log, sizeof(last_log), "%s", text);
}

static const char *host_option(void *self, const char *key)
{
	(void)self;
	if (strcmp(key, "sysfs") == 0)
		return sysfs;
	if (strcmp(key, "runtime") == 0)
		return runtime;
	return strcmp(key, "kfd") == 0 ? "/dev/null" : NULL;
}

static void *host_alloc(void *self, uint64_t bytes, uint64_t align)
{
	(void)self;
	return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void host_free(void *self, void *address)
{
	(void)self;
	free(address);
}

static const struct moek_host host = {
	.struct_size = MOEK_HOST_SIZE_1_0,
	.log = host_log,
	.option = host_option,
	.alloc = host_alloc,
	.free = host_free,
};

static const struct moek_plugin *plugin;
static void *handle;
static struct moek_device device;

/* NULL: no such file */
static const struct moek_plugin *load_plugin(void)
{
	char path[512];
	void *file;

	snprintf(path, sizeof(path), "%s/rdna3.so", getenv("MOEK_TEST_PLUGINS"));
	file = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	return file != NULL ? dlsym(file, "moek_plugin_v1") : NULL;
}

/* has the file code for gfx1100, and can this build run fibers? */
static int can_run(const struct moek_plugin *file)
{
	const struct moek_device facts = { .struct_size = MOEK_DEVICE_SIZE_1_0,
		                           .kind = MOEK_HIP,
		                           .arch = "gfx1100" };
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };

#ifdef __SANITIZE_THREAD__
	return 0;
#endif
	return file != NULL && file->experts[0]->supports_device(NULL, &facts, &no);
}

static void open_plugin(void)
{
	plugin = load_plugin();
	ck_assert_ptr_nonnull(plugin);
	snprintf(runtime, sizeof(runtime), "%s/fakehip.so", getenv("MOEK_TEST_FAKES"));
	sysfs_create(sysfs, sizeof(sysfs));
	sysfs_card(sysfs, "0000:03:00.0", 0x1002, 0x744c, 0x030000);
	sysfs_node(sysfs, 1, 110000, 3);
	ck_assert_int_eq(plugin->open(&host, &handle), MOEK_OK);
	ck_assert_uint_eq(plugin->list(handle, &device, 1), 1);
	ck_assert_msg(device.cause_rule == 0, "%s", device.cause);
}

static void close_plugin(void)
{
	plugin->close(handle);
	sysfs_destroy(sysfs);
}

/* ------------------------------------------------------------------------------- rules
 */

static struct moek_problem good_problem(uint32_t weight)
{
	const struct moek_scheme scheme = {
		.weight = weight,
		.scale = weight == MOEK_INT4 ? MOEK_BF16 : MOEK_E8M0,
		.group_size = 32,
	};
	const struct moek_problem problem = {
		.struct_size = MOEK_PROBLEM_SIZE_1_0,
		.activations = MOEK_A16,
		.experts = 4,
		.experts_local = 4,
		.top_k = 2,
		.hidden = 128,
		.intermediate = 64,
		.max_tokens = 64,
		.gate_up = scheme,
		.down = scheme,
		.input_type = MOEK_BF16,
		.output_type = MOEK_BF16,
		.activation = MOEK_SILU,
		.gated = 1,
		.shards = 1,
	};

	return problem;
}

/* first refusal in the order in which the core asks, or 0; *no is what it said */
static uint32_t ask(const struct moek_experts *experts,
                    const struct moek_problem *problem, struct moek_verdict *no)
{
	memset(no, 0, sizeof(*no));
	no->struct_size = MOEK_VERDICT_SIZE_1_0;
	if (experts->supports_quant_scheme(handle, problem, no) &&
	    experts->supports_activation(handle, problem, no) &&
	    experts->supports_parallel(handle, problem, no) &&
	    experts->supports_shape(handle, problem, no))
		return 0;
	ck_assert_uint_ne(no->rule, 0);
	return no->rule;
}

static void down_group_48(struct moek_problem *p)
{
	p->down.group_size = 48;
}
static void group_16(struct moek_problem *p)
{
	p->gate_up.group_size = 16;
}
static void scale_f32(struct moek_problem *p)
{
	p->gate_up.scale = MOEK_F32;
}
static void zero_points(struct moek_problem *p)
{
	p->gate_up.zero_points = 1;
}
static void column_groups(struct moek_problem *p)
{
	p->down.column_groups = 1;
}
static void weight_bf16(struct moek_problem *p)
{
	p->gate_up.weight = MOEK_BF16;
}
static void input_scale(struct moek_problem *p)
{
	p->gate_up.input_scale = 1;
}
static void activations_fp8(struct moek_problem *p)
{
	p->activations = MOEK_A8_FP8_STATIC;
}
static void input_f32(struct moek_problem *p)
{
	p->input_type = MOEK_F32;
}
static void output_fp8(struct moek_problem *p)
{
	p->output_type = MOEK_F8_E4M3;
}
static void not_gated(struct moek_problem *p)
{
	p->gated = 0;
}
static void relu2(struct moek_problem *p)
{
	p->activation = MOEK_RELU2;
}
static void future(struct moek_problem *p)
{
	p->activation = 0xffff;
}
static void situ_limit(struct moek_problem *p)
{
	p->activation = MOEK_SITU, p->limit = 7;
}
static void on_input(struct moek_problem *p)
{
	p->must_understand = MOEK_WEIGHT_ON_INPUT;
}
static void strides(struct moek_problem *p)
{
	p->must_understand = MOEK_ROW_STRIDE;
}
static void lora(struct moek_problem *p)
{
	p->must_understand = MOEK_LORA;
}
static void hidden_48(struct moek_problem *p)
{
	p->hidden = 48;
}
static void intermediate_80(struct moek_problem *p)
{
	p->intermediate = 80;
}
static void many_choices(struct moek_problem *p)
{
	p->top_k = 129;
}
static void many_experts(struct moek_problem *p)
{
	p->experts = 16385;
}
static void huge(struct moek_problem *p)
{
	p->hidden = 1u << 20, p->intermediate = 1u << 12;
}

/* one change of a good problem, and the rule that it must break; 0: it must still be
 * good */
static const struct {
	const char *name;
	void (*change)(struct moek_problem *problem);
	uint32_t int4_rule, mxfp4_rule;
} rules[] = {
	{ "down group 48", down_group_48, MOEK_RULE_GROUP_SIZE, MOEK_RULE_GROUP_SIZE },
	{ "group 16", group_16, MOEK_RULE_GROUP_SIZE, MOEK_RULE_GROUP_SIZE },
	{ "fp32 scale", scale_f32, MOEK_RULE_SCALE, MOEK_RULE_SCALE },
	{ "zero points", zero_points, 0, MOEK_RULE_ZERO_POINTS },
	{ "column groups", column_groups, MOEK_RULE_COLUMN_GROUPS,
	  MOEK_RULE_COLUMN_GROUPS },
	{ "bf16 weights", weight_bf16, MOEK_RULE_WEIGHT, MOEK_RULE_WEIGHT },
	{ "input scale", input_scale, MOEK_RULE_ACTIVATIONS, MOEK_RULE_ACTIVATIONS },
	{ "fp8 activations", activations_fp8, MOEK_RULE_ACTIVATIONS,
	  MOEK_RULE_ACTIVATIONS },
	{ "fp32 input", input_f32, MOEK_RULE_INPUT_TYPE, MOEK_RULE_INPUT_TYPE },
	{ "fp8 output", output_fp8, MOEK_RULE_OUTPUT_TYPE, MOEK_RULE_OUTPUT_TYPE },
	{ "not gated", not_gated, MOEK_RULE_GATED, MOEK_RULE_GATED },
	{ "relu2", relu2, MOEK_RULE_ACTIVATION, MOEK_RULE_ACTIVATION },
	{ "future activation", future, MOEK_RULE_ACTIVATION, MOEK_RULE_ACTIVATION },
	{ "situ with limit", situ_limit, MOEK_RULE_LIMIT, MOEK_RULE_LIMIT },
	{ "on input, top_k 2", on_input, MOEK_RULE_WEIGHT_ON_INPUT,
	  MOEK_RULE_WEIGHT_ON_INPUT },
	{ "row strides", strides, MOEK_RULE_ROW_STRIDE, MOEK_RULE_ROW_STRIDE },
	{ "lora", lora, MOEK_RULE_LORA, MOEK_RULE_LORA },
	{ "hidden 48", hidden_48, MOEK_RULE_HIDDEN, MOEK_RULE_HIDDEN },
	{ "intermediate 80", intermediate_80, MOEK_RULE_INTERMEDIATE,
	  MOEK_RULE_INTERMEDIATE },
	{ "top_k 129", many_choices, MOEK_RULE_TOP_K, MOEK_RULE_TOP_K },
	{ "16385 experts", many_experts, MOEK_RULE_EXPERTS, MOEK_RULE_EXPERTS },
	{ "2^32 weights", huge, MOEK_RULE_INDEX_RANGE, MOEK_RULE_INDEX_RANGE },
};

START_TEST(refuses_by_rule_what_it_cannot_do_and_nothing_else)
{
	struct moek_verdict no;
	uint32_t table;

	for (table = 0; table < 2; table++) {
		const struct moek_experts *experts = plugin->experts[table];
		struct moek_problem problem = good_problem(table == 0 ? MOEK_INT4
		                                                      : MOEK_MXFP4);

		ck_assert_uint_eq(ask(experts, &problem, &no), 0);
		rules[_i].change(&problem);
		ck_assert_msg(ask(experts, &problem, &no) ==
		                      (table == 0 ? rules[_i].int4_rule
		                                  : rules[_i].mxfp4_rule),
		              "%s: table %u says rule %u", rules[_i].name, table,
		              no.rule);
	}
}
END_TEST

START_TEST(names_the_projection_that_breaks_a_rule)
{
	struct moek_problem problem = good_problem(MOEK_INT4);
	struct moek_verdict no;

	problem.down.group_size = 48;
	ask(plugin->experts[0], &problem, &no);
	ck_assert_uint_eq(no.projection, MOEK_DOWN);
	ck_assert_uint_eq(no.found, 48);
	ck_assert_uint_eq(no.accepts, MOEK_ACCEPTS_VALUES);
	ck_assert_uint_eq(no.accepted[0], 32);
}
END_TEST

START_TEST(accepts_only_devices_it_has_code_for)
{
	static const char *const others[] = { "gfx1030", "gfx942",   "gfx950",
		                              "gfx110",  "gfx11000", "" };
	struct moek_device facts = { .struct_size = MOEK_DEVICE_SIZE_1_0,
		                     .kind = MOEK_HIP };
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
	size_t i;

	for (i = 0; i < COUNT(others); i++) {
		strcpy(facts.arch, others[i]);
		memset(&no, 0, sizeof(no));
		ck_assert_int_eq(
			plugin->experts[0]->supports_device(handle, &facts, &no), 0);
		ck_assert_uint_eq(no.rule, MOEK_RULE_DEVICE_ARCH);
		ck_assert_str_ne(no.note, "");
	}
	strcpy(facts.arch, "gfx1100");
	if (plugin->experts[0]->supports_device(handle, &facts, &no) == 0)
		ck_assert_str_eq(no.note, "built without a GPU compiler");
	facts.kind = MOEK_HOST;
	memset(&no, 0, sizeof(no));
	ck_assert_int_eq(plugin->experts[0]->supports_device(handle, &facts, &no), 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_DEVICE_KIND);
}
END_TEST

/* --------------------------------------------------------------------- a layer, by
 * hand */

static uint32_t seed;

static uint32_t random_bits(void)
{
	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

/* -1 .. 1 */
static float random_unit(void)
{
	return (float)(int32_t)(random_bits() % 2001) / 1000.0f - 1.0f;
}

static uint16_t to_type(float value, uint32_t type)
{
	return type == MOEK_F16 ? moek_f16_from_f32(value) : moek_bf16_from_f32(value);
}

static float from_type(uint16_t bits, uint32_t type)
{
	return type == MOEK_F16 ? moek_f16_to_f32(bits) : moek_bf16_to_f32(bits);
}

/* the canonical form of one projection and its values */
struct matrix {
	struct moek_matrix canonical;
	unsigned char *codes, *zeros, *scales;
	float *bias;
	double *values; /* [rows][columns] */
};

static void make_matrix(const struct moek_scheme *scheme, uint64_t rows,
                        uint64_t columns, struct matrix *m)
{
	uint64_t group = scheme->group_size != 0 ? scheme->group_size : columns;
	uint64_t groups = (columns + group - 1) / group, i, r, c;
	/* a model's rows are scaled to their length; else fp16 overflows on long ones
	 */
	float size = columns > 512 ? 512.0f / (float)columns : 1.0f;

	m->codes = malloc(rows * columns / 2);
	m->scales = malloc(rows * groups * 2);
	m->zeros = scheme->zero_points ? malloc(rows * groups) : NULL;
	m->bias = scheme->bias ? malloc(rows * sizeof(float)) : NULL;
	m->values = malloc(rows * columns * sizeof(double));
	for (i = 0; i < rows * columns / 2; i++)
		m->codes[i] = (unsigned char)random_bits();
	for (i = 0; i < rows * groups; i++) {
		uint16_t scale = to_type(size * (0.02f + 0.1f * (random_unit() + 1.0f)),
		                         scheme->scale);

		if (scheme->scale == MOEK_E8M0)
			m->scales[i] = (unsigned char)(121 + random_bits() % 5);
		else
			memcpy(m->scales + 2 * i, &scale, 2);
		if (m->zeros != NULL)
			m->zeros[i] = (unsigned char)(random_bits() % 17);
	}
	for (i = 0; m->bias != NULL && i < rows; i++)
		m->bias[i] = random_unit();
	for (r = 0; r < rows; r++)
		for (c = 0; c < columns; c++) {
			uint32_t code = moek_nibble(m->codes + r * (columns / 2), c);
			uint64_t at = r * groups + c / group;
			uint16_t bits;

			memcpy(&bits, m->scales + 2 * at,
			       scheme->scale == MOEK_E8M0 ? 0 : 2);
			m->values[r * columns + c] =
				scheme->weight == MOEK_MXFP4
					? (double)moek_mxfp4_value(code, m->scales[at])
					: ((int)code -
			                   (m->zeros != NULL ? m->zeros[at] : 8)) *
						  (double)from_type(bits,
			                                            scheme->scale);
		}
	m->canonical = (struct moek_matrix){
		.struct_size = MOEK_MATRIX_SIZE_1_0,
		.weight = scheme->weight,
		.rows = rows,
		.columns = columns,
		.group_size = group,
		.codes = m->codes,
		.scales = m->scales,
		.zeros = m->zeros,
		.bias = m->bias,
		.scale = scheme->scale,
	};
}

static void free_matrix(struct matrix *m)
{
	free(m->codes);
	free(m->scales);
	free(m->zeros);
	free(m->bias);
	free(m->values);
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double reference_activation(const struct moek_problem *p, double g, double u)
{
	double limit = p->limit > 0 ? (double)p->limit : HUGE_VAL;

	if (p->activation != MOEK_SWIGLU_STEP)
		g = fmin(g, limit);
	u = fmax(fmin(u, limit), -limit);
	switch (p->activation) {
	case MOEK_SILU:
		return g * sigmoid(g) * u;
	case MOEK_GELU:
		return g / 2 * (1 + erf(g / sqrt(2))) * u;
	case MOEK_GELU_TANH:
		return g / 2 *
		       (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g))) * u;
	case MOEK_SWIGLU_OAI:
		return g * sigmoid((double)p->alpha * g) * (u + (double)p->beta);
	case MOEK_SWIGLU_STEP:
		return fmin(g * sigmoid(g), limit) * u;
	default:
		if (p->beta > 0)
			u = (double)p->beta * tanh(u / (double)p->beta);
		return (double)p->alpha * tanh(g / (double)p->alpha) * sigmoid(g) * u;
	}
}

/* everything of one run */
struct bench {
	struct moek_problem problem;
	uint64_t tokens;
	struct matrix (*experts)[3]; /* gate, up, down */
	uint16_t *input;
	int32_t *ids;
	float *weights;
	int32_t *map;             /* or NULL */
	double *want, *magnitude; /* [tokens][hidden] */
};

static double dot(const double *row, const double *x, uint64_t count, double *magnitude)
{
	double sum = 0;
	uint64_t i;

	*magnitude = 0;
	for (i = 0; i < count; i++) {
		sum += row[i] * x[i];
		*magnitude += fabs(row[i] * x[i]);
	}
	return sum;
}

static int local_expert(const struct bench *b, int32_t id)
{
	if (id < 0 || (uint64_t)id >= b->problem.experts)
		return -1;
	return b->map != NULL ? b->map[id] : id;
}

static void reference_slot(const struct bench *b, uint64_t token, uint64_t slot,
                           double *activated, double *x)
{
	const struct moek_problem *p = &b->problem;
	int expert = local_expert(b, b->ids[slot]);
	int on_input_too = (p->must_understand & MOEK_WEIGHT_ON_INPUT) != 0;
	double weight = (double)b->weights[slot], unused;
	const struct matrix *m;
	uint64_t i;

	if (expert < 0)
		return;
	m = b->experts[expert];
	for (i = 0; i < p->hidden; i++)
		x[i] = (double)from_type(b->input[token * p->hidden + i],
		                         p->input_type) *
		       (on_input_too ? weight : 1);
	for (i = 0; i < p->intermediate; i++) {
		double g = dot(m[0].values + i * p->hidden, x, p->hidden, &unused);
		double u = dot(m[1].values + i * p->hidden, x, p->hidden, &unused);

		g += m[0].bias != NULL ? (double)m[0].bias[i] : 0;
		u += m[1].bias != NULL ? (double)m[1].bias[i] : 0;
		activated[i] = (double)from_type(
			to_type((float)reference_activation(p, g, u), p->input_type),
			p->input_type);
	}
	if (on_input_too)
		weight = 1;
	for (i = 0; i < p->hidden; i++) {
		double bias = m[2].bias != NULL ? (double)m[2].bias[i] : 0, magnitude;
		double y = dot(m[2].values + i * p->intermediate, activated,
		               p->intermediate, &magnitude);

		b->want[token * p->hidden + i] += weight * (y + bias);
		b->magnitude[token * p->hidden + i] += fabs(weight) *
		                                       (magnitude + fabs(bias));
	}
}

static void make_bench(const struct moek_problem *problem, uint64_t tokens,
                       int with_map, struct bench *b)
{
	uint64_t slots = tokens * problem->top_k, out = tokens * problem->hidden, i, e;
	double *activated = malloc(problem->intermediate * sizeof(double));
	double *x = malloc(problem->hidden * sizeof(double));

	b->problem = *problem;
	b->tokens = tokens;
	b->map = NULL;
	if (with_map) { /* every second expert is here, in reverse order */
		b->problem.experts = 2 * problem->experts_local;
		b->problem.must_understand |= MOEK_EXPERT_MAP;
		b->map = malloc(b->problem.experts * sizeof(*b->map));
		for (i = 0; i < b->problem.experts; i++)
			b->map[i] = i % 2 != 0 ? -1
			                       : (int32_t)(problem->experts_local - 1 -
			                                   i / 2);
	}
	b->experts = malloc(problem->experts_local * sizeof(*b->experts));
	for (e = 0; e < problem->experts_local; e++) {
		make_matrix(&problem->gate_up, problem->intermediate, problem->hidden,
		            &b->experts[e][0]);
		make_matrix(&problem->gate_up, problem->intermediate, problem->hidden,
		            &b->experts[e][1]);
		make_matrix(&problem->down, problem->hidden, problem->intermediate,
		            &b->experts[e][2]);
	}
	b->input = aligned_alloc(64, (out * 2 + 63) / 64 * 64);
	for (i = 0; i < out; i++)
		b->input[i] = to_type(random_unit(), problem->input_type);
	b->ids = malloc(slots * sizeof(*b->ids));
	b->weights = malloc(slots * sizeof(*b->weights));
	for (i = 0; i < slots; i++) {
		/* one id in eleven is not an expert: of an unseen kind each time */
		const int32_t bad[] = { -1, INT32_MIN, INT32_MAX,
			                (int32_t)b->problem.experts };

		b->ids[i] = random_bits() % 11 == 0
		                    ? bad[random_bits() % 4]
		                    : (int32_t)(random_bits() % b->problem.experts);
		b->weights[i] = random_unit();
	}
	b->want = calloc(out, sizeof(double));
	b->magnitude = calloc(out, sizeof(double));
	for (i = 0; i < slots; i++)
		reference_slot(b, i / problem->top_k, i, activated, x);
	free(activated);
	free(x);
}

static void free_bench(struct bench *b)
{
	uint64_t e;

	for (e = 0; e < b->problem.experts_local; e++) {
		free_matrix(&b->experts[e][0]);
		free_matrix(&b->experts[e][1]);
		free_matrix(&b->experts[e][2]);
	}
	free(b->experts);
	free(b->input);
	free(b->ids);
	free(b->weights);
	free(b->map);
	free(b->want);
	free(b->magnitude);
}

/* device memory with a copy of host memory */
static void *to_device(const void *from, uint64_t bytes)
{
	void *address;

	if (from == NULL)
		return NULL;
	ck_assert_int_eq(plugin->alloc(handle, &device, bytes, &address), MOEK_OK);
	ck_assert_int_eq(plugin->copy(handle, &device, address, from, bytes,
	                              MOEK_TO_DEVICE, NULL),
	                 MOEK_OK);
	return address;
}

static uint64_t type_bytes(uint32_t type)
{
	return type == MOEK_F32 || type == MOEK_I32 ? 4 : 2;
}

/* prepare and run; *output_out is the caller's to free */
static void run_bench(const struct moek_experts *experts, const struct bench *b,
                      uint64_t planned, void **output_out)
{
	const struct moek_problem *p = &b->problem;
	const uint64_t slots = b->tokens * p->top_k;
	const uint64_t bytes = b->tokens * p->hidden * type_bytes(p->output_type);
	struct moek_buffer shapes[MOEK_MAX_BUFFERS];
	void *buffers[MOEK_MAX_BUFFERS], *weights, *layer = NULL;
	uint64_t align, e;
	int32_t count, i;
	struct moek_batch batch = { .struct_size = MOEK_BATCH_SIZE_1_0 };

	ck_assert_int_eq(plugin->alloc(handle, &device,
	                               experts->prepared_size(handle, p, &align),
	                               &weights),
	                 MOEK_OK);
	ck_assert_int_eq(experts->create(handle, &device, p, weights, &layer), MOEK_OK);
	for (e = 0; e < p->experts_local; e++) {
		const struct moek_expert expert = { b->experts[e][0].canonical,
			                            b->experts[e][1].canonical,
			                            b->experts[e][2].canonical };

		ck_assert_int_eq(experts->load_expert(layer, e, &expert), MOEK_OK);
	}
	ck_assert_int_eq(experts->finish(layer), MOEK_OK);

	count = experts->workspace_shapes(handle, p, planned, 0, shapes,
	                                  MOEK_MAX_BUFFERS);
	ck_assert_int_gt(count, 0);
	for (i = 0; i < count; i++)
		ck_assert_int_eq(
			plugin->alloc(handle, &device,
		                      shapes[i].elements * type_bytes(shapes[i].type),
		                      &buffers[i]),
			MOEK_OK);
	batch.buffer_count = (uint32_t)count;
	batch.buffers = buffers;
	batch.input.data = to_device(b->input, b->tokens * p->hidden * 2);
	batch.input.rows = batch.output.rows = b->tokens;
	batch.input.columns = batch.output.columns = p->hidden;
	batch.input.type = p->input_type;
	batch.output.type = p->output_type;
	ck_assert_int_eq(plugin->alloc(handle, &device, bytes, &batch.output.data),
	                 MOEK_OK);
	batch.topk_ids = to_device(b->ids, slots * sizeof(*b->ids));
	batch.topk_weights = to_device(b->weights, slots * sizeof(*b->weights));
	batch.expert_map = to_device(b->map, p->experts * sizeof(*b->map));
	ck_assert_msg(experts->forward(layer, &batch) == MOEK_OK, "%s", last_log);
	ck_assert_int_eq(plugin->wait(handle, &device, NULL), MOEK_OK);

	*output_out = malloc(bytes);
	ck_assert_int_eq(plugin->copy(handle, &device, *output_out, batch.output.data,
	                              bytes, MOEK_TO_HOST, NULL),
	                 MOEK_OK);
	for (i = 0; i < count; i++)
		plugin->free(handle, &device, buffers[i]);
	plugin->free(handle, &device, batch.input.data);
	plugin->free(handle, &device, batch.output.data);
	plugin->free(handle, &device, (void *)(uintptr_t)batch.topk_ids);
	plugin->free(handle, &device, (void *)(uintptr_t)batch.topk_weights);
	plugin->free(handle, &device, (void *)(uintptr_t)batch.expert_map);
	experts->destroy(layer);
	plugin->free(handle, &device, weights);
}

static double machine_eps(uint32_t type)
{
	return type == MOEK_F32 ? 0x1p-23 : type == MOEK_F16 ? 0x1p-10 : 0x1p-7;
}

static double output_at(const void *output, uint64_t i, uint32_t type)
{
	if (type == MOEK_F32)
		return (double)((const float *)output)[i];
	return (double)from_type(((const uint16_t *)output)[i], type);
}

/* largest error as a share of the declared allowance; *l2_out: relative error of the
 * whole */
static double worst_error(const struct moek_experts *experts, const struct bench *b,
                          const void *output, double *l2_out)
{
	struct moek_numerics n;
	double worst = 0, error2 = 0, want2 = 0;
	uint64_t i;

	experts->numerics(handle, &b->problem, &n);
	ck_assert_uint_eq(n.accumulator, MOEK_F32);
	for (i = 0; i < b->tokens * b->problem.hidden; i++) {
		double got = output_at(output, i, b->problem.output_type);
		double allowed = (double)n.terms * 0x1p-24 * b->magnitude[i] +
		                 n.roundings * machine_eps(b->problem.input_type) / 2 *
		                         b->magnitude[i] +
		                 machine_eps(b->problem.output_type) / 2 *
		                         fabs(b->want[i]);
		double error = fabs(got - b->want[i]);

		/* not routed at all: exactly zero */
		if (b->magnitude[i] == 0)
			ck_assert_double_eq(got, 0);
		else if (!(error <= worst * allowed)) /* a NaN is never close */
			worst = error / allowed;
		error2 += error * error;
		want2 += b->want[i] * b->want[i];
	}
	*l2_out = sqrt(error2 / want2);
	return worst;
}

/* ------------------------------------------------------------------------------- cases
 */

enum { LARGE_CASES = 6 };
enum { ZEROS = 1, BIAS = 2, MAP = 4, ON_INPUT = 8, F32_OUT = 16, F16_SCALE = 32 };

static const struct kernel_case {
	const char *name;
	uint32_t weight, type;
	uint64_t gate_up_group, down_group;
	uint64_t hidden, intermediate, top_k, tokens;
	uint32_t activation, flags;
	float alpha, beta, limit;
} cases[] = {
#define I4 MOEK_INT4
#define MX MOEK_MXFP4
#define BF MOEK_BF16
#define FP MOEK_F16
	{ "one token", I4, BF, 32, 32, 128, 64, 2, 1, MOEK_SILU, 0, 0, 0, 0 },
	{ "one token, fp16", I4, FP, 32, 32, 128, 64, 2, 1, MOEK_SILU, F16_SCALE, 0, 0,
	  0 },
	{ "one token, zero points", I4, BF, 32, 64, 128, 64, 2, 1, MOEK_SILU, ZEROS, 0,
	  0, 0 },
	{ "fp16, zero points", I4, FP, 64, 32, 128, 64, 2, 3, MOEK_SILU, ZEROS, 0, 0,
	  0 },
	{ "channel scales", I4, BF, 0, 0, 160, 96, 2, 2, MOEK_SILU, 0, 0, 0, 0 },
	{ "short last group", I4, BF, 128, 128, 160, 96, 2, 2, MOEK_SILU,
	  ZEROS | F16_SCALE, 0, 0, 0 },
	{ "odd blocks", I4, FP, 32, 32, 96, 160, 3, 5, MOEK_SILU, BIAS, 0, 0, 0 },
	{ "eight tokens", I4, BF, 32, 32, 64, 64, 4, 8, MOEK_SILU, BIAS | F32_OUT, 0, 0,
	  0 },
	{ "many slots of one expert", I4, BF, 32, 32, 64, 32, 12, 8, MOEK_SILU, 0, 0, 0,
	  0 },
	{ "mxfp4, one token", MX, BF, 32, 32, 128, 64, 2, 1, MOEK_SILU, 0, 0, 0, 0 },
	{ "mxfp4, fp16, oai", MX, FP, 32, 32, 96, 96, 2, 4, MOEK_SWIGLU_OAI, BIAS,
	  1.702f, 1, 7 },
	{ "expert map", I4, BF, 32, 32, 64, 64, 2, 6, MOEK_SILU, MAP | BIAS, 0, 0, 0 },
	{ "weight on input", I4, FP, 32, 32, 64, 64, 1, 5, MOEK_SILU, ON_INPUT | BIAS,
	  0, 0, 0 },
	{ "silu, limit", I4, FP, 32, 32, 64, 32, 2, 2, MOEK_SILU, 0, 0, 0, 0.5f },
	{ "gelu", I4, FP, 32, 32, 64, 32, 2, 2, MOEK_GELU, 0, 0, 0, 0 },
	{ "gelu_tanh", I4, FP, 32, 32, 64, 32, 2, 2, MOEK_GELU_TANH, 0, 0, 0, 0 },
	{ "swiglu_step", I4, FP, 32, 32, 64, 32, 2, 2, MOEK_SWIGLU_STEP, 0, 0, 0,
	  0.75f },
	{ "situ", I4, FP, 32, 32, 64, 32, 2, 2, MOEK_SITU, 0, 4, 25, 0 },
	{ "situ without beta", I4, FP, 32, 32, 64, 32, 2, 2, MOEK_SITU, 0, 4, 0, 0 },
	{ "prefill", I4, BF, 32, 32, 128, 96, 2, 13, MOEK_SILU, 0, 0, 0, 0 },
	{ "prefill, fp16", I4, FP, 32, 32, 96, 64, 2, 20, MOEK_SILU, F16_SCALE | BIAS,
	  0, 0, 0 },
	{ "prefill, zero points", I4, BF, 64, 32, 128, 64, 2, 40, MOEK_SILU,
	  ZEROS | BIAS, 0, 0, 0 },
	{ "prefill, fp16, zero points", I4, FP, 0, 128, 160, 96, 2, 17, MOEK_SILU,
	  ZEROS, 0, 0, 0 },
	{ "prefill, full tiles", I4, FP, 32, 32, 64, 32, 2, 150, MOEK_SILU, F32_OUT, 0,
	  0, 0 },
	{ "prefill, mxfp4", MX, BF, 32, 32, 96, 160, 2, 33, MOEK_SWIGLU_OAI, BIAS,
	  1.702f, 1, 7 },
	{ "prefill, mxfp4, fp16", MX, FP, 32, 32, 64, 64, 4, 12, MOEK_SILU, 0, 0, 0,
	  0 },
	{ "prefill, expert map", I4, BF, 32, 32, 64, 64, 2, 30, MOEK_GELU, MAP | BIAS,
	  0, 0, 0 },
	{ "prefill, weight on input", I4, BF, 32, 32, 64, 64, 1, 30, MOEK_SILU,
	  ON_INPUT | BIAS, 0, 0, 0 },
	{ "few tokens, top_k 64", I4, BF, 32, 32, 64, 32, 64, 5, MOEK_SILU, 0, 0, 0,
	  0 },
	/* the last LARGE_CASES are for a real GPU: minutes on fibers */
	{ "qwen3-30b, one token", I4, BF, 32, 32, 2048, 768, 8, 1, MOEK_SILU, 0, 0, 0,
	  0 },
	{ "qwen3-30b, 8 tokens", I4, BF, 128, 128, 2048, 768, 8, 8, MOEK_SILU, ZEROS, 0,
	  0, 0 },
	{ "qwen3-30b, 96 tokens", I4, FP, 32, 32, 2048, 768, 8, 96, MOEK_SILU,
	  F16_SCALE, 0, 0, 0 },
	{ "gpt-oss, one token", MX, BF, 32, 32, 2880, 2880, 4, 1, MOEK_SWIGLU_OAI, BIAS,
	  1.702f, 1, 7 },
	{ "gpt-oss, 40 tokens", MX, BF, 32, 32, 2880, 2880, 4, 40, MOEK_SWIGLU_OAI,
	  BIAS, 1.702f, 1, 7 },
	{ "two passes", I4, BF, 32, 32, 64, 32, 2, 2100, MOEK_SILU, 0, 0, 0, 0 },
};

static struct moek_problem case_problem(const struct kernel_case *c)
{
	struct moek_problem p = good_problem(c->weight);

	p.hidden = c->hidden;
	p.intermediate = c->intermediate;
	p.top_k = c->top_k;
	p.experts = p.experts_local = c->top_k > 4 ? 4 : 5;
	p.max_tokens = c->tokens;
	p.input_type = c->type;
	p.output_type = (c->flags & F32_OUT) != 0 ? MOEK_F32 : c->type;
	p.activation = c->activation;
	p.alpha = c->alpha;
	p.beta = c->beta;
	p.limit = c->limit;
	p.gate_up.group_size = c->gate_up_group;
	p.down.group_size = c->down_group;
	p.gate_up.bias = p.down.bias = (c->flags & BIAS) != 0;
	if (c->weight == MOEK_INT4) {
		p.gate_up.scale = p.down.scale = (c->flags & F16_SCALE) != 0
		                                         ? MOEK_F16
		                                         : MOEK_BF16;
		p.gate_up.zero_points = p.down.zero_points = (c->flags & ZEROS) != 0;
	}
	if ((c->flags & ON_INPUT) != 0)
		p.must_understand |= MOEK_WEIGHT_ON_INPUT;
	return p;
}

START_TEST(agrees_with_double_precision_in_both_orders)
{
	const struct kernel_case *c = &cases[_i];
	const struct moek_experts *experts = plugin->experts[c->weight == MOEK_MXFP4];
	struct moek_problem problem = case_problem(c);
	struct moek_verdict no;
	void *forward = NULL, *reverse = NULL;
	struct bench b;
	double worst, l2;

	seed = (uint32_t)_i + 1;
	make_bench(&problem, c->tokens, (c->flags & MAP) != 0, &b);
	ck_assert_uint_eq(ask(experts, &b.problem, &no), 0);
	setenv("FAKEHIP_REVERSE", "0", 1);
	run_bench(experts, &b, c->tokens, &forward);
	setenv("FAKEHIP_REVERSE", "1", 1);
	run_bench(experts, &b, c->tokens + 64, &reverse);
	worst = worst_error(experts, &b, forward, &l2);
	ck_assert_msg(worst <= 1, "%s: %g of the allowance", c->name, worst);
	ck_assert_msg(l2 <= machine_eps(c->type), "%s: relative error %g", c->name, l2);
	ck_assert_msg(
		memcmp(forward, reverse,
	               c->tokens * c->hidden * type_bytes(b.problem.output_type)) == 0,
		"%s: other bits in reverse order", c->name);
	if (getenv("MOEK_TEST_VERBOSE") != NULL)
		printf("%-28s %.3f of the allowance, relative error %.2g\n", c->name,
		       worst, l2);
	free(forward);
	free(reverse);
	free_bench(&b);
}
END_TEST

START_TEST(bytes_are_loaded_once_and_in_their_place)
{
	static const unsigned int shift[8] = { 0, 16, 4, 20, 8, 24, 12, 28 };
	const struct moek_experts *experts = plugin->experts[0];
	struct moek_problem p = good_problem(MOEK_INT4);
	uint64_t align, bytes, r, c;
	void *weights, *layer;
	unsigned char *prepared;
	struct bench b;

	seed = 7;
	p.gate_up.zero_points = p.down.zero_points = 1;
	p.gate_up.bias = 1;
	make_bench(&p, 1, 0, &b);
	bytes = experts->prepared_size(handle, &p, &align) / p.experts_local;
	plugin->alloc(handle, &device, bytes * p.experts_local, &weights);
	ck_assert_int_eq(experts->create(handle, &device, &p, weights, &layer),
	                 MOEK_OK);
	{
		const struct moek_expert expert = { b.experts[2][0].canonical,
			                            b.experts[2][1].canonical,
			                            b.experts[2][2].canonical };

		ck_assert_int_eq(experts->load_expert(layer, 2, &expert), MOEK_OK);
	}
	prepared = malloc(bytes);
	ck_assert_int_eq(plugin->copy(handle, &device, prepared,
	                              (char *)weights + 2 * bytes, bytes, MOEK_TO_HOST,
	                              NULL),
	                 MOEK_OK);
	/* gate row r, column c, of a tile of 32 lanes; down of 16 */
	for (r = 0; r < p.intermediate; r++)
		for (c = 0; c < p.hidden; c++) {
			uint64_t lane = r % 16, tile = r / 16, block = c / 32;
			uint32_t gate, up;

			memcpy(&gate,
			       prepared + ((tile * 4 + block) * 32 + lane) * 16 +
			               c % 32 / 8 * 4,
			       4);
			memcpy(&up,
			       prepared + ((tile * 4 + block) * 32 + lane + 16) * 16 +
			               c % 32 / 8 * 4,
			       4);
			ck_assert_uint_eq(
				gate >> shift[c % 8] & 15,
				moek_nibble(b.experts[2][0].codes + r * 64, c));
			ck_assert_uint_eq(
				up >> shift[c % 8] & 15,
				moek_nibble(b.experts[2][1].codes + r * 64, c));
		}
	for (r = 0; r < p.hidden; r++)
		for (c = 0; c < p.intermediate; c++) {
			const struct rdna3_layer *inside = layer;
			uint32_t word;

			memcpy(&word,
			       prepared + inside->layout.down.codes +
			               ((r / 16 * 2 + c / 32) * 16 + r % 16) * 16 +
			               c % 32 / 8 * 4,
			       4);
			ck_assert_uint_eq(
				word >> shift[c % 8] & 15,
				moek_nibble(b.experts[2][2].codes + r * 32, c));
			ck_assert_uint_eq(prepared[inside->layout.down.zeros +
			                           (r / 16 * 2 + c / 32) * 16 + r % 16],
			                  b.experts[2][2].zeros[r * 2 + c / 32]);
			ck_assert_mem_eq(
				prepared + inside->layout.down.scales +
					((r / 16 * 2 + c / 32) * 16 + r % 16) * 2,
				b.experts[2][2].scales + (r * 2 + c / 32) * 2, 2);
		}
	free(prepared);
	experts->destroy(layer);
	plugin->free(handle, &device, weights);
	free_bench(&b);
}
END_TEST

/* EX-SH1..4 of the exllama order, that ours shares inside a word of eight columns */
START_TEST(a_word_of_eight_columns_is_in_exllama_order)
{
	static const uint32_t words[][2] = { { 0x76543210, 0x75316420 },
		                             { 0xfedcba98, 0xfdb9eca8 },
		                             { 0x12345678, 0x13572468 },
		                             { 0xa4bf9870, 0xab974f80 } };
	const struct moek_experts *experts = plugin->experts[0];
	struct moek_problem p = good_problem(MOEK_INT4);
	struct moek_expert expert;
	uint64_t align, bytes;
	void *weights, *layer;
	uint32_t got;
	struct bench b;
	size_t i;

	make_bench(&p, 1, 0, &b);
	bytes = experts->prepared_size(handle, &p, &align);
	plugin->alloc(handle, &device, bytes, &weights);
	ck_assert_int_eq(experts->create(handle, &device, &p, weights, &layer),
	                 MOEK_OK);
	for (i = 0; i < COUNT(words); i++)
		memcpy(b.experts[0][0].codes + 4 * i, &words[i][0], 4);
	expert.gate = b.experts[0][0].canonical;
	expert.up = b.experts[0][1].canonical;
	expert.down = b.experts[0][2].canonical;
	ck_assert_int_eq(experts->load_expert(layer, 0, &expert), MOEK_OK);
	for (i = 0; i < COUNT(words); i++) {
		plugin->copy(handle, &device, &got, (char *)weights + 4 * i, 4,
		             MOEK_TO_HOST, NULL);
		ck_assert_uint_eq(got, words[i][1]);
	}
	experts->destroy(layer);
	plugin->free(handle, &device, weights);
	free_bench(&b);
}
END_TEST

START_TEST(workspace_never_shrinks_and_is_bounded)
{
	struct moek_problem p = good_problem(MOEK_INT4);
	uint64_t before[MOEK_MAX_BUFFERS] = { 0 }, tokens;
	struct moek_buffer shapes[MOEK_MAX_BUFFERS];
	int32_t count = 0, i;

	for (tokens = 1; tokens < 10000; tokens += tokens < 12 ? 1 : tokens / 2) {
		int32_t now = plugin->experts[0]->workspace_shapes(
			handle, &p, tokens, 1, shapes, MOEK_MAX_BUFFERS);

		ck_assert_int_ge(now, count);
		count = now;
		for (i = 0; i < count; i++) {
			ck_assert_uint_ge(shapes[i].elements, before[i]);
			before[i] = shapes[i].elements;
			ck_assert_uint_eq(shapes[i].zeroed, 0);
		}
	}
	ck_assert_int_eq(count, 5);
	ck_assert_uint_eq(before[0], RDNA3_CHUNK * p.top_k * p.intermediate);
	/* the count is told even when it does not fit */
	ck_assert_int_eq(
		plugin->experts[0]->workspace_shapes(handle, &p, 100, 1, shapes, 2), 5);
}
END_TEST

START_TEST(refuses_a_batch_that_its_loads_cannot_read)
{
	const struct moek_experts *experts = plugin->experts[0];
	struct moek_problem p = good_problem(MOEK_INT4);
	static char space[4096];
	struct moek_batch batch = { .struct_size = MOEK_BATCH_SIZE_1_0 };
	uint64_t align;
	void *weights, *layer;

	plugin->alloc(handle, &device, experts->prepared_size(handle, &p, &align),
	              &weights);
	ck_assert_int_eq(experts->create(handle, &device, &p, weights, &layer),
	                 MOEK_OK);
	batch.input.data = space + 8 - (uintptr_t)space % 16;
	batch.input.rows = 1;
	ck_assert_int_eq(experts->forward(layer, &batch), MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(last_log, "aligned"));
	batch.input.data = space + 16 - (uintptr_t)space % 16;
	batch.input.row_stride = p.hidden + 8;
	ck_assert_int_eq(experts->forward(layer, &batch), MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(last_log, "adjacent"));
	experts->destroy(layer);
	plugin->free(handle, &device, weights);
}
END_TEST

static int count_cases(void)
{
	return (int)COUNT(cases) -
	       (getenv("MOEK_TEST_LARGE") != NULL ? 0 : LARGE_CASES);
}

static Suite *suite(int with_code)
{
	Suite *s = suite_create("rdna3");
	TCase *t = tcase_create("rdna3");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, open_plugin, close_plugin);
	tcase_add_loop_test(t, refuses_by_rule_what_it_cannot_do_and_nothing_else, 0,
	                    (int)COUNT(rules));
	tcase_add_test(t, names_the_projection_that_breaks_a_rule);
	tcase_add_test(t, accepts_only_devices_it_has_code_for);
	tcase_add_test(t, workspace_never_shrinks_and_is_bounded);
	if (with_code) {
		tcase_add_loop_test(t, agrees_with_double_precision_in_both_orders, 0,
		                    count_cases());
		tcase_add_test(t, bytes_are_loaded_once_and_in_their_place);
		tcase_add_test(t, a_word_of_eight_columns_is_in_exllama_order);
		tcase_add_test(t, refuses_a_batch_that_its_loads_cannot_read);
	}
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	const int with_code = can_run(load_plugin());
	SRunner *runner = srunner_create(suite(with_code));
	int failed;

	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	if (failed == 0 && !with_code) {
		printf("skipped: %d kernel cases (no GPU code in rdna3.so, or a build "
		       "whose "
		       "sanitizer cannot run fibers)\n",
		       count_cases());
		return 77;
	}
	return failed != 0;
}
