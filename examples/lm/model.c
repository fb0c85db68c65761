/* SPDX-License-Identifier: MIT */
/* config.json and the tensors that are not experts. */
#include "lm.h"

#include <moek/formats.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURN 6.283185307179586
#define MOST (1 << 24) /* of any size in config.json: products fit 64 bits */

/* ---- config.json ---- */

/* The value, or @otherwise when config.json has none. */
static double number(const struct lm_model *model, const char *key, double otherwise)
{
	struct moek_error error;

	lm_must(moek_checkpoint_number(model->checkpoint, key, &otherwise, &error),
	        &error);
	return otherwise;
}

static const char *word(const struct lm_model *model, const char *key,
                        const char *otherwise)
{
	struct moek_error error;

	lm_must(moek_checkpoint_word(model->checkpoint, key, &otherwise, &error),
	        &error);
	return otherwise;
}

static size_t size(const struct lm_model *model, const char *key, double otherwise)
{
	double value = number(model, key, otherwise);

	if (isnan(value))
		lm_stop(LM_BAD_INPUT, "%s/config.json: %s is missing", model->path,
		        key);
	if (!(value >= 1 && value <= MOST) || value != floor(value))
		lm_stop(LM_BAD_INPUT, "%s/config.json: %s is %g, must be 1 to %d",
		        model->path, key, value, MOST);
	return (size_t)value;
}

static void read_sizes(struct lm_model *model)
{
	model->layers = size(model, "num_hidden_layers", NAN);
	model->hidden = size(model, "hidden_size", NAN);
	model->heads = size(model, "num_attention_heads", NAN);
	model->kv_heads = size(model, "num_key_value_heads", (double)model->heads);
	model->head_size = size(model, "head_dim",
	                        (double)(model->hidden / model->heads));
	model->vocabulary = size(model, "vocab_size", NAN);
	model->context = size(model, "max_position_embeddings", NAN);
	model->epsilon = (float)number(model, "rms_norm_eps", NAN);
	if (!(model->epsilon >= 0))
		lm_stop(LM_BAD_INPUT, "%s/config.json: rms_norm_eps is missing",
		        model->path);
	if (model->heads % model->kv_heads != 0)
		lm_stop(LM_BAD_INPUT,
		        "%s/config.json: num_attention_heads %zu, must be a multiple "
		        "of "
		        "num_key_value_heads %zu",
		        model->path, model->heads, model->kv_heads);
	if (model->head_size % 2 != 0)
		lm_stop(LM_BAD_INPUT, "%s/config.json: head_dim %zu, must be even",
		        model->path, model->head_size);
}

/* Newer files have rope_parameters; older ones rope_theta at the root, rope_scaling. */
static double rope_number(const struct lm_model *model, const char *key,
                          double otherwise)
{
	char path[64];

	snprintf(path, sizeof(path), "rope_scaling.%s", key);
	otherwise = number(model, path, otherwise);
	snprintf(path, sizeof(path), "rope_parameters.%s", key);
	return number(model, path, otherwise);
}

static const char *rope_type(const struct lm_model *model)
{
	const char *type = word(model, "rope_scaling.type", "default");

	type = word(model, "rope_scaling.rope_type", type);
	return word(model, "rope_parameters.rope_type", type);
}

/* The pair whose angle makes @turns turns over the original context. */
static double pair_of(double turns, double theta, double original, size_t head_size)
{
	return (double)head_size * log(original / (turns * TURN)) / (2 * log(theta));
}

/* YaRN: slow pairs are stretched by the factor, fast ones are left, a ramp between. */
static void stretch(struct lm_model *model, double theta, double factor)
{
	struct lm_rotary *rotary = &model->rotary;
	double original = rope_number(model, "original_max_position_embeddings",
	                              (double)model->context);
	double low = pair_of(rope_number(model, "beta_fast", 32), theta, original,
	                     model->head_size);
	double high = pair_of(rope_number(model, "beta_slow", 1), theta, original,
	                      model->head_size);
	double attention = factor > 1 ? 0.1 * log(factor) + 1 : 1;

	if (rope_number(model, "truncate", 1) != 0) {
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, (double)model->head_size - 1);
	if (high <= low)
		high = low + 0.001;
	for (size_t i = 0; i < rotary->half; i++) {
		double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);

		rotary->inverse[i] *= (float)(ramp / factor + 1 - ramp);
	}
	rotary->scale = (float)rope_number(model, "attention_factor", attention);
}

