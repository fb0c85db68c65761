/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/request.h"

#include "core/plugin.h"
#include "core/status.h"

#include <stdio.h>
#include <string.h>

static int starts_with(const char *text, const char *word, const char **rest_out)
{
	size_t length = strlen(word);

	if (strncmp(text, word, length) != 0 ||
	    (text[length] != ' ' && text[length] != '\0'))
		return 0;
	*rest_out = text + length;
	return 1;
}

static int is_backend_name(const char *name)
{
	const char *dot = strchr(name, '.');
	char plugin[48];

	if (dot == NULL)
		return moek_plugin_name_is_valid(name);
	if ((size_t)(dot - name) >= sizeof(plugin))
		return 0;
	snprintf(plugin, sizeof(plugin), "%.*s", (int)(dot - name), name);
	return moek_plugin_name_is_valid(plugin) && moek_plugin_name_is_valid(dot + 1);
}

static int32_t parse_names(const char *text, struct moek_request *request_out,
                           struct moek_error *error_out)
{
	while (*text != '\0') {
		size_t length = strcspn(text, ", ");
		char *name = request_out->names[request_out->count];

		if (length != 0) {
			if (request_out->count == MOEK_NAMES_MOST)
				return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
				                 "request: more than %d names",
				                 MOEK_NAMES_MOST);
			snprintf(name, sizeof(request_out->names[0]), "%.*s",
			         (int)(length < 83 ? length : 83), text);
			if (length > 81 || !is_backend_name(name))
				return moek_fail(
					error_out, MOEK_BAD_ARGUMENT, 0,
					"request: '%s' is not a name: plugin or "
					"plugin.experts, of a-z 0-9 _ -",
					name);
			request_out->count++;
		}
		text += length;
		text += strspn(text, ", ");
	}
	return MOEK_OK;
}

int32_t moek_request_parse(const char *text, struct moek_request *request_out,
                           struct moek_error *error_out)
{
	static const struct {
		const char *word;
		enum moek_mode mode;
	} modes[] = { { "auto", MOEK_AUTO },
		      { "prefer", MOEK_PREFER },
		      { "require", MOEK_REQUIRE },
		      { "exclude", MOEK_EXCLUDE } };
	const char *rest;
	int32_t status;

	memset(request_out, 0, sizeof(*request_out));
	if (text == NULL)
		return MOEK_OK;
	text += strspn(text, " ");
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (!starts_with(text, modes[i].word, &rest))
			continue;
		request_out->mode = modes[i].mode;
		status = parse_names(rest, request_out, error_out);
		if (status != MOEK_OK)
			return status;
		if ((request_out->mode == MOEK_AUTO) != (request_out->count == 0) ||
		    (request_out->mode == MOEK_REQUIRE && request_out->count != 1))
			break;
		return MOEK_OK;
	}
	return moek_fail(
		error_out, MOEK_BAD_ARGUMENT, 0,
		"request '%.100s': expected auto, 'prefer a,b', 'require a' or "
		"'exclude a,b'",
		text);
}

int moek_request_covers(const char *pattern, const char *name)
{
	size_t length = strlen(pattern);

	return strncmp(pattern, name, length) == 0 &&
	       (name[length] == '\0' ||
	        (name[length] == '.' && strchr(pattern, '.') == NULL));
}

size_t moek_request_find(const struct moek_request *request, const char *name)
{
	for (size_t i = 0; i < request->count; i++)
		if (moek_request_covers(request->names[i], name))
			return i;
	return MOEK_NOT_NAMED;
}

int moek_request_concerns(const struct moek_request *request, const char *plugin)
{
	size_t length = strlen(plugin);

	for (size_t i = 0; i < request->count; i++)
		if (strncmp(request->names[i], plugin, length) == 0 &&
		    (request->names[i][length] == '\0' ||
		     request->names[i][length] == '.'))
			return 1;
	return 0;
}
