/* SPDX-License-Identifier: MIT */
/**
 * The whole of what a kernel author must know: struct moek_experts, and the one symbol a
 * plugin exports. plugins/README.md walks through it.
 *
 * A function here may be called from any thread unless it says otherwise; none is called
 * while the core holds a lock. No exception, longjmp or thread cancellation may leave a
 * plugin. Memory is freed by whoever allocated it. A plugin needs no symbol of the core,
 * reads no environment, and does nothing when it is loaded.
 */
#ifndef MOEK_EXPERTS_H
#define MOEK_EXPERTS_H

#include <moek/problem.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOEK_ABI_MAJOR 1
#define MOEK_ABI_MINOR 0

/** Where the parallel work of one forward runs. */
struct moek_workers {
	uint32_t struct_size; /* MOEK_WORKERS_SIZE_1_0 */
	uint32_t count;       /* how many; worker numbers are 0 .. count-1 */
	void *self;
	/** Run body(arg, i, worker) for every i in 0 .. tasks-1; return when all are done.
	 *  Which worker runs which i is not said. Not nested. */
	void (*parallel_for)(void *self, uint64_t tasks,
	                     void (*body)(void *arg, uint64_t i, uint32_t worker),
	                     void *arg);
};
#define MOEK_WORKERS_SIZE_1_0 24u

/** What the core offers a plugin. Valid from open() until close() returns. */
struct moek_host {
	uint32_t struct_size; /* MOEK_HOST_SIZE_1_0 */
	uint32_t reserved;
	void *self;
	/** One line without a newline; copied. level: 3 error, 4 warning, 6 info, 7 debug. */
	void (*log)(void *self, uint32_t level, const char *text);
	/** Value of a declared option of [plugin NAME], or NULL. Valid until close(). */
	const char *(*option)(void *self, const char *key);
	/** `bytes` of memory aligned to `align` (a power of two), or NULL. */
	void *(*alloc)(void *self, uint64_t bytes, uint64_t align);
	void (*free)(void *self, void *address);
};
#define MOEK_HOST_SIZE_1_0 48u

/** The sizes that will really run. */
struct moek_sizes {
	uint32_t struct_size; /* MOEK_SIZES_SIZE_1_0 */
	uint32_t reserved;
	uint64_t hidden;          /* after padding; >= the problem's */
	uint64_t intermediate;    /* after padding */
	uint64_t gate_up_columns; /* outputs of the first GEMM: 2 * intermediate if gated */
};
#define MOEK_SIZES_SIZE_1_0 32u

/**
 * One named buffer of scratch. The core places it, guards it and hands its address back in
 * the same order. Stages are numbered by the plugin; buffers may share memory only when
 * their ranges first_stage..last_stage are disjoint.
 */
struct moek_buffer {
	const char *name;     /* static text, for reports */
	uint64_t elements;    /* of one copy */
	uint64_t align;       /* bytes, a power of two */
	uint32_t type;        /* enum moek_type */
	uint32_t first_stage, last_stage;
	uint32_t zeroed;      /* 1: zeros before each forward */
	uint32_t per_worker;  /* 1: one copy for each worker, `elements` apart rounded up to align */
	uint32_t reserved;
};
#define MOEK_MAX_BUFFERS 32u

/**
 * Rows that a backend hands out in tests. The caller fills the pointers it wants (NULL:
 * not wanted) and zeroes `filled`; the backend sets the bit of what it wrote. A backend
 * that knows none of it leaves `filled` alone. Slots that are not routed are not written.
 */
struct moek_trace {
	uint32_t struct_size;  /* MOEK_TRACE_SIZE_1_0 */
	uint32_t filled;       /* MOEK_TRACE_... */
	float *gate_up;        /* [tokens * top_k][gate_up columns]: gate rows, then up rows, bias added */
	float *activated;      /* [tokens * top_k][intermediate]: what the second GEMM multiplies */
	float *slots;          /* [tokens * top_k][hidden]: before router weights */
	float *magnitudes;     /* [tokens][hidden]: sum of magnitudes, as emulation defines it */
	float *quantised_input; /* [tokens][hidden]: the input as the first GEMM multiplies it */
};
#define MOEK_TRACE_SIZE_1_0 48u
#define MOEK_TRACE_GATE_UP 1u
#define MOEK_TRACE_ACTIVATED 2u
#define MOEK_TRACE_SLOTS 4u
#define MOEK_TRACE_MAGNITUDES 8u
#define MOEK_TRACE_QUANTISED_INPUT 16u

