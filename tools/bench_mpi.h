/* SPDX-License-Identifier: MIT */
/* moek bench --parallel, of moek-mpi alone. */
#ifndef MOEK_TOOLS_BENCH_MPI_H
#define MOEK_TOOLS_BENCH_MPI_H

#include "tools/ranks.h"

/** Layers on 1, 2, 4 ... ranks of the job in turn. All ranks call it. */
int bench_ranks(const struct options *options);

#endif
