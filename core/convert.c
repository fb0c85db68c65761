/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint's experts in another format: each weight rounded to the nearest value of
 * its group. Experts go through one at a time for each worker; every other tensor is
 * copied as it is.
 */
#include "config.h"

#include "core/checkpoint.h"
#include "core/codec.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/problem.h"
#include "core/status.h"
#include "core/store.h"
#include "core/threads.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <moek/formats.h>

#define FILE_MOST (UINT64_C(5) << 30)
#define GROUP_MOST 128u

struct conversion {
	struct moek_checkpoint *checkpoint;
	struct moek_conversion wanted;
	uint32_t scale_type;
	char *folder,
		*part; /* the folder asked for; the one written until all is well */
	struct moek_store *store;
	uint64_t done, all; /* bytes written and to write */
};

/* ---- one row of weights ---- */

static uint64_t groups_of(const struct moek_matrix *matrix)
{
	return matrix->scales == NULL ? 0
	                              : (matrix->columns + matrix->group_size - 1) /
	                                        matrix->group_size;
}

static float scale_at(const struct moek_matrix *matrix, uint64_t at)
{
	if (matrix->scale == MOEK_E8M0)
		return moek_e8m0_to_f32(((const uint8_t *)matrix->scales)[at]);
	return moek_scalar(matrix->scales, matrix->scale, at);
}

/** Row @row of the canonical @matrix as fp32. */
static void read_row(const struct moek_matrix *matrix, uint64_t row, float *out)
{
	uint64_t groups = groups_of(matrix);
	const uint8_t *codes = matrix->codes;

	for (uint64_t c = 0; c < matrix->columns; c++) {
		uint64_t group = matrix->column_group != NULL ? matrix->column_group[c]
		                                              : c / matrix->group_size;
		uint64_t at = row * groups + group;

		switch (matrix->weight) {
		case MOEK_INT4:
			out[c] = moek_int4_value(
				moek_nibble(codes + row * ((matrix->columns + 1) / 2),
			                    c),
				matrix->zeros != NULL ? matrix->zeros[at] : 8,
				scale_at(matrix, at));
			break;
		case MOEK_INT8:
			out[c] = moek_int4_value(
				codes[row * matrix->columns + c],
				matrix->zeros != NULL ? matrix->zeros[at] : 128,
				scale_at(matrix, at));
			break;
		case MOEK_MXFP4:
			out[c] = moek_mxfp4_value(
				moek_nibble(codes + row * ((matrix->columns + 1) / 2),
			                    c),
				((const uint8_t *)matrix->scales)[at]);
			break;
		default:
			out[c] = moek_scalar(codes, matrix->weight,
			                     row * matrix->columns + c);
		}
	}
}

static float round_to(uint32_t type, float value)
{
	return type == MOEK_BF16  ? moek_bf16_to_f32(moek_bf16_from_f32(value))
	       : type == MOEK_F16 ? moek_f16_to_f32(moek_f16_from_f32(value))
	                          : value;
}

static void put(uint32_t type, float value, uint8_t *to)
{
	uint16_t half = type == MOEK_BF16 ? moek_bf16_from_f32(value)
	                                  : moek_f16_from_f32(value);

	if (type == MOEK_F32)
		memcpy(to, &value, sizeof(value));
	else
		memcpy(to, &half, sizeof(half));
}

/* ---- quantising ---- */

/** The data of one module of one expert, as its tensors hold it. */
struct pieces {
	uint8_t *codes, *scales, *zeros, *bias;
	uint64_t row_bytes, groups;
};

/** The scale of a group from its span, as the file will keep it. 1 for a group of
 *  zeros: 0 would look like damage. */
static float group_scale(uint32_t type, float span)
{
	float scale = round_to(type, span / 15.0f);

	return scale == 0 ? 1.0f : scale;
}

static int32_t clamp(int32_t code)
{
	return code < 0 ? 0 : code > 15 ? 15 : code;
}

/** One group to codes 0 .. 15; 0: its scale does not fit the type of the scales. */
static int group_int4(const struct conversion *conversion, const float *values,
                      uint8_t *codes_out, float *scale_out, uint32_t *zero_out)
{
	uint64_t size = conversion->wanted.group_size;
	float least = 0, most = 0, scale;
	int32_t zero = 8;

	for (uint64_t i = 0; i < size; i++) {
		least = values[i] < least ? values[i] : least;
		most = values[i] > most ? values[i] : most;
	}
	if (!conversion->wanted.zero_points) {
		most = most > -least ? most : -least;
		least = -most;
	}
	scale = group_scale(conversion->scale_type, most - least);
	if (conversion->wanted.zero_points)
		zero = clamp(moek_int8_code(-least, scale));
	for (uint64_t i = 0; i < size; i++)
		codes_out[i] = (uint8_t)clamp(moek_int8_code(values[i], scale) + zero);
	*scale_out = scale;
	*zero_out = (uint32_t)zero;
	return isfinite(scale);
}

