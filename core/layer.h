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
	MOEK_OWN_OUTPUT,  /* device: what becomes host rows */
	MOEK_OWN_SLOTS,   /* fp32, when the backend leaves the sum to others */
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
	int on_device, checks;
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

/** A hook of the layer's backend failed: only memory and device are its to report. */
int32_t moek_layer_hook_failed(const struct moek_backend *backend, const char *what,
                               int32_t status, struct moek_error *error_out);

/** Mark an object in use; 0: it is already. */
int moek_take(_Atomic uint32_t *busy);
void moek_release(_Atomic uint32_t *busy);

#endif
