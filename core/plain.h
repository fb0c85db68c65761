/* SPDX-License-Identifier: MIT */
/*
 * JSON as the writers of checkpoints write it: ASCII strings without escapes, whole numbers
 * from 0. Large headers are read so, many times faster than by core/json.h, which judges
 * whatever is not plain: readers give up at the first odd byte and begin again there.
 */
#ifndef MOEK_CORE_PLAIN_H
#define MOEK_CORE_PLAIN_H

#include "core/safetensors.h"

struct moek_plain {
	const char *at, *end;
};

/* Each takes blanks and what it is named after: 1, or 0: something else is there. */

int moek_plain_take(struct moek_plain *plain, char c);
/** The text between the quotes, not NUL-ended. */
int moek_plain_string(struct moek_plain *plain, struct moek_name *name_out);
/** At most 18 digits. */
int moek_plain_number(struct moek_plain *plain, uint64_t *number_out);
/** 1: nothing but blanks is left. */
int moek_plain_is_over(struct moek_plain *plain);
/** An object of up to 16 different keys with strings, or with numbers too. */
int moek_plain_skip(struct moek_plain *plain, int numbers);

/** 1: @name is @text. */
int moek_plain_is(const struct moek_name *name, const char *text);

#endif
