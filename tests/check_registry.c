/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/registry.h"
#include "core/status.h"
#include "stage.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct stage stage;

static void begin(void)
{
	stage_begin(&stage);
}

static void end(void)
{
	stage_end(&stage);
}

#define CHOSEN(request, over)                                                          \
	ck_assert_msg(stage_choose(&stage, request, over) == MOEK_OK, "%s",            \
	              stage.error.text)

START_TEST(without_options_the_installed_file_is_read)
{
	struct moek_registry *registry = NULL;

	setenv("HOME", stage.folder, 1);
	ck_assert_msg(moek_registry_open(NULL, &registry, &stage.error) == MOEK_OK,
	              "%s", stage.error.text);
	ck_assert_ptr_nonnull(moek_registry_workers(registry));
	ck_assert_int_eq(moek_registry_checks(registry), 0);
	ck_assert_int_eq(moek_registry_answers_only(registry), 0);
	moek_registry_close(registry);
	moek_registry_close(NULL);
}
END_TEST

START_TEST(options_are_checked)
{
	struct moek_registry *registry = NULL;
	struct moek_workers workers = { .struct_size = MOEK_INIT(WORKERS) };

	stage.options.struct_size = 8;
	ck_assert_int_eq(stage_try_open(&stage), MOEK_BAD_ARGUMENT);
	stage.options.struct_size = MOEK_REGISTRY_OPTIONS_SIZE_1_0;
	ck_assert_int_eq(moek_registry_open(&stage.options, NULL, NULL),
	                 MOEK_BAD_ARGUMENT);
	stage.options.workers = &workers;
	ck_assert_int_eq(stage_try_open(&stage), MOEK_BAD_ARGUMENT);
	stage.options.workers = NULL;
	stage_ini(&stage, "threads = x\n");
	ck_assert_int_eq(stage_try_open(&stage), MOEK_BAD_CONFIG);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "moek.ini:3: threads = x"));
	ck_assert_ptr_null(registry);
}
END_TEST

static void one_by_one(void *self, uint64_t tasks,
                       void (*body)(void *arg, uint64_t i, uint32_t worker), void *arg)
{
	(void)self;
	for (uint64_t i = 0; i < tasks; i++)
		body(arg, i, 0);
}

START_TEST(the_hosts_workers_are_used_as_they_are)
{
	struct moek_workers workers = { .struct_size = MOEK_INIT(WORKERS),
		                        .count = 1,
		                        .parallel_for = one_by_one };

	stage.options.workers = &workers;
	stage_open(&stage);
	ck_assert_ptr_eq(moek_registry_workers(stage.registry), &workers);
}
END_TEST

START_TEST(only_plugin_files_are_looked_at)
{
	char path[1024];

	stage_plugin(&stage, "good_host");
	stage_file(&stage, "plugins/notes.txt", "text");
	stage_file(&stage, "plugins/.hidden.so", "text");
	stage_file(&stage, "plugins/good.so.bak", "text");
	stage_file(&stage, "plugins/.so", "text");
	stage_file(&stage, "plugins/Bad Name.so", "text");
	snprintf(path, sizeof(path), "%s/folder.so", stage.plugins);
	ck_assert_int_eq(mkdir(path, 0777), 0);
	snprintf(path, sizeof(path), "%s/fifo.so", stage.plugins);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	snprintf(path, sizeof(path), "%s/dangling.so", stage.plugins);
	ck_assert_int_eq(symlink("nowhere", path), 0);
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_uint_eq(moek_choice_candidates(stage.choice), 6);
	ck_assert_str_eq(stage_state(&stage, "folder"), "broken: not a regular file");
	ck_assert_str_eq(stage_state(&stage, "fifo"), "broken: not a regular file");
	ck_assert_str_eq(stage_state(&stage, "dangling"),
	                 "broken: No such file or directory");
	ck_assert_int_eq(stage_candidate(&stage, "Bad Name").state, MOEK_STATE_BROKEN);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
}
END_TEST

START_TEST(the_first_folder_wins_and_the_other_file_is_shadowed)
{
	char first[1024], *report;
	const char *folders[] = { first, NULL };

	stage_plugin(&stage, "good_host");
	stage_plugin_in(&stage, "other", "good_host");
	snprintf(first, sizeof(first), "%s/other", stage.folder);
	stage.options.plugin_dirs = folders;
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_uint_eq(moek_choice_candidates(stage.choice), 2);
	ck_assert_ptr_nonnull(
		strstr(stage_candidate(&stage, "good_host.first").path, "/other/"));
	report = moek_registry_report(stage.registry, MOEK_TEXT);
	ck_assert_ptr_nonnull(strstr(report, "/plugins/good_host.so, by "));
	moek_free(report);
}
END_TEST

