/* SPDX-License-Identifier: MIT */
/* What the host and the kernels agree on: the argument block, the layout of the
 * prepared weights, the sizes of blocks. Plain C for three compilers; layout.c and
 * README.md explain. */
#ifndef MOEK_RDNA3_ARGS_H
#define MOEK_RDNA3_ARGS_H

#include "../gpu/args.h"

enum {
	RDNA3_BLOCK = 32,         /* columns of one 16-byte piece of codes */
	RDNA3_ROWS = 16,          /* rows of one tile of codes */
	RDNA3_WAVES = 8,          /* of a decode block: 256 threads */
	RDNA3_DECODE_TOKENS = 8,  /* up to here the decode kernels run */
	RDNA3_DECODE_SLOTS = 256, /* tokens * top_k that they can hold */
	RDNA3_TILE_WAVES = 4,     /* of a prefill block: 128 threads */
	RDNA3_TILE_STRIDE = 80 /* bytes from row to row in LDS: 64, and 16 so that eight
	                          rows fall into different banks */
};

/* how a 4-bit code becomes a number */
enum { RDNA3_INT4 = 0, RDNA3_INT4_ZEROS = 1, RDNA3_MXFP4 = 2 };

/* one projection inside the bytes of one expert; offsets in bytes */
struct rdna3_plane {
	unsigned long long codes, scales, zeros, bias;
	unsigned int blocks;      /* columns / 32 */
	unsigned int groups;      /* of a row */
	unsigned int group_shift; /* group of block b: b >> group_shift */
	unsigned int scale;       /* GPU_F16, GPU_BF16, GPU_E8M0 */
	unsigned int has_bias, reserved;
};

struct rdna3_args {
	const void *input; /* [tokens][hidden] */
	void *output;      /* [tokens][hidden] */
	const unsigned char *weights;
	void *activated;  /* decode: [slots][intermediate]; prefill: in sorted order */
	float *slots_out; /* [slots][hidden] */
	unsigned long long expert_bytes;
	struct rdna3_plane gate_up, down;
	struct gpu_routing routing;
	struct gpu_activation activation;
	unsigned int hidden, intermediate;
	unsigned int output_type;
	unsigned int reserved;
};

#endif
