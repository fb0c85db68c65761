/* SPDX-License-Identifier: MIT */
/*
 * Kernels for AVX-512: int8 dot products (VNNI) and, where the compiler may use them,
 * bf16 dot products. A tile is 32 rows (two vectors of 16) x up to TILE rows of
 * activations.
 */
#define LANES 16u
#include "kernels_vector.h"

#include <immintrin.h>

/* 16 scales. */
INLINE __m512 scales_at(uint32_t type, const uint8_t *from)
{
	__m512i bits;

	switch (type) {
	case MOEK_F16:
		return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
	case MOEK_BF16:
		bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
		return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
	default:
		return _mm512_loadu_ps(from);
	}
}

INLINE __m512 e8m0_at(const uint8_t *from)
{
	__m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));
	/* 2^-127 is half of the least exponent; 255 is NaN, not infinity */
	__m512i bits = _mm512_max_epu32(_mm512_slli_epi32(bytes, 23),
	                                _mm512_set1_epi32(0x00400000));
	__mmask16 nan = _mm512_cmpeq_epi32_mask(bytes, _mm512_set1_epi32(255));

	return _mm512_castsi512_ps(
		_mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000)));
}

INLINE __m512 head_scales(const enum format format, const struct layout *layout,
                          const uint8_t *head, uint32_t set, uint32_t half)
{
	uint32_t at = set * ROWS + half * HALF;

	if (format == MXFP4_PAIR)
		return e8m0_at(head + at);
	return scales_at(layout->scale, head + at * layout->scale_bytes);
}

INLINE __m512i head_zeros(const struct layout *layout, const uint8_t *head,
                          uint32_t set, uint32_t half)
{
	const uint8_t *zeros = head + layout->sets * ROWS * layout->scale_bytes;

	return _mm512_cvtepu8_epi32(
		_mm_loadu_si128((const void *)(zeros + set * ROWS + half * HALF)));
}

/* Into the L2 cache: the few misses that the L1 cache can have at a time are needed for
 * what is read now. */
INLINE void prefetch_step(const uint8_t **ahead, uint64_t lines)
{
	for (uint64_t i = 0; i < lines; i++)
		_mm_prefetch((const char *)*ahead + i * LINE, _MM_HINT_T1);
	*ahead += lines * LINE;
}

/* Four bytes of activations to every lane. */
INLINE __m512i dword_at(const void *from)
{
	int32_t dword;

	memcpy(&dword, from, sizeof(dword));
	return _mm512_set1_epi32(dword);
}

/* ---- int8 ---- */

/* Low or high nibbles of each byte as unsigned values. */
INLINE __m512i nibbles(const enum format format, __m512i codes, const int high)
{
	/* 2 * value + 12 of E2M1 */
	const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(
		12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));

	if (high)
		codes = _mm512_srli_epi16(codes, 4);
	codes = _mm512_and_si512(codes, _mm512_set1_epi8(15));
	return format == MXFP4_PAIR ? _mm512_shuffle_epi8(table, codes) : codes;
}

/* Lines j_first .. j_last-1 of a step into sums that start with the zero points' share.
 */
INLINE void dot_int8(__m512i sums[2][TILE], const uint8_t *codes,
                     const struct int8_step *const rows[TILE], const uint32_t count,
                     const enum format format, const uint32_t j_first,
                     const uint32_t j_last)
{
	/* two chains for each sum hide the latency of the dot product */
	__m512i odd[2][TILE];

	UNROLL for (uint32_t t = 0; t < count; t++)
		odd[0][t] = odd[1][t] = _mm512_setzero_si512();
	UNROLL for (uint32_t j = j_first; j < j_last; j++)
	{
		__m512i top = _mm512_loadu_si512(codes + 2 * j * LINE);
		__m512i low = _mm512_loadu_si512(codes + (2 * j + 1) * LINE);
		__m512i top_even = nibbles(format, top, 0),
			top_odd = nibbles(format, top, 1);
		__m512i low_even = nibbles(format, low, 0),
			low_odd = nibbles(format, low, 1);

		UNROLL for (uint32_t t = 0; t < count; t++)
		{
			__m512i even_x = dword_at(rows[t]->codes + 8 * j);
			__m512i odd_x = dword_at(rows[t]->codes + 8 * j + 4);

			sums[0][t] = _mm512_dpbusd_epi32(sums[0][t], top_even, even_x);
			sums[1][t] = _mm512_dpbusd_epi32(sums[1][t], low_even, even_x);
			odd[0][t] = _mm512_dpbusd_epi32(odd[0][t], top_odd, odd_x);
			odd[1][t] = _mm512_dpbusd_epi32(odd[1][t], low_odd, odd_x);
		}
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t half = 0; half < 2; half++)
			sums[half][t] = _mm512_add_epi32(sums[half][t], odd[half][t]);
}

