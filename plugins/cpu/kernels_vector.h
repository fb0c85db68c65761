/* SPDX-License-Identifier: MIT */
/*
 * Kernels in C with the compiler's vectors of LANES floats: all formats, fp32 and int8
 * arithmetic, every tail. A file that includes this is one instruction set; faster
 * kernels of that set replace entries of the table.
 */
#include "cpu.h"

#include <moek/formats.h>

#include <math.h>
#include <string.h>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* Checked builds keep loops and calls: unrolled, with a check at each access, one file
 * takes the compiler minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INLINE static inline
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define BLOCK 2u /* vectors of rows that one pass holds in registers */

typedef float vector __attribute__((vector_size(LANES * 4)));
typedef int32_t integers __attribute__((vector_size(LANES * 4)));

INLINE vector vector_of(float value)
{
	return value - (vector){ 0 };
}

INLINE integers integers_of(int32_t value)
{
	return value - (integers){ 0 };
}

/* ---- scales ---- */

INLINE vector scales_f16(const uint8_t *from)
{
#if defined(__AVX512F__)
	return (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif defined(__F16C__)
	return (vector)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#else
	vector scales;
	float values[LANES];
	uint16_t bits[LANES];

	memcpy(bits, from, sizeof(bits));
	for (uint32_t i = 0; i < LANES; i++)
		values[i] = moek_f16_to_f32(bits[i]);
	memcpy(&scales, values, sizeof(scales));
	return scales;
#endif
}

INLINE vector scales_of(uint32_t type, const uint8_t *from)
{
	float values[LANES];
	uint16_t bits[LANES];
	vector scales;
	uint32_t i;

	switch (type) {
	case MOEK_F16:
		return scales_f16(from);
	case MOEK_BF16:
		memcpy(bits, from, sizeof(bits));
		for (i = 0; i < LANES; i++)
			values[i] = moek_bf16_to_f32(bits[i]);
		break;
	case MOEK_E8M0:
		for (i = 0; i < LANES; i++)
			values[i] = moek_e8m0_to_f32(from[i]);
		break;
	default:
		memcpy(values, from, sizeof(values));
		break;
	}
	memcpy(&scales, values, sizeof(scales));
	return scales;
}

/* ---- weights: nibbles to small integers ---- */

INLINE int has_zero(const enum format format)
{
	return format == INT4_ZERO_16 || format == INT4_ZERO_32 ||
	       format == INT4_ZERO_MANY || format == INT8_ZERO_MANY;
}

INLINE int is_int8(const enum format format)
{
	return format == INT8_MANY || format == INT8_ZERO_MANY;
}

INLINE int is_halved(const enum format format)
{
	return format == INT4_16 || format == INT4_ZERO_16;
}

INLINE integers zeros_of(const enum format format, const uint8_t *from)
{
	int32_t values[LANES];
	integers zeros;
	uint32_t i;

	if (!has_zero(format))
		return integers_of(is_int8(format) ? 128 : 8);
	for (i = 0; i < LANES; i++)
		values[i] = from[i];
	memcpy(&zeros, values, sizeof(zeros));
	return zeros;
}

/* Nibble, or byte, n of each dword: code - zero, or 2 * E2M1. */
INLINE integers weights_of(const enum format format, integers dwords, const uint32_t n,
                           integers zeros)
{
	integers code = dwords >> (int32_t)(4 * n) & 15, size, sign;

	if (is_int8(format))
		return (dwords >> (int32_t)(8 * n) & 255) - zeros;
	if (format != MXFP4_PAIR)
		return code - zeros;
	/* 0 1 2 3 4 6 8 12: three jumps over the code itself */
	size = code & 7;
	size -= (size > 4) + (size > 5) - ((size > 6) & 3);
	sign = -(code >> 3);
	return (size ^ sign) - sign;
}

/* The same as floats. */
INLINE vector floats_of(const enum format format, integers dwords, const uint32_t n,
                        integers zeros)
{
#if defined(__AVX512F__)
	/* the table is asked with the lowest four bits of each lane */
	const __m512 doubled = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3,
	                                      -4, -6, -8, -12);
	const __m512 symmetric = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2,
	                                        3, 4, 5, 6, 7);

	if (!has_zero(format) && !is_int8(format))
		return (vector)_mm512_permutexvar_ps(
			_mm512_srli_epi32((__m512i)dwords, 4 * n),
			format == MXFP4_PAIR ? doubled : symmetric);
