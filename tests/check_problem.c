/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/problem.h"

#include <check.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#define TEXT                                                                           \
	"experts=8,top_k=2,hidden=64,intermediate=48,max_tokens=16,weight=int4,group_" \
	"size=32,"                                                                     \
	"scale=bf16,input_type=bf16,output_type=fp32,activation=silu,gated=1"

static struct moek_problem good(void)
{
	struct moek_problem problem = { .struct_size = MOEK_PROBLEM_SIZE_1_0 };
	struct moek_error error;

	ck_assert_msg(moek_problem_parse(TEXT, &problem, &error) == MOEK_OK, "%s",
	              error.text);
	return problem;
}

START_TEST(text_sets_the_fields_it_names)
{
	struct moek_problem p = good();

	ck_assert_uint_eq(p.experts, 8);
	ck_assert_uint_eq(p.experts_local, 8);
	ck_assert_uint_eq(p.top_k, 2);
	ck_assert_uint_eq(p.hidden, 64);
	ck_assert_uint_eq(p.intermediate, 48);
	ck_assert_uint_eq(p.max_tokens, 16);
	ck_assert_uint_eq(p.gate_up.weight, MOEK_INT4);
	ck_assert_uint_eq(p.down.weight, MOEK_INT4);
	ck_assert_uint_eq(p.gate_up.group_size, 32);
	ck_assert_uint_eq(p.down.scale, MOEK_BF16);
	ck_assert_uint_eq(p.input_type, MOEK_BF16);
	ck_assert_uint_eq(p.output_type, MOEK_F32);
	ck_assert_uint_eq(p.activation, MOEK_SILU);
	ck_assert_uint_eq(p.gated, 1);
	ck_assert_uint_eq(p.shards, 1);
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_OK);
	ck_assert_uint_eq(p.must_understand, 0);
}
END_TEST

static struct moek_problem over(const char *text)
{
	struct moek_problem problem = good();
	struct moek_error error;

	ck_assert_msg(moek_problem_parse(text, &problem, &error) == MOEK_OK, "%s: %s",
	              text, error.text);
	return problem;
}

START_TEST(a_prefix_sets_one_projection)
{
	struct moek_problem p = over(
		"down.group_size=channel,gate_up.bias=1,down.zero_points=1");

	ck_assert_uint_eq(p.gate_up.group_size, 32);
	ck_assert_uint_eq(p.down.group_size, 0);
	ck_assert_uint_eq(p.gate_up.bias, 1);
	ck_assert_uint_eq(p.down.bias, 0);
	ck_assert_uint_eq(p.gate_up.zero_points, 0);
	ck_assert_uint_eq(p.down.zero_points, 1);
	p = over("down.weight=mxfp4,group_size=64,down.group_size=32");
	ck_assert_uint_eq(p.gate_up.weight, MOEK_INT4);
	ck_assert_uint_eq(p.gate_up.group_size, 64);
	ck_assert_uint_eq(p.down.weight, MOEK_MXFP4);
	ck_assert_uint_eq(p.down.group_size, 32);
	ck_assert_uint_eq(p.down.scale, MOEK_E8M0);
}
END_TEST

START_TEST(another_weight_takes_nothing_over)
{
	struct moek_problem p = over("zero_points=1,bias=1");

	ck_assert_int_eq(moek_problem_parse("weight=bf16", &p, NULL), MOEK_OK);
	ck_assert_uint_eq(p.gate_up.scale, 0);
	ck_assert_uint_eq(p.gate_up.group_size, 0);
	ck_assert_uint_eq(p.gate_up.zero_points, 0);
	ck_assert_uint_eq(p.gate_up.bias, 1);
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_OK);
	/* wherever it stands, the weight comes first */
	ck_assert_int_eq(
		moek_problem_parse("group_size=16,scale=fp16,weight=int4", &p, NULL),
		MOEK_OK);
	ck_assert_uint_eq(p.gate_up.group_size, 16);
	ck_assert_uint_eq(p.down.scale, MOEK_F16);
	/* the same weight again changes nothing */
	ck_assert_int_eq(moek_problem_parse("weight=int4", &p, NULL), MOEK_OK);
	ck_assert_uint_eq(p.gate_up.group_size, 16);
}
END_TEST

START_TEST(numbers_do_not_depend_on_the_locale)
{
	static const char *const comma[] = { "de_DE.UTF-8", "de_DE.utf8",
		                             "fr_FR.UTF-8" };
	struct moek_problem p;

	for (size_t i = 0; i < 3; i++)
		if (setlocale(LC_NUMERIC, comma[i]) != NULL)
			break;
	p = over("activation=swiglu_oai,alpha=1.702,beta=1,limit=7.5");
	ck_assert(p.alpha == 1.702f && p.beta == 1.0f && p.limit == 7.5f);
	setlocale(LC_NUMERIC, "C");
}
END_TEST

