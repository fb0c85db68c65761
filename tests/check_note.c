/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/note.h"
#include "kit.h"
#include "stage.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct stage stage;
static struct moek_note note;
static struct moek_cause cause;

static void begin(void)
{
	stage_begin(&stage);
	memset(&note, 0, sizeof(note));
	memset(&cause, 0, sizeof(cause));
}

static void end(void)
{
	moek_note_end(&note);
	stage_end(&stage);
}

static int32_t parse(const char *text)
{
	moek_note_end(&note);
	return moek_note_parse(text, strlen(text), &note, &cause);
}

static void malformed(const char *text, const char *why)
{
	ck_assert_msg(parse(text) == MOEK_PLUGIN, "'%s' was taken", text);
	ck_assert_uint_eq(cause.verdict.rule, MOEK_RULE_NOTE);
	ck_assert_msg(strstr(cause.text, why) != NULL, "'%s' lacks '%s'", cause.text,
	              why);
	ck_assert_ptr_null(note.text);
}

#define LEAST "abi=1.0\nid=a\n"

START_TEST(a_note_is_lines_of_key_and_value)
{
	const char *key, *value;
	size_t at = 0;

	ck_assert_int_eq(parse(LEAST "x-of-mine=a = b\nempty=\n"), MOEK_OK);
	ck_assert_str_eq(moek_note_value(&note, "abi"), "1.0");
	ck_assert_str_eq(moek_note_value(&note, "x-of-mine"), "a = b");
	ck_assert_str_eq(moek_note_value(&note, "empty"), "");
	ck_assert_ptr_null(moek_note_value(&note, "isa"));
	for (int i = 0; i < 3; i++)
		ck_assert_ptr_nonnull(moek_note_next(&note, &at, &value));
	key = moek_note_next(&note, &at, &value);
	ck_assert_str_eq(key, "empty");
	ck_assert_ptr_null(moek_note_next(&note, &at, &value));
}
END_TEST

START_TEST(a_malformed_note_is_refused_with_its_place)
{
	char large[MOEK_NOTE_MOST + 2];

	malformed("", "0 bytes");
	malformed("abi=1.0\nid=a", "last line");
	malformed(LEAST "colour\n", "'colour' is not key=value");
	malformed(LEAST "\n", "'' is not key=value");
	malformed(LEAST "Big=1\n", "'Big=1' is not key=value");
	malformed(LEAST "id=b\n", "id is there twice");
	malformed(LEAST "version=1\t\n", "byte 9 in the value of version");
	malformed(LEAST "version=\xc3\xa4\n", "byte 195 in the value of version");
	malformed("abi=1.0\n", "no id");
	malformed("id=a\n", "no abi");
	memset(large, 'a', sizeof(large));
	memcpy(large, LEAST "x-=", strlen(LEAST "x-="));
	large[MOEK_NOTE_MOST] = '\n';
	large[MOEK_NOTE_MOST + 1] = '\0';
	malformed(large, "4097 bytes");
	large[MOEK_NOTE_MOST - 1] = '\n';
	large[MOEK_NOTE_MOST] = '\0';
	ck_assert_int_eq(parse(large), MOEK_OK);
}
END_TEST

static void judged(const char *text, const char *features, uint32_t rule,
                   const char *why)
{
	ck_assert_int_eq(parse(text), MOEK_OK);
	memset(&cause, 0, sizeof(cause));
	ck_assert_int_eq(moek_note_judge(&note, "a", features, &cause),
	                 rule == MOEK_RULE_NONE ? MOEK_OK : MOEK_PLUGIN);
	ck_assert_uint_eq(cause.verdict.rule, rule);
	ck_assert_msg(strstr(cause.text, why) != NULL, "'%s' lacks '%s'", cause.text,
	              why);
}