static void read_rotary(struct lm_model *model)
{
	struct lm_rotary *rotary = &model->rotary;
	double theta = rope_number(model, "rope_theta",
	                           number(model, "rope_theta", NAN));
	double factor = rope_number(model, "factor", 1);
	const char *type = rope_type(model);

	if (!(theta > 1))
		lm_stop(LM_BAD_INPUT,
		        "%s/config.json: rope_theta is missing or not over 1",
		        model->path);
	if (!(factor > 0))
		lm_stop(LM_BAD_INPUT, "%s/config.json: rope factor %g, must be over 0",
		        model->path, factor);
	rotary->half = model->head_size / 2;
	rotary->inverse = lm_allocate(rotary->half, sizeof(float));
	rotary->scale = 1;
	for (size_t i = 0; i < rotary->half; i++)
		rotary->inverse[i] = (float)pow(
			theta, -2.0 * (double)i / (double)model->head_size);
	if (strcmp(type, "yarn") == 0)
		stretch(model, theta, factor);
	else if (strcmp(type, "linear") == 0)
		for (size_t i = 0; i < rotary->half; i++)
			rotary->inverse[i] /= (float)factor;
	else if (strcmp(type, "default") != 0)
		lm_stop(LM_BAD_INPUT,
		        "%s/config.json: rope_type %s, must be default, linear or yarn",
		        model->path, type);
}

/* ---- tensors ---- */

static void check_shape(const struct moek_tensor *found, const char *name, size_t rows,
                        size_t columns)
{
	uint32_t rank = columns > 0 ? 2 : 1;
	char shape[8 * 24] = "";
	int at = 0;

	if (found->rank == rank && found->shape[0] == rows &&
	    (rank == 1 || found->shape[1] == columns))
		return;
	for (uint32_t i = 0; i < found->rank; i++)
		at += snprintf(shape + at, sizeof(shape) - (size_t)at, "%s%llu",
		               i > 0 ? ", " : "", (unsigned long long)found->shape[i]);
	if (rank == 1)
		lm_stop(LM_BAD_INPUT, "%s: %s is [%s], by config.json [%zu]",
		        found->file, name, shape, rows);
	lm_stop(LM_BAD_INPUT, "%s: %s is [%s], by config.json [%zu, %zu]", found->file,
	        name, shape, rows, columns);
}

/* As fp32, malloc'ed. @columns 0: a vector of @rows. */
static float *tensor(const struct lm_model *model, const char *name, size_t rows,
                     size_t columns)
{
	size_t count = rows * (columns > 0 ? columns : 1);
	struct moek_tensor found = { .struct_size = MOEK_INIT(TENSOR) };
	struct moek_error error;
	const char *data;
	float *values;

	lm_must(moek_checkpoint_tensor(model->checkpoint, name, &found, &error),
	        &error);
	check_shape(&found, name, rows, columns);
	if (found.type != MOEK_F32 && found.type != MOEK_BF16 && found.type != MOEK_F16)
		lm_stop(LM_BAD_INPUT, "%s: %s is %s, must be F32, BF16 or F16",
		        found.file, name, found.dtype);
	values = lm_allocate(count, sizeof(float));
	data = found.data; /* at any address */
	for (size_t i = 0; i < count; i++) {
		uint16_t bits;

		if (found.type == MOEK_F32) {
			memcpy(&values[i], data + i * sizeof(float), sizeof(float));
			continue;
		}
		memcpy(&bits, data + i * sizeof(bits), sizeof(bits));
		values[i] = found.type == MOEK_BF16 ? moek_bf16_to_f32(bits)
		                                    : moek_f16_to_f32(bits);
	}
	return values;
}

static float *layer_tensor(const struct lm_model *model, size_t layer, const char *name,
                           size_t rows)
{
	char path[128];

	snprintf(path, sizeof(path), "model.layers.%zu.%s", layer, name);
	return tensor(model, path, rows, 0);
}

/* model.layers.N.self_attn.NAME: .weight, and .bias where the model has them. */
static void read_linear(const struct lm_model *model, size_t layer, const char *name,
                        struct lm_linear *linear)
{
	int has_bias = number(model, "attention_bias", 0) != 0;
	size_t rows = linear->rows, columns = linear->columns;
	char path[128];
	float *weight, *bias = NULL;

	snprintf(path, sizeof(path), "model.layers.%zu.self_attn.%s.weight", layer,
	         name);
	weight = tensor(model, path, rows, columns);
	snprintf(path, sizeof(path), "model.layers.%zu.self_attn.%s.bias", layer, name);
	if (has_bias)
		bias = tensor(model, path, rows, 0);
	lm_linear_make(linear, weight, bias, rows, columns);
	free(weight);
}

static void read_attention(const struct lm_model *model, size_t layer,
                           struct lm_attention *attention)
{
	size_t wide = model->heads * model->head_size;
	size_t narrow = model->kv_heads * model->head_size;

	attention->q = (struct lm_linear){ .rows = wide, .columns = model->hidden };
	attention->k = (struct lm_linear){ .rows = narrow, .columns = model->hidden };
	attention->v = attention->k;
	attention->o = (struct lm_linear){ .rows = model->hidden, .columns = wide };
	read_linear(model, layer, "q_proj", &attention->q);
	read_linear(model, layer, "k_proj", &attention->k);
	read_linear(model, layer, "v_proj", &attention->v);
	read_linear(model, layer, "o_proj", &attention->o);
}

/* ---- architectures ---- */

