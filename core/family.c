/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/family.h"
#include "core/json.h"
#include "core/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
#define MLP_EXPERTS \
	.experts = "mlp.experts.", .gate = "gate_proj", .up = "up_proj", .down = "down_proj", \
	.router = "mlp.gate"
/* transformers 5 joins the experts of a layer in memory, and may save them so */
#define MLP_FUSED \
	.fused_gate_up = "gate_up_proj", .fused_down = "down_proj", .fused_suffix = "", \
	.fused_order = MOEK_GATE_FIRST
#define DEEPSEEK_V3 \
	MLP_EXPERTS, MLP_FUSED, .correction = "mlp.gate.e_score_correction_bias", \
	.intermediate = "moe_intermediate_size", .scoring = MOEK_SIGMOID, \
	.renormalise = MOEK_RENORM_CONFIG, .groups = MOEK_GROUPS_CONFIG, .epsilon = 1e-20f

static const struct moek_family families[] = {
	{ .name = "deepseek_v2", MLP_EXPERTS, MLP_FUSED,
	  .intermediate = "moe_intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_CONFIG, .groups = MOEK_GROUPS_BY_METHOD,
	  .epsilon = 1e-20f },
	{ .name = "deepseek_v3", .alias = "deepseek_v32", DEEPSEEK_V3 },
	{ .name = "glm4_moe", DEEPSEEK_V3 },
	{ .name = "gpt_oss", .experts = "mlp.experts.", .router = "mlp.router",
	  .fused_gate_up = "gate_up_proj", .fused_down = "down_proj", .fused_suffix = "",
	  .fused_order = MOEK_GATE_INTERLEAVED, .fused_transposed = 1, .router_bias = 1,
	  .intermediate = "intermediate_size", .activation = MOEK_SWIGLU_OAI,
	  .scoring = MOEK_SOFTMAX, .score_chosen = 1 },
	{ .name = "granitemoe", .alias = "granitemoeshared",
	  .experts = "block_sparse_moe.", .router = "block_sparse_moe.router.layer",
	  .fused_gate_up = "input_linear", .fused_down = "output_linear",
	  .fused_suffix = ".weight", .fused_order = MOEK_GATE_FIRST,
	  .intermediate = "intermediate_size", .scoring = MOEK_SOFTMAX,
	  .score_chosen = 1 },
	{ .name = "kimi_k2", .alias = "kimi_k25", DEEPSEEK_V3 },
	{ .name = "llama4", .alias = "llama4_text", .experts = "feed_forward.experts.",
	  .gate = "gate_proj", .up = "up_proj", .down = "down_proj",
	  .router = "feed_forward.router", MLP_FUSED, .fused_transposed = 1,
	  .intermediate = "intermediate_size", .scoring = MOEK_SIGMOID,
	  .score_chosen = 1, .weight_on_input = 1 },
	{ .name = "mixtral", .experts = "block_sparse_moe.experts.", .gate = "w1",
	  .up = "w3", .down = "w2", .router = "block_sparse_moe.gate",
	  .intermediate = "intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "olmoe", MLP_EXPERTS, MLP_FUSED, .intermediate = "intermediate_size",
	  .scoring = MOEK_SOFTMAX, .renormalise = MOEK_RENORM_CONFIG },
	{ .name = "qwen2_moe", MLP_EXPERTS, MLP_FUSED,
	  .intermediate = "moe_intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_CONFIG },
	{ .name = "qwen3_5_moe", .alias = "qwen3_5_moe_text", MLP_EXPERTS, MLP_FUSED,
	  .intermediate = "moe_intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "qwen3_moe", MLP_EXPERTS, MLP_FUSED,
	  .intermediate = "moe_intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_CONFIG },
	{ .name = "qwen3_next", MLP_EXPERTS, MLP_FUSED,
	  .intermediate = "moe_intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_CONFIG },
};
/* clang-format on */

#define FAMILIES (sizeof(families) / sizeof(families[0]))

/* ---- looking things up ---- */

static const struct moek_json *member(const struct moek_json *object, const char *key)
{
	const struct moek_json *value = moek_json_get(object, key);

	return moek_json_kind(value) == MOEK_JSON_NULL ? NULL : value;
}

const struct moek_json *moek_config_get(const struct moek_config *config,
                                        const char *key)
{
	const struct moek_json *value = member(config->root, key);

	return value != NULL ? value : member(member(config->root, "text_config"), key);
}

/** The first of @keys (NULL-ended) that is there; *key_out is its name, or the first.
 */
static const struct moek_json *first_of(const struct moek_config *config,
                                        const char *const *keys, const char **key_out)
{
	*key_out = keys[0];
	for (; *keys != NULL; keys++) {
		const struct moek_json *value = moek_config_get(config, *keys);

		if (value != NULL) {
			*key_out = *keys;
			return value;
		}
	}
	return NULL;
}

static int32_t missing(const struct moek_config *config, const char *key,
                       struct moek_error *error_out)
{
	return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s is missing", config->path,
	                 key);
}

static int32_t read_count(const struct moek_config *config, const char *const *keys,
                          uint64_t most, uint64_t *count_out,
                          struct moek_error *error_out)
{
	const char *key;
	const struct moek_json *value = first_of(config, keys, &key);
	int64_t integer;

	if (value == NULL)
		return missing(config, key, error_out);
	if (!moek_json_integer(value, &integer))
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s is not a whole number", config->path, key);
	if (integer < 1 || (uint64_t)integer > most)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s: found %lld, expected 1 .. %llu", config->path,
		                 key, (long long)integer, (unsigned long long)most);
	*count_out = (uint64_t)integer;
	return MOEK_OK;
}

/** Absent: *number_out stays as it is. */
static int32_t read_number(const struct moek_config *config, const char *key,
                           float *number_out, struct moek_error *error_out)
{
	const struct moek_json *value = moek_config_get(config, key);
	double number;

	if (value == NULL)
		return MOEK_OK;
	if (!moek_json_number(value, &number) || !(number > 0) ||
	    !isfinite((float)number))
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s is not a number over 0", config->path, key);
	*number_out = (float)number;
	return MOEK_OK;
}

/** Absent: *text_out stays as it is. */
static int32_t read_text(const struct moek_config *config, const char *key,
                         const char **text_out, struct moek_error *error_out)
{
	const struct moek_json *value = moek_config_get(config, key);

	if (value == NULL)
		return MOEK_OK;
	if (moek_json_string(value, NULL) == NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s is not a string",
		                 config->path, key);
	*text_out = moek_json_string(value, NULL);
	return MOEK_OK;
}

/* ---- the family ---- */

static const struct moek_family *find_family(const struct moek_json *model_type)
{
	const char *name = moek_json_string(model_type, NULL);

	for (size_t i = 0; i < FAMILIES && name != NULL; i++)
		if (strcmp(name, families[i].name) == 0 ||
		    (families[i].alias != NULL && strcmp(name, families[i].alias) == 0))
			return &families[i];
	return NULL;
}

static int32_t refuse_family(const struct moek_config *config, const char *name,
                             struct moek_error *error_out)
{
	char known[512] = "";
	size_t used = 0;

	for (size_t i = 0; i < FAMILIES && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
		                         i == 0 ? "" : ", ", families[i].name);
	return moek_fail(error_out, MOEK_REFUSED, 0,
	                 "%s: model_type \"%.64s\" is not known to moek; known are: %s",
	                 config->path, name, known);
}

static int32_t read_family(const struct moek_config *config,
                           const struct moek_family **family_out,
                           struct moek_error *error_out)
{
	const struct moek_json *outer = member(config->root, "model_type");
	const struct moek_json *inner = member(member(config->root, "text_config"),
	                                       "model_type");

	if (moek_json_string(outer, NULL) == NULL &&
	    moek_json_string(inner, NULL) == NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: model_type is missing or not a string",
		                 config->path);
	*family_out = find_family(outer);
	if (*family_out == NULL)
		*family_out = find_family(inner);
	if (*family_out == NULL)
		return refuse_family(
			config, moek_json_string(outer != NULL ? outer : inner, NULL),
			error_out);
	return MOEK_OK;
}

/* ---- what a model computes ---- */

static int32_t read_type(const struct moek_config *config, uint32_t *type_out,
                         struct moek_error *error_out)
{
	const char *dtype = NULL;
	int32_t status = read_text(config, "torch_dtype", &dtype, error_out);

	if (status == MOEK_OK)
		status = read_text(config, "dtype", &dtype, error_out);
	if (status != MOEK_OK)
		return status;
	if (dtype == NULL)
		return missing(config, "dtype (or torch_dtype)", error_out);
	*type_out = strcmp(dtype, "bfloat16") == 0  ? MOEK_BF16
	            : strcmp(dtype, "float16") == 0 ? MOEK_F16
	            : strcmp(dtype, "float32") == 0 ? MOEK_F32
	                                            : 0;
	if (*type_out == 0)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_INPUT_TYPE,
		                 "%s: dtype \"%.64s\" is not read; read are: bfloat16, "
		                 "float16, float32",
		                 config->path, dtype);
	return MOEK_OK;
}

