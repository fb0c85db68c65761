/* SPDX-License-Identifier: MIT */
/* One layer at work: its rows, its routing, the backend it was made on. */
#ifndef MOEK_TOOLS_WORK_H
#define MOEK_TOOLS_WORK_H

#include "tools/expected.h"
#include "tools/tool.h"

struct work {
	/* set by the caller: */
	const struct options *options;
	struct session *session;
	const struct expected_file *against; /* file NULL: random rows */
	const char *name;
	uint32_t number;
	uint64_t index;
	struct moek_problem problem; /* types and max_tokens set */
	/* filled by work_start(): */
	uint64_t tokens;
	struct expected expected;
	void *input, *output; /* [tokens][hidden] */
	struct moek_router router;
	float *logits, *weights; /* [tokens][experts], [tokens][top_k] */
	int32_t *ids;            /* [tokens][top_k] */
	struct moek_layer *layer; /* NULL with ranks */
	struct parallel *parallel;      /* of tools/ranks_mpi.c */
	const struct moek_layer *shown; /* the layer, or this rank's part of it */
	struct moek_workspace *workspace;
	/* by the functions below: */
	double seconds;    /* of one forward */
	float *magnitudes; /* [tokens][hidden] */
};

/** Rows, routing, layer. work_end() in any case. */
int32_t work_start(struct work *work, struct moek_error *error_out);
/** Run the layer: work->output, and work->seconds of the shortest of up to three. */
int32_t work_forward(struct work *work, struct moek_error *error_out);
/** Sums of magnitudes from the backend that ran, or, if it knows none, from emulation
 *  beside it. */
int32_t work_magnitudes(struct work *work, struct moek_error *error_out);
/** Who the tokens go to: as the file says, or as the router. */
const int32_t *work_ids(const struct work *work);
const float *work_weights(const struct work *work);
struct moek_rows work_output(const struct work *work);
void work_end(struct work *work);

#endif
