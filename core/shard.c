/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/shard.h"
#include "core/codec.h"
#include "core/problem.h"
#include "core/status.h"

#include <string.h>

/** Columns of down that must stay together: a group of scales, and whole bytes. */
static uint64_t piece_of(const struct moek_scheme *down)
{
	int is_half_byte = down->weight == MOEK_INT4 || down->weight == MOEK_MXFP4;
	uint64_t piece = down->scale != 0 && down->group_size != 0 ? down->group_size
	                                                           : 1;

	return is_half_byte && piece % 2 != 0 ? piece * 2 : piece;
}

int32_t moek_shard_set(struct moek_expert_layer *layer, uint32_t shard, uint32_t shards,
                       struct moek_error *error_out)
{
	uint64_t piece = piece_of(&layer->down), pieces, last;

	if (shards > 1 && layer->down.column_groups)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_COLUMN_GROUPS,
		                 "%s: %s: activation order scatters the groups of down "
		                 "over all shards",
		                 layer->config_path, layer->name);
	pieces = layer->intermediate / piece + (layer->intermediate % piece != 0);
	if (shards > pieces)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_SHARDS,
		                 "%s: %s: found %u shards, expected at most %llu: "
		                 "intermediate %llu in groups of %llu",
		                 layer->config_path, layer->name, shards,
		                 (unsigned long long)pieces,
		                 (unsigned long long)layer->intermediate,
		                 (unsigned long long)piece);
	/* no shard is empty, and none has over one piece more than another; both
	 * factors have at most 32 bits */
	layer->shard = shard;
	layer->first = pieces * shard / shards * piece;
	last = pieces * (shard + 1) / shards * piece;
	layer->local = (last < layer->intermediate ? last : layer->intermediate) -
	               layer->first;
	return MOEK_OK;
}

static uint64_t bytes_of(const struct moek_matrix *matrix, uint64_t columns)
{
	if (matrix->weight == MOEK_INT4 || matrix->weight == MOEK_MXFP4)
		return columns / 2 + columns % 2;
	return columns * moek_scalar_bytes(matrix->weight);
}

static uint64_t groups_of(const struct moek_matrix *matrix, uint64_t columns)
{
	return columns / matrix->group_size + (columns % matrix->group_size != 0);
}

static void cut_rows(const struct moek_expert_layer *layer, struct moek_matrix *matrix)
{
	uint64_t groups = groups_of(matrix, matrix->columns), first = layer->first;

	matrix->codes = (const uint8_t *)matrix->codes +
	                first * bytes_of(matrix, matrix->columns);
	if (matrix->scales != NULL)
		matrix->scales = (const uint8_t *)matrix->scales +
		                 first * groups * moek_scalar_bytes(matrix->scale);
	if (matrix->zeros != NULL)
		matrix->zeros += first * groups;
	if (matrix->bias != NULL)
		matrix->bias += first;
	matrix->rows = layer->local;
}

/** @bytes of each row of @all_bytes, from @first on. */
static const void *cut_columns(struct moek_scratch *scratch, const void *data,
                               const struct moek_matrix *matrix, uint64_t first,
                               uint64_t bytes, uint64_t all_bytes, uint64_t align)
{
	return moek_view_rows(scratch, (const uint8_t *)data + first, matrix->rows,
	                      bytes, all_bytes, align);
}

static int32_t cut_down(const struct moek_expert_layer *layer,
                        struct moek_scratch *scratch, struct moek_matrix *matrix,
                        struct moek_error *error_out)
{
	uint64_t all = matrix->columns, scalar = moek_scalar_bytes(matrix->scale);
	uint64_t all_groups = groups_of(matrix, all);
	uint64_t first_group = layer->first / matrix->group_size;
	uint64_t groups = groups_of(matrix, layer->local);
	const void *codes, *scales = matrix->scales;
	const uint8_t *zeros = matrix->zeros;

	codes = cut_columns(scratch, matrix->codes, matrix,
	                    bytes_of(matrix, layer->first),
	                    bytes_of(matrix, layer->local), bytes_of(matrix, all),
	                    moek_scalar_bytes(matrix->weight));
	if (all_groups > 1 && scales != NULL)
		scales = cut_columns(scratch, scales, matrix, first_group * scalar,
		                     groups * scalar, all_groups * scalar, scalar);
	if (all_groups > 1 && zeros != NULL)
		zeros = cut_columns(scratch, zeros, matrix, first_group, groups,
		                    all_groups, 1);
	if (codes == NULL || (matrix->scales != NULL && scales == NULL) ||
	    (matrix->zeros != NULL && zeros == NULL))
		return moek_fail_memory(error_out, "shard of an expert");
	matrix->codes = codes;
	matrix->scales = scales;
	matrix->zeros = zeros;
	matrix->columns = layer->local;
	if (all_groups == 1)
		matrix->group_size = layer->local;
	return MOEK_OK;
}

int32_t moek_shard_cut(const struct moek_expert_layer *layer, enum moek_part part,
                       struct moek_scratch *scratch, struct moek_matrix *matrix,
                       struct moek_error *error_out)
{
	if (part == MOEK_PART_DOWN && layer->shard > 0)
		matrix->bias = NULL; /* it is added once, by shard 0 */
	if (layer->local == layer->intermediate)
		return MOEK_OK;
	if (part == MOEK_PART_DOWN && matrix->columns != layer->local)
		return cut_down(layer, scratch, matrix, error_out);
	if (part != MOEK_PART_DOWN && matrix->rows != layer->local)
		cut_rows(layer, matrix);
	return MOEK_OK;
}

uint64_t moek_shard_reads(const struct moek_expert_layer *layer, enum moek_part part,
                          const struct moek_tensor *tensor, int is_bias)
{
	uint32_t heeded = part == MOEK_PART_DOWN ? MOEK_SLICES_COLUMNS | MOEK_IN_PLACE
	                                         : MOEK_SLICES_ROWS | MOEK_IN_PLACE;
	uint64_t columns = tensor->rank < 2 ? 1 : tensor->shape[tensor->rank - 1];

	if (part == MOEK_PART_DOWN && is_bias)
		return layer->shard == 0 ? tensor->bytes : 0;
	/* what no slice is taken of: shapes, orders, scales of whole rows */
	if ((layer->codec->slices & heeded) == 0 || (tensor->rank < 2 && !is_bias) ||
	    (part == MOEK_PART_DOWN && columns == 1))
		return tensor->bytes;
	return tensor->bytes / layer->intermediate * layer->local +
	       tensor->bytes % layer->intermediate * layer->local / layer->intermediate;
}
