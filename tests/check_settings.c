/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/settings.h"
#include "stage.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct stage stage;
static struct moek_settings *settings;
static struct moek_registry_options options;
static struct moek_place place;
static char system_file[1024];

static void begin(void)
{
	stage_begin(&stage);
	snprintf(system_file, sizeof(system_file), "%s/system.ini", stage.folder);
	place = (struct moek_place){ .system_file = system_file };
	memset(&options, 0, sizeof(options));
	settings = NULL;
	setenv("HOME", stage.folder, 1);
}

static void end(void)
{
	moek_settings_close(settings);
	stage_end(&stage);
}

static int32_t try_open(void)
{
	moek_settings_close(settings);
	settings = NULL;
	return moek_settings_open(&options, &place, &settings, &stage.error);
}

static void open_it(void)
{
	ck_assert_msg(try_open() == MOEK_OK, "%s", stage.error.text);
}

/** The user's moek.ini, below HOME. */
static void user_file(const char *text)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/.config", stage.folder);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/.config/moek", stage.folder);
	mkdir(path, 0777);
	stage_file(&stage, ".config/moek/moek.ini", text);
}

#define VALUE(key, expected)                                                           \
	ck_assert_str_eq(moek_settings_value(settings, key), expected)
#define SOURCE(key, expected)                                                          \
	ck_assert_str_eq(                                                              \
		moek_origin_short(                                                     \
			moek_settings_get(settings, "registry", key)->origin),         \
		expected)

START_TEST(without_anything_the_built_in_values_hold)
{
	open_it();
	VALUE("on_degraded", "warn");
	VALUE("unlisted", "append");
	VALUE("checks", "off");
	VALUE("threads", "0");
	SOURCE("threads", "built-in");
	ck_assert_uint_eq(settings->folder_count, 1);
	ck_assert_ptr_null(settings->files[0]);
}
END_TEST

START_TEST(each_level_wins_over_the_one_below)
{
	const struct moek_setting api = { "registry", "on_degraded", "error" };

	stage_file(&stage, "system.ini", "[registry]\nthreads = 2\nchecks = off\n");
	open_it();
	VALUE("threads", "2");
	SOURCE("threads", "system.ini:2");

	user_file("[registry]\n\nthreads = 3\n");
	open_it();
	VALUE("threads", "3");
	SOURCE("threads", "moek.ini:3");
	SOURCE("checks", "system.ini:3");

	setenv("MOEK_THREADS", "4", 1);
	setenv("MOEK_CHECK", "1", 1);
	open_it();
	VALUE("threads", "4");
	SOURCE("threads", "MOEK_THREADS");
	VALUE("checks", "on");

	options.threads = 5;
	options.checks = 2;
	options.settings = &api;
	options.setting_count = 1;
	open_it();
	VALUE("threads", "5");
	SOURCE("threads", "api");
	VALUE("checks", "off");
	VALUE("on_degraded", "error");
}
END_TEST

START_TEST(overridden_values_are_kept_and_marked)
{
	size_t in_force = 0, others = 0;

	stage_file(&stage, "system.ini", "[registry]\nthreads = 2\n");
	options.threads = 5;
	open_it();
	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];

		if (entry->key == NULL || strcmp(entry->key, "threads") != 0)
			continue;
		in_force += entry->in_force != 0;
		others += entry->in_force == 0;
	}
	ck_assert_uint_eq(in_force, 1);
	ck_assert_uint_eq(others, 2);
}
END_TEST

START_TEST(a_priority_section_of_the_user_replaces_the_systems_whole)
{
	stage_file(&stage, "system.ini",
	           "[priority]\na = on\nb = on\n[priority hip]\nc = on\n");
	user_file("[priority]\nb = off\n");
	open_it();
	ck_assert_ptr_null(moek_settings_get(settings, "priority", "a"));
	ck_assert_str_eq(moek_settings_get(settings, "priority", "b")->value, "off");
	ck_assert_ptr_nonnull(moek_settings_get(settings, "priority hip", "c"));
}
END_TEST

START_TEST(one_file_alone_when_it_is_named)
{
	char path[1024];

	stage_file(&stage, "system.ini", "[registry]\nthreads = 2\n");
	stage_file(&stage, "mine.ini", "[registry]\nunlisted = ignore\n");
	snprintf(path, sizeof(path), "%s/mine.ini", stage.folder);
	setenv("MOEK_CONFIG", path, 1);
	open_it();
	VALUE("threads", "0");
	VALUE("unlisted", "ignore");

	options.config_file = system_file;
	open_it();
	VALUE("threads", "2");
	VALUE("unlisted", "append");

	options.config_file = "";
	open_it();
	VALUE("threads", "0");
	VALUE("unlisted", "append");

	options.config_file = "not/here.ini";
	ck_assert_int_eq(try_open(), MOEK_BAD_CONFIG);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "not/here.ini: No such file"));
}
END_TEST

