/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "naive.h"
#include "run.h"
#include "weights.h"

#define GUARD 512     /* bytes on either side of the rows */
#define PATTERN 0x7bu /* 1.3e36 in bf16 and fp32, 61280 in fp16 */

/* ---- registries ---- */

static void folder_of(const char *path, char *folder_out, size_t bytes)
{
	const char *slash = strrchr(path, '/');

	snprintf(folder_out, bytes, "%.*s", slash == NULL ? 1 : (int)(slash - path),
	         slash == NULL ? "." : path);
}

static int name_of(const char *path, char *name_out, size_t bytes)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash != NULL ? slash + 1 : path;
	size_t length = strlen(name);

	if (length <= 3 || length - 3 >= bytes || strcmp(name + length - 3, ".so") != 0)
		return 0;
	snprintf(name_out, bytes, "%.*s", (int)length - 3, name);
	return 1;
}

/** Of the plugins in @folders, only @name and the reference are opened. */
static int32_t open_registry(const char *const *folders, const char *name,
                             const char *config, uint32_t threads,
                             struct moek_registry **registry_out,
                             struct moek_error *error_out)
{
	const struct moek_setting settings[] = {
		{ "registry", "unlisted", "ignore" }, { "registry", "probe", "never" },
		/* what follows is told here, and how */
		{ "registry", "golden", "off" },
		{ "registry", "checks", "guards,poison,inputs" },
		{ "priority", name, "on" },           { "priority", "emulation", "on" },
	};
	const struct moek_registry_options options = {
		.settings = settings,
		.setting_count = strcmp(name, "emulation") == 0 ? 5 : 6,
		.struct_size = MOEK_REGISTRY_OPTIONS_SIZE_1_0,
		.threads = threads,
		.config_file = config,
		.plugin_dirs = folders,
		.ignore_environment = 1,
	};

	return moek_registry_open(&options, registry_out, error_out);
}

int32_t bed_open(const char *subject, const char *reference, const char *config,
                 uint32_t threads, struct bed *bed_out, struct moek_error *error_out)
{
	char own[4096], other[4096];
	const char *const folders[] = { own, other, NULL };
	struct bed bed = { NULL, NULL, "" };
	int32_t status;

	folder_of(subject, own, sizeof(own));
	folder_of(reference, other, sizeof(other));
	if (!name_of(subject, bed.plugin, sizeof(bed.plugin))) {
		snprintf(error_out->text, sizeof(error_out->text),
		         "%s: not the name of a plugin, NAME.so", subject);
		return MOEK_BAD_ARGUMENT;
	}
	status = open_registry(folders, bed.plugin, config, threads, &bed.many,
	                       error_out);
	if (status == MOEK_OK)
		status = open_registry(folders, bed.plugin, config, 1, &bed.one,
		                       error_out);
	if (status == MOEK_OK)
		*bed_out = bed;
	else
		bed_close(&bed);
	return status;
}

void bed_close(struct bed *bed)
{
	moek_registry_close(bed->one);
	moek_registry_close(bed->many);
}

/* ---- one layer ---- */

int32_t runner_open(struct moek_registry *registry, const struct moek_problem *problem,
                    const struct moek_source *source, const int32_t *map,
                    const char *request, struct runner *runner_out,
                    struct moek_error *error_out)
{
	const struct moek_layer_options options = {
		.struct_size = MOEK_LAYER_OPTIONS_SIZE_1_0, .expert_map = map
	};
	struct runner r = { .problem = *problem };
	int32_t status = moek_choose(registry, problem, request, NULL, &r.choice,
	                             error_out);

	if (status == MOEK_OK)
		status = moek_choice_numerics(r.choice, &r.numerics);
	if (status == MOEK_OK)
		status = moek_layer_create(r.choice, source, &options, &r.layer,
		                           error_out);
	if (status == MOEK_OK)
		status = moek_workspace_create(&r.layer, 1, NULL, 0, &r.workspace,
		                               error_out);
	if (status == MOEK_OK)
		*runner_out = r;
	else
		runner_close(&r);
	return status;
}

