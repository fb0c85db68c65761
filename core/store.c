/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/json.h"
#include "core/problem.h"
#include "core/status.h"
#include "core/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct stored {
	char *name;
	char dtype[16];
	uint32_t rank, file;
	uint64_t shape[8], bytes;
	uint64_t offset; /* in the file */
};

struct file {
	char name[64];
	int descriptor; /* -1: none */
	size_t first, count;
	uint64_t bytes; /* of data */
};

struct moek_store {
	char *folder;
	uint64_t most;
	struct stored *tensors; /* [count] */
	size_t count, room;
	struct file *files; /* [file_count] */
	size_t file_count;
};

int32_t moek_store_open(const char *folder, uint64_t most,
                        struct moek_store **store_out, struct moek_error *error_out)
{
	struct moek_store *store = calloc(1, sizeof(*store));

	if (store == NULL)
		return moek_fail_memory(error_out, "store");
	store->folder = strdup(folder);
	store->most = most;
	if (store->folder == NULL) {
		free(store);
		return moek_fail_memory(error_out, "store");
	}
	*store_out = store;
	return MOEK_OK;
}

void moek_store_close(struct moek_store *store)
{
	if (store == NULL)
		return;
	for (size_t i = 0; i < store->file_count; i++)
		if (store->files[i].descriptor >= 0)
			close(store->files[i].descriptor);
	for (size_t i = 0; i < store->count; i++)
		free(store->tensors[i].name);
	free(store->files);
	free(store->tensors);
	free(store->folder);
	free(store);
}

int32_t moek_store_add(struct moek_store *store, const char *name,
                       const struct moek_tensor *tensor, struct moek_error *error_out)
{
	struct stored *stored;

	if (store->count == store->room) {
		size_t room = 2 * store->room + 64;
		struct stored *more = realloc(store->tensors, room * sizeof(*more));

		if (more == NULL)
			return moek_fail_memory(error_out, "store");
		store->tensors = more;
		store->room = room;
	}
	stored = &store->tensors[store->count];
	memset(stored, 0, sizeof(*stored));
	stored->name = strdup(name);
	if (stored->name == NULL)
		return moek_fail_memory(error_out, "store");
	snprintf(stored->dtype, sizeof(stored->dtype), "%s", tensor->dtype);
	stored->rank = tensor->rank;
	memcpy(stored->shape, tensor->shape, sizeof(stored->shape));
	stored->bytes = tensor->bytes;
	store->count++;
	return MOEK_OK;
}

/* ---- which tensor goes to which file, and where in it ---- */

static int32_t divide(struct moek_store *store, struct moek_error *error_out)
{
	struct file *file = NULL;
	int overflow = 0;

	store->files = calloc(store->count + 1, sizeof(*store->files));
	if (store->files == NULL)
		return moek_fail_memory(error_out, "store");
	for (size_t i = 0; i < store->count; i++) {
		struct stored *stored = &store->tensors[i];

		if (file == NULL ||
		    (file->bytes != 0 && stored->bytes > store->most - file->bytes)) {
			file = &store->files[store->file_count++];
			file->descriptor = -1;
			file->first = i;
		}
		stored->file = (uint32_t)(store->file_count - 1);
		file->count++;
		file->bytes = moek_add(file->bytes, stored->bytes, &overflow);
		if (file->bytes > store->most) /* one tensor alone; nothing joins it */
			file->bytes = store->most;
	}
	return overflow ? moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
	                            "%s: its tensors do not fit 64 bits", store->folder)
	                : MOEK_OK;
}

/** Bytes of an element: what the offset of a tensor is aligned to. */
static uint64_t element_bytes(const struct stored *stored)
{
	uint64_t elements = 1, bytes;

	for (uint32_t i = 0; i < stored->rank; i++)
		elements *= stored->shape[i];
	bytes = elements != 0 ? stored->bytes / elements : 1;
	return bytes >= 8 ? 8 : bytes >= 4 ? 4 : bytes >= 2 ? 2 : 1;
}

/** Wide elements first: without gaps, which the format forbids, all are aligned. */
static void place(struct moek_store *store, struct file *file)
{
	uint64_t offset = 0;

	for (uint64_t width = 8; width != 0; width /= 2)
		for (size_t i = file->first; i < file->first + file->count; i++)
			if (element_bytes(&store->tensors[i]) == width) {
				store->tensors[i].offset = offset;
				offset += store->tensors[i].bytes;
			}
	file->bytes = offset;
}

/* ---- headers ---- */

static struct moek_json *describe(const struct stored *stored)
{
	struct moek_json *entry = moek_json_new_object();
	struct moek_json *shape = moek_json_new_array();
	struct moek_json *offsets = moek_json_new_array();

	for (uint32_t i = 0; i < stored->rank; i++)
		moek_json_append(shape,
		                 moek_json_new_integer((int64_t)stored->shape[i]));
	moek_json_append(offsets, moek_json_new_integer((int64_t)stored->offset));
	moek_json_append(offsets, moek_json_new_integer(
					  (int64_t)(stored->offset + stored->bytes)));
	moek_json_set(entry, "dtype", moek_json_new_string(stored->dtype));
	moek_json_set(entry, "shape", shape);
	moek_json_set(entry, "data_offsets", offsets);
	return entry;
}

