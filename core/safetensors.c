/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/json.h"
#include "core/plain.h"
#include "core/safetensors.h"
#include "core/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LENGTH_BYTES 8u
#define HEADER_MOST 100000000u /* the format's own limit, decimal */
#define RANK_MOST 8u

/* ---- names ---- */

/** Seeded, so that a file cannot be made to collide; 8 bytes at a time. */
static uint64_t hash_name(const char *text, size_t bytes, uint64_t seed)
{
	uint64_t hash = seed ^ bytes;

	while (bytes > 0) {
		uint64_t word = 0;
		size_t part = bytes < sizeof(word) ? bytes : sizeof(word);

		memcpy(&word, text, part);
		hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		hash ^= hash >> 29;
		text += part;
		bytes -= part;
	}
	hash *= UINT64_C(0xbf58476d1ce4e5b9);
	return hash ^ hash >> 32;
}

static int same_name(const struct moek_name *name, const char *text, size_t bytes)
{
	return name->bytes == bytes && memcmp(name->text, text, bytes) == 0;
}

/** The slot where the name is, or would be. */
static uint64_t find_slot(const struct moek_index *index, const char *text,
                          size_t bytes)
{
	uint64_t at = hash_name(text, bytes, index->seed) & index->mask;

	while (index->slots[at] != 0 &&
	       !same_name(&index->names[index->slots[at] - 1], text, bytes))
		at = (at + 1) & index->mask;
	return at;
}

int32_t moek_index_build(struct moek_index *index, const struct moek_name *names,
                         size_t count, struct moek_error *error_out)
{
	uint64_t slots = 16;

	while (slots < (uint64_t)count * 2)
		slots *= 2;
	index->slots = calloc(slots, sizeof(*index->slots));
	if (index->slots == NULL)
		return moek_fail_memory(error_out, "index of tensor names");
	index->names = names;
	index->mask = slots - 1;
	index->seed = (uint64_t)(uintptr_t)index->slots * UINT64_C(0x2545f4914f6cdd1d);
	for (size_t i = 0; i < count; i++) {
		uint64_t at = find_slot(index, names[i].text, names[i].bytes);

		if (index->slots[at] == 0)
			index->slots[at] = (uint32_t)i + 1;
	}
	return MOEK_OK;
}

uint32_t moek_index_find(const struct moek_index *index, const char *text, size_t bytes)
{
	uint64_t at;

	if (index->slots == NULL)
		return MOEK_INDEX_NONE;
	at = find_slot(index, text, bytes);
	return index->slots[at] == 0 ? MOEK_INDEX_NONE : index->slots[at] - 1;
}

void moek_index_end(struct moek_index *index)
{
	free(index->slots);
	index->slots = NULL;
}

struct moek_quoted moek_quote(const char *text, size_t bytes)
{
	struct moek_quoted quoted;
	size_t at = 0;

	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];

		if (at + sizeof("\\x00...") > sizeof(quoted.text)) {
			memcpy(quoted.text + at, "...", 3);
			at += 3;
			break;
		}
		if (c >= 0x20 && c <= 0x7e)
			quoted.text[at++] = (char)c;
		else
			at += (size_t)snprintf(quoted.text + at,
			                       sizeof(quoted.text) - at, "\\x%02x", c);
	}
	quoted.text[at] = '\0';
	return quoted;
}

/** Bytes that two names share at their beginning and at their end. */
static size_t likeness(const char *a, size_t a_bytes, const struct moek_name *b)
{
	size_t least = a_bytes < b->bytes ? a_bytes : b->bytes;
	size_t front = 0, back = 0;

	while (front < least && a[front] == b->text[front])
		front++;
	while (back < least - front &&
	       a[a_bytes - 1 - back] == b->text[b->bytes - 1 - back])
		back++;
	return front + back;
}

