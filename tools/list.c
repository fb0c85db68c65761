/* SPDX-License-Identifier: MIT */
/* moek list and moek print-config: what a registry says of itself. */
#include "config.h"

#include "tools/tool.h"

#include <stdio.h>

static int print_registry(const struct options *options,
                          char *(*view)(struct moek_registry *registry, uint32_t view))
{
	struct moek_registry *registry;
	struct moek_error error;
	char *text;

	if (tool_registry(options, &registry, &error) != MOEK_OK)
		return tool_fail(&error);
	text = view(registry, options->json ? MOEK_JSON : MOEK_TEXT);
	moek_registry_close(registry);
	if (text == NULL) {
		tool_say("no memory for the report");
		return TOOL_REFUSED;
	}
	tool_print(text);
	moek_free(text);
	return TOOL_DONE;
}

int command_list(const struct options *options)
{
	return print_registry(options, options->open ? moek_registry_report
	                                             : moek_registry_listing);
}

int command_print_config(const struct options *options)
{
	return print_registry(options, moek_registry_config);
}
