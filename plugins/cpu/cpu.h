/* SPDX-License-Identifier: MIT */
/* What the files of this plugin share: the weight layout and the kernel tables. */
#ifndef CPU_H
#define CPU_H

#include <moek/experts.h>

/* Outputs of a panel; of gate_up 16 gate rows, then their 16 up rows. */
#define ROWS 32u
#define HALF (ROWS / 2)
/* Columns of a step; its bytes when weights have four bits. */
#define STEP 32u
#define STEP_BYTES (ROWS * STEP / 2)
/* Most tokens of one kernel call, and of a call of a kernel for many. */
#define TILE 4u
#define MANY 32u
/* Bytes of a cache line. */
#define LINE 64u

/**
 * How a unit of a panel (a head with scales and zero points, then steps of nibbles) is
 * built. Two sets of scales share a head where one would leave it no whole cache line.
 */
enum format {
	INT4_16,      /* unit: 1 step, scales of columns 0..15, then of 16..31 */
	INT4_32,      /* unit: 1 step */
	INT4_MANY,    /* unit: group_size / 32 steps */
	INT4_ZERO_16, /* the same with zero points behind the scales */
	INT4_ZERO_32,
	INT4_ZERO_MANY,
	INT8_ZERO_MANY, /* the same in bytes */
	INT8_MANY,
	MXFP4_PAIR, /* unit: 2 steps, two sets of scales */
	ROWS_BF16,  /* unit: all steps, no head */
	ROWS_F16,
	ROWS_F32,
	FORMATS
};

/** What the products are made of. It decides how rows of activations are packed. */
enum arithmetic {
	BY_F32,  /* fp32 multiply and add; packed: fp32 */
	BY_BF16, /* bf16 dot products, exact for 4-bit weights; packed: pairs of bf16 */
	BY_INT8, /* int8 dot products; packed: struct int8_step */
	ARITHMETICS
};

/** 32 activations as int8 with one scale. */
struct int8_step {
	int32_t start[2]; /* -(zero point) * sum of the codes; of each half with INT4_16
	                   */
	float scale;
	uint32_t unused;
	int8_t codes[32]; /* of each 8 columns: the 4 even ones, then the 4 odd ones */
};

/**
 * One projection in the plugin's layout. A panel is one stream: units of [head][steps].
 * A step is 32 rows x 32 columns, read from its first line to its last, as the
 * processor's own prefetching likes it: for each 8 columns, or 4 of int8, 32 dwords,
 * one of each row, the lowest nibble or byte first. Unquantised, for each column the 32
 * rows; with bf16 for each two columns, 8j + k and 8j + k + 4, 32 dwords that hold
 * both.
 */
struct layout {
	uint32_t format;        /* enum format */
	uint32_t scale;         /* enum moek_type of the scales, kept as they come */
	uint32_t scale_bytes;   /* of one scale */
	uint32_t sets;          /* of scales in a head */
	uint64_t rows, columns; /* without padding; gate_up: rows = intermediate */
	uint64_t group;         /* columns of one scale */
	uint64_t steps;         /* of a row, padding included */
	uint64_t step_bytes;
	uint64_t unit_steps; /* that share a head; the last unit may have fewer */
	uint64_t head_bytes;
	uint64_t panel_bytes;
	uint64_t panels;
	uint64_t bytes; /* of one expert: panels, then biases if any */
	uint32_t bias;
	uint32_t gated; /* panels have gate and up rows */
};

/** Everything of a problem that is fixed before weights come. */
struct plan {
	struct layout gate_up, down;
	uint64_t expert_bytes, bytes; /* of one, of all */
};

/** One call of a kernel: the sums of a panel for some rows of activations. */
struct panel {
	const struct layout *layout;
	const uint8_t *weights;
	uint64_t count;            /* of rows */
	const uint8_t *rows[MANY]; /* packed activations */
	const uint8_t *ahead;      /* prefetched: `ahead_lines` lines in each step */
	uint64_t ahead_lines;
	float sums[MANY][ROWS];
};

/** How a step of 32 fp32 activations is packed. */
struct packing {
	uint32_t type;       /* they are rounded to it first */
	uint32_t arithmetic; /* enum arithmetic */
	int32_t zero;        /* BY_INT8: start = zero * sum */
	uint32_t halves;     /* BY_INT8: one start for each half */
	float scale_factor;  /* BY_INT8 */
	uint64_t step_bytes;
};

/** The function between the GEMMs. */
struct function {
	uint32_t kind; /* enum moek_activation */
	uint32_t gated;
	float alpha, beta, limit;
};

/** The code of one instruction set. */
struct kernels {
	uint32_t bf16; /* BY_BF16 is there */
	void (*panel[ARITHMETICS][FORMATS][TILE])(struct panel *panel);
	/** For up to MANY rows, each as far from the one before; NULL: there is none.
	 */
	void (*many[ARITHMETICS][FORMATS])(struct panel *panel);
	/** `count` values of `type` at @from to fp32. */
	void (*widen)(uint32_t type, const void *from, uint64_t count, float *to);
	/** The other way: one rounding. */
	void (*narrow)(uint32_t type, const float *from, uint64_t count, void *to);
	void (*pack)(const struct packing *packing, const float *values, uint8_t *to);
	/** 16 results; @up is not read when not gated. */
	void (*activate)(const struct function *function, const float *gate,
	                 const float *up, float *to);
};

/** Instruction sets, worst first. */
enum level {
	LEVEL_PLAIN,
	LEVEL_AVX2,
	LEVEL_AVXVNNI,
	LEVEL_AVX512VNNI,
	LEVEL_AVX512BF16,
	LEVEL_AMX,
	LEVELS
};

extern const char *const cpu_level_names[LEVELS];
/** NULL: not in this build. */
const struct kernels *cpu_kernels(enum level level);
/** Levels, as bits 1 << level, that a blank-separated list of the operating system's
 * words allows. */
uint32_t cpu_levels_of_words(const char *features);
/** Levels that this CPU has and this operating system lets run. */
uint32_t cpu_levels_here(void);
/** Asks the operating system to let this process use tiles: 0, or its errno. */
int cpu_ask_for_tiles(void);

/** bf16, fp16 or fp32 weights. */
int cpu_is_rows(const struct moek_scheme *scheme);
/** Sizes of a problem. 0: they do not fit 64 bits. */
int cpu_plan(const struct moek_problem *problem, struct plan *plan_out);
uint32_t cpu_arithmetic(const struct kernels *kernels,
                        const struct moek_problem *problem);

struct cpu_layer {
	struct moek_problem problem;
	struct plan plan;
	const struct kernels *kernels;
	struct function function;
	struct packing input, hidden; /* of the first and of the second GEMM */
	uint8_t *weights;
};

void cpu_packing(const struct layout *layout, const struct kernels *kernels,
                 const struct moek_problem *problem, struct packing *packing_out);
void cpu_pack_matrix(const struct layout *layout, const struct moek_matrix *first,
                     const struct moek_matrix *second, uint8_t *to);
int32_t cpu_load_expert(void *layer, uint64_t local, const struct moek_expert *expert);
int32_t cpu_workspace_shapes(const struct kernels *kernels,
                             const struct moek_problem *problem, uint64_t max_tokens,
                             uint32_t workers, struct moek_buffer *buffers_out,
                             uint32_t capacity);
int32_t cpu_forward(void *layer, const struct moek_batch *batch);

#endif
