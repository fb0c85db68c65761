/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/json.h"
#include "core/report.h"
#include "stage.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct stage stage;
static char *text;
static struct moek_json *json;

static void begin(void)
{
	stage_begin(&stage);
	text = NULL;
	json = NULL;
}

static void end(void)
{
	moek_free(text);
	moek_json_free(json);
	stage_end(&stage);
}

/** Both views of the last choice. */
static void report_choice(void)
{
	char *source;

	moek_free(text);
	moek_json_free(json);
	text = moek_choice_report(stage.choice, MOEK_TEXT);
	source = moek_choice_report(stage.choice, MOEK_JSON);
	ck_assert_ptr_nonnull(text);
	ck_assert_ptr_nonnull(source);
	ck_assert_int_eq(
		moek_json_parse(source, strlen(source), "report", &json, &stage.error),
		MOEK_OK);
	moek_free(source);
}

static const char *member(const struct moek_json *object, const char *key)
{
	const char *value = moek_json_string(moek_json_get(object, key), NULL);

	ck_assert_msg(value != NULL, "no %s", key);
	return value;
}

static int64_t number(const struct moek_json *object, const char *key)
{
	int64_t value = -1;

	ck_assert_msg(moek_json_integer(moek_json_get(object, key), &value), "no %s",
	              key);
	return value;
}

#define HAS(part)                                                                      \
	ck_assert_msg(strstr(text, part) != NULL, "'%s' is not in:\n%s", part, text)

static void scene(void)
{
	stage_plugin(&stage, "refuses_with_reason");
	stage_plugin(&stage, "good_host");
	stage_ini(&stage, "[priority]\nnot_here = on\nrefuses_with_reason = on\n"
	                  "good_host = on\n");
	stage_open(&stage);
	ck_assert_int_eq(
		stage_choose(&stage, "prefer good_host.second", "hidden=96,bias=1"),
		MOEK_OK);
	report_choice();
}

START_TEST(people_read_lines_that_are_lined_up)
{
	static const char table[] = "  backend                  state    device ";

	scene();
	HAS("layers.3: good_host.second\n");
	HAS("  request   prefer good_host.second\n");
	HAS("  problem   mxfp4 g32 a16, 8 experts, top 2, hidden 96, intermediate 32, "
	    "silu, "
	    "bf16 to bf16, up to 16 tokens; bias\n");
	HAS("  order     [priority] of /");
	HAS("/moek.ini:3\n");
	HAS(table);
	HAS("\n  good_host.second         chosen   host ");
	HAS("\n  not_here                 missing  ");
	HAS(" hidden 96      a multiple of 64  moek.ini:5\n");
	ck_assert_ptr_null(strstr(text, " \n")); /* no blanks at the end of a line */
}
END_TEST

START_TEST(programs_read_numbers)
{
	const struct moek_json *candidates, *candidate, *verdict, *problem;
	int64_t accepted = 0;

	scene();
	ck_assert_str_eq(member(json, "winner"), "good_host.second");
	ck_assert_str_eq(member(json, "label"), "layers.3");
	problem = moek_json_get(json, "problem");
	ck_assert_int_eq(number(problem, "hidden"), 96);
	ck_assert_str_eq(member(problem, "weight"), "mxfp4");
	ck_assert_str_eq(
		moek_json_string(
			moek_json_at(moek_json_get(problem, "must_understand"), 0),
			NULL),
		"bias");
	candidates = moek_json_get(json, "candidates");
	ck_assert_uint_eq(moek_json_count(candidates), 4);
	candidate = moek_json_at(candidates, 2);
	ck_assert_str_eq(member(candidate, "name"), "refuses_with_reason.any");
	ck_assert_str_eq(member(candidate, "state"), "refused");
	ck_assert_str_eq(member(candidate, "class"), "native");
	ck_assert_int_eq(number(candidate, "rank"), 3);
	verdict = moek_json_get(candidate, "verdict");
	ck_assert_str_eq(member(verdict, "rule"), "hidden");
	ck_assert_int_eq(number(verdict, "number"), MOEK_RULE_HIDDEN);
	ck_assert_int_eq(number(verdict, "found"), 96);
	ck_assert_str_eq(member(verdict, "accepts"), "multiple");
	moek_json_integer(moek_json_at(moek_json_get(verdict, "accepted"), 0),
	                  &accepted);
	ck_assert_int_eq(accepted, 64);
	ck_assert_str_eq(member(moek_json_get(json, "device"), "kind"), "host");
	ck_assert_str_eq(member(moek_json_get(json, "numerics"), "accumulator"),
	                 "fp32");
}
END_TEST

/* Text is made from the object, so it cannot say what JSON does not. */
START_TEST(every_word_of_the_table_is_in_the_json)
{
	const struct moek_json *candidates;
	static const char *const keys[] = { "name", "state", "source" };

	scene();
	candidates = moek_json_get(json, "candidates");
	for (size_t i = 0; i < moek_json_count(candidates); i++)
		for (size_t k = 0; k < 3; k++)
			HAS(member(moek_json_at(candidates, i), keys[k]));
}
END_TEST