INLINE void start_int8(__m512i sums[2][TILE], const struct int8_step *const rows[TILE],
                       const struct layout *layout, const uint8_t *head,
                       const uint32_t count, const enum format format,
                       const uint32_t set, const uint32_t start)
{
	UNROLL for (uint32_t half = 0; half < 2; half++)
	{
		__m512i zeros = _mm512_setzero_si512();

		if (has_zero(format))
			zeros = head_zeros(layout, head, set, half);
		UNROLL for (uint32_t t = 0; t < count; t++)
		{
			sums[half][t] = _mm512_set1_epi32(rows[t]->start[start]);
			if (has_zero(format))
				sums[half][t] = _mm512_mullo_epi32(sums[half][t],
				                                   zeros);
		}
	}
}

INLINE void vnni_panel(struct panel *panel, const uint32_t count,
                       const enum format format)
{
	const struct layout *layout = panel->layout;
	const uint64_t steps = layout->steps, head_bytes = layout->head_bytes;
	const uint64_t many = format == INT4_MANY || format == INT4_ZERO_MANY
	                              ? layout->unit_steps
	                      : format == MXFP4_PAIR ? 2
	                                             : 1;
	const uint8_t *unit = panel->weights, *ahead = panel->ahead;
	const struct int8_step *rows[TILE];
	__m512 totals[2][TILE];

	UNROLL for (uint32_t t = 0; t < count; t++)
	{
		rows[t] = (const void *)panel->rows[t];
		totals[0][t] = totals[1][t] = _mm512_setzero_ps();
	}
	for (uint64_t step = 0; step < steps; step += many) {
		const uint8_t *head = unit, *codes = unit + head_bytes;
		uint64_t in_unit = many == 1 || steps - step >= many ? many
		                                                     : steps - step;
		__m512 parts[2][TILE];

		UNROLL for (uint32_t t = 0; t < count; t++)
			parts[0][t] = parts[1][t] = _mm512_setzero_ps();
		for (uint32_t i = 0; i < in_unit; i++) {
			const uint32_t sets = is_halved(format) ? 2 : 1;

			prefetch_step(&ahead, panel->ahead_lines);
			UNROLL for (uint32_t set = 0; set < sets; set++)
			{
				const uint32_t head_set = format == MXFP4_PAIR ? i
				                                               : set;
				__m512i sums[2][TILE];

				start_int8(sums, rows, layout, head, count, format,
				           head_set, set);
				if (sets == 1)
					dot_int8(sums, codes, rows, count, format, 0,
					         4);
				else
					dot_int8(sums, codes, rows, count, format,
					         2 * set, 2 * set + 2);
				UNROLL for (uint32_t half = 0; half < 2; half++)
				{
					__m512 scales = _mm512_setzero_ps();

					if (format != INT4_MANY &&
					    format != INT4_ZERO_MANY)
						scales = head_scales(format, layout,
						                     head, head_set,
						                     half);
					UNROLL for (uint32_t t = 0; t < count; t++)
					{
						__m512 sum = _mm512_cvtepi32_ps(
							sums[half][t]);
						__m512 x = _mm512_set1_ps(
							rows[t]->scale);

						if (format == INT4_MANY ||
						    format == INT4_ZERO_MANY)
							parts[half][t] =
								_mm512_fmadd_ps(
									sum, x,
									parts[half][t]);
						else
							/* in this order: a scale of
							 * 2^-127 times x would be
							 * subnormal */
							totals[half]
							      [t] = _mm512_fmadd_ps(
								      _mm512_mul_ps(sum,
							                            x),
								      scales,
								      totals[half][t]);
					}
				}
			}
			codes += STEP_BYTES;
			UNROLL for (uint32_t t = 0; t < count; t++) rows[t]++;
		}
		if (format == INT4_MANY || format == INT4_ZERO_MANY)
			UNROLL for (uint32_t half = 0; half < 2; half++)
			{
				__m512 scales = head_scales(format, layout, head, 0,
				                            half);

				UNROLL for (uint32_t t = 0; t < count; t++)
					totals[half][t] = _mm512_fmadd_ps(
						parts[half][t], scales,
						totals[half][t]);
			}
		unit = codes;
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t half = 0; half < 2; half++)
			_mm512_storeu_ps(panel->sums[t] + half * HALF, totals[half][t]);
}