#elif defined(__AVX2__)
	/* with the lowest three; the fourth is the sign */
	const __m256 doubled = _mm256_setr_ps(0, 1, 2, 3, 4, 6, 8, 12);

	if (format == MXFP4_PAIR) {
		__m256 size = _mm256_permutevar8x32_ps(
			doubled, _mm256_srli_epi32((__m256i)dwords, (int)(4 * n)));
		__m256i sign = _mm256_slli_epi32((__m256i)dwords, (int)(28 - 4 * n));

		return (vector)_mm256_xor_ps(
			size, _mm256_and_ps((__m256)sign, _mm256_set1_ps(-0.0f)));
	}
#endif
	return __builtin_convertvector(weights_of(format, dwords, n, zeros), vector);
}

/* Line j of a step, for the vector of rows that begins at `row`. */
INLINE integers dwords_at(const uint8_t *step, uint32_t j, uint32_t row)
{
	integers dwords;

	memcpy(&dwords, step + (j * ROWS + row) * 4, sizeof(dwords));
	return dwords;
}

/* ---- a pass: BLOCK vectors of rows, all columns ---- */

struct pass {
	vector totals[TILE][BLOCK];
	vector parts[TILE][BLOCK];  /* of the group at hand, before its scale */
	integers sums[TILE][BLOCK]; /* BY_INT8: of the step at hand */
	integers zeros[BLOCK];
};

INLINE void clear_parts(struct pass *pass, const uint32_t count)
{
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			pass->parts[t][v] = vector_of(0);
}

/* Lines j_first .. j_last-1 of a step, by fp32. */
INLINE void step_f32(struct pass *pass, const uint8_t *codes, const struct panel *panel,
                     uint64_t step, const uint32_t row, const uint32_t count,
                     const enum format format, const uint32_t j_first,
                     const uint32_t j_last)
{
	const uint32_t columns = is_int8(format) ? 4 : 8; /* of a line */

	for (uint32_t j = j_first; j < j_last; j++) {
		integers dwords[BLOCK];

		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			dwords[v] = dwords_at(codes, j, row + v * LANES);
		UNROLL for (uint32_t n = 0; n < columns; n++)
		{
			vector weights[BLOCK];

			UNROLL for (uint32_t v = 0; v < BLOCK; v++)
				weights[v] = floats_of(format, dwords[v], n,
			                               pass->zeros[v]);
			UNROLL for (uint32_t t = 0; t < count; t++)
			{
				float x;

				memcpy(&x,
				       panel->rows[t] +
				               (step * STEP + columns * j + n) * 4,
				       4);
				UNROLL for (uint32_t v = 0; v < BLOCK; v++)
					pass->parts[t][v] += weights[v] * x;
			}
		}
	}
}

INLINE void step_int8(struct pass *pass, const uint8_t *codes,
                      const struct panel *panel, uint64_t step, const uint32_t row,
                      const uint32_t count, const enum format format,
                      const uint32_t j_first, const uint32_t j_last)
{
	const struct int8_step *rows[TILE];

	UNROLL for (uint32_t t = 0; t < count; t++)
	{
		rows[t] = (const void *)(panel->rows[t] +
		                         step * sizeof(struct int8_step));
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			pass->sums[t][v] = integers_of(0);
	}
	for (uint32_t j = j_first; j < j_last; j++) {
		integers dwords[BLOCK];

		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			dwords[v] = dwords_at(codes, j, row + v * LANES);
		UNROLL for (uint32_t n = 0; n < 8; n++)
			UNROLL for (uint32_t v = 0; v < BLOCK; v++)
		{
			integers weights = weights_of(format, dwords[v], n,
			                              pass->zeros[v]);

			UNROLL for (uint32_t t = 0; t < count; t++) pass->sums[t][v] +=
				weights * rows[t]->codes[8 * j + n % 2 * 4 + n / 2];
		}
	}
	UNROLL for (uint32_t t = 0; t < count; t++) UNROLL for (uint32_t v = 0;
	                                                        v < BLOCK; v++)
		pass->parts[t][v] += __builtin_convertvector(pass->sums[t][v], vector) *
	                             rows[t]->scale;
}

