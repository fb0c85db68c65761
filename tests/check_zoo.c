/* SPDX-License-Identifier: MIT */
/* Every animal of the zoo: it is told by its one rule, the good plugin beside it runs,
 * and this process is as it was. The table of it is compared with tests/zoo/README.md.
 */
#include "config.h"

#include "core/status.h"
#include "kit.h"
#include "stage.h"

#include <check.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct stage stage;

static const struct animal {
	const char *name;
	uint32_t state, rule;
	const char *fault; /* what it does */
	const char *found; /* what the host is told has this in it */
} animals[] = {
#define BROKEN(name, rule, fault, found)                                               \
	{                                                                              \
		name, MOEK_STATE_BROKEN, rule, fault, found                            \
	}
	BROKEN("aborts_at_load", MOEK_RULE_PROBE_CRASH, "a constructor aborts",
	       "crashed with signal 6 (SIGABRT) at step load"),
	BROKEN("hangs_at_load", MOEK_RULE_PROBE_TIME, "a constructor hangs",
	       "no answer within 1 s, at step load"),
	BROKEN("exits_at_load", MOEK_RULE_PROBE_EXIT, "a constructor calls exit",
	       "ended the process with code 0 at step load"),
	BROKEN("crashes_at_open", MOEK_RULE_PROBE_CRASH, "open() crashes",
	       "at step open; it said: about to crash"),
	BROKEN("crashes_when_asked", MOEK_RULE_PROBE_CRASH,
	       "a question about a device crashes", "(SIGILL) at step ask"),
	BROKEN("crashes_at_exit", MOEK_RULE_PROBE_CRASH, "a destructor crashes",
	       "(SIGILL) at step exit"),
	BROKEN("throws_at_open", MOEK_RULE_PROBE_CRASH, "open() lets an exception out",
	       "(SIGABRT) at step open"),
	BROKEN("prints_at_open", MOEK_RULE_PROBE_NOISE, "open() prints",
	       "writes to standard output: welcome"),
	BROKEN("changes_locale", MOEK_RULE_SIDE_EFFECT, "open() sets the locale",
	       "opening it changes the locale"),
	BROKEN("changes_signals", MOEK_RULE_SIDE_EFFECT, "open() ignores a signal",
	       "opening it changes what a signal does"),
	BROKEN("changes_folder", MOEK_RULE_SIDE_EFFECT, "open() changes the folder",
	       "opening it changes the current directory"),
	BROKEN("changes_umask", MOEK_RULE_SIDE_EFFECT, "open() sets the umask",
	       "opening it changes the umask"),
	BROKEN("changes_environment", MOEK_RULE_SIDE_EFFECT, "open() sets a variable",
	       "opening it changes the environment"),
	BROKEN("starts_a_thread", MOEK_RULE_SIDE_EFFECT, "open() leaves a thread",
	       "opening it changes the number of threads"),
	BROKEN("needs_a_library", MOEK_RULE_LIBRARY,
	       "needs a library that is not there", "helper.so: cannot open"),
	BROKEN("static_tls", MOEK_RULE_LOAD, "needs a megabyte of static TLS",
	       "static TLS block"),
	BROKEN("undefined_symbol", MOEK_RULE_LOAD, "needs a symbol that nobody has",
	       "undefined symbol: fake_nobody_has_this"),
	BROKEN("symbol_is_function", MOEK_RULE_SYMBOL, "its symbol is a function",
	       "not a descriptor"),
	{ "no_symbol", MOEK_STATE_NOT_PLUGIN, MOEK_RULE_NOT_PLUGIN, "a normal library",
	  "a library without note" },
	{ "needs_isa", MOEK_STATE_UNUSABLE, MOEK_RULE_ISA,
	  "is compiled for another CPU", "needs fake_word" },
	BROKEN("stale_abi", MOEK_RULE_ABI_MAJOR, "was built for an ABI that is gone",
	       "stale: built for ABI 0.9"),
	BROKEN("needs_newer_host", MOEK_RULE_ABI_MINOR, "needs a newer host",
	       "needs a host of ABI 1.99"),
	BROKEN("wrong_major", MOEK_RULE_ABI_MAJOR, "the same, and has no note", "2"),
	BROKEN("note_malformed", MOEK_RULE_NOTE, "its note is no note",
	       "'colour' is not key=value"),
	BROKEN("note_lies", MOEK_RULE_NOTE_DISAGREES, "its note lies",
	       "version is '7' in the note"),
	BROKEN("wrong_name", MOEK_RULE_ABI_NAME, "has another name than its file",
	       "its name is 'right_name'"),
	BROKEN("short_descriptor", MOEK_RULE_ABI_TABLE, "its descriptor is too short",
	       "the descriptor has"),
	BROKEN("long_descriptor", MOEK_RULE_ABI_TABLE, "its descriptor claims too much",
	       "claims 4096 bytes"),
	BROKEN("short_table", MOEK_RULE_ABI_TABLE, "a table is too short",
	       "experts table 0 has"),
	BROKEN("null_slot", MOEK_RULE_ABI_SLOT, "a mandatory slot is NULL",
	       "forward of experts table 0 is NULL"),
	BROKEN("half_a_device", MOEK_RULE_ABI_SLOT, "has half of a device",
	       "alloc of the descriptor is NULL"),
	BROKEN("open_fails", MOEK_RULE_OPEN, "open() fails", "the moon is full"),
};
#define ANIMALS ((int)(sizeof(animals) / sizeof(animals[0])))

