/* SPDX-License-Identifier: MIT */
/*
 * fp8 (e4m3) experts one by one, with a scale for each block, row or tensor that
 * multiplies, whatever its name says. They become fp32 rows: exact up to the one
 * rounding of code times scale, for comparing; nothing here runs fp8 as such.
 */
#include "config.h"

#include "core/checkpoint.h"
#include "core/codec.h"
#include "core/json.h"
#include "core/log.h"
#include "core/status.h"

#include <stdio.h>
#include <string.h>

#include <moek/formats.h>

/** The suffix of the scales of expert 0's part, or NULL. */
static const char *scale_suffix(const struct moek_expert_layer *layer,
                                enum moek_part part)
{
	static const char *const known[] = { ".weight_scale_inv", ".weight_scale",
		                             ".scale" };
	struct moek_tensor tensor;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (moek_layer_has(layer,
		                   moek_layer_name(layer, 0, part, known[i]).text,
		                   &tensor))
			return known[i];
	return NULL;
}

static int present(struct moek_expert_layer *layer)
{
	struct moek_tensor tensor;

	layer->fused = 0;
	return moek_family_has(layer->family, 0) &&
	       moek_layer_has(layer,
	                      moek_layer_name(layer, 0, MOEK_PART_GATE, ".weight").text,
	                      &tensor) &&
	       strcmp(tensor.dtype, "F8_E4M3") == 0 &&
	       scale_suffix(layer, MOEK_PART_GATE) != NULL;
}

/* ---- the scales ---- */

/** How many rows and columns share a scale; 0: the whole of them. */
struct block {
	uint64_t rows, columns;
};

static struct block block_of(const struct moek_expert_layer *layer)
{
	return (struct block){ .rows = layer->block[0], .columns = layer->block[1] };
}

static uint64_t pieces(uint64_t size, uint64_t block)
{
	return block == 0 ? 1 : (size + block - 1) / block;
}

static int32_t read_block(struct moek_expert_layer *layer,
                          const struct moek_json *quantization,
                          struct moek_error *error_out)
{
	const struct moek_json *size = moek_json_get(quantization, "weight_block_size");
	const struct moek_json *groups = moek_json_get(quantization, "config_groups");
	const struct moek_json *group;
	int64_t rows = 0, columns = 0;
	void *cursor = NULL;
	const char *key;
	size_t bytes;

	/* compressed-tensors: of the first group that has one */
	while (moek_json_kind(size) == MOEK_JSON_NULL &&
	       (group = moek_json_next(groups, &cursor, &key, &bytes)) != NULL)
		size = moek_json_get(moek_json_get(group, "weights"),
		                     "block_structure");

	layer->block[0] = layer->block[1] = 0;
	if (moek_json_kind(size) == MOEK_JSON_NULL)
		return MOEK_OK;
	if (moek_json_count(size) != 2 ||
	    !moek_json_integer(moek_json_at(size, 0), &rows) ||
	    !moek_json_integer(moek_json_at(size, 1), &columns) || rows < 1 ||
	    columns < 1 || rows > (int64_t)MOEK_MODEL_SIZE ||
	    columns > (int64_t)MOEK_MODEL_SIZE)
		return moek_fail(
			error_out, MOEK_BAD_FILE, MOEK_RULE_GROUP_SIZE,
			"%s: quantization_config: weight_block_size is not two "
			"numbers in 1 .. %llu",
			layer->config_path, (unsigned long long)MOEK_MODEL_SIZE);
	layer->block[0] = (uint64_t)rows;
	layer->block[1] = (uint64_t)columns;
	return MOEK_OK;
}

/** Without blocks: one scale for each row, [rows][1] or [rows], or one for all. */
static int32_t find_scales(const struct moek_expert_layer *layer, uint64_t expert,
                           enum moek_part part, struct block *block_out,
                           struct moek_tensor *scales_out, struct moek_error *error_out)
{
	const char *suffix = scale_suffix(layer, part);
	struct moek_rows_of of = moek_layer_rows(layer, part);
	struct block block = block_of(layer);
	struct moek_tensor_name name = moek_layer_name(
		layer, expert, part, suffix != NULL ? suffix : ".weight_scale");
	uint64_t shape[2];
	uint32_t rank = 2;

	if (block.rows == 0 && moek_layer_has(layer, name.text, scales_out)) {
		uint64_t count = 1;

		for (uint32_t i = 0; i < scales_out->rank; i++)
			count *= scales_out->shape[i] <= of.rows ? scales_out->shape[i]
			                                         : 2 * of.rows;
		if (count == 1) {
			*block_out = block;
			return moek_layer_single(layer, name.text, scales_out,
			                         error_out);
		}
		block.rows = 1;
		rank = scales_out->rank == 1 ? 1 : 2;
	}
	shape[0] = pieces(of.rows, block.rows);
	shape[1] = pieces(of.columns, block.columns);
	*block_out = block;
	return moek_layer_need(layer, name.text, "F32 BF16 F16 F8_E8M0 U8", rank, shape,
	                       scales_out, error_out);
}

static float scale_at(const struct moek_tensor *scales, uint64_t at)
{
	if (scales->type == MOEK_F32 || scales->type == MOEK_BF16 ||
	    scales->type == MOEK_F16)
		return moek_scalar(scales->data, scales->type, at);
	return moek_e8m0_to_f32(((const uint8_t *)scales->data)[at]);
}

/* ---- the matrix ---- */