static int32_t read_hidden_act(const struct moek_config *config,
                               uint32_t *activation_out, struct moek_error *error_out)
{
	static const struct {
		const char *name;
		uint32_t activation;
	} names[] = {
		{ "silu", MOEK_SILU },
		{ "swish", MOEK_SILU },
		{ "gelu", MOEK_GELU },
		{ "gelu_new", MOEK_GELU_TANH },
		{ "gelu_pytorch_tanh", MOEK_GELU_TANH },
	};
	const char *text = NULL;
	int32_t status = read_text(config, "hidden_activation", &text, error_out);

	if (status == MOEK_OK)
		status = read_text(config, "hidden_act", &text, error_out);
	if (status != MOEK_OK)
		return status;
	if (text == NULL)
		return missing(config, "hidden_act", error_out);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(text, names[i].name) == 0) {
			*activation_out = names[i].activation;
			return MOEK_OK;
		}
	return moek_fail(
		error_out, MOEK_REFUSED, MOEK_RULE_ACTIVATION,
		"%s: hidden_act \"%.64s\" is not known; known are: silu, swish, "
		"gelu, gelu_new, gelu_pytorch_tanh",
		config->path, text);
}

static int32_t read_activation(const struct moek_config *config,
                               struct moek_model *model, struct moek_error *error_out)
{
	int32_t status;

