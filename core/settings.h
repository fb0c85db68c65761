/* SPDX-License-Identifier: MIT */
/* Effective settings, each with where it came from and what it overrode. The
 * environment is read here, in one function, and nowhere else. */
#ifndef MOEK_CORE_SETTINGS_H
#define MOEK_CORE_SETTINGS_H

#include <stddef.h>

#include <moek/moek.h>

/** Who set it; a higher one wins. */
enum moek_level {
	MOEK_LEVEL_BUILT_IN,
	MOEK_LEVEL_SYSTEM,
	MOEK_LEVEL_USER,
	MOEK_LEVEL_ENVIRONMENT,
	MOEK_LEVEL_API
};

struct moek_entry {
	char *section;
	char *key; /* NULL: the heading of a section */
	char *value;
	char *origin; /* "/etc/moek/moek.ini:12", "MOEK_CHECK", "api", "built-in" */
	uint32_t level;
	int in_force;
};

/** A folder that is searched for plugins. */
struct moek_folder {
	char *path; /* absolute */
	const char *origin;
};

struct moek_settings {
	struct moek_entry *entries;
	size_t count;
	struct moek_folder *folders; /* in search order */
	size_t folder_count;
	char *files[2];     /* the system's and the user's file as read, or NULL */
	int elevated;       /* 1: environment and user file were not looked at */
	int no_environment; /* 1: the environment was not looked at */
};

/** Where the machine keeps things; a parameter for the tests. */
struct moek_place {
	const char *system_file; /* the installed moek.ini */
	int elevated;            /* AT_SECURE */
};

int32_t moek_settings_open(const struct moek_registry_options *options,
                           const struct moek_place *place,
                           struct moek_settings **settings_out,
                           struct moek_error *error_out);
void moek_settings_close(struct moek_settings *settings);

/** The entry in force, or NULL. */
const struct moek_entry *moek_settings_get(const struct moek_settings *settings,
                                           const char *section, const char *key);
/** The same for "plugin NAME". */
const struct moek_entry *moek_settings_plugin(const struct moek_settings *settings,
                                              const char *plugin, const char *key);
/** What can be watched in each forward; `checks` names them. */
enum moek_check {
	MOEK_CHECK_FP_STATE = 1, /* the thread's floating-point mode is as it was */
	MOEK_CHECK_GUARDS = 2,   /* nobody writes outside of his workspace */
	MOEK_CHECK_POISON = 4,   /* what was not written is not read */
	MOEK_CHECK_INPUTS = 8,   /* what is the host's is left alone */
	MOEK_CHECK_ALL = 15
};

/** "key=value" of [plugin NAME], NULL-ended. NULL: no memory. */
char **moek_settings_options(const struct moek_settings *settings, const char *plugin);
void moek_settings_options_free(char **options);
/** Value in force of a key of [registry] that has a built-in value. */
const char *moek_settings_value(const struct moek_settings *settings, const char *key);
/** on, yes, true: 1; off, no, false: 0; else -1. */
int moek_settings_boolean(const char *value);
/** on: all; off: none; or names with commas between. -1: something else. */
int moek_settings_checks(const char *value);
/** "moek.ini:12" of "/etc/moek/moek.ini:12". */
const char *moek_origin_short(const char *origin);

#endif
