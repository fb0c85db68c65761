/* SPDX-License-Identifier: MIT */
/*
 * A capsule: one call of one layer as a safetensors file. "problem" and "numerics" are
 * those structs (their struct_size says how much of them), "label", "backend" text,
 * then hidden_in, topk_ids, topk_weights, moe_out (absent: the call failed), expert_map if
 * there is one, and each local expert in the canonical form: experts.N.gate.codes, .scales,
 * .zeros, .column_group, .bias, .input_scale, bytes with zeros up to a multiple of 64.
 */
#ifndef MOEK_TOOLS_CAPSULE_H
#define MOEK_TOOLS_CAPSULE_H

#include "tools/work.h"

/** Into the folder of --capsule, which is made: LAYER.safetensors, and its choice as
 * LAYER.json. @ran: the output counts. */
int32_t capsule_write(const struct work *work, int ran, struct moek_error *error_out);

/** Sizes of a projection's parts in the canonical form. */
uint64_t capsule_code_bytes(const struct moek_scheme *scheme, uint64_t rows,
                            uint64_t columns);
uint64_t capsule_groups(const struct moek_scheme *scheme, uint64_t columns);
uint64_t capsule_scale_bytes(const struct moek_scheme *scheme);

#endif
