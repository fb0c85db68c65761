/* SPDX-License-Identifier: MIT */
#include "device.h"

#include <stdio.h>

enum { OUT_OF_MEMORY = 2 }; /* hipErrorOutOfMemory */

int32_t gpu_status(const struct gpu_context *context, int error, const char *what)
{
	const char *words;
	char text[256];

	if (error == 0)
		return MOEK_OK;
	words = context->driver->error_string(error);
	snprintf(text, sizeof(text), "%s failed: %s (HIP error %d)", what,
	         words != NULL ? words : "?", error);
	context->host->log(context->host->self, 3, text);
	return error == OUT_OF_MEMORY ? MOEK_NO_MEMORY : MOEK_DEVICE;
}

int32_t gpu_enter(const struct gpu_context *context, uint32_t ordinal, int *before_out)
{
	const struct gpu_driver *driver = context->driver;
	int before = -1, error = driver->get_device(&before);

	if (error == 0 && before != (int)ordinal)
		error = driver->set_device((int)ordinal);
	*before_out = before;
	return gpu_status(context, error, "choosing the device");
}

void gpu_leave(const struct gpu_context *context, int before)
{
	if (before >= 0)
		context->driver->set_device(before);
}

int32_t gpu_alloc(const struct gpu_context *context, const struct moek_device *device,
                  uint64_t bytes, void **address_out)
{
	char what[64];
	int before;
	int32_t status = gpu_enter(context, device->ordinal, &before);

	if (status != MOEK_OK)
		return status;
	snprintf(what, sizeof(what), "allocating %llu bytes",
	         (unsigned long long)bytes);
	status = bytes > SIZE_MAX ? MOEK_NO_MEMORY
	                          : gpu_status(context,
	                                       context->driver->malloc(address_out,
	                                                               (size_t)bytes),
	                                       what);
	gpu_leave(context, before);
	return status;
}

void gpu_free(const struct gpu_context *context, const struct moek_device *device,
              void *address)
{
	int before;

	if (address == NULL || gpu_enter(context, device->ordinal, &before) != MOEK_OK)
		return;
	gpu_status(context, context->driver->free(address), "freeing memory");
	gpu_leave(context, before);
}

int32_t gpu_copy(const struct gpu_context *context, const struct moek_device *device,
                 void *to, const void *from, uint64_t bytes, uint32_t direction,
                 void *stream)
{
	/* MOEK_TO_DEVICE 1, MOEK_TO_HOST 2, MOEK_ON_DEVICE 3 are hipMemcpyKind's
	 * numbers */
	const struct gpu_driver *driver = context->driver;
	int before, error;
	int32_t status;

	if (direction < MOEK_TO_DEVICE || direction > MOEK_ON_DEVICE)
		return MOEK_BAD_ARGUMENT;
	status = gpu_enter(context, device->ordinal, &before);
	if (status != MOEK_OK)
		return status;
	if (stream != NULL)
		error = driver->copy_async(to, from, (size_t)bytes, (int)direction,
		                           stream);
	else
		error = driver->copy(to, from, (size_t)bytes, (int)direction);
	/* between two places of one device hipMemcpy does not wait */
	if (error == 0 && stream == NULL && direction == MOEK_ON_DEVICE)
		error = driver->device_wait();
	status = gpu_status(context, error, "copying");
	gpu_leave(context, before);
	return status;
}

int32_t gpu_wait(const struct gpu_context *context, const struct moek_device *device,
                 void *stream)
{
	const struct gpu_driver *driver = context->driver;
	int before;
	int32_t status = gpu_enter(context, device->ordinal, &before);

	if (status != MOEK_OK)
		return status;
	status = gpu_status(context,
	                    stream != NULL ? driver->stream_wait(stream)
	                                   : driver->device_wait(),
	                    "waiting for the device");
	gpu_leave(context, before);
	return status;
}

int32_t gpu_load_kernels(const struct gpu_context *context,
                         const struct moek_device *device, const void *image,
                         const char *const *names, void **kernels_out)
{
	const struct gpu_driver *driver = context->driver;
	void *module = NULL;
	char what[128];
	int before, i;
	int32_t status = gpu_enter(context, device->ordinal, &before);

	if (status != MOEK_OK)
		return status;
	snprintf(what, sizeof(what), "loading the code for %.31s", device->arch);
	status = gpu_status(context, driver->module_load(&module, image), what);
	for (i = 0; status == MOEK_OK && names[i] != NULL; i++) {
		snprintf(what, sizeof(what), "finding kernel %.80s", names[i]);
		status = gpu_status(
			context,
			driver->module_function(&kernels_out[i], module, names[i]),
			what);
	}
	if (status != MOEK_OK && module != NULL)
		driver->module_unload(module);
	gpu_leave(context, before);
	return status;
}
