/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <moek/moek.h>

#define MOST 16

static const float logits8[8] = { 1, -0.5f, 2, 0.25f, -1, 1.5f, 0, 0.75f };
static const float bias8[8] = { 0, 0.3f, -0.6f, 0, 0.2f, 0, 0.1f, 0 };
static const float close8[8] = { 1, -0.5f, 2, 0.25f, -1, 1.99f, 0, 1.985f };
/* the third is farther from the best than jitter, not than twice jitter */
static const float wide8[8] = { 1, -0.5f, 2, 0.25f, -1, 1.99f, 0, 1.97f };
static const float logits4[4] = { 1, 2, 3, 4 };
static const float rt2[8] = { 0, 1, -1, 2, 0.5f, 0.5f, 3, -3 };
static const float rt2_bias[8] = { 0, 0, 0, 0, 0.5f, 0.5f, 0, 0 };
/* two groups of four, all below zero after the bias: sigmoid 0.5 each */
static const float zeros8[8] = { 0 };
static const float below8[8] = {
	-0.7f, -0.8f, -0.6f, -0.9f, -1.0f, -1.1f, -1.2f, -1.3f
};
static const float scale8[8] = { 1, 1, 2, 1, 1, 0.5f, 1, 1 };
static const float halves8[8] = { 0, 0, 0, 0, -6.9314718f, 0, 0, 0 };

#define ROUTER .struct_size = MOEK_ROUTER_SIZE_1_0

