/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/priority.h"

#include "core/nearest.h"
#include "core/settings.h"
#include "core/status.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the scan: whatever inih would misread is refused before it sees the file ---- */

struct scan {
	const char *name; /* of the file */
	struct moek_ini *ini;
	const char *section; /* open one, or NULL */
	uint32_t number;     /* of the line */
	struct moek_error *error_out;
};

#define REFUSE(scan, ...)                                                              \
	fail_line((scan)->error_out, (scan)->name, (scan)->number, __VA_ARGS__)

__attribute__((format(printf, 4, 5))) static int32_t
fail_line(struct moek_error *error_out, const char *name, uint32_t number,
          const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s:%u: %s", name, number,
	                 text);
}

static int is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static int is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

/** Length of the leading part of @text that is made of word characters. */
static size_t word_length(const char *text)
{
	size_t length = 0;

	while (is_word(text[length]))
		length++;
	return length;
}

static int32_t scan_bytes(struct scan *scan, const char *line, size_t length)
{
	if (length > MOEK_INI_LINE_MOST)
		return REFUSE(scan, "the line has %zu bytes, at most %d are read",
		              length, MOEK_INI_LINE_MOST);
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)line[i];

		if (c == '\r')
			return REFUSE(scan,
			              "a carriage return; save the file with line "
			              "ends of one byte");
		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return REFUSE(scan, "control character 0x%02x", c);
	}
	return MOEK_OK;
}

static int32_t add_line(struct scan *scan, const char *key, const char *value)
{
	struct moek_ini *ini = scan->ini;

	for (size_t i = 0; i < ini->count; i++) {
		const struct moek_ini_line *line = &ini->lines[i];

		if (strcmp(line->section, scan->section) != 0)
			continue;
		if (key == NULL)
			return REFUSE(scan, "section [%s] stands already in line %u",
			              scan->section, line->number);
		/* a list may go on in a further line */
		if (line->key != NULL && strcmp(line->key, key) == 0 &&
		    strcmp(key, "plugin_dirs") != 0)
			return REFUSE(scan, "%s stands already in line %u of [%s]", key,
			              line->number, scan->section);
	}
	if (ini->count == MOEK_INI_LINES_MOST)
		return REFUSE(scan, "more than %d settings", MOEK_INI_LINES_MOST);
	ini->lines[ini->count++] = (struct moek_ini_line){ .section = scan->section,
		                                           .key = key,
		                                           .value = value,
		                                           .number = scan->number };
	return MOEK_OK;
}

static int32_t scan_section(struct scan *scan, char *line)
{
	char *name = line + 1, *end = strchr(line, ']');
	size_t length;

	if (end == NULL)
		return REFUSE(scan, "a section has no ']'");
	length = (size_t)(end - name);
	if (end[1] != '\0' && end[strspn(end + 1, " \t") + 1] != '\0')
		return REFUSE(scan, "text behind the section's ']'");
	if (length == 0 || length > MOEK_INI_WORD_MOST)
		return REFUSE(scan,
		              "a section's name has 1 to %d characters, this has %zu",
		              MOEK_INI_WORD_MOST, length);
	*end = '\0';
	for (size_t i = 0; i < length; i++)
		if (!is_word(name[i]) &&
		    (name[i] != ' ' || i == 0 || i + 1 == length || name[i - 1] == ' '))
			return REFUSE(scan,
			              "[%s]: a section is words of a-z 0-9 _ - . "
			              "with one blank between them",
			              name);
	scan->section = name;
	return add_line(scan, NULL, NULL);
}

