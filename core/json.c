/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/json.h"
#include "core/status.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEEPEST 128 /* nesting; the parser recurses, and files are not trusted */

/* A struct moek_json is never defined: it is jansson's json_t by another name. */
static json_t *node(const struct moek_json *value)
{
	return (json_t *)(uintptr_t)value;
}

static struct moek_json *wrap(json_t *value)
{
	return (struct moek_json *)value;
}

/* ---- reading ---- */

/** What the parser would let pass or choke on; a cheap look at the text beforehand. */
struct scan {
	const char *text;
	size_t bytes, at;
	size_t line;
	size_t depth;
};

/** Past the closing quote, or the end. Whether the string is right the parser says. */
static void skip_string(struct scan *scan)
{
	scan->at++;
	while (scan->at < scan->bytes && scan->text[scan->at] != '"')
		scan->at += scan->text[scan->at] == '\\' ? 2 : 1;
	scan->at++;
}

/** jansson reads "-0" as the integer 0, and the sign is lost. */
static int is_minus_zero(const struct scan *scan)
{
	size_t left = scan->bytes - scan->at;
	const char *text = scan->text + scan->at;

	if (left < 2 || text[0] != '-' || text[1] != '0')
		return 0;
	return left == 2 || strchr("0123456789.eE", text[2]) == NULL || text[2] == '\0';
}

static const char *scan_text(struct scan *scan)
{
	while (scan->at < scan->bytes) {
		switch (scan->text[scan->at]) {
		case '"':
			skip_string(scan);
			continue;
		case '[':
		case '{':
			if (++scan->depth > DEEPEST)
				return "nested more than 128 deep";
			break;
		case ']':
		case '}':
			scan->depth -= scan->depth > 0;
			break;
		case '\n':
			scan->line++;
			break;
		case '-':
			if (is_minus_zero(scan))
				return "-0 is not accepted as a number; write 0";
			break;
		default:
			break;
		}
		scan->at++;
	}
	return NULL;
}

/** The parser quotes the input, which may be anything: only plain text is repeated. */
static void make_printable(char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
			*text = '?';
}

int32_t moek_json_parse(const char *text, size_t bytes, const char *name,
                        struct moek_json **root_out, struct moek_error *error_out)
{
	struct scan scan = { .text = text, .bytes = bytes, .line = 1 };
	const char *complaint = scan_text(&scan);
	json_error_t error;
	json_t *root;

	if (complaint != NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: line %zu: bad JSON: %s", name, scan.line,
		                 complaint);
	root = json_loadb(text, bytes,
	                  JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
	                  &error);
	if (root == NULL) {
		if (json_error_code(&error) == json_error_out_of_memory)
			return moek_fail_memory(error_out, "JSON values");
		make_printable(error.text);
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: line %d: bad JSON: %s", name, error.line,
		                 error.text);
	}
	*root_out = wrap(root);
	return MOEK_OK;
}

/** All of an open regular file. */
static int32_t read_all(int fd, const char *path, size_t most, char **text_out,
                        size_t *bytes_out, struct moek_error *error_out)
{
	struct stat status;
	size_t bytes, got = 0;
	char *text;

	if (fstat(fd, &status) != 0)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s", path,
		                 strerror(errno));
	if (!S_ISREG(status.st_mode))
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: not a regular file",
		                 path);
	if ((uint64_t)status.st_size > most)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %llu bytes, at most %zu are read", path,
		                 (unsigned long long)status.st_size, most);
	bytes = (size_t)status.st_size;
	text = malloc(bytes + 1);
	if (text == NULL)
		return moek_fail_memory(error_out, "file text");
	while (got < bytes) {
		ssize_t part = read(fd, text + got, bytes - got);

		if (part < 0 && errno == EINTR)
			continue;
		if (part <= 0) {
			free(text);
			return moek_fail(
				error_out, MOEK_BAD_FILE, 0,
				"%s: read %zu of %zu bytes: %s", path, got, bytes,
				part < 0 ? strerror(errno) : "the file shrank");
		}
		got += (size_t)part;
	}
	text[bytes] = '\0';
	*text_out = text;
	*bytes_out = bytes;
	return MOEK_OK;
}

