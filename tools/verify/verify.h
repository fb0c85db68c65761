/* SPDX-License-Identifier: MIT */
/* The conformance kit: its cases, and what they say. */
#ifndef MOEK_TOOLS_VERIFY_H
#define MOEK_TOOLS_VERIFY_H

#include "tools/tool.h"

#include <stddef.h>

enum verify_outcome {
	VERIFY_PASSED,
	VERIFY_FAILED,
	VERIFY_SKIPPED, /* not claimed, so nothing to run */
	VERIFY_UNRUN,   /* claimed, but it could not run here */
	VERIFY_OUTCOMES
};

struct verify;

/** What a case works on. */
struct verify_task {
	const char *plugin, *reference, *config;
	uint64_t seed;
	uint32_t threads; /* each case also runs with one */
	struct verify *verify;
};

/** One answer of the case that runs; @subject: "cpu.avx2", or "". */
void verify_say(const struct verify_task *task, enum verify_outcome outcome,
                const char *subject, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/** A case: it says one thing or more. */
struct verify_case {
	const char *name;
	void (*run)(const struct verify_task *task);
};

/* file.c: S; tables.c: A, L, C, W; each ended by a NULL name */
extern const struct verify_case verify_file_cases[];
extern const struct verify_case verify_table_cases[];
/* numbers.c */
void verify_effects(const struct verify_task *task);
void verify_numbers(const struct verify_task *task, uint64_t index);
void verify_random(const struct verify_task *task, uint64_t seed);
uint64_t verify_number_count(void);
void verify_number_name(uint64_t index, char name_out[80]);

/** The name in DIR/NAME.so. 0: it is none. */
int verify_name(const char *path, char *name_out, size_t bytes);

#endif
