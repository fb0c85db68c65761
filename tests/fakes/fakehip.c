/* SPDX-License-Identifier: MIT */
/*
 * A HIP runtime for tests: memory is the host's, kernels are those of the GPU plugins
 * run on fibers. It looks at what a real one would look at, and at what a real one
 * would not forgive: machine and architecture of the code object, kernels that are in
 * it, the size of their arguments, limits of grids and blocks.
 *
 * FAKEHIP_ARCH     architecture of its one device (gfx1100); "none": no device
 * FAKEHIP_VERSION  what hipRuntimeGetVersion says (60342134)
 * FAKEHIP_REVERSE  1: threads and blocks run from the last to the first
 * FAKEHIP_KERNARG  file that gets the argument block of each launch of AITER's
 */
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/fibers.h"
#include "tests/gpu/cpu_kernel.h"

#define API __attribute__((visibility("default")))

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_IMAGE = 200,
	NO_BINARY = 209,
	NOT_FOUND = 500,
	LAUNCH_FAILURE = 719
};

int API hipInit(unsigned int flags);
int API hipRuntimeGetVersion(int *version_out);
int API hipGetDeviceCount(int *count_out);
int API hipDeviceGetPCIBusId(char *text_out, int bytes, int device);
int API hipDeviceGetName(char *text_out, int bytes, int device);
int API hipSetDevice(int device);
int API hipGetDevice(int *device_out);
int API hipMalloc(void **address_out, size_t bytes);
int API hipFree(void *address);
int API hipMemcpy(void *to, const void *from, size_t bytes, int kind);
int API hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind,
                       void *stream);
int API hipDeviceSynchronize(void);
int API hipStreamSynchronize(void *stream);
int API hipModuleLoadData(void **module_out, const void *image);
int API hipModuleUnload(void *module);
int API hipModuleGetFunction(void **function_out, void *module, const char *name);
int API hipModuleLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y,
                              unsigned int grid_z, unsigned int block_x,
                              unsigned int block_y, unsigned int block_z,
                              unsigned int lds_bytes, void *stream, void **arguments,
                              void **extra);
const char API *hipGetErrorString(int error);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one launch at a time */

static const char *setting(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value != NULL ? value : otherwise;
}

static int complain(int error, const char *text, const char *what)
{
	fprintf(stderr, "fakehip: %s: %s\n", what, text);
	return error;
}

/* ---- devices ---- */

int hipInit(unsigned int flags)
{
	if (flags != 0)
		return INVALID_VALUE;
	return strcmp(setting("FAKEHIP_ARCH", "gfx1100"), "none") == 0 ? INVALID_DEVICE
	                                                               : SUCCESS;
}

int hipRuntimeGetVersion(int *version_out)
{
	*version_out = atoi(setting("FAKEHIP_VERSION", "60342134"));
	return SUCCESS;
}

int hipGetDeviceCount(int *count_out)
{
	*count_out = hipInit(0) == SUCCESS;
	return *count_out != 0 ? SUCCESS : NO_DEVICE;
}

int hipDeviceGetPCIBusId(char *text_out, int bytes, int device)
{
	snprintf(text_out, (size_t)bytes, "0000:03:00.0");
	return device == 0 ? SUCCESS : INVALID_DEVICE;
}

int hipDeviceGetName(char *text_out, int bytes, int device)
{
	snprintf(text_out, (size_t)bytes, "fake %s",
	         setting("FAKEHIP_ARCH", "gfx1100"));
	return device == 0 ? SUCCESS : INVALID_DEVICE;
}

int hipSetDevice(int device)
{
	return device == 0 ? SUCCESS : INVALID_DEVICE;
}

int hipGetDevice(int *device_out)
{
	*device_out = 0;
	return SUCCESS;
}

/* ---- memory ---- */

int hipMalloc(void **address_out, size_t bytes)
{
	void *address = aligned_alloc(256, (bytes + 255) & ~(size_t)255);

	if (address == NULL)
		return OUT_OF_MEMORY;
	memset(address, 0xff, bytes); /* NaN patterns: device memory is not zeroed */
	*address_out = address;
	return SUCCESS;
}

int hipFree(void *address)
{
	free(address);
	return SUCCESS;
}

int hipMemcpy(void *to, const void *from, size_t bytes, int kind)
{
	if (kind < 1 || kind > 3)
		return INVALID_VALUE;
	memcpy(to, from, bytes);
	return SUCCESS;
}

int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
	(void)stream;
	return hipMemcpy(to, from, bytes, kind);
}

int hipDeviceSynchronize(void)
{
	return SUCCESS;
}

int hipStreamSynchronize(void *stream)
{
	(void)stream;
	return SUCCESS;
}

/* ---- code ---- */

/* EF_AMDGPU_MACH of the architectures that the tests speak of */
static unsigned int arch_flag(const char *arch)
{
	static const struct {
		const char *arch;
		unsigned int flag;
	} flags[] = {
		{ "gfx1030", 0x36 }, { "gfx1100", 0x41 }, { "gfx1101", 0x46 },
		{ "gfx1102", 0x47 }, { "gfx1103", 0x44 }, { "gfx942", 0x4c },
		{ "gfx950", 0x4f },
	};
	size_t i;

	for (i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (strcmp(flags[i].arch, arch) == 0)
			return flags[i].flag;
	return 0;
}

int hipModuleLoadData(void **module_out, const void *image)
{
	const Elf64_Ehdr *header = image;

	if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_machine != 224)
		return INVALID_IMAGE;
	if ((header->e_flags & 0xff) != arch_flag(setting("FAKEHIP_ARCH", "gfx1100")))
		return NO_BINARY;
	*module_out = (void *)(uintptr_t)image;
	return SUCCESS;
}