START_TEST(the_environment_can_be_left_out)
{
	setenv("MOEK_THREADS", "4", 1);
	user_file("[registry]\nchecks = on\n");
	open_it();
	VALUE("threads", "4");
	VALUE("checks", "on");
	options.ignore_environment = 1;
	open_it();
	VALUE("threads", "0");
	VALUE("checks", "off");
}
END_TEST

START_TEST(caches_are_where_the_users_variables_say)
{
	char expected[1024];

	unsetenv("XDG_CACHE_HOME");
	setenv("HOME", stage.folder, 1);
	open_it();
	snprintf(expected, sizeof(expected), "%s/.cache/moek", stage.folder);
	VALUE("cache", expected);
	SOURCE("cache", "HOME");
	setenv("XDG_CACHE_HOME", "/elsewhere", 1);
	open_it();
	VALUE("cache", "/elsewhere/moek");
	setenv("XDG_CACHE_HOME", "relative", 1);
	open_it();
	VALUE("cache", expected);
	user_file("[registry]\ncache =\n");
	open_it();
	VALUE("cache", "");
	place.elevated = 1;
	open_it();
	VALUE("cache", "");
	SOURCE("cache", "built-in");
}
END_TEST

START_TEST(elevated_rights_read_no_environment)
{
	setenv("MOEK_THREADS", "not a number", 1);
	setenv("MOEK_CONFIG", "/etc/passwd", 1);
	user_file("[registry]\nchecks = on\n");
	ck_assert_int_eq(try_open(), MOEK_BAD_CONFIG);
	place.elevated = 1;
	open_it();
	VALUE("threads", "0");
	VALUE("checks", "off");
	ck_assert_int_eq(settings->elevated, 1);
}
END_TEST

static const char *plugin_option(const char *key)
{
	const struct moek_entry *entry = moek_settings_plugin(settings, "some", key);

	return entry != NULL ? entry->value : NULL;
}

START_TEST(an_option_of_a_plugin_may_be_a_variable)
{
	static const char text[] = "[plugin some]\nfolder = ${SOME_DIR}\nother = 1\n"
				   "unset = ${SOME_UNSET}\nempty = ${SOME_EMPTY}\n"
				   "plain = $SOME_DIR\npart = ${SOME_DIR}/x\n"
				   "lower = ${some_dir}\nnothing = ${}\n";

	setenv("SOME_DIR", "/opt/some", 1);
	setenv("SOME_EMPTY", "", 1);
	unsetenv("SOME_UNSET");
	user_file(text);
	open_it();
	ck_assert_str_eq(plugin_option("folder"), "/opt/some");
	ck_assert_str_eq(plugin_option("other"), "1");
	/* not given: the plugin's own default */
	ck_assert_ptr_null(plugin_option("unset"));
	ck_assert_ptr_null(plugin_option("empty"));
	/* all of the value or none of it */
	ck_assert_str_eq(plugin_option("plain"), "$SOME_DIR");
	ck_assert_str_eq(plugin_option("part"), "${SOME_DIR}/x");
	ck_assert_str_eq(plugin_option("lower"), "${some_dir}");
	ck_assert_str_eq(plugin_option("nothing"), "${}");
	options.config_file = settings->files[1] != NULL ? strdup(settings->files[1])
	                                                 : NULL;
	options.ignore_environment = 1;
	open_it();
	ck_assert_ptr_null(plugin_option("folder"));
	ck_assert_str_eq(plugin_option("other"), "1");
	options.ignore_environment = 0;
	place.elevated = 1;
	open_it();
	ck_assert_ptr_null(plugin_option("folder"));
	free((char *)(uintptr_t)options.config_file);
}
END_TEST

START_TEST(nothing_else_may_be_a_variable)
{
	setenv("SOME_NUMBER", "4", 1);
	user_file("[registry]\nthreads = ${SOME_NUMBER}\n");
	ck_assert_int_eq(try_open(), MOEK_BAD_CONFIG);
}
END_TEST

