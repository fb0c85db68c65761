/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/checkpoint.h"
#include "core/codec.h"
#include "core/family.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/registry.h"
#include "core/status.h"
#include "core/threads.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MOST ((size_t)16 << 20) /* bytes of config.json */

struct layer {
	struct moek_expert_layer experts;
	struct moek_tensor router; /* [experts][hidden] */
	struct moek_tensor bias;   /* [experts], if the family has one */
	const float *correction;   /* [experts] or NULL */
	float *correction_copy;    /* what to free of it */
	uint64_t weight_bytes;
};

struct moek_checkpoint {
	struct moek_registry *registry; /* may be NULL */
	char *folder, *config_path, *config_text;
	struct moek_json *config_root;
	struct moek_config config;
	struct moek_model model;

	struct moek_files files;

	char root[40]; /* "model." */
	struct layer *layers;
	size_t layer_count;
};

struct moek_log *moek_checkpoint_log(const struct moek_checkpoint *checkpoint)
{
	return checkpoint->registry == NULL ? NULL
	                                    : moek_registry_log(checkpoint->registry);
}

/* ---- config.json ---- */

static const struct moek_json *quantization_of(const struct moek_checkpoint *checkpoint)
{
	const struct moek_json *now = moek_config_get(&checkpoint->config,
	                                              "quantization_config");

	/* or as it was called once */
	return now != NULL ? now
	                   : moek_config_get(&checkpoint->config, "compression_config");
}

static int32_t read_config(struct moek_checkpoint *checkpoint,
                           struct moek_error *error_out)
{
	const struct moek_codec *codec;
	size_t bytes = 0;
	int32_t status = moek_json_read_text(checkpoint->config_path, CONFIG_MOST,
	                                     &checkpoint->config_text, &bytes,
	                                     error_out);

	if (status == MOEK_OK)
		status = moek_json_parse(checkpoint->config_text, bytes,
		                         checkpoint->config_path,
		                         &checkpoint->config_root, error_out);
	if (status != MOEK_OK)
		return status;
	if (moek_json_kind(checkpoint->config_root) != MOEK_JSON_OBJECT)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: not a JSON object",
		                 checkpoint->config_path);
	checkpoint->config.path = checkpoint->config_path;
	checkpoint->config.root = checkpoint->config_root;
	status = moek_model_read(&checkpoint->config, &checkpoint->model, error_out);
	if (status == MOEK_OK)
		status = moek_codec_declared(checkpoint->config_path,
		                             quantization_of(checkpoint), &codec,
		                             error_out);
	return status;
}

/* ---- tensors ---- */

int moek_checkpoint_has(const struct moek_checkpoint *checkpoint, const char *name,
                        struct moek_tensor *tensor_out)
{
	uint32_t at = moek_index_find(&checkpoint->files.index, name, strlen(name));

	return at != MOEK_INDEX_NONE &&
	       moek_files_tensor(&checkpoint->files, at, tensor_out, NULL) == MOEK_OK;
}

int32_t moek_checkpoint_tensor(const struct moek_checkpoint *checkpoint,
                               const char *name, struct moek_tensor *tensor_out,
                               struct moek_error *error_out)
{
	const struct moek_files *files = &checkpoint->files;
	uint32_t at = moek_index_find(&files->index, name, strlen(name));

	if (at == MOEK_INDEX_NONE)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: no tensor %s; nearest: %s", checkpoint->folder,
		                 moek_quote(name, strlen(name)).text,
		                 moek_alike(name, files->names, files->count).text);
	return moek_files_tensor(files, at, tensor_out, error_out);
}

/* ---- the expert layers ---- */

/** "model.layers.3.mlp.gate.weight" */
static struct moek_tensor_name layer_tensor(const struct moek_expert_layer *layer,
                                            const char *module, const char *suffix)
{
	struct moek_tensor_name name;

	snprintf(name.text, sizeof(name.text), "%s%s%s", layer->prefix, module, suffix);
	return name;
}

static void begin_layer(const struct moek_checkpoint *checkpoint, const char *root,
                        uint32_t number, struct moek_expert_layer *layer)
{
	memset(layer, 0, sizeof(*layer));
	layer->checkpoint = checkpoint;
	layer->config_path = checkpoint->config_path;
	layer->family = checkpoint->model.family;
	layer->number = number;
	layer->experts = checkpoint->model.experts;
	layer->hidden = checkpoint->model.hidden;
	layer->intermediate = checkpoint->model.intermediate;
	snprintf(layer->name, sizeof(layer->name), "layers.%u", number);
	snprintf(layer->prefix, sizeof(layer->prefix), "%slayers.%u.", root, number);
}

