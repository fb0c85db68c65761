/* SPDX-License-Identifier: MIT */
/*
 * MXFP4 experts one by one: bytes of two codes, low nibble first, and an E8M0 scale for
 * each 32 columns. Quark, compressed-tensors and DeepSeek-V4 differ in names and in
 * where the config says what happens to activations.
 */
#include "config.h"

#include "core/codec.h"
#include "core/json.h"
#include "core/pattern.h"
#include "core/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <moek/formats.h>

struct form {
	const char *codes, *scales; /* suffixes */
	const char *codes_dtypes;
};

static const struct form quark = { ".weight", ".weight_scale", "U8" };
static const struct form packed = { ".weight_packed", ".weight_scale", "U8" };
static const struct form deepseek = { ".weight", ".scale", "I8 U8" };

static int is_here(struct moek_expert_layer *layer, const struct form *form)
{
	struct moek_tensor codes, scales;

	layer->fused = 0;
	return moek_family_has(layer->family, 0) &&
	       moek_layer_has(
		       layer,
		       moek_layer_name(layer, 0, MOEK_PART_GATE, form->codes).text,
		       &codes) &&
	       (strcmp(codes.dtype, "U8") == 0 || strcmp(codes.dtype, "I8") == 0) &&
	       moek_layer_has(
		       layer,
		       moek_layer_name(layer, 0, MOEK_PART_GATE, form->scales).text,
		       &scales);
}

/* ---- the tensors ---- */

struct tensors {
	struct moek_tensor codes, scales, bias, input;
};

static int32_t find_part(const struct moek_expert_layer *layer, const struct form *form,
                         uint64_t expert, enum moek_part part, struct tensors *out,
                         struct moek_error *error_out)
{
	const struct moek_scheme *scheme = part == MOEK_PART_DOWN ? &layer->down
	                                                          : &layer->gate_up;
	struct moek_rows_of of = moek_layer_rows(layer, part);
	const uint64_t codes[2] = { of.all, of.all_columns / 2 };
	const uint64_t scales[2] = { of.all, of.all_columns / MOEK_MX_BLOCK };
	int32_t status = moek_layer_need(
		layer, moek_layer_name(layer, expert, part, form->codes).text,
		form->codes_dtypes, 2, codes, &out->codes, error_out);

	if (status == MOEK_OK)
		status = moek_layer_need(
			layer, moek_layer_name(layer, expert, part, form->scales).text,
			"U8 F8_E8M0", 2, scales, &out->scales, error_out);
	if (status == MOEK_OK && scheme->bias)
		status = moek_layer_need(
			layer, moek_layer_name(layer, expert, part, ".bias").text,
			"BF16 F16 F32", 1, &of.all, &out->bias, error_out);
	if (status == MOEK_OK && scheme->input_scale)
		status = moek_layer_single(
			layer,
			moek_layer_name(layer, expert, part, ".input_scale").text,
			&out->input, error_out);
	return status;
}

static int32_t describe_part(const struct moek_expert_layer *layer, enum moek_part part,
                             struct moek_scheme *scheme_out,
                             struct moek_error *error_out)
{
	struct moek_rows_of of = moek_layer_rows(layer, part);
	struct moek_tensor tensor;

	if (of.all_columns % MOEK_MX_BLOCK != 0)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s%s: %s %llu is no multiple of %d, the columns of a block",
			layer->prefix, layer->family->experts,
			part == MOEK_PART_DOWN ? "intermediate" : "hidden",
			(unsigned long long)of.all_columns, MOEK_MX_BLOCK);
	scheme_out->weight = MOEK_MXFP4;
	scheme_out->scale = MOEK_E8M0;
	scheme_out->group_size = MOEK_MX_BLOCK;
	scheme_out->input_scale = layer->activations == MOEK_A8_FP8_STATIC;
	scheme_out->bias = (uint32_t)moek_layer_has(
		layer, moek_layer_name(layer, 0, part, ".bias").text, &tensor);
	return MOEK_OK;
}

static int32_t describe(struct moek_expert_layer *layer, const char *who,
                        struct moek_error *error_out)
{
	int32_t status = describe_part(layer, MOEK_PART_GATE, &layer->gate_up,
	                               error_out);

	if (status == MOEK_OK)
		status = describe_part(layer, MOEK_PART_DOWN, &layer->down, error_out);
	snprintf(layer->format, sizeof(layer->format), "%s mxfp4, activations %s", who,
	         moek_activations_name(layer->activations));
	return status;
}

/** It divides; and gate and up, which multiply the same input, have one between them.
 */
static int32_t check_input_scale(const struct moek_expert_layer *layer, uint64_t expert,
                                 enum moek_part part, const struct moek_tensor *scale,
                                 struct moek_error *error_out)
{
	float found = moek_scalar(scale->data, scale->type, 0), gate = found;
	char expected[64] = "a number above 0";
	struct moek_tensor other;

