/* SPDX-License-Identifier: MIT */
/**
 * The host API of libmoek: open a registry of backends, choose one for a problem, make a
 * layer from weights, run it, and ask why.
 *
 * Each function carries one tag.
 *   [any thread]      may be called at any time from any thread
 *   [one per object]  one call at a time on one object; different objects at once are fine
 *   [start-up]        one call at a time in the process, before or after all other use
 *
 * Fallible functions return enum moek_status (0: success) and take a last argument
 * `struct moek_error *error_out`, the caller's memory, which may be NULL; it is written on
 * failure only. Outputs are written on success only, unless said otherwise.
 * Strings that are returned as `char *` are the caller's, to be given to moek_free().
 * Structs passed in begin with struct_size (see problem.h); MOEK_INIT is its value:
 *
 *     struct moek_registry_options options = { .struct_size = MOEK_INIT(REGISTRY_OPTIONS) };
 */
#ifndef MOEK_MOEK_H
#define MOEK_MOEK_H

#include <moek/experts.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MOEK_API
#define MOEK_API __attribute__((visibility("default")))
#endif

#define MOEK_INIT(name) MOEK_##name##_SIZE_1_0

struct moek_registry;   /* what is installed here, under one configuration */
struct moek_choice;     /* one answer to "who runs this?", with everybody's reasons */
struct moek_layer;      /* one expert layer, prepared on the chosen backend */
struct moek_workspace;  /* scratch memory, shared by layers */
struct moek_checkpoint; /* a Hugging Face folder, opened */

/** Why a call failed. Caller's memory. */
struct moek_error {
	uint32_t struct_size; /* not read: the struct is written whole */
	int32_t status;       /* enum moek_status */
	uint32_t rule;        /* enum moek_rule, or 0 */
	uint32_t reserved;
	char text[2032];      /* one or more lines without a final newline */
};

/** Version of the library, "0.1.0". [any thread] */
MOEK_API const char *moek_version(void);

/** Free what this library returned as `char *`. NULL is fine. [any thread] */
MOEK_API void moek_free(void *memory);

/** Name of a status, rule, type ... ("bad_file", "group_size", "mxfp4"); "?" if unknown.
 *  Static text. [any thread] */
MOEK_API const char *moek_status_name(int32_t status);
MOEK_API const char *moek_rule_name(uint32_t rule);
MOEK_API const char *moek_type_name(uint32_t type);
MOEK_API const char *moek_activation_name(uint32_t activation);
MOEK_API const char *moek_activations_name(uint32_t activations);

/* ------------------------------------------------------------------ registry */

/** One setting made by the program; the highest precedence there is. */
struct moek_setting {
	const char *section; /* "registry", "plugin cpu", "priority mxfp4" ... as in moek.ini */
	const char *key;
	const char *value;
};

struct moek_registry_options {
	uint32_t struct_size; /* MOEK_REGISTRY_OPTIONS_SIZE_1_0 */
	uint32_t threads;     /* of the registry's own pool; 0: as many as the process may use */
	/** The INI to read. NULL: $MOEK_CONFIG, else ~/.config/moek/moek.ini over the
	 *  installed moek.ini. "" : none, built-in defaults only. */
	const char *config_file;
	const struct moek_setting *settings; /* [setting_count] */
	uint64_t setting_count;
	/** Directories searched before those of the INI; NULL-ended, or NULL. */
	const char *const *plugin_dirs;
	/** JSON file with device facts in place of this machine's: the registry then only
	 *  answers questions; layers cannot be made. NULL: this machine. */
	const char *facts_file;
	/** Host's own workers in place of a pool; borrowed until close. NULL: own pool. */
	const struct moek_workers *workers;
	/** Receives warnings and progress; one line, no newline. May be called from any
	 *  thread. NULL: nothing is printed anywhere. level: 3 error, 4 warning, 6 info,
	 *  7 debug. */
	void (*log)(void *log_self, uint32_t level, const char *text);
	void *log_self;
	uint32_t checks;      /* 0: as $MOEK_CHECK says; 1: on; 2: off. See design: workspace */
	uint32_t ignore_environment; /* 1: no variable is read */
};
#define MOEK_REGISTRY_OPTIONS_SIZE_1_0 (32u + 6u * (uint32_t)sizeof(void *))

