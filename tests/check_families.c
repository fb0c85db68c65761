/* SPDX-License-Identifier: MIT */
/* Each row of the table of families, on a made checkpoint that has the row's names:
 * every weight comes out in its place. And families from a file. */
#include "config.h"

#include "core/family.h"
#include "kit.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>
#include <moek/moek.h>

enum { EXPERTS = 3, HIDDEN = 6, INTERMEDIATE = 4, DENSE = 1, LAYERS = 2 };

static const char *folder;

static void set_up(void)
{
	folder = kit_folder();
}

/* ---- made checkpoints ---- */

struct made {
	const struct moek_family *family;
	const char *root; /* "model.layers." */
	int fused;
	struct kit_file file;
};

/** Keys of every family at once; those that a family does not read do no harm. */
static void write_config(const char *model_type, const char *act, int top_k,
                         const char *more)
{
	char text[2048];
	int bytes = snprintf(
		text, sizeof(text),
		"{\"model_type\":\"%s\",\"dtype\":\"bfloat16\",%s"
		"\"num_hidden_layers\":%d,\"n_layers\":%d,\"num_experts\":%d,"
		"\"num_experts_per_tok\":%d,\"hidden_size\":%d,\"intermediate_size\":%"
		"d,"
		"\"moe_intermediate_size\":%d,\"ffn_config\":{\"ffn_hidden_size\":%d},"
		"\"norm_topk_prob\":true,\"n_group\":1,\"topk_group\":1,"
		"\"topk_method\":\"%s\",\"first_k_dense_replace\":%d%s}",
		model_type, act, LAYERS, LAYERS, EXPERTS, top_k, HIDDEN, INTERMEDIATE,
		INTERMEDIATE, INTERMEDIATE,
		strcmp(model_type, "deepseek_v2") == 0 ? "greedy" : "noaux_tc", DENSE,
		more);

	ck_assert_int_lt(bytes, (int)sizeof(text));
	kit_write(kit_path(folder, "config.json"), text, (size_t)bytes);
}

static const char *act_of(const struct moek_family *family)
{
	return family->not_gated ? "\"mlp_hidden_act\":\"relu2\","
	                         : "\"hidden_act\":\"silu\",";
}

/** Whole numbers up to 255, which bf16 holds exactly; gate, up and down differ. */
static float weight_at(unsigned part, uint64_t expert, uint64_t row, uint64_t column)
{
	return (float)(part * 80 + expert * 25 + row * 6 + column);
}

static uint16_t half_at(unsigned part, uint64_t expert, uint64_t row, uint64_t column)
{
	return moek_bf16_from_f32(weight_at(part, expert, row, column));
}

static void add(struct made *made, int layer, const char *name, const char *suffix,
                const char *shape, const void *data)
{
	char full[256];

	snprintf(full, sizeof(full), "%s%d.%s%s", made->root, layer, name, suffix);
	kit_add(&made->file, full, "BF16", shape, data);
}

static uint64_t rows_of(unsigned part)
{
	return part == 2 ? HIDDEN : INTERMEDIATE;
}

static uint64_t columns_of(unsigned part)
{
	return part == 2 ? INTERMEDIATE : HIDDEN;
}

static void add_apart(struct made *made, unsigned part, const char *module)
{
	uint64_t rows = rows_of(part), columns = columns_of(part);

	for (uint64_t e = 0; e < EXPERTS; e++) {
		uint16_t data[HIDDEN * INTERMEDIATE];
		char name[128], shape[32];

		for (uint64_t i = 0; i < rows * columns; i++)
			data[i] = half_at(part, e, i / columns, i % columns);
		snprintf(name, sizeof(name), "%s%d.%s", made->family->experts, (int)e,
		         module);
		snprintf(shape, sizeof(shape), "%d,%d", (int)rows, (int)columns);
		add(made, DENSE, name, ".weight", shape, data);
	}
}