static int has_experts(struct moek_expert_layer *layer)
{
	struct moek_tensor_name router = layer_tensor(layer, layer->family->router,
	                                              ".weight");
	struct moek_tensor tensor;

	return moek_layer_has(layer, router.text, &tensor) || moek_codec_present(layer);
}

/** Below what name the layers are: the first under which one has experts. */
static void find_root(struct moek_checkpoint *checkpoint)
{
	static const char *const roots[] = { "model.", "language_model.model.",
		                             "model.language_model.", "" };
	struct moek_expert_layer layer;

	for (size_t r = 0; r < sizeof(roots) / sizeof(roots[0]); r++)
		for (uint32_t n = 0; n < checkpoint->model.layers; n++) {
			begin_layer(checkpoint, roots[r], n, &layer);
			if (has_experts(&layer)) {
				strcpy(checkpoint->root, roots[r]);
				return;
			}
		}
	strcpy(checkpoint->root, roots[0]);
}

/** fp32 in place where the file has it so. */
static int32_t read_correction(struct layer *layer, const char *name,
                               struct moek_error *error_out)
{
	uint64_t experts = layer->experts.experts;
	struct moek_tensor tensor;
	int32_t status = moek_layer_need(&layer->experts, name, "F32 BF16 F16", 1,
	                                 &experts, &tensor, error_out);

	if (status != MOEK_OK)
		return status;
	if (tensor.type == MOEK_F32 && (uintptr_t)tensor.data % sizeof(float) == 0) {
		layer->correction = tensor.data;
		return MOEK_OK;
	}
	layer->correction_copy = calloc(experts, sizeof(float));
	if (layer->correction_copy == NULL)
		return moek_fail_memory(error_out, "router bias");
	for (uint64_t e = 0; e < experts; e++)
		layer->correction_copy[e] = moek_scalar(tensor.data, tensor.type, e);
	layer->correction = layer->correction_copy;
	return MOEK_OK;
}

static int32_t read_router(struct layer *layer, struct moek_error *error_out)
{
	const struct moek_family *family = layer->experts.family;
	const uint64_t shape[2] = { layer->experts.experts, layer->experts.hidden };
	int32_t status = moek_layer_need(
		&layer->experts,
		layer_tensor(&layer->experts, family->router, ".weight").text,
		"BF16 F16 F32", 2, shape, &layer->router, error_out);

	if (status == MOEK_OK && family->router_bias)
		status = moek_layer_need(
			&layer->experts,
			layer_tensor(&layer->experts, family->router, ".bias").text,
			"BF16 F16 F32", 1, shape, &layer->bias, error_out);
	if (status == MOEK_OK && family->correction != NULL)
		status = read_correction(
			layer,
			layer_tensor(&layer->experts, family->correction, "").text,
			error_out);
	return status;
}

static int32_t missing_layer(const struct moek_expert_layer *layer,
                             struct moek_error *error_out)
{
	const struct moek_checkpoint *checkpoint = layer->checkpoint;
	struct moek_tensor_name router = layer_tensor(layer, layer->family->router,
	                                              ".weight");

	return moek_fail(
		error_out, MOEK_BAD_FILE, 0,
		"%s: no tensor %s, and no experts: by config.json %s has them; "
		"nearest: %s",
		checkpoint->folder, router.text, layer->name,
		moek_alike(router.text, checkpoint->files.names,
	                   checkpoint->files.count)
			.text);
}

static int32_t read_layers(struct moek_checkpoint *checkpoint,
                           const struct moek_json *quantization,
                           struct moek_error *error_out)
{
	for (uint32_t n = 0; n < checkpoint->model.layers; n++) {
		struct layer *layer = &checkpoint->layers[checkpoint->layer_count];
		int32_t status;

		begin_layer(checkpoint, checkpoint->root, n, &layer->experts);
		if (!has_experts(&layer->experts)) {
			if (moek_model_expects(&checkpoint->config, n))
				return missing_layer(&layer->experts, error_out);
			continue;
		}
		checkpoint->layer_count++;
		status = read_router(layer, error_out);
		if (status == MOEK_OK)
			status = moek_codec_find(&layer->experts, quantization,
			                         error_out);
		if (status != MOEK_OK)
			return status;
	}
	if (checkpoint->layer_count == 0)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: none of its %llu layers has experts",
		                 checkpoint->folder,
		                 (unsigned long long)checkpoint->model.layers);
	return MOEK_OK;
}

