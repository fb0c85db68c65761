/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/expert.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/problem.h"
#include "core/status.h"

/** One matrix and what it must be. */
struct subject {
	const struct moek_matrix *matrix;
	const struct moek_scheme *scheme;
	const char *name; /* "gate" */
	uint64_t rows, columns;
	uint64_t number;
	struct moek_error *error_out;
};

void moek_expert_init(struct moek_expert *expert_out)
{
	memset(expert_out, 0, sizeof(*expert_out));
	expert_out->gate.struct_size = MOEK_MATRIX_SIZE_1_0;
	expert_out->up.struct_size = MOEK_MATRIX_SIZE_1_0;
	expert_out->down.struct_size = MOEK_MATRIX_SIZE_1_0;
}

static int32_t wrong(const struct subject *s, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int32_t wrong(const struct subject *s, const char *format, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	return moek_fail(s->error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
	                 "expert %llu: %s: %s", (unsigned long long)s->number, s->name,
	                 text);
}

static int32_t wrong_number(const struct subject *s, const char *field, uint64_t found,
                            uint64_t expected)
{
	return wrong(s, "%s %llu, the problem needs %llu", field,
	             (unsigned long long)found, (unsigned long long)expected);
}

static int32_t check_extent(const struct subject *s)
{
	const struct moek_matrix *m = s->matrix;

	if (m->struct_size < MOEK_MATRIX_SIZE_1_0)
		return wrong_number(s, "struct_size", m->struct_size,
		                    MOEK_MATRIX_SIZE_1_0);
	if (m->rows != s->rows)
		return wrong_number(s, "rows", m->rows, s->rows);
	if (s->rows == 0)
		return MOEK_OK;
	if (m->columns != s->columns)
		return wrong_number(s, "columns", m->columns, s->columns);
	if (m->weight != s->scheme->weight)
		return wrong(s, "weight %s, the problem needs %s",
		             moek_type_name(m->weight),
		             moek_type_name(s->scheme->weight));
	if (m->scale != s->scheme->scale)
		return wrong(s, "scale %s, the problem needs %s",
		             m->scale == 0 ? "none" : moek_type_name(m->scale),
		             s->scheme->scale == 0 ? "none"
		                                   : moek_type_name(s->scheme->scale));
	return MOEK_OK;
}

static int32_t check_groups(const struct subject *s)
{
	uint64_t expected = s->scheme->group_size != 0 ? s->scheme->group_size
	                                               : s->columns;
	uint64_t found = s->matrix->group_size;

	if (s->rows == 0 || s->scheme->scale == 0 || found == expected)
		return MOEK_OK;
	/* one group for the whole row, however it is said */
	if (found >= s->columns && expected >= s->columns)
		return MOEK_OK;
	return wrong_number(s, "group_size", found, expected);
}

static int32_t check_pointer(const struct subject *s, const char *field,
                             const void *pointer, int expected, uint64_t align)
{
	if ((pointer != NULL) != expected)
		return wrong(s, "%s are %s, the problem has %s", field,
		             pointer != NULL ? "given" : "NULL",
		             expected ? "them" : "none");
	if (align > 1 && (uintptr_t)pointer % align != 0)
		return wrong(s, "%s are not aligned to %llu bytes", field,
		             (unsigned long long)align);
	return MOEK_OK;
}

static int32_t check_pointers(const struct subject *s)
{
	const struct moek_matrix *m = s->matrix;
	int some = s->rows != 0;
	const struct {
		const char *field;
		const void *pointer;
		int expected;
		uint64_t align;
	} pointers[] = {
		{ "codes", m->codes, 1, moek_type_bytes(s->scheme->weight) },
		{ "scales", m->scales, s->scheme->scale != 0,
		  moek_type_bytes(s->scheme->scale) },
		{ "zeros", m->zeros, s->scheme->zero_points != 0, 1 },
		{ "column groups", m->column_group, s->scheme->column_groups != 0, 4 },
		{ "biases", m->bias, s->scheme->bias != 0, 4 },
	};

	for (size_t i = 0; some && i < sizeof(pointers) / sizeof(pointers[0]); i++) {
		int32_t status = check_pointer(s, pointers[i].field,
		                               pointers[i].pointer,
		                               pointers[i].expected, pointers[i].align);

		if (status != MOEK_OK)
			return status;
	}
	if (some && s->scheme->input_scale != 0 &&
	    !(m->input_scale > 0 && isfinite(m->input_scale)))
		return wrong(s, "input_scale %g, must be above 0",
		             (double)m->input_scale);
	return MOEK_OK;
}

static int32_t check_values(const struct subject *s)
{
	const struct moek_matrix *m = s->matrix;
	uint64_t groups = moek_scheme_groups(s->scheme, s->columns);

	if (s->rows == 0)
		return MOEK_OK;
	for (uint64_t i = 0; m->column_group != NULL && i < s->columns; i++)
		if (m->column_group[i] >= groups)
			return wrong(
				s, "column %llu is in group %u, there are %llu groups",
				(unsigned long long)i, m->column_group[i],
				(unsigned long long)groups);
	/* 16: what kernels make of a zero point that GPTQ stored as 15 */
	for (uint64_t i = 0;
	     m->zeros != NULL && s->scheme->weight == MOEK_INT4 && i < s->rows * groups;
	     i++)
		if (m->zeros[i] > 16)
			return wrong(
				s, "zero point %u in row %llu, group %llu, at most 16",
				m->zeros[i], (unsigned long long)(i / groups),
				(unsigned long long)(i % groups));
	return MOEK_OK;
}

int32_t moek_expert_check(const struct moek_problem *problem, uint64_t number,
                          const struct moek_expert *expert,
                          struct moek_error *error_out)
{
	const struct moek_problem *p = problem;
	const struct subject subjects[] = {
		{ &expert->gate, &p->gate_up, "gate", p->intermediate, p->hidden,
		  number, error_out },
		{ &expert->up, &p->gate_up, "up", p->gated ? p->intermediate : 0,
		  p->hidden, number, error_out },
		{ &expert->down, &p->down, "down", p->hidden, p->intermediate, number,
		  error_out },
	};
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < 3 && status == MOEK_OK; i++) {
		if ((status = check_extent(&subjects[i])) == MOEK_OK &&
		    (status = check_groups(&subjects[i])) == MOEK_OK &&
		    (status = check_pointers(&subjects[i])) == MOEK_OK)
			status = check_values(&subjects[i]);
	}
	return status;
}