/** Element of the stack that holds rows of @first, and of @first + 1 if @all says so.
 */
static uint16_t stacked_at(const struct made *made, unsigned first, uint64_t all,
                           uint64_t expert, uint64_t row, uint64_t column)
{
	uint64_t rows = rows_of(first);

	if (all == rows)
		return half_at(first, expert, row, column);
	if (made->family->fused_order == MOEK_GATE_INTERLEAVED)
		return half_at(first + (unsigned)(row % 2), expert, row / 2, column);
	return half_at(first + (unsigned)(row / rows), expert, row % rows, column);
}

static void add_stack(struct made *made, unsigned first, unsigned parts,
                      const char *module)
{
	uint64_t all = rows_of(first) * parts, columns = columns_of(first), n = 0;
	uint32_t bit = first == 2 ? MOEK_TRANSPOSED_DOWN : MOEK_TRANSPOSED_GATE_UP;
	int turned = (made->family->fused_transposed & bit) != 0;
	uint64_t outer = turned ? columns : all, inner = turned ? all : columns;
	uint16_t data[EXPERTS * 2 * HIDDEN * INTERMEDIATE];
	char name[128], shape[32];

	for (uint64_t e = 0; e < EXPERTS; e++)
		for (uint64_t i = 0; i < outer; i++)
			for (uint64_t j = 0; j < inner; j++)
				data[n++] = stacked_at(made, first, all, e,
				                       turned ? j : i, turned ? i : j);
	snprintf(name, sizeof(name), "%s%s", made->family->experts, module);
	if (made->family->fused_flat)
		snprintf(shape, sizeof(shape), "%d,%d", (int)(EXPERTS * outer),
		         (int)inner);
	else
		snprintf(shape, sizeof(shape), "%d,%d,%d", EXPERTS, (int)outer,
		         (int)inner);
	add(made, DENSE, name, made->family->fused_suffix, shape, data);
}

static void add_experts(struct made *made)
{
	const struct moek_family *f = made->family;

	if (!made->fused) {
		add_apart(made, 0, f->gate);
		if (f->up != NULL)
			add_apart(made, 1, f->up);
		add_apart(made, 2, f->down);
		return;
	}
	if (f->fused_gate_up != NULL) {
		add_stack(made, 0, 2, f->fused_gate_up);
	} else {
		add_stack(made, 0, 1, f->fused_gate);
		if (f->fused_up != NULL)
			add_stack(made, 1, 1, f->fused_up);
	}
	add_stack(made, 2, 1, f->fused_down);
}

static void add_rest(struct made *made)
{
	const struct moek_family *f = made->family;

	add(made, DENSE, f->router, ".weight", "3,6", NULL);
	if (f->router_bias)
		add(made, DENSE, f->router, ".bias", "3", NULL);
	if (f->correction != NULL)
		add(made, DENSE, f->correction, "",
		    strncmp(f->correction, "mlp.moe_statics", 15) == 0 ? "1,3" : "3",
		    NULL);
	if (f->expert_scale != NULL)
		add(made, DENSE, f->expert_scale, "", "3", NULL);
	if (f->shared != NULL)
		add(made, DENSE, f->shared, ".down_proj.weight", "6,8", NULL);
	/* a layer for further tokens, and something else */
	add(made, LAYERS, f->experts, "0.gate_proj.weight", "4,6", NULL);
	kit_add(&made->file, "lm_head.weight", "BF16", "2", NULL);
}

static void save(struct made *made)
{
	add_experts(made);
	add_rest(made);
	kit_save(&made->file, kit_path(folder, "model.safetensors"));
}

/* ---- what comes out ---- */

static struct moek_checkpoint *open_ok(const char *family_file)
{
	const struct moek_checkpoint_options options = {
		.struct_size = MOEK_INIT(CHECKPOINT_OPTIONS),
		.family_file = family_file,
	};
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_msg(moek_checkpoint_open_with(NULL, folder, &options, &checkpoint,
	                                        &error) == MOEK_OK,
	              "%s", error.text);
	return checkpoint;
}

