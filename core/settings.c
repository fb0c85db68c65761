/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/settings.h"

#include "core/nearest.h"
#include "core/priority.h"
#include "core/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MOST 4096

/* ---- the environment ---- */

struct environment {
	char *config, *plugin_dirs, *check, *threads, *home, *cache_home;
};

/** The only place that reads it. Nothing is read under elevated rights. */
static int read_environment(int is_ignored, struct environment *environment_out)
{
	struct {
		const char *name;
		char **value_out;
	} wanted[] = {
		{ "MOEK_CONFIG", &environment_out->config },
		{ "MOEK_PLUGIN_DIRS", &environment_out->plugin_dirs },
		{ "MOEK_CHECK", &environment_out->check },
		{ "MOEK_THREADS", &environment_out->threads },
		{ "HOME", &environment_out->home },
		{ "XDG_CACHE_HOME", &environment_out->cache_home },
	};

	memset(environment_out, 0, sizeof(*environment_out));
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && !is_ignored; i++) {
		const char *value = secure_getenv(wanted[i].name);

		if (value == NULL || value[0] == '\0')
			continue;
		*wanted[i].value_out = strdup(value);
		if (*wanted[i].value_out == NULL)
			return 0;
	}
	return 1;
}

static void end_environment(struct environment *environment)
{
	free(environment->config);
	free(environment->plugin_dirs);
	free(environment->check);
	free(environment->threads);
	free(environment->home);
	free(environment->cache_home);
}

/* ---- what a setting may say ---- */

/** What is wrong with @value, or NULL. */
static const char *boolean_rule(const char *value)
{
	return moek_settings_boolean(value) < 0 ? "on or off" : NULL;
}

int moek_settings_checks(const char *value)
{
	static const char *const names[] = { "fp_state", "guards", "poison", "inputs" };
	int boolean = moek_settings_boolean(value), checks = 0;
	size_t length;

	if (boolean >= 0)
		return boolean ? MOEK_CHECK_ALL : 0;
	for (;; value += length + 1) {
		int check = 0;

		value += strspn(value, " \t");
		length = strcspn(value, ", \t");
		for (int i = 0; i < 4; i++)
			if (strncmp(value, names[i], length) == 0 &&
			    names[i][length] == '\0')
				check = 1 << i;
		if (check == 0)
			return -1;
		checks |= check;
		length += strspn(value + length, " \t");
		if (value[length] == '\0')
			return checks;
		if (value[length] != ',')
			return -1;
	}
}

static const char *checks_rule(const char *value)
{
	return moek_settings_checks(value) < 0
	               ? "on, off, or some of fp_state, guards, poison, inputs with "
	                 "commas between"
	               : NULL;
}

static const char *golden_rule(const char *value)
{
	return strcmp(value, "off") != 0 && strcmp(value, "first") != 0 &&
	                       strcmp(value, "always") != 0
	               ? "off, first or always"
	               : NULL;
}

static const char *shadow_rule(const char *value)
{
	size_t digits = strspn(value, "0123456789");

	return digits == 0 || digits > 9 || value[digits] != '\0'
	               ? "a number of forwards, or 0 for never"
	               : NULL;
}

static const char *schema_rule(const char *value)
{
	return strcmp(value, "1") != 0 ? "1, the only schema there is" : NULL;
}

static const char *unlisted_rule(const char *value)
{
	return strcmp(value, "append") != 0 && strcmp(value, "ignore") != 0 &&
	                       strcmp(value, "error") != 0
	               ? "append, ignore or error"
	               : NULL;
}

static const char *degraded_rule(const char *value)
{
	return strcmp(value, "allow") != 0 && strcmp(value, "warn") != 0 &&
	                       strcmp(value, "error") != 0
	               ? "allow, warn or error"
	               : NULL;
}

static const char *threads_rule(const char *value)
{
	size_t digits = strspn(value, "0123456789");

	return digits == 0 || digits > 4 || value[digits] != '\0' ||
	                       strtoul(value, NULL, 10) > THREADS_MOST
	               ? "a number from 0 (as many as the process may use) to 4096"
	               : NULL;
}

