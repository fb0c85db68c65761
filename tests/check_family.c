/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/family.h"
#include "core/json.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct moek_json *root;

static int32_t read_text(const char *text, struct moek_model *model_out,
                         struct moek_error *error_out)
{
	struct moek_config config = { .path = "m/config.json" };
	const struct moek_family *family;
	struct moek_error error = { .text = "" };

	moek_json_free(root);
	root = NULL;
	ck_assert_msg(moek_json_parse(text, strlen(text), "t", &root, &error) ==
	                      MOEK_OK,
	              "%s: %s", text, error.text);
	config.root = root;
	family = moek_family_find(&config);
	ck_assert_msg(family != NULL, "%s", text);
	return moek_model_read(&config, family, model_out, error_out);
}

static void tear_down(void)
{
	moek_json_free(root);
	root = NULL;
}

/* What every config below has; "type" and more come in front. */
#define SIZES                                                                          \
	"\"num_hidden_layers\":4,\"num_experts\":16,\"num_experts_per_tok\":4,"        \
	"\"hidden_size\":256,\"intermediate_size\":512,\"moe_intermediate_size\":128," \
	"\"hidden_act\":\"silu\",\"dtype\":\"bfloat16\""

static const struct routing {
	const char *config; /* before SIZES */
	uint32_t scoring, score_chosen, renormalise, groups, groups_kept,
		weight_on_input;
	float scaling;
	uint64_t intermediate;
	const char *family;
} routings[] = {
	{ "\"model_type\":\"mixtral\"", MOEK_SOFTMAX, 0, 1, 0, 0, 0, 1, 512,
	  "mixtral" },
	{ "\"model_type\":\"qwen2_moe\",\"norm_topk_prob\":false", MOEK_SOFTMAX, 0, 0,
	  0, 0, 0, 1, 128, "qwen2_moe" },
	{ "\"model_type\":\"qwen3_moe\",\"norm_topk_prob\":true", MOEK_SOFTMAX, 0, 1, 0,
	  0, 0, 1, 128, "qwen3_moe" },
	{ "\"model_type\":\"qwen3_next\",\"norm_topk_prob\":true", MOEK_SOFTMAX, 0, 1,
	  0, 0, 0, 1, 128, "qwen3_next" },
	{ "\"model_type\":\"olmoe\",\"norm_topk_prob\":false", MOEK_SOFTMAX, 0, 0, 0, 0,
	  0, 1, 512, "olmoe" },
	{ "\"model_type\":\"qwen3_5_moe\"", MOEK_SOFTMAX, 0, 1, 0, 0, 0, 1, 128,
	  "qwen3_5_moe" },
	{ "\"model_type\":\"gpt_oss\"", MOEK_SOFTMAX, 1, 0, 0, 0, 0, 1, 512,
	  "gpt_oss" },
	{ "\"model_type\":\"granitemoe\"", MOEK_SOFTMAX, 1, 0, 0, 0, 0, 1, 512,
	  "granitemoe" },
	{ "\"model_type\":\"deepseek_v2\",\"norm_topk_prob\":false,\"topk_method\":"
	  "\"greedy\","
	  "\"n_group\":4,\"topk_group\":2,\"routed_scaling_factor\":1.0",
	  MOEK_SOFTMAX, 0, 0, 0, 0, 0, 1, 128, "deepseek_v2" },
	{ "\"model_type\":\"deepseek_v2\",\"norm_topk_prob\":false,"
	  "\"topk_method\":\"group_limited_greedy\",\"n_group\":4,\"topk_group\":2,"
	  "\"routed_scaling_factor\":16",
	  MOEK_SOFTMAX, 0, 0, 4, 2, 0, 16, 128, "deepseek_v2" },
	{ "\"model_type\":\"deepseek_v3\",\"norm_topk_prob\":true,\"topk_method\":"
	  "\"noaux_tc\","
	  "\"scoring_func\":\"sigmoid\",\"n_group\":8,\"topk_group\":4,"
	  "\"routed_scaling_factor\":2.5",
	  MOEK_SIGMOID, 0, 1, 8, 4, 0, 2.5f, 128, "deepseek_v3" },
	{ "\"model_type\":\"kimi_k2\",\"norm_topk_prob\":true,\"n_group\":1,\"topk_"
	  "group\":1,"
	  "\"routed_scaling_factor\":2.827",
	  MOEK_SIGMOID, 0, 1, 1, 1, 0, 2.827f, 128, "kimi_k2" },
	{ "\"model_type\":\"glm4_moe\",\"norm_topk_prob\":true,\"n_group\":1,\"topk_"
	  "group\":1,"
	  "\"routed_scaling_factor\":null",
	  MOEK_SIGMOID, 0, 1, 1, 1, 0, 1, 128, "glm4_moe" },
	{ "\"model_type\":\"bailing_moe_v2\",\"norm_topk_prob\":true,\"n_group\":8,"
	  "\"topk_group\":4,\"score_function\":\"sigmoid\","
	  "\"routed_scaling_factor\":2.5",
	  MOEK_SIGMOID, 0, 1, 8, 4, 0, 2.5f, 128, "bailing_moe_v2" },
	{ "\"model_type\":\"dbrx\",\"ffn_config\":{\"ffn_hidden_size\":96}",
	  MOEK_SOFTMAX, 0, 1, 0, 0, 0, 1, 96, "dbrx" },
	{ "\"model_type\":\"deepseek_v4\",\"norm_topk_prob\":true,"
	  "\"scoring_func\":\"sqrtsoftplus\",\"topk_method\":\"noaux_tc\","
	  "\"routed_scaling_factor\":1.5,\"swiglu_limit\":10",
	  MOEK_SQRT_SOFTPLUS, 0, 1, 0, 0, 0, 1.5f, 128, "deepseek_v4" },
	{ "\"model_type\":\"ernie4_5_moe\"", MOEK_SOFTMAX, 0, 1, 0, 0, 0, 1, 128,
	  "ernie4_5_moe" },
	{ "\"model_type\":\"gemma4_text\",\"enable_moe_block\":true", MOEK_SOFTMAX, 1,
	  0, 0, 0, 0, 1, 128, "gemma4" },
	{ "\"model_type\":\"hunyuan_v1_moe\"", MOEK_SOFTMAX, 0, 1, 0, 0, 0, 1, 128,
	  "hunyuan_v1_moe" },
	{ "\"model_type\":\"jamba\"", MOEK_SOFTMAX, 0, 0, 0, 0, 0, 1, 512, "jamba" },
	{ "\"model_type\":\"kimi_linear\",\"moe_renormalize\":true,"
	  "\"moe_router_activation_func\":\"sigmoid\",\"num_expert_group\":1,"
	  "\"topk_group\":1,\"routed_scaling_factor\":2.446",
	  MOEK_SIGMOID, 0, 1, 1, 1, 0, 2.446f, 128, "kimi_linear" },
	{ "\"model_type\":\"lfm2_moe\",\"norm_topk_prob\":true,"
	  "\"use_expert_bias\":true",
	  MOEK_SIGMOID, 0, 1, 0, 0, 0, 1, 128, "lfm2_moe" },
	{ "\"model_type\":\"minimax_m2\",\"scoring_func\":\"sigmoid\","
	  "\"use_routing_bias\":true",
	  MOEK_SIGMOID, 0, 1, 0, 0, 0, 1, 512, "minimax_m2" },
	{ "\"model_type\":\"minimax_m3\",\"routed_scaling_factor\":2", MOEK_SIGMOID, 0,
	  1, 0, 0, 0, 2, 512, "minimax_m3" },
	{ "\"model_type\":\"minimax_text_01\"", MOEK_SOFTMAX, 0, 1, 0, 0, 0, 1, 512,
	  "mixtral" },
	{ "\"model_type\":\"glm_moe_dsa\",\"norm_topk_prob\":true,\"n_group\":1,"
	  "\"topk_group\":1",
	  MOEK_SIGMOID, 0, 1, 1, 1, 0, 1, 128, "glm4_moe" },
	{ "\"model_type\":\"qwen3_vl_moe\"", MOEK_SOFTMAX, 0, 1, 0, 0, 0, 1, 128,
	  "qwen3_vl_moe" },
};

