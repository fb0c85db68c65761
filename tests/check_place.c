/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <moek/moek.h>

#define MOST 4096 /* ranks * experts */

static struct moek_error error;
static uint8_t placement[MOST];
static double shares[64];

static struct moek_placing placing_of(uint64_t experts, uint64_t ranks)
{
	return (struct moek_placing){ .struct_size = MOEK_INIT(PLACING),
		                      .experts = experts,
		                      .ranks = ranks };
}

static void place(const struct moek_placing *placing)
{
	ck_assert_msg(moek_place(placing, placement, shares, &error) == MOEK_OK, "%s",
	              error.text);
}

static uint64_t holders(const struct moek_placing *p, uint64_t expert)
{
	uint64_t count = 0;

	for (uint64_t r = 0; r < p->ranks; r++)
		count += placement[r * p->experts + expert];
	return count;
}

static uint64_t held(const struct moek_placing *p, uint64_t rank)
{
	uint64_t count = 0;

	for (uint64_t e = 0; e < p->experts; e++)
		count += placement[rank * p->experts + e];
	return count;
}

START_TEST(the_first_ranks_hold_what_is_left_over)
{
	struct moek_placing p = placing_of(10, 4);
	static const uint8_t adjacent[] = "1110000000"
					  "0001110000"
					  "0000001100"
					  "0000000011";
	static const uint8_t strided[] = "1000100010"
					 "0100010001"
					 "0010001000"
					 "0001000100";

	place(&p);
	for (size_t i = 0; i < 40; i++)
		ck_assert_uint_eq(placement[i], adjacent[i] - '0');
	ck_assert_double_eq_tol(shares[0], 0.3, 1e-12);
	ck_assert_double_eq_tol(shares[3], 0.2, 1e-12);
	p.strided = 1;
	place(&p);
	for (size_t i = 0; i < 40; i++)
		ck_assert_uint_eq(placement[i], strided[i] - '0');
}
END_TEST

START_TEST(more_ranks_than_experts_leave_ranks_empty)
{
	struct moek_placing p = placing_of(3, 5);

	place(&p);
	for (uint64_t r = 0; r < 5; r++)
		ck_assert_uint_eq(held(&p, r), r < 3);
}
END_TEST

START_TEST(loads_are_balanced)
{
	static const double loads[8] = { 8, 7, 6, 5, 4, 3, 2, 1 };
	struct moek_placing p = placing_of(8, 4);

	p.most = 2;
	p.loads = loads;
	place(&p);
	for (uint64_t r = 0; r < 4; r++) {
		ck_assert_uint_eq(held(&p, r), 2);
		ck_assert_double_eq_tol(shares[r], 0.25, 1e-12);
	}
}
END_TEST

START_TEST(the_hottest_experts_get_replicas)
{
	static const double loads[6] = { 1, 1, 60, 1, 20, 1 };
	struct moek_placing p = placing_of(6, 4);

	p.most = 3;
	p.loads = loads;
	place(&p);
	ck_assert_uint_eq(holders(&p, 2), 4);
	ck_assert_uint_ge(holders(&p, 4), 2);
	for (uint64_t r = 0; r < 4; r++) {
		ck_assert_uint_le(held(&p, r), 3);
		ck_assert_double_lt(shares[r], 0.3);
	}
}
END_TEST

START_TEST(every_expert_is_held_and_no_rank_overfull)
{
	uint64_t ranks = (uint64_t)_i % 13 + 1, experts = (uint64_t)(_i * 7) % 60 + 1;
	struct moek_placing p = placing_of(experts, ranks);
	double loads[64], sum = 0;

	for (uint64_t e = 0; e < experts; e++)
		loads[e] = (double)((e * 2654435761u + (uint64_t)_i) % 17 % 5 *
		                    (e % 3));
	p.loads = loads;
	for (uint64_t more = 0; more < 4; more++) {
		p.most = (experts - 1) / ranks + 1 + more;
		place(&p);
		for (uint64_t e = 0; e < experts; e++)
			ck_assert_uint_ge(holders(&p, e), 1);
		sum = 0;
		for (uint64_t r = 0; r < ranks; r++) {
			ck_assert_uint_le(held(&p, r), p.most);
			sum += shares[r];
		}
		ck_assert(sum == 0 || fabs(sum - 1) < 1e-9);
	}
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
	double loads[4] = { 1, 1, NAN, 1 };
	struct moek_placing p = placing_of(4, 2);

	p.most = 1;
	p.loads = loads;
	ck_assert_int_eq(moek_place(&p, placement, NULL, &error), MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(error.text, "4 experts do not fit 2 ranks of 1"));
	p.most = 2;
	ck_assert_int_eq(moek_place(&p, placement, NULL, &error), MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(error.text, "expert 2 is nan"));
	loads[2] = -1;
	ck_assert_int_eq(moek_place(&p, placement, NULL, &error), MOEK_BAD_ARGUMENT);
	p.loads = NULL;
	ck_assert_int_eq(moek_place(&p, placement, NULL, &error), MOEK_BAD_ARGUMENT);
	p = placing_of(4, 0);
	ck_assert_int_eq(moek_place(&p, placement, NULL, &error), MOEK_BAD_ARGUMENT);
	p = placing_of(4, 2);
	ck_assert_int_eq(moek_place(&p, NULL, NULL, &error), MOEK_BAD_ARGUMENT);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("place");
	TCase *tests = tcase_create("place");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, the_first_ranks_hold_what_is_left_over);
	tcase_add_test(tests, more_ranks_than_experts_leave_ranks_empty);
	tcase_add_test(tests, loads_are_balanced);
	tcase_add_test(tests, the_hottest_experts_get_replicas);
	tcase_add_loop_test(tests, every_expert_is_held_and_no_rank_overfull, 0, 60);
	tcase_add_test(tests, what_cannot_be_is_refused);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
