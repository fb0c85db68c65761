/* SPDX-License-Identifier: MIT */
/*
 * Codecs: from one file format to the canonical expert. Each is one file and one line
 * of the table in codec.c. A codec sees one expert layer (struct moek_expert_layer):
 * where its family keeps the experts, and tensors by name; it never sees another layer
 * or a backend.
 */
#ifndef MOEK_CORE_CODEC_H
#define MOEK_CORE_CODEC_H

#include <stddef.h>

#include "core/family.h"
#include "core/safetensors.h"

#include <moek/moek.h>

struct moek_codec;
struct moek_json;

/** The three matrices of an expert. */
enum moek_part { MOEK_PART_GATE, MOEK_PART_UP, MOEK_PART_DOWN, MOEK_PARTS };

/** One expert layer of a checkpoint. */
struct moek_expert_layer {
	const struct moek_checkpoint *checkpoint;
	const char *config_path; /* for messages */
	const struct moek_family *family;
	uint32_t number;
	char name[24];   /* "layers.3" */
	char prefix[64]; /* "model.layers.3." */
	uint64_t experts, hidden, intermediate;

	/* what moek_codec_find() fills in */
	const struct moek_codec *codec;
	uint32_t fused; /* 1: one tensor holds all experts */
	struct moek_scheme gate_up, down;
	uint32_t activations;  /* enum moek_activations */
	char format[96];       /* for people */
	uint32_t zeros_stored; /* of gptq: how */
	uint64_t block[2];     /* of fp8: rows and columns of a scale, or 0 */

	/* which part of the intermediate this rank holds: local from first on */
	uint32_t shard;
	uint64_t first, local;
};

/** Memory for the pieces of one canonical expert. */
struct moek_scratch {
	uint8_t *at;
	uint64_t left;
};

/** What of a shard a codec does by itself; core/shard.c does the rest. */
enum moek_slices {
	MOEK_SLICES_ROWS = 1,    /* moek_layer_rows() leaves out rows of gate and up */
	MOEK_SLICES_COLUMNS = 2, /* and columns of down */
	MOEK_IN_PLACE = 4 /* matrices point into the file: cutting them reads less */
};

struct moek_codec {
	const char *name;
	/** Values of quant_method in config.json that mean it, NULL-ended; NULL: there
	 * is no quantization_config. Others may have them too: tensors tell. */
	const char *const *methods;
	/** Ends of the names of its tensors, NULL-ended; for experts one by one, and
	 * fused. NULL: there is no such form. Any other tensor of the experts is an
	 * error. */
	const char *const *suffixes, *const *fused_suffixes;
	/** Headers only: are the experts of this layer in this form? Sets layer->fused.
	 */
	int (*present)(struct moek_expert_layer *layer);
	/** Fill both schemes and the format's text from the config and the headers of
	 *  expert 0. MOEK_REFUSED: a variant that is not read, by name. @quantization
	 * is quantization_config, or NULL. */
	int32_t (*describe)(struct moek_expert_layer *layer,
	                    const struct moek_json *quantization,
	                    struct moek_error *error_out);
	/** One matrix; what is not in the file as the canonical form wants it goes to
	 *  @scratch. With @scratch NULL: look at headers only, *matrix_out is not
	 * written. Several threads at once. */
	int32_t (*matrix)(const struct moek_expert_layer *layer, uint64_t expert,
	                  enum moek_part part, struct moek_scratch *scratch,
	                  struct moek_matrix *matrix_out, struct moek_error *error_out);
	uint32_t slices; /* enum moek_slices */
};

extern const struct moek_codec moek_codec_rows;
extern const struct moek_codec moek_codec_packed;
extern const struct moek_codec moek_codec_blocks;
extern const struct moek_codec moek_codec_quark;
extern const struct moek_codec moek_codec_packed_fp4;
extern const struct moek_codec moek_codec_deepseek_fp4;
extern const struct moek_codec moek_codec_gptq;
extern const struct moek_codec moek_codec_awq;
extern const struct moek_codec moek_codec_fp8;

/**
 * The first codec that quantization_config (or NULL) may mean, by the config alone: a
 * method that is not read is refused before any weight file is opened.
 */
int32_t moek_codec_declared(const char *config_path,
                            const struct moek_json *quantization,
                            const struct moek_codec **codec_out,
                            struct moek_error *error_out);

/** 1: expert 0 of the layer is there in a form that some codec knows. */
int moek_codec_present(struct moek_expert_layer *layer);

/**
 * Find the codec of a layer from the config and the tensors, which must agree, let it
 * describe the layer, and check the headers of every expert.
 */
int32_t moek_codec_find(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out);

/** One canonical expert. @memory has moek_codec_scratch() bytes. Several threads. */
int32_t moek_codec_expert(const struct moek_expert_layer *layer, uint64_t expert,
                          void *memory, struct moek_expert *expert_out,
                          struct moek_error *error_out);

