/* SPDX-License-Identifier: MIT */
/* What the rest of core asks of a registry. */
#ifndef MOEK_CORE_REGISTRY_H
#define MOEK_CORE_REGISTRY_H

#include <pthread.h>
#include <stddef.h>

#include <moek/moek.h>

#include "core/device.h"
#include "core/log.h"
#include "core/note.h"
#include "core/plugin.h"
#include "core/settings.h"

struct moek_golden;
struct moek_lock;
struct moek_threads;

struct moek_log *moek_registry_log(struct moek_registry *registry);
/** Bits of enum moek_check. */
uint32_t moek_registry_checks(const struct moek_registry *registry);
/** One of so many forwards also runs on the reference; 0: none. */
uint64_t moek_registry_shadow(const struct moek_registry *registry);
/** 1: device facts came from a file, so no layer can be made here. */
int moek_registry_answers_only(const struct moek_registry *registry);

/* ---- for select and report only ---- */

enum moek_file_state {
	MOEK_FILE_UNOPENED,
	MOEK_FILE_OPENING, /* by `opener`, without the lock */
	MOEK_FILE_OPEN,
	MOEK_FILE_BROKEN
};

/** One plugin file. Below the line nothing changes once it is open or broken. */
struct moek_file {
	char *name; /* "a" */
	char *path;
	const char
		*shadowed_by; /* path of the file that has this name; NULL: it counts */
	struct moek_note note;
	enum moek_file_state state;
	pthread_t opener;

	struct moek_loaded *loaded;
	struct moek_cause cause;     /* when broken */
	struct moek_device *devices; /* of its own */
	size_t device_count;
};

/** A folder as it was found. */
struct moek_searched {
	const struct moek_folder *folder;
	size_t plugins;
	int error; /* errno of reading it, or 0 */
};

struct moek_registry {
	struct moek_log log;
	struct moek_settings *settings;
	struct moek_machine machine;
	struct moek_machine here; /* with facts of another machine: this one; else empty */
	struct moek_threads *threads;
	const struct moek_workers *workers;
	struct moek_lock *held; /* what it must not differ from; NULL: nothing */
	struct moek_file *files; /* by name; shadowed ones follow the one that counts */
	size_t file_count;
	struct moek_golden *golden; /* under the lock */
	struct moek_searched *searched;
	size_t searched_count;
	pthread_mutex_t lock; /* guards files[].state; never held while a plugin runs */
	pthread_cond_t changed;
};

/** Open @file unless it has been tried. MOEK_OK also when it is broken: see its state.
 *  MOEK_BUSY: called from its own open(). */
int32_t moek_registry_require(struct moek_registry *registry, struct moek_file *file,
                              struct moek_error *error_out);
/** 1: a probe found @file broken before, *cause_out says how. Opens nothing. */
int moek_registry_recall(struct moek_registry *registry, const struct moek_file *file,
                         struct moek_cause *cause_out);
/** The file that counts under @name ("a"), or NULL. */
struct moek_file *moek_registry_file(struct moek_registry *registry, const char *name);
/** 1: switched off by [plugin NAME]. *origin_out says where. */
int moek_registry_is_off(const struct moek_registry *registry, const char *name,
                         const char **origin_out);

/** Devices that the experts of @file may run on; returns how many. The file is open. */
size_t moek_registry_devices(const struct moek_registry *registry,
                             const struct moek_file *file,
                             const struct moek_device **devices_out);

/** Every device of the machine that is known so far, host first, each once; malloc'ed.
 */
int32_t moek_registry_all_devices(struct moek_registry *registry,
                                  const struct moek_device ***devices_out,
                                  size_t *count_out, struct moek_error *error_out);

#endif
