/* SPDX-License-Identifier: MIT */
/*
 * GPTQ: int32 words of eight codes along the columns, stored [columns / 8][rows]; zero
 * points eight to a word along the rows, [groups][rows / 8]; scales [groups][rows].
 *
 * In version 1 a zero point is stored less one, so 15 means 16; version 2 stores it as
 * it is. The config says which; where all must be 8 (symmetric), the tensor shows it,
 * and a file that says one and stores the other is named.
 */
#include "config.h"

#include "core/checkpoint.h"
#include "core/codec.h"
#include "core/json.h"
#include "core/log.h"
#include "core/problem.h"
#include "core/quantised.h"
#include "core/status.h"

#include <stdio.h>
#include <string.h>

#include <moek/formats.h>

#define FLOATS "F16 BF16 F32"
#define PACK 8u

static int present(struct moek_expert_layer *layer)
{
	struct moek_tensor tensor, scales;

	layer->fused = 0;
	return moek_family_has(layer->family, 0) &&
	       moek_layer_has(
		       layer,
		       moek_layer_name(layer, 0, MOEK_PART_GATE, ".qweight").text,
		       &tensor) &&
	       moek_layer_has(layer,
	                      moek_layer_name(layer, 0, MOEK_PART_GATE, ".scales").text,
	                      &scales) &&
	       tensor.rank == 2 && scales.rank == 2 &&
	       tensor.shape[1] == scales.shape[1];
}

static const struct moek_scheme *scheme_of(const struct moek_expert_layer *layer,
                                           enum moek_part part)
{
	return part == MOEK_PART_DOWN ? &layer->down : &layer->gate_up;
}

/* ---- the config ---- */

/** What zero points are stored as; of AutoRound's older exports nobody knows. */
enum { ZEROS_AS_THEY_ARE, ZEROS_LESS_ONE, ZEROS_EITHER };

static int32_t gptq_version(const struct moek_expert_layer *layer,
                            const struct moek_json *quantization, uint32_t *zeros_out,
                            struct moek_error *error_out)
{
	const char *format = moek_json_string(
		moek_json_get(quantization, "checkpoint_format"), NULL);

	if (format == NULL || strcmp(format, "gptq") == 0)
		*zeros_out = ZEROS_LESS_ONE;
	else if (strcmp(format, "gptq_v2") == 0)
		*zeros_out = ZEROS_AS_THEY_ARE;
	else
		return moek_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
			"%s: quantization_config: checkpoint_format is \"%.64s\", "
			"read are: gptq, gptq_v2",
			layer->config_path, format);
	return MOEK_OK;
}

static int32_t auto_round_version(const struct moek_expert_layer *layer,
                                  const struct moek_json *quantization,
                                  uint32_t *zeros_out, struct moek_error *error_out)
{
	const struct moek_json *value = moek_json_get(quantization, "packing_format");
	const char *format = moek_json_string(
		value != NULL ? value : moek_json_get(quantization, "backend"), NULL);

	if (format == NULL)
		format = "(missing)";
	if (strcmp(format, "auto_round:auto_gptq") == 0 ||
	    strcmp(format, "auto_round:gptq") == 0)
		*zeros_out = ZEROS_LESS_ONE;
	else if (strcmp(format, "auto_round:gptqmodel") == 0)
		*zeros_out = ZEROS_AS_THEY_ARE;
	else if (strcmp(format, "auto_round") == 0 ||
	         strcmp(format, "auto_round:exllamav2") == 0)
		*zeros_out = ZEROS_EITHER;
	else
		return moek_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
			"%s: quantization_config: packing_format is \"%.64s\", "
			"but the experts of %s are stored as GPTQ",
			layer->config_path, format, layer->name);
	return MOEK_OK;
}

/** 1: the column groups of expert 0 are not in order. Broken ones are told later. */
static int is_scattered(const struct moek_expert_layer *layer, enum moek_part part,
                        uint64_t group_size)
{
	struct moek_tensor_name name = moek_layer_name(layer, 0, part, ".g_idx");
	struct moek_tensor tensor;
	int32_t group;

	if (!moek_layer_has(layer, name.text, &tensor) ||
	    strcmp(tensor.dtype, "I32") != 0 || tensor.rank != 1)
		return 0;
	for (uint64_t c = 0; c < tensor.shape[0]; c++) {
		memcpy(&group, (const uint8_t *)tensor.data + 4 * c, sizeof(group));
		if (group < 0 || (uint64_t)group != c / group_size)
			return 1;
	}
	return 0;
}