static const char *folders_rule(const char *value)
{
	return value[strspn(value, ", \t")] == '\0' ? "a folder, or several with commas"
	                                            : NULL;
}

static const char *probe_rule(const char *value)
{
	return strcmp(value, "auto") != 0 && strcmp(value, "always") != 0 &&
	                       strcmp(value, "never") != 0
	               ? "auto, always or never"
	               : NULL;
}

static const char *seconds_rule(const char *value)
{
	size_t digits = strspn(value, "0123456789");

	return digits == 0 || digits > 3 || value[digits] != '\0' ||
	                       strtoul(value, NULL, 10) == 0
	               ? "a number of seconds from 1 to 999"
	               : NULL;
}

static const char *file_rule(const char *value)
{
	return value[0] != '/' ? "an absolute path" : NULL;
}

static const char *cache_rule(const char *value)
{
	return value[0] != '/' && value[0] != '\0' ? "an absolute path, or nothing"
	                                           : NULL;
}

static const struct known_key {
	const char *name;
	const char *(*rule)(const char *value);
	const char *built_in;
} known_keys[] = {
	{ "schema", schema_rule, "1" },
	{ "plugin_dirs", folders_rule, MOEK_PLUGIN_DIR },
	{ "unlisted", unlisted_rule, "append" },
	{ "on_degraded", degraded_rule, "warn" },
	{ "threads", threads_rule, "0" },
	{ "checks", checks_rule, "off" },
	{ "golden", golden_rule, "first" },
	{ "shadow", shadow_rule, "0" },
	{ "probe", probe_rule, "auto" },
	{ "probe_helper", file_rule, MOEK_PROBE_HELPER },
	{ "probe_seconds", seconds_rule, "10" },
	{ "cache", cache_rule, "" },
	{ "lock", cache_rule, "" },
};
#define KNOWN_KEYS (sizeof(known_keys) / sizeof(known_keys[0]))

static const char *is_section(const char *section, const char *first)
{
	size_t length = strlen(first);

	if (strncmp(section, first, length) != 0)
		return NULL;
	if (section[length] == '\0')
		return section + length;
	return section[length] == ' ' ? section + length + 1 : NULL;
}

/** [a-z0-9_-]{1,40}. */
static size_t name_length(const char *name)
{
	size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return length <= 40 ? length : 0;
}

/** "plugin" or, with @experts allowed, "plugin.experts". */
static int is_name(const char *name, int experts)
{
	size_t length = name_length(name);

	if (length != 0 && name[length] == '.' && experts) {
		name += length + 1;
		length = name_length(name);
	}
	return length != 0 && name[length] == '\0';
}

static int32_t refuse_word(struct moek_error *error_out, const char *origin,
                           const char *text, const char *nearest)
{
	return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s: %s%s%s%s", origin, text,
	                 nearest != NULL ? "; did you mean '" : "",
	                 nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

static int32_t check_section(const char *section, const char *origin,
                             struct moek_error *error_out)
{
	static const char *const known[] = { "registry", "priority", "plugin" };
	const char *rest = is_section(section, "plugin");
	struct moek_priority_match match;
	char why[160], text[256];

	if (strcmp(section, "registry") == 0 || strncmp(section, "x-", 2) == 0)
		return MOEK_OK;
	if (is_section(section, "priority") != NULL) {
		if (moek_priority_parse(section, &match, why, sizeof(why)))
			return MOEK_OK;
		return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s: [%s]: %s", origin,
		                 section, why);
	}
	if (rest != NULL && is_name(rest, 0))
		return MOEK_OK;
	if (rest != NULL)
		return moek_fail(
			error_out, MOEK_BAD_CONFIG, 0,
			"%s: [%s]: expected [plugin NAME], a name of a-z 0-9 _ -, at "
			"most 40 of them",
			origin, section);
	snprintf(text, sizeof(text), "unknown section [%.100s]", section);
	return refuse_word(error_out, origin, text, moek_nearest(section, known, 3));
}

