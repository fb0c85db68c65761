/* SPDX-License-Identifier: MIT */
#include "rdna3_cpu.h"

#include "plugins/rdna3/kernels.hip"

struct kernel {
	void (*function)(struct rdna3_args args);
};

#define KERNEL(name, threads)                                                          \
	{                                                                              \
#name, &(const struct kernel){ name }, threads                         \
	}
#define INSTANCE_ROWS(suffix)                                                          \
	KERNEL(rdna3_gate_up_decode_##suffix, 256),                                    \
		KERNEL(rdna3_down_decode_##suffix, 256),                               \
		KERNEL(rdna3_gate_up_tile_##suffix, 128),                              \
		KERNEL(rdna3_down_tile_##suffix, 128)

const struct rdna3_cpu_kernel rdna3_cpu_kernels[] = {
	KERNEL(rdna3_sort, 256),        KERNEL(rdna3_tiles, 256),
	KERNEL(rdna3_reduce, 256),      INSTANCE_ROWS(int4_f16),
	INSTANCE_ROWS(int4_bf16),       INSTANCE_ROWS(int4_zeros_f16),
	INSTANCE_ROWS(int4_zeros_bf16), INSTANCE_ROWS(mxfp4_f16),
	INSTANCE_ROWS(mxfp4_bf16),      { NULL, NULL, 0 },
};

const size_t rdna3_cpu_args_bytes = sizeof(struct rdna3_args);

void rdna3_cpu_call(const void *kernel, const void *args)
{
	((const struct kernel *)kernel)->function(*(const struct rdna3_args *)args);
}
