/* SPDX-License-Identifier: MIT */
/* From the canonical expert to panels. */
#include "cpu.h"

#include <moek/formats.h>

#include <string.h>

static uint64_t ceil_divide(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

static uint64_t round_up(uint64_t a, uint64_t b)
{
	return ceil_divide(a, b) * b;
}

static uint32_t int4_format(const struct moek_scheme *scheme, uint64_t columns)
{
	uint64_t group = scheme->group_size;
	uint32_t format = INT4_MANY;

	/* a group that holds the whole row is one unit, whatever its size */
	if (group == 16 && columns > 16)
		format = INT4_16;
	else if (group == 32 || columns <= 32)
		format = INT4_32;
	return scheme->zero_points ? format + (INT4_ZERO_16 - INT4_16) : format;
}

static void lay_units(struct layout *layout, const struct moek_scheme *scheme)
{
	uint32_t zero_bytes = scheme->zero_points ? 1 : 0;

	layout->sets = 1;
	layout->unit_steps = 1;
	layout->steps = ceil_divide(layout->columns, STEP);
	switch (layout->format) {
	case INT4_16:
	case INT4_ZERO_16:
		layout->sets = 2;
		break;
	case INT4_MANY:
	case INT4_ZERO_MANY:
		layout->unit_steps = ceil_divide(layout->group, STEP);
		break;
	case MXFP4_PAIR:
		layout->sets = 2;
		layout->unit_steps = 2;
		layout->steps = round_up(layout->steps, 2);
		break;
	default:
		break;
	}
	layout->head_bytes = round_up(
		layout->sets * ROWS * (layout->scale_bytes + zero_bytes), LINE);
}

static int lay(const struct moek_scheme *scheme, struct layout *layout)
{
	int overflow = 0;
	uint64_t units;

	layout->scale = scheme->scale;
	layout->bias = scheme->bias;
	layout->group = scheme->group_size;
	if (layout->group == 0 || layout->group > layout->columns)
		layout->group = layout->columns;
	if (scheme->weight == MOEK_MXFP4) {
		layout->format = MXFP4_PAIR;
		layout->group = MOEK_MX_BLOCK;
		layout->scale_bytes = 1;
	} else {
		layout->format = int4_format(scheme, layout->columns);
		layout->scale_bytes = scheme->scale == MOEK_F32 ? 4 : 2;
	}
	lay_units(layout, scheme);
	units = ceil_divide(layout->steps, layout->unit_steps);
	layout->panel_bytes = moek_size_multiply(layout->steps, STEP_BYTES, &overflow) +
	                      moek_size_multiply(units, layout->head_bytes, &overflow);
	layout->bytes = moek_size_multiply(layout->panels, layout->panel_bytes,
	                                   &overflow);
	if (layout->bias)
		layout->bytes += moek_size_multiply(layout->panels,
		                                    ROWS * sizeof(float), &overflow);
	return !overflow && layout->bytes < UINT64_MAX / 4;
}

int cpu_plan(const struct moek_problem *problem, struct plan *plan_out)
{
	/* 2^40 in any direction leaves every sum below far from overflow */
	const uint64_t most = UINT64_C(1) << 40;
	struct plan plan;
	int overflow = 0;

	if (problem->hidden > most || problem->intermediate > most)
		return 0;
	memset(&plan, 0, sizeof(plan));
	plan.down.rows = problem->hidden;
	plan.down.columns = problem->intermediate;
	plan.down.panels = ceil_divide(problem->hidden, ROWS);
	if (!lay(&problem->down, &plan.down))
		return 0;
	plan.gate_up.rows = problem->intermediate;
	plan.gate_up.columns = problem->hidden;
	plan.gate_up.gated = problem->gated;
	/* one step of the second GEMM is one panel of the first, or two when gated */
	plan.gate_up.panels = plan.down.steps * (problem->gated ? 2 : 1);
	if (!lay(&problem->gate_up, &plan.gate_up))
		return 0;
	plan.expert_bytes = plan.gate_up.bytes + plan.down.bytes;
	plan.bytes = moek_size_multiply(plan.expert_bytes, problem->experts_local,
	                                &overflow);
	if (overflow)
		return 0;
	*plan_out = plan;
	return 1;
}

uint32_t cpu_arithmetic(const struct kernels *kernels,
                        const struct moek_problem *problem)
{
	if (problem->activations == MOEK_A8_INT8)
		return BY_INT8;
	return problem->input_type == MOEK_BF16 && kernels->bf16 ? BY_BF16 : BY_F32;
}

void cpu_packing(const struct layout *layout, const struct kernels *kernels,
                 const struct moek_problem *problem, struct packing *packing_out)
{
	static const uint64_t step_bytes[ARITHMETICS] = {
		[BY_F32] = STEP * 4,
		[BY_BF16] = STEP * 2,
		[BY_INT8] = sizeof(struct int8_step),
	};
	int has_zero = layout->format >= INT4_ZERO_16 &&
	               layout->format <= INT4_ZERO_MANY;

	packing_out->arithmetic = cpu_arithmetic(kernels, problem);
	/* int8 codes are made from fp32: nothing is rounded twice */
	packing_out->type = packing_out->arithmetic == BY_INT8 ? MOEK_F32
	                                                       : problem->input_type;
	/* MXFP4 codes count as 2 * value + 12: 0 .. 24 */
	packing_out->zero = layout->format == MXFP4_PAIR ? -12 : has_zero ? -1 : -8;
	packing_out->scale_factor = layout->format == MXFP4_PAIR ? 0.5f : 1.0f;
	packing_out->halves = layout->format == INT4_16 ||
	                      layout->format == INT4_ZERO_16;
	packing_out->step_bytes = step_bytes[packing_out->arithmetic];
}

/* ---- packing weights ---- */

/* Row `r` of a panel: the matrix that it comes from, NULL for padding, and its number.
 */
static const struct moek_matrix *panel_row(const struct layout *layout,
                                           const struct moek_matrix *first,
                                           const struct moek_matrix *second,
                                           uint64_t row, uint64_t *row_out)
{
	uint64_t panel = row / ROWS, r = row % ROWS;

	*row_out = layout->gated ? panel * HALF + r % HALF : row;
	if (*row_out >= layout->rows)
		return NULL;
	return layout->gated && r >= HALF ? second : first;
}

static uint64_t unit_offset(const struct layout *layout, uint64_t unit)
{
	return unit * (layout->head_bytes + layout->unit_steps * STEP_BYTES);
}

/* 32 codes of a row. Those of padding are 0: the activations there are 0, so any would
 * do. */
static void read_codes(const struct moek_matrix *matrix, uint64_t row, uint64_t column,
                       uint8_t *codes)
{
	uint64_t row_bytes = (matrix->columns + 1) / 2;
	const uint8_t *from = (const uint8_t *)matrix->codes + row * row_bytes;
	uint64_t left = column < matrix->columns ? matrix->columns - column : 0;

	if (left >= STEP) {
		memcpy(codes, from + column / 2, STEP / 2);
		return;
	}
	memset(codes, 0, STEP / 2);
	if (left == 0)
		return;
	memcpy(codes, from + column / 2, left / 2);
	if (left % 2 != 0)
		codes[left / 2] = from[(column + left) / 2] & 15u;
}

static void pack_codes(const struct layout *layout, const struct moek_matrix *matrix,
                       uint64_t row, uint64_t r, uint8_t *panel)
{
	uint64_t step, j, offset;
	uint8_t codes[STEP / 2] = { 0 };

	for (step = 0; step < layout->steps; step++) {
		if (matrix != NULL)
			read_codes(matrix, row, step * STEP, codes);
		offset = unit_offset(layout, step / layout->unit_steps) +
		         layout->head_bytes + step % layout->unit_steps * STEP_BYTES +
		         r / HALF * (STEP_BYTES / 2);
		for (j = 0; j < 4; j++)
			memcpy(panel + offset + j * LINE + r % HALF * 4, codes + j * 4,
			       4);
	}
}

/* Scales of padding are 0, its zero points 8. */
static void pack_head(const struct layout *layout, const struct moek_matrix *matrix,
                      uint64_t row, uint64_t r, uint8_t *panel)
{
	uint64_t groups = ceil_divide(layout->columns, layout->group);
	uint64_t sets = ceil_divide(layout->steps, layout->unit_steps) * layout->sets,
		 set;
	int has_zero = layout->format >= INT4_ZERO_16 &&
	               layout->format <= INT4_ZERO_MANY;

	for (set = 0; set < sets; set++) {
		uint8_t *head = panel + unit_offset(layout, set / layout->sets);
		uint64_t at = set % layout->sets * ROWS + r, from = row * groups + set;
		int real = matrix != NULL && set < groups;

		if (real)
			memcpy(head + at * layout->scale_bytes,
			       (const uint8_t *)matrix->scales +
			               from * layout->scale_bytes,
			       layout->scale_bytes);
		else
			memset(head + at * layout->scale_bytes, 0, layout->scale_bytes);
		if (has_zero)
			head[layout->sets * ROWS * layout->scale_bytes + at] =
				real && matrix->zeros != NULL ? matrix->zeros[from] : 8;
	}
}

/* Bytes of a head behind its scales and zero points. */
static void clear_heads(const struct layout *layout, uint8_t *panel)
{
	uint64_t units = ceil_divide(layout->steps, layout->unit_steps), unit;

	for (unit = 0; unit < units; unit++)
		memset(panel + unit_offset(layout, unit), 0, layout->head_bytes);
}

void cpu_pack_matrix(const struct layout *layout, const struct moek_matrix *first,
                     const struct moek_matrix *second, uint8_t *to)
{
	float *bias = (float *)(void *)(to + layout->panels * layout->panel_bytes);
	uint64_t panel, r;

	for (panel = 0; panel < layout->panels; panel++, to += layout->panel_bytes) {
		clear_heads(layout, to);
		for (r = 0; r < ROWS; r++) {
			uint64_t row;
			const struct moek_matrix *matrix = panel_row(
				layout, first, second, panel * ROWS + r, &row);

			pack_codes(layout, matrix, row, r, to);
			pack_head(layout, matrix, row, r, to);
			if (layout->bias)
				bias[panel * ROWS + r] = matrix != NULL &&
				                                         matrix->bias !=
				                                                 NULL
				                                 ? matrix->bias[row]
				                                 : 0.0f;
		}
	}
}

static int fits(const struct layout *layout, const struct moek_scheme *scheme,
                const struct moek_matrix *matrix)
{
	uint64_t groups = ceil_divide(layout->columns, layout->group), i;

	if (matrix->rows != layout->rows || matrix->columns != layout->columns ||
	    matrix->weight != scheme->weight || matrix->scale != scheme->scale ||
	    matrix->scales == NULL || matrix->codes == NULL ||
	    matrix->column_group != NULL)
		return 0;
	/* a row of one group may call it by any size that holds the row */
	if (matrix->group_size != layout->group &&
	    (groups != 1 || matrix->group_size < layout->columns))
		return 0;
	if (matrix->zeros == NULL)
		return 1;
	if (!scheme->zero_points)
		return 0;
	for (i = 0; i < layout->rows * groups; i++)
		if (matrix->zeros[i] > 16) /* 16: GPTQ's 15 plus one */
			return 0;
	return 1;
}

int32_t cpu_load_expert(void *layer_, uint64_t local, const struct moek_expert *expert)
{
	struct cpu_layer *layer = layer_;
	const struct plan *plan = &layer->plan;
	const struct moek_problem *problem = &layer->problem;
	uint8_t *to;

	if (local >= problem->experts_local ||
	    !fits(&plan->gate_up, &problem->gate_up, &expert->gate) ||
	    (problem->gated && !fits(&plan->gate_up, &problem->gate_up, &expert->up)) ||
	    !fits(&plan->down, &problem->down, &expert->down))
		return MOEK_BAD_ARGUMENT;
	to = layer->weights + local * plan->expert_bytes;
	cpu_pack_matrix(&plan->gate_up, &expert->gate, &expert->up, to);
	cpu_pack_matrix(&plan->down, &expert->down, NULL, to + plan->gate_up.bytes);
	return MOEK_OK;
}
