/* SPDX-License-Identifier: MIT */
/* Problems that nobody thought of, each from its seed alone. */
#include <stdio.h>
#include <string.h>

#include "case.h"
#include "weights.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t below(uint64_t *state, uint64_t limit)
{
	return (random_next(state) >> 16) % limit;
}

/* Once in `times`. */
static int once(uint64_t *state, uint64_t times)
{
	return below(state, times) == 0;
}

/* 1 .. most, small numbers as likely as large ones. */
static uint64_t size(uint64_t *state, uint64_t most)
{
	uint64_t limit = 1 + below(state, most);

	return 1 + below(state, limit);
}

static struct moek_scheme random_scheme(uint64_t *state)
{
	static const uint32_t weights[] = { MOEK_INT4,  MOEK_INT4,  MOEK_INT4,
		                            MOEK_MXFP4, MOEK_MXFP4, MOEK_BF16,
		                            MOEK_F16,   MOEK_F32,   MOEK_INT8 };
	static const uint32_t scales[] = { MOEK_BF16, MOEK_F16, MOEK_F32 };
	static const uint64_t groups[] = { 32, 32, 128, 64, 16, 0, 96 };
	struct moek_scheme s = { .weight = weights[below(state, COUNT(weights))] };

	s.bias = (uint32_t)once(state, 3);
	if (s.weight == MOEK_MXFP4) {
		s.scale = MOEK_E8M0;
		s.group_size = 32;
	} else if (s.weight == MOEK_INT4 || s.weight == MOEK_INT8) {
		s.scale = scales[below(state, COUNT(scales))];
		s.group_size = groups[below(state, COUNT(groups))];
		s.zero_points = (uint32_t)once(state, 2);
		s.column_groups = (uint32_t)(s.group_size != 0 && once(state, 16));
	}
	return s;
}

/* The function between, with parameters that matter to it. */
static void random_function(uint64_t *state, struct moek_problem *p)
{
	p->activation = (uint32_t)(MOEK_SILU + below(state, MOEK_SITU));
	p->gated = p->activation == MOEK_RELU2 ? 0 : !once(state, 5);
	if (p->activation == MOEK_SITU)
		p->alpha = random_float(state, 1, 4);
	if (p->activation == MOEK_SWIGLU_OAI)
		p->alpha = random_float(state, 1, 2);
	if ((p->activation == MOEK_SWIGLU_OAI || p->activation == MOEK_SITU) &&
	    once(state, 2))
		p->beta = random_float(state, 1, 20);
	if (p->activation != MOEK_RELU2 && p->activation != MOEK_SITU && once(state, 3))
		p->limit = random_float(state, 0.5f, 3);
}

static int is_scaled(const struct moek_problem *p)
{
	return p->gate_up.scale != 0 && p->down.scale != 0;
}

static uint32_t random_twist(uint64_t *state, const struct moek_problem *p)
{
	static const uint32_t of_ids[] = { TWIST_ONE_EXPERT, TWIST_DUPLICATES,
		                           TWIST_OUTSIDE, TWIST_NOBODY };
	uint32_t twist = once(state, 6) ? TWIST_STRIDE : 0;

	if (once(state, 5))
		twist |= of_ids[below(state, COUNT(of_ids))];
	if (once(state, 8))
		twist |= TWIST_ZERO_WEIGHTS;
	if (once(state, 8))
		twist |= TWIST_MAP;
	if (p->top_k == 1 && once(state, 3))
		twist |= TWIST_ON_INPUT;
	if (once(state, 10))
		twist |= TWIST_NAN_TOKEN;
	if (is_scaled(p) && once(state, 10))
		twist |= TWIST_ZERO_SCALES;
	return twist;
}

static void name(struct kernel_case *c)
{
	const struct moek_problem *p = &c->problem;

	snprintf(c->name, sizeof(c->name), "random %s/%s h%llu i%llu e%llu k%llu t%llu",
	         moek_type_name(p->gate_up.weight), moek_type_name(p->down.weight),
	         (unsigned long long)p->hidden, (unsigned long long)p->intermediate,
	         (unsigned long long)p->experts, (unsigned long long)p->top_k,
	         (unsigned long long)c->tokens);
}

void case_random(uint64_t seed, struct kernel_case *case_out)
{
	static const uint32_t types[] = { MOEK_BF16, MOEK_BF16, MOEK_F16, MOEK_F32 };
	struct kernel_case c = { .tokens = 0 };
	struct moek_problem *p = &c.problem;
	uint64_t state = seed;

	random_next(&state);
	c.tokens = size(&state, 40);
	p->struct_size = MOEK_PROBLEM_SIZE_1_0;
	p->experts = p->experts_local = size(&state, 24);
	p->top_k = size(&state, p->experts < 8 ? p->experts : 8);
	p->hidden = size(&state, 400);
	p->intermediate = size(&state, 260);
	p->gate_up = random_scheme(&state);
	p->down = once(&state, 4) ? random_scheme(&state) : p->gate_up;
	p->input_type = types[below(&state, COUNT(types))];
	p->output_type = once(&state, 4) ? MOEK_F32 : p->input_type;
	p->shards = 1;
	if (is_scaled(p) && once(&state, 4)) {
		p->activations = MOEK_A8_INT8;
		p->activations_group = 32;
	}
	random_function(&state, p);
	/* 1 + erf and 1 + tanh leave few digits of a large negative g, in every backend
	 * and emulation: it must not be all there is to sum */
	if ((p->activation == MOEK_GELU || p->activation == MOEK_GELU_TANH) &&
	    p->intermediate < 16)
		p->intermediate += 16;
	c.twist = random_twist(&state, p);
	case_twist(&c);
	name(&c);
	*case_out = c;
}
