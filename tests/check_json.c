/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/json.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int32_t parse(const char *text, struct moek_json **root_out,
                     struct moek_error *error_out)
{
	return moek_json_parse(text, strlen(text), "t.json", root_out, error_out);
}

static struct moek_json *parse_ok(const char *text)
{
	struct moek_json *root = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_msg(parse(text, &root, &error) == MOEK_OK, "%s: %s", text,
	              error.text);
	return root;
}

START_TEST(reads_every_kind)
{
	struct moek_json *root = parse_ok(
		"{\"o\":{},\"a\":[1,2],\"s\":\"x\\u0000y\",\"i\":-7,"
		"\"r\":2.5,\"b\":true,\"n\":null}");
	const struct moek_json *a = moek_json_get(root, "a");
	int64_t integer = 0;
	double number = 0;
	size_t bytes = 0;
	int boolean = 0;

	ck_assert_int_eq(moek_json_kind(moek_json_get(root, "o")), MOEK_JSON_OBJECT);
	ck_assert_int_eq(moek_json_kind(a), MOEK_JSON_ARRAY);
	ck_assert_int_eq(moek_json_kind(moek_json_get(root, "n")), MOEK_JSON_NULL);
	ck_assert_uint_eq(moek_json_count(root), 7);
	ck_assert_uint_eq(moek_json_count(a), 2);
	ck_assert(moek_json_integer(moek_json_at(a, 1), &integer));
	ck_assert_int_eq(integer, 2);
	ck_assert_ptr_null(moek_json_at(a, 2));
	ck_assert(moek_json_integer(moek_json_get(root, "i"), &integer));
	ck_assert_int_eq(integer, -7);
	ck_assert(moek_json_number(moek_json_get(root, "i"), &number));
	ck_assert_double_eq(number, -7);
	ck_assert(moek_json_number(moek_json_get(root, "r"), &number));
	ck_assert_double_eq(number, 2.5);
	ck_assert(!moek_json_integer(moek_json_get(root, "r"), &integer));
	ck_assert(moek_json_bool(moek_json_get(root, "b"), &boolean));
	ck_assert_int_eq(boolean, 1);
	ck_assert(!moek_json_bool(moek_json_get(root, "i"), &boolean));
	ck_assert_str_eq(moek_json_string(moek_json_get(root, "s"), &bytes), "x");
	ck_assert_uint_eq(bytes, 3);
	moek_json_free(root);
}
END_TEST

START_TEST(absent_and_null_pointers_are_answers)
{
	struct moek_json *root = parse_ok("[1]");
	int64_t integer;

	ck_assert_ptr_null(moek_json_get(root, "a"));
	ck_assert_ptr_null(moek_json_get(NULL, "a"));
	ck_assert_ptr_null(moek_json_at(NULL, 0));
	ck_assert_ptr_null(moek_json_string(root, NULL));
	ck_assert_ptr_null(moek_json_string(NULL, NULL));
	ck_assert(!moek_json_integer(NULL, &integer));
	ck_assert_uint_eq(moek_json_count(NULL), 0);
	moek_json_free(root);
	moek_json_free(NULL);
}
END_TEST

START_TEST(goes_over_an_object_in_file_order)
{
	struct moek_json *root = parse_ok("{\"z\":1,\"a\":2,\"m\":3}");
	const struct moek_json *value;
	void *cursor = NULL;
	const char *key;
	char keys[8] = "";
	size_t bytes;
	int64_t integer, sum = 0;

	while ((value = moek_json_next(root, &cursor, &key, &bytes)) != NULL) {
		ck_assert_uint_eq(bytes, 1);
		strcat(keys, key);
		ck_assert(moek_json_integer(value, &integer));
		sum += integer;
	}
	ck_assert_str_eq(keys, "zam");
	ck_assert_int_eq(sum, 6);
	moek_json_free(root);
}
END_TEST

static const struct bad {
	const char *text, *says;
} bad[] = {
	{ "", "line 1: bad JSON" },
	{ "{\"a\":1,\"a\":2}", "duplicate object key" },
	{ "{\n\"a\":1,\n\"\\u0061\":2}", "line 3: bad JSON: duplicate object key" },
	{ "{\"a\":[{\"b\":1,\"b\":1}]}", "duplicate object key" },
	{ "{\"a\\u0000\":1}", "NUL byte in object key" },
	{ "{\"a\":1}x", "end of file expected" },
	{ "{\"a\":1}{}", "end of file expected" },
	{ "{\"a\":1,}", "bad JSON" },
	{ "{'a':1}", "bad JSON" },
	{ "/* */{}", "bad JSON" },
	{ "\xef\xbb\xbf{}", "bad JSON" },
	{ "\v{}", "bad JSON" },
	{ "hello", "bad JSON" },
	{ "[NaN]", "bad JSON" },
	{ "[02]", "bad JSON" },
	{ "[-0]", "-0 is not accepted" },
	{ "[\n-0", "line 2: bad JSON: -0 is not accepted" },
	{ "[18446744073709551616]", "too big integer" },
	{ "[1e999]", "overflow" },
	{ "[\"\\ud800\"]", "invalid Unicode" },
	{ "[\"\x01\"]", "control character" },
	{ "[\"\xff\"]", "unable to decode byte 0xff" },
	{ "[\"\xc0\x80\"]", "unable to decode byte 0xc0" },
	{ "[\"open", "bad JSON" },
	{ "[\"open\\", "bad JSON" },
};

