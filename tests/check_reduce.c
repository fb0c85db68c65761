/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/reduce.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#include "core/threads.h"

static struct moek_threads *threads;

static const struct moek_workers *workers(uint32_t count)
{
	ck_assert_int_eq(moek_threads_create(count, &threads, NULL), MOEK_OK);
	return moek_threads_workers(threads);
}

START_TEST(slots_are_weighed_and_summed)
{
	const float slots[4 * 2] = { 1, 2, 10, 20, 3, -4, 100, 200 };
	const float weights[4] = { 0.75f, 0.25f, 2, 0.5f };
	const int32_t ids[4] = { 0, 1, 1, 0 };
	float output[4] = { NAN, NAN, NAN, NAN };
	struct moek_reduction r = {
		slots, ids, weights, 2, { output, 2, 2, 0, MOEK_F32, 0 }
	};

	moek_reduce(workers(2), &r);
	ck_assert(output[0] == 0.75f + 2.5f && output[1] == 1.5f + 5);
	ck_assert(output[2] == 6 + 50 && output[3] == -8 + 100);
	moek_threads_destroy(threads);
}
END_TEST

START_TEST(without_weights_slots_are_just_summed)
{
	const float slots[4] = { 1, 2, 10, 20 };
	const int32_t ids[2] = { 0, 1 };
	float output[2];
	struct moek_reduction r = {
		slots, ids, NULL, 2, { output, 1, 2, 0, MOEK_F32, 0 }
	};

	moek_reduce(workers(1), &r);
	ck_assert(output[0] == 11 && output[1] == 22);
	moek_threads_destroy(threads);
}
END_TEST

START_TEST(what_is_not_routed_is_not_read)
{
	/* NaN rows stand where nothing is routed; a weight of 0 is a weight like any
	 * other */
	const float slots[6] = { NAN, 5, NAN, NAN, NAN, 7 };
	const float weights[6] = { NAN, 2, NAN, NAN, NAN, 0 };
	const int32_t ids[6] = { -1, 0, -1, -1, -1, 3 };
	float output[3] = { NAN, NAN, NAN };
	struct moek_reduction r = {
		slots, ids, weights, 2, { output, 3, 1, 0, MOEK_F32, 0 }
	};

	moek_reduce(workers(2), &r);
	ck_assert(output[0] == 10);
	ck_assert_uint_eq(moek_f32_bits(output[1]), 0);
	ck_assert_uint_eq(moek_f32_bits(output[2]), 0);
	moek_threads_destroy(threads);
}
END_TEST

START_TEST(the_order_of_slots_is_the_order_of_sums)
{
	/* (2^24 + 1) + 1 loses both ones, any other order does not */
	const float slots[3] = { 16777216, 1, 1 };
	const int32_t ids[3] = { 0, 1, 2 };
	float output[1];
	struct moek_reduction r = {
		slots, ids, NULL, 3, { output, 1, 1, 0, MOEK_F32, 0 }
	};

	moek_reduce(workers(1), &r);
	ck_assert(output[0] == 16777216);
	moek_threads_destroy(threads);
}
END_TEST

START_TEST(rounds_once_to_the_output_type)
{
	/* in bf16, 1 + 2^-9 is 1 but 1 + 2^-9 + 2^-9 is not: rounding each sum would
	 * lose it */
	const float slots[6] = {
		1, 1, 0.001953125f, 0.00048828125f, 0.001953125f, 0.00048828125f
	};
	const int32_t ids[3] = { 0, 1, 2 };
	const uint32_t types[2] = { MOEK_BF16, MOEK_F16 };
	uint16_t output[2];

	for (int i = 0; i < 2; i++) {
		struct moek_reduction r = {
			slots, ids, NULL, 3, { output, 1, 2, 0, types[i], 0 }
		};
		float first = 1.00390625f, second = 1.0009765625f;

		moek_reduce(workers(1), &r);
		ck_assert_uint_eq(output[0], i == 0 ? moek_bf16_from_f32(first)
		                                    : moek_f16_from_f32(first));
		ck_assert_uint_eq(output[1], i == 0 ? moek_bf16_from_f32(second)
		                                    : moek_f16_from_f32(second));
		moek_threads_destroy(threads);
	}
}
END_TEST

