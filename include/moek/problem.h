/* SPDX-License-Identifier: MIT */
/**
 * The nouns that a host, the core and a plugin share. Includes only <stdint.h>;
 * compiles as C99, C11 and C++17. Holds no function.
 *
 * How these structs grow. Each begins with struct_size, which its writer sets to a
 * frozen constant (MOEK_..._SIZE_1_0), never to sizeof. The reader copies
 * min(theirs, mine) into a zeroed struct of its own. A field added later must mean, when
 * zero, "as it was before the field existed"; if it cannot, a bit of must_understand
 * comes with it. Enumerations are open: an unknown value is refused, never guessed.
 * Numbers are never reused.
 */
#ifndef MOEK_PROBLEM_H
#define MOEK_PROBLEM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a fallible call returns: 0 is success; the number says who can mend it. */
enum moek_status {
	MOEK_OK = 0,
	MOEK_BAD_ARGUMENT = -1, /* the caller: NULL, overlap, more tokens than planned */
	MOEK_BUSY = -2,         /* the caller: a second call on an object in use */
	MOEK_REFUSED = -100,    /* the problem: no backend, or not the required one, runs it */
	MOEK_BAD_CONFIG = -110, /* moek.ini or a setting: file, line and key are in the text */
	MOEK_BAD_FILE = -120,   /* checkpoint: tensor, found and expected are in the text */
	MOEK_NO_MEMORY = -200,
	MOEK_DEVICE = -300,     /* the device or its runtime failed */
	MOEK_PLUGIN = -400      /* a plugin broke the contract: guard hit, table short ... */
};

/** Element types, and the weight schemes that count as one. */
enum moek_type {
	MOEK_F32 = 1,
	MOEK_F16 = 2,
	MOEK_BF16 = 3,
	MOEK_F8_E4M3 = 4, /* FN: no infinities, 0x7f and 0xff are NaN */
	MOEK_E8M0 = 5,    /* 2^(byte - 127); 255 is NaN */
	MOEK_U8 = 6,
	MOEK_I32 = 7,
	MOEK_INT4 = 8,  /* offset binary 0..15: (code - zero) * scale; zero 8 if symmetric */
	MOEK_MXFP4 = 9, /* E2M1 codes, one E8M0 scale for 32 columns */
	MOEK_INT8 = 10  /* offset binary 0..255: (code - zero) * scale; zero 128 if symmetric */
};

/** What happens to activations before each GEMM. */
enum moek_activations {
	MOEK_A16 = 0,               /* nothing: as the input is, bf16, fp16 or fp32 */
	MOEK_A8_FP8_STATIC = 1,     /* e4m3, one scale per projection, from the checkpoint */
	MOEK_A8_INT8 = 2,           /* signed, scale amax / 127 per token and group of columns */
	MOEK_A4_MXFP4_EVEN = 3,     /* shared exponent from amax rounded to one mantissa bit */
	MOEK_A4_MXFP4_ROUND_UP = 4  /* shared exponent ceil(log2(amax / 6)) */
};

/**
 * The function between the GEMMs; g is the gate row, u the up row. When not gated only g
 * exists and the factor with u is absent. limit 0 means no clamp; where a formula does
 * not mention alpha or beta they are 0.
 */
enum moek_activation {
	MOEK_SILU = 1,         /* g * sigmoid(g) * u; limit: g = min(g, L), u = clamp(u, -L, L) first */
	MOEK_GELU = 2,         /* g/2 * (1 + erf(g / sqrt 2)) * u; limit as SILU */
	MOEK_GELU_TANH = 3,    /* g/2 * (1 + tanh(sqrt(2/pi) * (g + 0.044715 g^3))) * u; limit as SILU */
	MOEK_RELU2 = 4,        /* max(g, 0)^2; not gated only */
	MOEK_SWIGLU_OAI = 5,   /* g * sigmoid(alpha * g) * (u + beta); limit as SILU */
	MOEK_SWIGLU_STEP = 6,  /* min(g * sigmoid(g), L) * clamp(u, -L, L): clamped after the sigmoid */
	MOEK_SITU = 7          /* alpha * tanh(g / alpha) * sigmoid(g) * (beta > 0 ? beta * tanh(u / beta) : u) */
};

/**
 * Semantics that change the result. A backend is never asked to run a problem with a bit
 * that it does not know. The core computes those that fields of the problem imply; a host
 * sets the others (marked "host") in moek_problem.must_understand.
 */
