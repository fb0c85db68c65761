/* SPDX-License-Identifier: MIT */
/* The part of libcheck that the tests of GPU plugins use, for machines that have only a
 * compiler: no forks, the first failure ends the program. */
#ifndef MOEK_MINICHECK_H
#define MOEK_MINICHECK_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void minicheck_test(int _i);
typedef struct {
	void (*set_up)(void), (*tear_down)(void);
	struct {
		const char *name;
		minicheck_test *test;
		int first, end;
	} tests[64];
	int count;
	void *next; /* a suite's cases are a list */
} TCase;
typedef TCase Suite;
typedef TCase SRunner;
enum { CK_NORMAL };

#define START_TEST(name)                                                               \
	static void name(int _i)                                                       \
	{                                                                              \
		(void)_i;
#define END_TEST }

#define ck_assert_msg(good, ...)                                                       \
	((good) ? (void)0                                                              \
	        : (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__),         \
	           printf("\n"), exit(1)))
#define ck_assert(good) ck_assert_msg(good, "%s", #good)
#define ck_assert_int_eq(a, b) ck_assert((intmax_t)(a) == (intmax_t)(b))
#define ck_assert_int_gt(a, b) ck_assert((intmax_t)(a) > (intmax_t)(b))
#define ck_assert_int_ge(a, b) ck_assert((intmax_t)(a) >= (intmax_t)(b))
#define ck_assert_uint_eq(a, b) ck_assert((uintmax_t)(a) == (uintmax_t)(b))
#define ck_assert_uint_ne(a, b) ck_assert((uintmax_t)(a) != (uintmax_t)(b))
#define ck_assert_uint_ge(a, b) ck_assert((uintmax_t)(a) >= (uintmax_t)(b))
#define ck_assert_double_eq(a, b) ck_assert((a) <= (b) && (a) >= (b))
#define ck_assert_str_eq(a, b) ck_assert(strcmp(a, b) == 0)
#define ck_assert_str_ne(a, b) ck_assert(strcmp(a, b) != 0)
#define ck_assert_mem_eq(a, b, bytes) ck_assert(memcmp(a, b, bytes) == 0)
#define ck_assert_ptr_nonnull(a) ck_assert((a) != NULL)

#define tcase_add_test(t, name) minicheck_add(t, #name, name, 0, 1)
#define tcase_add_loop_test(t, name, first, end)                                       \
	minicheck_add(t, #name, name, first, end)

static inline void minicheck_add(TCase *t, const char *name, minicheck_test *test,
                                 int first, int end)
{
	t->tests[t->count].name = name;
	t->tests[t->count].test = test;
	t->tests[t->count].first = first;
	t->tests[t->count].end = end;
	t->count++;
}

static inline TCase *tcase_create(const char *name)
{
	(void)name;
	return calloc(1, sizeof(TCase));
}

static inline Suite *suite_create(const char *name)
{
	return tcase_create(name);
}

static inline SRunner *srunner_create(Suite *s)
{
	return s;
}

static inline void tcase_set_timeout(TCase *t, double seconds)
{
	(void)t;
	(void)seconds;
}

static inline void tcase_add_checked_fixture(TCase *t, void (*set_up)(void),
                                             void (*tear_down)(void))
{
	t->set_up = set_up;
	t->tear_down = tear_down;
}

static inline void suite_add_tcase(Suite *s, TCase *t)
{
	t->next = s->next;
	s->next = t;
}

static inline void srunner_run_all(SRunner *s, int how)
{
	TCase *c;
	int t, i;

	(void)how;
	for (c = (TCase *)s->next; c != NULL; c = (TCase *)c->next) {
		for (t = 0; t < c->count; t++)
			for (i = c->tests[t].first; i < c->tests[t].end; i++) {
				c->set_up();
				c->tests[t].test(i);
				c->tear_down();
			}
		printf("%d tests passed\n", c->count);
	}
}

static inline int srunner_ntests_failed(SRunner *s)
{
	(void)s;
	return 0; /* a failure has ended the program */
}

static inline void srunner_free(SRunner *s)
{
	free(s);
}

#endif