START_TEST(every_isa_word_must_be_among_those_of_the_operating_system)
{
	judged(LEAST "isa=one,two\n", "zero one two", MOEK_RULE_NONE, "");
	judged(LEAST "isa=\n", "", MOEK_RULE_NONE, "");
	judged(LEAST "isa=one,three\n", "zero one two", MOEK_RULE_ISA, "needs three");
	/* the whole word, not a part of it */
	judged(LEAST "isa=tw\n", "zero one two", MOEK_RULE_ISA, "needs tw,");
	judged(LEAST "isa=twos\n", "zero one two", MOEK_RULE_ISA, "needs twos,");
	judged(LEAST "isa=one two\n", "zero one two", MOEK_RULE_ISA, "needs one two");
	judged(LEAST "isa=one,,two\n", "zero one two", MOEK_RULE_ISA, "needs ,");
	judged(LEAST "isa=one\n", "", MOEK_RULE_ISA, "needs one");
	judged(LEAST "isa-run=three\n", "zero", MOEK_RULE_NONE, "");
}
END_TEST

START_TEST(another_abi_is_named)
{
	judged("abi=0.9\nid=a\n", "", MOEK_RULE_ABI_MAJOR, "stale: built for ABI 0.9");
	judged("abi=2.0\nid=a\n", "", MOEK_RULE_ABI_MAJOR,
	       "too new: built for ABI 2.0");
	ck_assert_uint_eq(cause.verdict.found, 2);
	ck_assert_uint_eq(cause.verdict.accepted[0], MOEK_ABI_MAJOR);
	judged("abi=1.7\nid=a\n", "", MOEK_RULE_NONE, "");
	judged("abi=1.7\nabi-min=1.0\nid=a\n", "", MOEK_RULE_NONE, "");
	judged("abi=1.7\nabi-min=1.7\nid=a\n", "", MOEK_RULE_ABI_MINOR,
	       "needs a host of ABI 1.7");
	judged("abi=1.7\nabi-min=2.0\nid=a\n", "", MOEK_RULE_NOTE, "abi-min");
	judged("abi=1\nid=a\n", "", MOEK_RULE_NOTE, "abi '1'");
	judged("abi=1.0.0\nid=a\n", "", MOEK_RULE_NOTE, "abi '1.0.0'");
	judged("abi=1.00000\nid=a\n", "", MOEK_RULE_NOTE, "abi");
	judged("abi=1.0\nid=b\n", "", MOEK_RULE_ABI_NAME, "its name is 'b'");
}
END_TEST

/* ---- files ---- */

static const char *path_of(const char *variable, const char *name)
{
	static char path[1024];

	ck_assert_ptr_nonnull(getenv(variable));
	snprintf(path, sizeof(path), "%s/%s.so", getenv(variable), name);
	return path;
}

START_TEST(the_plugins_of_the_tree_have_notes)
{
	const char *names[] = { "emulation", "cpu", "rdna3" };

	for (size_t i = 0; i < 3; i++) {
		const char *path = path_of("MOEK_TEST_PLUGINS", names[i]);

		moek_note_end(&note);
		ck_assert_msg(moek_note_read(path, &note, &cause) == MOEK_OK, "%s: %s",
		              names[i], cause.text);
		ck_assert_ptr_nonnull(note.text);
		ck_assert_str_eq(moek_note_value(&note, "id"), names[i]);
		ck_assert_str_eq(moek_note_value(&note, "abi"), "1.0");
		ck_assert_ptr_nonnull(moek_note_value(&note, "devices"));
	}
}
END_TEST

static void read_breaks(const char *path, uint32_t rule, const char *why)
{
	memset(&cause, 0, sizeof(cause));
	ck_assert_int_eq(moek_note_read(path, &note, &cause), MOEK_PLUGIN);
	ck_assert_uint_eq(cause.verdict.rule, rule);
	ck_assert_msg(strstr(cause.text, why) != NULL, "'%s' lacks '%s'", cause.text,
	              why);
	ck_assert_ptr_null(note.text);
}

