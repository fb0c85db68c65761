/* SPDX-License-Identifier: MIT */
/* What a layer needs to know of a choice. */
#ifndef MOEK_CORE_SELECT_H
#define MOEK_CORE_SELECT_H

#include <stddef.h>

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

/** One more owner; moek_choice_destroy() gives one up. Any thread. */
struct moek_choice *moek_choice_retain(struct moek_choice *choice);

/**
 * The winner could not be made (@status, @cause): a new choice in which it is marked
 * FAILED and the next candidate that would run has won. MOEK_REFUSED, with no choice,
 * if there is none or the request was "require".
 */
int32_t moek_choice_next(const struct moek_choice *choice, int32_t status,
                         const char *cause, struct moek_choice **next_out,
                         struct moek_error *error_out);

/* ---- for report only ---- */

enum moek_mode { MOEK_AUTO, MOEK_PREFER, MOEK_REQUIRE, MOEK_EXCLUDE };
#define MOEK_NAMES_MOST 32

/** "prefer a,b", read. */
struct moek_request {
	enum moek_mode mode;
	size_t count;
	char names[MOEK_NAMES_MOST][84];
};

/** Where a candidate stands: a lower one first. */
struct moek_place_in_order {
	size_t preferred; /* index in "prefer a,b" */
	size_t rank;      /* line of [priority], then the unlisted ones */
	size_t within;    /* index in the plugin's own list */
};

struct moek_entrant {
	uint32_t state;      /* enum moek_state */
	uint32_t rank_class; /* 0: not known, the file was not opened */
	int is_listed;       /* in the order in force */
	int is_named;        /* by "prefer" or "require" */
	struct moek_place_in_order place;
	char name[84];
	char source[288];
	char found[512];
	char accepted[256];
	const char *path;
	struct moek_verdict verdict;
	const struct moek_device *device; /* that the answer is about, or NULL */
	struct moek_loaded *loaded;       /* NULL: not opened */
	const struct moek_experts *experts;
};

struct moek_choice {
	uint32_t owners; /* atomic */
	struct moek_registry *registry;
	struct moek_problem problem;
	struct moek_request request;
	char *label;
	char order_section[64]; /* "" : no [priority] in force */
	char order_origin[4200];
	struct moek_entrant *entrants; /* in rank order */
	size_t count;
	size_t winner; /* = count: nobody */
	int degraded;
	int is_past_preferred; /* "prefer", and the winner is none of them */
	struct moek_backend backend;
};

/** Everybody's state as far as it depends on no problem. Nobody wins. */
int32_t moek_survey(struct moek_registry *registry, struct moek_choice **survey_out,
                    struct moek_error *error_out);

#endif