/**
 * Read the configuration and find the plugins. A bad INI is MOEK_BAD_CONFIG with file,
 * line and key; a bad plugin is not an error, it is listed with its cause. @options may
 * be NULL. Nothing of a plugin runs yet. Before one is opened, by a choice or a report, it
 * is tried in a process of its own, as the setting `probe` says: moek-probe is then
 * spawned and waited for. [start-up]
 */
MOEK_API int32_t moek_registry_open(const struct moek_registry_options *options,
                                    struct moek_registry **registry_out,
                                    struct moek_error *error_out);

/** After all its layers are destroyed. NULL is fine. [start-up] */
MOEK_API void moek_registry_close(struct moek_registry *registry);

/** How to print: MOEK_TEXT for people, MOEK_JSON for programs. */
enum moek_view { MOEK_TEXT = 1, MOEK_JSON = 2 };

/** Every plugin, listed or found, with its state; devices; directories. NULL: no memory.
 *  [any thread] */
MOEK_API char *moek_registry_report(struct moek_registry *registry, uint32_t view);

/** The same from what lies in the files alone: no plugin is opened, so neither devices nor
 *  what a plugin would say are known. [any thread] */
MOEK_API char *moek_registry_listing(struct moek_registry *registry, uint32_t view);

/** Every effective setting with where it came from, and those it overrode. [any thread] */
MOEK_API char *moek_registry_config(struct moek_registry *registry, uint32_t view);

/** Workers that run the registry's parallel work. [any thread] */
MOEK_API const struct moek_workers *moek_registry_workers(struct moek_registry *registry);

/* ------------------------------------------------------------------ choosing */

/**
 * Fill must_understand from the other fields and check that the problem does not
 * contradict itself (top_k over experts, groups of 0 ...): MOEK_BAD_ARGUMENT names the
 * field. moek_choose() does it by itself. [any thread]
 */
MOEK_API int32_t moek_problem_check(struct moek_problem *problem,
                                    struct moek_error *error_out);

/**
 * Parse "key=value,key=value" over *problem: experts, top_k, hidden, intermediate,
 * max_tokens, weight, group_size, scale, zero_points, ..., each as named in problem.h;
 * "down." before a key sets that projection alone. [any thread]
 */
MOEK_API int32_t moek_problem_parse(const char *text, struct moek_problem *problem,
                                    struct moek_error *error_out);

/**
 * Ask the backends in their order. @request: NULL or "auto"; "prefer a,b"; "require a";
 * "exclude a"; a is a plugin or plugin.experts. @label names the layer in reports; may be
 * NULL. Reads no weights.
 *
 * *choice_out is made on MOEK_OK and also on MOEK_REFUSED, so that its report can be
 * read; the error's text then has one line for each candidate. [any thread]
 */
MOEK_API int32_t moek_choose(struct moek_registry *registry,
                             const struct moek_problem *problem, const char *request,
                             const char *label, struct moek_choice **choice_out,
                             struct moek_error *error_out);

MOEK_API void moek_choice_destroy(struct moek_choice *choice); /* [one per object] */

/** What became of a candidate. */
enum moek_state {
	MOEK_STATE_CHOSEN = 1,
	MOEK_STATE_READY = 2,      /* would run it; outranked */
	MOEK_STATE_REFUSED = 3,    /* refuses this problem */
	MOEK_STATE_UNUSABLE = 4,   /* device there; driver, permission or code lacking */
	MOEK_STATE_ABSENT = 5,     /* no such device */
	MOEK_STATE_MISSING = 6,    /* listed, no file */
	MOEK_STATE_DISABLED = 7,   /* by INI, API or the request */
	MOEK_STATE_BROKEN = 8,     /* the file */
	MOEK_STATE_FAILED = 9,     /* said yes, then create() said no, or the golden test did */
	MOEK_STATE_UNOPENED = 10,  /* installed; only in moek_registry_listing() */
	MOEK_STATE_NOT_PLUGIN = 11 /* some other file in a folder of plugins */
};

