/* SPDX-License-Identifier: MIT */
/* AVX2 with int8 dot products in 256 bits (AVX-VNNI): Alder Lake, Zen 5 and on. */
#include "kernels_avx2.h"

EACH_FORMAT(F32_KERNEL)
EACH_ROWS(F32_KERNEL)
EACH_FORMAT(PAIRS_KERNEL)

extern const struct kernels cpu_kernels_avxvnni;
const struct kernels cpu_kernels_avxvnni = {
	.panel = { [BY_F32] = { FORMATS_OF(f32), ROWS_OF(f32) },
	           [BY_INT8] = { FORMATS_OF(pairs) } },
	.widen = widen,
	.narrow = narrow,
	.pack = pack,
	.activate = activate,
};
