/* SPDX-License-Identifier: MIT */
/* What codecs ask of a checkpoint. */
#ifndef MOEK_CORE_CHECKPOINT_H
#define MOEK_CORE_CHECKPOINT_H

#include <moek/moek.h>

struct moek_log;

/** 1: there is a tensor of this name and at most 8 dimensions. Any thread. */
int moek_checkpoint_has(const struct moek_checkpoint *checkpoint, const char *name,
                        struct moek_tensor *tensor_out);
/** NULL without a registry. */
struct moek_log *moek_checkpoint_log(const struct moek_checkpoint *checkpoint);

#endif