MOEK_API const char *moek_state_name(uint32_t state);

/** One line of the report. Strings live as long as the choice. */
struct moek_candidate {
	uint32_t struct_size; /* MOEK_CANDIDATE_SIZE_1_0 */
	uint32_t state;       /* enum moek_state */
	const char *name;     /* "rdna3.w4a16", or "rdna3" when the file is missing or broken */
	const char *path;     /* of the file, or "" */
	const char *source;   /* where its rank comes from: "moek.ini:12", "unlisted", "api" */
	const char *found;    /* "group_size 48" */
	const char *accepted; /* "a multiple of 32", or "" */
	const struct moek_verdict *verdict;
};
#define MOEK_CANDIDATE_SIZE_1_0 (8u + 6u * (uint32_t)sizeof(void *))

/** How many, and the one at @index, in rank order. [any thread] */
MOEK_API uint64_t moek_choice_candidates(const struct moek_choice *choice);
MOEK_API int32_t moek_choice_candidate(const struct moek_choice *choice, uint64_t index,
                                       struct moek_candidate *candidate_out);

/** "emulation.any", or NULL when nobody was chosen. [any thread] */
MOEK_API const char *moek_choice_winner(const struct moek_choice *choice);

/** Degraded, as design 7 defines it: 1 or 0. [any thread] */
MOEK_API int32_t moek_choice_degraded(const struct moek_choice *choice);

/** The device of the winner, or NULL; lives as long as the registry. [any thread] */
MOEK_API const struct moek_device *moek_choice_device(const struct moek_choice *choice);

/** The declared arithmetic of the winner; MOEK_REFUSED when there is none. [any thread] */
MOEK_API int32_t moek_choice_numerics(const struct moek_choice *choice,
                                      struct moek_numerics *numerics_out);

/** Bytes of prepared weights that the winner would keep, before anything is read; 0: there
 *  is none. [any thread] */
MOEK_API uint64_t moek_choice_weight_bytes(const struct moek_choice *choice);

/** The report: request, problem, device, every candidate with its reason. [any thread] */
MOEK_API char *moek_choice_report(const struct moek_choice *choice, uint32_t view);

/**
 * What choices follow from (versions, host, devices of a facts file, hashes of plugins,
 * settings), and @choices ([count], or NULL), a line each. Written to a file that the
 * setting `lock` of [registry] names, it makes moek_registry_open() and moek_choose()
 * refuse, MOEK_REFUSED, what differs; both sides of each difference are logged. A problem
 * that has no line follows from the others. NULL: no memory. [any thread]
 */
MOEK_API char *moek_registry_lock(struct moek_registry *registry,
                                  const struct moek_choice *const *choices, uint64_t count);

/* ------------------------------------------------------------------ weights */

/**
 * Where the weights of a layer come from: a callback that fills one canonical expert.
 * The host fills this struct itself, or lets moek_checkpoint_source() or
 * moek_tensors_source() do it.
 */
struct moek_source {
	uint32_t struct_size; /* MOEK_SOURCE_SIZE_1_0 */
	uint32_t reserved;
	void *self;
	uint64_t scratch_bytes; /* the core lends this much, one piece for each thread */
	/**
	 * Fill *expert_out (zeroed, struct_sizes set) for expert 0 .. experts-1 of the model.
	 * What its pointers address must stay valid until this thread's next call, or the
	 * end of the load; `scratch` does. Called from several threads at once, for
	 * different experts. On failure fill error_out (never NULL) and return its status.
	 */
	int32_t (*expert)(void *self, uint64_t expert, void *scratch,
	                  struct moek_expert *expert_out, struct moek_error *error_out);
	/** Ends the source; may be NULL. The host calls moek_source_close(). */
	void (*close)(void *self);
};
#define MOEK_SOURCE_SIZE_1_0 (16u + 3u * (uint32_t)sizeof(void *))

MOEK_API void moek_source_close(struct moek_source *source); /* [one per object] */

