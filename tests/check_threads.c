/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/threads.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/memory.h"
#include "kit.h"

#define TASKS 1000

struct counts {
	_Atomic uint32_t task[TASKS];
	_Atomic uint32_t worker[8];
	_Atomic uint32_t inside[8]; /* bodies running under one worker number */
	_Atomic uint32_t shared;    /* that a worker number was used twice at once */
};

static void count(void *arg, uint64_t i, uint32_t worker)
{
	struct counts *counts = arg;

	if (atomic_fetch_add(&counts->inside[worker], 1) != 0)
		atomic_store(&counts->shared, 1);
	atomic_fetch_add(&counts->task[i], 1);
	atomic_fetch_add(&counts->worker[worker], 1);
	if (i % 100 == 0)
		sched_yield();
	atomic_fetch_sub(&counts->inside[worker], 1);
}

static const struct moek_workers *pool(uint32_t threads,
                                       struct moek_threads **threads_out)
{
	ck_assert_int_eq(moek_threads_create(threads, threads_out, NULL), MOEK_OK);
	return moek_threads_workers(*threads_out);
}

static void check_counts(const struct counts *counts, uint32_t runs)
{
	for (size_t i = 0; i < TASKS; i++)
		ck_assert_uint_eq(counts->task[i], runs);
	ck_assert_uint_eq(counts->shared, 0);
}

START_TEST(every_task_runs_once)
{
	static const uint32_t sizes[] = { 1, 2, 3, 8 };
	struct counts counts = { 0 };
	struct moek_threads *threads;
	const struct moek_workers *workers = pool(sizes[_i], &threads);

	ck_assert_uint_eq(workers->count, sizes[_i]);
	ck_assert_uint_eq(workers->struct_size, MOEK_WORKERS_SIZE_1_0);
	for (uint32_t run = 1; run <= 20; run++) {
		moek_parallel_for(workers, TASKS, count, &counts);
		check_counts(&counts, run);
	}
	for (uint32_t i = sizes[_i]; i < 8; i++)
		ck_assert_uint_eq(counts.worker[i], 0);
	moek_threads_destroy(threads);
}
END_TEST

struct meeting {
	pthread_barrier_t barrier;
};

static void meet(void *arg, uint64_t i, uint32_t worker)
{
	struct meeting *meeting = arg;

	(void)i;
	(void)worker;
	pthread_barrier_wait(&meeting->barrier);
}

START_TEST(tasks_run_at_the_same_time)
{
	struct meeting meeting;
	struct moek_threads *threads;
	const struct moek_workers *workers = pool(3, &threads);

	/* returns only if three tasks are in flight at once */
	pthread_barrier_init(&meeting.barrier, NULL, 3);
	moek_parallel_for(workers, 3, meet, &meeting);
	pthread_barrier_destroy(&meeting.barrier);
	moek_threads_destroy(threads);
}
END_TEST

START_TEST(no_task_means_no_call)
{
	struct counts counts = { 0 };
	struct moek_threads *threads;
	const struct moek_workers *workers = pool(2, &threads);

	moek_parallel_for(workers, 0, count, &counts);
	check_counts(&counts, 0);
	moek_threads_destroy(threads);
}
END_TEST

struct caller {
	const struct moek_workers *workers;
	struct counts counts;
};

static void *call_often(void *arg)
{
	struct caller *caller = arg;

	for (int run = 0; run < 50; run++)
		moek_parallel_for(caller->workers, TASKS, count, &caller->counts);
	return NULL;
}

START_TEST(two_callers_take_turns)
{
	struct moek_threads *threads;
	struct caller callers[2] = { 0 };
	pthread_t ids[2];

	callers[0].workers = callers[1].workers = pool(3, &threads);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(pthread_create(&ids[i], NULL, call_often, &callers[i]),
		                 0);
	for (int i = 0; i < 2; i++)
		pthread_join(ids[i], NULL);
	for (int i = 0; i < 2; i++)
		check_counts(&callers[i].counts, 50);
	moek_threads_destroy(threads);
}
END_TEST

START_TEST(zero_means_as_many_as_the_process_may_use)
{
	struct moek_threads *threads;
	uint32_t paid = moek_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup"), cpus;
	cpu_set_t all, one;
	int cpu = 0;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
	cpus = (uint32_t)CPU_COUNT(&all);
	ck_assert_uint_eq(pool(0, &threads)->count,
	                  paid > 0 && paid < cpus ? paid : cpus);
	moek_threads_destroy(threads);

	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
	ck_assert_uint_eq(pool(0, &threads)->count, 1);
	moek_threads_destroy(threads);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
}
END_TEST

/* cpu.max of a folder of cgroups, made if it is not there. */
static void set_quota(const char *root, const char *group, const char *text)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s%s", root, group);
	mkdir(path, 0755);
	strcat(path, "/cpu.max");
	kit_write(path, text, strlen(text));
}

