/* SPDX-License-Identifier: MIT */
/* From the canonical expert to panels. */
#include "cpu.h"

#include <moek/formats.h>

#include <string.h>

/* Called with constants, so that each call is a copy that knows them. */
#define INLINE static inline __attribute__((always_inline))

static uint64_t ceil_divide(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

static uint64_t round_up(uint64_t a, uint64_t b)
{
	return ceil_divide(a, b) * b;
}

static uint32_t integer_format(const struct moek_scheme *scheme, uint64_t columns)
{
	uint64_t group = scheme->group_size;
	uint32_t format = INT4_MANY;

	if (scheme->weight == MOEK_INT8)
		return scheme->zero_points ? INT8_ZERO_MANY : INT8_MANY;
	/* a group that holds the whole row is one unit, whatever its size */
	if (group == 16 && columns > 16)
		format = INT4_16;
	else if (group == 32 || columns <= 32)
		format = INT4_32;
	return scheme->zero_points ? format + (INT4_ZERO_16 - INT4_16) : format;
}

int cpu_is_rows(const struct moek_scheme *scheme)
{
	return scheme->weight == MOEK_BF16 || scheme->weight == MOEK_F16 ||
	       scheme->weight == MOEK_F32;
}

/* Of so many columns of a canonical row. */
static uint64_t row_bytes(const struct layout *layout, uint64_t columns)
{
	switch (layout->format) {
	case ROWS_BF16:
	case ROWS_F16:
		return columns * 2;
	case ROWS_F32:
		return columns * 4;
	case INT8_MANY:
	case INT8_ZERO_MANY:
		return columns;
	default:
		return (columns + 1) / 2;
	}
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
	case INT8_MANY:
	case INT8_ZERO_MANY:
		layout->unit_steps = ceil_divide(layout->group, STEP);
		break;
	case ROWS_BF16:
	case ROWS_F16:
	case ROWS_F32:
		layout->unit_steps = layout->steps;
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
	layout->step_bytes = STEP_BYTES;
	if (cpu_is_rows(scheme)) {
		layout->format = scheme->weight == MOEK_BF16  ? ROWS_BF16
		                 : scheme->weight == MOEK_F16 ? ROWS_F16
		                                              : ROWS_F32;
		layout->step_bytes = ROWS * STEP * row_bytes(layout, 1);
	} else if (scheme->weight == MOEK_MXFP4) {
		layout->format = MXFP4_PAIR;
		layout->group = MOEK_MX_BLOCK;
		layout->scale_bytes = 1;
	} else {
		layout->format = integer_format(scheme, layout->columns);
		layout->scale_bytes = scheme->scale == MOEK_F32 ? 4 : 2;
		if (scheme->weight == MOEK_INT8)
			layout->step_bytes = 2 * STEP_BYTES;
	}
	lay_units(layout, scheme);
	units = ceil_divide(layout->steps, layout->unit_steps);
	layout->panel_bytes = moek_size_multiply(layout->steps, layout->step_bytes,
	                                         &overflow) +
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

/* Are weights without their scales exact in bf16? Those of int8 minus a zero have 9
 * bits.
 */
static int fits_bf16(uint32_t weight)
{
	return weight == MOEK_INT4 || weight == MOEK_MXFP4 || weight == MOEK_BF16;
}

uint32_t cpu_arithmetic(const struct kernels *kernels,
                        const struct moek_problem *problem)
{
	if (problem->activations == MOEK_A8_INT8)
		return BY_INT8;
	if (problem->input_type != MOEK_BF16 || !kernels->bf16)
		return BY_F32;
	return fits_bf16(problem->gate_up.weight) && fits_bf16(problem->down.weight)
	               ? BY_BF16
	               : BY_F32;
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
	               layout->format <= INT8_ZERO_MANY;

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
	return unit * (layout->head_bytes + layout->unit_steps * layout->step_bytes);
}

/* 32 columns of a row, zeros where it ends: the activations there are 0, so any number
 * would do. */
INLINE void read_step(const struct layout *layout, const uint8_t *row, uint64_t step,
                      const uint64_t bytes, uint8_t *codes)
{
	uint64_t column = step * STEP;
	uint64_t left = column < layout->columns ? layout->columns - column : 0;

	if (left >= STEP) {
		memcpy(codes, row + step * bytes, bytes);
		return;
	}
	memset(codes, 0, bytes);
	memcpy(codes, row + step * bytes, row_bytes(layout, left));
	if (bytes == STEP / 2 && left % 2 != 0)
		codes[left / 2] &= 15u; /* its high nibble is nobody's */
}

/* Where dword `i` of a row's step lies, counted in dwords; the same for words. */
INLINE uint64_t place(const uint32_t format, uint64_t i)
{
	/* words: i and i + 4 of each eight make a dword */
	return format == ROWS_BF16 ? (i / 8 * 4 + i % 4) * ROWS * 2 + i % 8 / 4
	                           : i * ROWS;
}

/* A step, dword by dword or word by word. A row that is NULL is padding. */
INLINE void pack_step(const struct layout *layout, const uint8_t *const rows[ROWS],
                      uint64_t step, const uint32_t format, const uint64_t bytes,
                      uint8_t *to)
{
	const uint64_t unit = format == ROWS_BF16 || format == ROWS_F16 ? 2 : 4;
	const uint64_t stride = format == ROWS_BF16 ? 4 : unit;
	/* the same columns of the next panel: too many streams for the processor to see
	 */
	const uint64_t ahead = (layout->gated ? HALF : ROWS) *
	                       row_bytes(layout, layout->columns);
	uint8_t codes[ROWS][STEP * 4];
	uint64_t r, i;

	for (r = 0; r < ROWS; r++) {
		if (rows[r] == NULL) {
			memset(codes[r], 0, bytes);
			continue;
		}
		read_step(layout, rows[r], step, bytes, codes[r]);
		if (step * bytes % LINE < bytes)
			__builtin_prefetch(rows[r] + step * bytes + ahead);
	}
	for (i = 0; i < bytes / unit; i++)
		for (r = 0; r < ROWS; r++)
			memcpy(to + place(format, i) * unit + r * stride,
			       codes[r] + i * unit, unit);
}

INLINE void pack_steps(const struct layout *layout, const uint8_t *const rows[ROWS],
                       const uint32_t format, const uint64_t bytes, uint8_t *panel)
{
	for (uint64_t step = 0; step < layout->steps; step++) {
		uint8_t *to = panel + unit_offset(layout, step / layout->unit_steps) +
		              layout->head_bytes +
		              step % layout->unit_steps * layout->step_bytes;

		pack_step(layout, rows, step, format, bytes, to);
	}
}

static void pack_codes(const struct layout *layout, const uint8_t *const rows[ROWS],
                       uint8_t *panel)
{
	switch (layout->format) {
	case ROWS_BF16:
		pack_steps(layout, rows, ROWS_BF16, STEP * 2, panel);
		break;
	case ROWS_F16:
		pack_steps(layout, rows, ROWS_F16, STEP * 2, panel);
		break;
	case ROWS_F32:
		pack_steps(layout, rows, ROWS_F32, STEP * 4, panel);
		break;
	case INT8_MANY:
	case INT8_ZERO_MANY:
		pack_steps(layout, rows, INT8_MANY, STEP, panel);
		break;
	default:
		pack_steps(layout, rows, INT4_32, STEP / 2, panel);
		break;
	}
}

/* Where a row of a panel comes from; matrix NULL: padding. */
struct origin {
	const struct moek_matrix *matrix;
	uint64_t row;
};

/* Scales of one size. Those of padding are 0. */
INLINE void pack_scales(const struct layout *layout, const struct origin origins[ROWS],
                        const uint64_t bytes, uint8_t *panel)
{
	uint64_t groups = ceil_divide(layout->columns, layout->group);
	uint64_t sets = ceil_divide(layout->steps, layout->unit_steps) * layout->sets;

	for (uint64_t set = 0; set < sets; set++) {
		uint8_t *to = panel + unit_offset(layout, set / layout->sets) +
		              set % layout->sets * ROWS * bytes;

		for (uint64_t r = 0; r < ROWS; r++) {
			const struct moek_matrix *matrix = origins[r].matrix;

			if (matrix != NULL && set < groups)
				memcpy(to + r * bytes,
				       (const uint8_t *)matrix->scales +
				               (origins[r].row * groups + set) * bytes,
				       bytes);
			else
				memset(to + r * bytes, 0, bytes);
		}
	}
}

/* Those of padding, and of a matrix without any, are 8. */
static void pack_zeros(const struct layout *layout, const struct origin origins[ROWS],
                       uint8_t *panel)
{
	uint64_t groups = ceil_divide(layout->columns, layout->group);
	uint64_t sets = ceil_divide(layout->steps, layout->unit_steps) * layout->sets;

	for (uint64_t set = 0; set < sets; set++) {
		uint8_t *to = panel + unit_offset(layout, set / layout->sets) +
		              layout->sets * ROWS * layout->scale_bytes +
		              set % layout->sets * ROWS;

		for (uint64_t r = 0; r < ROWS; r++) {
			const struct moek_matrix *matrix = origins[r].matrix;

			to[r] = matrix != NULL && matrix->zeros != NULL && set < groups
			                ? matrix->zeros[origins[r].row * groups + set]
			                : 8;
		}
	}
}

static void pack_heads(const struct layout *layout, const struct origin origins[ROWS],
                       uint8_t *panel)
{
	switch (layout->scale_bytes) {
	case 1:
		pack_scales(layout, origins, 1, panel);
		break;
	case 2:
		pack_scales(layout, origins, 2, panel);
		break;
	case 4:
		pack_scales(layout, origins, 4, panel);
		break;
	default: /* unquantised */
		break;
	}
	if (layout->format >= INT4_ZERO_16 && layout->format <= INT8_ZERO_MANY)
		pack_zeros(layout, origins, panel);
}

static float bias_of(const struct origin *origin)
{
	return origin->matrix != NULL && origin->matrix->bias != NULL
	               ? origin->matrix->bias[origin->row]
	               : 0.0f;
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
		struct origin origins[ROWS];
		const uint8_t *rows[ROWS] = { NULL };

		for (r = 0; r < ROWS; r++) {
			struct origin *origin = &origins[r];

			origin->matrix = panel_row(layout, first, second,
			                           panel * ROWS + r, &origin->row);
			if (origin->matrix != NULL)
				rows[r] = (const uint8_t *)origin->matrix->codes +
				          origin->row *
				                  row_bytes(layout, layout->columns);
			if (layout->bias)
				bias[panel * ROWS + r] = bias_of(origin);
		}
		clear_heads(layout, to);
		pack_heads(layout, origins, to);
		pack_codes(layout, rows, to);
	}
}

static int fits(const struct layout *layout, const struct moek_scheme *scheme,
                const struct moek_matrix *matrix)
{
	uint64_t groups = ceil_divide(layout->columns, layout->group), i;

	if (matrix->rows != layout->rows || matrix->columns != layout->columns ||
	    matrix->weight != scheme->weight || matrix->scale != scheme->scale ||
	    matrix->codes == NULL || matrix->column_group != NULL)
		return 0;
	if (cpu_is_rows(scheme))
		return 1;
	if (matrix->scales == NULL)
		return 0;
	/* a row of one group may call it by any size that holds the row */
	if (matrix->group_size != layout->group &&
	    (groups != 1 || matrix->group_size < layout->columns))
		return 0;
	if (matrix->zeros == NULL)
		return 1;
	if (!scheme->zero_points)
		return 0;
	if (scheme->weight == MOEK_INT8)
		return 1;
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
