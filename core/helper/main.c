/* SPDX-License-Identifier: MIT */
/* moek-probe: opens one plugin where nobody is hurt, asks for its devices, and reports.
 *
 *     moek-probe FILE NAME FEATURES [OPTION=VALUE...]
 *
 * core/probe.c runs it. Lines go to descriptor 3: "step WORD" before each step, so that
 * the last one says where it ended; "cause ..." when the file is at fault. What the
 * plugin writes to standard output and error stays apart from it. */
#include "config.h"

#include "core/helper/world.h"
#include "core/log.h"
#include "core/note.h"
#include "core/probe.h"
#include "core/settings.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#define DEVICES_MOST 256

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[1024];
	va_list arguments;
	int length;
	ssize_t written;

	va_start(arguments, format);
	length = vsnprintf(line, sizeof(line) - 1, format, arguments);
	va_end(arguments);
	if (length < 0)
		return;
	if ((size_t)length > sizeof(line) - 2)
		length = sizeof(line) - 2;
	for (int i = 0; i < length; i++)
		if (line[i] == '\n')
			line[i] = ' ';
	line[length++] = '\n';
	written = write(MOEK_PROBE_REPORT, line, (size_t)length);
	(void)written; /* who asked is gone: nobody is left to tell */
}

static void say_step(const char *step)
{
	say("step %s", step);
}

static void say_cause(const struct moek_cause *cause)
{
	const struct moek_verdict *verdict = &cause->verdict;

	say("cause %u %llu %u %u %llu %s", verdict->rule,
	    (unsigned long long)verdict->found, verdict->accepts, verdict->count,
	    (unsigned long long)verdict->accepted[0], cause->text);
}

/** The plugin's options, which came as OPTION=VALUE, as settings. */
static int take_options(char **options, const char *name,
                        struct moek_settings *settings)
{
	static char section[64];
	size_t count = 0;

	snprintf(section, sizeof(section), "plugin %s", name);
	while (options[count] != NULL)
		count++;
	settings->entries = calloc(count + 1, sizeof(*settings->entries));
	if (settings->entries == NULL)
		return 0;
	for (size_t i = 0; i < count; i++) {
		char *equals = strchr(options[i], '=');

		if (equals == NULL)
			return 0;
		*equals = '\0';
		settings->entries[settings->count++] = (struct moek_entry){
			.section = section,
			.key = options[i],
			.value = equals + 1,
			.origin = (char *)(uintptr_t) "moek.ini",
			.in_force = 1
		};
	}
	return 1;
}

/** What a host may ask before it makes a layer, about a few small problems. */
static void ask_problems(const struct moek_loaded *loaded,
                         const struct moek_experts *experts)
{
	static const struct moek_scheme schemes[] = {
		{ .weight = MOEK_INT4, .scale = MOEK_BF16, .group_size = 32 },
		{ .weight = MOEK_MXFP4, .scale = MOEK_E8M0, .group_size = 32 },
		{ .weight = MOEK_BF16 },
	};

	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
		const struct moek_problem problem = {
			.struct_size = MOEK_PROBLEM_SIZE_1_0,
			.experts = 8,
			.experts_local = 8,
			.top_k = 2,
			.hidden = 64,
			.intermediate = 32,
			.max_tokens = 16,
			.gate_up = schemes[i],
			.down = schemes[i],
			.input_type = MOEK_BF16,
			.output_type = MOEK_BF16,
			.activation = MOEK_SILU,
			.gated = 1,
			.shards = 1,
		};
		struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
		struct moek_numerics numerics = {
			.struct_size = MOEK_NUMERICS_SIZE_1_0
		};
		struct moek_sizes sizes = { .struct_size = MOEK_SIZES_SIZE_1_0 };
		struct moek_buffer buffers[MOEK_MAX_BUFFERS] = { { 0 } };
		void *plugin = loaded->handle;
		uint64_t align;

		if (experts->supports_quant_scheme(plugin, &problem, &no) != 1 ||
		    experts->supports_activation(plugin, &problem, &no) != 1 ||
		    experts->supports_parallel(plugin, &problem, &no) != 1 ||
		    experts->supports_shape(plugin, &problem, &no) != 1)
			continue;
		experts->problem_size(plugin, &problem, &sizes);
		experts->workspace_shapes(plugin, &problem, problem.max_tokens, 1,
		                          buffers, MOEK_MAX_BUFFERS);
		experts->finalize(plugin, &problem, problem.max_tokens);
		experts->numerics(plugin, &problem, &numerics);
		experts->prepared_size(plugin, &problem, &align);
	}
}

