/* SPDX-License-Identifier: MIT */
/* Warnings and progress, to the callback that the registry was opened with. */
#ifndef MOEK_CORE_LOG_H
#define MOEK_CORE_LOG_H

#include <pthread.h>
#include <stdint.h>

enum { MOEK_LOG_ERROR = 3, MOEK_LOG_WARNING = 4, MOEK_LOG_INFO = 6, MOEK_LOG_DEBUG = 7 };

struct moek_log_key;

struct moek_log {
	void (*write)(void *self, uint32_t level, const char *text); /* NULL: silent */
	void *self;
	pthread_mutex_t lock; /* guards keys; never held while write() runs */
	struct moek_log_key *keys;
};

void moek_log_init(struct moek_log *log,
                   void (*write)(void *self, uint32_t level, const char *text), void *self);
void moek_log_end(struct moek_log *log);

/** One line. @log may be NULL. Any thread. */
void moek_log_write(struct moek_log *log, uint32_t level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/** The same, but each @key is written once and counted from then on. Any thread. */
void moek_log_once(struct moek_log *log, uint32_t level, const char *key,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

/** How often @key was logged, written or not. */
uint64_t moek_log_count(struct moek_log *log, const char *key);

#endif