static void check_matrix(const char *name, unsigned part, uint64_t expert,
                         const struct moek_matrix *m)
{
	const uint16_t *codes = m->codes;

	ck_assert_msg(m->rows == rows_of(part) && m->columns == columns_of(part),
	              "%s: part %u", name, part);
	for (uint64_t r = 0; r < m->rows; r++)
		for (uint64_t c = 0; c < m->columns; c++)
			ck_assert_msg(codes[r * m->columns + c] ==
			                      half_at(part, expert, r, c),
			              "%s: part %u [%d][%d][%d]", name, part,
			              (int)expert, (int)r, (int)c);
}

static void check_experts(struct moek_checkpoint *checkpoint, const char *name)
{
	struct moek_problem problem;
	struct moek_source source;
	struct moek_error error = { .text = "" };
	void *scratch;

	ck_assert_int_eq(moek_checkpoint_problem(checkpoint, 0, &problem), MOEK_OK);
	problem.max_tokens = 1;
	ck_assert_msg(moek_problem_check(&problem, &error) == MOEK_OK, "%s: %s", name,
	              error.text);
	ck_assert_int_eq(moek_checkpoint_source(checkpoint, 0, &source, &error),
	                 MOEK_OK);
	scratch = malloc(source.scratch_bytes);
	for (uint64_t e = 0; e < EXPERTS; e++) {
		struct moek_expert expert = { 0 };

		ck_assert_msg(source.expert(source.self, e, scratch, &expert, &error) ==
		                      MOEK_OK,
		              "%s: %s", name, error.text);
		check_matrix(name, 0, e, &expert.gate);
		if (problem.gated)
			check_matrix(name, 1, e, &expert.up);
		else
			ck_assert_uint_eq(expert.up.rows, 0);
		check_matrix(name, 2, e, &expert.down);
	}
	free(scratch);
	moek_source_close(&source);
}

static void check_uses(struct moek_checkpoint *checkpoint, const struct made *made)
{
	const struct moek_family *f = made->family;
	unsigned uses[MOEK_USE_OTHER + 1] = { 0 };
	unsigned parts = f->not_gated ? 2 : 3;
	struct moek_layer_info info;
	struct moek_tensor tensor;
	char shared[128] = "";
	uint32_t use;

	for (uint64_t i = 0; i < moek_checkpoint_tensors(checkpoint); i++) {
		ck_assert_ptr_nonnull(
			moek_checkpoint_tensor_at(checkpoint, i, &tensor, &use));
		uses[use]++;
	}
	ck_assert_uint_eq(uses[MOEK_USE_EXPERTS],
	                  made->fused ? parts - (f->fused_gate_up != NULL)
	                              : EXPERTS * parts);
	ck_assert_uint_eq(uses[MOEK_USE_ROUTER], 1 + f->router_bias +
	                                                 (f->correction != NULL) +
	                                                 (f->expert_scale != NULL));
	ck_assert_uint_eq(uses[MOEK_USE_SHARED], f->shared != NULL);
	ck_assert_uint_eq(uses[MOEK_USE_BEYOND], 1);
	ck_assert_uint_eq(uses[MOEK_USE_OTHER], 1);
	ck_assert_ptr_null(moek_checkpoint_tensor_at(
		checkpoint, moek_checkpoint_tensors(checkpoint), &tensor, &use));

	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 0, &info), MOEK_OK);
	ck_assert_uint_eq(info.weight_bytes,
	                  2 * EXPERTS * parts * HIDDEN * INTERMEDIATE);
	ck_assert_uint_eq(info.shared_bytes, f->shared != NULL ? 96 : 0);
	if (f->shared != NULL)
		snprintf(shared, sizeof(shared), "%s%d.%s", made->root, DENSE,
		         f->shared);
	ck_assert_str_eq(info.shared, shared);
}

