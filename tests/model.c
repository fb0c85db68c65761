/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/codec.h"
#include "model.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

static void begin_expert(struct moek_expert *expert)
{
	memset(expert, 0, sizeof(*expert));
	expert->gate.struct_size = MOEK_MATRIX_SIZE_1_0;
	expert->up.struct_size = MOEK_MATRIX_SIZE_1_0;
	expert->down.struct_size = MOEK_MATRIX_SIZE_1_0;
}

int32_t take(struct moek_checkpoint *checkpoint, uint64_t layer, uint64_t expert,
             struct taken *taken, struct moek_error *error_out)
{
	int32_t status;

	ck_assert_int_eq(
		moek_checkpoint_source(checkpoint, layer, &taken->source, error_out),
		MOEK_OK);
	/* an odd address: nothing may rely on how the scratch lies */
	taken->scratch = malloc(taken->source.scratch_bytes + 1);
	begin_expert(&taken->expert);
	status = taken->source.expert(taken->source.self, expert,
	                              (char *)taken->scratch + 1, &taken->expert,
	                              error_out);
	return status;
}

void drop(struct taken *taken)
{
	moek_source_close(&taken->source);
	free(taken->scratch);
}

struct moek_checkpoint *open_ok(const char *path)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };
	int32_t status = moek_checkpoint_open(NULL, path, &checkpoint, &error);

	ck_assert_msg(status == MOEK_OK, "%s", error.text);
	return checkpoint;
}

/** Weight at row, column of a canonical matrix. */
float weight_at(const struct moek_matrix *m, uint64_t row, uint64_t column)
{
	uint64_t groups = (m->columns + m->group_size - 1) / m->group_size;
	uint64_t group = m->column_group != NULL ? m->column_group[column]
	                                         : column / m->group_size;
	const uint8_t *nibbles = (const uint8_t *)m->codes +
	                         row * ((m->columns + 1) / 2);
	uint64_t at = row * groups + group;

	if (m->weight == MOEK_MXFP4)
		return moek_mxfp4_value(moek_nibble(nibbles, column),
		                        ((const uint8_t *)m->scales)[at]);
	if (m->weight == MOEK_INT4)
		return moek_int4_value(moek_nibble(nibbles, column),
		                       m->zeros != NULL ? m->zeros[at] : 8,
		                       moek_scalar(m->scales, m->scale, at));
	if (m->weight == MOEK_INT8)
		return ((float)((const uint8_t *)m->codes)[row * m->columns + column] -
		        (float)(m->zeros != NULL ? m->zeros[at] : 128)) *
		       moek_scalar(m->scales, m->scale, at);
	return moek_scalar(m->codes, m->weight, row * m->columns + column);
}

void expect_row(const struct moek_matrix *m, uint64_t row, const float *want)
{
	for (uint64_t c = 0; c < m->columns; c++)
		ck_assert_msg(moek_f32_bits(weight_at(m, row, c)) ==
		                      moek_f32_bits(want[c]),
		              "row %llu column %llu: %g, expected %g",
		              (unsigned long long)row, (unsigned long long)c,
		              (double)weight_at(m, row, c), (double)want[c]);
}

const char *folder;

void set_up(void)
{
	folder = kit_folder();
}

static void hear(void *self, uint32_t level, const char *text)
{
	struct heard *heard = self;

	if (level > 4)
		return;
	heard->warnings++;
	snprintf(heard->last, sizeof(heard->last), "%s", text);
}

void take_all_heard(struct heard *heard_out)
{
	struct moek_registry_options options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.config_file = "",
		.ignore_environment = 1,
		.log = hear,
		.log_self = heard_out,
	};
	struct moek_registry *registry = NULL;
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };
	struct taken taken;

	ck_assert_int_eq(moek_registry_open(&options, &registry, &error), MOEK_OK);
	memset(heard_out, 0, sizeof(*heard_out));
	ck_assert_msg(moek_checkpoint_open(registry, folder, &checkpoint, &error) ==
	                      MOEK_OK,
	              "%s", error.text);
	for (unsigned e = 0; e < 2; e++) {
		ck_assert_msg(take(checkpoint, 0, e, &taken, &error) == MOEK_OK, "%s",
		              error.text);
		drop(&taken);
	}
	moek_checkpoint_close(checkpoint);
	moek_registry_close(registry);
}

/** A model of two experts of which one is chosen. @more is further JSON, or "". */
void write_config(const char *type, unsigned hidden, unsigned intermediate,
                  const char *more)
{
	char text[4096];
	int bytes = snprintf(
		text, sizeof(text),
		"{\"model_type\":\"%s\",\"num_hidden_layers\":1,\"num_experts\":2,"
		"\"num_experts_per_tok\":1,\"hidden_size\":%u,\"intermediate_size\":%u,"
		"\"moe_intermediate_size\":%u,\"norm_topk_prob\":true,"
		"\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\",\"n_group\":1,"
		"\"topk_group\":1%s%s}",
		type, hidden, intermediate, intermediate, more[0] != '\0' ? "," : "",
		more);

	ck_assert_int_lt(bytes, (int)sizeof(text));
	kit_write(kit_path(folder, "config.json"), text, (size_t)bytes);
}

void add_sized(struct kit_file *file, const char *name, const char *dtype,
               const void *data, unsigned rank, unsigned a, unsigned b, unsigned c,
               unsigned d)
{
	const unsigned sizes[4] = { a, b, c, d };
	char shape[64] = "";
	size_t used = 0;

	for (unsigned i = 0; i < rank; i++)
		used += (size_t)snprintf(shape + used, sizeof(shape) - used, "%s%u",
		                         i == 0 ? "" : ",", sizes[i]);
	kit_add(file, name, dtype, shape, data);
}

void save(struct kit_file *file)
{
	kit_save(file, kit_path(folder, "model.safetensors"));
}

int32_t open_here(struct moek_error *error_out)
{
	struct moek_checkpoint *checkpoint = NULL;
	int32_t status = moek_checkpoint_open(NULL, folder, &checkpoint, error_out);

	moek_checkpoint_close(checkpoint);
	return status;
}

/** It does not open; the error has all the words of @says (NULL-ended). */
void expect_error(int32_t status, const char *const *says)
{
	struct moek_error error = { .text = "" };

	ck_assert_int_eq(open_here(&error), status);
	ck_assert_int_eq(error.status, status);
	for (; *says != NULL; says++)
		ck_assert_msg(strstr(error.text, *says) != NULL, "\"%s\" is not in: %s",
		              *says, error.text);
}