/* ---- tensors of experts that nobody reads ---- */

/** Decimal digits without leading zeros; NULL: none, or too many. */
static const char *read_digits(const char *text, uint64_t *number_out)
{
	const char *at = text;
	uint64_t number = 0;

	while (*at >= '0' && *at <= '9' && at - text < 9)
		number = number * 10 + (uint64_t)(*at++ - '0');
	if (at == text || (text[0] == '0' && at - text > 1) ||
	    (*at >= '0' && *at <= '9'))
		return NULL;
	*number_out = number;
	return at;
}

/** What follows @front in @text, or NULL. */
static const char *after(const char *text, const char *front)
{
	size_t length = strlen(front);

	return strncmp(text, front, length) == 0 ? text + length : NULL;
}

static int ends_as(const char *end, const char *const *suffixes)
{
	for (; *suffixes != NULL; suffixes++)
		if (strcmp(end, *suffixes) == 0)
			return 1;
	return 0;
}

/** Whether the codec reads this tensor; @rest is its name behind "...mlp.experts.". */
static int is_read(const struct moek_expert_layer *layer, const char *rest)
{
	const struct moek_family *family = layer->family;
	const struct moek_codec *codec = layer->codec;
	const char *const modules[3] = {
		layer->fused ? family->fused_gate_up : family->gate,
		layer->fused ? family->fused_down : family->down,
		layer->fused ? NULL : family->up,
	};
	uint64_t expert;

	if (!layer->fused) {
		rest = read_digits(rest, &expert);
		if (rest == NULL || *rest != '.' || expert >= layer->experts)
			return 0;
		rest++;
	}
	for (int i = 0; i < 3; i++) {
		const char *end = modules[i] == NULL ? NULL : after(rest, modules[i]);

		if (end != NULL && ends_as(end, layer->fused ? codec->fused_suffixes
		                                             : codec->suffixes))
			return 1;
	}
	return 0;
}

/** Tensor @i of the checkpoint, if it belongs to an expert, is one that is read. */
static int32_t sweep(struct moek_checkpoint *checkpoint, struct layer *const *by_number,
                     size_t i, struct moek_error *error_out)
{
	const struct moek_family *family = checkpoint->model.family;
	const struct moek_name *name = &checkpoint->files.names[i];
	const char *rest = after(name->text, checkpoint->root);
	struct moek_tensor tensor;
	struct layer *layer;
	uint64_t number;

	if (rest == NULL || (rest = after(rest, "layers.")) == NULL ||
	    (rest = read_digits(rest, &number)) == NULL ||
	    number >= checkpoint->model.layers) /* layers that predict further tokens */
		return MOEK_OK;
	if (*rest++ != '.' || after(rest, family->router) != NULL ||
	    (rest = after(rest, family->experts)) == NULL)
		return MOEK_OK;
	layer = by_number[number];
	if (layer == NULL || !is_read(&layer->experts, rest))
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: tensor %s is one of the experts', but not one that is "
			"read (%s; config.json: %llu experts)",
			moek_safetensors_path(moek_files_at(&checkpoint->files, i)),
			moek_quote(name->text, name->bytes).text,
			layer != NULL ? layer->experts.format
				      : "no router in this layer",
			(unsigned long long)checkpoint->model.experts);
	if (moek_files_tensor(&checkpoint->files, i, &tensor, NULL) == MOEK_OK)
		layer->weight_bytes += tensor.bytes; /* a file's size bounds the sum */
	return MOEK_OK;
}

static int32_t sweep_all(struct moek_checkpoint *checkpoint,
                         struct moek_error *error_out)
{
	struct layer **by_number = calloc(checkpoint->model.layers, sizeof(*by_number));
	int32_t status = MOEK_OK;

	if (by_number == NULL)
		return moek_fail_memory(error_out, "layers by number");
	for (size_t i = 0; i < checkpoint->layer_count; i++)
		by_number[checkpoint->layers[i].experts.number] = &checkpoint
		                                                           ->layers[i];
	for (size_t i = 0; i < checkpoint->files.count && status == MOEK_OK; i++)
		status = sweep(checkpoint, by_number, i, error_out);
	free(by_number);
	return status;
}

static int32_t find_layers(struct moek_checkpoint *checkpoint,
                           struct moek_error *error_out)
{
	int32_t status;

