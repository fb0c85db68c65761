/* SPDX-License-Identifier: MIT */
/*
 * A HIP runtime over an instruction emulator, for tests: the unmodified plugin has its
 * machine code run, instruction by instruction, by a child process (emulate.py). Device
 * memory is one arena that both map at the same address, so a kernel that follows a
 * pointer into the host's own memory is caught. Memory is filled with NaN patterns and
 * never given back: use it for small cases.
 *
 * EMUHIP_COMMAND  shell command of the child; it gets the arena's file as its argument
 * EMUHIP_ARCH     gfx1100, or what else the code object in use is for
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

#define ARENA_AT ((uint8_t *)0x200000000000)
#define ARENA_BYTES (UINT64_C(1) << 30)

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_FOUND = 500,
	FAILURE = 719
};

struct function {
	char name[96];
	uint64_t image, image_bytes, argument_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used;
static int is_mapped;
static FILE *to_child, *from_child;

static int complain(int error, const char *what, const char *text)
{
	fprintf(stderr, "emuhip: %s: %s\n", what, text);
	return error;
}

/* ---- the arena and the child ---- */

static int start(void)
{
	char path[] = "/dev/shm/emuhip.XXXXXX", command[4096];
	int arena = mkstemp(path), down[2], up[2];
	const char *child = getenv("EMUHIP_COMMAND");

	if (child == NULL || arena < 0 || ftruncate(arena, (off_t)ARENA_BYTES) != 0 ||
	    mmap(ARENA_AT, ARENA_BYTES, PROT_READ | PROT_WRITE,
	         MAP_SHARED | MAP_FIXED_NOREPLACE, arena, 0) != ARENA_AT ||
	    pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0)
		return complain(OUT_OF_MEMORY, "start",
		                "no arena, or no EMUHIP_COMMAND");
	snprintf(command, sizeof(command), "exec %s %s", child, path);
	if (fork() == 0) {
		dup2(down[0], 0);
		dup2(up[1], 1);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	close(arena);
	close(down[0]);
	close(up[1]);
	to_child = fdopen(down[1], "w");
	from_child = fdopen(up[0], "r");
	is_mapped = 1;
	return SUCCESS;
}

static void *take(uint64_t bytes)
{
	uint8_t *address = NULL;

	pthread_mutex_lock(&lock);
	if ((is_mapped || start() == SUCCESS) && bytes <= ARENA_BYTES - used) {
		address = ARENA_AT + used;
		used += (bytes + 255) & ~(uint64_t)255;
	}
	pthread_mutex_unlock(&lock);
	return address;
}

/* ---- devices ---- */

API int hipInit(unsigned int flags)
{
	return flags == 0 ? SUCCESS : INVALID_VALUE;
}

API int hipRuntimeGetVersion(int *version_out)
{
	*version_out = 60342134;
	return SUCCESS;
}

API int hipGetDeviceCount(int *count_out)
{
	*count_out = 1;
	return SUCCESS;
}

API int hipDeviceGetPCIBusId(char *text_out, int bytes, int device)
{
	snprintf(text_out, (size_t)bytes, "0000:03:00.0");
	return device == 0 ? SUCCESS : 101;
}

API int hipDeviceGetName(char *text_out, int bytes, int device)
{
	const char *arch = getenv("EMUHIP_ARCH");

	snprintf(text_out, (size_t)bytes, "emulated %s",
	         arch != NULL ? arch : "gfx1100");
	return device == 0 ? SUCCESS : 101;
}

API int hipSetDevice(int device)
{
	return device == 0 ? SUCCESS : 101;
}

API int hipGetDevice(int *device_out)
{
	*device_out = 0;
	return SUCCESS;
}

API const char *hipGetErrorString(int error)
{
	return error == SUCCESS ? "success" : "failed";
}

/* ---- memory ---- */

API int hipMalloc(void **address_out, size_t bytes)
{
	void *address = take(bytes);

	if (address == NULL)
		return OUT_OF_MEMORY;
	memset(address, 0xff, bytes);
	*address_out = address;
	return SUCCESS;
}

API int hipFree(void *address)
{
	(void)address;
	return SUCCESS;
}

API int hipMemcpy(void *to, const void *from, size_t bytes, int kind)
{
	if (kind < 1 || kind > 3)
		return INVALID_VALUE;
	memcpy(to, from, bytes);
	return SUCCESS;
}

API int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
	(void)stream;
	return hipMemcpy(to, from, bytes, kind);
}