START_TEST(knows_how_each_family_routes)
{
	const struct routing *r = &routings[_i];
	struct moek_error error = { .text = "" };
	struct moek_model model;
	char text[1024];

	snprintf(text, sizeof(text), "{%s," SIZES "}", r->config);
	ck_assert_msg(read_text(text, &model, &error) == MOEK_OK, "%s", error.text);
	ck_assert_str_eq(model.family->name, r->family);
	ck_assert_uint_eq(model.layers, 4);
	ck_assert_uint_eq(model.experts, 16);
	ck_assert_uint_eq(model.hidden, 256);
	ck_assert_uint_eq(model.intermediate, r->intermediate);
	ck_assert_uint_eq(model.type, MOEK_BF16);
	ck_assert_uint_eq(model.router.struct_size, MOEK_ROUTER_SIZE_1_0);
	ck_assert_uint_eq(model.router.experts, 16);
	ck_assert_uint_eq(model.router.top_k, 4);
	ck_assert_uint_eq(model.router.scoring, r->scoring);
	ck_assert_uint_eq(model.router.score_chosen, r->score_chosen);
	ck_assert_uint_eq(model.router.renormalise, r->renormalise);
	ck_assert_uint_eq(model.router.groups, r->groups);
	ck_assert_uint_eq(model.router.groups_kept, r->groups_kept);
	ck_assert_uint_eq(model.router.weight_on_input, r->weight_on_input);
	ck_assert_float_eq(model.router.scaling, r->scaling);
	ck_assert(r->scoring != MOEK_SIGMOID || model.router.epsilon == 1e-20f ||
	          strcmp(r->family, "lfm2_moe") == 0);
	ck_assert_uint_eq(model.router_hidden, 256);
}
END_TEST

