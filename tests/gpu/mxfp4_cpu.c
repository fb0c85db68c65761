/* SPDX-License-Identifier: MIT */
#include "cpu_kernel.h"

#include "plugins/aiter_mxfp4/kernels.hip"

struct kernel {
	void (*function)(struct mxfp4_args args);
};

static void call(const void *kernel, const void *args)
{
	((const struct kernel *)kernel)->function(*(const struct mxfp4_args *)args);
}

#define KERNEL(name)                                                                   \
	{                                                                              \
#name, &(const struct kernel){                                         \
			name }, call, sizeof(struct mxfp4_args), 256, GPU_WAVE, NULL   \
	}
#define INSTANCE_ROWS(suffix)                                                          \
	KERNEL(mxfp4_gate_up_decode_##suffix), KERNEL(mxfp4_down_decode_##suffix),     \
		KERNEL(mxfp4_gate_up_tile_##suffix), KERNEL(mxfp4_down_tile_##suffix)

const struct gpu_cpu_kernel mxfp4_cpu_kernels[] = {
	KERNEL(mxfp4_sort),
	KERNEL(mxfp4_tiles),
	KERNEL(mxfp4_reduce),
	KERNEL(mxfp4_flat_begin),
	KERNEL(mxfp4_flat_end),
	KERNEL(mxfp4_quantise_a4_f32),
	KERNEL(mxfp4_quantise_a8_f32),
	KERNEL(mxfp4_quantise_a4_f16),
	KERNEL(mxfp4_quantise_a4_bf16),
	KERNEL(mxfp4_quantise_a8_f16),
	KERNEL(mxfp4_quantise_a8_bf16),
	INSTANCE_ROWS(a4),
	INSTANCE_ROWS(a8),
	INSTANCE_ROWS(f16),
	INSTANCE_ROWS(bf16),
	{ NULL, NULL, NULL, 0, 0, 0, NULL },
};
