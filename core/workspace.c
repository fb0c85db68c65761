/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/workspace.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/select.h"
#include "core/status.h"

#define GUARD_BYTES 256u
#define GUARD                                                                          \
	0x7fffu     /* as bf16, fp16 and, twice, fp32: a NaN that poison does not look \
	               like */
#define POISON 0xff /* repeated: a NaN of every float type, -1, code 15 */
#define SMALLEST_ALIGN 64u
#define MOST_ALIGN (UINT64_C(1) << 21)
#define BLOCK_BYTES (UINT64_C(1) << 20) /* filled on a device by one copy */

/* ---- placing ---- */

static int32_t malformed(const struct moek_plan_request *request,
                         const struct moek_buffer *buffer, const char *what,
                         uint64_t found, struct moek_error *error_out)
{
	return moek_fail(error_out, MOEK_PLUGIN, MOEK_RULE_WORKSPACE,
	                 "%s: workspace buffer \"%s\": %s, found %llu",
	                 request->backend,
	                 buffer->name != NULL ? buffer->name : "(no name)", what,
	                 (unsigned long long)found);
}

static int32_t check_buffer(const struct moek_plan_request *request,
                            const struct moek_buffer *buffer,
                            struct moek_error *error_out)
{
	if (buffer->name == NULL || buffer->name[0] == '\0')
		return malformed(request, buffer, "has no name", 0, error_out);
	if (moek_type_bytes(buffer->type) == 0)
		return malformed(request, buffer, "type must have whole bytes",
		                 buffer->type, error_out);
	if (buffer->align == 0 || (buffer->align & (buffer->align - 1)) != 0 ||
	    buffer->align > MOST_ALIGN)
		return malformed(request, buffer,
		                 "align must be a power of two up to 2097152",
		                 buffer->align, error_out);
	if (buffer->first_stage > buffer->last_stage)
		return malformed(request, buffer, "first_stage is after last_stage",
		                 buffer->first_stage, error_out);
	if (buffer->zeroed > 1 || buffer->per_worker > 1 || buffer->reserved != 0)
		return malformed(request, buffer,
		                 "zeroed and per_worker must be 0 or 1, reserved 0",
		                 buffer->zeroed > 1 ? buffer->zeroed
		                                    : buffer->per_worker,
		                 error_out);
	return MOEK_OK;
}

static uint64_t align_up(uint64_t value, uint64_t align, int *overflow)
{
	return moek_add(value, align - 1, overflow) & ~(align - 1);
}

static uint64_t buffer_bytes(const struct moek_buffer *buffer, uint32_t workers,
                             int *overflow)
{
	uint64_t one = moek_multiply(buffer->elements, moek_type_bytes(buffer->type),
	                             overflow);

	if (buffer->per_worker == 0)
		return one;
	return moek_multiply(align_up(one, buffer->align, overflow), workers, overflow);
}

static uint64_t align_of(const struct moek_placed *placed)
{
	return placed->buffer.align > SMALLEST_ALIGN ? placed->buffer.align
	                                             : SMALLEST_ALIGN;
}

/** Zeros are there before the first stage, and must be until the last. */
static uint32_t first_stage(const struct moek_buffer *buffer)
{
	return buffer->zeroed != 0 ? 0 : buffer->first_stage;
}

static int alive_together(const struct moek_buffer *a, const struct moek_buffer *b)
{
	return first_stage(a) <= b->last_stage && first_stage(b) <= a->last_stage;
}

/** End of a buffer already placed that @one would cover at @offset; 0: none is in the
 * way. */
static uint64_t in_the_way(const struct moek_plan *plan, const uint32_t *order,
                           uint32_t placed, const struct moek_placed *one,
                           uint64_t offset)
{
	for (uint32_t i = 0; i < placed; i++) {
		const struct moek_placed *other = &plan->placed[order[i]];

		if (alive_together(&other->buffer, &one->buffer) && other->bytes != 0 &&
		    offset < other->offset + other->bytes &&
		    other->offset < offset + one->bytes)
			return other->offset + other->bytes;
	}
	return 0;
}