void runner_close(struct runner *runner)
{
	moek_workspace_destroy(runner->workspace);
	moek_layer_destroy(runner->layer);
	moek_choice_destroy(runner->choice);
	memset(runner, 0, sizeof(*runner));
}

int32_t runner_forward(const struct runner *runner, const struct tokens *tokens,
                       const struct rows *rows, struct moek_trace *trace,
                       struct moek_error *error_out)
{
	const struct moek_problem *p = &runner->problem;
	const struct moek_forward forward = {
		.struct_size = MOEK_FORWARD_SIZE_1_0,
		.input = { .data = tokens->input,
		           .rows = tokens->count,
		           .columns = p->hidden,
		           .row_stride = tokens->stride,
		           .type = p->input_type },
		.output = { .data = rows->data,
		            .rows = tokens->count,
		            .columns = p->hidden,
		            .row_stride = rows->stride,
		            .type = p->output_type },
		.topk_ids = tokens->ids,
		.topk_weights = tokens->weights,
		.workspace = runner->workspace,
		.trace = trace,
	};

	return moek_layer_forward(runner->layer, &forward, error_out);
}

/* ---- guarded rows ---- */

int rows_make(uint64_t count, uint64_t columns, uint64_t stride, uint32_t type,
              struct rows *rows_out)
{
	struct rows r = {
		.rows = count, .columns = columns, .stride = stride, .type = type
	};

	r.bytes = count * stride * float_bytes(type) + 2 * GUARD;
	r.memory = malloc(r.bytes);
	if (r.memory == NULL)
		return 0;
	r.data = r.memory + GUARD;
	rows_poison(&r);
	*rows_out = r;
	return 1;
}

void rows_free(struct rows *rows)
{
	free(rows->memory);
	rows->memory = NULL;
}

void rows_poison(struct rows *rows)
{
	memset(rows->memory, PATTERN, rows->bytes);
}

static int untouched(const uint8_t *bytes, uint64_t count)
{
	while (count-- > 0)
		if (bytes[count] != PATTERN)
			return 0;
	return 1;
}

const char *rows_broken(const struct rows *rows)
{
	uint64_t size = float_bytes(rows->type), i;
	uint64_t gap = (rows->stride - rows->columns) * size;

	if (!untouched(rows->memory, GUARD))
		return "wrote before its output";
	for (i = 0; i < rows->rows; i++)
		if (!untouched(rows->memory + GUARD +
		                       (i * rows->stride + rows->columns) * size,
		               gap))
			return "wrote between the rows of its output";
	if (!untouched(rows->memory + rows->bytes - GUARD, GUARD))
		return "wrote past its output";
	return NULL;
}

void rows_widen(const struct rows *rows, float *values_out)
{
	uint64_t r, c;

	for (r = 0; r < rows->rows; r++)
		for (c = 0; c < rows->columns; c++)
			values_out[r * rows->columns + c] = float_get(
				rows->type, rows->data, r * rows->stride + c);
}

/* ---- the reference ---- */

int32_t reference_make(const struct bed *bed, const struct material *material,
                       struct reference *reference_out, struct moek_error *error_out)
{
	struct moek_problem problem = material->problem;
	uint64_t tokens = material->tokens.count, hidden = problem.hidden;
	uint64_t width = problem.intermediate * (problem.gated ? 2 : 1);
	struct reference r = { 0 };
	struct moek_trace trace = { .struct_size = MOEK_TRACE_SIZE_1_0 };
	struct runner runner;
	struct rows rows = { 0 };
	int32_t status;

	problem.output_type = MOEK_F32;
	status = runner_open(bed->many, &problem, &material->plain, material->map,
	                     "require emulation.any", &runner, error_out);
	if (status != MOEK_OK)
		return status;
	r.output = malloc((tokens * hidden + 1) * sizeof(float));
	r.magnitudes = calloc(tokens * hidden + 1, sizeof(float));
	r.gate_up = calloc(tokens * problem.top_k * width + 1, sizeof(float));
	trace.magnitudes = r.magnitudes;
	trace.gate_up = r.gate_up;
	if (r.output == NULL || r.magnitudes == NULL || r.gate_up == NULL ||
	    !rows_make(tokens, hidden, hidden, MOEK_F32, &rows))
		status = MOEK_NO_MEMORY;
	if (status == MOEK_OK)
		status = runner_forward(&runner, &material->tokens, &rows, &trace,
		                        error_out);
	if (status == MOEK_OK)
		rows_widen(&rows, r.output);
	rows_free(&rows);
	runner_close(&runner);
	if (status == MOEK_OK)
		*reference_out = r;
	else
		reference_free(&r);
	return status;
}