START_TEST(one_sigmoid_score_is_not_divided_by_itself)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;

	ck_assert_int_eq(
		read_text("{\"model_type\":\"deepseek_v3\",\"norm_topk_prob\":true,"
	                  "\"n_group\":1,\"topk_group\":1,\"num_hidden_layers\":1,"
	                  "\"num_experts\":2,\"num_experts_per_tok\":1,"
	                  "\"hidden_size\":2,\"moe_intermediate_size\":2,"
	                  "\"hidden_act\":\"silu\",\"dtype\":\"float32\"}",
	                  &model, &error),
		MOEK_OK);
	ck_assert_uint_eq(model.router.renormalise, 0);
}
END_TEST

START_TEST(llama4_puts_the_weight_on_the_input)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;
	/* the values stand in text_config, as in the published file */
	static const char text[] =
		"{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_"
		"text\","
		"\"num_hidden_layers\":2,\"num_local_experts\":16,\"num_experts_per_"
		"tok\":%d,"
		"\"hidden_size\":64,\"intermediate_size\":32,\"intermediate_size_mlp\":"
		"128,"
		"\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\"}}";
	char one[512], two[512];

	snprintf(one, sizeof(one), text, 1);
	snprintf(two, sizeof(two), text, 2);
	ck_assert_msg(read_text(one, &model, &error) == MOEK_OK, "%s", error.text);
	ck_assert_uint_eq(model.router.weight_on_input, 1);
	ck_assert_uint_eq(model.router.scoring, MOEK_SIGMOID);
	ck_assert_uint_eq(model.router.score_chosen, 1);
	ck_assert_uint_eq(model.intermediate, 32);
	ck_assert_int_eq(read_text(two, &model, &error), MOEK_REFUSED);
	ck_assert_uint_eq(error.rule, MOEK_RULE_WEIGHT_ON_INPUT);
}
END_TEST

START_TEST(gpt_oss_means_its_own_activation)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;

	ck_assert_int_eq(
		read_text("{\"model_type\":\"gpt_oss\"," SIZES "}", &model, &error),
		MOEK_OK);
	ck_assert_uint_eq(model.activation, MOEK_SWIGLU_OAI);
	ck_assert_float_eq(model.alpha, 1.702f);
	ck_assert_float_eq(model.beta, 1);
	ck_assert_float_eq(model.limit, 7);
	ck_assert_int_eq(
		read_text("{\"model_type\":\"gpt_oss\",\"swiglu_limit\":5.5," SIZES "}",
	                  &model, &error),
		MOEK_OK);
	ck_assert_float_eq(model.limit, 5.5f);
	ck_assert_int_eq(
		read_text("{\"model_type\":\"mixtral\"," SIZES "}", &model, &error),
		MOEK_OK);
	ck_assert_uint_eq(model.activation, MOEK_SILU);
	ck_assert_float_eq(model.alpha, 0);
	ck_assert_float_eq(model.limit, 0);
}
END_TEST