#define VNNI_KERNEL(format, count)                                                     \
	static void vnni_##format##_##count(struct panel *panel)                       \
	{                                                                              \
		vnni_panel(panel, count, format);                                      \
	}

/* ---- rows of activations ---- */

static void pack_int8_512(const struct packing *packing, const float *values,
                          uint8_t *to)
{
	/* of each 8 bytes the even ones, then the odd ones */
	const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9,
	                                    11, 13, 15);
	const __m512 most = _mm512_set1_ps(127), least = _mm512_set1_ps(-127);
	struct int8_step step = { { 0, 0 }, 0.0f, 0, { 0 } };
	__m512 half[2] = { _mm512_loadu_ps(values), _mm512_loadu_ps(values + HALF) };
	__m512i size0 = _mm512_castps_si512(_mm512_abs_ps(half[0]));
	__m512i size1 = _mm512_castps_si512(_mm512_abs_ps(half[1]));
	uint32_t top = _mm512_reduce_max_epu32(_mm512_max_epu32(size0, size1));
	float scale = moek_int8_scale(moek_f32_from_bits(top));
	int32_t sums[2];

	if (top >= 0x7f800000u || !(scale > 0)) {
		pack_int8(packing, values, to); /* all NaN, or all zero */
		return;
	}
	UNROLL for (uint32_t i = 0; i < 2; i++)
	{
		__m512 quotient = _mm512_div_ps(half[i], _mm512_set1_ps(scale));
		__m512i codes = _mm512_cvtps_epi32(
			_mm512_max_ps(_mm512_min_ps(quotient, most), least));

		sums[i] = _mm512_reduce_add_epi32(codes);
		_mm_storeu_si128((void *)(step.codes + i * HALF),
		                 _mm_shuffle_epi8(_mm512_cvtepi32_epi8(codes), order));
	}
	step.scale = scale * packing->scale_factor;
	step.start[0] = packing->zero * (packing->halves ? sums[0] : sums[0] + sums[1]);
	step.start[1] = packing->halves ? packing->zero * sums[1] : 0;
	memcpy(to, &step, sizeof(step));
}

#if defined(__AVX512BF16__)
static void pack_bf16_512(const float *values, uint8_t *to)
{
	/* pairs (i, i + 4) of each 8 */
	static const uint16_t order[STEP] __attribute__((aligned(64))) = {
		0,  4,  1,  5,  2,  6,  3,  7,  8,  12, 9,  13, 10, 14, 11, 15,
		16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31,
	};
	__m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(values + HALF),
	                                       _mm512_loadu_ps(values));

	_mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(order),
	                                                 (__m512i)rounded));
}
#endif

static void pack_512(const struct packing *packing, const float *values, uint8_t *to)
{
	if (packing->arithmetic == BY_INT8 && packing->type == MOEK_F32)
		pack_int8_512(packing, values, to);
#if defined(__AVX512BF16__)
	else if (packing->arithmetic == BY_BF16)
		pack_bf16_512(values, to);
#endif
	else
		pack(packing, values, to);
}

/* ---- bf16 ---- */

#if defined(__AVX512BF16__)

/* bf16 of what a word's lowest five bits say: a code (its fifth bit is the neighbour's,
 * so the table stands twice), or code - zero as a signed number. */
static const uint16_t bf16_symmetric[32] __attribute__((aligned(64))) = {
	0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
	0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
	0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
	0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
};
static const uint16_t bf16_signed[32] __attribute__((aligned(64))) = {
	0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
	0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
	0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130, 0xc120, 0xc110,
	0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
};
static const uint16_t bf16_e2m1[32] __attribute__((aligned(64))) = {
	0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
	0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
	0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
	0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
};