static void group_mxfp4(const float *values, uint8_t *codes_out, uint8_t *scale_out)
{
	float most = 0;

	for (uint32_t i = 0; i < MOEK_MX_BLOCK; i++)
		most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
	*scale_out = moek_mxfp4_scale_even(most);
	for (uint32_t i = 0; i < MOEK_MX_BLOCK; i++)
		codes_out[i] = (uint8_t)moek_mxfp4_code(values[i], *scale_out);
}

static int write_group(const struct conversion *conversion, uint64_t row,
                       uint64_t group, const float *values, const struct pieces *pieces)
{
	uint64_t size = conversion->wanted.group_size;
	uint64_t at = row * pieces->groups + group;
	uint8_t codes[GROUP_MOST];
	uint8_t *to = pieces->codes + row * pieces->row_bytes + group * size / 2;
	uint32_t zero = 0;
	float scale = 0;

	if (conversion->wanted.weight == MOEK_MXFP4)
		group_mxfp4(values, codes, pieces->scales + at);
	else if (!group_int4(conversion, values, codes, &scale, &zero))
		return 0;
	else
		put(conversion->scale_type, scale,
		    pieces->scales + at * moek_scalar_bytes(conversion->scale_type));
	for (uint64_t i = 0; i < size; i += 2)
		to[i / 2] = (uint8_t)(codes[i] | codes[i + 1] << 4);
	if (conversion->wanted.zero_points) /* 8 rows in a word, the lowest first */
		pieces->zeros[(row / 8 * pieces->groups + group) * 4 + row % 8 / 2] |=
			(uint8_t)(zero << (row % 2 * 4));
	return 1;
}

/** NULL, or what is wrong with the row. */
static const char *write_row(const struct conversion *conversion, uint64_t row,
                             uint64_t columns, const float *values,
                             const struct pieces *pieces)
{
	uint64_t size = conversion->wanted.group_size;

	if (size == 0) {
		for (uint64_t c = 0; c < columns; c++)
			put(conversion->wanted.weight, values[c],
			    pieces->codes + row * pieces->row_bytes +
			            c * moek_scalar_bytes(conversion->wanted.weight));
		return NULL;
	}
	for (uint64_t c = 0; c < columns; c++)
		if (!isfinite(values[c]))
			return "a weight is not finite, and codes cannot say so";
	for (uint64_t g = 0; g < columns / size; g++)
		if (!write_group(conversion, row, g, values + g * size, pieces))
			return "the scale of a group does not fit the model's type";
	return NULL;
}

/* ---- modules and their tensors ---- */

/** One tensor's worth of rows of an expert: a projection, or gate and up together. */
enum module { MODULE_GATE, MODULE_UP, MODULE_DOWN, MODULE_GATE_UP, MODULES };

static const enum module apart[] = { MODULE_GATE, MODULE_UP, MODULE_DOWN, MODULES };
static const enum module ungated[] = { MODULE_GATE, MODULE_DOWN, MODULES };
static const enum module joined[] = { MODULE_GATE_UP, MODULE_DOWN, MODULES };

enum piece { PIECE_CODES, PIECE_SCALES, PIECE_ZEROS, PIECE_BIAS, PIECE_SHAPE, PIECES };

static int is_fused(const struct conversion *conversion)
{
	return conversion->wanted.layout == MOEK_LAYOUT_BLOCKS;
}

static const enum module *modules_of(const struct conversion *conversion)
{
	const struct moek_expert_layer *layer = moek_checkpoint_experts(
		conversion->checkpoint, 0);

	return is_fused(conversion)       ? joined
	       : layer->family->not_gated ? ungated
	                                  : apart;
}

static uint64_t rows_of(const struct moek_expert_layer *layer, enum module module)
{
	return module == MODULE_DOWN      ? layer->hidden
	       : module == MODULE_GATE_UP ? 2 * layer->intermediate
	                                  : layer->intermediate;
}

static uint64_t columns_of(const struct moek_expert_layer *layer, enum module module)
{
	return module == MODULE_DOWN ? layer->intermediate : layer->hidden;
}

static const char *type_dtype(uint32_t type)
{
	return type == MOEK_BF16 ? "BF16" : type == MOEK_F16 ? "F16" : "F32";
}

/** One piece of one expert, without its name: dtype, shape, bytes. 0: there is none. */
static int piece_tensor(const struct conversion *conversion,
                        const struct moek_expert_layer *layer, enum module module,
                        enum piece piece, struct moek_tensor *tensor_out)
{
	const struct moek_conversion *wanted = &conversion->wanted;
	const struct moek_scheme *from = module == MODULE_DOWN ? &layer->down
	                                                       : &layer->gate_up;
	uint64_t rows = rows_of(layer, module), columns = columns_of(layer, module);
	uint64_t groups = wanted->group_size != 0 ? columns / wanted->group_size : 0;
	uint64_t scale_bytes = wanted->weight == MOEK_MXFP4
	                               ? 1
	                               : moek_scalar_bytes(conversion->scale_type);
	struct moek_tensor t = { .rank = 2, .shape = { rows, columns } };