struct moek_quoted moek_alike(const char *text, const struct moek_name *names,
                              size_t count)
{
	enum { MOST = 3 };
	const struct moek_name *best[MOST] = { NULL };
	size_t score[MOST] = { 0 }, bytes = strlen(text), used = 0;
	struct moek_quoted all = { "" };

	for (size_t i = 0; i < count; i++) {
		size_t like = likeness(text, bytes, &names[i]);
		int at = MOST;

		while (at > 0 && like > score[at - 1])
			at--;
		if (at == MOST || like * 3 < bytes)
			continue;
		memmove(&best[at + 1], &best[at],
		        (size_t)(MOST - 1 - at) * sizeof(best[0]));
		memmove(&score[at + 1], &score[at],
		        (size_t)(MOST - 1 - at) * sizeof(score[0]));
		best[at] = &names[i];
		score[at] = like;
	}
	for (int i = 0; i < MOST && best[i] != NULL && used < sizeof(all.text); i++)
		used += (size_t)snprintf(
			all.text + used, sizeof(all.text) - used, "%s%s",
			i == 0 ? "" : ", ",
			moek_quote(best[i]->text, best[i]->bytes).text);
	return all;
}

/* ---- the file ---- */

static const struct dtype {
	const char *name;
	uint32_t bits;
	uint32_t type; /* enum moek_type, or 0 */
} dtypes[] = {
	{ "F4", 4, 0 },
	{ "F6_E2M3", 6, 0 },
	{ "F6_E3M2", 6, 0 },
	{ "BOOL", 8, 0 },
	{ "U8", 8, MOEK_U8 },
	{ "I8", 8, 0 },
	{ "F8_E5M2", 8, 0 },
	{ "F8_E4M3", 8, MOEK_F8_E4M3 },
	{ "F8_E8M0", 8, MOEK_E8M0 },
	{ "F8_E4M3FNUZ", 8, 0 },
	{ "F8_E5M2FNUZ", 8, 0 },
	{ "I16", 16, 0 },
	{ "U16", 16, 0 },
	{ "F16", 16, MOEK_F16 },
	{ "BF16", 16, MOEK_BF16 },
	{ "I32", 32, MOEK_I32 },
	{ "U32", 32, 0 },
	{ "F32", 32, MOEK_F32 },
	{ "C64", 64, 0 },
	{ "F64", 64, 0 },
	{ "I64", 64, 0 },
	{ "U64", 64, 0 },
};

/** What the header says of one tensor; names[i] is its name. */
struct record {
	uint64_t begin, end;   /* in the data buffer */
	const uint64_t *shape; /* [rank] */
	uint32_t rank;
	uint32_t dtype; /* of dtypes */
};

struct moek_safetensors {
	char *path;
	const uint8_t *map;
	size_t map_bytes;
	const uint8_t *data; /* the data buffer in map */
	size_t count;
	struct moek_name *names;
	struct record *records;
	char *name_text;      /* all names, each with a NUL */
	uint64_t *dimensions; /* all shapes */
	struct moek_index index;
};

static int32_t map_file(struct moek_safetensors *file, struct moek_error *error_out)
{
	/* O_NONBLOCK: a pipe in the file's place must not hang us */
	int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	int32_t status = MOEK_BAD_FILE;
	struct stat facts;
	void *map;

	if (fd < 0)
		return moek_fail(error_out, status, 0, "%s: %s", file->path,
		                 strerror(errno));
	if (fstat(fd, &facts) != 0) {
		moek_fail(error_out, status, 0, "%s: %s", file->path, strerror(errno));
		goto close_file;
	}
	if (!S_ISREG(facts.st_mode)) {
		moek_fail(error_out, status, 0, "%s: not a regular file", file->path);
		goto close_file;
	}
	if ((uint64_t)facts.st_size < LENGTH_BYTES ||
	    (uint64_t)facts.st_size > SIZE_MAX) {
		moek_fail(error_out, status, 0,
		          "%s: truncated: %llu bytes, a safetensors file has 8 or more",
		          file->path, (unsigned long long)facts.st_size);
		goto close_file;
	}
	map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED) {
		moek_fail(error_out, status, 0, "%s: cannot map: %s", file->path,
		          strerror(errno));
		goto close_file;
	}
	file->map = map;
	file->map_bytes = (size_t)facts.st_size;
	status = MOEK_OK;