static void check_router(struct moek_checkpoint *checkpoint, const struct made *made)
{
	const struct moek_family *f = made->family;
	uint16_t x[HIDDEN] = { 0x3f80 };
	const struct moek_rows rows = {
		.data = x, .rows = 1, .columns = HIDDEN, .type = MOEK_BF16
	};
	struct moek_router router;
	struct moek_layer_info info;
	struct moek_error error = { .text = "" };
	float logits[EXPERTS];

	ck_assert_int_eq(moek_checkpoint_router(checkpoint, 0, &router), MOEK_OK);
	ck_assert_int_eq(router.bias != NULL, f->correction != NULL);
	ck_assert_int_eq(router.expert_scale != NULL, f->expert_scale != NULL);
	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 0, &info), MOEK_OK);
	ck_assert_int_eq(info.unrouted[0] != '\0', f->own_input != 0);
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, logits, &error),
	                 f->own_input ? MOEK_REFUSED : MOEK_OK);
}

/** Row _i / 2 of the table, its experts apart or fused; each root comes up in turn. */
START_TEST(every_family_reads_its_own_names)
{
	static const char *const roots[] = { "model.layers.",
		                             "language_model.model.layers.",
		                             "model.language_model.layers.",
		                             "layers.",
		                             "backbone.layers.",
		                             "transformer.blocks." };
	size_t count;
	struct made made = { .root = roots[(size_t)_i % 6], .fused = _i % 2 };
	struct moek_checkpoint *checkpoint;

	made.family = &moek_families(&count)[(size_t)_i / 2];
	if (made.family->refused != NULL ||
	    (made.fused ? made.family->fused_down : made.family->down) == NULL)
		return; /* there is no such form */
	write_config(made.family->name, act_of(made.family),
	             made.family->weight_on_input ? 1 : 2, "");
	save(&made);
	checkpoint = open_ok(NULL);
	ck_assert_uint_eq(moek_checkpoint_layers(checkpoint), 1);
	check_experts(checkpoint, made.family->name);
	check_uses(checkpoint, &made);
	check_router(checkpoint, &made);
	moek_checkpoint_close(checkpoint);
}
END_TEST

static const struct moek_family *row(const char *name)
{
	size_t count, i = 0;
	const struct moek_family *families = moek_families(&count);

	while (strcmp(families[i].name, name) != 0)
		ck_assert_uint_lt(++i, count);
	return &families[i];
}

