/* SPDX-License-Identifier: MIT */
/* Writes indented JSON to stdout as it goes; keys are NULL inside an array. */
#ifndef MOEK_TOOLS_WRITER_H
#define MOEK_TOOLS_WRITER_H

#include <stdint.h>

struct writer {
	uint32_t depth;
	int filled; /* something stands before on this level */
};

void writer_open(struct writer *writer, const char *key, char bracket); /* '{' or '[' */
void writer_close(struct writer *writer, char bracket);                 /* '}' or ']' */
void writer_string(struct writer *writer, const char *key,
                   const char *text); /* NULL: null */
void writer_number(struct writer *writer, const char *key, uint64_t number);
void writer_real(struct writer *writer, const char *key,
                 double real); /* not finite: null */
void writer_bool(struct writer *writer, const char *key, int yes);
/** A value that is JSON already, as the reports are; indented to its place. */
void writer_value(struct writer *writer, const char *key, const char *value);

#endif
