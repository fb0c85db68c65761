/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L /* clock_gettime() */

#include "lm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void lm_stop(int code, const char *format, ...)
{
	va_list arguments;

	fflush(stdout);
	fputs("moek-lm: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	fflush(stderr);
	_Exit(code); /* nothing is unwound: the system takes back what is held */
}

void lm_must(int32_t status, const struct moek_error *error)
{
	switch (status) {
	case MOEK_OK:
		return;
	case MOEK_BAD_ARGUMENT:
		lm_stop(LM_USAGE, "%s", error->text);
	case MOEK_BAD_FILE:
	case MOEK_BAD_CONFIG:
		lm_stop(LM_BAD_INPUT, "%s", error->text);
	default:
		lm_stop(LM_WRONG, "%s", error->text);
	}
}

void *lm_allocate(size_t count, size_t bytes)
{
	void *memory = calloc(count > 0 ? count : 1, bytes);

	if (memory == NULL)
		lm_stop(LM_WRONG, "no memory for %zu times %zu bytes", count, bytes);
	return memory;
}

char *lm_read(const char *path, size_t *bytes_out)
{
	FILE *file = fopen(path, "rb");
	size_t bytes = 0, room = 1 << 16;
	char *text = lm_allocate(room + 1, 1);

	if (file == NULL)
		lm_stop(LM_BAD_INPUT, "%s: %s", path, strerror(errno));
	for (;;) {
		bytes += fread(text + bytes, 1, room - bytes, file);
		if (bytes < room)
			break;
		room *= 2;
		text = realloc(text, room + 1);
		if (text == NULL)
			lm_stop(LM_WRONG, "%s: no memory for %zu bytes", path, room);
	}
	if (ferror(file))
		lm_stop(LM_BAD_INPUT, "%s: %s", path, strerror(errno));
	fclose(file);
	text[bytes] = '\0';
	*bytes_out = bytes;
	return text;
}

double lm_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void lm_print_json(const char *text)
{
	putchar('"');
	for (; *text != '\0'; text++) {
		unsigned char byte = (unsigned char)*text;

		if (byte == '"' || byte == '\\')
			printf("\\%c", byte);
		else if (byte < 0x20 || byte >= 0x7f) /* bytes, not characters */
			printf("\\u%04x", byte);
		else
			putchar(byte);
	}
	putchar('"');
}
