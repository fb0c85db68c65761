/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/priority.h"
#include "stage.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Debian's inih has its options as variables; others have none of them. */
extern const char *ini_inline_comment_prefixes __attribute__((weak));
extern const char *ini_start_comment_prefixes __attribute__((weak));
extern int ini_max_line __attribute__((weak));

static struct moek_error error;
static struct moek_ini *ini;

static int32_t parse(const char *text)
{
	ini = NULL;
	memset(&error, 0, sizeof(error));
	return moek_ini_parse(text, strlen(text), "f.ini", &ini, &error);
}

static void accept(const char *text)
{
	ck_assert_msg(parse(text) == MOEK_OK, "%s", error.text);
}

/** Refused with @message ("3: no '='") at that line. */
static void refuse(const char *text, const char *message)
{
	char expected[128];

	ck_assert_msg(parse(text) == MOEK_BAD_CONFIG, "'%s' was read", text);
	snprintf(expected, sizeof(expected), "f.ini:%s", message);
	ck_assert_msg(strncmp(error.text, expected, strlen(expected)) == 0,
	              "'%s' instead of '%s'", error.text, expected);
	ck_assert_ptr_null(ini);
}

START_TEST(sections_keys_and_values_come_with_their_lines)
{
	accept("; comment\n# comment\n\n[a b]\nkey = value\n\nother=1:2;3 #4\n"
	       "[empty]\n[c]\nx =\nlast = one two");
	ck_assert_uint_eq(ini->count, 7);
	ck_assert_str_eq(ini->lines[0].section, "a b");
	ck_assert_ptr_null(ini->lines[0].key);
	ck_assert_uint_eq(ini->lines[0].number, 4);
	ck_assert_str_eq(ini->lines[1].key, "key");
	ck_assert_str_eq(ini->lines[1].value, "value");
	ck_assert_uint_eq(ini->lines[1].number, 5);
	ck_assert_str_eq(ini->lines[2].value, "1:2;3 #4");
	ck_assert_str_eq(ini->lines[3].section, "empty");
	ck_assert_str_eq(ini->lines[5].value, "");
	ck_assert_str_eq(ini->lines[6].value, "one two");
	ck_assert_uint_eq(ini->lines[6].number, 11);
	moek_ini_free(ini);
}
END_TEST

START_TEST(an_empty_file_is_fine)
{
	accept("");
	ck_assert_uint_eq(ini->count, 0);
	moek_ini_free(ini);
}
END_TEST

START_TEST(a_trap_of_inih_is_refused_with_its_line)
{
	/* a key that would become a further value of the one before */
	refuse("[a]\nx = 1\n enabled = no\n", "3: the line begins with a blank");
	refuse("[a]\nx = 1\n\tenabled = no\n", "3: the line begins with a blank");
	refuse(" [a]\n", "1: the line begins with a blank");
	refuse("[a]\nx = 1\n ; comment\n", "3: the line begins with a blank");
	/* ':' would be '=' */
	refuse("[a]\ncuda:0 = 10\n", "2: ':' before '='");
	refuse("[a]\nx : 10\n", "2: ':' before '='");
	/* the rest would be lost */
	refuse("[a]\nx = 1 ; one\n", "2: a comment behind a value");
	refuse("[a]\nx = 1\t;one\n", "2: a comment behind a value");
	refuse("[a]\nx = ;one\n", "2: a comment behind a value");
	refuse("[a]\nx =;one\n", "2: a comment behind a value");
	/* later keys would arrive under the section before */
	refuse("[a\nx = 1\n", "1: a section has no ']'");
	refuse("[a] b\nx = 1\n", "1: text behind the section's ']'");
	refuse("[a] ; b\nx = 1\n", "1: text behind the section's ']'");
	refuse("[a;b]\n", "1: [a;b]: a section is words");
	refuse("[ a]\n", "1: [ a]: a section is words");
	refuse("[a ]\n", "1: [a ]: a section is words");
	refuse("[a  b]\n", "1: [a  b]: a section is words");
	refuse("[]\n", "1: a section's name has 1 to 48 characters");
	/* duplicates would be invisible */
	refuse("[a]\nx = 1\n[b]\n[a]\n", "4: section [a] stands already in line 1");
	refuse("[a]\nx = 1\ny = 2\nx = 3\n", "4: x stands already in line 2 of [a]");
	/* lines that are none of these */
	refuse("x = 1\n", "1: a key before the first section");
	refuse("[a]\nx\n", "2: no '=' behind 'x'");
	refuse("[a]\n= 1\n", "2: neither a section");
	refuse("[a]\nx y = 1\n", "2: no '=' behind 'x'");
	refuse("[a]\nx[0] = 1\n", "2: no '=' behind 'x'");
	refuse("[a]\n\xc3\xa4 = 1\n", "2: neither a section");
	refuse("\xef\xbb\xbf[a]\n", "1: a byte order mark");
	refuse("[a]\r\nx = 1\r\n", "1: a carriage return");
	refuse("[a]\nx = 1\v2\n", "2: control character 0x0b");
	refuse("[a]\nx = \x7f\n", "2: control character 0x7f");
}
END_TEST

