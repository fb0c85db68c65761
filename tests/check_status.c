/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/status.h"
#include "core/nearest.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct moek_verdict verdict;
static char found[MOEK_VERDICT_TEXT], accepted[MOEK_VERDICT_TEXT];

static void tell(const struct moek_device *device)
{
	moek_verdict_found(&verdict, device, found, sizeof(found));
	moek_verdict_accepted(&verdict, accepted, sizeof(accepted));
}

static void begin(void)
{
	memset(&verdict, 0, sizeof(verdict));
	verdict.struct_size = MOEK_VERDICT_SIZE_1_0;
}

START_TEST(an_error_carries_status_rule_and_text)
{
	struct moek_error error;

	memset(&error, 0xff, sizeof(error));
	ck_assert_int_eq(
		moek_fail(&error, MOEK_BAD_FILE, MOEK_RULE_HIDDEN, "%s has %d", "a", 3),
		MOEK_BAD_FILE);
	ck_assert_int_eq(error.status, MOEK_BAD_FILE);
	ck_assert_uint_eq(error.rule, MOEK_RULE_HIDDEN);
	ck_assert_uint_eq(error.reserved, 0);
	ck_assert_uint_eq(error.struct_size, sizeof(error));
	ck_assert_str_eq(error.text, "a has 3");
	ck_assert_int_eq(moek_fail(NULL, MOEK_BUSY, 0, "unheard"), MOEK_BUSY);
	ck_assert_int_eq(moek_fail_memory(&error, "index"), MOEK_NO_MEMORY);
	ck_assert_str_eq(error.text, "out of memory for the index");
}
END_TEST

