/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/lock.h"

#include "core/choice.h"
#include "core/problem.h"
#include "core/registry.h"
#include "core/sha256.h"
#include "core/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LINE "moek lock 1"
#define MOST_BYTES (1u << 20) /* of a lock */

struct moek_lock {
	char *path;
	char *text;   /* what the lines lie in */
	char **lines; /* without the first, comments and empty ones */
	size_t count;
};

/* ---- writing ---- */

/** What comes before the colon of a choice: what was asked. max_tokens is left out: a
 *  program may plan for other batches than `moek lock` did. */
static void write_question(const struct moek_choice *choice, FILE *to)
{
	static const char *const modes[] = { "auto", "prefer", "require", "exclude" };
	const struct moek_request *request = &choice->request;
	char problem[2048], *rest;

	moek_problem_text(&choice->problem, problem, sizeof(problem));
	rest = strstr(problem, "max_tokens=");
	if (rest != NULL) {
		size_t length = strcspn(rest, ",") + 1;

		memmove(rest, rest + length, strlen(rest + length) + 1);
	}
	fprintf(to, "choice %s %s", problem, modes[request->mode]);
	for (size_t i = 0; i < request->count; i++)
		fprintf(to, "%s%s", i == 0 ? " " : ",", request->names[i]);
	fputs(": ", to);
}

static void write_device(const struct moek_device *device, FILE *to)
{
	fprintf(to, "%s %s", moek_device_kind_name(device->kind), device->arch);
}

/** Everybody's reason, a line each, begun with blanks: they explain a choice that
 * differs, and are no difference by themselves. */
static void write_reasons(const struct moek_choice *choice, FILE *to)
{
	for (size_t i = 0; i < choice->count; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];
		char line[960];

		snprintf(line, sizeof(line), "  %s %s%s%s%s%s", entrant->name,
		         moek_state_name(entrant->state),
		         entrant->found[0] != '\0' ? ": " : "", entrant->found,
		         entrant->accepted[0] != '\0' ? ", accepted: " : "",
		         entrant->accepted);
		for (char *c = line; *c != '\0'; c++)
			if ((unsigned char)*c < 0x20)
				*c = ' '; /* a loader's words may have several lines */
		fprintf(to, "%s\n", line);
	}
}

static void write_choice(const struct moek_choice *choice, FILE *to)
{
	write_question(choice, to);
	if (choice->winner < choice->count) {
		const struct moek_entrant *winner = &choice->entrants[choice->winner];

		fprintf(to, "%s on ", winner->name);
		write_device(winner->device, to);
	} else {
		fputs("nobody", to);
	}
	fputc('\n', to);
	write_reasons(choice, to);
}

static void write_plugins(const struct moek_registry *registry, FILE *to)
{
	char hash[65];

	for (size_t i = 0; i < registry->file_count; i++) {
		const struct moek_file *file = &registry->files[i];
		const char *version = moek_note_value(&file->note, "version");

		if (file->shadowed_by == NULL)
			fprintf(to, "plugin %s %s sha256 %s\n", file->name,
			        version != NULL ? version : "of no version",
			        sha256_file(file->path, hash) ? hash : "not readable");
	}
}

/** Does a setting decide who runs, or what it computes? */
static int decides(const struct moek_entry *entry)
{
	return entry->in_force && entry->key != NULL &&
	       (strncmp(entry->section, "priority", 8) == 0 ||
	        strncmp(entry->section, "plugin ", 7) == 0 ||
	        strcmp(entry->key, "golden") == 0 ||
	        strcmp(entry->key, "on_degraded") == 0 ||
	        strcmp(entry->key, "unlisted") == 0);
}

/** Lines of [priority] are numbered: their order counts. */
static void write_settings(const struct moek_settings *settings, FILE *to)
{
	const char *section = "";
	unsigned rank = 0;

	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];

		if (!decides(entry))
			continue;
		rank = strcmp(entry->section, section) == 0 ? rank + 1 : 1;
		section = entry->section;
		fprintf(to, "setting [%s] ", section);
		if (strncmp(section, "priority", 8) == 0)
			fprintf(to, "%u. ", rank);
		fprintf(to, "%s = %s\n", entry->key, entry->value);
	}
}

