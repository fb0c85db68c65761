/* SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700 /* mkdtemp, nftw */

#include "sysfs.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		abort();
	}
}

void sysfs_create(char *path_out, unsigned long bytes)
{
	const char *folder = getenv("TMPDIR");

	snprintf(path_out, bytes, "%s/moek-sysfs.XXXXXX",
	         folder != NULL ? folder : "/tmp");
	must(mkdtemp(path_out) != NULL, path_out);
}

static int remove_one(const char *path, const struct stat *info, int type,
                      struct FTW *at)
{
	(void)info;
	(void)type;
	(void)at;
	return remove(path);
}

void sysfs_destroy(const char *path)
{
	must(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, path);
}

/* write a file under root, making its folders */
static void write_file(const char *root, const char *name, const char *format, ...)
{
	char path[512], *slash;
	va_list arguments;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (slash = strchr(path + strlen(root) + 1, '/'); slash != NULL;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0777);
		*slash = '/';
	}
	file = fopen(path, "w");
	must(file != NULL, path);
	va_start(arguments, format);
	vfprintf(file, format, arguments);
	va_end(arguments);
	fclose(file);
}

void sysfs_card(const char *root, const char *address, unsigned int vendor,
                unsigned int device, unsigned int class)
{
	char name[256];

	snprintf(name, sizeof(name), "bus/pci/devices/%s/vendor", address);
	write_file(root, name, "0x%04x\n", vendor);
	snprintf(name, sizeof(name), "bus/pci/devices/%s/device", address);
	write_file(root, name, "0x%04x\n", device);
	snprintf(name, sizeof(name), "bus/pci/devices/%s/class", address);
	write_file(root, name, "0x%06x\n", class);
}

void sysfs_node(const char *root, unsigned int number, unsigned int gfx_version,
                unsigned int bus)
{
	char name[256];

	snprintf(name, sizeof(name), "class/kfd/kfd/topology/nodes/%u/properties",
	         number);
	write_file(
		root, name,
		"cpu_cores_count 0\nsimd_count %u\nsimd_per_cu 2\nwave_front_size 32\n"
		"gfx_target_version %u\nlocation_id %u\ndomain 0\n",
		gfx_version != 0 ? 192u : 0u, gfx_version, bus << 8);
	snprintf(name, sizeof(name),
	         "class/kfd/kfd/topology/nodes/%u/mem_banks/0/properties", number);
	write_file(root, name, "heap_type 1\nsize_in_bytes 25753026560\n");
}