/** Largest first, each at the lowest place that is free while it is alive. */
static void place_shared(struct moek_plan *plan, int *overflow)
{
	uint32_t order[MOEK_PLAN_MOST];

	for (uint32_t i = 0; i < plan->count; i++) {
		uint32_t at = i;

		while (at > 0 &&
		       plan->placed[order[at - 1]].bytes < plan->placed[i].bytes) {
			order[at] = order[at - 1];
			at--;
		}
		order[at] = i;
	}
	for (uint32_t i = 0; i < plan->count && !*overflow; i++) {
		struct moek_placed *one = &plan->placed[order[i]];
		uint64_t offset = 0, end;

		while ((end = in_the_way(plan, order, i, one, offset)) != 0 &&
		       !*overflow)
			offset = align_up(end, align_of(one), overflow);
		one->offset = offset;
		end = moek_add(offset, one->bytes, overflow);
		if (end > plan->bytes)
			plan->bytes = end;
	}
}

/** One after the other, a guard before and after each. */
static void place_guarded(struct moek_plan *plan, int *overflow)
{
	for (uint32_t i = 0; i < plan->count; i++) {
		struct moek_placed *one = &plan->placed[i];
		uint64_t before = moek_add(plan->bytes, GUARD_BYTES, overflow);

		one->offset = align_up(before, align_of(one), overflow);
		plan->bytes = moek_add(moek_add(one->offset, one->bytes, overflow),
		                       GUARD_BYTES, overflow);
	}
}

int32_t moek_plan_make(const struct moek_plan_request *request,
                       struct moek_plan *plan_out, struct moek_error *error_out)
{
	struct moek_plan plan = { .count = request->count,
		                  .guarded = request->guarded != 0,
		                  .poisoned = request->poisoned != 0,
		                  .align = MOEK_WORKSPACE_ALIGN };
	int overflow = 0;

	for (uint32_t i = 0; i < plan.count; i++) {
		struct moek_placed *one = &plan.placed[i];
		int32_t status = check_buffer(request, &request->buffers[i], error_out);

		if (status != MOEK_OK)
			return status;
		one->buffer = request->buffers[i];
		one->bytes = buffer_bytes(&one->buffer, request->workers, &overflow);
		plan.zeroed |= one->buffer.zeroed;
		if (one->buffer.align > plan.align)
			plan.align = one->buffer.align;
		if (overflow)
			break;
	}
	if (!overflow && plan.guarded)
		place_guarded(&plan, &overflow);
	else if (!overflow)
		place_shared(&plan, &overflow);
	if (overflow || plan.bytes > INT64_MAX)
		return moek_fail(error_out, MOEK_NO_MEMORY, MOEK_RULE_WORKSPACE,
		                 "%s: its workspace does not fit 64 bits",
		                 request->backend);
	*plan_out = plan;
	return MOEK_OK;
}

/* ---- memory of the host and of devices ---- */

int moek_space_same(const struct moek_space *a, const struct moek_space *b)
{
	return a->handle == b->handle && a->device == b->device &&
	       (a->plugin == NULL) == (b->plugin == NULL);
}

void *moek_space_alloc(const struct moek_space *space, uint64_t bytes, uint64_t align)
{
	void *memory = NULL;

	if (space->plugin == NULL)
		return moek_memory_alloc(bytes, align);
	if (bytes == 0 ||
	    space->plugin->alloc(space->handle, space->device, bytes, &memory) != 0)
		return NULL;
	if (((uintptr_t)memory & (align - 1)) != 0) {
		space->plugin->free(space->handle, space->device, memory);
		return NULL;
	}
	return memory;
}

void moek_space_free(const struct moek_space *space, void *memory)
{
	if (space->plugin == NULL)
		moek_memory_free(memory);
	else if (memory != NULL)
		space->plugin->free(space->handle, space->device, memory);
}

int32_t moek_space_copy(const struct moek_space *space, void *to, const void *from,
                        uint64_t bytes, uint32_t direction, void *stream,
                        struct moek_error *error_out)
{
	int32_t status = space->plugin->copy(space->handle, space->device, to, from,
	                                     bytes, direction, stream);

	if (status == MOEK_OK)
		return MOEK_OK;
	return moek_fail(error_out, MOEK_DEVICE, MOEK_RULE_NONE,
	                 "%s: copy of %llu bytes %s failed: %s", space->plugin->name,
	                 (unsigned long long)bytes,
	                 direction == MOEK_TO_DEVICE ? "to the device"
	                 : direction == MOEK_TO_HOST ? "to the host"
	                                             : "on the device",
	                 moek_status_name(status));
}

int32_t moek_space_wait(const struct moek_space *space, void *stream,
                        struct moek_error *error_out)
{
	int32_t status = space->plugin->wait(space->handle, space->device, stream);

	if (status == MOEK_OK)
		return MOEK_OK;
	return moek_fail(error_out, MOEK_DEVICE, MOEK_RULE_NONE,
	                 "%s: waiting for the device failed: %s", space->plugin->name,
	                 moek_status_name(status));
}

