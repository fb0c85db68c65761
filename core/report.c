/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/report.h"

#include "core/choice.h"
#include "core/device.h"
#include "core/json.h"
#include "core/problem.h"
#include "core/registry.h"
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- building the object ---- */

static void set_text(struct moek_json *object, const char *key, const char *text)
{
	moek_json_set(object, key, moek_json_new_string(text));
}

/** The same, but nothing for an empty text. */
static void set_some(struct moek_json *object, const char *key, const char *text)
{
	if (text != NULL && text[0] != '\0')
		set_text(object, key, text);
}

static void set_number(struct moek_json *object, const char *key, uint64_t number)
{
	moek_json_set(object, key,
	              moek_json_new_integer(number < INT64_MAX ? (int64_t)number
	                                                       : INT64_MAX));
}

static void set_bool(struct moek_json *object, const char *key, int boolean)
{
	moek_json_set(object, key, moek_json_new_bool(boolean));
}

/** A member of the problem's text: numbers as numbers. */
static void set_value(struct moek_json *object, const char *key, const char *value)
{
	char *end;
	double number = strtod(value, &end);

	if (value[0] == '\0' || *end != '\0')
		set_text(object, key, value);
	else if (strspn(value, "0123456789") == strlen(value) && strlen(value) < 19)
		set_number(object, key, strtoull(value, NULL, 10));
	else
		moek_json_set(object, key, moek_json_new_number(number));
}

static struct moek_json *bits_json(uint64_t bits)
{
	struct moek_json *array = moek_json_new_array();
	char number[16];

	for (uint32_t bit = 0; bit < 64; bit++) {
		const char *name = moek_bit_name(bit);

		if ((bits >> bit & 1) == 0)
			continue;
		snprintf(number, sizeof(number), "bit %u", bit);
		moek_json_append(array,
		                 moek_json_new_string(name != NULL ? name : number));
	}
	return array;
}