void reference_free(struct reference *reference)
{
	free(reference->output);
	free(reference->magnitudes);
	free(reference->gate_up);
	free(reference->flips);
	memset(reference, 0, sizeof(*reference));
}

/* ---- codes near a tie ---- */

/** One slot on its way through reference_flips(). */
struct slot {
	const struct moek_problem *problem;
	const struct moek_expert *expert;
	const float *gate_up;         /* [intermediate], and again if gated */
	double *x;                    /* [hidden]: the input as it is multiplied */
	double *value, *error, *flip; /* [intermediate] */
	double unit;                  /* terms * eps of the accumulator */
};

/* The activated values, and how far off they may be. */
static void activate(const struct slot *s)
{
	const struct moek_problem *p = s->problem;
	uint64_t i, n = p->intermediate;
	double size, step, up;

	for (i = 0; i < n; i++) {
		double g = (double)s->gate_up[i];
		double u = p->gated ? (double)s->gate_up[n + i] : 0;

		s->value[i] = naive_activate(p, g, u);
		naive_dot(&s->expert->gate, i, s->x, &size);
		step = s->unit * size;
		s->error[i] = fmax(fabs(naive_activate(p, g + step, u) - s->value[i]),
		                   fabs(naive_activate(p, g - step, u) - s->value[i]));
		if (p->gated) {
			naive_dot(&s->expert->up, i, s->x, &size);
			up = s->unit * size;
			s->error[i] += fmax(
				fabs(naive_activate(p, g, u + up) - s->value[i]),
				fabs(naive_activate(p, g, u - up) - s->value[i]));
		}
		s->error[i] += 16 * FLT_EPSILON * fabs(s->value[i]);
	}
}

/* What an element may become: both ends of its range, under a block whose amax is at
 * either end of its own. */
static void flip_block(const struct slot *s, uint64_t first, uint64_t count)
{
	float row[2], back[2];
	double amax[2] = { 0, 0 };
	uint64_t i, largest = first;
	int side, end;

	for (i = first; i < first + count; i++)
		if (fabs(s->value[i]) > fabs(s->value[largest]))
			largest = i;
	amax[0] = fabs(s->value[largest]) - s->error[largest];
	amax[1] = fabs(s->value[largest]) + s->error[largest];
	for (i = first; i < first + count; i++) {
		double low = (double)INFINITY, high = (double)-INFINITY;

		for (side = 0; side < 2; side++)
			for (end = -1; end <= 1; end += 2) {
				/* a block of two: the element, and what sets the scale
				 */
				row[0] = (float)(s->value[i] + end * s->error[i]);
				row[1] = (float)fmax(amax[side], fabs((double)row[0]));
				naive_quantise(s->problem, row, 2,
				               s->expert->down.input_scale, back);
				low = fmin(low, (double)back[0]);
				high = fmax(high, (double)back[0]);
			}
		s->flip[i] = high - low;
	}
}

static void add_flips(const struct slot *s, double weight, double *flips)
{
	const struct moek_problem *p = s->problem;
	uint64_t block = p->activations == MOEK_A8_INT8         ? p->activations_group
	                 : p->activations == MOEK_A8_FP8_STATIC ? 1
	                                                        : 32;
	uint64_t i, h;

	activate(s);
	for (i = 0; i < p->intermediate; i += block)
		flip_block(s, i,
		           block < p->intermediate - i ? block : p->intermediate - i);
	for (h = 0; h < p->hidden; h++)
		for (i = 0; i < p->intermediate; i++)
			if (s->flip[i] > 0)
				flips[h] += weight * s->flip[i] *
				            fabs(naive_weight(&s->expert->down, h, i));
}

