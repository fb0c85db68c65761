/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/family.h"
#include "core/json.h"
#include "core/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- looking things up ---- */

static const struct moek_json *member(const struct moek_json *object, const char *key)
{
	const struct moek_json *value = moek_json_get(object, key);

	return moek_json_kind(value) == MOEK_JSON_NULL ? NULL : value;
}

const struct moek_json *moek_config_get(const struct moek_config *config,
                                        const char *path)
{
	static const char *const inner[] = { "text_config", "ffn_config" };
	const struct moek_json *value = moek_json_follow(config->root, path);

	for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]) && value == NULL; i++)
		value = moek_json_follow(moek_json_get(config->root, inner[i]), path);
	return value;
}

/** One word of a blank-separated list. */
struct word {
	char text[64];
};

/** The next word of @list, or an empty one; *list_out is what follows it. */
static struct word next_word(const char *list, const char **list_out)
{
	struct word word = { "" };
	size_t length;

	list += strspn(list, " ");
	length = strcspn(list, " ");
	/* words are short, in the table and in a line of an INI file: the rest is cut
	 */
	memcpy(word.text, list,
	       length < sizeof(word.text) ? length : sizeof(word.text) - 1);
	*list_out = list + length;
	return word;
}

int moek_list_has(const char *list, const char *word)
{
	struct word one;

	while (list != NULL && (one = next_word(list, &list)).text[0] != '\0')
		if (strcmp(one.text, word) == 0)
			return 1;
	return 0;
}

