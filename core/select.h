/* SPDX-License-Identifier: MIT */
/* What a layer needs to know of a choice. */
#ifndef MOEK_CORE_SELECT_H
#define MOEK_CORE_SELECT_H

#include <moek/moek.h>

/** A backend that said yes five times. Lives as long as the choice. */
struct moek_backend {
	const char *name;                   /* "emulation.any" */
	const struct moek_plugin *plugin;   /* copied, zero beyond its size */
	const struct moek_experts *experts; /* copied, zero beyond its size */
	void *plugin_handle;                /* what open() gave */
	const struct moek_device *device;
	struct moek_problem problem; /* as this backend sees it: on the host without the
	                                bits that the core takes care of */
};

/** The winner, or NULL. */
const struct moek_backend *moek_choice_backend(const struct moek_choice *choice);
struct moek_registry *moek_choice_registry(const struct moek_choice *choice);
/** The problem as asked, must_understand complete. */
const struct moek_problem *moek_choice_problem(const struct moek_choice *choice);

/**
 * Who defines what @problem means, for comparing with: a backend of class emulation on
 * the host. It is no candidate, so neither the order nor its switches matter, but for
 * that of [plugin NAME]; a file without a note counts once it is open. MOEK_REFUSED:
 * there is none.
 */
int32_t moek_choose_reference(struct moek_registry *registry,
                              const struct moek_problem *problem,
                              struct moek_choice **choice_out,
                              struct moek_error *error_out);

/** A choice of @backend alone, which nobody is asked about. */
int32_t moek_choice_of(struct moek_registry *registry,
                       const struct moek_backend *backend,
                       const struct moek_problem *problem,
                       struct moek_choice **choice_out, struct moek_error *error_out);

/** One more owner; moek_choice_destroy() gives one up. Any thread. */
struct moek_choice *moek_choice_retain(struct moek_choice *choice);

/**
 * The winner could not be made (@status, @cause; MOEK_PLUGIN: its golden test failed):
 * a new choice in which it is marked FAILED and the next candidate that would run has
 * won. MOEK_REFUSED, with no choice, if there is none or the request was "require".
 */
int32_t moek_choice_next(const struct moek_choice *choice, int32_t status,
                         const char *cause, struct moek_choice **next_out,
                         struct moek_error *error_out);

#endif
