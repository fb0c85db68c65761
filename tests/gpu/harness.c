/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/gpu/harness.h"

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#include "tests/gpu/sysfs.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ------------------------------------------------------------------ a host for plugins
 */

static char sysfs[256], runtime[512];
char last_log[512];
struct harness_option harness_options[2];

static void host_log(void *self, uint32_t level, const char *text)
{
	(void)self;
	(void)level;
	snprintf(last_log, sizeof(last_log), "%s", text);
}

static const char *host_option(void *self, const char *key)
{
	(void)self;
	size_t i;

	for (i = 0; i < COUNT(harness_options); i++)
		if (harness_options[i].key != NULL &&
		    strcmp(key, harness_options[i].key) == 0)
			return harness_options[i].value;
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

const struct moek_host harness_host = {
	.struct_size = MOEK_HOST_SIZE_1_0,
	.log = host_log,
	.option = host_option,
	.alloc = host_alloc,
	.free = host_free,
};

const struct moek_plugin *plugin;
void *handle;
struct moek_device device;

const struct moek_plugin *load_plugin(const char *name)
{
	char path[512];
	void *file;

	snprintf(path, sizeof(path), "%s/%s.so", getenv("MOEK_TEST_PLUGINS"), name);
	file = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	return file != NULL ? dlsym(file, "moek_plugin_v1") : NULL;
}

int can_run(const struct moek_plugin *file, const char *arch)
{
	struct moek_device facts = { .struct_size = MOEK_DEVICE_SIZE_1_0,
		                     .kind = MOEK_HIP };
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
	void *opened;
	int can;

#ifdef __SANITIZE_THREAD__
	return 0;
#endif
	strcpy(facts.arch, arch);
	if (file == NULL || file->open(&harness_host, &opened) != MOEK_OK)
		return 0;
	can = file->experts[0]->supports_device(opened, &facts, &no);
	file->close(opened);
	return can;
}

void open_plugin(const char *name, unsigned int gfx_version)
{
	plugin = load_plugin(name);
	ck_assert_ptr_nonnull(plugin);
	snprintf(runtime, sizeof(runtime), "%s/fakehip.so", getenv("MOEK_TEST_FAKES"));
	sysfs_create(sysfs, sizeof(sysfs));
	sysfs_card(sysfs, "0000:03:00.0", 0x1002, 0x744c, 0x030000);
	sysfs_node(sysfs, 1, gfx_version, 3);
	ck_assert_int_eq(plugin->open(&harness_host, &handle), MOEK_OK);
	ck_assert_uint_eq(plugin->list(handle, &device, 1), 1);
	ck_assert_msg(device.cause_rule == 0, "%s", device.cause);
}

void close_plugin(void)
{
	plugin->close(handle);
	sysfs_destroy(sysfs);
}

uint32_t ask(const struct moek_experts *experts, const struct moek_problem *problem,
             struct moek_verdict *no)
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

/* --------------------------------------------------------------------- a layer, by
 * hand */

uint32_t seed;

uint32_t random_bits(void)
{
	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

/* -1 .. 1 */
float random_unit(void)
{
	return (float)(int32_t)(random_bits() % 2001) / 1000.0f - 1.0f;
}

uint16_t to_type(float value, uint32_t type)
{
	return type == MOEK_F16 ? moek_f16_from_f32(value) : moek_bf16_from_f32(value);
}

float from_type(uint16_t bits, uint32_t type)
{
	return type == MOEK_F16 ? moek_f16_to_f32(bits) : moek_bf16_to_f32(bits);
}

uint64_t type_bytes(uint32_t type)
{
	return type == MOEK_F32 || type == MOEK_I32 ? 4 : type == MOEK_U8 ? 1 : 2;
}

double value_at(const void *values, uint64_t i, uint32_t type)
{
	if (type == MOEK_F32)
		return (double)((const float *)values)[i];
	return (double)from_type(((const uint16_t *)values)[i], type);
}

static void set_value(void *values, uint64_t i, uint32_t type, float value)
{
	if (type == MOEK_F32)
		((float *)values)[i] = value;
	else
		((uint16_t *)values)[i] = to_type(value, type);
}

void make_matrix(const struct moek_scheme *scheme, uint64_t rows, uint64_t columns,
                 struct matrix *m)
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
		.input_scale = scheme->input_scale ? 0.003f + 0.001f * random_unit()
		                                   : 0.0f,
	};
}