/** One forward. Addresses are in the layer's space. Output overlaps nothing. */
struct moek_batch {
	uint32_t struct_size;      /* MOEK_BATCH_SIZE_1_0 */
	uint32_t buffer_count;
	struct moek_rows input;    /* [tokens][hidden], tokens >= 1; const */
	struct moek_rows output;   /* REDUCED: [tokens][hidden] of the output type, every element
	                              written, zeros where a token has nothing routed. SLOTS:
	                              [tokens * top_k][hidden] fp32, every element of a routed
	                              slot written. It arrives poisoned, not zeroed */
	const int32_t *topk_ids;   /* [tokens][top_k]. Host layers: local experts 0 ..
	                              experts_local-1, or -1: not routed. Device layers: as the
	                              router gave them; outside 0..experts-1, or mapped to -1,
	                              is not routed: exactly zero, nothing read */
	const float *topk_weights; /* [tokens][top_k], or NULL: do not multiply */
	const int32_t *expert_map; /* device layers: [experts] -> local or -1, or NULL; host: NULL */
	void *const *buffers;      /* [buffer_count], as workspace_shapes gave them */
	void *stream;              /* device: the host's native stream; forward is asynchronous */
	const struct moek_workers *workers; /* host layers; NULL on a device */
	struct moek_trace *trace;  /* NULL but in tests */
};
#define MOEK_BATCH_SIZE_1_0 144u

/** Who multiplies by the router weights and sums the slots of a token. */
enum moek_finalize {
	MOEK_REDUCED = 1, /* the kernel */
	MOEK_SLOTS = 2    /* `reduce`: the core's on the host, the plugin's on a device */
};

/** How specific a backend is; emulation is what "degraded" compares with. */
enum moek_class { MOEK_NATIVE = 1, MOEK_GENERIC = 2, MOEK_EMULATION = 3 };

/**
 * The declared arithmetic of a backend for one problem. With S the sum of magnitudes that
 * emulation gives for an output, the backend may differ from it by
 * terms * eps(accumulator) * S + roundings * eps(input_type) * S + one rounding to the output type.
 * eps is the distance from 1 to the next value (2^-23, 2^-10, 2^-7 for fp32, fp16, bf16).
 * Emulation rounds once between the GEMMs to a 16-bit input_type; a backend that does not
 * declares one rounding all the same.
 */
struct moek_numerics {
	uint32_t struct_size; /* MOEK_NUMERICS_SIZE_1_0 */
	uint32_t accumulator; /* enum moek_type of the sums */
	uint64_t terms;       /* longest chain of additions that an output depends on */
	uint32_t roundings;   /* to the activation type, between input and output */
	uint32_t repeatable;  /* 1: same bits on every run, for any number of workers */
	char text[104];       /* one line for people: "bf16 dot, fp32 sums, fixed order" */
};
#define MOEK_NUMERICS_SIZE_1_0 128u

/**
 * One backend: how one family of problems is run on one kind of device. Slots marked
 * [optional] may be NULL; a table that is too short to hold an optional slot lacks it.
 */
struct moek_experts {
	uint32_t struct_size;  /* MOEK_EXPERTS_SIZE_1_0 */
	uint32_t rank_class;   /* enum moek_class */
	const char *name;      /* "w4a16": the INI says plugin.name */
	uint64_t understands;  /* MOEK_ZERO_POINTS | ... */

	/* Pure questions, asked in this order: no I/O, no device call, under a millisecond,
	 * the same answer for the same arguments. `plugin` is what open() gave, so that
	 * options count, in a what-if too. 1: yes. 0: no, and *no_out says why. After
	 * five yeses create() may fail only for memory or device. Device facts with a
	 * cause_rule are not asked about. A device of another kind is
	 * MOEK_RULE_DEVICE_KIND; of this kind but without code here, MOEK_RULE_DEVICE_ARCH
	 * or MOEK_RULE_ISA. */
	int32_t (*supports_device)(void *plugin, const struct moek_device *device,
	                           struct moek_verdict *no_out);
	int32_t (*supports_quant_scheme)(void *plugin,
	                                 const struct moek_problem *problem,
	                                 struct moek_verdict *no_out);
	int32_t (*supports_activation)(void *plugin, const struct moek_problem *problem,
	                               struct moek_verdict *no_out);
	int32_t (*supports_parallel)(void *plugin, const struct moek_problem *problem,
	                             struct moek_verdict *no_out);
	int32_t (*supports_shape)(void *plugin, const struct moek_problem *problem,
	                          struct moek_verdict *no_out);