/* ---- the workspace ---- */

static void fill_guard(void *to)
{
	uint16_t guard = GUARD;

	for (size_t i = 0; i < GUARD_BYTES; i += sizeof(guard))
		memcpy((char *)to + i, &guard, sizeof(guard));
}

/** What a device is filled from: copies are its only operation. */
static int32_t make_blocks(struct moek_workspace *workspace,
                           const struct moek_workspace_request *request,
                           struct moek_error *error_out)
{
	char *block;
	int32_t status;

	if (request->space.plugin == NULL || (!request->zeros && !request->filled))
		return MOEK_OK;
	block = calloc(1, BLOCK_BYTES + GUARD_BYTES);
	if (block == NULL)
		return moek_fail_memory(error_out, "workspace");
	workspace->blocks = block;
	workspace->zeros = moek_space_alloc(&workspace->space, BLOCK_BYTES, 1);
	if (workspace->zeros == NULL)
		return moek_fail_memory(error_out, "workspace on the device");
	status = moek_space_copy(&workspace->space, workspace->zeros, block,
	                         BLOCK_BYTES, MOEK_TO_DEVICE, NULL, error_out);
	memset(block, POISON, BLOCK_BYTES);
	fill_guard(block + BLOCK_BYTES);
	return status;
}

static int32_t take_memory(struct moek_workspace *workspace,
                           const struct moek_workspace_request *request,
                           struct moek_error *error_out)
{
	if (request->memory == NULL) {
		workspace->owned = 1;
		workspace->memory = moek_space_alloc(&request->space, request->bytes,
		                                     request->align);
		if (workspace->memory == NULL)
			return moek_fail(
				error_out, MOEK_NO_MEMORY, MOEK_RULE_MEMORY,
				"workspace: out of memory, %llu bytes aligned to %llu",
				(unsigned long long)request->bytes,
				(unsigned long long)request->align);
		return MOEK_OK;
	}
	if (request->memory_bytes < request->bytes)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_WORKSPACE,
		                 "workspace: the memory given has %llu bytes, the "
		                 "layers need %llu",
		                 (unsigned long long)request->memory_bytes,
		                 (unsigned long long)request->bytes);
	if (((uintptr_t)request->memory & (request->align - 1)) != 0)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_WORKSPACE,
		                 "workspace: the memory given is not aligned to %llu",
		                 (unsigned long long)request->align);
	workspace->memory = request->memory;
	return MOEK_OK;
}

int32_t moek_workspace_open(const struct moek_workspace_request *request,
                            struct moek_workspace **workspace_out,
                            struct moek_error *error_out)
{
	struct moek_workspace *workspace = calloc(1, sizeof(*workspace));
	int32_t status;

	if (workspace == NULL)
		return moek_fail_memory(error_out, "workspace");
	workspace->space = request->space;
	workspace->bytes = request->bytes;
	status = take_memory(workspace, request, error_out);
	if (status == MOEK_OK)
		status = make_blocks(workspace, request, error_out);
	if (status != MOEK_OK) {
		moek_workspace_destroy(workspace);
		return status;
	}
	*workspace_out = workspace;
	return MOEK_OK;
}

void moek_workspace_destroy(struct moek_workspace *workspace)
{
	if (workspace == NULL)
		return;
	if (workspace->zeros != NULL)
		moek_space_free(&workspace->space, workspace->zeros);
	if (workspace->owned)
		moek_space_free(&workspace->space, workspace->memory);
	if (workspace->choice != NULL)
		moek_choice_destroy(workspace->choice);
	free(workspace->blocks);
	moek_workspace_destroy(workspace->shadow);
	free(workspace);
}

enum filling { FILL_ZEROS, FILL_POISON };

static int32_t fill(struct moek_workspace *workspace, char *to, uint64_t bytes,
                    enum filling filling, void *stream, struct moek_error *error_out)
{
	int zeros = filling == FILL_ZEROS;

	if (workspace->space.plugin == NULL) {
		memset(to, zeros ? 0 : POISON, bytes);
		return MOEK_OK;
	}
	for (uint64_t done = 0; done < bytes; done += BLOCK_BYTES) {
		uint64_t part = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
		int32_t status = moek_space_copy(
			&workspace->space, to + done,
			zeros ? workspace->zeros : workspace->blocks, part,
			zeros ? MOEK_ON_DEVICE : MOEK_TO_DEVICE, stream, error_out);

		if (status != MOEK_OK)
			return status;
	}
	return MOEK_OK;
}

