/* SPDX-License-Identifier: MIT */
/* A GPU that is a file: the option `facts` names it, one fact a line ("arch=fake_a"; a
 * blank line begins the next device). Device memory is host memory, so layers run.
 * Code for fake_a is in this file, for other archs it is not. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST 8

struct gpu {
	struct moek_device devices[MOST];
	uint32_t count;
};

static void read_fact(struct moek_device *device, const char *key, const char *value)
{
	if (strcmp(key, "kind") == 0)
		device->kind = (uint32_t)strtoul(value, NULL, 10);
	else if (strcmp(key, "arch") == 0)
		snprintf(device->arch, sizeof(device->arch), "%s", value);
	else if (strcmp(key, "name") == 0)
		snprintf(device->name, sizeof(device->name), "%s", value);
	else if (strcmp(key, "cause") == 0)
		snprintf(device->cause, sizeof(device->cause), "%s", value);
	else if (strcmp(key, "cause_rule") == 0)
		device->cause_rule = (uint32_t)strtoul(value, NULL, 10);
	else if (strcmp(key, "bus") == 0)
		device->pci[1] = (uint32_t)strtoul(value, NULL, 10);
}

static struct moek_device *next_device(struct gpu *gpu)
{
	struct moek_device *device = &gpu->devices[gpu->count];

	device->struct_size = MOEK_DEVICE_SIZE_1_0;
	device->kind = MOEK_HIP;
	device->ordinal = gpu->count++;
	return device;
}

static int32_t read_facts(struct gpu *gpu, const char *path)
{
	FILE *file = fopen(path, "r");
	struct moek_device *device = NULL;
	char line[160];

	if (file == NULL)
		return MOEK_DEVICE;
	while (fgets(line, sizeof(line), file) != NULL) {
		char *equals = strchr(line, '=');

		line[strcspn(line, "\n")] = '\0';
		if (equals == NULL) {
			device = NULL;
			continue;
		}
		if (device == NULL && gpu->count == MOST)
			break;
		if (device == NULL)
			device = next_device(gpu);
		*equals = '\0';
		read_fact(device, line, equals + 1);
	}
	fclose(file);
	return MOEK_OK;
}

static int32_t open_it(const struct moek_host *host, void **plugin_out)
{
	const char *path = host->option(host->self, "facts");
	struct gpu *gpu = calloc(1, sizeof(*gpu));

	if (gpu == NULL)
		return MOEK_NO_MEMORY;
	if (path != NULL && read_facts(gpu, path) != MOEK_OK) {
		host->log(host->self, 3, "cannot read the facts");
		free(gpu);
		return MOEK_DEVICE;
	}
	*plugin_out = gpu;
	return MOEK_OK;
}

static void close_it(void *plugin)
{
	free(plugin);
}

static uint32_t list(void *plugin, struct moek_device *devices_out, uint32_t capacity)
{
	const struct gpu *gpu = plugin;

	for (uint32_t i = 0; i < gpu->count && i < capacity; i++)
		devices_out[i] = gpu->devices[i];
	return gpu->count;
}

static int32_t alloc_on(void *plugin, const struct moek_device *device, uint64_t bytes,
                        void **address_out)
{
	void *address;

	(void)plugin;
	(void)device;
	if (bytes > SIZE_MAX - 255)
		return MOEK_NO_MEMORY;
	address = aligned_alloc(256, (bytes + 255) / 256 * 256);
	if (address == NULL)
		return MOEK_NO_MEMORY;
	*address_out = address;
	return MOEK_OK;
}

static void free_on(void *plugin, const struct moek_device *device, void *address)
{
	(void)plugin;
	(void)device;
	free(address);
}

static int32_t copy(void *plugin, const struct moek_device *device, void *to,
                    const void *from, uint64_t bytes, uint32_t direction, void *stream)
{
	(void)plugin;
	(void)device;
	(void)direction;
	(void)stream;
	memcpy(to, from, bytes);
	return MOEK_OK;
}

static int32_t wait(void *plugin, const struct moek_device *device, void *stream)
{
	(void)plugin;
	(void)device;
	(void)stream;
	return MOEK_OK;
}

static int32_t supports_device(void *plugin, const struct moek_device *device,
                               struct moek_verdict *no_out)
{
	(void)plugin;
	/* the core promised: nobody asks about a card that cannot be used */
	if (device->cause_rule != 0)
		__builtin_trap();
	if (device->kind != MOEK_HIP)
		return moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
	if (strcmp(device->arch, "fake_a") != 0) {
		moek_refuse(no_out, MOEK_RULE_DEVICE_ARCH, 0);
		return moek_refuse_note(no_out, "fake_a");
	}
	return 1;
}

static const struct moek_experts any = {
	FAKE_EXPERTS_BUT_DEVICE("any", MOEK_NATIVE),
	.understands = EVERYTHING & ~MOEK_LORA,
	.supports_device = supports_device,
};
static const struct moek_experts *const experts[] = { &any, NULL };
static const char *const options[] = { "facts", NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "fake_gpu",
	.version = "0",
	.options = options,
	.experts = experts,
	.open = open_it,
	.close = close_it,
	.list = list,
	.alloc = alloc_on,
	.free = free_on,
	.copy = copy,
	.wait = wait,
};