static int32_t scan_key(struct scan *scan, char *line)
{
	size_t key_length = word_length(line);
	char *equals = line + key_length, *value, *end;

	while (is_blank(*equals))
		equals++;
	if (*equals == ':')
		return REFUSE(scan, "':' before '='; a setting is key = value");
	if (key_length == 0)
		return REFUSE(scan, "neither a section, a comment nor key = value");
	if (*equals != '=')
		return REFUSE(scan,
		              "no '=' behind '%.*s'; a key is a word of a-z 0-9 _ - .",
		              (int)(key_length < 64 ? key_length : 64), line);
	if (key_length > MOEK_INI_WORD_MOST)
		return REFUSE(scan, "a key has at most %d characters, this has %zu",
		              MOEK_INI_WORD_MOST, key_length);
	if (scan->section == NULL)
		return REFUSE(scan, "a key before the first section");
	for (value = equals + 1; *value != '\0'; value++)
		if (*value == ';' && (is_blank(value[-1]) || value[-1] == '='))
			return REFUSE(scan,
			              "a comment behind a value; put it on a line "
			              "of its own");
	end = value;
	value = equals + 1;
	while (is_blank(*value))
		value++;
	while (end > value && is_blank(end[-1]))
		end--;
	*end = '\0';
	line[key_length] = '\0';
	return add_line(scan, line, value);
}

static int32_t scan_line(struct scan *scan, char *line, size_t length)
{
	int32_t status = scan_bytes(scan, line, length);

	if (status != MOEK_OK)
		return status;
	if (line[0] == ';' || line[0] == '#')
		return MOEK_OK;
	if (is_blank(line[0]) || length == 0) {
		if (line[strspn(line, " \t")] == '\0')
			return MOEK_OK;
		return REFUSE(scan,
		              "the line begins with a blank, which would continue "
		              "the one before");
	}
	if (memcmp(line, "\xef\xbb\xbf", length < 3 ? length : 3) == 0)
		return REFUSE(scan, "a byte order mark; save the file without one");
	return line[0] == '[' ? scan_section(scan, line) : scan_key(scan, line);
}

static int32_t scan_file(struct scan *scan, char *text, size_t bytes)
{
	int32_t status = MOEK_OK;

	for (size_t at = 0; at < bytes && status == MOEK_OK;) {
		char *line = text + at, *end = memchr(line, '\n', bytes - at);
		size_t length = end != NULL ? (size_t)(end - line) : bytes - at;

		line[length] = '\0'; /* the text has room for one more */
		scan->number++;
		status = scan_line(scan, line, length);
		at += length + 1;
	}
	return status;
}

/* ---- inih: it must deliver what the scan saw, line for line ---- */

struct delivery {
	const struct moek_ini *ini;
	size_t next;
	int differs;
};

static int deliver(void *user, const char *section, const char *key, const char *value)
{
	struct delivery *delivery = user;
	const struct moek_ini *ini = delivery->ini;
	const struct moek_ini_line *line;

	while (delivery->next < ini->count && ini->lines[delivery->next].key == NULL)
		delivery->next++;
	if (delivery->differs || delivery->next == ini->count || section == NULL ||
	    key == NULL || value == NULL) {
		delivery->differs = 1;
		return 0;
	}
	line = &ini->lines[delivery->next];
	if (strcmp(line->section, section) != 0 || strcmp(line->key, key) != 0 ||
	    strcmp(line->value, value) != 0) {
		delivery->differs = 1;
		return 0;
	}
	delivery->next++;
	return 1;
}

/** Let inih read @text. 0 and the line in doubt when it saw something else. */
static int agrees(const struct moek_ini *ini, const char *text, uint32_t *number_out)
{
	struct delivery delivery = { .ini = ini };
	int status = ini_parse_string(text, deliver, &delivery);

	while (delivery.next < ini->count && ini->lines[delivery.next].key == NULL)
		delivery.next++;
	if (status == 0 && !delivery.differs && delivery.next == ini->count)
		return 1;
	*number_out = status > 0                   ? (uint32_t)status
	              : delivery.next < ini->count ? ini->lines[delivery.next].number
	                                           : 0;
	return 0;
}

static struct moek_ini *new_ini(const char *text, size_t bytes)
{
	struct moek_ini *ini = calloc(1, sizeof(*ini));

	if (ini == NULL)
		return NULL;
	ini->text = malloc(bytes + 1);
	ini->lines = calloc(MOEK_INI_LINES_MOST, sizeof(*ini->lines));
	if (ini->text == NULL || ini->lines == NULL) {
		moek_ini_free(ini);
		return NULL;
	}
	if (bytes != 0)
		memcpy(ini->text, text, bytes);
	ini->text[bytes] = '\0';
	return ini;
}