static char *header_text(const struct moek_store *store, const struct file *file)
{
	struct moek_json *root = moek_json_new_object();
	struct moek_json *about = moek_json_new_object();
	char *text;

	moek_json_set(about, "format",
	              moek_json_new_string("pt")); /* transformers asks */
	moek_json_set(root, "__metadata__", about);
	for (size_t i = file->first; i < file->first + file->count; i++)
		moek_json_set(root, store->tensors[i].name,
		              describe(&store->tensors[i]));
	text = moek_json_text(root);
	moek_json_free(root);
	return text;
}

static int32_t cannot_write(const char *folder, const char *name,
                            struct moek_error *error_out)
{
	return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s/%s: cannot write: %s", folder,
	                 name, strerror(errno));
}

static int32_t write_at(int descriptor, const void *data, uint64_t bytes,
                        uint64_t offset)
{
	const uint8_t *at = data;

	while (bytes > 0) {
		size_t most = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
		ssize_t done = pwrite(descriptor, at, most, (off_t)offset);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return 0;
		at += done;
		bytes -= (uint64_t)done;
		offset += (uint64_t)done;
	}
	return 1;
}

/** Open, write the header, move the offsets behind it. */
static int32_t begin_file(struct moek_store *store, struct file *file,
                          struct moek_error *error_out)
{
	char *path = NULL, *text = header_text(store, file);
	size_t length, padded;
	uint8_t size[8];
	int32_t status = MOEK_OK;

	if (text == NULL || asprintf(&path, "%s/%s", store->folder, file->name) < 0) {
		free(text);
		return moek_fail_memory(error_out, "header of safetensors");
	}
	length = strlen(text);
	padded = (length + 7) / 8 * 8; /* blanks may follow the header */
	for (int i = 0; i < 8; i++)
		size[i] = (uint8_t)((uint64_t)padded >> (8 * i));
	file->descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (file->descriptor < 0 || !write_at(file->descriptor, size, 8, 0) ||
	    !write_at(file->descriptor, text, length, 8) ||
	    !write_at(file->descriptor, "       ", padded - length, 8 + length) ||
	    ftruncate(file->descriptor, (off_t)(8 + padded + file->bytes)) != 0)
		status = cannot_write(store->folder, file->name, error_out);
	for (size_t i = file->first; i < file->first + file->count; i++)
		store->tensors[i].offset += 8 + padded;
	free(path);
	free(text);
	return status;
}

static int32_t write_index(const struct moek_store *store, struct moek_error *error_out)
{
	struct moek_json *root = moek_json_new_object();
	struct moek_json *about = moek_json_new_object();
	struct moek_json *map = moek_json_new_object();
	char *text, *path = NULL;
	uint64_t all = 0;
	int32_t status;

	for (size_t i = 0; i < store->count; i++) {
		all += store->tensors[i].bytes;
		moek_json_set(map, store->tensors[i].name,
		              moek_json_new_string(
				      store->files[store->tensors[i].file].name));
	}
	moek_json_set(about, "total_size", moek_json_new_integer((int64_t)all));
	moek_json_set(root, "metadata", about);
	moek_json_set(root, "weight_map", map);
	text = moek_json_text(root);
	moek_json_free(root);
	if (text == NULL ||
	    asprintf(&path, "%s/model.safetensors.index.json", store->folder) < 0) {
		free(text);
		return moek_fail_memory(error_out, "index of safetensors");
	}
	status = moek_store_text(path, text, error_out);
	free(path);
	free(text);
	return status;
}

int32_t moek_store_begin(struct moek_store *store, struct moek_error *error_out)
{
	int32_t status = divide(store, error_out);

	for (size_t i = 0; i < store->file_count && status == MOEK_OK; i++) {
		struct file *file = &store->files[i];

		if (store->file_count == 1)
			strcpy(file->name, "model.safetensors");
		else
			snprintf(file->name, sizeof(file->name),
			         "model-%05zu-of-%05zu.safetensors", i + 1,
			         store->file_count);
		place(store, file);
		status = begin_file(store, file, error_out);
	}
	return status == MOEK_OK && store->file_count > 1
	               ? write_index(store, error_out)
	               : status;
}

/* ---- data ---- */

int32_t moek_store_write(const struct moek_store *store, size_t number, uint64_t offset,
                         const void *data, uint64_t bytes, struct moek_error *error_out)
{
	const struct stored *stored = &store->tensors[number];
	const struct file *file = &store->files[stored->file];

	return write_at(file->descriptor, data, bytes, stored->offset + offset)
	               ? MOEK_OK
	               : cannot_write(store->folder, file->name, error_out);
}

int32_t moek_store_end(struct moek_store *store, struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < store->file_count; i++) {
		struct file *file = &store->files[i];
		int failed = close(file->descriptor) != 0;

		file->descriptor = -1;
		if (failed && status == MOEK_OK)
			status = cannot_write(store->folder, file->name, error_out);
	}
	return status;
}

int32_t moek_store_text(const char *path, const char *text,
                        struct moek_error *error_out)
{
	FILE *file = fopen(path, "wx");
	int failed = file == NULL || fputs(text, file) < 0;

	if (file != NULL && fclose(file) != 0)
		failed = 1;
	return failed ? moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: cannot write: %s",
	                          path, strerror(errno))
	              : MOEK_OK;
}
