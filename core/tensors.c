/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/codec.h"
#include "core/problem.h"
#include "core/status.h"
#include "core/tensors.h"

#include <stdlib.h>
#include <string.h>

/** What a source over stacks refers to. */
struct tensors {
	struct moek_problem problem;
	struct moek_stack gate_up, down;
};

/* The sizes of one stack and what they come to in bytes. */
struct extent {
	struct moek_rows_of of;              /* of one expert */
	uint64_t groups;                     /* 0: no scales */
	uint64_t row_bytes;                  /* of codes as they lie there */
	uint64_t zero_rows;                  /* words of zero points for one group */
	uint64_t codes, scales, zeros, bias; /* bytes of all experts */
};

static const struct moek_scheme *scheme_of(const struct moek_problem *problem,
                                           enum moek_part part)
{
	return part == MOEK_PART_DOWN ? &problem->down : &problem->gate_up;
}

static struct moek_rows_of rows_of(const struct moek_problem *problem,
                                   const struct moek_stack *stack, enum moek_part part)
{
	struct moek_rows_of of = moek_part_rows(part, stack->gate_order,
	                                        problem->hidden, problem->intermediate);

	if (problem->gated || part == MOEK_PART_DOWN)
		return of;
	of.first = 0;
	of.step = 1;
	of.all = problem->intermediate;
	if (part == MOEK_PART_UP)
		of.rows = 0;
	return of;
}

static int32_t measure(const struct moek_problem *problem,
                       const struct moek_stack *stack, enum moek_part part,
                       struct extent *extent_out, struct moek_error *error_out)
{
	const struct moek_scheme *scheme = scheme_of(problem, part);
	struct extent x = { .of = rows_of(problem, stack, part) };
	int overflow = 0;
	uint64_t rows = moek_multiply(problem->experts, x.of.all, &overflow);

	x.groups = moek_scheme_groups(scheme, x.of.columns);
	x.row_bytes = stack->layout == MOEK_LAYOUT_PACKED
	                      ? (x.of.columns / 8 + (x.of.columns % 8 != 0)) * 4
	              : stack->layout == MOEK_LAYOUT_BLOCKS
	                      ? x.of.columns / 2 + x.of.columns % 2
	                      : moek_multiply(x.of.columns,
	                                      moek_scalar_bytes(scheme->weight),
	                                      &overflow);
	x.zero_rows = x.of.all / 8 + (x.of.all % 8 != 0);
	x.codes = moek_multiply(rows, x.row_bytes, &overflow);
	x.scales = moek_multiply(
		rows,
		moek_multiply(x.groups, moek_scalar_bytes(scheme->scale), &overflow),
		&overflow);
	if (scheme->zero_points)
		x.zeros = moek_multiply(
			moek_multiply(problem->experts, x.zero_rows, &overflow),
			moek_multiply(x.groups, 4, &overflow), &overflow);
	if (scheme->bias)
		x.bias = moek_multiply(rows, moek_scalar_bytes(stack->bias_type),
		                       &overflow);
	if (overflow)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "tensors: %s is over 64 bits of bytes",
		                 part == MOEK_PART_DOWN ? "down" : "gate_up");
	*extent_out = x;
	return MOEK_OK;
}

static int32_t check_piece(const char *stack, const char *piece, const void *data,
                           const uint64_t bytes[2], struct moek_error *error_out)
{
	if (bytes[0] == bytes[1] && (data != NULL) == (bytes[1] != 0))
		return MOEK_OK;
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
	                 "tensors: %s.%s: found %llu bytes at %s, expected %llu", stack,
	                 piece, (unsigned long long)bytes[0],
	                 data != NULL ? "an address" : "NULL",
	                 (unsigned long long)bytes[1]);
}

static int32_t check_layout(const char *name, const struct moek_stack *stack,
                            const struct moek_scheme *scheme,
                            struct moek_error *error_out)
{
	int is_plain = scheme->weight == MOEK_BF16 || scheme->weight == MOEK_F16 ||
	               scheme->weight == MOEK_F32;
	int fits = stack->layout == MOEK_LAYOUT_ROWS     ? is_plain
	           : stack->layout == MOEK_LAYOUT_PACKED ? scheme->weight == MOEK_INT4
	           : stack->layout == MOEK_LAYOUT_BLOCKS ? scheme->weight == MOEK_MXFP4
	                                                 : 0;