int32_t moek_json_read_text(const char *path, size_t most, char **text_out,
                            size_t *bytes_out, struct moek_error *error_out)
{
	/* O_NONBLOCK: a pipe in the file's place must not hang us */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	int32_t status;

	if (fd < 0)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s", path,
		                 strerror(errno));
	status = read_all(fd, path, most, text_out, bytes_out, error_out);
	close(fd);
	return status;
}

int32_t moek_json_read(const char *path, size_t most, struct moek_json **root_out,
                       struct moek_error *error_out)
{
	size_t bytes;
	char *text;
	int32_t status = moek_json_read_text(path, most, &text, &bytes, error_out);

	if (status != MOEK_OK)
		return status;
	status = moek_json_parse(text, bytes, path, root_out, error_out);
	free(text);
	return status;
}

enum moek_json_kind moek_json_kind(const struct moek_json *value)
{
	if (value == NULL)
		return MOEK_JSON_NULL;
	switch (json_typeof(node(value))) {
	case JSON_OBJECT:
		return MOEK_JSON_OBJECT;
	case JSON_ARRAY:
		return MOEK_JSON_ARRAY;
	case JSON_STRING:
		return MOEK_JSON_STRING;
	case JSON_INTEGER:
		return MOEK_JSON_INTEGER;
	case JSON_REAL:
		return MOEK_JSON_REAL;
	case JSON_TRUE:
	case JSON_FALSE:
		return MOEK_JSON_BOOL;
	default:
		return MOEK_JSON_NULL;
	}
}

const struct moek_json *moek_json_get(const struct moek_json *value, const char *key)
{
	return value == NULL ? NULL : wrap(json_object_get(node(value), key));
}

size_t moek_json_count(const struct moek_json *value)
{
	if (value == NULL)
		return 0;
	return json_is_object(node(value)) ? json_object_size(node(value))
	                                   : json_array_size(node(value));
}

const struct moek_json *moek_json_at(const struct moek_json *array, size_t index)
{
	return array == NULL ? NULL : wrap(json_array_get(node(array), index));
}

const struct moek_json *moek_json_follow(const struct moek_json *value,
                                         const char *path)
{
	char key[128];

	while (value != NULL) {
		size_t bytes = strcspn(path, ".");

		if (bytes >= sizeof(key))
			return NULL;
		memcpy(key, path, bytes);
		key[bytes] = '\0';
		if (moek_json_kind(value) == MOEK_JSON_ARRAY)
			value = bytes > 0 && strspn(key, "0123456789") == bytes
			                ? moek_json_at(value, strtoul(key, NULL, 10))
			                : NULL;
		else
			value = moek_json_get(value, key);
		if (path[bytes] == '\0')
			break;
		path += bytes + 1;
	}
	return value != NULL && moek_json_kind(value) != MOEK_JSON_NULL ? value : NULL;
}

const struct moek_json *moek_json_next(const struct moek_json *object, void **cursor,
                                       const char **key_out, size_t *key_bytes_out)
{
	json_t *json = node(object);

	if (object == NULL)
		return NULL;
	*cursor = *cursor == NULL ? json_object_iter(json)
	                          : json_object_iter_next(json, *cursor);
	if (*cursor == NULL)
		return NULL;
	*key_out = json_object_iter_key(*cursor);
	/* jansson refuses a NUL in a key */
	*key_bytes_out = strlen(*key_out);
	return wrap(json_object_iter_value(*cursor));
}

const char *moek_json_string(const struct moek_json *value, size_t *bytes_out)
{
	const char *text = value == NULL ? NULL : json_string_value(node(value));

	if (text != NULL && bytes_out != NULL)
		*bytes_out = json_string_length(node(value));
	return text;
}

int moek_json_integer(const struct moek_json *value, int64_t *integer_out)
{
	if (value == NULL || !json_is_integer(node(value)))
		return 0;
	*integer_out = json_integer_value(node(value));
	return 1;
}

int moek_json_number(const struct moek_json *value, double *number_out)
{
	if (value == NULL || !json_is_number(node(value)))
		return 0;
	*number_out = json_number_value(node(value));
	return 1;
}

int moek_json_bool(const struct moek_json *value, int *bool_out)
{
	if (value == NULL || !json_is_boolean(node(value)))
		return 0;
	*bool_out = json_is_true(node(value));
	return 1;
}

