/* SPDX-License-Identifier: MIT */
/*
 * One codec: a small checkpoint that it reads, with some bytes of its config, header
 * and data changed. Input: three bytes for each change, of which two say where.
 * MOEK_FUZZ_KIND picks the codec. Whatever opens must yield every expert, or an error.
 */
#include "config.h"

#include "kit.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moek/moek.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EXPERTS "model.layers.0.mlp.experts."
#define HIDDEN 64u
#define INTERMEDIATE 32u

struct piece {
	const char *suffix, *dtype;
	uint32_t rows_by, columns_by; /* of a module; 0: one in all */
	int turned;                   /* [columns][rows] */
	uint32_t rank;
};

static const struct kind {
	const char *name, *config;
	struct piece pieces[5];
} kinds[] = {
	{ "rows", "", { { ".weight", "BF16", 1, 1, 0, 2 } } },
	{ "packed",
	  "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
	  "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_"
	  "bits\":4,"
	  "\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\",\"group_size\":"
	  "32,"
	  "\"actorder\":\"group\"}}}}",
	  { { ".weight_packed", "I32", 1, 8, 0, 2 },
	    { ".weight_scale", "BF16", 1, 32, 0, 2 },
	    { ".weight_zero_point", "I32", 8, 32, 0, 2 },
	    { ".weight_g_idx", "I32", 0, 1, 0, 1 } } },
	{ "packed-int8",
	  "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
	  "\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,\"symmetric\":false,"
	  "\"group_size\":32}}}}",
	  { { ".weight_packed", "I32", 1, 4, 0, 2 },
	    { ".weight_scale", "F16", 1, 32, 0, 2 },
	    { ".weight_zero_point", "I32", 4, 32, 0, 2 } } },
	{ "gptq",
	  "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":false,"
	  "\"desc_act\":true,\"checkpoint_format\":\"gptq\",\"dynamic\":{\"-:x.*\":{}}"
	  "}",
	  { { ".qweight", "I32", 1, 8, 1, 2 },
	    { ".qzeros", "I32", 8, 32, 1, 2 },
	    { ".scales", "F16", 1, 32, 1, 2 },
	    { ".g_idx", "I32", 0, 1, 0, 1 } } },
	{ "awq",
	  "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,"
	  "\"version\":\"gemm\"}",
	  { { ".qweight", "I32", 8, 1, 1, 2 },
	    { ".qzeros", "I32", 8, 32, 1, 2 },
	    { ".scales", "F16", 1, 32, 1, 2 } } },
	{ "quark",
	  "{\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":"
	  "\"fp4\","
	  "\"group_size\":32,\"scale_format\":\"e8m0\"},\"input_tensors\":{\"dtype\":"
	  "\"fp8_e4m3\",\"is_dynamic\":false}}}",
	  { { ".weight", "U8", 1, 2, 0, 2 },
	    { ".weight_scale", "U8", 1, 32, 0, 2 },
	    { ".input_scale", "F32", 0, 0, 0, 1 } } },
	{ "packed-fp4",
	  "{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-"
	  "quantized\","
	  "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_"
	  "bits\":4,"
	  "\"type\":\"float\",\"group_size\":32}}}}",
	  { { ".weight_packed", "U8", 1, 2, 0, 2 },
	    { ".weight_scale", "U8", 1, 32, 0, 2 } } },
	{ "fp8",
	  "{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}",
	  { { ".weight", "F8_E4M3", 1, 1, 0, 2 },
	    { ".weight_scale_inv", "F32", 16, 32, 0, 2 } } },
	{ "deepseek-fp4",
	  "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}",
	  { { ".weight", "I8", 1, 2, 0, 2 }, { ".scale", "F8_E8M0", 1, 32, 0, 2 } } },
};

static char *config, *weights; /* sound, as kit wrote them */
static size_t config_bytes, weights_bytes;
static char folder[64];
static volatile float sink;

static void add_module(struct kit_file *file, const struct kind *kind, unsigned i)
{
	static const char *const modules[3] = { "gate_proj", "up_proj", "down_proj" };
	unsigned rows = i % 3 == 2 ? HIDDEN : INTERMEDIATE;
	unsigned columns = i % 3 == 2 ? INTERMEDIATE : HIDDEN;
	char name[128], shape[32];
	const float one = 1;
	int32_t groups[HIDDEN];

	for (unsigned c = 0; c < HIDDEN; c++)
		groups[c] = (int32_t)(c / 32);
	for (const struct piece *p = kind->pieces; p->suffix != NULL; p++) {
		unsigned r = p->rows_by != 0 ? rows / p->rows_by : 1;
		unsigned c = p->columns_by != 0 ? columns / p->columns_by : 1;

		snprintf(name, sizeof(name), EXPERTS "%u.%s%s", i / 3, modules[i % 3],
		         p->suffix);
		if (p->rank == 1)
			snprintf(shape, sizeof(shape), "%u", c);
		else
			snprintf(shape, sizeof(shape), "%u,%u", p->turned ? c : r,
			         p->turned ? r : c);
		kit_add(file, name, p->dtype, shape,
		        strstr(p->suffix, "g_idx") != NULL ? (const void *)groups
		        : strstr(p->suffix, "input_scale") != NULL ? &one
		                                                   : NULL);
	}
}