START_TEST(what_is_no_plugin_is_told_from_what_is_broken)
{
	char path[1024], *bytes;
	size_t count;

	ck_assert_int_eq(
		moek_note_read(path_of("MOEK_TEST_FAKES", "good_host"), &note, &cause),
		MOEK_OK);
	ck_assert_ptr_null(note.text);
	read_breaks(path_of("MOEK_TEST_FAKES", "no_symbol"), MOEK_RULE_NOT_PLUGIN,
	            "without note and moek_plugin_v1");
	read_breaks(path_of("MOEK_TEST_FAKES", "nowhere"), MOEK_RULE_NOT_REGULAR,
	            "No such file");
	snprintf(path, sizeof(path), "%s/x.so", stage.plugins);
	kit_write(path, "GROUP ( a.so )", 14);
	read_breaks(path, MOEK_RULE_NOT_PLUGIN, "no shared library");
	bytes = kit_read(path_of("MOEK_TEST_ZOO", "aborts_at_load"), &count);
	bytes[18] ^= 1; /* e_machine */
	kit_write(path, bytes, count);
	read_breaks(path, MOEK_RULE_MACHINE, "another machine");
	bytes[18] ^= 1;
	bytes[4] ^= 3; /* 64 bits, 32 bits */
	kit_write(path, bytes, count);
	read_breaks(path, MOEK_RULE_MACHINE, "another machine");
	bytes[4] ^= 3;
	bytes[16] = 1; /* an object file */
	kit_write(path, bytes, count);
	read_breaks(path, MOEK_RULE_NOT_PLUGIN, "no shared library, ELF type 1");
	bytes[16] = 3;
	kit_write(path, bytes, count);
	ck_assert_int_eq(moek_note_read(path, &note, &cause), MOEK_OK);
	ck_assert_str_eq(moek_note_value(&note, "id"), "aborts_at_load");
	free(bytes);
}
END_TEST

START_TEST(a_file_cut_off_anywhere_is_damaged)
{
	const char *names[] = { "aborts_at_load", "good_host" };
	const char *variables[] = { "MOEK_TEST_ZOO", "MOEK_TEST_FAKES" };
	char path[1024], *bytes;
	size_t count, accepted = 0;

	snprintf(path, sizeof(path), "%s/x.so", stage.plugins);
	for (size_t i = 0; i < 2; i++) {
		bytes = kit_read(path_of(variables[i], names[i]), &count);
		/* in steps that no part of the file is a multiple of */
		for (size_t cut = 0; cut < count; cut += 61) {
			int32_t status;

			kit_write(path, bytes, cut);
			status = moek_note_read(path, &note, &cause);
			accepted += status == MOEK_OK;
			moek_note_end(&note);
			if (status == MOEK_OK) /* only names for debuggers are gone */
				ck_assert_uint_gt(cut, count / 3);
			else
				ck_assert_uint_eq(cause.verdict.rule,
				                  cut < 64 ? MOEK_RULE_NOT_PLUGIN
				                           : MOEK_RULE_DAMAGED);
		}
		free(bytes);
	}
	ck_assert_uint_lt(accepted, count / 61);
}
END_TEST

/* ---- in a registry ---- */

