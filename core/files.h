/* SPDX-License-Identifier: MIT */
/* The safetensors files of a folder, and where each tensor is: model.safetensors, or
 * what model.safetensors.index.json names. */
#ifndef MOEK_CORE_FILES_H
#define MOEK_CORE_FILES_H

#include "core/safetensors.h"

struct moek_log;

struct moek_tensor_place {
	uint32_t file; /* of open */
	uint32_t record;
};

struct moek_files {
	const char *folder;             /* borrowed */
	struct moek_log *log;           /* may be NULL */
	struct moek_safetensors **open; /* [open_count] */
	size_t open_count;
	struct moek_name *names;          /* [count]; the text is in the files */
	struct moek_tensor_place *places; /* [count] */
	size_t count;
	struct moek_index index; /* over names */
};

/** FOLDER/NAME, malloc'ed. */
char *moek_join(const char *folder, const char *name);

/** Open them all. @files is zeroed; moek_files_end() in any case. */
int32_t moek_files_open(struct moek_files *files, const char *folder,
                        struct moek_log *log, struct moek_error *error_out);
void moek_files_end(struct moek_files *files);

/** The file of tensor @i, and the tensor. MOEK_BAD_FILE: over 8 dimensions. */
const struct moek_safetensors *moek_files_at(const struct moek_files *files, size_t i);
int32_t moek_files_tensor(const struct moek_files *files, size_t i,
                          struct moek_tensor *tensor_out, struct moek_error *error_out);

#endif