	if (part == MOEK_PART_UP) {
		int32_t status = moek_layer_single(
			layer,
			moek_layer_name(layer, expert, MOEK_PART_GATE, ".input_scale")
				.text,
			&other, error_out);

		if (status != MOEK_OK)
			return status;
		gate = moek_scalar(other.data, other.type, 0);
		snprintf(expected, sizeof(expected),
		         "%g, as gate has for the same input", (double)gate);
	}
	if (found > 0 && isfinite(found) && found == gate)
		return MOEK_OK;
	return moek_fail(error_out, MOEK_BAD_FILE, 0,
	                 "%s: tensor %s: found %g, expected %s", scale->file,
	                 moek_layer_name(layer, expert, part, ".input_scale").text,
	                 (double)found, expected);
}

static int32_t matrix(const struct moek_expert_layer *layer, const struct form *form,
                      uint64_t expert, enum moek_part part,
                      struct moek_scratch *scratch, struct moek_matrix *matrix_out,
                      struct moek_error *error_out)
{
	const struct moek_scheme *scheme = part == MOEK_PART_DOWN ? &layer->down
	                                                          : &layer->gate_up;
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t row_bytes = of.columns / 2, groups = of.columns / MOEK_MX_BLOCK;
	struct tensors from;
	int32_t status = find_part(layer, form, expert, part, &from, error_out);

	if (status != MOEK_OK || scratch == NULL)
		return status;
	moek_matrix_begin(matrix_out, scheme, &of);
	matrix_out->codes = moek_view_rows(
		scratch, (const uint8_t *)from.codes.data + of.first * row_bytes,
		of.rows, row_bytes, row_bytes, 1);
	matrix_out->scales = moek_view_rows(
		scratch, (const uint8_t *)from.scales.data + of.first * groups, of.rows,
		groups, groups, 1);
	if (scheme->bias)
		matrix_out->bias = moek_view_floats(
			scratch, from.bias.data, from.bias.type, of.first, 1, of.rows);
	if (scheme->input_scale) {
		matrix_out->input_scale = moek_scalar(from.input.data, from.input.type,
		                                      0);
		status = check_input_scale(layer, expert, part, &from.input, error_out);
		if (status != MOEK_OK)
			return status;
	}
	if (matrix_out->codes == NULL || matrix_out->scales == NULL ||
	    (scheme->bias && matrix_out->bias == NULL))
		return moek_fail_memory(error_out, "blocks of an expert");
	return MOEK_OK;
}

/* ---- Quark ---- */

static int32_t refuse(const struct moek_expert_layer *layer, uint32_t rule,
                      const char *what, const struct moek_json *found,
                      const char *expected, struct moek_error *error_out)
{
	const char *text = moek_json_string(found, NULL);

	return moek_fail(error_out, MOEK_REFUSED, rule,
	                 "%s: quantization_config: %s is %.64s, read is: %s",
	                 layer->config_path, what,
	                 text != NULL ? text : "missing or not a word", expected);
}

static int is_word(const struct moek_json *object, const char *key, const char *word)
{
	const char *found = moek_json_string(moek_json_get(object, key), NULL);

	return found != NULL && strcmp(found, word) == 0;
}

/** What layer_quant_config says of the experts, by the first glob that fits; or else
 *  global_quant_config. */
static const struct moek_json *quark_config(const struct moek_expert_layer *layer,
                                            const struct moek_json *quantization)
{
	const struct moek_json *special = moek_json_get(quantization,
	                                                "layer_quant_config");
	struct moek_tensor_name module = moek_layer_name(layer, 0, MOEK_PART_GATE, "");
	const struct moek_json *value;
	void *cursor = NULL;
	const char *key;
	size_t bytes;

	while ((value = moek_json_next(special, &cursor, &key, &bytes)) != NULL)
		if (moek_glob_fits(key, module.text))
			return value;
	return moek_json_get(quantization, "global_quant_config");
}

static int32_t quark_weight(const struct moek_expert_layer *layer,
                            const struct moek_json *weight,
                            struct moek_error *error_out)
{
	int64_t group = 0;

	if (!is_word(weight, "dtype", "fp4"))
		return refuse(layer, MOEK_RULE_WEIGHT, "weight.dtype",
		              moek_json_get(weight, "dtype"), "fp4", error_out);
	if (!is_word(weight, "scale_format", "e8m0"))
		return refuse(layer, MOEK_RULE_SCALE, "weight.scale_format",
		              moek_json_get(weight, "scale_format"), "e8m0", error_out);
	if (!moek_json_integer(moek_json_get(weight, "group_size"), &group) ||
	    group != MOEK_MX_BLOCK)
		return moek_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_GROUP_SIZE,
			"%s: quantization_config: weight.group_size is %lld, read "
			"is: 32",
			layer->config_path, (long long)group);
	return MOEK_OK;
}

