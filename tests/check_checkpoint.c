/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/checkpoint.h"
#include "kit.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moek/formats.h>
#include <moek/moek.h>

static const char *folder;

static void set_up(void)
{
	folder = kit_folder();
}

static const char *fixture(const char *name)
{
	return kit_path(kit_path(getenv("MOEK_TEST_SOURCE"), "fixtures/checkpoints"),
	                name);
}

static struct moek_checkpoint *open_ok(struct moek_registry *registry, const char *path)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };
	int32_t status = moek_checkpoint_open(registry, path, &checkpoint, &error);

	ck_assert_msg(status == MOEK_OK, "%s", error.text);
	return checkpoint;
}

/** It does not open; the error has all the words of @says (NULL-ended). */
static void expect_error(int32_t status, const char *const *says)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(moek_checkpoint_open(NULL, folder, &checkpoint, &error),
	                 status);
	ck_assert_ptr_null(checkpoint);
	for (; *says != NULL; says++)
		ck_assert_msg(strstr(error.text, *says) != NULL, "\"%s\" is not in: %s",
		              *says, error.text);
}

#define EXPECT_ERROR(status, ...)                                                      \
	expect_error(status, (const char *const[]){ __VA_ARGS__, NULL })

/* ---- log ---- */

struct heard {
	unsigned warnings;
	char last[512];
};

static void hear(void *self, uint32_t level, const char *text)
{
	struct heard *heard = self;

	if (level > 4)
		return;
	heard->warnings++;
	snprintf(heard->last, sizeof(heard->last), "%s", text);
}

static struct moek_registry *open_registry(struct heard *heard)
{
	struct moek_registry_options options = { .struct_size = MOEK_INIT(
							 REGISTRY_OPTIONS) };
	struct moek_registry *registry = NULL;
	struct moek_error error = { .text = "" };

	options.config_file = "";
	options.threads = 2;
	options.ignore_environment = 1;
	options.log = hear;
	options.log_self = heard;
	ck_assert_msg(moek_registry_open(&options, &registry, &error) == MOEK_OK, "%s",
	              error.text);
	memset(heard, 0, sizeof(*heard));
	return registry;
}

/* ---- real models ---- */

static const struct model {
	const char *folder, *family, *format;
	uint64_t experts, top_k, intermediate, weight_bytes;
	uint32_t weight, scale, activation, bias;
} models[] = {
	{ "tiny-qwen3moe-bf16", "qwen3_moe", "bf16 rows", 16, 4, 128,
	  16 * 3 * 256 * 128 * 2, MOEK_BF16, 0, MOEK_SILU, 0 },
	{ "tiny-qwen3moe-ct-sym-g32", "qwen3_moe", "compressed-tensors int4, group 32",
	  16, 4, 128, 16 * 3 * (256 * 128 / 2 + 256 * 128 / 32 * 2 + 16), MOEK_INT4,
	  MOEK_BF16, MOEK_SILU, 0 },
	{ "tiny-gptoss-mxfp4", "gpt_oss", "mxfp4 blocks", 8, 2, 160,
	  8 * (3 * 256 * 160 / 32 * 17 + 2 * (320 + 256)), MOEK_MXFP4, MOEK_E8M0,
	  MOEK_SWIGLU_OAI, 1 },
};

START_TEST(describes_a_real_model)
{
	const struct model *m = &models[_i];
	struct moek_checkpoint *checkpoint = open_ok(NULL, fixture(m->folder));
	struct moek_layer_info info;
	struct moek_problem p;
	struct moek_error error = { .text = "" };

	ck_assert_uint_eq(moek_checkpoint_layers(checkpoint), 4);
	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 3, &info), MOEK_OK);
	ck_assert_uint_eq(info.struct_size, MOEK_LAYER_INFO_SIZE_1_0);
	ck_assert_uint_eq(info.number, 3);
	ck_assert_str_eq(info.name, "layers.3");
	ck_assert_str_eq(info.family, m->family);
	ck_assert_str_eq(info.format, m->format);
	ck_assert_uint_eq(info.weight_bytes, m->weight_bytes);
	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 4, &info),
	                 MOEK_BAD_ARGUMENT);

	ck_assert_int_eq(moek_checkpoint_problem(checkpoint, 2, &p), MOEK_OK);
	ck_assert_uint_eq(p.max_tokens, 0);
	ck_assert_uint_eq(p.experts, m->experts);
	ck_assert_uint_eq(p.experts_local, m->experts);
	ck_assert_uint_eq(p.top_k, m->top_k);
	ck_assert_uint_eq(p.hidden, 256);
	ck_assert_uint_eq(p.intermediate, m->intermediate);
	ck_assert_uint_eq(p.gate_up.weight, m->weight);
	ck_assert_uint_eq(p.down.weight, m->weight);
	ck_assert_uint_eq(p.gate_up.scale, m->scale);
	ck_assert_uint_eq(p.gate_up.group_size, m->scale == 0 ? 0 : 32);
	ck_assert_uint_eq(p.gate_up.bias, m->bias);
	ck_assert_uint_eq(p.input_type, MOEK_BF16);
	ck_assert_uint_eq(p.output_type, MOEK_BF16);
	ck_assert_uint_eq(p.activation, m->activation);
	ck_assert_uint_eq(p.gated, 1);
	ck_assert_uint_eq(p.shards, 1);
	p.max_tokens = 1;
	ck_assert_msg(moek_problem_check(&p, &error) == MOEK_OK, "%s", error.text);
	ck_assert_ptr_nonnull(
		strstr(moek_checkpoint_config(checkpoint), "\"model_type\""));
	moek_checkpoint_close(checkpoint);
}
END_TEST