	checkpoint->layers = calloc(checkpoint->model.layers + 1,
	                            sizeof(*checkpoint->layers));
	if (checkpoint->layers == NULL)
		return moek_fail_memory(error_out, "expert layers");
	find_root(checkpoint);
	status = read_layers(checkpoint, quantization_of(checkpoint), error_out);
	return status == MOEK_OK ? sweep_all(checkpoint, error_out) : status;
}

/* ---- the public side ---- */

int32_t moek_checkpoint_open(struct moek_registry *registry, const char *path,
                             struct moek_checkpoint **checkpoint_out,
                             struct moek_error *error_out)
{
	struct moek_checkpoint *checkpoint;
	int32_t status = MOEK_OK;

	if (path == NULL || checkpoint_out == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "checkpoint: path or checkpoint_out is NULL");
	checkpoint = calloc(1, sizeof(*checkpoint));
	if (checkpoint == NULL)
		return moek_fail_memory(error_out, "checkpoint");
	checkpoint->registry = registry;
	checkpoint->folder = strdup(path);
	checkpoint->config_path = moek_join(path, "config.json");
	if (checkpoint->folder == NULL || checkpoint->config_path == NULL)
		status = moek_fail_memory(error_out, "path");
	if (status == MOEK_OK)
		status = read_config(checkpoint, error_out);
	if (status == MOEK_OK)
		status = moek_files_open(&checkpoint->files, checkpoint->folder,
		                         moek_checkpoint_log(checkpoint), error_out);
	if (status == MOEK_OK)
		status = find_layers(checkpoint, error_out);
	if (status != MOEK_OK) {
		moek_checkpoint_close(checkpoint);
		return status;
	}
	*checkpoint_out = checkpoint;
	return MOEK_OK;
}

void moek_checkpoint_close(struct moek_checkpoint *checkpoint)
{
	if (checkpoint == NULL)
		return;
	for (size_t i = 0; i < checkpoint->layer_count; i++)
		free(checkpoint->layers[i].correction_copy);
	free(checkpoint->layers);
	moek_files_end(&checkpoint->files);
	moek_json_free(checkpoint->config_root);
	free(checkpoint->config_text);
	free(checkpoint->config_path);
	free(checkpoint->folder);
	free(checkpoint);
}

uint64_t moek_checkpoint_layers(const struct moek_checkpoint *checkpoint)
{
	return checkpoint->layer_count;
}

int32_t moek_checkpoint_layer(const struct moek_checkpoint *checkpoint, uint64_t index,
                              struct moek_layer_info *info_out)
{
	const struct layer *layer;

	if (index >= checkpoint->layer_count)
		return MOEK_BAD_ARGUMENT;
	layer = &checkpoint->layers[index];
	memset(info_out, 0, sizeof(*info_out));
	info_out->struct_size = MOEK_LAYER_INFO_SIZE_1_0;
	info_out->number = layer->experts.number;
	info_out->name = layer->experts.name;
	info_out->family = layer->experts.family->name;
	info_out->format = layer->experts.format;
	info_out->weight_bytes = layer->weight_bytes;
	return MOEK_OK;
}

int32_t moek_checkpoint_problem(const struct moek_checkpoint *checkpoint,
                                uint64_t index, struct moek_problem *problem_out)
{
	const struct moek_model *model = &checkpoint->model;
	const struct moek_expert_layer *layer;

	if (index >= checkpoint->layer_count)
		return MOEK_BAD_ARGUMENT;
	layer = &checkpoint->layers[index].experts;
	memset(problem_out, 0, sizeof(*problem_out));
	problem_out->struct_size = MOEK_PROBLEM_SIZE_1_0;
	problem_out->activations = MOEK_A16;
	if (model->router.weight_on_input)
		problem_out->must_understand = MOEK_WEIGHT_ON_INPUT;
	problem_out->experts = model->experts;
	problem_out->experts_local = model->experts;
	problem_out->top_k = model->router.top_k;
	problem_out->hidden = model->hidden;
	problem_out->intermediate = model->intermediate;
	problem_out->gate_up = layer->gate_up;
	problem_out->down = layer->down;
	problem_out->input_type = model->type;
	problem_out->output_type = model->type;
	problem_out->activation = model->activation;
	problem_out->gated = 1;
	problem_out->alpha = model->alpha;
	problem_out->beta = model->beta;
	problem_out->limit = model->limit;
	problem_out->shards = 1;
	return MOEK_OK;
}

