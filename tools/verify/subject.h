/* SPDX-License-Identifier: MIT */
/* The plugin itself, past the core: to ask it what the core would never ask. */
#ifndef MOEK_TOOLS_SUBJECT_H
#define MOEK_TOOLS_SUBJECT_H

#include <moek/moek.h>

/** A host whose memory runs out when it is told to. */
struct subject_host {
	struct moek_host table;
	uint64_t allocations,
		fail_at; /* fail_at: number of the one that fails; 0: none */
	int64_t in_use;
};

struct subject {
	const struct moek_plugin *plugin;
	uint32_t count; /* of its experts */
	struct subject_host host;
	void *handle;
};

/** The file, not opened as a plugin yet. NULL, or why not. */
const char *subject_load(const char *path, struct subject *subject_out);
void subject_host_begin(struct subject_host *host);

/** Of what core asks before a layer is made: the problem's four. 1: yes. */
int subject_ask(const struct subject *subject, const struct moek_experts *experts,
                const struct moek_problem *problem, struct moek_verdict *no_out);

#endif