/** The first of @keys that is there; *key_out is its name, or the first. */
static const struct moek_json *first_of(const struct moek_config *config,
                                        const char *keys, struct word *key_out)
{
	struct word key;

	*key_out = next_word(keys, &keys);
	for (key = *key_out; key.text[0] != '\0'; key = next_word(keys, &keys)) {
		const struct moek_json *value = moek_config_get(config, key.text);

		if (value != NULL) {
			*key_out = key;
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

/** A whole number, or a list of one for each layer: all the same. */
static int32_t read_integer(const struct moek_config *config, const char *key,
                            const struct moek_json *value, int64_t *integer_out,
                            struct moek_error *error_out)
{
	int is_list = moek_json_kind(value) == MOEK_JSON_ARRAY;
	const struct moek_json *first = is_list ? moek_json_at(value, 0) : value;
	int64_t integer = 0;

	if (!moek_json_integer(first, &integer))
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s is not a whole number", config->path, key);
	for (size_t i = 1; is_list && i < moek_json_count(value); i++) {
		int64_t other = integer;

		if (moek_json_integer(moek_json_at(value, i), &other) &&
		    other == integer)
			continue;
		return moek_fail(error_out, MOEK_REFUSED, 0,
		                 "%s: %s is not the same in each layer: %lld, then "
		                 "another in place %zu",
		                 config->path, key, (long long)integer, i);
	}
	*integer_out = integer;
	return MOEK_OK;
}

static int32_t read_count(const struct moek_config *config, const char *keys,
                          uint64_t most, uint64_t *count_out,
                          struct moek_error *error_out)
{
	struct word key;
	const struct moek_json *value = first_of(config, keys, &key);
	int64_t integer = 0;
	int32_t status;

	if (value == NULL)
		return missing(config, key.text, error_out);
	status = read_integer(config, key.text, value, &integer, error_out);
	if (status != MOEK_OK)
		return status;
	if (integer < 1 || (uint64_t)integer > most)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s: found %lld, expected 1 .. %llu", config->path,
		                 key.text, (long long)integer,
		                 (unsigned long long)most);
	*count_out = (uint64_t)integer;
	return MOEK_OK;
}

/** Absent: *number_out stays as it is. */
static int32_t read_number(const struct moek_config *config, const char *keys,
                           float *number_out, struct moek_error *error_out)
{
	struct word key;
	const struct moek_json *value = first_of(config, keys, &key);
	double number;

	if (value == NULL)
		return MOEK_OK;
	if (!moek_json_number(value, &number) || !(number > 0) ||
	    !isfinite((float)number))
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s is not a number over 0", config->path,
		                 key.text);
	*number_out = (float)number;
	return MOEK_OK;
}

/** Absent: *text_out stays as it is. */
static int32_t read_text(const struct moek_config *config, const char *keys,
                         const char **text_out, struct moek_error *error_out)
{
	struct word key;
	const struct moek_json *value = first_of(config, keys, &key);

	if (value == NULL)
		return MOEK_OK;
	if (moek_json_string(value, NULL) == NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s is not a string",
		                 config->path, key.text);
	*text_out = moek_json_string(value, NULL);
	return MOEK_OK;
}

/* ---- the family ---- */

static const struct moek_json *inner_type(const struct moek_config *config)
{
	return member(member(config->root, "text_config"), "model_type");
}

const char *moek_family_name(const struct moek_config *config)
{
	const char *outer = moek_json_string(member(config->root, "model_type"), NULL);

	return outer != NULL ? outer : moek_json_string(inner_type(config), NULL);
}

static const struct moek_family *find_row(const char *name)
{
	size_t count;
	const struct moek_family *families = moek_families(&count);

	for (size_t i = 0; i < count && name != NULL; i++)
		if (strcmp(name, families[i].name) == 0 ||
		    moek_list_has(families[i].aliases, name))
			return &families[i];
	return NULL;
}

const struct moek_family *moek_family_find(const struct moek_config *config)
{
	const struct moek_family *family = find_row(moek_family_name(config));

	return family != NULL ? family
	                      : find_row(moek_json_string(inner_type(config), NULL));
}

/** What a value says, as "key=word" would. */
static void spell(const struct moek_json *value, char *text_out, size_t bytes)
{
	const char *string = moek_json_string(value, NULL);
	double number;
	int boolean;

	if (string != NULL)
		snprintf(text_out, bytes, "%s", string);
	else if (moek_json_bool(value, &boolean))
		snprintf(text_out, bytes, "%s", boolean ? "true" : "false");
	else if (moek_json_number(value, &number))
		snprintf(text_out, bytes, "%.9g", number);
	else
		snprintf(text_out, bytes, "(neither string nor number)");
}

/** What the family computes only if the config says so, or is silent. */
static int32_t check_requires(const struct moek_config *config,
                              const struct moek_family *family,
                              struct moek_error *error_out)
{
	const char *rest = family->requires != NULL ? family->requires : "";
	struct word word;

	while ((word = next_word(rest, &rest)).text[0] != '\0') {
		size_t key = strcspn(word.text, "=");
		const char *expected = word.text + key + (word.text[key] == '=');
		const struct moek_json *value;
		char found[80];

		word.text[key] = '\0';
		value = moek_config_get(config, word.text);
		if (value == NULL)
			continue;
		spell(value, found, sizeof(found));
		if (strcmp(found, expected) != 0)
			return moek_fail(error_out, MOEK_REFUSED, 0,
			                 "%s: %s: found %.64s; of %s only %s is read",
			                 config->path, word.text, found, family->name,
			                 expected);
	}
	return MOEK_OK;
}

/* ---- what a model computes ---- */

static int32_t read_type(const struct moek_config *config, uint32_t *type_out,
                         struct moek_error *error_out)
{
	const char *dtype = NULL;
	int32_t status = read_text(config, "dtype torch_dtype", &dtype, error_out);

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
		{ "relu2", MOEK_RELU2 },
	};
	const char *text = NULL;
	int32_t status = read_text(config,
	                           "hidden_act hidden_activation mlp_hidden_act", &text,
	                           error_out);

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
		"gelu, gelu_new, gelu_pytorch_tanh, relu2",
		config->path, text);
}

static int32_t read_parameters(const struct moek_config *config,
                               struct moek_model *model, struct moek_error *error_out)
{
	const struct moek_family *family = model->family;
	int is_situ = family->activation == MOEK_SITU;
	int32_t status = MOEK_OK;

	model->alpha = family->alpha;
	model->beta = family->beta;
	model->limit = family->limit;
	if (family->alpha > 0)
		status = read_number(config,
		                     is_situ ? "activation_situ_beta" : "swiglu_alpha",
		                     &model->alpha, error_out);
	if (status == MOEK_OK && is_situ)
		status = read_number(config, "activation_situ_linear_beta",
		                     &model->beta, error_out);
	if (status == MOEK_OK && family->limit > 0)
		status = read_number(config, "swiglu_limit", &model->limit, error_out);
	return status;
}

static int32_t read_activation(const struct moek_config *config,
                               struct moek_model *model, struct moek_error *error_out)
{
	const struct moek_family *family = model->family;
	int32_t status = MOEK_OK;