static void begin(void)
{
	stage_begin(&stage);
}

static void end(void)
{
	stage_end(&stage);
}

/** A stage where @first stands before good_host, under `probe = @probe`. */
static void set(const char *first, const char *probe)
{
	char ini[2048];

	stage_plugin(&stage, "good_host");
	snprintf(ini, sizeof(ini),
	         "probe = %s\nprobe_seconds = 1\nprobe_helper = %s/core/moek-probe\n"
	         "[priority]\n%s = on\ngood_host = on\n",
	         probe, getenv("MOEK_TEST_BUILD"), first);
	stage_ini(&stage, ini);
	stage_open(&stage);
}

static void *handler_of_term(void)
{
	struct sigaction action;

	sigaction(SIGTERM, NULL, &action);
	return (void *)(uintptr_t)action.sa_handler;
}

/* One more row; each test is a process of its own, so they append. */
static void write_row(const struct animal *animal)
{
	char line[512];
	FILE *rows = fopen("zoo.rows", "ae");

	ck_assert_ptr_nonnull(rows);
	snprintf(line, sizeof(line), "| %s | %s: %s | %u %s |\n", animal->fault,
	         moek_state_name(animal->state), animal->found, animal->rule,
	         moek_rule_name(animal->rule));
	fputs(line, rows);
	fclose(rows);
}

START_TEST(an_animal_is_told_by_its_rule_and_hurts_nobody)
{
	const struct animal *animal = &animals[_i];
	struct moek_candidate candidate;
	char *locale = strdup(setlocale(LC_ALL, NULL)), folder[1024], now[1024];
	void *handler = handler_of_term();

	ck_assert_ptr_nonnull(getcwd(folder, sizeof(folder)));
	stage_plugin(&stage, animal->name);
	set(animal->name, "always");
	ck_assert_msg(stage_choose(&stage, NULL, NULL) == MOEK_OK, "%s",
	              stage.error.text);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	candidate = stage_candidate(&stage, animal->name);
	ck_assert_msg(candidate.verdict->rule == animal->rule, "%s is told by %u: %s",
	              animal->name, candidate.verdict->rule, candidate.found);
	ck_assert_uint_eq(candidate.state, animal->state);
	ck_assert_msg(strstr(candidate.found, animal->found) != NULL, "'%s' lacks '%s'",
	              candidate.found, animal->found);
	ck_assert_str_eq(setlocale(LC_ALL, NULL), locale);
	ck_assert_ptr_nonnull(getcwd(now, sizeof(now)));
	ck_assert_str_eq(now, folder);
	ck_assert_ptr_eq(handler_of_term(), handler);
	ck_assert_ptr_null(getenv("MOEK_ZOO"));
	free(locale);
	write_row(animal);
}
END_TEST

START_TEST(of_two_plugins_with_a_library_of_one_name_the_second_is_told)
{
	static const struct animal row = {
		"second_helper", MOEK_STATE_BROKEN, MOEK_RULE_TWO_HELPERS,
		"brings a library, and another plugin's was there first",
		"needs its own helper.so, but another one was here first"
	};
	struct moek_candidate candidate;

	stage_plugin(&stage, "first_helper");
	stage_plugin(&stage, "second_helper");
	stage_plugin_in(&stage, "plugins/first_helper.d", "helper");
	stage_plugin_in(&stage, "plugins/second_helper.d", "helper");
	set("second_helper", "always");
	ck_assert_int_eq(stage_choose(&stage, "prefer first_helper", NULL), MOEK_OK);
	ck_assert_str_eq(stage_winner(&stage), "first_helper.any");
	candidate = stage_candidate(&stage, row.name);
	ck_assert_uint_eq(candidate.verdict->rule, row.rule);
	ck_assert_msg(strstr(candidate.found, row.found) != NULL, "%s",
	              candidate.found);
	ck_assert_ptr_nonnull(strstr(candidate.found, "first_helper.d/helper.so"));
	write_row(&row);
}
END_TEST

