/* SPDX-License-Identifier: MIT */
/*
 * What the guards of normal running cost: a layer of Qwen3-30B-A3B's shape (64 of its
 * experts) under each setting of `checks`, in turns, and under `shadow`; and the golden
 * test before it.
 *
 *     guards FOLDER BACKEND TOKENS REPETITIONS     guards plugins/.libs cpu 256 9
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/golden.h"
#include "tools/kernelcheck/run.h"

enum { MOST_REPETITIONS = 101, SHADOW = 6 };

static const char *const checks[] = { "off",    "fp_state", "guards", "poison",
	                              "inputs", "on",       "off" };
enum { WAYS = sizeof(checks) / sizeof(checks[0]) };

static struct moek_error error;

static void die(const char *what)
{
	fprintf(stderr, "guards: %s: %s\n", what, error.text);
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static struct moek_registry *open_registry(const char *folder, int way)
{
	const char *const dirs[] = { folder, NULL };
	const struct moek_setting settings[] = {
		{ "registry", "checks", checks[way] },
		{ "registry", "shadow", way == SHADOW ? "1" : "0" },
	};
	const struct moek_registry_options options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.config_file = "",
		.plugin_dirs = dirs,
		.settings = settings,
		.setting_count = 2,
		.ignore_environment = 1,
	};
	struct moek_registry *registry;

	if (moek_registry_open(&options, &registry, &error) != MOEK_OK)
		die("registry");
	return registry;
}

static int compare(const void *a, const void *b)
{
	double one = *(const double *)a, two = *(const double *)b;

	return one < two ? -1 : one > two;
}

static double median(double *times, int count)
{
	qsort(times, (size_t)count, sizeof(*times), compare);
	return times[count / 2];
}

static double run(const struct runner *runner, const struct tokens *tokens,
                  const struct rows *rows)
{
	double before = now();

	if (runner_forward(runner, tokens, rows, NULL, &error) != MOEK_OK)
		die("forward");
	return now() - before;
}

int main(int argc, char **argv)
{
	static double times[WAYS][MOST_REPETITIONS];
	struct moek_registry *registries[WAYS];
	struct runner runners[WAYS];
	struct material material;
	struct kernel_case c;
	struct rows rows;
	char request[64];
	int repetitions = argc == 5 ? atoi(argv[4]) : 0, ways;
	double before;

	if (repetitions < 1 || repetitions > MOST_REPETITIONS) {
		fputs("usage: guards FOLDER BACKEND TOKENS REPETITIONS\n", stderr);
		return 2;
	}
	/* who is the reference has no shadow */
	ways = strncmp(argv[2], "emulation", 9) == 0 ? SHADOW : WAYS;
	bench_at(0, &c);
	c.tokens = strtoull(argv[3], NULL, 10);
	c.problem.experts = c.problem.experts_local = 64;
	snprintf(request, sizeof(request), "require %s", argv[2]);
	if (!material_make(&c, 1, &material) ||
	    !rows_make(c.tokens, c.problem.hidden, c.problem.hidden,
	               c.problem.output_type, &rows))
		die("no memory");
	for (int way = 0; way < ways; way++) {
		registries[way] = open_registry(argv[1], way);
		before = now();
		if (way == 0 &&
		    moek_choose(registries[0], &material.problem, request, NULL,
		                &runners[0].choice, &error) != MOEK_OK)
			die(request);
		if (way == 0) {
			before = now();
			if (moek_golden_test(runners[0].choice, &error) != MOEK_OK)
				die("golden");
			printf("%s, %llu tokens: golden test %.2f ms\n",
			       moek_choice_winner(runners[0].choice),
			       (unsigned long long)c.tokens, 1e3 * (now() - before));
			moek_choice_destroy(runners[0].choice);
		}
		if (runner_open(registries[way], &material.problem, &material.source,
		                NULL, request, &runners[way], &error) != MOEK_OK)
			die("layer");
	}
	/* each in each place, and emulation, which empties the caches, apart */
	for (int i = -SHADOW; i < repetitions * SHADOW; i++) {
		int way = (i + 2 * SHADOW + i / SHADOW) % SHADOW;

		before = run(&runners[way], &material.tokens, &rows);
		if (i >= 0)
			times[way][i / SHADOW] = before;
	}
	for (int i = 0; i < repetitions && ways == WAYS; i++)
		times[SHADOW][i] = run(&runners[SHADOW], &material.tokens, &rows);
	for (int way = 0; way < ways; way++) {
		double time = median(times[way], repetitions);

		printf("%-10s %10.3f ms  %+7.2f%%\n",
		       way == SHADOW ? "shadow" : checks[way], 1e3 * time,
		       100 * (time / median(times[0], repetitions) - 1));
		runner_close(&runners[way]);
		moek_registry_close(registries[way]);
	}
	rows_free(&rows);
	material_free(&material);
	return 0;
}
