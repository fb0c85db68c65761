/* SPDX-License-Identifier: MIT */
/* `--parallel experts`: the experts of each layer on the ranks of an MPI job. moek itself
 * knows no MPI: it becomes the program moek-mpi, which is moek with ranks_mpi.c. */
#ifndef MOEK_TOOLS_RANKS_H
#define MOEK_TOOLS_RANKS_H

#include "tools/tool.h"
#include "tools/work.h"
#include "tools/writer.h"

#include <stddef.h>

/** All calls are made by all ranks, and fail on all. */
struct ranks {
	int rank, count;
	/** @registry NULL: it could not be opened, *error says why. */
	int32_t (*open)(struct ranks *ranks, struct moek_registry *registry,
	                struct moek_error *error);
	int32_t (*agree)(struct ranks *ranks, int32_t status, struct moek_error *error);
	int32_t (*same_checkpoint)(struct ranks *ranks, struct moek_checkpoint *checkpoint,
	                           struct moek_error *error);
	/** Prepare this rank's experts: sets work->parallel and work->shown. */
	int32_t (*make)(struct ranks *ranks, struct work *work, struct moek_error *error);
	/** Each rank runs its share of the tokens; all of the output comes to all ranks. */
	int32_t (*forward)(struct ranks *ranks, struct work *work,
	                   struct moek_error *error);
	void (*gather)(struct ranks *ranks, struct work *work);
	void (*end)(struct ranks *ranks, struct work *work);
	/** Sums over the ranks. */
	void (*add)(struct ranks *ranks, float *values, uint64_t count);
	/** What each rank has done. @writer NULL: as text. */
	void (*report)(struct ranks *ranks, struct writer *writer);
	void (*close)(struct ranks *ranks);
};

/** Run @command on all ranks. @arguments: those of main(). */
int ranks_run(const struct command *command, struct options *options,
              char **arguments);

/** @status, or with ranks what they agree on. */
static inline int32_t ranks_agree(struct ranks *ranks, int32_t status,
                                  struct moek_error *error)
{
	return ranks != NULL ? ranks->agree(ranks, status, error) : status;
}

#endif