	switch (piece) {
	case PIECE_CODES:
		t.dtype = wanted->weight == MOEK_INT4    ? "I32"
		          : wanted->weight == MOEK_MXFP4 ? "U8"
		                                         : type_dtype(wanted->weight);
		t.shape[1] /= wanted->weight == MOEK_INT4    ? 8
		              : wanted->weight == MOEK_MXFP4 ? 2
		                                             : 1;
		t.bytes = groups != 0
		                  ? rows * columns / 2
		                  : rows * columns * moek_scalar_bytes(wanted->weight);
		break;
	case PIECE_SCALES:
		t.dtype = wanted->weight == MOEK_MXFP4
		                  ? "U8"
		                  : type_dtype(conversion->scale_type);
		t.shape[1] = groups;
		t.bytes = rows * groups * scale_bytes;
		break;
	case PIECE_ZEROS:
		t.dtype = "I32";
		t.shape[0] = (rows + 7) / 8;
		t.shape[1] = groups;
		t.bytes = wanted->zero_points ? t.shape[0] * groups * 4 : 0;
		break;
	case PIECE_BIAS:
		t.rank = 1;
		t.dtype = type_dtype(conversion->scale_type);
		t.bytes = from->bias ? rows * moek_scalar_bytes(conversion->scale_type)
		                     : 0;
		break;
	default: /* PIECE_SHAPE */
		t.rank = 1;
		t.shape[0] = 2;
		t.dtype = "I64";
		t.bytes = wanted->weight == MOEK_INT4 ? 16 : 0;
	}
	*tensor_out = t;
	return t.bytes != 0;
}

static const char *piece_suffix(const struct conversion *conversion, enum piece piece)
{
	static const char *const packed[PIECES] = { ".weight_packed", ".weight_scale",
		                                    ".weight_zero_point", ".bias",
		                                    ".weight_shape" };
	static const char *const blocks[PIECES] = { "_blocks", "_scales", NULL, "_bias",
		                                    NULL };

	if (conversion->wanted.group_size == 0 && piece == PIECE_CODES)
		return ".weight";
	return is_fused(conversion) ? blocks[piece] : packed[piece];
}

static struct moek_tensor_name piece_name(const struct conversion *conversion,
                                          const struct moek_expert_layer *layer,
                                          uint64_t expert, enum module module,
                                          enum piece piece)
{
	struct moek_expert_layer to = *layer;
	enum moek_part part = module == MODULE_DOWN ? MOEK_PART_DOWN
	                      : module == MODULE_UP ? MOEK_PART_UP
	                                            : MOEK_PART_GATE;

	to.fused = (uint32_t)is_fused(conversion);
	return moek_layer_name(&to, expert, part, piece_suffix(conversion, piece));
}

/** All experts' in one: [experts][rows][blocks][16] of codes. */
static void fuse(const struct moek_expert_layer *layer, enum piece piece,
                 struct moek_tensor *tensor)
{
	memmove(tensor->shape + 1, tensor->shape, 3 * sizeof(tensor->shape[0]));
	tensor->shape[0] = layer->experts;
	tensor->rank++;
	if (piece == PIECE_CODES) {
		tensor->shape[2] /= MOEK_MX_BLOCK / 2;
		tensor->shape[3] = MOEK_MX_BLOCK / 2;
		tensor->rank = 4;
	}
	tensor->bytes *= layer->experts;
}

static int32_t add_layer(struct conversion *conversion,
                         const struct moek_expert_layer *layer,
                         struct moek_error *error_out)
{
	uint64_t experts = is_fused(conversion) ? 1 : layer->experts;
	int32_t status = MOEK_OK;

	for (uint64_t e = 0; e < experts; e++)
		for (const enum module *m = modules_of(conversion); *m != MODULES; m++)
			for (int p = 0; p < PIECES && status == MOEK_OK; p++) {
				enum piece piece = (enum piece)p;
				struct moek_tensor tensor;

				if (!piece_tensor(conversion, layer, *m, piece,
				                  &tensor))
					continue;
				if (is_fused(conversion))
					fuse(layer, piece, &tensor);
				conversion->all += tensor.bytes;
				status = moek_store_add(
					conversion->store,
					piece_name(conversion, layer, e, *m, piece)
						.text,
					&tensor, error_out);
			}
	return status;
}

/* ---- one expert ---- */

/** What the workers of one layer share. */
struct batch {
	struct conversion *conversion;
	const struct moek_expert_layer *layer;
	size_t first;    /* number of the layer's first tensor */
	size_t each;     /* tensors of one expert, or of all when fused */
	uint8_t *memory; /* [workers][memory_each] */
	uint64_t scratch_bytes, memory_each;
	pthread_mutex_t lock;
	int32_t status; /* of the first failure; under the lock */
	struct moek_error error;
};