int32_t moek_ini_parse(const char *text, size_t bytes, const char *name,
                       struct moek_ini **ini_out, struct moek_error *error_out)
{
	struct scan scan = { .name = name, .error_out = error_out };
	uint32_t number = 0;
	char *pristine;
	int32_t status;

	if (bytes > MOEK_INI_FILE_MOST)
		return moek_fail(error_out, MOEK_BAD_CONFIG, 0,
		                 "%s: %zu bytes, at most %u are read", name, bytes,
		                 MOEK_INI_FILE_MOST);
	scan.ini = new_ini(text, bytes);
	pristine = malloc(bytes + 1);
	if (scan.ini == NULL || pristine == NULL) {
		status = moek_fail_memory(error_out, "settings");
		goto free_all;
	}
	memcpy(pristine, scan.ini->text, bytes + 1);
	status = scan_file(&scan, scan.ini->text, bytes);
	if (status != MOEK_OK)
		goto free_all;
	if (!agrees(scan.ini, pristine, &number)) {
		status = fail_line(error_out, name, number,
		                   "the installed inih reads this otherwise than "
		                   "it is written");
		goto free_all;
	}
	free(pristine);
	*ini_out = scan.ini;
	return MOEK_OK;

free_all:
	free(pristine);
	moek_ini_free(scan.ini);
	return status;
}

void moek_ini_free(struct moek_ini *ini)
{
	if (ini == NULL)
		return;
	free(ini->lines);
	free(ini->text);
	free(ini);
}

static int32_t read_all(int fd, const char *path, char *text, size_t most,
                        size_t *bytes_out, struct moek_error *error_out)
{
	size_t bytes = 0;

	while (bytes < most) {
		ssize_t got = read(fd, text + bytes, most - bytes);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s: %s", path,
			                 strerror(errno));
		if (got == 0)
			break;
		bytes += (size_t)got;
	}
	*bytes_out = bytes;
	return MOEK_OK;
}

int32_t moek_ini_read(const char *path, int optional, struct moek_ini **ini_out,
                      struct moek_error *error_out)
{
	/* a pipe would keep us waiting */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat file;
	char *text = NULL;
	size_t bytes = 0;
	int32_t status;

	if (fd < 0 && optional && (errno == ENOENT || errno == ENOTDIR)) {
		*ini_out = NULL;
		return MOEK_OK;
	}
	if (fd < 0)
		return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s: %s", path,
		                 strerror(errno));
	if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
		status = moek_fail(error_out, MOEK_BAD_CONFIG, 0,
		                   "%s: not a regular file", path);
		goto close_file;
	}
	text = malloc(MOEK_INI_FILE_MOST + 1);
	if (text == NULL) {
		status = moek_fail_memory(error_out, "settings");
		goto close_file;
	}
	/* one byte more than is allowed, so that parsing can tell */
	status = read_all(fd, path, text, MOEK_INI_FILE_MOST + 1, &bytes, error_out);
	if (status == MOEK_OK)
		status = moek_ini_parse(text, bytes, path, ini_out, error_out);
	free(text);
close_file:
	close(fd);
	return status;
}

#define TEN "0123456789"
#define WORD_OF_48 TEN TEN TEN TEN "01234567"

int32_t moek_ini_self_test(struct moek_error *error_out)
{
	/* as long as the scan allows: line, section and key; what looks like a comment,
	 * a separator or a continuation inside a value */
	static const char text[] = "; comment\n"
				   "# comment\n"
				   "[" WORD_OF_48 "]\n" WORD_OF_48 " = 1\n"
				   "\n"
				   "[a b]\n"
				   "long = " TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
					   TEN TEN TEN TEN TEN TEN TEN "012345678\n"
				   "marks = a#b # c;d = e:f [g]\n"
				   "empty =\n"
				   "  \n"
				   "[empty]\n"
				   "[last]\n"
				   "quotes=\"a\"";
	struct moek_ini *ini;
	int32_t status = moek_ini_parse(text, sizeof(text) - 1, "self test", &ini,
	                                NULL);

	if (status == MOEK_OK)
		moek_ini_free(ini);
	else if (status == MOEK_BAD_CONFIG)
		return moek_fail(
			error_out, MOEK_BAD_CONFIG, 0,
			"the installed inih was built with other options than moek "
			"can rely on; no moek.ini can be read with it");
	return status;
}

