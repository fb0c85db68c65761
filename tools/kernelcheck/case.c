/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"
#include "weights.h"

struct scheme {
	const char *name;
	struct moek_scheme gate_up, down;
};

struct function {
	const char *name;
	uint32_t activation, gated;
	float alpha, beta, limit;
};

struct types {
	const char *name;
	uint32_t input, output;
};

struct row {
	const char *name;
	uint32_t scheme, activations, function, types;
	uint64_t experts, top_k, hidden, intermediate, tokens;
	uint32_t twist;
};

enum scheme_index {
#define SCHEME(name, ...) SCHEME_##name,
#include "cases.h"
	SCHEMES
};
enum function_index {
#define FUNCTION(name, ...) FUNCTION_##name,
#include "cases.h"
	FUNCTIONS
};
enum types_index {
#define TYPES(name, ...) TYPES_##name,
#include "cases.h"
	ALL_TYPES
};

static const struct scheme schemes[] = {
#define SCHEME(name, ...) { #name, __VA_ARGS__ },
#include "cases.h"
};
static const struct function functions[] = {
#define FUNCTION(name, ...) { #name, __VA_ARGS__ },
#include "cases.h"
};
static const struct types types[] = {
#define TYPES(name, ...) { #name, __VA_ARGS__ },
#include "cases.h"
};
static const struct row rows[] = {
#define CASE(name, scheme, activations, function, types, ...)                          \
	{ #name,         SCHEME_##scheme, activations, FUNCTION_##function,            \
	  TYPES_##types, __VA_ARGS__ },
#include "cases.h"
};
static const struct row benches[] = {
#define BENCH(name, scheme, activations, function, types, ...)                         \
	{ #name,                                                                       \
	  SCHEME_##scheme,                                                             \
	  activations,                                                                 \
	  FUNCTION_##function,                                                         \
	  TYPES_##types,                                                               \
	  __VA_ARGS__,                                                                 \
	  0 },
#include "cases.h"
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

void case_twist(struct kernel_case *c)
{
	if (c->twist & TWIST_MAP)
		c->problem.experts_local = (c->problem.experts + 1) / 2;
	c->problem.must_understand |= (c->twist & TWIST_MAP ? MOEK_EXPERT_MAP : 0) |
	                              (c->twist & TWIST_STRIDE ? MOEK_ROW_STRIDE : 0) |
	                              (c->twist & TWIST_ON_INPUT ? MOEK_WEIGHT_ON_INPUT
	                                                         : 0);
}

static void resolve(const struct row *row, struct kernel_case *case_out)
{
	const struct scheme *s = &schemes[row->scheme];
	const struct function *f = &functions[row->function];
	struct kernel_case c = { .tokens = row->tokens, .twist = row->twist };

	snprintf(c.name, sizeof(c.name), "%s", row->name);
	c.problem = (struct moek_problem){
		.struct_size = MOEK_PROBLEM_SIZE_1_0,
		.activations = row->activations,
		.activations_group = row->activations == MOEK_A8_INT8 ? 32 : 0,
		.experts = row->experts,
		.experts_local = row->experts,
		.top_k = row->top_k,
		.hidden = row->hidden,
		.intermediate = row->intermediate,
		.gate_up = s->gate_up,
		.down = s->down,
		.input_type = types[row->types].input,
		.output_type = types[row->types].output,
		.activation = f->activation,
		.gated = f->gated,
		.alpha = f->alpha,
		.beta = f->beta,
		.limit = f->limit,
		.shards = 1,
	};
	case_twist(&c);
	*case_out = c;
}

uint64_t case_count(void)
{
	return COUNT(rows) + SCHEMES * (FUNCTIONS + ALL_TYPES - 1);
}

void case_at(uint64_t index, struct kernel_case *case_out)
{
	struct row row = { "", 0, MOEK_A16, FUNCTION_silu, TYPES_bf16, 4, 2, 128,
		           64, 5, 0 };
	uint64_t product;

	if (index < COUNT(rows)) {
		resolve(&rows[index], case_out);
		return;
	}
	index -= COUNT(rows);
	product = index / SCHEMES;
	row.scheme = (uint32_t)(index % SCHEMES);
	if (product < FUNCTIONS)
		row.function = (uint32_t)product;
	else
		row.types = (uint32_t)(product - FUNCTIONS + 1);
	resolve(&row, case_out);
	snprintf(case_out->name, sizeof(case_out->name), "%s/%s/%s",
	         schemes[row.scheme].name, functions[row.function].name,
	         types[row.types].name);
}

uint64_t bench_count(void)
{
	return COUNT(benches);
}

void bench_at(uint64_t index, struct kernel_case *case_out)
{
	resolve(&benches[index], case_out);
}

/* ---- weights ---- */

static int32_t give_expert(void *self, uint64_t expert, void *scratch,
                           struct moek_expert *expert_out, struct moek_error *error_out)
{
	const struct material *m = self;

	(void)scratch;
	(void)error_out;
	*expert_out = m->experts[expert];
	return MOEK_OK;
}

struct moek_source material_source(struct material *material)
{
	const struct moek_source source = { .struct_size = MOEK_SOURCE_SIZE_1_0,
		                            .self = material,
		                            .expert = give_expert };

	return source;
}

static uint32_t weights_kind(uint32_t twist)
{
	return (twist & TWIST_ZERO_SCALES ? WEIGHTS_ZERO_SCALES : 0u) |
	       (twist & TWIST_EXTREME ? WEIGHTS_EXTREME_SCALES : 0u) |
	       (twist & TWIST_LARGEST ? WEIGHTS_ALL_LARGEST : 0u);
}

/* Row @r of gate_up in the tensor, as a row of gate (1) or up (0). */
static int is_gate(uint32_t twist, uint64_t intermediate, uint64_t r, uint64_t *row_out)
{
	if (twist & TWIST_INTERLEAVED) {
		*row_out = r / 2;
		return r % 2 == 0;
	}
	*row_out = r % intermediate;
	return (r < intermediate) == !(twist & TWIST_UP_FIRST);
}

static uint64_t bytes_per_row(const struct moek_matrix *m)
{
	if (m->weight == MOEK_INT4 || m->weight == MOEK_MXFP4)
		return m->columns / 2;
	return m->columns * float_bytes(m->weight);
}

static uint64_t scale_bytes_per_row(const struct moek_matrix *m)
{
	return m->scale == 0
	               ? 0
	               : ((m->columns - 1) / m->group_size + 1) * float_bytes(m->scale);
}

/* Rows of both halves, in the order of the twist, one part (codes, scales or bias). */
static void *stack(const struct material *m, uint32_t twist, int down, int part,
                   uint64_t *bytes_out)
{
	const struct moek_expert *first = &m->experts[0];
	const struct moek_matrix *like = down ? &first->down : &first->gate;
	uint64_t row_bytes = part == 0   ? bytes_per_row(like)
	                     : part == 1 ? scale_bytes_per_row(like)
	                                 : sizeof(float);
	uint64_t count = down ? like->rows : 2 * like->rows, e, r, row;
	uint8_t *all;

	*bytes_out = m->problem.experts * count * row_bytes;
	if (row_bytes == 0 || (part == 2 && like->bias == NULL)) {
		*bytes_out = 0;
		return NULL;
	}
	all = malloc(*bytes_out);
	for (e = 0; all != NULL && e < m->problem.experts; e++)
		for (r = 0; r < count; r++) {
			const struct moek_matrix *from = &m->experts[e].down;
			const void *data;

			row = r;
			if (!down)
				from = is_gate(twist, like->rows, r, &row)
				               ? &m->experts[e].gate
				               : &m->experts[e].up;
			data = part == 0   ? from->codes
			       : part == 1 ? from->scales
			                   : (const void *)from->bias;
			memcpy(all + (e * count + r) * row_bytes,
			       (const uint8_t *)data + row * row_bytes, row_bytes);
		}
	return all;
}

static struct moek_stack make_stack(struct material *m, uint32_t twist, int down)
{
	uint32_t weight = down ? m->problem.down.weight : m->problem.gate_up.weight;
	struct moek_stack s = { .struct_size = MOEK_STACK_SIZE_1_0,
		                .layout = weight == MOEK_INT4    ? MOEK_LAYOUT_PACKED
		                          : weight == MOEK_MXFP4 ? MOEK_LAYOUT_BLOCKS
		                                                 : MOEK_LAYOUT_ROWS,
		                .bias_type = MOEK_F32 };
	void **kept = m->stacked + 4 * down;

	s.codes = kept[0] = stack(m, twist, down, 0, &s.codes_bytes);
	s.scales = kept[1] = stack(m, twist, down, 1, &s.scales_bytes);
	s.bias = kept[2] = stack(m, twist, down, 2, &s.bias_bytes);
	if (s.bias == NULL)
		s.bias_type = 0;
	s.gate_order = down                        ? 0
	               : twist & TWIST_INTERLEAVED ? MOEK_GATE_INTERLEAVED
	               : twist & TWIST_UP_FIRST    ? MOEK_UP_FIRST
	                                           : MOEK_GATE_FIRST;
	return s;
}

static int make_stacks(struct material *m, uint32_t twist)
{
	struct moek_stack gate_up = make_stack(m, twist, 0);
	struct moek_stack down = make_stack(m, twist, 1);
	struct moek_error error;

	if (moek_tensors_source(&m->problem, &gate_up, &down, &m->source, &error) ==
	    MOEK_OK)
		return 1;
	fprintf(stderr, "kernelcheck: %s\n", error.text);
	return 0;
}

/* ---- batches ---- */

static int32_t pick_id(const struct moek_problem *p, uint32_t twist, uint64_t slot,
                       uint64_t *state)
{
	int32_t id = (int32_t)(random_next(state) % p->experts);

	if (twist & TWIST_ONE_EXPERT)
		id = (int32_t)p->experts - 1;
	if (twist & TWIST_NOBODY || (twist & TWIST_OUTSIDE && slot % 3 != 1)) {
		static const int32_t outside[] = { -1, INT32_MAX, INT32_MIN, -2 };

		id = slot % 5 == 4 ? (int32_t)p->experts : outside[slot % 5];
	}
	return id;
}

/* Without TWIST_DUPLICATES a token's experts differ, as a router's do. */
static int taken(const int32_t *ids, uint64_t count, int32_t id)
{
	while (count-- > 0)
		if (ids[count] == id)
			return 1;
	return 0;
}

static void fill_ids(const struct moek_problem *p, uint32_t twist, struct tokens *t,
                     uint64_t *state)
{
	int any = (twist & (TWIST_ONE_EXPERT | TWIST_DUPLICATES | TWIST_OUTSIDE |
	                    TWIST_NOBODY)) != 0;
	uint64_t token, j;

	for (token = 0; token < t->count; token++)
		for (j = 0; j < p->top_k; j++) {
			int32_t *ids = t->ids + token * p->top_k;

			do
				ids[j] = pick_id(p, twist, token * p->top_k + j, state);
			while (!any && taken(ids, j, ids[j]));
			if (twist & TWIST_DUPLICATES && j == 1)
				ids[j] = ids[0];
		}
}

static int fill_tokens(const struct moek_problem *p, uint32_t twist, uint64_t count,
                       struct tokens *t, uint64_t *state)
{
	uint64_t i, slots = count * p->top_k;

	t->count = count;
	t->stride = p->hidden + (twist & TWIST_STRIDE ? 13 : 0);
	t->input = malloc(count * t->stride * 4 + 1);
	t->ids = malloc(slots * sizeof(*t->ids) + 1);
	t->weights = malloc(slots * sizeof(*t->weights) + 1);
	if (t->input == NULL || t->ids == NULL || t->weights == NULL)
		return 0;
	for (i = 0; i < count * t->stride; i++)
		float_put(p->input_type, t->input, i, random_float(state, -2, 2));
	/* neither normalised nor alike, and one is negative: nothing may depend on it
	 */
	for (i = 0; i < slots; i++)
		t->weights[i] = random_float(state, 0.1f, 0.9f) *
		                (i % 11 == 10 ? -1 : 1);
	for (i = 0; twist & TWIST_ZERO_WEIGHTS && i < slots; i += 3)
		t->weights[i] = 0;
	fill_ids(p, twist, t, state);
	if (twist & TWIST_NAN_TOKEN)
		float_put(p->input_type, t->input,
		          count / 2 * t->stride + p->hidden / 3, NAN);
	return 1;
}

/* Every other expert is local, in a scattered order. */
static int make_map(struct material *m)
{
	uint64_t e, local = m->problem.experts_local;

	m->map = malloc(m->problem.experts * sizeof(*m->map));
	for (e = 0; m->map != NULL && e < m->problem.experts; e++)
		m->map[e] = e % 2 != 0 ? -1 : (int32_t)((e / 2 + 2) % local);
	return m->map != NULL;
}

static void plant_nan_scale(const struct material *m)
{
	const struct moek_matrix *down = &m->experts[m->problem.experts - 1].down;
	uint64_t groups = (down->columns - 1) / down->group_size + 1;

	((uint8_t *)(uintptr_t)down->scales)[7 * groups + 1] = 255;
}

int material_make(const struct kernel_case *c, uint64_t seed,
                  struct material *material_out)
{
	struct material *m = material_out;
	const char *letter;
	uint64_t state = seed;

	for (letter = c->name; *letter != '\0'; letter++)
		state = state * 31 + (uint8_t)*letter;
	memset(m, 0, sizeof(*m));
	m->problem = c->problem;
	m->problem.max_tokens = c->tokens + 7;
	m->all = m->problem;
	m->all.experts_local = m->all.experts;
	m->experts = weights_create(&m->all, random_next(&state),
	                            weights_kind(c->twist));
	if (m->experts == NULL || (c->twist & TWIST_MAP && !make_map(m)) ||
	    !fill_tokens(&m->problem, c->twist, c->tokens, &m->tokens, &state) ||
	    !fill_tokens(&m->problem, c->twist & TWIST_STRIDE, c->tokens + 7,
	                 &m->larger, &state)) {
		material_free(m);
		return 0;
	}
	if (c->twist & TWIST_NAN_SCALE)
		plant_nan_scale(m);
	m->source = m->plain = material_source(m);
	if (c->twist & TWIST_STACKED && !make_stacks(m, c->twist)) {
		material_free(m);
		return 0;
	}
	return 1;
}

static void free_tokens(struct tokens *t)
{
	free(t->input);
	free(t->ids);
	free(t->weights);
}

void material_free(struct material *material)
{
	size_t i;

	moek_source_close(&material->source);
	for (i = 0; i < COUNT(material->stacked); i++)
		free(material->stacked[i]);
	weights_free(&material->all, material->experts);
	free(material->map);
	free_tokens(&material->tokens);
	free_tokens(&material->larger);
	memset(material, 0, sizeof(*material));
}
