/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/log.h"

#include <check.h>
#include <pthread.h>
#include <string.h>

static char last[2048];
static uint32_t last_level;
static unsigned calls;

static void write_line(void *self, uint32_t level, const char *text)
{
	(void)self;
	__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
	last_level = level;
	strncpy(last, text, sizeof(last) - 1);
}

static struct moek_log logger;

static void begin(void)
{
	calls = 0;
	moek_log_init(&logger, write_line, NULL);
}

static void end(void)
{
	moek_log_end(&logger);
}

START_TEST(a_line_reaches_the_callback)
{
	moek_log_write(&logger, MOEK_LOG_WARNING, "layer %d: %s", 5, "slow");
	ck_assert_str_eq(last, "layer 5: slow");
	ck_assert_uint_eq(last_level, MOEK_LOG_WARNING);
	ck_assert_uint_eq(calls, 1);
}
END_TEST

START_TEST(each_key_is_written_once_and_counted)
{
	for (int i = 0; i < 5; i++)
		moek_log_once(&logger, MOEK_LOG_INFO, "a", "call %d", i);
	moek_log_once(&logger, MOEK_LOG_INFO, "b", "other");
	ck_assert_uint_eq(calls, 2);
	ck_assert_str_eq(last, "other");
	ck_assert_uint_eq(moek_log_count(&logger, "a"), 5);
	ck_assert_uint_eq(moek_log_count(&logger, "b"), 1);
	ck_assert_uint_eq(moek_log_count(&logger, "c"), 0);
}
END_TEST

START_TEST(a_long_line_is_cut)
{
	char text[4000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	moek_log_write(&logger, MOEK_LOG_INFO, "%s", text);
	ck_assert_uint_eq(strlen(last), 1023);
}
END_TEST

START_TEST(nobody_needs_to_listen)
{
	struct moek_log silent;

	moek_log_init(&silent, NULL, NULL);
	moek_log_write(&silent, MOEK_LOG_ERROR, "unheard");
	moek_log_once(&silent, MOEK_LOG_ERROR, "a", "unheard");
	ck_assert_uint_eq(moek_log_count(&silent, "a"), 1);
	moek_log_end(&silent);
	moek_log_write(NULL, MOEK_LOG_ERROR, "unheard");
	moek_log_once(NULL, MOEK_LOG_ERROR, "a", "unheard");
	ck_assert_uint_eq(moek_log_count(NULL, "a"), 0);
	ck_assert_uint_eq(calls, 0);
}
END_TEST

/** A callback that logs: the lock must be free while it runs. */
static void log_again(void *self, uint32_t level, const char *text)
{
	(void)level;
	(void)text;
	if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == 1)
		moek_log_once(self, MOEK_LOG_INFO, "inner", "inner");
}

START_TEST(a_callback_may_log)
{
	struct moek_log nested;

	moek_log_init(&nested, log_again, &nested);
	moek_log_once(&nested, MOEK_LOG_INFO, "outer", "outer");
	ck_assert_uint_eq(calls, 2);
	moek_log_end(&nested);
}
END_TEST

static void *log_often(void *self)
{
	for (int i = 0; i < 1000; i++)
		moek_log_once(self, MOEK_LOG_INFO, i % 2 == 0 ? "even" : "odd", "line");
	return NULL;
}

static void count_only(void *self, uint32_t level, const char *text)
{
	(void)self;
	(void)level;
	(void)text;
	__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
}

START_TEST(threads_are_counted_together)
{
	struct moek_log shared;
	pthread_t threads[4];

	moek_log_init(&shared, count_only, NULL);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, log_often, &shared);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(calls, 2);
	ck_assert_uint_eq(moek_log_count(&shared, "even"), 2000);
	moek_log_end(&shared);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("log");
	TCase *tests = tcase_create("log");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, a_line_reaches_the_callback);
	tcase_add_test(tests, each_key_is_written_once_and_counted);
	tcase_add_test(tests, a_long_line_is_cut);
	tcase_add_test(tests, nobody_needs_to_listen);
	tcase_add_test(tests, a_callback_may_log);
	tcase_add_test(tests, threads_are_counted_together);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