static int32_t check_registry_key(const char *key, const char *value,
                                  const char *origin, struct moek_error *error_out)
{
	const char *names[KNOWN_KEYS], *expected;
	char text[256];

	for (size_t i = 0; i < KNOWN_KEYS; i++) {
		names[i] = known_keys[i].name;
		if (strcmp(names[i], key) != 0)
			continue;
		expected = known_keys[i].rule(value);
		if (expected == NULL)
			return MOEK_OK;
		return moek_fail(error_out, MOEK_BAD_CONFIG, 0,
		                 "%s: %s = %.100s: expected %s", origin, key, value,
		                 expected);
	}
	snprintf(text, sizeof(text), "unknown key %.100s in [registry]", key);
	return refuse_word(error_out, origin, text,
	                   moek_nearest(key, names, KNOWN_KEYS));
}

static int32_t check_key(const struct moek_entry *entry, struct moek_error *error_out)
{
	const char *key = entry->key, *value = entry->value;

	if (strncmp(key, "x-", 2) == 0 || strncmp(entry->section, "x-", 2) == 0)
		return MOEK_OK;
	if (strcmp(entry->section, "registry") == 0)
		return check_registry_key(key, value, entry->origin, error_out);
	if (is_section(entry->section, "plugin") != NULL) {
		/* the rest are the plugin's options, known when it is opened */
		if (strcmp(key, "enabled") != 0 || boolean_rule(value) == NULL)
			return MOEK_OK;
	} else if (!is_name(key, 1)) {
		return moek_fail(
			error_out, MOEK_BAD_CONFIG, 0,
			"%s: %.100s is not a name: plugin or plugin.experts, of a-z "
			"0-9 _ -",
			entry->origin, key);
	} else if (boolean_rule(value) == NULL) {
		return MOEK_OK;
	}
	return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s: %s = %.100s: expected %s",
	                 entry->origin, key, value, boolean_rule(value));
}

/* ---- the list ---- */

static void end_entry(struct moek_entry *entry)
{
	free(entry->section);
	free(entry->key);
	free(entry->value);
	free(entry->origin);
}

/** Append a copy. @key may be NULL: a heading. */
static int32_t add_entry(struct moek_settings *settings, uint32_t level,
                         const struct moek_setting *setting, const char *origin,
                         struct moek_error *error_out)
{
	struct moek_entry entry = { .level = level };
	struct moek_entry *entries = realloc(
		settings->entries, (settings->count + 1) * sizeof(*settings->entries));
	int32_t status;

	if (entries == NULL)
		return moek_fail_memory(error_out, "settings");
	settings->entries = entries;
	entry.section = strdup(setting->section);
	entry.origin = strdup(origin);
	entry.key = setting->key != NULL ? strdup(setting->key) : NULL;
	entry.value = setting->value != NULL ? strdup(setting->value) : NULL;
	if (entry.section == NULL || entry.origin == NULL ||
	    (setting->key != NULL && (entry.key == NULL || entry.value == NULL))) {
		end_entry(&entry);
		return moek_fail_memory(error_out, "settings");
	}
	status = check_section(entry.section, origin, error_out);
	if (status == MOEK_OK && entry.key != NULL)
		status = check_key(&entry, error_out);
	if (status != MOEK_OK) {
		end_entry(&entry);
		return status;
	}
	settings->entries[settings->count++] = entry;
	return MOEK_OK;
}

static int32_t add_built_in(struct moek_settings *settings,
                            struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < KNOWN_KEYS && status == MOEK_OK; i++) {
		struct moek_setting setting = { "registry", known_keys[i].name,
			                        known_keys[i].built_in };

		status = add_entry(settings, MOEK_LEVEL_BUILT_IN, &setting, "built-in",
		                   error_out);
	}
	return status;
}

/** @path as it stays valid when the process changes its folder; NULL: no memory. */
static char *absolute_path(const char *path)
{
	char *here = path[0] != '/' ? getcwd(NULL, 0) : NULL, *absolute;

	if (here == NULL)
		return strdup(path);
	if (asprintf(&absolute, "%s/%s", here, path) < 0)
		absolute = NULL;
	free(here);
	return absolute;
}