static uint64_t align(uint64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

/** Row @row of a module: which matrix, and which row of that. */
static const struct moek_matrix *row_source(const struct moek_expert *expert,
                                            enum module module, uint32_t order,
                                            uint64_t *row)
{
	uint64_t at = *row, half = expert->gate.rows;
	int second;

	if (module != MODULE_GATE_UP)
		return module == MODULE_DOWN ? &expert->down
		       : module == MODULE_UP ? &expert->up
		                             : &expert->gate;
	if (order == MOEK_GATE_INTERLEAVED) {
		*row = at / 2;
		return at % 2 ? &expert->up : &expert->gate;
	}
	*row = at % half;
	second = at >= half;
	return second != (order == MOEK_UP_FIRST) ? &expert->up : &expert->gate;
}

static int32_t convert_rows(const struct batch *batch, uint64_t number,
                            const struct moek_expert *expert, enum module module,
                            const struct pieces *pieces, float *values,
                            struct moek_error *error_out)
{
	const struct conversion *conversion = batch->conversion;

	for (uint64_t r = 0; r < rows_of(batch->layer, module); r++) {
		uint64_t at = r;
		const struct moek_matrix *matrix = row_source(
			expert, module, batch->layer->family->fused_order, &at);
		const char *wrong;

		read_row(matrix, at, values);
		wrong = write_row(conversion, r, matrix->columns, values, pieces);
		if (wrong != NULL)
			return moek_fail(error_out, MOEK_BAD_FILE, 0,
			                 "%s: expert %llu, %s, row %llu: %s",
			                 batch->layer->name, (unsigned long long)number,
			                 module == MODULE_DOWN   ? "down"
			                 : matrix == &expert->up ? "up"
			                                         : "gate",
			                 (unsigned long long)at, wrong);
		if (pieces->bias != NULL)
			put(conversion->scale_type, matrix->bias[at],
			    pieces->bias +
			            r * moek_scalar_bytes(conversion->scale_type));
	}
	return MOEK_OK;
}

/** Quantise one module into @memory and write its tensors from number *tensor on. */
static int32_t convert_module(const struct batch *batch, uint64_t number,
                              const struct moek_expert *expert, enum module module,
                              uint8_t *memory, size_t *tensor,
                              struct moek_error *error_out)
{
	const struct conversion *conversion = batch->conversion;
	const struct moek_expert_layer *layer = batch->layer;
	uint64_t columns = columns_of(layer, module);
	int64_t shape[2] = { (int64_t)rows_of(layer, module), (int64_t)columns };
	uint8_t *data[PIECES] = { NULL };
	uint64_t bytes[PIECES] = { 0 };
	float *values = (float *)(void *)memory;
	struct pieces pieces;
	int32_t status;

	memory += align(columns * sizeof(float));
	for (int p = 0; p < PIECES; p++) {
		struct moek_tensor t;

		if (!piece_tensor(conversion, layer, module, (enum piece)p, &t))
			continue;
		data[p] = memory;
		bytes[p] = t.bytes;
		memory += align(t.bytes);
	}
	pieces = (struct pieces){ .codes = data[PIECE_CODES],
		                  .scales = data[PIECE_SCALES],
		                  .zeros = data[PIECE_ZEROS],
		                  .bias = data[PIECE_BIAS] };
	pieces.row_bytes = bytes[PIECE_CODES] / rows_of(layer, module);
	if (conversion->wanted.group_size != 0)
		pieces.groups = columns / conversion->wanted.group_size;
	if (pieces.zeros != NULL)
		memset(pieces.zeros, 0, bytes[PIECE_ZEROS]);
	if (data[PIECE_SHAPE] != NULL)
		memcpy(data[PIECE_SHAPE], shape, sizeof(shape));
	status = convert_rows(batch, number, expert, module, &pieces, values,
	                      error_out);
	for (int p = 0; p < PIECES && status == MOEK_OK; p++)
		if (data[p] != NULL)
			status = moek_store_write(
				conversion->store, (*tensor)++,
				is_fused(conversion) ? number * bytes[p] : 0, data[p],
				bytes[p], error_out);
	return status;
}

static void convert_expert(void *arg, uint64_t number, uint32_t worker)
{
	struct batch *batch = arg;
	uint8_t *memory = batch->memory + worker * batch->memory_each;
	size_t tensor = batch->first +
	                (is_fused(batch->conversion) ? 0 : number * batch->each);
	struct moek_expert expert;
	struct moek_error error;
	int32_t status;

	pthread_mutex_lock(&batch->lock);
	status = batch->status;
	pthread_mutex_unlock(&batch->lock);
	if (status != MOEK_OK)
		return;
	status = moek_codec_expert(batch->layer, number, memory, &expert, &error);
	memory += align(batch->scratch_bytes);
	for (const enum module *m = modules_of(batch->conversion);
	     *m != MODULES && status == MOEK_OK; m++)
		status = convert_module(batch, number, &expert, *m, memory, &tensor,
		                        &error);
	if (status == MOEK_OK)
		return;
	pthread_mutex_lock(&batch->lock);
	if (batch->status == MOEK_OK) {
		batch->status = status;
		batch->error = error;
	}
	pthread_mutex_unlock(&batch->lock);
}

static uint64_t module_memory(const struct conversion *conversion,
                              const struct moek_expert_layer *layer, enum module module)
{
	uint64_t bytes = align(columns_of(layer, module) * sizeof(float));
	struct moek_tensor tensor;

	for (int p = 0; p < PIECES; p++)
		if (piece_tensor(conversion, layer, module, (enum piece)p, &tensor))
			bytes += align(tensor.bytes);
	return bytes;
}

static void report(struct conversion *conversion, uint64_t bytes)
{
	conversion->done += bytes;
	if (conversion->wanted.progress != NULL)
		conversion->wanted.progress(conversion->wanted.progress_self,
		                            conversion->done, conversion->all);
}

/** The tensors of one layer, from number *tensor on. */
static int32_t convert_layer(struct conversion *conversion,
                             const struct moek_expert_layer *layer, size_t *tensor,
                             struct moek_error *error_out)
{
	const struct moek_workers *workers = moek_checkpoint_workers(
		conversion->checkpoint);
	struct batch batch = { .conversion = conversion, .layer = layer };
	uint64_t largest = 0, bytes = 0;
	int overflow = 0;

	batch.first = *tensor;
	for (const enum module *m = modules_of(conversion); *m != MODULES; m++) {
		uint64_t memory = module_memory(conversion, layer, *m);
		struct moek_tensor t;

		largest = memory > largest ? memory : largest;
		for (int p = 0; p < PIECES; p++)
			if (piece_tensor(conversion, layer, *m, (enum piece)p, &t)) {
				batch.each++;
				bytes += t.bytes * layer->experts;
			}
	}
	*tensor += is_fused(conversion) ? batch.each : batch.each * layer->experts;
	batch.scratch_bytes = moek_scratch_bytes(layer->hidden, layer->intermediate,
	                                         &layer->gate_up, &layer->down);
	batch.memory_each = align(batch.scratch_bytes) + largest;
	batch.memory = moek_memory_alloc(
		moek_multiply(batch.memory_each, workers->count, &overflow), 64);
	if (batch.memory == NULL || overflow) {
		moek_memory_free(batch.memory);
		return moek_fail_memory(error_out, "rows of the experts");
	}
	pthread_mutex_init(&batch.lock, NULL);
	moek_parallel_for(workers, layer->experts, convert_expert, &batch);
	pthread_mutex_destroy(&batch.lock);
	moek_memory_free(batch.memory);
	if (batch.status != MOEK_OK && error_out != NULL)
		*error_out = batch.error;
	if (batch.status == MOEK_OK)
		report(conversion, bytes);
	return batch.status;
}

/* ---- what is copied ---- */

/** A tensor beside the experts is quantised too: one config cannot tell both stories.
 */
static int32_t refuse_quantised(const struct conversion *conversion, const char *name,
                                struct moek_error *error_out)
{
	const struct moek_codec
		*codec = moek_checkpoint_experts(conversion->checkpoint, 0)->codec;
	size_t length = strlen(name);

	for (const char *const *suffix = codec->suffixes;
	     suffix != NULL && *suffix != NULL; suffix++) {
		size_t end = strlen(*suffix);

		if (strcmp(*suffix, ".weight") != 0 && strcmp(*suffix, ".bias") != 0 &&
		    length >= end && strcmp(name + length - end, *suffix) == 0)
			return moek_fail(
				error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
				"%s: tensor %s is quantised as the experts are, "
				"and only experts are converted: start from "
				"a checkpoint with plain weights elsewhere",
				moek_checkpoint_folder(conversion->checkpoint), name);
	}
	return MOEK_OK;
}

/** Name of tensor @i, which add_copies() has seen; NULL: an expert's, not copied. */
static const char *copied(const struct moek_checkpoint *checkpoint, uint64_t i,
                          struct moek_tensor *tensor_out)
{
	uint32_t use = 0;
	const char *name = moek_checkpoint_tensor_at(checkpoint, i, tensor_out, &use);

	return use == MOEK_USE_EXPERTS ? NULL : name;
}

static int32_t add_copies(struct conversion *conversion, struct moek_error *error_out)
{
	const struct moek_checkpoint *checkpoint = conversion->checkpoint;
	int32_t status = MOEK_OK;

	for (uint64_t i = 0;
	     i < moek_checkpoint_tensors(checkpoint) && status == MOEK_OK; i++) {
		struct moek_tensor tensor;
		uint32_t use;
		const char *name = moek_checkpoint_tensor_at(checkpoint, i, &tensor,
		                                             &use);

		if (name == NULL)
			return moek_fail(error_out, MOEK_REFUSED, 0,
			                 "%s: a tensor has over 8 dimensions, and "
			                 "cannot be copied",
			                 moek_checkpoint_folder(checkpoint));
		if (use == MOEK_USE_EXPERTS)
			continue;
		status = refuse_quantised(conversion, name, error_out);
		if (status == MOEK_OK)
			status = moek_store_add(conversion->store, name, &tensor,
			                        error_out);
		conversion->all += tensor.bytes;
	}
	return status;
}

static int32_t copy_tensors(struct conversion *conversion, size_t *number,
                            struct moek_error *error_out)
{
	const struct moek_checkpoint *checkpoint = conversion->checkpoint;
	int32_t status = MOEK_OK;

	for (uint64_t i = 0;
	     i < moek_checkpoint_tensors(checkpoint) && status == MOEK_OK; i++) {
		struct moek_tensor tensor;

		if (copied(checkpoint, i, &tensor) == NULL)
			continue;
		status = moek_store_write(conversion->store, (*number)++, 0,
		                          tensor.data, tensor.bytes, error_out);
		if (status == MOEK_OK)
			report(conversion, tensor.bytes);
	}
	return status;
}

static int32_t write_tensors(struct conversion *conversion,
                             struct moek_error *error_out)
{
	const struct moek_checkpoint *checkpoint = conversion->checkpoint;
	uint64_t layers = moek_checkpoint_layers(checkpoint);
	size_t number = 0;
	int32_t status = moek_store_open(conversion->part,
	                                 conversion->wanted.file_bytes,
	                                 &conversion->store, error_out);

	if (status == MOEK_OK)
		status = add_copies(conversion, error_out);
	for (uint64_t i = 0; i < layers && status == MOEK_OK; i++)
		status = add_layer(conversion, moek_checkpoint_experts(checkpoint, i),
		                   error_out);
	if (status == MOEK_OK)
		status = moek_store_begin(conversion->store, error_out);
	if (status == MOEK_OK)
		status = copy_tensors(conversion, &number, error_out);
	for (uint64_t i = 0; i < layers && status == MOEK_OK; i++)
		status = convert_layer(conversion,
		                       moek_checkpoint_experts(checkpoint, i), &number,
		                       error_out);
	return status == MOEK_OK ? moek_store_end(conversion->store, error_out)
	                         : status;
}

/* ---- config.json ---- */

/** Modules that stay plain: those of all copied matrices. */
static struct moek_json *plain_modules(const struct moek_checkpoint *checkpoint)
{
	static const char suffix[] = ".weight";
	struct moek_json *list = moek_json_new_array();

	for (uint64_t i = 0; i < moek_checkpoint_tensors(checkpoint); i++) {
		struct moek_tensor tensor;
		const char *name = copied(checkpoint, i, &tensor);
		char module[256];
		size_t length;

		if (name == NULL)
			continue;
		length = strlen(name);
		if (tensor.rank != 2 || length < sizeof(suffix) ||
		    length >= sizeof(module) ||
		    strcmp(name + length - (sizeof(suffix) - 1), suffix) != 0)
			continue;
		snprintf(module, sizeof(module), "%.*s",
		         (int)(length - (sizeof(suffix) - 1)), name);
		moek_json_append(list, moek_json_new_string(module));
	}
	return list;
}

static struct moek_json *weights_config(const struct moek_conversion *wanted)
{
	struct moek_json *weights = moek_json_new_object();

	moek_json_set(weights, "num_bits", moek_json_new_integer(4));
	moek_json_set(
		weights, "type",
		moek_json_new_string(wanted->weight == MOEK_MXFP4 ? "float" : "int"));
	moek_json_set(weights, "symmetric", moek_json_new_bool(!wanted->zero_points));
	moek_json_set(weights, "strategy", moek_json_new_string("group"));
	moek_json_set(weights, "group_size",
	              moek_json_new_integer((int64_t)wanted->group_size));
	moek_json_set(weights, "dynamic", moek_json_new_bool(0));
	if (wanted->weight == MOEK_MXFP4)
		moek_json_set(weights, "scale_dtype",
		              moek_json_new_string("torch.uint8"));
	return weights;
}

/** quantization_config of the result. */
static struct moek_json *new_quantization(const struct conversion *conversion)
{
	const struct moek_conversion *wanted = &conversion->wanted;
	const char *format = wanted->weight == MOEK_MXFP4 ? "mxfp4-pack-quantized"
	                                                  : "pack-quantized";
	struct moek_json *root = moek_json_new_object(), *groups, *group, *targets;

	if (is_fused(conversion)) {
		moek_json_set(root, "quant_method", moek_json_new_string("mxfp4"));
		moek_json_set(root, "modules_to_not_convert",
		              plain_modules(conversion->checkpoint));
		return root;
	}
	groups = moek_json_new_object();
	group = moek_json_new_object();
	targets = moek_json_new_array();
	moek_json_append(targets, moek_json_new_string("Linear"));
	moek_json_set(group, "targets", targets);
	moek_json_set(group, "format", moek_json_new_string(format));
	moek_json_set(group, "weights", weights_config(wanted));
	moek_json_set(groups, "group_0", group);
	moek_json_set(root, "quant_method", moek_json_new_string("compressed-tensors"));
	moek_json_set(root, "format", moek_json_new_string(format));
	moek_json_set(root, "quantization_status", moek_json_new_string("compressed"));
	moek_json_set(root, "config_groups", groups);
	moek_json_set(root, "ignore", plain_modules(conversion->checkpoint));
	return root;
}

static int32_t write_config(const struct conversion *conversion,
                            struct moek_error *error_out)
{
	static const char *const keys[] = { "quantization_config",
		                            "compression_config" };
	const char *config = moek_checkpoint_config(conversion->checkpoint);
	struct moek_json *root = NULL, *inner;
	char *path = NULL, *text = NULL;
	int32_t status = moek_json_parse(config, strlen(config), "config.json", &root,
	                                 error_out);

	if (status != MOEK_OK)
		return status;
	inner = moek_json_member(root, "text_config");
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		moek_json_remove(root, keys[i]);
		moek_json_remove(inner, keys[i]);
	}
	if (conversion->wanted.group_size != 0)
		moek_json_set(root, keys[0], new_quantization(conversion));
	text = moek_json_text(root);
	if (text == NULL || asprintf(&path, "%s/config.json", conversion->part) < 0)
		status = moek_fail_memory(error_out, "config.json");
	else
		status = moek_store_text(path, text, error_out);
	free(path);
	free(text);
	moek_json_free(root);
	return status;
}