static const struct vector {
	const char *name;
	struct moek_router router;
	const float *logits;
	int32_t ids[4];
	double weights[4];
} vectors[] = {
	{ "EX-RT1 default",
	  { ROUTER, MOEK_SOFTMAX, 4, 2 },
	  logits4,
	  { 3, 2 },
	  { .6439143, .2368828 } },
	{ "EX-RT1 renormalise",
	  { ROUTER, MOEK_SOFTMAX, 4, 2, .renormalise = 1 },
	  logits4,
	  { 3, 2 },
	  { .7310586, .2689414 } },
	{ "EX-RT1 sigmoid",
	  { ROUTER, MOEK_SIGMOID, 4, 4 },
	  logits4,
	  { 3, 2, 1, 0 },
	  { .9820138, .9525741, .8807971, .7310586 } },
	{ "EX-RT1 sqrt softplus",
	  { ROUTER, MOEK_SQRT_SOFTPLUS, 4, 4 },
	  logits4,
	  { 3, 2, 1, 0 },
	  { 2.0045323, 1.7460204, 1.4583991, 1.1459763 } },
	{ "EX-RT2",
	  { ROUTER, MOEK_SIGMOID, 8, 2, .groups = 4, .groups_kept = 2,
	    .bias = rt2_bias },
	  rt2,
	  { 4, 5 },
	  { .6224593, .6224593 } },
	{ "EX-RT2 scaled",
	  { ROUTER, MOEK_SIGMOID, 8, 2, .groups = 4, .groups_kept = 2, .bias = rt2_bias,
	    .renormalise = 1, .scaling = 2.5f },
	  rt2,
	  { 4, 5 },
	  { 1.25, 1.25 } },
	{ "EX-RT2 without bias",
	  { ROUTER, MOEK_SIGMOID, 8, 2, .groups = 4, .groups_kept = 2 },
	  rt2,
	  { 6, 3 },
	  { .9525741, .8807971 } },
	{ "EX-RT2 without bias, renormalised",
	  { ROUTER, MOEK_SIGMOID, 8, 2, .groups = 4, .groups_kept = 2,
	    .renormalise = 1 },
	  rt2,
	  { 6, 3 },
	  { .5195752, .4804248 } },
	{ "R-A",
	  { ROUTER, MOEK_SOFTMAX, 8, 2, .renormalise = 1 },
	  logits8,
	  { 2, 5 },
	  { 0.622459331, 0.377540669 } },
	{ "R-B",
	  { ROUTER, MOEK_SOFTMAX, 8, 3 },
	  logits8,
	  { 2, 5, 0 },
	  { 0.370110444, 0.224483332, 0.136156023 } },
	{ "R-C",
	  { ROUTER, MOEK_SOFTMAX, 8, 3, .score_chosen = 1 },
	  logits8,
	  { 2, 5, 0 },
	  { 0.506480391, 0.307195886, 0.186323723 } },
	{ "R-D",
	  { ROUTER, MOEK_SOFTMAX, 8, 3, .groups = 4, .groups_kept = 2, .scaling = 2 },
	  logits8,
	  { 2, 5, 3 },
	  { 0.740220889, 0.448966664, 0.128631103 } },
	{ "R-E",
	  { ROUTER, MOEK_SIGMOID, 8, 3, .groups = 2, .groups_kept = 1, .bias = bias8,
	    .renormalise = 1, .scaling = 2.5f, .epsilon = 1e-20f },
	  logits8,
	  { 5, 7, 6 },
	  { 1.02362987, 0.850353849, 0.626016283 } },
	{ "R-E no groups",
	  { ROUTER, MOEK_SIGMOID, 8, 3, .bias = bias8, .renormalise = 1,
	    .scaling = 2.827f },
	  logits8,
	  { 5, 0, 7 },
	  { 1.03746784, 0.92768278, 0.861849382 } },
	{ "R-E no groups, no bias",
	  { ROUTER, MOEK_SIGMOID, 8, 3, .renormalise = 1, .scaling = 2.827f },
	  logits8,
	  { 2, 5, 0 },
	  { 1.02493721, 0.951368394, 0.850694397 } },
	/* ERNIE: softmax scores, a bias for choosing only */
	{ "softmax with a bias",
	  { ROUTER, MOEK_SOFTMAX, 8, 3, .bias = bias8, .renormalise = 1 },
	  logits8,
	  { 1, 5, 4 },
	  { 0.111165622, 0.821409019, 0.0674253582 } },
	{ "R-F",
	  { ROUTER, MOEK_SQRT_SOFTPLUS, 8, 3, .bias = bias8, .renormalise = 1,
	    .scaling = 1.5f },
	  logits8,
	  { 5, 0, 7 },
	  { 0.556382133, 0.488814301, 0.454803566 } },
	{ "R-G",
	  { ROUTER, MOEK_SIGMOID, 8, 1, .score_chosen = 1, .weight_on_input = 1 },
	  logits8,
	  { 2 },
	  { 0.880797078 } },
	{ "R-H",
	  { ROUTER, MOEK_SOFTMAX, 8, 2, .jitter = 0.01f },
	  logits8,
	  { 2, 5 },
	  { 1, 1 } },
	{ "R-H close",
	  { ROUTER, MOEK_SOFTMAX, 8, 2, .jitter = 0.01f },
	  close8,
	  { 2, 5 },
	  { 0.336116177, 0.501249997 } },
	{ "R-H wide",
	  { ROUTER, MOEK_SOFTMAX, 8, 2, .jitter = 0.01f },
	  wide8,
	  { 2, 5 },
	  { 0.337781305, 0.504999829 } },
	/* by their best alone, group 3 would be kept in place of group 0 */
	{ "EX-RT2, three chosen",
	  { ROUTER, MOEK_SIGMOID, 8, 3, .groups = 4, .groups_kept = 2,
	    .bias = rt2_bias },
	  rt2,
	  { 4, 5, 1 },
	  { .62245933, .62245933, .73105858 } },
	/* masked groups are out, not zero: zeros would win over these */
	{ "below zero",
	  { ROUTER, MOEK_SIGMOID, 8, 3, .groups = 2, .groups_kept = 1, .bias = below8 },
	  zeros8,
	  { 2, 0, 1 },
	  { .5, .5, .5 } },
	{ "expert scale",
	  { ROUTER, MOEK_SOFTMAX, 8, 2, .score_chosen = 1, .expert_scale = scale8 },
	  logits8,
	  { 2, 5 },
	  { 2 * 0.622459331, 0.5 * 0.377540669 } },
	{ "epsilon",
	  { ROUTER, MOEK_SIGMOID, 8, 1, .renormalise = 1, .epsilon = 0.5f },
	  zeros8,
	  { 0 },
	  { .5 } },
	{ "ties",
	  { ROUTER, MOEK_SOFTMAX, 8, 4 },
	  zeros8,
	  { 0, 1, 2, 3 },
	  { .125, .125, .125, .125 } },
	{ "one expert", { ROUTER, MOEK_SOFTMAX, 1, 1 }, logits4, { 0 }, { 1 } },
	{ "a group of one",
	  { ROUTER, MOEK_SIGMOID, 8, 2, .groups = 8, .groups_kept = 2, .bias = bias8 },
	  logits8,
	  { 5, 0 },
	  { .81757448, .73105858 } },
	{ "small softplus",
	  { ROUTER, MOEK_SQRT_SOFTPLUS, 8, 4, .groups = 2, .groups_kept = 1,
	    .bias = halves8 },
	  halves8,
	  { 0, 1, 2, 3 },
	  { .83255461, .83255461, .83255461, .83255461 } },
};