START_TEST(a_layer_whose_experts_token_ids_choose_has_no_router)
{
	struct made made = { .family = row("deepseek_v4"), .root = "layers." };
	struct moek_checkpoint *checkpoint;
	struct moek_layer_info info;
	struct moek_router router;
	struct moek_error error = { .text = "" };
	uint16_t x[HIDDEN] = { 0 };
	const struct moek_rows rows = {
		.data = x, .rows = 1, .columns = HIDDEN, .type = MOEK_BF16
	};
	float logits[EXPERTS];

	write_config("deepseek_v4", "\"hidden_act\":\"silu\",", 2, "");
	add_experts(&made);
	add(&made, DENSE, "ffn.gate", ".weight", "3,6", NULL);
	add(&made, DENSE, "ffn.gate.tid2eid", "", "8,2", NULL);
	kit_save(&made.file, kit_path(folder, "model.safetensors"));
	checkpoint = open_ok(NULL);
	check_experts(checkpoint, "deepseek_v4");
	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 0, &info), MOEK_OK);
	ck_assert_str_eq(info.unrouted,
	                 "token ids choose its experts, not router logits");
	ck_assert_int_eq(moek_checkpoint_router(checkpoint, 0, &router), MOEK_REFUSED);
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, logits, &error),
	                 MOEK_REFUSED);
	ck_assert_str_eq(error.text, "logits: layers.1: token ids choose its experts, "
	                             "not router logits");
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(experts_of_a_narrower_input_have_a_router_of_the_whole)
{
	struct made made = { .family = row("nemotron_h"), .root = "backbone.layers." };
	struct moek_checkpoint *checkpoint;
	struct moek_problem problem;
	struct moek_layer_info info;
	float x[9] = { 0, 1 };
	struct moek_rows rows = {
		.data = x, .rows = 1, .columns = 9, .type = MOEK_F32
	};
	uint16_t router[27] = { 0 };
	float correction[3] = { 0 };
	float logits[EXPERTS];

	write_config("nemotron_h", act_of(made.family), 2, ",\"moe_latent_size\":6");
	add_experts(&made);
	router[1] = 0x3f80;
	router[9 + 1] = 0x4000;
	add(&made, DENSE, "mixer.gate", ".weight", "3,9", router);
	kit_add(&made.file, "backbone.layers.1.mixer.gate.e_score_correction_bias",
	        "F32", "3", correction);
	kit_save(&made.file, kit_path(folder, "model.safetensors"));
	/* hidden_size 6 of the config becomes 9, the experts' stays 6 */
	{
		size_t bytes;
		char *text = kit_read(kit_path(folder, "config.json"), &bytes);
		char *at = strstr(text, "\"hidden_size\":6");

		ck_assert_ptr_nonnull(at);
		at[strlen("\"hidden_size\":")] = '9';
		kit_write(kit_path(folder, "config.json"), text, bytes);
		free(text);
	}
	checkpoint = open_ok(NULL);
	check_experts(checkpoint, "nemotron_h");
	ck_assert_int_eq(moek_checkpoint_problem(checkpoint, 0, &problem), MOEK_OK);
	ck_assert_uint_eq(problem.hidden, HIDDEN);
	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 0, &info), MOEK_OK);
	ck_assert_str_eq(info.unrouted, "its router reads the rows before they are "
	                                "narrowed for its experts");
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, logits, NULL),
	                 MOEK_OK);
	ck_assert(logits[0] == 1 && logits[1] == 2 && logits[2] == 0);
	rows.columns = HIDDEN;
	ck_assert_int_eq(moek_checkpoint_logits(checkpoint, 0, &rows, logits, NULL),
	                 MOEK_BAD_ARGUMENT);
	moek_checkpoint_close(checkpoint);
}
END_TEST

/* ---- models that moek does not know ---- */

static void expect_error(const char *family_file, int32_t status, const char *says)
{
	const struct moek_checkpoint_options options = {
		.struct_size = MOEK_INIT(CHECKPOINT_OPTIONS),
		.family_file = family_file,
	};
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(
		moek_checkpoint_open_with(NULL, folder, &options, &checkpoint, &error),
		status);
	ck_assert_msg(strstr(error.text, says) != NULL, "\"%s\" is not in: %s", says,
	              error.text);
}

static const char *write_family(const char *text)
{
	const char *path = kit_path(folder, "family.ini");

	kit_write(path, text, strlen(text));
	return path;
}

START_TEST(an_unknown_model_is_told_whose_names_its_tensors_have)
{
	struct made made = { .family = row("phimoe"), .root = "model.layers." };

	write_config("mystery", "\"hidden_act\":\"silu\",", 2, "");
	expect_error(NULL, MOEK_REFUSED,
	             "model_type \"mystery\" is not known to moek; known are: "
	             "bailing_moe_v2, dbrx");
	save(&made);
	expect_error(NULL, MOEK_REFUSED,
	             "model_type \"mystery\" is not known to moek; its tensors are "
	             "named as those of: kimi_k3, kimi_linear, minimax_m2, minimax_m3, "
	             "mixtral, phimoe. A family file");
	kit_write(kit_path(folder, "config.json"), "{}", 2);
	expect_error(NULL, MOEK_BAD_FILE, "model_type is missing or not a string");
	kit_write(kit_path(folder, "config.json"), "{\"model_type\":7}", 16);
	expect_error(NULL, MOEK_BAD_FILE, "model_type is missing or not a string");
}
END_TEST