/** How tensors in memory are laid out. */
enum moek_layout {
	MOEK_LAYOUT_ROWS = 1,   /* bf16, fp16 or fp32 [experts][rows][columns] */
	MOEK_LAYOUT_PACKED = 2, /* compressed-tensors int4: int32 [experts][rows][columns / 8],
	                           scales [experts][rows][groups], zeros int32
	                           [experts][rows / 8][groups] packed along rows */
	MOEK_LAYOUT_BLOCKS = 3  /* MXFP4: u8 [experts][rows][columns / 2], E8M0 scales
	                           [experts][rows][columns / 32]; also gpt-oss's
	                           [experts][rows][columns / 32][16], which is the same bytes */
};

/** Where gate and up rows lie in the tensor gate_up. */
enum moek_gate_order {
	MOEK_GATE_FIRST = 1,      /* gate rows, then up rows */
	MOEK_UP_FIRST = 2,
	MOEK_GATE_INTERLEAVED = 3 /* gate 0, up 0, gate 1, up 1 ... */
};

/** One stacked projection in the host's memory, borrowed until the source is closed. */
struct moek_stack {
	uint32_t struct_size;  /* MOEK_STACK_SIZE_1_0 */
	uint32_t layout;       /* enum moek_layout */
	const void *codes;
	uint64_t codes_bytes;  /* checked against the sizes of the problem; the same below */
	const void *scales;    /* of the scheme's type; NULL with MOEK_LAYOUT_ROWS */
	uint64_t scales_bytes;
	const void *zeros;     /* NULL: symmetric */
	uint64_t zeros_bytes;
	const void *bias;      /* [experts][rows], or NULL */
	uint64_t bias_bytes;
	uint32_t bias_type;    /* MOEK_F32, MOEK_BF16, MOEK_F16 */
	uint32_t gate_order;   /* gate_up of a gated layer only */
};
#define MOEK_STACK_SIZE_1_0 (48u + 4u * (uint32_t)sizeof(void *))

/** A source over stacked tensors: sizes and schemes as @problem says. [any thread] */
MOEK_API int32_t moek_tensors_source(const struct moek_problem *problem,
                                     const struct moek_stack *gate_up,
                                     const struct moek_stack *down,
                                     struct moek_source *source_out,
                                     struct moek_error *error_out);

/* ------------------------------------------------------------------ layers */

/** Progress of long work, from the calling thread. */
typedef void (*moek_progress_fn)(void *self, uint64_t done, uint64_t all);

struct moek_layer_options {
	uint32_t struct_size; /* MOEK_LAYER_OPTIONS_SIZE_1_0 */
	uint32_t reserved;
	/** [experts] -> local slot or -1; the non-negative entries are exactly 0 ..
	 *  experts_local-1, each once. Copied. NULL: all experts are local. */
	const int32_t *expert_map;
	moek_progress_fn progress; /* experts prepared; may be NULL */
	void *progress_self;
};
#define MOEK_LAYER_OPTIONS_SIZE_1_0 (8u + 3u * (uint32_t)sizeof(void *))

/**
 * Fill an expert_map from the numbers of the local experts: "0-7", "0,5,9", "1-63/4" (every
 * fourth from 1 on), or several of them with commas between. Slots are given in the order of
 * the text. map_out: [experts], also written on failure. Put *local_out into experts_local
 * of the problem, and MOEK_EXPERT_MAP into its must_understand. MOEK_BAD_ARGUMENT: an expert
 * is given twice, or is not there. [any thread]
 */
MOEK_API int32_t moek_expert_map_parse(const char *text, uint64_t experts, int32_t *map_out,
                                       uint64_t *local_out, struct moek_error *error_out);

/** How experts are dealt out to ranks. */
struct moek_placing {
	uint32_t struct_size; /* MOEK_PLACING_SIZE_1_0 */
	uint32_t strided;     /* with most 0: 1: expert e to rank e % ranks; 0: adjacent ones
	                         together. The first experts % ranks ranks hold one more */
	uint64_t experts, ranks;
	/** Not 0: balance @loads, each rank holding at most so many experts: replicas of the
	 *  hottest ones fill what is left. */
	uint64_t most;
	const double *loads; /* [experts]: how often each is chosen; NULL: all alike */
};
#define MOEK_PLACING_SIZE_1_0 (32u + 1u * (uint32_t)sizeof(void *))

