/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/plain.h"
#include "core/status.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_MOST ((size_t)256 << 20) /* of the index: Kimi-K2 has 20 MB */
#define FILES_MOST 4096u

char *moek_join(const char *folder, const char *name)
{
	size_t bytes = strlen(folder) + strlen(name) + 2;
	char *path = malloc(bytes);

	if (path != NULL)
		snprintf(path, bytes, "%s/%s", folder, name);
	return path;
}

static int32_t make_tables(struct moek_files *files, size_t most, size_t names,
                           struct moek_error *error_out)
{
	files->open = calloc(most + 1, sizeof(*files->open));
	files->names = calloc(names + 1, sizeof(*files->names));
	files->places = calloc(names + 1, sizeof(*files->places));
	if (files->open == NULL || files->names == NULL || files->places == NULL)
		return moek_fail_memory(error_out, "table of tensors");
	return MOEK_OK;
}

static int ends_in(const char *name, const char *suffix)
{
	size_t length = strlen(name), end = strlen(suffix);

	return length > end && strcmp(name + length - end, suffix) == 0;
}

/** What a folder without model.safetensors has. */
struct others {
	unsigned safetensors, unread; /* files of weights */
	char first[256];              /* safetensors, or else of another kind */
};

static void look_for_others(const char *folder, struct others *others)
{
	static const char *const unread[] = { ".bin", ".pt", ".pth", ".gguf", ".ckpt" };
	DIR *directory = opendir(folder);
	const struct dirent *entry;

	memset(others, 0, sizeof(*others));
	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		const char *name = entry->d_name;
		int is_unread = 0;

		for (size_t i = 0; i < sizeof(unread) / sizeof(unread[0]); i++)
			is_unread |= ends_in(name, unread[i]);
		others->unread += (unsigned)is_unread;
		if (ends_in(name, ".safetensors") && others->safetensors++ == 0)
			snprintf(others->first, sizeof(others->first), "%s", name);
		else if (is_unread && others->safetensors == 0)
			snprintf(others->first, sizeof(others->first), "%s", name);
	}
	if (directory != NULL)
		closedir(directory);
}

/** The path of the one file of weights: model.safetensors, or the only one there is. */
static int32_t single_path(const struct moek_files *files, char **path_out,
                           struct moek_error *error_out)
{
	char *path = moek_join(files->folder, "model.safetensors");
	struct others others;

	if (path != NULL && access(path, F_OK) != 0) {
		look_for_others(files->folder, &others);
		if (others.safetensors > 1 || others.unread > 0) {
			free(path);
			return moek_fail(
				error_out, MOEK_BAD_FILE, 0,
				others.safetensors > 1
					? "%s: %u files end in .safetensors, the first "
					  "is %s, and there is no "
					  "model.safetensors.index.json that says what "
			                  "is "
					  "where"
					: "%s: no safetensors: %u files of weights are "
			                  "of "
					  "other kinds, the first is %s; moek reads "
					  "safetensors",
				files->folder,
				others.safetensors > 1 ? others.safetensors
						       : others.unread,
				moek_quote(others.first, strlen(others.first)).text);
		}
		if (others.safetensors == 1) {
			free(path);
			path = moek_join(files->folder, others.first);
		}
	}
	*path_out = path;
	return path != NULL ? MOEK_OK : moek_fail_memory(error_out, "path");
}

static int32_t open_single(struct moek_files *files, struct moek_error *error_out)
{
	char *path = NULL;
	struct moek_safetensors *file = NULL;
	const struct moek_name *names;
	size_t count;
	int32_t status = single_path(files, &path, error_out);

	if (status == MOEK_OK)
		status = moek_safetensors_open(path, &file, error_out);
	free(path);
	if (status != MOEK_OK)
		return status;
	names = moek_safetensors_names(file, &count);
	status = make_tables(files, 1, count, error_out);
	if (status != MOEK_OK) {
		moek_safetensors_close(file);
		return status;
	}
	files->open[0] = file;
	files->open_count = 1;
	for (size_t i = 0; i < count; i++) {
		files->names[i] = names[i];
		files->places[i].record = (uint32_t)i;
	}
	files->count = count;
	return MOEK_OK;
}

