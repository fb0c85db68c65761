/* SPDX-License-Identifier: MIT */
/* Tensor parallel: the part of each expert that one of several ranks holds. Rows of
 * gate and up, each by itself, and the same columns of down; sums of all ranks' outputs
 * are the layer's. Nothing is padded: backends pad. */
#ifndef MOEK_CORE_SHARD_H
#define MOEK_CORE_SHARD_H

#include "core/codec.h"

/** Set shard, first and local of a layer whose codec was found: whole groups of down's
 *  scales. MOEK_REFUSED names how many shards can be. */
int32_t moek_shard_set(struct moek_expert_layer *layer, uint32_t shard, uint32_t shards,
                       struct moek_error *error_out);

/** Leave the shard's part of a matrix, if the codec has not done so; @scratch is for
 *  columns. */
int32_t moek_shard_cut(const struct moek_expert_layer *layer, enum moek_part part,
                       struct moek_scratch *scratch, struct moek_matrix *matrix,
                       struct moek_error *error_out);

/** Bytes that the shard needs of a tensor of @part. */
uint64_t moek_shard_reads(const struct moek_expert_layer *layer, enum moek_part part,
                          const struct moek_tensor *tensor, int is_bias);

#endif
