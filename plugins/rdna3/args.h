/* SPDX-License-Identifier: MIT */
/* What the host and the kernels agree on: the argument block, the layout of the
 * prepared weights, the sizes of blocks. Plain C for three compilers; layout.c and
 * README.md explain. */
#ifndef MOEK_RDNA3_ARGS_H
#define MOEK_RDNA3_ARGS_H

enum {
	RDNA3_BLOCK = 32,         /* columns of one 16-byte piece of codes */
	RDNA3_ROWS = 16,          /* rows of one tile of codes */
	RDNA3_WAVES = 8,          /* of a decode block: 256 threads */
	RDNA3_DECODE_TOKENS = 8,  /* up to here the decode kernels run */
	RDNA3_DECODE_SLOTS = 256, /* tokens * top_k that they can hold */
	RDNA3_TILE_TOKENS = 64,   /* most rows of one prefill tile */
	RDNA3_TILE_WAVES = 4,     /* of a prefill block: 128 threads */
	RDNA3_TILE_STRIDE = 80 /* bytes from row to row in LDS: 64, and 16 so that eight
	                          rows fall into different banks */
};

/* the same numbers as enum moek_type and enum moek_activation: checked in plugin.c */
enum { RDNA3_F32 = 1, RDNA3_F16 = 2, RDNA3_BF16 = 3, RDNA3_E8M0 = 5 };
enum {
	RDNA3_SILU = 1,
	RDNA3_GELU = 2,
	RDNA3_GELU_TANH = 3,
	RDNA3_SWIGLU_OAI = 5,
	RDNA3_SWIGLU_STEP = 6,
	RDNA3_SITU = 7
};

/* how a 4-bit code becomes a number */
enum { RDNA3_INT4 = 0, RDNA3_INT4_ZEROS = 1, RDNA3_MXFP4 = 2 };

/* one projection inside the bytes of one expert; offsets in bytes */
struct rdna3_plane {
	unsigned long long codes, scales, zeros, bias;
	unsigned int blocks;      /* columns / 32 */
	unsigned int groups;      /* of a row */
	unsigned int group_shift; /* group of block b: b >> group_shift */
	unsigned int scale;       /* RDNA3_F16, RDNA3_BF16, RDNA3_E8M0 */
	unsigned int has_bias, reserved;
};

/* one row tile of the prefill kernels */
struct rdna3_tile {
	unsigned int expert; /* local */
	unsigned int first;  /* place in `sorted` */
	unsigned int rows;   /* 1 .. 64 */
	unsigned int reserved;
};

struct rdna3_args {
	const void *input;         /* [tokens][hidden] */
	void *output;              /* [tokens][hidden] */
	const int *topk_ids;       /* [tokens][top_k], as the router gave them */
	const float *topk_weights; /* or NULL */
	const int *expert_map;     /* [experts] or NULL */
	const unsigned char *weights;
	void *activated;  /* decode: [slots][intermediate]; prefill: in sorted order */
	float *slots_out; /* [slots][hidden] */
	unsigned int *sorted; /* [slots]: routed slots by expert, ascending */
	unsigned int *first;  /* [experts_local + 2]: places in `sorted`; last: tiles */
	struct rdna3_tile *tiles;
	unsigned long long expert_bytes;
	struct rdna3_plane gate_up, down;
	unsigned int tokens, top_k, slots; /* slots = tokens * top_k */
	unsigned int experts, experts_local;
	unsigned int hidden, intermediate;
	unsigned int output_type;
	unsigned int activation, weight_on_input;
	float alpha, beta, limit;
	unsigned int reserved;
};

#endif