/* The expert that a slot runs on, or NULL: not routed. */
static const struct moek_expert *expert_of(const struct material *m, uint64_t slot)
{
	int32_t id = m->tokens.ids[slot];

	if (id < 0 || (uint64_t)id >= m->problem.experts ||
	    (m->map != NULL && m->map[id] < 0))
		return NULL;
	return &m->experts[id];
}

/* Input row @token as fp32, the router weight on it where it belongs there. */
static void read_token(const struct material *m, uint64_t token, float *row_out)
{
	const struct moek_problem *p = &m->problem;
	uint64_t c;

	for (c = 0; c < p->hidden; c++) {
		row_out[c] = float_get(p->input_type, m->tokens.input,
		                       token * m->tokens.stride + c);
		if (p->must_understand & MOEK_WEIGHT_ON_INPUT)
			row_out[c] = (float)naive_round(
				p->input_type,
				(double)(row_out[c] * m->tokens.weights[token]));
	}
}

static double weight_of(const struct material *m, uint64_t slot)
{
	return m->problem.must_understand & MOEK_WEIGHT_ON_INPUT
	               ? 1.0
	               : (double)m->tokens.weights[slot];
}

static void flips_of_token(const struct material *m, struct slot *s, uint64_t token,
                           struct reference *r)
{
	const struct moek_problem *p = &m->problem;
	uint64_t width = p->intermediate * (p->gated ? 2 : 1), j, c;
	float *row = malloc(2 * p->hidden * sizeof(*row));

	for (j = token * p->top_k; row != NULL && j < (token + 1) * p->top_k; j++) {
		s->expert = expert_of(m, j);
		if (s->expert == NULL)
			continue;
		s->gate_up = r->gate_up + j * width;
		read_token(m, token, row);
		naive_quantise(p, row, p->hidden, s->expert->gate.input_scale,
		               row + p->hidden);
		for (c = 0; c < p->hidden; c++)
			s->x[c] = (double)row[p->hidden + c];
		add_flips(s, fabs(weight_of(m, j)), r->flips + token * p->hidden);
	}
	free(row);
}

int reference_flips(const struct material *material,
                    const struct moek_numerics *numerics, struct reference *reference)
{
	const struct moek_problem *p = &material->problem;
	uint64_t tokens = material->tokens.count, token;
	struct slot s = { .problem = p,
		          .unit = (double)numerics->terms *
		                  compare_eps(numerics->accumulator) };

	free(reference->flips);
	reference->flips = NULL;
	if (p->activations == MOEK_A16)
		return 1;
	reference->flips = calloc(tokens * p->hidden + 1, sizeof(double));
	s.x = calloc(p->hidden + 3 * p->intermediate, sizeof(double));
	if (reference->flips == NULL || s.x == NULL) {
		free(s.x);
		return 0;
	}
	s.value = s.x + p->hidden;
	s.error = s.value + p->intermediate;
	s.flip = s.error + p->intermediate;
	for (token = 0; token < tokens; token++)
		flips_of_token(material, &s, token, reference);
	free(s.x);
	return 1;
}

int reference_from_naive(const struct material *material, struct reference *reference)
{
	const struct moek_problem *p = &material->problem;
	uint64_t token, j, h;
	float *row = calloc(p->hidden, sizeof(*row));
	double *sums = calloc(2 * p->hidden, sizeof(*sums));
	int done = row != NULL && sums != NULL;

	for (token = 0; done && token < material->tokens.count; token++) {
		read_token(material, token, row);
		memset(sums, 0, p->hidden * sizeof(*sums));
		for (j = token * p->top_k; done && j < (token + 1) * p->top_k; j++) {
			if (expert_of(material, j) == NULL)
				continue;
			done = naive_slot(p, expert_of(material, j), row,
			                  sums + p->hidden);
			for (h = 0; h < p->hidden; h++)
				sums[h] += weight_of(material, j) * sums[p->hidden + h];
		}
		for (h = 0; h < p->hidden; h++)
			reference->output[token * p->hidden + h] = (float)sums[h];
	}
	free(row);
	free(sums);
	return done;
}
