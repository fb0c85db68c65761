/* SPDX-License-Identifier: MIT */
/* The one door to the JSON library. Strict: what RFC 8259 forbids is an error with a line,
 * and so are duplicate keys, a NUL in a key, "-0" as an integer, integers beyond int64_t
 * and nesting over 128. A value belongs to its root; const values are borrowed. */
#ifndef MOEK_CORE_JSON_H
#define MOEK_CORE_JSON_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_json;

enum moek_json_kind {
	MOEK_JSON_NULL,
	MOEK_JSON_BOOL,
	MOEK_JSON_INTEGER, /* fits int64_t and was written without fraction or exponent */
	MOEK_JSON_REAL,
	MOEK_JSON_STRING,
	MOEK_JSON_ARRAY,
	MOEK_JSON_OBJECT
};

/** Parse @bytes of @text, the whole of it. @name stands in the error. */
int32_t moek_json_parse(const char *text, size_t bytes, const char *name,
                        struct moek_json **root_out, struct moek_error *error_out);
/** Read and parse a file of at most @most bytes. */
int32_t moek_json_read(const char *path, size_t most, struct moek_json **root_out,
                       struct moek_error *error_out);
/** The text of a file of at most @most bytes; malloc'ed, NUL-ended. */
int32_t moek_json_read_text(const char *path, size_t most, char **text_out,
                            size_t *bytes_out, struct moek_error *error_out);
void moek_json_free(struct moek_json *root);

enum moek_json_kind moek_json_kind(const struct moek_json *value);
/** Member of an object, or NULL: absent, or @value is NULL or no object. */
const struct moek_json *moek_json_get(const struct moek_json *value, const char *key);
/** Members of an object, elements of an array; else 0. */
size_t moek_json_count(const struct moek_json *value);
const struct moek_json *moek_json_at(const struct moek_json *array, size_t index);
/** What lies at @path under @value: keys, and places in arrays, with dots between; NULL:
 *  nothing, or null. */
const struct moek_json *moek_json_follow(const struct moek_json *value,
                                         const char *path);
/** Go over an object: start with *cursor NULL; NULL at the end. */
const struct moek_json *moek_json_next(const struct moek_json *object, void **cursor,
                                       const char **key_out, size_t *key_bytes_out);
/** NULL unless a string; @bytes_out may be NULL. */
const char *moek_json_string(const struct moek_json *value, size_t *bytes_out);
/** 1 and the value, or 0: of another kind. _number takes integers and reals. */
int moek_json_integer(const struct moek_json *value, int64_t *integer_out);
int moek_json_number(const struct moek_json *value, double *number_out);
int moek_json_bool(const struct moek_json *value, int *bool_out);

/* Building. A NULL anywhere (no memory) makes the whole NULL in the end: the setters take
 * ownership of @value and free it on failure. */
struct moek_json *moek_json_new_object(void);
struct moek_json *moek_json_new_array(void);
struct moek_json *moek_json_new_string(const char *text); /* invalid UTF-8 is escaped */
struct moek_json *moek_json_new_integer(int64_t integer);
struct moek_json *moek_json_new_number(double number);    /* not finite: null */
struct moek_json *moek_json_new_bool(int boolean);
void moek_json_set(struct moek_json *object, const char *key, struct moek_json *value);
void moek_json_append(struct moek_json *array, struct moek_json *value);
/** A member to be changed, or NULL: absent, or @object is NULL or none. */
struct moek_json *moek_json_member(struct moek_json *object, const char *key);
/** Absent, or @object is NULL or none: nothing happens. */
void moek_json_remove(struct moek_json *object, const char *key);
/** The text, indented, keys in the order they were set; malloc'ed, or NULL. */
char *moek_json_text(const struct moek_json *root);

#endif
