/* SPDX-License-Identifier: MIT */
/* The inside of a choice: for candidates, select and report only. */
#ifndef MOEK_CORE_CHOICE_H
#define MOEK_CORE_CHOICE_H

#include <stddef.h>

#include <moek/moek.h>

#include "core/request.h"
#include "core/select.h"

struct moek_loaded;
struct moek_note;

/** How much is asked of a file. */
enum moek_asked {
	MOEK_ASK_NOTES,   /* nothing is opened */
	MOEK_ASK_DEVICES, /* there is no problem, and the device alone answers */
	MOEK_ASK_PROBLEM
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
	const char *source; /* of its rank */
	char found[512];
	char accepted[256];
	const char *path;
	const struct moek_note *note; /* of a file that is not open; NULL: it has none */
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
	const char *order_section; /* NULL: no [priority] is in force */
	const char *order_origin;
	struct moek_entrant *entrants; /* in rank order */
	size_t count;
	size_t winner; /* = count: nobody */
	int degraded;
	int is_past_preferred; /* "prefer", and the winner is none of them */
	struct moek_backend backend;
};

/** A choice without candidates; NULL: no memory. */
struct moek_choice *moek_choice_new(struct moek_registry *registry, const char *label);

/** Find every candidate, ask it, and put them in order. Nobody has won yet. */
int32_t moek_candidates_ask(struct moek_choice *choice, enum moek_asked asked,
                            struct moek_error *error_out);
/** The same of backends of class emulation alone, whatever the order says. */
int32_t moek_candidates_ask_reference(struct moek_choice *choice,
                                      struct moek_error *error_out);
/** Give @entrant the state that goes with @rule, and words for what was found, or "".
 */
void moek_candidate_settle(struct moek_entrant *entrant, uint32_t state, uint32_t rule,
                           const char *found);
/** What the verdict says, in words; words that are there already stay. */
void moek_candidate_write(struct moek_entrant *entrant);
/** What @entrant, which was opened, is for @problem. */
struct moek_backend moek_candidate_backend(const struct moek_entrant *entrant,
                                           const struct moek_problem *problem);
/** The problem as a backend on @device sees it. */
struct moek_problem moek_candidate_problem(const struct moek_problem *problem,
                                           const struct moek_device *device);

/** Everybody's state as far as it depends on no problem. Nobody wins. */
int32_t moek_survey(struct moek_registry *registry, enum moek_asked asked,
                    struct moek_choice **survey_out,
                    struct moek_error *error_out);

#endif