/* activation and its parameters; "more" stands before SIZES */
static const struct function {
	const char *more;
	uint32_t activation;
	float alpha, beta, limit;
} functions[] = {
	{ "\"model_type\":\"deepseek_v4\",\"norm_topk_prob\":true", MOEK_SILU, 0, 0,
	  10 },
	{ "\"model_type\":\"deepseek_v4\",\"norm_topk_prob\":true,\"swiglu_limit\":6,"
	  "\"swiglu_alpha\":3",
	  MOEK_SILU, 0, 0, 6 },
	{ "\"model_type\":\"minimax_m3\",\"swiglu_alpha\":1.5", MOEK_SWIGLU_OAI, 1.5f,
	  1, 7 },
	{ "\"model_type\":\"kimi_k3\",\"norm_topk_prob\":true,\"n_group\":1,"
	  "\"topk_group\":1",
	  MOEK_SITU, 4, 25, 0 },
	{ "\"model_type\":\"kimi_k3\",\"norm_topk_prob\":true,\"n_group\":1,"
	  "\"topk_group\":1,\"activation_situ_beta\":5,"
	  "\"activation_situ_linear_beta\":20",
	  MOEK_SITU, 5, 20, 0 },
	{ "\"model_type\":\"dbrx\",\"ffn_config\":{\"ffn_hidden_size\":96,"
	  "\"moe_normalize_expert_weights\":1,\"ffn_act_fn\":{\"name\":\"silu\"}}",
	  MOEK_SILU, 0, 0, 0 },
};

START_TEST(knows_what_lies_between_the_matrices)
{
	const struct function *f = &functions[_i];
	struct moek_error error = { .text = "" };
	struct moek_model model;
	char text[1024];

	snprintf(text, sizeof(text), "{%s," SIZES "}", f->more);
	ck_assert_msg(read_text(text, &model, &error) == MOEK_OK, "%s", error.text);
	ck_assert_uint_eq(model.activation, f->activation);
	ck_assert_float_eq(model.alpha, f->alpha);
	ck_assert_float_eq(model.beta, f->beta);
	ck_assert_float_eq(model.limit, f->limit);
}
END_TEST

#define NEMOTRON(more)                                                                 \
	"{\"model_type\":\"nemotron_h\",\"num_hidden_layers\":6,"                      \
	"\"n_routed_experts\":16,\"num_experts_per_tok\":6,\"hidden_size\":64,"        \
	"\"moe_intermediate_size\":48,\"n_group\":1,\"topk_group\":1,"                 \
	"\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"                       \
	"\"hybrid_override_pattern\":\"MEM*E-\",\"dtype\":\"bfloat16\"" more "}"

START_TEST(nemotron_has_no_gate_and_may_have_a_narrower_input)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;

	ck_assert_msg(read_text(NEMOTRON(",\"mlp_hidden_act\":\"relu2\""), &model,
	                        &error) == MOEK_OK,
	              "%s", error.text);
	ck_assert_uint_eq(model.activation, MOEK_RELU2);
	ck_assert_uint_eq(model.family->not_gated, 1);
	ck_assert_uint_eq(model.hidden, 64);
	ck_assert_uint_eq(model.router_hidden, 64);
	ck_assert_msg(read_text(NEMOTRON(",\"mlp_hidden_act\":\"relu2\","
	                                 "\"moe_latent_size\":32"),
	                        &model, &error) == MOEK_OK,
	              "%s", error.text);
	ck_assert_uint_eq(model.hidden, 32);
	ck_assert_uint_eq(model.router_hidden, 64);
}
END_TEST

START_TEST(phi_mixes_sparsely)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;
	static const char two[] =
		"{\"model_type\":\"phimoe\",\"num_hidden_layers\":1,"
		"\"num_local_experts\":16,\"num_experts_per_tok\":2,\"hidden_size\":64,"
		"\"intermediate_size\":48,\"router_jitter_noise\":0.02,"
		"\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\"}";

	ck_assert_msg(read_text(two, &model, &error) == MOEK_OK, "%s", error.text);
	ck_assert_float_eq(model.router.jitter, 0.02f);
	ck_assert_uint_eq(model.router.renormalise, 0);
}
END_TEST

