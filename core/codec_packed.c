/* SPDX-License-Identifier: MIT */
/*
 * compressed-tensors "pack-quantized" int4 and int8: eight or four codes in an int32,
 * lowest first, along the columns; zero points likewise along the rows. In the file's
 * byte order that is the canonical order of codes, so rows that fill their words are
 * used in place.
 */
#include "config.h"

#include "core/codec.h"
#include "core/json.h"
#include "core/problem.h"
#include "core/status.h"

#include <stdio.h>
#include <string.h>

#define FLOATS "BF16 F16 F32"

static struct moek_tensor_name name_of(const struct moek_expert_layer *layer,
                                       uint64_t expert, enum moek_part part,
                                       const char *suffix)
{
	return moek_layer_name(layer, expert, part, suffix);
}

static int present(struct moek_expert_layer *layer)
{
	struct moek_tensor tensor = { .dtype = "" };

	layer->fused = 0;
	return layer->family->gate != NULL &&
	       moek_layer_has(layer,
	                      name_of(layer, 0, MOEK_PART_GATE, ".weight_packed").text,
	                      &tensor) &&
	       strcmp(tensor.dtype, "I32") == 0;
}

/* ---- the config ---- */

/** The arguments of one group of config_groups; reason: why it is not read. */
struct group {
	uint64_t size;   /* 0: channel */
	uint32_t weight; /* MOEK_INT4 or MOEK_INT8 */
	uint32_t zero_points;
	uint32_t column_groups;
	uint32_t rule;
	char reason[160];
};

static const struct moek_json *member(const struct moek_json *object, const char *key)
{
	const struct moek_json *value = moek_json_get(object, key);

	return moek_json_kind(value) == MOEK_JSON_NULL ? NULL : value;
}

static void refuse(struct group *group, uint32_t rule, const char *what,
                   const char *found)
{
	group->rule = rule;
	snprintf(group->reason, sizeof(group->reason), "%s%.64s", what, found);
}

static int is_text(const struct moek_json *value, const char *text)
{
	const char *found = moek_json_string(value, NULL);

	return found != NULL && strcmp(found, text) == 0;
}

/** Codes in one int32. */
static uint64_t pack_of(uint32_t weight)
{
	return weight == MOEK_INT8 ? 4 : 8;
}

/** What a value says, for a message. */
static const char *shown(const struct moek_json *value)
{
	const char *text = moek_json_string(value, NULL);

	return text != NULL ? text : "(not a string)";
}

static void read_size(const struct moek_json *weights, struct group *group)
{
	const struct moek_json *strategy = member(weights, "strategy");
	int64_t size = 0;

	if (member(weights, "group_size") != NULL &&
	    !moek_json_integer(member(weights, "group_size"), &size)) {
		refuse(group, MOEK_RULE_GROUP_SIZE, "group_size is not a whole number",
		       "");
		return;
	}
	if (is_text(strategy, "channel") || (strategy == NULL && size == -1)) {
		group->size = 0;
		return;
	}
	if (strategy != NULL && !is_text(strategy, "group")) {
		refuse(group, MOEK_RULE_GROUP_SIZE,
		       "strategy is not read, only group and channel are: ",
		       shown(strategy));
		return;
	}
	if (size < 1 || size > (int64_t)MOEK_MODEL_SIZE) {
		refuse(group, MOEK_RULE_GROUP_SIZE,
		       "group_size is not in 1 .. 2^24, and strategy is not channel",
		       "");
		return;
	}
	group->size = (uint64_t)size;
}

static void read_order(const struct moek_json *weights, struct group *group)
{
	const struct moek_json *order = member(weights, "actorder");
	int boolean = 0;

	if (order == NULL || is_text(order, "weight") || is_text(order, "static"))
		return; /* stored as if there were no order */
	if (is_text(order, "group") || is_text(order, "dynamic")) {
		group->column_groups = 1;
		return;
	}
	if (moek_json_bool(order, &boolean)) {
		group->column_groups = (uint32_t)boolean;
		return;
	}
	refuse(group, MOEK_RULE_COLUMN_GROUPS, "actorder is not known: ", shown(order));
}

