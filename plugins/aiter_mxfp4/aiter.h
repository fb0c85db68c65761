/* SPDX-License-Identifier: MIT */
/*
 * AITER's own kernels, without AITER: its code objects are files, and a CSV beside them
 * says what each is. Of them the "flat" ones are used, which run a whole layer of few
 * tokens in one launch.
 */
#ifndef MOEK_AITER_MXFP4_AITER_H
#define MOEK_AITER_MXFP4_AITER_H

#include <moek/experts.h>

#include "../gpu/plugin.h"

enum {
	AITER_MOST_KERNELS = 16,
	AITER_PATH_BYTES = 1024,
	AITER_KERNARG_BYTES = 480, /* what the code objects declare */
	AITER_MOST_TOKENS = 16,    /* each slot reads its expert by itself */
	AITER_MOST_SLOTS = 128,
	AITER_MOST_TOP_K = 16
};

enum aiter_state {
	AITER_OFF,    /* not looked for */
	AITER_ABSENT, /* nothing there */
	AITER_BROKEN, /* something there, and it is not as it must be */
	AITER_FOUND
};

/* one row of the CSV that can be used */
struct aiter_kernel {
	char name[128];              /* the symbol */
	char path[AITER_PATH_BYTES]; /* the code object */
	uint32_t function;           /* MOEK_SILU, MOEK_GELU */
	uint32_t columns; /* of the intermediate that a group takes: subGU_n */
	/* guarded by the plugin's lock */
	void *image;                    /* the file: the runtime may go on reading it */
	void *loaded[GPU_MOST_DEVICES]; /* by ordinal */
};

struct aiter {
	enum aiter_state state;
	char cause[96]; /* absent: where it was looked for; broken: what is wrong */
	char folder[AITER_PATH_BYTES];
	uint32_t count;
	struct aiter_kernel kernels[AITER_MOST_KERNELS];
};

/** Look in @dir (NULL: nowhere) and in the places below it where AITER puts its files.
 */
void aiter_find(struct aiter *aiter, const char *dir);

/** Give back what aiter_load() took. */
void aiter_end(struct aiter *aiter, const struct moek_host *host);

/** Have these kernels the semantics of this problem, for a batch that is small enough?
 */
int aiter_covers(const struct aiter *aiter, const struct moek_problem *problem);

/** AITER's own rule: the tile that needs the fewest rounds of the card's compute units,
 *  then the one that leaves the fewest idle. NULL: none divides the intermediate. */
struct aiter_kernel *aiter_choose(struct aiter *aiter,
                                  const struct moek_problem *problem, uint64_t slots,
                                  uint32_t compute_units);

/** What a launch is about; addresses on the device. */
struct aiter_call {
	void *output; /* bf16, and 8 bytes behind it that are zero before the launch */
	const void *input;
	const void *gate_up, *gate_up_scales, *down, *down_scales;
	const int32_t *topk_ids; /* each one a local expert */
	const float *topk_weights;
	uint64_t tokens, gate_up_scale_stride,
		down_scale_stride; /* of an expert, bytes */
};

/** The argument block, byte by byte. */
void aiter_pack(const struct moek_problem *problem, const struct aiter_call *call,
                uint32_t columns, unsigned char *kernarg_out);

/** Load the code of a kernel on a device, once. */
int32_t aiter_load(struct gpu_plugin *plugin, const struct moek_device *device,
                   struct aiter_kernel *kernel);
int32_t aiter_launch(const struct gpu_context *context,
                     const struct aiter_kernel *kernel, uint32_t ordinal,
                     const struct moek_problem *problem, const struct aiter_call *call,
                     void *stream);

#endif