START_TEST(a_list_with_one_value_for_all_layers_is_that_value)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;
	static const char text[] =
		"{\"model_type\":\"hunyuan\",\"num_hidden_layers\":2,\"num_experts\":"
		"16,"
		"\"moe_topk\":[8,%d],\"hidden_size\":64,\"intermediate_size\":48,"
		"\"moe_intermediate_size\":null,\"hidden_act\":\"silu\","
		"\"torch_dtype\":\"bfloat16\"}";
	char same[512], other[512];

	snprintf(same, sizeof(same), text, 8);
	snprintf(other, sizeof(other), text, 6);
	ck_assert_msg(read_text(same, &model, &error) == MOEK_OK, "%s", error.text);
	ck_assert_uint_eq(model.router.top_k, 8);
	ck_assert_uint_eq(model.intermediate, 48);
	ck_assert_int_eq(read_text(other, &model, &error), MOEK_REFUSED);
	ck_assert_ptr_nonnull(strstr(
		error.text,
		"moe_topk is not the same in each layer: 8, then another in place 1"));
}
END_TEST

/** Every row can be read, and the names in it do not stand in each other's way. */
START_TEST(every_row_is_whole)
{
	size_t count;
	const struct moek_family *rows = moek_families(&count);

	ck_assert_uint_gt(count, 30);
	for (size_t i = 0; i < count; i++) {
		const struct moek_family *f = &rows[i];

		ck_assert(i == 0 || strcmp(rows[i - 1].name, f->name) < 0);
		if (f->refused != NULL)
			continue;
		ck_assert(f->experts != NULL && f->router != NULL &&
		          f->intermediate != NULL && f->scoring != 0);
		ck_assert(f->gate != NULL || f->fused_gate_up != NULL ||
		          f->fused_gate != NULL);
		ck_assert(f->gate == NULL || f->down != NULL);
		ck_assert((f->fused_down != NULL) ==
		          (f->fused_gate_up != NULL || f->fused_gate != NULL));
		ck_assert(f->fused_down == NULL || f->fused_suffix != NULL);
		ck_assert((f->fused_gate_up != NULL) == (f->fused_order != 0));
		ck_assert(f->gate == NULL || f->not_gated == (f->up == NULL));
		ck_assert(f->fused_gate == NULL ||
		          f->not_gated == (f->fused_up == NULL));
		ck_assert(f->groups == MOEK_GROUPS_NEVER || f->jitter == 0);
		/* names of another use must not begin with the experts' names */
		ck_assert(f->shared == NULL ||
		          strncmp(f->shared, f->experts, strlen(f->experts)) != 0);
		ck_assert(f->correction == NULL ||
		          strncmp(f->correction, f->experts, strlen(f->experts)) != 0);
	}
}
END_TEST

START_TEST(a_model_in_text_config_is_found)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;

	ck_assert_msg(
		read_text("{\"model_type\":\"wrapper\",\"text_config\":{\"model_type\":"
	                  "\"qwen3_5_moe_text\"," SIZES "}}",
	                  &model, &error) == MOEK_OK,
		"%s", error.text);
	ck_assert_str_eq(model.family->name, "qwen3_5_moe");
	ck_assert_uint_eq(model.experts, 16);
}
END_TEST

/* A mixtral config of which one thing is wrong. */
#define MIXTRAL(layers, experts, top_k, hidden, intermediate, act, dtype)              \
	"{\"model_type\":\"mixtral\",\"num_hidden_layers\":" layers                    \
	",\"num_local_experts\":" experts ",\"num_experts_per_tok\":" top_k            \
	",\"hidden_size\":" hidden ",\"intermediate_size\":" intermediate              \
	",\"hidden_act\":" act ",\"dtype\":" dtype "}"