close_file:
	close(fd); /* the mapping keeps the pages */
	return status;
}

/** Length of the header, checked against the file. */
static int32_t header_length(const struct moek_safetensors *file, size_t *bytes_out,
                             struct moek_error *error_out)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < LENGTH_BYTES; i++)
		bytes |= (uint64_t)file->map[i] << 8 * i;
	if (bytes > HEADER_MOST)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: header too large: %llu bytes, at most %u are allowed",
			file->path, (unsigned long long)bytes, HEADER_MOST);
	if (bytes > file->map_bytes - LENGTH_BYTES)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: truncated: the header takes %llu bytes, the file has "
			"%zu after its first 8",
			file->path, (unsigned long long)bytes,
			file->map_bytes - LENGTH_BYTES);
	*bytes_out = (size_t)bytes;
	return MOEK_OK;
}

static int is_metadata(const char *key, size_t bytes)
{
	return bytes == strlen("__metadata__") &&
	       memcmp(key, "__metadata__", bytes) == 0;
}

static int32_t check_metadata(const struct moek_safetensors *file,
                              const struct moek_json *metadata,
                              struct moek_error *error_out)
{
	const struct moek_json *value;
	void *cursor = NULL;
	const char *key;
	size_t bytes;

	if (moek_json_kind(metadata) == MOEK_JSON_NULL)
		return MOEK_OK;
	if (moek_json_kind(metadata) != MOEK_JSON_OBJECT)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: header: __metadata__ is not an object",
		                 file->path);
	while ((value = moek_json_next(metadata, &cursor, &key, &bytes)) != NULL)
		if (moek_json_kind(value) != MOEK_JSON_STRING)
			return moek_fail(error_out, MOEK_BAD_FILE, 0,
			                 "%s: header: __metadata__.%s is not a string",
			                 file->path, moek_quote(key, bytes).text);
	return MOEK_OK;
}

/** Room for @count records with names of so many bytes, NULs and all. None of the sizes
 *  can overflow: the header has at most 10^8 bytes. */
static int32_t make_room(struct moek_safetensors *file, size_t count, size_t name_bytes,
                         size_t dimensions, struct moek_error *error_out)
{
	file->names = calloc(count + 1, sizeof(*file->names));
	file->records = calloc(count + 1, sizeof(*file->records));
	file->name_text = malloc(name_bytes + 1);
	file->dimensions = calloc(dimensions + 1, sizeof(*file->dimensions));
	if (file->names == NULL || file->records == NULL || file->name_text == NULL ||
	    file->dimensions == NULL)
		return moek_fail_memory(error_out, "tensor records");
	return MOEK_OK;
}

static void end_room(struct moek_safetensors *file)
{
	moek_index_end(&file->index);
	free(file->dimensions);
	free(file->name_text);
	free(file->records);
	free(file->names);
	file->dimensions = NULL;
	file->name_text = NULL;
	file->records = NULL;
	file->names = NULL;
	file->count = 0;
}

/** Room for what the header holds, after one look at it. */
static int32_t make_json_room(struct moek_safetensors *file,
                              const struct moek_json *header,
                              struct moek_error *error_out)
{
	size_t count = 0, name_bytes = 0, dimensions = 0, bytes;
	const struct moek_json *value;
	void *cursor = NULL;
	const char *key;

	while ((value = moek_json_next(header, &cursor, &key, &bytes)) != NULL) {
		count++;
		name_bytes += bytes + 1;
		dimensions += moek_json_count(moek_json_get(value, "shape"));
	}
	return make_room(file, count, name_bytes, dimensions, error_out);
}

static int read_size(const struct moek_json *value, uint64_t *size_out)
{
	int64_t integer;

	if (!moek_json_integer(value, &integer) || integer < 0)
		return 0;
	*size_out = (uint64_t)integer;
	return 1;
}