START_TEST(worked_vectors_come_out)
{
	const struct vector *v = &vectors[_i];
	int32_t ids[MOST];
	float weights[MOST];

	ck_assert_int_eq(moek_route(&v->router, v->logits, 1, ids, weights, NULL),
	                 MOEK_OK);
	for (uint64_t j = 0; j < v->router.top_k; j++) {
		ck_assert_msg(ids[j] == v->ids[j], "%s: choice %d is expert %d, not %d",
		              v->name, (int)j, (int)ids[j], (int)v->ids[j]);
		ck_assert_msg(fabs((double)weights[j] - v->weights[j]) <=
		                      1.2e-7 * v->weights[j],
		              "%s: weight %d is %.9g, not %.9g", v->name, (int)j,
		              (double)weights[j], v->weights[j]);
	}
}
END_TEST

START_TEST(each_token_is_by_itself)
{
	struct moek_router router = { ROUTER, MOEK_SIGMOID, 8,
		                      3,      .groups = 4,  .groups_kept = 2 };
	float logits[5 * 8], one[3], many[5 * 3];
	int32_t one_id[3], many_ids[5 * 3];

	for (size_t i = 0; i < 40; i++)
		logits[i] = logits8[(i * 5 + i / 8 * 3) % 8] * (float)(1 + i / 8);
	ck_assert_int_eq(moek_route(&router, logits, 5, many_ids, many, NULL), MOEK_OK);
	for (size_t t = 0; t < 5; t++) {
		moek_route(&router, logits + 8 * t, 1, one_id, one, NULL);
		ck_assert_mem_eq(one_id, many_ids + 3 * t, sizeof(one_id));
		ck_assert_mem_eq(one, many + 3 * t, sizeof(one));
	}
}
END_TEST

START_TEST(broken_logits_count_as_zero)
{
	static const uint32_t scorings[] = { MOEK_SOFTMAX, MOEK_SIGMOID,
		                             MOEK_SQRT_SOFTPLUS };
	static const int last[4] = { 0, 2, 3, 5 };
	const float logits[6] = { NAN, 0.5f, -INFINITY, -NAN, 1, NAN };
	int32_t ids[6];
	float weights[6];

	for (size_t s = 0; s < 6; s++) {
		struct moek_router router = {
			ROUTER, scorings[s % 3],  6,
			6,      .renormalise = 1, .score_chosen = s >= 3
		};

		ck_assert_int_eq(moek_route(&router, logits, 1, ids, weights, NULL),
		                 MOEK_OK);
		ck_assert_int_eq(ids[0], 4);
		ck_assert_int_eq(ids[1], 1);
		ck_assert(weights[0] > weights[1] && weights[1] > 0);
		ck_assert_float_eq_tol(weights[0] + weights[1], 1, 1e-6f);
		for (int j = 2; j < 6; j++) {
			ck_assert(weights[j] == 0);
			ck_assert_int_eq(ids[j], last[j - 2]);
		}
	}
}
END_TEST

START_TEST(infinite_scores_count_as_zero)
{
	const float logits[3] = { INFINITY, 1, 2 };
	struct moek_router router = { ROUTER, MOEK_SOFTMAX, 3, 2, .renormalise = 1 };
	int32_t ids[2];
	float weights[2];

	moek_route(&router, logits, 1, ids, weights, NULL);
	ck_assert(ids[0] == 2 && ids[1] == 1);
	ck_assert_float_eq_tol(weights[0], 0.73105858f, 1e-6f);
	router.scoring = MOEK_SQRT_SOFTPLUS;
	moek_route(&router, logits, 1, ids, weights, NULL);
	ck_assert(ids[0] == 2 && ids[1] == 1);
}
END_TEST