static const struct {
	const char *text, *says;
} bad_texts[] = {
	{ "expert=8", "problem: unknown key \"expert\", did you mean \"experts\"?" },
	{ "down.hidden=8", "problem: unknown key \"down.hidden\", did you mean" },
	{ "zzzzzzzzz=8", "problem: unknown key \"zzzzzzzzz\"" },
	{ "hidden", "problem: \"hidden\" is no key=value" },
	{ "hidden=64,,top_k=1", "problem: \"\" is no key=value" },
	{ "hidden=", "problem: hidden=: expected a whole number" },
	{ "hidden=-1", "problem: hidden=-1: expected a whole number" },
	{ "hidden=64x", "problem: hidden=64x: expected a whole number" },
	{ "hidden=18446744073709551616", "expected a whole number" },
	{ "gated=2", "problem: gated=2: expected 0 or 1" },
	{ "lora=2", "problem: lora=2: expected 0 or 1" },
	{ "limit=inf", "problem: limit=inf: expected a number" },
	{ "limit=7,5", "problem: \"5\" is no key=value" },
	{ "weight=int5", "problem: weight=int5: expected bf16, fp16" },
	{ "activation=relu", "problem: activation=relu: expected silu" },
	{ "activations=a15", "problem: activations=a15: expected a16" },
	{ "group_size=all",
	  "problem: group_size=all: expected a whole number or channel" },
	{ "hidden=64,hidden=128", "problem: key \"hidden\" is given twice" },
	{ "bias=1,down.bias=0,bias=0", "problem: key \"bias\" is given twice" },
	{ "activations_group=4294967296", "expected a whole number" },
};

