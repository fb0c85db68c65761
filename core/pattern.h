/* SPDX-License-Identifier: MIT */
/* Patterns by which configs name modules: globs, and regular expressions as Python has
 * them, as far as POSIX has the same. */
#ifndef MOEK_CORE_PATTERN_H
#define MOEK_CORE_PATTERN_H

#include <moek/moek.h>

/** 1: the glob fits the whole of @text. */
int moek_glob_fits(const char *glob, const char *text);

/**
 * 1: @pattern fits the beginning of @text, as Python's re.match does; 0: it does not.
 * MOEK_REFUSED: it has what POSIX has not (look-around, lazy repeats, back references),
 * or is none; @where stands in the error.
 */
int32_t moek_pattern_fits(const char *pattern, const char *text, const char *where,
                          int *fits_out, struct moek_error *error_out);

#endif