static int find_dtype(const struct moek_name *name, uint32_t *dtype_out)
{
	for (uint32_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (moek_plain_is(name, dtypes[i].name)) {
			*dtype_out = i;
			return 1;
		}
	return 0;
}

/* The complaint about a record, or NULL. */
static const char *read_dtype(const struct moek_json *value, struct record *record)
{
	struct moek_name dtype;

	dtype.text = moek_json_string(moek_json_get(value, "dtype"), &dtype.bytes);
	if (dtype.text == NULL)
		return "dtype is missing or not a string";
	return find_dtype(&dtype, &record->dtype) ? NULL : "unknown dtype";
}

static const char *read_record(const struct moek_json *value, uint64_t *shape_out,
                               struct record *record)
{
	const struct moek_json *shape = moek_json_get(value, "shape");
	const struct moek_json *offsets = moek_json_get(value, "data_offsets");
	size_t rank = moek_json_count(shape);
	const char *complaint;

	if (moek_json_kind(value) != MOEK_JSON_OBJECT)
		return "its record is not an object";
	complaint = read_dtype(value, record);
	if (complaint != NULL)
		return complaint;
	complaint = "shape is not an array of whole numbers from 0";
	if (moek_json_kind(shape) != MOEK_JSON_ARRAY)
		return complaint;
	for (size_t i = 0; i < rank; i++)
		if (!read_size(moek_json_at(shape, i), &shape_out[i]))
			return complaint;
	record->shape = shape_out;
	record->rank = (uint32_t)rank;
	if (moek_json_kind(offsets) != MOEK_JSON_ARRAY ||
	    moek_json_count(offsets) != 2 ||
	    !read_size(moek_json_at(offsets, 0), &record->begin) ||
	    !read_size(moek_json_at(offsets, 1), &record->end))
		return "data_offsets is not an array of two whole numbers from 0";
	return NULL;
}

/** Name the record that stands at file->count, with a copy at @text; what follows it.
 */
static char *add_name(struct moek_safetensors *file, char *text, const char *name,
                      size_t bytes)
{
	memcpy(text, name, bytes);
	text[bytes] = '\0';
	file->names[file->count].text = text;
	file->names[file->count].bytes = bytes;
	file->count++;
	return text + bytes + 1;
}

static int32_t read_records(struct moek_safetensors *file,
                            const struct moek_json *header,
                            struct moek_error *error_out)
{
	uint64_t *dimension = file->dimensions;
	const struct moek_json *value;
	char *text = file->name_text;
	const char *key, *complaint;
	void *cursor = NULL;
	size_t bytes;

	while ((value = moek_json_next(header, &cursor, &key, &bytes)) != NULL) {
		struct record *record = &file->records[file->count];

		if (is_metadata(key, bytes)) {
			int32_t status = check_metadata(file, value, error_out);

			if (status != MOEK_OK)
				return status;
			continue;
		}
		complaint = read_record(value, dimension, record);
		if (complaint != NULL)
			return moek_fail(error_out, MOEK_BAD_FILE, 0,
			                 "%s: header: tensor %s: %s", file->path,
			                 moek_quote(key, bytes).text, complaint);
		text = add_name(file, text, key, bytes);
		dimension += record->rank;
	}
	return MOEK_OK;
}

/** Bytes that dtype and shape ask for; returns the complaint, or NULL. */
static const char *record_bytes(const struct record *record, uint64_t *bytes_out)
{
	uint64_t bits = 1;
	int overflow = 0;

	/* left to right, as the reference multiplies: [2^62, 4, 0] is an error */
	for (uint32_t i = 0; i < record->rank; i++)
		bits = moek_multiply(bits, record->shape[i], &overflow);
	bits = moek_multiply(bits, dtypes[record->dtype].bits, &overflow);
	*bytes_out = bits / 8;
	if (overflow)
		return "its size overflows 64 bits";
	return bits % 8 != 0 ? "its elements do not fill whole bytes" : NULL;
}

static int compare_places(const void *a, const void *b)
{
	const struct record *x = *(const struct record *const *)a;
	const struct record *y = *(const struct record *const *)b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

static int32_t check_record(const struct moek_safetensors *file,
                            const struct record *record, uint64_t previous_end,
                            struct moek_error *error_out)
{
	const struct moek_name *name = &file->names[record - file->records];
	struct moek_quoted quoted = moek_quote(name->text, name->bytes);
	const char *complaint;
	uint64_t bytes;

	if (record->begin != previous_end)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: tensor %s: data begins at %llu, expected %llu: "
		                 "tensors leave no hole and do not overlap",
		                 file->path, quoted.text,
		                 (unsigned long long)record->begin,
		                 (unsigned long long)previous_end);
	if (record->end < record->begin)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: tensor %s: data ends at %llu, before its begin %llu",
			file->path, quoted.text, (unsigned long long)record->end,
			(unsigned long long)record->begin);
	complaint = record_bytes(record, &bytes);
	if (complaint != NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: tensor %s: %s",
		                 file->path, quoted.text, complaint);
	if (record->end - record->begin != bytes)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: tensor %s: data_offsets span %llu bytes, dtype and "
			"shape need %llu",
			file->path, quoted.text,
			(unsigned long long)(record->end - record->begin),
			(unsigned long long)bytes);
	return MOEK_OK;
}

