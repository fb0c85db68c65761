/* SPDX-License-Identifier: MIT */
/* A small case of a problem's kind, computed by a backend and by the reference before
 * the first layer is made of it. */
#ifndef MOEK_CORE_GOLDEN_H
#define MOEK_CORE_GOLDEN_H

#include "core/plugin.h"
#include "core/select.h"

struct moek_entrant;
struct moek_golden;

/** 1: @entrant is known to have failed for problems of this kind; *cause_out says how.
 *  Runs nothing. */
int moek_golden_recall(struct moek_registry *registry,
                       const struct moek_entrant *entrant,
                       const struct moek_problem *problem,
                       struct moek_cause *cause_out);

/**
 * May a layer be made of the choice's winner? MOEK_OK also when that cannot be found
 * out: no reference, no memory. MOEK_PLUGIN: its numbers are wrong, or it breaks the
 * contract; *error_out says how. Runs the case unless the answer is known.
 */
int32_t moek_golden_test(const struct moek_choice *choice,
                         struct moek_error *error_out);

/** What a registry has kept. NULL is fine. */
void moek_golden_end(struct moek_golden *golden);

#endif