static const struct bad {
	const char *config;
	int32_t status;
	const char *says;
} bad[] = {
	{ "{\"model_type\":\"mixtral\"}", MOEK_BAD_FILE,
	  "num_hidden_layers is missing" },
	{ MIXTRAL("0", "8", "2", "64", "96", "\"silu\"", "\"float16\""), MOEK_BAD_FILE,
	  "num_hidden_layers: found 0, expected 1 .. 1024" },
	{ MIXTRAL("1025", "8", "2", "64", "96", "\"silu\"", "\"float16\""),
	  MOEK_BAD_FILE, "num_hidden_layers: found 1025" },
	{ MIXTRAL("1", "4097", "2", "64", "96", "\"silu\"", "\"float16\""),
	  MOEK_BAD_FILE, "num_local_experts: found 4097, expected 1 .. 4096" },
	{ MIXTRAL("1", "-1", "2", "64", "96", "\"silu\"", "\"float16\""), MOEK_BAD_FILE,
	  "num_local_experts: found -1" },
	{ MIXTRAL("1", "8.0", "2", "64", "96", "\"silu\"", "\"float16\""),
	  MOEK_BAD_FILE, "num_local_experts is not a whole number" },
	{ MIXTRAL("1", "null", "2", "64", "96", "\"silu\"", "\"float16\""),
	  MOEK_BAD_FILE, "num_local_experts is missing" },
	{ MIXTRAL("1", "8", "9", "64", "96", "\"silu\"", "\"float16\""), MOEK_BAD_FILE,
	  "num_experts_per_tok: found 9, expected 1 .. 8" },
	{ MIXTRAL("1", "8", "0", "64", "96", "\"silu\"", "\"float16\""), MOEK_BAD_FILE,
	  "num_experts_per_tok: found 0, expected 1 .. 8" },
	{ MIXTRAL("1", "128", "65", "64", "96", "\"silu\"", "\"float16\""),
	  MOEK_BAD_FILE, "num_experts_per_tok: found 65, expected 1 .. 64" },
	{ MIXTRAL("1", "8", "2", "16777217", "96", "\"silu\"", "\"float16\""),
	  MOEK_BAD_FILE, "hidden_size: found 16777217, expected 1 .. 16777216" },
	{ MIXTRAL("1", "8", "2", "64", "\"96\"", "\"silu\"", "\"float16\""),
	  MOEK_BAD_FILE, "intermediate_size is not a whole number" },
	{ MIXTRAL("1", "8", "2", "64", "96", "\"relu\"", "\"float16\""), MOEK_REFUSED,
	  "hidden_act \"relu\" is not known" },
	{ MIXTRAL("1", "8", "2", "64", "96", "null", "\"float16\""), MOEK_BAD_FILE,
	  "hidden_act is missing" },
	{ MIXTRAL("1", "8", "2", "64", "96", "\"silu\"", "\"int8\""), MOEK_REFUSED,
	  "dtype \"int8\" is not read" },
	{ MIXTRAL("1", "8", "2", "64", "96", "\"silu\"", "null"), MOEK_BAD_FILE,
	  "dtype (or torch_dtype) is missing" },
	{ MIXTRAL("1", "8", "2", "64", "96", "\"silu\"", "5"), MOEK_BAD_FILE,
	  "dtype is not a string" },
	{ "{\"model_type\":\"qwen3_moe\"," SIZES "}", MOEK_BAD_FILE,
	  "norm_topk_prob is missing" },
	{ "{\"model_type\":\"qwen3_moe\",\"norm_topk_prob\":1," SIZES "}",
	  MOEK_BAD_FILE, "norm_topk_prob is not true or false" },
	{ "{\"model_type\":\"qwen3_moe\",\"norm_topk_prob\":true,\"swiglu_limit\":"
	  "7," SIZES "}",
	  MOEK_REFUSED, "swiglu_limit is not known of qwen3_moe" },
	{ "{\"model_type\":\"gpt_oss\",\"swiglu_limit\":0," SIZES "}", MOEK_BAD_FILE,
	  "swiglu_limit is not a number over 0" },
	{ "{\"model_type\":\"kimi_k2\",\"norm_topk_prob\":true,\"scoring_func\":"
	  "\"softmax\"," SIZES "}",
	  MOEK_REFUSED, "scoring_func \"softmax\" is not known of kimi_k2" },
	{ "{\"model_type\":\"kimi_k2\",\"norm_topk_prob\":true,\"topk_method\":"
	  "\"greedy\"," SIZES "}",
	  MOEK_REFUSED, "topk_method \"greedy\" is not known of kimi_k2" },
	{ "{\"model_type\":\"kimi_k2\",\"norm_topk_prob\":true,\"n_group\":3,\"topk_"
	  "group\":1," SIZES "}",
	  MOEK_BAD_FILE, "n_group: found 3, expected a divisor of 16 experts" },
	{ "{\"model_type\":\"kimi_k2\",\"norm_topk_prob\":true,\"n_group\":8,\"topk_"
	  "group\":9," SIZES "}",
	  MOEK_BAD_FILE, "topk_group: found 9, expected 1 .. 8" },
	{ "{\"model_type\":\"kimi_k2\",\"norm_topk_prob\":true,\"n_group\":8,\"topk_"
	  "group\":1," SIZES "}",
	  MOEK_BAD_FILE, "num_experts_per_tok: found 4, expected at most 2" },
	{ "{\"model_type\":\"kimi_k2\",\"norm_topk_prob\":true,\"n_group\":1,\"topk_"
	  "group\":1,"
	  "\"routed_scaling_factor\":-1," SIZES "}",
	  MOEK_BAD_FILE, "routed_scaling_factor is not a number over 0" },
	{ "{\"model_type\":\"deepseek_v2\",\"norm_topk_prob\":true,\"topk_method\":"
	  "\"greedy\","
	  "\"routed_scaling_factor\":16," SIZES "}",
	  MOEK_REFUSED, "implementations of deepseek_v2 differ" },
	{ "{\"model_type\":\"longcat_flash\"}", MOEK_REFUSED,
	  "model_type longcat_flash is not read: its router may choose to run no "
	  "expert" },
	{ "{\"model_type\":\"step3p7\"}", MOEK_REFUSED,
	  "step3p5 is not read: the limit of its activation" },
	{ "{\"model_type\":\"qwen2_moe\",\"norm_topk_prob\":false,"
	  "\"routed_scaling_factor\":2.5," SIZES "}",
	  MOEK_REFUSED, "routed_scaling_factor 2.5 is not known of qwen2_moe" },
	{ "{\"model_type\":\"minimax_m2\",\"use_routing_bias\":false," SIZES "}",
	  MOEK_REFUSED,
	  "use_routing_bias: found false; of minimax_m2 only true is read" },
	{ "{\"model_type\":\"phimoe\"," SIZES "}", MOEK_REFUSED,
	  "num_experts_per_tok: found 4; of phimoe only 2 is read" },
	{ "{\"model_type\":\"dbrx\",\"ffn_config\":{\"ffn_hidden_size\":96,"
	  "\"ffn_act_fn\":{\"name\":\"gelu\"}}," SIZES "}",
	  MOEK_REFUSED, "ffn_act_fn.name: found gelu; of dbrx only silu is read" },
	{ "{\"model_type\":\"dbrx\",\"ffn_config\":{\"ffn_hidden_size\":96,"
	  "\"moe_normalize_expert_weights\":2}," SIZES "}",
	  MOEK_REFUSED, "moe_normalize_expert_weights: found 2; of dbrx only 1" },
	{ NEMOTRON(",\"mlp_hidden_act\":\"silu\""), MOEK_REFUSED,
	  "activation silu: the experts of nemotron_h are not gated" },
	{ MIXTRAL("1", "8", "2", "64", "96", "\"relu2\"", "\"float16\""), MOEK_REFUSED,
	  "activation relu2: the experts of mixtral are gated" },
	{ "{\"model_type\":\"deepseek_v4\",\"norm_topk_prob\":true,"
	  "\"scoring_func\":\"sigmoid\"," SIZES "}",
	  MOEK_REFUSED, "which has \"sqrtsoftplus\"" },
};

