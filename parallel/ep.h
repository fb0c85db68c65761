/* SPDX-License-Identifier: MIT */
/* What the files of libmoek-mpi share. */
#ifndef MOEK_PARALLEL_EP_H
#define MOEK_PARALLEL_EP_H

#include <moek/parallel.h>

struct moek_ep {
	MPI_Comm communicator; /* our own */
	int rank, ranks;
	struct moek_registry *registry;
};

struct moek_ep_layer {
	struct moek_ep *ep;
	struct moek_problem problem; /* the whole layer's */
	uint32_t combine, wire;
	int shards, group,
		groups;       /* ranks of a group; this rank's; how many there are */
	uint64_t chunk;       /* tokens of one rank in one round */
	uint64_t most_rounds; /* of max_tokens */
	uint64_t fan_out;     /* most ranks that a token goes to */
	/* Which groups hold an expert: owners[owner_starts[e]] .. owners[owner_starts[e
	 * + 1] - 1]. */
	uint64_t *owner_starts;
	int32_t *owners;
	int32_t *map; /* expert -> local one, or -1 */
	struct moek_problem local_problem;
	struct moek_layer *local; /* NULL: this rank holds no expert */
	/* A record: the row as wire.c has it, top_k ids, with_weights: top_k weights.
	 */
	int with_weights;
	uint64_t row_bytes, record_bytes, result_bytes;
	MPI_Datatype record, result;
	/* [ranks][1 + most_rounds]: rounds of the sender (or a status), records of each
	 */
	int *counts_out, *counts_in;
	struct moek_ep_stats stats;
};

/* wire.c */

/** Bytes of a row of a record; a multiple of 4. */
uint64_t wire_row_bytes(const struct moek_ep_layer *layer);
/** All of them. */
void wire_write(const struct moek_ep_layer *layer, const void *row, uint8_t *record);
/** A row of input_type. */
void wire_read(const struct moek_ep_layer *layer, const uint8_t *record, void *row);

/* open.c */

/** Fill *error_out, if not NULL, and return @status. */
int32_t ep_fail(struct moek_error *error_out, int32_t status, uint32_t rule,
                const char *format, ...) __attribute__((format(printf, 4, 5)));
int32_t ep_fail_memory(struct moek_error *error_out, const char *what);

/** See that @text is the same on all ranks but those where it is empty. If not, @status
 *  and the first line that differs: "rank 1 has WHAT X, rank 0 Y". */
int32_t ep_same(struct moek_ep *ep, int32_t status, const char *what, const char *text,
                struct moek_error *error_out);

/** FNV-1a. Begin with EP_HASH. */
#define EP_HASH UINT64_C(0xcbf29ce484222325)
uint64_t ep_hash(uint64_t hash, const void *bytes, uint64_t count);

#endif
