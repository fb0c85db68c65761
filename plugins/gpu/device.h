/* SPDX-License-Identifier: MIT */
/* Memory, streams and code of one device. Every call first makes that device current
 * for the calling thread; forward does it too, so that the host's choice need not be
 * ours. */
#ifndef MOEK_GPU_DEVICE_H
#define MOEK_GPU_DEVICE_H

#include <moek/experts.h>

#include "driver.h"

/* Where failures are told; the texts name the call and the runtime's own words. */
struct gpu_context {
	const struct gpu_driver *driver;
	const struct moek_host *host; /* its log */
};

/* Logs "@what failed: ..." for an error that is not 0. MOEK_OK, MOEK_NO_MEMORY (the
 * runtime's error 2) or MOEK_DEVICE. */
int32_t gpu_status(const struct gpu_context *context, int error, const char *what);

int32_t gpu_alloc(const struct gpu_context *context, const struct moek_device *device,
                  uint64_t bytes, void **address_out);
void gpu_free(const struct gpu_context *context, const struct moek_device *device,
              void *address);
/* as struct moek_plugin.copy and .wait */
int32_t gpu_copy(const struct gpu_context *context, const struct moek_device *device,
                 void *to, const void *from, uint64_t bytes, uint32_t direction,
                 void *stream);
int32_t gpu_wait(const struct gpu_context *context, const struct moek_device *device,
                 void *stream);

/* Load a code object and look up the named kernels in it. */
int32_t gpu_load_kernels(const struct gpu_context *context,
                         const struct moek_device *device, const void *image,
                         const char *const *names, void **kernels_out);

/* Current device of this thread set, and what it was before: gpu_leave() puts it back.
 */
int32_t gpu_enter(const struct gpu_context *context, uint32_t ordinal, int *before_out);
void gpu_leave(const struct gpu_context *context, int before);

#endif
