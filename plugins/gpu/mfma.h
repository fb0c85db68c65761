/* SPDX-License-Identifier: MIT */
/*
 * Matrix operations of 64 lanes: those of gfx950. D = A B + C, 16 rows of A by 16
 * columns of B. With l the lane and q = l / 16:
 *
 *   D, C              element i is row 4 q + i, column l % 16
 *   A, B of bf16, fp16, 32 deep: row (column) l % 16, k = 8 q .. 8 q + 7
 *   A, B, 128 deep    row (column) l % 16;
 *     FP4             k = 32 q .. 32 q + 31, in u[0..3], low nibble first
 *     FP8             k = 16 q .. 16 q + 15 in u[0..3], 64 + 16 q .. in u[4..7]
 *     scale           one byte of a word of lane l: of row (column) l % 16,
 *                     k = 32 q .. 32 q + 31, whatever the format
 *
 * The layout of FP8 differs from that of FP4 so that lane and scale do not go together.
 * Sources: AMD's CDNA4 instruction set; the register maps, and the scale map measured
 * on a card, in test/mx_mfma_op of ROCm's composable_kernel.
 *
 * The card does not say how it rounds inside. On the CPU and on NVIDIA the 128 products
 * are summed in double and rounded once; FP4 and FP8 products are exact in it.
 */
#ifndef MOEK_GPU_MFMA_H
#define MOEK_GPU_MFMA_H

#include "quantise.h"

#if GPU_WAVE != 64
#error "mfma.h is for waves of 64 lanes"
#endif

/** A or B; of 16-bit floats and of FP4 only u[0..3] count. */
struct gpu_operand {
	gpu_u32 u[8];
};
/** C or D. */
struct gpu_sums {
	float f[4];
};

/* formats of an operand: the numbers of the instruction */
#define GPU_FP8 0
#define GPU_FP4 4

#ifdef GPU_AMD

typedef gpu_u32 gpu__u32x8 __attribute__((ext_vector_type(8)));
typedef float gpu__f32x4 __attribute__((ext_vector_type(4)));
typedef __bf16 gpu__bf16x8 __attribute__((ext_vector_type(8)));
typedef _Float16 gpu__f16x8 __attribute__((ext_vector_type(8)));

/** a, b: struct gpu_operand; c: struct gpu_sums. Formats and numbers of the scales'
 * bytes are constants. */
#define gpu_mfma_scale(a, b, c, a_format, b_format, a_byte, a_scale, b_byte, b_scale)  \
	__builtin_bit_cast(struct gpu_sums,                                            \
	                   __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(           \
				   __builtin_bit_cast(gpu__u32x8, a),                  \
				   __builtin_bit_cast(gpu__u32x8, b),                  \
				   __builtin_bit_cast(gpu__f32x4, c), a_format,        \
				   b_format, a_byte, (int)(a_scale), b_byte,           \
				   (int)(b_scale)))

GPU_DEVICE struct gpu_sums gpu_mfma_bf16(struct gpu_u32x4 a, struct gpu_u32x4 b,
                                         struct gpu_sums c)
{
	return __builtin_bit_cast(struct gpu_sums,
	                          __builtin_amdgcn_mfma_f32_16x16x32_bf16(
					  __builtin_bit_cast(gpu__bf16x8, a),
					  __builtin_bit_cast(gpu__bf16x8, b),
					  __builtin_bit_cast(gpu__f32x4, c), 0, 0, 0));
}

GPU_DEVICE struct gpu_sums gpu_mfma_f16(struct gpu_u32x4 a, struct gpu_u32x4 b,
                                        struct gpu_sums c)
{
	return __builtin_bit_cast(struct gpu_sums,
	                          __builtin_amdgcn_mfma_f32_16x16x32_f16(
					  __builtin_bit_cast(gpu__f16x8, a),
					  __builtin_bit_cast(gpu__f16x8, b),
					  __builtin_bit_cast(gpu__f32x4, c), 0, 0, 0));
}

#else /* the model */

/* what one lane brings */
struct gpu__lane {
	gpu_u32 a[8], b[8], a_scale, b_scale;
};

/* element k, 0 .. 127, of row (column) `row`: in which lane, and where */
GPU_DEVICE float gpu__element(const gpu_u32 *words, gpu_u32 at, int format)
{
	if (format == GPU_FP4)
		return moek_e2m1_to_f32(words[at / 8u] >> 4u * (at % 8u) & 15u);
	return moek_e4m3_to_f32((gpu_u8)(words[at / 4u] >> 8u * (at % 4u)));
}

/* which lane's quarter has element k of a row, and its place there */
GPU_DEVICE gpu_u32 gpu__quarter(gpu_u32 k, int format, gpu_u32 *at_out)
{
	if (format == GPU_FP4) {
		*at_out = k % 32u;
		return k / 32u;
	}
	*at_out = k % 16u + k / 64u * 16u;
	return k % 64u / 16u;
}

#ifdef GPU_CPU

