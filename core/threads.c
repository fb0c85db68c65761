/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/status.h"

#define MOST_WORKERS 4096u
#define MOST_CPUS 65536
/* How long who has nothing to do looks for more before it sleeps: a forward has several
 * jobs close together, and waking a thread takes longer than what lies between them. */
#define PATIENCE_NS 100000

struct job {
	void (*body)(void *arg, uint64_t i, uint32_t worker);
	void *arg;
	uint64_t tasks;
	_Atomic uint64_t next;
};

struct worker {
	struct moek_threads *threads;
	pthread_t id;
	uint32_t number; /* 1 and up: 0 is the caller */
};

struct moek_threads {
	struct moek_workers workers;
	pthread_mutex_t turn; /* held by the caller whose job it is */
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake, done;
	struct job job;
	/* how many there have been: a worker takes part once in each */
	_Atomic uint64_t jobs;
	_Atomic uint32_t inside;
	int open; /* the job may be entered */
	int stop;
	_Atomic pid_t owner; /* the process that has the threads; 0: not started. Read
	                        unlocked */
	uint32_t started;    /* of `worker` */
	struct worker worker[];
};

static void run_job(struct job *job, uint32_t worker)
{
	for (;;) {
		uint64_t i = atomic_fetch_add_explicit(&job->next, 1,
		                                       memory_order_relaxed);

		if (i >= job->tasks)
			return;
		job->body(job->arg, i, worker);
	}
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/** Until there is a job after number @seen, or patience ends. Gives way to who has
 * work. */
static void look_for_job(struct moek_threads *threads, uint64_t seen)
{
	int64_t end = now_ns() + PATIENCE_NS;

	while (atomic_load(&threads->jobs) == seen && now_ns() < end)
		sched_yield();
}

static void look_for_end(struct moek_threads *threads)
{
	int64_t end = now_ns() + PATIENCE_NS;

	while (atomic_load(&threads->inside) != 0 && now_ns() < end)
		sched_yield();
}

static void *worker_main(void *arg)
{
	struct worker *self = arg;
	struct moek_threads *threads = self->threads;
	uint64_t seen = 0, looked = 0; /* after which job it took part, and looked on */

	pthread_mutex_lock(&threads->lock);
	while (!threads->stop) {
		if (threads->open && threads->jobs != seen) {
			seen = threads->jobs;
			threads->inside++;
			pthread_mutex_unlock(&threads->lock);
			run_job(&threads->job, self->number);
			pthread_mutex_lock(&threads->lock);
			/* nothing is left: who wakes late stays out */
			threads->open = 0;
			if (--threads->inside == 0)
				pthread_cond_signal(&threads->done);
		} else if (threads->jobs != looked) {
			/* also who woke too late for a job: the next one is near */
			looked = threads->jobs;
			pthread_mutex_unlock(&threads->lock);
			look_for_job(threads, looked);
			pthread_mutex_lock(&threads->lock);
		} else {
			pthread_cond_wait(&threads->wake, &threads->lock);
		}
	}
	pthread_mutex_unlock(&threads->lock);
	return NULL;
}

/** Fewer threads than asked for are enough: the work is shared among those there are.
 */
static void start(struct moek_threads *threads)
{
	sigset_t all, before;

	threads->owner = getpid();
	/* signals are the host's business, on the host's threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (threads->started + 1 < threads->workers.count) {
		struct worker *worker = &threads->worker[threads->started];

		worker->threads = threads;
		worker->number = threads->started + 1;
		if (pthread_create(&worker->id, NULL, worker_main, worker) != 0)
			break;
		threads->started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void pool_for(void *self, uint64_t tasks,
                     void (*body)(void *arg, uint64_t i, uint32_t worker), void *arg)
{
	struct moek_threads *threads = self;
	pid_t owner = atomic_load(&threads->owner);

	/* the child of a fork has this pool's memory but none of its threads */
	if (tasks <= 1 || threads->workers.count == 1 ||
	    (owner != 0 && owner != getpid())) {
		for (uint64_t i = 0; i < tasks; i++)
			body(arg, i, 0);
		return;
	}
	pthread_mutex_lock(&threads->turn);
	if (threads->owner == 0)
		start(threads);
	pthread_mutex_lock(&threads->lock);
	threads->job.body = body;
	threads->job.arg = arg;
	threads->job.tasks = tasks;
	atomic_store_explicit(&threads->job.next, 0, memory_order_relaxed);
	threads->jobs++;
	threads->open = 1;
	pthread_cond_broadcast(&threads->wake);
	pthread_mutex_unlock(&threads->lock);
	run_job(&threads->job, 0);
	pthread_mutex_lock(&threads->lock);
	threads->open = 0;
	pthread_mutex_unlock(&threads->lock);
	look_for_end(threads);
	pthread_mutex_lock(&threads->lock);
	while (threads->inside != 0)
		pthread_cond_wait(&threads->done, &threads->lock);
	pthread_mutex_unlock(&threads->lock);
	pthread_mutex_unlock(&threads->turn);
}

/** What cpu.max of one folder says: "quota period", or "max period". 0: no limit. */
static uint32_t folder_cpus(const char *folder)
{
	char path[4096 + 16];
	unsigned long long quota, period;
	uint64_t cpus = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/cpu.max", folder);
	file = fopen(path, "re");
	if (file == NULL)
		return 0;
	if (fscanf(file, "%llu %llu", &quota, &period) == 2 && period > 0)
		cpus = quota / period + (quota % period != 0);
	fclose(file);
	return cpus > MOST_WORKERS ? 0 : (uint32_t)cpus;
}

/** The path of this process among the cgroups of version 2, "" if it is not known. */
static void find_group(const char *groups, char *group, size_t bytes)
{
	FILE *file = fopen(groups, "re");
	char line[4096];

	group[0] = '\0';
	if (file == NULL)
		return;
	while (fgets(line, sizeof(line), file) != NULL)
		if (strncmp(line, "0::", 3) == 0)
			snprintf(group, bytes, "%.*s", (int)strcspn(line + 3, "\n"),
			         line + 3);
	if (group[0] != '/')
		group[0] = '\0';
	fclose(file);
}

uint32_t moek_cgroup_cpus(const char *groups, const char *root)
{
	char group[4096], folder[4096];
	uint32_t least = 0;

	find_group(groups, group, sizeof(group));
	for (;;) {
		size_t length = strlen(group);
		uint32_t cpus;

		if (snprintf(folder, sizeof(folder), "%s%s", root, group) <
		    (int)sizeof(folder)) {
			cpus = folder_cpus(folder);
			if (cpus > 0 && (least == 0 || cpus < least))
				least = cpus;
		}
		if (length == 0)
			return least;
		*strrchr(group, '/') = '\0'; /* it begins with one */
	}
}

static uint32_t usable_cpus(void)
{
	for (int cpus = 1024; cpus <= MOST_CPUS; cpus *= 4) {
		cpu_set_t *set = CPU_ALLOC((size_t)cpus);
		size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
		int count = 0;

		if (set == NULL)
			break;
		if (sched_getaffinity(0, bytes, set) == 0)
			count = CPU_COUNT_S(bytes, set);
		CPU_FREE(set);
		if (count > 0)
			return (uint32_t)count;
	}
	return 1;
}

int32_t moek_threads_create(uint32_t count, struct moek_threads **threads_out,
                            struct moek_error *error_out)
{
	struct moek_threads *threads;

	if (count > MOST_WORKERS)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "threads: %u asked for, at most %u can be had", count,
		                 MOST_WORKERS);
	if (count == 0) {
		uint32_t paid = moek_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");

		count = usable_cpus();
		if (paid > 0 && paid < count)
			count = paid;
	}
	if (count > MOST_WORKERS)
		count = MOST_WORKERS;
	threads = calloc(1, sizeof(*threads) + count * sizeof(threads->worker[0]));
	if (threads == NULL)
		return moek_fail_memory(error_out, "thread pool");
	threads->workers.struct_size = MOEK_WORKERS_SIZE_1_0;
	threads->workers.count = count;
	threads->workers.self = threads;
	threads->workers.parallel_for = pool_for;
	pthread_mutex_init(&threads->turn, NULL);
	pthread_mutex_init(&threads->lock, NULL);
	pthread_cond_init(&threads->wake, NULL);
	pthread_cond_init(&threads->done, NULL);
	*threads_out = threads;
	return MOEK_OK;
}

void moek_threads_destroy(struct moek_threads *threads)
{
	if (threads == NULL)
		return;
	if (threads->owner == getpid()) {
		pthread_mutex_lock(&threads->lock);
		threads->stop = 1;
		pthread_cond_broadcast(&threads->wake);
		pthread_mutex_unlock(&threads->lock);
		for (uint32_t i = 0; i < threads->started; i++)
			pthread_join(threads->worker[i].id, NULL);
		pthread_cond_destroy(&threads->done);
		pthread_cond_destroy(&threads->wake);
		pthread_mutex_destroy(&threads->lock);
		pthread_mutex_destroy(&threads->turn);
	}
	free(threads);
}

const struct moek_workers *moek_threads_workers(struct moek_threads *threads)
{
	return &threads->workers;
}

void moek_parallel_for(const struct moek_workers *workers, uint64_t tasks,
                       void (*body)(void *arg, uint64_t i, uint32_t worker), void *arg)
{
	workers->parallel_for(workers->self, tasks, body, arg);
}
