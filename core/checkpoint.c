/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/checkpoint.h"
#include "core/codec.h"
#include "core/family.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/registry.h"
#include "core/shard.h"
#include "core/status.h"
#include "core/threads.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MOST ((size_t)16 << 20) /* bytes of config.json */

/** A vector of fp32, in the file where it lies there so. */
struct floats {
	const float *data; /* or NULL */
	float *copy;       /* what to free of it */
};

struct layer {
	struct moek_expert_layer experts;
	struct moek_tensor router; /* [experts][hidden] */
	struct moek_tensor bias;   /* [experts], if the family has one */
	struct floats correction;  /* [experts], if the family has one */
	struct floats scale;       /* the same */
	const char *unrouted;      /* why moek cannot route it, or NULL */
	uint64_t weight_bytes, read_bytes, shared_bytes;
	char shared[128]; /* "model.layers.3.mlp.shared_expert", if it has them */
};

struct moek_checkpoint {
	struct moek_registry *registry; /* may be NULL */
	char *folder, *config_path, *config_text;
	struct moek_json *config_root;
	struct moek_config config;
	struct moek_family *family; /* of a file, or NULL */
	struct moek_model model;

	struct moek_files files;

	uint8_t *uses; /* [files.count]: enum moek_use */

	uint32_t shard, shards;
	char root[48]; /* "model.layers." */
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

/** LoRA and its like are a folder of their own, without a model. */
static int32_t check_adapter(const struct moek_checkpoint *checkpoint,
                             struct moek_error *error_out)
{
	char *adapter = moek_join(checkpoint->folder, "adapter_config.json");
	int is_adapter = adapter != NULL &&
	                 access(checkpoint->config_path, F_OK) != 0 &&
	                 access(adapter, F_OK) == 0;

	free(adapter);
	return is_adapter
	               ? moek_fail(error_out, MOEK_BAD_FILE, MOEK_RULE_LORA,
	                           "%s: holds adapters (adapter_config.json) and no "
	                           "model; merge them into their base model, or name "
	                           "that one's folder",
	                           checkpoint->folder)
	               : MOEK_OK;
}

static int32_t read_config(struct moek_checkpoint *checkpoint,
                           struct moek_error *error_out)
{
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
	return MOEK_OK;
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

const char *moek_checkpoint_folder(const struct moek_checkpoint *checkpoint)
{
	return checkpoint->folder;
}

static void run_alone(void *self, uint64_t tasks,
                      void (*body)(void *arg, uint64_t i, uint32_t worker), void *arg)
{
	(void)self;
	for (uint64_t i = 0; i < tasks; i++)
		body(arg, i, 0);
}

const struct moek_workers *
moek_checkpoint_workers(const struct moek_checkpoint *checkpoint)
{
	static const struct moek_workers alone = { .struct_size = MOEK_WORKERS_SIZE_1_0,
		                                   .count = 1,
		                                   .parallel_for = run_alone };

	return checkpoint->registry == NULL
	               ? &alone
	               : moek_registry_workers(checkpoint->registry);
}

uint32_t moek_checkpoint_type(const struct moek_checkpoint *checkpoint)
{
	return checkpoint->model.type;
}

const struct moek_expert_layer *
moek_checkpoint_experts(const struct moek_checkpoint *checkpoint, uint64_t index)
{
	return &checkpoint->layers[index].experts;
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
	snprintf(layer->prefix, sizeof(layer->prefix), "%s%u.", root, number);
}

static int has_router(const struct moek_expert_layer *layer)
{
	struct moek_tensor_name router = layer_tensor(layer, layer->family->router,
	                                              ".weight");
	struct moek_tensor tensor;

	return moek_layer_has(layer, router.text, &tensor);
}

static int has_experts(struct moek_expert_layer *layer)
{
	return has_router(layer) || moek_codec_present(layer);
}

static const char *const roots[] = { "model.layers.",
	                             "language_model.model.layers.",
	                             "model.language_model.layers.",
	                             "layers.",
	                             "backbone.layers.",
	                             "transformer.blocks." };

#define ROOTS (sizeof(roots) / sizeof(roots[0]))

/** Below what name the layers are: the first under which one has experts. */
static void find_root(struct moek_checkpoint *checkpoint)
{
	struct moek_expert_layer layer;

	for (size_t r = 0; r < ROOTS; r++)
		for (uint32_t n = 0; n < checkpoint->model.layers; n++) {
			begin_layer(checkpoint, roots[r], n, &layer);
			if (has_experts(&layer)) {
				strcpy(checkpoint->root, roots[r]);
				return;
			}
		}
	strcpy(checkpoint->root, roots[0]);
}

/** [experts], or [1, experts] as ERNIE has it; fp32 in place where the file has it so.
 */
static int32_t read_floats(const struct layer *layer, const char *module,
                           struct floats *floats_out, struct moek_error *error_out)
{
	struct moek_tensor_name name = layer_tensor(&layer->experts, module, "");
	uint64_t experts = layer->experts.experts;
	const uint64_t shape[2] = { 1, experts };
	struct moek_tensor tensor;
	int is_wide = moek_layer_has(&layer->experts, name.text, &tensor) &&
	              tensor.rank == 2;
	int32_t status = moek_layer_need(&layer->experts, name.text, "F32 BF16 F16",
	                                 is_wide ? 2 : 1, is_wide ? shape : shape + 1,
	                                 &tensor, error_out);

