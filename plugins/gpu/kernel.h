/* SPDX-License-Identifier: MIT */
/*
 * What a kernel may use. One source, three machines: AMD (clang -x hip, builtins only,
 * no ROCm header), NVIDIA (nvcc -x cu) and the CPU (C11, one fiber for each thread:
 * tests/gpu/fibers.c). Kernels are therefore written in the C subset: no
 * templates, no references, "struct x" spelled out, one by-value struct as argument.
 *
 * A wave has GPU_WAVE lanes: 32, or 64 where that is defined before this is included;
 * matrix operations of 64 lanes are in mfma.h. 16-bit floats travel as bits: gpu_u32
 * holds a pair, the lower column in the low half. Every lane of a wave must reach a
 * wave operation (gpu_shuffle, gpu_ballot, gpu_wmma_*), every thread of a block a
 * gpu_barrier; the fibers check it.
 */
#ifndef MOEK_GPU_KERNEL_H
#define MOEK_GPU_KERNEL_H

#include "args.h"

typedef unsigned char gpu_u8;
typedef unsigned short gpu_u16;
typedef unsigned int gpu_u32;
typedef unsigned long long gpu_u64;

#ifndef GPU_WAVE
#define GPU_WAVE 32
#endif
/** One bit for each lane of a wave. */
#if GPU_WAVE == 64
typedef gpu_u64 gpu_lanes;
#else
typedef gpu_u32 gpu_lanes;
#endif

/** 16 bytes, the widest load. */
struct gpu_u32x4 {
	gpu_u32 u[4];
};
/** A or B of a 16x16x16 multiply: lane l holds row (column) l % 16, 16 values along k;
 *  lanes 16..31 repeat lanes 0..15. */
struct gpu_fragment {
	gpu_u32 u[8];
};
/** C or D: element i of lane l is row 2 i + l / 16, column l % 16. */
struct gpu_tile {
	float f[8];
};

#if defined(__AMDGCN__)
#define GPU_AMD 1
#elif defined(__NVCC__) || defined(__CUDA_ARCH__)
#define GPU_NVIDIA 1
#elif defined(__HIP__)
#define GPU_AMD 1 /* the host pass of clang -x hip */
#else
#define GPU_CPU 1
#endif

#ifdef GPU_CPU
#define GPU_UNROLL(times)
#else
#define GPU__PRAGMA(text) _Pragma(#text)
#define GPU_UNROLL(times) GPU__PRAGMA(unroll times)
#endif

#ifdef GPU_AMD /* ------------------------------------------------------------------   \
                */

#define GPU_KERNEL(threads)                                                            \
	extern "C" __attribute__((global))                                             \
	__attribute__((amdgpu_flat_work_group_size(threads, threads))) void
/* with registers for at least so many waves on a SIMD */
#define GPU_KERNEL_WAVES(threads, waves)                                               \
	extern "C" __attribute__((global, amdgpu_waves_per_eu(waves)))                 \
	__attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#define GPU_DEVICE static __attribute__((device, always_inline)) inline
#define GPU_SHARED(type, name, count)                                                  \
	static __attribute__((shared, aligned(16))) type name[count]

typedef gpu_u32 gpu__u32x4 __attribute__((ext_vector_type(4)));
typedef _Float16 gpu__f16x2 __attribute__((ext_vector_type(2)));
typedef __bf16 gpu__bf16x2 __attribute__((ext_vector_type(2)));
typedef _Float16 gpu__f16x16 __attribute__((ext_vector_type(16)));
typedef short gpu__i16x16 __attribute__((ext_vector_type(16)));
typedef float gpu__f32x8 __attribute__((ext_vector_type(8)));

GPU_DEVICE gpu_u32 gpu_thread()
{
	return __builtin_amdgcn_workitem_id_x();
}

GPU_DEVICE gpu_u32 gpu_block_x()
{
	return __builtin_amdgcn_workgroup_id_x();
}

GPU_DEVICE gpu_u32 gpu_block_y()
{
	return __builtin_amdgcn_workgroup_id_y();
}

