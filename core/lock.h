/* SPDX-License-Identifier: MIT */
/*
 * What choices follow from, as lines of text: the library's version, the host, devices
 * told by a facts file, plugins by the hash of their files, settings; then a line for
 * each choice, and below it everybody's reason. A registry with the setting `lock`
 * compares them and refuses to differ.
 */
#ifndef MOEK_CORE_LOCK_H
#define MOEK_CORE_LOCK_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_lock; /* a lock that was read */

/** MOEK_BAD_FILE: it is no lock, or of another version of locks. */
int32_t moek_lock_read(const char *path, struct moek_lock **lock_out,
                       struct moek_error *error_out);
void moek_lock_close(struct moek_lock *lock);

/** Is the registry as it was? MOEK_REFUSED: no; each difference is logged. */
int32_t moek_lock_hold(const struct moek_lock *lock, struct moek_registry *registry,
                       struct moek_error *error_out);
/** The same for a choice. One that the lock does not have follows from the rest. */
int32_t moek_lock_hold_choice(const struct moek_lock *lock,
                              const struct moek_choice *choice,
                              struct moek_error *error_out);

#endif