static const void *oracle_tensor(const struct moek_safetensors *oracle, unsigned layer,
                                 const char *what, struct moek_tensor *tensor_out)
{
	struct moek_error error = { .text = "" };
	char name[64];

	snprintf(name, sizeof(name), "layers.%u.%s", layer, what);
	ck_assert_msg(moek_safetensors_tensor(oracle, name, tensor_out, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	return tensor_out->data;
}

/** Logits of one layer, against other people's, and where they lead. */
static void check_routing(struct moek_checkpoint *checkpoint,
                          const struct moek_safetensors *oracle, unsigned layer)
{
	struct moek_tensor hidden, logits, ids, weights;
	struct moek_router router;
	struct moek_rows rows;
	struct moek_error error = { .text = "" };
	uint64_t tokens, all, chosen;
	float *got, *got_weights;
	int32_t *got_ids;

	oracle_tensor(oracle, layer, "hidden_in", &hidden);
	oracle_tensor(oracle, layer, "router_logits", &logits);
	oracle_tensor(oracle, layer, "topk_ids", &ids);
	oracle_tensor(oracle, layer, "topk_weights", &weights);
	ck_assert_int_eq(moek_checkpoint_router(checkpoint, layer, &router), MOEK_OK);
	tokens = hidden.shape[0];
	all = tokens * router.experts;
	chosen = tokens * router.top_k;
	got = calloc(all, sizeof(*got));
	got_ids = calloc(chosen, sizeof(*got_ids));
	got_weights = calloc(chosen, sizeof(*got_weights));
	memset(&rows, 0, sizeof(rows));
	rows.data = (void *)(uintptr_t)hidden.data;
	rows.rows = tokens;
	rows.columns = hidden.shape[1];
	rows.type = MOEK_F32;
	ck_assert_msg(moek_checkpoint_logits(checkpoint, layer, &rows, got, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	for (uint64_t i = 0; i < all; i++) {
		const float *want = logits.data;

		/* two orders of 256 additions: far less than this in practice */
		ck_assert_msg(fabsf(got[i] - want[i]) <=
		                      2e-5f * fmaxf(1, fabsf(want[i])),
		              "layer %u logit %llu: %g, expected %g", layer,
		              (unsigned long long)i, (double)got[i], (double)want[i]);
	}
	ck_assert_msg(moek_route(&router, got, tokens, got_ids, got_weights, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	for (uint64_t i = 0; i < chosen; i++) {
		ck_assert_int_eq(got_ids[i], ((const int32_t *)ids.data)[i]);
		ck_assert_float_eq_tol(got_weights[i], ((const float *)weights.data)[i],
		                       1e-6f);
	}
	free(got);
	free(got_ids);
	free(got_weights);
}

START_TEST(gives_single_values_of_the_config)
{
	struct moek_checkpoint *checkpoint = open_ok(NULL,
	                                             fixture("tiny-gptoss-mxfp4"));
	struct moek_error error = { .text = "" };
	double number = -1;
	const char *word = "unset";

	ck_assert_int_eq(
		moek_checkpoint_number(checkpoint, "hidden_size", &number, &error),
		MOEK_OK);
	ck_assert(number == 256);
	moek_checkpoint_number(checkpoint, "rope_parameters.rope_theta", &number,
	                       &error);
	ck_assert(number == 10000);
	moek_checkpoint_number(checkpoint, "tie_word_embeddings", &number, &error);
	ck_assert(number == 0);
	moek_checkpoint_number(checkpoint, "attention_bias", &number, &error);
	ck_assert(number == 1);
	ck_assert_int_eq(
		moek_checkpoint_word(checkpoint, "layer_types.1", &word, &error),
		MOEK_OK);
	ck_assert_str_eq(word, "full_attention");
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_value_that_the_config_lacks_leaves_the_default)
{
	static const char *const absent[] = { "hiden_size",
		                              "eos_token_id",
		                              "layer_types.4",
		                              "layer_types.",
		                              "layer_types.x",
		                              "hidden_size.x",
		                              "rope_parameters..rope_theta",
		                              "" };
	struct moek_checkpoint *checkpoint = open_ok(NULL,
	                                             fixture("tiny-gptoss-mxfp4"));
	double number = -1;
	const char *word = "unset";

	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
		ck_assert_int_eq(
			moek_checkpoint_number(checkpoint, absent[i], &number, NULL),
			MOEK_OK);
		ck_assert_int_eq(
			moek_checkpoint_word(checkpoint, absent[i], &word, NULL),
			MOEK_OK);
	}
	ck_assert(number == -1);
	ck_assert_str_eq(word, "unset");
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_value_of_another_kind_is_an_error_and_leaves_the_default)
{
	struct moek_checkpoint *checkpoint = open_ok(NULL,
	                                             fixture("tiny-gptoss-mxfp4"));
	struct moek_error error = { .text = "" };
	double number = -1;
	const char *word = "unset";

	ck_assert_int_eq(
		moek_checkpoint_number(checkpoint, "model_type", &number, &error),
		MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(
		strstr(error.text, "config.json: model_type is not a number"));
	ck_assert_int_eq(moek_checkpoint_word(checkpoint, "hidden_size", &word, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "hidden_size is not a string"));
	ck_assert(number == -1);
	ck_assert_str_eq(word, "unset");
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(routes_as_the_oracle_does)
{
	const char *path = fixture(models[_i].folder);
	struct moek_checkpoint *checkpoint = open_ok(NULL, path);
	struct moek_safetensors *oracle = NULL;
	struct moek_error error;

	ck_assert_int_eq(
		moek_safetensors_open(kit_path(path, "expected/oracle.safetensors"),
	                              &oracle, &error),
		MOEK_OK);
	for (unsigned layer = 0; layer < 4; layer++)
		check_routing(checkpoint, oracle, layer);
	moek_safetensors_close(oracle);
	moek_checkpoint_close(checkpoint);
}
END_TEST

/* ---- experts from several threads ---- */

struct reader {
	const struct moek_source *source;
	uint64_t first;
	uint64_t sums[16];
};

static uint64_t sum_of(const struct moek_matrix *m, uint64_t sum)
{
	const uint8_t *codes = m->codes, *scales = m->scales;

	for (uint64_t i = 0; i < m->rows * m->columns / 2; i++)
		sum = sum * 31 + codes[i];
	for (uint64_t i = 0; i < m->rows * (m->columns / 32); i++)
		sum = sum * 31 + scales[i];
	for (uint64_t i = 0; i < m->rows; i++)
		sum = sum * 31 + moek_f32_bits(m->bias[i]);
	return sum;
}

static void *read_experts(void *arg)
{
	struct reader *reader = arg;
	void *scratch = malloc(reader->source->scratch_bytes);

	for (uint64_t i = 0; i < 8; i++) {
		uint64_t e = (reader->first + i) % 8;
		struct moek_expert expert;
		struct moek_error error;

		memset(&expert, 0, sizeof(expert));
		if (reader->source->expert(reader->source->self, e, scratch, &expert,
		                           &error) != MOEK_OK)
			break;
		reader->sums[e] = sum_of(&expert.down,
		                         sum_of(&expert.up, sum_of(&expert.gate, 1)));
	}
	free(scratch);
	return NULL;
}

START_TEST(several_threads_read_experts_at_once)
{
	struct moek_checkpoint *checkpoint = open_ok(NULL,
	                                             fixture("tiny-gptoss-mxfp4"));
	struct reader readers[3];
	struct moek_source source;
	struct moek_error error;
	pthread_t threads[3];

	ck_assert_int_eq(moek_checkpoint_source(checkpoint, 1, &source, &error),
	                 MOEK_OK);
	for (unsigned i = 0; i < 3; i++) {
		memset(&readers[i], 0, sizeof(readers[i]));
		readers[i].source = &source;
		readers[i].first = i * 3;
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, read_experts, &readers[i]),
			0);
	}
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	for (unsigned e = 0; e < 8; e++) {
		ck_assert_uint_ne(readers[0].sums[e], 0);
		ck_assert_uint_eq(readers[0].sums[e], readers[1].sums[e]);
		ck_assert_uint_eq(readers[0].sums[e], readers[2].sums[e]);
		ck_assert(e == 0 || readers[0].sums[e] != readers[0].sums[e - 1]);
	}
	moek_source_close(&source);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(an_expert_beyond_the_last_is_an_error)
{
	struct moek_checkpoint *checkpoint = open_ok(NULL,
	                                             fixture("tiny-gptoss-mxfp4"));
	struct moek_error error = { .text = "" };
	struct moek_expert expert;
	struct moek_source source;

	ck_assert_int_eq(moek_checkpoint_source(checkpoint, 4, &source, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_checkpoint_source(checkpoint, 0, &source, &error),
	                 MOEK_OK);
	ck_assert_int_eq(source.expert(source.self, 8, NULL, &expert, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text, "layers.0: expert 8 of 8");
	moek_source_close(&source);
	moek_checkpoint_close(checkpoint);
}
END_TEST

/* ---- made models: qwen3_moe in bf16, H 6, I 4 ---- */

#define LAYER "model.layers.%u.mlp."

static void write_config(unsigned layers, unsigned experts, unsigned top_k,
                         unsigned hidden, unsigned intermediate, const char *more)
{
	char text[1024];
	int bytes = snprintf(text, sizeof(text),
	                     "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":%u,"
	                     "\"num_experts\":%u,\"num_experts_per_tok\":%u,"
	                     "\"hidden_size\":%u,\"moe_intermediate_size\":%u,"
	                     "\"norm_topk_prob\":true,\"hidden_act\":\"silu\","
	                     "\"torch_dtype\":\"bfloat16\"%s}",
	                     layers, experts, top_k, hidden, intermediate, more);

	kit_write(kit_path(folder, "config.json"), text, (size_t)bytes);
}

static void add_router(struct kit_file *file, unsigned layer)
{
	char name[128];

	snprintf(name, sizeof(name), LAYER "gate.weight", layer);
	kit_add(file, name, "BF16", "2,6", NULL);
}

static void add_part(struct kit_file *file, unsigned layer, unsigned expert,
                     const char *module, const char *shape)
{
	char name[128];

	snprintf(name, sizeof(name), LAYER "experts.%u.%s.weight", layer, expert,
	         module);
	kit_add(file, name, "BF16", shape, NULL);
}

static void add_expert(struct kit_file *file, unsigned layer, unsigned expert)
{
	add_part(file, layer, expert, "gate_proj", "4,6");
	add_part(file, layer, expert, "up_proj", "4,6");
	add_part(file, layer, expert, "down_proj", "6,4");
}

static void add_layer(struct kit_file *file, unsigned layer)
{
	add_router(file, layer);
	add_expert(file, layer, 0);
	add_expert(file, layer, 1);
}

static void save(struct kit_file *file)
{
	kit_save(file, kit_path(folder, "model.safetensors"));
}

static void expect_opens(void)
{
	moek_checkpoint_close(open_ok(NULL, folder));
}

START_TEST(config_at_odds_with_tensors_is_an_error)
{
	struct kit_file file = { 0 };

	add_layer(&file, 0);
	save(&file);
	write_config(1, 2, 1, 6, 4, "");
	expect_opens();
	write_config(1, 2, 3, 6, 4, "");
	EXPECT_ERROR(MOEK_BAD_FILE, "/config.json: num_experts_per_tok: found 3, "
	                            "expected 1 .. 2");
	write_config(1, 3, 1, 6, 4, "");
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "/model.safetensors: tensor model.layers.0.mlp.gate.weight: "
	             "found BF16 [2, 6], expected BF16 F16 F32 [3, 6] "
	             "(config.json: 3 experts, hidden 6, intermediate 4)");
	write_config(1, 2, 1, 8, 4, "");
	EXPECT_ERROR(MOEK_BAD_FILE, "mlp.gate.weight: found BF16 [2, 6]", "[2, 8]");
	write_config(1, 2, 1, 6, 5, "");
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "tensor model.layers.0.mlp.experts.0.gate_proj.weight: "
	             "found BF16 [4, 6], expected BF16 F16 F32 [5, 6]");
	write_config(2, 2, 1, 6, 4, "");
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "no tensor model.layers.1.mlp.gate.weight, and no experts: "
	             "by config.json layers.1 has them; "
	             "nearest: model.layers.0.mlp.gate.weight");
	write_config(2, 2, 1, 6, 4, ",\"mlp_only_layers\":[1]");
	expect_opens();
	write_config(1, 2, 1, 6, 4, ",\"mlp_only_layers\":[0]");
	expect_opens(); /* the tensors decide */
}
END_TEST

START_TEST(a_missing_expert_is_named)
{
	struct kit_file file = { 0 };

	write_config(1, 2, 1, 6, 4, "");
	add_router(&file, 0);
	add_expert(&file, 0, 0);
	add_part(&file, 0, 1, "gate_proj", "4,6");
	add_part(&file, 0, 1, "down_proj", "6,4");
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "no tensor model.layers.0.mlp.experts.1.up_proj.weight; "
	             "nearest: model.layers.0.mlp.experts.0.up_proj.weight");
	add_expert(&file, 0, 0);
	add_expert(&file, 0, 1);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE, "no tensor model.layers.0.mlp.gate.weight");
	add_router(&file, 0);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE,
	             "no tensor model.layers.0.mlp.experts.0.gate_proj.weight");
}
END_TEST

START_TEST(a_tensor_of_the_experts_that_nobody_reads_is_an_error)
{
	static const struct {
		const char *name;
		int is_read;
	} names[] = {
		{ "model.layers.0.mlp.experts.0.gate_proj.weight_scale", 0 },
		{ "model.layers.0.mlp.experts.2.gate_proj.weight", 0 },
		{ "model.layers.0.mlp.experts.00.gate_proj.weight", 0 },
		{ "model.layers.0.mlp.experts.1.side_proj.weight", 0 },
		{ "model.layers.0.mlp.experts.w2_weight", 0 },
		{ "model.layers.0.mlp.experts.99999999999999999999.gate_proj.weight",
		  0 },
		{ "model.layers.1.mlp.experts.5.up_proj.weight",
		  1 }, /* past the last layer */
		{ "model.layers.0.mlp.shared_experts.gate_proj.weight", 1 },
		{ "model.layers.0.mlp.gate.e_score_correction_bias", 1 },
		{ "model.layers.0", 1 },
		{ "model.layers.", 1 },
		{ "lm_head.weight", 1 },
		{ "model.layers.0.mlp.experts.1.gate_proj.weight\\n", 0 },
	};

	write_config(1, 2, 1, 6, 4, "");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct kit_file file = { 0 };

		add_layer(&file, 0);
		kit_add(&file, names[i].name, "BF16", "4,6", NULL);
		save(&file);
		if (names[i].is_read)
			expect_opens();
		else
			EXPECT_ERROR(MOEK_BAD_FILE,
			             "/model.safetensors: tensor model.layers.0.",
			             "is one of the experts', but not one that is read "
			             "(bf16 rows; config.json: 2 experts)");
	}
}
END_TEST

START_TEST(layers_that_predict_further_tokens_are_left_alone)
{
	struct moek_checkpoint *checkpoint;
	struct kit_file file = { 0 };

	write_config(2, 2, 1, 6, 4, ",\"mlp_only_layers\":[0]");
	add_layer(&file, 1);
	add_layer(&file, 2);
	save(&file);
	checkpoint = open_ok(NULL, folder);
	ck_assert_uint_eq(moek_checkpoint_layers(checkpoint), 1);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_model_without_experts_is_an_error)
{
	struct kit_file file = { 0 };

	write_config(1, 2, 1, 6, 4, ",\"mlp_only_layers\":[0]");
	kit_add(&file, "model.layers.0.mlp.gate_proj.weight", "BF16", "4,6", NULL);
	save(&file);
	EXPECT_ERROR(MOEK_BAD_FILE, "none of its 1 layers has experts");
}
END_TEST

START_TEST(files_that_are_not_there_or_no_json_are_errors)
{
	static const char deep[] = "[[[[[[[[[[";
	struct kit_file file = { 0 };
	struct moek_error error;
	struct moek_checkpoint *checkpoint;
	char *many;

	EXPECT_ERROR(MOEK_BAD_FILE, "/config.json: No such file or directory");
	kit_write(kit_path(folder, "config.json"), "[]", 2);
	EXPECT_ERROR(MOEK_BAD_FILE, "/config.json: not a JSON object");
	kit_write(kit_path(folder, "config.json"), deep, 10);
	EXPECT_ERROR(MOEK_BAD_FILE, "/config.json: line 1: bad JSON");
	many = malloc(100000);
	memset(many, '[', 100000);
	kit_write(kit_path(folder, "config.json"), many, 100000);
	free(many);
	EXPECT_ERROR(MOEK_BAD_FILE, "nested more than 128 deep");
	write_config(1, 2, 1, 6, 4, ",\"num_experts\":2");
	EXPECT_ERROR(MOEK_BAD_FILE, "duplicate object key");
	write_config(1, 2, 1, 6, 4, "");
	EXPECT_ERROR(MOEK_BAD_FILE, "/model.safetensors: No such file or directory");
	add_layer(&file, 0);
	save(&file);
	expect_opens();
	ck_assert_int_eq(truncate(kit_path(folder, "model.safetensors"), 900), 0);
	EXPECT_ERROR(MOEK_BAD_FILE, "/model.safetensors: truncated: the tensors take");
	ck_assert_int_eq(moek_checkpoint_open(NULL, NULL, &checkpoint, &error),
	                 MOEK_BAD_ARGUMENT);
	moek_checkpoint_close(NULL);
}
END_TEST

START_TEST(what_the_config_alone_rules_out_opens_no_weights)
{
	/* there is no model.safetensors, and nobody asks for it */
	kit_write(kit_path(folder, "config.json"), "{\"model_type\":\"mystery\"}", 24);
	EXPECT_ERROR(MOEK_REFUSED, "model_type \"mystery\" is not known to moek; known are: bailing");
	write_config(1, 2, 1, 6, 4,
	             ",\"quantization_config\":{\"quant_method\":\"hqq\"}");
	EXPECT_ERROR(MOEK_REFUSED, "quant_method \"hqq\" is not read");
}
END_TEST

/* ---- shards ---- */

/** Layer 0 over two files: matrices of one expert lie apart. */
static void save_shards(const char *stray)
{
	struct kit_file one = { 0 }, two = { 0 };

	add_expert(&one, 0, 0);
	add_part(&one, 0, 1, "gate_proj", "4,6");
	add_part(&two, 0, 1, "up_proj", "4,6");
	add_part(&two, 0, 1, "down_proj", "6,4");
	add_router(&two, 0);
	if (stray != NULL)
		kit_add(&two, stray, "BF16", "1", NULL);
	kit_save(&one, kit_path(folder, "a.safetensors"));
	kit_save(&two, kit_path(folder, "b.safetensors"));
}

#define E0 "model.layers.0.mlp.experts.0."
#define E1 "model.layers.0.mlp.experts.1."
#define IN_A                                                                           \
	"\"" E0 "gate_proj.weight\":\"a.safetensors\",\"" E0                           \
	"up_proj.weight\":\"a.safetensors\",\"" E0                                     \
	"down_proj.weight\":\"a.safetensors\",\"" E1                                   \
	"gate_proj.weight\":\"a.safetensors\""
#define IN_B                                                                           \
	"\"" E1 "up_proj.weight\":\"b.safetensors\",\"" E1                             \
	"down_proj.weight\":\"b.safetensors\",\"model.layers.0.mlp.gate.weight\":\"b." \
	"safetensors\""

static void write_index(const char *text)
{
	kit_write(kit_path(folder, "model.safetensors.index.json"), text, strlen(text));
}

START_TEST(shards_are_found_by_the_index_only)
{
	struct moek_checkpoint *checkpoint;
	struct moek_tensor tensor;
	struct moek_error error;
	struct kit_file file = { 0 };

	write_config(1, 2, 1, 6, 4, "");
	save_shards(NULL);
	/* a file of the usual name is not looked at when there is an index */
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "1", NULL);
	save(&file);
	write_index("{\"metadata\":{\"total_size\":1.5},\"weight_map\":{" IN_A "," IN_B
	            "}}");
	checkpoint = open_ok(NULL, folder);
	ck_assert_int_eq(moek_checkpoint_tensor(checkpoint,
	                                        "model.layers.0.mlp.gate.weight",
	                                        &tensor, &error),
	                 MOEK_OK);
	ck_assert_ptr_nonnull(strstr(tensor.file, "/b.safetensors"));
	ck_assert_uint_eq(tensor.shape[1], 6);
	ck_assert_int_eq(moek_checkpoint_tensor(checkpoint,
	                                        "model.layers.0.mlp.gat.weight",
	                                        &tensor, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text,
	                             "no tensor model.layers.0.mlp.gat.weight; "
	                             "nearest: model.layers.0.mlp.gate.weight"));
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_tensor_that_the_index_misplaces_is_an_error)
{
	write_config(1, 2, 1, 6, 4, "");
	save_shards(NULL);
	write_index("{\"weight_map\":{" IN_A "," IN_B ",\"x\":\"a.safetensors\"}}");
	EXPECT_ERROR(MOEK_BAD_FILE, "/a.safetensors: no tensor x, which ",
	             "/model.safetensors.index.json says is here");
	write_index("{\"weight_map\":{" IN_A "," IN_B ",\"x\":\"c.safetensors\"}}");
	EXPECT_ERROR(MOEK_BAD_FILE, "/c.safetensors: No such file or directory");
	write_index("{\"weight_map\":{" IN_A "}}");
	EXPECT_ERROR(MOEK_BAD_FILE, "no tensor model.layers.0.mlp.gate.weight");
}
END_TEST

