/* SPDX-License-Identifier: MIT */
/* AVX-512 with int8 dot products: Cascade Lake, Ice Lake. */
#include "kernels_avx512.h"

EACH_FORMAT(F32_KERNEL)
EACH_ROWS(F32_KERNEL)
EACH_FORMAT(VNNI_KERNEL)

extern const struct kernels cpu_kernels_avx512vnni;
const struct kernels cpu_kernels_avx512vnni = {
	.panel = { [BY_F32] = { FORMATS_OF(f32), ROWS_OF(f32) },
	           [BY_INT8] = { FORMATS_OF(vnni) } },
	.widen = widen,
	.narrow = narrow,
	.pack = pack_512,
	.activate = activate,
};