/* ---- building ---- */

/* A value under construction has one owner. A second reference on it marks it broken:
 * something that belongs into it was lost for want of memory. Marking cannot fail. */
static int is_broken(const json_t *json)
{
	return (json_is_object(json) || json_is_array(json)) && json->refcount > 1;
}

static void break_it(json_t *json)
{
	if (json != NULL && !is_broken(json))
		json_incref(json);
}

void moek_json_free(struct moek_json *root)
{
	json_t *json = node(root);

	if (json != NULL && is_broken(json))
		json_decref(json);
	json_decref(json);
}

struct moek_json *moek_json_new_object(void)
{
	return wrap(json_object());
}

struct moek_json *moek_json_new_array(void)
{
	return wrap(json_array());
}

/** Every byte that is not plain ASCII as \xHH: some text is better than none. */
static json_t *escaped_string(const char *text)
{
	size_t length = strlen(text), at = 0;
	char *escaped = length < SIZE_MAX / 4 ? malloc(length * 4 + 1) : NULL;
	json_t *json;

	if (escaped == NULL)
		return NULL;
	for (; *text != '\0'; text++) {
		if ((unsigned char)*text < 0x80)
			escaped[at++] = *text;
		else
			at += (size_t)sprintf(escaped + at, "\\x%02x",
			                      (unsigned char)*text);
	}
	json = json_stringn(escaped, at);
	free(escaped);
	return json;
}

struct moek_json *moek_json_new_string(const char *text)
{
	json_t *json = json_string(text);

	return wrap(json != NULL ? json : escaped_string(text));
}

struct moek_json *moek_json_new_integer(int64_t integer)
{
	return wrap(json_integer(integer));
}

struct moek_json *moek_json_new_number(double number)
{
	return wrap(isfinite(number) ? json_real(number) : json_null());
}

struct moek_json *moek_json_new_bool(int boolean)
{
	return wrap(json_boolean(boolean));
}

void moek_json_set(struct moek_json *object, const char *key, struct moek_json *value)
{
	if (object != NULL && value != NULL && !is_broken(node(value)) &&
	    json_object_set(node(object), key, node(value)) == 0) {
		json_decref(node(value)); /* the object's own reference stays */
		return;
	}
	moek_json_free(value);
	break_it(node(object));
}

void moek_json_append(struct moek_json *array, struct moek_json *value)
{
	if (array != NULL && value != NULL && !is_broken(node(value)) &&
	    json_array_append(node(array), node(value)) == 0) {
		json_decref(node(value));
		return;
	}
	moek_json_free(value);
	break_it(node(array));
}

struct moek_json *moek_json_member(struct moek_json *object, const char *key)
{
	return wrap(json_object_get(node(object), key));
}

void moek_json_remove(struct moek_json *object, const char *key)
{
	json_object_del(node(object), key);
}

/** 1: 15 digits keep every number in @value, as they do those that people write: 0.1 is
 *  not 0.10000000000000001. */
static int is_short(const json_t *value)
{
	const char *key;
	json_t *child;
	size_t index;
	char text[32];

	if (json_is_real(value)) {
		snprintf(text, sizeof(text), "%.15g", json_real_value(value));
		return strtod(text, NULL) == json_real_value(value);
	}
	json_object_foreach ((json_t *)(uintptr_t)value, key, child)
		if (!is_short(child))
			return 0;
	json_array_foreach (value, index, child)
		if (!is_short(child))
			return 0;
	return 1;
}

char *moek_json_text(const struct moek_json *root)
{
	size_t flags = JSON_INDENT(2) | JSON_ENCODE_ANY;
	size_t bytes;
	char *text;

	if (root == NULL || is_broken(node(root)))
		return NULL;
	flags |= is_short(node(root)) ? JSON_REAL_PRECISION(15) : JSON_REAL_PRECISION(17);
	bytes = json_dumpb(node(root), NULL, 0, flags);
	if (bytes == 0)
		return NULL;
	text = malloc(bytes + 1);
	if (text == NULL)
		return NULL;
	if (json_dumpb(node(root), text, bytes, flags) != bytes) {
		free(text);
		return NULL;
	}
	text[bytes] = '\0';
	return text;
}