static const struct {
	const char *text, *message;
} bad[] = {
	{ "[registri]\n", "1: unknown section [registri]; did you mean 'registry'?" },
	{ "[registry]\nthread = 1\n",
	  "2: unknown key thread in [registry]; did you mean 'threads'?" },
	{ "[registry]\nschema = 2\n", "2: schema = 2: expected 1, the only schema" },
	{ "[registry]\nchecks = 1\n", "2: checks = 1: expected on, off, or some of" },
	{ "[registry]\nchecks = On\n", "2: checks = On: expected on, off, or" },
	{ "[registry]\nchecks = guards,\n", "2: checks = guards,: expected on, off" },
	{ "[registry]\nchecks = guard\n", "2: checks = guard: expected on, off" },
	{ "[registry]\nchecks = guards poison\n", "2: checks = guards poison: exp" },
	{ "[registry]\nchecks = off,guards\n", "2: checks = off,guards: expected" },
	{ "[registry]\nshadow = -1\n", "2: shadow = -1: expected a number" },
	{ "[registry]\nshadow = 1000000000\n", "2: shadow = 1000000000: expected" },
	{ "[registry]\nthreads = -1\n", "2: threads = -1: expected a number" },
	{ "[registry]\nthreads = 4097\n", "2: threads = 4097: expected a number" },
	{ "[registry]\nthreads = 99999999999999999999\n", "2: threads = 9999" },
	{ "[registry]\nthreads = 1x\n", "2: threads = 1x: expected a number" },
	{ "[registry]\nthreads =\n", "2: threads = : expected a number" },
	{ "[registry]\nprobe = on\n", "2: probe = on: expected auto, always or never" },
	{ "[registry]\nprobe_seconds = 0\n",
	  "2: probe_seconds = 0: expected a number" },
	{ "[registry]\nprobe_helper = moek-probe\n",
	  "2: probe_helper = moek-probe: expected an absolute path" },
	{ "[registry]\ncache = here\n", "2: cache = here: expected an absolute path" },
	{ "[registry]\nunlisted = yes\n",
	  "2: unlisted = yes: expected append, ignore" },
	{ "[registry]\non_degraded = no\n",
	  "2: on_degraded = no: expected allow, warn" },
	{ "[registry]\nplugin_dirs = ,\n", "2: plugin_dirs = ,: expected a folder" },
	{ "[priority]\ncpu = maybe\n", "2: cpu = maybe: expected on or off" },
	{ "[priority]\nCPU = on\n", "2: CPU is not a name" },
	{ "[priority]\na.b.c = on\n", "2: a.b.c is not a name" },
	{ "[priority]\n.a = on\n", "2: .a is not a name" },
	{ "[priority mxfp]\n", "1: [priority mxfp]: 'mxfp' is neither" },
	{ "[prioriti]\n", "1: unknown section [prioriti]; did you mean 'priority'?" },
	{ "[plugin]\n", "1: [plugin]: expected [plugin NAME]" },
	{ "[plugin A]\n", "1: [plugin A]: expected [plugin NAME]" },
	{ "[plugin a.b]\n", "1: [plugin a.b]: expected [plugin NAME]" },
	{ "[plugin a b]\n", "1: [plugin a b]: expected [plugin NAME]" },
	{ "[plugin a]\nenabled = 1\n", "2: enabled = 1: expected on or off" },
};

START_TEST(a_bad_setting_names_its_line)
{
	char expected[1200];

	stage_file(&stage, "system.ini", bad[_i].text);
	ck_assert_msg(try_open() == MOEK_BAD_CONFIG, "%s", bad[_i].text);
	snprintf(expected, sizeof(expected), "%s:%s", system_file, bad[_i].message);
	ck_assert_msg(strncmp(stage.error.text, expected, strlen(expected)) == 0,
	              "'%s' instead of '%s'", stage.error.text, expected);
}
END_TEST