	if (model->family->activation == MOEK_SWIGLU_OAI) {
		/* gpt-oss writes hidden_act "silu" and means this; its own defaults */
		model->activation = MOEK_SWIGLU_OAI;
		model->alpha = 1.702f;
		model->beta = 1.0f;
		model->limit = 7.0f;
		status = read_number(config, "swiglu_alpha", &model->alpha, error_out);
		if (status == MOEK_OK)
			status = read_number(config, "swiglu_limit", &model->limit,
			                     error_out);
		return status;
	}
	if (moek_config_get(config, "swiglu_limit") != NULL)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_LIMIT,
		                 "%s: swiglu_limit is not known of %s", config->path,
		                 model->family->name);
	return read_hidden_act(config, &model->activation, error_out);
}

/* ---- routing ---- */

static int32_t read_scoring(const struct moek_config *config,
                            const struct moek_family *family,
                            struct moek_error *error_out)
{
	const char *expected = family->scoring == MOEK_SIGMOID ? "sigmoid" : "softmax";
	const char *found = expected;
	int32_t status = read_text(config, "scoring_func", &found, error_out);

	if (status != MOEK_OK)
		return status;
	if (strcmp(found, expected) != 0)
		return moek_fail(
			error_out, MOEK_REFUSED, 0,
			"%s: scoring_func \"%.64s\" is not known of %s, which has "
			"\"%s\"",
			config->path, found, family->name, expected);
	return MOEK_OK;
}

static int32_t read_renormalise(const struct moek_config *config,
                                struct moek_model *model, struct moek_error *error_out)
{
	const struct moek_json *value = moek_config_get(config, "norm_topk_prob");
	int boolean;