START_TEST(nothing_but_nan_is_still_an_answer)
{
	const float logits[4] = { NAN, NAN, NAN, NAN };
	struct moek_router router = { ROUTER, MOEK_SOFTMAX, 4, 2, .renormalise = 1 };
	int32_t ids[2];
	float weights[2];

	for (int jitter = 0; jitter < 2; jitter++) {
		router.jitter = jitter ? 0.01f : 0;
		router.renormalise = !jitter;
		ck_assert_int_eq(moek_route(&router, logits, 1, ids, weights, NULL),
		                 MOEK_OK);
		ck_assert(ids[0] == 0 && ids[1] == 1);
		ck_assert(weights[0] == 0 && weights[1] == 0);
	}
}
END_TEST

START_TEST(large_logits_do_not_overflow)
{
	const float logits[3] = { 1e30f, 100, -1e30f };
	struct moek_router router = { ROUTER, MOEK_SQRT_SOFTPLUS, 3, 3 };
	int32_t ids[3];
	float weights[3];

	moek_route(&router, logits, 1, ids, weights, NULL);
	ck_assert_float_eq_tol(weights[0], 1e15f, 1e9f);
	ck_assert_float_eq_tol(weights[1], 10, 1e-6f);
	ck_assert(weights[2] == 0);
	router.scoring = MOEK_SIGMOID;
	moek_route(&router, logits, 1, ids, weights, NULL);
	ck_assert(ids[0] == 0 && weights[0] == 1 && weights[1] == 1 && weights[2] == 0);
}
END_TEST

static const struct {
	struct moek_router router;
	const char *says;
} bad_routers[] = {
	{ { 0 }, "router: struct_size 0" },
	{ { ROUTER, 0, 4, 2 }, "router: scoring 0 is not known" },
	{ { ROUTER, 4, 4, 2 }, "router: scoring 4 is not known" },
	{ { ROUTER, MOEK_SOFTMAX, 0, 2 }, "router: experts 0" },
	{ { ROUTER, MOEK_SOFTMAX, 1ull << 31, 2 }, "router: experts 2147483648" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 0 }, "router: top_k 0" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 5 }, "router: top_k 5" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 1, .groups = 3, .groups_kept = 1 },
	  "divisible by groups 3" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 1, .groups = 2 }, "groups_kept 0" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 1, .groups = 2, .groups_kept = 3 },
	  "groups_kept 3" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 3, .groups = 2, .groups_kept = 1 }, "top_k 3" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 2, .scaling = NAN }, "must be finite" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 2, .epsilon = -1 }, "epsilon -1" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 2, .jitter = INFINITY }, "must be finite" },
	{ { ROUTER, MOEK_SOFTMAX, 4, 3, .jitter = 0.01f }, "jitter goes with" },
	{ { ROUTER, MOEK_SIGMOID, 4, 2, .jitter = 0.01f }, "jitter goes with" },
};

START_TEST(a_bad_router_is_refused_by_name)
{
	struct moek_error error;
	int32_t ids[4] = { 7 };
	float weights[4] = { 7 };

	ck_assert_int_eq(
		moek_route(&bad_routers[_i].router, logits4, 1, ids, weights, &error),
		MOEK_BAD_ARGUMENT);
	ck_assert_msg(strstr(error.text, bad_routers[_i].says) != NULL, "\"%s\"",
	              error.text);
	ck_assert(ids[0] == 7 && weights[0] == 7);
}
END_TEST

START_TEST(arguments_are_checked)
{
	struct moek_router router = { ROUTER, MOEK_SOFTMAX, 4, 2 };
	int32_t ids[2];
	float weights[2];

	ck_assert_int_eq(moek_route(NULL, logits4, 1, ids, weights, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_route(&router, NULL, 1, ids, weights, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_route(&router, logits4, 1, NULL, weights, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_route(&router, logits4, 1, ids, NULL, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_route(&router, NULL, 0, NULL, NULL, NULL), MOEK_OK);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

int main(void)
{
	Suite *suite = suite_create("route");
	TCase *tests = tcase_create("route");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_loop_test(tests, worked_vectors_come_out, 0, COUNT(vectors));
	tcase_add_test(tests, each_token_is_by_itself);
	tcase_add_test(tests, broken_logits_count_as_zero);
	tcase_add_test(tests, infinite_scores_count_as_zero);
	tcase_add_test(tests, nothing_but_nan_is_still_an_answer);
	tcase_add_test(tests, large_logits_do_not_overflow);
	tcase_add_loop_test(tests, a_bad_router_is_refused_by_name, 0,
	                    COUNT(bad_routers));
	tcase_add_test(tests, arguments_are_checked);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
