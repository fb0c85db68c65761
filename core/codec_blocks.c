/* SPDX-License-Identifier: MIT */
/* MXFP4 as gpt-oss ships it: all experts in one tensor of blocks, one of scales. */
#include "config.h"

#include "core/codec.h"
#include "core/status.h"

#include <stdio.h>

#include <moek/formats.h>

#define BLOCK_BYTES (MOEK_MX_BLOCK / 2)

static int present(struct moek_expert_layer *layer)
{
	struct moek_tensor_name name;
	struct moek_tensor tensor;

	if (!moek_family_has(layer->family, 1))
		return 0;
	layer->fused = 1;
	name = moek_layer_name(layer, 0, MOEK_PART_GATE, "_blocks");
	return moek_layer_has(layer, name.text, &tensor);
}

struct tensors {
	struct moek_tensor blocks, scales, bias;
};

static int32_t find_part(const struct moek_expert_layer *layer, enum moek_part part,
                         struct tensors *tensors_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = part == MOEK_PART_DOWN ? &layer->down
	                                                          : &layer->gate_up;
	struct moek_rows_of of = moek_layer_rows(layer, part);
	const uint64_t shape[4] = { layer->experts, of.all, of.columns / MOEK_MX_BLOCK,
		                    BLOCK_BYTES };
	int32_t status;

	status = moek_layer_need(layer, moek_layer_name(layer, 0, part, "_blocks").text,
	                         "U8", 4, shape, &tensors_out->blocks, error_out);
	if (status == MOEK_OK)
		status = moek_layer_need(
			layer, moek_layer_name(layer, 0, part, "_scales").text,
			"U8 F8_E8M0", 3, shape, &tensors_out->scales, error_out);
	if (status == MOEK_OK && scheme->bias)
		status = moek_layer_need(
			layer, moek_layer_name(layer, 0, part, "_bias").text,
			"BF16 F16 F32", 2, shape, &tensors_out->bias, error_out);
	return status;
}

static int32_t describe_part(const struct moek_expert_layer *layer, enum moek_part part,
                             struct moek_scheme *scheme_out,
                             struct moek_error *error_out)
{
	struct moek_tensor_name bias = moek_layer_name(layer, 0, part, "_bias");
	struct moek_rows_of of = moek_layer_rows(layer, part);
	struct moek_tensor tensor;

	if (of.columns % MOEK_MX_BLOCK != 0)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s%s: %s %llu is no multiple of %d, the columns of a block",
			layer->prefix, layer->family->experts,
			part == MOEK_PART_DOWN ? "intermediate" : "hidden",
			(unsigned long long)of.columns, MOEK_MX_BLOCK);
	scheme_out->weight = MOEK_MXFP4;
	scheme_out->scale = MOEK_E8M0;
	scheme_out->group_size = MOEK_MX_BLOCK;
	scheme_out->bias = (uint32_t)moek_layer_has(layer, bias.text, &tensor);
	return MOEK_OK;
}

static int32_t describe(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out)
{
	int32_t status = describe_part(layer, MOEK_PART_GATE, &layer->gate_up,
	                               error_out);

	(void)quantization; /* it has no parameters */
	if (status == MOEK_OK)
		status = describe_part(layer, MOEK_PART_DOWN, &layer->down, error_out);
	snprintf(layer->format, sizeof(layer->format), "mxfp4 blocks");
	return status;
}

static int32_t matrix(const struct moek_expert_layer *layer, uint64_t expert,
                      enum moek_part part, struct moek_scratch *scratch,
                      struct moek_matrix *matrix_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = part == MOEK_PART_DOWN ? &layer->down
	                                                          : &layer->gate_up;
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t groups = of.columns / MOEK_MX_BLOCK, row = expert * of.all + of.first;
	struct tensors from;
	int32_t status = find_part(layer, part, &from, error_out);

	if (status != MOEK_OK || scratch == NULL)
		return status;
	moek_matrix_begin(matrix_out, scheme, &of);
	matrix_out->codes = moek_view_rows(
		scratch, (const uint8_t *)from.blocks.data + row * groups * BLOCK_BYTES,
		of.rows, groups * BLOCK_BYTES, of.step * groups * BLOCK_BYTES, 1);
	matrix_out->scales = moek_view_rows(
		scratch, (const uint8_t *)from.scales.data + row * groups, of.rows,
		groups, of.step * groups, 1);
	if (scheme->bias)
		matrix_out->bias = moek_view_floats(
			scratch, from.bias.data, from.bias.type, row, of.step, of.rows);
	if (matrix_out->codes == NULL || matrix_out->scales == NULL ||
	    (scheme->bias && matrix_out->bias == NULL))
		return moek_fail_memory(error_out, "blocks of an expert");
	return MOEK_OK;
}

static const char *const fused_suffixes[] = { "_blocks", "_scales", "_bias", NULL };

static const char *const methods[] = { "mxfp4", NULL };

const struct moek_codec moek_codec_blocks = {
	.name = "mxfp4 blocks",
	.methods = methods,
	.fused_suffixes = fused_suffixes,
	.present = present,
	.describe = describe,
	.matrix = matrix,
	.slices = MOEK_SLICES_ROWS | MOEK_IN_PLACE,
};
