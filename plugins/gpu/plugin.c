/* SPDX-License-Identifier: MIT */
#include "plugin.h"

#include <string.h>

void gpu_plugin_begin(struct gpu_plugin *plugin, const struct moek_host *host)
{
	const char *sysfs = host->option(host->self, "sysfs");
	const char *kfd = host->option(host->self, "kfd");

	memcpy(&plugin->host, host,
	       host->struct_size < sizeof(*host) ? host->struct_size : sizeof(*host));
	plugin->paths.sysfs = sysfs != NULL ? sysfs : "/sys";
	plugin->paths.kfd = kfd != NULL ? kfd : "/dev/kfd";
	plugin->context.driver = &plugin->driver;
	plugin->context.host = &plugin->host;
	pthread_mutex_init(&plugin->lock, NULL);
}

void gpu_plugin_end(struct gpu_plugin *plugin)
{
	pthread_mutex_destroy(&plugin->lock);
}

const struct gpu_image *gpu_find_image(const struct gpu_image *images, const char *arch)
{
	for (; images->arch != NULL; images++)
		if (strcmp(images->arch, arch) == 0)
			return images;
	return NULL;
}

int32_t gpu_plugin_code(struct gpu_plugin *plugin, const struct moek_device *device,
                        const struct gpu_code *code, void *const **kernels_out)
{
	const struct gpu_image *image = gpu_find_image(code->images, device->arch);
	int32_t status = MOEK_DEVICE;
	uint32_t i;

	if (image == NULL || plugin->driver.state != GPU_READY)
		return MOEK_DEVICE;
	pthread_mutex_lock(&plugin->lock);
	for (i = 0; i < GPU_MOST_DEVICES; i++) {
		if (plugin->loaded[i].loaded &&
		    plugin->loaded[i].ordinal != device->ordinal)
			continue;
		status = MOEK_OK;
		if (!plugin->loaded[i].loaded)
			status = gpu_load_kernels(&plugin->context, device, image->code,
			                          code->kernels,
			                          plugin->loaded[i].kernels);
		if (status == MOEK_OK) {
			plugin->loaded[i].loaded = 1;
			plugin->loaded[i].ordinal = device->ordinal;
			*kernels_out = plugin->loaded[i].kernels;
		}
		break;
	}
	pthread_mutex_unlock(&plugin->lock);
	return status;
}

uint32_t gpu_plugin_list(void *self, struct moek_device *devices_out, uint32_t capacity)
{
	struct gpu_plugin *plugin = self;
	uint32_t count;

	pthread_mutex_lock(&plugin->lock);
	if (plugin->driver.state == GPU_UNTRIED)
		gpu_driver_open(&plugin->driver,
		                plugin->host.option(plugin->host.self, "runtime"));
	count = gpu_facts_list(&plugin->driver, &plugin->paths, devices_out, capacity);
	pthread_mutex_unlock(&plugin->lock);
	return count;
}

int32_t gpu_plugin_alloc(void *self, const struct moek_device *device, uint64_t bytes,
                         void **address_out)
{
	return gpu_alloc(&((struct gpu_plugin *)self)->context, device, bytes,
	                 address_out);
}

void gpu_plugin_free(void *self, const struct moek_device *device, void *address)
{
	gpu_free(&((struct gpu_plugin *)self)->context, device, address);
}

int32_t gpu_plugin_copy(void *self, const struct moek_device *device, void *to,
                        const void *from, uint64_t bytes, uint32_t direction,
                        void *stream)
{
	return gpu_copy(&((struct gpu_plugin *)self)->context, device, to, from, bytes,
	                direction, stream);
}

int32_t gpu_plugin_wait(void *self, const struct moek_device *device, void *stream)
{
	return gpu_wait(&((struct gpu_plugin *)self)->context, device, stream);
}