START_TEST(tensors_that_the_index_lacks_are_warned_of_once)
{
	struct heard heard;
	struct moek_registry *registry = open_registry(&heard);

	write_config(1, 2, 1, 6, 4, "");
	save_shards("stray\\u001b");
	write_index("{\"weight_map\":{" IN_A "," IN_B "}}");
	moek_checkpoint_close(open_ok(registry, folder));
	ck_assert_uint_eq(heard.warnings, 1);
	ck_assert_ptr_nonnull(strstr(heard.last,
	                             "/model.safetensors.index.json: weight_map "
	                             "lacks 1 tensors of its files, the first is "
	                             "stray\\x1b"));
	write_index("{\"weight_map\":{" IN_A "," IN_B
	            ",\"stray\\u001b\":\"b.safetensors\"}}");
	moek_checkpoint_close(open_ok(registry, folder));
	ck_assert_uint_eq(heard.warnings, 1);
	moek_registry_close(registry);
}
END_TEST

static const struct odd_index {
	const char *text, *says;
} odd[] = {
	{ "[]", "weight_map is missing or not an object" },
	{ "{\"weight_map\":[]}", "weight_map is missing or not an object" },
	{ "{\"weight_map\":{\"x\":\"a.safetensors\",\"x\":\"b.safetensors\"}}",
	  "duplicate object key" },
	{ "{\"weight_map\":{\"x\":7}}", "file \"?\" of tensor x is not a string" },
	{ "{\"weight_map\":{\"x\":\"/etc/a.safetensors\"}}",
	  "file \"/etc/a.safetensors\" of tensor x is absolute" },
	{ "{\"weight_map\":{\"x\":\"../a.safetensors\"}}", "leaves its folder" },
	{ "{\"weight_map\":{\"x\":\"s/../../a.safetensors\"}}", "leaves its folder" },
	{ "{\"weight_map\":{\"x\":\"s/..\"}}", "leaves its folder" },
	{ "{\"weight_map\":{\"x\":\"c:a.safetensors\"}}",
	  "holds a backslash or a colon" },
	{ "{\"weight_map\":{\"x\":\"..\\\\a.safetensors\"}}",
	  "holds a backslash or a colon" },
	{ "{\"weight_map\":{\"x\":\"a.safetensors\\u0000\"}}", "holds a NUL" },
	{ "{\"weight_map\":{\"x\":\"a.bin\"}}", "does not end in .safetensors" },
	{ "{\"weight_map\":{\"x\":\".safetensors\"}}", "does not end in .safetensors" },
	{ "{\"weight_map\":{\"x\":\"\"}}", "does not end in .safetensors" },
	{ "{\"weight_map\":{}}", "no tensor model.layers.0.mlp.gate.weight" },
};