INLINE void step_any(struct pass *pass, const uint8_t *codes, const struct panel *panel,
                     uint64_t step, const uint32_t row, const uint32_t count,
                     const enum format format, const int by_int8,
                     const uint32_t j_first, const uint32_t j_last)
{
	if (by_int8)
		step_int8(pass, codes, panel, step, row, count, format, j_first,
		          j_last);
	else
		step_f32(pass, codes, panel, step, row, count, format, j_first, j_last);
}

/* The group is complete: scale it. */
INLINE void close_group(struct pass *pass, const uint8_t *head, uint32_t set,
                        const struct layout *layout, const uint32_t count,
                        const int doubled)
{
	UNROLL for (uint32_t v = 0; v < BLOCK; v++)
	{
		vector scales = scales_of(layout->scale,
		                          head + (set * ROWS + v * LANES) *
		                                          layout->scale_bytes);

		if (doubled) /* MXFP4 weights are twice their value; exact */
			scales *= 0.5f;
		UNROLL for (uint32_t t = 0; t < count; t++)
			pass->totals[t][v] += pass->parts[t][v] * scales;
	}
	clear_parts(pass, count);
}

INLINE void open_group(struct pass *pass, const uint8_t *head, uint32_t set,
                       const struct layout *layout, const enum format format)
{
	const uint8_t *zeros = head + layout->sets * ROWS * layout->scale_bytes +
	                       set * ROWS;

	UNROLL for (uint32_t v = 0; v < BLOCK; v++)
		pass->zeros[v] = zeros_of(format, zeros + v * LANES);
}

INLINE void prefetch(const struct panel *panel, uint64_t step)
{
	const uint8_t *ahead = panel->ahead + step * panel->ahead_lines * LINE;

	for (uint64_t i = 0; i < panel->ahead_lines; i++)
		__builtin_prefetch(ahead + i * LINE);
}