GPU_DEVICE const struct gpu__lane *gpu__lane_of(const void *const *wave, gpu_u32 lane)
{
	return (const struct gpu__lane *)wave[lane];
}

#define GPU__SHARE(mine) const void *const *wave = gpu_cpu_post(&mine)
#define GPU__DONE() gpu_cpu_done()

#else

GPU_DEVICE const struct gpu__lane *gpu__lane_of(const gpu_u32 *wave, gpu_u32 lane)
{
	return (const struct gpu__lane *)(wave + lane * GPU__POSTED);
}

#define GPU__SHARE(mine)                                                               \
	gpu_u32 *wave = gpu__posted();                                                 \
                                                                                       \
	*(struct gpu__lane *)(wave + (gpu_thread() & 63u) * GPU__POSTED) = mine;       \
	gpu__meet()
#define GPU__DONE() gpu__meet()

#endif

GPU_DEVICE struct gpu_sums gpu__multiply_scaled(struct gpu__lane mine,
                                                struct gpu_sums c, int a_format,
                                                int b_format)
{
	gpu_u32 lane = gpu_thread() & 63u, i, k, at;
	GPU__SHARE(mine);

	for (i = 0; i < 4; i++) {
		gpu_u32 row = 4u * (lane / 16u) + i, column = lane % 16u;
		double sum = 0;

		for (k = 0; k < 128; k++) {
			/* the scale's lane is by k alone, the element's by format too
			 */
			gpu_u32 by = k / 32u * 16u;
			gpu_u32 from = gpu__quarter(k, a_format, &at) * 16u;
			double a = (double)gpu__element(
				gpu__lane_of(wave, from + row)->a, at, a_format);

			a *= (double)moek_e8m0_to_f32(
				(gpu_u8)gpu__lane_of(wave, by + row)->a_scale);
			from = gpu__quarter(k, b_format, &at) * 16u;
			a *= (double)gpu__element(gpu__lane_of(wave, from + column)->b,
			                          at, b_format);
			a *= (double)moek_e8m0_to_f32(
				(gpu_u8)gpu__lane_of(wave, by + column)->b_scale);
			sum += a;
		}
		c.f[i] = (float)((double)c.f[i] + sum);
	}
	GPU__DONE();
	return c;
}

GPU_DEVICE struct gpu_sums gpu__mfma_scale(struct gpu_operand a, struct gpu_operand b,
                                           struct gpu_sums c, int a_format,
                                           int b_format, gpu_u32 a_scale,
                                           gpu_u32 b_scale)
{
	struct gpu__lane mine;
	gpu_u32 i;

	for (i = 0; i < 8; i++) {
		mine.a[i] = a.u[i];
		mine.b[i] = b.u[i];
	}
	mine.a_scale = a_scale & 255u;
	mine.b_scale = b_scale & 255u;
	return gpu__multiply_scaled(mine, c, a_format, b_format);
}

#define gpu_mfma_scale(a, b, c, a_format, b_format, a_byte, a_scale, b_byte, b_scale)  \
	gpu__mfma_scale(a, b, c, a_format, b_format, (a_scale) >> 8 * (a_byte),        \
	                (b_scale) >> 8 * (b_byte))

GPU_DEVICE struct gpu_sums gpu__mfma16(struct gpu_u32x4 a, struct gpu_u32x4 b,
                                       struct gpu_sums c, gpu_u32 type)
{
	gpu_u32 lane = gpu_thread() & 63u, i, k;

	struct gpu__lane mine = { { a.u[0], a.u[1], a.u[2], a.u[3] },
		                  { b.u[0], b.u[1], b.u[2], b.u[3] },
		                  0,
		                  0 };
	GPU__SHARE(mine);

	for (i = 0; i < 4; i++) {
		gpu_u32 row = 4u * (lane / 16u) + i, column = lane % 16u;
		double sum = 0;

		for (k = 0; k < 32; k++) {
			gpu_u32 from = k / 8u * 16u, at = k % 8u;
			gpu_u32 x = gpu__lane_of(wave, from + row)->a[at / 2u];
			gpu_u32 y = gpu__lane_of(wave, from + column)->b[at / 2u];

			sum += (double)gpu_widen(x >> 16u * (at % 2u) & 0xffffu, type) *
			       (double)gpu_widen(y >> 16u * (at % 2u) & 0xffffu, type);
		}
		c.f[i] = (float)((double)c.f[i] + sum);
	}
	GPU__DONE();
	return c;
}

GPU_DEVICE struct gpu_sums gpu_mfma_bf16(struct gpu_u32x4 a, struct gpu_u32x4 b,
                                         struct gpu_sums c)
{
	return gpu__mfma16(a, b, c, GPU_BF16);
}

GPU_DEVICE struct gpu_sums gpu_mfma_f16(struct gpu_u32x4 a, struct gpu_u32x4 b,
                                        struct gpu_sums c)
{
	return gpu__mfma16(a, b, c, GPU_F16);
}

#endif
#endif
