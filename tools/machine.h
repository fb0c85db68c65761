/* SPDX-License-Identifier: MIT */
/* What stands above every table of times: the processor, its last cache, its memory. */
#ifndef MOEK_TOOLS_MACHINE_H
#define MOEK_TOOLS_MACHINE_H

#include "tools/writer.h"

struct machine {
	char name[64];
	uint64_t family,
		model;  /* as CPUID counts them; 0 where there is no such thing */
	uint64_t cpus;  /* that this process may use */
	uint64_t nodes; /* that these processors belong to */
	uint64_t last_cache_bytes;
	uint64_t memory_bytes;    /* all of it */
	uint64_t available_bytes; /* without swapping, and within the limit of the
	                             cgroup */
};

void machine_read(struct machine *machine_out);
void machine_print(const struct machine *machine);
void machine_write(struct writer *writer, const struct machine *machine);

#endif
