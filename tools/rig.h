/* SPDX-License-Identifier: MIT */
/* Where measurements run: one registry whose workers are exchanged between forwards, so
 * that one layer is timed with several numbers of threads in turn, and their probes. */
#ifndef MOEK_TOOLS_RIG_H
#define MOEK_TOOLS_RIG_H

#include "tools/machine.h"
#include "tools/probe.h"
#include "tools/tool.h"

struct rig {
	struct machine machine;
	struct moek_registry *registry;
	uint64_t pool_count;
	struct moek_registry *pools[MOST_LIST]; /* each for its threads alone */
	struct probe probes[MOST_LIST];
	struct probe_memory memory;
	struct moek_workers workers; /* of `registry`: those of one pool */
};

/** Pools as --threads says; otherwise one thread, and all. The workers in use are those
 * of the largest pool. @rig stays where it is until rig_close(), which it needs in any
 * case. */
int32_t rig_open(const struct options *options, struct rig *rig,
                 struct moek_error *error_out);
/** From now on the registry's work runs on pool @i. */
void rig_use(struct rig *rig, uint64_t i);
/** On the largest. */
void rig_use_all(struct rig *rig);
void rig_close(struct rig *rig);

void rig_print(const struct rig *rig);
void rig_write(struct writer *writer, const struct rig *rig);

/** Middle of @count values, and how far apart its quarters are, as a share of it. Sorts
 * them. */
double median(double *values, uint64_t count);
double quartile_spread(double *values, uint64_t count);

#endif
