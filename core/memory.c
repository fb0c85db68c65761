/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/status.h"

#define SMALLEST_ALIGN 64u
#define HUGE_PAGE ((uint64_t)2 << 20)
#define HEADER_BYTES 64u

/** Stands right below the address that is given out. */
struct header {
	void *base;
	size_t mapped; /* 0: malloc'ed */
};

static void *give_out(void *base, uint64_t align, size_t mapped)
{
	uintptr_t address = ((uintptr_t)base + HEADER_BYTES + align - 1) & ~(align - 1);
	struct header header = { base, mapped };

	memcpy((char *)address - sizeof(header), &header, sizeof(header));
	return (void *)address;
}

static void *alloc_pages(uint64_t bytes, uint64_t total, uint64_t align)
{
	void *base = mmap(NULL, total, PROT_READ | PROT_WRITE,
	                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *address;

	if (base == MAP_FAILED)
		return NULL;
	address = give_out(base, align, total);
	/* from the piece on only: the header's page stays a small one. Advice: may
	 * fail. */
	madvise(address, bytes, MADV_HUGEPAGE);
	return address;
}

void *moek_memory_alloc(uint64_t bytes, uint64_t align)
{
	int big = bytes >= HUGE_PAGE, overflow = 0;
	uint64_t total;
	void *base;

	if (bytes == 0 || (align & (align - 1)) != 0)
		return NULL;
	if (align < SMALLEST_ALIGN)
		align = SMALLEST_ALIGN;
	if (big && align < HUGE_PAGE)
		align = HUGE_PAGE;
	total = moek_add(moek_add(bytes, align, &overflow), HEADER_BYTES, &overflow);
	if (overflow || total > SIZE_MAX / 2)
		return NULL;
	if (big)
		return alloc_pages(bytes, total, align);
	base = malloc(total);
	return base != NULL ? give_out(base, align, 0) : NULL;
}

void moek_memory_free(void *memory)
{
	struct header header;

	if (memory == NULL)
		return;
	memcpy(&header, (char *)memory - sizeof(header), sizeof(header));
	if (header.mapped != 0)
		munmap(header.base, header.mapped);
	else
		free(header.base);
}