START_TEST(an_index_that_is_odd_is_refused)
{
	write_config(1, 2, 1, 6, 4, "");
	save_shards(NULL);
	write_index(odd[_i].text);
	EXPECT_ERROR(MOEK_BAD_FILE, odd[_i].says);
}
END_TEST

START_TEST(a_shard_whose_name_begins_with_dots_is_fine)
{
	struct kit_file file = { 0 };
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };

	write_config(1, 2, 1, 6, 4, "");
	kit_add(&file, "x", "U8", "1", NULL);
	kit_save(&file, kit_path(folder, "..a.safetensors"));
	write_index("{\"weight_map\":{\"x\":\"..a.safetensors\"}}");
	ck_assert_int_eq(moek_checkpoint_open(NULL, folder, &checkpoint, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(
		strstr(error.text, "no tensor model.layers.0.mlp.gate.weight"));
}
END_TEST

/* ---- router ---- */

/** V-E2E: three experts of a mixtral, or of a gpt-oss with a router bias. */
static void save_toy(int is_gpt_oss)
{
	static const uint16_t rows[6] = { 0x3f80, 0, 0, 0x3f80, 0x3f00, 0x3f00 };
	static const float bias[3] = { 0, 0.25f, 0 };
	static const char *const modules[3] = { "w1", "w3", "w2" };
	const char *type = is_gpt_oss ? "gpt_oss" : "mixtral";
	struct kit_file file = { 0 };
	char text[512];

	snprintf(text, sizeof(text),
	         "{\"model_type\":\"%s\",\"num_hidden_layers\":1,\"num_local_experts\":"
	         "3,"
	         "\"num_experts_per_tok\":2,\"hidden_size\":2,\"intermediate_size\":2,"
	         "\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\"}",
	         type);
	kit_write(kit_path(folder, "config.json"), text, strlen(text));
	if (is_gpt_oss) {
		kit_add(&file, "model.layers.0.mlp.router.weight", "BF16", "3,2", rows);
		kit_add(&file, "odd", "U8", "1", NULL);
		kit_add(&file, "model.layers.0.mlp.router.bias", "F32", "3", bias);
		kit_add(&file, "model.layers.0.mlp.experts.gate_up_proj", "BF16",
		        "3,2,4", NULL);
		kit_add(&file, "model.layers.0.mlp.experts.down_proj", "BF16", "3,2,2",
		        NULL);
		save(&file);
		return;
	}
	kit_add(&file, "model.layers.0.block_sparse_moe.gate.weight", "BF16", "3,2",
	        rows);
	for (unsigned i = 0; i < 9; i++) {
		snprintf(text, sizeof(text),
		         "model.layers.0.block_sparse_moe.experts.%u.%s.weight", i / 3,
		         modules[i % 3]);
		kit_add(&file, text, "BF16", "2,2", NULL);
	}
	save(&file);
}

START_TEST(gives_the_logits_of_the_toy_layer)
{
	static const float want[2][3] = { { 1, -.5f, .25f }, { 1, -.25f, .25f } };
	static const uint16_t x[2] = { 0x3f80, 0xbf00 };
	struct moek_rows rows = { .rows = 1, .columns = 2, .type = MOEK_BF16 };
	struct moek_checkpoint *checkpoint;
	struct moek_router router;
	float got[3];

	save_toy(_i);
	checkpoint = open_ok(NULL, folder);
	rows.data = (void *)(uintptr_t)x;
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, got, NULL),
	                 MOEK_OK);
	for (unsigned e = 0; e < 3; e++)
		ck_assert_float_eq(got[e], want[_i][e]);
	ck_assert_int_eq(moek_checkpoint_router(checkpoint, 0, &router), MOEK_OK);
	ck_assert_uint_eq(router.top_k, 2);
	ck_assert_ptr_null(router.bias); /* gpt-oss's is in the logits */
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(the_correction_bias_is_read_wherever_it_lies)
{
	static const float bias[2] = { 0.125f, -3.0f };
	struct moek_checkpoint *checkpoint;
	struct moek_router router;
	struct kit_file file = { 0 };
	char config[512];

	snprintf(config, sizeof(config),
	         "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":1,"
	         "\"n_routed_experts\":2,\"num_experts_per_tok\":2,\"hidden_size\":6,"
	         "\"moe_intermediate_size\":4,\"norm_topk_prob\":true,\"n_group\":1,"
	         "\"topk_group\":1,\"routed_scaling_factor\":2.5,\"hidden_act\":"
	         "\"silu\","
	         "\"torch_dtype\":\"bfloat16\"}");
	kit_write(kit_path(folder, "config.json"), config, strlen(config));
	if (_i == 1)
		kit_add(&file, "odd", "U8", "1", NULL);
	kit_add(&file, "model.layers.0.mlp.gate.e_score_correction_bias", "F32", "2",
	        bias);
	add_layer(&file, 0);
	save(&file);
	checkpoint = open_ok(NULL, folder);
	ck_assert_int_eq(moek_checkpoint_router(checkpoint, 0, &router), MOEK_OK);
	ck_assert_uint_eq((uintptr_t)router.bias % sizeof(float), 0);
	ck_assert_float_eq(router.bias[0], 0.125f);
	ck_assert_float_eq(router.bias[1], -3.0f);
	ck_assert_float_eq(router.scaling, 2.5f);
	ck_assert_int_eq(moek_checkpoint_router(checkpoint, 1, &router),
	                 MOEK_BAD_ARGUMENT);
	moek_checkpoint_close(checkpoint);
}
END_TEST

