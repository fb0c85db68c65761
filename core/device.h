/* SPDX-License-Identifier: MIT */
/* Device facts: of this machine, or of another one, from a file. */
#ifndef MOEK_CORE_DEVICE_H
#define MOEK_CORE_DEVICE_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_json;

/** The machine, as far as the core knows it by itself or is told. */
struct moek_machine {
	struct moek_device host;
	char *features;              /* of the host */
	struct moek_device *devices; /* told by a facts file; else none */
	size_t device_count;
	char *facts_file; /* NULL: this machine */
};

/** This machine's host, or what @facts_file says. MOEK_BAD_FILE names the member. */
int32_t moek_machine_open(const char *facts_file, struct moek_machine *machine_out,
                          struct moek_error *error_out);
void moek_machine_close(struct moek_machine *machine);

/** From the text of /proc/cpuinfo: the CPU's name, and its features in the kernel's
 *  words (malloc'ed), sorted out by blanks. 0: no memory. */
int moek_cpuinfo_parse(const char *text, struct moek_device *host_out,
                       char **features_out);

/** Ended strings, nothing unprintable: what a plugin or a file filled in. */
void moek_device_clean(struct moek_device *device);
/** 1: the same card, seen twice. */
int moek_device_is_same(const struct moek_device *a, const struct moek_device *b);

/** As a facts file has it. */
struct moek_json *moek_device_json(const struct moek_device *device);

#endif