static void write_world(const struct moek_registry *registry, FILE *to)
{
	const struct moek_machine *machine = &registry->machine;

	fprintf(to, "moek %s\n", moek_version());
	fprintf(to, "host %s, %s: %s\n", machine->host.arch, machine->host.name,
	        machine->features != NULL ? machine->features : "");
	for (size_t i = 0; i < machine->device_count; i++) {
		fputs("device ", to);
		write_device(&machine->devices[i], to);
		fprintf(to, " %s\n", machine->devices[i].name);
	}
	write_plugins(registry, to);
	write_settings(registry->settings, to);
}

/** Malloc'ed, or NULL. Without @registry choices alone. */
static char *render(const char *heading, const struct moek_registry *registry,
                    const struct moek_choice *const *choices, uint64_t count)
{
	char *text = NULL;
	size_t bytes;
	FILE *to = open_memstream(&text, &bytes);

	if (to == NULL)
		return NULL;
	fputs(heading, to);
	if (registry != NULL)
		write_world(registry, to);
	for (uint64_t i = 0; i < count; i++)
		write_choice(choices[i], to);
	if (fclose(to) == 0)
		return text;
	free(text);
	return NULL;
}

char *moek_registry_lock(struct moek_registry *registry,
                         const struct moek_choice *const *choices, uint64_t count)
{
	return render(FIRST_LINE
	              "\n"
	              "# What choices follow from, and choices. A line that is "
	              "not so any more is a difference.\n",
	              registry, choices, count);
}

/* ---- reading ---- */

void moek_lock_close(struct moek_lock *lock)
{
	if (lock == NULL)
		return;
	free(lock->path);
	free(lock->text);
	free(lock->lines);
	free(lock);
}

static int32_t read_text(struct moek_lock *lock, struct moek_error *error_out)
{
	FILE *file = fopen(lock->path, "re");
	size_t bytes;
	int failed;

	if (file == NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s", lock->path,
		                 strerror(errno));
	bytes = fread(lock->text, 1, MOST_BYTES, file);
	failed = ferror(file) || bytes == MOST_BYTES;
	fclose(file);
	if (failed)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: cannot be read, or has over %u bytes: no lock",
		                 lock->path, MOST_BYTES);
	lock->text[bytes] = '\0';
	if (strlen(lock->text) != bytes)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: byte %zu is 0: no lock", lock->path,
		                 strlen(lock->text));
	return MOEK_OK;
}

static int is_choice(const char *line)
{
	return strncmp(line, "choice ", 7) == 0;
}

static int is_reason(const char *line)
{
	return line[0] == ' ';
}

static int32_t split(struct moek_lock *lock, struct moek_error *error_out)
{
	static const char *const kinds[] = { "moek ",   "host ",    "device ",
		                             "plugin ", "setting ", "choice ",
		                             "  " };
	unsigned number = 1;
	char *rest, *line = strtok_r(lock->text, "\n", &rest);

	if (line == NULL || strcmp(line, FIRST_LINE) != 0)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s:1: '%.40s', expected '" FIRST_LINE
		                 "', as moek lock writes it",
		                 lock->path, line != NULL ? line : "");
	while ((line = strtok_r(NULL, "\n", &rest)) != NULL) {
		size_t kind = 0;

		number++;
		if (line[0] == '#')
			continue;
		while (kind < 7 && strncmp(line, kinds[kind], strlen(kinds[kind])) != 0)
			kind++;
		if (kind == 7)
			return moek_fail(error_out, MOEK_BAD_FILE, 0,
			                 "%s:%u: '%.40s' is no line of a lock",
			                 lock->path, number, line);
		lock->lines[lock->count++] = line;
	}
	return MOEK_OK;
}

int32_t moek_lock_read(const char *path, struct moek_lock **lock_out,
                       struct moek_error *error_out)
{
	struct moek_lock *lock = calloc(1, sizeof(*lock));
	int32_t status;

	if (lock == NULL)
		return moek_fail_memory(error_out, "lock");
	lock->path = strdup(path);
	lock->text = malloc(MOST_BYTES + 1);
	lock->lines = malloc((MOST_BYTES / 2 + 1) * sizeof(*lock->lines));
	status = lock->path != NULL && lock->text != NULL && lock->lines != NULL
	                 ? read_text(lock, error_out)
	                 : moek_fail_memory(error_out, "lock");
	if (status == MOEK_OK)
		status = split(lock, error_out);
	if (status == MOEK_OK)
		*lock_out = lock;
	else
		moek_lock_close(lock);
	return status;
}