START_TEST(a_folder_named_twice_is_searched_once)
{
	char again[1024], *report;
	const char *folders[] = { again, NULL };

	stage_plugin(&stage, "good_host");
	snprintf(again, sizeof(again), "%s/../plugins/.", stage.plugins);
	stage.options.plugin_dirs = folders;
	stage_open(&stage);
	report = moek_registry_report(stage.registry, MOEK_TEXT);
	ck_assert_ptr_null(strstr(report, "shadowed"));
	ck_assert_ptr_nonnull(strstr(report, "/../plugins/.: 1 plugin\n"));
	ck_assert_ptr_null(strstr(strstr(report, "searched") + 1, "searched"));
	moek_free(report);
}
END_TEST

START_TEST(plugins_are_opened_when_they_are_considered)
{
	stage_plugin(&stage, "talks_at_open");
	stage_plugin(&stage, "good_host");
	stage_open(&stage);
	CHOSEN("require good_host", NULL);
	CHOSEN("exclude talks_at_open", NULL);
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open: no word"), 0);
	CHOSEN(NULL, NULL);
	CHOSEN(NULL, NULL);
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open: no word"), 1);
}
END_TEST

START_TEST(two_registries_with_different_settings_live_side_by_side)
{
	static const struct moek_setting off = { "plugin good_host", "enabled", "off" };
	static const struct moek_setting word = { "plugin talks_at_open", "word",
		                                  "two" };
	static struct stage other;
	struct moek_problem problem = stage_problem();
	struct moek_choice *choice;

	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "talks_at_open");
	stage_open(&stage);
	/* the same files, the same folder */
	other = stage;
	other.registry = NULL;
	other.options.settings = (const struct moek_setting[]){ off, word };
	other.options.setting_count = 2;
	other.options.log_self = &other;
	stage_open(&other);

	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	ck_assert_int_eq(
		moek_choose(other.registry, &problem, NULL, NULL, &choice, NULL),
		MOEK_OK);
	ck_assert_str_eq(moek_choice_winner(choice), "talks_at_open.any");
	moek_choice_destroy(choice);
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open: no word"), 1);
	ck_assert_uint_eq(stage_logged(&other, "6", "talks_at_open: two"), 1);

	moek_registry_close(other.registry);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
}
END_TEST

/** A log callback that asks the registry while a plugin is being opened: for another.
 */
static int32_t inner_status;

static void ask_back(void *self, uint32_t level, const char *text)
{
	struct moek_problem problem = stage_problem();
	struct moek_choice *choice = NULL;

	(void)level;
	if (strstr(text, "no word") == NULL)
		return;
	inner_status = moek_choose(((struct stage *)self)->registry, &problem,
	                           "require undefined_symbol", NULL, &choice, NULL);
	ck_assert_ptr_null(choice);
}

START_TEST(who_asks_from_inside_open_is_told_busy)
{
	stage_plugin(&stage, "talks_at_open");
	stage_plugin(&stage, "undefined_symbol");
	stage.options.log = ask_back;
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_int_eq(inner_status, MOEK_BUSY);
	ck_assert_str_eq(stage_winner(&stage), "talks_at_open.any");
}
END_TEST

static void *choose_often(void *self)
{
	struct moek_problem problem = stage_problem();

	for (int i = 0; i < 20; i++) {
		struct moek_choice *choice;

		if (moek_choose(((struct stage *)self)->registry, &problem, NULL, NULL,
		                &choice, NULL) != MOEK_OK)
			return self;
		moek_choice_destroy(choice);
	}
	return NULL;
}

START_TEST(threads_may_choose_at_once)
{
	pthread_t threads[4];
	void *failed;

	stage_plugin(&stage, "talks_at_open");
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "null_slot");
	stage_open(&stage);
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, choose_often, &stage), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &failed);
		ck_assert_ptr_null(failed);
	}
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open: no word"), 1);
}
END_TEST

