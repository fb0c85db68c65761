/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/checkpoint.h"
#include "core/codec.h"
#include "core/json.h"
#include "core/log.h"
#include "core/pattern.h"
#include "core/problem.h"
#include "core/shard.h"
#include "core/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <moek/formats.h>

static const struct moek_codec *const codecs[] = {
	&moek_codec_rows,  &moek_codec_packed,     &moek_codec_blocks,
	&moek_codec_quark, &moek_codec_packed_fp4, &moek_codec_gptq,
	&moek_codec_awq,   &moek_codec_fp8,        &moek_codec_deepseek_fp4,
};

#define CODECS (sizeof(codecs) / sizeof(codecs[0]))

/* ---- names and headers ---- */

static int is_joined(const struct moek_expert_layer *layer, enum moek_part part)
{
	return layer->fused && part != MOEK_PART_DOWN &&
	       layer->family->fused_gate_up != NULL;
}

const char *moek_part_name(const struct moek_expert_layer *layer, enum moek_part part)
{
	const struct moek_family *family = layer->family;

	if (is_joined(layer, part))
		return family->fused_gate_up;
	if (part == MOEK_PART_GATE)
		return layer->fused ? family->fused_gate : family->gate;
	if (part == MOEK_PART_UP)
		return layer->fused ? family->fused_up : family->up;
	return layer->fused ? family->fused_down : family->down;
}

int moek_family_has(const struct moek_family *family, int fused)
{
	return fused ? family->fused_gate_up != NULL || family->fused_gate != NULL
	             : family->gate != NULL;
}

struct moek_tensor_name moek_layer_name(const struct moek_expert_layer *layer,
                                        uint64_t expert, enum moek_part part,
                                        const char *suffix)
{
	struct moek_tensor_name name;

	if (layer->fused)
		snprintf(name.text, sizeof(name.text), "%s%s%s%s", layer->prefix,
		         layer->family->experts, moek_part_name(layer, part), suffix);
	else
		snprintf(name.text, sizeof(name.text), "%s%s%llu.%s%s", layer->prefix,
		         layer->family->experts, (unsigned long long)expert,
		         moek_part_name(layer, part), suffix);
	return name;
}

int moek_layer_has(const struct moek_expert_layer *layer, const char *name,
                   struct moek_tensor *tensor_out)
{
	return moek_checkpoint_has(layer->checkpoint, name, tensor_out);
}

/** Whether @dtype is one of the words of @dtypes. */
static int is_one_of(const char *dtype, const char *dtypes)
{
	size_t length = strlen(dtype);

	while (*dtypes != '\0') {
		size_t word = strcspn(dtypes, " ");

		if (word == length && memcmp(dtypes, dtype, length) == 0)
			return 1;
		dtypes += word;
		dtypes += strspn(dtypes, " ");
	}
	return 0;
}

int32_t moek_layer_need(const struct moek_expert_layer *layer, const char *name,
                        const char *dtypes, uint32_t rank, const uint64_t *shape,
                        struct moek_tensor *tensor_out, struct moek_error *error_out)
{
	struct moek_tensor expected = { .dtype = dtypes, .rank = rank };
	int32_t status = moek_checkpoint_tensor(layer->checkpoint, name, tensor_out,
	                                        error_out);

	if (status != MOEK_OK)
		return status;
	memcpy(expected.shape, shape, rank * sizeof(*shape));
	if (is_one_of(tensor_out->dtype, dtypes) && tensor_out->rank == rank &&
	    memcmp(tensor_out->shape, shape, rank * sizeof(*shape)) == 0)
		return MOEK_OK;
	return moek_fail(
		error_out, MOEK_BAD_FILE, 0,
		"%s: tensor %s: found %s, expected %s (config.json: %llu experts, "
		"hidden %llu, intermediate %llu)",
		tensor_out->file, name, moek_tensor_text(tensor_out).text,
		moek_tensor_text(&expected).text, (unsigned long long)layer->experts,
		(unsigned long long)layer->hidden,
		(unsigned long long)layer->intermediate);
}

int32_t moek_layer_single(const struct moek_expert_layer *layer, const char *name,
                          struct moek_tensor *tensor_out, struct moek_error *error_out)
{
	static const uint64_t one = 1;
	int32_t status = moek_checkpoint_tensor(layer->checkpoint, name, tensor_out,
	                                        error_out);

