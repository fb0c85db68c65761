/* SPDX-License-Identifier: MIT */
/* Writes a checkpoint's tensors: first all of them are named, which fixes where each
 * lies, then their bytes come in any order, from any thread. */
#ifndef MOEK_CORE_STORE_H
#define MOEK_CORE_STORE_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_store;

/** Into @folder, which is there, in files of at most @most bytes of data where one
 * tensor alone is not larger. */
int32_t moek_store_open(const char *folder, uint64_t most,
                        struct moek_store **store_out, struct moek_error *error_out);
/** Of @tensor dtype, rank, shape and bytes count. Tensors are numbered from 0. */
int32_t moek_store_add(struct moek_store *store, const char *name,
                       const struct moek_tensor *tensor, struct moek_error *error_out);
/** After the last moek_store_add(): makes the files, their headers and the index. */
int32_t moek_store_begin(struct moek_store *store, struct moek_error *error_out);
/** @bytes at @offset of tensor @number, which they fit. Several threads at once. */
int32_t moek_store_write(const struct moek_store *store, size_t number, uint64_t offset,
                         const void *data, uint64_t bytes,
                         struct moek_error *error_out);
/** Closes the files: a disk that is full may only say so here. */
int32_t moek_store_end(struct moek_store *store, struct moek_error *error_out);
void moek_store_close(struct moek_store *store);

/** A text file of the same folder. */
int32_t moek_store_text(const char *path, const char *text,
                        struct moek_error *error_out);

#endif