/** Every table about every device. */
static void ask(const struct moek_loaded *loaded, const char *features)
{
	static struct moek_device devices[DEVICES_MOST + 1];
	struct utsname names;
	uint32_t count = 0;

	for (size_t i = 0; i <= DEVICES_MOST; i++)
		devices[i].struct_size = MOEK_DEVICE_SIZE_1_0;
	if (loaded->plugin.list != NULL) {
		say_step("list");
		count = loaded->plugin.list(loaded->handle, devices, DEVICES_MOST);
	}
	if (count > DEVICES_MOST)
		count = DEVICES_MOST;
	devices[count] = (struct moek_device){ .struct_size = MOEK_DEVICE_SIZE_1_0,
		                               .features = features };
	if (uname(&names) == 0)
		snprintf(devices[count].arch, sizeof(devices[count].arch), "%.31s",
		         names.machine);
	say_step("ask");
	for (uint32_t i = 0; i <= count; i++)
		for (uint32_t j = 0; j < loaded->experts_count; j++) {
			struct moek_verdict verdict = {
				.struct_size = MOEK_VERDICT_SIZE_1_0
			};

			if (devices[i].cause_rule == 0)
				loaded->experts[j].supports_device(
					loaded->handle, &devices[i], &verdict);
		}
	for (uint32_t j = 0; j < loaded->experts_count; j++)
		ask_problems(loaded, &loaded->experts[j]);
}

static int probe(const struct moek_plugin_request *request, const char *features)
{
	struct moek_loaded *loaded = NULL;
	struct moek_cause cause;
	struct world *world = world_look();
	const char *changed;
	int32_t status;

	if (world == NULL)
		return 1;
	status = moek_plugin_load(request, &loaded, &cause);
	if (status == MOEK_OK) {
		ask(loaded, features);
		changed = world_changed(world);
		say_step("close");
		moek_plugin_unload(loaded);
		if (changed != NULL)
			status = moek_plugin_break(&cause, MOEK_RULE_SIDE_EFFECT, 0,
			                           "opening it changes %s", changed);
	}
	world_free(world);
	if (status == MOEK_PLUGIN)
		say_cause(&cause);
	return status == MOEK_NO_MEMORY;
}

int main(int argc, char **argv)
{
	const struct rlimit no_core = { 0, 0 };
	struct moek_settings settings = { .count = 0 };
	struct moek_note note = { 0 };
	struct moek_plugin_request request = { .settings = &settings,
		                               .step = say_step };
	struct moek_cause cause;
	int failed = 1;

	if (argc < 4 || !take_options(argv + 4, argv[2], &settings)) {
		fprintf(stderr, "moek-probe is run by libmoek, not by hand\n");
		return 2;
	}
	setrlimit(RLIMIT_CORE, &no_core);
	prctl(PR_SET_PDEATHSIG,
	      SIGKILL); /* nobody else would end a plugin that hangs */
	request.path = argv[1];
	request.name = argv[2];
	say(MOEK_PROBE_GREETING);
	say_step("note");
	switch (moek_note_read(request.path, &note, &cause)) {
	case MOEK_OK:
		request.note = note.text != NULL ? &note : NULL;
		failed = probe(&request, argv[3]);
		break;
	case MOEK_PLUGIN:
		say_cause(&cause);
		failed = 0;
		break;
	}
	moek_note_end(&note);
	free(settings.entries);
	if (!failed)
		say_step("exit"); /* what the plugin does there is its fault, too */
	return failed;
}