static const struct kind *kind_of(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (name != NULL && strcmp(name, kinds[i].name) == 0)
			return &kinds[i];
	fputs("MOEK_FUZZ_KIND is none of:", stderr);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		fprintf(stderr, " %s", kinds[i].name);
	fputc('\n', stderr);
	exit(2);
}

static void write_both(const char *config_text, size_t config_size, const char *data,
                       size_t data_size)
{
	kit_write(kit_path(folder, "config.json"), config_text, config_size);
	kit_write(kit_path(folder, "model.safetensors"), data, data_size);
}

static void begin(void)
{
	const struct kind *kind = kind_of(getenv("MOEK_FUZZ_KIND"));
	struct kit_file file = { 0 };
	char text[2048];

	strcpy(folder, kit_folder());
	atexit(kit_clean);
	snprintf(text, sizeof(text),
	         "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":1,\"num_"
	         "experts\":2,"
	         "\"num_experts_per_tok\":1,\"hidden_size\":%u,\"moe_intermediate_"
	         "size\":%u,"
	         "\"norm_topk_prob\":true,\"hidden_act\":\"silu\",\"torch_dtype\":"
	         "\"bfloat16\"%s%s}",
	         HIDDEN, INTERMEDIATE,
	         kind->config[0] != '\0' ? ",\"quantization_config\":" : "",
	         kind->config);
	kit_write(kit_path(folder, "config.json"), text, strlen(text));
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,64", NULL);
	for (unsigned i = 0; i < 6; i++)
		add_module(&file, kind, i);
	kit_save(&file, kit_path(folder, "model.safetensors"));
	config = kit_read(kit_path(folder, "config.json"), &config_bytes);
	weights = kit_read(kit_path(folder, "model.safetensors"), &weights_bytes);
}

/** Bytes of a row of codes. */
static uint64_t row_bytes(const struct moek_matrix *m)
{
	switch (m->weight) {
	case MOEK_INT4:
	case MOEK_MXFP4:
		return (m->columns + 1) / 2;
	case MOEK_INT8:
		return m->columns;
	case MOEK_F32:
		return m->columns * 4;
	default:
		return m->columns * 2;
	}
}

/** The first and the last byte of each piece, so that the sanitizer sees a short one.
 */
static void use(const struct moek_matrix *m)
{
	uint64_t groups = (m->columns + m->group_size - 1) / m->group_size;
	uint64_t scale_bytes = m->scale == MOEK_F32 ? 4 : m->scale == MOEK_E8M0 ? 1 : 2;
	const uint8_t *codes = m->codes, *scales = m->scales;

	if (m->rows == 0)
		return;
	sink = codes[0];
	sink = codes[m->rows * row_bytes(m) - 1];
	if (scales != NULL)
		sink = scales[m->rows * groups * scale_bytes - 1];
	if (m->zeros != NULL)
		sink = m->zeros[m->rows * groups - 1];
	for (uint64_t c = 0; m->column_group != NULL && c < m->columns; c++)
		if (m->column_group[c] >= groups)
			abort();
}

/** Open the folder and take every expert. */
static int32_t try_it(void)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE) };
	struct moek_problem problem = { .struct_size = MOEK_PROBLEM_SIZE_1_0 };
	struct moek_error error = { .text = "" };
	void *scratch = NULL;
	int32_t status = moek_checkpoint_open(NULL, folder, &checkpoint, &error);

	if (status == MOEK_OK)
		status = moek_checkpoint_problem(checkpoint, 0, &problem);
	if (status == MOEK_OK)
		status = moek_checkpoint_source(checkpoint, 0, &source, &error);
	if (status == MOEK_OK)
		scratch = malloc(source.scratch_bytes + 1);
	for (uint64_t e = 0; e < problem.experts && status == MOEK_OK; e++) {
		struct moek_expert expert = {
			.gate = { .struct_size = MOEK_MATRIX_SIZE_1_0 }
		};

		expert.up.struct_size = expert.down.struct_size = MOEK_MATRIX_SIZE_1_0;
		status = source.expert(source.self, e, scratch, &expert, &error);
		if (status != MOEK_OK)
			break;
		use(&expert.gate);
		use(&expert.up);
		use(&expert.down);
	}
	if (status != MOEK_OK && status != MOEK_BAD_ARGUMENT && error.text[0] == '\0')
		abort(); /* a failure that says nothing */
	free(scratch);
	moek_source_close(&source);
	moek_checkpoint_close(checkpoint);
	return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *new_config, *new_weights;

	if (config == NULL) {
		begin();
		if (try_it() != MOEK_OK) {
			fputs("the sound checkpoint does not open\n", stderr);
			abort();
		}
	}
	new_config = malloc(config_bytes);
	new_weights = malloc(weights_bytes);
	memcpy(new_config, config, config_bytes);
	memcpy(new_weights, weights, weights_bytes);
	for (; size >= 3; data += 3, size -= 3) {
		size_t at = (size_t)data[0] << 8 | data[1];

		/* half to the config, the rest to the weights, mostly their header */
		if (at < 0x8000)
			new_config[at % config_bytes] = (char)data[2];
		else if (at < 0xe000)
			new_weights[at % 2048 % weights_bytes] = (char)data[2];
		else
			new_weights[(at - 0xe000) * 7 % weights_bytes] = (char)data[2];
	}
	write_both(new_config, config_bytes, new_weights, weights_bytes);
	try_it();
	free(new_weights);
	free(new_config);
	return 0;
}
