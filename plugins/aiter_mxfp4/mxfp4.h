/* SPDX-License-Identifier: MIT */
/* What the files of this plugin share. Read plugin.c first. */
#ifndef MOEK_AITER_MXFP4_H
#define MOEK_AITER_MXFP4_H

#include <moek/experts.h>

#include "../gpu/forward.h"
#include "../gpu/plugin.h"
#include "aiter.h"
#include "args.h"

enum {
	MXFP4_CHUNK = 2048
}; /* tokens of one pass of the tile kernels: bounds scratch */

/* ---- layout.c: where the bytes of a weight go ---- */

struct mxfp4_layout {
	struct mxfp4_plane gate_up, down;
	uint64_t experts;
	uint64_t bytes; /* of all experts */
};

/* bytes of one expert that lie together in the prepared memory */
struct mxfp4_piece {
	uint64_t offset, bytes;
};
enum { MXFP4_PIECES = 8 };

/** 0: a size does not fit. */
int mxfp4_layout(const struct moek_problem *problem, struct mxfp4_layout *layout_out);
/** Where the bytes of an expert go; what has none has 0 bytes. Gives their sum. */
uint64_t mxfp4_pieces(const struct mxfp4_layout *layout, uint64_t local,
                      struct mxfp4_piece *pieces_out);
/** Write all pieces of an expert, one behind the other, padding included. */
void mxfp4_pack(const struct mxfp4_layout *layout, uint64_t local,
                const struct moek_expert *expert, unsigned char *prepared_out);

/* ---- forward.c: kernels and their launches ---- */

enum mxfp4_kernel {
	MXFP4_SORT,
	MXFP4_TILES,
	MXFP4_REDUCE,
	MXFP4_FLAT_BEGIN,
	MXFP4_FLAT_END,
	MXFP4_QUANTISE,                       /* A4, A8, each of fp32, fp16, bf16 */
	MXFP4_INSTANCES = MXFP4_QUANTISE + 6, /* of each format the four below */
	MXFP4_KERNELS = MXFP4_INSTANCES + 4 * MXFP4_FORMATS
};
enum { MXFP4_GATE_UP_DECODE, MXFP4_DOWN_DECODE, MXFP4_GATE_UP_TILE, MXFP4_DOWN_TILE };

extern const char *const mxfp4_kernel_names[MXFP4_KERNELS + 1];

struct mxfp4_layer {
	struct gpu_context context;
	struct moek_device device;
	struct moek_problem problem;
	struct mxfp4_layout layout;
	unsigned char *weights;
	void *const *kernels; /* of this device, MXFP4_KERNELS */
	struct aiter *aiter;  /* NULL: its kernels do not run here */
};

/** Most tokens that the decode kernels take of this problem. */
uint64_t mxfp4_decode_tokens(const struct moek_problem *problem);
/** @flat: AITER's kernels may run. */
int32_t mxfp4_workspace(const struct moek_problem *problem, int flat,
                        uint64_t max_tokens, struct moek_buffer *buffers_out,
                        uint32_t capacity);
int32_t mxfp4_forward(void *layer, const struct moek_batch *batch);

/* images.c, made by the build: one code object for each architecture */
extern const struct gpu_image mxfp4_images[];

#endif
