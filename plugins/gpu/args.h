/* SPDX-License-Identifier: MIT */
/* What hosts and kernels of all GPU plugins agree on. Plain C for three compilers. */
#ifndef MOEK_GPU_ARGS_H
#define MOEK_GPU_ARGS_H

/* the same numbers as enum moek_type and enum moek_activation: checked in plugin.c */
enum { GPU_F32 = 1, GPU_F16 = 2, GPU_BF16 = 3, GPU_E8M0 = 5 };
enum {
	GPU_SILU = 1,
	GPU_GELU = 2,
	GPU_GELU_TANH = 3,
	GPU_SWIGLU_OAI = 5,
	GPU_SWIGLU_STEP = 6,
	GPU_SITU = 7
};
enum { GPU_TILE_ROWS = 64 }; /* most slots of one tile of the sorted order */

/* some slots of one expert */
struct gpu_rows {
	unsigned int expert; /* local */
	unsigned int first;  /* place in `sorted` */
	unsigned int rows;   /* 1 .. GPU_TILE_ROWS */
	unsigned int reserved;
};

/* which slot goes where; routing.h sorts */
struct gpu_routing {
	const int *topk_ids;       /* [tokens][top_k], as the router gave them */
	const float *topk_weights; /* or NULL */
	const int *expert_map;     /* [experts] or NULL */
	unsigned int *sorted;      /* [slots]: routed slots by expert, ascending */
	unsigned int *first; /* [experts_local + 2]: places in `sorted`; last: tiles */
	struct gpu_rows *tiles;
	unsigned int tokens, top_k, slots; /* slots = tokens * top_k */
	unsigned int experts, experts_local, weight_on_input;
};

/* the function between the GEMMs */
struct gpu_activation {
	unsigned int function;
	float alpha, beta, limit;
};

#endif