int32_t moek_checkpoint_router(const struct moek_checkpoint *checkpoint, uint64_t index,
                               struct moek_router *router_out)
{
	if (index >= checkpoint->layer_count)
		return MOEK_BAD_ARGUMENT;
	*router_out = checkpoint->model.router;
	router_out->bias = checkpoint->layers[index].correction;
	return MOEK_OK;
}

static int32_t source_expert(void *self, uint64_t expert, void *scratch,
                             struct moek_expert *expert_out,
                             struct moek_error *error_out)
{
	const struct moek_expert_layer *layer = self;

	if (expert >= layer->experts)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "%s: expert %llu of %llu", layer->name,
		                 (unsigned long long)expert,
		                 (unsigned long long)layer->experts);
	return moek_codec_expert(layer, expert, scratch, expert_out, error_out);
}

int32_t moek_checkpoint_source(struct moek_checkpoint *checkpoint, uint64_t index,
                               struct moek_source *source_out,
                               struct moek_error *error_out)
{
	struct moek_expert_layer *layer;

	if (index >= checkpoint->layer_count)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "%s: expert layer %llu of %zu", checkpoint->folder,
		                 (unsigned long long)index, checkpoint->layer_count);
	layer = &checkpoint->layers[index].experts;
	memset(source_out, 0, sizeof(*source_out));
	source_out->struct_size = MOEK_SOURCE_SIZE_1_0;
	source_out->self = layer;
	source_out->scratch_bytes = moek_scratch_bytes(
		layer->hidden, layer->intermediate, &layer->gate_up, &layer->down);
	source_out->expert = source_expert;
	return MOEK_OK;
}

const char *moek_checkpoint_config(const struct moek_checkpoint *checkpoint)
{
	return checkpoint->config_text;
}

/** What lies at @path under @value; NULL: nothing, or null. */
static const struct moek_json *follow(const struct moek_json *value, const char *path)
{
	char key[128];

	while (value != NULL) {
		size_t bytes = strcspn(path, ".");

		if (bytes >= sizeof(key))
			return NULL;
		memcpy(key, path, bytes);
		key[bytes] = '\0';
		if (moek_json_kind(value) == MOEK_JSON_ARRAY)
			value = bytes > 0 && strspn(key, "0123456789") == bytes
			                ? moek_json_at(value, strtoul(key, NULL, 10))
			                : NULL;
		else
			value = moek_json_get(value, key);
		if (path[bytes] == '\0')
			break;
		path += bytes + 1;
	}
	return value != NULL && moek_json_kind(value) != MOEK_JSON_NULL ? value : NULL;
}

static const struct moek_json *config_value(const struct moek_checkpoint *checkpoint,
                                            const char *path)
{
	const struct moek_json *root = checkpoint->config_root;
	const struct moek_json *value = follow(root, path);

	return value != NULL ? value : follow(moek_json_get(root, "text_config"), path);
}

int32_t moek_checkpoint_number(const struct moek_checkpoint *checkpoint,
                               const char *path, double *number_out,
                               struct moek_error *error_out)
{
	const struct moek_json *value = config_value(checkpoint, path);
	int truth;

	if (value == NULL || moek_json_number(value, number_out))
		return MOEK_OK;
	if (!moek_json_bool(value, &truth))
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s is not a number",
		                 checkpoint->config_path, path);
	*number_out = truth;
	return MOEK_OK;
}

int32_t moek_checkpoint_word(const struct moek_checkpoint *checkpoint, const char *path,
                             const char **word_out, struct moek_error *error_out)
{
	const struct moek_json *value = config_value(checkpoint, path);
	const char *word = moek_json_string(value, NULL);

	if (value != NULL && word == NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: %s is not a string",
		                 checkpoint->config_path, path);
	if (word != NULL)
		*word_out = word;
	return MOEK_OK;
}

/* ---- router logits ---- */

#define ROW_TILE 16u /* rows summed side by side: the sums of one are a chain */
#define COLUMN_TILE 128u
#define EXPERT_TILE 16u

struct logits {
	const struct layer *layer;
	const struct moek_rows *input;
	uint64_t stride; /* elements */
	uint64_t expert_tiles;
	float *out;
};

/** Columns first .. of up to ROW_TILE rows, turned. */
static void load_tile(const struct logits *job, uint64_t row, uint64_t rows,
                      uint64_t first, uint64_t columns, float (*tile)[ROW_TILE])
{
	for (uint64_t r = 0; r < ROW_TILE; r++)
		for (uint64_t c = 0; c < columns; c++)
			tile[c][r] = r < rows ? moek_scalar(job->input->data,
			                                    job->input->type,
			                                    (row + r) * job->stride +
			                                            first + c)
			                      : 0.0f;
}