/**
 * The value of an option of a plugin: as it stands, or of the environment where all of
 * it is ${NAME}; NULL where that is not set, so that the option is not given. A plugin
 * reads no environment, and what its libraries call their variables is not for us to
 * know.
 */
static const char *expand(const struct moek_settings *settings, const char *value)
{
	size_t length = strlen(value);
	char name[256];

	if (length < 4 || length - 3 >= sizeof(name) || strncmp(value, "${", 2) != 0 ||
	    value[length - 1] != '}')
		return value;
	snprintf(name, sizeof(name), "%.*s", (int)length - 3, value + 2);
	if (name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] != '\0')
		return value;
	value = settings->no_environment ? NULL : secure_getenv(name);
	return value != NULL && value[0] != '\0' ? value : NULL;
}

static int32_t add_file(struct moek_settings *settings, uint32_t level,
                        const char *name, int optional, struct moek_error *error_out)
{
	char *path = absolute_path(name);
	struct moek_ini *ini = NULL;
	int32_t status;

	if (path == NULL)
		return moek_fail_memory(error_out, "settings");
	status = moek_ini_read(path, optional, &ini, error_out);
	if (status != MOEK_OK || ini == NULL) {
		free(path);
		return status;
	}
	settings->files[level == MOEK_LEVEL_USER] = path;
	for (size_t i = 0; i < ini->count && status == MOEK_OK; i++) {
		const struct moek_ini_line *line = &ini->lines[i];
		struct moek_setting setting = { line->section, line->key, line->value };
		char *origin;

		if (is_section(line->section, "plugin") != NULL && line->value != NULL)
			setting.value = expand(settings, line->value);
		if (setting.value == NULL && line->value != NULL)
			continue;
		if (asprintf(&origin, "%s:%u", path, line->number) < 0) {
			status = moek_fail_memory(error_out, "settings");
			break;
		}
		status = add_entry(settings, level, &setting, origin, error_out);
		free(origin);
	}
	moek_ini_free(ini);
	return status;
}

/** $MOEK_CONFIG or the caller's file alone; else the user's file over the system's. */
static int32_t add_files(struct moek_settings *settings, const char *config_file,
                         const struct environment *environment, const char *system_file,
                         struct moek_error *error_out)
{
	char *user_file;
	int32_t status;

	if (config_file == NULL)
		config_file = environment->config;
	if (config_file != NULL && config_file[0] == '\0')
		return MOEK_OK;
	if (config_file != NULL)
		return add_file(settings, MOEK_LEVEL_USER, config_file, 0, error_out);
	status = add_file(settings, MOEK_LEVEL_SYSTEM, system_file, 1, error_out);
	if (status != MOEK_OK || environment->home == NULL ||
	    environment->home[0] != '/')
		return status;
	if (asprintf(&user_file, "%s/.config/moek/moek.ini", environment->home) < 0)
		return moek_fail_memory(error_out, "settings");
	status = add_file(settings, MOEK_LEVEL_USER, user_file, 1, error_out);
	free(user_file);
	return status;
}

static int32_t add_environment(struct moek_settings *settings,
                               const struct environment *environment,
                               struct moek_error *error_out)
{
	const char *check = environment->check;
	const struct {
		const char *variable, *key, *value;
	} wanted[] = {
		{ "MOEK_PLUGIN_DIRS", "plugin_dirs", environment->plugin_dirs },
		{ "MOEK_CHECK", "checks",
		  check == NULL             ? NULL
		  : strcmp(check, "1") == 0 ? "on"
		  : strcmp(check, "0") == 0 ? "off"
		                            : check },
		{ "MOEK_THREADS", "threads", environment->threads },
	};
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		struct moek_setting setting = { "registry", wanted[i].key,
			                        wanted[i].value };

		if (wanted[i].value != NULL && status == MOEK_OK)
			status = add_entry(settings, MOEK_LEVEL_ENVIRONMENT, &setting,
			                   wanted[i].variable, error_out);
	}
	return status;
}