START_TEST(rows_may_stand_apart)
{
	const float slots[4] = { 1, 2, 3, 4 };
	const int32_t ids[2] = { 0, 0 };
	float output[6] = { 9, 9, 9, 9, 9, 9 };
	struct moek_reduction r = {
		slots, ids, NULL, 1, { output, 2, 2, 3, MOEK_F32, 0 }
	};
	const float expected[6] = { 1, 2, 9, 3, 4, 9 };

	moek_reduce(workers(2), &r);
	ck_assert_mem_eq(output, expected, sizeof(output));
	moek_threads_destroy(threads);
}
END_TEST

#define TOKENS 5
#define COLUMNS 2500 /* two whole blocks and a part */
#define TOP_K 3

START_TEST(any_number_of_workers_gives_the_same_bits)
{
	float *slots = malloc(TOKENS * TOP_K * COLUMNS * sizeof(float));
	float *output = malloc(4 * TOKENS * COLUMNS * sizeof(float));
	float weights[TOKENS * TOP_K];
	int32_t ids[TOKENS * TOP_K];

	for (int i = 0; i < TOKENS * TOP_K * COLUMNS; i++)
		slots[i] = (float)sin(i) * (float)(1 + i % 17);
	for (int i = 0; i < TOKENS * TOP_K; i++) {
		weights[i] = (float)cos(i);
		ids[i] = i % 5 == 0 ? -1 : i;
	}
	for (uint32_t count = 1; count <= 4; count++) {
		float *mine = output + (count - 1) * TOKENS * COLUMNS;
		struct moek_reduction r = { slots,
			                    ids,
			                    weights,
			                    TOP_K,
			                    { mine, TOKENS, COLUMNS, 0, MOEK_F32, 0 } };

		memset(mine, 0xff, TOKENS * COLUMNS * sizeof(float));
		moek_reduce(workers(count), &r);
		moek_threads_destroy(threads);
		ck_assert_mem_eq(mine, output, TOKENS * COLUMNS * sizeof(float));
	}
	for (int t = 0; t < TOKENS; t++) {
		float sum = 0;
		int c = COLUMNS - 1;

		for (int j = 0; j < TOP_K; j++)
			if (ids[t * TOP_K + j] >= 0) {
				float product = weights[t * TOP_K + j] *
				                slots[(t * TOP_K + j) * COLUMNS + c];

				sum += product;
			}
		ck_assert(output[t * COLUMNS + c] == sum);
	}
	free(output);
	free(slots);
}
END_TEST

START_TEST(rows_convert_both_ways)
{
	const float values[3] = { 1.5f, -0.25f, 448 };
	const uint32_t types[3] = { MOEK_F32, MOEK_BF16, MOEK_F16 };
	uint32_t row[3];
	float back[3];

	for (int i = 0; i < 3; i++) {
		moek_row_from_f32(types[i], values, 3, row);
		moek_row_to_f32(types[i], row, 3, back);
		ck_assert_mem_eq(back, values, sizeof(back));
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("reduce");
	TCase *tests = tcase_create("reduce");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, slots_are_weighed_and_summed);
	tcase_add_test(tests, without_weights_slots_are_just_summed);
	tcase_add_test(tests, what_is_not_routed_is_not_read);
	tcase_add_test(tests, the_order_of_slots_is_the_order_of_sums);
	tcase_add_test(tests, rounds_once_to_the_output_type);
	tcase_add_test(tests, rows_may_stand_apart);
	tcase_add_test(tests, any_number_of_workers_gives_the_same_bits);
	tcase_add_test(tests, rows_convert_both_ways);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
