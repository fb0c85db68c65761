/* SPDX-License-Identifier: MIT */
/* AVX2, FMA and F16C. */
#define LANES 8u
#include "kernels_vector.h"

EACH_FORMAT(VECTOR_KERNEL)

extern const struct kernels cpu_kernels_avx2;
const struct kernels cpu_kernels_avx2 = {
	.panel = { [BY_F32] = FORMATS_OF(f32), [BY_INT8] = FORMATS_OF(int8) },
	.widen = widen,
	.narrow = narrow,
	.pack = pack,
	.activate = activate,
	.add = add,
};