/* ---- the other files of the folder ---- */

static int is_ours(const char *name)
{
	const char *dot = strstr(name, ".safetensors");

	return name[0] == '.' || strcmp(name, "config.json") == 0 ||
	       (dot != NULL && (strcmp(dot, ".safetensors") == 0 ||
	                        strcmp(dot, ".safetensors.index.json") == 0));
}

static int copy_data(int from, int to)
{
	char data[65536];
	ssize_t bytes;

	while ((bytes = read(from, data, sizeof(data))) > 0)
		for (ssize_t at = 0; at < bytes;) {
			ssize_t done = write(to, data + at, (size_t)(bytes - at));

			if (done <= 0)
				return 0;
			at += done;
		}
	return bytes == 0;
}

/** A regular file of the source folder; anything else is left. */
static int32_t copy_file(const struct conversion *conversion, int folder, int part,
                         const char *name, struct moek_error *error_out)
{
	int from = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK), to = -1;
	struct stat about;
	int copied = 1;

	if (from < 0 || fstat(from, &about) != 0)
		copied = 0;
	else if (S_ISREG(about.st_mode)) {
		to = openat(part, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		copied = to >= 0 && copy_data(from, to);
	}
	if (to >= 0 && close(to) != 0)
		copied = 0;
	if (from >= 0)
		close(from);
	return copied ? MOEK_OK
	              : moek_fail(error_out, MOEK_BAD_FILE, 0, "%s/%s: cannot copy: %s",
	                          moek_checkpoint_folder(conversion->checkpoint), name,
	                          strerror(errno));
}