static int32_t set_guard(struct moek_workspace *workspace, char *to, void *stream,
                         struct moek_error *error_out)
{
	if (workspace->space.plugin != NULL)
		return moek_space_copy(&workspace->space, to,
		                       (char *)workspace->blocks + BLOCK_BYTES,
		                       GUARD_BYTES, MOEK_TO_DEVICE, stream, error_out);
	fill_guard(to);
	return MOEK_OK;
}

static int32_t begin_buffer(const struct moek_plan *plan, const struct moek_placed *one,
                            struct moek_workspace *workspace, void *stream,
                            struct moek_error *error_out)
{
	char *start = workspace->memory + one->offset;
	int32_t status = MOEK_OK;

	if (one->buffer.zeroed != 0 || plan->poisoned)
		status = fill(workspace, start, one->bytes,
		              one->buffer.zeroed != 0 ? FILL_ZEROS : FILL_POISON,
		              stream, error_out);
	if (status != MOEK_OK || !plan->guarded)
		return status;
	status = set_guard(workspace, start - GUARD_BYTES, stream, error_out);
	if (status != MOEK_OK)
		return status;
	return set_guard(workspace, start + one->bytes, stream, error_out);
}

int32_t moek_plan_begin(const struct moek_plan *plan, struct moek_workspace *workspace,
                        void *stream, void **addresses_out,
                        struct moek_error *error_out)
{
	/* zeros last: a buffer may share memory with one that is poisoned */
	for (uint32_t i = 0; i < 2 * plan->count; i++) {
		const struct moek_placed *one = &plan->placed[i % plan->count];
		int32_t status = MOEK_OK;

		if ((one->buffer.zeroed != 0) == (i >= plan->count))
			status = begin_buffer(plan, one, workspace, stream, error_out);
		if (status != MOEK_OK)
			return status;
		addresses_out[i % plan->count] = workspace->memory + one->offset;
	}
	return MOEK_OK;
}

/** Offset of the first wrong byte of a guard, or GUARD_BYTES. */
static uint64_t guard_broken_at(const char *guard)
{
	char good[GUARD_BYTES];

	fill_guard(good);
	for (uint64_t i = 0; i < GUARD_BYTES; i++)
		if (guard[i] != good[i])
			return i;
	return GUARD_BYTES;
}

static int32_t end_guard(struct moek_workspace *workspace, const char *guard,
                         void *stream, uint64_t *broken_out,
                         struct moek_error *error_out)
{
	char copy[GUARD_BYTES];
	int32_t status = MOEK_OK;

	if (workspace->space.plugin != NULL) {
		status = moek_space_copy(&workspace->space, copy, guard, GUARD_BYTES,
		                         MOEK_TO_HOST, stream, error_out);
		if (status == MOEK_OK)
			status = moek_space_wait(&workspace->space, stream, error_out);
		guard = copy;
	}
	if (status == MOEK_OK)
		*broken_out = guard_broken_at(guard);
	return status;
}

static int32_t broken(const struct moek_placed *one, const char *backend,
                      uint64_t bytes, const char *where, struct moek_error *error_out)
{
	return moek_fail(
		error_out, MOEK_PLUGIN, MOEK_RULE_WORKSPACE,
		"%s: forward wrote outside its workspace buffer \"%s\" of %llu bytes: "
		"%llu bytes %s",
		backend, one->buffer.name, (unsigned long long)one->bytes,
		(unsigned long long)bytes, where);
}

int32_t moek_plan_end(const struct moek_plan *plan, struct moek_workspace *workspace,
                      void *stream, const char *backend, struct moek_error *error_out)
{
	uint64_t at = 0;

	for (uint32_t i = 0; plan->guarded && i < plan->count; i++) {
		const struct moek_placed *one = &plan->placed[i];
		const char *start = workspace->memory + one->offset;
		int32_t status = end_guard(workspace, start + one->bytes, stream, &at,
		                           error_out);

		if (status == MOEK_OK && at < GUARD_BYTES)
			return broken(one, backend, at, "after its end", error_out);
		if (status == MOEK_OK)
			status = end_guard(workspace, start - GUARD_BYTES, stream, &at,
			                   error_out);
		if (status != MOEK_OK)
			return status;
		if (at < GUARD_BYTES)
			return broken(one, backend, GUARD_BYTES - at,
			              "before its start", error_out);
	}
	return MOEK_OK;
}
