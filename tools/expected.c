/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/expected.h"
#include "tools/numbers.h"
#include "tools/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 128

static int has_tensor(const struct expected_file *file, const char *name)
{
	uint64_t count = moek_safetensors_count(file->file);

	for (uint64_t i = 0; i < count; i++) {
		uint64_t length;
		const char *found = moek_safetensors_name(file->file, i, &length);

		if (length == strlen(name) && memcmp(found, name, length) == 0)
			return 1;
	}
	return 0;
}

/** Tensor @name as [rows][columns]; 0: any number of them. */
static int32_t get_tensor(const struct expected_file *file, const char *name,
                          uint64_t rows, uint64_t columns,
                          struct moek_tensor *tensor_out, struct moek_error *error_out)
{
	int32_t status;

	tensor_out->struct_size = MOEK_INIT(TENSOR);
	status = moek_safetensors_tensor(file->file, name, tensor_out, error_out);
	if (status != MOEK_OK)
		return status;
	if (tensor_out->rank != 2)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: %s has %u dimensions, expected 2", file->path,
		                  name, tensor_out->rank);
	if ((columns != 0 && tensor_out->shape[1] != columns) ||
	    (rows != 0 && tensor_out->shape[0] != rows))
		return tool_error(
			error_out, MOEK_BAD_FILE,
			"%s: %s is [%llu][%llu], expected [%llu][%llu]", file->path,
			name, (unsigned long long)tensor_out->shape[0],
			(unsigned long long)tensor_out->shape[1],
			(unsigned long long)(rows != 0 ? rows : tensor_out->shape[0]),
			(unsigned long long)columns);
	return MOEK_OK;
}

static int32_t check_float(const struct expected_file *file, const char *name,
                           const struct moek_tensor *tensor,
                           struct moek_error *error_out)
{
	if (row_type_bytes(tensor->type) != 0)
		return MOEK_OK;
	return tool_error(error_out, MOEK_BAD_FILE,
	                  "%s: %s is %s, expected F32, F16 or BF16", file->path, name,
	                  tensor->dtype);
}

/** The first @rows rows of a float tensor, widened to fp32. */
static int32_t read_floats(const struct expected_file *file, const char *name,
                           uint64_t rows, uint64_t all_rows, uint64_t columns,
                           float **floats_out, struct moek_error *error_out)
{
	struct moek_tensor tensor = { 0 };
	int32_t status = get_tensor(file, name, all_rows, columns, &tensor, error_out);
	float *floats;

	if (status == MOEK_OK)
		status = check_float(file, name, &tensor, error_out);
	if (status != MOEK_OK)
		return status;
	floats = alloc_array(rows, columns, sizeof(float));
	if (floats == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY, "no memory for %s", name);
	for (uint64_t i = 0; i < rows * columns; i++)
		floats[i] = row_get(tensor.data, tensor.type, i);
	*floats_out = floats;
	return MOEK_OK;
}

static int32_t read_ids(const struct expected_file *file, const char *name,
                        uint64_t rows, uint64_t all_rows, uint64_t columns,
                        int32_t **ids_out, struct moek_error *error_out)
{
	struct moek_tensor tensor = { 0 };
	int32_t status = get_tensor(file, name, all_rows, columns, &tensor, error_out);

	if (status != MOEK_OK)
		return status;
	if (tensor.type != MOEK_I32)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: %s is %s, expected I32", file->path, name,
		                  tensor.dtype);
	*ids_out = alloc_array(rows, columns, sizeof(int32_t));
	if (*ids_out == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY, "no memory for %s", name);
	memcpy(*ids_out, tensor.data, rows * columns * sizeof(int32_t));
	return MOEK_OK;
}

static void name_tensor(char name[NAME_BYTES], const char *layer, const char *what)
{
	snprintf(name, NAME_BYTES, "%s.%s", layer, what);
}

int32_t expected_input(const struct expected_file *file, const char *layer,
                       uint64_t *tokens_out, uint32_t *type_out,
                       struct moek_error *error_out)
{
	struct moek_tensor tensor = { 0 };
	char name[NAME_BYTES];
	int32_t status;

	name_tensor(name, layer, "hidden_in");
	status = get_tensor(file, name, 0, 0, &tensor, error_out);
	if (status == MOEK_OK)
		status = check_float(file, name, &tensor, error_out);
	if (status != MOEK_OK)
		return status;
	if (tensor.shape[0] == 0)
		return tool_error(error_out, MOEK_BAD_FILE, "%s: %s has no rows",
		                  file->path, name);
	*tokens_out = tensor.shape[0];
	*type_out = tensor.type;
	return MOEK_OK;
}

static int32_t read_input(const struct expected_file *file, const char *layer,
                          uint64_t columns, struct expected *expected,
                          struct moek_error *error_out)
{
	struct moek_tensor tensor = { 0 };
	char name[NAME_BYTES];
	int32_t status;

	name_tensor(name, layer, "hidden_in");
	status = get_tensor(file, name, 0, columns, &tensor, error_out);
	if (status != MOEK_OK)
		return status;
	expected->input = alloc_array(expected->tokens, columns,
	                              row_type_bytes(tensor.type));
	if (expected->input == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY, "no memory for %s", name);
	memcpy(expected->input, tensor.data,
	       expected->tokens * columns * row_type_bytes(tensor.type));
	return MOEK_OK;
}

/** What may be there or not: the router's logits, and the chosen ids with their
 * weights. */
static int32_t read_routing(const struct expected_file *file, const char *layer,
                            const struct moek_problem *problem, uint64_t all_tokens,
                            struct expected *expected, struct moek_error *error_out)
{
	char name[NAME_BYTES];
	int32_t status = MOEK_OK;

	name_tensor(name, layer, "router_logits");
	if (has_tensor(file, name))
		status = read_floats(file, name, expected->tokens, all_tokens,
		                     problem->experts, &expected->logits, error_out);
	name_tensor(name, layer, "topk_ids");
	if (status != MOEK_OK || !has_tensor(file, name))
		return status;
	status = read_ids(file, name, expected->tokens, all_tokens, problem->top_k,
	                  &expected->ids, error_out);
	if (status != MOEK_OK)
		return status;
	name_tensor(name, layer, "topk_weights");
	return read_floats(file, name, expected->tokens, all_tokens, problem->top_k,
	                   &expected->weights, error_out);
}

int32_t expected_read(const struct expected_file *file, const char *layer,
                      const struct moek_problem *problem, uint64_t most,
                      struct expected *expected_out, struct moek_error *error_out)
{
	struct expected expected = { 0 };
	char name[NAME_BYTES];
	uint64_t all_tokens;
	int32_t status = expected_input(file, layer, &all_tokens, &expected.type,
	                                error_out);

	if (status != MOEK_OK)
		return status;
	expected.tokens = all_tokens < most ? all_tokens : most;
	status = read_input(file, layer, problem->hidden, &expected, error_out);
	if (status != MOEK_OK)
		goto fail;
	name_tensor(name, layer, "moe_out");
	status = read_floats(file, name, expected.tokens, all_tokens, problem->hidden,
	                     &expected.output, error_out);
	if (status != MOEK_OK)
		goto fail;
	status = read_routing(file, layer, problem, all_tokens, &expected, error_out);
	if (status != MOEK_OK)
		goto fail;
	*expected_out = expected;
	return MOEK_OK;

fail:
	expected_free(&expected);
	return status;
}

void expected_free(struct expected *expected)
{
	free(expected->input);
	free(expected->output);
	free(expected->logits);
	free(expected->ids);
	free(expected->weights);
	memset(expected, 0, sizeof(*expected));
}
