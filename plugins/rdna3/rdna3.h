/* SPDX-License-Identifier: MIT */
/* What the files of this plugin share. Read plugin.c first. */
#ifndef MOEK_RDNA3_H
#define MOEK_RDNA3_H

#include <moek/experts.h>

#include "../gpu/forward.h"
#include "../gpu/plugin.h"
#include "args.h"

enum { RDNA3_CHUNK = 2048 }; /* tokens of one pass of the prefill kernels */

/* ---- layout.c: where things lie in the prepared bytes of one expert ---- */

struct rdna3_layout {
	struct rdna3_plane gate_up, down;
	uint64_t expert_bytes;
};

/** 0: a size does not fit. */
int rdna3_layout(const struct moek_problem *problem, struct rdna3_layout *layout_out);
/** Write all expert_bytes at @prepared_out, padding included. */
void rdna3_pack(const struct rdna3_layout *layout, const struct moek_expert *expert,
                unsigned char *prepared_out);

/* ---- forward.c: kernels and their launches ---- */

enum rdna3_kernel {
	RDNA3_SORT,
	RDNA3_TILES,
	RDNA3_REDUCE,
	RDNA3_INSTANCES, /* then for each of six instances the four kernels below */
	RDNA3_KERNELS = RDNA3_INSTANCES + 6 * 4
};
enum { RDNA3_GATE_UP_DECODE, RDNA3_DOWN_DECODE, RDNA3_GATE_UP_TILE, RDNA3_DOWN_TILE };

extern const char *const rdna3_kernel_names[RDNA3_KERNELS + 1];

struct rdna3_layer {
	struct gpu_context context;
	struct moek_device device;
	struct moek_problem problem;
	struct rdna3_layout layout;
	unsigned char *weights;
	void *const *kernels; /* of this device, RDNA3_KERNELS */
};

/** Most tokens that the decode kernels take of this problem. */
uint64_t rdna3_decode_tokens(const struct moek_problem *problem);
int32_t rdna3_workspace(const struct moek_problem *problem, uint64_t max_tokens,
                        struct moek_buffer *buffers_out, uint32_t capacity);
int32_t rdna3_forward(void *layer, const struct moek_batch *batch);

/* images.c, made by the build: one code object for each architecture */
extern const struct gpu_image rdna3_images[];

#endif
