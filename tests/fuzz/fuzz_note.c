/* SPDX-License-Identifier: MIT */
/* A plugin file, and the text of a note: what is read can be walked, judged, and read
 * again; what is refused has a rule and words. */
#include "config.h"

#include "core/note.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int is_true)
{
	if (!is_true)
		abort();
}

static void refused(int32_t status, const struct moek_cause *cause)
{
	demand(status == MOEK_PLUGIN);
	demand(cause->verdict.rule != MOEK_RULE_NONE && cause->text[0] != '\0');
}

/** Write the lines again: they must read as the same. */
static void reads_back(const struct moek_note *note)
{
	struct moek_note again = { 0 };
	struct moek_cause cause;
	const char *key, *value;
	char text[MOEK_NOTE_MOST + 1];
	size_t at = 0, used = 0;

	while ((key = moek_note_next(note, &at, &value)) != NULL) {
		demand(moek_note_value(note, key) == value);
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s=%s\n",
		                         key, value);
	}
	demand(used == note->bytes);
	demand(moek_note_parse(text, used, &again, &cause) == MOEK_OK);
	demand(again.bytes == note->bytes &&
	       memcmp(again.text, note->text, note->bytes) == 0);
	moek_note_end(&again);
}

static void take(int32_t status, struct moek_note *note, struct moek_cause *cause)
{
	if (status != MOEK_OK) {
		refused(status, cause);
		demand(note->text == NULL);
		return;
	}
	if (note->text == NULL)
		return;
	reads_back(note);
	status = moek_note_judge(note, "plain", "one two", cause);
	if (status != MOEK_OK)
		refused(status, cause);
	moek_note_end(note);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int file = -1;
	struct moek_note note = { 0 };
	struct moek_cause cause;
	char path[64];

	if (file < 0)
		file = memfd_create("plain.so", MFD_CLOEXEC);
	demand(file >= 0);
	take(moek_note_parse((const char *)data, size, &note, &cause), &note, &cause);
	demand(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	take(moek_note_read(path, &note, &cause), &note, &cause);
	return 0;
}
