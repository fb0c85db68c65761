/* SPDX-License-Identifier: MIT */
/* kernelcheck must be able to fail: what the real emulation gives passes, and the same
 * with one thing wrong does not. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "tools/kernelcheck/check.h"
#include "tools/kernelcheck/weights.h"

/* Asymmetric int4 in each type, MXFP4 with everything gpt-oss has, quantised
 * activations. */
static const char *const subjects[] = {
	"int4_g32_asym/silu/bf16", "int4_g32_asym/silu/f16",
	"int4_g32_asym/silu/f32",  "int4_g32_asym/silu/bf16_f32",
	"many_tokens_f32",         "a8_int8_asym"
};
static const char *const with_bias[] = { "gpt_oss_shape", "mxfp4_bias/oai/bf16",
	                                 "a4_even_oai", "int4_bias/silu/bf16" };
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static struct bed bed;
static struct kernel_case the_case;
static struct material material;
static struct reference reference;
static struct moek_numerics numerics;
static struct rows rows;

static void find_case(const char *name)
{
	uint64_t i;

	for (i = 0; i < case_count(); i++) {
		case_at(i, &the_case);
		if (strcmp(the_case.name, name) == 0)
			return;
	}
	ck_abort_msg("no case %s", name);
}

/* Run emulation on the material as it is now; its output is in `rows`. */
static void run_as(const struct moek_problem *problem)
{
	struct moek_error error = { .text = "" };
	struct runner runner;

	ck_assert_msg(runner_open(bed.many, problem, &material.plain, NULL,
	                          "require emulation.any", &runner, &error) == MOEK_OK,
	              "%s", error.text);
	numerics = runner.numerics;
	rows_poison(&rows);
	ck_assert_msg(runner_forward(&runner, &material.tokens, &rows, NULL, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	runner_close(&runner);
}

static void start(const char *name)
{
	struct moek_error error = { .text = "" };
	char path[4096];

	snprintf(path, sizeof(path), "%s/emulation.so", getenv("MOEK_TEST_PLUGINS"));
	ck_assert_msg(bed_open(path, path, "", 2, &bed, &error) == MOEK_OK, "%s",
	              error.text);
	find_case(name);
	ck_assert(material_make(&the_case, 5, &material));
	ck_assert(rows_make(the_case.tokens, material.problem.hidden,
	                    material.problem.hidden, material.problem.output_type,
	                    &rows));
	ck_assert_msg(reference_make(&bed, &material, &reference, &error) == MOEK_OK,
	              "%s", error.text);
	run_as(&material.problem);
	ck_assert(reference_flips(&material, &numerics, &reference));
}

static void end(void)
{
	reference_free(&reference);
	rows_free(&rows);
	material_free(&material);
	bed_close(&bed);
}

static int passes(struct answer *answer)
{
	memset(answer, 0, sizeof(*answer));
	return check_output(&material, &the_case, &numerics, &reference, &rows, answer);
}

static void accepted(void)
{
	struct answer answer;

	ck_assert_msg(passes(&answer), "%s: %s", the_case.name, answer.text);
}

static void rejected(const char *what)
{
	struct answer answer;

	ck_assert_msg(!passes(&answer), "%s: %s passes, %g of the allowance",
	              the_case.name, what, answer.worst);
	ck_assert_str_ne(answer.text, "");
}

static uint64_t elements(void)
{
	return the_case.tokens * material.problem.hidden;
}

static float get(uint64_t i)
{
	return float_get(rows.type, rows.data, i);
}

static void put(uint64_t i, float value)
{
	float_put(rows.type, rows.data, i, value);
}

static void scale_by(float factor)
{
	uint64_t i;

	for (i = 0; i < elements(); i++)
		put(i, get(i) * factor);
}

START_TEST(a_right_output_passes)
{
	start(subjects[_i]);
	accepted();
	ck_assert_ptr_null(rows_broken(&rows));
	end();
}
END_TEST

START_TEST(a_factor_is_noticed)
{
	static const float factors[] = { 1.1f, 2, 0.9f, 0, -1 };
	size_t f;

	start(subjects[_i]);
	for (f = 0; f < sizeof(factors) / sizeof(factors[0]); f++) {
		run_as(&material.problem);
		accepted();
		scale_by(factors[f]);
		rejected("a factor");
	}
	end();
}
END_TEST

START_TEST(an_expert_that_is_left_out_is_noticed)
{
	start(subjects[_i]);
	material.tokens.ids[material.problem.top_k + 1] = -1;
	run_as(&material.problem);
	rejected("one slot of one token left out");
	end();
}
END_TEST

START_TEST(another_expert_is_noticed)
{
	int32_t *ids;

	start(subjects[_i]);
	ids = material.tokens.ids + material.problem.top_k;
	ids[0] = (ids[0] + 1) % (int32_t)material.problem.experts;
	run_as(&material.problem);
	rejected("one slot on another expert");
	end();
}
END_TEST

START_TEST(gate_and_up_swapped_are_noticed)
{
	uint64_t e;

	start(subjects[_i]);
	for (e = 0; e < material.problem.experts; e++) {
		const struct moek_matrix gate = material.experts[e].gate;

		material.experts[e].gate = material.experts[e].up;
		material.experts[e].up = gate;
	}
	run_as(&material.problem);
	rejected("gate and up swapped");
	end();
}
END_TEST

START_TEST(router_weights_that_are_squared_or_absent_are_noticed)
{
	uint64_t i, slots;

	start(subjects[_i]);
	slots = the_case.tokens * material.problem.top_k;
	for (i = 0; i < slots; i++)
		material.tokens.weights[i] *= material.tokens.weights[i];
	run_as(&material.problem);
	rejected("router weights squared");
	for (i = 0; i < slots; i++)
		material.tokens.weights[i] = 1;
	run_as(&material.problem);
	rejected("router weights of 1");
	end();
}
END_TEST

START_TEST(zero_points_off_by_one_are_noticed)
{
	uint64_t groups, i;
	uint8_t *zeros;

	start(subjects[_i]);
	/* one row of one expert's down, and no more */
	groups = (material.problem.intermediate - 1) / 32 + 1;
	zeros = (uint8_t *)(uintptr_t)material.experts[material.tokens.ids[0]]
	                .down.zeros;
	for (i = 0; i < groups * material.problem.hidden; i++)
		zeros[i]++;
	run_as(&material.problem);
	rejected("zero points of one expert off by one");
	end();
}
END_TEST

START_TEST(a_wrong_nibble_order_is_noticed)
{
	uint64_t e, i;
	uint8_t *codes;

	start(subjects[_i]);
	for (e = 0; e < material.problem.experts; e++) {
		codes = (uint8_t *)(uintptr_t)material.experts[e].down.codes;
		for (i = 0;
		     i < material.problem.hidden * material.problem.intermediate / 2;
		     i++)
			codes[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
	}
	run_as(&material.problem);
	rejected("nibbles swapped");
	end();
}
END_TEST

/* Neighbours in one row: the kind that a shift by one group makes. */
START_TEST(scales_of_the_wrong_group_are_noticed)
{
	uint64_t e, i, groups, all;
	uint16_t *scales;

	start(subjects[_i]);
	groups = (material.problem.hidden - 1) / 32 + 1;
	all = groups * material.problem.intermediate;
	for (e = 0; e < material.problem.experts; e++) {
		scales = (uint16_t *)(uintptr_t)material.experts[e].up.scales;
		for (i = 0; i + 1 < all; i++)
			scales[i] = scales[i + 1];
	}
	run_as(&material.problem);
	rejected("scales shifted by one group");
	end();
}
END_TEST

START_TEST(rounding_towards_zero_is_noticed)
{
	uint32_t drop;
	uint64_t i;

	start(subjects[_i]);
	if (rows.type == MOEK_F32) {
		end();
		return; /* nothing is rounded at the end */
	}
	drop = rows.type == MOEK_BF16 ? 0xffffu : 0x1fffu;
	for (i = 0; i < elements(); i++) {
		uint32_t bits;
		float value;

		memcpy(&bits, &reference.output[i], 4);
		bits &= ~drop;
		memcpy(&value, &bits, 4);
		put(i, value);
	}
	rejected("truncation");
	end();
}
END_TEST

START_TEST(a_nan_or_an_infinity_is_noticed)
{
	float old;

	start(subjects[_i]);
	old = get(elements() - 1);
	put(elements() - 1, NAN);
	rejected("a NaN");
	put(elements() - 1, INFINITY);
	rejected("an infinity");
	put(elements() - 1, old);
	accepted();
	/* and the other way round: a NaN expected is a NaN required */
	reference.output[3] = NAN;
	rejected("a number in place of a NaN");
	put(3, NAN);
	accepted();
	end();
}
END_TEST

START_TEST(an_output_that_is_not_written_is_noticed)
{
	uint64_t h = material.problem.hidden;

	start(subjects[_i]);
	h = material.problem.hidden;
	memset((uint8_t *)rows.data + h * float_bytes(rows.type), 0x7b,
	       h * float_bytes(rows.type));
	rejected("a token that was not written");
	end();
}
END_TEST

START_TEST(tokens_in_another_order_are_noticed)
{
	uint64_t h, i;
	float swap;

	start(subjects[_i]);
	h = material.problem.hidden;
	for (i = 0; i < h; i++) {
		swap = get(i);
		put(i, get(h + i));
		put(h + i, swap);
	}
	rejected("two tokens swapped");
	end();
}
END_TEST

static void without_bias(struct moek_matrix *m)
{
	memset((void *)(uintptr_t)m->bias, 0, m->rows * sizeof(float));
}

START_TEST(a_bias_that_is_left_out_is_noticed)
{
	uint64_t e;

	start(with_bias[_i]);
	accepted();
	for (e = 0; e < material.problem.experts; e++)
		without_bias(&material.experts[e].up);
	run_as(&material.problem);
	rejected("no bias of up");
	end();
}
END_TEST

START_TEST(parameters_of_the_function_are_noticed)
{
	struct moek_problem p;

	start(with_bias[_i]);
	p = material.problem;
	if (p.activation == MOEK_SWIGLU_OAI) {
		p.beta = 0;
		run_as(&p);
		rejected("no beta");
		p = material.problem;
		p.alpha = 1;
		run_as(&p);
		rejected("alpha of 1");
		p = material.problem;
		p.limit = 0;
		run_as(&p);
		rejected("no limit");
	}
	p = material.problem;
	p.activation = MOEK_GELU;
	p.alpha = p.beta = p.limit = 0;
	run_as(&p);
	rejected("another function");
	end();
}
END_TEST

/* The two rules for the shared exponent are two problems. */
START_TEST(the_other_rule_for_mxfp4_activations_is_noticed)
{
	struct moek_problem p;

	start("a4_even");
	accepted();
	p = material.problem;
	p.activations = MOEK_A4_MXFP4_ROUND_UP;
	run_as(&p);
	rejected("round_up in place of even");
	p.activations = MOEK_A16;
	run_as(&p);
	rejected("activations that were not quantised");
	end();
}
END_TEST

START_TEST(writing_outside_is_noticed)
{
	struct rows r;

	ck_assert(rows_make(3, 5, 8, MOEK_BF16, &r));
	ck_assert_ptr_null(rows_broken(&r));
	float_put(MOEK_BF16, r.data, 0, 1);
	float_put(MOEK_BF16, r.data, 2 * 8 + 4, 1);
	ck_assert_ptr_null(rows_broken(&r));
	((uint8_t *)r.data)[-1] = 0;
	ck_assert_str_eq(rows_broken(&r), "wrote before its output");
	rows_poison(&r);
	float_put(MOEK_BF16, r.data, 8 + 5, 1);
	ck_assert_str_eq(rows_broken(&r), "wrote between the rows of its output");
	rows_poison(&r);
	float_put(MOEK_BF16, r.data, 3 * 8, 1);
	ck_assert_str_eq(rows_broken(&r), "wrote past its output");
	rows_free(&r);
}
END_TEST

/* Names are what people filter by. */
START_TEST(a_random_problem_is_known_by_its_seed)
{
	struct kernel_case c, again;
	struct moek_error error;
	uint64_t twisted = 0, weights = 0, i;

	for (i = 0; i < 1000; i++) {
		case_random(i, &c);
		case_random(i, &again);
		ck_assert_str_eq(c.name, again.name);
		ck_assert_mem_eq(&c.problem, &again.problem, sizeof(c.problem));
		c.problem.max_tokens = c.tokens;
		ck_assert_msg(moek_problem_check(&c.problem, &error) == MOEK_OK,
		              "seed %llu: %s", (unsigned long long)i, error.text);
		weights |= UINT64_C(1) << c.problem.gate_up.weight;
		twisted |= c.twist;
	}
	/* each of the weights and twists of random.c comes up */
	ck_assert_int_eq(__builtin_popcountll(weights), 6);
	ck_assert_int_eq(__builtin_popcountll(twisted), 10);
}
END_TEST

START_TEST(cases_have_names_of_their_own)
{
	struct kernel_case a, b;
	uint64_t i, j;

	for (i = 0; i < case_count(); i++) {
		case_at(i, &a);
		ck_assert_uint_lt(strlen(a.name), sizeof(a.name) - 1);
		for (j = 0; j < i; j++) {
			case_at(j, &b);
			ck_assert_str_ne(a.name, b.name);
		}
	}
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("kernelcheck");
	TCase *wrong = tcase_create("what is wrong does not pass");
	TCase *harness = tcase_create("harness");

	tcase_add_loop_test(wrong, a_right_output_passes, 0, COUNT(subjects));
	tcase_add_loop_test(wrong, a_factor_is_noticed, 0, COUNT(subjects));
	tcase_add_loop_test(wrong, an_expert_that_is_left_out_is_noticed, 0,
	                    COUNT(subjects));
	tcase_add_loop_test(wrong, another_expert_is_noticed, 0, COUNT(subjects));
	tcase_add_loop_test(wrong, gate_and_up_swapped_are_noticed, 0, COUNT(subjects));
	tcase_add_loop_test(wrong,
	                    router_weights_that_are_squared_or_absent_are_noticed, 0,
	                    COUNT(subjects));
	tcase_add_loop_test(wrong, zero_points_off_by_one_are_noticed, 0,
	                    COUNT(subjects));
	tcase_add_loop_test(wrong, a_wrong_nibble_order_is_noticed, 0, COUNT(subjects));
	tcase_add_loop_test(wrong, scales_of_the_wrong_group_are_noticed, 0,
	                    COUNT(subjects));
	tcase_add_loop_test(wrong, rounding_towards_zero_is_noticed, 0,
	                    COUNT(subjects));
	tcase_add_loop_test(wrong, a_nan_or_an_infinity_is_noticed, 0, COUNT(subjects));
	tcase_add_loop_test(wrong, an_output_that_is_not_written_is_noticed, 0,
	                    COUNT(subjects));
	tcase_add_loop_test(wrong, tokens_in_another_order_are_noticed, 0,
	                    COUNT(subjects));
	tcase_add_loop_test(wrong, a_bias_that_is_left_out_is_noticed, 0,
	                    COUNT(with_bias));
	tcase_add_loop_test(wrong, parameters_of_the_function_are_noticed, 0,
	                    COUNT(with_bias));
	tcase_add_test(wrong, the_other_rule_for_mxfp4_activations_is_noticed);
	suite_add_tcase(s, wrong);

	tcase_add_test(harness, writing_outside_is_noticed);
	tcase_add_test(harness, cases_have_names_of_their_own);
	tcase_add_test(harness, a_random_problem_is_known_by_its_seed);
	suite_add_tcase(s, harness);
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
