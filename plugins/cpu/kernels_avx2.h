/* SPDX-License-Identifier: MIT */
/* Kernels for AVX2, FMA and F16C: fp32 in vectors of 8; int8 by dot products (AVX-VNNI)
 * where the compiler may use them, else by sums of pairs in 16 bits. */
#define LANES 8u
#include "kernels_vector.h"

/* Low or high nibbles of each byte as unsigned values. */
INLINE __m256i nibbles(const enum format format, __m256i codes, const int high)
{
	/* 2 * value + 12 of E2M1 */
	const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
		12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));

	if (high)
		codes = _mm256_srli_epi16(codes, 4);
	codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
	return format == MXFP4_PAIR ? _mm256_shuffle_epi8(table, codes) : codes;
}

INLINE __m256i dword_at(const void *from)
{
	int32_t dword;

	memcpy(&dword, from, sizeof(dword));
	return _mm256_set1_epi32(dword);
}

/* The products of the four low or high nibbles of each dword with the same four of x.
 */
INLINE __m256i add_products(__m256i sums, __m256i weights, __m256i x)
{
#if defined(__AVXVNNI__)
	return _mm256_dpbusd_avx_epi32(sums, weights, x);
#else
	/* 16-bit sums of pairs */
	return _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, x));
#endif
}

INLINE __m256i whole(__m256i products)
{
#if defined(__AVXVNNI__)
	return products;
#else
	return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
#endif
}

/*
 * Lines j_first .. j_last-1 of a step for 16 rows, added to sums. A pair of products is
 * at most 2 * 127 * 15, or * 24 for MXFP4: eight, or four, of them fit 16 bits.
 */
INLINE void dot_pairs(__m256i sums[TILE][BLOCK], const uint8_t *codes,
                      const struct int8_step *const rows[TILE], const uint32_t count,
                      const enum format format, const uint32_t j_first,
                      const uint32_t j_last)
{
	__m256i pairs[TILE][BLOCK];

	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			pairs[t][v] = _mm256_setzero_si256();
	UNROLL for (uint32_t j = j_first; j < j_last; j++)
		UNROLL for (int high = 0; high < 2; high++)
	{
		__m256i weights[BLOCK];

		UNROLL for (uint32_t v = 0; v < BLOCK; v++) weights[v] = nibbles(
			format,
			_mm256_loadu_si256(
				(const void *)(codes + j * ROWS * 4 + v * 32)),
			high);
		UNROLL for (uint32_t t = 0; t < count; t++)
		{
			__m256i x = dword_at(rows[t]->codes + 8 * j + 4 * high);

			UNROLL for (uint32_t v = 0; v < BLOCK; v++)
				pairs[t][v] = add_products(pairs[t][v], weights[v], x);
		}
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			sums[t][v] = _mm256_add_epi32(sums[t][v], whole(pairs[t][v]));
}

/* Sums begin with the share of the zero points. */
INLINE void start_pairs(__m256i sums[TILE][BLOCK],
                        const struct int8_step *const rows[TILE], const uint8_t *zeros,
                        const uint32_t count, const enum format format,
                        const uint32_t start)
{
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
	{
		sums[t][v] = _mm256_set1_epi32(rows[t]->start[start]);
		if (has_zero(format))
			sums[t][v] = _mm256_mullo_epi32(
				sums[t][v], _mm256_cvtepu8_epi32(_mm_loadl_epi64(
						    (const void *)(zeros + v * 8))));
	}
}

/* One step, or with `halved` the half of it that `set` names, into parts of the group.
 */
INLINE void step_pairs(struct pass *pass, const uint8_t *codes,
                       const struct int8_step *const rows[TILE], const uint8_t *zeros,
                       const uint32_t count, const enum format format,
                       const uint32_t set)
{
	__m256i sums[TILE][BLOCK];

	start_pairs(sums, rows, zeros, count, format, set);
	if (is_halved(format)) {
		dot_pairs(sums, codes, rows, count, format, 2 * set, 2 * set + 2);
	} else if (format == MXFP4_PAIR) {
		dot_pairs(sums, codes, rows, count, format, 0, 2);
		dot_pairs(sums, codes, rows, count, format, 2, 4);
	} else {
		dot_pairs(sums, codes, rows, count, format, 0, 4);
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			pass->parts[t][v] += (vector)_mm256_cvtepi32_ps(sums[t][v]) *
	                                     rows[t]->scale;
}

INLINE void pairs_pass(struct panel *panel, const uint32_t half, const uint32_t count,
                       const enum format format)
{
	const struct layout *layout = panel->layout;
	const uint32_t sets = is_halved(format) ? 2 : 1;
	const uint8_t *unit = panel->weights;
	const struct int8_step *rows[TILE];
	struct pass pass;

	UNROLL for (uint32_t t = 0; t < count; t++)
	{
		rows[t] = (const void *)panel->rows[t];
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			pass.totals[t][v] = vector_of(0);
	}
	clear_parts(&pass, count);
	for (uint64_t step = 0; step < layout->steps; step += layout->unit_steps) {
		const uint8_t *head = unit + half * HALF * layout->scale_bytes;
		const uint8_t *zeros = unit +
		                       layout->sets * ROWS * layout->scale_bytes +
		                       half * HALF;
		const uint8_t *codes = unit + layout->head_bytes;
		uint64_t left = layout->steps - step;
		uint64_t steps = left < layout->unit_steps ? left : layout->unit_steps;

		for (uint32_t i = 0; i < steps; i++) {
			if (half == 0)
				prefetch(panel, step + i);
			UNROLL for (uint32_t set = 0; set < sets; set++)
			{
				step_pairs(&pass, codes + half * LINE, rows,
				           zeros + set * ROWS, count, format, set);
				if (is_halved(format) || format == MXFP4_PAIR)
					close_group(&pass, head,
					            format == MXFP4_PAIR ? i : set,
					            layout, count, 0);
			}
			codes += STEP_BYTES;
			UNROLL for (uint32_t t = 0; t < count; t++) rows[t]++;
		}
		if (!is_halved(format) && format != MXFP4_PAIR)
			close_group(&pass, head, 0, layout, count, 0);
		unit = codes;
	}
	UNROLL for (uint32_t t = 0; t < count; t++)
		UNROLL for (uint32_t v = 0; v < BLOCK; v++)
			memcpy(panel->sums[t] + half * HALF + v * LANES,
	                       &pass.totals[t][v], sizeof(vector));
}

#define PAIRS_KERNEL(format, count)                                                    \
	static void pairs_##format##_##count(struct panel *panel)                      \
	{                                                                              \
		pairs_pass(panel, 0, count, format);                                   \
		pairs_pass(panel, 1, count, format);                                   \
	}