START_TEST(names_what_is_missing_wrong_or_unknown)
{
	struct moek_error error = { .text = "" };
	struct moek_model model;

	ck_assert_int_eq(read_text(bad[_i].config, &model, &error), bad[_i].status);
	ck_assert_msg(strstr(error.text, bad[_i].says) != NULL, "\"%s\" is not in: %s",
	              bad[_i].says, error.text);
	ck_assert_ptr_nonnull(strstr(error.text, "m/config.json: "));
}
END_TEST

START_TEST(top_k_of_sampling_is_not_top_k_of_experts)
{
	struct moek_error error;
	struct moek_model model;

	ck_assert_int_eq(
		read_text("{\"model_type\":\"mixtral\",\"num_hidden_layers\":1,"
	                  "\"num_local_experts\":8,\"top_k\":2,\"hidden_size\":4,"
	                  "\"intermediate_size\":4,\"hidden_act\":\"silu\","
	                  "\"dtype\":\"float16\"}",
	                  &model, &error),
		MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "num_experts_per_tok is missing"));
}
END_TEST

static const struct schedule {
	const char *config;
	unsigned layers; /* bit n: layer n has experts, of 8 */
} schedules[] = {
	{ "{}", 0xff },
	{ "{\"first_k_dense_replace\":3}", 0xf8 },
	{ "{\"moe_layer_freq\":[0,1,0,1,1,0,0,0]}", 0x1a },
	{ "{\"moe_layer_freq\":2,\"first_k_dense_replace\":1}", 0x54 },
	{ "{\"decoder_sparse_step\":2}", 0xaa },
	{ "{\"decoder_sparse_step\":1,\"mlp_only_layers\":[0,7]}", 0x7e },
	{ "{\"interleave_moe_layer_step\":2}", 0xaa },
	{ "{\"text_config\":{\"first_k_dense_replace\":1}}", 0xfe },
	{ "{\"moe_layer_start_index\":1,\"moe_layer_end_index\":5,"
	  "\"moe_layer_interval\":1}",
	  0x3e },
	{ "{\"moe_layer_start_index\":3,\"moe_layer_end_index\":-1,"
	  "\"moe_layer_interval\":2}",
	  0xa8 },
	{ "{\"hybrid_override_pattern\":\"MEM*EMEM\"}", 0x52 },
	{ "{\"layers_block_type\":[\"mamba\",\"moe\",\"attention\",\"moe\"]}", 0xfa },
	{ "{\"expert_layer_period\":2,\"expert_layer_offset\":1}", 0xaa },
	{ "{\"num_dense_layers\":2}", 0xfc },
	{ "{\"moe_layers\":[1,3,5]}", 0x2a },
};