	if (status == MOEK_OK && tensor_out->rank == 0 &&
	    is_one_of(tensor_out->dtype, "F32 BF16 F16"))
		return MOEK_OK;
	return status == MOEK_OK ? moek_layer_need(layer, name, "F32 BF16 F16", 1, &one,
	                                           tensor_out, error_out)
	                         : status;
}

const char *moek_type_dtype(uint32_t type)
{
	return type == MOEK_BF16 ? "BF16" : type == MOEK_F16 ? "F16" : "F32";
}

struct moek_rows_of moek_part_rows(enum moek_part part, uint32_t order, uint64_t hidden,
                                   uint64_t intermediate)
{
	struct moek_rows_of of = { .rows = intermediate, .columns = hidden, .step = 1 };
	int second = (part == MOEK_PART_UP) != (order == MOEK_UP_FIRST);

	if (part == MOEK_PART_DOWN) {
		of.rows = hidden;
		of.columns = of.all_columns = intermediate;
		of.all = hidden;
		return of;
	}
	of.all_columns = hidden;
	of.all = 2 * intermediate;
	if (order == MOEK_GATE_INTERLEAVED)
		of.step = 2;
	if (second)
		of.first = order == MOEK_GATE_INTERLEAVED ? 1 : intermediate;
	return of;
}

struct moek_rows_of moek_layer_rows(const struct moek_expert_layer *layer,
                                    enum moek_part part)
{
	struct moek_rows_of of = moek_part_rows(part, layer->family->fused_order,
	                                        layer->hidden, layer->intermediate);

	uint32_t slices = layer->codec != NULL && layer->local != 0
	                          ? layer->codec->slices
	                          : 0;

	if (!is_joined(layer, part)) {
		of.first = 0;
		of.step = 1;
		of.all = of.rows;
	}
	if (part != MOEK_PART_DOWN && (slices & MOEK_SLICES_ROWS) != 0) {
		of.rows = layer->local;
		of.first += layer->first * of.step;
	}
	if (part == MOEK_PART_DOWN && (slices & MOEK_SLICES_COLUMNS) != 0) {
		of.columns = layer->local;
		of.first_column = layer->first;
	}
	return of;
}

/* ---- data ---- */

void *moek_scratch_take(struct moek_scratch *scratch, uint64_t bytes, uint64_t align)
{
	uint64_t skip = -(uint64_t)(uintptr_t)scratch->at & (align - 1);
	void *piece;

	if (scratch->left < skip || scratch->left - skip < bytes)
		return NULL;
	piece = scratch->at + skip;
	scratch->at += skip + bytes;
	scratch->left -= skip + bytes;
	return piece;
}

uint64_t moek_scalar_bytes(uint32_t type)
{
	return type == MOEK_F32 || type == MOEK_I32    ? 4
	       : type == MOEK_F16 || type == MOEK_BF16 ? 2
	                                               : 1;
}

const void *moek_view_rows(struct moek_scratch *scratch, const void *data,
                           uint64_t rows, uint64_t row_bytes, uint64_t stride,
                           uint64_t align)
{
	const uint8_t *from = data;
	uint8_t *to;

	if (stride == row_bytes && ((uintptr_t)data & (align - 1)) == 0)
		return data;
	to = moek_scratch_take(scratch, rows * row_bytes, align);
	for (uint64_t i = 0; i < rows && to != NULL; i++)
		memcpy(to + i * row_bytes, from + i * stride, row_bytes);
	return to;
}

float moek_scalar(const void *data, uint32_t type, uint64_t index)
{
	uint16_t half;
	float single;

	if (type == MOEK_F32) {
		memcpy(&single, (const uint8_t *)data + index * sizeof(single),
		       sizeof(single));
		return single;
	}
	memcpy(&half, (const uint8_t *)data + index * sizeof(half), sizeof(half));
	return type == MOEK_BF16 ? moek_bf16_to_f32(half) : moek_f16_to_f32(half);
}

const float *moek_view_floats(struct moek_scratch *scratch, const void *data,
                              uint32_t type, uint64_t first, uint64_t step,
                              uint64_t count)
{
	float *to = moek_scratch_take(scratch, count * sizeof(float), sizeof(float));

	for (uint64_t i = 0; i < count && to != NULL; i++)
		to[i] = moek_scalar(data, type, first + i * step);
	return to;
}

