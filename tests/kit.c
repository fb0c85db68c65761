/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kit.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[32];

/** Not Check's: fuzzers use this file too. */
static void need(int is_so, const char *what)
{
	if (is_so)
		return;
	perror(what);
	abort();
}

const char *kit_folder(void)
{
	strcpy(folder, "kit_XXXXXX");
	need(mkdtemp(folder) != NULL, folder);
	return folder;
}

static int delete_one(const char *path, const struct stat *facts, int type,
                      struct FTW *place)
{
	(void)facts;
	(void)type;
	(void)place;
	return remove(path);
}

void kit_clean(void)
{
	if (folder[0] != '\0')
		nftw(folder, delete_one, 8, FTW_DEPTH | FTW_PHYS);
	folder[0] = '\0';
}

const char *kit_path(const char *from, const char *name)
{
	static char paths[4][1024];
	static unsigned next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", from, name);
	return path;
}

void kit_write(const char *path, const void *bytes, size_t count)
{
	FILE *file = fopen(path, "wb");

	need(file != NULL, path);
	need(fwrite(bytes, 1, count, file) == count, path);
	need(fclose(file) == 0, path);
}

char *kit_read(const char *path, size_t *count_out)
{
	FILE *file = fopen(path, "rb");
	char *text;
	long size;

	need(file != NULL, path);
	fseek(file, 0, SEEK_END);
	size = ftell(file);
	rewind(file);
	text = malloc((size_t)size + 1);
	need(fread(text, 1, (size_t)size, file) == (size_t)size, path);
	text[size] = '\0';
	fclose(file);
	if (count_out != NULL)
		*count_out = (size_t)size;
	return text;
}

static void *grow(void *memory, size_t used, size_t more, size_t *room)
{
	if (used + more <= *room)
		return memory;
	*room = (used + more) * 2;
	return realloc(memory, *room);
}

static size_t dtype_bytes(const char *dtype)
{
	if (strstr(dtype, "64") != NULL)
		return 8;
	if (strstr(dtype, "32") != NULL)
		return 4;
	return strstr(dtype, "16") != NULL ? 2 : 1;
}

void kit_add(struct kit_file *file, const char *name, const char *dtype,
             const char *shape, const void *data)
{
	size_t bytes = dtype_bytes(dtype), room = strlen(name) + strlen(shape) + 128;
	uint32_t state = (uint32_t)file->data_bytes * 77 + 1;
	const char *at = shape;
	char *end;

	for (; *at != '\0'; at = *end == ',' ? end + 1 : end)
		bytes *= strtoull(at, &end, 10);
	file->header = grow(file->header, file->header_bytes, room, &file->header_room);
	file->header_bytes += (size_t)sprintf(
		file->header + file->header_bytes,
		"%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
		file->header_bytes == 0 ? "{" : ",", name, dtype, shape,
		file->data_bytes, file->data_bytes + bytes);
	file->data = grow(file->data, file->data_bytes, bytes, &file->data_room);
	for (size_t i = 0; i < bytes; i++)
		file->data[file->data_bytes + i] =
			data != NULL ? ((const uint8_t *)data)[i]
				     : (uint8_t)(kit_random(&state) >> 8);
	file->data_bytes += bytes;
}

void kit_save(struct kit_file *file, const char *path)
{
	size_t pad = (8 - (file->header_bytes + 1) % 8) % 8, length;
	FILE *out = fopen(path, "wb");

	need(out != NULL, path);
	length = file->header_bytes + 1 + pad;
	for (unsigned i = 0; i < 8; i++)
		putc((int)((uint64_t)length >> 8 * i & 255), out);
	fwrite(file->header, 1, file->header_bytes, out);
	fprintf(out, "}%*s", (int)pad, "");
	fwrite(file->data, 1, file->data_bytes, out);
	need(fclose(out) == 0, path);
	free(file->header);
	free(file->data);
	memset(file, 0, sizeof(*file));
}

uint32_t kit_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state;
}