/* Words whose lowest five bits say the weight of nibble n of each word. */
INLINE void bf16_indices(const enum format format, __m512i codes, __m512i zeros,
                         __m512i indices[4])
{
	const __m512i low = _mm512_set1_epi8(15);

	if (!has_zero(format)) {
		indices[0] = codes;
		indices[1] = _mm512_srli_epi16(codes, 4);
		indices[2] = _mm512_srli_epi16(codes, 8);
		indices[3] = _mm512_srli_epi16(codes, 12);
		return;
	}
	indices[0] = _mm512_sub_epi8(_mm512_and_si512(codes, low), zeros);
	indices[1] = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(codes, 4), low),
	                             zeros);
	indices[2] = _mm512_srli_epi16(indices[0], 8);
	indices[3] = _mm512_srli_epi16(indices[1], 8);
}

/* Chains of additions for one sum: enough to hide the latency, few enough for
 * registers; the same for any number of rows, so that a row's sums are, too. */
#define CHAINS 2u

INLINE void clear_chains(__m512 sums[CHAINS][2][TILE], const uint32_t count)
{
	for (uint32_t c = 0; c < CHAINS; c++)
		UNROLL for (uint32_t t = 0; t < count; t++)
			sums[c][0][t] = sums[c][1][t] = _mm512_setzero_ps();
}

INLINE __m512i in_each_byte(__m512i dwords)
{
	const __m512i first = _mm512_broadcast_i32x4(
		_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));

	return _mm512_shuffle_epi8(dwords, first);
}

/* Four lines of a step, or the two of a half, for both vectors of rows. */
INLINE void dot_bf16(__m512 sums[CHAINS][2][TILE], const uint8_t *codes,
                     const uint8_t *const rows[TILE], __m512i table,
                     const __m512i zeros[2], const uint32_t count,
                     const enum format format)
{
	const uint32_t lines = is_halved(format) ? 2 : 4;

	UNROLL for (uint32_t j = 0; j < lines; j++)
	{
		__m512i top[4], low[4];

		bf16_indices(format, _mm512_loadu_si512(codes + 2 * j * LINE), zeros[0],
		             top);
		bf16_indices(format, _mm512_loadu_si512(codes + (2 * j + 1) * LINE),
		             zeros[1], low);
		UNROLL for (uint32_t n = 0; n < 4; n++)
		{
			const uint32_t c = n % CHAINS;
			__m512bh w0 = (__m512bh)_mm512_permutexvar_epi16(top[n], table);
			__m512bh w1 = (__m512bh)_mm512_permutexvar_epi16(low[n], table);

			UNROLL for (uint32_t t = 0; t < count; t++)
			{
				__m512bh x = (__m512bh)dword_at(rows[t] + j * 16 +
				                                n * 4);

				sums[c][0][t] = _mm512_dpbf16_ps(sums[c][0][t], w0, x);
				sums[c][1][t] = _mm512_dpbf16_ps(sums[c][1][t], w1, x);
			}
		}
	}
}

INLINE void scale_bf16(__m512 totals[TILE], __m512 sums[CHAINS][2][TILE],
                       const uint32_t half, __m512 scales, const uint32_t count)
{
	UNROLL for (uint32_t t = 0; t < count; t++)
	{
		__m512 sum = _mm512_add_ps(sums[0][half][t], sums[1][half][t]);

		totals[t] = _mm512_fmadd_ps(sum, scales, totals[t]);
	}
}

