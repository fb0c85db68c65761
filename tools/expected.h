/* SPDX-License-Identifier: MIT */
/* What --against FILE holds of one layer. */
#ifndef MOEK_TOOLS_EXPECTED_H
#define MOEK_TOOLS_EXPECTED_H

#include <moek/moek.h>

struct expected_file {
	const char *path;
	struct moek_safetensors *file;
};

struct expected {
	uint64_t tokens;
	uint32_t type;  /* of input, as in the file */
	void *input;    /* [tokens][hidden] */
	float *output;  /* [tokens][hidden] */
	float *logits;  /* [tokens][experts], or NULL: not in the file */
	int32_t *ids;   /* [tokens][top_k], or NULL */
	float *weights; /* [tokens][top_k]; NULL just when ids is */
};

/** Tokens and type of hidden_in of @layer ("layers.3"), from the header alone. */
int32_t expected_input(const struct expected_file *file, const char *layer,
                       uint64_t *tokens_out, uint32_t *type_out,
                       struct moek_error *error_out);

/** At most @most tokens of @layer, checked against the sizes of @problem. */
int32_t expected_read(const struct expected_file *file, const char *layer,
                      const struct moek_problem *problem, uint64_t most,
                      struct expected *expected_out, struct moek_error *error_out);
void expected_free(struct expected *expected);

#endif