/** Names of shards come from a file that is not trusted, and are opened. */
static const char *path_complaint(const char *text, size_t bytes)
{
	static const char suffix[] = ".safetensors";
	size_t suffix_bytes = sizeof(suffix) - 1;

	if (strlen(text) != bytes)
		return "holds a NUL";
	if (text[0] == '/')
		return "is absolute";
	if (strchr(text, '\\') != NULL || strchr(text, ':') != NULL)
		return "holds a backslash or a colon";
	for (const char *part = text; part != NULL; part = strchr(part, '/')) {
		part += *part == '/';
		if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
			return "leaves its folder";
	}
	if (bytes <= suffix_bytes ||
	    memcmp(text + bytes - suffix_bytes, suffix, suffix_bytes) != 0)
		return "does not end in .safetensors";
	return NULL;
}

/** The members of weight_map, as arrays. */
struct weight_map {
	const char *path; /* of the index */
	size_t count;
	struct moek_name *tensors, *files; /* [count] */
	uint32_t *numbers;                 /* [count]: of the file in the checkpoint */
	struct moek_index index;           /* over files: finds the first of its name */
};

static void weight_map_end(struct weight_map *map)
{
	moek_index_end(&map->index);
	free(map->numbers);
	free(map->files);
	free(map->tensors);
	*map = (struct weight_map){ .path = map->path };
}

static int32_t weight_map_room(struct weight_map *map, size_t count,
                               struct moek_error *error_out)
{
	map->tensors = calloc(count + 1, sizeof(*map->tensors));
	map->files = calloc(count + 1, sizeof(*map->files));
	map->numbers = calloc(count + 1, sizeof(*map->numbers));
	return map->tensors != NULL && map->files != NULL && map->numbers != NULL
	               ? MOEK_OK
	               : moek_fail_memory(error_out, "weight map");
}

/** The members of weight_map, counted, or with @map kept: there is room for them. */
static int plain_map(struct moek_plain *plain, struct weight_map *map,
                     size_t *count_out)
{
	*count_out = 0;
	if (!moek_plain_take(plain, '{'))
		return 0;
	do {
		struct moek_name tensor, file;

		if (!moek_plain_string(plain, &tensor) ||
		    !moek_plain_take(plain, ':') || !moek_plain_string(plain, &file))
			return 0;
		if (map != NULL) {
			map->tensors[*count_out] = tensor;
			map->files[*count_out] = file;
		}
		++*count_out;
	} while (moek_plain_take(plain, ','));
	return moek_plain_take(plain, '}');
}

/** metadata and weight_map, in any order; *members_out is where the latter's are. */
static int plain_index(struct moek_plain plain, struct moek_plain *members_out,
                       size_t *count_out)
{
	int maps = 0, others = 0;

	if (!moek_plain_take(&plain, '{'))
		return 0;
	do {
		struct moek_name key;

		if (!moek_plain_string(&plain, &key) || !moek_plain_take(&plain, ':'))
			return 0;
		if (moek_plain_is(&key, "weight_map") && maps++ == 0) {
			*members_out = plain;
			if (!plain_map(&plain, NULL, count_out))
				return 0;
		} else if (!moek_plain_is(&key, "metadata") || others++ != 0 ||
		           !moek_plain_skip(&plain, 1)) {
			return 0;
		}
	} while (moek_plain_take(&plain, ','));
	return maps == 1 && moek_plain_take(&plain, '}') && moek_plain_is_over(&plain);
}

/** End each name where its closing quote stood. */
static void end_names(struct weight_map *map)
{
	for (size_t i = 0; i < map->count; i++) {
		*(char *)(uintptr_t)(map->tensors[i].text +
		                     map->tensors[i].bytes) = '\0';
		*(char *)(uintptr_t)(map->files[i].text + map->files[i].bytes) = '\0';
	}
}

/** A name that stands twice is for the JSON reader to tell. */
static int32_t is_each_once(const struct weight_map *map, int *once_out,
                            struct moek_error *error_out)
{
	struct moek_index index = { 0 };
	int32_t status = moek_index_build(&index, map->tensors, map->count, error_out);

	*once_out = 1;
	for (size_t i = 0; i < map->count && status == MOEK_OK; i++)
		if (moek_index_find(&index, map->tensors[i].text,
		                    map->tensors[i].bytes) != i)
			*once_out = 0;
	moek_index_end(&index);
	return status;
}