/* "local": waves share data through LDS only, so the caches need no flush */
GPU_DEVICE void gpu_barrier()
{
	__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
	__builtin_amdgcn_s_barrier();
	__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

GPU_DEVICE struct gpu_u32x4 gpu_load16(const void *from)
{
	return __builtin_bit_cast(struct gpu_u32x4, *(const gpu__u32x4 *)from);
}

/* read once: does not push out what others reuse */
GPU_DEVICE struct gpu_u32x4 gpu_stream16(const void *from)
{
	return __builtin_bit_cast(struct gpu_u32x4,
	                          __builtin_nontemporal_load((const gpu__u32x4 *)from));
}

GPU_DEVICE void gpu_store16(void *to, struct gpu_u32x4 value)
{
	*(gpu__u32x4 *)to = __builtin_bit_cast(gpu__u32x4, value);
}

GPU_DEVICE float gpu_float(gpu_u32 bits)
{
	return __builtin_bit_cast(float, bits);
}

GPU_DEVICE gpu_u32 gpu_bits(float value)
{
	return __builtin_bit_cast(gpu_u32, value);
}

GPU_DEVICE float gpu_f16_to_f32(gpu_u16 bits)
{
	return (float)__builtin_bit_cast(_Float16, bits);
}

GPU_DEVICE gpu_u16 gpu_f16_from_f32(float value)
{
	return __builtin_bit_cast(gpu_u16, (_Float16)value);
}

GPU_DEVICE gpu_u32 gpu_f16x2_subtract(gpu_u32 a, gpu_u32 b)
{
	return __builtin_bit_cast(gpu_u32, __builtin_bit_cast(gpu__f16x2, a) -
	                                           __builtin_bit_cast(gpu__f16x2, b));
}

/* low half of a pair of fp16 minus c, in fp32: one instruction that the compiler does
 * not find by itself */
GPU_DEVICE float gpu_f16_low_minus(gpu_u32 pair, float c)
{
	float out;

	asm("v_fma_mix_f32 %0, %1, 1.0, -%2 op_sel_hi:[1,0,0]"
	    : "=v"(out)
	    : "v"(pair), "v"(c));
	return out;
}

GPU_DEVICE float gpu_f16_high_minus(gpu_u32 pair, float c)
{
	float out;

	asm("v_fma_mix_f32 %0, %1, 1.0, -%2 op_sel:[1,0,0] op_sel_hi:[1,0,0]"
	    : "=v"(out)
	    : "v"(pair), "v"(c));
	return out;
}

GPU_DEVICE float gpu_fma(float a, float b, float c)
{
	return __builtin_fmaf(a, b, c);
}

/* c + a.low * b.low + a.high * b.high */
GPU_DEVICE float gpu_dot2_f16(gpu_u32 a, gpu_u32 b, float c)
{
	return __builtin_amdgcn_fdot2(__builtin_bit_cast(gpu__f16x2, a),
	                              __builtin_bit_cast(gpu__f16x2, b), c, false);
}

#if GPU_WAVE == 32
GPU_DEVICE float gpu_dot2_bf16(gpu_u32 a, gpu_u32 b, float c)
{
	return __builtin_amdgcn_fdot2_f32_bf16(__builtin_bit_cast(gpu__bf16x2, a),
	                                       __builtin_bit_cast(gpu__bf16x2, b), c,
	                                       false);
}

GPU_DEVICE struct gpu_tile gpu_wmma_f16(struct gpu_fragment a, struct gpu_fragment b,
                                        struct gpu_tile c)
{
	return __builtin_bit_cast(struct gpu_tile,
	                          __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(
					  __builtin_bit_cast(gpu__f16x16, a),
					  __builtin_bit_cast(gpu__f16x16, b),
					  __builtin_bit_cast(gpu__f32x8, c)));
}

GPU_DEVICE struct gpu_tile gpu_wmma_bf16(struct gpu_fragment a, struct gpu_fragment b,
                                         struct gpu_tile c)
{
	return __builtin_bit_cast(struct gpu_tile,
	                          __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(
					  __builtin_bit_cast(gpu__i16x16, a),
					  __builtin_bit_cast(gpu__i16x16, b),
					  __builtin_bit_cast(gpu__f32x8, c)));
}
#endif

/* value of lane (own lane ^ mask) */
GPU_DEVICE float gpu_shuffle_xor(float value, gpu_u32 mask)
{
	gpu_u32 lane = __builtin_amdgcn_mbcnt_lo(~0u, 0);

	if (GPU_WAVE == 64)
		lane = __builtin_amdgcn_mbcnt_hi(~0u, lane);
	lane ^= mask;
	return gpu_float((gpu_u32)__builtin_amdgcn_ds_bpermute((int)(lane << 2),
	                                                       (int)gpu_bits(value)));
}

/* bit l is set where lane l says yes */
GPU_DEVICE gpu_lanes gpu_ballot(int yes)
{
#if GPU_WAVE == 64
	return __builtin_amdgcn_ballot_w64(yes != 0);
#else
	return __builtin_amdgcn_ballot_w32(yes != 0);
#endif
}

GPU_DEVICE gpu_u32 gpu_count_ones(gpu_lanes bits)
{
	return (gpu_u32)__builtin_popcountll(bits);
}

/* number of the lowest bit that is set; bits is not 0 */
GPU_DEVICE gpu_u32 gpu_first_one(gpu_lanes bits)
{
	return (gpu_u32)__builtin_ctzll(bits);
}

/* byte i of the result is byte (selector byte i) of high:low; selectors are 0..7 */
GPU_DEVICE gpu_u32 gpu_pick_bytes(gpu_u32 high, gpu_u32 low, gpu_u32 selector)
{
	return __builtin_amdgcn_perm(high, low, selector);
}

#elif defined(                                                                         \
	GPU_NVIDIA) /* --------------------------------------------------------- */

