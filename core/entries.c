/* SPDX-License-Identifier: MIT */
/* Looking into settings that were read. Apart from the reading, so that moek-probe,
 * which is told its settings, needs no INI. */
#include "config.h"

#include "core/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int moek_settings_boolean(const char *value)
{
	static const char *const yes[] = { "on", "yes", "true" };
	static const char *const no[] = { "off", "no", "false" };

	for (size_t i = 0; i < 3; i++) {
		if (strcmp(value, yes[i]) == 0)
			return 1;
		if (strcmp(value, no[i]) == 0)
			return 0;
	}
	return -1;
}

const struct moek_entry *moek_settings_get(const struct moek_settings *settings,
                                           const char *section, const char *key)
{
	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];

		if (entry->in_force && entry->key != NULL &&
		    strcmp(entry->key, key) == 0 &&
		    strcmp(entry->section, section) == 0)
			return entry;
	}
	return NULL;
}

const struct moek_entry *moek_settings_plugin(const struct moek_settings *settings,
                                              const char *plugin, const char *key)
{
	char section[64];

	snprintf(section, sizeof(section), "plugin %s", plugin);
	return moek_settings_get(settings, section, key);
}

const char *moek_settings_value(const struct moek_settings *settings, const char *key)
{
	return moek_settings_get(settings, "registry", key)->value;
}

void moek_settings_options_free(char **options)
{
	for (size_t i = 0; options != NULL && options[i] != NULL; i++)
		free(options[i]);
	free(options);
}

char **moek_settings_options(const struct moek_settings *settings, const char *plugin)
{
	char **options = calloc(settings->count + 1, sizeof(*options));
	char section[64];
	size_t count = 0;

	snprintf(section, sizeof(section), "plugin %s", plugin);
	for (size_t i = 0; options != NULL && i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];

		if (entry->key == NULL || !entry->in_force ||
		    strcmp(entry->section, section) != 0)
			continue;
		if (asprintf(&options[count], "%s=%s", entry->key, entry->value) < 0) {
			options[count] = NULL;
			moek_settings_options_free(options);
			return NULL;
		}
		count++;
	}
	return options;
}

const char *moek_origin_short(const char *origin)
{
	const char *slash = strrchr(origin, '/');

	return slash != NULL ? slash + 1 : origin;
}
