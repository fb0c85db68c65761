/* SPDX-License-Identifier: MIT */
/*
 * aiter_mxfp4.so, unmodified, through its table: on tests/fakes/fakehip.so, which runs
 * the kernels on the CPU. Verified stage by stage, each from what the one before it
 * really made: the codes of the input bit for bit; the rows between within what fp32
 * sums may be off, a code that this leaves no choice in must be equal; the output from
 * these rows.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#include "plugins/aiter_mxfp4/mxfp4.h"
#include "tests/gpu/aiter_files.h"
#include "tests/gpu/harness.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { W4A4, W4A8, W4A16, TABLES };

/* ------------------------------------------------------------------------------- rules
 */

static struct moek_problem good_problem(int table)
{
	const struct moek_scheme scheme = {
		.weight = MOEK_MXFP4,
		.scale = MOEK_E8M0,
		.group_size = 32,
		.input_scale = table == W4A8,
	};
	const struct moek_problem problem = {
		.struct_size = MOEK_PROBLEM_SIZE_1_0,
		.activations = table == W4A4   ? MOEK_A4_MXFP4_EVEN
		               : table == W4A8 ? MOEK_A8_FP8_STATIC
		                               : MOEK_A16,
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

static void weight_int4(struct moek_problem *p)
{
	p->gate_up.weight = MOEK_INT4;
}
static void down_bf16(struct moek_problem *p)
{
	p->down.weight = MOEK_BF16;
}
static void scale_bf16(struct moek_problem *p)
{
	p->gate_up.scale = MOEK_BF16;
}
static void group_16(struct moek_problem *p)
{
	p->down.group_size = 16;
}
static void zero_points(struct moek_problem *p)
{
	p->gate_up.zero_points = 1;
}
static void column_groups(struct moek_problem *p)
{
	p->down.column_groups = 1;
}
static void a16(struct moek_problem *p)
{
	p->activations = MOEK_A16;
}
static void a4_even(struct moek_problem *p)
{
	p->activations = MOEK_A4_MXFP4_EVEN;
}
static void a4_round_up(struct moek_problem *p)
{
	p->activations = MOEK_A4_MXFP4_ROUND_UP;
}
static void a8_fp8(struct moek_problem *p)
{
	p->activations = MOEK_A8_FP8_STATIC;
}
static void a8_int8(struct moek_problem *p)
{
	p->activations = MOEK_A8_INT8;
}
static void future_activations(struct moek_problem *p)
{
	p->activations = 0xffff;
}
static void no_down_scale(struct moek_problem *p)
{
	p->down.input_scale = 0;
}
static void input_f32(struct moek_problem *p)
{
	p->input_type = MOEK_F32;
}
static void input_fp8(struct moek_problem *p)
{
	p->input_type = MOEK_F8_E4M3;
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

#define ALL(rule)                                                                      \
	{                                                                              \
		rule, rule, rule                                                       \
	}

/* one change of a good problem, and the rule that it must break in each table; 0: it
 * must still be good */
static const struct {
	const char *name;
	void (*change)(struct moek_problem *problem);
	uint32_t rule[TABLES];
} rules[] = {
	{ "int4 weights", weight_int4, ALL(MOEK_RULE_WEIGHT) },
	{ "bf16 down", down_bf16, ALL(MOEK_RULE_WEIGHT) },
	{ "bf16 scales", scale_bf16, ALL(MOEK_RULE_SCALE) },
	{ "group 16", group_16, ALL(MOEK_RULE_GROUP_SIZE) },
	{ "zero points", zero_points, ALL(MOEK_RULE_ZERO_POINTS) },
	{ "column groups", column_groups, ALL(MOEK_RULE_COLUMN_GROUPS) },
	{ "a16", a16, { MOEK_RULE_ACTIVATIONS, MOEK_RULE_ACTIVATIONS, 0 } },
	{ "a4 even", a4_even, { 0, MOEK_RULE_ACTIVATIONS, MOEK_RULE_ACTIVATIONS } },
	{ "a4 round up",
	  a4_round_up,
	  { 0, MOEK_RULE_ACTIVATIONS, MOEK_RULE_ACTIVATIONS } },
	{ "a8 fp8", a8_fp8, { MOEK_RULE_ACTIVATIONS, 0, MOEK_RULE_ACTIVATIONS } },
	{ "a8 int8", a8_int8, ALL(MOEK_RULE_ACTIVATIONS) },
	{ "future activations", future_activations, ALL(MOEK_RULE_ACTIVATIONS) },
	{ "no input scale of down", no_down_scale, { 0, MOEK_RULE_SCALE, 0 } },
	{ "fp32 input", input_f32, { 0, 0, MOEK_RULE_INPUT_TYPE } },
	{ "fp8 input", input_fp8, ALL(MOEK_RULE_INPUT_TYPE) },
	{ "fp8 output", output_fp8, ALL(MOEK_RULE_OUTPUT_TYPE) },
	{ "not gated", not_gated, ALL(MOEK_RULE_GATED) },
	{ "relu2", relu2, ALL(MOEK_RULE_ACTIVATION) },
	{ "situ with limit", situ_limit, ALL(MOEK_RULE_LIMIT) },
	{ "on input, top_k 2", on_input, ALL(MOEK_RULE_WEIGHT_ON_INPUT) },
	{ "row strides", strides, ALL(MOEK_RULE_ROW_STRIDE) },
	{ "lora", lora, ALL(MOEK_RULE_LORA) },
	{ "hidden 48", hidden_48, ALL(MOEK_RULE_HIDDEN) },
	{ "intermediate 80", intermediate_80, ALL(MOEK_RULE_INTERMEDIATE) },
	{ "top_k 129", many_choices, ALL(MOEK_RULE_TOP_K) },
	{ "16385 experts", many_experts, ALL(MOEK_RULE_EXPERTS) },
	{ "2^32 weights", huge, ALL(MOEK_RULE_INDEX_RANGE) },
};

START_TEST(refuses_by_rule_what_it_cannot_do_and_nothing_else)
{
	struct moek_verdict no;
	int table;

	for (table = 0; table < TABLES; table++) {
		struct moek_problem problem = good_problem(table);

		ck_assert_uint_eq(ask(plugin->experts[table], &problem, &no), 0);
		rules[_i].change(&problem);
		ck_assert_msg(ask(plugin->experts[table], &problem, &no) ==
		                      rules[_i].rule[table],
		              "%s: %s says rule %u", rules[_i].name,
		              plugin->experts[table]->name, no.rule);
	}
}
END_TEST

START_TEST(names_the_projection_that_breaks_a_rule)
{
	struct moek_problem problem = good_problem(W4A8);
	struct moek_verdict no;

	problem.down.group_size = 16;
	ask(plugin->experts[W4A8], &problem, &no);
	ck_assert_uint_eq(no.projection, MOEK_DOWN);
	ck_assert_uint_eq(no.found, 16);
	ck_assert_uint_eq(no.accepted[0], 32);
	problem = good_problem(W4A8);
	problem.gate_up.input_scale = 0;
	ask(plugin->experts[W4A8], &problem, &no);
	ck_assert_uint_eq(no.projection, MOEK_GATE_UP);
	ck_assert_str_eq(no.note, "fp8 activations without an input scale");
}
END_TEST

START_TEST(accepts_only_devices_it_has_code_for)
{
	static const char *const others[] = { "gfx942",  "gfx1100", "gfx90a",  "gfx95",
		                              "gfx9500", "gfx1250", "gfx1201", "" };
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
	strcpy(facts.arch, "gfx950");
	if (plugin->experts[0]->supports_device(handle, &facts, &no) == 0)
		ck_assert_str_eq(no.note, "built without a GPU compiler");
	facts.kind = MOEK_HOST;
	memset(&no, 0, sizeof(no));
	ck_assert_int_eq(plugin->experts[0]->supports_device(handle, &facts, &no), 0);
	ck_assert_uint_eq(no.rule, MOEK_RULE_DEVICE_KIND);
}
END_TEST

START_TEST(pads_sizes_to_128_and_says_so)
{
	struct moek_problem p = good_problem(W4A16);
	struct moek_sizes sizes;

	p.hidden = 2880;
	p.intermediate = 160;
	plugin->experts[W4A16]->problem_size(handle, &p, &sizes);
	ck_assert_uint_eq(sizes.hidden, 2944);
	ck_assert_uint_eq(sizes.intermediate, 256);
	ck_assert_uint_eq(sizes.gate_up_columns, 512);
}
END_TEST

START_TEST(says_which_rule_makes_its_codes)
{
	struct moek_problem p = good_problem(W4A4);
	struct moek_numerics n;

	plugin->experts[W4A4]->numerics(handle, &p, &n);
	ck_assert_ptr_nonnull(strstr(n.text, "even"));
	ck_assert_uint_eq(n.roundings, 0);
	p.activations = MOEK_A4_MXFP4_ROUND_UP;
	plugin->experts[W4A4]->numerics(handle, &p, &n);
	ck_assert_ptr_nonnull(strstr(n.text, "round up"));
	p = good_problem(W4A16);
	plugin->experts[W4A16]->numerics(handle, &p, &n);
	ck_assert_uint_eq(n.roundings, 1);
}
END_TEST

/* ------------------------------------------------------------- a run, stage by stage
 */

/* What may be told of a run that it did not do: the controls. */
struct claim {
	uint32_t activations; /* in place of the problem's */
	int unquantised;      /* the second multiply read rows as they were */
};

struct check {
	const struct bench *b;
	const struct run *run;
	struct claim claim;
	double unit;          /* terms * eps of the sums */
	uint64_t in, between; /* padded columns */
	uint64_t open, codes; /* codes that the bound leaves a choice in, of all */
	char text[200];       /* what is wrong first */
};

static int wrong(struct check *c, const char *what, uint64_t row, uint64_t column,
                 double got, double want)
{
	if (c->text[0] == '\0')
		snprintf(c->text, sizeof(c->text),
		         "%s[%llu][%llu] is %.9g, expected %.9g", what,
		         (unsigned long long)row, (unsigned long long)column, got,
		         want);
	return 0;
}

static uint8_t shared_scale(const struct check *c, double amax)
{
	return c->claim.activations == MOEK_A4_MXFP4_ROUND_UP
	               ? moek_mxfp4_scale_round_up((float)amax)
	               : moek_mxfp4_scale_even((float)amax);
}

/* the row that the first multiply is to see; before it is quantised */
static void input_row(const struct check *c, uint64_t token, float *x)
{
	const struct moek_problem *p = &c->b->problem;
	uint64_t i;

	for (i = 0; i < p->hidden; i++) {
		x[i] = (float)value_at(c->b->input, token * p->hidden + i,
		                       p->input_type);
		if ((p->must_understand & MOEK_WEIGHT_ON_INPUT) != 0 &&
		    p->activations != MOEK_A16) {
			x[i] *= c->b->weights[token];
			if (p->input_type != MOEK_F32)
				x[i] = from_type(to_type(x[i], p->input_type),
				                 p->input_type);
		}
	}
}

/* FP4 codes of a row: equal in every bit, padding too */
static int check_a4_input(struct check *c, uint64_t token, double *x_out)
{
	const struct moek_problem *p = &c->b->problem;
	const uint8_t *codes = run_buffer(c->run, "quantised");
	const uint8_t *scales = run_buffer(c->run, "quantised_scales");
	float *x = malloc(p->hidden * sizeof(*x));
	uint64_t i, block;
	int good = 1;

	input_row(c, token, x);
	for (block = 0; good && block < c->in / 32; block++) {
		const uint8_t scale = scales[token * (c->in / 32) + block];
		uint8_t want = 127;
		float amax = 0;

		for (i = block * 32; i < block * 32 + 32 && i < p->hidden; i++)
			amax = fmaxf(amax, fabsf(x[i]));
		if (block < p->hidden / 32)
			want = shared_scale(c, (double)amax);
		if (scale != want)
			good = wrong(c, "quantised_scales", token, block, scale, want);
		for (i = block * 32; good && i < block * 32 + 32; i++) {
			uint32_t code = moek_nibble(codes + token * (c->in / 2), i);
			uint32_t expected = i < p->hidden ? moek_mxfp4_code(x[i], scale)
			                                  : 0;

			if (code != expected)
				good = wrong(c, "quantised", token, i, code, expected);
			if (i < p->hidden)
				x_out[i] = (double)moek_mxfp4_value(code, scale);
		}
	}
	free(x);
	return good;
}

static int check_a8_input(struct check *c, uint64_t slot, float scale, double *x_out)
{
	const struct moek_problem *p = &c->b->problem;
	const uint8_t *codes = run_buffer(c->run, "quantised");
	float *x = malloc(p->hidden * sizeof(*x));
	uint64_t i;
	int good = 1;

	input_row(c, slot / p->top_k, x);
	for (i = 0; good && i < c->in; i++) {
		uint8_t code = codes[slot * c->in + i];
		uint8_t expected = i < p->hidden ? moek_fp8_code(x[i], scale) : 0;

		if (code != expected)
			good = wrong(c, "quantised", slot, i, code, expected);
		if (i < p->hidden)
			x_out[i] = (double)moek_e4m3_to_f32(code) * (double)scale;
	}
	free(x);
	return good;
}

static int check_input(struct check *c, uint64_t slot, const struct matrix *m,
                       double *x_out)
{
	const struct moek_problem *p = &c->b->problem;
	uint64_t token = slot / p->top_k, i;
	float *x;

	if (p->activations == MOEK_A8_FP8_STATIC)
		return check_a8_input(c, slot, m[0].canonical.input_scale, x_out);
	if (p->activations != MOEK_A16)
		return check_a4_input(c, token, x_out);
	x = malloc(p->hidden * sizeof(*x));
	input_row(c, token, x);
	for (i = 0; i < p->hidden; i++)
		x_out[i] = (double)x[i];
	free(x);
	return 1;
}

/* an activated value, and how far off fp32 sums may have made it */
static void activated_range(const struct check *c, uint64_t slot,
                            const struct matrix *m, const double *x, uint64_t i,
                            double *value_out, double *error_out)
{
	const struct moek_problem *p = &c->b->problem;
	double z[2], step[2], weight = 1, value, error;
	int k;

	if (p->activations == MOEK_A16 &&
	    (p->must_understand & MOEK_WEIGHT_ON_INPUT) != 0)
		weight = (double)c->b->weights[slot];
	for (k = 0; k < 2; k++) {
		double bias = m[k].bias != NULL ? (double)m[k].bias[i] : 0, size;

		z[k] = weight * dot(m[k].values + i * p->hidden, x, p->hidden, &size) +
		       bias;
		step[k] = c->unit * (fabs(weight) * size + fabs(bias));
	}
	value = reference_activation(p, z[0], z[1]);
	error = fmax(fabs(reference_activation(p, z[0] + step[0], z[1]) - value),
	             fabs(reference_activation(p, z[0] - step[0], z[1]) - value)) +
	        fmax(fabs(reference_activation(p, z[0], z[1] + step[1]) - value),
	             fabs(reference_activation(p, z[0], z[1] - step[1]) - value));
	*value_out = value;
	/* the function's own arithmetic, whose sigmoid leaves fp32 at 2^-126 */
	*error_out = error + 0x1p-19 * fabs(value) +
	             0x1p-126 * fabs(z[0]) * (fabs(z[1]) + (double)p->beta);
}

/* one block of 32 activated columns against its codes */
static int check_a4_block(struct check *c, uint64_t slot, uint64_t first,
                          const double *value, const double *error, double *a_out)
{
	const uint8_t *codes = (const uint8_t *)run_buffer(c->run, "activated") +
	                       slot * (c->between / 2);
	uint8_t scale = ((const uint8_t *)run_buffer(
		c->run, "activated_scales"))[slot * (c->between / 32) + first / 32];
	double low = 0, high = 0;
	uint64_t i;

	for (i = 0; i < 32; i++) {
		low = fmax(low, fabs(value[i]) - error[i]);
		high = fmax(high, fabs(value[i]) + error[i]);
	}
	if (scale < shared_scale(c, low) || scale > shared_scale(c, high))
		return wrong(c, "activated_scales", slot, first / 32, scale,
		             shared_scale(c, low));
	for (i = 0; i < 32; i++) {
		uint32_t code = moek_nibble(codes, first + i);
		double least = (double)moek_e2m1_to_f32(
			moek_mxfp4_code((float)(value[i] - error[i]), scale));
		double most = (double)moek_e2m1_to_f32(
			moek_mxfp4_code((float)(value[i] + error[i]), scale));
		double got = (double)moek_e2m1_to_f32(code);

		c->codes++;
		c->open += least < most;
		if (got < least || got > most)
			return wrong(c, "activated", slot, first + i, got, least);
		a_out[i] = (double)moek_mxfp4_value(code, scale);
	}
	return 1;
}

static int check_a8_or_a16(struct check *c, uint64_t slot, uint64_t i, float scale,
                           double value, double error, double *a_out)
{
	const struct moek_problem *p = &c->b->problem;
	const void *rows = run_buffer(c->run, "activated");
	uint64_t at = slot * c->between + i;
	double least, most, got;

	if (p->activations == MOEK_A16) {
		least = (double)from_type(
			to_type((float)(value - error), p->input_type), p->input_type);
		most = (double)from_type(to_type((float)(value + error), p->input_type),
		                         p->input_type);
		got = *a_out = value_at(rows, at, p->input_type);
	} else {
		least = (double)moek_e4m3_to_f32(
			moek_fp8_code((float)(value - error), scale));
		most = (double)moek_e4m3_to_f32(
			moek_fp8_code((float)(value + error), scale));
		got = (double)moek_e4m3_to_f32(((const uint8_t *)rows)[at]);
		*a_out = got * (double)scale;
	}
	c->codes++;
	c->open += least < most;
	if (got < least || got > most)
		return wrong(c, "activated", slot, i, got, least);
	return 1;
}

/* the rows between, as they were read; with the claim, as they were before */
static int check_activated(struct check *c, uint64_t slot, const struct matrix *m,
                           const double *x, double *a_out)
{
	const struct moek_problem *p = &c->b->problem;
	const int a4 = p->activations == MOEK_A4_MXFP4_EVEN ||
	               p->activations == MOEK_A4_MXFP4_ROUND_UP;
	double value[32], error[32];
	uint64_t i;

	for (i = 0; i < p->intermediate; i++) {
		activated_range(c, slot, m, x, i, &value[i % 32], &error[i % 32]);
		if (c->claim.unquantised)
			a_out[i] = value[i % 32];
		else if (a4 && i % 32 == 31 &&
		         !check_a4_block(c, slot, i - 31, value, error, a_out + i - 31))
			return 0;
		else if (!a4 &&
		         !check_a8_or_a16(c, slot, i, m[2].canonical.input_scale,
		                          value[i % 32], error[i % 32], &a_out[i]))
			return 0;
	}
	return 1;
}

static int check_token(struct check *c, uint64_t token, double *x, double *a,
                       double *want)
{
	const struct moek_problem *p = &c->b->problem;
	double *magnitude = want + p->hidden;
	uint64_t slot, h;

	memset(want, 0, 2 * p->hidden * sizeof(*want));
	for (slot = token * p->top_k; slot < (token + 1) * p->top_k; slot++) {
		int expert = local_expert(c->b, c->b->ids[slot]);
		const struct matrix *m = c->b->experts[expert < 0 ? 0 : expert];
		double weight = (p->must_understand & MOEK_WEIGHT_ON_INPUT) != 0
		                        ? 1
		                        : (double)c->b->weights[slot];

		if (expert < 0)
			continue;
		if (!check_input(c, slot, m, x) || !check_activated(c, slot, m, x, a))
			return 0;
		for (h = 0; h < p->hidden; h++) {
			double bias = m[2].bias != NULL ? (double)m[2].bias[h] : 0,
			       size;
			double y = dot(m[2].values + h * p->intermediate, a,
			               p->intermediate, &size);

			want[h] += weight * (y + bias);
			magnitude[h] += fabs(weight) * (size + fabs(bias));
		}
	}
	for (h = 0; h < p->hidden; h++) {
		double got = value_at(c->run->output, token * p->hidden + h,
		                      p->output_type);
		double allowed = c->unit * magnitude[h] +
		                 machine_eps(p->output_type) / 2 * fabs(want[h]);

		if (!(fabs(got - want[h]) <= allowed)) /* a NaN is never close */
			return wrong(c, "output", token, h, got, want[h]);
		c->b->want[token * p->hidden + h] = want[h];
		c->b->magnitude[token * p->hidden + h] = magnitude[h];
	}
	return 1;
}

/* NULL, or what is wrong */
static const char *verify(const struct moek_experts *experts, const struct bench *b,
                          const struct run *run, const struct claim *claim,
                          struct check *c)
{
	const struct moek_problem *p = &b->problem;
	double *x = malloc(p->hidden * sizeof(*x));
	double *a = malloc(p->intermediate * sizeof(*a));
	double *want = malloc(2 * p->hidden * sizeof(*want));
	struct moek_numerics n;
	uint64_t token;

	experts->numerics(handle, p, &n);
	memset(c, 0, sizeof(*c));
	c->b = b;
	c->run = run;
	c->claim = *claim;
	c->unit = (double)n.terms * 0x1p-24;
	c->in = (p->hidden + 127) / 128 * 128;
	c->between = (p->intermediate + 127) / 128 * 128;
	for (token = 0; token < b->tokens; token++)
		if (!check_token(c, token, x, a, want))
			break;
	free(x);
	free(a);
	free(want);
	return c->text[0] != '\0' ? c->text : NULL;
}

/* ------------------------------------------------------------------------------- cases
 */

enum { LARGE_CASES = 6 };
enum { BIAS = 1, MAP = 2, ON_INPUT = 4, F32_OUT = 8, ROUND_UP = 16 };

static const struct kernel_case {
	const char *name;
	int table;
	uint32_t type;
	uint64_t hidden, intermediate, top_k, tokens;
	uint32_t activation, flags;
	float alpha, beta, limit;
} cases[] = {
#define BF MOEK_BF16
#define FP MOEK_F16
#define SP MOEK_F32
#define SILU MOEK_SILU
#define OAI MOEK_SWIGLU_OAI
	{ "a4, one token", W4A4, BF, 256, 128, 2, 1, SILU, 0, 0, 0, 0 },
	{ "a4, fp16, round up", W4A4, FP, 128, 128, 2, 3, SILU, ROUND_UP, 0, 0, 0 },
	{ "a4, fp32", W4A4, SP, 160, 96, 2, 5, SILU, F32_OUT, 0, 0, 0 },
	{ "a4, three steps, five blocks", W4A4, BF, 288, 160, 2, 4, OAI, BIAS, 1.702f,
	  1, 7 },
	{ "a4, sixteen tokens", W4A4, BF, 128, 64, 4, 16, SILU, BIAS, 0, 0, 0 },
	{ "a4, many slots of one expert", W4A4, BF, 128, 32, 12, 8, SILU, 0, 0, 0, 0 },
	{ "a4, expert map", W4A4, BF, 96, 64, 2, 6, SILU, MAP | BIAS, 0, 0, 0 },
	{ "a4, weight on input", W4A4, BF, 64, 64, 1, 5, SILU, ON_INPUT | BIAS, 0, 0,
	  0 },
	{ "a4, weight on input, fp32", W4A4, SP, 64, 64, 1, 5, SILU, ON_INPUT | F32_OUT,
	  0, 0, 0 },
	{ "a4, situ", W4A4, FP, 64, 64, 2, 3, MOEK_SITU, 0, 4, 25, 0 },
	{ "a4, gelu", W4A4, BF, 64, 64, 2, 3, MOEK_GELU, 0, 0, 0, 0 },
	{ "a4, tiles", W4A4, BF, 256, 128, 2, 17, SILU, 0, 0, 0, 0 },
	{ "a4, tiles, round up", W4A4, FP, 160, 96, 2, 40, OAI, BIAS | ROUND_UP, 1.702f,
	  1, 7 },
	{ "a4, full tiles", W4A4, SP, 64, 32, 2, 170, SILU, F32_OUT, 0, 0, 0 },
	{ "a4, tiles, expert map", W4A4, BF, 96, 64, 2, 30, SILU, MAP | BIAS, 0, 0, 0 },
	{ "a4, tiles, weight on input", W4A4, BF, 64, 64, 1, 30, SILU, ON_INPUT, 0, 0,
	  0 },
	{ "a8, one token", W4A8, BF, 256, 128, 2, 1, SILU, 0, 0, 0, 0 },
	{ "a8, fp16, five blocks", W4A8, FP, 288, 160, 2, 4, OAI, BIAS, 1.702f, 1, 7 },
	{ "a8, fp32, expert map", W4A8, SP, 96, 64, 2, 6, SILU, MAP | BIAS | F32_OUT, 0,
	  0, 0 },
	{ "a8, weight on input", W4A8, BF, 64, 64, 1, 5, SILU, ON_INPUT | BIAS, 0, 0,
	  0 },
	{ "a8, tiles", W4A8, BF, 256, 128, 2, 17, SILU, BIAS, 0, 0, 0 },
	{ "a8, full tiles", W4A8, FP, 96, 32, 2, 170, SILU, 0, 0, 0, 0 },
	{ "a16, one token", W4A16, BF, 256, 128, 2, 1, SILU, 0, 0, 0, 0 },
	{ "a16, fp16, oai", W4A16, FP, 96, 96, 2, 4, OAI, BIAS, 1.702f, 1, 7 },
	{ "a16, three steps, five blocks", W4A16, BF, 288, 160, 3, 5, SILU, BIAS, 0, 0,
	  0 },
	{ "a16, many slots of one expert", W4A16, BF, 64, 32, 12, 8, SILU, 0, 0, 0, 0 },
	{ "a16, expert map", W4A16, BF, 96, 64, 2, 6, SILU, MAP | BIAS, 0, 0, 0 },
	{ "a16, weight on input", W4A16, FP, 64, 64, 1, 5, SILU, ON_INPUT | BIAS, 0, 0,
	  0 },
	{ "a16, silu, limit", W4A16, FP, 64, 32, 2, 2, SILU, 0, 0, 0, 0.5f },
	{ "a16, gelu_tanh", W4A16, FP, 64, 32, 2, 2, MOEK_GELU_TANH, 0, 0, 0, 0 },
	{ "a16, swiglu_step", W4A16, FP, 64, 32, 2, 2, MOEK_SWIGLU_STEP, 0, 0, 0,
	  0.75f },
	{ "a16, situ without beta", W4A16, FP, 64, 32, 2, 2, MOEK_SITU, 0, 4, 0, 0 },
	{ "a16, tiles", W4A16, BF, 256, 160, 2, 33, OAI, BIAS, 1.702f, 1, 7 },
	{ "a16, tiles, fp16", W4A16, FP, 96, 64, 4, 20, SILU, F32_OUT, 0, 0, 0 },
	{ "a16, full tiles", W4A16, BF, 64, 32, 2, 170, SILU, F32_OUT, 0, 0, 0 },
	{ "a16, tiles, weight on input", W4A16, BF, 64, 64, 1, 30, SILU,
	  ON_INPUT | BIAS, 0, 0, 0 },
	{ "a16, few tokens, top_k 64", W4A16, BF, 64, 32, 64, 5, SILU, 0, 0, 0, 0 },
	/* whose waves do equally much */
	{ "a4, even waves", W4A4, BF, 1024, 1024, 1, 2, SILU, 0, 0, 0, 0 },
	{ "a8, even waves", W4A8, BF, 1024, 1024, 1, 2, SILU, 0, 0, 0, 0 },
	{ "a16, even waves", W4A16, BF, 1024, 1024, 1, 2, SILU, 0, 0, 0, 0 },
	/* the last LARGE_CASES are for a real GPU: minutes on fibers */
	{ "a4, qwen3-30b, one token", W4A4, BF, 2048, 768, 8, 1, SILU, 0, 0, 0, 0 },
	{ "a4, gpt-oss, 40 tokens", W4A4, BF, 2880, 2880, 4, 40, OAI, BIAS, 1.702f, 1,
	  7 },
	{ "a8, gpt-oss, 40 tokens", W4A8, BF, 2880, 2880, 4, 40, OAI, BIAS, 1.702f, 1,
	  7 },
	{ "a16, gpt-oss, one token", W4A16, BF, 2880, 2880, 4, 1, OAI, BIAS, 1.702f, 1,
	  7 },
	{ "a16, gpt-oss, 40 tokens", W4A16, BF, 2880, 2880, 4, 40, OAI, BIAS, 1.702f, 1,
	  7 },
	{ "a4, two passes", W4A4, BF, 64, 32, 2, 2100, SILU, 0, 0, 0, 0 },
};

static struct moek_problem case_problem(const struct kernel_case *c)
{
	struct moek_problem p = good_problem(c->table);

	p.hidden = c->hidden;
	p.intermediate = c->intermediate;
	p.top_k = c->top_k;
	p.experts = p.experts_local = c->top_k > 4 ? 4 : 5;
	p.max_tokens = c->tokens;
	p.input_type = c->type;
	p.output_type = (c->flags & F32_OUT) != 0 ? MOEK_F32
	                : c->type == MOEK_F32     ? MOEK_BF16
	                                          : c->type;
	p.activation = c->activation;
	p.alpha = c->alpha;
	p.beta = c->beta;
	p.limit = c->limit;
	p.gate_up.bias = p.down.bias = (c->flags & BIAS) != 0;
	if ((c->flags & ROUND_UP) != 0)
		p.activations = MOEK_A4_MXFP4_ROUND_UP;
	if ((c->flags & ON_INPUT) != 0)
		p.must_understand |= MOEK_WEIGHT_ON_INPUT;
	return p;
}

/* Codes that may lie near a tie. With 16 bits most do: a step is as small as the bound.
 * The bound grows with the columns and with what they sum, faster than the steps. */
static uint64_t most_open(const struct kernel_case *k, uint64_t codes)
{
	if (k->table == W4A16)
		return codes;
	if (k->hidden > 512)
		return k->table == W4A4 ? codes / 4 : codes;
	return codes / (k->table == W4A4 ? 50 : 10);
}

START_TEST(agrees_stage_by_stage_in_both_orders)
{
	const struct kernel_case *k = &cases[_i];
	const struct moek_experts *experts = plugin->experts[k->table];
	struct moek_problem problem = case_problem(k);
	const struct claim claim = { problem.activations, 0 };
	const char *only = getenv("MOEK_TEST_ONLY");
	struct run forward, reverse;
	struct moek_verdict no;
	const char *bad;
	struct check c;
	struct bench b;

	if (only != NULL && strstr(k->name, only) == NULL)
		return;
	seed = (uint32_t)_i + 1;
	make_bench(&problem, k->tokens, (k->flags & MAP) != 0, &b);
	ck_assert_uint_eq(ask(experts, &b.problem, &no), 0);
	setenv("FAKEHIP_REVERSE", "0", 1);
	run_bench(experts, &b, k->tokens, &forward);
	setenv("FAKEHIP_REVERSE", "1", 1);
	run_bench(experts, &b, k->tokens + 64, &reverse);
	ck_assert_msg(
		memcmp(forward.output, reverse.output,
	               k->tokens * k->hidden * type_bytes(b.problem.output_type)) == 0,
		"%s: other bits in reverse order", k->name);
	if (k->tokens <= MXFP4_CHUNK) { /* else scratch is that of the last pass */
		bad = verify(experts, &b, &forward, &claim, &c);
		ck_assert_msg(bad == NULL, "%s: %s", k->name, bad);
		ck_assert_msg(c.open <= most_open(k, c.codes),
		              "%s: the bound leaves a choice in %llu of %llu codes",
		              k->name, (unsigned long long)c.open,
		              (unsigned long long)c.codes);
		if (getenv("MOEK_TEST_VERBOSE") != NULL)
			printf("%-32s %llu of %llu codes near a tie\n", k->name,
			       (unsigned long long)c.open, (unsigned long long)c.codes);
	}
	free_run(&forward);
	free_run(&reverse);
	free_bench(&b);
}
END_TEST

/* all weights 1: an infinite input gives infinite outputs, and 0 times it, in rows that
 * are padding, must not be seen */
START_TEST(an_infinite_input_stays_infinite_beside_padding)
{
	static const uint64_t tokens[] = { 1, 20 };
	const struct moek_experts *experts = plugin->experts[W4A16];
	struct moek_problem p = good_problem(W4A16);
	const uint16_t infinite = 0x7f80;
	struct bench b;
	struct run run;
	uint64_t i, e, m;

	for (i = 0; i < COUNT(tokens); i++) {
		make_bench(&p, tokens[i], 0, &b);
		for (e = 0; e < p.experts_local; e++)
			for (m = 0; m < 3; m++) {
				memset(b.experts[e][m].codes, 0x22,
				       p.hidden * p.intermediate / 2);
				memset(b.experts[e][m].scales, 127,
				       p.hidden * p.intermediate / 32);
			}
		memcpy(b.input, &infinite, sizeof(infinite));
		b.ids[0] = b.ids[1] = 1;
		b.weights[0] = b.weights[1] = 1;
		run_bench(experts, &b, tokens[i], &run);
		for (m = 0; m < p.hidden; m++)
			ck_assert(isinf(value_at(run.output, m, MOEK_BF16)));
		free_run(&run);
		free_bench(&b);
	}
}
END_TEST

/* --------------------------------------------------------------------------- controls
 */

/* the prepared bytes of a layer, changed on the host and put back */
static void change(const struct bench *b, void *weights,
                   void (*how)(const struct mxfp4_layout *layout, uint8_t *bytes))
{
	struct mxfp4_layout layout;
	uint8_t *bytes;

	ck_assert(mxfp4_layout(&b->problem, &layout));
	bytes = malloc(layout.bytes);
	plugin->copy(handle, &device, bytes, weights, layout.bytes, MOEK_TO_HOST, NULL);
	how(&layout, bytes);
	plugin->copy(handle, &device, weights, bytes, layout.bytes, MOEK_TO_DEVICE,
	             NULL);
	free(bytes);
}

static uint64_t scale_at(const struct mxfp4_plane *plane, uint64_t row, uint64_t block)
{
	return plane->scales + row / 32 * 32 * plane->scale_columns + block / 8 * 256 +
	       block % 4 * 64 + row % 16 * 4 + block % 8 / 4 * 2 + row % 32 / 16;
}

/* each row of expert 0 has the scales of the row before */
static void shift_scales(const struct mxfp4_layout *layout, uint8_t *bytes)
{
	const struct mxfp4_plane *plane = &layout->gate_up;
	uint64_t row, block;

	for (row = plane->rows - 1; row > 0; row--)
		for (block = 0; block < plane->blocks; block++)
			bytes[scale_at(plane, row, block)] =
				bytes[scale_at(plane, row - 1, block)];
}

static void shift_tamper(const struct bench *b, void *weights)
{
	change(b, weights, shift_scales);
}

/* what memory that nobody wrote may hold */
static void spoil_padding(const struct mxfp4_layout *layout, uint8_t *bytes)
{
	const struct mxfp4_plane *plane = &layout->down;
	uint64_t row, block;

	for (row = 0; row < plane->rows; row++)
		for (block = plane->blocks; block < plane->scale_columns; block++)
			bytes[scale_at(plane, row, block)] = 0xff;
}

static void padding_tamper(const struct bench *b, void *weights)
{
	change(b, weights, spoil_padding);
}

static void drop_bias(const struct mxfp4_layout *layout, uint8_t *bytes)
{
	memset(bytes + layout->down.bias, 0,
	       layout->experts * layout->down.rows * sizeof(float));
}

static void bias_tamper(const struct bench *b, void *weights)
{
	change(b, weights, drop_bias);
}

static void swap_gate_and_up(struct bench *b)
{
	uint64_t e;

	for (e = 0; e < b->problem.experts_local; e++) {
		struct matrix gate = b->experts[e][0];

		b->experts[e][0] = b->experts[e][1];
		b->experts[e][1] = gate;
	}
}

static const struct {
	const char *name;
	uint32_t claimed; /* activations, or 0: those that ran */
	int unquantised, swapped;
	void (*tamper)(const struct bench *b, void *weights);
} controls[] = {
	{ "nothing", 0, 0, 0, NULL }, /* the control of the controls */
	{ "wrong rule of the shared exponent", MOEK_A4_MXFP4_ROUND_UP, 0, 0, NULL },
	{ "second quantisation missing", 0, 1, 0, NULL },
	{ "gate and up swapped", 0, 0, 1, NULL },
	{ "scales off by one row", 0, 0, 0, shift_tamper },
	{ "padding not written", 0, 0, 0, padding_tamper },
	{ "bias dropped", 0, 0, 0, bias_tamper },
};

START_TEST(sees_what_is_done_wrong)
{
	static const uint64_t tokens[] = { 3, 20 }; /* decode, tiles */
	const struct moek_experts *experts = plugin->experts[W4A4];
	struct moek_problem problem = good_problem(W4A4);
	struct claim claim = { controls[_i].claimed, controls[_i].unquantised };
	struct check c;
	struct bench b;
	struct run run;
	const char *bad;
	size_t i;

	if (claim.activations == 0)
		claim.activations = problem.activations;
	problem.hidden = 160;
	problem.intermediate = 96;
	problem.gate_up.bias = problem.down.bias = 1;
	for (i = 0; i < COUNT(tokens); i++) {
		seed = 1000;
		make_bench(&problem, tokens[i], 0, &b);
		b.tamper = controls[_i].tamper;
		run_bench(experts, &b, tokens[i], &run);
		if (controls[_i].swapped)
			swap_gate_and_up(&b);
		bad = verify(experts, &b, &run, &claim, &c);
		ck_assert_msg((bad != NULL) == (_i != 0), "%s, %llu tokens: %s",
		              controls[_i].name, (unsigned long long)tokens[i],
		              bad != NULL ? bad : "nobody noticed");
		free_run(&run);
		free_bench(&b);
	}
}
END_TEST

/* ------------------------------------------------------------------- AITER's own
 * kernels */

static char aiter_folder[] = "/tmp/moek-aiter.XXXXXX", kernarg[64];

/* the plugin again, told that AITER is there, and to have its blocks kept */
static void open_with_aiter(void)
{
	char path[1024];
	unsigned char *code = malloc(1 << 20);
	size_t bytes;
	FILE *file;

	snprintf(path, sizeof(path), "%s/tests/fakes/aiter.gfx950.co",
	         getenv("MOEK_TEST_BUILD"));
	file = fopen(path, "r");
	ck_assert_msg(file != NULL, "%s", path);
	bytes = fread(code, 1, 1 << 20, file);
	fclose(file);
	ck_assert_ptr_nonnull(mkdtemp(aiter_folder));
	aiter_files_create(aiter_folder, "gfx950", AITER_LIST, code, bytes);
	free(code);
	snprintf(kernarg, sizeof(kernarg), "%s/kernarg", aiter_folder);
	setenv("FAKEHIP_KERNARG", kernarg, 1);
	harness_options[0].key = "use_aiter";
	harness_options[0].value = "on";
	harness_options[1].key = "aiter_dir";
	harness_options[1].value = aiter_folder;
	open_plugin("aiter_mxfp4", 90500);
}

static void close_with_aiter(void)
{
	char command[128];

	close_plugin();
	harness_options[0].key = harness_options[1].key = NULL;
	unsetenv("FAKEHIP_KERNARG");
	snprintf(command, sizeof(command), "rm -r %s", aiter_folder);
	ck_assert_int_eq(system(command), 0);
	strcpy(aiter_folder, "/tmp/moek-aiter.XXXXXX");
}

/* blocks that were launched so far; *last_out: the last of them */
static size_t launches(unsigned char *last_out)
{
	FILE *file = fopen(kernarg, "r");
	size_t count = 0;

	if (file == NULL)
		return 0;
	while (fread(last_out, 1, AITER_KERNARG_BYTES, file) == AITER_KERNARG_BYTES)
		count++;
	fclose(file);
	return count;
}

static const struct {
	const char *name;
	uint64_t hidden, intermediate, top_k, tokens;
	int with_map;
	uint64_t columns; /* of the kernel that is to run; 0: our own do */
} small_batches[] = {
	{ "one token", 256, 256, 2, 1, 0, 128 },
	{ "three blocks of 128", 256, 384, 2, 3, 0, 128 },
	{ "ids outside, and a map", 512, 256, 4, 9, 1, 256 },
	{ "many groups", 256, 1024, 8, 10, 0, 256 },
	{ "sixteen tokens", 256, 128, 2, 16, 0, 128 },
	{ "seventeen", 256, 128, 2, 17, 0, 0 },
	{ "129 slots and more", 256, 128, 9, 15, 0, 0 },
};

START_TEST(aiters_kernel_runs_small_batches_with_the_bytes_it_wants)
{
	const uint64_t tokens = small_batches[_i].tokens,
		       columns = small_batches[_i].columns;
	const struct moek_experts *experts = plugin->experts[W4A4];
	struct moek_problem p = good_problem(W4A4), own;
	unsigned char block[AITER_KERNARG_BYTES];
	const struct claim claim = { MOEK_A4_MXFP4_ROUND_UP, 0 };
	struct moek_numerics n;
	struct run run, ours;
	struct check c;
	struct bench b;
	const char *bad;
	uint64_t i;

	p.activations = MOEK_A4_MXFP4_ROUND_UP;
	p.hidden = small_batches[_i].hidden;
	p.intermediate = small_batches[_i].intermediate;
	p.top_k = small_batches[_i].top_k;
	p.experts = p.experts_local = 5;
	seed = 77;
	make_bench(&p, tokens, small_batches[_i].with_map, &b);
	/* nobody goes to local expert 0, which would make all NaN; token 0 to none */
	for (i = 0; tokens > 1 && i < tokens * p.top_k; i++)
		if (i < p.top_k || local_expert(&b, b.ids[i]) == 0)
			b.ids[i] = -1;
	if (tokens > 1)
		memset(b.experts[0][0].scales, 0xff, p.intermediate * p.hidden / 32);
	device.compute_units = 16;
	run_bench(experts, &b, tokens, &run);
	ck_assert_uint_eq(launches(block), columns != 0);
	experts->numerics(handle, &b.problem, &n);
	ck_assert_uint_eq(n.repeatable, 0);
	if (columns != 0) {
		/* ps_deno: which of the two ran */
		ck_assert_uint_eq(block[432], p.intermediate / columns);
		ck_assert_uint_eq(block[224], tokens);
	}

	/* the same from our own kernels, verified; they alone may be asked for the same
	 * bits every time */
	own = b.problem;
	b.problem.must_understand |= MOEK_DETERMINISTIC;
	run_bench(experts, &b, tokens, &ours);
	ck_assert_uint_eq(launches(block), columns != 0);
	bad = verify(experts, &b, &ours, &claim, &c);
	ck_assert_msg(bad == NULL, "%s", bad);
	b.problem = own;
	for (i = 0; i < tokens * p.hidden; i++) {
		double got = value_at(run.output, i, MOEK_BF16);

		/* half a unit for each addition in bf16 */
		ck_assert_msg(fabs(got - b.want[i]) <=
		                      (double)n.terms * 0x1p-8 * b.magnitude[i],
		              "%s: output[%llu] is %g, expected %g",
		              small_batches[_i].name, (unsigned long long)i, got,
		              b.want[i]);
		if (b.magnitude[i] <= 0)
			ck_assert_double_eq(got, 0);
	}
	free_run(&run);
	free_run(&ours);
	free_bench(&b);
}
END_TEST

/* ----------------------------------------------------------------------------- layout
 */

/* bytes of expert `local`, from memory filled with `fill` */
static uint8_t *load_one(const struct bench *b, uint64_t local, int fill)
{
	const struct moek_experts *experts = plugin->experts[W4A4];
	const struct moek_expert expert = { b->experts[local][0].canonical,
		                            b->experts[local][1].canonical,
		                            b->experts[local][2].canonical };
	uint64_t align, bytes = experts->prepared_size(handle, &b->problem, &align);
	uint8_t *copy = malloc(bytes);
	void *weights, *layer;

	memset(copy, fill, bytes);
	ck_assert_int_eq(plugin->alloc(handle, &device, bytes, &weights), MOEK_OK);
	plugin->copy(handle, &device, weights, copy, bytes, MOEK_TO_DEVICE, NULL);
	ck_assert_int_eq(experts->create(handle, &device, &b->problem, weights, &layer),
	                 MOEK_OK);
	ck_assert_int_eq(experts->load_expert(layer, local, &expert), MOEK_OK);
	plugin->copy(handle, &device, copy, weights, bytes, MOEK_TO_HOST, NULL);
	experts->destroy(layer);
	plugin->free(handle, &device, weights);
	return copy;
}

/* where AITER's shuffles put a byte, from contract: shuffle_weight, e8m0_shuffle */
static uint64_t weight_offset(uint64_t n, uint64_t byte, uint64_t row_bytes)
{
	return n / 16 * 16 * row_bytes + byte / 32 * 512 + byte % 32 / 16 * 256 +
	       n % 16 * 16 + byte % 16;
}

static uint64_t scale_offset(uint64_t x, uint64_t y, uint64_t columns)
{
	return x / 32 * 32 * columns + y / 8 * 256 + y % 4 * 64 + x % 16 * 4 +
	       y % 8 / 4 * 2 + x % 32 / 16;
}

START_TEST(the_reference_of_the_shuffles_has_its_worked_vectors)
{
	static const uint64_t weight[][3] = { { 0, 0, 0 },     { 1, 0, 16 },
		                              { 0, 16, 256 },  { 0, 32, 512 },
		                              { 16, 0, 1024 }, { 3, 37, 565 } };
	static const uint64_t scale[][3] = { { 0, 0, 0 },   { 0, 1, 64 },
		                             { 0, 4, 2 },   { 1, 0, 4 },
		                             { 16, 0, 1 },  { 17, 5, 71 },
		                             { 0, 8, 256 }, { 32, 0, 512 } };
	size_t i;

	for (i = 0; i < COUNT(weight); i++)
		ck_assert_uint_eq(weight_offset(weight[i][0], weight[i][1], 64),
		                  weight[i][2]);
	for (i = 0; i < COUNT(scale); i++)
		ck_assert_uint_eq(scale_offset(scale[i][0], scale[i][1], 16),
		                  scale[i][2]);
}
END_TEST

static void check_plane(const struct mxfp4_plane *plane, const struct matrix *m,
                        uint64_t first, uint64_t local, const uint8_t *bytes)
{
	const uint8_t *codes = bytes + plane->codes + local * plane->codes_bytes;
	const uint8_t *scales = bytes + plane->scales + local * plane->scales_bytes;
	const uint64_t columns = m->canonical.columns, row_bytes = plane->steps * 64u;
	uint64_t r, i;

	for (r = 0; r < m->canonical.rows; r++) {
		for (i = 0; i < row_bytes; i++)
			ck_assert_uint_eq(
				codes[weight_offset(first + r, i, row_bytes)],
				i < columns / 2 ? m->codes[r * columns / 2 + i] : 0);
		for (i = 0; i < plane->scale_columns; i++)
			ck_assert_uint_eq(scales[scale_offset(first + r, i,
			                                      plane->scale_columns)],
			                  i < columns / 32
			                          ? m->scales[r * columns / 32 + i]
			                          : 0x7f);
	}
}

START_TEST(weights_lie_as_aiter_shuffles_them)
{
	struct moek_problem p = good_problem(W4A4);
	struct mxfp4_layout layout;
	struct bench b;
	uint8_t *bytes;

	seed = 5;
	p.hidden = 256;
	p.intermediate = 160;
	make_bench(&p, 1, 0, &b);
	ck_assert(mxfp4_layout(&p, &layout));
	bytes = load_one(&b, 2, 0xff);
	check_plane(&layout.gate_up, &b.experts[2][0], 0, 2, bytes);
	check_plane(&layout.gate_up, &b.experts[2][1], 256, 2, bytes);
	check_plane(&layout.down, &b.experts[2][2], 0, 2, bytes);
	free(bytes);
	free_bench(&b);
}
END_TEST

/* all of it: expert by expert the same under memory of zeros and of ones */
START_TEST(every_byte_of_an_expert_is_written)
{
	struct moek_problem p = good_problem(W4A8);
	struct mxfp4_piece pieces[MXFP4_PIECES];
	struct mxfp4_layout layout;
	struct bench b;
	uint64_t local, total = 0, written = 0, i;

	seed = 6;
	p.hidden = 96;
	p.intermediate = 96;
	p.experts = p.experts_local = 3; /* rows of scales are padded behind the last */
	p.gate_up.bias = p.down.bias = 1;
	make_bench(&p, 1, 0, &b);
	ck_assert(mxfp4_layout(&p, &layout));
	for (local = 0; local < 3; local++) {
		uint8_t *zeros = load_one(&b, local, 0),
			*ones = load_one(&b, local, 0xff);

		total += mxfp4_pieces(&layout, local, pieces);
		for (i = 0; i < MXFP4_PIECES; i++)
			ck_assert_mem_eq(zeros + pieces[i].offset,
			                 ones + pieces[i].offset, pieces[i].bytes);
		for (i = 0; i < layout.bytes; i++)
			written += zeros[i] == ones[i];
		free(zeros);
		free(ones);
	}
	/* the pieces do not overlap, and nothing else is written */
	ck_assert_uint_eq(written, total);
	ck_assert_uint_eq(layout.down.scales_bytes * 3 %
	                          (256 * layout.down.scale_columns),
	                  128 * layout.down.scale_columns);
	free_bench(&b);
}
END_TEST

START_TEST(workspace_never_shrinks_and_is_bounded)
{
	uint64_t tokens;
	int table;

	for (table = 0; table < TABLES; table++) {
		struct moek_problem p = good_problem(table);
		uint64_t before[MOEK_MAX_BUFFERS] = { 0 };
		struct moek_buffer shapes[MOEK_MAX_BUFFERS];
		int32_t count = 0, i;

		for (tokens = 1; tokens < 10000;
		     tokens += tokens < 20 ? 1 : tokens / 2) {
			int32_t now = plugin->experts[table]->workspace_shapes(
				handle, &p, tokens, 1, shapes, MOEK_MAX_BUFFERS);

			ck_assert_int_ge(now, count);
			count = now;
			for (i = 0; i < count; i++) {
				ck_assert_uint_ge(shapes[i].elements, before[i]);
				before[i] = shapes[i].elements;
				ck_assert_uint_eq(shapes[i].zeroed, 0);
			}
		}
		ck_assert_int_eq(count, 11);
		ck_assert_uint_eq(before[4], MXFP4_CHUNK * p.top_k * p.hidden);
	}
}
END_TEST

static int count_cases(void)
{
	return (int)COUNT(cases) -
	       (getenv("MOEK_TEST_LARGE") != NULL ? 0 : LARGE_CASES);
}

static void open_aiter(void)
{
	open_plugin("aiter_mxfp4", 90500);
	setenv("FAKEHIP_REVERSE", "0", 1);
}

static Suite *suite(int with_code)
{
	Suite *s = suite_create("aiter_mxfp4");
	TCase *t = tcase_create("aiter_mxfp4");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, open_aiter, close_plugin);
	tcase_add_loop_test(t, refuses_by_rule_what_it_cannot_do_and_nothing_else, 0,
	                    (int)COUNT(rules));
	tcase_add_test(t, names_the_projection_that_breaks_a_rule);
	tcase_add_test(t, accepts_only_devices_it_has_code_for);
	tcase_add_test(t, pads_sizes_to_128_and_says_so);
	tcase_add_test(t, says_which_rule_makes_its_codes);
	tcase_add_test(t, the_reference_of_the_shuffles_has_its_worked_vectors);
	tcase_add_test(t, workspace_never_shrinks_and_is_bounded);
	if (with_code) {
		tcase_add_loop_test(t, agrees_stage_by_stage_in_both_orders, 0,
		                    count_cases());
	}
	/* a build in which waves of unequal work meet would not end well */
	if (with_code && getenv("MOEK_TEST_ONLY") == NULL) {
		tcase_add_test(t, an_infinite_input_stays_infinite_beside_padding);
		tcase_add_loop_test(t, sees_what_is_done_wrong, 0,
		                    (int)COUNT(controls));
		tcase_add_test(t, weights_lie_as_aiter_shuffles_them);
		tcase_add_test(t, every_byte_of_an_expert_is_written);
	}
	suite_add_tcase(s, t);
	t = tcase_create("with AITER");
	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, open_with_aiter, close_with_aiter);
	/* its stand-in runs on the CPU: not on an NVIDIA GPU, where there is no build
	 */
	if (with_code && getenv("MOEK_TEST_BUILD") != NULL &&
	    getenv("MOEK_TEST_ONLY") == NULL)
		tcase_add_loop_test(
			t, aiters_kernel_runs_small_batches_with_the_bytes_it_wants, 0,
			(int)COUNT(small_batches));
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	int with_code, failed;
	SRunner *runner;

	setenv("FAKEHIP_ARCH", "gfx950", 1);
	with_code = can_run(load_plugin("aiter_mxfp4"), "gfx950");
	runner = srunner_create(suite(with_code));
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	if (failed == 0 && !with_code) {
		printf("skipped: %d kernel cases (no GPU code in aiter_mxfp4.so, or a "
		       "build "
		       "whose sanitizer cannot run fibers)\n",
		       count_cases());
		return 77;
	}
	return failed != 0;
}
