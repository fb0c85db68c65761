/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 1024

struct moek_log_key {
	struct moek_log_key *next;
	uint64_t count;
	char text[];
};

void moek_log_init(struct moek_log *log,
                   void (*write)(void *self, uint32_t level, const char *text), void *self)
{
	log->write = write;
	log->self = self;
	log->keys = NULL;
	pthread_mutex_init(&log->lock, NULL);
}

void moek_log_end(struct moek_log *log)
{
	while (log->keys != NULL) {
		struct moek_log_key *key = log->keys;

		log->keys = key->next;
		free(key);
	}
	pthread_mutex_destroy(&log->lock);
}

static void write_line(struct moek_log *log, uint32_t level, const char *format,
                       va_list arguments)
{
	char line[LINE_BYTES];

	if (log->write == NULL)
		return;
	vsnprintf(line, sizeof(line), format, arguments);
	log->write(log->self, level, line);
}

void moek_log_write(struct moek_log *log, uint32_t level, const char *format, ...)
{
	va_list arguments;

	if (log == NULL)
		return;
	va_start(arguments, format);
	write_line(log, level, format, arguments);
	va_end(arguments);
}

static struct moek_log_key *find_key(struct moek_log *log, const char *text)
{
	struct moek_log_key *key;

	for (key = log->keys; key != NULL; key = key->next)
		if (strcmp(key->text, text) == 0)
			return key;
	return NULL;
}

/** Counts @text; 1: it is new. Without memory for the key the line is written again. */
static int count_key(struct moek_log *log, const char *text)
{
	struct moek_log_key *key;
	size_t bytes = strlen(text) + 1;
	int is_new = 0;

	pthread_mutex_lock(&log->lock);
	key = find_key(log, text);
	if (key != NULL) {
		key->count++;
	} else {
		is_new = 1;
		key = malloc(sizeof(*key) + bytes);
		if (key != NULL) {
			memcpy(key->text, text, bytes);
			key->count = 1;
			key->next = log->keys;
			log->keys = key;
		}
	}
	pthread_mutex_unlock(&log->lock);
	return is_new;
}

void moek_log_once(struct moek_log *log, uint32_t level, const char *key,
                   const char *format, ...)
{
	va_list arguments;

	if (log == NULL || !count_key(log, key))
		return;
	va_start(arguments, format);
	write_line(log, level, format, arguments);
	va_end(arguments);
}

uint64_t moek_log_count(struct moek_log *log, const char *key)
{
	struct moek_log_key *found;
	uint64_t count;

	if (log == NULL)
		return 0;
	pthread_mutex_lock(&log->lock);
	found = find_key(log, key);
	count = found != NULL ? found->count : 0;
	pthread_mutex_unlock(&log->lock);
	return count;
}