START_TEST(refuses_what_is_no_strict_json)
{
	struct moek_json *root = NULL;
	struct moek_error error;

	ck_assert_int_eq(parse(bad[_i].text, &root, &error), MOEK_BAD_FILE);
	ck_assert_ptr_null(root);
	ck_assert_ptr_eq(strstr(error.text, "t.json: line "), error.text);
	ck_assert_msg(strstr(error.text, bad[_i].says) != NULL, "%s: %s", bad[_i].text,
	              error.text);
}
END_TEST

START_TEST(minus_zero_is_fine_where_the_sign_is_kept_or_quoted)
{
	struct moek_json *root = parse_ok("[-0.0, -0e1, \"-0\", \"\\\"-0\", -10]");

	ck_assert_int_eq(moek_json_kind(moek_json_at(root, 0)), MOEK_JSON_REAL);
	moek_json_free(root);
}
END_TEST

START_TEST(the_error_is_printable)
{
	struct moek_json *root = NULL;
	struct moek_error error;

	ck_assert_int_eq(parse("{\xc3\xa9\x1b[31m", &root, &error), MOEK_BAD_FILE);
	for (const char *c = error.text; *c != '\0'; c++)
		ck_assert(*c >= 0x20 && *c <= 0x7e);
}
END_TEST

START_TEST(nesting_is_capped_before_the_stack_is)
{
	enum { MANY = 100000 };
	char *text = malloc(MANY);
	struct moek_json *root = NULL;
	struct moek_error error;

	memset(text, '[', MANY);
	ck_assert_int_eq(moek_json_parse(text, MANY, "t.json", &root, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "nested more than 128 deep"));
	memset(text + 128, ']', 128);
	ck_assert_int_eq(moek_json_parse(text, 256, "t.json", &root, &error), MOEK_OK);
	moek_json_free(root);
	free(text);
}
END_TEST

START_TEST(text_that_was_built_reads_back)
{
	struct moek_json *root = moek_json_new_object(), *array = moek_json_new_array();
	struct moek_json *again;
	char *text;

	moek_json_append(array, moek_json_new_integer(INT64_MIN));
	moek_json_append(array, moek_json_new_number(0.1));
	moek_json_append(array, moek_json_new_number((double)INFINITY));
	moek_json_append(array, moek_json_new_bool(1));
	moek_json_set(root, "z", moek_json_new_string("caf\xc3\xa9 \"q\""));
	moek_json_set(root, "a", array);
	text = moek_json_text(root);
	ck_assert_str_eq(text, "{\n  \"z\": \"caf\xc3\xa9 \\\"q\\\"\",\n  \"a\": [\n"
	                       "    -9223372036854775808,\n    0.1,\n    null,\n"
	                       "    true\n  ]\n}");
	again = parse_ok(text);
	ck_assert_uint_eq(moek_json_count(again), 2);
	moek_json_free(again);
	free(text);
	moek_json_free(root);
}
END_TEST

START_TEST(a_string_that_is_not_utf8_is_escaped)
{
	struct moek_json *string = moek_json_new_string("a\xff");

	ck_assert_str_eq(moek_json_string(string, NULL), "a\\xff");
	moek_json_free(string);
}
END_TEST

START_TEST(what_was_lost_on_the_way_makes_no_text)
{
	struct moek_json *root = moek_json_new_object(), *inner = moek_json_new_array();

	moek_json_append(inner, NULL);
	moek_json_append(inner, moek_json_new_integer(1)); /* still broken after this */
	moek_json_append(inner, NULL);
	ck_assert_ptr_null(moek_json_text(inner));
	moek_json_set(root, "inner", inner);
	moek_json_set(root, "b", moek_json_new_integer(2));
	ck_assert_ptr_null(moek_json_text(root));
	ck_assert_ptr_null(moek_json_text(NULL));
	moek_json_free(root);

	moek_json_set(NULL, "k", moek_json_new_integer(1)); /* frees it */
}
END_TEST

START_TEST(reads_a_file_up_to_a_size)
{
	char path[] = "check_json_XXXXXX";
	int fd = mkstemp(path);
	struct moek_json *root = NULL;
	struct moek_error error;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, "{\"a\":1}", 7), 7);
	close(fd);
	ck_assert_int_eq(moek_json_read(path, 6, &root, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "7 bytes, at most 6 are read"));
	ck_assert_int_eq(moek_json_read(path, 7, &root, &error), MOEK_OK);
	moek_json_free(root);
	unlink(path);
	ck_assert_int_eq(moek_json_read(path, 7, &root, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "No such file"));
	ck_assert_int_eq(moek_json_read("/", 7, &root, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "not a regular file"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("json");
	TCase *tests = tcase_create("json");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, reads_every_kind);
	tcase_add_test(tests, absent_and_null_pointers_are_answers);
	tcase_add_test(tests, goes_over_an_object_in_file_order);
	tcase_add_loop_test(tests, refuses_what_is_no_strict_json, 0,
	                    (int)(sizeof(bad) / sizeof(bad[0])));
	tcase_add_test(tests, minus_zero_is_fine_where_the_sign_is_kept_or_quoted);
	tcase_add_test(tests, the_error_is_printable);
	tcase_add_test(tests, nesting_is_capped_before_the_stack_is);
	tcase_add_test(tests, text_that_was_built_reads_back);
	tcase_add_test(tests, a_string_that_is_not_utf8_is_escaped);
	tcase_add_test(tests, what_was_lost_on_the_way_makes_no_text);
	tcase_add_test(tests, reads_a_file_up_to_a_size);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
