/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L /* scandir */

#include "facts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VENDOR_AMD = 0x1002, PATH_BYTES = 512 };
#define NO_ORDINAL 0xffffffffu

/* one line of a small file, without its newline; 0 if it cannot be read */
static int read_line(const char *path, char *line_out, size_t bytes)
{
	FILE *file = fopen(path, "re");
	int good;

	if (file == NULL)
		return 0;
	good = fgets(line_out, (int)bytes, file) != NULL;
	fclose(file);
	if (good)
		line_out[strcspn(line_out, "\n")] = '\0';
	return good;
}

static unsigned long read_number(const char *folder, const char *name, const char *file)
{
	char path[PATH_BYTES], line[64];

	snprintf(path, sizeof(path), "%s/%s/%s", folder, name, file);
	return read_line(path, line, sizeof(line)) ? strtoul(line, NULL, 0) : 0;
}

static int parse_address(const char *text, uint32_t *pci_out)
{
	return sscanf(text, "%x:%x:%x.%x", &pci_out[0], &pci_out[1], &pci_out[2],
	              &pci_out[3]) == 4;
}

/* ---------------------------------------------------------------- KFD: the topology */

struct node {
	unsigned long long gfx_version, location, domain, simds, simds_per_unit,
		wave_size;
};

static int read_node(const char *path, struct node *node_out)
{
	char line[128], key[64];
	unsigned long long value;
	FILE *file = fopen(path, "re");

	memset(node_out, 0, sizeof(*node_out));
	if (file == NULL)
		return 0;
	while (fgets(line, sizeof(line), file) != NULL) {
		if (sscanf(line, "%63s %llu", key, &value) != 2)
			continue;
		if (strcmp(key, "gfx_target_version") == 0)
			node_out->gfx_version = value;
		else if (strcmp(key, "location_id") == 0)
			node_out->location = value;
		else if (strcmp(key, "domain") == 0)
			node_out->domain = value;
		else if (strcmp(key, "simd_count") == 0)
			node_out->simds = value;
		else if (strcmp(key, "simd_per_cu") == 0)
			node_out->simds_per_unit = value;
		else if (strcmp(key, "wave_front_size") == 0)
			node_out->wave_size = value;
	}
	fclose(file);
	return 1;
}

static uint64_t read_memory(const char *nodes, const char *name)
{
	char path[PATH_BYTES], line[128];
	unsigned long long value, total = 0;
	unsigned int bank;

	for (bank = 0; bank < 8; bank++) {
		FILE *file;

		snprintf(path, sizeof(path), "%.250s/%.32s/mem_banks/%u/properties",
		         nodes, name, bank);
		file = fopen(path, "re");
		if (file == NULL)
			break;
		while (fgets(line, sizeof(line), file) != NULL)
			if (sscanf(line, "size_in_bytes %llu", &value) == 1)
				total += value;
		fclose(file);
	}
	return total;
}

static void describe(struct moek_device *device, const struct node *node)
{
	/* 110001 is gfx1101, 90010 is gfx90a: the last two fields are hexadecimal
	 * digits */
	if (node->gfx_version != 0)
		snprintf(device->arch, sizeof(device->arch), "gfx%llu%llx%llx",
		         node->gfx_version / 10000, node->gfx_version / 100 % 100,
		         node->gfx_version % 100);
	if (node->simds_per_unit != 0)
		device->compute_units = (uint32_t)(node->simds / node->simds_per_unit);
	device->wave_size = (uint32_t)node->wave_size;
}

/* fill the device from the node at its address; 0: KFD has none */
static int find_node(const char *sysfs, struct moek_device *device)
{
	char nodes[PATH_BYTES / 2], path[PATH_BYTES];
	struct dirent *entry;
	struct node node;
	int found = 0;
	DIR *folder;

	snprintf(nodes, sizeof(nodes), "%.200s/class/kfd/kfd/topology/nodes", sysfs);
	folder = opendir(nodes);
	if (folder == NULL)
		return 0;
	while (!found && (entry = readdir(folder)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%.32s/properties", nodes,
		         entry->d_name);
		found = read_node(path, &node) && node.simds != 0 &&
		        node.domain == device->pci[0] &&
		        node.location == (device->pci[1] << 8 | device->pci[2] << 3 |
		                          device->pci[3]);
		if (found) {
			describe(device, &node);
			device->memory_bytes = read_memory(nodes, entry->d_name);
		}
	}
	closedir(folder);
	return found;
}

/* ------------------------------------------------------------------------- the cause
 */

static void unusable(struct moek_device *device, uint32_t rule, const char *cause)
{
	device->cause_rule = rule;
	snprintf(device->cause, sizeof(device->cause), "%s", cause);
}

/* the deepest cause first: without the kernel driver the runtime can see nothing */
static void find_cause(const struct gpu_driver *driver,
                       const struct gpu_facts_paths *paths, int in_topology,
                       struct moek_device *device)
{
	char text[96];