/** As below, of @bytes that the compiler knows. */
static inline void turn(uint8_t *to, const uint8_t *from, uint64_t rows,
                        uint64_t groups, size_t bytes)
{
	const uint64_t block = 32; /* rows whose lines stay in the cache meanwhile */

	for (uint64_t first = 0; first < rows; first += block)
		for (uint64_t g = 0; g < groups; g++)
			for (uint64_t r = first; r < rows && r < first + block; r++)
				memcpy(to + (r * groups + g) * bytes,
				       from + (g * rows + r) * bytes, bytes);
}

const void *moek_turn_scalars(struct moek_scratch *scratch, const void *data,
                              uint32_t type, uint64_t rows, uint64_t groups)
{
	uint64_t bytes = moek_scalar_bytes(type);
	uint8_t *to = moek_scratch_take(scratch, rows * groups * bytes, bytes);

	if (to != NULL && bytes == 2)
		turn(to, data, rows, groups, 2);
	else if (to != NULL)
		turn(to, data, rows, groups, 4);
	return to;
}

const uint8_t *moek_view_zeros(struct moek_scratch *scratch, const void *words,
                               uint32_t weight, const struct moek_rows_of *of,
                               uint64_t groups)
{
	const uint8_t
		*bytes = words; /* little-endian: row r is code r % pack of its word */
	uint64_t pack = weight == MOEK_INT8 ? 4 : 8;
	uint8_t *to = moek_scratch_take(scratch, of->rows * groups, 1);

	for (uint64_t i = 0; i < of->rows && to != NULL; i++) {
		uint64_t row = of->first + i * of->step;

		for (uint64_t g = 0; g < groups; g++) {
			const uint8_t *word = bytes + (row / pack * groups + g) * 4;

			to[i * groups + g] = weight == MOEK_INT8
			                             ? word[row % pack]
			                             : (uint8_t)moek_nibble(word,
			                                                    row % pack);
		}
	}
	return to;
}

void moek_matrix_begin(struct moek_matrix *matrix, const struct moek_scheme *scheme,
                       const struct moek_rows_of *of)
{
	memset(matrix, 0, sizeof(*matrix));
	matrix->struct_size = MOEK_MATRIX_SIZE_1_0;
	matrix->weight = scheme->weight;
	matrix->scale = scheme->scale;
	matrix->rows = of->rows;
	matrix->columns = of->columns;
	matrix->group_size = scheme->group_size != 0 ? scheme->group_size : of->columns;
}

void moek_layer_warn_scales(const struct moek_expert_layer *layer, const char *name,
                            const struct moek_odd_scales *odd)
{
	struct moek_log *log = moek_checkpoint_log(layer->checkpoint);
	unsigned long long all = odd->all;

	if (odd->not_finite != 0)
		moek_log_once(log, MOEK_LOG_WARNING, "scale is not finite",
		              "%s: %llu of %llu scales are NaN or infinite: so are "
		              "their weights",
		              name, (unsigned long long)odd->not_finite, all);
	if (odd->zero != 0)
		moek_log_once(log, MOEK_LOG_WARNING, "scale is zero",
		              "%s: %llu of %llu scales are zero: so are their weights",
		              name, (unsigned long long)odd->zero, all);
}

void moek_count_scale(struct moek_odd_scales *odd, float scale)
{
	odd->not_finite += isfinite(scale) ? 0 : 1;
	odd->zero += scale == 0 ? 1 : 0;
}

/** The scales of a matrix, as it was read. */
static void scan_scales(const struct moek_expert_layer *layer, uint64_t expert,
                        enum moek_part part, const struct moek_matrix *matrix)
{
	uint64_t groups = (matrix->columns + matrix->group_size - 1) /
	                  matrix->group_size;
	struct moek_odd_scales odd = { .all = matrix->rows * groups };
	struct moek_tensor_name name;