/** Many plugins with notes; loading any of them would end this process. */
static void many(size_t wanted)
{
	static const char id[] = "id=aborts_at_load";
	size_t count;
	char *bytes = kit_read(path_of("MOEK_TEST_ZOO", "aborts_at_load"), &count);
	char *at = memmem(bytes, count, id, strlen(id));

	ck_assert_ptr_nonnull(at);
	for (size_t i = 0; i < wanted; i++) {
		char path[1024], number[16];

		snprintf(number, sizeof(number), "%02zu", i);
		memcpy(at + strlen(id) - 2, number, 2);
		snprintf(path, sizeof(path), "%s/aborts_at_lo%02zu.so", stage.plugins,
		         i);
		kit_write(path, bytes, count);
	}
	free(bytes);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

START_TEST(fifty_plugins_are_listed_unopened_in_milliseconds)
{
	double best = 1e9, start;
	char *report;
	size_t count = 0;

	many(50);
	for (int i = 0; i < 5; i++) {
		start = seconds();
		stage_open(&stage);
		if (seconds() - start < best)
			best = seconds() - start;
	}
	report = moek_registry_listing(stage.registry, MOEK_TEXT);
	for (const char *at = report; (at = strstr(at, " unopened ")) != NULL; at++)
		count++;
	ck_assert_uint_eq(count, 50);
	moek_free(report);
	printf("# a registry with 50 plugins opens in %.2f ms\n", 1e3 * best);
	ck_assert_msg(best < 0.1, "%.1f ms; 20 are allowed, and five times that here",
	              1e3 * best);
}
END_TEST

START_TEST(listing_opens_nothing)
{
	char *report;

	stage_plugin(&stage, "talks_at_open");
	stage_plugin(&stage, "aborts_at_load");
	stage_plugin(&stage, "no_symbol");
	/* devices are not asked for to find the order, either */
	stage_ini(&stage, "[priority hip]\ntalks_at_open = on\n[priority]\n"
	                  "aborts_at_load = on\nnowhere = on\n");
	stage_open(&stage);
	report = moek_registry_listing(stage.registry, MOEK_TEXT);
	ck_assert_uint_eq(stage_logged(&stage, "6", "talks_at_open"), 0);
	ck_assert_ptr_nonnull(
		strstr(report, "aborts_at_load  unopened      native  0"));
	ck_assert_ptr_nonnull(strstr(report, "no note: open it to know more"));
	ck_assert_ptr_nonnull(strstr(report, "not_a_plugin"));
	ck_assert_ptr_nonnull(strstr(report, "missing"));
	moek_free(report);
	report = moek_registry_listing(stage.registry, MOEK_JSON);
	ck_assert_ptr_nonnull(strstr(report, "\"devices\": \"host\""));
	moek_free(report);
}
END_TEST

START_TEST(a_file_for_another_cpu_is_never_opened)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "needs_isa");
	stage_plugin(&stage, "no_symbol");
	stage_ini(&stage, "[priority]\nneeds_isa = on\ngood_host = on\n");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	ck_assert_int_eq(stage_candidate(&stage, "needs_isa").state,
	                 MOEK_STATE_UNUSABLE);
	ck_assert_uint_eq(stage_candidate(&stage, "needs_isa").verdict->rule,
	                  MOEK_RULE_ISA);
	ck_assert_int_eq(stage_candidate(&stage, "no_symbol").state,
	                 MOEK_STATE_NOT_PLUGIN);
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
}
END_TEST

START_TEST(facts_of_another_machine_do_not_open_a_file_that_is_not_for_this_one)
{
	char path[1024];

	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "needs_isa");
	stage_file(&stage, "facts.json",
	           "{ \"host\": { \"arch\": \"x\", \"features\": \"fake_word\" }, "
	           "\"devices\": [] }");
	snprintf(path, sizeof(path), "%s/facts.json", stage.folder);
	stage.options.facts_file = path;
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
	ck_assert_int_eq(stage_candidate(&stage, "needs_isa").state,
	                 MOEK_STATE_UNUSABLE);
}
END_TEST

START_TEST(a_note_that_lies_breaks_the_plugin)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "note_lies");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_OK);
	ck_assert_str_eq(stage_state(&stage, "note_lies"),
	                 "broken: version is '7' in the note, '0' in the descriptor");
	ck_assert_uint_eq(stage_candidate(&stage, "note_lies").verdict->rule,
	                  MOEK_RULE_NOTE_DISAGREES);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("note");
	TCase *tests = tcase_create("note");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, a_note_is_lines_of_key_and_value);
	tcase_add_test(tests, a_malformed_note_is_refused_with_its_place);
	tcase_add_test(tests,
	               every_isa_word_must_be_among_those_of_the_operating_system);
	tcase_add_test(tests, another_abi_is_named);
	tcase_add_test(tests, the_plugins_of_the_tree_have_notes);
	tcase_add_test(tests, what_is_no_plugin_is_told_from_what_is_broken);
	tcase_add_test(tests, a_file_cut_off_anywhere_is_damaged);
	tcase_add_test(tests, fifty_plugins_are_listed_unopened_in_milliseconds);
	tcase_add_test(tests, listing_opens_nothing);
	tcase_add_test(tests, a_file_for_another_cpu_is_never_opened);
	tcase_add_test(
		tests,
		facts_of_another_machine_do_not_open_a_file_that_is_not_for_this_one);
	tcase_add_test(tests, a_note_that_lies_breaks_the_plugin);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