	if (status != MOEK_OK)
		return status;
	if (tensor.type == MOEK_F32 && (uintptr_t)tensor.data % sizeof(float) == 0) {
		floats_out->data = tensor.data;
		return MOEK_OK;
	}
	floats_out->copy = calloc(experts, sizeof(float));
	if (floats_out->copy == NULL)
		return moek_fail_memory(error_out, "router vector");
	for (uint64_t e = 0; e < experts; e++)
		floats_out->copy[e] = moek_scalar(tensor.data, tensor.type, e);
	floats_out->data = floats_out->copy;
	return MOEK_OK;
}

static int is_by_token(const struct layer *layer)
{
	const char *tensor_name = layer->experts.family->by_token;
	struct moek_tensor tensor;

	return tensor_name != NULL &&
	       moek_layer_has(&layer->experts,
	                      layer_tensor(&layer->experts, tensor_name, "").text,
	                      &tensor);
}

static int32_t read_router(struct layer *layer, struct moek_error *error_out)
{
	const struct moek_expert_layer *experts = &layer->experts;
	const struct moek_family *family = experts->family;
	const uint64_t shape[2] = { experts->experts,
		                    experts->checkpoint->model.router_hidden };
	int32_t status = moek_layer_need(
		experts, layer_tensor(experts, family->router, ".weight").text,
		"BF16 F16 F32", 2, shape, &layer->router, error_out);

	if (status == MOEK_OK && family->router_bias)
		status = moek_layer_need(
			experts, layer_tensor(experts, family->router, ".bias").text,
			"BF16 F16 F32", 1, shape, &layer->bias, error_out);
	if (status == MOEK_OK && family->expert_scale != NULL)
		status = read_floats(layer, family->expert_scale, &layer->scale,
		                     error_out);
	if (status != MOEK_OK)
		return status;
	if (shape[1] != experts->hidden)
		layer->unrouted = "its router reads the rows before they are narrowed "
				  "for its experts";
	if (is_by_token(layer))
		layer->unrouted = "token ids choose its experts, not router logits";
	else if (family->correction != NULL)
		status = read_floats(layer, family->correction, &layer->correction,
		                     error_out);
	if (family->own_input)
		layer->unrouted = "its router reads other rows than its experts";
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
		if (status == MOEK_OK)
			status = moek_shard_set(&layer->experts, checkpoint->shard,
			                        checkpoint->shards, error_out);
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

/** The part that the codec reads from this tensor, or MOEK_PARTS: none; @rest is its
 * name behind "...mlp.experts.". */
static enum moek_part part_of(const struct moek_expert_layer *layer, const char *rest)
{
	const struct moek_codec *codec = layer->codec;
	uint64_t expert;

	if (!layer->fused) {
		rest = read_digits(rest, &expert);
		if (rest == NULL || *rest != '.' || expert >= layer->experts)
			return MOEK_PARTS;
		rest++;
	}
	for (int part = 0; part < MOEK_PARTS; part++) {
		const char *module = moek_part_name(layer, (enum moek_part)part);
		const char *end = module == NULL ? NULL : after(rest, module);

		if (end != NULL && ends_as(end, layer->fused ? codec->fused_suffixes
		                                             : codec->suffixes))
			return (enum moek_part)part;
	}
	return MOEK_PARTS;
}

/** A tensor of the experts: one that is read, or else an error. */
static int32_t sweep_expert(struct moek_checkpoint *checkpoint, struct layer *layer,
                            const char *rest, size_t i, struct moek_error *error_out)
{
	const struct moek_name *name = &checkpoint->files.names[i];
	enum moek_part part = layer == NULL ? MOEK_PARTS
	                                    : part_of(&layer->experts, rest);
	struct moek_tensor tensor;

	if (part == MOEK_PARTS)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: tensor %s is one of the experts', but not one that is "
			"read (%s; config.json: %llu experts)",
			moek_safetensors_path(moek_files_at(&checkpoint->files, i)),
			moek_quote(name->text, name->bytes).text,
			layer != NULL ? layer->experts.format
				      : "no router in this layer",
			(unsigned long long)checkpoint->model.experts);
	if (moek_files_tensor(&checkpoint->files, i, &tensor, NULL) == MOEK_OK) {
		size_t length = strlen(rest);
		int is_bias = length > 4 && strcmp(rest + length - 4, "bias") == 0;

		layer->weight_bytes += tensor.bytes; /* a file's size bounds the sum */
		layer->read_bytes += moek_shard_reads(&layer->experts, part, &tensor,
		                                      is_bias);
	}
	checkpoint->uses[i] = MOEK_USE_EXPERTS;
	return MOEK_OK;
}

/** What begins with the names of shared experts ends where the next dot is. */
static void sweep_shared(struct moek_checkpoint *checkpoint, struct layer *layer,
                         size_t i)
{
	struct moek_tensor tensor;

	checkpoint->uses[i] = MOEK_USE_SHARED;
	if (moek_files_tensor(&checkpoint->files, i, &tensor, NULL) == MOEK_OK)
		layer->shared_bytes += tensor.bytes;
	snprintf(layer->shared, sizeof(layer->shared), "%s%s", layer->experts.prefix,
	         layer->experts.family->shared);
}

static int is_router(const struct moek_family *family, const char *rest)
{
	const char *const names[] = { family->router, family->correction,
		                      family->expert_scale, family->by_token };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i] != NULL && after(rest, names[i]) != NULL)
			return 1;
	return 0;
}

