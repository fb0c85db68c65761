/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/machine.h"
#include "tools/nodes.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define CACHE_UNKNOWN ((uint64_t)32 << 20)

/** The rest of the first line of @path that begins with @name: 1, or 0. */
static int find_line(const char *path, const char *name, char *value, size_t bytes)
{
	FILE *file = fopen(path, "re");
	char line[512];
	int found = 0;

	if (file == NULL)
		return 0;
	while (!found && fgets(line, sizeof(line), file) != NULL) {
		const char *from = line + strlen(name);

		if (strncmp(line, name, strlen(name)) != 0)
			continue;
		from += strspn(from, " \t:");
		snprintf(value, bytes, "%.*s", (int)strcspn(from, "\n"), from);
		found = 1;
	}
	fclose(file);
	return found;
}

static uint64_t find_number(const char *path, const char *name, uint64_t otherwise)
{
	char value[64], *end;
	uint64_t number;

	if (!find_line(path, name, value, sizeof(value)))
		return otherwise;
	number = strtoull(value, &end, 10);
	if (end == value)
		return otherwise;
	end += strspn(end, " ");
	return *end == 'k' || *end == 'K' ? number << 10
	       : *end == 'M'              ? number << 20
	                                  : number;
}

static uint64_t last_cache(void)
{
	uint64_t best_level = 0, bytes = 0;

	for (unsigned i = 0; i < 8; i++) {
		char path[96];
		uint64_t level;

		snprintf(path, sizeof(path),
		         "/sys/devices/system/cpu/cpu0/cache/index%u/level", i);
		level = find_number(path, "", 0);
		if (level <= best_level)
			continue;
		best_level = level;
		snprintf(path, sizeof(path),
		         "/sys/devices/system/cpu/cpu0/cache/index%u/size", i);
		bytes = find_number(path, "", 0);
	}
	return bytes > 0 ? bytes : CACHE_UNKNOWN;
}

static uint64_t available(void)
{
	uint64_t free_bytes = find_number("/proc/meminfo", "MemAvailable", 0);
	uint64_t most = find_number("/sys/fs/cgroup/memory.max", "", UINT64_MAX);
	uint64_t used = find_number("/sys/fs/cgroup/memory.current", "", 0);
	uint64_t left = most > used ? most - used : 0;

	return left < free_bytes ? left : free_bytes;
}

void machine_read(struct machine *machine_out)
{
	struct utsname system;
	cpu_set_t set;

	memset(machine_out, 0, sizeof(*machine_out));
	if (!find_line("/proc/cpuinfo", "model name", machine_out->name,
	               sizeof(machine_out->name)) &&
	    uname(&system) == 0)
		snprintf(machine_out->name, sizeof(machine_out->name), "%.63s",
		         system.machine);
	machine_out->family = find_number("/proc/cpuinfo", "cpu family", 0);
	machine_out->model = find_number("/proc/cpuinfo", "model\t", 0);
	machine_out->cpus = 1;
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		machine_out->cpus = (uint64_t)CPU_COUNT(&set);
	machine_out->nodes = nodes_count("/sys/devices/system/node");
	machine_out->last_cache_bytes = last_cache();
	machine_out->memory_bytes = find_number("/proc/meminfo", "MemTotal", 0);
	machine_out->available_bytes = available();
}

void machine_print(const struct machine *machine)
{
	printf("%s", machine->name);
	if (machine->family != 0)
		printf(", family %llu, model %llu", (unsigned long long)machine->family,
		       (unsigned long long)machine->model);
	printf("; %llu CPUs, %llu node%s, last cache %.1f MiB, memory %.1f GiB\n",
	       (unsigned long long)machine->cpus, (unsigned long long)machine->nodes,
	       machine->nodes == 1 ? "" : "s",
	       (double)machine->last_cache_bytes / 0x1p20,
	       (double)machine->memory_bytes / 0x1p30);
}

void machine_write(struct writer *writer, const struct machine *machine)
{
	writer_open(writer, "machine", '{');
	writer_string(writer, "name", machine->name);
	writer_number(writer, "family", machine->family);
	writer_number(writer, "model", machine->model);
	writer_number(writer, "cpus", machine->cpus);
	writer_number(writer, "nodes", machine->nodes);
	writer_number(writer, "last_cache_bytes", machine->last_cache_bytes);
	writer_number(writer, "memory_bytes", machine->memory_bytes);
	writer_close(writer, '}');
}
