/* SPDX-License-Identifier: MIT */
/* What the forwards of GPU plugins share: scratch, arguments, launches. */
#ifndef MOEK_GPU_FORWARD_H
#define MOEK_GPU_FORWARD_H

#include <moek/experts.h>

#include "args.h"
#include "device.h"

struct gpu_grid {
	uint64_t x, y;
	unsigned int threads;
};

/** One launch; @arguments is the one by-value struct of the kernel. An empty grid is
 *  none. */
int32_t gpu_launch(const struct gpu_context *context, void *kernel,
                   const struct gpu_grid *grid, void *arguments, void *stream);

/** A buffer aligned to 256 bytes, alive from one stage to another. */
struct moek_buffer gpu_buffer(const char *name, uint32_t type, uint64_t elements,
                              uint32_t first_stage, uint32_t last_stage);

/** Most tiles that @slots can make: full ones, and a short one for each expert in use.
 */
uint64_t gpu_most_tiles(const struct moek_problem *problem, uint64_t slots);

/** 16-byte loads and whole rows: what an allocator of a device always gives. */
int32_t gpu_check_batch(const struct gpu_context *context, const char *plugin,
                        const struct moek_problem *problem,
                        const struct moek_batch *batch);

/** The part of the routing that is the same for all tokens of a batch. */
void gpu_fill_routing(const struct moek_problem *problem,
                      const struct moek_batch *batch, struct gpu_routing *routing_out);
void gpu_fill_activation(const struct moek_problem *problem,
                         struct gpu_activation *activation_out);
/** The part of the batch from token @first on; gives where its rows begin. */
void gpu_fill_tokens(const struct moek_problem *problem, const struct moek_batch *batch,
                     uint64_t first, uint64_t tokens, struct gpu_routing *routing,
                     const void **input_out, void **output_out);

#endif
