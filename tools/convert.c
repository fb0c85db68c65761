/* SPDX-License-Identifier: MIT */
/* moek convert: a checkpoint's experts in another format. */
#include "config.h"

#include "tools/tool.h"
#include "tools/writer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct scheme {
	const char *name;
	uint32_t weight, group_size, zero_points, layout;
} schemes[] = {
	{ "w4a16-g32", MOEK_INT4, 32, 0, MOEK_LAYOUT_PACKED },
	{ "w4a16-g64", MOEK_INT4, 64, 0, MOEK_LAYOUT_PACKED },
	{ "w4a16-g128", MOEK_INT4, 128, 0, MOEK_LAYOUT_PACKED },
	{ "w4a16-g32-asym", MOEK_INT4, 32, 1, MOEK_LAYOUT_PACKED },
	{ "w4a16-g64-asym", MOEK_INT4, 64, 1, MOEK_LAYOUT_PACKED },
	{ "w4a16-g128-asym", MOEK_INT4, 128, 1, MOEK_LAYOUT_PACKED },
	{ "mxfp4", MOEK_MXFP4, 32, 0, MOEK_LAYOUT_PACKED },
	{ "mxfp4-gpt-oss", MOEK_MXFP4, 32, 0, MOEK_LAYOUT_BLOCKS },
	{ "bf16", MOEK_BF16, 0, 0, MOEK_LAYOUT_PACKED },
	{ "fp16", MOEK_F16, 0, 0, MOEK_LAYOUT_PACKED },
	{ "fp32", MOEK_F32, 0, 0, MOEK_LAYOUT_PACKED },
};

#define SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

static const struct scheme *find_scheme(const char *name)
{
	char known[256] = "";
	size_t used = 0;

	for (size_t i = 0; i < SCHEMES; i++) {
		if (name != NULL && strcmp(name, schemes[i].name) == 0)
			return &schemes[i];
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
		                         i == 0 ? "" : ", ", schemes[i].name);
	}
	if (name == NULL)
		tool_say("convert: needs --to SCHEME, one of: %s", known);
	else
		tool_say("--to %s: not one of %s", name, known);
	return NULL;
}

static void show_progress(void *self, uint64_t done, uint64_t all)
{
	(void)self;
	fprintf(stderr, "\rmoek: %llu of %llu MiB%s", (unsigned long long)(done >> 20),
	        (unsigned long long)(all >> 20), done == all ? "\n" : "");
}

int command_convert(const struct options *options)
{
	const struct scheme *scheme = find_scheme(options->to);
	struct moek_conversion conversion = { .struct_size = MOEK_INIT(CONVERSION) };
	struct writer writer = { 0 };
	struct session session;
	struct moek_error error;
	int32_t status;

	if (scheme == NULL)
		return TOOL_USAGE;
	conversion.weight = scheme->weight;
	conversion.group_size = scheme->group_size;
	conversion.zero_points = scheme->zero_points;
	conversion.layout = scheme->layout;
	if (isatty(STDERR_FILENO))
		conversion.progress = show_progress;
	if (tool_open(options, &session, &error) != MOEK_OK)
		return tool_fail(&error);
	status = moek_checkpoint_convert(session.checkpoint, options->destination,
	                                 &conversion, &error);
	tool_close(&session);
	if (status != MOEK_OK)
		return tool_fail(&error);
	if (options->json) {
		writer_open(&writer, NULL, '{');
		writer_string(&writer, "checkpoint", options->checkpoint);
		writer_string(&writer, "destination", options->destination);
		writer_string(&writer, "scheme", scheme->name);
		writer_close(&writer, '}');
	} else {
		printf("%s: experts as %s\n", options->destination, scheme->name);
	}
	return TOOL_DONE;
}
