/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/codec.h"
#include "kit.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static int32_t try_open(struct moek_registry *registry, const char *path,
                        uint32_t shard, uint32_t shards,
                        struct moek_checkpoint **checkpoint_out,
                        struct moek_error *error_out)
{
	const struct moek_checkpoint_options options = {
		.struct_size = MOEK_INIT(CHECKPOINT_OPTIONS),
		.shard = shard,
		.shards = shards,
	};

	return moek_checkpoint_open_with(registry, path, &options, checkpoint_out,
	                                 error_out);
}

static struct moek_checkpoint *open_shard(const char *path, uint32_t shard,
                                          uint32_t shards)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_msg(try_open(NULL, path, shard, shards, &checkpoint, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	return checkpoint;
}

/* ---- made checkpoints: one layer, two experts ---- */

#define P "model.layers.0.mlp."

struct made {
	const char *name, *model_type, *quantization; /* of config.json */
	unsigned hidden, intermediate, group;         /* group 0: channel */
	int zeros, fused;
};

static const struct made mades[] = {
	{ "bf16 rows apart", "qwen3_moe", "", 6, 10, 0, 0, 0 },
	{ "bf16 rows fused", "qwen3_moe", "", 6, 10, 0, 0, 1 },
	{ "bf16 rows fused and transposed", "qwen3_vl_moe", "", 6, 10, 0, 0, 1 },
	{ "bf16 rows interleaved and transposed, bias", "gpt_oss", "", 6, 10, 0, 0, 1 },
	{ "int4 groups", "qwen3_moe",
	  "\"strategy\":\"group\",\"group_size\":8,\"symmetric\":true", 16, 40, 8, 0,
	  0 },
	{ "int4 groups, zero points, a short last group", "qwen3_moe",
	  "\"strategy\":\"group\",\"group_size\":8,\"symmetric\":false", 12, 44, 8, 1,
	  0 },
	{ "int4 odd groups", "qwen3_moe",
	  "\"strategy\":\"group\",\"group_size\":3,\"symmetric\":false", 12, 24, 3, 1,
	  0 },
	{ "int4 channel", "qwen3_moe", "\"strategy\":\"channel\",\"symmetric\":false",
	  16, 24, 0, 1, 0 },
	{ "mxfp4 blocks, bias", "gpt_oss", "mxfp4", 64, 160, 32, 0, 1 },
};

#define MADES (sizeof(mades) / sizeof(mades[0]))

static void write_config(const struct made *m)
{
	char text[1024], quantization[512] = "";
	int bytes;

	if (strcmp(m->quantization, "mxfp4") == 0)
		snprintf(quantization, sizeof(quantization),
		         ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
	else if (m->quantization[0] != '\0')
		snprintf(quantization, sizeof(quantization),
		         ",\"quantization_config\":{\"quant_method\":"
		         "\"compressed-tensors\",\"format\":\"pack-quantized\","
		         "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],"
		         "\"weights\":{\"num_bits\":4,\"type\":\"int\",%s}}}}",
		         m->quantization);
	bytes = snprintf(text, sizeof(text),
	                 "{\"model_type\":\"%s\",\"num_hidden_layers\":1,"
	                 "\"num_experts\":2,\"num_experts_per_tok\":1,"
	                 "\"hidden_size\":%u,\"moe_intermediate_size\":%u,"
	                 "\"intermediate_size\":%u,\"norm_topk_prob\":true,"
	                 "\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\"%s}",
	                 m->model_type, m->hidden, m->intermediate, m->intermediate,
	                 quantization);
	kit_write(kit_path(folder, "config.json"), text, (size_t)bytes);
}

static void add(struct kit_file *file, const char *name, const char *dtype,
                const char *format, unsigned a, unsigned b, unsigned c)
{
	char shape[64];

	snprintf(shape, sizeof(shape), format, a, b, c);
	kit_add(file, name, dtype, shape, NULL);
}

static unsigned over(unsigned a, unsigned b)
{
	return (a + b - 1) / b;
}

static void add_apart(struct kit_file *file, const struct made *m, unsigned expert,
                      unsigned part)
{
	static const char *const modules[3] = { "gate_proj", "up_proj", "down_proj" };
	unsigned rows = part == 2 ? m->hidden : m->intermediate;
	unsigned columns = part == 2 ? m->intermediate : m->hidden;
	unsigned groups = m->group == 0 ? 1 : over(columns, m->group);
	char name[128];
	int length = snprintf(name, sizeof(name), P "experts.%u.%s", expert,
	                      modules[part]);

	if (m->quantization[0] == '\0') {
		strcpy(name + length, ".weight");
		add(file, name, "BF16", "%u,%u", rows, columns, 0);
		return;
	}
	strcpy(name + length, ".weight_packed");
	add(file, name, "I32", "%u,%u", rows, over(columns, 8), 0);
	strcpy(name + length, ".weight_scale");
	add(file, name, "BF16", "%u,%u", rows, groups, 0);
	if (!m->zeros)
		return;
	strcpy(name + length, ".weight_zero_point");
	add(file, name, "I32", "%u,%u", over(rows, 8), groups, 0);
}

static void add_fused(struct kit_file *file, const struct made *m)
{
	unsigned h = m->hidden, i = m->intermediate;
	int turned = strcmp(m->model_type, "qwen3_moe") != 0;
	int has_bias = strcmp(m->model_type, "gpt_oss") == 0;

	if (m->quantization[0] != '\0') {
		add(file, P "experts.gate_up_proj_blocks", "U8", "2,%u,%u,16", 2 * i,
		    h / 32, 0);
		add(file, P "experts.gate_up_proj_scales", "U8", "2,%u,%u", 2 * i,
		    h / 32, 0);
		add(file, P "experts.down_proj_blocks", "U8", "2,%u,%u,16", h, i / 32,
		    0);
		add(file, P "experts.down_proj_scales", "U8", "2,%u,%u", h, i / 32, 0);
	} else {
		add(file, P "experts.gate_up_proj", "BF16", "2,%u,%u",
		    turned ? h : 2 * i, turned ? 2 * i : h, 0);
		add(file, P "experts.down_proj", "BF16", "2,%u,%u", turned ? i : h,
		    turned ? h : i, 0);
	}
	if (!has_bias)
		return;
	add(file, P "experts.gate_up_proj_bias", "BF16", "2,%u", 2 * i, 0, 0);
	add(file, P "experts.down_proj_bias", "BF16", "2,%u", h, 0, 0);
}

static void save_made(const struct made *m)
{
	struct kit_file file = { 0 };

	write_config(m);
	add(&file, P "gate.weight", "BF16", "2,%u", m->hidden, 0, 0);
	add(&file, P "router.weight", "BF16", "2,%u", m->hidden, 0, 0);
	add(&file, P "router.bias", "BF16", "2", 0, 0, 0);
	if (m->fused)
		add_fused(&file, m);
	else
		for (unsigned i = 0; i < 6; i++)
			add_apart(&file, m, i / 3, i % 3);
	kit_save(&file, kit_path(folder, "model.safetensors"));
}

/* ---- the parts of a shard are parts of the whole ---- */

/** Value, scale and zero point of one weight, with what stands for "none". */
struct element {
	unsigned code, zero;
	uint32_t scale;
};

static struct element element_at(const struct moek_matrix *m, uint64_t row,
                                 uint64_t column)
{
	int is_half = m->weight == MOEK_INT4 || m->weight == MOEK_MXFP4;
	uint64_t groups = (m->columns + m->group_size - 1) / m->group_size;
	uint64_t group = row * groups + column / m->group_size;
	const uint8_t *codes = m->codes;
	struct element e = { 0 };

	if (is_half)
		e.code = codes[row * ((m->columns + 1) / 2) + column / 2] >>
		                 column % 2 * 4 &
		         15;
	else
		memcpy(&e.code, codes + (row * m->columns + column) * 2, 2);
	if (m->scales != NULL)
		memcpy(&e.scale,
		       (const uint8_t *)m->scales + group * moek_scalar_bytes(m->scale),
		       moek_scalar_bytes(m->scale));
	if (m->zeros != NULL)
		e.zero = m->zeros[group];
	return e;
}

/** @piece is @whole from row and column on. */
static void check_piece(const struct moek_matrix *whole,
                        const struct moek_matrix *piece, uint64_t row, uint64_t column)
{
	ck_assert_int_eq(piece->scales == NULL, whole->scales == NULL);
	ck_assert_int_eq(piece->zeros == NULL, whole->zeros == NULL);
	for (uint64_t r = 0; r < piece->rows; r++) {
		if (piece->bias != NULL)
			ck_assert_mem_eq(piece->bias + r, whole->bias + row + r, 4);
		for (uint64_t c = 0; c < piece->columns; c++) {
			struct element a = element_at(piece, r, c);
			struct element b = element_at(whole, row + r, column + c);

			ck_assert_msg(a.code == b.code && a.zero == b.zero &&
			                      a.scale == b.scale,
			              "[%d][%d] is code %x zero %u scale %x, not %x %u "
			              "%x",
			              (int)r, (int)c, a.code, a.zero, a.scale, b.code,
			              b.zero, b.scale);
		}
	}
}

struct reading {
	struct moek_checkpoint *checkpoint;
	struct moek_source source;
	struct moek_problem problem;
	void *scratch;
	struct moek_expert expert;
};

static void begin_reading(struct reading *r, uint32_t shard, uint32_t shards)
{
	struct moek_error error = { .text = "" };

	memset(r, 0, sizeof(*r));
	r->checkpoint = open_shard(folder, shard, shards);
	ck_assert_int_eq(moek_checkpoint_problem(r->checkpoint, 0, &r->problem),
	                 MOEK_OK);
	r->problem.max_tokens = 1;
	ck_assert_msg(moek_problem_check(&r->problem, &error) == MOEK_OK, "%s",
	              error.text);
	ck_assert_int_eq(moek_checkpoint_source(r->checkpoint, 0, &r->source, &error),
	                 MOEK_OK);
	r->scratch = malloc(r->source.scratch_bytes);
}

static void read_expert(struct reading *r, uint64_t expert)
{
	struct moek_error error = { .text = "" };

	memset(&r->expert, 0, sizeof(r->expert));
	ck_assert_msg(r->source.expert(r->source.self, expert, r->scratch, &r->expert,
	                               &error) == MOEK_OK,
	              "%s", error.text);
}

static void end_reading(struct reading *r)
{
	free(r->scratch);
	moek_source_close(&r->source);
	moek_checkpoint_close(r->checkpoint);
}

/** The same codec, but core/shard.c cuts everything. */
static void cut_outside(struct reading *r, struct moek_codec *codec)
{
	struct moek_expert_layer *layer = r->source.self;

	*codec = *layer->codec;
	codec->slices = 0;
	layer->codec = codec;
}

/** Checks shard @shard, which begins at @first; returns where it ends. */
static uint64_t check_shard(struct reading *whole, uint32_t shard, uint32_t shards,
                            uint64_t first, int outside)
{
	struct moek_codec codec;
	struct reading part;
	uint64_t count;

	begin_reading(&part, shard, shards);
	if (outside)
		cut_outside(&part, &codec);
	count = part.problem.intermediate;
	ck_assert_uint_gt(count, 0);
	ck_assert_uint_eq(part.problem.shard, shard);
	ck_assert_uint_eq(part.problem.shards, shards);
	ck_assert_int_eq((part.problem.must_understand & MOEK_PARTIAL_SUM) != 0,
	                 shards > 1);
	ck_assert_uint_eq(part.problem.down.bias,
	                  shard == 0 ? whole->problem.down.bias : 0);
	for (uint64_t e = 0; e < 2; e++) {
		read_expert(whole, e);
		read_expert(&part, e);
		ck_assert_uint_eq(part.expert.gate.rows, count);
		ck_assert_uint_eq(part.expert.up.rows, count);
		ck_assert_uint_eq(part.expert.down.columns, count);
		ck_assert_uint_eq(part.expert.down.rows, whole->problem.hidden);
		check_piece(&whole->expert.gate, &part.expert.gate, first, 0);
		check_piece(&whole->expert.up, &part.expert.up, first, 0);
		check_piece(&whole->expert.down, &part.expert.down, 0, first);
		ck_assert_int_eq(part.expert.gate.bias != NULL,
		                 (int)whole->problem.gate_up.bias);
		ck_assert_int_eq(part.expert.down.bias != NULL,
		                 (int)part.problem.down.bias);
	}
	end_reading(&part);
	return first + count;
}

/** Made checkpoint _i / 2, the codec cutting by itself or not, in 1 .. 5 shards. */
START_TEST(shards_are_the_whole_side_by_side)
{
	const struct made *m = &mades[(size_t)_i / 2];
	unsigned unit = m->group == 0 ? m->quantization[0] != '\0' ? 2 : 1
	                              : m->group * (1 + m->group % 2);
	unsigned pieces = over(m->intermediate, unit);
	struct reading whole;

	save_made(m);
	begin_reading(&whole, 0, 0);
	for (uint32_t shards = 1; shards <= 5 && shards <= pieces; shards++) {
		uint64_t first = 0;

		for (uint32_t shard = 0; shard < shards; shard++) {
			uint64_t next = check_shard(&whole, shard, shards, first,
			                            _i % 2);

			ck_assert_msg(next % unit == 0 || next == m->intermediate,
			              "%s: a group is cut at %d", m->name, (int)next);
			/* as even as whole groups can be */
			ck_assert_uint_le(next - first,
			                  (uint64_t)over(pieces, shards) * unit);
			first = next;
		}
		ck_assert_uint_eq(first, m->intermediate);
	}
	end_reading(&whole);
}
END_TEST

/* ---- outputs ---- */

#define TOKENS 7

struct run {
	struct moek_registry *registry;
	const char *backend;
	uint64_t hidden, top_k, experts;
	float *input, *weights; /* [TOKENS][hidden], [TOKENS][top_k] */
	int32_t *ids;
	struct moek_numerics numerics; /* of the last layer */
};

static struct moek_registry *open_registry(void)
{
	const char *dirs[2] = { getenv("MOEK_TEST_PLUGINS"), NULL };
	struct moek_registry_options options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.threads = 2,
		.config_file = "",
		.plugin_dirs = dirs,
		.ignore_environment = 1,
	};
	struct moek_registry *registry = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_msg(moek_registry_open(&options, &registry, &error) == MOEK_OK, "%s",
	              error.text);
	return registry;
}

static void forward(struct moek_layer *layer, const struct run *run, float *output,
                    float *magnitudes)
{
	struct moek_trace trace = { .struct_size = MOEK_INIT(TRACE),
		                    .magnitudes = magnitudes };
	struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = { run->input, TOKENS, run->hidden, 0, MOEK_F32, 0 },
		.output = { output, TOKENS, run->hidden, 0, MOEK_F32, 0 },
		.topk_ids = run->ids,
		.topk_weights = run->weights,
		.trace = magnitudes != NULL ? &trace : NULL,
	};
	struct moek_error error = { .text = "" };

	ck_assert_msg(moek_workspace_create(&layer, 1, NULL, 0, &forward.workspace,
	                                    &error) == MOEK_OK,
	              "%s", error.text);
	ck_assert_msg(moek_layer_forward(layer, &forward, &error) == MOEK_OK, "%s",
	              error.text);
	moek_workspace_destroy(forward.workspace);
}

