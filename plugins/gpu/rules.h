/* SPDX-License-Identifier: MIT */
/* Rules that GPU plugins share. Each answers as a supports_ hook does: 1, or 0 with the
 * verdict filled. */
#ifndef MOEK_GPU_RULES_H
#define MOEK_GPU_RULES_H

#include <moek/experts.h>

#include "plugin.h"

/** A HIP device for which there is an image. */
int32_t gpu_supports_device(const struct gpu_image *images,
                            const struct moek_device *device,
                            struct moek_verdict *no_out);
/** What @supports says of both projections; names the one that it refuses. */
int32_t gpu_supports_both(const struct moek_problem *problem,
                          int32_t (*supports)(const struct moek_scheme *scheme,
                                              struct moek_verdict *no_out),
                          struct moek_verdict *no_out);
/** MXFP4 weights; the static scale of activations is the caller's to judge. */
int32_t gpu_supports_mxfp4(const struct moek_scheme *scheme,
                           struct moek_verdict *no_out);
/** fp16, bf16 or, if @singles, fp32 rows in; any of them out. */
int32_t gpu_supports_types(const struct moek_problem *problem, int singles,
                           struct moek_verdict *no_out);
/** What activation.h has, gated. */
int32_t gpu_supports_activation(void *plugin, const struct moek_problem *problem,
                                struct moek_verdict *no_out);
/** Adjacent rows, no LoRA, a weight on the input only of one choice. */
int32_t gpu_supports_parallel(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out);
/** Multiples of 32, at most 128 choices and 16384 experts, 2^30 weights a projection.
 */
int32_t gpu_supports_shape(void *plugin, const struct moek_problem *problem,
                           struct moek_verdict *no_out);

#endif