static int32_t copy_files(const struct conversion *conversion,
                          struct moek_error *error_out)
{
	const char *folder = moek_checkpoint_folder(conversion->checkpoint);
	DIR *directory = opendir(folder);
	int part = open(conversion->part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int32_t status = MOEK_OK;
	const struct dirent *entry;

	if (directory == NULL || part < 0)
		status = moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: cannot read: %s",
		                   directory == NULL ? folder : conversion->part,
		                   strerror(errno));
	while (status == MOEK_OK && (entry = readdir(directory)) != NULL)
		if (!is_ours(entry->d_name))
			status = copy_file(conversion, dirfd(directory), part,
			                   entry->d_name, error_out);
	if (part >= 0)
		close(part);
	if (directory != NULL)
		closedir(directory);
	return status;
}

/** The unfinished folder: only files that were written here. */
static void remove_part(const char *part)
{
	DIR *directory = opendir(part);
	const struct dirent *entry;

	while (directory != NULL && (entry = readdir(directory)) != NULL)
		unlinkat(dirfd(directory), entry->d_name, 0);
	if (directory != NULL)
		closedir(directory);
	rmdir(part);
}

/* ---- the whole ---- */

static int32_t refuse_size(const struct moek_expert_layer *layer, const char *what,
                           uint64_t size, uint64_t group, struct moek_error *error_out)
{
	return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_GROUP_SIZE,
	                 "%s: %s %llu is no multiple of %llu, the group size asked for",
	                 layer->name, what, (unsigned long long)size,
	                 (unsigned long long)group);
}