/**
 * placement_out: [ranks][experts], 1: the rank holds the expert; each is held by one rank at
 * least. shares_out: [ranks], what part of the load each is expected to get when replicas
 * share theirs; may be NULL. MOEK_BAD_ARGUMENT: ranks * most is below experts, a load is
 * negative or no number. [any thread]
 */
MOEK_API int32_t moek_place(const struct moek_placing *placing, uint8_t *placement_out,
                            double *shares_out, struct moek_error *error_out);

/**
 * Prepare the weights of one layer on the chosen backend. @source is read during the call
 * only. @options may be NULL.
 *
 * First the backend computes a small case of the problem's kind, as the setting `golden`
 * says. When that comes out wrong, or preparing fails for memory or device, and the request
 * was not "require", the next candidate that would run is tried; the report of
 * moek_layer_choice() says so.
 * Slow: once per layer. [any thread, not two on one choice]
 */
MOEK_API int32_t moek_layer_create(struct moek_choice *choice,
                                   const struct moek_source *source,
                                   const struct moek_layer_options *options,
                                   struct moek_layer **layer_out,
                                   struct moek_error *error_out);

/** After its last forward. NULL is fine. [one per object] */
MOEK_API void moek_layer_destroy(struct moek_layer *layer);

/** The choice that the layer really runs on; lives as long as the layer. [any thread] */
MOEK_API const struct moek_choice *moek_layer_choice(const struct moek_layer *layer);

/** Bytes of prepared weights, and of workspace for max_tokens. [any thread] */
MOEK_API uint64_t moek_layer_weight_bytes(const struct moek_layer *layer);
MOEK_API uint64_t moek_layer_workspace_bytes(const struct moek_layer *layer);

/** Load one expert (of the model; it must be local) again. No forward may run.
 *  [one per object] */
MOEK_API int32_t moek_layer_reload(struct moek_layer *layer,
                                   const struct moek_source *source, uint64_t expert,
                                   struct moek_error *error_out);

/**
 * Scratch memory for @layers (all on one device), as large as the largest needs. @memory:
 * the host's own, of @bytes, aligned to 256, borrowed until destroy; NULL: allocated here.
 * With checks on, guards take more: moek_layer_workspace_bytes() counts them. [any thread]
 */
MOEK_API int32_t moek_workspace_create(struct moek_layer *const *layers, uint64_t count,
                                       void *memory, uint64_t bytes,
                                       struct moek_workspace **workspace_out,
                                       struct moek_error *error_out);
MOEK_API void moek_workspace_destroy(struct moek_workspace *workspace); /* [one per object] */

/** One forward of one layer. */
struct moek_forward {
	uint32_t struct_size;      /* MOEK_FORWARD_SIZE_1_0 */
	uint32_t reserved;
	struct moek_rows input;    /* [tokens][hidden] of the problem's input_type; read only */
	struct moek_rows output;   /* [tokens][hidden] of output_type; must not overlap the input */
	const int32_t *topk_ids;   /* [tokens][top_k], in the input's space. Outside
	                              0..experts-1, or mapped to -1: not routed, adds exactly 0 */
	const float *topk_weights; /* [tokens][top_k], in the input's space */
	void *stream;              /* with device rows: the host's stream, else NULL */
	struct moek_workspace *workspace;
	struct moek_trace *trace;  /* tests; else NULL */
};
#define MOEK_FORWARD_SIZE_1_0 (88u + 5u * (uint32_t)sizeof(void *))

/**
 * Run it: gate_up, activation, down, weighted sum. Allocates nothing. With host rows it
 * is done on return; with device rows it is asynchronous on @forward->stream. 0 tokens
 * return at once. A workspace in use by another forward is MOEK_BUSY. [one per object]
 */
MOEK_API int32_t moek_layer_forward(struct moek_layer *layer,
                                    const struct moek_forward *forward,
                                    struct moek_error *error_out);

/** What became of forwards that also ran on the reference, a backend of class emulation:
 *  one in `shadow` of them, from the first on. */