#define GPU_KERNEL(threads) extern "C" __global__ __launch_bounds__(threads) void
#define GPU_KERNEL_WAVES(threads, waves) GPU_KERNEL(threads)
#define GPU_DEVICE static __device__ __forceinline__
#define GPU_SHARED(type, name, count) __shared__ __align__(16) type name[count]

GPU_DEVICE gpu_u32 gpu_thread()
{
	return threadIdx.x;
}

GPU_DEVICE gpu_u32 gpu_block_x()
{
	return blockIdx.x;
}

GPU_DEVICE gpu_u32 gpu_block_y()
{
	return blockIdx.y;
}

GPU_DEVICE void gpu_barrier()
{
	__syncthreads();
}

GPU_DEVICE struct gpu_u32x4 gpu_load16(const void *from)
{
	uint4 v = *(const uint4 *)from;
	struct gpu_u32x4 out = { { v.x, v.y, v.z, v.w } };

	return out;
}

GPU_DEVICE struct gpu_u32x4 gpu_stream16(const void *from)
{
	uint4 v = __ldcs((const uint4 *)from);
	struct gpu_u32x4 out = { { v.x, v.y, v.z, v.w } };

	return out;
}

GPU_DEVICE void gpu_store16(void *to, struct gpu_u32x4 value)
{
	*(uint4 *)to = make_uint4(value.u[0], value.u[1], value.u[2], value.u[3]);
}

GPU_DEVICE float gpu_float(gpu_u32 bits)
{
	return __uint_as_float(bits);
}

GPU_DEVICE gpu_u32 gpu_bits(float value)
{
	return __float_as_uint(value);
}

GPU_DEVICE float gpu_f16_to_f32(gpu_u16 bits)
{
	float value;

	asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
	return value;
}

GPU_DEVICE gpu_u16 gpu_f16_from_f32(float value)
{
	gpu_u16 bits;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
	return bits;
}

GPU_DEVICE gpu_u32 gpu_f16x2_subtract(gpu_u32 a, gpu_u32 b)
{
	gpu_u32 out;

	asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
	return out;
}

GPU_DEVICE float gpu_f16_low_minus(gpu_u32 pair, float c)
{
	return gpu_f16_to_f32((gpu_u16)pair) - c;
}

GPU_DEVICE float gpu_f16_high_minus(gpu_u32 pair, float c)
{
	return gpu_f16_to_f32((gpu_u16)(pair >> 16)) - c;
}

GPU_DEVICE float gpu_fma(float a, float b, float c)
{
	return fmaf(a, b, c);
}

GPU_DEVICE float gpu_dot2_f16(gpu_u32 a, gpu_u32 b, float c)
{
	c = fmaf(gpu_f16_to_f32((gpu_u16)a), gpu_f16_to_f32((gpu_u16)b), c);
	return fmaf(gpu_f16_to_f32((gpu_u16)(a >> 16)),
	            gpu_f16_to_f32((gpu_u16)(b >> 16)), c);
}