START_TEST(a_refusal_lists_the_folders)
{
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_REFUSED);
	report_choice();
	HAS("layers.3: no backend\n");
	HAS("  order     by name: no [priority] is in force\n");
	HAS("/plugins: 0 plugins\n");
	ck_assert_ptr_null(moek_json_get(json, "winner"));
}
END_TEST

START_TEST(a_degraded_choice_says_so_in_its_first_line)
{
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\nnot_here = on\nlast_resort = on\n");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, "prefer not_here", NULL), MOEK_OK);
	report_choice();
	HAS("layers.3: last_resort.any, degraded, none of those preferred\n");
}
END_TEST

START_TEST(the_registry_tells_what_is_installed)
{
	char *source;
	const struct moek_json *backends;

	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "null_slot");
	stage_plugin(&stage, "fake_gpu");
	stage_file(&stage, "facts", "arch=fake_b\nname=Fake B\nbus=3\n");
	stage_ini(&stage, "[priority]\nnot_here = on\ngood_host.second = off\n");
	{
		char facts[600];
		const struct moek_setting setting = { "plugin fake_gpu", "facts",
			                              facts };

		snprintf(facts, sizeof(facts), "%s/facts", stage.folder);
		stage.options.settings = &setting;
		stage.options.setting_count = 1;
		stage_open(&stage);
	}
	text = moek_registry_report(stage.registry, MOEK_TEXT);
	HAS("moek 0.");
	HAS("\n  device    hip fake_b, Fake B\n");
	HAS("\n  not_here          missing ");
	HAS("\n  good_host.first   ready ");
	HAS("\n  good_host.second  disabled ");
	HAS("\n  fake_gpu.any      unusable ");
	HAS("\n  null_slot         broken ");
	HAS("forward of experts table 0 is NULL");

	source = moek_registry_report(stage.registry, MOEK_JSON);
	ck_assert_int_eq(
		moek_json_parse(source, strlen(source), "report", &json, &stage.error),
		MOEK_OK);
	backends = moek_json_get(json, "backends");
	ck_assert_uint_eq(moek_json_count(backends), 5);
	ck_assert_str_eq(member(moek_json_at(backends, 0), "name"), "not_here");

	/* what one machine reports is a facts file for another */
	stage_file(&stage, "report.json", source);
	moek_free(source);
	{
		char path[600];

		snprintf(path, sizeof(path), "%s/report.json", stage.folder);
		stage.options.facts_file = path;
		stage.options.setting_count = 0;
		stage_open(&stage);
		ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
		ck_assert_str_eq(stage_state(&stage, "fake_gpu.any"),
		                 "unusable: device fake_b, accepts fake_a");
		moek_free(text);
		text = moek_choice_report(stage.choice, MOEK_TEXT);
		HAS("report.json, not this machine\n");
	}
}
END_TEST

START_TEST(the_configuration_reads_back_to_the_same)
{
	static const struct moek_setting setting = { "registry", "unlisted", "ignore" };
	char *again;

	stage.options.settings = &setting;
	stage.options.setting_count = 1;
	stage_ini(&stage, "unlisted = error\n[priority]\na = on\nb = off\n"
	                  "[plugin a]\nword = some thing\n");
	stage_open(&stage);
	text = moek_registry_config(stage.registry, MOEK_TEXT);
	HAS("# read /");
	HAS("# built-in: unlisted = append, overridden by api\n");
	HAS("moek.ini:3: unlisted = error, overridden by api\n");
	HAS("# api\nunlisted = ignore\n");
	HAS("[plugin a]\n# /");
	HAS("word = some thing\n");

	stage_file(&stage, "moek.ini", text);
	stage.options.setting_count = 0;
	stage.options.threads = 0;
	stage_open(&stage);
	again = moek_registry_config(stage.registry, MOEK_TEXT);
	moek_free(text);
	text = again;
	HAS("\nunlisted = ignore\n");
	HAS("\nb = off\n");
	HAS("\nthreads = 1\n");

	again = moek_registry_config(stage.registry, MOEK_JSON);
	ck_assert_int_eq(
		moek_json_parse(again, strlen(again), "config", &json, &stage.error),
		MOEK_OK);
	ck_assert_uint_gt(moek_json_count(moek_json_get(json, "settings")), 8);
	moek_free(again);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("report");
	TCase *tests = tcase_create("report");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, people_read_lines_that_are_lined_up);
	tcase_add_test(tests, programs_read_numbers);
	tcase_add_test(tests, every_word_of_the_table_is_in_the_json);
	tcase_add_test(tests, a_refusal_lists_the_folders);
	tcase_add_test(tests, a_degraded_choice_says_so_in_its_first_line);
	tcase_add_test(tests, the_registry_tells_what_is_installed);
	tcase_add_test(tests, the_configuration_reads_back_to_the_same);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
