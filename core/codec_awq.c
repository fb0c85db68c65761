/* SPDX-License-Identifier: MIT */
/*
 * AWQ as its gemm kernels want it: int32 words of eight codes along the rows, stored
 * [columns][rows / 8], in the order 0 2 4 6 1 3 5 7; zero points the same,
 * [groups][rows / 8]; scales [groups][rows].
 */
#include "config.h"

#include "core/codec.h"
#include "core/json.h"
#include "core/problem.h"
#include "core/quantised.h"
#include "core/status.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

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
	       tensor.shape[1] * PACK == scales.shape[1];
}

static const struct moek_scheme *scheme_of(const struct moek_expert_layer *layer,
                                           enum moek_part part)
{
	return part == MOEK_PART_DOWN ? &layer->down : &layer->gate_up;
}

static int32_t check_version(const struct moek_expert_layer *layer,
                             const struct moek_json *quantization, int is_awq,
                             struct moek_error *error_out)
{
	const char *key = is_awq ? "version" : "packing_format";
	const char *expected = is_awq ? "gemm" : "auto_round:auto_awq";
	const char *found = moek_json_string(moek_json_get(quantization, key), NULL);

	if (found != NULL ? strcasecmp(found, expected) == 0 : is_awq)
		return MOEK_OK;
	return moek_fail(
		error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
		"%s: quantization_config: %s is \"%.64s\", but the experts of %s "
		"are stored as AWQ; read is: %s",
		layer->config_path, key, found != NULL ? found : "(missing)",
		layer->name, expected);
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
	if (of.rows % PACK != 0 || of.columns % PACK != 0)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: %s: AWQ packs eight codes, and %llu x %llu is no "
		                 "multiple of that",
		                 layer->config_path, layer->name,
		                 (unsigned long long)of.rows,
		                 (unsigned long long)of.columns);
	status = moek_layer_need(layer, moek_layer_name(layer, 0, part, ".scales").text,
	                         FLOATS, 2, shape, &tensor, error_out);
	if (status != MOEK_OK)
		return status;
	scheme->scale = tensor.type;
	scheme->bias = (uint32_t)moek_layer_has(
		layer, moek_layer_name(layer, 0, part, ".bias").text, &tensor);
	return MOEK_OK;
}

static int32_t describe(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out)
{
	const char *method = moek_json_string(
		moek_json_get(quantization, "quant_method"), NULL);
	int is_awq = method == NULL || strcasecmp(method, "awq") == 0;
	struct moek_quantised config;
	int32_t status = moek_quantised_read(layer, quantization, &config, error_out);

	if (status == MOEK_OK)
		status = check_version(layer, quantization, is_awq, error_out);
	if (status == MOEK_OK)
		status = describe_part(layer, MOEK_PART_GATE, &config, &layer->gate_up,
		                       error_out);
	if (status == MOEK_OK)
		status = describe_part(layer, MOEK_PART_DOWN, &config, &layer->down,
		                       error_out);
	moek_quantised_format(layer, &config, is_awq ? "awq" : "auto-round awq");
	return status;
}

struct tensors {
	struct moek_tensor codes, scales, zeros, bias;
};

static int32_t find_part(const struct moek_expert_layer *layer, uint64_t expert,
                         enum moek_part part, struct tensors *out,
                         struct moek_error *error_out)
{
	const struct moek_scheme *scheme = scheme_of(layer, part);
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t groups = moek_scheme_groups(scheme, of.columns);
	const uint64_t codes[2] = { of.columns, of.rows / PACK };
	const uint64_t scales[2] = { groups, of.rows };
	const uint64_t zeros[2] = { groups, of.rows / PACK };
	struct moek_tensor_name name = moek_layer_name(layer, expert, part, ".qzeros");
	int32_t status = moek_layer_need(
		layer, moek_layer_name(layer, expert, part, ".qweight").text, "I32", 2,
		codes, &out->codes, error_out);

	if (status == MOEK_OK)
		status = moek_layer_need(
			layer, moek_layer_name(layer, expert, part, ".scales").text,
			moek_type_dtype(scheme->scale), 2, scales, &out->scales,
			error_out);
	if (status == MOEK_OK && scheme->zero_points)
		status = moek_layer_need(layer, name.text, "I32", 2, zeros, &out->zeros,
		                         error_out);
	else if (status == MOEK_OK && moek_layer_has(layer, name.text, &out->zeros))
		status = moek_fail(error_out, MOEK_BAD_FILE, MOEK_RULE_ZERO_POINTS,
		                   "%s: tensor %s: found zero points, expected none: "
		                   "zero_point of %s is false",
		                   out->zeros.file, name.text, layer->config_path);
	if (status == MOEK_OK && scheme->bias)
		status = moek_layer_need(
			layer, moek_layer_name(layer, expert, part, ".bias").text,
			FLOATS, 1, &of.rows, &out->bias, error_out);
	return status;
}