/* ---- the probe itself ---- */

static const char *verdict_of(const char *name)
{
	static char text[700];
	struct moek_candidate candidate = stage_candidate(&stage, name);

	snprintf(text, sizeof(text), "%u %s", candidate.verdict->rule, candidate.found);
	return text;
}

START_TEST(without_the_helper_always_refuses_and_auto_opens)
{
	stage_plugin(&stage, "good_host");
	stage_ini(&stage, "probe = always\nprobe_helper = /nowhere/moek-probe\n");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_REFUSED);
	ck_assert_str_eq(verdict_of("good_host"),
	                 "503 probe = always, and probe_helper /nowhere/moek-probe "
	                 "does not run: No such file or directory");
	stage_ini(&stage, "probe = auto\nprobe_helper = /nowhere/moek-probe\n");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
	/* something else under its name: no verdict of it is believed */
	stage_ini(&stage, "probe = always\nprobe_helper = /bin/true\n");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_REFUSED);
	ck_assert_ptr_nonnull(strstr(verdict_of("good_host"), "503 probe = always"));
	stage_ini(&stage, "probe = never\nprobe_helper = /nowhere/moek-probe\n");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
}
END_TEST

START_TEST(a_plugin_is_probed_with_its_options)
{
	char ini[1024];

	stage_plugin(&stage, "good_host");
	snprintf(ini, sizeof(ini),
	         "probe = always\nprobe_helper = %s/core/moek-probe\n"
	         "[plugin good_host]\ncolour = red\nenabled = on\nx-y = 1\n",
	         getenv("MOEK_TEST_BUILD"));
	stage_ini(&stage, ini);
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
	strcpy(strstr(ini, "colour"), "color = red\n");
	stage_ini(&stage, ini);
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_REFUSED);
	ck_assert_ptr_nonnull(
		strstr(verdict_of("good_host"), "107 unknown option 'color'"));
}
END_TEST

/** The one file of verdicts; "" when there is none. */
static const char *kept_file(void)
{
	static char path[1200];
	char command[1200];
	FILE *found;

	snprintf(command, sizeof(command), "ls %s/cache/probe/* 2>/dev/null",
	         stage.folder);
	found = popen(command, "re");
	ck_assert_ptr_nonnull(found);
	if (fgets(path, sizeof(path), found) == NULL)
		path[0] = '\0';
	path[strcspn(path, "\n")] = '\0';
	pclose(found);
	return path;
}

/** Choose under `probe = auto` and a cache, with @helper. */
static void choose_cached(const char *helper)
{
	char ini[2048];

	snprintf(ini, sizeof(ini),
	         "probe = auto\nprobe_seconds = 1\nprobe_helper = %s\ncache = "
	         "%s/cache\n",
	         helper, stage.folder);
	stage_ini(&stage, ini);
	stage_open(&stage);
	stage_choose(&stage, NULL, NULL);
}

START_TEST(a_verdict_is_kept_until_the_file_changes_or_days_pass)
{
	char helper[1024], *kept, *time_at, *report;
	size_t count;

	snprintf(helper, sizeof(helper), "%s/core/moek-probe",
	         getenv("MOEK_TEST_BUILD"));
	stage_plugin(&stage, "prints_at_open");
	choose_cached(helper);
	ck_assert_str_eq(verdict_of("prints_at_open"),
	                 "506 writes to standard output: welcome");
	ck_assert_str_ne(kept_file(), "");
	/* known, so no helper is needed */
	choose_cached("/nowhere");
	ck_assert_str_eq(verdict_of("prints_at_open"),
	                 "506 writes to standard output: welcome");
	stage_open(&stage);
	/* and a listing, which runs nothing, tells it */
	report = moek_registry_listing(stage.registry, MOEK_TEXT);
	ck_assert_ptr_nonnull(strstr(report, "writes to standard output: welcome"));
	moek_free(report);
	/* a week later */
	kept = kit_read(kept_file(), &count);
	time_at = strchr(kept, '\n') + 1;
	ck_assert_int_eq(strncmp(time_at, "1", 1), 0);
	time_at[4] -= time_at[4] != '0';
	time_at[3] -= time_at[3] != '0';
	kit_write(kept_file(), kept, count);
	free(kept);
	choose_cached("/nowhere");
	ck_assert_str_eq(stage_winner(&stage), "prints_at_open.any");
}
END_TEST