static int32_t check_layer(const struct conversion *conversion,
                           const struct moek_expert_layer *layer,
                           struct moek_error *error_out)
{
	uint64_t group = conversion->wanted.group_size;
	const struct moek_family *family = layer->family;

	if (!is_fused(conversion) && family->gate == NULL)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
		                 "%s: %s keeps all experts in one tensor, and has no "
		                 "names for them one by one, as this format needs them",
		                 layer->name, family->name);
	if (is_fused(conversion) && family->fused_gate_up == NULL)
		return moek_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
			"%s: %s keeps experts one by one, and has no names for "
			"all in one tensor, as this format needs them",
			layer->name, family->name);
	if (group != 0 && layer->hidden % group != 0)
		return refuse_size(layer, "hidden", layer->hidden, group, error_out);
	if (group != 0 && layer->intermediate % group != 0)
		return refuse_size(layer, "intermediate", layer->intermediate, group,
		                   error_out);
	return MOEK_OK;
}

static int32_t check_wanted(const struct moek_conversion *wanted,
                            struct moek_error *error_out)
{
	uint64_t group = wanted->group_size;
	int is_int4 = wanted->weight == MOEK_INT4,
	    is_mxfp4 = wanted->weight == MOEK_MXFP4;
	int is_rows = wanted->weight == MOEK_BF16 || wanted->weight == MOEK_F16 ||
	              wanted->weight == MOEK_F32;