static int32_t describe_part(struct moek_expert_layer *layer, enum moek_part part,
                             const struct moek_quantised *config,
                             struct moek_scheme *scheme, struct moek_error *error_out)
{
	struct moek_rows_of of = moek_layer_rows(layer, part);
	struct moek_tensor tensor;
	uint64_t shape[2];
	int32_t status;

	scheme->weight = MOEK_INT4;
	scheme->scale = MOEK_F16;
	scheme->group_size = config->group_size;
	scheme->zero_points = !config->symmetric;
	shape[0] = moek_scheme_groups(scheme, of.columns);
	shape[1] = of.rows;
	if (of.columns % PACK != 0 || of.rows % PACK != 0)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: %s: GPTQ packs eight codes, and %llu x %llu is no "
			"multiple of that",
			layer->config_path, layer->name, (unsigned long long)of.rows,
			(unsigned long long)of.columns);
	status = moek_layer_need(layer, moek_layer_name(layer, 0, part, ".scales").text,
	                         FLOATS, 2, shape, &tensor, error_out);
	if (status != MOEK_OK)
		return status;
	scheme->scale = tensor.type;
	scheme->bias = (uint32_t)moek_layer_has(
		layer, moek_layer_name(layer, 0, part, ".bias").text, &tensor);
	scheme->column_groups = config->group_size != 0 &&
	                        (uint32_t)is_scattered(layer, part, config->group_size);
	return MOEK_OK;
}

static int32_t describe(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out)
{
	const char *method = moek_json_string(
		moek_json_get(quantization, "quant_method"), NULL);
	int is_gptq = method == NULL || strcmp(method, "gptq") == 0;
	struct moek_quantised config;
	int32_t status = moek_quantised_read(layer, quantization, &config, error_out);

	if (status == MOEK_OK)
		status = is_gptq ? gptq_version(layer, quantization,
		                                &layer->zeros_stored, error_out)
		                 : auto_round_version(layer, quantization,
		                                      &layer->zeros_stored, error_out);
	if (status == MOEK_OK && layer->zeros_stored == ZEROS_EITHER &&
	    !config.symmetric)
		status = moek_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_ZERO_POINTS,
			"%s: quantization_config: this packing_format does not say "
			"how zero points are stored, and sym is false",
			layer->config_path);
	if (status == MOEK_OK)
		status = describe_part(layer, MOEK_PART_GATE, &config, &layer->gate_up,
		                       error_out);
	if (status == MOEK_OK)
		status = describe_part(layer, MOEK_PART_DOWN, &config, &layer->down,
		                       error_out);
	moek_quantised_format(layer, &config,
	                      !is_gptq ? "auto-round gptq"
	                      : layer->zeros_stored == ZEROS_AS_THEY_ARE ? "gptq v2"
	                                                                 : "gptq v1");
	return status;
}

/* ---- the tensors ---- */

struct tensors {
	struct moek_tensor codes, scales, zeros, order, bias;
	int has_zeros, has_order;
};

static int32_t find_part(const struct moek_expert_layer *layer, uint64_t expert,
                         enum moek_part part, struct tensors *out,
                         struct moek_error *error_out)
{
	const struct moek_scheme *scheme = scheme_of(layer, part);
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t groups = moek_scheme_groups(scheme, of.columns);
	const uint64_t codes[2] = { of.columns / PACK, of.rows };
	const uint64_t scales[2] = { groups, of.rows };
	const uint64_t zeros[2] = { groups, of.rows / PACK };
	struct moek_tensor_name name = moek_layer_name(layer, expert, part, ".qzeros");
	struct moek_tensor_name order = moek_layer_name(layer, expert, part, ".g_idx");
	int32_t status = moek_layer_need(
		layer, moek_layer_name(layer, expert, part, ".qweight").text, "I32", 2,
		codes, &out->codes, error_out);

