/* SPDX-License-Identifier: MIT */
/* The definitions of <moek/formats.h> in a kernel: a block of activations becomes codes
 * by the same source that emulation runs. */
#ifndef MOEK_GPU_QUANTISE_H
#define MOEK_GPU_QUANTISE_H

#include "kernel.h"

#ifndef GPU_CPU
#define MOEK_FORMAT GPU_DEVICE
#ifdef GPU_AMD
#define memcpy __builtin_memcpy /* the library's is not for the device */
#endif
#include <moek/formats.h>
#ifdef GPU_AMD
#undef memcpy
#endif
#endif

/* fp16 or bf16 to fp32 */
GPU_DEVICE float gpu_widen(gpu_u32 bits, gpu_u32 type)
{
	return type == GPU_F16 ? gpu_f16_to_f32((gpu_u16)bits)
	                       : gpu_bf16_to_f32((gpu_u16)bits);
}

/* rounded to fp16 or bf16 and back */
GPU_DEVICE float gpu_round(float value, gpu_u32 type)
{
	return type == GPU_F16 ? gpu_f16_to_f32(gpu_f16_from_f32(value))
	                       : gpu_bf16_to_f32(gpu_bf16_from_f32(value));
}

/* bits of the larger magnitude; one that is not finite is larger than all that are */
GPU_DEVICE gpu_u32 gpu_larger(gpu_u32 largest, float value)
{
	gpu_u32 size = gpu_bits(value) & 0x7fffffffu;

	return size > largest ? size : largest;
}

/* shared exponent byte of an MXFP4 block; 255 where a value is not finite */
GPU_DEVICE gpu_u32 gpu_mxfp4_scale(gpu_u32 largest, gpu_u32 round_up)
{
	float amax = gpu_float(largest);

	return round_up ? moek_mxfp4_scale_round_up(amax) : moek_mxfp4_scale_even(amax);
}

/* code of one element; a block whose byte is 255 is NaN whatever its codes are */
GPU_DEVICE gpu_u32 gpu_mxfp4_code(float value, gpu_u32 scale)
{
	return scale == 255u ? 0u : moek_mxfp4_code(value, (gpu_u8)scale);
}

#endif