START_TEST(a_bad_text_is_named_and_changes_nothing)
{
	struct moek_problem p = good(), before = p;
	struct moek_error error;

	ck_assert_int_eq(moek_problem_parse(bad_texts[_i].text, &p, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_uint_eq(error.rule, MOEK_RULE_INVALID);
	ck_assert_msg(strstr(error.text, bad_texts[_i].says) != NULL, "%s: \"%s\"",
	              bad_texts[_i].text, error.text);
	ck_assert_mem_eq(&p, &before, sizeof(p));
}
END_TEST

static const struct {
	const char *text;
	uint64_t bits;
} implied[] = {
	{ "", 0 },
	{ "down.zero_points=1", MOEK_ZERO_POINTS },
	{ "gate_up.zero_points=1", MOEK_ZERO_POINTS },
	{ "gate_up.column_groups=1", MOEK_COLUMN_GROUPS },
	{ "down.column_groups=1", MOEK_COLUMN_GROUPS },
	{ "down.bias=1", MOEK_BIAS },
	{ "gate_up.bias=1", MOEK_BIAS },
	{ "limit=7", MOEK_LIMIT },
	{ "activation=swiglu_oai,alpha=1.702,beta=1", MOEK_ALPHA_BETA },
	{ "activation=situ,alpha=4,beta=25", MOEK_ALPHA_BETA },
	{ "gated=0", MOEK_NOT_GATED },
	{ "gated=0,activation=relu2", MOEK_NOT_GATED },
	{ "shard=1,shards=2", MOEK_PARTIAL_SUM },
	{ "expert_map=1,experts_local=4", MOEK_EXPERT_MAP },
	{ "weight_on_input=1,top_k=1", MOEK_WEIGHT_ON_INPUT },
	{ "row_stride=1", MOEK_ROW_STRIDE },
	{ "deterministic=1", MOEK_DETERMINISTIC },
	{ "capture=1,lora=1", MOEK_CAPTURE | MOEK_LORA },
	{ "weight=mxfp4,activations=mxfp4_even", 0 },
	{ "weight=fp32", 0 },
	{ "activations=int8,activations_group=64", 0 },
	{ "activations=fp8_static,input_scale=1", 0 },
	{ "weight=int8,scale=fp32", 0 },
	{ "top_k=8,group_size=100000", 0 },
};

START_TEST(fields_imply_their_bits)
{
	struct moek_problem p = over(implied[_i].text);
	struct moek_error error;

	ck_assert_msg(moek_problem_check(&p, &error) == MOEK_OK, "%s: %s",
	              implied[_i].text, error.text);
	ck_assert_uint_eq(p.must_understand, implied[_i].bits);
	/* a stale bit goes, the host's and the future's stay */
	p.must_understand = MOEK_IMPLIED_BITS | (UINT64_C(1) << 40) | implied[_i].bits;
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_OK);
	ck_assert_uint_eq(p.must_understand, implied[_i].bits | (UINT64_C(1) << 40));
}
END_TEST

static const struct {
	const char *text, *says;
	uint32_t rule;
} contradictions[] = {
	{ "experts=0", "experts is 0", MOEK_RULE_INVALID },
	{ "experts=2147483648", "experts 2147483648 is over 2147483647",
	  MOEK_RULE_INVALID },
	{ "experts_local=0", "experts_local is 0", MOEK_RULE_INVALID },
	{ "top_k=0", "top_k is 0", MOEK_RULE_INVALID },
	{ "hidden=0", "hidden is 0", MOEK_RULE_INVALID },
	{ "intermediate=0", "intermediate is 0", MOEK_RULE_INVALID },
	{ "max_tokens=0", "max_tokens is 0", MOEK_RULE_INVALID },
	{ "top_k=9", "top_k 9 is over experts 8", MOEK_RULE_INVALID },
	{ "experts_local=4", "experts_local 4, experts 8 and no expert map",
	  MOEK_RULE_INVALID },
	{ "expert_map=1,experts_local=9", "experts_local 9, experts 8",
	  MOEK_RULE_INVALID },
	{ "shard=2,shards=2", "shard 2 of shards 2", MOEK_RULE_INVALID },
	{ "weight_on_input=1", "weight_on_input needs top_k 1, found top_k 2",
	  MOEK_RULE_WEIGHT_ON_INPUT },
	{ "hidden=4294967296,intermediate=4294967296", "does not fit 64 bits",
	  MOEK_RULE_INVALID },
	{ "max_tokens=9000000000000000000", "do not fit 64 bits", MOEK_RULE_INVALID },
	{ "weight=none", "gate_up.weight is not set", MOEK_RULE_INVALID },
	{ "down.weight=e8m0", "down.weight 5 is not known", MOEK_RULE_UNKNOWN_VALUE },
	{ "weight=bf16,group_size=32", "gate_up.weight bf16 has no scale",
	  MOEK_RULE_INVALID },
	{ "weight=bf16,down.scale=bf16", "down.weight bf16 has no scale",
	  MOEK_RULE_INVALID },
	{ "scale=none", "gate_up.scale none with weight int4", MOEK_RULE_INVALID },
	{ "down.scale=int4", "down.scale int4 with weight int4", MOEK_RULE_INVALID },
	{ "weight=mxfp4,scale=bf16",
	  "gate_up.scale bf16 with weight mxfp4, must be e8m0", MOEK_RULE_INVALID },
	{ "weight=mxfp4,group_size=16", "mxfp4 with group_size 16", MOEK_RULE_INVALID },
	{ "weight=mxfp4,down.zero_points=1", "down.weight mxfp4 with",
	  MOEK_RULE_INVALID },
	{ "group_size=channel,column_groups=1", "gate_up.column_groups 1",
	  MOEK_RULE_INVALID },
	{ "activation=relu2", "gated 1 with activation relu2", MOEK_RULE_INVALID },
	{ "alpha=1", "alpha 1, beta 0: activation silu has none", MOEK_RULE_INVALID },
	{ "beta=1", "alpha 0, beta 1: activation silu has none", MOEK_RULE_INVALID },
	{ "limit=-7", "limit -7: must be finite, limit >= 0", MOEK_RULE_INVALID },
	{ "activation=swiglu_oai", "alpha 0, activation swiglu_oai needs one",
	  MOEK_RULE_INVALID },
	{ "activation=situ,alpha=4,limit=7", "limit 7: activation situ has none",
	  MOEK_RULE_INVALID },
	{ "activation=relu2,gated=0,limit=7", "limit 7: activation relu2 has none",
	  MOEK_RULE_INVALID },
	{ "input_type=int4", "input_type int4", MOEK_RULE_INVALID },
	{ "output_type=none", "output_type none", MOEK_RULE_INVALID },
	{ "activations=int8", "activations_group 0 with activations int8",
	  MOEK_RULE_INVALID },
	{ "activations_group=8", "activations_group 8 with activations a16",
	  MOEK_RULE_INVALID },
	{ "activations=fp8_static,down.input_scale=1", "fp8_static needs input_scale 1",
	  MOEK_RULE_INVALID },
};

START_TEST(a_contradiction_names_the_field)
{
	struct moek_problem p = good(), before;
	struct moek_error error;

	p = over(contradictions[_i].text);
	before = p;
	ck_assert_int_eq(moek_problem_check(&p, &error), MOEK_BAD_ARGUMENT);
	ck_assert_uint_eq(error.rule, contradictions[_i].rule);
	ck_assert_msg(strncmp(error.text, "problem: ", 9) == 0 &&
	                      strstr(error.text, contradictions[_i].says) != NULL,
	              "%s: \"%s\"", contradictions[_i].text, error.text);
	ck_assert_mem_eq(&p, &before, sizeof(p));
}
END_TEST

START_TEST(raw_values_are_checked_too)
{
	struct moek_problem p = good();

	p.gate_up.zero_points = 2;
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_BAD_ARGUMENT);
	p = good();
	p.down.reserved = 1;
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_BAD_ARGUMENT);
	p = good();
	p.activation = 99;
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_BAD_ARGUMENT);
	p = good();
	p.activations = 99;
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_BAD_ARGUMENT);
	p = good();
	p.gated = 2;
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_BAD_ARGUMENT);
	p = good();
	p.alpha = (float)(0.0 / strtod("0", NULL));
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_BAD_ARGUMENT);
	p = good();
	p.struct_size = 180;
	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_problem_check(NULL, NULL), MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_problem_parse(NULL, &p, NULL), MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_problem_parse("hidden=1", NULL, NULL), MOEK_BAD_ARGUMENT);
}
END_TEST