START_TEST(the_quota_of_a_cgroup_counts)
{
	static const struct {
		const char *groups, *above, *mine;
		uint32_t cpus;
	} cases[] = {
		{ "0::/pod/box\n", "max 100000\n", "max 100000\n", 0 },
		{ "0::/pod/box\n", "max 100000\n", "200000 100000\n", 2 },
		{ "0::/pod/box\n", "max 100000\n", "150000 100000\n", 2 },
		{ "0::/pod/box\n", "max 100000\n", "1000 100000\n", 1 },
		{ "0::/pod/box\n", "100000 100000\n", "300000 100000\n", 1 },
		{ "0::/pod/box\n", "400000 100000\n", "300000 100000\n", 3 },
		{ "0::/pod\n", "400000 100000\n", "300000 100000\n", 4 },
		{ "4:cpu:/pod/box\n0::/pod/box\n", "max 1\n", "7 1\n", 7 },
		{ "4:cpu:/pod/box\n", "max 1\n", "7 1\n", 0 },
		{ "0::pod\n", "2 1\n", "7 1\n", 0 },
		{ "", "2 1\n", "7 1\n", 0 },
		{ "0::/pod/box\n", "7 0\n", "what\n", 0 },
		{ "0::/pod/box\n", "", "99999999999 1\n", 0 },
		{ "0::/pod/box/gone\n", "max 1\n", "5 1\n", 5 },
	};
	const char *root = kit_folder(), *groups = kit_path(root, "groups");

	kit_write(groups, cases[_i].groups, strlen(cases[_i].groups));
	set_quota(root, "/pod", cases[_i].above);
	set_quota(root, "/pod/box", cases[_i].mine);
	ck_assert_uint_eq(moek_cgroup_cpus(groups, root), cases[_i].cpus);
	ck_assert_uint_eq(moek_cgroup_cpus(kit_path(root, "none"), root), 0);
	kit_clean();
}
END_TEST

START_TEST(the_quota_at_the_root_counts)
{
	const char *root = kit_folder(), *groups = kit_path(root, "groups");

	/* as inside a container, which sees itself as the root */
	kit_write(groups, "0::/\n", 5);
	set_quota(root, "", "300000 100000\n");
	ck_assert_uint_eq(moek_cgroup_cpus(groups, root), 3);
	kit_clean();
}
END_TEST

