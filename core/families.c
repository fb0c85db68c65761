/* SPDX-License-Identifier: MIT */
/* The table of model families. A model that computes what another one does is an alias
 * of it; one that moek cannot express has a row that says why. */
#include "config.h"

#include "core/family.h"

/* clang-format off */
#define PROJECTIONS .gate = "gate_proj", .up = "up_proj", .down = "down_proj"
#define NUMBERED .gate = "w1", .up = "w3", .down = "w2"
/* transformers 5 joins the experts of a layer in memory, and may save them so */
#define FUSED \
	.fused_gate_up = "gate_up_proj", .fused_down = "down_proj", .fused_suffix = "", \
	.fused_order = MOEK_GATE_FIRST
#define MLP_EXPERTS .experts = "mlp.experts.", .router = "mlp.gate", PROJECTIONS, FUSED
#define QWEN \
	MLP_EXPERTS, .shared = "mlp.shared_expert", .intermediate = "moe_intermediate_size", \
	.scoring = MOEK_SOFTMAX
#define MIXTRAL \
	.experts = "block_sparse_moe.experts.", .router = "block_sparse_moe.gate", NUMBERED
/* sigmoid scores, a bias for choosing only, groups of experts, a factor */
#define NOAUX_TC \
	.intermediate = "moe_intermediate_size", .scoring = MOEK_SIGMOID, \
	.renormalise = MOEK_RENORM_CONFIG, .groups = MOEK_GROUPS_CONFIG, .scaling = 1, \
	.epsilon = 1e-20f
#define DEEPSEEK_V3 \
	MLP_EXPERTS, .correction = "mlp.gate.e_score_correction_bias", \
	.shared = "mlp.shared_experts", NOAUX_TC
#define KIMI_LINEAR \
	MIXTRAL, .correction = "block_sparse_moe.gate.e_score_correction_bias", \
	.shared = "block_sparse_moe.shared_experts", NOAUX_TC
#define MINIMAX_M2 \
	MIXTRAL, .correction = "block_sparse_moe.e_score_correction_bias", \
	.intermediate = "intermediate_size", .requires = "use_routing_bias=true", \
	.scoring = MOEK_SIGMOID, .renormalise = MOEK_RENORM_ALWAYS, .epsilon = 1e-20f
#define SWIGLU_OAI .activation = MOEK_SWIGLU_OAI, .alpha = 1.702f, .beta = 1, .limit = 7

