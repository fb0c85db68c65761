/* SPDX-License-Identifier: MIT */
/* What a plugin file says of itself, read without running any of it. */
#ifndef MOEK_CORE_NOTE_H
#define MOEK_CORE_NOTE_H

#include <stddef.h>

#include "core/plugin.h"

/** A note: "key" NUL "value" NUL, and so on. Empty: the file has none. */
struct moek_note {
	char *text; /* [bytes], malloc'ed, or NULL */
	size_t bytes;
};

/**
 * Read the note of the file @path. MOEK_OK, also for a plugin without one; MOEK_PLUGIN
 * and *cause_out when the file is no plugin (MOEK_RULE_NOT_PLUGIN), is damaged, or is
 * for another machine; MOEK_NO_MEMORY.
 */
int32_t moek_note_read(const char *path, struct moek_note *note_out,
                       struct moek_cause *cause_out);
/** The same for the text of a note, which it takes apart. */
int32_t moek_note_parse(const char *text, size_t bytes, struct moek_note *note_out,
                        struct moek_cause *cause_out);
void moek_note_end(struct moek_note *note);

/** The value of @key, or NULL. */
const char *moek_note_value(const struct moek_note *note, const char *key);
/** The key at byte *@at, which goes on to the next; NULL: no more. */
const char *moek_note_next(const struct moek_note *note, size_t *at,
                           const char **value_out);

/**
 * May a file with this note be opened here? @name: of the file; @features: the
 * operating system's words for the CPU. MOEK_OK or MOEK_PLUGIN and *cause_out.
 */
int32_t moek_note_judge(const struct moek_note *note, const char *name,
                        const char *features, struct moek_cause *cause_out);
/** Does the descriptor say the same? An absent key says nothing. */
int32_t moek_note_compare(const struct moek_note *note,
                          const struct moek_loaded *loaded,
                          struct moek_cause *cause_out);

#endif