/** Which nibble of its word row r is: r % 8 stands at place[r % 8]. */
static const uint32_t place[PACK] = { 0, 4, 1, 5, 2, 6, 3, 7 };

/** Eight columns of eight rows: word i of @block is column i, and then row i. Nibbles
 * change places with those across the diagonal: in halves, in quarters, one by one. */
static void turn_block(uint32_t *block)
{
	uint32_t mask = 0x0000ffffu;

	for (uint32_t step = PACK / 2; step != 0; step /= 2, mask ^= mask << 4 * step)
		for (uint32_t i = 0; i < PACK; i++) {
			uint32_t other;

			if ((i & step) != 0)
				continue;
			other = (block[i] >> 4 * step ^ block[i + step]) & mask;
			block[i + step] ^= other;
			block[i] ^= other << 4 * step;
		}
}

/** [columns][rows], eight rows a word, to rows of nibbles. */
static const void *turn_codes(struct moek_scratch *scratch, const void *words,
                              const struct moek_rows_of *of)
{
	uint64_t row_bytes = of->columns / 2, line = of->rows / 2;
	const uint8_t *from = words;
	uint8_t *to = moek_scratch_take(scratch, of->rows * row_bytes, 4);
	uint32_t block[PACK];

	/* columns are rows of another matrix: a multiple of 8 too */
	for (uint64_t first = 0; first < of->rows && to != NULL; first += PACK)
		for (uint64_t c = 0; c < of->columns; c += PACK) {
			for (uint64_t i = 0; i < PACK; i++)
				memcpy(&block[i], from + (c + i) * line + first / 2,
				       sizeof(block[i]));
			turn_block(block);
			for (uint64_t i = 0; i < PACK; i++)
				memcpy(to + (first + i) * row_bytes + c / 2,
				       &block[place[i]], sizeof(block[0]));
		}
	return to;
}

static uint8_t *turn_zeros(struct moek_scratch *scratch, const void *words,
                           const struct moek_rows_of *of, uint64_t groups)
{
	const uint8_t *from = words;
	uint8_t *to = moek_scratch_take(scratch, of->rows * groups, 1);

	for (uint64_t first = 0; first < of->rows && to != NULL; first += PACK)
		for (uint64_t g = 0; g < groups; g++) {
			uint32_t word;

			memcpy(&word, from + g * of->rows / 2 + first / 2,
			       sizeof(word));
			for (uint64_t i = 0; i < PACK; i++)
				to[(first + i) * groups + g] =
					(uint8_t)(word >> 4 * place[i] & 15);
		}
	return to;
}

static int32_t matrix(const struct moek_expert_layer *layer, uint64_t expert,
                      enum moek_part part, struct moek_scratch *scratch,
                      struct moek_matrix *matrix_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = scheme_of(layer, part);
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t groups = moek_scheme_groups(scheme, of.columns);
	struct tensors from;
	int32_t status = find_part(layer, expert, part, &from, error_out);

	if (status != MOEK_OK || scratch == NULL)
		return status;
	moek_matrix_begin(matrix_out, scheme, &of);
	matrix_out->codes = turn_codes(scratch, from.codes.data, &of);
	matrix_out->scales = moek_turn_scalars(scratch, from.scales.data, scheme->scale,
	                                       of.rows, groups);
	if (scheme->zero_points)
		matrix_out->zeros = turn_zeros(scratch, from.zeros.data, &of, groups);
	if (scheme->bias)
		matrix_out->bias = moek_view_floats(scratch, from.bias.data,
		                                    from.bias.type, 0, 1, of.rows);
	if (matrix_out->codes == NULL || matrix_out->scales == NULL ||
	    (scheme->zero_points && matrix_out->zeros == NULL) ||
	    (scheme->bias && matrix_out->bias == NULL))
		return moek_fail_memory(error_out, "codes of an expert");
	return MOEK_OK;
}

static const char *const methods[] = { "awq", "auto-round", NULL };
static const char *const suffixes[] = { ".qweight", ".qzeros", ".scales", ".bias",
	                                NULL };

const struct moek_codec moek_codec_awq = {
	.name = "awq",
	.methods = methods,
	.suffixes = suffixes,
	.present = present,
	.describe = describe,
	.matrix = matrix,
};