	if (model->family->renormalise != MOEK_RENORM_CONFIG) {
		model->router.renormalise = model->family->renormalise ==
		                            MOEK_RENORM_ALWAYS;
		return MOEK_OK;
	}
	if (value == NULL)
		return missing(config, "norm_topk_prob", error_out);
	if (!moek_json_bool(value, &boolean))
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: norm_topk_prob is not true or false",
		                 config->path);
	/* sigmoid scores of one expert are left as they are */
	model->router.renormalise = boolean &&
	                            (model->family->scoring != MOEK_SIGMOID ||
	                             model->router.top_k > 1);
	return MOEK_OK;
}

static int32_t read_group_counts(const struct moek_config *config,
                                 struct moek_router *router,
                                 struct moek_error *error_out)
{
	static const char *const all_keys[] = { "n_group", NULL };
	static const char *const kept_keys[] = { "topk_group", NULL };
	uint64_t all, kept;
	int32_t status;

	status = read_count(config, all_keys, router->experts, &all, error_out);
	if (status != MOEK_OK)
		return status;
	status = read_count(config, kept_keys, all, &kept, error_out);
	if (status != MOEK_OK)
		return status;
	if (router->experts % all != 0)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: n_group: found %llu, expected a divisor of %llu experts",
			config->path, (unsigned long long)all,
			(unsigned long long)router->experts);
	if (router->top_k > router->experts / all * kept)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: num_experts_per_tok: found %llu, expected at most %llu, "
			"the experts of %llu groups",
			config->path, (unsigned long long)router->top_k,
			(unsigned long long)(router->experts / all * kept),
			(unsigned long long)kept);
	router->groups = (uint32_t)all;
	router->groups_kept = (uint32_t)kept;
	return MOEK_OK;
}

static int32_t read_groups(const struct moek_config *config, struct moek_model *model,
                           struct moek_error *error_out)
{
	const struct moek_family *family = model->family;
	const char *plain = family->groups == MOEK_GROUPS_BY_METHOD ? "greedy"
	                                                            : "noaux_tc";
	const char *method = plain;
	int32_t status;

	if (family->groups == MOEK_GROUPS_NEVER)
		return MOEK_OK;
	status = read_text(config, "topk_method", &method, error_out);
	if (status != MOEK_OK)
		return status;
	if (family->groups == MOEK_GROUPS_BY_METHOD) {
		if (strcmp(method, "greedy") == 0)
			return MOEK_OK;
		plain = "group_limited_greedy";
	}
	if (strcmp(method, plain) != 0)
		return moek_fail(
			error_out, MOEK_REFUSED, 0,
			"%s: topk_method \"%.64s\" is not known of %s, which has "
			"\"%s\"",
			config->path, method, family->name, plain);
	return read_group_counts(config, &model->router, error_out);
}

static int32_t read_router(const struct moek_config *config, struct moek_model *model,
                           struct moek_error *error_out)
{
	static const char *const top_k_keys[] = { "num_experts_per_tok",
		                                  "experts_per_token",
		                                  "num_experts_per_token",
		                                  "moe_topk",
		                                  "moe_k",
		                                  "moe_top_k",
		                                  "top_k_experts",
		                                  NULL };
	const struct moek_family *family = model->family;
	struct moek_router *router = &model->router;
	uint64_t most = model->experts < MOEK_MODEL_TOP_K ? model->experts
	                                                  : MOEK_MODEL_TOP_K;
	int32_t status = read_count(config, top_k_keys, most, &router->top_k,
	                            error_out);