/** Bytes of scratch for one expert of the layer. */
uint64_t moek_layer_scratch(const struct moek_expert_layer *layer);

/** Bytes that one expert of these sizes and schemes can take; 0: over 64 bits. */
uint64_t moek_scratch_bytes(uint64_t hidden, uint64_t intermediate,
                            const struct moek_scheme *gate_up,
                            const struct moek_scheme *down);

/* ---- for codecs: names and headers ---- */

struct moek_tensor_name {
	char text[256];
};

/** Name of a tensor of one expert ("...experts.3.gate_proj.weight"), or of all (fused:
 *  "...experts.gate_up_proj_blocks"). */
struct moek_tensor_name moek_layer_name(const struct moek_expert_layer *layer,
                                        uint64_t expert, enum moek_part part,
                                        const char *suffix);
/** "gate_proj": the module of a part, for fused experts of all; NULL: it has none. */
const char *moek_part_name(const struct moek_expert_layer *layer, enum moek_part part);
/** 1: the family can have experts fused, or apart. */
int moek_family_has(const struct moek_family *family, int fused);
/** 1: there is such a tensor, and *tensor_out is it. */
int moek_layer_has(const struct moek_expert_layer *layer, const char *name,
                   struct moek_tensor *tensor_out);
/** The tensor, of one of @dtypes ("BF16 F16") and exactly this shape, or an error. */
int32_t moek_layer_need(const struct moek_expert_layer *layer, const char *name,
                        const char *dtypes, uint32_t rank, const uint64_t *shape,
                        struct moek_tensor *tensor_out, struct moek_error *error_out);

/** The tensor, of a float type and one element, or an error. */
int32_t moek_layer_single(const struct moek_expert_layer *layer, const char *name,
                          struct moek_tensor *tensor_out, struct moek_error *error_out);
/** "BF16", "F16" or "F32". */
const char *moek_type_dtype(uint32_t type);

/** Where the rows of a part lie in a tensor that may hold gate and up. */
struct moek_rows_of {
	uint64_t rows, columns; /* of the part */
	uint64_t first, step;   /* row i is row first + i * step of the tensor */
	uint64_t all;           /* rows of the tensor */
	uint64_t first_column,
		all_columns; /* likewise: 0, and columns, but for shards */
};
struct moek_rows_of moek_part_rows(enum moek_part part, uint32_t order, uint64_t hidden,
                                   uint64_t intermediate);
struct moek_rows_of moek_layer_rows(const struct moek_expert_layer *layer,
                                    enum moek_part part);

/* ---- for codecs: data. NULL: the scratch is too small, which is a bug ---- */

void *moek_scratch_take(struct moek_scratch *scratch, uint64_t bytes, uint64_t align);

/** @rows rows of @row_bytes that lie @stride bytes apart, side by side and aligned:
 *  the data itself where it is so already. */
const void *moek_view_rows(struct moek_scratch *scratch, const void *data,
                           uint64_t rows, uint64_t row_bytes, uint64_t stride,
                           uint64_t align);

/** Bytes of a type of scale or weight that fills whole bytes (1, 2 or 4). */
uint64_t moek_scalar_bytes(uint32_t type);

/** One value of MOEK_F32, MOEK_F16 or MOEK_BF16, wherever it lies. */
float moek_scalar(const void *data, uint32_t type, uint64_t index);

/** @count values @step elements apart from @first on, as fp32. */
const float *moek_view_floats(struct moek_scratch *scratch, const void *data,
                              uint32_t type, uint64_t first, uint64_t step,
                              uint64_t count);

/** [@rows][@groups] of MOEK_F32, MOEK_F16 or MOEK_BF16 from [groups][rows]. */
const void *moek_turn_scalars(struct moek_scratch *scratch, const void *data,
                              uint32_t type, uint64_t rows, uint64_t groups);

/** Zero points [rows][groups] of MOEK_INT4 or MOEK_INT8 codes from int32 [ceil(all rows
 * / pack)][groups], pack = 8 or 4 rows a word. */
const uint8_t *moek_view_zeros(struct moek_scratch *scratch, const void *words,
                               uint32_t weight, const struct moek_rows_of *of,
                               uint64_t groups);

/** Begin a matrix of @of under @scheme: sizes and types; the rest is NULL. */
void moek_matrix_begin(struct moek_matrix *matrix, const struct moek_scheme *scheme,
                       const struct moek_rows_of *of);

/** Scales that are odd: each kind is warned of, once for a checkpoint. */
struct moek_odd_scales {
	uint64_t all, not_finite, zero;
};
void moek_count_scale(struct moek_odd_scales *odd, float scale);
/** @name: of what they belong to. Scales of canonical matrices are seen to already. */
void moek_layer_warn_scales(const struct moek_expert_layer *layer, const char *name,
                            const struct moek_odd_scales *odd);

#endif