/** Rows of @type with gaps between them. */
static void *make_input(uint32_t type, uint64_t rows, uint64_t columns, uint64_t stride)
{
	size_t scalar = type == MOEK_F32 ? 4 : 2;
	uint8_t *data = malloc(rows * stride * scalar);
	uint32_t state = 7;

	memset(data, 0xff, rows * stride * scalar); /* NaN in the gaps */
	for (uint64_t r = 0; r < rows; r++)
		for (uint64_t c = 0; c < columns; c++) {
			float value = (float)(int32_t)kit_random(&state) /
			              2147483648.0f;
			uint16_t half = type == MOEK_BF16 ? moek_bf16_from_f32(value)
			                                  : moek_f16_from_f32(value);
			uint8_t *at = data + (r * stride + c) * scalar;

			if (type == MOEK_F32)
				memcpy(at, &value, sizeof(value));
			else
				memcpy(at, &half, sizeof(half));
		}
	return data;
}

static float input_at(const void *data, uint32_t type, uint64_t index)
{
	uint16_t half;

	if (type == MOEK_F32)
		return ((const float *)data)[index];
	memcpy(&half, (const uint8_t *)data + index * 2, sizeof(half));
	return type == MOEK_BF16 ? moek_bf16_to_f32(half) : moek_f16_to_f32(half);
}