START_TEST(a_long_text_is_cut_and_ended)
{
	struct moek_error error;
	char text[5000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	moek_fail(&error, MOEK_BAD_FILE, 0, "%s", text);
	ck_assert_uint_eq(strlen(error.text), sizeof(error.text) - 1);
}
END_TEST

START_TEST(every_number_has_a_name_of_its_own)
{
	static const uint32_t types[] = { MOEK_F32,   MOEK_F16, MOEK_BF16, MOEK_F8_E4M3,
		                          MOEK_E8M0,  MOEK_U8,  MOEK_I32,  MOEK_INT4,
		                          MOEK_MXFP4, MOEK_INT8 };
	static const int32_t statuses[] = { MOEK_OK,         MOEK_BAD_ARGUMENT,
		                            MOEK_BUSY,       MOEK_REFUSED,
		                            MOEK_BAD_CONFIG, MOEK_BAD_FILE,
		                            MOEK_NO_MEMORY,  MOEK_DEVICE,
		                            MOEK_PLUGIN };
	uint32_t activations;

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		ck_assert_uint_eq(moek_type_parse(moek_type_name(types[i])), types[i]);
	for (uint32_t i = MOEK_SILU; i <= MOEK_SITU; i++)
		ck_assert_uint_eq(moek_activation_parse(moek_activation_name(i)), i);
	for (uint32_t i = MOEK_A16; i <= MOEK_A4_MXFP4_ROUND_UP; i++) {
		ck_assert_int_eq(
			moek_activations_parse(moek_activations_name(i), &activations),
			1);
		ck_assert_uint_eq(activations, i);
	}
	for (uint32_t i = MOEK_STATE_CHOSEN; i <= MOEK_STATE_NOT_PLUGIN; i++)
		for (uint32_t j = MOEK_STATE_CHOSEN; j < i; j++)
			ck_assert_str_ne(moek_state_name(i), moek_state_name(j));
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
		ck_assert_str_ne(moek_status_name(statuses[i]), "?");
	for (uint32_t bit = 0; bit < 13; bit++)
		ck_assert_ptr_nonnull(moek_bit_name(bit));
	ck_assert_ptr_null(moek_bit_name(13));
	ck_assert_str_eq(moek_type_name(99), "?");
	ck_assert_str_eq(moek_status_name(99), "?");
	ck_assert_str_eq(moek_state_name(0), "?");
	ck_assert_uint_eq(moek_type_parse("?"), 0);
	ck_assert_int_eq(moek_activations_parse("", &activations), 0);
}
END_TEST

START_TEST(every_rule_of_the_header_has_a_name)
{
	char path[1024], line[256];
	unsigned rules = 0, number;
	FILE *header;

	snprintf(path, sizeof(path), "%s/../include/moek/problem.h",
	         getenv("MOEK_TEST_SOURCE"));
	header = fopen(path, "r");
	ck_assert_ptr_nonnull(header);
	while (fgets(line, sizeof(line), header) != NULL) {
		if (sscanf(line, " MOEK_RULE_%*[A-Z0-9_] = %u", &number) != 1 ||
		    number == 0)
			continue;
		rules++;
		ck_assert_msg(strcmp(moek_rule_name(number), "?") != 0, "%s", line);
	}
	fclose(header);
	ck_assert_uint_gt(rules, 50);
	ck_assert_str_eq(moek_rule_name(999), "?");
}
END_TEST

START_TEST(a_verdict_is_told_in_the_terms_of_its_rule)
{
	const uint64_t groups[] = { 32, 64, 128 }, types[] = { MOEK_INT4, MOEK_MXFP4 };
	const struct moek_device device = { .arch = "gfx1030" };

	moek_refuse_multiple(&verdict, MOEK_RULE_HIDDEN, 100, 64);
	tell(NULL);
	ck_assert_str_eq(found, "hidden 100");
	ck_assert_str_eq(accepted, "a multiple of 64");

	moek_refuse_values(&verdict, MOEK_RULE_GROUP_SIZE, 48, groups, 3);
	verdict.projection = MOEK_DOWN;
	tell(NULL);
	ck_assert_str_eq(found, "down group_size 48");
	ck_assert_str_eq(accepted, "32, 64 or 128");
	verdict.projection = 0;

	moek_refuse_values(&verdict, MOEK_RULE_WEIGHT, MOEK_BF16, types, 2);
	tell(NULL);
	ck_assert_str_eq(found, "weight bf16");
	ck_assert_str_eq(accepted, "int4 or mxfp4");

	moek_refuse_above(&verdict, MOEK_RULE_TOP_K, 9, 8);
	tell(NULL);
	ck_assert_str_eq(found, "top_k 9");
	ck_assert_str_eq(accepted, "at most 8");

	moek_refuse(&verdict, MOEK_RULE_UNKNOWN_BIT, 2);
	tell(NULL);
	ck_assert_str_eq(found, "does not understand bias");
	ck_assert_str_eq(accepted, "");

	moek_refuse(&verdict, MOEK_RULE_ZERO_POINTS, 1);
	tell(NULL);
	ck_assert_str_eq(found, "zero_points yes");

	moek_refuse(&verdict, MOEK_RULE_DEVICE_ARCH, 0);
	moek_refuse_note(&verdict, "gfx1100, gfx1101");
	tell(&device);
	ck_assert_str_eq(found, "device gfx1030");
	ck_assert_str_eq(accepted, "gfx1100, gfx1101");

	moek_refuse(&verdict, MOEK_RULE_ISA, 0);
	moek_refuse_note(&verdict, "avx512f is missing");
	tell(NULL);
	ck_assert_str_eq(found, "avx512f is missing");
	ck_assert_str_eq(accepted, "");

	moek_refuse(&verdict, MOEK_RULE_NONE, 0);
	verdict.note[0] = '\0';
	tell(NULL);
	ck_assert_str_eq(found, "");
}
END_TEST

START_TEST(a_number_from_the_future_is_told_as_a_number)
{
	verdict.rule = 899;
	verdict.found = 7;
	verdict.accepts = MOEK_ACCEPTS_AT_LEAST;
	verdict.accepted[0] = 12;
	tell(NULL);
	ck_assert_str_eq(found, "rule 899, 7");
	ck_assert_str_eq(accepted, "at least 12");
	moek_refuse(&verdict, MOEK_RULE_WEIGHT, 77);
	tell(NULL);
	ck_assert_str_eq(found, "weight 77");
	verdict.accepts = 99;
	verdict.count = UINT32_MAX;
	tell(NULL);
	ck_assert_str_eq(accepted, "");
	verdict.accepts = MOEK_ACCEPTS_VALUES;
	tell(NULL); /* at most six are looked at */
}
END_TEST

START_TEST(sizes_that_do_not_fit_are_told)
{
	int overflow = 0;

	ck_assert_uint_eq(
		moek_multiply(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &overflow),
		UINT64_C(0xffffffff00000000));
	ck_assert_uint_eq(moek_add(UINT64_MAX - 1, 1, &overflow), UINT64_MAX);
	ck_assert_int_eq(overflow, 0);
	ck_assert_uint_eq(
		moek_multiply(UINT64_C(1) << 32, UINT64_C(1) << 32, &overflow), 0);
	ck_assert_int_eq(overflow, 1);
	overflow = 0;
	ck_assert_uint_eq(moek_add(UINT64_MAX, 1, &overflow), 0);
	ck_assert_int_eq(overflow, 1);
	moek_add(1, 1, &overflow);
	ck_assert_int_eq(overflow, 1); /* never cleared */
	ck_assert_uint_eq(moek_type_bytes(MOEK_F32), 4);
	ck_assert_uint_eq(moek_type_bytes(MOEK_BF16), 2);
	ck_assert_uint_eq(moek_type_bytes(MOEK_E8M0), 1);
	ck_assert_uint_eq(moek_type_bytes(MOEK_INT4), 0);
}
END_TEST

START_TEST(the_nearest_name_is_near)
{
	static const char *const names[] = { "emulation", "cpu", "rdna3", "priority" };
	char longer[200];

	ck_assert_str_eq(moek_nearest("emulaton", names, 4), "emulation");
	ck_assert_str_eq(moek_nearest("priorities", names, 4), "priority");
	ck_assert_str_eq(moek_nearest("cpus", names, 4), "cpu");
	ck_assert_str_eq(moek_nearest("cpu", names, 4), "cpu");
	ck_assert_ptr_null(moek_nearest("something", names, 4));
	ck_assert_ptr_null(moek_nearest("", names, 4));
	ck_assert_ptr_null(moek_nearest("cpu", names, 0));
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	ck_assert_ptr_null(moek_nearest(longer, names, 4));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("status");
	TCase *tests = tcase_create("status");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, NULL);
	tcase_add_test(tests, an_error_carries_status_rule_and_text);
	tcase_add_test(tests, a_long_text_is_cut_and_ended);
	tcase_add_test(tests, every_number_has_a_name_of_its_own);
	tcase_add_test(tests, every_rule_of_the_header_has_a_name);
	tcase_add_test(tests, a_verdict_is_told_in_the_terms_of_its_rule);
	tcase_add_test(tests, a_number_from_the_future_is_told_as_a_number);
	tcase_add_test(tests, sizes_that_do_not_fit_are_told);
	tcase_add_test(tests, the_nearest_name_is_near);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
