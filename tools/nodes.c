/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/nodes.h"

#include <sched.h>
#include <stdio.h>

#define MOST_NODES 1024u

/** Is a processor of a list like "0-3,8" in @set? */
static int has_one_of(FILE *list, const cpu_set_t *set)
{
	unsigned first, last;

	while (fscanf(list, "%u", &first) == 1) {
		int next = getc(list);

		last = first;
		if (next == '-') {
			if (fscanf(list, "%u", &last) != 1)
				return 0;
			next = getc(list);
		}
		for (; first <= last && first < CPU_SETSIZE; first++)
			if (CPU_ISSET(first, set))
				return 1;
		if (next != ',')
			return 0;
	}
	return 0;
}

uint64_t nodes_count(const char *root)
{
	uint64_t count = 0;
	cpu_set_t set;

	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return 1;
	for (unsigned i = 0; i < MOST_NODES; i++) {
		char path[4096];
		FILE *list;

		snprintf(path, sizeof(path), "%s/node%u/cpulist", root, i);
		list = fopen(path, "re");
		if (list == NULL)
			continue; /* their numbers may have gaps */
		count += (uint64_t)has_one_of(list, &set);
		fclose(list);
	}
	return count > 0 ? count : 1;
}