/** What core/plain.h reads of the index in @text; *done_out 0: it is not plain. */
static int32_t weight_map_plain(struct weight_map *map, char *text, size_t bytes,
                                int *done_out, struct moek_error *error_out)
{
	const struct moek_plain plain = { .at = text, .end = text + bytes };
	struct moek_plain members;
	size_t count = 0;
	int32_t status;

	*done_out = 0;
	if (!plain_index(plain, &members, &count))
		return MOEK_OK;
	status = weight_map_room(map, count, error_out);
	if (status != MOEK_OK)
		return status;
	plain_map(&members, map, &map->count);
	status = is_each_once(map, done_out, error_out);
	if (*done_out)
		end_names(map);
	else
		weight_map_end(map);
	return status;
}

static int32_t weight_map_json(struct weight_map *map, const struct moek_json *root,
                               struct moek_error *error_out)
{
	const struct moek_json *members = moek_json_get(root, "weight_map"), *value;
	void *cursor = NULL;
	const char *key;
	size_t bytes;
	int32_t status;

	if (moek_json_kind(members) != MOEK_JSON_OBJECT)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: weight_map is missing or not an object",
		                 map->path);
	status = weight_map_room(map, moek_json_count(members), error_out);
	while (status == MOEK_OK &&
	       (value = moek_json_next(members, &cursor, &key, &bytes)) != NULL) {
		struct moek_name *file = &map->files[map->count];

		file->text = moek_json_string(value, &file->bytes);
		if (file->text == NULL)
			return moek_fail(
				error_out, MOEK_BAD_FILE, 0,
				"%s: weight_map: file \"?\" of tensor %s is not a "
				"string",
				map->path, moek_quote(key, bytes).text);
		map->tensors[map->count].text = key;
		map->tensors[map->count].bytes = bytes;
		map->count++;
	}
	return status;
}

static int32_t weight_map_check(struct weight_map *map, struct moek_error *error_out)
{
	for (size_t i = 0; i < map->count; i++) {
		const struct moek_name *file = &map->files[i],
				       *tensor = &map->tensors[i];
		const char *complaint = path_complaint(file->text, file->bytes);

		if (complaint != NULL)
			return moek_fail(error_out, MOEK_BAD_FILE, 0,
			                 "%s: weight_map: file \"%s\" of tensor %s %s",
			                 map->path,
			                 moek_quote(file->text, file->bytes).text,
			                 moek_quote(tensor->text, tensor->bytes).text,
			                 complaint);
	}
	return moek_index_build(&map->index, map->files, map->count, error_out);
}

static int32_t open_shard(struct moek_files *files, const char *name,
                          struct moek_error *error_out)
{
	char *path = moek_join(files->folder, name);
	int32_t status;

	if (path == NULL)
		return moek_fail_memory(error_out, "path");
	status = moek_safetensors_open(path, &files->open[files->open_count],
	                               error_out);
	free(path);
	if (status == MOEK_OK)
		files->open_count++;
	return status;
}

static int32_t open_shards(struct moek_files *files, struct weight_map *map,
                           struct moek_error *error_out)
{
	for (size_t i = 0; i < map->count; i++) {
		uint32_t first = moek_index_find(&map->index, map->files[i].text,
		                                 map->files[i].bytes);
		int32_t status;

		if (first != i) {
			map->numbers[i] = map->numbers[first];
			continue;
		}
		if (files->open_count == FILES_MOST)
			return moek_fail(error_out, MOEK_BAD_FILE, 0,
			                 "%s: weight_map: over %u files", map->path,
			                 FILES_MOST);
		map->numbers[i] = (uint32_t)files->open_count;
		status = open_shard(files, map->files[i].text, error_out);
		if (status != MOEK_OK)
			return status;
	}
	return MOEK_OK;
}

