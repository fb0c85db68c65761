/* SPDX-License-Identifier: MIT */
/* Weights stay as the canonical expert has them, packed; only their places are ours. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>

#include "emulation.h"

#define ALIGN 64

/* The next part of @bytes; returns where it starts. */
static uint64_t part(uint64_t *end, uint64_t bytes, int *overflow)
{
	uint64_t start = *end;

	if (bytes > UINT64_MAX - ALIGN - start) {
		*overflow = 1;
		return 0;
	}
	*end = (start + bytes + ALIGN - 1) / ALIGN * ALIGN;
	return start;
}

static uint64_t element_bytes(uint32_t type)
{
	switch (type) {
	case MOEK_F32:
		return 4;
	case MOEK_F16:
	case MOEK_BF16:
		return 2;
	case MOEK_E8M0:
	case MOEK_INT8:
		return 1;
	default:
		return 0;
	}
}

static void lay_out(const struct moek_scheme *scheme, uint64_t rows, uint64_t columns,
                    struct layout *layout_out, int *overflow)
{
	struct layout l = { .rows = rows, .columns = columns };
	uint64_t end = ALIGN, grid;

	l.row_bytes = scheme->weight == MOEK_INT4 || scheme->weight == MOEK_MXFP4
	                      ? columns / 2 + columns % 2
	                      : moek_size_multiply(columns,
	                                           element_bytes(scheme->weight),
	                                           overflow);
	l.group_size = scheme->group_size != 0 ? scheme->group_size : columns;
	l.groups = columns / l.group_size + (columns % l.group_size != 0);
	grid = moek_size_multiply(rows, l.groups, overflow);
	l.codes = part(&end, moek_size_multiply(rows, l.row_bytes, overflow), overflow);
	l.scales = part(
		&end, moek_size_multiply(grid, element_bytes(scheme->scale), overflow),
		overflow);
	l.zeros = part(&end, scheme->zero_points ? grid : 0, overflow);
	l.column_group = part(
		&end,
		scheme->column_groups ? moek_size_multiply(columns, 4, overflow) : 0,
		overflow);
	l.bias = part(&end, scheme->bias ? moek_size_multiply(rows, 4, overflow) : 0,
	              overflow);
	l.bytes = end;
	*layout_out = l;
}

int layer_sizes(const struct moek_problem *problem, struct layer *layer_out)
{
	int overflow = 0;

	lay_out(&problem->gate_up, problem->intermediate, problem->hidden,
	        &layer_out->gate_up, &overflow);
	lay_out(&problem->down, problem->hidden, problem->intermediate,
	        &layer_out->down, &overflow);
	layer_out->expert_bytes = 0;
	part(&layer_out->expert_bytes, layer_out->gate_up.bytes, &overflow);
	if (problem->gated)
		part(&layer_out->expert_bytes, layer_out->gate_up.bytes, &overflow);
	part(&layer_out->expert_bytes, layer_out->down.bytes, &overflow);
	moek_size_multiply(layer_out->expert_bytes, problem->experts_local, &overflow);
	return !overflow;
}

int32_t create(void *plugin, const struct moek_device *device,
               const struct moek_problem *problem, void *weights, void **layer_out)
{
	struct layer *layer = calloc(1, sizeof(*layer));

	(void)device;
	if (layer == NULL)
		return MOEK_NO_MEMORY;
	layer->problem = *problem;
	layer->host = plugin;
	layer->weights = weights;
	layer_sizes(problem, layer); /* fits: supports_shape said so */
	*layer_out = layer;
	return MOEK_OK;
}

void destroy(void *layer)
{
	free(layer);
}

int32_t finish(void *layer)
{
	(void)layer;
	return MOEK_OK;
}

/* ---- one expert ---- */

struct load {
	const struct layer *layer;
	uint64_t local;
	const char *name; /* of the projection */
	const struct moek_scheme *scheme;
	const struct layout *layout;
};

/* The canonical expert is not what the problem said. */
static int32_t contradiction(const struct load *load, const char *what, uint64_t found,
                             uint64_t expected)
{
	const struct moek_host *host = load->layer->host;
	char text[160];

	snprintf(text, sizeof(text),
	         "emulation: expert %llu: %s of %s is %llu, the problem says %llu",
	         (unsigned long long)load->local, what, load->name,
	         (unsigned long long)found, (unsigned long long)expected);
	if (host != NULL)
		host->log(host->self, 3, text);
	return MOEK_BAD_ARGUMENT;
}

