/* SPDX-License-Identifier: MIT */
/* Trying a plugin in a process of its own before it comes into this one. */
#ifndef MOEK_CORE_PROBE_H
#define MOEK_CORE_PROBE_H

#include "core/plugin.h"

/* Between here and core/helper/main.c. */
#define MOEK_PROBE_REPORT 3 /* the descriptor of the report */
#define MOEK_PROBE_GREETING "moek-probe 1"

struct moek_probe {
	const char *path, *name, *features;
	struct moek_log *log;
	const struct moek_settings *settings;
};

/**
 * May @probe->path be opened in this process, as far as the setting `probe` wants to
 * know? MOEK_OK; MOEK_PLUGIN and *cause_out; MOEK_NO_MEMORY. Takes as long as the
 * plugin does, at most `probe_seconds`; a verdict that is still good is not asked for
 * again.
 */
int32_t moek_probe_run(const struct moek_probe *probe, struct moek_cause *cause_out);

/** What is known already: 1 and *cause_out when it is bad. Runs nothing. */
int moek_probe_recall(const struct moek_probe *probe, struct moek_cause *cause_out);

#endif