START_TEST(another_file_at_the_same_place_is_probed_again)
{
	char helper[1024], path[1024], *bytes;
	size_t count;

	snprintf(helper, sizeof(helper), "%s/core/moek-probe",
	         getenv("MOEK_TEST_BUILD"));
	stage_plugin(&stage, "prints_at_open");
	choose_cached(helper);
	snprintf(path, sizeof(path), "%s/prints_at_open.so", stage.plugins);
	bytes = kit_read(path, &count);
	unlink(path); /* this process may have it mapped */
	bytes[count - 1] ^= 1;
	kit_write(path, bytes, count);
	free(bytes);
	choose_cached("/nowhere");
	ck_assert_str_eq(stage_winner(&stage), "prints_at_open.any");
}
END_TEST

START_TEST(rubbish_in_the_cache_is_no_verdict)
{
	char helper[1024], *kept;
	size_t count;

	snprintf(helper, sizeof(helper), "%s/core/moek-probe",
	         getenv("MOEK_TEST_BUILD"));
	stage_plugin(&stage, "prints_at_open");
	choose_cached(helper);
	kept = kit_read(kept_file(), &count);
	for (size_t cut = 0; cut + 1 < count; cut += 7) {
		kit_write(kept_file(), kept, cut);
		choose_cached(helper);
		ck_assert_str_eq(verdict_of("prints_at_open"),
		                 "506 writes to standard output: welcome");
	}
	free(kept);
}
END_TEST

START_TEST(a_host_that_ignores_its_children_is_served)
{
	signal(SIGCHLD, SIG_IGN);
	stage_plugin(&stage, "prints_at_open");
	set("prints_at_open", "always");
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	ck_assert_uint_eq(stage_candidate(&stage, "prints_at_open").verdict->rule,
	                  MOEK_RULE_PROBE_NOISE);
}
END_TEST

START_TEST(probing_leaves_no_descriptor_and_no_child)
{
	int before = dup(0), after;

	close(before);
	stage_plugin(&stage, "hangs_at_load");
	stage_plugin(&stage, "aborts_at_load");
	set("hangs_at_load", "always");
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
	after = dup(0);
	close(after);
	ck_assert_int_eq(after, before);
	ck_assert_int_eq(kill(0, 0), 0);
}
END_TEST

/* ---- the table ---- */

static void compare_table(void)
{
	size_t have_bytes, want_bytes;
	char path[1024], *rows, *page;
	FILE *made = fopen("zoo.md", "we");

	snprintf(path, sizeof(path), "%s/zoo/README.md", getenv("MOEK_TEST_SOURCE"));
	page = kit_read(path, &want_bytes);
	rows = kit_read("zoo.rows", &have_bytes);
	fprintf(made, "| fault | what the host is told | rule |\n|---|---|---|\n%s",
	        rows);
	fclose(made);
	if (strstr(page, rows) == NULL) {
		fprintf(stderr, "tests/zoo/README.md has not this table:\n%s", rows);
		exit(1);
	}
	free(rows);
	free(page);
}

int main(void)
{
	Suite *suite = suite_create("zoo");
	TCase *zoo = tcase_create("zoo"), *probe = tcase_create("probe");
	SRunner *runner = srunner_create(suite);
	int failed;

	unlink("zoo.rows");
	suite_add_tcase(suite, zoo);
	tcase_add_checked_fixture(zoo, begin, end);
	tcase_add_loop_test(zoo, an_animal_is_told_by_its_rule_and_hurts_nobody, 0,
	                    ANIMALS);
	tcase_add_test(zoo,
	               of_two_plugins_with_a_library_of_one_name_the_second_is_told);
	suite_add_tcase(suite, probe);
	tcase_add_checked_fixture(probe, begin, end);
	tcase_add_test(probe, without_the_helper_always_refuses_and_auto_opens);
	tcase_add_test(probe, a_plugin_is_probed_with_its_options);
	tcase_add_test(probe, a_verdict_is_kept_until_the_file_changes_or_days_pass);
	tcase_add_test(probe, another_file_at_the_same_place_is_probed_again);
	tcase_add_test(probe, rubbish_in_the_cache_is_no_verdict);
	tcase_add_test(probe, a_host_that_ignores_its_children_is_served);
	tcase_add_test(probe, probing_leaves_no_descriptor_and_no_child);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	if (failed == 0)
		compare_table();
	return failed != 0;
}