struct moek_shadow {
	uint32_t struct_size;  /* MOEK_SHADOW_SIZE_1_0 */
	uint32_t reserved;
	const char *reference; /* "emulation.any"; lives as long as the layer */
	uint64_t every;        /* the setting */
	uint64_t forwards;     /* of the layer */
	uint64_t compared;
	uint64_t skipped;      /* due, but with rows on a device, or the reference failed */
	uint64_t rows;         /* output rows of those compared */
	uint64_t rows_over;    /* of them, beyond what the backend's numerics allow */
	double worst;          /* error in shares of what is allowed, so up to 1 is good */
};
#define MOEK_SHADOW_SIZE_1_0 (64u + 1u * (uint32_t)sizeof(void *))

/** How a layer does beside its shadow. MOEK_REFUSED: it has none: the setting `shadow` is
 *  0, its backend is of class emulation, or the log said why. [any thread] */
MOEK_API int32_t moek_layer_shadow(const struct moek_layer *layer,
                                   struct moek_shadow *shadow_out);

/* ------------------------------------------------------------------ routing */

enum moek_scoring { MOEK_SOFTMAX = 1, MOEK_SIGMOID = 2, MOEK_SQRT_SOFTPLUS = 3 };

/** How a token's logits become experts and weights. */
struct moek_router {
	uint32_t struct_size;   /* MOEK_ROUTER_SIZE_1_0 */
	uint32_t scoring;       /* enum moek_scoring */
	uint64_t experts, top_k;
	uint32_t score_chosen;  /* 1: choose by logit, then score over the chosen only */
	uint32_t renormalise;   /* 1: divide by the sum of the chosen */
	uint32_t groups;        /* 0 or 1: none */
	uint32_t groups_kept;
	float scaling;          /* factor on the weights; 0: 1 */
	float epsilon;          /* added to the sum that divides */
	float jitter;           /* > 0: sparsemixer, top 2 (Phi-3.5) */
	uint32_t weight_on_input; /* 1: weights belong on the experts' input (Llama-4) */
	const float *bias;      /* [experts], for choosing only; NULL: none. Borrowed */
	const float *expert_scale; /* [experts], factor on the weight; NULL: none. Borrowed */
};
#define MOEK_ROUTER_SIZE_1_0 (56u + 2u * (uint32_t)sizeof(void *))

/**
 * Route @tokens rows of @logits [tokens][experts] (fp32). Ties go to the lower expert;
 * NaN and infinite scores count as 0, and are chosen last when chosen by logit. ids_out
 * and weights_out: [tokens][top_k], best first. [any thread]
 */
MOEK_API int32_t moek_route(const struct moek_router *router, const float *logits,
                            uint64_t tokens, int32_t *ids_out, float *weights_out,
                            struct moek_error *error_out);

/* ------------------------------------------------------------------ checkpoints */

/**
 * Open a folder with config.json and safetensors, and find its expert layers. Reads
 * headers only. Everything that is wrong is MOEK_BAD_FILE (or MOEK_REFUSED for a format
 * that moek does not read) naming file, tensor, found and expected. @registry gives log
 * and workers and must outlive the checkpoint. [any thread]
 */
MOEK_API int32_t moek_checkpoint_open(struct moek_registry *registry, const char *path,
                                      struct moek_checkpoint **checkpoint_out,
                                      struct moek_error *error_out);

struct moek_checkpoint_options {
	uint32_t struct_size; /* MOEK_CHECKPOINT_OPTIONS_SIZE_1_0 */
	uint32_t reserved;
	/** Tensor parallel: this rank of how many; 0 of 0 or 1: the whole. Problems and
	 *  sources are then of rows of gate and up and of columns of down, whole groups of
	 *  scales; the bias of down is in shard 0. Sums of all shards' outputs are the layer's.
	 *  MOEK_REFUSED: more shards than groups. */
	uint32_t shard, shards;
	/** An INI that describes the model: where its tensors are, what it computes. NULL:
	 *  config.json's model_type is one that moek knows. MOEK_BAD_CONFIG if it is bad. */
	const char *family_file;
};
#define MOEK_CHECKPOINT_OPTIONS_SIZE_1_0 (16u + 1u * (uint32_t)sizeof(void *))