	if (matrix->scale == MOEK_E8M0) { /* the one odd value that it has is rare */
		if (memchr(matrix->scales, 0xff, odd.all) == NULL)
			return;
		for (uint64_t i = 0; i < odd.all; i++)
			odd.not_finite += ((const uint8_t *)matrix->scales)[i] == 0xff
			                          ? 1
			                          : 0;
	} else if (matrix->scale != 0) {
		for (uint64_t i = 0; i < odd.all; i++)
			moek_count_scale(&odd,
			                 moek_scalar(matrix->scales, matrix->scale, i));
	}
	if (odd.not_finite == 0 && odd.zero == 0)
		return;
	name = moek_layer_name(layer, expert, part, "");
	moek_layer_warn_scales(layer, name.text, &odd);
}

/** Bytes of the pieces of one matrix, each with room to align it. */
static uint64_t matrix_bytes(uint64_t rows, uint64_t columns,
                             const struct moek_scheme *scheme, int *overflow)
{
	uint64_t groups = moek_scheme_groups(scheme, columns), bytes;
	int is_half_byte = scheme->weight == MOEK_INT4 || scheme->weight == MOEK_MXFP4;

	bytes = is_half_byte ? columns / 2 + columns % 2
	                     : moek_multiply(columns, moek_scalar_bytes(scheme->weight),
	                                     overflow);
	bytes = moek_add(bytes, moek_multiply(groups, 5, overflow), overflow);
	bytes = moek_add(bytes, sizeof(float), overflow); /* bias */
	bytes = moek_multiply(bytes, rows, overflow);
	if (scheme->column_groups)
		bytes = moek_add(bytes, moek_multiply(columns, 4, overflow), overflow);
	return moek_add(bytes, 5 * sizeof(float), overflow);
}

uint64_t moek_scratch_bytes(uint64_t hidden, uint64_t intermediate,
                            const struct moek_scheme *gate_up,
                            const struct moek_scheme *down)
{
	int overflow = 0;
	uint64_t gate = matrix_bytes(intermediate, hidden, gate_up, &overflow);
	uint64_t bytes = moek_add(moek_multiply(gate, 2, &overflow),
	                          matrix_bytes(hidden, intermediate, down, &overflow),
	                          &overflow);

	return overflow ? 0 : bytes;
}

/* ---- finding the codec ---- */

static const struct moek_json *member(const struct moek_json *object, const char *key)
{
	const struct moek_json *value = moek_json_get(object, key);

	return moek_json_kind(value) == MOEK_JSON_NULL ? NULL : value;
}

static int means(const struct moek_codec *codec, const char *method)
{
	const char *const *known = codec->methods;

	if (known == NULL || method == NULL)
		return known == NULL && method == NULL;
	while (*known != NULL && strcasecmp(*known, method) != 0)
		known++;
	return *known != NULL;
}

/** The first codec that the config may mean; NULL: none that moek has. */
static const struct moek_codec *declared_codec(const char *method)
{
	for (size_t i = 0; i < CODECS; i++)
		if (means(codecs[i], method))
			return codecs[i];
	return NULL;
}

static const struct moek_codec *present_codec(struct moek_expert_layer *layer)
{
	for (size_t i = 0; i < CODECS; i++)
		if (codecs[i]->present(layer))
			return codecs[i];
	return NULL;
}

int moek_codec_present(struct moek_expert_layer *layer)
{
	return present_codec(layer) != NULL;
}

static int32_t refuse_method(const char *path, const char *method,
                             struct moek_error *error_out)
{
	char known[256] = "none";
	size_t used = strlen(known);

	for (size_t i = 0; i < CODECS; i++)
		for (const char *const *m = codecs[i]->methods; m != NULL && *m != NULL;
		     m++)
			if (declared_codec(*m) == codecs[i] && used < sizeof(known))
				used += (size_t)snprintf(
					known + used, sizeof(known) - used, ", %s", *m);
	return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
	                 "%s: quant_method \"%.64s\" is not read; read are: %s", path,
	                 method, known);
}

int32_t moek_codec_declared(const char *config_path,
                            const struct moek_json *quantization,
                            const struct moek_codec **codec_out,
                            struct moek_error *error_out)
{
	const char *method = moek_json_string(member(quantization, "quant_method"),
	                                      NULL);

