/* SPDX-License-Identifier: MIT */
/* One expert layer on the backend that won. layer.c makes it, forward.c runs it. */
#ifndef MOEK_CORE_LAYER_H
#define MOEK_CORE_LAYER_H

#include <stdatomic.h>

#include "core/select.h"
#include "core/workspace.h"

/** Buffers of the core's own, placed beside the backend's. */
enum moek_own {
	MOEK_OWN_IDS,     /* host: cleaned ids; device: ids of host tokens */
	MOEK_OWN_WEIGHTS, /* device: router weights of host tokens */
	MOEK_OWN_INPUT,   /* host: rows times router weights; device: host rows */
	MOEK_OWN_OUTPUT,  /* device: what becomes host rows; of a reference, in fp32 */
	MOEK_OWN_SLOTS,   /* fp32, when the backend leaves the sum to others */
	MOEK_OWN_MAGNITUDES, /* of a reference */
	MOEK_OWN_COUNT
};
#define MOEK_OWN_NONE UINT32_MAX

struct moek_layer {
	struct moek_choice *choice; /* an owner of it */
	const struct moek_backend *backend;
	struct moek_problem
		problem; /* as asked: with the bits that the core takes care of */
	const struct moek_workers *workers;
	struct moek_space space;
	int on_device;
	int is_reference; /* gives fp32 and sums of magnitudes, in its workspace */
	uint32_t checks;  /* bits of enum moek_check */
	struct moek_shadowing *shadow; /* NULL: none */
	void *weights;
	uint64_t weight_bytes;
	void *handle;     /* what create() gave */
	int created;      /* handle is to be destroyed */
	int32_t *map;     /* [experts] -> local or -1; NULL: all are local */
	void *device_map; /* the same there */
	struct moek_plan plan;
	uint32_t buffers;             /* of the backend: the first in the plan */
	uint32_t own[MOEK_OWN_COUNT]; /* index in the plan, or MOEK_OWN_NONE */
	_Atomic uint32_t busy;
};

/** What moek_layer_create() does for one choice, which it takes over, on failure too.
 */
struct moek_layer_request {
	struct moek_choice *choice;
	const struct moek_source *source;
	const struct moek_layer_options *options;
	uint32_t checks;  /* bits of enum moek_check */
	int is_reference; /* of a problem whose output_type is fp32 */
};
int32_t moek_layer_make(const struct moek_layer_request *request,
                        struct moek_layer **layer_out, int *another_may_out,
                        struct moek_error *error_out);

/** What a reference says of a forward. */
struct moek_wanted {
	const float *values, *magnitudes; /* [tokens][hidden] */
};

/** Run a layer that was made as a reference on the host rows of @like. Its answer lies
 * in
 *  @workspace. Both are the caller's alone. */
int32_t moek_forward_reference(struct moek_layer *layer,
                               struct moek_workspace *workspace,
                               const struct moek_forward *like,
                               struct moek_wanted *wanted_out,
                               struct moek_error *error_out);

/** A hook of the layer's backend failed: only memory and device are its to report. */
int32_t moek_layer_hook_failed(const struct moek_backend *backend, const char *what,
                               int32_t status, struct moek_error *error_out);

/** Mark an object in use; 0: it is already. */
int moek_take(_Atomic uint32_t *busy);
void moek_release(_Atomic uint32_t *busy);

#endif