/** "dynamic", "static": what the config asks of inputs; NULL: nothing. */
static const char *asked_inputs(const struct moek_json *quantization)
{
	const struct moek_json *groups = moek_json_get(quantization, "config_groups");
	const struct moek_json *group, *inputs;
	void *cursor = NULL;
	const char *key;
	size_t bytes;
	int is_dynamic = 0;

	while ((group = moek_json_next(groups, &cursor, &key, &bytes)) != NULL) {
		inputs = moek_json_get(group, "input_activations");
		if (moek_json_kind(inputs) == MOEK_JSON_NULL)
			continue;
		moek_json_bool(moek_json_get(inputs, "dynamic"), &is_dynamic);
		return is_dynamic ? "dynamic" : "static";
	}
	return moek_json_string(moek_json_get(quantization, "activation_scheme"), NULL);
}

/** Rows are for comparing, and say so. */
static void tell_inputs(const struct moek_expert_layer *layer,
                        const struct moek_json *quantization)
{
	const char *asked = asked_inputs(quantization);

	if (asked != NULL)
		moek_log_once(moek_checkpoint_log(layer->checkpoint), MOEK_LOG_WARNING,
		              "fp8 inputs",
		              "%s: asks for %.32s fp8 inputs of its fp8 experts; they "
		              "are decoded to fp32 rows, inputs stay as they are",
		              layer->config_path, asked);
}

static int32_t describe(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out)
{
	struct moek_tensor scales;
	struct block block = { 0 };
	int32_t status = read_block(layer, quantization, error_out);

	if (status == MOEK_OK)
		status = find_scales(layer, 0, MOEK_PART_GATE, &block, &scales,
		                     error_out);
	if (status != MOEK_OK)
		return status;
	tell_inputs(layer, quantization);
	layer->gate_up.weight = MOEK_F32;
	layer->down.weight = MOEK_F32;
	if (block.columns != 0)
		snprintf(layer->format, sizeof(layer->format),
		         "fp8 e4m3, blocks of %llu x %llu, read as fp32 rows",
		         (unsigned long long)block.rows,
		         (unsigned long long)block.columns);
	else
		snprintf(layer->format, sizeof(layer->format),
		         "fp8 e4m3, a scale for each %s, read as fp32 rows",
		         block.rows != 0 ? "row" : "tensor");
	return MOEK_OK;
}

static void warn_of(const struct moek_expert_layer *layer, const char *name,
                    const struct moek_tensor *scales, uint64_t nans, uint64_t all)
{
	struct moek_odd_scales odd = { .all = 1 };

	for (uint32_t i = 0; i < scales->rank; i++)
		odd.all *= scales->shape[i];
	for (uint64_t i = 0; i < odd.all; i++)
		moek_count_scale(&odd, scale_at(scales, i));
	moek_layer_warn_scales(layer, name, &odd);
	if (nans != 0)
		moek_log_once(moek_checkpoint_log(layer->checkpoint), MOEK_LOG_WARNING,
		              "weight is NaN", "%s: %llu of %llu weights are NaN", name,
		              (unsigned long long)nans, (unsigned long long)all);
}

/** Rows of fp32; returns how many codes are NaN. */
static uint64_t decode(const struct moek_rows_of *of, const struct block *block,
                       const uint8_t *codes, const struct moek_tensor *scales,
                       float *to)
{
	uint64_t across = pieces(of->columns, block->columns), nans = 0;

	for (uint64_t r = 0; r < of->rows; r++) {
		uint64_t first = (block->rows != 0 ? r / block->rows : 0) * across;

		for (uint64_t c = 0; c < of->columns; c++) {
			uint64_t at = block->columns != 0 ? c / block->columns : 0;

			nans += (*codes & 0x7f) == 0x7f ? 1 : 0;
			*to++ = moek_e4m3_to_f32(*codes++) *
			        scale_at(scales, first + at);
		}
	}
	return nans;
}

static int32_t matrix(const struct moek_expert_layer *layer, uint64_t expert,
                      enum moek_part part, struct moek_scratch *scratch,
                      struct moek_matrix *matrix_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = part == MOEK_PART_DOWN ? &layer->down
	                                                          : &layer->gate_up;
	struct moek_tensor_name name = moek_layer_name(layer, expert, part, ".weight");
	struct moek_rows_of of = moek_layer_rows(layer, part);
	const uint64_t shape[2] = { of.rows, of.columns };
	struct moek_tensor codes, scales;
	struct block block;
	float *to;
	int32_t status = moek_layer_need(layer, name.text, "F8_E4M3", 2, shape, &codes,
	                                 error_out);

	if (status == MOEK_OK)
		status = find_scales(layer, expert, part, &block, &scales, error_out);
	if (status != MOEK_OK || scratch == NULL)
		return status;
	to = moek_scratch_take(scratch, of.rows * of.columns * sizeof(*to),
	                       sizeof(*to));
	if (to == NULL)
		return moek_fail_memory(error_out, "rows of an expert");
	moek_matrix_begin(matrix_out, scheme, &of);
	matrix_out->codes = to;
	warn_of(layer, name.text, &scales, decode(&of, &block, codes.data, &scales, to),
	        of.rows * of.columns);
	return MOEK_OK;
}

static const char *const methods[] = { "fp8", "compressed-tensors", NULL };
static const char *const suffixes[] = { ".weight", ".weight_scale_inv", ".weight_scale",
	                                ".scale",  ".input_scale",      NULL };

const struct moek_codec moek_codec_fp8 = {
	.name = "fp8",
	.methods = methods,
	.suffixes = suffixes,
	.present = present,
	.describe = describe,
	.matrix = matrix,
};
