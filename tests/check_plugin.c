/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/log.h"
#include "core/plugin.h"
#include "core/settings.h"
#include "core/status.h"
#include "stage.h"

#include <check.h>
#include <fenv.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct stage stage;
static struct moek_settings *settings;
static struct moek_loaded *loaded;
static struct moek_cause cause;
static struct moek_log logger;

static void begin(void)
{
	stage_begin(&stage);
	moek_log_init(&logger, stage.options.log, stage.options.log_self);
}

static void end(void)
{
	moek_plugin_unload(loaded);
	moek_settings_close(settings);
	moek_log_end(&logger);
	stage_end(&stage);
}

/** Load @name from the stage, under the settings of "[plugin @name]\n@options". */
static int32_t load(const char *name, const char *options)
{
	struct moek_registry_options registry = { .ignore_environment = 1 };
	struct moek_place place = { .system_file = "/nowhere" };
	char path[1024], text[512], ini[1024];
	struct moek_plugin_request request = { .path = path,
		                               .name = name,
		                               .log = &logger };

	snprintf(text, sizeof(text), "[plugin %s]\n%s\n", name, options);
	stage_ini(&stage, text);
	snprintf(ini, sizeof(ini), "%s/moek.ini", stage.folder);
	registry.config_file = ini;
	moek_plugin_unload(loaded);
	loaded = NULL;
	moek_settings_close(settings);
	ck_assert_msg(moek_settings_open(&registry, &place, &settings, &stage.error) ==
	                      MOEK_OK,
	              "%s", stage.error.text);
	snprintf(path, sizeof(path), "%s/%s.so", stage.plugins, name);
	request.settings = settings;
	memset(&cause, 0, sizeof(cause));
	return moek_plugin_load(&request, &loaded, &cause);
}

static void breaks(const char *name, uint32_t rule, const char *text)
{
	stage_plugin(&stage, name);
	ck_assert_msg(load(name, "") == MOEK_PLUGIN, "%s was loaded", name);
	ck_assert_ptr_null(loaded);
	ck_assert_uint_eq(cause.verdict.rule, rule);
	ck_assert_msg(strstr(cause.text, text) != NULL, "'%s' lacks '%s'", cause.text,
	              text);
}

START_TEST(a_good_plugin_is_copied_and_opened)
{
	stage_plugin(&stage, "good_host");
	ck_assert_msg(load("good_host", "colour = red") == MOEK_OK, "%s", cause.text);
	ck_assert_uint_eq(loaded->experts_count, 2);
	ck_assert_str_eq(loaded->experts[0].name, "first");
	ck_assert_str_eq(loaded->experts[1].name, "second");
	ck_assert(loaded->experts[0].reduce == NULL);
	ck_assert_ptr_nonnull(loaded->handle);
	ck_assert_int_eq(loaded->is_open, 1);
}
END_TEST

START_TEST(a_broken_plugin_is_told_by_its_rule)
{
	breaks("no_symbol", MOEK_RULE_SYMBOL, "");
	breaks("symbol_is_function", MOEK_RULE_SYMBOL, "not a descriptor");
	breaks("undefined_symbol", MOEK_RULE_LOAD,
	       "undefined symbol: fake_nobody_has_this");
	breaks("wrong_name", MOEK_RULE_ABI_NAME,
	       "its name is 'right_name', the file's 'wrong_name'");
	breaks("null_slot", MOEK_RULE_ABI_SLOT, "forward of experts table 0 is NULL");
	breaks("half_a_device", MOEK_RULE_ABI_SLOT, "alloc of the descriptor is NULL");
	breaks("long_descriptor", MOEK_RULE_ABI_TABLE, "claims 4096 bytes");
	breaks("open_fails", MOEK_RULE_OPEN, "open() failed: the moon is full");
}
END_TEST

START_TEST(numbers_of_a_broken_plugin_are_in_the_verdict)
{
	breaks("wrong_major", MOEK_RULE_ABI_MAJOR, "");
	ck_assert_uint_eq(cause.verdict.found, 2);
	ck_assert_uint_eq(cause.verdict.accepts, MOEK_ACCEPTS_VALUES);
	ck_assert_uint_eq(cause.verdict.accepted[0], 1);

	breaks("short_descriptor", MOEK_RULE_ABI_TABLE, "the descriptor has");
	ck_assert_uint_eq(cause.verdict.found, MOEK_PLUGIN_SIZE_1_0 - sizeof(void *));
	ck_assert_uint_eq(cause.verdict.accepts, MOEK_ACCEPTS_AT_LEAST);
	ck_assert_uint_eq(cause.verdict.accepted[0], MOEK_PLUGIN_SIZE_1_0);

	breaks("short_table", MOEK_RULE_ABI_TABLE, "experts table 0 has");
	ck_assert_uint_eq(cause.verdict.accepted[0], MOEK_EXPERTS_SIZE_1_0);
}
END_TEST

START_TEST(a_symbol_of_a_dependency_does_not_count)
{
	/* found through $ORIGIN, beside the plugin */
	stage_plugin(&stage, "good_host");
	breaks("symbol_in_dependency", MOEK_RULE_SYMBOL_FOREIGN, "good_host.so");
}
END_TEST