START_TEST(knows_which_layers_have_experts)
{
	struct moek_config config = { .path = "m/config.json" };
	const char *text = schedules[_i].config;

	ck_assert_int_eq(moek_json_parse(text, strlen(text), "t", &root, NULL),
	                 MOEK_OK);
	config.root = root;
	for (unsigned n = 0; n < 8; n++)
		ck_assert_msg(moek_model_expects(&config, n) ==
		                      (int)(schedules[_i].layers >> n & 1),
		              "%s: layer %u", text, n);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("family");
	TCase *tests = tcase_create("family");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, NULL, tear_down);
	tcase_add_loop_test(tests, knows_how_each_family_routes, 0,
	                    (int)(sizeof(routings) / sizeof(routings[0])));
	tcase_add_test(tests, one_sigmoid_score_is_not_divided_by_itself);
	tcase_add_test(tests, llama4_puts_the_weight_on_the_input);
	tcase_add_test(tests, gpt_oss_means_its_own_activation);
	tcase_add_loop_test(tests, knows_what_lies_between_the_matrices, 0,
	                    (int)(sizeof(functions) / sizeof(functions[0])));
	tcase_add_test(tests, nemotron_has_no_gate_and_may_have_a_narrower_input);
	tcase_add_test(tests, phi_mixes_sparsely);
	tcase_add_test(tests, a_list_with_one_value_for_all_layers_is_that_value);
	tcase_add_test(tests, every_row_is_whole);
	tcase_add_test(tests, a_model_in_text_config_is_found);
	tcase_add_loop_test(tests, names_what_is_missing_wrong_or_unknown, 0,
	                    (int)(sizeof(bad) / sizeof(bad[0])));
	tcase_add_test(tests, top_k_of_sampling_is_not_top_k_of_experts);
	tcase_add_loop_test(tests, knows_which_layers_have_experts, 0,
	                    (int)(sizeof(schedules) / sizeof(schedules[0])));
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
