/* SPDX-License-Identifier: MIT */
/* Model families: where experts and router lie in a checkpoint, and what they compute.
 * One row of the table in family.c for each. */
#ifndef MOEK_CORE_FAMILY_H
#define MOEK_CORE_FAMILY_H

#include <stddef.h>

#include <moek/moek.h>

struct moek_json;

/** When the weights of the chosen are divided by their sum. */
enum moek_renormalise {
	MOEK_RENORM_NEVER,
	MOEK_RENORM_ALWAYS,
	MOEK_RENORM_CONFIG /* norm_topk_prob says */
};

/** Whether the config may limit the choice to groups of experts. */
enum moek_grouping {
	MOEK_GROUPS_NEVER,
	MOEK_GROUPS_BY_METHOD, /* topk_method group_limited_greedy */
	MOEK_GROUPS_CONFIG     /* n_group, topk_group */
};

/** Which plain tensors of fused experts are stored [experts][columns][rows]. */
enum moek_transposed {
	MOEK_TRANSPOSED_GATE_UP = 1,
	MOEK_TRANSPOSED_DOWN = 2,
	MOEK_TRANSPOSED_BOTH = 3
};

/** Names are relative to a layer ("model.layers.3."), lists are blank-separated, and
 *  NULL or 0 is "none". family_file.c reads the same fields from a file. */
struct moek_family {
	const char *name;    /* model_type */
	const char *aliases; /* other model_types */
	const char *refused; /* why it is not read, though known; nothing else counts */

	/* tensors */
	const char *experts;          /* "mlp.experts.": before every name below */
	const char *gate, *up, *down; /* modules of one expert: 3.gate_proj */
	const char *fused_gate_up; /* modules of all experts at once: gate and up in */
	const char *fused_gate, *fused_up; /* one, or apart */
	const char *fused_down;
	const char *fused_suffix;  /* of their plain tensors: "" or ".weight" */
	uint32_t fused_order;      /* enum moek_gate_order of fused_gate_up */
	uint32_t fused_transposed; /* enum moek_transposed */
	uint32_t fused_flat;       /* 1: plain tensors are [experts * ...][...] */
	const char *router;        /* module: + ".weight" [experts][hidden] */
	uint32_t router_bias;      /* 1: + ".bias" [experts], added to the logits */
	const char *correction;    /* tensor [experts], for choosing only */
	const char *expert_scale;  /* tensor [experts], factor on the weights */
	const char *by_token; /* tensor: where it is, token ids choose, not logits */
	const char *shared;   /* before the names of experts of every token */

	/* config.json: keys, what holds without them, and what they must say */
	const char *intermediate; /* keys, the first that is there counts */
	const char *latent;       /* key: the experts' width, where not hidden_size */
	const char *requires;     /* "key=word": where the key is, it says this */

	/* what is computed */
	uint32_t not_gated;       /* 1: gate is the only module before the activation */
	uint32_t activation;      /* 0: hidden_act says */
	float alpha, beta, limit; /* of it; a limit also allows swiglu_limit */
	uint32_t scoring;         /* enum moek_scoring */
	uint32_t score_chosen;
	uint32_t renormalise; /* enum moek_renormalise */
	uint32_t groups;      /* enum moek_grouping */
	uint32_t scaling;     /* 1: routed_scaling_factor counts */
	uint32_t weight_on_input;
	uint32_t own_input; /* 1: the router reads other rows than the experts */
	float epsilon;
	float jitter; /* router_jitter_noise says otherwise */
};

/** config.json, and where it stands for messages. */
struct moek_config {
	const char *path;
	const struct moek_json *root;
};

/** What lies at @path ("hidden_size", "rope_parameters.rope_theta", "layer_types.0") in
 *  the root, or else in text_config or ffn_config; NULL: absent or null. */
const struct moek_json *moek_config_get(const struct moek_config *config,
                                        const char *path);

/** What config.json says of all expert layers. */
struct moek_model {
	const struct moek_family *family;
	uint64_t layers, experts, intermediate;
	uint64_t hidden;        /* columns of the experts' input */
	uint64_t router_hidden; /* of the router's */
	uint32_t type;          /* MOEK_BF16 ... */
	uint32_t activation;
	float alpha, beta, limit;
	struct moek_router router; /* bias is NULL here */
};

/** Limits on what a config may ask for. */
#define MOEK_MODEL_LAYERS 1024u
#define MOEK_MODEL_EXPERTS 4096u
#define MOEK_MODEL_TOP_K 64u
#define MOEK_MODEL_SIZE (UINT64_C(1) << 24)

/** The rows of the table. */
const struct moek_family *moek_families(size_t *count_out);

/** The row of the config's model_type; NULL: there is none. */
const struct moek_family *moek_family_find(const struct moek_config *config);

/** The model_type that names the family, for messages: of the root, else of
 *  text_config; NULL: neither is a string. */
const char *moek_family_name(const struct moek_config *config);

/** 1: @word is one of the blank-separated words of @list (may be NULL). */
int moek_list_has(const char *list, const char *word);

/** @family described in a file (see README): freed by moek_family_free().
 * MOEK_BAD_CONFIG names file, line and key. */
int32_t moek_family_read(const char *path, struct moek_family **family_out,
                         struct moek_error *error_out);
void moek_family_free(struct moek_family *family);

/**
 * What @family makes of the config. MOEK_REFUSED: a routing or activation that moek
 * does not know. MOEK_BAD_FILE: a value is missing, of the wrong kind or out of range.
 */
int32_t moek_model_read(const struct moek_config *config,
                        const struct moek_family *family, struct moek_model *model_out,
                        struct moek_error *error_out);

/** 1: by the config, layer @number has experts. */
int moek_model_expects(const struct moek_config *config, uint64_t number);

#endif