int hipModuleUnload(void *module)
{
	(void)module;
	return SUCCESS;
}

/* what the 64 bytes NAME.kd of a code object say */
struct descriptor {
	uint32_t lds_bytes, private_bytes, argument_bytes;
};

/* find NAME.kd among the dynamic symbols; the first pages of the file are mapped as is
 */
static int read_descriptor(const unsigned char *image, const char *name,
                           struct descriptor *descriptor_out)
{
	const Elf64_Ehdr *header = (const void *)image;
	const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);
	char wanted[128];
	size_t i, j;

	snprintf(wanted, sizeof(wanted), "%s.kd", name);
	for (i = 0; i < header->e_shnum; i++) {
		const Elf64_Sym *symbols = (const void *)(image +
		                                          sections[i].sh_offset);
		const char *names;

		if (sections[i].sh_type != SHT_DYNSYM)
			continue;
		names = (const char *)image + sections[sections[i].sh_link].sh_offset;
		for (j = 0; j < sections[i].sh_size / sizeof(*symbols); j++) {
			const Elf64_Shdr *home = &sections[symbols[j].st_shndx];

			if (strcmp(names + symbols[j].st_name, wanted) != 0)
				continue;
			memcpy(descriptor_out,
			       image + home->sh_offset + symbols[j].st_value -
			               home->sh_addr,
			       sizeof(*descriptor_out));
			return 1;
		}
	}
	return 0;
}

static const struct gpu_cpu_kernel *find_kernel(const char *name)
{
	const struct gpu_cpu_kernel *const lists[] = { rdna3_cpu_kernels,
		                                       mxfp4_cpu_kernels,
		                                       aiter_cpu_kernels };
	const struct gpu_cpu_kernel *kernel;
	size_t i;

	for (i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		for (kernel = lists[i]; kernel->name != NULL; kernel++)
			if (strcmp(kernel->name, name) == 0)
				return kernel;
	return NULL;
}

int hipModuleGetFunction(void **function_out, void *module, const char *name)
{
	const struct gpu_cpu_kernel *kernel = find_kernel(name);
	struct descriptor descriptor = { 0 };

	if (!read_descriptor(module, name, &descriptor))
		return complain(NOT_FOUND, "not in the code object", name);
	if (kernel == NULL)
		return complain(NOT_FOUND, "no CPU build of this kernel", name);
	if (descriptor.argument_bytes != kernel->args_bytes)
		return complain(INVALID_IMAGE, "size of the arguments differs", name);
	if (descriptor.lds_bytes > 65536 || descriptor.private_bytes != 0)
		return complain(INVALID_IMAGE, "too much LDS, or scratch", name);
	*function_out = (void *)(uintptr_t)kernel;
	return SUCCESS;
}

/* HIP_LAUNCH_PARAM_BUFFER_POINTER, the block, _BUFFER_SIZE, its size, _END */
static int is_block(void *const *extra, size_t bytes)
{
	return (uintptr_t)extra[0] == 1 && extra[1] != NULL &&
	       (uintptr_t)extra[2] == 2 && *(const size_t *)extra[3] == bytes &&
	       (uintptr_t)extra[4] == 3;
}

int hipModuleLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y,
                          unsigned int grid_z, unsigned int block_x,
                          unsigned int block_y, unsigned int block_z,
                          unsigned int lds_bytes, void *stream, void **arguments,
                          void **extra)
{
	const struct gpu_cpu_kernel *kernel = function;
	struct gpu_launch launch = {
		.call = kernel->call,
		.kernel = kernel->kernel,
		.grid = { grid_x, grid_y, grid_z },
		.threads = block_x * block_y * block_z,
		.wave = kernel->wave,
		.reverse = setting("FAKEHIP_REVERSE", "0")[0] == '1',
	};
	const char *error = NULL;
	int failed;

	(void)stream;
	if ((kernel->whole != NULL) != (extra != NULL) ||
	    (extra != NULL && !is_block(extra, kernel->args_bytes)))
		return complain(INVALID_VALUE,
		                "arguments are not as the kernel takes them",
		                kernel->name);
	if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 ||
	    grid_z > 65535 || (uint64_t)grid_x * block_x >= UINT64_C(1) << 32 ||
	    lds_bytes != 0)
		return complain(INVALID_VALUE, "grid out of limits", kernel->name);
	if (block_y != 1 || block_z != 1 || block_x != kernel->threads)
		return complain(INVALID_VALUE,
		                "block is not what the kernel is built for",
		                kernel->name);
	pthread_mutex_lock(&lock);
	if (kernel->whole != NULL) {
		error = kernel->whole(extra[1], launch.grid);
		failed = error != NULL;
	} else {
		launch.args = arguments[0];
		failed = gpu_fibers_run(&launch, &error);
	}
	pthread_mutex_unlock(&lock);
	return failed ? complain(LAUNCH_FAILURE, error, kernel->name) : SUCCESS;
}

const char *hipGetErrorString(int error)
{
	return error == SUCCESS         ? "success"
	       : error == OUT_OF_MEMORY ? "out of memory"
	                                : "failed";
}