static void read_weights(const struct moek_json *weights, struct group *group)
{
	const struct moek_json *type = member(weights, "type");
	int64_t bits = 0;
	int symmetric = 1;
	char text[32];

	if (moek_json_kind(weights) != MOEK_JSON_OBJECT ||
	    !moek_json_integer(member(weights, "num_bits"), &bits)) {
		refuse(group, MOEK_RULE_WEIGHT, "weights.num_bits is missing", "");
		return;
	}
	snprintf(text, sizeof(text), "%lld", (long long)bits);
	group->weight = bits == 8 ? MOEK_INT8 : MOEK_INT4;
	if (bits != 4 && bits != 8)
		refuse(group, MOEK_RULE_WEIGHT,
		       "num_bits is not read, only 4 and 8 are: ", text);
	else if (type != NULL && !is_text(type, "int"))
		refuse(group, MOEK_RULE_WEIGHT,
		       "type is not read, only int is: ", shown(type));
	else if (member(weights, "symmetric") != NULL &&
	         !moek_json_bool(member(weights, "symmetric"), &symmetric))
		refuse(group, MOEK_RULE_ZERO_POINTS, "symmetric is not true or false",
		       "");
	if (group->rule == 0)
		read_size(weights, group);
	if (group->rule == 0)
		read_order(weights, group);
	group->zero_points = !symmetric;
}

/** @group is {weights, targets, ...}, or a list of targets under the name of a preset.
 */
static void read_group(const char *key, const struct moek_json *value,
                       struct group *group)
{
	const struct moek_json *format = member(value, "format");

	memset(group, 0, sizeof(*group));
	if (moek_json_kind(value) == MOEK_JSON_ARRAY) {
		group->size = 128;
		group->weight = strcmp(key, "W8A16") == 0 ? MOEK_INT8 : MOEK_INT4;
		group->zero_points = strcmp(key, "W4A16_ASYM") == 0;
		if (strcmp(key, "W4A16") != 0 && group->weight == MOEK_INT4 &&
		    !group->zero_points)
			refuse(group, MOEK_RULE_WEIGHT, "preset is not read: ", key);
		return;
	}
	if (format != NULL && !is_text(format, "pack-quantized"))
		refuse(group, MOEK_RULE_WEIGHT,
		       "format is not read, only pack-quantized is: ", shown(format));
	else if (member(value, "input_activations") != NULL ||
	         member(value, "output_activations") != NULL)
		refuse(group, MOEK_RULE_ACTIVATIONS,
		       "quantised activations are not read with pack-quantized", "");
	else
		read_weights(member(value, "weights"), group);
}

/** The tensors of expert 0 are those that a group asks for. */
static int fits(const struct moek_expert_layer *layer, const struct group *group)
{
	const struct moek_scheme scheme = { .scale = MOEK_BF16,
		                            .group_size = group->size };
	uint64_t pack = pack_of(group->weight);
	struct moek_tensor packed, scale, other;

	return moek_layer_has(layer,
	                      name_of(layer, 0, MOEK_PART_GATE, ".weight_packed").text,
	                      &packed) &&
	       packed.rank == 2 &&
	       packed.shape[1] == (layer->hidden + pack - 1) / pack &&
	       moek_layer_has(layer,
	                      name_of(layer, 0, MOEK_PART_GATE, ".weight_scale").text,
	                      &scale) &&
	       scale.rank == 2 &&
	       scale.shape[1] == moek_scheme_groups(&scheme, layer->hidden) &&
	       moek_layer_has(
		       layer,
		       name_of(layer, 0, MOEK_PART_GATE, ".weight_zero_point").text,
		       &other) == (int)group->zero_points &&
	       moek_layer_has(layer,
	                      name_of(layer, 0, MOEK_PART_GATE, ".weight_g_idx").text,
	                      &other) == (int)group->column_groups;
}

static int same_group(const struct group *a, const struct group *b)
{
	return a->weight == b->weight && a->size == b->size &&
	       a->zero_points == b->zero_points && a->column_groups == b->column_groups;
}

static int32_t refuse_config(const struct moek_expert_layer *layer, uint32_t rule,
                             const char *what, const char *found,
                             struct moek_error *error_out)
{
	return moek_fail(error_out, MOEK_REFUSED, rule,
	                 "%s: quantization_config: %s%.64s", layer->config_path, what,
	                 found);
}

/** Several groups: the one whose tensors are there. Which group targets which module is
 *  said in patterns that every tool reads in its own way; the tensors are not. */
static int32_t choose_group(const struct moek_expert_layer *layer,
                            const struct moek_json *groups, struct group *group_out,
                            struct moek_error *error_out)
{
	size_t count = moek_json_count(groups), bytes;
	const struct moek_json *value;
	struct group group, refused = { 0 };
	void *cursor = NULL;
	const char *key;
	int found = 0;

