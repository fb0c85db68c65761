/* SPDX-License-Identifier: MIT */
/* One canonical expert, held against the problem before a plugin sees it. */
#ifndef MOEK_CORE_EXPERT_H
#define MOEK_CORE_EXPERT_H

#include <moek/moek.h>

/** Zeroed, struct_sizes set: what a source fills. */
void moek_expert_init(struct moek_expert *expert_out);

/** MOEK_BAD_ARGUMENT names @number (for the text), the projection, found and expected.
 */
int32_t moek_expert_check(const struct moek_problem *problem, uint64_t number,
                          const struct moek_expert *expert,
                          struct moek_error *error_out);

#endif