/* ---- the order ---- */

static int parse_kind(const char *word, uint32_t *kind_out)
{
	for (uint32_t kind = 0; strcmp(moek_device_kind_name(kind), "?") != 0; kind++) {
		if (strcmp(moek_device_kind_name(kind), word) == 0) {
			*kind_out = kind;
			return 1;
		}
	}
	return 0;
}

/** A type that expert weights can have, or 0. */
static uint32_t parse_scheme(const char *word)
{
	uint32_t type = moek_type_parse(word);

	switch (type) {
	case MOEK_F32:
	case MOEK_F16:
	case MOEK_BF16:
	case MOEK_INT4:
	case MOEK_INT8:
	case MOEK_MXFP4:
		return type;
	default:
		return 0;
	}
}

static void explain_word(const char *word, char *why, size_t why_bytes)
{
	const char *known[] = { moek_device_kind_name(MOEK_HOST),
		                moek_device_kind_name(MOEK_HIP),
		                moek_device_kind_name(MOEK_CUDA),
		                "int4",
		                "int8",
		                "mxfp4",
		                "bf16",
		                "fp16",
		                "fp32" };
	const char *nearest = moek_nearest(word, known,
	                                   sizeof(known) / sizeof(known[0]));

	snprintf(why, why_bytes,
	         "'%s' is neither a device kind nor a weight scheme%s%s%s", word,
	         nearest != NULL ? "; did you mean '" : "",
	         nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

int moek_priority_parse(const char *section, struct moek_priority_match *match_out,
                        char *why, size_t why_bytes)
{
	struct moek_priority_match match = { 0 };
	char words[MOEK_INI_WORD_MOST + 1], *word, *rest;

	if (strlen(section) >= sizeof(words)) {
		snprintf(why, why_bytes, "the section's name is too long");
		return 0;
	}
	snprintf(words, sizeof(words), "%s", section);
	(void)strtok_r(words, " ", &rest);
	word = strtok_r(NULL, " ", &rest);
	if (word != NULL && parse_kind(word, &match.kind)) {
		match.has_kind = 1;
		word = strtok_r(NULL, " ", &rest);
		if (word != NULL && parse_scheme(word) == 0) {
			if (strlen(word) >= sizeof(match.arch)) {
				snprintf(why, why_bytes, "'%s' is too long for an arch",
				         word);
				return 0;
			}
			memcpy(match.arch, word, strlen(word) + 1);
			word = strtok_r(NULL, " ", &rest);
		}
	}
	if (word != NULL) {
		match.scheme = parse_scheme(word);
		if (match.scheme == 0) {
			explain_word(word, why, why_bytes);
			return 0;
		}
		word = strtok_r(NULL, " ", &rest);
	}
	if (word != NULL) {
		snprintf(why, why_bytes,
		         "'%s' is one word too many: a device kind, its arch, a weight "
		         "scheme",
		         word);
		return 0;
	}
	*match_out = match;
	return 1;
}

/** How much a section says, for a comparison; 0: it does not match. Words count first,
 *  then words about the device. */
static unsigned weigh(const struct moek_priority_match *match, uint32_t scheme,
                      const struct moek_device *const *devices, size_t device_count)
{
	unsigned of_device = (match->has_kind ? 1u : 0u) +
	                     (match->arch[0] != '\0' ? 1u : 0u);
	unsigned words = of_device + (match->scheme != 0 ? 1u : 0u);
	int found = !match->has_kind;

	if (match->scheme != 0 && match->scheme != scheme)
		return 0;
	for (size_t i = 0; i < device_count && !found; i++)
		found = devices[i]->kind == match->kind &&
		        (match->arch[0] == '\0' ||
		         strcmp(devices[i]->arch, match->arch) == 0);
	return found ? 1 + 4 * words + of_device : 0;
}

static int is_priority(const char *section)
{
	return strncmp(section, "priority", 8) == 0 &&
	       (section[8] == '\0' || section[8] == ' ');
}

/** The entry that opens the section in force: the weightiest; among equals the higher
 *  level, then the earlier line. */
static const struct moek_entry *
section_in_force(const struct moek_settings *settings, uint32_t scheme,
                 const struct moek_device *const *devices, size_t device_count)
{
	const struct moek_entry *best = NULL;
	unsigned best_weight = 0;

	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];
		struct moek_priority_match match;
		unsigned weight;
		char why[128];

		if (!entry->in_force || !is_priority(entry->section) ||
		    (best != NULL && strcmp(best->section, entry->section) == 0) ||
		    !moek_priority_parse(entry->section, &match, why, sizeof(why)))
			continue;
		weight = weigh(&match, scheme, devices, device_count);
		if (weight == 0 || weight < best_weight ||
		    (best != NULL && weight == best_weight &&
		     entry->level <= best->level))
			continue;
		best_weight = weight;
		best = entry;
	}
	return best;
}