#define MOEK_ZERO_POINTS (UINT64_C(1) << 0)
#define MOEK_COLUMN_GROUPS (UINT64_C(1) << 1)   /* activation order: columns name their group */
#define MOEK_BIAS (UINT64_C(1) << 2)
#define MOEK_LIMIT (UINT64_C(1) << 3)
#define MOEK_ALPHA_BETA (UINT64_C(1) << 4)      /* alpha or beta matters to the activation */
#define MOEK_NOT_GATED (UINT64_C(1) << 5)       /* gate_up has gate rows only */
#define MOEK_EXPERT_MAP (UINT64_C(1) << 6)      /* host; device layers: on the host the core maps */
#define MOEK_WEIGHT_ON_INPUT (UINT64_C(1) << 7) /* host; device layers: on the host the core does it */
#define MOEK_ROW_STRIDE (UINT64_C(1) << 8)      /* host: rows of input or output are not adjacent */
#define MOEK_DETERMINISTIC (UINT64_C(1) << 9)   /* host: same bits on every run */
#define MOEK_CAPTURE (UINT64_C(1) << 10)        /* host: forward is captured into a device graph */
#define MOEK_LORA (UINT64_C(1) << 11)           /* host: no backend has it, so it is refused */
#define MOEK_PARTIAL_SUM (UINT64_C(1) << 12)    /* tensor shard: output is one rank's share */

/** How the weights of one projection are stored, without the data. 40 bytes. */
struct moek_scheme {
	uint32_t weight;         /* enum moek_type: MOEK_INT4, MOEK_MXFP4, MOEK_BF16 ... */
	uint32_t scale;          /* type of the scales; 0: none */
	uint64_t group_size;     /* columns that share a scale; 0: all of them (channel) */
	uint32_t zero_points;    /* 1: each group has its own zero point */
	uint32_t column_groups;  /* 1: columns name their group (activation order) */
	uint32_t bias;           /* 1: each row has a bias */
	uint32_t input_scale;    /* 1: a static activation scale comes with the weights */
	uint64_t reserved;       /* 0 */
};

/**
 * Everything that decides which backend may run a layer. Holds no pointer: it can be
 * saved, sent and replayed. Sizes count elements.
 */
struct moek_problem {
	uint32_t struct_size;     /* MOEK_PROBLEM_SIZE_1_0 */
	uint32_t activations;     /* enum moek_activations */
	uint64_t must_understand; /* the host's bits; the core adds those that fields imply */
	uint64_t experts;         /* of the model; topk_ids count these */
	uint64_t experts_local;   /* held by this layer; = experts without an expert map */
	uint64_t top_k;           /* choices of one token */
	uint64_t hidden;          /* columns of input and output */
	uint64_t intermediate;    /* of this shard */
	uint64_t max_tokens;      /* of one forward */
	struct moek_scheme gate_up;
	struct moek_scheme down;
	uint32_t input_type;      /* MOEK_BF16, MOEK_F16, MOEK_F32; also the activation type */
	uint32_t output_type;
	uint32_t activation;      /* enum moek_activation, parameters fully resolved: */
	uint32_t gated;           /* 1: gate and up rows; 0: gate rows only */
	float alpha, beta;        /* see enum moek_activation */
	float limit;              /* 0: none */
	uint32_t activations_group; /* columns per scale of MOEK_A8_INT8; else 0 */
	uint32_t shard, shards;   /* tensor parallel: this rank of how many; 0 of 1 */
};
#define MOEK_PROBLEM_SIZE_1_0 184u

/**
 * Rules a refusal can name. The hundreds say at which stage: 1 configuration, 2 file,
 * 3 ABI, 4 instruction set, 5 probe, 6 loading, 7 device, 8 problem, 9 resources.
 */