/** What tensor @i of the checkpoint is for. */
static int32_t sweep(struct moek_checkpoint *checkpoint, struct layer *const *by_number,
                     size_t i, struct moek_error *error_out)
{
	const struct moek_family *family = checkpoint->model.family;
	const char *rest = after(checkpoint->files.names[i].text, checkpoint->root);
	struct layer *layer;
	uint64_t number;

	checkpoint->uses[i] = MOEK_USE_OTHER;
	if (rest == NULL || (rest = read_digits(rest, &number)) == NULL ||
	    *rest++ != '.')
		return MOEK_OK;
	if (number >= checkpoint->model.layers) {
		checkpoint->uses[i] = MOEK_USE_BEYOND;
		return MOEK_OK;
	}
	layer = by_number[number];
	if (is_router(family, rest)) {
		checkpoint->uses[i] = MOEK_USE_ROUTER;
		return MOEK_OK;
	}
	if (layer != NULL && family->shared != NULL && after(rest, family->shared)) {
		sweep_shared(checkpoint, layer, i);
		return MOEK_OK;
	}
	rest = after(rest, family->experts);
	return rest == NULL ? MOEK_OK
	                    : sweep_expert(checkpoint, layer, rest, i, error_out);
}

static int32_t sweep_all(struct moek_checkpoint *checkpoint,
                         struct moek_error *error_out)
{
	struct layer **by_number = calloc(checkpoint->model.layers, sizeof(*by_number));
	int32_t status = MOEK_OK;