	if (status == MOEK_OK)
		status = moek_layer_need(
			layer, moek_layer_name(layer, expert, part, ".scales").text,
			moek_type_dtype(scheme->scale), 2, scales, &out->scales,
			error_out);
	out->has_zeros = scheme->zero_points ||
	                 moek_layer_has(layer, name.text, &out->zeros);
	if (status == MOEK_OK && out->has_zeros)
		status = moek_layer_need(layer, name.text, "I32", 2, zeros, &out->zeros,
		                         error_out);
	out->has_order = scheme->column_groups ||
	                 moek_layer_has(layer, order.text, &out->order);
	if (status == MOEK_OK && out->has_order)
		status = moek_layer_need(layer, order.text, "I32", 1, &of.columns,
		                         &out->order, error_out);
	if (status == MOEK_OK && scheme->bias)
		status = moek_layer_need(
			layer, moek_layer_name(layer, expert, part, ".bias").text,
			FLOATS, 1, &of.rows, &out->bias, error_out);
	return status;
}

#define TURN 16u /* rows and words turned at a time: a line of the cache each way */

/** Words [columns / 8][rows] to rows of words: the bytes of a row are then its codes.
 */
static const void *turn_codes(struct moek_scratch *scratch, const void *words,
                              const struct moek_rows_of *of)
{
	uint64_t count = of->columns / PACK;
	const uint8_t *from = words;
	uint8_t *to = moek_scratch_take(scratch, of->rows * count * 4, 4);

	for (uint64_t row = 0; row < of->rows && to != NULL; row += TURN)
		for (uint64_t word = 0; word < count; word += TURN)
			for (uint64_t r = row; r < of->rows && r < row + TURN; r++)
				for (uint64_t w = word; w < count && w < word + TURN;
				     w++)
					memcpy(to + (r * count + w) * 4,
					       from + (w * of->rows + r) * 4, 4);
	return to;
}

/** Zero points [rows][groups] out of words [groups][rows / 8], with @add undone. */
static uint8_t *turn_zeros(struct moek_scratch *scratch, const void *words,
                           const struct moek_rows_of *of, uint64_t groups, uint32_t add)
{
	const uint8_t *bytes = words;
	uint8_t *to = moek_scratch_take(scratch, of->rows * groups, 1);

	for (uint64_t g = 0; g < groups && to != NULL; g++)
		for (uint64_t r = 0; r < of->rows; r++)
			to[r * groups + g] = (uint8_t)(moek_nibble(
							       bytes + g * of->rows / 2,
							       r) +
			                               add);
	return to;
}

/** A symmetric file stores 8 in its own way, or contradicts its config. */
static int32_t check_symmetric(const struct moek_expert_layer *layer,
                               const struct moek_tensor *zeros, const char *name,
                               struct moek_error *error_out)
{
	const uint8_t *bytes = zeros->data;
	uint32_t expected = layer->zeros_stored == ZEROS_LESS_ONE ? 7 : 8;

	for (uint64_t i = 0; i < 2 * zeros->bytes; i++) {
		uint32_t found = moek_nibble(bytes, i);

		if (i % 2 == 0 && bytes[i / 2] == expected * 0x11) {
			i++; /* both of them, as nearly all are */
			continue;
		}
		if (found == expected ||
		    (layer->zeros_stored == ZEROS_EITHER && found == 7))
			continue;
		return moek_fail(
			error_out, MOEK_BAD_FILE, MOEK_RULE_ZERO_POINTS,
			"%s: tensor %s: found a stored zero point of %u, expected %u "
			"everywhere: %s says symmetric, %s%s",
			zeros->file, name, found, expected, layer->config_path,
			layer->zeros_stored == ZEROS_LESS_ONE
				? "checkpoint_format gptq"
				: "checkpoint_format gptq_v2",
			found == 15 - expected ? "; it looks like the other version"
					       : "");
	}
	return MOEK_OK;
}

/** Column groups, negative ones counted from the end; in order without the bit. */
static int32_t read_order(const struct moek_expert_layer *layer,
                          const struct moek_tensor *tensor, const char *name,
                          const struct moek_scheme *scheme, uint32_t *to,
                          struct moek_error *error_out)
{
	uint64_t columns = tensor->shape[0];
	uint64_t groups = moek_scheme_groups(scheme, columns);

