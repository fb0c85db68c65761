/* SPDX-License-Identifier: MIT */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const libraries[] = {
	"libamdhip64.so.7",
	"libamdhip64.so.6",
	"libamdhip64.so.5",
	"/opt/rocm/lib/libamdhip64.so",
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void *open_library(const char *path)
{
	/* never unloaded: the runtime does not clean up after itself */
	const int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
	void *library = NULL;
	size_t i;

	if (path != NULL)
		return dlopen(path, flags);
	for (i = 0; library == NULL && i < COUNT(libraries); i++)
		library = dlopen(libraries[i], flags);
	return library;
}

static void no(struct gpu_driver *driver, enum gpu_state state, const char *cause)
{
	driver->state = state;
	snprintf(driver->cause, sizeof(driver->cause), "%s", cause);
}

/* the first name that is missing, or NULL */
static const char *find_calls(struct gpu_driver *d, void *library)
{
	const struct {
		const char *name;
		void *slot;
	} calls[] = {
		{ "hipInit", &d->init },
		{ "hipRuntimeGetVersion", &d->runtime_version },
		{ "hipGetDeviceCount", &d->device_count },
		{ "hipDeviceGetPCIBusId", &d->pci_bus_id },
		{ "hipDeviceGetName", &d->device_name },
		{ "hipSetDevice", &d->set_device },
		{ "hipGetDevice", &d->get_device },
		{ "hipMalloc", &d->malloc },
		{ "hipFree", &d->free },
		{ "hipMemcpy", &d->copy },
		{ "hipMemcpyAsync", &d->copy_async },
		{ "hipDeviceSynchronize", &d->device_wait },
		{ "hipStreamSynchronize", &d->stream_wait },
		{ "hipModuleLoadData", &d->module_load },
		{ "hipModuleUnload", &d->module_unload },
		{ "hipModuleGetFunction", &d->module_function },
		{ "hipModuleLaunchKernel", &d->launch },
		{ "hipGetErrorString", &d->error_string },
	};
	size_t i;

	for (i = 0; i < COUNT(calls); i++) {
		void *address = dlsym(library, calls[i].name);

		if (address == NULL)
			return calls[i].name;
		memcpy(calls[i].slot, &address, sizeof(address));
	}
	return NULL;
}

void gpu_driver_open(struct gpu_driver *driver, const char *path)
{
	char text[96];
	const char *missing;
	void *library = open_library(path);
	int error;

	if (library == NULL) {
		if (path != NULL)
			snprintf(text, sizeof(text),
			         "no HIP runtime: cannot open %.60s", path);
		no(driver, GPU_NO_RUNTIME,
		   path != NULL ? text
		                : "no HIP runtime: libamdhip64.so.7, .6, .5 not found");
		return;
	}
	missing = find_calls(driver, library);
	if (missing != NULL) {
		snprintf(text, sizeof(text), "the HIP runtime lacks %s", missing);
		no(driver, GPU_NO_RUNTIME, text);
		return;
	}
	/* asked before init: on an old runtime init can fail for being old */
	if (driver->runtime_version(&driver->version) == 0 &&
	    driver->version < GPU_OLDEST_RUNTIME) {
		snprintf(text, sizeof(text),
		         "HIP runtime %d.%d is too old, 5.7 is needed",
		         driver->version / 10000000, driver->version / 100000 % 100);
		no(driver, GPU_OLD_RUNTIME, text);
		return;
	}
	error = driver->init(0);
	if (error == 0)
		error = driver->device_count(&driver->devices);
	if (error != 0 || driver->devices < 1) {
		snprintf(text, sizeof(text),
		         "the HIP runtime sees no device (error %d)", error);
		no(driver, GPU_NO_DEVICE, text);
		driver->devices = 0;
		return;
	}
	driver->state = GPU_READY;
}