/** Where caches are kept, as the user's variables say. */
static int32_t add_cache(struct moek_settings *settings,
                         const struct environment *environment,
                         struct moek_error *error_out)
{
	struct moek_setting setting = { "registry", "cache", NULL };
	const char *variable = "XDG_CACHE_HOME", *below = "/moek";
	const char *folder = environment->cache_home;
	char *path;
	int32_t status;

	if (folder == NULL || folder[0] != '/') {
		variable = "HOME";
		folder = environment->home;
		below = "/.cache/moek";
	}
	if (folder == NULL || folder[0] != '/')
		return MOEK_OK;
	if (asprintf(&path, "%s%s", folder, below) < 0)
		return moek_fail_memory(error_out, "settings");
	setting.value = path;
	status = add_entry(settings, MOEK_LEVEL_BUILT_IN, &setting, variable,
	                   error_out);
	free(path);
	return status;
}

static int32_t add_options(struct moek_settings *settings,
                           const struct moek_registry_options *options,
                           struct moek_error *error_out)
{
	struct moek_setting threads = { "registry", "threads", NULL };
	struct moek_setting checks = { "registry", "checks",
		                       options->checks == 1 ? "on" : "off" };
	char number[16];
	int32_t status = MOEK_OK;

	if (options->checks > 2)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "checks is %u: expected 0, 1 or 2", options->checks);
	for (uint64_t i = 0; i < options->setting_count && status == MOEK_OK; i++) {
		const struct moek_setting *setting = &options->settings[i];

		if (setting->section == NULL || setting->key == NULL ||
		    setting->value == NULL)
			return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
			                 "setting %llu has no section, key or value",
			                 (unsigned long long)i);
		status = add_entry(settings, MOEK_LEVEL_API, setting, "api", error_out);
	}
	if (status == MOEK_OK && options->threads != 0) {
		snprintf(number, sizeof(number), "%u", options->threads);
		threads.value = number;
		status = add_entry(settings, MOEK_LEVEL_API, &threads, "api",
		                   error_out);
	}
	if (status == MOEK_OK && options->checks != 0)
		status = add_entry(settings, MOEK_LEVEL_API, &checks, "api", error_out);
	return status;
}

/* ---- who wins ---- */

static int is_list(const struct moek_entry *entry)
{
	return strcmp(entry->section, "registry") == 0 &&
	       strcmp(entry->key, "plugin_dirs") == 0;
}

/** Does @later take @entry out of force? */
static int overrides(const struct moek_entry *later, const struct moek_entry *entry)
{
	if (strcmp(later->section, entry->section) != 0)
		return 0;
	/* a [priority ...] section of a file replaces that of the other as a whole */
	if (is_section(entry->section, "priority") != NULL &&
	    later->level > entry->level && later->level <= MOEK_LEVEL_USER)
		return 1;
	if (entry->key == NULL || later->key == NULL ||
	    strcmp(later->key, entry->key) != 0)
		return 0;
	return later->level > entry->level || !is_list(entry);
}

static void settle(struct moek_settings *settings)
{
	for (size_t i = 0; i < settings->count; i++) {
		struct moek_entry *entry = &settings->entries[i];

		entry->in_force = 1;
		for (size_t j = i + 1; j < settings->count && entry->in_force; j++)
			entry->in_force = !overrides(&settings->entries[j], entry);
	}
}

/* ---- folders of plugins ---- */

/** Take over @path. */
static int32_t add_folder(struct moek_settings *settings, char *path,
                          const char *origin, struct moek_error *error_out)
{
	struct moek_folder *folders = realloc(settings->folders,
	                                      (settings->folder_count + 1) *
	                                              sizeof(*settings->folders));

	if (folders == NULL || path == NULL) {
		if (folders != NULL)
			settings->folders = folders;
		free(path);
		return moek_fail_memory(error_out, "list of plugin folders");
	}
	settings->folders = folders;
	folders[settings->folder_count++] = (struct moek_folder){ .path = path,
		                                                  .origin = origin };
	return MOEK_OK;
}

