/* SPDX-License-Identifier: MIT */
/* The kernels of plugins/rdna3, built for the CPU, by name. */
#ifndef MOEK_TESTS_GPU_RDNA3_CPU_H
#define MOEK_TESTS_GPU_RDNA3_CPU_H

#include <stddef.h>

struct rdna3_cpu_kernel {
	const char *name;
	const void *kernel;
	unsigned int threads;
};
/* a NULL name ends the list */
extern const struct rdna3_cpu_kernel rdna3_cpu_kernels[];
extern const size_t rdna3_cpu_args_bytes;

/* for struct gpu_launch */
void rdna3_cpu_call(const void *kernel, const void *args);

#endif
