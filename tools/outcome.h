/* SPDX-License-Identifier: MIT */
/* What came of one layer, as a row of a table or as JSON. */
#ifndef MOEK_TOOLS_OUTCOME_H
#define MOEK_TOOLS_OUTCOME_H

#include "tools/compare.h"
#include "tools/writer.h"

struct outcome {
	const char *layer, *backend;
	uint64_t tokens, elements; /* elements: of the output */
	uint64_t weight_bytes, workspace_bytes;
	double seconds; /* of one forward */
	int compared;   /* with a file: outputs and routing count, else norm */
	struct comparison outputs;
	int routing_known; /* the file has router_logits */
	struct routing routing;
	struct moek_shadow shadow; /* reference NULL: none */
	int wants_shadow;          /* --shadow, so that there has to be one */
	double norm;
	uint64_t not_finite;
};

int outcome_is_wrong(const struct outcome *outcome);
void outcome_print_heading(int compared);
/** One row, and below it a line for each thing that is wrong. */
void outcome_print(const struct outcome *outcome);
void outcome_write(struct writer *writer, const struct outcome *outcome);

#endif