START_TEST(checks_are_named)
{
	static const struct {
		const char *text;
		int checks;
	} rows[] = {
		{ "on", MOEK_CHECK_ALL },
		{ "no", 0 },
		{ "fp_state", MOEK_CHECK_FP_STATE },
		{ "guards", MOEK_CHECK_GUARDS },
		{ "poison", MOEK_CHECK_POISON },
		{ "inputs", MOEK_CHECK_INPUTS },
		{ "inputs , guards", MOEK_CHECK_INPUTS | MOEK_CHECK_GUARDS },
		{ "fp_state,guards,poison,inputs", MOEK_CHECK_ALL },
		{ "", -1 },
		{ ",guards", -1 },
		{ "guards,on", -1 },
		{ "guardsinputs", -1 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		ck_assert_msg(moek_settings_checks(rows[i].text) == rows[i].checks,
		              "%s is %d", rows[i].text,
		              moek_settings_checks(rows[i].text));
}
END_TEST

START_TEST(good_settings_are_read)
{
	stage_file(
		&stage, "system.ini",
		"[registry]\nschema = 1\nchecks = yes\nthreads = 4096\n"
		"unlisted = error\non_degraded = allow\nx-mine = whatever\n"
		"[priority]\na = true\na.b = false\n[priority host x86_64 int4]\n"
		"[plugin a]\nenabled = no\nanything = goes here\n[x-yours]\nq = 1\n");
	open_it();
	VALUE("threads", "4096");
	ck_assert_str_eq(moek_settings_plugin(settings, "a", "anything")->value,
	                 "goes here");
}
END_TEST

START_TEST(a_bad_variable_or_program_setting_is_an_error)
{
	const struct moek_setting unknown = { "registry", "thread", "1" };
	const struct moek_setting half = { "registry", "threads", NULL };

	setenv("MOEK_CHECK", "maybe", 1);
	ck_assert_int_eq(try_open(), MOEK_BAD_CONFIG);
	ck_assert_str_eq(stage.error.text,
	                 "MOEK_CHECK: checks = maybe: expected on, off, or some of "
	                 "fp_state, guards, poison, inputs with commas between");
	unsetenv("MOEK_CHECK");
	options.setting_count = 1;
	options.settings = &unknown;
	ck_assert_int_eq(try_open(), MOEK_BAD_CONFIG);
	ck_assert_str_eq(
		stage.error.text,
		"api: unknown key thread in [registry]; did you mean 'threads'?");
	options.settings = &half;
	ck_assert_int_eq(try_open(), MOEK_BAD_ARGUMENT);
	options.setting_count = 0;
	options.checks = 3;
	ck_assert_int_eq(try_open(), MOEK_BAD_ARGUMENT);
	options.checks = 0;
	options.threads = 5000;
	ck_assert_int_eq(try_open(), MOEK_BAD_CONFIG);
}
END_TEST

static void folder_is(size_t index, const char *expected)
{
	char path[1200];

	snprintf(path, sizeof(path), "%s%s", expected[0] == '/' ? "" : stage.folder,
	         expected);
	ck_assert_uint_lt(index, settings->folder_count);
	if (expected[0] != '/')
		snprintf(path, sizeof(path), "%s/%s", stage.folder, expected);
	ck_assert_str_eq(settings->folders[index].path, path);
}

START_TEST(folders_are_relative_to_the_ini_that_names_them)
{
	static const char *const first[] = { "/first", NULL };

	stage_file(&stage, "system.ini",
	           "[registry]\nplugin_dirs = a, , /b ,c d\nplugin_dirs = ../e\n");
	options.plugin_dirs = first;
	open_it();
	ck_assert_uint_eq(settings->folder_count, 5);
	folder_is(0, "/first");
	folder_is(1, "a");
	folder_is(2, "/b");
	folder_is(3, "c d");
	folder_is(4, "../e");
}
END_TEST

START_TEST(folders_of_the_environment_replace_those_of_files)
{
	stage_file(&stage, "system.ini", "[registry]\nplugin_dirs = a\n");
	setenv("MOEK_PLUGIN_DIRS", "/x::/y:", 1);
	open_it();
	/* an empty name would be the current folder */
	ck_assert_uint_eq(settings->folder_count, 2);
	folder_is(0, "/x");
	folder_is(1, "/y");
	setenv("MOEK_PLUGIN_DIRS", "plugins", 1);
	ck_assert_int_eq(try_open(), MOEK_BAD_CONFIG);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "plugins is relative"));
}
END_TEST

START_TEST(a_folder_of_the_program_stays_when_the_process_moves)
{
	static const char *const first[] = { "plugins", NULL };
	char expected[1200], here[256];

	options.plugin_dirs = first;
	ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
	open_it();
	snprintf(expected, sizeof(expected), "%s/plugins", here);
	ck_assert_str_eq(settings->folders[0].path, expected);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("settings");
	TCase *tests = tcase_create("settings");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, without_anything_the_built_in_values_hold);
	tcase_add_test(tests, each_level_wins_over_the_one_below);
	tcase_add_test(tests, overridden_values_are_kept_and_marked);
	tcase_add_test(tests,
	               a_priority_section_of_the_user_replaces_the_systems_whole);
	tcase_add_test(tests, one_file_alone_when_it_is_named);
	tcase_add_test(tests, the_environment_can_be_left_out);
	tcase_add_test(tests, caches_are_where_the_users_variables_say);
	tcase_add_test(tests, an_option_of_a_plugin_may_be_a_variable);
	tcase_add_test(tests, nothing_else_may_be_a_variable);
	tcase_add_test(tests, elevated_rights_read_no_environment);
	tcase_add_loop_test(tests, a_bad_setting_names_its_line, 0,
	                    (int)(sizeof(bad) / sizeof(bad[0])));
	tcase_add_test(tests, checks_are_named);
	tcase_add_test(tests, good_settings_are_read);
	tcase_add_test(tests, a_bad_variable_or_program_setting_is_an_error);
	tcase_add_test(tests, folders_are_relative_to_the_ini_that_names_them);
	tcase_add_test(tests, folders_of_the_environment_replace_those_of_files);
	tcase_add_test(tests, a_folder_of_the_program_stays_when_the_process_moves);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