enum moek_rule {
	MOEK_RULE_NONE = 0,
	MOEK_RULE_DISABLED = 101,         /* switched off in the INI or by the API */
	MOEK_RULE_EXCLUDED = 102,         /* excluded by the request */
	MOEK_RULE_UNLISTED = 103,         /* not in [priority], and unlisted = ignore */
	MOEK_RULE_SHADOWED = 104,         /* an earlier directory has a file of that name */
	MOEK_RULE_NOT_INSTALLED = 105,    /* listed, but no file */
	MOEK_RULE_NOT_REQUIRED = 106,     /* the request requires another backend */
	MOEK_RULE_OPTION = 107,           /* an option of [plugin NAME] is unknown or bad */
	MOEK_RULE_NOT_REGULAR = 201,      /* the path is not a regular file */
	MOEK_RULE_WRITABLE = 203,         /* the file can be changed by others */
	MOEK_RULE_MACHINE = 205,          /* built for another machine */
	MOEK_RULE_NOT_PLUGIN = 206,       /* some other file: no note and no moek_plugin_v1 */
	MOEK_RULE_NOTE_DISAGREES = 208,   /* note and descriptor say different things */
	MOEK_RULE_DAMAGED = 209,          /* cut off, or its parts do not fit together */
	MOEK_RULE_NOTE = 210,             /* the note is not as experts.h has it */
	MOEK_RULE_ABI_MAJOR = 301,
	MOEK_RULE_ABI_MINOR = 302,        /* needs a newer host */
	MOEK_RULE_ABI_TABLE = 303,        /* a table is shorter than version 1.0 */
	MOEK_RULE_ABI_SLOT = 304,         /* a mandatory slot is NULL */
	MOEK_RULE_ABI_NAME = 305,         /* the descriptor's name is not the file's */
	MOEK_RULE_ISA = 401,              /* the CPU lacks an instruction set */
	MOEK_RULE_PROBE_CRASH = 501,      /* it ended the process that tried it, by a signal */
	MOEK_RULE_PROBE_TIME = 502,       /* it gave no answer in time */
	MOEK_RULE_PROBE_HELPER = 503,     /* probe = always, and moek-probe does not run */
	MOEK_RULE_PROBE_EXIT = 505,       /* it called exit() */
	MOEK_RULE_PROBE_NOISE = 506,      /* it wrote to standard output */
	MOEK_RULE_SIDE_EFFECT = 507,      /* opening it, or a forward, changed the process */
	MOEK_RULE_GOLDEN = 508,           /* a small case came out otherwise than the reference's */
	MOEK_RULE_LIBRARY = 601,          /* a library that it needs is missing */
	MOEK_RULE_SYMBOL = 602,           /* no moek_plugin_v1 in this file */
	MOEK_RULE_SYMBOL_FOREIGN = 603,   /* moek_plugin_v1 belongs to a dependency */
	MOEK_RULE_TWO_HELPERS = 604,      /* another plugin's library of the same name came first */
	MOEK_RULE_LOAD = 605,             /* the dynamic loader said no: its text is given */
	MOEK_RULE_OPEN = 606,             /* the plugin's open() failed */
	MOEK_RULE_DEVICE_KIND = 701,      /* no such device in this machine */
	MOEK_RULE_DEVICE_DRIVER = 702,    /* the device is there, its runtime is not */
	MOEK_RULE_DEVICE_PERMISSION = 703,
	MOEK_RULE_DEVICE_VERSION = 704,   /* driver too old */
	MOEK_RULE_DEVICE_ARCH = 705,      /* no code for this architecture in the file */
	MOEK_RULE_WEIGHT = 801,           /* weight type */
	MOEK_RULE_GROUP_SIZE = 802,
	MOEK_RULE_ZERO_POINTS = 803,
	MOEK_RULE_ACTIVATION = 804,       /* function between the GEMMs */
	MOEK_RULE_LIMIT = 805,
	MOEK_RULE_INPUT_TYPE = 807,
	MOEK_RULE_HIDDEN = 808,
	MOEK_RULE_TOP_K = 809,
	MOEK_RULE_EXPERT_MAP = 810,
	MOEK_RULE_LORA = 811,
	MOEK_RULE_COLUMN_GROUPS = 812,
	MOEK_RULE_UNKNOWN_BIT = 813,      /* a must_understand bit that the backend lacks */
	MOEK_RULE_UNKNOWN_VALUE = 814,    /* an enumeration value from the future */
	MOEK_RULE_ACTIVATIONS = 815,      /* activation scheme, alone or with this weight */
	MOEK_RULE_SCALE = 816,            /* type of the scales */
	MOEK_RULE_BIAS = 817,
	MOEK_RULE_EXPERTS = 818,
	MOEK_RULE_ALIGNMENT = 819,
	MOEK_RULE_WEIGHT_ON_INPUT = 820,
	MOEK_RULE_DETERMINISTIC = 821,
	MOEK_RULE_INTERMEDIATE = 822,
	MOEK_RULE_GATED = 823,
	MOEK_RULE_ALPHA_BETA = 824,
	MOEK_RULE_OUTPUT_TYPE = 825,
	MOEK_RULE_ROW_STRIDE = 826,
	MOEK_RULE_CAPTURE = 827,
	MOEK_RULE_PARTIAL_SUM = 828,
	MOEK_RULE_SHARDS = 829,
	MOEK_RULE_TOKENS = 830,
	MOEK_RULE_INDEX_RANGE = 831,      /* a size overflows the backend's indices */
	MOEK_RULE_DEPENDENCY = 832,       /* something the backend needs is not installed */
	MOEK_RULE_INVALID = 833,          /* the problem contradicts itself: names the field */
	MOEK_RULE_EXCEPTION = 834,        /* a question of the plugin ended in an exception: see the note */
	MOEK_RULE_WORKSPACE = 901,        /* the workspace does not fit, or was broken */
	MOEK_RULE_MEMORY = 902,
	MOEK_RULE_CREATE = 903,           /* create() said no after five yeses */
	MOEK_RULE_OUTRANKED = 951         /* would run; another one stands before it */
};

