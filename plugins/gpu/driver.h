/* SPDX-License-Identifier: MIT */
/*
 * The one door to the HIP runtime: opened at run time, never linked, so that a plugin
 * loads on any machine and says what is missing. Only calls whose signature has been
 * the same since ROCm 5; numbers in place of its enumerations, no struct of its headers
 * (hipDeviceProp_t changed under one name).
 */
#ifndef MOEK_GPU_DRIVER_H
#define MOEK_GPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum gpu_state {
	GPU_UNTRIED = 0,
	GPU_READY,
	GPU_NO_RUNTIME,  /* no library, or not one of HIP */
	GPU_OLD_RUNTIME, /* older than GPU_OLDEST_RUNTIME */
	GPU_NO_DEVICE    /* the library is there and sees no device */
};

/* ROCm 5.7 is the first that lists gfx1100 as supported; as hipRuntimeGetVersion counts
 */
#define GPU_OLDEST_RUNTIME 50700000

struct gpu_driver {
	enum gpu_state state;
	int version; /* 60342134: 6.3 */
	int devices;
	char cause[96]; /* unless ready */

	/* every call returns 0, or a hipError_t */
	int (*init)(unsigned int flags);
	int (*runtime_version)(int *version_out);
	int (*device_count)(int *count_out);
	int (*pci_bus_id)(char *text_out, int bytes, int device);
	int (*device_name)(char *text_out, int bytes, int device);
	int (*set_device)(int device);
	int (*get_device)(int *device_out);
	int (*malloc)(void **address_out, size_t bytes);
	int (*free)(void *address);
	int (*copy)(void *to, const void *from, size_t bytes, int kind);
	int (*copy_async)(void *to, const void *from, size_t bytes, int kind,
	                  void *stream);
	int (*device_wait)(void);
	int (*stream_wait)(void *stream);
	int (*module_load)(void **module_out, const void *image);
	int (*module_unload)(void *module);
	int (*module_function)(void **function_out, void *module, const char *name);
	int (*launch)(void *function, unsigned int grid_x, unsigned int grid_y,
	              unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	              unsigned int block_z, unsigned int lds_bytes, void *stream,
	              void **arguments, void **extra);
	const char *(*error_string)(int error);
};

/**
 * Open the runtime (@path, or libamdhip64.so of version 7, 6 or 5 as the dynamic loader
 * finds it, else in /opt/rocm/lib) and initialise it. Never fails: see state and cause.
 * Not from two threads at once.
 */
void gpu_driver_open(struct gpu_driver *driver, const char *path);

#endif