START_TEST(a_list_may_go_on_in_a_further_line)
{
	accept("[registry]\nplugin_dirs = a\nplugin_dirs = b\n");
	ck_assert_uint_eq(ini->count, 3);
	moek_ini_free(ini);
}
END_TEST

START_TEST(a_nul_does_not_end_the_file)
{
	static const char text[] = "[a]\nx = 1\n\0[b]\ny = 2\n";

	ck_assert_int_eq(moek_ini_parse(text, sizeof(text) - 1, "f.ini", &ini, &error),
	                 MOEK_BAD_CONFIG);
	ck_assert_str_eq(error.text, "f.ini:3: control character 0x00");
}
END_TEST

/** "[a]\n", then @count times 'x' in between @before and @after. */
static const char *long_line(const char *before, size_t count, const char *after)
{
	static char text[1024];
	size_t used = (size_t)snprintf(text, sizeof(text), "%s", before);

	memset(text + used, 'x', count);
	snprintf(text + used + count, sizeof(text) - used - count, "%s", after);
	return text;
}

START_TEST(what_inih_would_cut_is_refused_and_one_less_is_read)
{
	accept(long_line("[a]\nk = ", MOEK_INI_LINE_MOST - 4, "\n"));
	ck_assert_uint_eq(strlen(ini->lines[1].value), MOEK_INI_LINE_MOST - 4);
	moek_ini_free(ini);
	refuse(long_line("[a]\nk = ", MOEK_INI_LINE_MOST - 3, "\n"),
	       "2: the line has 197 bytes");

	accept(long_line("[", MOEK_INI_WORD_MOST, "]\nk = 1\n"));
	ck_assert_uint_eq(strlen(ini->lines[0].section), MOEK_INI_WORD_MOST);
	moek_ini_free(ini);
	refuse(long_line("[", MOEK_INI_WORD_MOST + 1, "]\nk = 1\n"),
	       "1: a section's name has 1 to 48 characters, this has 49");

	accept(long_line("[a]\n", MOEK_INI_WORD_MOST, " = 1\n"));
	ck_assert_uint_eq(strlen(ini->lines[1].key), MOEK_INI_WORD_MOST);
	moek_ini_free(ini);
	refuse(long_line("[a]\n", MOEK_INI_WORD_MOST + 1, " = 1\n"),
	       "2: a key has at most 48 characters, this has 49");
}
END_TEST

START_TEST(too_large_a_file_is_refused)
{
	char *text = calloc(1, MOEK_INI_FILE_MOST + 1);
	size_t used = (size_t)sprintf(text, "[a]\n");

	ck_assert_int_eq(
		moek_ini_parse(text, MOEK_INI_FILE_MOST + 1, "f.ini", &ini, &error),
		MOEK_BAD_CONFIG);
	ck_assert_ptr_nonnull(strstr(error.text, "1048577 bytes"));
	for (int i = 0; i < MOEK_INI_LINES_MOST; i++)
		used += (size_t)sprintf(text + used, "k%d = 1\n", i);
	refuse(text, "4097: more than 4096 settings");
	free(text);
}
END_TEST

START_TEST(what_is_no_file_is_refused)
{
	char folder[] = "ini_XXXXXX", path[64];

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/fifo", folder);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	ck_assert_int_eq(moek_ini_read(path, 0, &ini, &error), MOEK_BAD_CONFIG);
	ck_assert_ptr_nonnull(strstr(error.text, "not a regular file"));
	unlink(path);
	ck_assert_int_eq(moek_ini_read(folder, 1, &ini, &error), MOEK_BAD_CONFIG);
	ck_assert_int_eq(moek_ini_read(path, 0, &ini, &error), MOEK_BAD_CONFIG);
	ck_assert_ptr_nonnull(strstr(error.text, "No such file"));
	ini = (struct moek_ini *)folder;
	ck_assert_int_eq(moek_ini_read(path, 1, &ini, &error), MOEK_OK);
	ck_assert_ptr_null(ini);
	rmdir(folder);
}
END_TEST

START_TEST(this_machines_inih_passes_the_self_test)
{
	ck_assert_msg(moek_ini_self_test(&error) == MOEK_OK, "%s", error.text);
}
END_TEST

