/* SPDX-License-Identifier: MIT */
/*
 * AVX-512 with bf16, and for many rows of activations the tiles of AMX: Sapphire Rapids
 * and on. A tile is 16 rows of 64 bytes: 16 tokens of a step, or a step of 16 outputs.
 *
 * The compiler's own intrinsics do not say that they read and write memory; these do.
 */
#include "kernels_avx512.h"

/* Steps that are unpacked, then multiplied, then scaled: all that stays in the L1
 * cache, and a tile's sums are in memory long before they are read again. */
#define STEPS 4u
#define HIGH 16u /* rows of a tile, at most */

#define TILE_LOAD(tile, from, stride)                                                  \
	__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                            \
	                 :                                                             \
	                 : "r"(from), "r"((uint64_t)(stride))                          \
	                 : "memory")
#define TILE_STORE(tile, to, stride)                                                   \
	__asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                        \
	                 :                                                             \
	                 : "r"(to), "r"((uint64_t)(stride))                            \
	                 : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
#define TILE_DOT(sum, rows, weights)                                                   \
	__asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #rows ", %%tmm" #sum ::  \
	                         : "memory")

/* Tiles 0 to 3: sums of the first 16 tokens and the first 16 outputs, of these and the
 * other outputs, then the same of the other tokens. 4 and 5: tokens. 6 and 7: outputs.
 */