	checkpoint->uses = calloc(checkpoint->files.count + 1, 1);
	if (by_number == NULL || checkpoint->uses == NULL) {
		free(by_number);
		return moek_fail_memory(error_out, "uses of tensors");
	}
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

/* ---- the family ---- */

/** Do the tensors have the names that @family gives its router and its experts? */
static int is_named_as(const struct moek_checkpoint *checkpoint,
                       const struct moek_family *family)
{
	enum { LAYERS = 8 }; /* with experts: few models begin with more dense ones */
	struct moek_expert_layer layer;

	for (size_t r = 0; r < ROOTS; r++)
		for (uint32_t n = 0; n < LAYERS; n++) {
			begin_layer(checkpoint, roots[r], n, &layer);
			layer.family = family;
			if (has_router(&layer) && moek_codec_present(&layer))
				return 1;
		}
	return 0;
}

/** "mixtral, phimoe": families with names for these tensors; without, all there are. */
static struct moek_quoted list_families(const struct moek_checkpoint *checkpoint,
                                        int *are_alike_out)
{
	struct moek_quoted all = { "" }, alike = { "" };
	size_t count, all_used = 0, used = 0;
	const struct moek_family *families = moek_families(&count);

	for (size_t i = 0; i < count; i++) {
		if (families[i].refused != NULL)
			continue;
		if (all_used < sizeof(all.text))
			all_used += (size_t)snprintf(
				all.text + all_used, sizeof(all.text) - all_used,
				"%s%s", all_used == 0 ? "" : ", ", families[i].name);
		if (used < sizeof(alike.text) && is_named_as(checkpoint, &families[i]))
			used += (size_t)snprintf(
				alike.text + used, sizeof(alike.text) - used, "%s%s",
				used == 0 ? "" : ", ", families[i].name);
	}
	*are_alike_out = used > 0;
	return used > 0 ? alike : all;
}

/** The weight files are looked at only for a hint, and may not be there. */
static int32_t refuse_family(struct moek_checkpoint *checkpoint,
                             struct moek_error *error_out)
{
	struct moek_quoted families;
	int are_alike = 0;

	if (moek_files_open(&checkpoint->files, checkpoint->folder, NULL, NULL) !=
	    MOEK_OK)
		moek_files_end(&checkpoint->files);
	families = list_families(checkpoint, &are_alike);
	return moek_fail(
		error_out, MOEK_REFUSED, 0,
		"%s: model_type \"%.64s\" is not known to moek; %s: %s. A family "
		"file (README: Describe a model) says what it computes",
		checkpoint->config_path, moek_family_name(&checkpoint->config),
		are_alike ? "its tensors are named as those of" : "known are",
		families.text);
}

/** The family that a file describes: it must be of this model. */
static int32_t read_family(struct moek_checkpoint *checkpoint, const char *path,
                           struct moek_error *error_out)
{
	const char *name = moek_family_name(&checkpoint->config);
	int32_t status = moek_family_read(path, &checkpoint->family, error_out);

	if (status != MOEK_OK)
		return status;
	if (name != NULL && strcmp(checkpoint->family->name, name) != 0)
		return moek_fail(error_out, MOEK_BAD_CONFIG, 0,
		                 "%s: describes model_type %s, %s says %.64s", path,
		                 checkpoint->family->name, checkpoint->config_path,
		                 name);
	checkpoint->model.family = checkpoint->family;
	return MOEK_OK;
}

static int32_t find_family(struct moek_checkpoint *checkpoint,
                           struct moek_error *error_out)
{
	checkpoint->model.family = moek_family_find(&checkpoint->config);
	if (checkpoint->model.family != NULL)
		return MOEK_OK;
	if (moek_family_name(&checkpoint->config) == NULL)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: model_type is missing or not a string",
		                 checkpoint->config_path);
	return refuse_family(checkpoint, error_out);
}