/** The same with options; NULL: none. [any thread] */
MOEK_API int32_t moek_checkpoint_open_with(struct moek_registry *registry, const char *path,
                                           const struct moek_checkpoint_options *options,
                                           struct moek_checkpoint **checkpoint_out,
                                           struct moek_error *error_out);
MOEK_API void moek_checkpoint_close(struct moek_checkpoint *checkpoint); /* [one per object] */

/** One expert layer. Strings and pointers live as long as the checkpoint. */
struct moek_layer_info {
	uint32_t struct_size;  /* MOEK_LAYER_INFO_SIZE_1_0 */
	uint32_t number;       /* N of model.layers.N */
	const char *name;      /* "layers.3" */
	const char *family;    /* "qwen3_moe" */
	const char *format;    /* "compressed-tensors pack-quantized int4" */
	uint64_t weight_bytes; /* of the routed experts, in the file */
	uint64_t read_bytes;   /* of them, for this shard */
	/** Why logits do not follow from the experts' input, or "". */
	const char *unrouted;
	/** Experts of every token, which moek does not run: the names of their tensors begin
	 *  so; "": none. */
	const char *shared;
	uint64_t shared_bytes;
};
#define MOEK_LAYER_INFO_SIZE_1_0 (32u + 5u * (uint32_t)sizeof(void *))

MOEK_API uint64_t moek_checkpoint_layers(const struct moek_checkpoint *checkpoint);
MOEK_API int32_t moek_checkpoint_layer(const struct moek_checkpoint *checkpoint,
                                       uint64_t index, struct moek_layer_info *info_out);

/** Its problem: max_tokens is 0, to be set; input_type and output_type are the config's
 *  dtype, and the caller may change them. Its router: MOEK_REFUSED where token ids choose
 *  the experts. [any thread] */
MOEK_API int32_t moek_checkpoint_problem(const struct moek_checkpoint *checkpoint,
                                         uint64_t index, struct moek_problem *problem_out);
MOEK_API int32_t moek_checkpoint_router(const struct moek_checkpoint *checkpoint,
                                        uint64_t index, struct moek_router *router_out);

/** The weights of layer @index. Close the source before the checkpoint. [any thread] */
MOEK_API int32_t moek_checkpoint_source(struct moek_checkpoint *checkpoint, uint64_t index,
                                        struct moek_source *source_out,
                                        struct moek_error *error_out);

/** Router logits of layer @index, fp32 sums over the columns in order: rows of any float
 *  type in, [rows][experts] out. MOEK_REFUSED: logits do not follow from the experts'
 *  input, see moek_layer_info.unrouted. [any thread] */
MOEK_API int32_t moek_checkpoint_logits(struct moek_checkpoint *checkpoint, uint64_t index,
                                        const struct moek_rows *input, float *logits_out,
                                        struct moek_error *error_out);

/** A tensor as it lies in the file. data may be unaligned. Lives as long as its owner. */
struct moek_tensor {
	uint32_t struct_size; /* MOEK_TENSOR_SIZE_1_0 */
	uint32_t type;        /* enum moek_type, or 0 when it has none */
	const char *dtype;    /* "BF16", as the file says */
	const char *file;
	const void *data;
	uint64_t bytes;
	uint32_t rank;        /* at most 8 */
	uint32_t reserved;
	uint64_t shape[8];
};
#define MOEK_TENSOR_SIZE_1_0 (88u + 3u * (uint32_t)sizeof(void *))

/** Any tensor of the checkpoint by name; MOEK_BAD_FILE names the nearest ones. [any thread] */
MOEK_API int32_t moek_checkpoint_tensor(const struct moek_checkpoint *checkpoint,
                                        const char *name, struct moek_tensor *tensor_out,
                                        struct moek_error *error_out);

/** What a tensor of a checkpoint is for. */
enum moek_use {
	MOEK_USE_EXPERTS = 1, /* read: routed experts */
	MOEK_USE_ROUTER = 2,  /* read: a router, its bias or scales */
	MOEK_USE_SHARED = 3,  /* not read: experts of every token */
	MOEK_USE_BEYOND = 4,  /* not read: of a layer past the last, for further tokens */
	MOEK_USE_OTHER = 5    /* not read: of no expert layer */
};

