/* SPDX-License-Identifier: MIT */
/* The kernels of the GPU plugins, built for the CPU, by name. */
#ifndef MOEK_TESTS_GPU_CPU_KERNEL_H
#define MOEK_TESTS_GPU_CPU_KERNEL_H

#include <stddef.h>

struct gpu_cpu_kernel {
	const char *name; /* NULL ends a list */
	const void *kernel;
	void (*call)(const void *kernel, const void *args); /* for struct gpu_launch */
	size_t args_bytes;
	unsigned int threads, wave;
	/* NULL, or all of a launch whose arguments come as a packed block; NULL or why
	 * not */
	const char *(*whole)(const void *block, const unsigned int *grid);
};

extern const struct gpu_cpu_kernel rdna3_cpu_kernels[];
extern const struct gpu_cpu_kernel mxfp4_cpu_kernels[];
extern const struct gpu_cpu_kernel aiter_cpu_kernels[];

#endif
