/* SPDX-License-Identifier: MIT */
/* A whole safetensors file: whatever opens must be readable to the last byte. */
#include "config.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <moek/moek.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void read_all(const struct moek_safetensors *file)
{
	struct moek_tensor tensor;
	struct moek_error error;

	for (uint64_t i = 0; i < moek_safetensors_count(file); i++) {
		uint64_t length;
		const char *name = moek_safetensors_name(file, i, &length);
		const uint8_t *bytes;

		if (strlen(name) != length)
			abort();
		if (moek_safetensors_tensor(file, name, &tensor, &error) != MOEK_OK)
			continue; /* too many dimensions */
		bytes = tensor.data;
		for (uint64_t n = 0; n < tensor.bytes; n++)
			sink ^= bytes[n];
	}
	if (moek_safetensors_tensor(file, "no such tensor", &tensor, &error) ==
	            MOEK_OK &&
	    tensor.rank > 8)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fd = -1;
	static char path[64];
	struct moek_safetensors *file = NULL;
	struct moek_error error = { .text = "" };

	if (fd < 0) {
		fd = memfd_create("fuzz", 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	if (fd < 0 || ftruncate(fd, 0) != 0 ||
	    pwrite(fd, data, size, 0) != (ssize_t)size)
		abort();
	if (moek_safetensors_open(path, &file, &error) == MOEK_OK)
		read_all(file);
	else if (error.text[0] == '\0' ||
	         memchr(error.text, '\0', sizeof(error.text)) == NULL)
		abort();
	moek_safetensors_close(file);
	return 0;
}