	if (family->limit == 0 && moek_config_get(config, "swiglu_limit") != NULL)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_LIMIT,
		                 "%s: swiglu_limit is not known of %s", config->path,
		                 family->name);
	/* a family may write "silu" and mean another: gpt-oss does */
	model->activation = family->activation;
	if (family->activation == 0)
		status = read_hidden_act(config, &model->activation, error_out);
	if (status == MOEK_OK &&
	    (model->activation == MOEK_RELU2) != (family->not_gated != 0))
		status = moek_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_GATED,
			"%s: activation %s: the experts of %s are %s, and "
			"relu2 goes with those that are not gated",
			config->path, moek_activation_name(model->activation),
			family->name, family->not_gated ? "not gated" : "gated");
	if (status == MOEK_OK && (family->alpha > 0 || family->limit > 0))
		status = read_parameters(config, model, error_out);
	return status;
}

/* ---- routing ---- */

static int32_t read_scoring(const struct moek_config *config,
                            const struct moek_family *family,
                            struct moek_error *error_out)
{
	const char *expected = family->scoring == MOEK_SIGMOID   ? "sigmoid"
	                       : family->scoring == MOEK_SOFTMAX ? "softmax"
	                                                         : "sqrtsoftplus";
	const char *found = expected;
	int32_t status = read_text(
		config, "scoring_func moe_router_activation_func score_function",
		&found, error_out);

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
	struct word key;
	const struct moek_json *value = first_of(
		config, "norm_topk_prob moe_renormalize", &key);
	int boolean;

	if (model->family->renormalise != MOEK_RENORM_CONFIG) {
		model->router.renormalise = model->family->renormalise ==
		                            MOEK_RENORM_ALWAYS;
		return MOEK_OK;
	}
	if (value == NULL)
		return missing(config, key.text, error_out);
	if (!moek_json_bool(value, &boolean))
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s is not true or false", config->path, key.text);
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
	uint64_t all, kept;
	int32_t status;

	status = read_count(config, "n_group num_expert_group", router->experts, &all,
	                    error_out);
	if (status != MOEK_OK)
		return status;
	status = read_count(config, "topk_group", all, &kept, error_out);
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

static int32_t read_scaling(const struct moek_config *config, struct moek_model *model,
                            struct moek_error *error_out)
{
	float scaling = 1;
	int32_t status = read_number(config, "routed_scaling_factor", &scaling,
	                             error_out);

	if (status != MOEK_OK)
		return status;
	if (!model->family->scaling && scaling != 1)
		return moek_fail(error_out, MOEK_REFUSED, 0,
		                 "%s: routed_scaling_factor %g is not known of %s",
		                 config->path, (double)scaling, model->family->name);
	model->router.scaling = scaling;
	return MOEK_OK;
}

/** What no row of the table and no config may ask for. */
static int32_t check_router(const struct moek_config *config,
                            const struct moek_model *model,
                            struct moek_error *error_out)
{
	const struct moek_family *family = model->family;
	const struct moek_router *router = &model->router;

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

static int32_t read_router(const struct moek_config *config, struct moek_model *model,
                           struct moek_error *error_out)
{
	const struct moek_family *family = model->family;
	struct moek_router *router = &model->router;
	uint64_t most = model->experts < MOEK_MODEL_TOP_K ? model->experts
	                                                  : MOEK_MODEL_TOP_K;
	/* never "top_k", which is of sampling */
	int32_t status = read_count(
		config,
		"num_experts_per_tok experts_per_token num_experts_per_token moe_topk "
		"moe_k moe_top_k top_k_experts",
		most, &router->top_k, error_out);

	router->struct_size = MOEK_ROUTER_SIZE_1_0;
	router->experts = model->experts;
	router->scoring = family->scoring;
	router->score_chosen = family->score_chosen;
	router->weight_on_input = family->weight_on_input;
	router->epsilon = family->epsilon;
	router->jitter = family->jitter;
	if (status == MOEK_OK && family->jitter > 0)
		status = read_number(config, "router_jitter_noise", &router->jitter,
		                     error_out);
	if (status == MOEK_OK)
		status = read_scoring(config, family, error_out);
	if (status == MOEK_OK)
		status = read_renormalise(config, model, error_out);
	if (status == MOEK_OK)
		status = read_groups(config, model, error_out);
	if (status == MOEK_OK)
		status = read_scaling(config, model, error_out);
	return status == MOEK_OK ? check_router(config, model, error_out) : status;
}

static int32_t read_sizes(const struct moek_config *config, struct moek_model *model,
                          struct moek_error *error_out)
{
	const struct moek_family *family = model->family;
	int32_t status = read_count(config, "num_hidden_layers n_layers",
	                            MOEK_MODEL_LAYERS, &model->layers, error_out);