	router->struct_size = MOEK_ROUTER_SIZE_1_0;
	router->experts = model->experts;
	router->scoring = family->scoring;
	router->score_chosen = family->score_chosen;
	router->weight_on_input = family->weight_on_input;
	router->epsilon = family->epsilon;
	router->scaling = 1.0f;
	if (status == MOEK_OK)
		status = read_scoring(config, family, error_out);
	if (status == MOEK_OK)
		status = read_renormalise(config, model, error_out);
	if (status == MOEK_OK)
		status = read_groups(config, model, error_out);
	if (status == MOEK_OK && family->groups != MOEK_GROUPS_NEVER)
		status = read_number(config, "routed_scaling_factor", &router->scaling,
		                     error_out);
	if (status != MOEK_OK)
		return status;
	if (family->weight_on_input && router->top_k != 1)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT_ON_INPUT,
		                 "%s: num_experts_per_tok: found %llu, expected 1: %s "
		                 "multiplies the input by the weight",
		                 config->path, (unsigned long long)router->top_k,
		                 family->name);
	if (family->groups == MOEK_GROUPS_BY_METHOD && router->renormalise &&
	    router->scaling != 1.0f)
		return moek_fail(error_out, MOEK_REFUSED, 0,
		                 "%s: norm_topk_prob with routed_scaling_factor %g: "
		                 "implementations of %s differ on it",
		                 config->path, (double)router->scaling, family->name);
	return MOEK_OK;
}

int32_t moek_model_read(const struct moek_config *config, struct moek_model *model_out,
                        struct moek_error *error_out)
{
	static const char *const layer_keys[] = { "num_hidden_layers", NULL };
	static const char *const expert_keys[] = { "num_local_experts", "num_experts",
		                                   "n_routed_experts",
		                                   "moe_num_experts", NULL };
	static const char *const hidden_keys[] = { "hidden_size", "d_model", NULL };
	const char *intermediate_keys[] = { NULL, NULL };
	struct moek_model model = { 0 };
	int32_t status = read_family(config, &model.family, error_out);

	if (status != MOEK_OK)
		return status;
	intermediate_keys[0] = model.family->intermediate;
	status = read_count(config, layer_keys, MOEK_MODEL_LAYERS, &model.layers,
	                    error_out);
	if (status == MOEK_OK)
		status = read_count(config, expert_keys, MOEK_MODEL_EXPERTS,
		                    &model.experts, error_out);
	if (status == MOEK_OK)
		status = read_count(config, hidden_keys, MOEK_MODEL_SIZE, &model.hidden,
		                    error_out);
	if (status == MOEK_OK)
		status = read_count(config, intermediate_keys, MOEK_MODEL_SIZE,
		                    &model.intermediate, error_out);
	if (status == MOEK_OK)
		status = read_type(config, &model.type, error_out);
	if (status == MOEK_OK)
		status = read_activation(config, &model, error_out);
	if (status == MOEK_OK)
		status = read_router(config, &model, error_out);
	if (status == MOEK_OK)
		*model_out = model;
	return status;
}

/* ---- which layers have experts ---- */

static int64_t number_of(const struct moek_config *config, const char *key,
                         int64_t other)
{
	int64_t integer = other;

	moek_json_integer(moek_config_get(config, key), &integer);
	return integer;
}

static int lists(const struct moek_json *array, uint64_t number)
{
	int64_t integer;

	for (size_t i = 0; i < moek_json_count(array); i++)
		if (moek_json_integer(moek_json_at(array, i), &integer) &&
		    integer >= 0 && (uint64_t)integer == number)
			return 1;
	return 0;
}

int moek_model_expects(const struct moek_config *config, uint64_t number)
{
	const struct moek_json *frequency = moek_config_get(config, "moe_layer_freq");
	int64_t layer = (int64_t)number, step, one;

	if (layer < number_of(config, "first_k_dense_replace", 0) ||
	    lists(moek_config_get(config, "mlp_only_layers"), number))
		return 0;
	if (moek_json_kind(frequency) == MOEK_JSON_ARRAY)
		return moek_json_integer(moek_json_at(frequency, number), &one) &&
		       one != 0;
	step = number_of(config, "moe_layer_freq", 1);
	if (step > 1 && layer % step != 0)
		return 0;
	step = number_of(config, "decoder_sparse_step", 1);
	if (step > 1 && (layer + 1) % step != 0)
		return 0;
	step = number_of(config, "interleave_moe_layer_step", 1);
	return step <= 1 || (layer + 1) % step == 0;
}