API int hipDeviceSynchronize(void)
{
	return SUCCESS;
}

API int hipStreamSynchronize(void *stream)
{
	(void)stream;
	return SUCCESS;
}

/* ---- code ---- */

API int hipModuleLoadData(void **module_out, const void *image)
{
	const Elf64_Ehdr *header = image;
	uint64_t bytes = header->e_shoff +
	                 (uint64_t)header->e_shnum * header->e_shentsize;
	struct function *module = calloc(1, sizeof(*module));
	void *copy = take(bytes);

	if (module == NULL || copy == NULL)
		return OUT_OF_MEMORY;
	memcpy(copy, image, bytes);
	module->image = (uint64_t)(uintptr_t)copy;
	module->image_bytes = bytes;
	*module_out = module;
	return SUCCESS;
}

API int hipModuleUnload(void *module)
{
	free(module);
	return SUCCESS;
}

/* one question, one line of answer: "ok NUMBER", or what went wrong */
static int ask(const char *what, const char *question, uint64_t *number_out)
{
	char answer[512] = "no answer";
	unsigned long long number = 0;
	int is_ok;

	pthread_mutex_lock(&lock);
	fputs(question, to_child);
	fflush(to_child);
	if (fgets(answer, sizeof(answer), from_child) == NULL)
		strcpy(answer, "the emulator has ended");
	pthread_mutex_unlock(&lock);
	answer[strcspn(answer, "\n")] = '\0';
	is_ok = sscanf(answer, "ok %llu", &number) == 1;
	*number_out = number;
	return is_ok ? SUCCESS : complain(FAILURE, what, answer);
}

API int hipModuleGetFunction(void **function_out, void *module, const char *name)
{
	struct function *function = malloc(sizeof(*function));
	char question[256];

	if (function == NULL)
		return OUT_OF_MEMORY;
	*function = *(const struct function *)module;
	snprintf(function->name, sizeof(function->name), "%s", name);
	snprintf(question, sizeof(question), "find %s %llu %llu\n", name,
	         (unsigned long long)function->image,
	         (unsigned long long)function->image_bytes);
	if (ask(name, question, &function->argument_bytes) != SUCCESS) {
		free(function);
		return NOT_FOUND;
	}
	*function_out = function;
	return SUCCESS;
}

API int hipModuleLaunchKernel(void *kernel, unsigned int grid_x, unsigned int grid_y,
                              unsigned int grid_z, unsigned int block_x,
                              unsigned int block_y, unsigned int block_z,
                              unsigned int lds_bytes, void *stream, void **arguments,
                              void **extra)
{
	const struct function *function = kernel;
	void *copy = take(function->argument_bytes);
	char question[512];
	uint64_t number;

	(void)stream;
	(void)extra;
	if (copy == NULL)
		return OUT_OF_MEMORY;
	memcpy(copy, arguments[0], function->argument_bytes);
	snprintf(question, sizeof(question),
	         "run %s %llu %llu %u %u %u %u %u %u %u %llu %llu\n", function->name,
	         (unsigned long long)function->image,
	         (unsigned long long)function->image_bytes, grid_x, grid_y, grid_z,
	         block_x, block_y, block_z, lds_bytes,
	         (unsigned long long)(uintptr_t)copy,
	         (unsigned long long)function->argument_bytes);
	return ask(function->name, question, &number);
}
