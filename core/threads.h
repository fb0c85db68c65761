/* SPDX-License-Identifier: MIT */
/* The registry's own pool. */
#ifndef MOEK_CORE_THREADS_H
#define MOEK_CORE_THREADS_H

#include <moek/moek.h>

struct moek_threads;

/** @count workers (0: as many as this process may run on, and its cgroup pays for), the caller of parallel_for
 *  included. Threads start at the first parallel_for. */
int32_t moek_threads_create(uint32_t count, struct moek_threads **threads_out,
                            struct moek_error *error_out);
void moek_threads_destroy(struct moek_threads *threads);
/** parallel_for of these: one at a time; a second caller waits. */
const struct moek_workers *moek_threads_workers(struct moek_threads *threads);

/** Processors that the quota of a cgroup, or of one above it, pays for, rounded up; 0: no
 *  limit. @groups: as /proc/self/cgroup; @root: where cgroups (version 2) are mounted. */
uint32_t moek_cgroup_cpus(const char *groups, const char *root);

/** moek_workers of whichever kind: run body over tasks. */
void moek_parallel_for(const struct moek_workers *workers, uint64_t tasks,
                       void (*body)(void *arg, uint64_t i, uint32_t worker), void *arg);

#endif
