/* SPDX-License-Identifier: MIT */
/* AVX-512 with int8 and bf16 dot products: Cooper Lake, Sapphire Rapids, Zen 4 and on.
 */
#include "kernels_avx512.h"

EACH_FORMAT(F32_KERNEL)
EACH_ROWS(F32_KERNEL)
EACH_FORMAT(VNNI_KERNEL)
EACH_FORMAT(BF16_KERNEL)
EACH_COUNT(BF16_KERNEL, ROWS_BF16)

extern const struct kernels cpu_kernels_avx512bf16;
const struct kernels cpu_kernels_avx512bf16 = {
	.bf16 = 1,
	.panel = { [BY_F32] = { FORMATS_OF(f32), ROWS_OF(f32) },
	           [BY_BF16] = { FORMATS_OF(bf16), COUNTS(bf16, ROWS_BF16) },
	           [BY_INT8] = { FORMATS_OF(vnni) } },
	.widen = widen,
	.narrow = narrow,
	.pack = pack_512,
	.activate = activate,
};