struct tile_config {
	uint8_t palette, start_row, unused[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
};

static void configure(uint64_t count)
{
	const uint8_t first = (uint8_t)(count < HIGH ? count : HIGH);
	const uint8_t second = (uint8_t)(count - first);
	struct tile_config config = {
		.palette = 1,
		.row_bytes = { LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE },
		.rows = { first, first, second, second, first, second, HIGH, HIGH },
	};

	/* a tile without rows has no bytes either, or the processor objects */
	if (second == 0)
		config.row_bytes[2] = config.row_bytes[3] = config.row_bytes[5] = 0;
	__asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
	TILE_ZERO(0);
	TILE_ZERO(1);
	if (second > 0) {
		TILE_ZERO(2);
		TILE_ZERO(3);
	}
}

static void release(void)
{
	__asm__ volatile("tilerelease" ::: "memory");
}

/* Some steps of a panel and of its rows, laid out as tiles. */
struct block {
	uint8_t weights[STEPS][2][HIGH * LINE];
	float sums[STEPS][4][HIGH][HALF]; /* of a group that the step ends */
	float scales[STEPS][2][HALF];     /* of that group */
	uint8_t ends[STEPS];
} __attribute__((aligned(64)));

/* Where a step lies. */
struct place {
	const uint8_t *head, *codes;
	uint64_t step, in_unit;
};

INLINE void next_step(struct place *place, const struct layout *layout)
{
	place->step++;
	place->codes += STEP_BYTES;
	if (++place->in_unit == layout->unit_steps) {
		place->in_unit = 0;
		place->head = place->codes;
		place->codes += layout->head_bytes;
	}
}

/* A step's weights as two tiles of bf16: pairs of columns as the rows have them. */
INLINE void unpack(const uint8_t *codes, const __m512i table, const __m512i zeros[2],
                   const enum format format, uint8_t to[2][HIGH * LINE])
{
	UNROLL for (uint32_t j = 0; j < 4; j++)
		UNROLL for (uint32_t half = 0; half < 2; half++)
	{
		__m512i indices[4];

		bf16_indices(format, _mm512_loadu_si512(codes + (2 * j + half) * LINE),
		             zeros[half], indices);
		UNROLL for (uint32_t n = 0; n < 4; n++)
			_mm512_store_si512(to[half] + (j * 4 + n) * LINE,
		                           _mm512_permutexvar_epi16(indices[n], table));
	}
}

INLINE void fill_step(struct block *block, uint32_t s, const struct layout *layout,
                      const struct place *place, const enum format format)
{
	const uint32_t set = format == MXFP4_PAIR ? (uint32_t)place->in_unit : 0;
	const __m512i table = _mm512_load_si512(format == MXFP4_PAIR ? bf16_e2m1
	                                        : has_zero(format)   ? bf16_signed
	                                                             : bf16_symmetric);
	__m512i zeros[2] = { _mm512_setzero_si512(), _mm512_setzero_si512() };

	UNROLL for (uint32_t half = 0; half < 2; half++)
	{
		if (has_zero(format))
			zeros[half] = in_each_byte(
				head_zeros(layout, place->head, set, half));
		_mm512_store_ps(block->scales[s][half],
		                head_scales(format, layout, place->head, set, half));
	}
	block->ends[s] = (format != INT4_MANY && format != INT4_ZERO_MANY) ||
	                 place->in_unit + 1 == layout->unit_steps ||
	                 place->step + 1 == layout->steps;
	unpack(place->codes, table, zeros, format, block->weights[s]);
}

/* A step into the tiles of sums; the second tile of outputs is so far from the first.
 */
INLINE void multiply_step(const struct panel *panel, uint64_t step,
                          const uint8_t *weights, const uint64_t apart,
                          const uint64_t stride)
{
	const uint8_t *rows = panel->rows[0] + step * 2 * STEP;
	const uint64_t row_bytes = (uint64_t)(panel->rows[1] - panel->rows[0]);

	TILE_LOAD(6, weights, stride);
	TILE_LOAD(7, weights + apart, stride);
	TILE_LOAD(4, rows, row_bytes);
	TILE_DOT(0, 4, 6);
	TILE_DOT(1, 4, 7);
	if (panel->count <= HIGH)
		return;
	TILE_LOAD(5, rows + HIGH * row_bytes, row_bytes);
	TILE_DOT(2, 5, 6);
	TILE_DOT(3, 5, 7);
}

/* The tiles of sums to memory, and zero. */
INLINE void take_sums(float to[4][HIGH][HALF], const int second)
{
	TILE_STORE(0, to[0], LINE);
	TILE_ZERO(0);
	TILE_STORE(1, to[1], LINE);
	TILE_ZERO(1);
	if (!second)
		return;
	TILE_STORE(2, to[2], LINE);
	TILE_ZERO(2);
	TILE_STORE(3, to[3], LINE);
	TILE_ZERO(3);
}

/* What a block's groups add to 16 tokens and 16 outputs. */
INLINE void scale_quarter(struct panel *panel, const struct block *block,
                          uint32_t steps, const uint32_t quarter)
{
	const uint32_t half = quarter % 2, first = quarter / 2 * HIGH;
	__m512 totals[HIGH];

	UNROLL for (uint32_t t = 0; t < HIGH; t++)
		totals[t] = _mm512_loadu_ps(panel->sums[first + t] + half * HALF);
	for (uint32_t s = 0; s < steps; s++) {
		const __m512 scales = _mm512_load_ps(block->scales[s][half]);

		if (block->ends[s])
			UNROLL for (uint32_t t = 0; t < HIGH; t++)
				totals[t] = _mm512_fmadd_ps(
					_mm512_load_ps(block->sums[s][quarter][t]),
					scales, totals[t]);
	}
	UNROLL for (uint32_t t = 0; t < HIGH; t++)
		_mm512_storeu_ps(panel->sums[first + t] + half * HALF, totals[t]);
}

INLINE void tiles_panel(struct panel *panel, const enum format format)
{
	const struct layout *layout = panel->layout;
	const int second = panel->count > HIGH;
	struct place place = { panel->weights, panel->weights + layout->head_bytes, 0,
		               0 };
	struct block block;

	/* rows that a tile has not are added up, too, and nobody reads them */
	memset(panel->sums, 0, sizeof(panel->sums));
	memset(block.sums, 0, sizeof(block.sums));
	configure(panel->count);
	while (place.step < layout->steps) {
		const uint64_t at = place.step, left = layout->steps - at;
		const uint32_t steps = left < STEPS ? (uint32_t)left : STEPS;
		uint32_t s;

		for (s = 0; s < steps; s++) {
			prefetch(panel, place.step);
			fill_step(&block, s, layout, &place, format);
			next_step(&place, layout);
		}
		for (s = 0; s < steps; s++) {
			multiply_step(panel, at + s, block.weights[s][0],
			              sizeof(block.weights[s][0]), LINE);
			if (block.ends[s])
				take_sums(block.sums[s], second);
		}
		scale_quarter(panel, &block, steps, 0);
		scale_quarter(panel, &block, steps, 1);
		if (second) {
			scale_quarter(panel, &block, steps, 2);
			scale_quarter(panel, &block, steps, 3);
		}
	}
	release();
}

/* Unquantised: the weights lie as tiles, and nothing is scaled. */
static void tiles_ROWS_BF16(struct panel *panel)
{
	const struct layout *layout = panel->layout;
	const uint8_t *codes = panel->weights;

	configure(panel->count);
	for (uint64_t step = 0; step < layout->steps; step++) {
		prefetch(panel, step);
		multiply_step(panel, step, codes, LINE, 2 * LINE);
		codes += ROWS * STEP * 2;
	}
	TILE_STORE(0, panel->sums[0], ROWS * 4);
	TILE_STORE(1, panel->sums[0] + HALF, ROWS * 4);
	if (panel->count > HIGH) {
		TILE_STORE(2, panel->sums[HIGH], ROWS * 4);
		TILE_STORE(3, panel->sums[HIGH] + HALF, ROWS * 4);
	}
	release();
}

EACH_FORMAT(F32_KERNEL)
EACH_ROWS(F32_KERNEL)
EACH_FORMAT(VNNI_KERNEL)
EACH_FORMAT(BF16_KERNEL)
EACH_COUNT(BF16_KERNEL, ROWS_BF16)

/* Groups of 16 end within a step: no tiles for them. */
#define TILES_KERNEL(format)                                                           \
	static void tiles_##format(struct panel *panel)                                \
	{                                                                              \
		tiles_panel(panel, format);                                            \
	}
TILES_KERNEL(INT4_32)
TILES_KERNEL(INT4_MANY)
TILES_KERNEL(INT4_ZERO_32)
TILES_KERNEL(INT4_ZERO_MANY)
TILES_KERNEL(MXFP4_PAIR)

#define TILES(format) [format] = tiles_##format

/* No tiles of int8: as each 32 activations have a scale, a tile's sums would leave it
 * at each step, and the dot products of AVX-512 are as fast. */
extern const struct kernels cpu_kernels_amx;
const struct kernels cpu_kernels_amx = {
	.bf16 = 1,
	.panel = { [BY_F32] = { FORMATS_OF(f32), ROWS_OF(f32) },
	           [BY_BF16] = { FORMATS_OF(bf16), COUNTS(bf16, ROWS_BF16) },
	           [BY_INT8] = { FORMATS_OF(vnni) } },
	.many = { [BY_BF16] = { TILES(INT4_32), TILES(INT4_MANY), TILES(INT4_ZERO_32),
	                        TILES(INT4_ZERO_MANY), TILES(MXFP4_PAIR),
	                        TILES(ROWS_BF16) } },
	.widen = widen,
	.narrow = narrow,
	.pack = pack_512,
	.activate = activate,
};
