/* SPDX-License-Identifier: MIT */
/* AVX2, FMA and F16C: Haswell, Zen and on. */
#include "kernels_avx2.h"

EACH_FORMAT(F32_KERNEL)
EACH_ROWS(F32_KERNEL)
EACH_FORMAT(PAIRS_KERNEL)

extern const struct kernels cpu_kernels_avx2;
const struct kernels cpu_kernels_avx2 = {
	.panel = { [BY_F32] = { FORMATS_OF(f32), ROWS_OF(f32) },
	           [BY_INT8] = { FORMATS_OF(pairs) } },
	.widen = widen,
	.narrow = narrow,
	.pack = pack,
	.activate = activate,
};
