/* SPDX-License-Identifier: MIT */
/* One plugin file, opened: the one door to dlopen. */
#ifndef MOEK_CORE_PLUGIN_H
#define MOEK_CORE_PLUGIN_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_log;
struct moek_note;
struct moek_settings;

/** Why a plugin is broken: the rule with its numbers, and the words. */
struct moek_cause {
	struct moek_verdict verdict;
	char text[512]; /* "" : the verdict says it all */
};

/** What is in the file, copied: tables are zero beyond what the file has of them. */
struct moek_loaded {
	char name[48];
	struct moek_plugin plugin;
	struct moek_experts *experts; /* [experts_count] */
	uint32_t experts_count;
	void *handle; /* what open() gave */
	int is_open;

	void *library;
	struct moek_host host;
	struct moek_log *log;
	const struct moek_settings *settings;
	char *complaint; /* while open() runs: the last error that it logged */
	size_t complaint_bytes;
};

struct moek_plugin_request {
	const char *path, *name;
	const struct moek_note *note; /* of the file, or NULL: not known */
	struct moek_log *log;
	const struct moek_settings *settings;
	void (*step)(const char *step); /* told before "load" and "open"; may be NULL */
};

/**
 * Load, check and open. On failure MOEK_PLUGIN and *cause_out, or MOEK_NO_MEMORY. The
 * request's log and settings must outlive the plugin.
 */
int32_t moek_plugin_load(const struct moek_plugin_request *request,
                         struct moek_loaded **loaded_out, struct moek_cause *cause_out);
/** Closes the plugin; the file stays mapped. NULL is fine. */
void moek_plugin_unload(struct moek_loaded *loaded);

/** Fill *cause_out with the rule and the words; MOEK_PLUGIN, for `return`. */
int32_t moek_plugin_break(struct moek_cause *cause_out, uint32_t rule, uint64_t found,
                          const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/** 1: @name may name a plugin or experts: [a-z0-9_-], 1 to 40 characters. */
int moek_plugin_name_is_valid(const char *name);

#endif
