/* SPDX-License-Identifier: MIT */
#include "cpu_kernel.h"

#include "plugins/rdna3/kernels.hip"

struct kernel {
	void (*function)(struct rdna3_args args);
};

static void call(const void *kernel, const void *args)
{
	((const struct kernel *)kernel)->function(*(const struct rdna3_args *)args);
}

#define KERNEL(name, threads)                                                          \
	{                                                                              \
#name, &(const struct kernel){ name }, call,                           \
			                       sizeof(struct rdna3_args), threads,     \
			                       GPU_WAVE, NULL                          \
	}
#define INSTANCE_ROWS(suffix)                                                          \
	KERNEL(rdna3_gate_up_decode_##suffix, 256),                                    \
		KERNEL(rdna3_down_decode_##suffix, 256),                               \
		KERNEL(rdna3_gate_up_tile_##suffix, 128),                              \
		KERNEL(rdna3_down_tile_##suffix, 128)

const struct gpu_cpu_kernel rdna3_cpu_kernels[] = {
	KERNEL(rdna3_sort, 256),        KERNEL(rdna3_tiles, 256),
	KERNEL(rdna3_reduce, 256),      INSTANCE_ROWS(int4_f16),
	INSTANCE_ROWS(int4_bf16),       INSTANCE_ROWS(int4_zeros_f16),
	INSTANCE_ROWS(int4_zeros_bf16), INSTANCE_ROWS(mxfp4_f16),
	INSTANCE_ROWS(mxfp4_bf16),      { NULL, NULL, NULL, 0, 0, 0, NULL },
};