/** All that needs no weight file. */
static int32_t read_model(struct moek_checkpoint *checkpoint, const char *family_file,
                          struct moek_error *error_out)
{
	const struct moek_codec *codec;
	int32_t status = check_adapter(checkpoint, error_out);

	if (status == MOEK_OK)
		status = read_config(checkpoint, error_out);
	if (status == MOEK_OK)
		status = family_file != NULL
		                 ? read_family(checkpoint, family_file, error_out)
		                 : find_family(checkpoint, error_out);
	if (status == MOEK_OK)
		status = moek_model_read(&checkpoint->config, checkpoint->model.family,
		                         &checkpoint->model, error_out);
	if (status == MOEK_OK)
		status = moek_codec_declared(checkpoint->config_path,
		                             quantization_of(checkpoint), &codec,
		                             error_out);
	return status;
}

/* ---- the public side ---- */

static int32_t open_all(struct moek_checkpoint *checkpoint, const char *path,
                        const struct moek_checkpoint_options *options,
                        struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	checkpoint->folder = strdup(path);
	checkpoint->config_path = moek_join(path, "config.json");
	if (checkpoint->folder == NULL || checkpoint->config_path == NULL)
		status = moek_fail_memory(error_out, "path");
	if (status == MOEK_OK)
		status = read_model(checkpoint, options->family_file, error_out);
	if (status == MOEK_OK)
		status = moek_files_open(&checkpoint->files, checkpoint->folder,
		                         moek_checkpoint_log(checkpoint), error_out);
	if (status == MOEK_OK)
		status = find_layers(checkpoint, error_out);
	return status;
}

int32_t moek_checkpoint_open_with(struct moek_registry *registry, const char *path,
                                  const struct moek_checkpoint_options *options,
                                  struct moek_checkpoint **checkpoint_out,
                                  struct moek_error *error_out)
{
	struct moek_checkpoint_options mine = { 0 };
	struct moek_checkpoint *checkpoint;
	int32_t status;

	if (path == NULL || checkpoint_out == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "checkpoint: path or checkpoint_out is NULL");
	if (options != NULL)
		memcpy(&mine, options,
		       options->struct_size < sizeof(mine) ? options->struct_size
		                                           : sizeof(mine));
	if (mine.shard >= (mine.shards != 0 ? mine.shards : 1))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_SHARDS,
		                 "checkpoint: shard %u of %u: shards count from 0",
		                 mine.shard, mine.shards);
	checkpoint = calloc(1, sizeof(*checkpoint));
	if (checkpoint == NULL)
		return moek_fail_memory(error_out, "checkpoint");
	checkpoint->registry = registry;
	checkpoint->shard = mine.shard;
	checkpoint->shards = mine.shards != 0 ? mine.shards : 1;
	status = open_all(checkpoint, path, &mine, error_out);
	if (status != MOEK_OK) {
		moek_checkpoint_close(checkpoint);
		return status;
	}
	*checkpoint_out = checkpoint;
	return MOEK_OK;
}

int32_t moek_checkpoint_open(struct moek_registry *registry, const char *path,
                             struct moek_checkpoint **checkpoint_out,
                             struct moek_error *error_out)
{
	return moek_checkpoint_open_with(registry, path, NULL, checkpoint_out,
	                                 error_out);
}