	if (!fits)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "tensors: %s.layout %u does not hold weight %s", name,
		                 stack->layout, moek_type_name(scheme->weight));
	if (scheme->column_groups || scheme->input_scale)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "tensors: %s: a stack has no %s", name,
		                 scheme->column_groups ? "column_groups"
		                                       : "input_scale");
	if (scheme->bias && stack->bias_type != MOEK_F32 &&
	    stack->bias_type != MOEK_F16 && stack->bias_type != MOEK_BF16)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, 0,
			"tensors: %s.bias_type %u, expected bf16, fp16 or fp32", name,
			stack->bias_type);
	return MOEK_OK;
}

static int32_t check_stack(const struct moek_problem *problem,
                           const struct moek_stack *stack, enum moek_part part,
                           struct moek_error *error_out)
{
	const char *name = part == MOEK_PART_DOWN ? "down" : "gate_up";
	struct extent x;
	int32_t status = check_layout(name, stack, scheme_of(problem, part), error_out);

	if (status == MOEK_OK && part != MOEK_PART_DOWN && problem->gated &&
	    (stack->gate_order < MOEK_GATE_FIRST ||
	     stack->gate_order > MOEK_GATE_INTERLEAVED))
		status = moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                   "tensors: %s.gate_order %u is not known", name,
		                   stack->gate_order);
	if (status == MOEK_OK)
		status = measure(problem, stack, part, &x, error_out);
	if (status != MOEK_OK)
		return status;
	status = check_piece(name, "codes", stack->codes,
	                     (const uint64_t[]){ stack->codes_bytes, x.codes },
	                     error_out);
	if (status == MOEK_OK)
		status = check_piece(
			name, "scales", stack->scales,
			(const uint64_t[]){ stack->scales_bytes, x.scales }, error_out);
	if (status == MOEK_OK)
		status = check_piece(name, "zeros", stack->zeros,
		                     (const uint64_t[]){ stack->zeros_bytes, x.zeros },
		                     error_out);
	if (status == MOEK_OK)
		status = check_piece(name, "bias", stack->bias,
		                     (const uint64_t[]){ stack->bias_bytes, x.bias },
		                     error_out);
	return status;
}

static int32_t take_matrix(const struct tensors *tensors, uint64_t expert,
                           enum moek_part part, struct moek_scratch *scratch,
                           struct moek_matrix *matrix_out, struct moek_error *error_out)
{
	const struct moek_stack *stack = part == MOEK_PART_DOWN ? &tensors->down
	                                                        : &tensors->gate_up;
	const struct moek_scheme *scheme = scheme_of(&tensors->problem, part);
	uint64_t row, scale_row, scalar = moek_scalar_bytes(scheme->scale);
	uint64_t tight, align = 1;
	struct extent x;
	int32_t status = measure(&tensors->problem, stack, part, &x, error_out);

	if (status != MOEK_OK)
		return status;
	moek_matrix_begin(matrix_out, scheme, &x.of);
	if (x.of.rows == 0)
		return MOEK_OK;
	row = expert * x.of.all + x.of.first;
	scale_row = x.groups * scalar;
	tight = x.row_bytes;
	if (stack->layout == MOEK_LAYOUT_ROWS)
		align = moek_scalar_bytes(scheme->weight);
	else
		tight = x.of.columns / 2 + x.of.columns % 2;
	matrix_out->codes = moek_view_rows(
		scratch, (const uint8_t *)stack->codes + row * x.row_bytes, x.of.rows,
		tight, x.of.step * x.row_bytes, align);
	if (x.groups != 0)
		matrix_out->scales = moek_view_rows(
			scratch, (const uint8_t *)stack->scales + row * scale_row,
			x.of.rows, scale_row, x.of.step * scale_row, scalar);
	if (scheme->zero_points)
		matrix_out->zeros = moek_view_zeros(scratch,
		                                    (const uint8_t *)stack->zeros +
		                                            expert * x.zero_rows *
		                                                    x.groups * 4,
		                                    scheme->weight, &x.of, x.groups);
	if (scheme->bias)
		matrix_out->bias = moek_view_floats(scratch, stack->bias,
		                                    stack->bias_type, row, x.of.step,
		                                    x.of.rows);
	if (matrix_out->codes == NULL ||
	    (x.groups != 0 && matrix_out->scales == NULL) ||
	    (scheme->zero_points && matrix_out->zeros == NULL) ||
	    (scheme->bias && matrix_out->bias == NULL))
		return moek_fail_memory(error_out, "rows of an expert");
	return MOEK_OK;
}