static int32_t quark_inputs(const struct moek_json *inputs,
                            struct moek_expert_layer *layer,
                            struct moek_error *error_out)
{
	int is_dynamic = 0;

	layer->activations = MOEK_A16;
	if (moek_json_kind(inputs) == MOEK_JSON_NULL)
		return MOEK_OK;
	moek_json_bool(moek_json_get(inputs, "is_dynamic"), &is_dynamic);
	if (is_word(inputs, "dtype", "fp8_e4m3") && !is_dynamic) {
		layer->activations = MOEK_A8_FP8_STATIC;
		return MOEK_OK;
	}
	if (!is_word(inputs, "dtype", "fp4") || !is_dynamic)
		return refuse(layer, MOEK_RULE_ACTIVATIONS, "input_tensors.dtype",
		              moek_json_get(inputs, "dtype"),
		              "fp4 and dynamic, or fp8_e4m3 and static", error_out);
	if (!is_word(inputs, "scale_calculation_mode", "even"))
		return refuse(layer, MOEK_RULE_ACTIVATIONS,
		              "input_tensors.scale_calculation_mode",
		              moek_json_get(inputs, "scale_calculation_mode"), "even",
		              error_out);
	layer->activations = MOEK_A4_MXFP4_EVEN;
	return MOEK_OK;
}

static int quark_present(struct moek_expert_layer *layer)
{
	return is_here(layer, &quark);
}

static int32_t quark_describe(struct moek_expert_layer *layer,
                              const struct moek_json *quantization,
                              struct moek_error *error_out)
{
	const struct moek_json *config = quark_config(layer, quantization);
	int32_t status = quark_weight(layer, moek_json_get(config, "weight"),
	                              error_out);

	if (status == MOEK_OK)
		status = quark_inputs(moek_json_get(config, "input_tensors"), layer,
		                      error_out);
	if (status == MOEK_OK &&
	    moek_json_kind(moek_json_get(config, "output_tensors")) != MOEK_JSON_NULL)
		status = moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_ACTIVATIONS,
		                   "%s: quantization_config: output_tensors are not "
		                   "read, only null is",
		                   layer->config_path);
	return status == MOEK_OK ? describe(layer, "quark", error_out) : status;
}

static int32_t quark_matrix(const struct moek_expert_layer *layer, uint64_t expert,
                            enum moek_part part, struct moek_scratch *scratch,
                            struct moek_matrix *matrix_out,
                            struct moek_error *error_out)
{
	return matrix(layer, &quark, expert, part, scratch, matrix_out, error_out);
}

static const char *const quark_methods[] = { "quark", NULL };
static const char *const quark_suffixes[] = { ".weight", ".weight_scale",
	                                      ".input_scale", ".bias", NULL };

const struct moek_codec moek_codec_quark = {
	.name = "quark mxfp4",
	.methods = quark_methods,
	.suffixes = quark_suffixes,
	.present = quark_present,
	.describe = quark_describe,
	.matrix = quark_matrix,
	.slices = MOEK_SLICES_ROWS | MOEK_IN_PLACE,
};

/* ---- compressed-tensors mxfp4-pack-quantized ---- */

static int packed_present(struct moek_expert_layer *layer)
{
	return is_here(layer, &packed);
}

/** A group of config_groups: its arguments, or a list of targets under the name of a
 *  preset. 1: it is of MXFP4, and *activations_out is what it does to inputs;
 *  UNREAD_INPUTS: something else. */
#define UNREAD_INPUTS UINT32_MAX

static int is_mxfp4(const struct moek_json *arguments)
{
	int64_t bits = 0, size = 0;

	moek_json_integer(moek_json_get(arguments, "num_bits"), &bits);
	moek_json_integer(moek_json_get(arguments, "group_size"), &size);
	return is_word(arguments, "type", "float") && bits == 4 &&
	       size == MOEK_MX_BLOCK;
}

static int packed_group(const char *key, const struct moek_json *group,
                        uint32_t *activations_out)
{
	const struct moek_json *inputs = moek_json_get(group, "input_activations");
	int is_dynamic = 0;

	*activations_out = UNREAD_INPUTS;
	if (moek_json_kind(group) == MOEK_JSON_ARRAY) {
		*activations_out = strcmp(key, "MXFP4") == 0 ? MOEK_A4_MXFP4_EVEN
		                                             : MOEK_A16;
		return strcmp(key, "MXFP4") == 0 || strcmp(key, "MXFP4A16") == 0;
	}
	moek_json_bool(moek_json_get(inputs, "dynamic"), &is_dynamic);
	if (moek_json_kind(inputs) == MOEK_JSON_NULL)
		*activations_out = MOEK_A16;
	else if (is_mxfp4(inputs) && is_dynamic)
		*activations_out = MOEK_A4_MXFP4_EVEN; /* the library knows no other */
	return is_mxfp4(moek_json_get(group, "weights"));
}