static void fails_the_self_test(const char *option)
{
	ck_assert_msg(moek_ini_self_test(&error) == MOEK_BAD_CONFIG, "%s", option);
	ck_assert_ptr_nonnull(strstr(error.text, "the installed inih"));
}

START_TEST(an_inih_of_other_options_fails_it)
{
	ini_max_line = 100;
	fails_the_self_test("shorter lines");
	ini_max_line = 200;
	ini_inline_comment_prefixes = "#";
	fails_the_self_test("other comments behind values");
	ini_inline_comment_prefixes = ";";
	ini_start_comment_prefixes = ";";
	fails_the_self_test("no # comments");
	ini_start_comment_prefixes = ";#";
	ck_assert_int_eq(moek_ini_self_test(&error), MOEK_OK);
}
END_TEST

START_TEST(a_file_that_inih_reads_otherwise_is_refused)
{
	ini_inline_comment_prefixes = "#";
	refuse("[a]\nx = 1 # 2\n", "2: the installed inih reads this otherwise");
	ini_inline_comment_prefixes = ";";
	accept("[a]\nx = 1 # 2\n");
	moek_ini_free(ini);
}
END_TEST

START_TEST(sections_of_the_order_are_kind_arch_scheme)
{
	struct moek_priority_match match;
	char why[160];

	ck_assert(moek_priority_parse("priority", &match, why, sizeof(why)));
	ck_assert(!match.has_kind && match.arch[0] == '\0' && match.scheme == 0);
	ck_assert(moek_priority_parse("priority int4", &match, why, sizeof(why)));
	ck_assert(!match.has_kind && match.scheme == MOEK_INT4);
	ck_assert(moek_priority_parse("priority cuda", &match, why, sizeof(why)));
	ck_assert(match.has_kind && match.kind == MOEK_CUDA && match.scheme == 0);
	ck_assert(
		moek_priority_parse("priority hip gfx1100", &match, why, sizeof(why)));
	ck_assert(match.kind == MOEK_HIP && strcmp(match.arch, "gfx1100") == 0);
	ck_assert(moek_priority_parse("priority hip mxfp4", &match, why, sizeof(why)));
	ck_assert(match.arch[0] == '\0' && match.scheme == MOEK_MXFP4);
	ck_assert(moek_priority_parse("priority host x86_64 bf16", &match, why,
	                              sizeof(why)));
	ck_assert(match.kind == MOEK_HOST && match.scheme == MOEK_BF16);

	ck_assert(!moek_priority_parse("priority mxfp5", &match, why, sizeof(why)));
	ck_assert_str_eq(why,
	                 "'mxfp5' is neither a device kind nor a weight scheme; did "
	                 "you mean 'mxfp4'?");
	ck_assert(!moek_priority_parse("priority i32", &match, why, sizeof(why)));
	ck_assert(!moek_priority_parse("priority int4 hip", &match, why, sizeof(why)));
	ck_assert_ptr_nonnull(strstr(why, "'hip' is one word too many"));
	ck_assert(!moek_priority_parse("priority hip a b", &match, why, sizeof(why)));
	ck_assert(!moek_priority_parse("priority hip a int4 b", &match, why,
	                               sizeof(why)));
}
END_TEST

START_TEST(the_installed_file_reads_well)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/../conf/moek.ini", getenv("MOEK_TEST_SOURCE"));
	ck_assert_msg(moek_ini_read(path, 0, &ini, &error) == MOEK_OK, "%s",
	              error.text);
	ck_assert_uint_ge(ini->count, 6);
	moek_ini_free(ini);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("priority");
	TCase *tests = tcase_create("priority");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, sections_keys_and_values_come_with_their_lines);
	tcase_add_test(tests, an_empty_file_is_fine);
	tcase_add_test(tests, a_trap_of_inih_is_refused_with_its_line);
	tcase_add_test(tests, a_list_may_go_on_in_a_further_line);
	tcase_add_test(tests, a_nul_does_not_end_the_file);
	tcase_add_test(tests, what_inih_would_cut_is_refused_and_one_less_is_read);
	tcase_add_test(tests, too_large_a_file_is_refused);
	tcase_add_test(tests, what_is_no_file_is_refused);
	tcase_add_test(tests, this_machines_inih_passes_the_self_test);
	if (&ini_max_line != NULL && &ini_inline_comment_prefixes != NULL &&
	    &ini_start_comment_prefixes != NULL) {
		tcase_add_test(tests, an_inih_of_other_options_fails_it);
		tcase_add_test(tests, a_file_that_inih_reads_otherwise_is_refused);
	} else {
		printf("skipped: 2 tests, this inih cannot be changed from outside\n");
	}
	tcase_add_test(tests, sections_of_the_order_are_kind_arch_scheme);
	tcase_add_test(tests, the_installed_file_reads_well);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