	if (quantization != NULL && moek_json_kind(quantization) != MOEK_JSON_OBJECT)
		return moek_fail(error_out, MOEK_BAD_FILE, 0,
		                 "%s: quantization_config is not an object",
		                 config_path);
	if (quantization != NULL && method == NULL)
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: quantization_config: quant_method is missing or not a "
			"string",
			config_path);
	*codec_out = declared_codec(method);
	return *codec_out != NULL ? MOEK_OK
	                          : refuse_method(config_path, method, error_out);
}

/** Does an entry of an ignore list cover @module, or a part of its path? */
static int32_t covers(const struct moek_expert_layer *layer, const char *entry,
                      const char *module, int *covers_out, struct moek_error *error_out)
{
	size_t length = strlen(entry);

	if (strncmp(entry, "re:", 3) == 0)
		return moek_pattern_fits(entry + 3, module, layer->config_path,
		                         covers_out, error_out);
	*covers_out = (strncmp(entry, module, length) == 0 &&
	               (module[length] == '.' || module[length] == '\0')) ||
	              (strchr(entry, '*') != NULL && moek_glob_fits(entry, module));
	return MOEK_OK;
}

/** Entries of a list; AWQ means any part of a name. */
static int32_t find_in_list(const struct moek_expert_layer *layer,
                            const struct moek_json *list, int is_awq, int *found,
                            struct moek_error *error_out)
{
	struct moek_tensor_name module = moek_layer_name(layer, 0, MOEK_PART_GATE, "");
	int32_t status = MOEK_OK;

	for (size_t n = 0; n < moek_json_count(list) && !*found && status == MOEK_OK;
	     n++) {
		const char *entry = moek_json_string(moek_json_at(list, n), NULL);

		if (entry == NULL)
			continue;
		status = covers(layer, entry, module.text, found, error_out);
		*found = *found || (is_awq && strstr(module.text, entry) != NULL);
	}
	return status;
}

/** "dynamic" of GPTQModel: "-:PATTERN" leaves out. */
static int32_t find_in_dynamic(const struct moek_expert_layer *layer,
                               const struct moek_json *rules, int *found,
                               struct moek_error *error_out)
{
	struct moek_tensor_name module = moek_layer_name(layer, 0, MOEK_PART_GATE, "");
	void *cursor = NULL;
	const char *key;
	size_t bytes;
	int32_t status = MOEK_OK;

	while (status == MOEK_OK && !*found &&
	       moek_json_next(rules, &cursor, &key, &bytes) != NULL)
		if (strncmp(key, "-:", 2) == 0)
			status = moek_pattern_fits(key + 2, module.text,
			                           layer->config_path, found,
			                           error_out);
	return status;
}

/** "extra_config" of AutoRound: a module of 16 bits and more is left out. */
static int32_t find_in_extra(const struct moek_expert_layer *layer,
                             const struct moek_json *rules, int *found,
                             struct moek_error *error_out)
{
	struct moek_tensor_name module = moek_layer_name(layer, 0, MOEK_PART_GATE, "");
	const struct moek_json *value;
	void *cursor = NULL;
	const char *key;
	size_t bytes;
	int64_t bits;
	int fits = 0;
	int32_t status = MOEK_OK;

	while (status == MOEK_OK && !*found &&
	       (value = moek_json_next(rules, &cursor, &key, &bytes)) != NULL) {
		status = covers(layer, key, module.text, &fits, error_out);
		*found = fits &&
		         moek_json_integer(moek_json_get(value, "bits"), &bits) &&
		         bits >= 16;
	}
	return status;
}

/** The config itself says that the experts of this layer are not quantised. */
static int32_t is_left_out(const struct moek_expert_layer *layer,
                           const struct moek_json *quantization, int *out,
                           struct moek_error *error_out)
{
	static const char *const keys[] = { "ignore", "modules_to_not_convert",
		                            "exclude", "ignored_layers" };
	const char *method = moek_json_string(member(quantization, "quant_method"),
	                                      NULL);
	int is_awq = method != NULL && strcasecmp(method, "awq") == 0;
	int32_t status = MOEK_OK;

	*out = 0;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && status == MOEK_OK; i++)
		status = find_in_list(layer, moek_json_get(quantization, keys[i]),
		                      is_awq, out, error_out);
	if (status == MOEK_OK)
		status = find_in_dynamic(layer, moek_json_get(quantization, "dynamic"),
		                         out, error_out);
	if (status == MOEK_OK)
		status = find_in_extra(layer,
		                       moek_json_get(quantization, "extra_config"), out,
		                       error_out);
	return status;
}