START_TEST(logits_are_sums_in_the_order_of_columns)
{
	static const uint32_t types[3] = { MOEK_F32, MOEK_F16, MOEK_BF16 };
	struct heard heard;
	struct moek_registry *registry = _i == 0 ? open_registry(&heard) : NULL;
	struct moek_checkpoint *checkpoint = open_ok(registry,
	                                             fixture("tiny-qwen3moe-bf16"));
	struct moek_rows rows = { .rows = 37, .columns = 256, .row_stride = 261 };
	struct moek_tensor router;
	float got[37 * 16];

	rows.type = types[_i];
	rows.data = make_input(types[_i], rows.rows, rows.columns, rows.row_stride);
	ck_assert_int_eq(moek_checkpoint_tensor(checkpoint,
	                                        "model.layers.2.mlp.gate.weight",
	                                        &router, NULL),
	                 MOEK_OK);
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 2, &rows, got, NULL),
	                 MOEK_OK);
	for (uint64_t r = 0; r < rows.rows; r++)
		for (uint64_t e = 0; e < 16; e++) {
			float sum = 0;

			for (uint64_t c = 0; c < 256; c++)
				sum += input_at(router.data, MOEK_BF16, e * 256 + c) *
				       input_at(rows.data, rows.type, r * 261 + c);
			ck_assert_float_eq(got[r * 16 + e], sum);
		}
	free(rows.data);
	moek_checkpoint_close(checkpoint);
	moek_registry_close(registry);
}
END_TEST

