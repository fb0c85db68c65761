/* SPDX-License-Identifier: MIT */
/* Files for tests: a scratch folder, and a writer of safetensors. */
#ifndef MOEK_TESTS_KIT_H
#define MOEK_TESTS_KIT_H

#include <stddef.h>
#include <stdint.h>

/** A new folder below the current one; kit_clean() deletes it and what is in it. */
const char *kit_folder(void);
void kit_clean(void);

/** FOLDER/NAME in static memory; a few at a time are kept apart. */
const char *kit_path(const char *folder, const char *name);
void kit_write(const char *path, const void *bytes, size_t count);
/** The whole of a file, malloc'ed and NUL-ended. */
char *kit_read(const char *path, size_t *count_out);

/** A safetensors file in the making. Zero it to begin; kit_save() ends it. */
struct kit_file {
	char *header;
	size_t header_bytes, header_room;
	uint8_t *data;
	size_t data_bytes, data_room;
};

/** @shape is "2,3". @data may be NULL: a pattern that differs from byte to byte. */
void kit_add(struct kit_file *file, const char *name, const char *dtype,
             const char *shape, const void *data);
void kit_save(struct kit_file *file, const char *path);

/** A small repeatable generator. */
uint32_t kit_random(uint32_t *state);

#endif