	/* Pure plans, asked only after five yeses. */
	void (*problem_size)(void *plugin, const struct moek_problem *problem,
	                     struct moek_sizes *sizes_out);
	/** Scratch for any batch of up to max_tokens. Writes at most `capacity` buffers and
	 *  returns how many there are, or a negative status when a size does not fit 64
	 *  bits. Never shrinks as tokens grow; does not depend on routing. */
	int32_t (*workspace_shapes)(void *plugin, const struct moek_problem *problem,
	                            uint64_t max_tokens, uint32_t workers,
	                            struct moek_buffer *buffers_out, uint32_t capacity);
	uint32_t (*finalize)(void *plugin, const struct moek_problem *problem,
	                     uint64_t tokens);
	void (*numerics)(void *plugin, const struct moek_problem *problem,
	                 struct moek_numerics *numerics_out);
	/** Bytes of all local experts in this backend's layout, and their alignment.
	 *  0: the size does not fit 64 bits. */
	uint64_t (*prepared_size)(void *plugin, const struct moek_problem *problem,
	                          uint64_t *align_out);

	/* One layer. `weights` is memory of prepared_size bytes in the layer's space, owned
	 * by the core, alive until destroy() returns; its bytes are not zeroed. *layer_out
	 * is written on MOEK_OK only. */
	int32_t (*create)(void *plugin, const struct moek_device *device,
	                  const struct moek_problem *problem, void *weights,
	                  void **layer_out);
	/** Once for each local expert before finish(), from several threads at once for
	 *  different experts; later again for an expert whose weights changed, while no
	 *  forward runs. Everything in *expert is borrowed until this returns. */
	int32_t (*load_expert)(void *layer, uint64_t local, const struct moek_expert *expert);
	/** After all experts. [one thread] */
	int32_t (*finish)(void *layer);
	/** Allocates nothing, waits for nothing. One call at a time on one layer. */
	int32_t (*forward)(void *layer, const struct moek_batch *batch);
	/** [optional; mandatory on a device for MOEK_SLOTS] Weigh and sum `slots` (what
	 *  forward wrote) into batch->output [tokens][hidden]. */
	int32_t (*reduce)(void *layer, const struct moek_batch *batch,
	                  const struct moek_rows *slots);
	void (*destroy)(void *layer);
};
#define MOEK_EXPERTS_SIZE_1_0 (24u + 16u * (uint32_t)sizeof(void *))

/** Direction of struct moek_plugin.copy. */
enum moek_copy { MOEK_TO_DEVICE = 1, MOEK_TO_HOST = 2, MOEK_ON_DEVICE = 3 };

/**
 * The one exported symbol of a plugin file NAME.so is a constant of this type, declared
 * with MOEK_PLUGIN_EXPORT and named moek_plugin_v1.
 */
struct moek_plugin {
	uint32_t struct_size; /* MOEK_PLUGIN_SIZE_1_0 */
	uint16_t abi_major;   /* MOEK_ABI_MAJOR */
	uint16_t abi_minor;   /* MOEK_ABI_MINOR compiled against; any minor works with any */
	const char *name;     /* NAME: [a-z0-9_-], at most 40 characters */
	const char *version;
	const char *const *options; /* NULL-ended: keys allowed in [plugin NAME]; NULL: none */
	const struct moek_experts *const *experts; /* NULL-ended, best first */

	/** [start-up only] Cheap: no device is initialised, nor need one be there: what-ifs
	 *  about another machine call it too. On failure *plugin_out is untouched and the
	 *  reason has been logged. */
	int32_t (*open)(const struct moek_host *host, void **plugin_out);
	/** After the last layer is destroyed. The file stays mapped. */
	void (*close)(void *plugin);

	/* Plugins with devices of their own; all NULL in a host plugin. */
	/** Every card of its kind that the operating system shows, usable or not. Writes at
	 *  most `capacity`, returns how many there are. Each struct_size is set by the
	 *  caller; that of the first is also the distance from one to the next in bytes. */
	uint32_t (*list)(void *plugin, struct moek_device *devices_out, uint32_t capacity);
	int32_t (*alloc)(void *plugin, const struct moek_device *device, uint64_t bytes,
	                 void **address_out); /* aligned to 256 or better */
	void (*free)(void *plugin, const struct moek_device *device, void *address);
	/** Asynchronous on `stream`; NULL: complete on return. */
	int32_t (*copy)(void *plugin, const struct moek_device *device, void *to,
	                const void *from, uint64_t bytes, uint32_t direction, void *stream);
	int32_t (*wait)(void *plugin, const struct moek_device *device, void *stream);
};
#define MOEK_PLUGIN_SIZE_1_0 (8u + 11u * (uint32_t)sizeof(void *))

#ifdef __cplusplus
#define MOEK_PLUGIN_EXPORT extern "C" __attribute__((visibility("default"))) const
#else
#define MOEK_PLUGIN_EXPORT __attribute__((visibility("default"))) const
#endif