START_TEST(logits_of_rows_that_do_not_fit_are_refused)
{
	struct moek_checkpoint *checkpoint = open_ok(NULL,
	                                             fixture("tiny-gptoss-mxfp4"));
	float x[256] = { 0 }, got[8] = { 0 };
	const struct moek_rows good = {
		.data = x, .rows = 1, .columns = 256, .type = MOEK_F32
	};
	struct moek_rows rows = good;
	struct moek_error error;

	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, got, &error),
	                 MOEK_OK);
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 4, &rows, got, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, NULL, got, &error),
	                 MOEK_BAD_ARGUMENT);
	rows.columns = 255;
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, got, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(error.text, "255 columns, expected hidden 256"));
	rows = good;
	rows.type = MOEK_I32;
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, got, &error),
	                 MOEK_BAD_ARGUMENT);
	rows = good;
	rows.space = 1;
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, got, &error),
	                 MOEK_BAD_ARGUMENT);
	rows = good;
	rows.row_stride = 255;
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, got, &error),
	                 MOEK_BAD_ARGUMENT);
	rows = good;
	rows.rows = 0;
	rows.data = NULL;
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, got, &error),
	                 MOEK_OK);
	moek_checkpoint_close(checkpoint);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("checkpoint");
	TCase *tests = tcase_create("checkpoint");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, describes_a_real_model, 0, 3);
	tcase_add_test(tests, gives_single_values_of_the_config);
	tcase_add_test(tests, a_value_that_the_config_lacks_leaves_the_default);
	tcase_add_test(tests,
	               a_value_of_another_kind_is_an_error_and_leaves_the_default);
	tcase_add_loop_test(tests, routes_as_the_oracle_does, 0, 3);
	tcase_add_test(tests, several_threads_read_experts_at_once);
	tcase_add_test(tests, an_expert_beyond_the_last_is_an_error);
	tcase_add_test(tests, config_at_odds_with_tensors_is_an_error);
	tcase_add_test(tests, a_missing_expert_is_named);
	tcase_add_test(tests, a_tensor_of_the_experts_that_nobody_reads_is_an_error);
	tcase_add_test(tests, layers_that_predict_further_tokens_are_left_alone);
	tcase_add_test(tests, a_model_without_experts_is_an_error);
	tcase_add_test(tests, files_that_are_not_there_or_no_json_are_errors);
	tcase_add_test(tests, what_the_config_alone_rules_out_opens_no_weights);
	tcase_add_test(tests, shards_are_found_by_the_index_only);
	tcase_add_test(tests, a_tensor_that_the_index_misplaces_is_an_error);
	tcase_add_test(tests, tensors_that_the_index_lacks_are_warned_of_once);
	tcase_add_loop_test(tests, an_index_that_is_odd_is_refused, 0,
	                    (int)(sizeof(odd) / sizeof(odd[0])));
	tcase_add_test(tests, a_shard_whose_name_begins_with_dots_is_fine);
	tcase_add_loop_test(tests, gives_the_logits_of_the_toy_layer, 0, 2);
	tcase_add_loop_test(tests, the_correction_bias_is_read_wherever_it_lies, 0, 2);
	tcase_add_loop_test(tests, logits_are_sums_in_the_order_of_columns, 0, 3);
	tcase_add_test(tests, logits_of_rows_that_do_not_fit_are_refused);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
