/* SPDX-License-Identifier: MIT */
/* What an opened GPU plugin holds, and its hooks that no kernel decides. */
#ifndef MOEK_GPU_PLUGIN_H
#define MOEK_GPU_PLUGIN_H

#include <pthread.h>

#include <moek/experts.h>

#include "device.h"
#include "driver.h"
#include "facts.h"

enum { GPU_MOST_DEVICES = 32, GPU_MOST_KERNELS = 32 };

/* one code object for each architecture; a NULL arch ends a list */
struct gpu_image {
	const char *arch;
	const unsigned char *code;
};

/* the code of a plugin: images, and the kernels that each has */
struct gpu_code {
	const struct gpu_image *images;
	const char *const *kernels; /* NULL-ended, at most GPU_MOST_KERNELS */
};

struct gpu_plugin {
	struct moek_host host;
	struct gpu_context context;
	struct gpu_driver driver;
	struct gpu_facts_paths paths;
	pthread_mutex_t lock; /* guards what follows */
	struct {
		int loaded;
		uint32_t ordinal;
		void *kernels[GPU_MOST_KERNELS];
	} loaded[GPU_MOST_DEVICES];
};

/**
 * Begin a plugin in @plugin, zeroed memory of the caller. Options that every GPU plugin
 * has: "runtime" (the HIP library), "sysfs" and "kfd" (where the operating system shows
 * its cards).
 */
void gpu_plugin_begin(struct gpu_plugin *plugin, const struct moek_host *host);
void gpu_plugin_end(struct gpu_plugin *plugin);

/** The image for an architecture, or NULL. */
const struct gpu_image *gpu_find_image(const struct gpu_image *images,
                                       const char *arch);
/** The kernels of a device: loaded once, kept until the process ends. */
int32_t gpu_plugin_code(struct gpu_plugin *plugin, const struct moek_device *device,
                        const struct gpu_code *code, void *const **kernels_out);

/* For struct moek_plugin, when struct gpu_plugin is the first member of what open()
 * gave. */
uint32_t gpu_plugin_list(void *plugin, struct moek_device *devices_out,
                         uint32_t capacity);
int32_t gpu_plugin_alloc(void *plugin, const struct moek_device *device, uint64_t bytes,
                         void **address_out);
void gpu_plugin_free(void *plugin, const struct moek_device *device, void *address);
int32_t gpu_plugin_copy(void *plugin, const struct moek_device *device, void *to,
                        const void *from, uint64_t bytes, uint32_t direction,
                        void *stream);
int32_t gpu_plugin_wait(void *plugin, const struct moek_device *device, void *stream);

#endif
