/* SPDX-License-Identifier: MIT */
/* What probes found out, kept in files of the folder `cache`. */
#ifndef MOEK_CORE_VERDICTS_H
#define MOEK_CORE_VERDICTS_H

#include "core/plugin.h"

#define MOEK_VERDICT_DAYS 7 /* then it is asked again */

/** What a verdict is about: all of it must be the same for it to count. */
struct moek_verdict_key {
	const char *kind; /* folder of the cache: "probe" or "golden" */
	const char *path;
	const char *what; /* of the file, in one line; "": all of it */
	uint64_t bytes, seconds, nanoseconds; /* size, time of the last change */
	uint64_t hash;                        /* of the contents and the options */
};

/** A key of kind "probe". 0: the file cannot be read. @options go into the hash:
 * "key=value", NULL-ended. */
int moek_verdict_key(const char *path, char *const *options,
                     struct moek_verdict_key *key_out);

/** 1: known, *cause_out says what; its rule is 0 when the file may be opened. */
int moek_verdict_recall(const char *folder, const struct moek_verdict_key *key,
                        struct moek_cause *cause_out);
/** 1: the last verdict about @path was bad. Cheap, and no proof: the file may have changed. */
int moek_verdict_is_bad(const char *folder, const char *path);
/** Failing to keep it costs another probe, nothing else. */
void moek_verdict_keep(const char *folder, const struct moek_verdict_key *key,
                       const struct moek_cause *cause);

/** "RULE FOUND ACCEPTS COUNT ACCEPTED TEXT", as a line of moek-probe has it. 0: it is
 * none. */
int moek_verdict_parse(const char *line, struct moek_cause *cause_out);

#endif