INLINE void run_pass(struct panel *panel, const uint32_t row, const uint32_t count,
                     const enum format format, const int by_int8)
{
	const struct layout *layout = panel->layout;
	const uint8_t *unit = panel->weights;
	/* BY_INT8: the packed scale is halved already */
	const int doubled = format == MXFP4_PAIR && !by_int8;
	const uint64_t step_bytes = is_int8(format) ? 2 * STEP_BYTES : STEP_BYTES;
	struct pass pass;

	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			pass.totals[t][v] = vector_of(0);
	clear_parts(&pass, count);
	for (uint64_t step = 0; step < layout->steps; step += layout->unit_steps) {
		const uint8_t *head = unit + row * layout->scale_bytes;
		const uint8_t *zero_head = unit + row,
			      *codes = unit + layout->head_bytes;
		uint64_t left = layout->steps - step, i;
		uint64_t steps = left < layout->unit_steps ? left : layout->unit_steps;

		open_group(&pass, zero_head, 0, layout, format);
		if (is_halved(format)) {
			if (row == 0)
				prefetch(panel, step);
			step_any(&pass, codes, panel, step, row, count, format, by_int8,
			         0, 2);
			close_group(&pass, head, 0, layout, count, doubled);
			open_group(&pass, zero_head, 1, layout, format);
			step_any(&pass, codes, panel, step, row, count, format, by_int8,
			         2, 4);
			close_group(&pass, head, 1, layout, count, doubled);
		} else {
			for (i = 0; i < steps; i++) {
				if (row == 0)
					prefetch(panel, step + i);
				step_any(&pass, codes + i * step_bytes, panel, step + i,
				         row, count, format, by_int8, 0,
				         is_int8(format) ? 8 : 4);
				if (format == MXFP4_PAIR)
					close_group(&pass, head, (uint32_t)i, layout,
					            count, doubled);
			}
			if (format != MXFP4_PAIR)
				close_group(&pass, head, 0, layout, count, doubled);
		}
		unit += layout->head_bytes + steps * step_bytes;
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			memcpy(panel->sums[t] + row + v * LANES, &pass.totals[t][v],
	                       sizeof(vector));
}

/* ---- unquantised rows ---- */

/* Chains of additions for one sum: two, one for each of a pair, hide latency where
 * there are registers. The same for any number of rows, so that a row's sums are, too.
 */
#define ROWS_CHAINS (LANES == 16 ? 2u : 1u)

/* Two columns of a step, four apart, for the vector of rows that begins at `row`; @p
 * counts such pairs. */
INLINE void pair_at(const enum format format, const uint8_t *step, const uint32_t p,
                    const uint32_t row, vector pair[2])
{
	const uint32_t column = p / 4 * 8 + p % 4;
	const uint32_t bytes = format == ROWS_F32 ? 4 : 2;
	const uint8_t *at = step + (column * ROWS + row) * bytes;
	const uint64_t four = 4 * ROWS * bytes;
	integers dwords;

	if (format == ROWS_BF16) {
		memcpy(&dwords, step + (p * ROWS + row) * 4, sizeof(dwords));
		pair[0] = (vector)(dwords << 16);
		pair[1] = (vector)(dwords & (int32_t)0xffff0000);
		return;
	}
	if (format == ROWS_F16) {
		pair[0] = scales_f16(at);
		pair[1] = scales_f16(at + four);
	} else {
		memcpy(&pair[0], at, sizeof(pair[0]));
		memcpy(&pair[1], at + four, sizeof(pair[1]));
	}
}

INLINE void step_rows(vector totals[2][TILE][BLOCK], const uint8_t *codes,
                      const struct panel *panel, uint64_t step, const uint32_t row,
                      const uint32_t count, const enum format format)
{
	for (uint32_t p = 0; p < STEP / 2; p++) {
		uint64_t column = step * STEP + p / 4 * 8 + p % 4;
		vector weights[BLOCK][2];

		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			pair_at(format, codes, p, row + v * LANES, weights[v]);
		UNROLL for (uint32_t t = 0; t < count; t++)
			UNROLL for (uint32_t h = 0; h < 2; h++)
		{
			const uint32_t chain = h % ROWS_CHAINS;
			float x;

			memcpy(&x, panel->rows[t] + (column + 4 * h) * 4, 4);
			UNROLL for (uint32_t v = 0; v < BLOCK; v++)
				totals[chain][t][v] += weights[v][h] * x;
		}
	}
}

INLINE void rows_pass(struct panel *panel, const uint32_t row, const uint32_t count,
                      const enum format format)
{
	const struct layout *layout = panel->layout;
	const uint8_t *codes = panel->weights;
	vector totals[2][TILE][BLOCK];

	UNROLL for (uint32_t c = 0; c < ROWS_CHAINS; c++)
		UNROLL for (uint32_t t = 0; t < count; t++)
			UNROLL for (uint32_t v = 0; v < BLOCK; v++)
				totals[c][t][v] = vector_of(0);
	for (uint64_t step = 0; step < layout->steps; step++) {
		if (row == 0)
			prefetch(panel, step);
		step_rows(totals, codes, panel, step, row, count, format);
		codes += ROWS * STEP * (format == ROWS_F32 ? 4 : 2);
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
	{
		if (ROWS_CHAINS == 2)
			totals[0][t][v] += totals[1][t][v];
		memcpy(panel->sums[t] + row + v * LANES, &totals[0][t][v],
		       sizeof(vector));
	}
}

INLINE void run_panel(struct panel *panel, const uint32_t count,
                      const enum format format, const int by_int8)
{
	for (uint32_t row = 0; row < ROWS; row += BLOCK * LANES)
		if (format >= ROWS_BF16)
			rows_pass(panel, row, count, format);
		else
			run_pass(panel, row, count, format, by_int8);
}

#define F32_KERNEL(format, count)                                                      \
	static void f32_##format##_##count(struct panel *panel)                        \
	{                                                                              \
		run_panel(panel, count, format, 0);                                    \
	}
#define INT8_KERNEL(format, count)                                                     \
	static void int8_##format##_##count(struct panel *panel)                       \
	{                                                                              \
		run_panel(panel, count, format, 1);                                    \
	}
#define EACH_COUNT(KERNEL, format)                                                     \
	KERNEL(format, 1) KERNEL(format, 2) KERNEL(format, 3) KERNEL(format, 4)
#define EACH_FORMAT(KERNEL)                                                            \
	EACH_COUNT(KERNEL, INT4_16)                                                    \
	EACH_COUNT(KERNEL, INT4_32)                                                    \
	EACH_COUNT(KERNEL, INT4_MANY)                                                  \
	EACH_COUNT(KERNEL, INT4_ZERO_16)                                               \
	EACH_COUNT(KERNEL, INT4_ZERO_32)                                               \
	EACH_COUNT(KERNEL, INT4_ZERO_MANY)                                             \
	EACH_COUNT(KERNEL, MXFP4_PAIR)
/* Whatever fp32 alone multiplies. */
#define EACH_ROWS(KERNEL)                                                              \
	EACH_COUNT(KERNEL, INT8_MANY)                                                  \
	EACH_COUNT(KERNEL, INT8_ZERO_MANY)                                             \
	EACH_COUNT(KERNEL, ROWS_BF16)                                                  \
	EACH_COUNT(KERNEL, ROWS_F16)                                                   \
	EACH_COUNT(KERNEL, ROWS_F32)

#define COUNTS(name, format)                                                           \
	[format] = { name##_##format##_1, name##_##format##_2, name##_##format##_3,    \
		     name##_##format##_4 }
#define FORMATS_OF(name)                                                               \
	COUNTS(name, INT4_16), COUNTS(name, INT4_32), COUNTS(name, INT4_MANY),         \
		COUNTS(name, INT4_ZERO_16), COUNTS(name, INT4_ZERO_32),                \
		COUNTS(name, INT4_ZERO_MANY), COUNTS(name, MXFP4_PAIR)
#define ROWS_OF(name)                                                                  \
	COUNTS(name, INT8_MANY), COUNTS(name, INT8_ZERO_MANY),                         \
		COUNTS(name, ROWS_BF16), COUNTS(name, ROWS_F16),                       \
		COUNTS(name, ROWS_F32)

/* ---- rows of activations ---- */

static void widen(uint32_t type, const void *from, uint64_t count, float *to)
{
	const uint16_t *bits = from;
	uint64_t i = 0;

	switch (type) {
	case MOEK_BF16:
		for (; i < count; i++)
			to[i] = moek_bf16_to_f32(bits[i]);
		break;
	case MOEK_F16:
#if defined(__F16C__)
		for (; i + 8 <= count; i += 8)
			_mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(
							 (const void *)(bits + i))));
#endif
		for (; i < count; i++)
			to[i] = moek_f16_to_f32(bits[i]);
		break;
	default:
		memcpy(to, from, count * sizeof(float));
		break;
	}
}

static void narrow(uint32_t type, const float *from, uint64_t count, void *to)
{
	uint16_t *bits = to;
	uint64_t i = 0;

	switch (type) {
	case MOEK_BF16:
		for (; i < count; i++)
			bits[i] = moek_bf16_from_f32(from[i]);
		break;
	case MOEK_F16:
#if defined(__F16C__)
		for (; i + 8 <= count; i += 8)
			_mm_storeu_si128((void *)(bits + i),
			                 _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
#endif
		for (; i < count; i++)
			bits[i] = moek_f16_from_f32(from[i]);
		break;
	default:
		memcpy(to, from, count * sizeof(float));
		break;
	}
}

static void pack_int8(const struct packing *packing, const float *values, uint8_t *to)
{
	struct int8_step step = { { 0, 0 }, 0.0f, 0, { 0 } };
	uint32_t top = 0, i;
	int32_t sums[2] = { 0, 0 };
	float scale;

	for (i = 0; i < STEP; i++) {
		uint32_t size = moek_f32_bits(values[i]) & 0x7fffffffu;

		top = size > top ? size : top;
	}
	if (top >= 0x7f800000u) {
		/* an infinity or a NaN has no code: the whole group is NaN */
		step.scale = moek_f32_from_bits(0x7fc00000u);
		memcpy(to, &step, sizeof(step));
		return;
	}
	scale = moek_int8_scale(moek_f32_from_bits(top));
	step.scale = scale * packing->scale_factor;
	for (i = 0; i < STEP; i++) {
		float quotient = scale > 0 ? values[i] / scale : 0.0f;
		int32_t code;

		/* as moek_int8_code: to nearest even; |quotient| is at most 127 but for
		 * a subnormal scale */
		quotient = quotient > 127.0f ? 127.0f : quotient;
		quotient = quotient < -127.0f ? -127.0f : quotient;
		code = (int32_t)moek_f32_bits(quotient + 12582912.0f) - 0x4b400000;
		step.codes[i / 8 * 8 + i % 2 * 4 + i % 8 / 2] = (int8_t)code;
		sums[i / HALF] += code;
	}
	if (!packing->halves) {
		sums[0] += sums[1];
		sums[1] = 0;
	}
	step.start[0] = packing->zero * sums[0];
	step.start[1] = packing->zero * sums[1];
	memcpy(to, &step, sizeof(step));
}

static void pack_bf16(const float *values, uint8_t *to)
{
	uint16_t pairs[STEP];
	uint32_t i;

	for (i = 0; i < STEP; i++)
		pairs[i / 8 * 8 + i % 4 * 2 + i % 8 / 4] = moek_bf16_from_f32(
			values[i]);
	memcpy(to, pairs, sizeof(pairs));
}

static void pack(const struct packing *packing, const float *values, uint8_t *to)
{
	float rounded[STEP];
	uint32_t i;

	if (packing->arithmetic == BY_BF16) {
		pack_bf16(values, to);
		return;
	}
	if (packing->type != MOEK_F32) {
		for (i = 0; i < STEP; i++)
			rounded[i] = packing->type == MOEK_BF16
			                     ? moek_bf16_to_f32(
						       moek_bf16_from_f32(values[i]))
			                     : moek_f16_to_f32(
						       moek_f16_from_f32(values[i]));
		values = rounded;
	}
	if (packing->arithmetic == BY_INT8)
		pack_int8(packing, values, to);
	else
		memcpy(to, values, STEP * sizeof(float));
}

/* ---- the function between the GEMMs ---- */

/*
 * e^x within 2 units in the last place: x = n ln 2 + r, a polynomial in r (its
 * coefficients are those of Cephes' expf), times 2^n in two exact steps.
 */
INLINE float exponential(float x)
{
	float n, r, p;
	int32_t whole, half;

	/* infinity and zero are reached beyond these; a NaN passes */
	x = x > 89.0f ? 89.0f : x;
	x = x < -104.0f ? -104.0f : x;
	n = x * 1.44269504f + 12582912.0f;
	/* a NaN becomes some integer; p keeps it */
	whole = (int32_t)moek_f32_bits(n) - 0x4b400000;
	n -= 12582912.0f;
	r = x - n * 0.693359375f + n * 2.12194440e-4f;
	p = 1.9875691500e-4f;
	p = p * r + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f;
	p = p * r + 4.1665795894e-2f;
	p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f;
	p = p * r * r + r + 1.0f;
	half = whole >> 1;
	p *= moek_f32_from_bits((uint32_t)(half + 127) << 23);
	return p * moek_f32_from_bits((uint32_t)(whole - half + 127) << 23);
}

INLINE float at_most(float value, float limit)
{
	return value > limit ? limit : value;
}

INLINE float within(float value, float limit)
{
	return at_most(value, limit) < -limit ? -limit : at_most(value, limit);
}

INLINE float sigmoid(float x)
{
	return 1.0f / (1.0f + exponential(-x));
}

/* The part that knows g only; @kind is constant where it is called. */
INLINE float unary(const uint32_t kind, const struct function *f, float g)
{
	switch (kind) {
	case MOEK_SILU:
		return g / (1.0f + exponential(-g));
	case MOEK_GELU:
		return 0.5f * g * (1.0f + erff(g * 0.70710678118654752f));
	case MOEK_GELU_TANH:
		return 0.5f * g *
		       (1.0f +
		        tanhf(0.79788456080286536f * (g + 0.044715f * g * g * g)));
	case MOEK_RELU2:
		return g > 0 ? g * g : g != g ? g : 0.0f;
	case MOEK_SWIGLU_OAI:
		return g * sigmoid(f->alpha * g);
	case MOEK_SWIGLU_STEP:
		return f->limit > 0 ? at_most(g * sigmoid(g), f->limit)
		                    : g * sigmoid(g);
	default: /* MOEK_SITU */
		return f->alpha * tanhf(g / f->alpha) * sigmoid(g);
	}
}

INLINE float factor(const uint32_t kind, const struct function *f, float u)
{
	if (kind == MOEK_SWIGLU_OAI)
		return u + f->beta;
	if (kind == MOEK_SITU)
		return f->beta > 0 ? f->beta * tanhf(u / f->beta) : u;
	return u;
}

INLINE void activate_as(const uint32_t kind, const struct function *f,
                        const float *gate, const float *up, float *to)
{
	/* the step and situ variants limit what comes out, or nothing */
	int clamp_gate = f->limit > 0 && kind != MOEK_SWIGLU_STEP && kind != MOEK_SITU;
	int clamp_up = f->limit > 0 && kind != MOEK_SITU;
	float g[HALF], u[HALF];
	uint32_t i;

	for (i = 0; i < HALF; i++)
		g[i] = clamp_gate ? at_most(gate[i], f->limit) : gate[i];
	if (!f->gated) {
		for (i = 0; i < HALF; i++)
			to[i] = unary(kind, f, g[i]);
		return;
	}
	for (i = 0; i < HALF; i++)
		u[i] = clamp_up ? within(up[i], f->limit) : up[i];
	for (i = 0; i < HALF; i++)
		to[i] = unary(kind, f, g[i]) * factor(kind, f, u[i]);
}

static void activate(const struct function *f, const float *gate, const float *up,
                     float *to)
{
	switch (f->kind) {
	case MOEK_SILU:
		activate_as(MOEK_SILU, f, gate, up, to);
		break;
	case MOEK_GELU:
		activate_as(MOEK_GELU, f, gate, up, to);
		break;
	case MOEK_GELU_TANH:
		activate_as(MOEK_GELU_TANH, f, gate, up, to);
		break;
	case MOEK_RELU2:
		activate_as(MOEK_RELU2, f, gate, up, to);
		break;
	case MOEK_SWIGLU_OAI:
		activate_as(MOEK_SWIGLU_OAI, f, gate, up, to);
		break;
	case MOEK_SWIGLU_STEP:
		activate_as(MOEK_SWIGLU_STEP, f, gate, up, to);
		break;
	default:
		activate_as(MOEK_SITU, f, gate, up, to);
		break;
	}
}