/** How many tensors there are; the name of one, the tensor, its enum moek_use. NULL: there
 *  is none at @index, or it has over 8 dimensions. [any thread] */
MOEK_API uint64_t moek_checkpoint_tensors(const struct moek_checkpoint *checkpoint);
MOEK_API const char *moek_checkpoint_tensor_at(const struct moek_checkpoint *checkpoint,
                                               uint64_t index,
                                               struct moek_tensor *tensor_out,
                                               uint32_t *use_out);

/** The text of config.json, NUL-ended; lives as long as the checkpoint. [any thread] */
MOEK_API const char *moek_checkpoint_config(const struct moek_checkpoint *checkpoint);

/**
 * One value of config.json, for hosts without a JSON reader. @path: keys, and places in
 * arrays, with dots between: "rope_parameters.rope_theta", "layer_types.0". Looked for in
 * the root, then in text_config. Absent or null leaves the output as it is, so put the
 * default there before, or what cannot be; another kind is MOEK_BAD_FILE. true and false
 * are the numbers 1 and 0; a word lives as long as the checkpoint. [any thread]
 */
MOEK_API int32_t moek_checkpoint_number(const struct moek_checkpoint *checkpoint,
                                        const char *path, double *number_out,
                                        struct moek_error *error_out);
MOEK_API int32_t moek_checkpoint_word(const struct moek_checkpoint *checkpoint,
                                      const char *path, const char **word_out,
                                      struct moek_error *error_out);

/** To what experts are converted. */
struct moek_conversion {
	uint32_t struct_size; /* MOEK_CONVERSION_SIZE_1_0 */
	uint32_t weight;      /* MOEK_INT4, MOEK_MXFP4, MOEK_BF16, MOEK_F16 or MOEK_F32 */
	uint64_t group_size;  /* int4: 32, 64 or 128; MXFP4: 32; else 0 */
	uint32_t zero_points; /* int4: 1: asymmetric */
	uint32_t layout;      /* MOEK_LAYOUT_PACKED: compressed-tensors, or plain rows;
	                         MOEK_LAYOUT_BLOCKS: as gpt-oss, MXFP4 only */
	uint64_t file_bytes;  /* most data of one file of several; 0: 5 GiB */
	moek_progress_fn progress; /* bytes written; may be NULL */
	void *progress_self;
};
#define MOEK_CONVERSION_SIZE_1_0 (32u + 2u * (uint32_t)sizeof(void *))

/**
 * Write the checkpoint as a new folder @folder, its experts rounded to nearest in another
 * format, all other tensors and files as they are, config.json with a quantization_config
 * that says so. int4: scale = span / 15 in the config's dtype; MXFP4: the rule `even`.
 * MOEK_REFUSED names what the format cannot hold. @folder is there whole or, on failure,
 * not at all. Slow. [one per object]
 */
MOEK_API int32_t moek_checkpoint_convert(struct moek_checkpoint *checkpoint,
                                         const char *folder,
                                         const struct moek_conversion *conversion,
                                         struct moek_error *error_out);

/** One safetensors file by itself (expected outputs, test data). */
struct moek_safetensors;
MOEK_API int32_t moek_safetensors_open(const char *path,
                                       struct moek_safetensors **file_out,
                                       struct moek_error *error_out);
MOEK_API void moek_safetensors_close(struct moek_safetensors *file); /* [one per object] */
MOEK_API uint64_t moek_safetensors_count(const struct moek_safetensors *file);
/** Name of tensor @index (in file order), and its length. NUL-ended; holds no NUL. */
MOEK_API const char *moek_safetensors_name(const struct moek_safetensors *file,
                                           uint64_t index, uint64_t *length_out);
MOEK_API int32_t moek_safetensors_tensor(const struct moek_safetensors *file,
                                         const char *name, struct moek_tensor *tensor_out,
                                         struct moek_error *error_out);

#ifdef __cplusplus
}
#endif

#endif
