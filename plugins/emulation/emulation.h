/* SPDX-License-Identifier: MIT */
/* What the files of this plugin share. README.md says what is computed, and in which
 * order. */
#ifndef EMULATION_H
#define EMULATION_H

#include <stddef.h>

#include <moek/experts.h>

/* Tokens that one forward takes at a time: bounds the workspace. */
#define CHUNK_TOKENS UINT64_C(1024)

/** Where the parts of one projection of one expert lie, in bytes from its start. */
struct layout {
	uint64_t rows, columns, row_bytes, groups, group_size;
	uint64_t codes, scales, zeros, column_group, bias; /* input_scale is at 0 */
	uint64_t bytes;
};

struct layer {
	struct moek_problem problem;
	const struct moek_host *host;
	uint8_t *weights; /* [experts_local][expert_bytes]: gate, up (if gated), down */
	struct layout gate_up; /* of the gate rows; the same for the up rows */
	struct layout down;
	uint64_t expert_bytes;
};

/** Sizes of a prepared layer. Returns 0 when they do not fit 64 bits. */
int layer_sizes(const struct moek_problem *problem, struct layer *layer_out);

/** The buffers of workspace_shapes, in order. */
enum buffer {
	BUFFER_INPUT,
	BUFFER_ORDER,
	BUFFER_STARTS,
	BUFFER_TILES,
	BUFFER_ACTIVATED,
	BUFFER_SLOTS,
	BUFFER_COLUMNS,
	BUFFER_PANEL,
	BUFFER_SUMS,
	BUFFERS
};

int32_t plan_workspace(const struct moek_problem *problem, uint64_t max_tokens,
                       struct moek_buffer *buffers_out);

int32_t create(void *plugin, const struct moek_device *device,
               const struct moek_problem *problem, void *weights, void **layer_out);
int32_t load_expert(void *layer, uint64_t local, const struct moek_expert *expert);
int32_t finish(void *layer);
int32_t forward(void *layer, const struct moek_batch *batch);
void destroy(void *layer);

#endif
