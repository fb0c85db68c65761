/* SPDX-License-Identifier: MIT */
/* Model families: where experts and router lie in a checkpoint, and what they compute.
 * One row of the table in family.c for each. */
#ifndef MOEK_CORE_FAMILY_H
#define MOEK_CORE_FAMILY_H

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

/** Names are relative to a layer ("model.layers.3."). */
struct moek_family {
	const char *name;             /* model_type */
	const char *alias;            /* another model_type, or NULL */
	const char *experts;          /* "mlp.experts.": before every name below */
	const char *gate, *up, *down; /* modules of one expert: 3.gate_proj */
	const char *fused_gate_up,
		*fused_down;       /* modules of all experts at once, or NULL */
	const char *fused_suffix;  /* of their plain tensors: "" or ".weight" */
	uint32_t fused_order;      /* enum moek_gate_order of fused_gate_up */
	uint32_t fused_transposed; /* 1: plain tensors are [experts][columns][rows] */
	const char *router;        /* module: + ".weight" [experts][hidden] */
	uint32_t router_bias;      /* 1: + ".bias" [experts], added to the logits */
	const char *correction;    /* tensor [experts], for choosing only; or NULL */
	const char *intermediate;  /* key of config.json */
	uint32_t activation;       /* 0: hidden_act says */
	uint32_t scoring;          /* enum moek_scoring */
	uint32_t score_chosen;
	uint32_t renormalise; /* enum moek_renormalise */
	uint32_t groups;      /* enum moek_grouping */
	uint32_t weight_on_input;
	float epsilon;
};

/** config.json, and where it stands for messages. */
struct moek_config {
	const char *path;
	const struct moek_json *root;
};

/** A member of the root or else of text_config; NULL: absent or null. */
const struct moek_json *moek_config_get(const struct moek_config *config,
                                        const char *key);

/** What config.json says of all expert layers. */
struct moek_model {
	const struct moek_family *family;
	uint64_t layers, experts, hidden, intermediate;
	uint32_t type; /* MOEK_BF16 ... */
	uint32_t activation;
	float alpha, beta, limit;
	struct moek_router router; /* bias is NULL here */
};

/** Limits on what a config may ask for. */
#define MOEK_MODEL_LAYERS 1024u
#define MOEK_MODEL_EXPERTS 4096u
#define MOEK_MODEL_TOP_K 64u
#define MOEK_MODEL_SIZE (UINT64_C(1) << 24)

/**
 * MOEK_REFUSED: a model_type, routing or activation that moek does not know.
 * MOEK_BAD_FILE: a value is missing, of the wrong kind or out of range.
 */
int32_t moek_model_read(const struct moek_config *config, struct moek_model *model_out,
                        struct moek_error *error_out);

/** 1: by the config, layer @number has experts. */
int moek_model_expects(const struct moek_config *config, uint64_t number);

#endif
