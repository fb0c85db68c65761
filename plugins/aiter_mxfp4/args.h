/* SPDX-License-Identifier: MIT */
/* What the host and the kernels agree on: the argument block, the layout of the
 * prepared weights, the sizes of blocks. Plain C for three compilers; layout.c and
 * README.md explain. */
#ifndef MOEK_AITER_MXFP4_ARGS_H
#define MOEK_AITER_MXFP4_ARGS_H

#include "../gpu/args.h"

enum {
	MXFP4_BLOCK = 32, /* columns that share a scale */
	MXFP4_STEP = 128, /* columns of one scaled multiply: sizes are padded to it */
	MXFP4_PANEL = 32, /* gate rows, with their up rows, of one wave */
	MXFP4_DOWN_PANEL = 64,    /* rows of down of one wave */
	MXFP4_WAVES = 4,          /* of a block: 256 threads */
	MXFP4_DECODE_TOKENS = 16, /* up to here the decode kernels run */
	MXFP4_DECODE_SLOTS = 256, /* tokens * top_k that they can hold */
	MXFP4_ROWS = 16,          /* tokens of one multiply */
	MXFP4_PAD = 16 /* bytes behind a row in LDS, so that rows fall into different
	                  banks */
};

/* what the first operand is: activations in the kernels, in this order */
enum { MXFP4_A4 = 0, MXFP4_A8 = 1, MXFP4_F16 = 2, MXFP4_BF16 = 3, MXFP4_FORMATS = 4 };

/* one projection of all experts; offsets in bytes, those of expert 0 */
struct mxfp4_plane {
	unsigned long long codes, scales, bias, input_scales;
	unsigned long long codes_bytes, scales_bytes; /* of one expert */
	unsigned int rows;                            /* of one expert, padded */
	unsigned int steps;                           /* padded columns / 128 */
	unsigned int blocks;                          /* columns / 32, not padded */
	unsigned int scale_columns;                   /* padded to 8 */
	unsigned int has_bias, has_input_scale;
};

struct mxfp4_args {
	const void *input; /* [tokens][hidden] */
	void *output;      /* [tokens][hidden] */
	const unsigned char *weights;
	/* rows that the first multiply reads, padded: A4 [tokens], A8 [slots] */
	unsigned char *quantised, *quantised_scales;
	/* rows that the second reads, padded: [slots] */
	unsigned char *activated, *activated_scales;
	float *slots_out; /* [slots][hidden] */
	/* for AITER's kernel: [slots], [slots], [tokens][hidden] bf16 and 8 bytes
	 * behind */
	int *flat_ids;
	float *flat_weights;
	unsigned short *flat_output;
	struct mxfp4_plane gate_up, down;
	struct gpu_routing routing;
	struct gpu_activation activation;
	unsigned int hidden, intermediate;
	unsigned int input_type, output_type;
	unsigned int round_up; /* rule of the shared exponent: else even */
	unsigned int reserved;
};

#endif