/** Every byte of the data buffer belongs to exactly one tensor. */
static int32_t check_places(const struct moek_safetensors *file, size_t header_bytes,
                            struct moek_error *error_out)
{
	uint64_t have = file->map_bytes - LENGTH_BYTES - header_bytes, end = 0;
	const struct record **order = calloc(file->count + 1, sizeof(*order));
	int32_t status = MOEK_OK;

	if (order == NULL)
		return moek_fail_memory(error_out, "tensor order");
	for (size_t i = 0; i < file->count; i++)
		order[i] = &file->records[i];
	qsort(order, file->count, sizeof(order[0]), compare_places);
	for (size_t i = 0; i < file->count && status == MOEK_OK; i++) {
		status = check_record(file, order[i], end, error_out);
		end = order[i]->end;
	}
	free(order);
	if (status == MOEK_OK && end != have)
		status = moek_fail(error_out, MOEK_BAD_FILE, 0,
		                   "%s: %s: the tensors take %llu bytes, the file has "
		                   "%llu after its header",
		                   file->path,
		                   end > have ? "truncated" : "trailing bytes",
		                   (unsigned long long)end, (unsigned long long)have);
	return status;
}

/* ---- the header, if it is plain ---- */

#define RANK_MOST 8u

/** [2,3] */
static int plain_shape(struct moek_plain *plain, uint64_t *shape_out,
                       uint32_t *rank_out)
{
	*rank_out = 0;
	if (!moek_plain_take(plain, '['))
		return 0;
	if (moek_plain_take(plain, ']'))
		return 1;
	do {
		if (*rank_out == RANK_MOST ||
		    !moek_plain_number(plain, &shape_out[(*rank_out)++]))
			return 0;
	} while (moek_plain_take(plain, ','));
	return moek_plain_take(plain, ']');
}

static int plain_offsets(struct moek_plain *plain, struct record *record)
{
	return moek_plain_take(plain, '[') &&
	       moek_plain_number(plain, &record->begin) &&
	       moek_plain_take(plain, ',') && moek_plain_number(plain, &record->end) &&
	       moek_plain_take(plain, ']');
}

/** dtype, shape and data_offsets in any order, each once, and nothing else. */
static int plain_record(struct moek_plain *plain, uint64_t *shape_out,
                        struct record *record)
{
	int dtypes_seen = 0, shapes = 0, offsets = 0;

	if (!moek_plain_take(plain, '{'))
		return 0;
	do {
		struct moek_name key, dtype;

		if (!moek_plain_string(plain, &key) || !moek_plain_take(plain, ':'))
			return 0;
		if (moek_plain_is(&key, "dtype") && dtypes_seen++ == 0) {
			if (!moek_plain_string(plain, &dtype) ||
			    !find_dtype(&dtype, &record->dtype))
				return 0;
		} else if (moek_plain_is(&key, "shape") && shapes++ == 0) {
			if (!plain_shape(plain, shape_out, &record->rank))
				return 0;
		} else if (!moek_plain_is(&key, "data_offsets") || offsets++ != 0 ||
		           !plain_offsets(plain, record)) {
			return 0;
		}
	} while (moek_plain_take(plain, ','));
	return dtypes_seen && shapes && offsets && moek_plain_take(plain, '}');
}