void free_matrix(struct matrix *m)
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

double reference_activation(const struct moek_problem *p, double g, double u)
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

double dot(const double *row, const double *x, uint64_t count, double *magnitude)
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

int local_expert(const struct bench *b, int32_t id)
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
		x[i] = value_at(b->input, token * p->hidden + i, p->input_type) *
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

void make_bench(const struct moek_problem *problem, uint64_t tokens, int with_map,
                struct bench *b)
{
	uint64_t slots = tokens * problem->top_k, out = tokens * problem->hidden, i, e;

	b->problem = *problem;
	b->tokens = tokens;
	b->map = NULL;
	b->tamper = NULL;
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
	b->input = aligned_alloc(64, (out * type_bytes(problem->input_type) + 63) / 64 *
	                                     64);
	for (i = 0; i < out; i++)
		set_value(b->input, i, problem->input_type, random_unit());
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
}

void make_reference(struct bench *b)
{
	const struct moek_problem *p = &b->problem;
	double *activated = malloc(p->intermediate * sizeof(double));
	double *x = malloc(p->hidden * sizeof(double));
	uint64_t i;

	for (i = 0; i < b->tokens * p->top_k; i++)
		reference_slot(b, i / p->top_k, i, activated, x);
	free(activated);
	free(x);
}

void free_bench(struct bench *b)
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

static void *to_host(const void *from, uint64_t bytes)
{
	void *copy = malloc(bytes + 1);

	if (bytes != 0)
		ck_assert_int_eq(plugin->copy(handle, &device, copy, from, bytes,
		                              MOEK_TO_HOST, NULL),
		                 MOEK_OK);
	return copy;
}

void run_bench(const struct moek_experts *experts, const struct bench *b,
               uint64_t planned, struct run *run_out)
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
	if (b->tamper != NULL)
		b->tamper(b, weights);

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
	batch.input.data = to_device(b->input,
	                             b->tokens * p->hidden * type_bytes(p->input_type));
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

	run_out->output = to_host(batch.output.data, bytes);
	run_out->count = (uint32_t)count;
	memcpy(run_out->shapes, shapes, sizeof(shapes));
	for (i = 0; i < count; i++) {
		run_out->buffers[i] = to_host(
			buffers[i], shapes[i].elements * type_bytes(shapes[i].type));
		plugin->free(handle, &device, buffers[i]);
	}
	plugin->free(handle, &device, batch.input.data);
	plugin->free(handle, &device, batch.output.data);
	plugin->free(handle, &device, (void *)(uintptr_t)batch.topk_ids);
	plugin->free(handle, &device, (void *)(uintptr_t)batch.topk_weights);
	plugin->free(handle, &device, (void *)(uintptr_t)batch.expert_map);
	experts->destroy(layer);
	plugin->free(handle, &device, weights);
}

const void *run_buffer(const struct run *run, const char *name)
{
	uint32_t i;

	for (i = 0; i < run->count; i++)
		if (strcmp(run->shapes[i].name, name) == 0)
			return run->buffers[i];
	ck_assert_msg(0, "no buffer %s", name);
	return NULL;
}

void free_run(struct run *run)
{
	uint32_t i;

	free(run->output);
	for (i = 0; i < run->count; i++)
		free(run->buffers[i]);
}

double machine_eps(uint32_t type)
{
	return type == MOEK_F32 ? 0x1p-23 : type == MOEK_F16 ? 0x1p-10 : 0x1p-7;
}

/* largest error as a share of the declared allowance; *l2_out: relative error of the
 * whole */
double worst_error(const struct moek_experts *experts, const struct bench *b,
                   const void *output, double *l2_out)
{
	struct moek_numerics n;
	double worst = 0, error2 = 0, want2 = 0;
	uint64_t i;

	experts->numerics(handle, &b->problem, &n);
	ck_assert_uint_eq(n.accumulator, MOEK_F32);
	for (i = 0; i < b->tokens * b->problem.hidden; i++) {
		double got = value_at(output, i, b->problem.output_type);
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
