/* SPDX-License-Identifier: MIT */
/* Runs kernels on the CPU: one fiber for each thread of a block, one block after
 * another. A barrier or wave operation that not all reach is an error, not a hang. */
#ifndef MOEK_TESTS_GPU_FIBERS_H
#define MOEK_TESTS_GPU_FIBERS_H

#include <stddef.h>

struct gpu_launch {
	void (*call)(const void *kernel, const void *args);
	const void *kernel;
	const void *args;
	unsigned int grid[3];
	unsigned int threads; /* of a block: a multiple of `wave`, at most 1024 */
	unsigned int wave;    /* lanes: 32 or 64 */
	int reverse;          /* lanes, waves and blocks from the last to the first */
};

/**
 * LDS holds NaN patterns before each block. Returns 0, or 1 with *error_out (static
 * text). One at a time in the process.
 */
int gpu_fibers_run(const struct gpu_launch *launch, const char **error_out);

#endif
