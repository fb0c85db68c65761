/* SPDX-License-Identifier: MIT */
/* For fakes that misbehave while a layer is made or run: a table whose questions are
 * those of fake.h, and rows of fp32 to write. */
#ifndef MOEK_TEST_FAKE_LAYER_H
#define MOEK_TEST_FAKE_LAYER_H

#include "fake.h"

/* What a fake sets itself follows: create, load_expert, finish, workspace_shapes,
 * finalize, forward. */
#define LAYER_EXPERTS(the_name)                                                        \
	.struct_size = MOEK_EXPERTS_SIZE_1_0, .rank_class = MOEK_NATIVE,               \
	.name = (the_name), .understands = EVERYTHING,                                 \
	.supports_device = fake_any_host, .supports_quant_scheme = fake_yes,           \
	.supports_activation = fake_yes, .supports_parallel = fake_yes,                \
	.supports_shape = fake_yes, .problem_size = fake_problem_size,                 \
	.numerics = fake_numerics, .prepared_size = fake_prepared_size,                \
	.destroy = fake_destroy

#define LAYER_MADE                                                                     \
	.create = fake_create, .load_expert = fake_load_expert, .finish = fake_finish
#define LAYER_RUN                                                                      \
	.workspace_shapes = fake_workspace_shapes, .finalize = fake_reduced,           \
	.forward = fake_forward

/** One buffer "rows" with a row of fp32 for each slot. */
static inline int32_t rows_shape(void *plugin, const struct moek_problem *problem,
                                 uint64_t max_tokens, uint32_t workers,
                                 struct moek_buffer *buffers_out, uint32_t capacity)
{
	(void)plugin;
	(void)workers;
	if (capacity > 0)
		buffers_out[0] = (struct moek_buffer){
			.name = "rows",
			.elements = max_tokens * problem->top_k * problem->hidden,
			.align = 64,
			.type = MOEK_F32,
		};
	return 1;
}

static inline float *fake_row(const struct moek_rows *rows, uint64_t row)
{
	uint64_t stride = rows->row_stride != 0 ? rows->row_stride : rows->columns;

	return (float *)rows->data + row * stride;
}

/** Row `row` of fp32 output becomes @value. */
static inline void fill_row(const struct moek_rows *rows, uint64_t row, float value)
{
	for (uint64_t c = 0; c < rows->columns; c++)
		fake_row(rows, row)[c] = value;
}

#endif
