/* SPDX-License-Identifier: MIT */
/* Timing of a layer that is known to be right. */
#ifndef KERNELCHECK_BENCH_H
#define KERNELCHECK_BENCH_H

#include "tools/kernelcheck/run.h"

struct timing {
	uint32_t runs;
	double median, low, high; /* seconds of one forward; low, high: quartiles */
	double expert_bytes;      /* prepared weights read by one forward */
	double flops;
};

/**
 * Time forwards of @runner. @batches of the same size follow each other, so that a
 * decoding layer does not find its last experts in the cache. Returns MOEK_OK or why
 * forward failed.
 */
int32_t bench(const struct runner *runner, const struct tokens *batches, uint64_t count,
              struct timing *timing_out, struct moek_error *error_out);

/**
 * The material of a model's layer: too large to be made as random as a case, so experts
 * are windows of one pool of random codes and scales, each at another place.
 */
struct model {
	struct moek_problem problem;
	struct moek_expert pool;
	struct moek_expert *experts; /* the windows */
	struct moek_source source;
	struct tokens *batches;
	uint64_t batch_count;
};

int model_make(const struct kernel_case *c, uint64_t seed, struct model *model_out);
void model_free(struct model *model);

#endif