	while ((value = moek_json_next(groups, &cursor, &key, &bytes)) != NULL) {
		read_group(key, value, &group);
		if (group.rule != 0) {
			if (refused.rule == 0)
				refused = group;
			continue;
		}
		if (count > 1 && !fits(layer, &group))
			continue;
		if (found && !same_group(&group, group_out))
			return refuse_config(
				layer, MOEK_RULE_WEIGHT,
				"several config_groups fit the experts of ",
				layer->name, error_out);
		*group_out = group;
		found = 1;
	}
	if (found)
		return MOEK_OK;
	if (refused.rule != 0)
		return refuse_config(layer, refused.rule, refused.reason, "",
		                     error_out);
	return refuse_config(layer, MOEK_RULE_WEIGHT,
	                     "no config_group fits the experts of ", layer->name,
	                     error_out);
}

static int32_t read_config(const struct moek_expert_layer *layer,
                           const struct moek_json *quantization,
                           struct group *group_out, struct moek_error *error_out)
{
	const struct moek_json *format = member(quantization, "format");
	const struct moek_json *sparse = member(member(quantization, "sparsity_config"),
	                                        "format");

	if (format != NULL && !is_text(format, "pack-quantized") &&
	    !is_text(format, "mixed-precision"))
		return refuse_config(layer, MOEK_RULE_WEIGHT,
		                     "format is not read, only pack-quantized is: ",
		                     shown(format), error_out);
	if (sparse != NULL && !is_text(sparse, "dense"))
		return refuse_config(layer, MOEK_RULE_WEIGHT,
		                     "sparsity_config.format is not read: ",
		                     shown(sparse), error_out);
	if (moek_json_count(member(quantization, "transform_config")) != 0)
		return refuse_config(layer, MOEK_RULE_WEIGHT,
		                     "transform_config: rotated weights are not read",
		                     "", error_out);
	if (moek_json_kind(member(quantization, "config_groups")) != MOEK_JSON_OBJECT)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: quantization_config: config_groups is missing or not "
			"an object",
			layer->config_path);
	return choose_group(layer, member(quantization, "config_groups"), group_out,
	                    error_out);
}

/* ---- the tensors ---- */

static const struct moek_scheme *scheme_of(const struct moek_expert_layer *layer,
                                           enum moek_part part)
{
	return part == MOEK_PART_DOWN ? &layer->down : &layer->gate_up;
}

static int32_t describe_part(const struct moek_expert_layer *layer,
                             const struct group *group, enum moek_part part,
                             struct moek_scheme *scheme_out,
                             struct moek_error *error_out)
{
	struct moek_tensor_name name = name_of(layer, 0, part, ".weight_scale");
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t shape[2] = { of.rows, 0 };
	struct moek_tensor tensor;
	int32_t status;

	scheme_out->weight = group->weight;
	scheme_out->scale = MOEK_BF16;
	scheme_out->group_size = group->size;
	scheme_out->zero_points = group->zero_points;
	scheme_out->column_groups = group->column_groups;
	shape[1] = moek_scheme_groups(scheme_out, of.columns);
	status = moek_layer_need(layer, name.text, FLOATS, 2, shape, &tensor,
	                         error_out);
	if (status != MOEK_OK)
		return status;
	scheme_out->scale = tensor.type;
	scheme_out->bias = (uint32_t)moek_layer_has(
		layer, name_of(layer, 0, part, ".bias").text, &tensor);
	return MOEK_OK;
}

static int32_t describe(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out)
{
	struct group group = { 0 };
	char size[32] = "channel";
	int32_t status = read_config(layer, quantization, &group, error_out);

	if (status == MOEK_OK && group.column_groups && group.size == 0)
		status = refuse_config(layer, MOEK_RULE_COLUMN_GROUPS,
		                       "actorder group with strategy channel", "",
		                       error_out);
	if (status == MOEK_OK)
		status = describe_part(layer, &group, MOEK_PART_GATE, &layer->gate_up,
		                       error_out);
	if (status == MOEK_OK)
		status = describe_part(layer, &group, MOEK_PART_DOWN, &layer->down,
		                       error_out);
	if (group.size != 0)
		snprintf(size, sizeof(size), "group %llu",
		         (unsigned long long)group.size);
	snprintf(layer->format, sizeof(layer->format), "compressed-tensors %s%s, %s",
	         moek_type_name(layer->gate_up.weight),
	         group.zero_points ? " asymmetric" : "", size);
	return status;
}