	if (!is_int4 && !is_mxfp4 && !is_rows)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_WEIGHT,
			"conversion: weight is %s, expected int4, mxfp4, bf16, "
			"fp16 or fp32",
			moek_type_name(wanted->weight));
	if (is_int4 ? group != 32 && group != 64 && group != 128
	            : group != (is_mxfp4 ? MOEK_MX_BLOCK : 0))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_GROUP_SIZE,
		                 "conversion: group_size is %llu, expected %s",
		                 (unsigned long long)group,
		                 is_int4    ? "32, 64 or 128"
		                 : is_mxfp4 ? "32"
		                            : "0");
	if (wanted->zero_points && !is_int4)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_ZERO_POINTS,
		                 "conversion: zero_points are for int4 only");
	if (wanted->layout != MOEK_LAYOUT_PACKED &&
	    !(wanted->layout == MOEK_LAYOUT_BLOCKS && is_mxfp4))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "conversion: layout is %u, expected %s",
		                 wanted->layout,
		                 is_mxfp4 ? "MOEK_LAYOUT_PACKED or MOEK_LAYOUT_BLOCKS"
		                          : "MOEK_LAYOUT_PACKED");
	return MOEK_OK;
}

/** Into the folder beside the one asked for, which takes its name when all is there. */
static int32_t convert(struct conversion *conversion, struct moek_error *error_out)
{
	struct stat about;
	int32_t status;

	if (lstat(conversion->folder, &about) == 0)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: is there already; nothing is overwritten",
		                 conversion->folder);
	if (mkdir(conversion->part, 0777) != 0)
		return moek_fail(error_out, MOEK_BAD_FILE, 0, "%s: cannot make it: %s",
		                 conversion->part, strerror(errno));
	status = write_tensors(conversion, error_out);
	if (status == MOEK_OK)
		status = write_config(conversion, error_out);
	if (status == MOEK_OK)
		status = copy_files(conversion, error_out);
	if (status == MOEK_OK && rename(conversion->part, conversion->folder) != 0)
		status = moek_fail(error_out, MOEK_BAD_FILE, 0,
		                   "%s: cannot rename to %s: %s", conversion->part,
		                   conversion->folder, strerror(errno));
	moek_store_close(conversion->store);
	if (status != MOEK_OK)
		remove_part(conversion->part);
	return status;
}

int32_t moek_checkpoint_convert(struct moek_checkpoint *checkpoint, const char *folder,
                                const struct moek_conversion *wanted,
                                struct moek_error *error_out)
{
	struct conversion conversion = { .checkpoint = checkpoint };
	size_t length = folder != NULL ? strlen(folder) : 0;
	int32_t status;

	if (checkpoint == NULL || wanted == NULL || length == 0)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, 0,
			"conversion: checkpoint, folder or conversion is missing");
	memcpy(&conversion.wanted, wanted,
	       wanted->struct_size < sizeof(*wanted) ? wanted->struct_size
	                                             : sizeof(*wanted));
	if (conversion.wanted.file_bytes == 0)
		conversion.wanted.file_bytes = FILE_MOST;
	status = check_wanted(&conversion.wanted, error_out);
	for (uint64_t i = 0;
	     i < moek_checkpoint_layers(checkpoint) && status == MOEK_OK; i++)
		status = check_layer(&conversion,
		                     moek_checkpoint_experts(checkpoint, i), error_out);
	if (status != MOEK_OK)
		return status;
	conversion.scale_type = moek_checkpoint_type(checkpoint);
	while (length > 1 && folder[length - 1] == '/')
		length--;
	if (asprintf(&conversion.folder, "%.*s", (int)length, folder) < 0)
		conversion.folder = NULL;
	else if (asprintf(&conversion.part, "%s.part", conversion.folder) < 0)
		conversion.part = NULL;
	status = conversion.folder != NULL && conversion.part != NULL
	                 ? convert(&conversion, error_out)
	                 : moek_fail_memory(error_out, "path");
	free(conversion.part);
	free(conversion.folder);
	return status;
}
