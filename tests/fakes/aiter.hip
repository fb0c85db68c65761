/* SPDX-License-Identifier: MIT */
/* A code object with the names and the argument block that AITER's flat kernels have, and
 * no code: fakehip.so runs tests/gpu/aiter_cpu.c in their place. */
struct block {
	unsigned char bytes[480];
};

#define FAKE(name) extern "C" __attribute__((global)) void name(struct block) {}

FAKE(_ZN5aiter50fmoe_bf16_pertokenMXfp4_g1u1_flat_novs_silu_16x128E)
FAKE(_ZN5aiter50fmoe_bf16_pertokenMXfp4_g1u1_flat_novs_silu_16x256E)