START_TEST(facts_of_another_machine_answer_without_its_devices)
{
	static const char facts[] = "{\"host\": {\"arch\": \"sparc\"}, \"devices\": ["
				    "{\"kind\": \"%s\", \"arch\": \"%s\"%s}]}";
	char text[512], path[1024];

	stage_plugin(&stage, "fake_gpu");
	stage_plugin(&stage, "last_resort");
	stage_plugin(&stage, "talks_at_open");
	stage_ini(&stage, "[priority]\nlast_resort = on\n"
	                  "[priority hip fake_a]\nfake_gpu = on\nlast_resort = on\n");
	snprintf(path, sizeof(path), "%s/facts.json", stage.folder);
	stage.options.facts_file = path;

	snprintf(text, sizeof(text), facts, "hip", "fake_a", "");
	stage_file(&stage, "facts.json", text);
	stage_open(&stage);
	ck_assert_int_eq(moek_registry_answers_only(stage.registry), 1);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "fake_gpu.any");
	ck_assert_str_eq(moek_choice_device(stage.choice)->arch, "fake_a");
	/* plugins are opened, for options that change their answers; devices are not */
	ck_assert_str_eq(stage_state(&stage, "talks_at_open.any"), "ready: outranked");
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open: no word"), 1);

	snprintf(text, sizeof(text), facts, "hip", "fake_b", "");
	stage_file(&stage, "facts.json", text);
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	ck_assert_str_eq(moek_choice_device(stage.choice)->arch, "sparc");
	ck_assert_int_eq(stage_candidate(&stage, "fake_gpu.any").state,
	                 MOEK_STATE_UNUSABLE);

	/* a card of another kind is no card of this one, whatever is wrong with it */
	snprintf(text, sizeof(text), facts, "cuda", "fake_a",
	         ", \"cause_rule\": \"device_driver\", \"cause\": \"no driver\"");
	stage_file(&stage, "facts.json", text);
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_int_eq(stage_candidate(&stage, "fake_gpu.any").state,
	                 MOEK_STATE_ABSENT);

	snprintf(text, sizeof(text), facts, "hip", "fake_a",
	         ", \"cause_rule\": \"device_driver\", \"cause\": \"no driver\"");
	stage_file(&stage, "facts.json", text);
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_state(&stage, "fake_gpu.any"), "unusable: no driver");
}
END_TEST

START_TEST(options_of_an_absent_plugin_are_noted)
{
	stage_ini(&stage, "[plugin not_here]\nsome = thing\nother = thing\n");
	stage_open(&stage);
	ck_assert_uint_eq(stage_logged(&stage, "6",
	                               "[plugin not_here] at moek.ini:4: not "
	                               "installed"),
	                  1);
}
END_TEST

START_TEST(an_unknown_option_breaks_its_plugin_alone)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[plugin good_host]\ncolur = red\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	ck_assert_str_eq(stage_state(&stage, "good_host"),
	                 "broken: unknown option 'colur' at moek.ini:4; did you mean "
	                 "'colour'?");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
}
END_TEST

START_TEST(a_folder_that_cannot_be_read_is_told)
{
	stage_ini(&stage, "plugin_dirs = nowhere\n");
	stage_plugin(&stage, "good_host");
	/* twice in one file is a list: the other folder still counts */
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_uint_eq(stage_logged(&stage, "4", "/nowhere: No such file"), 1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("registry");
	TCase *tests = tcase_create("registry");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, without_options_the_installed_file_is_read);
	tcase_add_test(tests, options_are_checked);
	tcase_add_test(tests, the_hosts_workers_are_used_as_they_are);
	tcase_add_test(tests, only_plugin_files_are_looked_at);
	tcase_add_test(tests, the_first_folder_wins_and_the_other_file_is_shadowed);
	tcase_add_test(tests, a_folder_named_twice_is_searched_once);
	tcase_add_test(tests, plugins_are_opened_when_they_are_considered);
	tcase_add_test(tests, two_registries_with_different_settings_live_side_by_side);
	tcase_add_test(tests, who_asks_from_inside_open_is_told_busy);
	tcase_add_test(tests, threads_may_choose_at_once);
	tcase_add_test(tests, facts_of_another_machine_answer_without_its_devices);
	tcase_add_test(tests, options_of_an_absent_plugin_are_noted);
	tcase_add_test(tests, an_unknown_option_breaks_its_plugin_alone);
	tcase_add_test(tests, a_folder_that_cannot_be_read_is_told);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