/** A relative folder is relative to the INI that names it; nothing else may be. */
static int32_t add_named_folder(struct moek_settings *settings, const char *name,
                                const struct moek_entry *entry,
                                struct moek_error *error_out)
{
	int is_file = entry->level == MOEK_LEVEL_SYSTEM ||
	              entry->level == MOEK_LEVEL_USER;
	const char *end = strrchr(entry->origin, '/');
	char *path = NULL;

	if (name[0] == '/') {
		path = strdup(name);
	} else if (!is_file || end == NULL) {
		return moek_fail(
			error_out, MOEK_BAD_CONFIG, 0,
			"%s: plugin_dirs: %s is relative; only an INI may name a "
			"folder relative to itself",
			entry->origin, name);
	} else if (asprintf(&path, "%.*s/%s", (int)(end - entry->origin), entry->origin,
	                    name) < 0) {
		path = NULL;
	}
	return add_folder(settings, path, entry->origin, error_out);
}

static int32_t split_folders(struct moek_settings *settings,
                             const struct moek_entry *entry,
                             struct moek_error *error_out)
{
	const char *separators = entry->level == MOEK_LEVEL_ENVIRONMENT ? ":" : ",";
	char *names = strdup(entry->value), *rest = NULL, *name;
	int32_t status = MOEK_OK;

	if (names == NULL)
		return moek_fail_memory(error_out, "list of plugin folders");
	for (name = strtok_r(names, separators, &rest);
	     name != NULL && status == MOEK_OK;
	     name = strtok_r(NULL, separators, &rest)) {
		size_t length;

		name += strspn(name, " \t");
		length = strlen(name);
		while (length != 0 &&
		       (name[length - 1] == ' ' || name[length - 1] == '\t'))
			name[--length] = '\0';
		/* an empty name would be the current directory */
		if (length != 0)
			status = add_named_folder(settings, name, entry, error_out);
	}
	free(names);
	return status;
}

static int32_t find_folders(struct moek_settings *settings, const char *const *first,
                            struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	for (; first != NULL && *first != NULL && status == MOEK_OK; first++) {
		status = add_folder(settings, absolute_path(*first), "api", error_out);
	}
	for (size_t i = 0; i < settings->count && status == MOEK_OK; i++) {
		const struct moek_entry *entry = &settings->entries[i];

		if (entry->in_force && entry->key != NULL && is_list(entry))
			status = split_folders(settings, entry, error_out);
	}
	return status;
}

int32_t moek_settings_open(const struct moek_registry_options *options,
                           const struct moek_place *place,
                           struct moek_settings **settings_out,
                           struct moek_error *error_out)
{
	struct moek_settings *settings = calloc(1, sizeof(*settings));
	struct environment environment;
	int32_t status;

	if (settings == NULL)
		return moek_fail_memory(error_out, "settings");
	settings->elevated = place->elevated;
	settings->no_environment = place->elevated || options->ignore_environment;
	if (!read_environment(settings->no_environment, &environment)) {
		status = moek_fail_memory(error_out, "settings");
		goto done;
	}
	status = moek_ini_self_test(error_out);
	if (status == MOEK_OK)
		status = add_built_in(settings, error_out);
	if (status == MOEK_OK)
		status = add_cache(settings, &environment, error_out);
	if (status == MOEK_OK)
		status = add_files(settings, options->config_file, &environment,
		                   place->system_file, error_out);
	if (status == MOEK_OK)
		status = add_environment(settings, &environment, error_out);
	if (status == MOEK_OK)
		status = add_options(settings, options, error_out);
	if (status != MOEK_OK)
		goto done;
	settle(settings);
	status = find_folders(settings, options->plugin_dirs, error_out);
done:
	end_environment(&environment);
	if (status != MOEK_OK) {
		moek_settings_close(settings);
		return status;
	}
	*settings_out = settings;
	return MOEK_OK;
}

void moek_settings_close(struct moek_settings *settings)
{
	if (settings == NULL)
		return;
	for (size_t i = 0; i < settings->count; i++)
		end_entry(&settings->entries[i]);
	for (size_t i = 0; i < settings->folder_count; i++)
		free(settings->folders[i].path);
	free(settings->entries);
	free(settings->folders);
	free(settings->files[0]);
	free(settings->files[1]);
	free(settings);
}
