/* SPDX-License-Identifier: MIT */
/* Any CPU: vectors of four, as the compiler lowers them. */
#define LANES 4u
#include "kernels_vector.h"

EACH_FORMAT(F32_KERNEL)
EACH_FORMAT(INT8_KERNEL)
EACH_ROWS(F32_KERNEL)

extern const struct kernels cpu_kernels_plain;
const struct kernels cpu_kernels_plain = {
	.panel = { [BY_F32] = { FORMATS_OF(f32), ROWS_OF(f32) },
	           [BY_INT8] = { FORMATS_OF(int8) } },
	.widen = widen,
	.narrow = narrow,
	.pack = pack,
	.activate = activate,
};
