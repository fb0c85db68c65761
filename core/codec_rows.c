/* SPDX-License-Identifier: MIT */
/* Experts as plain rows of bf16, fp16 or fp32: one by one, or stacked, also transposed.
 */
#include "config.h"

#include "core/codec.h"
#include "core/status.h"

#include <stdio.h>
#include <string.h>

#define FLOATS "BF16 F16 F32"

static const char *weight_suffix(const struct moek_expert_layer *layer)
{
	return layer->fused ? layer->family->fused_suffix : ".weight";
}

static const char *bias_suffix(const struct moek_expert_layer *layer)
{
	return layer->fused ? "_bias" : ".bias";
}

static int is_float(const struct moek_tensor *tensor)
{
	return tensor->type == MOEK_BF16 || tensor->type == MOEK_F16 ||
	       tensor->type == MOEK_F32;
}

static int is_here(struct moek_expert_layer *layer, uint32_t fused)
{
	struct moek_tensor_name name;
	struct moek_tensor tensor;

	layer->fused = fused;
	name = moek_layer_name(layer, 0, MOEK_PART_GATE, weight_suffix(layer));
	return moek_layer_has(layer, name.text, &tensor) && is_float(&tensor);
}

static int present(struct moek_expert_layer *layer)
{
	if (moek_family_has(layer->family, 1) && is_here(layer, 1))
		return 1;
	layer->fused = 0;
	return moek_family_has(layer->family, 0) && is_here(layer, 0);
}

static int is_transposed(const struct moek_expert_layer *layer, enum moek_part part)
{
	uint32_t bit = part == MOEK_PART_DOWN ? MOEK_TRANSPOSED_DOWN
	                                      : MOEK_TRANSPOSED_GATE_UP;

	return layer->fused && (layer->family->fused_transposed & bit) != 0;
}

static int32_t find_weight(const struct moek_expert_layer *layer, uint64_t expert,
                           enum moek_part part, const char *dtypes,
                           struct moek_tensor *tensor_out, struct moek_error *error_out)
{
	struct moek_rows_of of = moek_layer_rows(layer, part);
	struct moek_tensor_name name = moek_layer_name(layer, expert, part,
	                                               weight_suffix(layer));
	int transposed = is_transposed(layer, part);
	const uint64_t plain[2] = { of.all, of.all_columns };
	const uint64_t stacked[3] = { layer->experts,
		                      transposed ? of.all_columns : of.all,
		                      transposed ? of.all : of.all_columns };
	/* both were checked against the config's limits: no overflow */
	const uint64_t flat[2] = { layer->experts * stacked[1], stacked[2] };

	if (!layer->fused)
		return moek_layer_need(layer, name.text, dtypes, 2, plain, tensor_out,
		                       error_out);
	if (layer->family->fused_flat)
		return moek_layer_need(layer, name.text, dtypes, 2, flat, tensor_out,
		                       error_out);
	return moek_layer_need(layer, name.text, dtypes, 3, stacked, tensor_out,
	                       error_out);
}

/** The scheme of a projection, from its first tensors. */
static int32_t describe_part(const struct moek_expert_layer *layer, enum moek_part part,
                             struct moek_scheme *scheme_out,
                             struct moek_error *error_out)
{
	struct moek_tensor_name bias = moek_layer_name(layer, 0, part,
	                                               bias_suffix(layer));
	struct moek_tensor tensor;
	int32_t status = find_weight(layer, 0, part, FLOATS, &tensor, error_out);

	if (status != MOEK_OK)
		return status;
	scheme_out->weight = tensor.type;
	scheme_out->bias = (uint32_t)moek_layer_has(layer, bias.text, &tensor);
	return MOEK_OK;
}

static int32_t describe(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out)
{
	int32_t status = describe_part(layer, MOEK_PART_GATE, &layer->gate_up,
	                               error_out);

	(void)quantization;
	if (status == MOEK_OK)
		status = describe_part(layer, MOEK_PART_DOWN, &layer->down, error_out);
	if (status == MOEK_OK)
		snprintf(layer->format, sizeof(layer->format), "%s rows",
		         moek_type_name(layer->gate_up.weight));
	return status;
}

