/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/gpu/aiter_files.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const unsigned char aiter_header[64] = { 0x7f, 'E', 'L',        'F',
	                                 2,    1,   [18] = 224, [48] = 0x4f };

static void write_file(const char *folder, const char *name, const void *bytes,
                       size_t count)
{
	char path[2048];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "w");
	ck_assert_msg(file != NULL, "%s", path);
	ck_assert(fwrite(bytes, 1, count, file) == count);
	fclose(file);
}

void aiter_files_create(const char *folder, const char *below, const char *list,
                        const void *code, size_t bytes)
{
	char path[1024], *slash;

	snprintf(path, sizeof(path), "%s/%s/fmoe/silu/", folder, below);
	for (slash = path + strlen(folder); (slash = strchr(slash + 1, '/')) != NULL;) {
		*slash = '\0';
		mkdir(path, 0777);
		*slash = '/';
	}
	write_file(path, "fmoe_bf16_pertokenMXfp4_g1u1_silu.csv", list, strlen(list));
	write_file(path, AITER_OBJECT("128"), code, bytes);
	write_file(path, AITER_OBJECT("256"), code, bytes);
}
