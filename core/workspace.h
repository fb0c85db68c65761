/* SPDX-License-Identifier: MIT */
/* Where the buffers of a layer lie in scratch memory, and how they are watched. */
#ifndef MOEK_CORE_WORKSPACE_H
#define MOEK_CORE_WORKSPACE_H

#include <stdatomic.h>

#include <moek/moek.h>

#define MOEK_PLAN_MOST (MOEK_MAX_BUFFERS + 8u) /* the plugin's and the core's own */
#define MOEK_WORKSPACE_ALIGN 256u

struct moek_placed {
	struct moek_buffer buffer;
	uint64_t offset;
	uint64_t bytes; /* of all copies */
};

/** The buffers of one layer. Fixed when the layer is made. */
struct moek_plan {
	uint32_t count;
	uint32_t guarded;  /* 1: nothing shares memory, each buffer is between guards */
	uint32_t poisoned; /* 1: what is not zeroed is filled with NaN */
	uint32_t zeroed;  /* 1: some buffer is zeroed before each forward */
	uint64_t bytes, align;
	struct moek_placed placed[MOEK_PLAN_MOST];
};

struct moek_plan_request {
	const struct moek_buffer *buffers;
	uint32_t count;
	uint32_t workers; /* copies of a per_worker buffer */
	int guarded, poisoned;
	const char *backend; /* for errors */
};

/** Place the buffers. MOEK_PLUGIN: a buffer is malformed. MOEK_NO_MEMORY: over 64 bits.
 */
int32_t moek_plan_make(const struct moek_plan_request *request,
                       struct moek_plan *plan_out, struct moek_error *error_out);

/** Memory of the host, or of a device through its plugin. */
struct moek_space {
	const struct moek_plugin *plugin; /* NULL: the host */
	void *handle;
	const struct moek_device *device;
};

int moek_space_same(const struct moek_space *a, const struct moek_space *b);
/** @bytes aligned to @align, or NULL. */
void *moek_space_alloc(const struct moek_space *space, uint64_t bytes, uint64_t align);
void moek_space_free(const struct moek_space *space, void *memory);
int32_t moek_space_copy(const struct moek_space *space, void *to, const void *from,
                        uint64_t bytes, uint32_t direction, void *stream,
                        struct moek_error *error_out);
int32_t moek_space_wait(const struct moek_space *space, void *stream,
                        struct moek_error *error_out);

struct moek_workspace {
	struct moek_space space;
	struct moek_choice *choice; /* device: keeps the space alive */
	char *memory;
	uint64_t bytes;
	int owned;
	void *zeros;  /* device: a block of zeros there, to copy from */
	struct moek_workspace *shadow; /* for the shadows of the layers; NULL: none */
	void *blocks; /* device, with checks: one block of poison, then guards, on the
	                 host */
	_Atomic uint32_t busy;
};

/** What moek_workspace_open() is asked for. */
struct moek_workspace_request {
	struct moek_space space;
	uint64_t bytes, align;
	void *memory; /* the host's, of memory_bytes; NULL: allocate */
	uint64_t memory_bytes;
	int zeros, filled; /* some plan has zeroed buffers; guards or poison */
};

int32_t moek_workspace_open(const struct moek_workspace_request *request,
                            struct moek_workspace **workspace_out,
                            struct moek_error *error_out);

/** Before a forward: addresses of the plan's buffers; zeros, poison and guards set. */
int32_t moek_plan_begin(const struct moek_plan *plan, struct moek_workspace *workspace,
                        void *stream, void **addresses_out,
                        struct moek_error *error_out);

/** After it: with guards, MOEK_PLUGIN names the buffer whose guard is broken. On a
 *  device this waits for @stream. */
int32_t moek_plan_end(const struct moek_plan *plan, struct moek_workspace *workspace,
                      void *stream, const char *backend, struct moek_error *error_out);

#endif