struct tensors {
	struct moek_tensor packed, scale, zeros, order, bias;
	struct moek_tensor shape; /* dtype NULL: there is none */
};

/** A tensor that is there exactly if the scheme says so. */
static int32_t find_optional(const struct moek_expert_layer *layer, const char *name,
                             int expected, const char *dtypes, uint32_t rank,
                             const uint64_t *shape, struct moek_tensor *tensor_out,
                             struct moek_error *error_out)
{
	if (expected)
		return moek_layer_need(layer, name, dtypes, rank, shape, tensor_out,
		                       error_out);
	if (moek_layer_has(layer, name, tensor_out))
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: tensor %s: found %s, expected none: %s is %s",
		                 tensor_out->file, name,
		                 moek_tensor_text(tensor_out).text, layer->name,
		                 layer->format);
	return MOEK_OK;
}

static int32_t find_shape(const struct moek_expert_layer *layer, const char *name,
                          struct moek_tensor *tensor_out, struct moek_error *error_out)
{
	static const uint64_t shape[1] = { 2 };

	if (moek_layer_has(layer, name, tensor_out))
		return moek_layer_need(layer, name, "I64 I32", 1, shape, tensor_out,
		                       error_out);
	tensor_out->dtype = NULL;
	return MOEK_OK;
}

static int32_t find_part(const struct moek_expert_layer *layer, uint64_t expert,
                         enum moek_part part, struct tensors *out,
                         struct moek_error *error_out)
{
	const struct moek_scheme *scheme = scheme_of(layer, part);
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t groups = moek_scheme_groups(scheme, of.columns);
	uint64_t pack = pack_of(scheme->weight);
	const uint64_t packed[2] = { of.rows, (of.columns + pack - 1) / pack };
	const uint64_t scale[2] = { of.rows, groups };
	const uint64_t zeros[2] = { (of.rows + pack - 1) / pack, groups };
	int32_t status;

	status = moek_layer_need(layer,
	                         name_of(layer, expert, part, ".weight_packed").text,
	                         "I32", 2, packed, &out->packed, error_out);
	if (status == MOEK_OK)
		status = moek_layer_need(
			layer, name_of(layer, expert, part, ".weight_scale").text,
			moek_type_dtype(scheme->scale), 2, scale, &out->scale,
			error_out);
	if (status == MOEK_OK)
		status = find_optional(
			layer, name_of(layer, expert, part, ".weight_zero_point").text,
			scheme->zero_points != 0, "I32", 2, zeros, &out->zeros,
			error_out);
	if (status == MOEK_OK)
		status = find_optional(
			layer, name_of(layer, expert, part, ".weight_g_idx").text,
			scheme->column_groups != 0, "I32", 1, &of.columns, &out->order,
			error_out);
	if (status == MOEK_OK)
		status = find_optional(
			layer, name_of(layer, expert, part, ".bias").text,
			scheme->bias != 0, FLOATS, 1, &of.rows, &out->bias, error_out);
	if (status == MOEK_OK)
		status = find_shape(layer,
		                    name_of(layer, expert, part, ".weight_shape").text,
		                    &out->shape, error_out);
	return status;
}

static int64_t integer_at(const struct moek_tensor *tensor, uint64_t index)
{
	const uint8_t *data = tensor->data;
	int32_t narrow;
	int64_t wide;

	if (tensor->type == MOEK_I32) {
		memcpy(&narrow, data + index * sizeof(narrow), sizeof(narrow));
		return narrow;
	}
	memcpy(&wide, data + index * sizeof(wide), sizeof(wide));
	return wide;
}

static int32_t check_shape(const struct moek_tensor *shape, const char *name,
                           const struct moek_rows_of *of, struct moek_error *error_out)
{
	if (shape->dtype == NULL || (integer_at(shape, 0) == (int64_t)of->rows &&
	                             integer_at(shape, 1) == (int64_t)of->columns))
		return MOEK_OK;
	return moek_fail(error_out, MOEK_BAD_FILE, 0,
	                 "%s: tensor %s: holds [%lld, %lld], expected [%llu, %llu]",
	                 shape->file, name, (long long)integer_at(shape, 0),
	                 (long long)integer_at(shape, 1), (unsigned long long)of->rows,
	                 (unsigned long long)of->columns);
}

