/* SPDX-License-Identifier: MIT */
/* "prefer a,b": what the caller asks for. */
#ifndef MOEK_CORE_REQUEST_H
#define MOEK_CORE_REQUEST_H

#include <stddef.h>

#include <moek/moek.h>

enum moek_mode { MOEK_AUTO, MOEK_PREFER, MOEK_REQUIRE, MOEK_EXCLUDE };
#define MOEK_NAMES_MOST 32

/** "prefer a,b", read. */
struct moek_request {
	enum moek_mode mode;
	size_t count;
	char names[MOEK_NAMES_MOST][84];
};

#define MOEK_NOT_NAMED SIZE_MAX

/** NULL is "auto". MOEK_BAD_ARGUMENT. */
int32_t moek_request_parse(const char *text, struct moek_request *request_out,
                           struct moek_error *error_out);
/** Does @pattern ("plugin" or "plugin.experts") name @name, one or the other? */
int moek_request_covers(const char *pattern, const char *name);
/** Index in the request of what names @name, or MOEK_NOT_NAMED. */
size_t moek_request_find(const struct moek_request *request, const char *name);
/** Does it name @plugin, or some of its experts? */
int moek_request_concerns(const struct moek_request *request, const char *plugin);

#endif
