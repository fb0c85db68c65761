/* SPDX-License-Identifier: MIT */
/* What codecs ask of a checkpoint. */
#ifndef MOEK_CORE_CHECKPOINT_H
#define MOEK_CORE_CHECKPOINT_H

#include <moek/moek.h>

struct moek_expert_layer;
struct moek_log;

/** 1: there is a tensor of this name and at most 8 dimensions. Any thread. */
int moek_checkpoint_has(const struct moek_checkpoint *checkpoint, const char *name,
                        struct moek_tensor *tensor_out);
/** NULL without a registry. */
struct moek_log *moek_checkpoint_log(const struct moek_checkpoint *checkpoint);

/* ---- the whole of it, to be converted ---- */

const char *moek_checkpoint_folder(const struct moek_checkpoint *checkpoint);
/** Those of the registry; the caller's thread alone without one. */
const struct moek_workers *
moek_checkpoint_workers(const struct moek_checkpoint *checkpoint);
/** enum moek_type of the config's dtype. */
uint32_t moek_checkpoint_type(const struct moek_checkpoint *checkpoint);
const struct moek_expert_layer *
moek_checkpoint_experts(const struct moek_checkpoint *checkpoint, uint64_t index);

#endif