START_TEST(a_family_file_makes_an_unknown_model_known)
{
	struct moek_family mine = { 0 };
	struct made made = { .family = &mine, .root = "model.layers.", .fused = _i };
	struct moek_checkpoint *checkpoint;
	struct moek_layer_info info;
	struct moek_router router;
	struct moek_problem problem;

	mine = *row("mixtral");
	mine.experts = "moe.experts.";
	mine.gate = "a";
	mine.up = "b";
	mine.down = "c";
	mine.fused_gate_up = "ab";
	mine.fused_down = "c";
	mine.fused_suffix = "";
	mine.fused_order = MOEK_GATE_INTERLEAVED;
	mine.fused_transposed = MOEK_TRANSPOSED_GATE_UP;
	mine.router = "moe.choose";
	write_config("mystery", "", 2, "");
	save(&made);
	checkpoint = open_ok(write_family("; a model of our own\n"
	                                  "[family]\n"
	                                  "model_type = mystery\n"
	                                  "experts = moe.experts.\n"
	                                  "gate = a\n"
	                                  "up = b\n"
	                                  "down = c\n"
	                                  "fused_gate_up = ab\n"
	                                  "fused_down = c\n"
	                                  "fused_order = interleaved\n"
	                                  "fused_transposed = gate_up\n"
	                                  "router = moe.choose\n"
	                                  "intermediate = moe_intermediate_size\n"
	                                  "activation = swiglu_oai\n"
	                                  "alpha = 1.5\n"
	                                  "limit = 3\n"
	                                  "scoring = sigmoid\n"
	                                  "renormalise = always\n"
	                                  "epsilon = 0.25\n"));
	check_experts(checkpoint, "mystery");
	ck_assert_int_eq(moek_checkpoint_layer(checkpoint, 0, &info), MOEK_OK);
	ck_assert_str_eq(info.family, "mystery");
	ck_assert_int_eq(moek_checkpoint_router(checkpoint, 0, &router), MOEK_OK);
	ck_assert_uint_eq(router.scoring, MOEK_SIGMOID);
	ck_assert_uint_eq(router.renormalise, 1);
	ck_assert_float_eq(router.epsilon, 0.25f);
	ck_assert_int_eq(moek_checkpoint_problem(checkpoint, 0, &problem), MOEK_OK);
	ck_assert_uint_eq(problem.activation, MOEK_SWIGLU_OAI);
	ck_assert_float_eq(problem.alpha, 1.5f);
	ck_assert_float_eq(problem.limit, 3);
	moek_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(a_family_file_may_begin_with_a_known_family)
{
	struct made made = { .family = row("mixtral"), .root = "model.layers." };
	struct moek_checkpoint *checkpoint;
	struct moek_router router;

	write_config("mystery", "\"hidden_act\":\"silu\",", 2, "");
	save(&made);
	checkpoint = open_ok(write_family("[family]\nmodel_type = mystery\n"
	                                  "renormalise = never\nlike = mixtral\n"));
	check_experts(checkpoint, "mystery");
	ck_assert_int_eq(moek_checkpoint_router(checkpoint, 0, &router), MOEK_OK);
	ck_assert_uint_eq(router.scoring, MOEK_SOFTMAX);
	ck_assert_uint_eq(router.renormalise, 0);
	moek_checkpoint_close(checkpoint);
}
END_TEST

#define LIKE "[family]\nmodel_type = mystery\nlike = mixtral\n"

static const struct bad {
	const char *text, *says;
} bad[] = {
	{ "", "/family.ini: [family] lacks model_type" },
	{ "[family]\nlike = mixtral\n", "/family.ini: [family] lacks model_type" },
	{ "[family]\nmodel_type = other\nlike = mixtral\n",
	  "/family.ini: describes model_type other, " },
	{ "[family]\nmodel_type = mystery\nlike = mixtrel\n",
	  "/family.ini:3: like = mixtrel: expected a model_type that moek reads" },
	{ "[family]\nmodel_type = mystery\nlike = step3p5\n",
	  "/family.ini:3: like = step3p5: expected a model_type that moek reads" },
	{ LIKE "[other]\n", "/family.ini:4: [other]: a family file has one section" },
	{ LIKE "ruoter = x\n",
	  "/family.ini:4: ruoter is no key of [family]; did you mean router" },
	{ LIKE "scoring = tanh\n",
	  "/family.ini:4: scoring = tanh: expected softmax, sigmoid, sqrt_softplus" },
	{ LIKE "scaling = maybe\n",
	  "/family.ini:4: scaling = maybe: expected yes or no" },
	{ LIKE "epsilon = -1\n",
	  "/family.ini:4: epsilon = -1: expected a number from 0" },
	{ LIKE "epsilon = 1x\n",
	  "/family.ini:4: epsilon = 1x: expected a number from 0" },
	{ LIKE "epsilon = nan\n", "expected a number from 0" },
	{ LIKE "router =\n", "/family.ini: [family] lacks router" },
	{ LIKE "up =\n", "/family.ini: [family] lacks up, or not_gated = yes" },
	{ LIKE "down =\n", "/family.ini: [family] lacks down" },
	{ LIKE "gate =\n", "/family.ini: [family] lacks gate, or fused_gate_up" },
	{ LIKE "fused_gate_up = x\n", "/family.ini: [family] lacks fused_down" },
	{ LIKE "fused_gate_up = x\nfused_down = y\n",
	  "/family.ini: [family] lacks fused_order" },
	{ LIKE "fused_gate = x\nfused_down = y\n",
	  "/family.ini: [family] lacks fused_up, or not_gated = yes" },
	{ LIKE "intermediate =\n", "/family.ini: [family] lacks intermediate" },
	{ "[family]\nmodel_type = mystery\nexperts = e.\nrouter = r\ngate = a\n"
	  "up = b\ndown = c\nintermediate = intermediate_size\n",
	  "/family.ini: [family] lacks scoring" },
	{ LIKE "router = x\nrouter = y\n", "router stands already in line 4" },
};

START_TEST(a_bad_family_file_is_refused_with_its_line)
{
	write_config("mystery", "\"hidden_act\":\"silu\",", 2, "");
	expect_error(write_family(bad[_i].text), MOEK_BAD_CONFIG, bad[_i].says);
}
END_TEST

START_TEST(a_family_file_that_is_not_there_is_an_error)
{
	write_config("mystery", "\"hidden_act\":\"silu\",", 2, "");
	expect_error(kit_path(folder, "none.ini"), MOEK_BAD_CONFIG,
	             "/none.ini: No such file or directory");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("families");
	TCase *tests = tcase_create("families");
	SRunner *runner = srunner_create(suite);
	size_t count;
	int failed;

	moek_families(&count);
	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, every_family_reads_its_own_names, 0, (int)count * 2);
	tcase_add_test(tests, a_layer_whose_experts_token_ids_choose_has_no_router);
	tcase_add_test(tests, experts_of_a_narrower_input_have_a_router_of_the_whole);
	tcase_add_test(tests, an_unknown_model_is_told_whose_names_its_tensors_have);
	tcase_add_loop_test(tests, a_family_file_makes_an_unknown_model_known, 0, 2);
	tcase_add_test(tests, a_family_file_may_begin_with_a_known_family);
	tcase_add_loop_test(tests, a_bad_family_file_is_refused_with_its_line, 0,
	                    (int)(sizeof(bad) / sizeof(bad[0])));
	tcase_add_test(tests, a_family_file_that_is_not_there_is_an_error);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
