/* SPDX-License-Identifier: MIT */
/**
 * libmoek-mpi: one expert layer over the ranks of an MPI communicator. Each rank holds some
 * of the experts; tokens travel to the ranks that hold theirs, results travel back.
 *
 * Every function here is collective: all ranks of the communicator call it, in the same
 * order, from a thread that may call MPI (MPI_THREAD_FUNNELED is enough). One that fails
 * fails on all ranks with the same status and text, which names the first rank that
 * failed: "rank 2 of 4: ...". A rank that dies ends the job, as MPI_ERRORS_ARE_FATAL does.
 * Between MPI_Init() and MPI_Finalize(); one call at a time on one moek_ep.
 */
#ifndef MOEK_PARALLEL_H
#define MOEK_PARALLEL_H

#include <mpi.h>

#include <moek/moek.h>

#ifdef __cplusplus
extern "C" {
#endif

struct moek_ep;           /* the ranks of a communicator that agree */
struct moek_ep_layer;     /* one layer over them */
struct moek_ep_workspace; /* buffers for rows on their way, shared by layers */

/**
 * Duplicate @communicator and see that all ranks have the same version of moek and the
 * same settings (but for threads and folders of plugins): MOEK_BAD_CONFIG names the first
 * difference. @registry is borrowed until moek_ep_close(). NULL: this rank could not open
 * one; all are then told so, or what *error_out (zeroed, or of the failure) says.
 */
MOEK_API int32_t moek_ep_open(MPI_Comm communicator, struct moek_registry *registry,
                              struct moek_ep **ep_out, struct moek_error *error_out);

/** After its layers and workspaces are destroyed. NULL is fine. */
MOEK_API void moek_ep_close(struct moek_ep *ep);

/**
 * Agree on an outcome: MOEK_OK when each rank's @status is, else that of the first rank
 * whose is not. @error: in, why this rank failed; out, what all are told. Not NULL.
 */
MOEK_API int32_t moek_ep_agree(struct moek_ep *ep, int32_t status, struct moek_error *error);

/**
 * See that all ranks opened the same checkpoint: config.json, every tensor's name, type and
 * shape, and the bytes of the routers. MOEK_BAD_FILE names the first rank that has another.
 */
MOEK_API int32_t moek_ep_same_checkpoint(struct moek_ep *ep,
                                         const struct moek_checkpoint *checkpoint,
                                         struct moek_error *error_out);

/** What comes back to a token's rank. */
enum moek_combine {
	/** One fp32 row for each slot; weighed and summed there, slots in order, rounded
	 *  once. The result does not depend on the number of ranks, nor on where experts
	 *  are: it has the bits of one process, on host backends whose rows do not depend
	 *  on those beside them. With T shards each sends a row for each slot, which are
	 *  summed in fp32 in the order of shards first: the result depends on T alone, and
	 *  is that of one process but for the order of sums. */
	MOEK_COMBINE_SLOTS = 0,
	/** One row of output_type for each rank: the weighted sum of its experts. Summed
	 *  in fp32 in the order of ranks. Fewer bytes; one more rounding to output_type for
	 *  each rank, and another order of sums. */
	MOEK_COMBINE_RANKS = 1
};

/** How rows travel to the ranks of their experts. */
enum moek_wire {
	MOEK_WIRE_AS_IS = 0, /* in input_type: nothing is lost */
	/** E4M3, each 128 columns with an E8M0 scale: the least power of two by which
	 *  their largest magnitude comes to at most 448. Rounded once, to nearest, ties to
	 *  even: off by at most 2^-4 of the value, or 2^-10 of the scale where that is
	 *  more. All rows, those that stay on their rank too, so that the result does not
	 *  depend on ranks: it has the bits of one process on such rows. Powers of two,
	 *  since an element times its scale then is a bf16 number, and is not rounded
	 *  again. 128 columns with an infinity or a NaN arrive as NaN. input_type is bf16
	 *  or fp32; fp16 is refused, its exponents are too few. */
	MOEK_WIRE_FP8 = 1
};

struct moek_ep_layer_options {
	uint32_t struct_size; /* MOEK_EP_LAYER_OPTIONS_SIZE_1_0 */
	uint32_t combine;     /* enum moek_combine */
	uint32_t wire;        /* enum moek_wire */
	uint32_t reserved;    /* 0 */
	/** As one process would state it: experts_local = experts, no MOEK_EXPERT_MAP.
	 *  max_tokens counts those of one rank.
	 *
	 *  shards = T > 1: tensor parallel, too. T adjacent ranks are a group; rank r is
	 *  shard r % T of each expert of its group, which is what the problem and @source
	 *  must be of, as moek_checkpoint_open_with() gives them. T divides the ranks. */
	const struct moek_problem *problem;
	/** [ranks / shards][experts], 1: this rank (or group) holds this expert. Every
	 *  expert is held, by one or by several (replicas); some may hold none. NULL:
	 *  contiguous, the first experts % ranks hold one more. moek_place() fills it.
	 *  Copied. */
	const uint8_t *placement;
	const char *request; /* as of moek_choose() */
	const char *label;
	/** Tokens of one rank that travel at once; the next ones travel while these are
	 *  computed. 0: as many as give 16384 slots on all ranks, at least 16. */
	uint64_t chunk_tokens;
	moek_progress_fn progress; /* experts prepared on this rank; may be NULL */
	void *progress_self;
};
#define MOEK_EP_LAYER_OPTIONS_SIZE_1_0 (24u + 6u * (uint32_t)sizeof(void *))

/**
 * Prepare the experts that this rank holds; @source is asked for no others, and is read
 * during the call only. All ranks must be given the same options, and run on the same
 * backend. MOEK_REFUSED and others as of moek_choose() and moek_layer_create().
 */
MOEK_API int32_t moek_ep_layer_create(struct moek_ep *ep,
                                      const struct moek_ep_layer_options *options,
                                      const struct moek_source *source,
                                      struct moek_ep_layer **layer_out,
                                      struct moek_error *error_out);
MOEK_API void moek_ep_layer_destroy(struct moek_ep_layer *layer);

/** The layer of this rank's experts; NULL when it holds none. */
MOEK_API const struct moek_layer *moek_ep_layer_local(const struct moek_ep_layer *layer);

/** Buffers for @layers, as large as the largest needs: all that a forward will use. */
MOEK_API int32_t moek_ep_workspace_create(struct moek_ep_layer *const *layers,
                                          uint64_t count,
                                          struct moek_ep_workspace **workspace_out,
                                          struct moek_error *error_out);
MOEK_API void moek_ep_workspace_destroy(struct moek_ep_workspace *workspace);

/** What one rank did in its last forward. */
struct moek_ep_stats {
	uint32_t struct_size;  /* MOEK_EP_STATS_SIZE_1_0 */
	uint32_t wire;         /* enum moek_wire */
	uint64_t rows_out;     /* token rows sent to other ranks: one for each pair of a token
	                          and a rank that holds experts, or shards, of it */
	uint64_t results_out;  /* result rows sent to other ranks */
	uint64_t bytes_out;    /* of both, ids and weights included */
	uint64_t slots;        /* computed here */
	double compute_seconds, wait_seconds; /* in the backend; for messages */
};
#define MOEK_EP_STATS_SIZE_1_0 56u

/**
 * Run the layer over this rank's tokens: host rows (any row_stride), ids and weights as of
 * moek_layer_forward(), from the same router as without MPI. 0 tokens are fine: the rank
 * then serves the others. @forward->workspace, stream and trace are NULL. Allocates nothing.
 *
 * Each row is sent once to each rank that holds experts of its token. Of replicas, the
 * token's own rank (or group) is taken, then one that it is sent to anyway, then in turns
 * by token.
 *
 * Rows on a device are refused (MOEK_BAD_ARGUMENT), also where MPI could read them
 * (MPIX_Query_cuda_support()): the host copies them to and fro. A layer on a device takes
 * host rows, which the core stages. Not through NCCL or RCCL: how many rows travel is
 * known only after ids were read on the host, and MPI moves them on every machine.
 */
MOEK_API int32_t moek_ep_forward(struct moek_ep_layer *layer,
                                 struct moek_ep_workspace *workspace,
                                 const struct moek_forward *forward,
                                 struct moek_error *error_out);

MOEK_API int32_t moek_ep_layer_stats(const struct moek_ep_layer *layer,
                                     struct moek_ep_stats *stats_out);

#ifdef __cplusplus
}
#endif

#endif
