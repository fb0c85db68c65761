/* SPDX-License-Identifier: MIT */
/* One mapped safetensors file, and the index of names that a checkpoint shares. */
#ifndef MOEK_CORE_SAFETENSORS_H
#define MOEK_CORE_SAFETENSORS_H

#include <stddef.h>

#include <moek/moek.h>

/** A name as files spell it: UTF-8, opaque, not a path. */
struct moek_name {
	const char *text; /* also NUL-ended */
	size_t bytes;
};

/** From names to their place in an array: open addressing, no allocation per name. */
struct moek_index {
	const struct moek_name *names; /* borrowed */
	uint32_t *slots;               /* place + 1, or 0 */
	uint64_t mask, seed;
};

#define MOEK_INDEX_NONE UINT32_MAX

/** Over @count names (at most 2^30), which stay where they are; later twins are lost.
 */
int32_t moek_index_build(struct moek_index *index, const struct moek_name *names,
                         size_t count, struct moek_error *error_out);
/** MOEK_INDEX_NONE if there is none. An index of zeros has no names. */
uint32_t moek_index_find(const struct moek_index *index, const char *text,
                         size_t bytes);
void moek_index_end(struct moek_index *index);

/** A name cut to a line's length and made printable, for messages. */
struct moek_quoted {
	char text[256];
};
struct moek_quoted moek_quote(const char *text, size_t bytes);

/** "a, b, c": those of @count names that begin and end most like @text; "" if none
 * does. */
struct moek_quoted moek_alike(const char *text, const struct moek_name *names,
                              size_t count);

/** All names of a file, in the order of its header. */
const struct moek_name *moek_safetensors_names(const struct moek_safetensors *file,
                                               size_t *count_out);
/** MOEK_INDEX_NONE if there is none. */
uint32_t moek_safetensors_find(const struct moek_safetensors *file, const char *name,
                               size_t bytes);
/** Fill *tensor_out; MOEK_BAD_FILE: more than 8 dimensions. */
int32_t moek_safetensors_at(const struct moek_safetensors *file, uint32_t index,
                            struct moek_tensor *tensor_out,
                            struct moek_error *error_out);
const char *moek_safetensors_path(const struct moek_safetensors *file);

/** "BF16 [2, 3]" for messages. */
struct moek_quoted moek_tensor_text(const struct moek_tensor *tensor);

#endif