/** The group of each column. Writers put -1 where they have not set any. */
static int32_t read_columns(const struct moek_tensor *order, const char *name,
                            const struct moek_matrix *matrix, uint32_t *groups_out,
                            struct moek_error *error_out)
{
	uint64_t groups = (matrix->columns + matrix->group_size - 1) /
	                  matrix->group_size;
	int unset = 0;

	for (uint64_t c = 0; c < matrix->columns; c++) {
		int64_t group = integer_at(order, c);

		unset |= group == -1;
		if (group < -1 || group >= (int64_t)groups)
			return moek_fail(error_out, MOEK_BAD_FILE, 0,
			                 "%s: tensor %s: column %llu has group %lld, "
			                 "expected 0 .. %llu",
			                 order->file, name, (unsigned long long)c,
			                 (long long)group,
			                 (unsigned long long)groups - 1);
		groups_out[c] = (uint32_t)group;
	}
	for (uint64_t c = 0; c < matrix->columns && unset; c++)
		groups_out[c] = (uint32_t)(c / matrix->group_size);
	return MOEK_OK;
}

/** What the scheme may lack: zero points, groups of columns, bias. */
static int32_t add_optional(const struct moek_scheme *scheme,
                            const struct tensors *from, const char *order_name,
                            struct moek_scratch *scratch, struct moek_matrix *matrix,
                            struct moek_error *error_out)
{
	const struct moek_rows_of of = { .rows = matrix->rows, .step = 1 };
	uint32_t *columns;

	if (scheme->zero_points) {
		matrix->zeros = moek_view_zeros(scratch, from->zeros.data,
		                                scheme->weight, &of,
		                                from->zeros.shape[1]);
		if (matrix->zeros == NULL)
			return moek_fail_memory(error_out, "zero points of an expert");
	}
	if (scheme->bias) {
		matrix->bias = moek_view_floats(scratch, from->bias.data,
		                                from->bias.type, 0, 1, matrix->rows);
		if (matrix->bias == NULL)
			return moek_fail_memory(error_out, "bias of an expert");
	}
	if (!scheme->column_groups)
		return MOEK_OK;
	columns = moek_scratch_take(scratch, matrix->columns * sizeof(*columns),
	                            sizeof(*columns));
	if (columns == NULL)
		return moek_fail_memory(error_out, "column groups of an expert");
	matrix->column_group = columns;
	return read_columns(&from->order, order_name, matrix, columns, error_out);
}

static int32_t matrix(const struct moek_expert_layer *layer, uint64_t expert,
                      enum moek_part part, struct moek_scratch *scratch,
                      struct moek_matrix *matrix_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = scheme_of(layer, part);
	struct moek_rows_of of = moek_layer_rows(layer, part);
	uint64_t scalar = moek_scalar_bytes(scheme->scale), scale_bytes;
	uint64_t row_bytes = scheme->weight == MOEK_INT8 ? of.columns
	                                                 : (of.columns + 1) / 2;
	struct tensors from;
	int32_t status = find_part(layer, expert, part, &from, error_out);

	if (status != MOEK_OK || scratch == NULL)
		return status;
	status = check_shape(&from.shape,
	                     name_of(layer, expert, part, ".weight_shape").text, &of,
	                     error_out);
	if (status != MOEK_OK)
		return status;
	moek_matrix_begin(matrix_out, scheme, &of);
	matrix_out->codes = moek_view_rows(scratch, from.packed.data, of.rows,
	                                   row_bytes, from.packed.shape[1] * 4, 1);
	scale_bytes = from.scale.shape[1] * scalar;
	matrix_out->scales = moek_view_rows(scratch, from.scale.data, of.rows,
	                                    scale_bytes, scale_bytes, scalar);
	if (matrix_out->codes == NULL || matrix_out->scales == NULL)
		return moek_fail_memory(error_out, "codes of an expert");
	return add_optional(scheme, &from,
	                    name_of(layer, expert, part, ".weight_g_idx").text, scratch,
	                    matrix_out, error_out);
}

static const char *const suffixes[] = { ".weight_packed",
	                                ".weight_scale",
	                                ".weight_zero_point",
	                                ".weight_g_idx",
	                                ".weight_shape",
	                                ".bias",
	                                NULL };

static const char *const methods[] = { "compressed-tensors", NULL };

const struct moek_codec moek_codec_packed = {
	.name = "pack-quantized int4 or int8",
	.methods = methods,
	.suffixes = suffixes,
	.present = present,
	.describe = describe,
	.matrix = matrix,
	.slices = MOEK_IN_PLACE,
};