static int32_t check(const struct load *load, const struct moek_matrix *m)
{
	const struct layout *l = load->layout;
	uint64_t c;

	if (m->weight != load->scheme->weight)
		return contradiction(load, "weight type", m->weight,
		                     load->scheme->weight);
	if (m->rows != l->rows)
		return contradiction(load, "rows", m->rows, l->rows);
	if (m->columns != l->columns)
		return contradiction(load, "columns", m->columns, l->columns);
	if (m->codes == NULL)
		return contradiction(load, "presence of codes", 0, 1);
	if ((m->zeros != NULL) != (load->scheme->zero_points != 0))
		return contradiction(load, "presence of zero points", m->zeros != NULL,
		                     load->scheme->zero_points);
	if ((m->bias != NULL) != (load->scheme->bias != 0))
		return contradiction(load, "presence of a bias", m->bias != NULL,
		                     load->scheme->bias);
	if ((m->column_group != NULL) != (load->scheme->column_groups != 0))
		return contradiction(load, "presence of column groups",
		                     m->column_group != NULL,
		                     load->scheme->column_groups);
	for (c = 0; m->column_group != NULL && c < m->columns; c++)
		if (m->column_group[c] >= l->groups)
			return contradiction(load, "a column's group, of a count,",
			                     m->column_group[c], l->groups);
	if (load->scheme->scale == 0)
		return MOEK_OK;
	if (m->scale != load->scheme->scale)
		return contradiction(load, "scale type", m->scale, load->scheme->scale);
	if (m->scales == NULL)
		return contradiction(load, "presence of scales", 0, 1);
	/* one group for the whole row may be said in many ways */
	if (m->group_size != l->group_size &&
	    (m->group_size < l->columns || l->group_size < l->columns))
		return contradiction(load, "group size", m->group_size, l->group_size);
	return MOEK_OK;
}

static int32_t load_matrix(const struct load *load, const struct moek_matrix *m,
                           uint8_t *to)
{
	const struct layout *l = load->layout;
	uint64_t grid = l->rows * l->groups;
	int32_t status = check(load, m);

	if (status != MOEK_OK)
		return status;
	memcpy(to, &m->input_scale, sizeof(m->input_scale));
	memcpy(to + l->codes, m->codes, l->rows * l->row_bytes);
	if (load->scheme->scale != 0)
		memcpy(to + l->scales, m->scales, grid * element_bytes(m->scale));
	if (m->zeros != NULL)
		memcpy(to + l->zeros, m->zeros, grid);
	if (m->column_group != NULL)
		memcpy(to + l->column_group, m->column_group, l->columns * 4);
	if (m->bias != NULL)
		memcpy(to + l->bias, m->bias, l->rows * 4);
	return MOEK_OK;
}

/* A static activation scale must be there, and be one for gate and up: they multiply
 * the same input. */
static int32_t check_input_scales(const struct layer *layer, uint64_t local,
                                  const struct moek_expert *expert)
{
	const struct moek_host *host = layer->host;
	float gate = expert->gate.input_scale, down = expert->down.input_scale;
	char text[160];

	if (layer->problem.activations != MOEK_A8_FP8_STATIC)
		return MOEK_OK;
	if (gate > 0 && gate <= FLT_MAX && down > 0 && down <= FLT_MAX &&
	    (!layer->problem.gated ||
	     memcmp(&expert->up.input_scale, &gate, sizeof(gate)) == 0))
		return MOEK_OK;
	snprintf(text, sizeof(text),
	         "emulation: expert %llu: input scales are %g (gate), %g (up), %g "
	         "(down); they "
	         "must be positive, gate's and up's equal",
	         (unsigned long long)local, (double)gate,
	         (double)expert->up.input_scale, (double)down);
	if (host != NULL)
		host->log(host->self, 3, text);
	return MOEK_BAD_ARGUMENT;
}

int32_t load_expert(void *layer, uint64_t local, const struct moek_expert *expert)
{
	const struct layer *l = layer;
	uint8_t *to = l->weights + local * l->expert_bytes;
	struct load load = { l, local, "gate", &l->problem.gate_up, &l->gate_up };
	int32_t status = check_input_scales(l, local, expert);

	if (status == MOEK_OK)
		status = load_matrix(&load, &expert->gate, to);
	to += l->gate_up.bytes;
	if (status == MOEK_OK && l->problem.gated) {
		load.name = "up";
		status = load_matrix(&load, &expert->up, to);
		to += l->gate_up.bytes;
	}
	if (status != MOEK_OK)
		return status;
	load = (struct load){ l, local, "down", &l->problem.down, &l->down };
	return load_matrix(&load, &expert->down, to);
}