	if (status == MOEK_OK)
		status = read_count(config,
		                    "num_local_experts num_experts n_routed_experts "
		                    "moe_num_experts",
		                    MOEK_MODEL_EXPERTS, &model->experts, error_out);
	if (status == MOEK_OK)
		status = read_count(config, "hidden_size d_model", MOEK_MODEL_SIZE,
		                    &model->router_hidden, error_out);
	model->hidden = model->router_hidden;
	if (status == MOEK_OK && family->latent != NULL &&
	    moek_config_get(config, family->latent) != NULL)
		status = read_count(config, family->latent, MOEK_MODEL_SIZE,
		                    &model->hidden, error_out);
	if (status == MOEK_OK)
		status = read_count(config, family->intermediate, MOEK_MODEL_SIZE,
		                    &model->intermediate, error_out);
	return status;
}

int32_t moek_model_read(const struct moek_config *config,
                        const struct moek_family *family, struct moek_model *model_out,
                        struct moek_error *error_out)
{
	struct moek_model model = { .family = family };
	int32_t status;

	if (family->refused != NULL)
		return moek_fail(error_out, MOEK_REFUSED, 0,
		                 "%s: model_type %s is not read: %s", config->path,
		                 family->name, family->refused);
	status = read_sizes(config, &model, error_out);
	if (status == MOEK_OK)
		status = check_requires(config, family, error_out);
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

/** A string of one letter for each layer ("MEM*E"), or a list of words: 1, 0, or -1:
 * the config has neither. */
static int by_pattern(const struct moek_config *config, uint64_t number)
{
	const struct moek_json *types = moek_config_get(config, "layers_block_type");
	size_t bytes = 0;
	const char *pattern = moek_json_string(
		moek_config_get(config, "hybrid_override_pattern"), &bytes);
	const char *type = moek_json_string(moek_json_at(types, number), NULL);

	if (pattern != NULL)
		return number < bytes && pattern[number] == 'E';
	return type == NULL ? -1 : strcmp(type, "moe") == 0;
}

/** Every how many layers, and the first and last that can have experts. */
static int by_steps(const struct moek_config *config, int64_t layer)
{
	static const struct {
		const char *step, *offset;
		int64_t otherwise; /* layer % step of those with experts: offset's */
	} steps[] = {
		{ "moe_layer_freq", NULL, 0 },
		{ "decoder_sparse_step", NULL, -1 },
		{ "interleave_moe_layer_step", NULL, -1 },
		{ "moe_layer_interval", NULL, -1 },
		{ "expert_layer_period", "expert_layer_offset", 0 },
	};
	int64_t last = number_of(config, "moe_layer_end_index", -1);

	if (layer < number_of(config, "first_k_dense_replace", 0) ||
	    layer < number_of(config, "num_dense_layers", 0) ||
	    layer < number_of(config, "moe_layer_start_index", 0) ||
	    (last >= 0 && layer > last))
		return 0;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		int64_t step = number_of(config, steps[i].step, 1);
		int64_t offset = steps[i].offset == NULL
		                         ? steps[i].otherwise
		                         : number_of(config, steps[i].offset,
		                                     steps[i].otherwise);

		if (step > 1 && layer % step != (offset < 0 ? step + offset : offset))
			return 0;
	}
	return 1;
}

int moek_model_expects(const struct moek_config *config, uint64_t number)
{
	const struct moek_json *frequency = moek_config_get(config, "moe_layer_freq");
	const struct moek_json *layers = moek_config_get(config, "moe_layers");
	int pattern = by_pattern(config, number);
	int64_t one;

	if (pattern >= 0)
		return pattern;
	if (lists(moek_config_get(config, "mlp_only_layers"), number) ||
	    (moek_json_count(layers) > 0 && !lists(layers, number)))
		return 0;
	if (moek_json_kind(frequency) == MOEK_JSON_ARRAY &&
	    !(moek_json_integer(moek_json_at(frequency, number), &one) && one != 0))
		return 0;
	return by_steps(config, (int64_t)number);
}
