/* SPDX-License-Identifier: MIT */
/*
 * rdna3.so, unmodified, through its table: on tests/fakes/fakehip.so, which runs the
 * kernels on the CPU, against sums in double precision. Rules first: they need no
 * runtime.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#include "plugins/rdna3/rdna3.h"
#include "tests/gpu/harness.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

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
	struct run forward, reverse;
	struct bench b;
	double worst, l2;

	seed = (uint32_t)_i + 1;
	make_bench(&problem, c->tokens, (c->flags & MAP) != 0, &b);
	make_reference(&b);
	ck_assert_uint_eq(ask(experts, &b.problem, &no), 0);
	setenv("FAKEHIP_REVERSE", "0", 1);
	run_bench(experts, &b, c->tokens, &forward);
	setenv("FAKEHIP_REVERSE", "1", 1);
	run_bench(experts, &b, c->tokens + 64, &reverse);
	worst = worst_error(experts, &b, forward.output, &l2);
	ck_assert_msg(worst <= 1, "%s: %g of the allowance", c->name, worst);
	ck_assert_msg(l2 <= machine_eps(c->type), "%s: relative error %g", c->name, l2);
	ck_assert_msg(
		memcmp(forward.output, reverse.output,
	               c->tokens * c->hidden * type_bytes(b.problem.output_type)) == 0,
		"%s: other bits in reverse order", c->name);
	if (getenv("MOEK_TEST_VERBOSE") != NULL)
		printf("%-28s %.3f of the allowance, relative error %.2g\n", c->name,
		       worst, l2);
	free_run(&forward);
	free_run(&reverse);
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

static void open_rdna3(void)
{
	open_plugin("rdna3", 110000);
}

static Suite *suite(int with_code)
{
	Suite *s = suite_create("rdna3");
	TCase *t = tcase_create("rdna3");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, open_rdna3, close_plugin);
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
	const int with_code = can_run(load_plugin("rdna3"), "gfx1100");
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
