/* SPDX-License-Identifier: MIT */
/* The one allocator of big memory: weights and workspaces. */
#ifndef MOEK_CORE_MEMORY_H
#define MOEK_CORE_MEMORY_H

#include <stdint.h>

/**
 * @bytes aligned to @align (a power of two, at least 64 is given). Large pieces are whole
 * pages, asked to be huge, and not touched: whoever writes first decides where they lie.
 * NULL: no memory, or 0 bytes.
 */
void *moek_memory_alloc(uint64_t bytes, uint64_t align);
void moek_memory_free(void *memory);

#endif