/** What a header holds, or where the next of it goes. */
struct room {
	size_t count, name_bytes, dimensions;
};

/** With @file: keep what is there, for which there is room. */
static int plain_members(struct moek_plain plain, struct moek_safetensors *file,
                         struct room *room)
{
	int metadata = 0;

	memset(room, 0, sizeof(*room));
	if (!moek_plain_take(&plain, '{'))
		return 0;
	do {
		uint64_t shape[RANK_MOST];
		struct record record = { 0 };
		struct moek_name key;

		if (!moek_plain_string(&plain, &key) || !moek_plain_take(&plain, ':'))
			return 0;
		if (moek_plain_is(&key, "__metadata__")) {
			if (metadata++ != 0 || !moek_plain_skip(&plain, 0))
				return 0;
			continue;
		}
		if (!plain_record(&plain, shape, &record))
			return 0;
		if (file != NULL) {
			record.shape = file->dimensions + room->dimensions;
			memcpy(file->dimensions + room->dimensions, shape,
			       record.rank * sizeof(shape[0]));
			file->records[file->count] = record;
			add_name(file, file->name_text + room->name_bytes, key.text,
			         key.bytes);
		}
		room->count++;
		room->name_bytes += key.bytes + 1;
		room->dimensions += record.rank;
	} while (moek_plain_take(&plain, ','));
	return moek_plain_take(&plain, '}') && moek_plain_is_over(&plain);
}

/** Names that stand twice are for the JSON reader to tell. */
static int is_each_once(const struct moek_safetensors *file)
{
	for (size_t i = 0; i < file->count; i++)
		if (moek_index_find(&file->index, file->names[i].text,
		                    file->names[i].bytes) != i)
			return 0;
	return 1;
}

/** *done_out 0: the header is not plain. */
static int32_t read_plain(struct moek_safetensors *file, size_t bytes, int *done_out,
                          struct moek_error *error_out)
{
	const char *text = (const char *)file->map + LENGTH_BYTES;
	const struct moek_plain plain = { .at = text, .end = text + bytes };
	struct room room;
	int32_t status;

	*done_out = 0;
	if (!plain_members(plain, NULL, &room))
		return MOEK_OK;
	status = make_room(file, room.count, room.name_bytes, room.dimensions,
	                   error_out);
	if (status == MOEK_OK) {
		plain_members(plain, file, &room);
		status = moek_index_build(&file->index, file->names, file->count,
		                          error_out);
	}
	*done_out = status == MOEK_OK && is_each_once(file);
	if (!*done_out)
		end_room(file);
	return status;
}

/* ---- or JSON of any kind ---- */

static int32_t read_json(struct moek_safetensors *file, size_t bytes,
                         struct moek_error *error_out)
{
	struct moek_json *header = NULL;
	int32_t status = moek_json_parse((const char *)file->map + LENGTH_BYTES, bytes,
	                                 file->path, &header, error_out);

	if (status != MOEK_OK)
		return status;
	if (moek_json_kind(header) != MOEK_JSON_OBJECT)
		status = moek_fail(error_out, MOEK_BAD_FILE, 0,
		                   "%s: header: not a JSON object", file->path);
	if (status == MOEK_OK)
		status = make_json_room(file, header, error_out);
	if (status == MOEK_OK)
		status = read_records(file, header, error_out);
	if (status == MOEK_OK)
		status = moek_index_build(&file->index, file->names, file->count,
		                          error_out);
	moek_json_free(header);
	return status;
}

static int32_t read_header(struct moek_safetensors *file, struct moek_error *error_out)
{
	size_t bytes = 0;
	int is_done = 0;
	int32_t status = header_length(file, &bytes, error_out);

	if (status != MOEK_OK)
		return status;
	file->data = file->map + LENGTH_BYTES + bytes;
	status = read_plain(file, bytes, &is_done, error_out);
	if (status == MOEK_OK && !is_done)
		status = read_json(file, bytes, error_out);
	return status == MOEK_OK ? check_places(file, bytes, error_out) : status;
}