static int32_t take_expert(void *self, uint64_t expert, void *memory,
                           struct moek_expert *expert_out, struct moek_error *error_out)
{
	const struct tensors *tensors = self;
	const struct moek_problem *problem = &tensors->problem;
	struct moek_matrix *const matrices[MOEK_PARTS] = { &expert_out->gate,
		                                           &expert_out->up,
		                                           &expert_out->down };
	struct moek_scratch scratch = {
		.at = memory,
		.left = moek_scratch_bytes(problem->hidden, problem->intermediate,
		                           &problem->gate_up, &problem->down),
	};
	int32_t status = MOEK_OK;

	if (expert >= problem->experts)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "tensors: expert %llu of %llu",
		                 (unsigned long long)expert,
		                 (unsigned long long)problem->experts);
	for (int part = 0; part < MOEK_PARTS && status == MOEK_OK; part++)
		status = take_matrix(tensors, expert, (enum moek_part)part, &scratch,
		                     matrices[part], error_out);
	return status;
}

static void copy_stack(struct moek_stack *mine, const struct moek_stack *theirs)
{
	size_t bytes = theirs->struct_size < sizeof(*mine) ? theirs->struct_size
	                                                   : sizeof(*mine);

	memset(mine, 0, sizeof(*mine));
	memcpy(mine, theirs, bytes);
}

/** A copy of the problem. The number of tokens does not matter to weights, so it may
 *  still be 0, as moek_checkpoint_problem() leaves it. */
static int32_t read_problem(const struct moek_problem *theirs,
                            struct moek_problem *mine, struct moek_error *error_out)
{
	struct moek_problem problem = { 0 };
	size_t bytes = theirs->struct_size < sizeof(problem) ? theirs->struct_size
	                                                     : sizeof(problem);

	memcpy(&problem, theirs, bytes);
	if (problem.max_tokens == 0)
		problem.max_tokens = 1;
	return moek_problem_read(&problem, mine, error_out);
}

static int32_t read_arguments(const struct moek_problem *problem,
                              const struct moek_stack *gate_up,
                              const struct moek_stack *down, struct tensors *tensors,
                              struct moek_error *error_out)
{
	int32_t status = read_problem(problem, &tensors->problem, error_out);

	copy_stack(&tensors->gate_up, gate_up);
	copy_stack(&tensors->down, down);
	if (status == MOEK_OK)
		status = check_stack(&tensors->problem, &tensors->gate_up,
		                     MOEK_PART_GATE, error_out);
	if (status == MOEK_OK)
		status = check_stack(&tensors->problem, &tensors->down, MOEK_PART_DOWN,
		                     error_out);
	return status;
}

int32_t moek_tensors_source(const struct moek_problem *problem,
                            const struct moek_stack *gate_up,
                            const struct moek_stack *down,
                            struct moek_source *source_out,
                            struct moek_error *error_out)
{
	struct tensors *tensors;
	int32_t status;

	if (problem == NULL || gate_up == NULL || down == NULL || source_out == NULL)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, 0,
			"tensors: problem, gate_up, down or source_out is NULL");
	tensors = calloc(1, sizeof(*tensors));
	if (tensors == NULL)
		return moek_fail_memory(error_out, "source");
	status = read_arguments(problem, gate_up, down, tensors, error_out);
	if (status != MOEK_OK) {
		free(tensors);
		return status;
	}
	memset(source_out, 0, sizeof(*source_out));
	source_out->struct_size = MOEK_SOURCE_SIZE_1_0;
	source_out->self = tensors;
	source_out->scratch_bytes = moek_scratch_bytes(
		tensors->problem.hidden, tensors->problem.intermediate,
		&tensors->problem.gate_up, &tensors->problem.down);
	source_out->expert = take_expert;
	source_out->close = free;
	return MOEK_OK;
}

void moek_source_close(struct moek_source *source)
{
	if (source == NULL)
		return;
	if (source->close != NULL)
		source->close(source->self);
	memset(source, 0, sizeof(*source));
}