START_TEST(a_missing_dependency_is_named_by_the_loader)
{
	breaks("symbol_in_dependency", MOEK_RULE_LIBRARY, "good_host.so: cannot open");
}
END_TEST

START_TEST(a_file_that_is_no_library_is_told)
{
	stage_file(&stage, "plugins/text.so", "this is no library");
	ck_assert_int_eq(load("text", ""), MOEK_PLUGIN);
	ck_assert_uint_eq(cause.verdict.rule, MOEK_RULE_LOAD);
	stage_file(&stage, "plugins/empty.so", "");
	ck_assert_int_eq(load("empty", ""), MOEK_PLUGIN);
	ck_assert_int_eq(load("gone", ""), MOEK_PLUGIN);
	ck_assert_uint_eq(cause.verdict.rule, MOEK_RULE_LOAD);
}
END_TEST

START_TEST(what_a_later_version_added_is_not_looked_at)
{
	stage_plugin(&stage, "newer_minor");
	ck_assert_msg(load("newer_minor", "") == MOEK_OK, "%s", cause.text);
	ck_assert_uint_gt(loaded->experts[0].struct_size, sizeof(struct moek_experts));
	ck_assert(loaded->experts[0].reduce == NULL);
	ck_assert(loaded->plugin.list == NULL);
}
END_TEST

START_TEST(an_unknown_option_breaks_the_plugin)
{
	stage_plugin(&stage, "good_host");
	ck_assert_int_eq(load("good_host", "enabled = on\nx-note = 1\ncolour = red"),
	                 MOEK_OK);
	ck_assert_int_eq(load("good_host", "colur = red"), MOEK_PLUGIN);
	ck_assert_uint_eq(cause.verdict.rule, MOEK_RULE_OPTION);
	ck_assert_str_eq(cause.text,
	                 "unknown option 'colur' at moek.ini:4; did you mean "
	                 "'colour'?");
	stage_plugin(&stage, "wrong_name");
	ck_assert_int_eq(load("wrong_name", "colour = red"), MOEK_PLUGIN);
	ck_assert_uint_eq(cause.verdict.rule, MOEK_RULE_ABI_NAME);
}
END_TEST

START_TEST(the_host_table_gives_options_memory_and_log)
{
	stage_plugin(&stage, "talks_at_open");
	ck_assert_msg(load("talks_at_open", "word = hello there\nx-undeclared = 1") ==
	                      MOEK_OK,
	              "%s", cause.text);
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open: hello there"), 1);
	ck_assert_int_eq(load("talks_at_open", ""), MOEK_OK);
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open: no word"), 1);
}
END_TEST

/** Half of the smallest normal number: 0 where small numbers are flushed. */
static float half_of_smallest(void)
{
	volatile float smallest = FLT_MIN, half = 0.5f;

	return smallest * half;
}

START_TEST(a_plugin_that_changes_rounding_leaves_no_trace)
{
	stage_plugin(&stage, "flips_rounding");
	ck_assert_int_eq(fesetround(FE_DOWNWARD), 0);
	ck_assert_int_eq(load("flips_rounding", ""), MOEK_OK);
	ck_assert_int_eq(fegetround(), FE_DOWNWARD);
	ck_assert(half_of_smallest() > 0);
	/* the fake does what it says: its open() by itself leaves the mess */
	ck_assert_int_eq(loaded->plugin.open(&loaded->host, &loaded->handle), MOEK_OK);
	ck_assert_int_eq(fegetround(), FE_UPWARD);
	fesetround(FE_TONEAREST);
}
END_TEST

START_TEST(names_are_short_words)
{
	ck_assert(moek_plugin_name_is_valid("a-b_9"));
	ck_assert(
		moek_plugin_name_is_valid("1234567890123456789012345678901234567890"));
	ck_assert(!moek_plugin_name_is_valid(
		"12345678901234567890123456789012345678901"));
	ck_assert(!moek_plugin_name_is_valid(""));
	ck_assert(!moek_plugin_name_is_valid("A"));
	ck_assert(!moek_plugin_name_is_valid("a.b"));
	ck_assert(!moek_plugin_name_is_valid("../a"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("plugin");
	TCase *tests = tcase_create("plugin");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, a_good_plugin_is_copied_and_opened);
	tcase_add_test(tests, a_broken_plugin_is_told_by_its_rule);
	tcase_add_test(tests, numbers_of_a_broken_plugin_are_in_the_verdict);
	tcase_add_test(tests, a_symbol_of_a_dependency_does_not_count);
	tcase_add_test(tests, a_missing_dependency_is_named_by_the_loader);
	tcase_add_test(tests, a_file_that_is_no_library_is_told);
	tcase_add_test(tests, what_a_later_version_added_is_not_looked_at);
	tcase_add_test(tests, an_unknown_option_breaks_the_plugin);
	tcase_add_test(tests, the_host_table_gives_options_memory_and_log);
	tcase_add_test(tests, a_plugin_that_changes_rounding_leaves_no_trace);
	tcase_add_test(tests, names_are_short_words);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
