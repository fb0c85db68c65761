/* SPDX-License-Identifier: MIT */
/* Groups N, F and E: layers, made and run beside emulation. */
#include "config.h"

#include "tools/kernelcheck/check.h"
#include "tools/verify/verify.h"

#include <dirent.h>
#include <fenv.h>
#include <float.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BACKENDS 32

uint64_t verify_number_count(void)
{
	return case_count();
}

void verify_number_name(uint64_t index, char name_out[80])
{
	struct kernel_case c;

	case_at(index, &c);
	snprintf(name_out, 80, "N.%s", c.name);
}

/** A skip whose device is not here is a claim that was not run. */
static enum verify_outcome outcome_of(const struct answer *answer)
{
	if (answer->outcome != SKIPPED)
		return answer->outcome == PASSED ? VERIFY_PASSED : VERIFY_FAILED;
	return strncmp(answer->text, "refused,", 8) == 0 ? VERIFY_SKIPPED
	                                                 : VERIFY_UNRUN;
}

/** Every backend of the file on one case. Returns how many passed. */
static uint64_t check_all(const struct verify_task *task, const struct kernel_case *c)
{
	struct moek_error error = { .text = "" };
	char names[BACKENDS][64];
	struct material material;
	uint64_t count, passed = 0;
	struct bed bed;

	if (bed_open(task->plugin, task->reference, task->config, task->threads, &bed,
	             &error) != MOEK_OK) {
		verify_say(task, VERIFY_FAILED, "", "%s", error.text);
		return 0;
	}
	if (!material_make(c, task->seed, &material)) {
		verify_say(task, VERIFY_FAILED, "", "no memory for this case");
		bed_close(&bed);
		return 0;
	}
	count = check_backends(&bed, &material.problem, names, BACKENDS);
	for (uint64_t i = 0; i < count; i++) {
		struct answer answer;

		check_case(&bed, &material, c, names[i], &answer);
		verify_say(task, outcome_of(&answer), names[i], "%s", answer.text);
		passed += answer.outcome == PASSED;
	}
	if (count == 0)
		verify_say(task, VERIFY_FAILED, "",
		           "none of its backends is a candidate");
	material_free(&material);
	bed_close(&bed);
	return passed;
}

void verify_numbers(const struct verify_task *task, uint64_t index)
{
	struct kernel_case c;

	case_at(index, &c);
	check_all(task, &c);
}

/* ---- random problems ---- */

void verify_random(const struct verify_task *task, uint64_t seed)
{
	struct verify_task random = *task;
	struct kernel_case c;

	random.seed = seed;
	case_random(seed, &c);
	check_all(&random, &c);
}

/* ---- what a forward leaves behind ---- */

struct world {
	char locale[512], folder[4096];
	mode_t mask;
	int rounding;
	size_t threads, descriptors;
};

static size_t count_entries(const char *path)
{
	DIR *folder = opendir(path);
	size_t count = 0;

	while (folder != NULL && readdir(folder) != NULL)
		count++;
	if (folder != NULL)
		closedir(folder);
	return count;
}

static void look(struct world *world)
{
	snprintf(world->locale, sizeof(world->locale), "%s", setlocale(LC_ALL, NULL));
	if (getcwd(world->folder, sizeof(world->folder)) == NULL)
		world->folder[0] = '\0';
	world->mask = umask(077);
	umask(world->mask);
	world->rounding = fegetround();
	world->threads = count_entries("/proc/self/task");
	world->descriptors = count_entries("/proc/self/fd");
}

static int flushes_subnormals(void)
{
	volatile float smallest = FLT_MIN, half = 0.5f;

	return smallest * half == 0;
}

static const char *find_change(const struct world *a, const struct world *b)
{
	return strcmp(a->locale, b->locale) != 0   ? "changes the locale"
	       : strcmp(a->folder, b->folder) != 0 ? "changes the current directory"
	       : a->mask != b->mask                ? "changes the umask"
	       : a->rounding != b->rounding        ? "changes how the thread rounds"
	       : flushes_subnormals()     ? "makes the thread flush small numbers"
	       : a->threads != b->threads ? "leaves threads behind"
	       : a->descriptors != b->descriptors ? "leaves descriptors open"
	                                          : NULL;
}

static void *nothing(void *argument)
{
	return argument;
}

/* Have the runtime start what it starts with a program's first thread (the thread
 * sanitizer's has one of its own), before threads are counted. */
static void start_runtime(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, nothing, NULL) == 0)
		pthread_join(thread, NULL);
}

/* A joined thread is still listed for a moment, so a greater number gets a second. */
static void look_when_calm(const struct world *before, struct world *after)
{
	const struct timespec pause = { .tv_nsec = 10000000 };

	look(after);
	for (int i = 0; i < 100 && after->threads > before->threads; i++) {
		nanosleep(&pause, NULL);
		look(after);
	}
}

void verify_effects(const struct verify_task *task)
{
	struct verify_task silent = *task;
	static struct world before, after;
	const char *change;
	uint64_t passed = 0;

	silent.verify = NULL;
	start_runtime();
	look(&before);
	for (uint64_t i = 0; i < case_count() && passed == 0; i += 7) {
		struct kernel_case c;

		case_at(i, &c);
		passed = check_all(&silent, &c);
	}
	look_when_calm(&before, &after);
	change = find_change(&before, &after);
	if (passed == 0)
		verify_say(task, VERIFY_UNRUN, "", "no layer of it ran");
	else
		verify_say(task, change == NULL ? VERIFY_PASSED : VERIFY_FAILED, "",
		           "%s", change != NULL ? change : "");
}