GPU_DEVICE float gpu_dot2_bf16(gpu_u32 a, gpu_u32 b, float c)
{
	c = fmaf(gpu_float(a << 16), gpu_float(b << 16), c);
	return fmaf(gpu_float(a & 0xffff0000u), gpu_float(b & 0xffff0000u), c);
}

#if GPU_WAVE == 32
/* not for speed: the layout of the AMD instruction, by shuffles */
#define GPU__WMMA(dot2)                                                                \
	gpu_u32 lane = threadIdx.x & 31, column[8], k, i;                              \
                                                                                       \
	for (k = 0; k < 8; k++)                                                        \
		column[k] = __shfl_sync(~0u, b.u[k], lane & 15);                       \
	for (i = 0; i < 8; i++)                                                        \
		for (k = 0; k < 8; k++) {                                              \
			gpu_u32 row = __shfl_sync(~0u, a.u[k], 2 * i + (lane >> 4));   \
			c.f[i] = dot2(row, column[k], c.f[i]);                         \
		}                                                                      \
	return c

GPU_DEVICE struct gpu_tile gpu_wmma_f16(struct gpu_fragment a, struct gpu_fragment b,
                                        struct gpu_tile c)
{
	GPU__WMMA(gpu_dot2_f16);
}

GPU_DEVICE struct gpu_tile gpu_wmma_bf16(struct gpu_fragment a, struct gpu_fragment b,
                                         struct gpu_tile c)
{
	GPU__WMMA(gpu_dot2_bf16);
}

GPU_DEVICE float gpu_shuffle_xor(float value, gpu_u32 mask)
{
	return __shfl_xor_sync(~0u, value, (int)mask);
}

GPU_DEVICE gpu_u32 gpu_ballot(int yes)
{
	return __ballot_sync(~0u, yes);
}

#else
/* A wave of 64 lanes is two warps that meet at a barrier of their own and share what
 * they post, in dynamic shared memory that the launch gives: POSTED words for each
 * thread. For checking, not for speed. */
enum { GPU__POSTED = 20 };

GPU_DEVICE void gpu__meet()
{
#ifdef GPU_MEET_ALL /* racecheck takes no account of barriers of a part of the block;  \
                     * for kernels whose waves all come here equally often */
	__syncthreads();
	return;
#endif
	asm volatile("bar.sync %0, 64;" ::"r"(1u + threadIdx.x / 64u) : "memory");
}

/* where the lanes of this wave post up to GPU__POSTED words each; lane 0's */
GPU_DEVICE gpu_u32 *gpu__posted()
{
	extern __shared__ gpu_u32 posted[];

	return posted + threadIdx.x / 64u * 64u * GPU__POSTED;
}

GPU_DEVICE float gpu_shuffle_xor(float value, gpu_u32 mask)
{
	gpu_u32 *posted = gpu__posted(), lane = threadIdx.x & 63u;
	float out;

	posted[lane * GPU__POSTED] = gpu_bits(value);
	gpu__meet();
	out = gpu_float(posted[(lane ^ mask) * GPU__POSTED]);
	gpu__meet();
	return out;
}

GPU_DEVICE gpu_u64 gpu_ballot(int yes)
{
	gpu_u32 *posted = gpu__posted(), lane = threadIdx.x & 63u;
	gpu_u64 bits;

	posted[lane * GPU__POSTED] = __ballot_sync(~0u, yes);
	gpu__meet();
	bits = (gpu_u64)posted[32 * GPU__POSTED] << 32 | posted[0];
	gpu__meet();
	return bits;
}
#endif

GPU_DEVICE gpu_u32 gpu_count_ones(gpu_lanes bits)
{
	return (gpu_u32)__popcll(bits);
}

GPU_DEVICE gpu_u32 gpu_first_one(gpu_lanes bits)
{
	return (gpu_u32)__ffsll((long long)bits) - 1u;
}

GPU_DEVICE gpu_u32 gpu_pick_bytes(gpu_u32 high, gpu_u32 low, gpu_u32 selector)
{
	gpu_u32 s = selector | selector >> 4; /* prmt selects by nibbles */

	return __byte_perm(low, high, (s & 0xffu) | (s >> 8 & 0xff00u));
}