static const struct moek_family families[] = {
	{ .name = "bailing_moe_v2", MLP_EXPERTS, .correction = "mlp.gate.expert_bias",
	  .shared = "mlp.shared_experts", NOAUX_TC },
	/* w2 is [experts * intermediate][hidden]: down by columns */
	{ .name = "dbrx", .experts = "ffn.experts.mlp.", .router = "ffn.router.layer",
	  .fused_gate = "w1", .fused_up = "v1", .fused_down = "w2", .fused_suffix = "",
	  .fused_transposed = MOEK_TRANSPOSED_DOWN, .fused_flat = 1,
	  .intermediate = "ffn_hidden_size",
	  .requires = "ffn_act_fn.name=silu moe_normalize_expert_weights=1",
	  .activation = MOEK_SILU, .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "deepseek_v2", MLP_EXPERTS, .shared = "mlp.shared_experts",
	  .intermediate = "moe_intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_CONFIG, .groups = MOEK_GROUPS_BY_METHOD,
	  .scaling = 1, .epsilon = 1e-20f },
	{ .name = "deepseek_v3", .aliases = "deepseek_v32 dots1 mimo_v2_flash",
	  DEEPSEEK_V3 },
	{ .name = "deepseek_v4", .experts = "ffn.experts.", .router = "ffn.gate", NUMBERED,
	  .correction = "ffn.gate.bias", .by_token = "ffn.gate.tid2eid",
	  .shared = "ffn.shared_experts", .intermediate = "moe_intermediate_size",
	  .limit = 10, .scoring = MOEK_SQRT_SOFTPLUS, .renormalise = MOEK_RENORM_CONFIG,
	  .scaling = 1, .epsilon = 1e-20f },
	{ .name = "ernie4_5_moe", MLP_EXPERTS,
	  .correction = "mlp.moe_statics.e_score_correction_bias",
	  .shared = "mlp.shared_experts", .intermediate = "moe_intermediate_size",
	  .scoring = MOEK_SOFTMAX, .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "ernie4_5_vl_moe", .aliases = "ernie4_5_moe_vl",
	  .refused = "a layer has experts of two sizes, for text and for pictures" },
	{ .name = "gemma4", .aliases = "gemma4_text", .experts = "experts.",
	  .router = "router.proj", FUSED, .expert_scale = "router.per_expert_scale",
	  .intermediate = "moe_intermediate_size", .requires = "enable_moe_block=true",
	  .scoring = MOEK_SOFTMAX, .score_chosen = 1, .own_input = 1 },
	{ .name = "glm4_moe",
	  .aliases = "glm4_moe_lite glm4v_moe glm4v_moe_text glm_moe_dsa", DEEPSEEK_V3 },
	{ .name = "gpt_oss", .experts = "mlp.experts.", .router = "mlp.router",
	  .fused_gate_up = "gate_up_proj", .fused_down = "down_proj", .fused_suffix = "",
	  .fused_order = MOEK_GATE_INTERLEAVED, .fused_transposed = MOEK_TRANSPOSED_BOTH,
	  .router_bias = 1, .intermediate = "intermediate_size", SWIGLU_OAI,
	  .scoring = MOEK_SOFTMAX, .score_chosen = 1 },
	{ .name = "granitemoe", .aliases = "granitemoeshared granitemoehybrid",
	  .experts = "block_sparse_moe.", .router = "block_sparse_moe.router.layer",
	  .fused_gate_up = "input_linear", .fused_down = "output_linear",
	  .fused_suffix = ".weight", .fused_order = MOEK_GATE_FIRST,
	  .shared = "shared_mlp", .intermediate = "intermediate_size",
	  .scoring = MOEK_SOFTMAX, .score_chosen = 1 },
	{ .name = "hunyuan_v1_moe", .aliases = "hunyuan", .experts = "mlp.experts.",
	  .router = "mlp.gate.wg", PROJECTIONS, FUSED, .shared = "mlp.shared_mlp",
	  .intermediate = "moe_intermediate_size intermediate_size",
	  .scoring = MOEK_SOFTMAX, .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "jamba", .experts = "feed_forward.experts.",
	  .router = "feed_forward.router", PROJECTIONS, FUSED,
	  .intermediate = "intermediate_size", .scoring = MOEK_SOFTMAX },
	{ .name = "kimi_k2", .aliases = "kimi_k25", DEEPSEEK_V3 },
	{ .name = "kimi_k3", KIMI_LINEAR, .latent = "routed_expert_hidden_size",
	  .activation = MOEK_SITU, .alpha = 4, .beta = 25 },
	{ .name = "kimi_linear", KIMI_LINEAR },
	{ .name = "lfm2_moe", .experts = "feed_forward.experts.",
	  .router = "feed_forward.gate", NUMBERED,
	  .correction = "feed_forward.expert_bias",
	  .intermediate = "moe_intermediate_size", .requires = "use_expert_bias=true",
	  .activation = MOEK_SILU, .scoring = MOEK_SIGMOID,
	  .renormalise = MOEK_RENORM_CONFIG, .scaling = 1, .epsilon = 1e-6f },
	{ .name = "llama4", .aliases = "llama4_text", .experts = "feed_forward.experts.",
	  .router = "feed_forward.router", PROJECTIONS, FUSED,
	  .fused_transposed = MOEK_TRANSPOSED_BOTH,
	  .shared = "feed_forward.shared_expert", .intermediate = "intermediate_size",
	  .scoring = MOEK_SIGMOID, .score_chosen = 1, .weight_on_input = 1 },
	{ .name = "longcat_flash",
	  .refused = "its router may choose to run no expert (zero_expert_num)" },
	{ .name = "minimax_m2", MINIMAX_M2 },
	{ .name = "minimax_m3", MINIMAX_M2, .shared = "block_sparse_moe.shared_experts",
	  SWIGLU_OAI, .scaling = 1 },
	{ .name = "mixtral", .aliases = "minimax minimax_text_01 minimax_m1", MIXTRAL,
	  .intermediate = "intermediate_size", .scoring = MOEK_SOFTMAX,
	  .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "nemotron_h", .experts = "mixer.experts.", .router = "mixer.gate",
	  .gate = "up_proj", .down = "down_proj", .fused_gate = "up_proj",
	  .fused_down = "down_proj", .fused_suffix = "",
	  .correction = "mixer.gate.e_score_correction_bias",
	  .shared = "mixer.shared_experts", .latent = "moe_latent_size", .not_gated = 1,
	  NOAUX_TC },
	{ .name = "olmoe", MLP_EXPERTS, .intermediate = "intermediate_size",
	  .scoring = MOEK_SOFTMAX, .renormalise = MOEK_RENORM_CONFIG },
	{ .name = "phimoe", MIXTRAL, .intermediate = "intermediate_size",
	  .requires = "num_experts_per_tok=2", .scoring = MOEK_SOFTMAX, .jitter = 0.01f },
	{ .name = "qwen2_moe", QWEN, .renormalise = MOEK_RENORM_CONFIG },
	{ .name = "qwen3_5_moe", .aliases = "qwen3_5_moe_text", QWEN,
	  .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "qwen3_moe", QWEN, .renormalise = MOEK_RENORM_CONFIG },
	{ .name = "qwen3_next", QWEN, .renormalise = MOEK_RENORM_CONFIG },
	{ .name = "qwen3_vl_moe", .aliases = "qwen3_vl_moe_text", QWEN,
	  .fused_transposed = MOEK_TRANSPOSED_BOTH, .renormalise = MOEK_RENORM_ALWAYS },
	{ .name = "step3p5", .aliases = "step3p7",
	  .refused = "the limit of its activation is another one in each layer "
	             "(swiglu_limits)" },
};
/* clang-format on */

const struct moek_family *moek_families(size_t *count_out)
{
	*count_out = sizeof(families) / sizeof(families[0]);
	return families;
}