START_TEST(a_longer_problem_is_read_by_its_known_part)
{
	struct {
		struct moek_problem known;
		uint64_t future[4];
	} theirs = { good(), { 1, 2, 3, 4 } };
	struct moek_problem mine, before = theirs.known;

	theirs.known.struct_size = sizeof(theirs);
	theirs.known.limit = 7;
	ck_assert_int_eq(moek_problem_read(&theirs.known, &mine, NULL), MOEK_OK);
	ck_assert_uint_eq(mine.struct_size, MOEK_PROBLEM_SIZE_1_0);
	ck_assert_uint_eq(mine.must_understand, MOEK_LIMIT);
	ck_assert_uint_eq(mine.hidden, 64);
	ck_assert_uint_eq(theirs.known.must_understand, before.must_understand);
	theirs.known.top_k = 9;
	before = mine;
	ck_assert_int_eq(moek_problem_read(&theirs.known, &mine, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_mem_eq(&mine, &before, sizeof(mine));
}
END_TEST

START_TEST(text_reads_back_to_the_same_problem)
{
	struct moek_problem p = over(implied[_i].text), back = { 0 };
	struct moek_error error;
	char text[2048], cut[32];
	size_t length;

	ck_assert_int_eq(moek_problem_check(&p, NULL), MOEK_OK);
	length = moek_problem_text(&p, text, sizeof(text));
	ck_assert_uint_lt(length, sizeof(text));
	ck_assert_uint_eq(length, strlen(text));
	back.struct_size = MOEK_PROBLEM_SIZE_1_0;
	ck_assert_msg(moek_problem_parse(text, &back, &error) == MOEK_OK, "%s",
	              error.text);
	ck_assert_int_eq(moek_problem_check(&back, NULL), MOEK_OK);
	ck_assert_mem_eq(&p, &back, sizeof(p));
	ck_assert_uint_eq(moek_problem_text(&p, cut, sizeof(cut)), length);
	ck_assert_uint_eq(strlen(cut), sizeof(cut) - 1);
	ck_assert_uint_eq(moek_problem_text(&p, NULL, 0), length);
}
END_TEST

START_TEST(a_row_has_a_short_last_group)
{
	struct moek_scheme scheme = { .weight = MOEK_INT4, .scale = MOEK_BF16 };

	scheme.group_size = 32;
	ck_assert_uint_eq(moek_scheme_groups(&scheme, 64), 2);
	ck_assert_uint_eq(moek_scheme_groups(&scheme, 65), 3);
	ck_assert_uint_eq(moek_scheme_groups(&scheme, 1), 1);
	scheme.group_size = 0;
	ck_assert_uint_eq(moek_scheme_groups(&scheme, 65), 1);
	ck_assert_uint_eq(moek_scheme_groups(&scheme, UINT64_MAX), 1);
	scheme.scale = 0;
	ck_assert_uint_eq(moek_scheme_groups(&scheme, 65), 0);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

int main(void)
{
	Suite *suite = suite_create("problem");
	TCase *tests = tcase_create("problem");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, text_sets_the_fields_it_names);
	tcase_add_test(tests, a_prefix_sets_one_projection);
	tcase_add_test(tests, another_weight_takes_nothing_over);
	tcase_add_test(tests, numbers_do_not_depend_on_the_locale);
	tcase_add_loop_test(tests, a_bad_text_is_named_and_changes_nothing, 0,
	                    COUNT(bad_texts));
	tcase_add_loop_test(tests, fields_imply_their_bits, 0, COUNT(implied));
	tcase_add_loop_test(tests, a_contradiction_names_the_field, 0,
	                    COUNT(contradictions));
	tcase_add_test(tests, raw_values_are_checked_too);
	tcase_add_test(tests, a_longer_problem_is_read_by_its_known_part);
	tcase_add_loop_test(tests, text_reads_back_to_the_same_problem, 0,
	                    COUNT(implied));
	tcase_add_test(tests, a_row_has_a_short_last_group);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
