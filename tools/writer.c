/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void indent(uint32_t depth)
{
	for (uint32_t i = 0; i < depth; i++)
		fputs("  ", stdout);
}

/** Bytes of the well-formed UTF-8 character at @text, or 0. */
static size_t character(const unsigned char *text)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t bytes = text[0] < 0x80       ? 1
	               : text[0] >> 5 == 6  ? 2
	               : text[0] >> 4 == 14 ? 3
	                                    : 4;
	uint32_t code = text[0] & (0xffu >> (bytes == 1 ? 0 : bytes + 1));

	if (bytes == 1)
		return 1;
	if (text[0] < 0xc0 || text[0] > 0xf7)
		return 0;
	for (size_t i = 1; i < bytes; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (text[i] & 0x3f);
	}
	if (code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
		return 0;
	return bytes;
}

static void quote(const char *text)
{
	const unsigned char *at = (const unsigned char *)text;

	putchar('"');
	while (*at != '\0') {
		size_t bytes = character(at);

		if (bytes == 0) {
			fputs("\\ufffd",
			      stdout); /* a path may hold any byte, JSON may not */
			at++;
			continue;
		}
		if (*at == '"' || *at == '\\')
			printf("\\%c", *at);
		else if (*at == '\n')
			fputs("\\n", stdout);
		else if (*at < 0x20)
			printf("\\u%04x", *at);
		else
			fwrite(at, 1, bytes, stdout);
		at += bytes;
	}
	putchar('"');
}

static void begin(struct writer *writer, const char *key)
{
	if (writer->depth > 0) {
		fputs(writer->filled ? ",\n" : "\n", stdout);
		indent(writer->depth);
	}
	writer->filled = 1;
	if (key != NULL) {
		quote(key);
		fputs(": ", stdout);
	}
}

void writer_open(struct writer *writer, const char *key, char bracket)
{
	begin(writer, key);
	putchar(bracket);
	writer->depth++;
	writer->filled = 0;
}

void writer_close(struct writer *writer, char bracket)
{
	writer->depth--;
	if (writer->filled) {
		putchar('\n');
		indent(writer->depth);
	}
	putchar(bracket);
	writer->filled = 1;
	if (writer->depth == 0)
		putchar('\n');
}

void writer_string(struct writer *writer, const char *key, const char *text)
{
	begin(writer, key);
	if (text != NULL)
		quote(text);
	else
		fputs("null", stdout);
}

void writer_number(struct writer *writer, const char *key, uint64_t number)
{
	begin(writer, key);
	printf("%llu", (unsigned long long)number);
}

void writer_real(struct writer *writer, const char *key, double real)
{
	begin(writer, key);
	if (isfinite(real))
		printf("%.9g", real);
	else
		fputs("null", stdout);
}

void writer_bool(struct writer *writer, const char *key, int yes)
{
	begin(writer, key);
	fputs(yes ? "true" : "false", stdout);
}

void writer_value(struct writer *writer, const char *key, const char *value)
{
	size_t length = strlen(value);

	while (length > 0 && value[length - 1] == '\n')
		length--;
	begin(writer, key);
	for (size_t i = 0; i < length; i++) {
		putchar(value[i]);
		if (value[i] == '\n')
			indent(writer->depth);
	}
}
