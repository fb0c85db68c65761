/* SPDX-License-Identifier: MIT */
/*
 * A HIP runtime over the CUDA driver, for tests: the unmodified host code of a plugin
 * runs its kernels, built by nvcc, on an NVIDIA GPU. The code object handed to
 * hipModuleLoadData is looked at no further than its first bytes: the kernels come from
 * the file CUDAHIP_CUBIN. Memory is filled with NaN patterns unless CUDAHIP_POISON is
 * 0.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

static CUcontext context;

/* every call, from any thread */
static CUresult enter(void)
{
	CUdevice device;
	CUresult result = CUDA_SUCCESS;

	if (context == NULL) {
		result = cuInit(0);
		if (result == CUDA_SUCCESS)
			result = cuDeviceGet(&device, 0);
		if (result == CUDA_SUCCESS)
			result = cuDevicePrimaryCtxRetain(&context, device);
	}
	return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

static int finish(CUresult result, const char *what)
{
	const char *text = NULL;

	if (result == CUDA_SUCCESS)
		return 0;
	cuGetErrorString(result, &text);
	fprintf(stderr, "cudahip: %s: %s\n", what, text != NULL ? text : "?");
	return (int)result;
}

API int hipInit(unsigned int flags)
{
	(void)flags;
	return finish(enter(), "init");
}

API int hipRuntimeGetVersion(int *version_out)
{
	*version_out = 60342134;
	return 0;
}

API int hipGetDeviceCount(int *count_out)
{
	*count_out = 1;
	return 0;
}

API int hipDeviceGetPCIBusId(char *text_out, int bytes, int device)
{
	snprintf(text_out, (size_t)bytes, "0000:03:00.0");
	return device == 0 ? 0 : 101;
}

API int hipDeviceGetName(char *text_out, int bytes, int device)
{
	CUresult result = enter();

	(void)device;
	return finish(result == CUDA_SUCCESS ? cuDeviceGetName(text_out, bytes, 0)
	                                     : result,
	              "name");
}

API int hipSetDevice(int device)
{
	return device == 0 ? finish(enter(), "set device") : 101;
}

API int hipGetDevice(int *device_out)
{
	*device_out = 0;
	return finish(enter(), "get device");
}

API int hipMalloc(void **address_out, size_t bytes)
{
	const char *poison = getenv("CUDAHIP_POISON");
	CUdeviceptr address = 0;
	/* HIP gives NULL for no bytes, CUDA an error */
	CUresult result = bytes != 0 ? cuMemAlloc(&address, bytes) : CUDA_SUCCESS;

	if (result == CUDA_SUCCESS && bytes != 0 &&
	    (poison == NULL || poison[0] != '0'))
		result = cuMemsetD8(address, 0xff, bytes);
	*address_out = (void *)(uintptr_t)address;
	return finish(result, "malloc");
}

API int hipFree(void *address)
{
	return finish(cuMemFree((CUdeviceptr)(uintptr_t)address), "free");
}

API int hipMemcpy(void *to, const void *from, size_t bytes, int kind)
{
	(void)kind; /* the driver knows which address is whose */
	return finish(cuMemcpy((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from,
	                       bytes),
	              "copy");
}

API int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
	(void)kind;
	return finish(cuMemcpyAsync((CUdeviceptr)(uintptr_t)to,
	                            (CUdeviceptr)(uintptr_t)from, bytes, stream),
	              "copy");
}

API int hipDeviceSynchronize(void)
{
	return finish(cuCtxSynchronize(), "wait");
}

API int hipStreamSynchronize(void *stream)
{
	return finish(cuStreamSynchronize(stream), "wait");
}

API int hipModuleLoadData(void **module_out, const void *image)
{
	if (memcmp(image, "\177ELF", 4) != 0)
		return 200;
	return finish(cuModuleLoad((CUmodule *)module_out, getenv("CUDAHIP_CUBIN")),
	              "load");
}

API int hipModuleUnload(void *module)
{
	return finish(cuModuleUnload(module), "unload");
}

API int hipModuleGetFunction(void **function_out, void *module, const char *name)
{
	return finish(cuModuleGetFunction((CUfunction *)function_out, module, name),
	              name);
}

API int hipModuleLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y,
                              unsigned int grid_z, unsigned int block_x,
                              unsigned int block_y, unsigned int block_z,
                              unsigned int lds_bytes, void *stream, void **arguments,
                              void **extra)
{
	/* kernel.h: where the lanes of a wave of 64 share what they post */
	const unsigned int posted = 20 * 4 * block_x * block_y * block_z;
	CUresult result = cuFuncSetAttribute(
		function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)posted);

	if (lds_bytes != 0)
		return 1;
	if (result == CUDA_SUCCESS)
		result = cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x,
		                        block_y, block_z, posted, stream, arguments,
		                        extra);
	return finish(result, "launch");
}

API const char *hipGetErrorString(int error)
{
	const char *text = NULL;

	cuGetErrorString((CUresult)error, &text);
	return text != NULL ? text : "?";
}