#else /* CPU ------------------------------------------------------------------------  \
       */

#include <math.h>
#include <string.h>

#include <moek/formats.h>

#define GPU_KERNEL(threads) static void
#define GPU_KERNEL_WAVES(threads, waves) GPU_KERNEL(threads)
/* not inlined: an instance of a kernel for each format, with a sanitizer on top, takes
 * a compiler minutes */
#define GPU_DEVICE static __attribute__((noinline, unused))
/* one block at a time runs on an operating-system thread; the fibers poison it between
 * blocks: all of it lies in the section "gpu_lds" */
#define GPU_SHARED(type, name, count)                                                  \
	static type name[count] __attribute__((section("gpu_lds"), aligned(16)))

/** Post @value, wait for the wave, give back the pointers that its lanes posted; then
 * gpu_cpu_done() keeps them alive until all have read. */
gpu_u32 gpu_cpu_thread(void);
gpu_u32 gpu_cpu_block(int axis);
void gpu_cpu_barrier(void);
const void *const *gpu_cpu_post(const void *value);
void gpu_cpu_done(void);
void gpu_cpu_fault(const char *text); /* the launch fails with this text */

GPU_DEVICE gpu_u32 gpu_thread(void)
{
	return gpu_cpu_thread();
}

GPU_DEVICE gpu_u32 gpu_block_x(void)
{
	return gpu_cpu_block(0);
}

GPU_DEVICE gpu_u32 gpu_block_y(void)
{
	return gpu_cpu_block(1);
}

GPU_DEVICE void gpu_barrier(void)
{
	gpu_cpu_barrier();
}

GPU_DEVICE struct gpu_u32x4 gpu_load16(const void *from)
{
	return *(const struct gpu_u32x4 *)__builtin_assume_aligned(from, 16);
}

GPU_DEVICE struct gpu_u32x4 gpu_stream16(const void *from)
{
	return gpu_load16(from);
}

GPU_DEVICE void gpu_store16(void *to, struct gpu_u32x4 value)
{
	*(struct gpu_u32x4 *)__builtin_assume_aligned(to, 16) = value;
}