static int32_t place_tensors(struct moek_files *files, const struct weight_map *map,
                             struct moek_error *error_out)
{
	for (size_t i = 0; i < map->count; i++) {
		const struct moek_safetensors *file = files->open[map->numbers[i]];
		const struct moek_name *wanted = &map->tensors[i], *names;
		uint32_t record = moek_safetensors_find(file, wanted->text,
		                                        wanted->bytes);
		size_t count;

		names = moek_safetensors_names(file, &count);
		if (record == MOEK_INDEX_NONE)
			return moek_fail(
				error_out, MOEK_BAD_FILE, 0,
				"%s: no tensor %s, which %s says is here; nearest: %s",
				moek_safetensors_path(file),
				moek_quote(wanted->text, wanted->bytes).text, map->path,
				moek_alike(wanted->text, names, count).text);
		files->names[i] = names[record];
		files->places[i].file = map->numbers[i];
		files->places[i].record = record;
	}
	files->count = map->count;
	return MOEK_OK;
}

/** Tensors in the shards that the index does not know: odd, and not an error. */
static void warn_of_strays(const struct moek_files *files, const char *path)
{
	size_t strays = 0;
	const struct moek_name *first = NULL;

	for (size_t f = 0; f < files->open_count; f++) {
		size_t count;
		const struct moek_name *names = moek_safetensors_names(files->open[f],
		                                                       &count);

		for (size_t i = 0; i < count; i++) {
			uint32_t at = moek_index_find(&files->index, names[i].text,
			                              names[i].bytes);

			if (at != MOEK_INDEX_NONE && files->places[at].file == f)
				continue;
			if (strays++ == 0)
				first = &names[i];
		}
	}
	if (strays != 0)
		moek_log_write(files->log, MOEK_LOG_WARNING,
		               "%s: weight_map lacks %zu tensors of its files, the "
		               "first is %s",
		               path, strays,
		               moek_quote(first->text, first->bytes).text);
}

static int32_t open_sharded(struct moek_files *files, const char *path,
                            struct moek_error *error_out)
{
	struct weight_map map = { .path = path };
	struct moek_json *root = NULL;
	char *text = NULL;
	size_t bytes = 0;
	int is_done = 0;
	int32_t status = moek_json_read_text(path, INDEX_MOST, &text, &bytes,
	                                     error_out);

	if (status == MOEK_OK)
		status = weight_map_plain(&map, text, bytes, &is_done, error_out);
	if (status == MOEK_OK && !is_done)
		status = moek_json_parse(text, bytes, path, &root, error_out);
	if (status == MOEK_OK && !is_done)
		status = weight_map_json(&map, root, error_out);
	if (status == MOEK_OK)
		status = weight_map_check(&map, error_out);
	if (status == MOEK_OK)
		status = make_tables(files, FILES_MOST, map.count, error_out);
	if (status == MOEK_OK)
		status = open_shards(files, &map, error_out);
	if (status == MOEK_OK)
		status = place_tensors(files, &map, error_out);
	weight_map_end(&map);
	moek_json_free(root);
	free(text);
	return status;
}

static int32_t open_all(struct moek_files *files, struct moek_error *error_out)
{
	char *path = moek_join(files->folder, "model.safetensors.index.json");
	int is_sharded;
	int32_t status;

	if (path == NULL)
		return moek_fail_memory(error_out, "path");
	is_sharded = access(path, F_OK) == 0;
	status = is_sharded ? open_sharded(files, path, error_out)
	                    : open_single(files, error_out);
	if (status == MOEK_OK)
		status = moek_index_build(&files->index, files->names, files->count,
		                          error_out);
	if (status == MOEK_OK && is_sharded)
		warn_of_strays(files, path);
	free(path);
	return status;
}

int32_t moek_files_open(struct moek_files *files, const char *folder,
                        struct moek_log *log, struct moek_error *error_out)
{
	files->folder = folder;
	files->log = log;
	return open_all(files, error_out);
}

void moek_files_end(struct moek_files *files)
{
	moek_index_end(&files->index);
	free(files->places);
	free(files->names);
	for (size_t i = 0; i < files->open_count; i++)
		moek_safetensors_close(files->open[i]);
	free(files->open);
	memset(files, 0, sizeof(*files));
}

const struct moek_safetensors *moek_files_at(const struct moek_files *files, size_t i)
{
	return files->open[files->places[i].file];
}

int32_t moek_files_tensor(const struct moek_files *files, size_t i,
                          struct moek_tensor *tensor_out, struct moek_error *error_out)
{
	return moek_safetensors_at(moek_files_at(files, i), files->places[i].record,
	                           tensor_out, error_out);
}