static int32_t choose_codec(struct moek_expert_layer *layer,
                            const struct moek_json *quantization,
                            struct moek_error *error_out)
{
	const char *method = moek_json_string(member(quantization, "quant_method"),
	                                      NULL);
	const struct moek_codec *declared, *present;
	int left_out = 0;
	int32_t status = moek_codec_declared(layer->config_path, quantization,
	                                     &declared, error_out);

	if (status != MOEK_OK)
		return status;
	present = present_codec(layer);
	if (present == &moek_codec_rows && declared != present)
		status = is_left_out(layer, quantization, &left_out, error_out);
	if (status != MOEK_OK)
		return status;
	if (present != NULL && !left_out && !means(present, method))
		return moek_fail(
			error_out, MOEK_BAD_FILE, 0,
			"%s: quant_method %s asks for %s, but the experts of %s are "
			"stored as %s",
			layer->config_path, method != NULL ? method : "(none)",
			declared->name, layer->name, present->name);
	if (present == NULL)
		layer->fused = 0; /* describe() names the tensor that it misses */
	layer->codec = present != NULL ? present : declared;
	return MOEK_OK;
}

/** Experts that are not gated have no up rows. */
static int has_part(const struct moek_expert_layer *layer, enum moek_part part)
{
	return part != MOEK_PART_UP || !layer->family->not_gated;
}

int32_t moek_codec_find(struct moek_expert_layer *layer,
                        const struct moek_json *quantization,
                        struct moek_error *error_out)
{
	const char *path = layer->config_path;
	int32_t status = choose_codec(layer, quantization, error_out);

	if (status != MOEK_OK)
		return status;
	if (!moek_family_has(layer->family, 0) || layer->codec->suffixes == NULL)
		layer->fused = 1;
	if (layer->fused && (!moek_family_has(layer->family, 1) ||
	                     layer->codec->fused_suffixes == NULL))
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
		                 "%s: %s is not read for model_type %s", path,
		                 layer->codec->name, layer->family->name);
	status = layer->codec->describe(layer, quantization, error_out);
	for (uint64_t e = 0; e < (layer->fused ? 1 : layer->experts); e++)
		for (int part = 0; part < MOEK_PARTS && status == MOEK_OK; part++)
			if (has_part(layer, (enum moek_part)part))
				status = layer->codec->matrix(layer, e,
				                              (enum moek_part)part,
				                              NULL, NULL, error_out);
	if (status == MOEK_OK && moek_layer_scratch(layer) == 0)
		status = moek_fail(error_out, MOEK_BAD_FILE, 0,
		                   "%s: %s: one expert is over 64 bits of bytes", path,
		                   layer->name);
	return status;
}

uint64_t moek_layer_scratch(const struct moek_expert_layer *layer)
{
	uint64_t bytes = moek_scratch_bytes(layer->hidden, layer->intermediate,
	                                    &layer->gate_up, &layer->down);
	int is_cut = layer->local != 0 && layer->local != layer->intermediate;

	/* a shard is cut from the whole: there is at most the same again, and the
	 * config's limits leave room */
	return is_cut ? bytes * 2 : bytes;
}

int32_t moek_codec_expert(const struct moek_expert_layer *layer, uint64_t expert,
                          void *memory, struct moek_expert *expert_out,
                          struct moek_error *error_out)
{
	struct moek_matrix *const matrices[MOEK_PARTS] = { &expert_out->gate,
		                                           &expert_out->up,
		                                           &expert_out->down };
	struct moek_scratch scratch = { .at = memory,
		                        .left = moek_layer_scratch(layer) };
	int32_t status = MOEK_OK;

	for (int i = 0; i < MOEK_PARTS && status == MOEK_OK; i++) {
		enum moek_part part = (enum moek_part)i;

		if (!has_part(layer, part))
			continue;
		status = layer->codec->matrix(layer, expert, part, &scratch,
		                              matrices[i], error_out);
		if (status == MOEK_OK)
			status = moek_shard_cut(layer, part, &scratch, matrices[i],
			                        error_out);
		if (status == MOEK_OK)
			scan_scales(layer, expert, part, matrices[i]);
	}
	return status;
}
