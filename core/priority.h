/* SPDX-License-Identifier: MIT */
/* moek.ini: the one door to inih, and the order that [priority ...] sections give.
 * A file is accepted whole or refused whole. */
#ifndef MOEK_CORE_PRIORITY_H
#define MOEK_CORE_PRIORITY_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_settings;

#define MOEK_INI_FILE_MOST (UINT32_C(1) << 20) /* bytes */
#define MOEK_INI_LINE_MOST 196                 /* bytes: inih cuts above 197 */
#define MOEK_INI_WORD_MOST 48    /* of a section or key: it cuts above 49 */
#define MOEK_INI_LINES_MOST 4096 /* headings and keys */

struct moek_ini_line {
	const char *section;
	const char *key;   /* NULL: the heading of the section */
	const char *value; /* with a key */
	uint32_t number;   /* from 1 */
};

struct moek_ini {
	char *text; /* what the lines point into */
	struct moek_ini_line *lines;
	size_t count;
};

/** Parse @bytes of @text, the whole file, named @name in errors. MOEK_BAD_CONFIG. */
int32_t moek_ini_parse(const char *text, size_t bytes, const char *name,
                       struct moek_ini **ini_out, struct moek_error *error_out);
/** Read and parse. With @optional a file that does not exist is *ini_out NULL. */
int32_t moek_ini_read(const char *path, int optional, struct moek_ini **ini_out,
                      struct moek_error *error_out);
void moek_ini_free(struct moek_ini *ini);

/** Does this machine's inih read as the scan expects? Its options are fixed when it is
 *  built, and they are not visible to who links it. */
int32_t moek_ini_self_test(struct moek_error *error_out);

/** When a [priority ...] section counts; 0 and NULL mean any. */
struct moek_priority_match {
	int has_kind;
	uint32_t kind;   /* enum moek_device_kind */
	char arch[32];   /* "" : any */
	uint32_t scheme; /* enum moek_type; 0: any */
};

/** Read "priority DEVICE ARCH SCHEME": device kind, arch, scheme, each optional, in
 * this order. On failure @why says what is wrong. 1: yes. */
int moek_priority_parse(const char *section, struct moek_priority_match *match_out,
                        char *why, size_t why_bytes);

/** One name in the order in force. */
struct moek_rank {
	const char *name;   /* "plugin" or "plugin.experts" */
	const char *origin; /* of the line; "/etc/moek/moek.ini:12" */
	uint32_t level;     /* enum moek_level */
	int on;
};

struct moek_order {
	const char *section; /* the section in force, or NULL: there is none */
	const char *origin;
	struct moek_rank *ranks;
	size_t count;
};

/** The order for a problem of this weight @scheme on a machine with these devices. */
int32_t moek_priority_order(const struct moek_settings *settings, uint32_t scheme,
                            const struct moek_device *const *devices,
                            size_t device_count, struct moek_order *order_out,
                            struct moek_error *error_out);
void moek_order_end(struct moek_order *order);
const struct moek_rank *moek_order_find(const struct moek_order *order,
                                        const char *name);

/** 1: some section depends on devices that only a plugin can list. */
int moek_priority_needs_devices(const struct moek_settings *settings);

/**
 * 1: @name is switched off, and *origin_out says where. An "off" of [priority] holds in
 * every section that does not name it, and against an "on" of a lower level.
 */
int moek_priority_is_off(const struct moek_settings *settings,
                         const struct moek_order *order, const char *name,
                         const char **origin_out);

#endif