	if (device->ordinal != NO_ORDINAL && !in_topology) {
		unusable(device, MOEK_RULE_DEVICE_DRIVER,
		         "no KFD node for this card: its architecture is unknown");
	} else if (device->ordinal != NO_ORDINAL) {
		return;
	} else if (!in_topology) {
		unusable(device, MOEK_RULE_DEVICE_DRIVER,
		         "no KFD node for this card: the amdgpu kernel driver does not "
		         "run it");
	} else if (faccessat(AT_FDCWD, paths->kfd, R_OK | W_OK, AT_EACCESS) != 0) {
		snprintf(text, sizeof(text), "%s: %.60s",
		         errno == EACCES ? "permission denied" : "not there",
		         paths->kfd);
		unusable(device,
		         errno == EACCES ? MOEK_RULE_DEVICE_PERMISSION
		                         : MOEK_RULE_DEVICE_DRIVER,
		         text);
	} else if (driver->state == GPU_OLD_RUNTIME) {
		unusable(device, MOEK_RULE_DEVICE_VERSION, driver->cause);
	} else if (driver->state != GPU_READY) {
		unusable(device, MOEK_RULE_DEVICE_DRIVER, driver->cause);
	} else {
		unusable(device, MOEK_RULE_DEVICE_DRIVER,
		         "the HIP runtime does not show this card");
	}
}

/* --------------------------------------------------------------------------- listing
 */

static void init_device(struct moek_device *device)
{
	memset(device, 0, sizeof(*device));
	device->struct_size = MOEK_DEVICE_SIZE_1_0;
	device->kind = MOEK_HIP;
	device->ordinal = NO_ORDINAL;
}

static int same_address(const uint32_t *a, const uint32_t *b)
{
	return memcmp(a, b, 4 * sizeof(*a)) == 0;
}

static void find_ordinal(const struct gpu_driver *driver, struct moek_device *device)
{
	char text[64];
	uint32_t pci[4];
	int i;

	for (i = 0; driver->state == GPU_READY && i < driver->devices; i++)
		if (driver->pci_bus_id(text, (int)sizeof(text), i) == 0 &&
		    parse_address(text, pci) && same_address(pci, device->pci)) {
			device->ordinal = (uint32_t)i;
			driver->device_name(device->name, (int)sizeof(device->name) - 1,
			                    i);
		}
}

static void complete(const struct gpu_driver *driver,
                     const struct gpu_facts_paths *paths, struct moek_device *device)
{
	find_ordinal(driver, device);
	find_cause(driver, paths, find_node(paths->sysfs, device), device);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* an AMD card: class display (03) or accelerator (12) */
static int read_card(const char *folder, const char *name, struct moek_device *device)
{
	unsigned long class = read_number(folder, name, "class") >> 16;

	init_device(device);
	if (read_number(folder, name, "vendor") != VENDOR_AMD ||
	    (class != 0x03 && class != 0x12) || !parse_address(name, device->pci))
		return 0;
	snprintf(device->name, sizeof(device->name), "AMD %04x:%04lx", VENDOR_AMD,
	         read_number(folder, name, "device"));
	return 1;
}

/* cards of the operating system */
static uint32_t list_cards(const struct gpu_driver *driver,
                           const struct gpu_facts_paths *paths,
                           struct moek_device *devices_out, uint32_t capacity)
{
	char folder[PATH_BYTES / 2];
	struct dirent **entries = NULL;
	uint32_t count = 0;
	int i, found;

	snprintf(folder, sizeof(folder), "%.200s/bus/pci/devices", paths->sysfs);
	found = scandir(folder, &entries, NULL, by_name);
	for (i = 0; i < found; i++) {
		struct moek_device device;

		if (read_card(folder, entries[i]->d_name, &device)) {
			complete(driver, paths, &device);
			if (count < capacity)
				devices_out[count] = device;
			count++;
		}
		free(entries[i]);
	}
	free(entries);
	return count;
}

/* is there a listed card with this ordinal? */
static int is_listed(const struct moek_device *devices, uint32_t count,
                     uint32_t ordinal)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		if (devices[i].ordinal == ordinal)
			return 1;
	return 0;
}

uint32_t gpu_facts_list(const struct gpu_driver *driver,
                        const struct gpu_facts_paths *paths,
                        struct moek_device *devices_out, uint32_t capacity)
{
	uint32_t count = list_cards(driver, paths, devices_out, capacity);
	uint32_t kept = count < capacity ? count : capacity;
	int i;

	/* a container may show the runtime's devices without their PCI folders */
	for (i = 0; driver->state == GPU_READY && i < driver->devices; i++) {
		struct moek_device device;
		char text[64];

		if (is_listed(devices_out, kept, (uint32_t)i))
			continue;
		init_device(&device);
		if (driver->pci_bus_id(text, (int)sizeof(text), i) != 0 ||
		    !parse_address(text, device.pci))
			continue;
		complete(driver, paths, &device);
		if (count < capacity)
			devices_out[count] = device;
		count++;
	}
	return count;
}
