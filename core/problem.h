/* SPDX-License-Identifier: MIT */
/* What a problem implies, and whether it contradicts itself. */
#ifndef MOEK_CORE_PROBLEM_H
#define MOEK_CORE_PROBLEM_H

#include <stddef.h>

#include <moek/moek.h>

/** Bits of must_understand that the other fields imply; the rest are the host's. */
#define MOEK_IMPLIED_BITS                                                              \
	(MOEK_ZERO_POINTS | MOEK_COLUMN_GROUPS | MOEK_BIAS | MOEK_LIMIT |              \
	 MOEK_ALPHA_BETA | MOEK_NOT_GATED | MOEK_PARTIAL_SUM)

/** A copy of @theirs, of whatever version, checked and with must_understand complete.
 */
int32_t moek_problem_read(const struct moek_problem *theirs,
                          struct moek_problem *problem_out,
                          struct moek_error *error_out);

/**
 * The text that moek_problem_parse() reads back to an equal problem; cut at @bytes.
 * Returns the length of the whole. Bits without a name are not in it.
 */
size_t moek_problem_text(const struct moek_problem *problem, char *text_out,
                         size_t bytes);

/** A finite number, the whole of @text, as in the C locale whatever the host's is. 1 or
 *  0. */
int moek_float_parse(const char *text, float *number_out);

/** Groups of a row of @columns under @scheme; 0 when the weights have no scales. */
uint64_t moek_scheme_groups(const struct moek_scheme *scheme, uint64_t columns);

#endif