/** One layer, of one shard and of the experts that @map leaves (NULL: all), run. */
static void run_layer(struct run *run, struct moek_checkpoint *checkpoint,
                      uint64_t index, const int32_t *map, uint64_t local, float *output,
                      float *magnitudes)
{
	struct moek_layer_options options = { .struct_size = MOEK_INIT(LAYER_OPTIONS),
		                              .expert_map = map };
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE) };
	struct moek_choice *choice = NULL;
	struct moek_layer *layer = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(moek_checkpoint_problem(checkpoint, index, &problem), MOEK_OK);
	problem.max_tokens = TOKENS;
	problem.input_type = problem.output_type = MOEK_F32;
	if (map != NULL) {
		problem.must_understand |= MOEK_EXPERT_MAP;
		problem.experts_local = local;
	}
	ck_assert_msg(moek_choose(run->registry, &problem, run->backend, NULL, &choice,
	                          &error) == MOEK_OK,
	              "%s", error.text);
	ck_assert_msg(moek_checkpoint_source(checkpoint, index, &source, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	ck_assert_msg(moek_layer_create(choice, &source, &options, &layer, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	run->numerics.struct_size = MOEK_INIT(NUMERICS);
	moek_choice_numerics(moek_layer_choice(layer), &run->numerics);
	forward(layer, run, output, magnitudes);
	moek_layer_destroy(layer);
	moek_source_close(&source);
	moek_choice_destroy(choice);
}

static void begin_run(struct run *run, struct moek_checkpoint *checkpoint)
{
	struct moek_problem problem;
	uint32_t state = 5;

	moek_checkpoint_problem(checkpoint, 0, &problem);
	run->hidden = problem.hidden;
	run->top_k = problem.top_k;
	run->experts = problem.experts;
	run->input = calloc(TOKENS * run->hidden, sizeof(float));
	run->weights = calloc(TOKENS * run->top_k, sizeof(float));
	run->ids = calloc(TOKENS * run->top_k, sizeof(int32_t));
	for (uint64_t i = 0; i < TOKENS * run->hidden; i++)
		run->input[i] = (float)(int32_t)kit_random(&state) / 2147483648.0f;
	for (uint64_t i = 0; i < TOKENS * run->top_k; i++) {
		run->weights[i] = 0.1f + 0.05f * (float)(i % 9);
		run->ids[i] = (int32_t)((i * 5 + i / run->top_k) % run->experts);
	}
}

static void end_run(struct run *run)
{
	free(run->input);
	free(run->weights);
	free(run->ids);
}

/**
 * Two ways to add the same products: each is off by what the backend declares at most,
 * and the sum over @pieces rounds once for each of them.
 */
static void check_sums(const struct run *run, const float *whole, const float *sum,
                       const float *magnitudes, unsigned pieces)
{
	const double u = 0x1p-24;
	double factor = 2 * ((double)run->numerics.terms * u +
	                     run->numerics.roundings * u) +
	                pieces * u;
	double largest = 0;

	for (uint64_t i = 0; i < TOKENS * run->hidden; i++) {
		double off = fabs((double)sum[i] - (double)whole[i]);

		ck_assert_msg(off <= factor * (double)magnitudes[i],
		              "output[%d]: the parts give %g, the whole %g", (int)i,
		              (double)sum[i], (double)whole[i]);
		largest = fmax(largest, fabs((double)whole[i]));
	}
	ck_assert(largest > 0);
}

static const char *const models[] = { "tiny-qwen3moe-bf16", "tiny-qwen3moe-ct-sym-g32",
	                              "tiny-gptoss-mxfp4",
	                              "tiny-qwen3moe-gptq-sym-g32",
	                              "tiny-qwen3moe-quark-mxfp4" };

/** All models on emulation, and three on cpu: 2, 3 and 4 shards. */
START_TEST(outputs_of_all_shards_add_up_to_the_whole)
{
	const char *path = fixture(models[_i < 5 ? _i : _i - 4]);
	struct moek_checkpoint *whole = open_shard(path, 0, 1);
	struct run run = { .registry = open_registry() };
	static const uint32_t counts[] = { 2, 3, 4 };
	float *outputs, *magnitudes, *want;
	uint64_t all;

	begin_run(&run, whole);
	all = TOKENS * run.hidden;
	outputs = calloc(all, sizeof(float));
	magnitudes = calloc(all, sizeof(float));
	want = calloc(all, sizeof(float));
	run.backend = "require emulation";
	run_layer(&run, whole, 1, NULL, 0, want, magnitudes);
	run.backend = _i < 5 ? "require emulation" : "require cpu";
	run_layer(&run, whole, 1, NULL, 0, want, NULL);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		float *sum = calloc(all, sizeof(float));

		for (uint32_t shard = 0; shard < counts[i]; shard++) {
			struct moek_checkpoint *part = open_shard(path, shard,
			                                          counts[i]);

			run_layer(&run, part, 1, NULL, 0, outputs, NULL);
			for (uint64_t n = 0; n < all; n++)
				sum[n] += outputs[n];
			moek_checkpoint_close(part);
		}
		check_sums(&run, want, sum, magnitudes, counts[i]);
		free(sum);
	}
	free(outputs);
	free(magnitudes);
	free(want);
	end_run(&run);
	moek_checkpoint_close(whole);
	moek_registry_close(run.registry);
}
END_TEST

/* ---- some of the experts ---- */

static const struct partition {
	const char *parts[4];
} partitions[] = {
	{ { "0-7", "8-15" } },
	{ { "0-15/3", "1-15/3", "2-15/3" } },
	{ { "15,0,5", "1-4,6-14/2,7", "9-13/2" } },
};

/** Partition _i / 2, of the whole layer or of each of two shards. */
START_TEST(outputs_of_a_partition_of_experts_add_up_to_the_whole)
{
	const struct partition *p = &partitions[_i / 2];
	uint32_t shards = 1 + (uint32_t)_i % 2;
	const char *path = fixture(models[1]);
	struct moek_checkpoint *whole = open_shard(path, 0, 1);
	struct run run = { .registry = open_registry(),
		           .backend = "require emulation" };
	uint64_t all, held = 0;
	unsigned pieces = 0;
	float *outputs, *magnitudes, *want, *sum;

	begin_run(&run, whole);
	all = TOKENS * run.hidden;
	outputs = calloc(all, sizeof(float));
	magnitudes = calloc(all, sizeof(float));
	want = calloc(all, sizeof(float));
	sum = calloc(all, sizeof(float));
	run_layer(&run, whole, 2, NULL, 0, want, magnitudes);
	for (uint32_t shard = 0; shard < shards; shard++)
		for (int i = 0; i < 4 && p->parts[i] != NULL; i++, pieces++) {
			struct moek_checkpoint *part = open_shard(path, shard, shards);
			struct moek_error error = { .text = "" };
			int32_t map[16];
			uint64_t local = 0;

			ck_assert_msg(moek_expert_map_parse(p->parts[i], 16, map,
			                                    &local, &error) == MOEK_OK,
			              "%s", error.text);
			held += local;
			run_layer(&run, part, 2, map, local, outputs, NULL);
			for (uint64_t n = 0; n < all; n++)
				sum[n] += outputs[n];
			moek_checkpoint_close(part);
		}
	ck_assert_uint_eq(held, 16 * shards);
	check_sums(&run, want, sum, magnitudes, pieces);
	free(outputs);
	free(magnitudes);
	free(want);
	free(sum);
	end_run(&run);
	moek_checkpoint_close(whole);
	moek_registry_close(run.registry);
}
END_TEST

START_TEST(experts_are_given_slots_in_the_order_of_the_text)
{
	static const int32_t want[8] = { 2, 1, 3, -1, 4, -1, -1, 0 };
	int32_t map[8];
	uint64_t local = 0;

	ck_assert_int_eq(moek_expert_map_parse("7,1,0-4/2", 8, map, &local, NULL),
	                 MOEK_OK);
	ck_assert_uint_eq(local, 5);
	ck_assert_mem_eq(map, want, sizeof(want));
}
END_TEST

static const struct bad_list {
	const char *text, *says;
} bad_lists[] = {
	{ "", "expected the number of an expert" },
	{ "a", "at \"a\": expected the number of an expert" },
	{ "-1", "at \"-1\": expected the number of an expert" },
	{ "1,", "expected N, A-B or A-B/S, with commas between" },
	{ "1,,2", "at \",2\": expected the number of an expert" },
	{ "1;2", "at \";2\": expected N, A-B or A-B/S" },
	{ "3-1", "expected the last of a range" },
	{ "1-", "expected the last of a range" },
	{ "0-7/0", "expected a stride over 0" },
	{ "0-7/", "expected a stride over 0" },
	{ "3/2", "at \"/2\": expected N, A-B or A-B/S" },
	{ "8", "found 8, expected 0 .. 7" },
	{ "99999999999", "expected the number of an expert" },
	{ "0-4,4", "expert 4 is given twice" },
};

START_TEST(a_list_of_experts_that_makes_no_sense_is_refused)
{
	struct moek_error error = { .text = "" };
	int32_t map[8];
	uint64_t local = 77;

	ck_assert_int_eq(
		moek_expert_map_parse(bad_lists[_i].text, 8, map, &local, &error),
		MOEK_BAD_ARGUMENT);
	ck_assert_msg(strstr(error.text, bad_lists[_i].says) != NULL, "%s", error.text);
	ck_assert_uint_eq(local, 77);
	ck_assert_int_eq(moek_expert_map_parse(NULL, 8, map, &local, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_expert_map_parse("0", 0, map, &local, NULL),
	                 MOEK_BAD_ARGUMENT);
}
END_TEST

/* ---- what is read ---- */

/** Nobody may touch the pages of @tensor that lie outside [@first, @first + @bytes) of
 * each row of @stride bytes. Returns how many there are. */
static unsigned forbid(struct moek_checkpoint *checkpoint, const char *name,
                       uint64_t stride, uint64_t first, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct moek_tensor tensor;
	struct moek_error error = { .text = "" };
	uint64_t begin, end;
	unsigned count = 0;

	ck_assert_msg(moek_checkpoint_tensor(checkpoint, name, &tensor, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	begin = (uint64_t)(uintptr_t)tensor.data;
	end = begin + tensor.bytes;
	for (uint64_t at = (begin + page - 1) / page * page; at + page <= end;
	     at += page) {
		uint64_t in_row = (at - begin) % stride;
		int is_before = in_row + page <= first;
		int is_after = in_row >= first + bytes &&
		               in_row + page <= stride + first;

		if (!is_before && !is_after)
			continue;
		ck_assert_int_eq(mprotect((void *)(uintptr_t)at, page, PROT_NONE), 0);
		count++;
	}
	return count;
}

static volatile unsigned sink;

static void touch(const struct moek_matrix *m)
{
	for (uint64_t r = 0; r < m->rows; r++)
		for (uint64_t c = 0; c < m->columns; c++)
			sink += element_at(m, r, c).code + element_at(m, r, c).scale;
}

#define GATE P "experts.0.gate_proj"
#define UP P "experts.0.up_proj"
#define DOWN P "experts.0.down_proj"

/* shard 1 of 2; every second half of what is stored for expert 0 */
static const struct halves {
	struct made made;
	struct {
		const char *name;
		uint64_t stride; /* bytes of a row, or of all rows when rows are cut */
	} tensors[4];
	unsigned least; /* pages that are not to be read */
} halves[] = {
	{ { "bf16", "qwen3_moe", "", 16, 16384, 0, 0, 0 },
	  { { GATE ".weight", 16384 * 32 },
	    { UP ".weight", 16384 * 32 },
	    { DOWN ".weight", 16384 * 2 } },
	  160 },
	{ { "int4", "qwen3_moe",
	    "\"strategy\":\"group\",\"group_size\":32,\"symmetric\":true", 32, 65536,
	    32, 0, 0 },
	  { { GATE ".weight_packed", 65536 * 16 },
	    { UP ".weight_packed", 65536 * 16 },
	    { GATE ".weight_scale", 65536 * 2 },
	    { DOWN ".weight_packed", 65536 / 2 } },
	  350 },
	{ { "mxfp4", "gpt_oss", "mxfp4", 32, 65536, 32, 0, 1 },
	  { { P "experts.gate_up_proj_blocks", 65536 * 32 },
	    { P "experts.gate_up_proj_scales", 65536 * 2 },
	    { P "experts.down_proj_blocks", 65536 / 2 } },
	  350 },
};

START_TEST(a_shard_touches_only_its_bytes)
{
	const struct halves *h = &halves[_i];
	struct moek_layer_info info;
	struct reading part;
	unsigned pages = 0;

	save_made(&h->made);
	begin_reading(&part, 1, 2);
	for (size_t i = 0; i < 4 && h->tensors[i].name != NULL; i++)
		pages += forbid(part.checkpoint, h->tensors[i].name,
		                h->tensors[i].stride, h->tensors[i].stride / 2,
		                h->tensors[i].stride / 2);
	ck_assert_msg(pages >= h->least, "%u pages", pages);
	read_expert(&part, 0);
	touch(&part.expert.gate);
	touch(&part.expert.up);
	touch(&part.expert.down);
	/* and says so; the bias of gpt-oss's down is in shard 0 */
	ck_assert_int_eq(moek_checkpoint_layer(part.checkpoint, 0, &info), MOEK_OK);
	ck_assert_uint_eq(info.read_bytes,
	                  (info.weight_bytes - (h->made.fused ? 2 * 32 * 2 : 0)) / 2);
	end_reading(&part);
}
END_TEST

/* ---- what cannot be ---- */

static void expect_error(uint32_t shard, uint32_t shards, int32_t status,
                         const char *says)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(try_open(NULL, folder, shard, shards, &checkpoint, &error),
	                 status);
	ck_assert_msg(strstr(error.text, says) != NULL, "\"%s\" is not in: %s", says,
	              error.text);
}

START_TEST(more_shards_than_groups_are_refused_with_the_most_there_can_be)
{
	save_made(&mades[8]); /* 160 in groups of 32 */
	moek_checkpoint_close(open_shard(folder, 4, 5));
	expect_error(0, 6, MOEK_REFUSED,
	             "/config.json: layers.0: found 6 shards, expected at most 5: "
	             "intermediate 160 in groups of 32");
	expect_error(2, 2, MOEK_BAD_ARGUMENT, "shard 2 of 2: shards count from 0");
	expect_error(1, 0, MOEK_BAD_ARGUMENT, "shard 1 of 0");
}
END_TEST

START_TEST(groups_that_are_scattered_cannot_be_shared_out)
{
	struct made m = mades[4];
	struct kit_file file = { 0 };
	static const char *const modules[3] = { "gate_proj", "up_proj", "down_proj" };
	int32_t order[40];
	char name[128];

	m.quantization = "\"strategy\":\"group\",\"group_size\":8,\"symmetric\":true,"
			 "\"actorder\":\"group\"";
	write_config(&m);
	for (int i = 0; i < 40; i++)
		order[i] = i % (i < 16 ? 2 : 5);
	kit_add(&file, P "gate.weight", "BF16", "2,16", NULL);
	for (unsigned i = 0; i < 6; i++) {
		add_apart(&file, &m, i / 3, i % 3);
		snprintf(name, sizeof(name), P "experts.%u.%s.weight_g_idx", i / 3,
		         modules[i % 3]);
		kit_add(&file, name, "I32", i % 3 == 2 ? "40" : "16", order);
	}
	kit_save(&file, kit_path(folder, "model.safetensors"));
	moek_checkpoint_close(open_shard(folder, 0, 1));
	expect_error(0, 2, MOEK_REFUSED,
	             "layers.0: activation order scatters the groups of down over all "
	             "shards");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("shard");
	TCase *tests = tcase_create("shard");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, shards_are_the_whole_side_by_side, 0,
	                    2 * (int)MADES);
	tcase_add_loop_test(tests, outputs_of_all_shards_add_up_to_the_whole, 0, 8);
	tcase_add_loop_test(tests,
	                    outputs_of_a_partition_of_experts_add_up_to_the_whole, 0,
	                    2 * (int)(sizeof(partitions) / sizeof(partitions[0])));
	tcase_add_test(tests, experts_are_given_slots_in_the_order_of_the_text);
	tcase_add_loop_test(tests, a_list_of_experts_that_makes_no_sense_is_refused, 0,
	                    (int)(sizeof(bad_lists) / sizeof(bad_lists[0])));
	tcase_add_loop_test(tests, a_shard_touches_only_its_bytes, 0, 3);
	tcase_add_test(tests,
	               more_shards_than_groups_are_refused_with_the_most_there_can_be);
	tcase_add_test(tests, groups_that_are_scattered_cannot_be_shared_out);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