	for (uint64_t c = 0; c < columns; c++) {
		int32_t stored;
		int64_t group;

		memcpy(&stored, (const uint8_t *)tensor->data + 4 * c, sizeof(stored));
		group = stored < 0 ? stored + (int64_t)groups : stored;
		if (group < 0 || (uint64_t)group >= groups)
			return moek_fail(
				error_out, MOEK_BAD_FILE, MOEK_RULE_COLUMN_GROUPS,
				"%s: tensor %s: found group %d for column %llu, "
				"expected 0 .. %llu",
				tensor->file, name, stored, (unsigned long long)c,
				(unsigned long long)groups - 1);
		if (to != NULL)
			to[c] = (uint32_t)group;
		else if (scheme->group_size != 0 &&
		         (uint64_t)group != c / scheme->group_size)
			return moek_fail(
				error_out, MOEK_BAD_FILE, MOEK_RULE_COLUMN_GROUPS,
				"%s: tensor %s: column %llu is of group %lld, but "
				"the columns of expert 0 of %s are in order",
				tensor->file, name, (unsigned long long)c,
				(long long)group, layer->name);
	}
	return MOEK_OK;
}

static int32_t matrix(const struct moek_expert_layer *layer, uint64_t expert,
                      enum moek_part part, struct moek_scratch *scratch,
                      struct moek_matrix *matrix_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = scheme_of(layer, part);
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t groups = moek_scheme_groups(scheme, of.columns);
	uint32_t add = layer->zeros_stored == ZEROS_LESS_ONE;
	struct moek_tensor_name name = moek_layer_name(layer, expert, part, ".qzeros");
	uint32_t *order = NULL;
	struct tensors from;
	int32_t status = find_part(layer, expert, part, &from, error_out);

	if (status != MOEK_OK || scratch == NULL)
		return status;
	moek_matrix_begin(matrix_out, scheme, &of);
	matrix_out->codes = turn_codes(scratch, from.codes.data, &of);
	matrix_out->scales = moek_turn_scalars(scratch, from.scales.data, scheme->scale,
	                                       of.rows, groups);
	if (scheme->zero_points)
		matrix_out->zeros = turn_zeros(scratch, from.zeros.data, &of, groups,
		                               add);
	if (scheme->column_groups)
		order = moek_scratch_take(scratch, of.columns * sizeof(*order),
		                          sizeof(*order));
	matrix_out->column_group = order;
	if (scheme->bias)
		matrix_out->bias = moek_view_floats(scratch, from.bias.data,
		                                    from.bias.type, 0, 1, of.rows);
	if (matrix_out->codes == NULL || matrix_out->scales == NULL ||
	    (scheme->zero_points && matrix_out->zeros == NULL) ||
	    (scheme->column_groups && order == NULL) ||
	    (scheme->bias && matrix_out->bias == NULL))
		return moek_fail_memory(error_out, "codes of an expert");
	if (from.has_order)
		status = read_order(layer, &from.order,
		                    moek_layer_name(layer, expert, part, ".g_idx").text,
		                    scheme, order, error_out);
	if (status == MOEK_OK && from.has_zeros && !scheme->zero_points)
		status = check_symmetric(layer, &from.zeros, name.text, error_out);
	if (status == MOEK_OK && scheme->zero_points &&
	    memchr(matrix_out->zeros, 16, of.rows * groups) != NULL)
		moek_log_once(moek_checkpoint_log(layer->checkpoint), MOEK_LOG_WARNING,
		              "gptq zero point of 16",
		              "tensor %s: a stored zero point is 15, which is 16 in "
		              "version 1: tools that keep 4 bits of it read 0",
		              name.text);
	return status;
}

static const char *const methods[] = { "gptq", "auto-round", NULL };
static const char *const suffixes[] = { ".qweight", ".qzeros", ".scales",
	                                ".g_idx",   ".bias",   NULL };

const struct moek_codec moek_codec_gptq = {
	.name = "gptq",
	.methods = methods,
	.suffixes = suffixes,
	.present = present,
	.describe = describe,
	.matrix = matrix,
};
