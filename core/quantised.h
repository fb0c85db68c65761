/* SPDX-License-Identifier: MIT */
/* What the configs of GPTQ, AWQ and AutoRound have in common. */
#ifndef MOEK_CORE_QUANTISED_H
#define MOEK_CORE_QUANTISED_H

#include "core/codec.h"

struct moek_quantised {
	uint64_t group_size; /* 0: channel */
	int symmetric;
};

/** bits (4), group_size, sym or zero_point. */
int32_t moek_quantised_read(const struct moek_expert_layer *layer,
                            const struct moek_json *quantization,
                            struct moek_quantised *quantised_out,
                            struct moek_error *error_out);
/** layer->format: "gptq v1 int4 asymmetric, group 128, activation order". */
void moek_quantised_format(struct moek_expert_layer *layer,
                           const struct moek_quantised *quantised, const char *who);

#endif