GPU_DEVICE float gpu_float(gpu_u32 bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

GPU_DEVICE gpu_u32 gpu_bits(float value)
{
	gpu_u32 bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

GPU_DEVICE float gpu_f16_to_f32(gpu_u16 bits)
{
	return moek_f16_to_f32(bits);
}

GPU_DEVICE gpu_u16 gpu_f16_from_f32(float value)
{
	return moek_f16_from_f32(value);
}

GPU_DEVICE gpu_u32 gpu_f16x2_subtract(gpu_u32 a, gpu_u32 b)
{
	/* fp32 holds the difference of two fp16 exactly enough for one rounding */
	gpu_u16 low = gpu_f16_from_f32(gpu_f16_to_f32((gpu_u16)a) -
	                               gpu_f16_to_f32((gpu_u16)b));
	gpu_u16 high = gpu_f16_from_f32(gpu_f16_to_f32((gpu_u16)(a >> 16)) -
	                                gpu_f16_to_f32((gpu_u16)(b >> 16)));

	return low | (gpu_u32)high << 16;
}

GPU_DEVICE float gpu_f16_low_minus(gpu_u32 pair, float c)
{
	return gpu_f16_to_f32((gpu_u16)pair) - c;
}

GPU_DEVICE float gpu_f16_high_minus(gpu_u32 pair, float c)
{
	return gpu_f16_to_f32((gpu_u16)(pair >> 16)) - c;
}

GPU_DEVICE float gpu_fma(float a, float b, float c)
{
	return fmaf(a, b, c);
}

GPU_DEVICE float gpu_dot2_f16(gpu_u32 a, gpu_u32 b, float c)
{
	c = fmaf(gpu_f16_to_f32((gpu_u16)a), gpu_f16_to_f32((gpu_u16)b), c);
	return fmaf(gpu_f16_to_f32((gpu_u16)(a >> 16)),
	            gpu_f16_to_f32((gpu_u16)(b >> 16)), c);
}

GPU_DEVICE float gpu_dot2_bf16(gpu_u32 a, gpu_u32 b, float c)
{
	c = fmaf(gpu_float(a << 16), gpu_float(b << 16), c);
	return fmaf(gpu_float(a & 0xffff0000u), gpu_float(b & 0xffff0000u), c);
}

GPU_DEVICE struct gpu_tile gpu_cpu_wmma(struct gpu_fragment a, struct gpu_fragment b,
                                        struct gpu_tile c,
                                        float (*dot2)(gpu_u32, gpu_u32, float))
{
	struct gpu_fragment mine[2] = { a, b };
	gpu_u32 lane = gpu_thread() & 31u, i, k;
	const void *const *wave = gpu_cpu_post(mine);
	const struct gpu_fragment *column = (const struct gpu_fragment *)
	                                            wave[lane & 15] +
	                                    1;

	for (i = 0; i < 8; i++) {
		const struct gpu_fragment *row = (const struct gpu_fragment *)
			wave[2 * i + (lane >> 4)];

		for (k = 0; k < 8; k++)
			c.f[i] = dot2(row->u[k], column->u[k], c.f[i]);
	}
	if (memcmp(mine, wave[lane ^ 16u], sizeof(mine)) != 0)
		gpu_cpu_fault("lanes 16..31 of a fragment do not repeat lanes 0..15");
	gpu_cpu_done();
	return c;
}

GPU_DEVICE struct gpu_tile gpu_wmma_f16(struct gpu_fragment a, struct gpu_fragment b,
                                        struct gpu_tile c)
{
	return gpu_cpu_wmma(a, b, c, gpu_dot2_f16);
}

GPU_DEVICE struct gpu_tile gpu_wmma_bf16(struct gpu_fragment a, struct gpu_fragment b,
                                         struct gpu_tile c)
{
	return gpu_cpu_wmma(a, b, c, gpu_dot2_bf16);
}

GPU_DEVICE float gpu_shuffle_xor(float value, gpu_u32 mask)
{
	const void *const *wave = gpu_cpu_post(&value);
	float out = *(const float *)wave[(gpu_thread() & (GPU_WAVE - 1u)) ^ mask];

	gpu_cpu_done();
	return out;
}

GPU_DEVICE gpu_lanes gpu_ballot(int yes)
{
	const void *const *wave = gpu_cpu_post(&yes);
	gpu_lanes bits = 0, i;

	for (i = 0; i < GPU_WAVE; i++)
		bits |= (gpu_lanes)(*(const int *)wave[i] != 0) << i;
	gpu_cpu_done();
	return bits;
}

GPU_DEVICE gpu_u32 gpu_count_ones(gpu_lanes bits)
{
	return (gpu_u32)__builtin_popcountll(bits);
}

GPU_DEVICE gpu_u32 gpu_first_one(gpu_lanes bits)
{
	return (gpu_u32)__builtin_ctzll(bits);
}

GPU_DEVICE gpu_u32 gpu_pick_bytes(gpu_u32 high, gpu_u32 low, gpu_u32 selector)
{
	gpu_u64 pool = (gpu_u64)high << 32 | low;
	gpu_u32 out = 0, i;

	for (i = 0; i < 4; i++)
		out |= (gpu_u32)(pool >> (selector >> 8 * i & 7u) * 8 & 255u) << 8 * i;
	return out;
}

#endif

/* ---- for all three ---- */

GPU_DEVICE float gpu_bf16_to_f32(gpu_u16 bits)
{
	return gpu_float((gpu_u32)bits << 16);
}

/* nearest, ties to even; a NaN stays one */
GPU_DEVICE gpu_u16 gpu_bf16_from_f32(float value)
{
	gpu_u32 bits = gpu_bits(value);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (gpu_u16)(bits >> 16 | 0x40u);
	return (gpu_u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* type: as enum moek_type, fp16, bf16 or fp32 */
GPU_DEVICE void gpu_store_float(void *to, gpu_u64 index, float value, gpu_u32 type)
{
	if (type == GPU_F16)
		((gpu_u16 *)to)[index] = gpu_f16_from_f32(value);
	else if (type == GPU_BF16)
		((gpu_u16 *)to)[index] = gpu_bf16_from_f32(value);
	else
		((float *)to)[index] = value;
}

#endif