/** Rows out of [columns][all rows]. */
static const void *turn_rows(struct moek_scratch *scratch, const uint8_t *data,
                             const struct moek_rows_of *of, uint64_t scalar)
{
	uint8_t *to = moek_scratch_take(scratch, of->rows * of->columns * scalar,
	                                scalar);

	for (uint64_t c = 0; c < of->columns && to != NULL; c++)
		for (uint64_t r = 0; r < of->rows; r++)
			memcpy(to + (r * of->columns + c) * scalar,
			       data + ((of->first_column + c) * of->all + of->first +
			               r * of->step) *
			                       scalar,
			       scalar);
	return to;
}

static const void *take_rows(const struct moek_expert_layer *layer, uint64_t expert,
                             enum moek_part part, const struct moek_rows_of *of,
                             const struct moek_tensor *tensor,
                             struct moek_scratch *scratch)
{
	uint64_t scalar = moek_scalar_bytes(tensor->type);
	uint64_t row_bytes = of->all_columns * scalar;
	const uint8_t *data = tensor->data;

	if (layer->fused)
		data += expert * of->all * row_bytes;
	if (is_transposed(layer, part))
		return turn_rows(scratch, data, of, scalar);
	return moek_view_rows(
		scratch, data + of->first * row_bytes + of->first_column * scalar,
		of->rows, of->columns * scalar, of->step * row_bytes, scalar);
}

static int32_t find_bias(const struct moek_expert_layer *layer, uint64_t expert,
                         enum moek_part part, struct moek_tensor *tensor_out,
                         struct moek_error *error_out)
{
	struct moek_rows_of of = moek_layer_rows(layer, part);
	struct moek_tensor_name name = moek_layer_name(layer, expert, part,
	                                               bias_suffix(layer));
	const uint64_t shape[2] = { layer->experts, of.all };
	const struct moek_scheme *scheme = part == MOEK_PART_DOWN ? &layer->down
	                                                          : &layer->gate_up;

	if (scheme->bias)
		return moek_layer_need(layer, name.text, FLOATS, 1 + layer->fused,
		                       layer->fused ? shape : shape + 1, tensor_out,
		                       error_out);
	if (moek_layer_has(layer, name.text, tensor_out))
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: tensor %s: expert 0 has no bias, so expected none",
			tensor_out->file, name.text);
	return MOEK_OK;
}

static int32_t matrix(const struct moek_expert_layer *layer, uint64_t expert,
                      enum moek_part part, struct moek_scratch *scratch,
                      struct moek_matrix *matrix_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = part == MOEK_PART_DOWN ? &layer->down
	                                                          : &layer->gate_up;
	struct moek_rows_of of = moek_layer_rows(layer, part);
	struct moek_tensor weight, bias;
	int32_t status = find_weight(layer, expert, part,
	                             moek_type_dtype(scheme->weight), &weight,
	                             error_out);

	if (status == MOEK_OK)
		status = find_bias(layer, expert, part, &bias, error_out);
	if (status != MOEK_OK || scratch == NULL)
		return status;
	moek_matrix_begin(matrix_out, scheme, &of);
	matrix_out->codes = take_rows(layer, expert, part, &of, &weight, scratch);
	if (scheme->bias)
		matrix_out->bias = moek_view_floats(
			scratch, bias.data, bias.type,
			(layer->fused ? expert * of.all : 0) + of.first, of.step,
			of.rows);
	if (matrix_out->codes == NULL || (scheme->bias && matrix_out->bias == NULL))
		return moek_fail_memory(error_out, "rows of an expert");
	return MOEK_OK;
}

static const char *const suffixes[] = { ".weight", ".bias", NULL };
static const char *const fused_suffixes[] = { "", ".weight", "_bias", NULL };

const struct moek_codec moek_codec_rows = {
	.name = "plain rows",
	.suffixes = suffixes,
	.fused_suffixes = fused_suffixes,
	.present = present,
	.describe = describe,
	.matrix = matrix,
	.slices = MOEK_SLICES_ROWS | MOEK_SLICES_COLUMNS,
};
