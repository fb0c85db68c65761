/* SPDX-License-Identifier: MIT */
/* The buffers of a forward. */
#ifndef MOEK_PARALLEL_WORKSPACE_H
#define MOEK_PARALLEL_WORKSPACE_H

#include "parallel/ep.h"

#define NOWHERE (-1) /* a choice that is not routed */
#define SIDES 3      /* arriving, computed, going back */

/* Arrays of [ranks] within struct side.counts. Of records: */
enum {
	OUT_COUNT,
	OUT_START,
	IN_COUNT,
	IN_START,
	/* of result rows, that go out from here and that come in: */
	RESULT_OUT_COUNT,
	RESULT_OUT_START,
	RESULT_IN_COUNT,
	RESULT_IN_START,
	SIDE_COUNTS
};

/** One round on its way. */
struct side {
	uint64_t first, tokens; /* of this rank */
	uint8_t *out, *in;      /* records, by rank */
	uint8_t *results_out, *results_in;
	/** MOEK_COMBINE_SLOTS: [tokens][top_k][shards], where in results_in a slot is.
	 *  MOEK_COMBINE_RANKS: [tokens][fan_out], the rows of a token by rank. NOWHERE:
	 * none. */
	int32_t *places;
	int *counts; /* [SIDE_COUNTS][ranks] */
	MPI_Request dispatch, combine;
};

/** All in elements or bytes, all uint64_t. */
struct workspace_sizes {
	uint64_t choices;                                       /* max_tokens * top_k */
	uint64_t places;                                        /* of one round */
	uint64_t out, in, results_out, results_in, local_input; /* bytes */
	uint64_t local_ids;
};

struct moek_ep_workspace {
	struct workspace_sizes sizes;
	struct moek_workspace *local; /* NULL: no layer has experts here */
	int32_t *groups;              /* [tokens][top_k]: where a choice goes */
	int32_t *local_ids;
	float *local_weights;
	uint8_t *local_input;
	int *cursors; /* [2][ranks] */
	struct side sides[SIDES];
};

#endif