/**
 * What a plugin file says of itself to who only reads it: an ELF note, lines of key=value.
 * Once in a file, at file scope; the text is a literal, and the ABI is added here:
 *
 *     MOEK_PLUGIN_NOTE("id=plain\n" "version=1\n" "class=generic\n" "devices=host\n");
 *
 *   id       NAME of NAME.so, as in the descriptor; must be there
 *   version  as in the descriptor
 *   class    native, generic or emulation: of its first experts
 *   devices  kinds that it runs on: host,hip,cuda
 *   isa      words of the operating system for this CPU that the file needs to be loaded at
 *            all, with commas; without one of them it is never opened. Sets that kernels
 *            use after asking the device are isa-run
 *   arch, formats, needs (libraries), flags, vendor, x-...: for people
 *   abi-min  oldest minor version of the ABI that the host must have
 *
 * Printable ASCII, at most 4096 bytes in all. With a note a plugin is listed and ranked
 * unopened; without one it is opened to be known. What disagrees with the descriptor
 * breaks the plugin.
 */
#define MOEK_PLUGIN_NOTE(text_)                                                          \
	static const struct {                                                            \
		uint32_t owner_bytes, text_bytes, type;                                  \
		char owner[8];                                                           \
		char text[(sizeof(MOEK_NOTE_ABI text_) + 2) / 4 * 4];                    \
	} moek_plugin_note __attribute__((used, aligned(4), section(".note.moek"))) = {  \
		5, sizeof(MOEK_NOTE_ABI text_) - 1, MOEK_NOTE_TYPE, "moek", MOEK_NOTE_ABI text_  \
	}
#define MOEK_NOTE_TYPE 1u
#define MOEK_NOTE_MOST 4096u
#define MOEK_NOTE_ABI "abi=" MOEK_NOTE_WORD(MOEK_ABI_MAJOR) "." MOEK_NOTE_WORD(MOEK_ABI_MINOR) "\n"
#define MOEK_NOTE_WORD(number) MOEK_NOTE_WORD_OF(number)
#define MOEK_NOTE_WORD_OF(number) #number

/* ---- Help for writing hooks: plain functions, no state ---- */

/** Refuse: nothing would do. Returns 0, for `return`. */
static inline int32_t moek_refuse(struct moek_verdict *no_out, uint32_t rule,
                                  uint64_t found)
{
	no_out->rule = rule;
	no_out->found = found;
	no_out->accepts = MOEK_ACCEPTS_NONE;
	return 0;
}

/** Refuse: only a multiple of `multiple` would do. */
static inline int32_t moek_refuse_multiple(struct moek_verdict *no_out, uint32_t rule,
                                           uint64_t found, uint64_t multiple)
{
	moek_refuse(no_out, rule, found);
	no_out->accepts = MOEK_ACCEPTS_MULTIPLE;
	no_out->accepted[0] = multiple;
	return 0;
}

/** Refuse: at most `most` would do. */
static inline int32_t moek_refuse_above(struct moek_verdict *no_out, uint32_t rule,
                                        uint64_t found, uint64_t most)
{
	moek_refuse(no_out, rule, found);
	no_out->accepts = MOEK_ACCEPTS_AT_MOST;
	no_out->accepted[0] = most;
	return 0;
}

/** Refuse: one of `count` (at most 6) values would do. */
static inline int32_t moek_refuse_values(struct moek_verdict *no_out, uint32_t rule,
                                         uint64_t found, const uint64_t *values,
                                         uint32_t count)
{
	uint32_t i;

	moek_refuse(no_out, rule, found);
	no_out->accepts = MOEK_ACCEPTS_VALUES;
	no_out->count = count < 6 ? count : 6;
	for (i = 0; i < no_out->count; i++)
		no_out->accepted[i] = values[i];
	return 0;
}

/** Add words to a refusal: what numbers cannot say. Cut at the field's end. Returns 0. */
static inline int32_t moek_refuse_note(struct moek_verdict *no_out, const char *note)
{
	uint32_t i;

	for (i = 0; i + 1 < sizeof(no_out->note) && note[i] != '\0'; i++)
		no_out->note[i] = note[i];
	no_out->note[i] = '\0';
	return 0;
}

/** Multiply sizes; 0 and *overflow set to 1 when the product does not fit 64 bits. */
static inline uint64_t moek_size_multiply(uint64_t a, uint64_t b, int *overflow)
{
	if (a != 0 && b > UINT64_MAX / a) {
		*overflow = 1;
		return 0;
	}
	return a * b;
}

#ifdef __cplusplus
}
#endif

#endif