static int add(char *text, size_t bytes, size_t *used, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

static int add(char *text, size_t bytes, size_t *used, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(text + *used, bytes - *used, format, arguments);
	va_end(arguments);
	if (length > 0)
		*used += (size_t)length < bytes - *used ? (size_t)length
		                                        : bytes - *used - 1;
	return length;
}

static void add_scheme(char *text, size_t bytes, size_t *used,
                       const struct moek_scheme *scheme)
{
	add(text, bytes, used, "%s", moek_type_name(scheme->weight));
	if (scheme->scale == 0)
		return;
	if (scheme->group_size == 0)
		add(text, bytes, used, " channel");
	else
		add(text, bytes, used, " g%llu",
		    (unsigned long long)scheme->group_size);
}

/** One line for people. */
static void summarise(const struct moek_problem *problem, char *text, size_t bytes)
{
	size_t used = 0;

	add_scheme(text, bytes, &used, &problem->gate_up);
	if (memcmp(&problem->gate_up, &problem->down, sizeof(problem->down)) != 0) {
		add(text, bytes, &used, "/");
		add_scheme(text, bytes, &used, &problem->down);
	}
	add(text, bytes, &used, " %s, %llu experts",
	    moek_activations_name(problem->activations),
	    (unsigned long long)problem->experts);
	if (problem->experts_local != problem->experts)
		add(text, bytes, &used, " (%llu local)",
		    (unsigned long long)problem->experts_local);
	add(text, bytes, &used, ", top %llu, hidden %llu, intermediate %llu",
	    (unsigned long long)problem->top_k, (unsigned long long)problem->hidden,
	    (unsigned long long)problem->intermediate);
	if (problem->shards > 1)
		add(text, bytes, &used, " (shard %u/%u)", problem->shard,
		    problem->shards);
	add(text, bytes, &used, ", %s, %s to %s, up to %llu token%s",
	    moek_activation_name(problem->activation),
	    moek_type_name(problem->input_type), moek_type_name(problem->output_type),
	    (unsigned long long)problem->max_tokens,
	    problem->max_tokens == 1 ? "" : "s");
	for (uint32_t bit = 0; bit < 64; bit++)
		if ((problem->must_understand >> bit & 1) != 0)
			add(text, bytes, &used, "%s%s",
			    (problem->must_understand & ((UINT64_C(1) << bit) - 1)) == 0
			            ? "; "
			            : ", ",
			    moek_bit_name(bit) != NULL ? moek_bit_name(bit) : "?");
}

static struct moek_json *problem_json(const struct moek_problem *problem)
{
	struct moek_json *object = moek_json_new_object();
	char summary[512], text[1024], *rest, *member;

	summarise(problem, summary, sizeof(summary));
	moek_problem_text(problem, text, sizeof(text));
	set_text(object, "summary", summary);
	set_text(object, "text", text);
	moek_json_set(object, "must_understand", bits_json(problem->must_understand));
	for (member = strtok_r(text, ",", &rest); member != NULL;
	     member = strtok_r(NULL, ",", &rest)) {
		char *equals = strchr(member, '=');

		if (equals == NULL)
			continue;
		*equals = '\0';
		set_value(object, member, equals + 1);
	}
	return object;
}

static struct moek_json *verdict_json(const struct moek_verdict *verdict)
{
	static const char *const accepts[] = { "none", "values", "multiple", "at_most",
		                               "at_least" };
	struct moek_json *object = moek_json_new_object(), *array;
	uint32_t count = verdict->accepts == MOEK_ACCEPTS_NONE     ? 0
	                 : verdict->accepts == MOEK_ACCEPTS_VALUES ? verdict->count
	                                                           : 1;

	set_text(object, "rule", moek_rule_name(verdict->rule));
	set_number(object, "number", verdict->rule);
	set_number(object, "found", verdict->found);
	set_text(object, "accepts",
	         verdict->accepts < 5 ? accepts[verdict->accepts] : "?");
	array = moek_json_new_array();
	for (uint32_t i = 0; i < count && i < 6; i++)
		moek_json_append(array,
		                 moek_json_new_integer((int64_t)verdict->accepted[i]));
	moek_json_set(object, "accepted", array);
	if (verdict->projection != 0)
		set_text(object, "projection",
		         verdict->projection == MOEK_GATE_UP ? "gate_up" : "down");
	set_some(object, "note", verdict->note);
	return object;
}

static struct moek_json *entrant_json(const struct moek_entrant *entrant)
{
	struct moek_json *object = moek_json_new_object();
	char device[64];

	set_text(object, "name", entrant->name);
	set_text(object, "state", moek_state_name(entrant->state));
	set_some(object, "found", entrant->found);
	set_some(object, "accepted", entrant->accepted);
	set_text(object, "source", entrant->source);
	set_some(object, "path", entrant->path);
	if (entrant->rank_class != 0)
		set_text(object, "class", moek_class_name(entrant->rank_class));
	if (entrant->device != NULL) {
		snprintf(device, sizeof(device), "%s %s",
		         moek_device_kind_name(entrant->device->kind),
		         entrant->device->arch);
		set_text(object, "device", device);
	}
	if (entrant->verdict.rule != MOEK_RULE_NONE)
		moek_json_set(object, "verdict", verdict_json(&entrant->verdict));
	return object;
}

static struct moek_json *entrants_json(const struct moek_choice *choice)
{
	struct moek_json *array = moek_json_new_array();

	for (size_t i = 0; i < choice->count; i++) {
		struct moek_json *object = entrant_json(&choice->entrants[i]);

		set_number(object, "rank", i + 1);
		moek_json_append(array, object);
	}
	return array;
}

static struct moek_json *searched_json(const struct moek_registry *registry)
{
	struct moek_json *array = moek_json_new_array();

	for (size_t i = 0; i < registry->searched_count; i++) {
		const struct moek_searched *searched = &registry->searched[i];
		struct moek_json *object = moek_json_new_object();

		set_text(object, "path", searched->folder->path);
		set_text(object, "source", searched->folder->origin);
		set_number(object, "plugins", searched->plugins);
		if (searched->error != 0)
			set_text(object, "error", strerror(searched->error));
		moek_json_append(array, object);
	}
	return array;
}

static void set_request(struct moek_json *object, const struct moek_request *request)
{
	static const char *const modes[] = { "auto", "prefer", "require", "exclude" };
	char text[64 + MOEK_NAMES_MOST * 84];
	size_t used = 0;

	add(text, sizeof(text), &used, "%s", modes[request->mode]);
	for (size_t i = 0; i < request->count; i++)
		add(text, sizeof(text), &used, "%s%s", i == 0 ? " " : ",",
		    request->names[i]);
	set_text(object, "request", text);
}

static void set_order(struct moek_json *object, const struct moek_choice *choice)
{
	struct moek_json *order;

	if (choice->order_section == NULL)
		return;
	order = moek_json_new_object();
	set_text(order, "section", choice->order_section);
	set_text(order, "source", choice->order_origin);
	moek_json_set(object, "order", order);
}

static struct moek_json *numerics_json(const struct moek_choice *choice)
{
	struct moek_numerics numerics;
	struct moek_json *object;

	if (moek_choice_numerics(choice, &numerics) != MOEK_OK)
		return NULL;
	object = moek_json_new_object();
	set_text(object, "text", numerics.text);
	set_text(object, "accumulator", moek_type_name(numerics.accumulator));
	set_number(object, "terms", numerics.terms);
	set_number(object, "roundings", numerics.roundings);
	set_bool(object, "repeatable", numerics.repeatable != 0);
	return object;
}

struct moek_json *moek_report_choice(const struct moek_choice *choice)
{
	struct moek_json *object = moek_json_new_object();
	const char *winner = moek_choice_winner(choice);

	set_some(object, "label", choice->label);
	set_some(object, "winner", winner);
	set_bool(object, "degraded", choice->degraded);
	set_bool(object, "past_preferred", choice->is_past_preferred);
	set_request(object, &choice->request);
	moek_json_set(object, "problem", problem_json(&choice->problem));
	set_order(object, choice);
	set_text(object, "on_degraded",
	         moek_settings_value(choice->registry->settings, "on_degraded"));
	set_some(object, "facts", choice->registry->machine.facts_file);
	if (winner != NULL) {
		moek_json_set(object, "device",
		              moek_device_json(moek_choice_device(choice)));
		moek_json_set(object, "numerics", numerics_json(choice));
	}
	moek_json_set(object, "candidates", entrants_json(choice));
	moek_json_set(object, "searched", searched_json(choice->registry));
	return object;
}

/* ---- the registry's two ---- */

static struct moek_json *machine_json(struct moek_registry *registry)
{
	struct moek_json *object = moek_json_new_object(),
			 *array = moek_json_new_array();
	const struct moek_device **devices;
	size_t count;

	if (moek_registry_all_devices(registry, &devices, &count, NULL) != MOEK_OK) {
		moek_json_free(array);
		moek_json_free(object);
		return NULL;
	}
	moek_json_set(object, "host", moek_device_json(devices[0]));
	for (size_t i = 1; i < count; i++)
		moek_json_append(array, moek_device_json(devices[i]));
	moek_json_set(object, "devices", array);
	free(devices);
	return object;
}

static struct moek_json *shadowed_json(const struct moek_registry *registry)
{
	struct moek_json *array = moek_json_new_array();

	for (size_t i = 0; i < registry->file_count; i++) {
		const struct moek_file *file = &registry->files[i];
		struct moek_json *object;

		if (file->shadowed_by == NULL)
			continue;
		object = moek_json_new_object();
		set_text(object, "name", file->name);
		set_text(object, "path", file->path);
		set_text(object, "by", file->shadowed_by);
		moek_json_append(array, object);
	}
	return array;
}

static struct moek_json *options_json(const struct moek_plugin *plugin)
{
	struct moek_json *array = moek_json_new_array();

	for (size_t i = 0; plugin->options != NULL && plugin->options[i] != NULL; i++)
		moek_json_append(array, moek_json_new_string(plugin->options[i]));
	return array;
}

/** What a file says of itself, and what of it the table shows. */
static void set_note(struct moek_json *object, const struct moek_note *note)
{
	struct moek_json *members = moek_json_new_object();
	const char *key, *value;
	size_t at = 0;

	while ((key = moek_note_next(note, &at, &value)) != NULL)
		set_text(members, key, value);
	moek_json_set(object, "note", members);
	set_some(object, "version", moek_note_value(note, "version"));
	set_some(object, "class", moek_note_value(note, "class"));
	set_some(object, "device", moek_note_value(note, "devices"));
}

static struct moek_json *backends_json(const struct moek_choice *survey)
{
	struct moek_json *array = moek_json_new_array();

	for (size_t i = 0; i < survey->count; i++) {
		const struct moek_entrant *entrant = &survey->entrants[i];
		struct moek_json *object = entrant_json(entrant);

		if (entrant->note != NULL)
			set_note(object, entrant->note);
		if (entrant->loaded != NULL) {
			set_text(object, "version", entrant->loaded->plugin.version);
			moek_json_set(object, "understands",
			              bits_json(entrant->experts->understands));
			moek_json_set(object, "options",
			              options_json(&entrant->loaded->plugin));
		}
		moek_json_append(array, object);
	}
	return array;
}

static struct moek_json *survey_json(struct moek_registry *registry,
                                     enum moek_asked asked)
{
	struct moek_json *object;
	struct moek_choice *survey;

	if (moek_survey(registry, asked, &survey, NULL) != MOEK_OK)
		return NULL;
	object = moek_json_new_object();
	set_text(object, "version", moek_version());
	set_some(object, "facts", registry->machine.facts_file);
	set_order(object, survey);
	moek_json_set(object, "machine", machine_json(registry));
	moek_json_set(object, "backends", backends_json(survey));
	moek_json_set(object, "shadowed", shadowed_json(registry));
	moek_json_set(object, "searched", searched_json(registry));
	moek_choice_destroy(survey);
	return object;
}

struct moek_json *moek_report_registry(struct moek_registry *registry)
{
	return survey_json(registry, MOEK_ASK_DEVICES);
}

static struct moek_json *files_json(const struct moek_settings *settings)
{
	struct moek_json *array = moek_json_new_array();

	for (size_t i = 0; i < 2; i++)
		if (settings->files[i] != NULL)
			moek_json_append(array,
			                 moek_json_new_string(settings->files[i]));
	return array;
}

/** The entry in force that has taken the place of @entry, or NULL: a whole section has.
 */
static const struct moek_entry *winner_over(const struct moek_settings *settings,
                                            const struct moek_entry *entry)
{
	return moek_settings_get(settings, entry->section, entry->key);
}

static struct moek_json *entry_json(const struct moek_settings *settings,
                                    const struct moek_entry *entry)
{
	struct moek_json *object = moek_json_new_object();
	const struct moek_entry *winner = winner_over(settings, entry);

	set_text(object, "section", entry->section);
	set_text(object, "key", entry->key);
	set_text(object, "value", entry->value);
	set_text(object, "source", entry->origin);
	set_bool(object, "in_force", entry->in_force);
	if (!entry->in_force)
		set_text(object, "overridden_by",
		         winner != NULL ? winner->origin : "the whole section");
	return object;
}

/** Is it the first entry of its section? */
static int opens_section(const struct moek_settings *settings, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (strcmp(settings->entries[i].section,
		           settings->entries[index].section) == 0)
			return 0;
	return 1;
}

struct moek_json *moek_report_config(const struct moek_registry *registry)
{
	const struct moek_settings *settings = registry->settings;
	struct moek_json *object = moek_json_new_object(),
			 *array = moek_json_new_array();

	for (size_t i = 0; i < settings->count; i++) {
		const char *section = settings->entries[i].section;

		for (size_t j = i; j < settings->count && opens_section(settings, i);
		     j++)
			if (settings->entries[j].key != NULL &&
			    strcmp(settings->entries[j].section, section) == 0)
				moek_json_append(
					array,
					entry_json(settings, &settings->entries[j]));
	}
	moek_json_set(object, "files", files_json(settings));
	set_bool(object, "elevated", settings->elevated);
	moek_json_set(object, "settings", array);
	return object;
}

/* ---- the text view ---- */

struct text {
	char *data;
	size_t used, bytes;
	int failed;
};

__attribute__((format(printf, 2, 3))) static void print(struct text *text,
                                                        const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (length < 0 || text->failed)
		return;
	if (text->used + (size_t)length + 1 > text->bytes) {
		size_t bytes = 2 * (text->bytes + (size_t)length + 1);
		char *data = realloc(text->data, bytes);

		text->failed = data == NULL;
		if (text->failed)
			return;
		text->data = data;
		text->bytes = bytes;
	}
	va_start(arguments, format);
	vsnprintf(text->data + text->used, text->bytes - text->used, format, arguments);
	va_end(arguments);
	text->used += (size_t)length;
}

static char *finish(struct text *text)
{
	if (!text->failed && text->data != NULL)
		return text->data;
	free(text->data);
	return NULL;
}

/** Member @key as words: "" when absent. */
static const char *word(const struct moek_json *object, const char *key)
{
	const char *text = moek_json_string(moek_json_get(object, key), NULL);

	return text != NULL ? text : "";
}

static int is_true(const struct moek_json *object, const char *key)
{
	int boolean = 0;

	return moek_json_bool(moek_json_get(object, key), &boolean) && boolean;
}

struct column {
	const char *title, *key;
	size_t width;
};

/** Columns that line up; those without any word are left out. */
static void print_table(struct text *text, const struct moek_json *rows,
                        struct column *columns, size_t count)
{
	for (size_t c = 0; c < count; c++) {
		columns[c].width = 0;
		for (size_t i = 0; i < moek_json_count(rows); i++) {
			size_t length = strlen(
				word(moek_json_at(rows, i), columns[c].key));

			if (length > columns[c].width)
				columns[c].width = length;
		}
		if (columns[c].width != 0 &&
		    columns[c].width < strlen(columns[c].title))
			columns[c].width = strlen(columns[c].title);
	}
	for (size_t i = 0; i <= moek_json_count(rows); i++) {
		size_t pending = 0;

		print(text, " ");
		for (size_t c = 0; c < count; c++) {
			const char *cell = i == 0 ? columns[c].title
			                          : word(moek_json_at(rows, i - 1),
			                                 columns[c].key);

			if (columns[c].width == 0)
				continue;
			/* no blanks at the end of a line */
			if (cell[0] != '\0') {
				print(text, "%*s %s", (int)pending, "", cell);
				pending = columns[c].width - strlen(cell) + 1;
			} else {
				pending += columns[c].width + 2;
			}
		}
		print(text, "\n");
	}
}

static void print_searched(struct text *text, const struct moek_json *report)
{
	const struct moek_json *rows = moek_json_get(report, "searched");

	for (size_t i = 0; i < moek_json_count(rows); i++) {
		const struct moek_json *row = moek_json_at(rows, i);
		int64_t plugins = 0;

		moek_json_integer(moek_json_get(row, "plugins"), &plugins);
		if (word(row, "error")[0] != '\0')
			print(text, "  searched  %s: %s\n", word(row, "path"),
			      word(row, "error"));
		else
			print(text, "  searched  %s: %lld plugin%s\n",
			      word(row, "path"), (long long)plugins,
			      plugins == 1 ? "" : "s");
	}
}

static void print_device(struct text *text, const char *title,
                         const struct moek_json *device)
{
	int64_t bytes = 0;

	if (device == NULL)
		return;
	moek_json_integer(moek_json_get(device, "memory_bytes"), &bytes);
	print(text, "  %-9s %s %s", title, word(device, "kind"), word(device, "arch"));
	if (word(device, "name")[0] != '\0')
		print(text, ", %s", word(device, "name"));
	if (bytes != 0)
		print(text, ", %.1f GiB", (double)bytes / (1 << 30));
	if (word(device, "cause")[0] != '\0')
		print(text, ": %s", word(device, "cause"));
	print(text, "\n");
}

static void print_order(struct text *text, const struct moek_json *report)
{
	const struct moek_json *order = moek_json_get(report, "order");

	if (order != NULL)
		print(text, "  order     [%s] of %s\n", word(order, "section"),
		      word(order, "source"));
	else
		print(text, "  order     by name: no [priority] is in force\n");
}

static char *choice_text(const struct moek_json *report)
{
	struct text text = { 0 };
	const char *label = word(report, "label"), *winner = word(report, "winner");
	struct column columns[] = {
		{ "backend", "name", 0 },      { "state", "state", 0 },
		{ "device", "device", 0 },     { "found", "found", 0 },
		{ "accepted", "accepted", 0 }, { "source", "source", 0 },
	};

	print(&text, "%s%s%s%s%s\n", label, label[0] != '\0' ? ": " : "",
	      winner[0] != '\0' ? winner : "no backend",
	      is_true(report, "degraded") ? ", degraded" : "",
	      is_true(report, "past_preferred") ? ", none of those preferred" : "");
	print(&text, "  problem   %s\n",
	      word(moek_json_get(report, "problem"), "summary"));
	print(&text, "  request   %s\n", word(report, "request"));
	print_order(&text, report);
	print_device(&text, "device", moek_json_get(report, "device"));
	if (moek_json_get(report, "numerics") != NULL)
		print(&text, "  numerics  %s\n",
		      word(moek_json_get(report, "numerics"), "text"));
	if (word(report, "facts")[0] != '\0')
		print(&text, "  facts     %s, not this machine\n",
		      word(report, "facts"));
	if (winner[0] == '\0')
		print_searched(&text, report);
	print(&text, "\n");
	print_table(&text, moek_json_get(report, "candidates"), columns,
	            sizeof(columns) / sizeof(columns[0]));
	return finish(&text);
}

static char *registry_text(const struct moek_json *report)
{
	struct text text = { 0 };
	const struct moek_json *machine = moek_json_get(report, "machine");
	const struct moek_json *devices = moek_json_get(machine, "devices");
	const struct moek_json *shadowed = moek_json_get(report, "shadowed");
	struct column columns[] = {
		{ "backend", "name", 0 },      { "state", "state", 0 },
		{ "class", "class", 0 },       { "version", "version", 0 },
		{ "device", "device", 0 },     { "found", "found", 0 },
		{ "accepted", "accepted", 0 }, { "source", "source", 0 },
		{ "path", "path", 0 },
	};

	print(&text, "moek %s\n", word(report, "version"));
	print_order(&text, report);
	print_device(&text, "host", moek_json_get(machine, "host"));
	for (size_t i = 0; i < moek_json_count(devices); i++)
		print_device(&text, "device", moek_json_at(devices, i));
	if (word(report, "facts")[0] != '\0')
		print(&text, "  facts     %s, not this machine\n",
		      word(report, "facts"));
	print_searched(&text, report);
	for (size_t i = 0; i < moek_json_count(shadowed); i++)
		print(&text, "  shadowed  %s, by %s\n",
		      word(moek_json_at(shadowed, i), "path"),
		      word(moek_json_at(shadowed, i), "by"));
	print(&text, "\n");
	print_table(&text, moek_json_get(report, "backends"), columns,
	            sizeof(columns) / sizeof(columns[0]));
	return finish(&text);
}

/** Written as an INI; what was overridden is a comment. */
static char *config_text(const struct moek_json *report)
{
	struct text text = { 0 };
	const struct moek_json *files = moek_json_get(report, "files");
	const struct moek_json *lines = moek_json_get(report, "settings");
	const char *section = "";

	for (size_t i = 0; i < moek_json_count(files); i++)
		print(&text, "# read %s\n",
		      moek_json_string(moek_json_at(files, i), NULL));
	if (is_true(report, "elevated"))
		print(&text, "# elevated rights: environment and user file not read\n");
	for (size_t i = 0; i < moek_json_count(lines); i++) {
		const struct moek_json *line = moek_json_at(lines, i);

		if (strcmp(section, word(line, "section")) != 0) {
			section = word(line, "section");
			print(&text, "%s[%s]\n", text.used != 0 ? "\n" : "", section);
		}
		if (is_true(line, "in_force"))
			print(&text, "# %s\n%s = %s\n", word(line, "source"),
			      word(line, "key"), word(line, "value"));
		else
			print(&text, "# %s: %s = %s, overridden by %s\n",
			      word(line, "source"), word(line, "key"),
			      word(line, "value"), word(line, "overridden_by"));
	}
	return finish(&text);
}

static char *view_of(struct moek_json *report, uint32_t view,
                     char *(*as_text)(const struct moek_json *report))
{
	char *text = view == MOEK_JSON ? moek_json_text(report)
	             : report != NULL  ? as_text(report)
	                               : NULL;

	moek_json_free(report);
	return text;
}

char *moek_choice_report(const struct moek_choice *choice, uint32_t view)
{
	return view_of(moek_report_choice(choice), view, choice_text);
}

char *moek_registry_report(struct moek_registry *registry, uint32_t view)
{
	return view_of(moek_report_registry(registry), view, registry_text);
}

char *moek_registry_listing(struct moek_registry *registry, uint32_t view)
{
	return view_of(survey_json(registry, MOEK_ASK_NOTES), view, registry_text);
}

char *moek_registry_config(struct moek_registry *registry, uint32_t view)
{
	return view_of(moek_report_config(registry), view, config_text);
}