INLINE void bf16_panel(struct panel *panel, const uint32_t count,
                       const enum format format)
{
	const struct layout *layout = panel->layout;
	const uint64_t steps = layout->steps, head_bytes = layout->head_bytes;
	/* no constant, where it could be one: the compiler would unroll and spill */
	const uint64_t many = layout->unit_steps;
	const uint32_t sets = is_halved(format) || format == MXFP4_PAIR ? 2 : 1;
	const __m512i table = _mm512_load_si512(format == MXFP4_PAIR ? bf16_e2m1
	                                        : has_zero(format)   ? bf16_signed
	                                                             : bf16_symmetric);
	const uint8_t *unit = panel->weights, *ahead = panel->ahead;
	const uint8_t *rows[TILE];
	__m512 totals[2][TILE];

	UNROLL for (uint32_t t = 0; t < count; t++)
	{
		rows[t] = panel->rows[t];
		totals[0][t] = totals[1][t] = _mm512_setzero_ps();
	}
	for (uint64_t step = 0; step < steps; step += many) {
		const uint8_t *head = unit, *codes = unit + head_bytes;
		const uint64_t unit_steps = steps - step >= many ? many : steps - step;

		UNROLL for (uint32_t set = 0; set < sets; set++)
		{
			const uint64_t set_steps = sets == 2 ? 1 : unit_steps;
			__m512 sums[CHAINS][2][TILE];
			__m512i zeros[2] = { _mm512_setzero_si512(),
				             _mm512_setzero_si512() };

			clear_chains(sums, count);
			if (has_zero(format)) {
				zeros[0] = in_each_byte(
					head_zeros(layout, head, set, 0));
				zeros[1] = in_each_byte(
					head_zeros(layout, head, set, 1));
			}
			for (uint64_t i = 0; i < set_steps; i++) {
				if (!is_halved(format) || set == 0)
					prefetch_step(&ahead, panel->ahead_lines);
				dot_bf16(sums, codes, rows, table, zeros, count,
				         format);
				codes += is_halved(format) ? STEP_BYTES / 2
				                           : STEP_BYTES;
				UNROLL for (uint32_t t = 0; t < count; t++)
					rows[t] += is_halved(format) ? STEP : 2 * STEP;
			}
			UNROLL for (uint32_t half = 0; half < 2; half++) scale_bf16(
				totals[half], sums, half,
				head_scales(format, layout, head, set, half), count);
		}
		unit += head_bytes + unit_steps * STEP_BYTES;
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t half = 0; half < 2; half++)
			_mm512_storeu_ps(panel->sums[t] + half * HALF, totals[half][t]);
}

/* Unquantised rows: the pairs of a step lie as those of the activations. */
INLINE void bf16_rows_panel(struct panel *panel, const uint32_t count)
{
	const struct layout *layout = panel->layout;
	const uint8_t *codes = panel->weights, *ahead = panel->ahead;
	const uint8_t *rows[TILE];
	__m512 sums[CHAINS][2][TILE];

	UNROLL for (uint32_t t = 0; t < count; t++) rows[t] = panel->rows[t];
	clear_chains(sums, count);
	for (uint64_t step = 0; step < layout->steps; step++) {
		prefetch_step(&ahead, panel->ahead_lines);
		UNROLL for (uint32_t p = 0; p < STEP / 2; p++)
		{
			const uint32_t c = p % CHAINS;
			__m512bh w0 = (__m512bh)_mm512_loadu_si512(codes +
			                                           2 * p * LINE);
			__m512bh w1 = (__m512bh)_mm512_loadu_si512(codes +
			                                           (2 * p + 1) * LINE);

			UNROLL for (uint32_t t = 0; t < count; t++)
			{
				__m512bh x = (__m512bh)dword_at(rows[t] + p * 4);

				sums[c][0][t] = _mm512_dpbf16_ps(sums[c][0][t], w0, x);
				sums[c][1][t] = _mm512_dpbf16_ps(sums[c][1][t], w1, x);
			}
		}
		codes += ROWS * STEP * 2;
		UNROLL for (uint32_t t = 0; t < count; t++) rows[t] += 2 * STEP;
	}
	UNROLL for (uint32_t half = 0; half < 2; half++)
	{
		__m512 totals[TILE];

		UNROLL for (uint32_t t = 0; t < count; t++)
			totals[t] = _mm512_setzero_ps();
		scale_bf16(totals, sums, half, _mm512_set1_ps(1), count);
		UNROLL for (uint32_t t = 0; t < count; t++)
			_mm512_storeu_ps(panel->sums[t] + half * HALF, totals[t]);
	}
}

#define BF16_KERNEL(format, count)                                                     \
	static void bf16_##format##_##count(struct panel *panel)                       \
	{                                                                              \
		if (format == ROWS_BF16)                                               \
			bf16_rows_panel(panel, count);                                 \
		else                                                                   \
			bf16_panel(panel, count, format);                              \
	}

#endif