/* ---- comparing ---- */

/** Among the lines of @text, each ended by a newline? */
static int text_has(const char *text, const char *line)
{
	size_t length = strlen(line);

	for (; *text != '\0'; text += strcspn(text, "\n") + 1)
		if (strncmp(text, line, length) == 0 && text[length] == '\n')
			return 1;
	return 0;
}

static int lock_has(const struct moek_lock *lock, const char *line, size_t length)
{
	for (size_t i = 0; i < lock->count; i++)
		if (strncmp(lock->lines[i], line, length) == 0 &&
		    lock->lines[i][length] == '\0')
			return 1;
	return 0;
}

static int32_t refuse(const struct moek_lock *lock, size_t differences,
                      struct moek_error *error_out)
{
	return moek_fail(
		error_out, MOEK_REFUSED, 0,
		"%s: %zu line%s differ%s: this is not what was locked; moek lock "
		"makes a new one",
		lock->path, differences, differences == 1 ? "" : "s",
		differences == 1 ? "s" : "");
}

int32_t moek_lock_hold(const struct moek_lock *lock, struct moek_registry *registry,
                       struct moek_error *error_out)
{
	struct moek_log *log = moek_registry_log(registry);
	char *text = render("", registry, NULL, 0);
	size_t differences = 0;

	if (text == NULL)
		return moek_fail_memory(error_out, "lock");
	for (size_t i = 0; i < lock->count; i++)
		if (!is_choice(lock->lines[i]) && !is_reason(lock->lines[i]) &&
		    !text_has(text, lock->lines[i])) {
			moek_log_write(log, MOEK_LOG_ERROR, "locked: %s",
			               lock->lines[i]);
			differences++;
		}
	for (const char *line = text; *line != '\0';) {
		size_t length = strcspn(line, "\n");

		if (!lock_has(lock, line, length)) {
			moek_log_write(log, MOEK_LOG_ERROR, "found:  %.*s", (int)length,
			               line);
			differences++;
		}
		line += length + 1;
	}
	free(text);
	return differences == 0 ? MOEK_OK : refuse(lock, differences, error_out);
}

/** The reasons below line @choice of the lock, and those of @text, as far as they are
 * on one side only. */
static void log_reasons(const struct moek_lock *lock, size_t choice, const char *text,
                        struct moek_log *log)
{
	size_t end = choice + 1;

	for (; end < lock->count && is_reason(lock->lines[end]); end++)
		if (!text_has(text, lock->lines[end]))
			moek_log_write(log, MOEK_LOG_ERROR, "locked: %s",
			               lock->lines[end]);
	while (*text != '\0') {
		const struct moek_lock below = { .lines = lock->lines + choice + 1,
			                         .count = end - choice - 1 };
		size_t length = strcspn(text, "\n");

		if (!lock_has(&below, text, length))
			moek_log_write(log, MOEK_LOG_ERROR, "found:  %.*s", (int)length,
			               text);
		text += length + 1;
	}
}

int32_t moek_lock_hold_choice(const struct moek_lock *lock,
                              const struct moek_choice *choice,
                              struct moek_error *error_out)
{
	struct moek_log *log = moek_registry_log(choice->registry);
	char *line = render("", NULL, &choice, 1), *reasons;
	int32_t status = MOEK_OK;
	size_t question;

	if (line == NULL)
		return moek_fail_memory(error_out, "lock");
	reasons = strchr(line, '\n');
	*reasons++ = '\0';
	question = (size_t)(strstr(line, ": ") - line) + 2;
	for (size_t i = 0; i < lock->count && status == MOEK_OK; i++) {
		if (strncmp(lock->lines[i], line, question) != 0 ||
		    strcmp(lock->lines[i], line) == 0)
			continue;
		moek_log_write(log, MOEK_LOG_ERROR, "locked: %s", lock->lines[i]);
		moek_log_write(log, MOEK_LOG_ERROR, "found:  %s", line);
		log_reasons(lock, i, reasons, log);
		status = refuse(lock, 1, error_out);
	}
	free(line);
	return status;
}
