/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/note.h"

#include "core/status.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWNER "moek"
#define SYMBOL "moek_plugin_v1"
#define PARTS_MOST 256u          /* segments of a file */
#define NOTES_MOST 65536u        /* bytes of a segment of notes that is read */
#define SYMBOLS_MOST (16u << 20) /* bytes of a table of symbols, or of their names */

/* Put there by the linker: the header of the file that this code is in. Files for other
 * machines differ from it, so that no machine needs to be named here. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

/* ---- bytes of a file, never outside of it ---- */

struct file {
	int fd;
	uint64_t bytes;
	ElfW(Ehdr) header;
	struct moek_cause *cause_out;
};

static int is_inside(const struct file *file, uint64_t at, uint64_t bytes)
{
	return at <= file->bytes && bytes <= file->bytes - at;
}

/** 1: all of it was read. Others may write to the file meanwhile. */
static int read_at(const struct file *file, uint64_t at, void *to, size_t bytes)
{
	size_t done = 0;

	if (!is_inside(file, at, bytes))
		return 0;
	while (done < bytes) {
		ssize_t got = pread(file->fd, (char *)to + done, bytes - done,
		                    (off_t)(at + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		done += (size_t)got;
	}
	return 1;
}

static int32_t damaged(const struct file *file, const char *what)
{
	return moek_plugin_break(file->cause_out, MOEK_RULE_DAMAGED, 0, "%s", what);
}

/** @bytes of the file in memory of its own; a NUL follows them. */
static int32_t read_part(const struct file *file, uint64_t at, uint64_t bytes,
                         const char *what, char **part_out)
{
	char *part;

	if (!is_inside(file, at, bytes))
		return damaged(file, what);
	part = malloc((size_t)bytes + 1);
	if (part == NULL)
		return MOEK_NO_MEMORY;
	if (!read_at(file, at, part, (size_t)bytes)) {
		free(part);
		return damaged(file, what);
	}
	part[bytes] = '\0';
	*part_out = part;
	return MOEK_OK;
}

static int32_t read_header(struct file *file)
{
	ElfW(Ehdr) *header = &file->header;

	if (!read_at(file, 0, header, sizeof(*header)) ||
	    memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
		return moek_plugin_break(file->cause_out, MOEK_RULE_NOT_PLUGIN, 0,
		                         "not a plugin: no shared library");
	if (header->e_ident[EI_CLASS] != __ehdr_start.e_ident[EI_CLASS] ||
	    header->e_ident[EI_DATA] != __ehdr_start.e_ident[EI_DATA] ||
	    header->e_machine != __ehdr_start.e_machine)
		return moek_plugin_break(
			file->cause_out, MOEK_RULE_MACHINE, header->e_machine,
			"built for another machine: ELF class %u, data %u, machine %u; "
			"expected %u, %u, %u",
			header->e_ident[EI_CLASS], header->e_ident[EI_DATA],
			header->e_machine, __ehdr_start.e_ident[EI_CLASS],
			__ehdr_start.e_ident[EI_DATA], __ehdr_start.e_machine);
	if (header->e_type != ET_DYN)
		return moek_plugin_break(file->cause_out, MOEK_RULE_NOT_PLUGIN, 0,
		                         "not a plugin: no shared library, ELF type %u",
		                         header->e_type);
	if (header->e_phentsize != sizeof(ElfW(Phdr)) || header->e_phnum == 0 ||
	    header->e_phnum > PARTS_MOST)
		return damaged(file, "its table of segments is none");
	return MOEK_OK;
}

/* ---- notes in segments ---- */

static uint64_t round_up(uint64_t bytes, uint64_t align)
{
	return (bytes + align - 1) / align * align;
}

/** The text of our note among @bytes of notes; NULL: not there. -1 is a damaged list.
 */
static int find_in_notes(const char *notes, uint64_t bytes, uint64_t align,
                         const char **text_out, size_t *text_bytes_out)
{
	uint64_t at = 0;

	while (bytes - at >= sizeof(ElfW(Nhdr))) {
		ElfW(Nhdr) note;
		uint64_t owner_at = at + sizeof(note), text_at, end;

		memcpy(&note, notes + at, sizeof(note));
		text_at = owner_at + round_up(note.n_namesz, align == 8 ? 4 : align);
		if (align == 8)
			text_at = round_up(text_at, 8);
		end = text_at + note.n_descsz;
		if (end > bytes)
			return -1;
		if (note.n_namesz == sizeof(OWNER) && note.n_type == MOEK_NOTE_TYPE &&
		    memcmp(notes + owner_at, OWNER, sizeof(OWNER)) == 0) {
			if (*text_out != NULL)
				return -1;
			*text_out = notes + text_at;
			*text_bytes_out = note.n_descsz;
		}
		at = round_up(end, align) < bytes ? round_up(end, align) : bytes;
	}
	return 0;
}

static int32_t read_notes(const struct file *file, const ElfW(Phdr) * segment,
                          struct moek_note *note_out)
{
	uint64_t align = segment->p_align == 8 ? 8 : 4;
	const char *text = NULL;
	size_t text_bytes = 0;
	char *notes;
	int32_t status;

	if (segment->p_filesz > NOTES_MOST)
		return damaged(file, "a segment of notes is too large");
	status = read_part(file, segment->p_offset, segment->p_filesz,
	                   "its notes lie outside of the file", &notes);
	if (status != MOEK_OK)
		return status;
	if (find_in_notes(notes, segment->p_filesz, align, &text, &text_bytes) != 0)
		status = damaged(file, "its notes do not fit together");
	else if (text != NULL && note_out->text != NULL)
		status = moek_plugin_break(file->cause_out, MOEK_RULE_NOTE, 0,
		                           "it has two notes");
	else if (text != NULL)
		status = moek_note_parse(text, text_bytes, note_out, file->cause_out);
	free(notes);
	return status;
}

static int32_t read_segments(const struct file *file, struct moek_note *note_out)
{
	const ElfW(Ehdr) *header = &file->header;
	ElfW(Phdr) segments[PARTS_MOST];
	int32_t status = MOEK_OK;

	if (!read_at(file, header->e_phoff, segments,
	             header->e_phnum * sizeof(segments[0])))
		return damaged(file, "the file is cut off in its table of segments");
	for (unsigned i = 0; i < header->e_phnum && status == MOEK_OK; i++) {
		const ElfW(Phdr) *segment = &segments[i];

		/* mapping what is not there would end the process at the first touch */
		if (segment->p_type == PT_LOAD &&
		    (!is_inside(file, segment->p_offset, segment->p_filesz) ||
		     segment->p_filesz > segment->p_memsz))
			status = damaged(file, "the file is cut off in a segment");
		else if (segment->p_type == PT_NOTE)
			status = read_notes(file, segment, note_out);
	}
	return status;
}

/* ---- is it a plugin, when there is no note? ---- */

static int defines_symbol(const ElfW(Sym) * symbols, uint64_t count, const char *names,
                          uint64_t names_bytes)
{
	for (uint64_t i = 0; i < count; i++)
		if (symbols[i].st_shndx != SHN_UNDEF &&
		    symbols[i].st_name < names_bytes &&
		    strcmp(names + symbols[i].st_name, SYMBOL) == 0)
			return 1;
	return 0;
}

static int32_t read_symbols(const struct file *file, const ElfW(Shdr) * table,
                            const ElfW(Shdr) * strings)
{
	char *symbols = NULL, *names = NULL;
	int32_t status;

	if (table->sh_entsize != sizeof(ElfW(Sym)) || table->sh_size > SYMBOLS_MOST ||
	    strings->sh_size > SYMBOLS_MOST)
		return damaged(file, "its table of symbols is none");
	status = read_part(file, table->sh_offset, table->sh_size,
	                   "the file is cut off in its symbols", &symbols);
	if (status == MOEK_OK)
		status = read_part(file, strings->sh_offset, strings->sh_size,
		                   "the file is cut off in its symbols", &names);
	if (status == MOEK_OK && !defines_symbol((const ElfW(Sym) *)(void *)symbols,
	                                         table->sh_size / sizeof(ElfW(Sym)),
	                                         names, strings->sh_size))
		status = moek_plugin_break(file->cause_out, MOEK_RULE_NOT_PLUGIN, 0,
		                           "not a plugin: a library without note "
		                           "and " SYMBOL);
	free(symbols);
	free(names);
	return status;
}

/** A file whose sections were cut off may still be one: it is opened to be known. */
static int32_t look_for_symbol(const struct file *file)
{
	const ElfW(Ehdr) *header = &file->header;
	ElfW(Shdr) section, strings;

	if (header->e_shentsize != sizeof(section))
		return MOEK_OK;
	for (unsigned i = 0; i < header->e_shnum; i++) {
		if (!read_at(file, header->e_shoff + i * sizeof(section), &section,
		             sizeof(section)))
			return damaged(file, "the file is cut off in its sections");
		if (section.sh_type != SHT_DYNSYM)
			continue;
		if (section.sh_link >= header->e_shnum ||
		    !read_at(file, header->e_shoff + section.sh_link * sizeof(strings),
		             &strings, sizeof(strings)))
			return damaged(file, "its symbols have no names");
		return read_symbols(file, &section, &strings);
	}
	return MOEK_OK;
}

static int32_t read_file(struct file *file, struct moek_note *note_out)
{
	int32_t status = read_header(file);

	if (status == MOEK_OK)
		status = read_segments(file, note_out);
	if (status == MOEK_OK && note_out->text == NULL)
		status = look_for_symbol(file);
	return status;
}

int32_t moek_note_read(const char *path, struct moek_note *note_out,
                       struct moek_cause *cause_out)
{
	struct file file = { .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK),
		             .cause_out = cause_out };
	struct moek_note note = { 0 };
	struct stat facts;
	int32_t status;

	if (file.fd < 0 || fstat(file.fd, &facts) != 0) {
		status = moek_plugin_break(cause_out, MOEK_RULE_NOT_REGULAR, 0, "%s",
		                           strerror(errno));
		goto close_file;
	}
	file.bytes = facts.st_size > 0 ? (uint64_t)facts.st_size : 0;
	status = read_file(&file, &note);
close_file:
	if (file.fd >= 0)
		close(file.fd);
	if (status != MOEK_OK) {
		moek_note_end(&note);
		return status;
	}
	*note_out = note;
	return MOEK_OK;
}

/* ---- the text ---- */

#define KEY_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789-"

__attribute__((format(printf, 2, 3))) static int32_t
malformed(struct moek_cause *cause_out, const char *format, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	return moek_plugin_break(cause_out, MOEK_RULE_NOTE, 0, "its note: %s", text);
}

/** Take the line at @line apart, which ends at @end: NULs stand after key and value. */
static int32_t take_line(const struct moek_note *before, char *line, char *end,
                         struct moek_cause *cause_out)
{
	size_t key = strspn(line, KEY_LETTERS);

	if (key == 0 || line[key] != '=')
		return malformed(cause_out, "'%.*s' is not key=value",
		                 (int)(end - line), line);
	for (const char *c = line; c < end; c++)
		if (*c < 0x20 || *c > 0x7e)
			return malformed(cause_out, "byte %u in the value of %.*s",
			                 (unsigned)(unsigned char)*c, (int)key, line);
	line[key] = '\0';
	*end = '\0';
	if (moek_note_value(before, line) != NULL)
		return malformed(cause_out, "%s is there twice", line);
	return MOEK_OK;
}

int32_t moek_note_parse(const char *text, size_t bytes, struct moek_note *note_out,
                        struct moek_cause *cause_out)
{
	struct moek_note note = { 0 };
	int32_t status = MOEK_OK;

	if (bytes == 0 || bytes > MOEK_NOTE_MOST)
		return malformed(cause_out, "%zu bytes; expected 1 to %u", bytes,
		                 MOEK_NOTE_MOST);
	if (text[bytes - 1] != '\n')
		return malformed(cause_out, "its last line has no end");
	note.text = malloc(bytes + 1);
	if (note.text == NULL)
		return MOEK_NO_MEMORY;
	memcpy(note.text, text, bytes);
	note.text[bytes] = '\0';
	while (note.bytes < bytes && status == MOEK_OK) {
		char *line = note.text + note.bytes;
		char *end = memchr(line, '\n', bytes - note.bytes);

		status = take_line(&note, line, end, cause_out);
		note.bytes = (size_t)(end - note.text) + 1;
	}
	if (status == MOEK_OK && moek_note_value(&note, "abi") == NULL)
		status = malformed(cause_out, "it has no abi");
	if (status == MOEK_OK && moek_note_value(&note, "id") == NULL)
		status = malformed(cause_out, "it has no id");
	if (status != MOEK_OK) {
		moek_note_end(&note);
		return status;
	}
	*note_out = note;
	return MOEK_OK;
}

void moek_note_end(struct moek_note *note)
{
	free(note->text);
	note->text = NULL;
	note->bytes = 0;
}

const char *moek_note_next(const struct moek_note *note, size_t *at,
                           const char **value_out)
{
	const char *key = note->text + *at;

	if (*at >= note->bytes)
		return NULL;
	*value_out = key + strlen(key) + 1;
	*at = (size_t)(*value_out - note->text) + strlen(*value_out) + 1;
	return key;
}

const char *moek_note_value(const struct moek_note *note, const char *key)
{
	const char *found, *value;
	size_t at = 0;

	while ((found = moek_note_next(note, &at, &value)) != NULL)
		if (strcmp(found, key) == 0)
			return value;
	return NULL;
}

/* ---- what it means ---- */

/** A number of up to four digits that @text begins with; NULL: none. */
static const char *take_number(const char *text, uint32_t *number_out)
{
	size_t digits = strspn(text, "0123456789");

	if (digits == 0 || digits > 4)
		return NULL;
	*number_out = (uint32_t)strtoul(text, NULL, 10);
	return text + digits;
}

/** "1.0", or NULL for "none of this". */
static int take_version(const char *text, uint32_t *major_out, uint32_t *minor_out)
{
	text = take_number(text, major_out);
	if (text == NULL || *text != '.')
		return 0;
	text = take_number(text + 1, minor_out);
	return text != NULL && *text == '\0';
}

static int32_t judge_abi(const struct moek_note *note, struct moek_cause *cause_out)
{
	const char *abi = moek_note_value(note, "abi");
	const char *least = moek_note_value(note, "abi-min");
	uint32_t major, minor;

	if (!take_version(abi, &major, &minor))
		return malformed(cause_out, "abi '%.40s' is not MAJOR.MINOR", abi);
	if (major != MOEK_ABI_MAJOR) {
		moek_plugin_break(cause_out, MOEK_RULE_ABI_MAJOR, major,
		                  "%s: built for ABI %u.%u, this is %d.%d",
		                  major < MOEK_ABI_MAJOR ? "stale" : "too new", major,
		                  minor, MOEK_ABI_MAJOR, MOEK_ABI_MINOR);
		cause_out->verdict.accepts = MOEK_ACCEPTS_VALUES;
		cause_out->verdict.count = 1;
		cause_out->verdict.accepted[0] = MOEK_ABI_MAJOR;
		return MOEK_PLUGIN;
	}
	if (least == NULL)
		return MOEK_OK;
	if (!take_version(least, &major, &minor) || major != MOEK_ABI_MAJOR)
		return malformed(cause_out, "abi-min '%.40s' is not %d.MINOR", least,
		                 MOEK_ABI_MAJOR);
	if (minor <= MOEK_ABI_MINOR)
		return MOEK_OK;
	moek_plugin_break(cause_out, MOEK_RULE_ABI_MINOR, minor,
	                  "needs a host of ABI %u.%u, this is %d.%d", major, minor,
	                  MOEK_ABI_MAJOR, MOEK_ABI_MINOR);
	cause_out->verdict.accepts = MOEK_ACCEPTS_AT_MOST;
	cause_out->verdict.accepted[0] = MOEK_ABI_MINOR;
	return MOEK_PLUGIN;
}

/** Is the word of @bytes at @word among the words of @list, apart by blanks? */
static int has_word(const char *list, const char *word, size_t bytes)
{
	while (*list != '\0') {
		size_t length = strcspn(list, " ");

		if (length == bytes && memcmp(list, word, bytes) == 0)
			return 1;
		list += length + strspn(list + length, " ");
	}
	return 0;
}

static int32_t judge_isa(const struct moek_note *note, const char *features,
                         struct moek_cause *cause_out)
{
	const char *word = moek_note_value(note, "isa");

	while (word != NULL && *word != '\0') {
		size_t bytes = strcspn(word, ",");

		if (!has_word(features, word, bytes))
			return moek_plugin_break(
				cause_out, MOEK_RULE_ISA, 0,
				"needs %.*s, which the operating system does not list "
				"for this CPU",
				(int)bytes, word);
		word += bytes + (word[bytes] == ',');
	}
	return MOEK_OK;
}

int32_t moek_note_judge(const struct moek_note *note, const char *name,
                        const char *features, struct moek_cause *cause_out)
{
	const char *id = moek_note_value(note, "id");
	int32_t status = judge_abi(note, cause_out);

	if (status == MOEK_OK && strcmp(id, name) != 0)
		status = moek_plugin_break(cause_out, MOEK_RULE_ABI_NAME, 0,
		                           "its name is '%.40s', the file's '%.40s'",
		                           id, name);
	if (status == MOEK_OK)
		status = judge_isa(note, features, cause_out);
	return status;
}

static int32_t compare_word(const struct moek_note *note, const char *key,
                            const char *descriptor, struct moek_cause *cause_out)
{
	const char *value = moek_note_value(note, key);

	if (value == NULL || strcmp(value, descriptor) == 0)
		return MOEK_OK;
	return moek_plugin_break(cause_out, MOEK_RULE_NOTE_DISAGREES, 0,
	                         "%s is '%.80s' in the note, '%.80s' in the descriptor",
	                         key, value, descriptor);
}

int32_t moek_note_compare(const struct moek_note *note,
                          const struct moek_loaded *loaded,
                          struct moek_cause *cause_out)
{
	const struct moek_plugin *plugin = &loaded->plugin;
	char abi[16];
	int32_t status;

	snprintf(abi, sizeof(abi), "%u.%u", plugin->abi_major, plugin->abi_minor);
	status = compare_word(note, "abi", abi, cause_out);
	if (status == MOEK_OK)
		status = compare_word(note, "id", plugin->name, cause_out);
	if (status == MOEK_OK)
		status = compare_word(note, "version", plugin->version, cause_out);
	if (status == MOEK_OK)
		status = compare_word(note, "class",
		                      moek_class_name(loaded->experts[0].rank_class),
		                      cause_out);
	return status;
}