static void add_tile(const struct logits *job, uint64_t expert, uint64_t first,
                     uint64_t columns, float (*tile)[ROW_TILE], float *sums)
{
	const struct moek_tensor *router = &job->layer->router;

	for (uint64_t c = 0; c < columns; c++) {
		float weight = moek_scalar(router->data, router->type,
		                           expert * job->input->columns + first + c);

		for (uint64_t r = 0; r < ROW_TILE; r++)
			sums[r] += weight * tile[c][r];
	}
}

static void logits_of_tile(void *arg, uint64_t i, uint32_t worker)
{
	const struct logits *job = arg;
	const struct moek_tensor *bias = &job->layer->bias;
	uint64_t experts = job->layer->experts.experts, columns = job->input->columns;
	uint64_t row = i / job->expert_tiles * ROW_TILE, left = job->input->rows - row;
	uint64_t expert = i % job->expert_tiles * EXPERT_TILE;
	uint64_t rows = left < ROW_TILE ? left : ROW_TILE;
	uint64_t count = experts - expert < EXPERT_TILE ? experts - expert
	                                                : EXPERT_TILE;
	float sums[EXPERT_TILE][ROW_TILE] = { { 0 } }, tile[COLUMN_TILE][ROW_TILE];

	(void)worker;
	for (uint64_t first = 0; first < columns; first += COLUMN_TILE) {
		uint64_t some = columns - first < COLUMN_TILE ? columns - first
		                                              : COLUMN_TILE;

		load_tile(job, row, rows, first, some, tile);
		for (uint64_t e = 0; e < count; e++)
			add_tile(job, expert + e, first, some, tile, sums[e]);
	}
	for (uint64_t e = 0; e < count; e++) {
		float add = bias->data == NULL
		                    ? 0.0f
		                    : moek_scalar(bias->data, bias->type, expert + e);

		for (uint64_t r = 0; r < rows; r++)
			job->out[(row + r) * experts + expert + e] = sums[e][r] + add;
	}
}

static int32_t check_input(const struct layer *layer, const struct moek_rows *input,
                           struct moek_error *error_out)
{
	if (input->columns != layer->experts.hidden)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "logits: input has %llu columns, expected hidden %llu",
		                 (unsigned long long)input->columns,
		                 (unsigned long long)layer->experts.hidden);
	if (input->type != MOEK_F32 && input->type != MOEK_F16 &&
	    input->type != MOEK_BF16)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "logits: input type %s, expected bf16, fp16 or fp32",
		                 moek_type_name(input->type));
	if (input->space != 0 || (input->data == NULL && input->rows != 0))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "logits: input is not in host memory");
	if (input->row_stride != 0 && input->row_stride < input->columns)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "logits: row_stride %llu is under %llu columns",
		                 (unsigned long long)input->row_stride,
		                 (unsigned long long)input->columns);
	return MOEK_OK;
}

int32_t moek_checkpoint_logits(struct moek_checkpoint *checkpoint, uint64_t index,
                               const struct moek_rows *input, float *logits_out,
                               struct moek_error *error_out)
{
	struct logits job = { .input = input, .out = logits_out };
	uint64_t tasks;
	int32_t status;

	if (index >= checkpoint->layer_count || input == NULL || logits_out == NULL)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, 0,
			"logits: layer %llu of %zu, or input or logits_out is NULL",
			(unsigned long long)index, checkpoint->layer_count);
	job.layer = &checkpoint->layers[index];
	status = check_input(job.layer, input, error_out);
	if (status != MOEK_OK)
		return status;
	job.stride = input->row_stride != 0 ? input->row_stride : input->columns;
	job.expert_tiles = (job.layer->experts.experts + EXPERT_TILE - 1) / EXPERT_TILE;
	tasks = (input->rows / ROW_TILE + (input->rows % ROW_TILE != 0)) *
	        job.expert_tiles;
	if (checkpoint->registry != NULL) {
		moek_parallel_for(moek_registry_workers(checkpoint->registry), tasks,
		                  logits_of_tile, &job);
		return MOEK_OK;
	}
	for (uint64_t i = 0; i < tasks; i++)
		logits_of_tile(&job, i, 0);
	return MOEK_OK;
}