static void read_qwen3_moe(const struct lm_model *model, size_t layer,
                           struct lm_attention *attention)
{
	if (number(model, "use_sliding_window", 0) != 0)
		lm_stop(LM_BAD_INPUT,
		        "%s/config.json: use_sliding_window is not known for qwen3_moe",
		        model->path);
	attention->q_norm = layer_tensor(model, layer, "self_attn.q_norm.weight",
	                                 model->head_size);
	attention->k_norm = layer_tensor(model, layer, "self_attn.k_norm.weight",
	                                 model->head_size);
}

static void read_gpt_oss(const struct lm_model *model, size_t layer,
                         struct lm_attention *attention)
{
	char key[64];
	const char *type;

	attention->sinks = layer_tensor(model, layer, "self_attn.sinks", model->heads);
	snprintf(key, sizeof(key), "layer_types.%zu", layer);
	type = word(model, key,
	            layer % 2 == 0 ? "sliding_attention" : "full_attention");
	if (strcmp(type, "sliding_attention") == 0)
		attention->window = size(model, "sliding_window", NAN);
	else if (strcmp(type, "full_attention") != 0)
		lm_stop(LM_BAD_INPUT,
		        "%s/config.json: %s is %s, must be sliding_attention or "
		        "full_attention",
		        model->path, key, type);
}

static const struct architecture {
	const char *name; /* model_type */
	/** What its attention has beyond the projections. */
	void (*read)(const struct lm_model *model, size_t layer,
	             struct lm_attention *attention);
} architectures[] = {
	{ "qwen3_moe", read_qwen3_moe },
	{ "gpt_oss", read_gpt_oss },
};

static const struct architecture *find_architecture(const struct lm_model *model)
{
	const char *type = word(model, "model_type", "(none)");

	for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++)
		if (strcmp(architectures[i].name, type) == 0)
			return &architectures[i];
	lm_stop(LM_BAD_INPUT,
	        "%s/config.json: model_type %s, must be qwen3_moe or gpt_oss",
	        model->path, type);
}

/* Layers without experts (mlp_only_layers) would want a dense part, which is not here.
 */
static void check_layers(const struct lm_model *model)
{
	uint64_t count = moek_checkpoint_layers(model->checkpoint);

	for (uint64_t i = 0; i < model->layers; i++) {
		struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };

		if (i < count)
			moek_checkpoint_layer(model->checkpoint, i, &info);
		if (i >= count || info.number != i)
			lm_stop(LM_BAD_INPUT,
			        "%s: layer %llu has no experts: moek-lm runs models "
			        "whose "
			        "layers all have",
			        model->path, (unsigned long long)i);
	}
}

static void read_ends(struct lm_model *model)
{
	float *head;

	model->embedding = tensor(model, "model.embed_tokens.weight", model->vocabulary,
	                          model->hidden);
	model->norm = tensor(model, "model.norm.weight", model->hidden, 0);
	if (number(model, "tie_word_embeddings", 0) != 0) {
		lm_linear_make(&model->head, model->embedding, NULL, model->vocabulary,
		               model->hidden);
		return;
	}
	head = tensor(model, "lm_head.weight", model->vocabulary, model->hidden);
	lm_linear_make(&model->head, head, NULL, model->vocabulary, model->hidden);
	free(head);
}

struct lm_model *lm_model_open(struct moek_registry *registry, const char *path)
{
	struct lm_model *model = lm_allocate(1, sizeof(*model));
	const struct architecture *architecture;
	struct moek_error error;

	model->path = path;
	model->workers = moek_registry_workers(registry);
	if (moek_checkpoint_open(registry, path, &model->checkpoint, &error) != MOEK_OK)
		lm_stop(LM_BAD_INPUT, "%s", error.text);
	architecture = find_architecture(model);
	read_sizes(model);
	read_rotary(model);
	check_layers(model);
	read_ends(model);
	model->blocks = lm_allocate(model->layers, sizeof(struct lm_block));
	for (size_t i = 0; i < model->layers; i++) {
		struct lm_block *block = &model->blocks[i];

		block->attention_norm = layer_tensor(model, i, "input_layernorm.weight",
		                                     model->hidden);
		block->experts_norm = layer_tensor(
			model, i, "post_attention_layernorm.weight", model->hidden);
		read_attention(model, i, &block->attention);
		architecture->read(model, i, &block->attention);
	}
	return model;
}

void lm_model_close(struct lm_model *model)
{
	for (size_t i = 0; i < model->layers; i++) {
		struct lm_attention *attention = &model->blocks[i].attention;

		lm_linear_free(&attention->q);
		lm_linear_free(&attention->k);
		lm_linear_free(&attention->v);
		lm_linear_free(&attention->o);
		free(attention->q_norm);
		free(attention->k_norm);
		free(attention->sinks);
		free(model->blocks[i].attention_norm);
		free(model->blocks[i].experts_norm);
	}
	free(model->blocks);
	free(model->rotary.inverse);
	free(model->embedding);
	free(model->norm);
	lm_linear_free(&model->head);
	moek_checkpoint_close(model->checkpoint);
	free(model);
}