/** A later entry changes a name where it stands, or adds it at the end. */
static void add_rank(struct moek_order *order, const struct moek_entry *entry)
{
	struct moek_rank rank = { .name = entry->key,
		                  .origin = entry->origin,
		                  .level = entry->level,
		                  .on = moek_settings_boolean(entry->value) == 1 };

	for (size_t i = 0; i < order->count; i++) {
		if (strcmp(order->ranks[i].name, rank.name) == 0) {
			order->ranks[i] = rank;
			return;
		}
	}
	order->ranks[order->count++] = rank;
}

int32_t moek_priority_order(const struct moek_settings *settings, uint32_t scheme,
                            const struct moek_device *const *devices,
                            size_t device_count, struct moek_order *order_out,
                            struct moek_error *error_out)
{
	const struct moek_entry *first = section_in_force(settings, scheme, devices,
	                                                  device_count);
	struct moek_order order = { 0 };

	if (first == NULL)
		goto done;
	order.section = first->section;
	order.origin = first->origin;
	order.ranks = calloc(settings->count, sizeof(*order.ranks));
	if (order.ranks == NULL)
		return moek_fail_memory(error_out, "order of backends");
	/* a line that the API overrides still says where the name stands */
	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];

		if (strcmp(entry->section, first->section) == 0 && entry->key != NULL &&
		    strncmp(entry->key, "x-", 2) != 0 &&
		    (entry->level == first->level || entry->level == MOEK_LEVEL_API))
			add_rank(&order, entry);
	}
done:
	*order_out = order;
	return MOEK_OK;
}

void moek_order_end(struct moek_order *order)
{
	free(order->ranks);
	memset(order, 0, sizeof(*order));
}

const struct moek_rank *moek_order_find(const struct moek_order *order,
                                        const char *name)
{
	for (size_t i = 0; i < order->count; i++)
		if (strcmp(order->ranks[i].name, name) == 0)
			return &order->ranks[i];
	return NULL;
}

int moek_priority_needs_devices(const struct moek_settings *settings)
{
	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];
		struct moek_priority_match match;
		char why[128];

		if (entry->in_force && is_priority(entry->section) &&
		    moek_priority_parse(entry->section, &match, why, sizeof(why)) &&
		    match.has_kind && match.kind != MOEK_HOST)
			return 1;
	}
	return 0;
}

int moek_priority_is_off(const struct moek_settings *settings,
                         const struct moek_order *order, const char *name,
                         const char **origin_out)
{
	const struct moek_rank *rank = moek_order_find(order, name);
	const struct moek_entry *general = moek_settings_get(settings, "priority",
	                                                     name);

	if (rank != NULL && !rank->on) {
		*origin_out = rank->origin;
		return 1;
	}
	if (general == NULL || moek_settings_boolean(general->value) == 1 ||
	    (rank != NULL && rank->level >= general->level))
		return 0;
	*origin_out = general->origin;
	return 1;
}
