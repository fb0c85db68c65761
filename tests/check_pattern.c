/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/pattern.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *pattern, *text;
	int fits;
} cases[] = {
	{ "lm_head", "lm_head", 1 },
	{ "lm_head", "lm_head.weight", 1 }, /* the beginning is enough */
	{ "head", "lm_head", 0 },           /* but it is the beginning */
	{ ".*head", "lm_head", 1 },
	{ ".*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$",
	  "model.layers.1.mlp.experts.12.up_proj", 1 },
	{ ".*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$",
	  "model.layers.1.mlp.experts.d.up_proj", 0 },
	{ ".*\\.experts\\.\\d+\\.up_proj$", "a.experts.1.up_proj.bias", 0 },
	{ "a|b", "bc", 1 }, /* the anchor holds for both */
	{ "a|b", "cb", 0 },
	{ "model\\.layers\\.(?:0|1)\\.", "model.layers.1.mlp", 1 },
	{ "[0-9\\.x]+$", "1.x", 1 },
	{ "[]x]+$", "]x", 1 },
	{ "[](?]+$", "](?", 1 },
	{ "[^](?]+$", "ab", 1 },
	{ "[^.]+\\.\\w+$", "ab.c_9", 1 },
	{ "\\S+ \\D$", "ab x", 1 },
	{ "\\S+ \\D$", "ab 1", 0 },
	{ "x{2,3}$", "xxx", 1 },
	{ "x{2,3}$", "x", 0 },
	{ "a\\.b", "axb", 0 },
};

START_TEST(fits_as_re_match_does)
{
	struct moek_error error = { .text = "" };
	int fits = -1;

	ck_assert_msg(moek_pattern_fits(cases[_i].pattern, cases[_i].text, "here",
	                                &fits, &error) == MOEK_OK,
	              "%s", error.text);
	ck_assert_msg(fits == cases[_i].fits, "%s on %s: %d", cases[_i].pattern,
	              cases[_i].text, fits);
}
END_TEST

static const char *const refused[] = { "(?!mlp).*", "(?=a)",   "(?P<name>a)", "a*?b",
	                               "a+?",       "(a)\\1",  "\\bgate",     "a(",
	                               "[a",        "[\\]a]+", "[\\d]+" };

START_TEST(refuses_what_posix_has_not)
{
	struct moek_error error = { .text = "" };
	int fits = 7;

	ck_assert_int_eq(
		moek_pattern_fits(refused[_i], "abc", "config.json", &fits, &error),
		MOEK_REFUSED);
	ck_assert_int_eq(fits, 7);
	ck_assert_ptr_nonnull(strstr(error.text, "config.json: pattern"));
	ck_assert_ptr_nonnull(strstr(error.text, refused[_i]));
}
END_TEST

START_TEST(refuses_a_pattern_of_any_length)
{
	struct moek_error error = { .text = "" };
	char pattern[2000];
	int fits;

	memset(pattern, 'a', sizeof(pattern) - 1);
	for (size_t length = 480; length < 600; length++) {
		int32_t status;

		pattern[length] = '\0';
		status = moek_pattern_fits(pattern, "a", "here", &fits, &error);
		ck_assert(length < 490 ? status == MOEK_OK
		                       : length < 510 || status == MOEK_REFUSED);
		pattern[length] = 'a';
	}
	/* a class is longer there than here */
	for (size_t length = 470; length < 515; length++) {
		memset(pattern, 'a', length);
		strcpy(pattern + length, "\\W");
		moek_pattern_fits(pattern, "a", "here", &fits, &error);
	}
}
END_TEST

START_TEST(globs_fit_the_whole)
{
	ck_assert_int_eq(moek_glob_fits("*.mlp.gate", "model.layers.0.mlp.gate"), 1);
	ck_assert_int_eq(moek_glob_fits("*.mlp.gate", "model.layers.0.mlp.gate_proj"),
	                 0);
	ck_assert_int_eq(moek_glob_fits("*experts*", "mlp.experts.0.up_proj"), 1);
	ck_assert_int_eq(moek_glob_fits("experts", "mlp.experts"), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pattern");
	TCase *tests = tcase_create("pattern");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_loop_test(tests, fits_as_re_match_does, 0,
	                    (int)(sizeof(cases) / sizeof(cases[0])));
	tcase_add_loop_test(tests, refuses_what_posix_has_not, 0,
	                    (int)(sizeof(refused) / sizeof(refused[0])));
	tcase_add_test(tests, refuses_a_pattern_of_any_length);
	tcase_add_test(tests, globs_fit_the_whole);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