static int32_t packed_refuse(const struct moek_expert_layer *layer, uint32_t rule,
                             const char *what, struct moek_error *error_out)
{
	return moek_fail(error_out, MOEK_REFUSED, rule, "%s: quantization_config: %s",
	                 layer->config_path, what);
}

/** Groups of other weights are for other modules; which one targets the experts is said
 *  in patterns, so all of MXFP4 must agree. */
static int32_t packed_config(struct moek_expert_layer *layer,
                             const struct moek_json *quantization,
                             struct moek_error *error_out)
{
	const struct moek_json *groups = moek_json_get(quantization, "config_groups");
	const struct moek_json *group;
	void *cursor = NULL;
	const char *key;
	size_t bytes, count = 0;
	uint32_t activations;

	while ((group = moek_json_next(groups, &cursor, &key, &bytes)) != NULL) {
		if (!packed_group(key, group, &activations))
			continue;
		if (count++ != 0 && layer->activations != activations)
			return packed_refuse(layer, MOEK_RULE_ACTIVATIONS,
			                     "config_groups of MXFP4 differ in "
			                     "input_activations",
			                     error_out);
		layer->activations = activations;
	}
	if (count == 0)
		return packed_refuse(
			layer, MOEK_RULE_WEIGHT,
			"no config_group has weights of type float, "
			"num_bits 4 and group_size 32, as the experts have",
			error_out);
	if (layer->activations == UNREAD_INPUTS)
		return packed_refuse(
			layer, MOEK_RULE_ACTIVATIONS,
			"input_activations are not read: read are none, or "
			"dynamic, of type float, num_bits 4 and group_size "
			"32",
			error_out);
	return MOEK_OK;
}

static int32_t packed_describe(struct moek_expert_layer *layer,
                               const struct moek_json *quantization,
                               struct moek_error *error_out)
{
	const struct moek_json *format = moek_json_get(quantization, "format");
	int32_t status;

	if (moek_json_kind(format) != MOEK_JSON_NULL &&
	    !is_word(quantization, "format", "mxfp4-pack-quantized") &&
	    !is_word(quantization, "format", "mixed-precision"))
		return refuse(layer, MOEK_RULE_WEIGHT, "format", format,
		              "mxfp4-pack-quantized of what is stored as bytes",
		              error_out);
	status = packed_config(layer, quantization, error_out);
	return status == MOEK_OK ? describe(layer, "compressed-tensors", error_out)
	                         : status;
}

static int32_t packed_matrix(const struct moek_expert_layer *layer, uint64_t expert,
                             enum moek_part part, struct moek_scratch *scratch,
                             struct moek_matrix *matrix_out,
                             struct moek_error *error_out)
{
	return matrix(layer, &packed, expert, part, scratch, matrix_out, error_out);
}

static const char *const packed_methods[] = { "compressed-tensors", NULL };
static const char *const packed_suffixes[] = { ".weight_packed", ".weight_scale",
	                                       ".bias", NULL };

const struct moek_codec moek_codec_packed_fp4 = {
	.name = "compressed-tensors mxfp4",
	.methods = packed_methods,
	.suffixes = packed_suffixes,
	.present = packed_present,
	.describe = packed_describe,
	.matrix = packed_matrix,
	.slices = MOEK_SLICES_ROWS | MOEK_IN_PLACE,
};

/* ---- DeepSeek-V4 ---- */

static int deepseek_present(struct moek_expert_layer *layer)
{
	return is_here(layer, &deepseek);
}

static int32_t deepseek_describe(struct moek_expert_layer *layer,
                                 const struct moek_json *quantization,
                                 struct moek_error *error_out)
{
	(void)quantization; /* speaks of the fp8 of all other tensors */
	layer->activations = MOEK_A16;
	return describe(layer, "deepseek", error_out);
}

static int32_t deepseek_matrix(const struct moek_expert_layer *layer, uint64_t expert,
                               enum moek_part part, struct moek_scratch *scratch,
                               struct moek_matrix *matrix_out,
                               struct moek_error *error_out)
{
	return matrix(layer, &deepseek, expert, part, scratch, matrix_out, error_out);
}

static const char *const deepseek_methods[] = { "fp8", NULL };
static const char *const deepseek_suffixes[] = { ".weight", ".scale", NULL };

const struct moek_codec moek_codec_deepseek_fp4 = {
	.name = "deepseek mxfp4",
	.methods = deepseek_methods,
	.suffixes = deepseek_suffixes,
	.present = deepseek_present,
	.describe = deepseek_describe,
	.matrix = deepseek_matrix,
	.slices = MOEK_SLICES_ROWS | MOEK_IN_PLACE,
};