START_TEST(too_many_are_refused)
{
	struct moek_error error;
	struct moek_threads *threads = NULL;

	ck_assert_int_eq(moek_threads_create(4097, &threads, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "threads: 4097 asked for, at most 4096 can be had");
	ck_assert_ptr_null(threads);
}
END_TEST

START_TEST(the_child_of_a_fork_works_alone)
{
	struct counts counts = { 0 };
	struct moek_threads *threads;
	const struct moek_workers *workers = pool(3, &threads);
	int status;
	pid_t child;

	moek_parallel_for(workers, TASKS, count, &counts);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		int good = 1;

		alarm(5);
		moek_parallel_for(workers, TASKS, count, &counts);
		for (size_t i = 0; i < TASKS; i++)
			good &= counts.task[i] == 2;
		moek_threads_destroy(threads);
		_exit(good ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	moek_threads_destroy(threads);
}
END_TEST

struct gate {
	pthread_barrier_t inside, leave;
};

static void wait_at_gate(void *arg, uint64_t i, uint32_t worker)
{
	struct gate *gate = arg;

	(void)i;
	(void)worker;
	pthread_barrier_wait(&gate->inside);
	pthread_barrier_wait(&gate->leave);
}

struct gate_caller {
	const struct moek_workers *workers;
	struct gate *gate;
};

static void *call_gate(void *arg)
{
	struct gate_caller *caller = arg;

	moek_parallel_for(caller->workers, 2, wait_at_gate, caller->gate);
	return NULL;
}

START_TEST(a_fork_amid_a_job_leaves_the_child_free)
{
	struct moek_threads *threads;
	struct gate gate;
	struct counts counts = { 0 };
	struct gate_caller caller = { pool(2, &threads), &gate };
	pthread_t id;
	int status;
	pid_t child;

	pthread_barrier_init(&gate.inside, NULL, 3);
	pthread_barrier_init(&gate.leave, NULL, 3);
	ck_assert_int_eq(pthread_create(&id, NULL, call_gate, &caller), 0);
	pthread_barrier_wait(&gate.inside);
	child = fork();
	if (child == 0) {
		int good = 1;

		alarm(2);
		moek_parallel_for(caller.workers, TASKS, count, &counts);
		for (size_t i = 0; i < TASKS; i++)
			good &= counts.task[i] == 1;
		_exit(good ? 0 : 1);
	}
	pthread_barrier_wait(&gate.leave);
	pthread_join(id, NULL);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	pthread_barrier_destroy(&gate.inside);
	pthread_barrier_destroy(&gate.leave);
	moek_threads_destroy(threads);
}
END_TEST

struct late {
	pthread_barrier_t both;
	_Atomic uint32_t done;
};

static void be_late(void *arg, uint64_t i, uint32_t worker)
{
	struct late *late = arg;

	(void)i;
	pthread_barrier_wait(&late->both);
	if (worker != 0)
		usleep(20000);
	atomic_fetch_add(&late->done, 1);
}

START_TEST(it_returns_when_the_last_task_is_done)
{
	struct moek_threads *threads;
	const struct moek_workers *workers = pool(2, &threads);
	struct late late = { .done = 0 };

	pthread_barrier_init(&late.both, NULL, 2);
	moek_parallel_for(workers, 2, be_late, &late);
	ck_assert_uint_eq(late.done, 2);
	pthread_barrier_destroy(&late.both);
	moek_threads_destroy(threads);
}
END_TEST

START_TEST(destroy_takes_null)
{
	moek_threads_destroy(NULL);
}
END_TEST

START_TEST(memory_is_aligned_and_whole)
{
	static const uint64_t sizes[] = { 1,       63,     4096, 100000, (2 << 20) - 1,
		                          2 << 20, 5000000 };

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (uint64_t align = 1; align <= 1 << 22; align *= 4) {
			unsigned char *memory = moek_memory_alloc(sizes[s], align);
			uint64_t least = align < 64 ? 64 : align;

			ck_assert_ptr_nonnull(memory);
			ck_assert_uint_eq((uintptr_t)memory % least, 0);
			memory[0] = 1;
			memory[sizes[s] - 1] = 2;
			moek_memory_free(memory);
		}
	moek_memory_free(NULL);
}
END_TEST

START_TEST(big_memory_is_not_touched)
{
	const uint64_t bytes = 64 << 20, page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char *memory = moek_memory_alloc(bytes, 64);
	unsigned char *present = calloc(1, bytes / page);

	ck_assert_ptr_nonnull(memory);
	ck_assert_uint_eq((uintptr_t)memory % (2 << 20), 0);
	ck_assert_int_eq(mincore(memory, bytes, present), 0);
	for (uint64_t i = 0; i < bytes / page; i++)
		ck_assert_uint_eq(present[i] & 1, 0);
	free(present);
	moek_memory_free(memory);
}
END_TEST

/* Is the mapping that holds @address asked to be of huge pages? -1: not said. */
static int asks_for_huge_pages(uintptr_t address)
{
	FILE *maps = fopen("/proc/self/smaps", "re");
	int inside = 0, asks = -1;
	char line[1024];

	ck_assert_ptr_nonnull(maps);
	while (asks < 0 && fgets(line, sizeof(line), maps) != NULL) {
		unsigned long first, last;

		if (sscanf(line, "%lx-%lx ", &first, &last) == 2)
			inside = address >= first && address < last;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			asks = strstr(line, " hg") != NULL;
	}
	fclose(maps);
	return asks;
}

START_TEST(big_memory_asks_for_huge_pages)
{
	uint8_t *big = moek_memory_alloc(8 << 20, 64);

	ck_assert_ptr_nonnull(big);
	ck_assert_uint_eq((uintptr_t)big % (2 << 20), 0);
	if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0)
		ck_assert_int_eq(asks_for_huge_pages((uintptr_t)big), 1);
	moek_memory_free(big);
}
END_TEST

START_TEST(memory_that_cannot_be_had_is_null)
{
	ck_assert_ptr_null(moek_memory_alloc(0, 64));
	ck_assert_ptr_null(moek_memory_alloc(UINT64_MAX, 64));
	ck_assert_ptr_null(moek_memory_alloc(UINT64_MAX - 100, 1 << 20));
	ck_assert_ptr_null(moek_memory_alloc((uint64_t)1 << 62, 64));
	ck_assert_ptr_null(moek_memory_alloc(100, UINT64_C(1) << 63));
	ck_assert_ptr_null(moek_memory_alloc(100, 48));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("threads");
	TCase *tests = tcase_create("threads");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_loop_test(tests, every_task_runs_once, 0, 4);
	tcase_add_test(tests, tasks_run_at_the_same_time);
	tcase_add_test(tests, no_task_means_no_call);
	tcase_add_test(tests, two_callers_take_turns);
	tcase_add_test(tests, zero_means_as_many_as_the_process_may_use);
	tcase_add_loop_test(tests, the_quota_of_a_cgroup_counts, 0, 14);
	tcase_add_test(tests, the_quota_at_the_root_counts);
	tcase_add_test(tests, too_many_are_refused);
	tcase_add_test(tests, the_child_of_a_fork_works_alone);
	tcase_add_test(tests, a_fork_amid_a_job_leaves_the_child_free);
	tcase_add_test(tests, it_returns_when_the_last_task_is_done);
	tcase_add_test(tests, destroy_takes_null);
	tcase_add_test(tests, memory_is_aligned_and_whole);
	tcase_add_test(tests, big_memory_is_not_touched);
	tcase_add_test(tests, big_memory_asks_for_huge_pages);
	tcase_add_test(tests, memory_that_cannot_be_had_is_null);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