int32_t moek_safetensors_open(const char *path, struct moek_safetensors **file_out,
                              struct moek_error *error_out)
{
	struct moek_safetensors *file;
	int32_t status;

	if (path == NULL || file_out == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "safetensors: path or file_out is NULL");
	file = calloc(1, sizeof(*file));
	if (file == NULL || (file->path = strdup(path)) == NULL) {
		free(file);
		return moek_fail_memory(error_out, "safetensors file");
	}
	status = map_file(file, error_out);
	if (status == MOEK_OK)
		status = read_header(file, error_out);
	if (status != MOEK_OK) {
		moek_safetensors_close(file);
		return status;
	}
	*file_out = file;
	return MOEK_OK;
}

void moek_safetensors_close(struct moek_safetensors *file)
{
	if (file == NULL)
		return;
	end_room(file);
	if (file->map != NULL)
		munmap((void *)(uintptr_t)file->map, file->map_bytes);
	free(file->path);
	free(file);
}

uint64_t moek_safetensors_count(const struct moek_safetensors *file)
{
	return file->count;
}

const char *moek_safetensors_name(const struct moek_safetensors *file, uint64_t index,
                                  uint64_t *length_out)
{
	if (index >= file->count)
		return NULL;
	if (length_out != NULL)
		*length_out = file->names[index].bytes;
	return file->names[index].text;
}

const struct moek_name *moek_safetensors_names(const struct moek_safetensors *file,
                                               size_t *count_out)
{
	*count_out = file->count;
	return file->names;
}

uint32_t moek_safetensors_find(const struct moek_safetensors *file, const char *name,
                               size_t bytes)
{
	return moek_index_find(&file->index, name, bytes);
}

const char *moek_safetensors_path(const struct moek_safetensors *file)
{
	return file->path;
}

int32_t moek_safetensors_at(const struct moek_safetensors *file, uint32_t index,
                            struct moek_tensor *tensor_out,
                            struct moek_error *error_out)
{
	const struct record *record = &file->records[index];
	const struct moek_name *name = &file->names[index];

	if (record->rank > RANK_MOST)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: tensor %s: %u dimensions, at most %u are read",
		                 file->path, moek_quote(name->text, name->bytes).text,
		                 record->rank, RANK_MOST);
	memset(tensor_out, 0, sizeof(*tensor_out));
	tensor_out->struct_size = MOEK_TENSOR_SIZE_1_0;
	tensor_out->type = dtypes[record->dtype].type;
	tensor_out->dtype = dtypes[record->dtype].name;
	tensor_out->file = file->path;
	tensor_out->data = file->data + record->begin;
	tensor_out->bytes = record->end - record->begin;
	tensor_out->rank = record->rank;
	memcpy(tensor_out->shape, record->shape,
	       record->rank * sizeof(record->shape[0]));
	return MOEK_OK;
}

int32_t moek_safetensors_tensor(const struct moek_safetensors *file, const char *name,
                                struct moek_tensor *tensor_out,
                                struct moek_error *error_out)
{
	uint32_t index = moek_safetensors_find(file, name, strlen(name));

	if (index == MOEK_INDEX_NONE)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: no tensor %s; nearest: %s", file->path,
		                 moek_quote(name, strlen(name)).text,
		                 moek_alike(name, file->names, file->count).text);
	return moek_safetensors_at(file, index, tensor_out, error_out);
}

struct moek_quoted moek_tensor_text(const struct moek_tensor *tensor)
{
	struct moek_quoted text;
	size_t used = (size_t)snprintf(text.text, sizeof(text.text), "%s [",
	                               tensor->dtype);

	/* 8 dimensions of 20 digits fit */
	for (uint32_t i = 0; i < tensor->rank; i++)
		used += (size_t)snprintf(text.text + used, sizeof(text.text) - used,
		                         "%s%llu", i == 0 ? "" : ", ",
		                         (unsigned long long)tensor->shape[i]);
	snprintf(text.text + used, sizeof(text.text) - used, "]");
	return text;
}