/** How moek_verdict.accepted is to be read. */
enum moek_accepts {
	MOEK_ACCEPTS_NONE = 0,     /* nothing would do here */
	MOEK_ACCEPTS_VALUES = 1,   /* one of accepted[0 .. count-1] */
	MOEK_ACCEPTS_MULTIPLE = 2, /* a multiple of accepted[0] */
	MOEK_ACCEPTS_AT_MOST = 3,  /* at most accepted[0] */
	MOEK_ACCEPTS_AT_LEAST = 4  /* at least accepted[0] */
};

/** Which of the two projections a verdict speaks of; 0: neither. */
enum moek_projection { MOEK_GATE_UP = 1, MOEK_DOWN = 2 };

/**
 * One answer. The caller zeroes it and sets struct_size; who refuses fills the rest. The
 * core makes the text from it: a plugin gives numbers, in the terms of the rule (sizes,
 * or values of the enumeration that the rule is about).
 */
struct moek_verdict {
	uint32_t struct_size;  /* MOEK_VERDICT_SIZE_1_0 */
	uint32_t rule;         /* enum moek_rule; 0: yes */
	uint64_t found;
	uint64_t accepted[6];
	uint32_t accepts;      /* enum moek_accepts */
	uint32_t count;        /* of accepted, with MOEK_ACCEPTS_VALUES */
	uint32_t projection;   /* enum moek_projection, or 0 */
	uint32_t reserved;
	char note[96];         /* NUL-ended, or empty: what numbers cannot say ("gfx1100, gfx1101") */
};
#define MOEK_VERDICT_SIZE_1_0 176u

/** A block of rows, borrowed. */
struct moek_rows {
	void *data;
	uint64_t rows, columns;
	uint64_t row_stride; /* elements from row to row; 0: columns */
	uint32_t type;       /* enum moek_type */
	uint32_t space;      /* 0: host memory; 1: memory of the layer's device */
};

/**
 * One projection of one expert in the canonical form: row-major, borrowed, read-only, each
 * pointer aligned to its elements. Rows are outputs. groups = ceil(columns / group_size);
 * a last short group is short, nothing is padded.
 */
struct moek_matrix {
	uint32_t struct_size; /* MOEK_MATRIX_SIZE_1_0 */
	uint32_t weight;      /* enum moek_type */
	uint64_t rows, columns;
	uint64_t group_size;  /* columns that share a scale; never 0 here: channel is `columns` */
	const void *codes;    /* [rows][columns]; 4-bit: low nibble is the even column, a row
	                         takes (columns + 1) / 2 bytes */
	const void *scales;   /* [rows][groups] of type `scale`, or NULL */
	const uint8_t *zeros; /* [rows][groups], true values, or NULL: symmetric */
	const uint32_t *column_group; /* [columns], or NULL: column / group_size */
	const float *bias;    /* [rows], or NULL */
	uint32_t scale;       /* enum moek_type of the scales; 0: none */
	float input_scale;    /* static activation scale; 0: none */
};
#define MOEK_MATRIX_SIZE_1_0 80u

/** One expert. Gate and up rows are always apart; up has 0 rows when not gated. */
struct moek_expert {
	struct moek_matrix gate, up, down;
};

/** Device kinds. */
enum moek_device_kind { MOEK_HOST = 0, MOEK_HIP = 1, MOEK_CUDA = 2 };

/** What is known of a device without using it. Made by a plugin's listing, or read from a file. */
struct moek_device {
	uint32_t struct_size; /* MOEK_DEVICE_SIZE_1_0 */
	uint32_t kind;        /* enum moek_device_kind */
	uint32_t ordinal;     /* as the runtime counts; 0xffffffff: the runtime does not see it */
	uint32_t cause_rule;  /* 0: usable; else MOEK_RULE_DEVICE_...: the card is there but ... */
	uint8_t uuid[16];     /* zeros if unknown */
	uint32_t pci[4];      /* domain, bus, device, function */
	char arch[32];        /* "gfx1100", "sm_90", "x86_64" */
	char name[64];        /* for people */
	char cause[96];       /* with cause_rule: "permission denied: /dev/kfd" */
	const char *features; /* host: the operating system's words for this CPU, blank-separated;
	                         else NULL. Valid as long as the registry */
	uint64_t memory_bytes;
	uint32_t compute_units; /* 0 if unknown */
	uint32_t wave_size;     /* lanes; 0 if unknown */
};
#define MOEK_DEVICE_SIZE_1_0 264u

#ifdef __cplusplus
}
#endif

#endif