void moek_checkpoint_close(struct moek_checkpoint *checkpoint)
{
	if (checkpoint == NULL)
		return;
	for (size_t i = 0; i < checkpoint->layer_count; i++) {
		free(checkpoint->layers[i].correction.copy);
		free(checkpoint->layers[i].scale.copy);
	}
	free(checkpoint->layers);
	free(checkpoint->uses);
	moek_files_end(&checkpoint->files);
	moek_family_free(checkpoint->family);
	moek_json_free(checkpoint->config_root);
	free(checkpoint->config_text);
	free(checkpoint->config_path);
	free(checkpoint->folder);
	free(checkpoint);
}

uint64_t moek_checkpoint_tensors(const struct moek_checkpoint *checkpoint)
{
	return checkpoint->files.count;
}

const char *moek_checkpoint_tensor_at(const struct moek_checkpoint *checkpoint,
                                      uint64_t index, struct moek_tensor *tensor_out,
                                      uint32_t *use_out)
{
	if (index >= checkpoint->files.count ||
	    moek_files_tensor(&checkpoint->files, index, tensor_out, NULL) != MOEK_OK)
		return NULL;
	*use_out = checkpoint->uses[index];
	return checkpoint->files.names[index].text;
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
	info_out->read_bytes = layer->read_bytes;
	info_out->unrouted = layer->unrouted != NULL ? layer->unrouted : "";
	info_out->shared = layer->shared;
	info_out->shared_bytes = layer->shared_bytes;
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
	problem_out->activations = layer->activations;
	if (model->router.weight_on_input)
		problem_out->must_understand = MOEK_WEIGHT_ON_INPUT;
	problem_out->experts = model->experts;
	problem_out->experts_local = model->experts;
	problem_out->top_k = model->router.top_k;
	problem_out->hidden = model->hidden;
	problem_out->intermediate = layer->local;
	problem_out->gate_up = layer->gate_up;
	problem_out->down = layer->down;
	if (layer->shard > 0)
		problem_out->down.bias = 0;
	problem_out->input_type = model->type;
	problem_out->output_type = model->type;
	problem_out->activation = model->activation;
	problem_out->gated = !model->family->not_gated;
	problem_out->alpha = model->alpha;
	problem_out->beta = model->beta;
	problem_out->limit = model->limit;
	problem_out->shard = checkpoint->shard;
	problem_out->shards = checkpoint->shards;
	return MOEK_OK;
}

int32_t moek_checkpoint_router(const struct moek_checkpoint *checkpoint, uint64_t index,
                               struct moek_router *router_out)
{
	if (index >= checkpoint->layer_count)
		return MOEK_BAD_ARGUMENT;
	if (is_by_token(&checkpoint->layers[index]))
		return MOEK_REFUSED;
	*router_out = checkpoint->model.router;
	router_out->bias = checkpoint->layers[index].correction.data;
	router_out->expert_scale = checkpoint->layers[index].scale.data;
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
	source_out->scratch_bytes = moek_layer_scratch(layer);
	source_out->expert = source_expert;
	return MOEK_OK;
}

const char *moek_checkpoint_config(const struct moek_checkpoint *checkpoint)
{
	return checkpoint->config_text;
}

int32_t moek_checkpoint_number(const struct moek_checkpoint *checkpoint,
                               const char *path, double *number_out,
                               struct moek_error *error_out)
{
	const struct moek_json *value = moek_config_get(&checkpoint->config, path);
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
	const struct moek_json *value = moek_config_get(&checkpoint->config, path);
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
	uint64_t hidden = layer->experts.checkpoint->model.router_hidden;

	/* of narrowed rows the caller may have the wide ones */
	if (layer->unrouted != NULL && hidden == layer->experts.hidden)
		return moek_fail(error_out, MOEK_REFUSED, 0, "logits: %s: %s",
		                 layer->experts.name, layer->unrouted);
	if (input->columns != hidden)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "logits: input has %llu columns, expected hidden %llu",
		                 (unsigned long long)input->columns,
		                 (unsigned long long)hidden);
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
	moek_parallel_for(moek_checkpoint_workers(checkpoint), tasks, logits_of_tile,
	                  &job);
	return MOEK_OK;
}
