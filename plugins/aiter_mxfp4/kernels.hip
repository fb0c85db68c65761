/* SPDX-License-Identifier: MIT */
/*
 * The expert layer for gfx950. A wave of 64 lanes multiplies 16 tokens (A) by 16 rows
 * of weights (B): lane l then has tokens 4 (l / 16) + i of weight row l % 16. Weights
 * go from memory to registers: sixteen bytes a lane are a lane's part of B.
 *
 *   quantise        rows of the input to FP4 with shared exponents, or to FP8
 *   gate_up, down   decode: a block has one expert's slots, 16 at a time, and one panel
 *                   of rows; its waves share the columns. tile: a block has up to 64 of
 *                   an expert's slots in LDS, each wave a panel of its own
 *   sort, tiles     before the tiles; reduce: after, the slots of each token in order
 *   flat_begin, _end  before and after a kernel of AITER, which takes ids as they are
 *
 * With A4 and A8 one multiply is 128 columns deep and applies the scales itself. With
 * 16-bit activations a code is formed exactly, 32 columns are summed, and the scale
 * multiplies that sum.
 */
#define GPU_WAVE 64
#include "mfma.h"
#include "activation.h"
#include "routing.h"
#include "args.h"

#define WAVES MXFP4_WAVES

/* tiles of 16 tokens that are finished at once, 64 KiB of LDS for all four; NVIDIA's
 * compiler gives 48 at most */
#ifdef GPU_NVIDIA
#define FINISHED 1u
#else
#define FINISHED 4u
#endif

GPU_DEVICE gpu_u32 lane_of_wave(void)
{
	return gpu_thread() & 63u;
}

/* bytes of one row for one step of 128 columns */
GPU_DEVICE gpu_u32 step_bytes(int format)
{
	return format == MXFP4_A4 ? 64u : format == MXFP4_A8 ? 128u : 256u;
}

GPU_DEVICE gpu_u32 load32(const gpu_u8 *from)
{
	return *(const gpu_u32 *)(const void *)from;
}

GPU_DEVICE float input_scale(const struct mxfp4_args *a,
                             const struct mxfp4_plane *plane, gpu_u32 expert)
{
	return ((const float *)(const void *)(a->weights +
	                                      plane->input_scales))[expert];
}

GPU_DEVICE float bias(const struct mxfp4_args *a, const struct mxfp4_plane *plane,
                      gpu_u32 expert, gpu_u32 row)
{
	const float *all = (const float *)(const void *)(a->weights + plane->bias);

	return plane->has_bias ? all[(gpu_u64)expert * plane->rows + row] : 0.0f;
}

/* --------------------------------------------------------------------------- the input
 */

/* 32 columns of a row as the multiply is to see them: the weight on it, if it is there
 */
GPU_DEVICE void load_block(const struct mxfp4_args *a, gpu_u32 token, gpu_u32 block,
                           gpu_u32 type, float *values)
{
	const gpu_u32 bytes = type == GPU_F32 ? 4 : 2, each = 16u / bytes;
	const gpu_u8 *from = (const gpu_u8 *)a->input +
	                     ((gpu_u64)token * a->hidden + block * 32u) * bytes;
	float weight = 1.0f;
	gpu_u32 i, j;

	for (i = 0; i < 32u / each; i++) {
		struct gpu_u32x4 piece = gpu_load16(from + 16u * i);

		for (j = 0; j < each; j++)
			values[each * i + j] =
				type == GPU_F32
					? gpu_float(piece.u[j & 3u])
					: gpu_widen(piece.u[j / 2 & 3u] >>
			                                            16u * (j & 1u) &
			                                    0xffffu,
			                            type);
	}
	if (!a->routing.weight_on_input || !a->routing.topk_weights)
		return;
	weight = a->routing.topk_weights[token]; /* top_k is 1 */
	for (i = 0; i < 32; i++)
		values[i] = type == GPU_F32 ? values[i] * weight
		                            : gpu_round(values[i] * weight, type);
}

/* grid: tokens x blocks of 32 columns / 256; a thread has one block */
GPU_DEVICE void quantise_a4(const struct mxfp4_args *a, gpu_u32 type)
{
	gpu_u32 token = gpu_block_x(), block = gpu_block_y() * 256u + gpu_thread();
	gpu_u32 blocks = a->gate_up.steps * 4u, largest = 0, scale = 127, i;
	struct gpu_u32x4 codes = { { 0, 0, 0, 0 } };
	float values[32];

	if (block >= blocks)
		return;
	if (block < a->gate_up.blocks) { /* else padding */
		load_block(a, token, block, type, values);
		for (i = 0; i < 32; i++)
			largest = gpu_larger(largest, values[i]);
		scale = gpu_mxfp4_scale(largest, a->round_up);
		GPU_UNROLL(32)
		for (i = 0; i < 32; i++)
			codes.u[i / 8] |= gpu_mxfp4_code(values[i], scale)
			                  << 4 * (i & 7u);
	}
	gpu_store16(a->quantised + ((gpu_u64)token * blocks + block) * 16u, codes);
	a->quantised_scales[(gpu_u64)token * blocks + block] = (gpu_u8)scale;
}

/* grid: slots x blocks of 32 columns / 256: the scale is that of the slot's expert */
GPU_DEVICE void quantise_a8(const struct mxfp4_args *a, gpu_u32 type)
{
	gpu_u32 slot = gpu_block_x(), block = gpu_block_y() * 256u + gpu_thread();
	gpu_u32 blocks = a->gate_up.steps * 4u, i;
	int expert = gpu_slot_expert(&a->routing, slot);
	struct gpu_u32x4 codes[2] = { { { 0, 0, 0, 0 } }, { { 0, 0, 0, 0 } } };
	gpu_u8 *to = a->quantised + ((gpu_u64)slot * blocks + block) * 32u;
	float values[32];

	if (expert < 0 || block >= blocks)
		return;
	if (block < a->gate_up.blocks) { /* else padding */
		float scale = input_scale(a, &a->gate_up, (gpu_u32)expert);

		load_block(a, slot / a->routing.top_k, block, type, values);
		for (i = 0; i < 32; i++)
			codes[i / 16].u[i / 4 & 3u] |= (gpu_u32)moek_fp8_code(values[i],
			                                                      scale)
			                               << 8 * (i & 3u);
	}
	gpu_store16(to, codes[0]);
	gpu_store16(to + 16, codes[1]);
}

/* -------------------------------------------------------------- around AITER's kernel
 */

/*
 * Ids that may be followed blindly: an id that is not routed becomes another one of its
 * token, with the weight 0. Grid: 1; at most 256 slots. The 8 bytes behind the output
 * are by what its groups agree who zeroes it.
 */
GPU_DEVICE void flat_begin(const struct mxfp4_args *a)
{
	const struct gpu_routing *r = &a->routing;
	gpu_u32 slot = gpu_thread(), first = slot / r->top_k * r->top_k, i;
	int expert = gpu_slot_expert(r, slot), other = 0;

	if (slot < 4)
		a->flat_output[(gpu_u64)r->tokens * a->hidden + slot] = 0;
	if (slot >= r->slots)
		return;
	for (i = r->top_k; expert < 0 && i > 0; i--)
		if (gpu_slot_expert(r, first + i - 1) >= 0)
			other = gpu_slot_expert(r, first + i - 1);
	a->flat_ids[slot] = expert < 0 ? other : expert;
	a->flat_weights[slot] = expert < 0 ? 0.0f : gpu_slot_weight(r, slot);
}

/* grid: tokens x hidden / 256, rounded up. A token that nobody was to see is zero. */
GPU_DEVICE void flat_end(const struct mxfp4_args *a)
{
	const struct gpu_routing *r = &a->routing;
	gpu_u32 token = gpu_block_x(), column = gpu_block_y() * 256u + gpu_thread(), i;
	gpu_u64 at = (gpu_u64)token * a->hidden + column;
	int routed = 0;

	if (column >= a->hidden)
		return;
	for (i = 0; i < r->top_k; i++)
		routed |= gpu_slot_expert(r, token * r->top_k + i) >= 0;
	((gpu_u16 *)a->output)[at] = routed ? a->flat_output[at] : (gpu_u16)0;
}

/* ------------------------------------------------------------------------- the weights
 */

/* a wave's two groups of 32 rows, of which each is two tiles of 16 */
struct weights {
	const gpu_u8 *codes[2], *scales[2];
	gpu_u32 tile_bytes;
};

/* what it multiplies in one step, straight from memory */
struct step {
	struct gpu_u32x4 codes[4]; /* of tile 2 group + tile */
	gpu_u32 scales[2][4];      /* of a group; with A4 and A8 only [0] */
};

GPU_DEVICE void find_weights(const struct mxfp4_args *a,
                             const struct mxfp4_plane *plane, gpu_u32 expert,
                             gpu_u32 row, gpu_u32 other, struct weights *w)
{
	const gpu_u8 *codes = a->weights + plane->codes + expert * plane->codes_bytes;
	const gpu_u8 *scales = a->weights + plane->scales +
	                       expert * plane->scales_bytes;

	w->tile_bytes = plane->steps * 1024u;
	w->codes[0] = codes + (gpu_u64)(row / 16u) * w->tile_bytes;
	w->codes[1] = codes + (gpu_u64)(other / 16u) * w->tile_bytes;
	w->scales[0] = scales + (gpu_u64)row * plane->scale_columns;
	w->scales[1] = scales + (gpu_u64)other * plane->scale_columns;
}

GPU_DEVICE struct gpu_u32x4 load_codes(const gpu_u8 *tile, int format)
{
	gpu_u32 lane = lane_of_wave(), j;
	struct gpu_u32x4 codes;

	if (format == MXFP4_A4 || format == MXFP4_A8)
		return gpu_stream16(tile + lane * 16u);
	for (j = 0; j < 4; j++) /* eight columns of each block of 32 */
		codes.u[j] = load32(tile + j * 256u + (lane & 15u) * 16u +
		                    (lane >> 4) * 4u);
	return codes;
}

GPU_DEVICE void load_step(const struct weights *w, gpu_u32 step, int format,
                          struct step *s)
{
	gpu_u32 lane = lane_of_wave(), g, t, j;

	for (g = 0; g < 2; g++) {
		const gpu_u8 *scales = w->scales[g] + (gpu_u64)(step / 2u) * 256u;

		for (t = 0; t < 2; t++)
			s->codes[2 * g + t] = load_codes(
				w->codes[g] + t * w->tile_bytes + step * 1024u, format);
		if (format == MXFP4_A4 || format == MXFP4_A8)
			s->scales[g][0] = load32(scales + lane * 4u);
		else
			for (j = 0; j < 4; j++)
				s->scales[g][j] = load32(scales +
				                         (j * 16u + (lane & 15u)) * 4u);
	}
}

/* Eight codes of adjacent columns as pairs of fp16 or bf16: the upper bytes of 0 0.5
 * 1 1.5 2 3 4 6 looked up four at a time; fp16 has no lower ones. */
GPU_DEVICE struct gpu_u32x4 expand(gpu_u32 word, int format)
{
	gpu_u32 halves[2][2], i;
	struct gpu_u32x4 pairs;

	for (i = 0; i < 2; i++) { /* even columns, then odd ones */
		gpu_u32 codes = word >> 4 * i, size = codes & 0x07070707u;
		gpu_u32 sign = (codes & 0x08080808u) << 4, high, low = 0;

		if (format == MXFP4_F16) {
			high = gpu_pick_bytes(0x46444240u, 0x3e3c3800u, size) | sign;
		} else {
			high = gpu_pick_bytes(0x40404040u, 0x3f3f3f00u, size) | sign;
			low = gpu_pick_bytes(0xc0804000u, 0xc0800000u, size);
		}
		halves[i][0] = gpu_pick_bytes(high, low, 0x05010400u);
		halves[i][1] = gpu_pick_bytes(high, low, 0x07030602u);
	}
	for (i = 0; i < 2; i++) {
		pairs.u[2 * i] = gpu_pick_bytes(halves[1][i], halves[0][i],
		                                0x05040100u);
		pairs.u[2 * i + 1] = gpu_pick_bytes(halves[1][i], halves[0][i],
		                                    0x07060302u);
	}
	return pairs;
}

/* 2^(byte - 127): 0 is the subnormal 2^-127, 255 is NaN */
GPU_DEVICE float scale_of(gpu_u32 byte)
{
	return gpu_float(byte << 23 | (byte == 0 || byte == 255 ? 0x00400000u : 0u));
}

/* ----------------------------------------------------------------------- the
 * multiplies */

/* This lane's part of up to four tiles of 16 rows, for one step. */
struct rows {
	const gpu_u8 *at[4]; /* byte 16 (l / 16) of row l % 16, step 0 */
	gpu_u32 scales[4];   /* A4: four bytes, by block of 32 columns */
};

GPU_DEVICE struct gpu_operand load_rows(const gpu_u8 *from, int format)
{
	struct gpu_u32x4 low = gpu_load16(from), high = { { 0, 0, 0, 0 } };
	struct gpu_operand x;
	gpu_u32 i;

	if (format == MXFP4_A8)
		high = gpu_load16(from + 64);
	for (i = 0; i < 4; i++) {
		x.u[i] = low.u[i];
		x.u[i + 4] = high.u[i];
	}
	return x;
}

/* the number of a scale's byte is a constant of the instruction */
#define MULTIPLY(a_format, a_scale, byte)                                              \
	acc[2 * g + t][m] = gpu_mfma_scale(x, w, acc[2 * g + t][m], a_format, GPU_FP4, \
	                                   0, a_scale, byte, s->scales[g][0])

GPU_DEVICE void multiply_scaled(const struct step *s, gpu_u32 odd,
                                const struct rows *rows, gpu_u32 most, int format,
                                struct gpu_sums (*acc)[4])
{
	gpu_u32 quarter = lane_of_wave() >> 4, m, g, t, i;

	for (m = 0; m < most; m++) {
		struct gpu_operand x = load_rows(rows->at[m], format);
		gpu_u32 scale = rows->scales[m] >> 8 * quarter;

		for (g = 0; g < 2; g++)
			for (t = 0; t < 2; t++) {
				struct gpu_operand w;

				for (i = 0; i < 4; i++) {
					w.u[i] = s->codes[2 * g + t].u[i];
					w.u[i + 4] = 0;
				}
				if (format == MXFP4_A4) {
					if (odd && t)
						MULTIPLY(GPU_FP4, scale, 3);
					else if (odd)
						MULTIPLY(GPU_FP4, scale, 2);
					else if (t)
						MULTIPLY(GPU_FP4, scale, 1);
					else
						MULTIPLY(GPU_FP4, scale, 0);
				} else {
					if (odd && t)
						MULTIPLY(GPU_FP8, 127u, 3);
					else if (odd)
						MULTIPLY(GPU_FP8, 127u, 2);
					else if (t)
						MULTIPLY(GPU_FP8, 127u, 1);
					else
						MULTIPLY(GPU_FP8, 127u, 0);
				}
			}
	}
}

/* with 16-bit activations: four blocks of 32 columns, of which `blocks` are there */
GPU_DEVICE void multiply_blocks(const struct step *s, gpu_u32 odd, gpu_u32 blocks,
                                const struct rows *rows, gpu_u32 most, int format,
                                struct gpu_sums (*acc)[4])
{
	gpu_u32 j, m, g, t, i;

	GPU_UNROLL(4)
	for (j = 0; j < 4; j++) {
		for (g = 0; g < 2 && j < blocks; g++)
			for (t = 0; t < 2; t++) {
				struct gpu_u32x4 w = expand(s->codes[2 * g + t].u[j],
				                            format);
				float scale = scale_of(
					s->scales[g][j] >> (16u * odd + 8u * t) & 255u);

				for (m = 0; m < most; m++) {
					struct gpu_u32x4 x = gpu_load16(rows->at[m] +
					                                64u * j);
					struct gpu_sums sum = { { 0, 0, 0, 0 } };

					sum = format == MXFP4_F16
					              ? gpu_mfma_f16(x, w, sum)
					              : gpu_mfma_bf16(x, w, sum);
					for (i = 0; i < 4; i++)
						acc[2 * g + t][m].f[i] = gpu_fma(
							scale, sum.f[i],
							acc[2 * g + t][m].f[i]);
				}
			}
	}
}

GPU_DEVICE void multiply(const struct step *s, gpu_u32 odd, gpu_u32 blocks,
                         const struct rows *rows, gpu_u32 most, int format,
                         struct gpu_sums (*acc)[4])
{
	if (format == MXFP4_F16 || format == MXFP4_BF16)
		multiply_blocks(s, odd, blocks, rows, most, format, acc);
	else if (odd)
		multiply_scaled(s, 1, rows, most, format, acc);
	else
		multiply_scaled(s, 0, rows, most, format, acc);
}

/* where the rows of one multiply lie */
struct source {
	const gpu_u8 *rows, *scales; /* scales: A4 only */
	gpu_u32 row_bytes, scale_bytes;
	gpu_u32 divisor; /* row of a slot: slot / divisor */
	gpu_u32 blocks;  /* of 32 columns that are there */
};

GPU_DEVICE void find_source(const struct mxfp4_args *a, gpu_u32 down, int format,
                            struct source *from)
{
	const struct mxfp4_plane *plane = down ? &a->down : &a->gate_up;

	from->rows = down ? a->activated : a->quantised;
	from->scales = down ? a->activated_scales : a->quantised_scales;
	from->row_bytes = plane->steps * step_bytes(format);
	from->scale_bytes = plane->steps * 4u;
	from->divisor = down || format == MXFP4_A8 ? 1u : a->routing.top_k;
	from->blocks = plane->steps * 4u;
	if (!down && (format == MXFP4_F16 || format == MXFP4_BF16)) {
		/* the caller's own rows, which nobody has padded */
		from->rows = (const gpu_u8 *)a->input;
		from->row_bytes = a->hidden * 2u;
		from->blocks = plane->blocks;
	}
}

/* ------------------------------------------------------------------- behind gate_up */

/*
 * Two columns of a token, 16 apart; 16 lanes have all 32 of it, one block of the next
 * multiply. All lanes come here; `valid`: this one's token is there.
 */
GPU_DEVICE void finish_gate_up(const struct mxfp4_args *a, gpu_u32 slot, int valid,
                               gpu_u32 expert, gpu_u32 panel, const float *gate,
                               const float *up, int format)
{
	gpu_u32 lane = lane_of_wave() & 15u, columns = a->down.steps * MXFP4_STEP;
	gpu_u32 largest = 0, scale, mask, c;
	float values[2], factor = 1.0f;

	if (format == MXFP4_A8)
		factor = input_scale(a, &a->gate_up, expert);
	else if (format != MXFP4_A4 && valid && a->routing.weight_on_input &&
	         a->routing.topk_weights)
		factor = a->routing.topk_weights[slot];
	for (c = 0; c < 2; c++) {
		gpu_u32 column = panel * MXFP4_PANEL + 16u * c + lane;
		float g = gpu_fma(gate[c], factor,
		                  bias(a, &a->gate_up, expert, column));
		float u = gpu_fma(up[c], factor,
		                  bias(a, &a->gate_up, expert, columns + column));

		/* padding is zero even where the input is not finite */
		values[c] = column < a->intermediate
		                    ? gpu_activate(g, u, &a->activation)
		                    : 0.0f;
		largest = gpu_larger(largest, values[c]);
	}
	if (format == MXFP4_A4)
		for (mask = 1; mask < 16; mask *= 2)
			largest = gpu_larger(largest,
			                     gpu_shuffle_xor(gpu_float(largest), mask));
	scale = gpu_mxfp4_scale(largest, a->round_up);
	for (c = 0; c < 2; c++) {
		gpu_u64 at = (gpu_u64)slot * columns + panel * MXFP4_PANEL + 16u * c +
		             lane;

		if (format == MXFP4_A4) {
			gpu_u32 code = gpu_mxfp4_code(values[c], scale);
			gpu_u32 next = gpu_bits(gpu_shuffle_xor(gpu_float(code), 1));

			if (valid && !(lane & 1u))
				a->activated[at / 2u] = (gpu_u8)(code | next << 4);
		} else if (valid && format == MXFP4_A8) {
			a->activated[at] = moek_fp8_code(
				values[c], input_scale(a, &a->down, expert));
		} else if (valid) {
			gpu_store_float(a->activated, at, values[c],
			                format == MXFP4_F16 ? GPU_F16 : GPU_BF16);
		}
	}
	if (format == MXFP4_A4 && valid && lane == 0)
		a->activated_scales[(gpu_u64)slot * (columns / 32u) + panel] = (gpu_u8)
			scale;
}

/* column of tile 0..3 of a panel of down that a lane has, and what its sum becomes */
GPU_DEVICE void finish_down(const struct mxfp4_args *a, gpu_u32 slot, gpu_u32 expert,
                            gpu_u32 panel, gpu_u32 tile, float sum, int format)
{
	gpu_u32 column = panel * MXFP4_DOWN_PANEL + 16u * tile + (lane_of_wave() & 15u);
	float factor = format == MXFP4_A8 ? input_scale(a, &a->down, expert) : 1.0f;

	if (column < a->hidden)
		a->slots_out[(gpu_u64)slot * a->hidden + column] = gpu_fma(
			sum, factor, bias(a, &a->down, expert, column));
}

/* ------------------------------------------------------------------------------ decode
 */

/* up to 16 slots of the list times one panel, the columns cut among the waves */
GPU_DEVICE void decode_rows(const struct mxfp4_args *a, const gpu_u32 *list,
                            gpu_u32 rows, gpu_u32 expert, gpu_u32 down, int format,
                            float *sums)
{
	const struct mxfp4_plane *plane = down ? &a->down : &a->gate_up;
	gpu_u32 wave = gpu_thread() >> 6, lane = lane_of_wave(), panel = gpu_block_y();
	gpu_u32 pairs = (plane->steps + 1u) / 2u, step = pairs * wave / WAVES * 2u;
	gpu_u32 end = pairs * (wave + 1u) / WAVES * 2u, i, t;
	gpu_u32 slot = list[(lane & 15u) < rows ? (lane & 15u) : rows - 1u], row;
	gpu_u32 first = panel * (down ? MXFP4_DOWN_PANEL : MXFP4_PANEL);
	const gpu_u8 *x, *x_scales;
	struct gpu_sums acc[4][4];
	struct weights w;
	struct source from;
	struct step now, next;
	struct rows at;

	end = end < plane->steps ? end : plane->steps;
	find_weights(a, plane, expert, first,
	             down ? first + 32u : a->down.steps * MXFP4_STEP + first, &w);
	find_source(a, down, format, &from);
	row = slot / from.divisor;
	x = from.rows + (gpu_u64)row * from.row_bytes + (lane >> 4) * 16u;
	x_scales = from.scales + (gpu_u64)row * from.scale_bytes;
	for (t = 0; t < 4; t++)
		for (i = 0; i < 4; i++)
			acc[t][0].f[i] = 0.0f;
	if (step < end)
		load_step(&w, step, format, &now);
	for (; step < end; step += 2) {
		gpu_u32 more = step + 1u < end;

		if (more)
			load_step(&w, step + 1u, format, &next);
		at.at[0] = x + step * step_bytes(format);
		at.scales[0] = format == MXFP4_A4 ? load32(x_scales + step * 4u) : 0;
		multiply(&now, 0, from.blocks - step * 4u, &at, 1, format, acc);
		if (step + 2u < end)
			load_step(&w, step + 2u, format, &now);
		if (!more)
			break;
		at.at[0] = x + (step + 1u) * step_bytes(format);
		at.scales[0] = format == MXFP4_A4 ? load32(x_scales + step * 4u + 4u)
		                                  : 0;
		multiply(&next, 1, from.blocks - step * 4u - 4u, &at, 1, format, acc);
	}
	for (t = 0; t < 4; t++)
		for (i = 0; i < 4; i++)
			sums[((wave * 4u + t) * 4u + i) * 64u + lane] = acc[t][0].f[i];
	gpu_barrier();

	/* wave i finishes element i of each lane: rows 4 (l / 16) + i */
	row = 4u * (lane >> 4) + wave;
	slot = list[row < rows ? row : rows - 1u];
	{
		float total[4] = { 0.0f, 0.0f, 0.0f, 0.0f };

		for (t = 0; t < 4; t++)
			for (i = 0; i < WAVES; i++)
				total[t] +=
					sums[((i * 4u + t) * 4u + wave) * 64u + lane];
		if (!down)
			finish_gate_up(a, slot, row < rows, expert, panel, total,
			               total + 2, format);
		for (t = 0; down && row < rows && t < 4; t++)
			finish_down(a, slot, expert, panel, t, total[t], format);
	}
	gpu_barrier();
}

/* grid: slots x panels */
GPU_DEVICE void decode(const struct mxfp4_args *a, gpu_u32 down, int format)
{
	GPU_SHARED(gpu_u32, list, MXFP4_DECODE_SLOTS);
	GPU_SHARED(float, sums, WAVES * 4 * 4 * 64);
	gpu_u32 own = gpu_block_x();
	int expert = gpu_slot_expert(&a->routing, own);
	gpu_u32 count = gpu_claim_slots(&a->routing, own, expert, list), done;

	for (done = 0; done < count; done += MXFP4_ROWS) {
		gpu_u32 rows = count - done < MXFP4_ROWS ? count - done : MXFP4_ROWS;

		decode_rows(a, list + done, rows, (gpu_u32)expert, down, format, sums);
	}
}

/* ------------------------------------------------------------------------------- tiles
 */

/* pieces of 16 bytes that a thread brings into LDS for one step */
struct staging {
	const gpu_u8 *from[4]; /* step 0 of its piece */
	gpu_u32 to[4];         /* in a buffer */
	gpu_u32 block;         /* 16-bit rows: block of 32 columns of its pieces */
	gpu_u32 count;
};

GPU_DEVICE void load_pieces(const struct staging *s, const struct source *from,
                            gpu_u32 step, int format, struct gpu_u32x4 *pieces)
{
	gpu_u32 i;

	for (i = 0; i < 4; i++)
		if (i < s->count) {
			struct gpu_u32x4 zero = { { 0, 0, 0, 0 } };

			pieces[i] = step * 4u + s->block < from->blocks
			                    ? gpu_load16(s->from[i] +
			                                 step * step_bytes(format))
			                    : zero;
		}
}

GPU_DEVICE void store_pieces(const struct staging *s, const struct gpu_u32x4 *pieces,
                             gpu_u8 *buffer)
{
	gpu_u32 i;

	for (i = 0; i < 4; i++)
		if (i < s->count)
			gpu_store16(buffer + s->to[i], pieces[i]);
}

/*
 * `most` * 16 rows times the panel of each wave, over all columns; two buffers in LDS,
 * the next step on its way while this one is multiplied.
 */
GPU_DEVICE void multiply_tile(const struct mxfp4_plane *plane, const struct weights *w,
                              const struct source *from, const struct staging *s,
                              const gpu_u8 *const *scales, gpu_u32 most, int format,
                              gpu_u8 *staged, struct gpu_sums (*acc)[4])
{
	const gpu_u32 stride = step_bytes(format) + MXFP4_PAD;
	gpu_u32 lane = lane_of_wave(), step, m;
	struct gpu_u32x4 pieces[4];
	struct step now, next;
	struct rows at;

	load_pieces(s, from, 0, format, pieces);
	load_step(w, 0, format, &now);
	next = now;
	for (step = 0; step < plane->steps; step++) {
		gpu_u8 *buffer = staged + (step & 1u) * GPU_TILE_ROWS * stride;

		store_pieces(s, pieces, buffer);
		gpu_barrier();
		if (step + 1u < plane->steps) {
			load_pieces(s, from, step + 1u, format, pieces);
			load_step(w, step + 1u, format, &next);
		}
		for (m = 0; m < most; m++) {
			at.at[m] = buffer + (m * 16u + (lane & 15u)) * stride +
			           (lane >> 4) * 16u;
			at.scales[m] = format == MXFP4_A4
			                       ? load32(scales[m] + step * 4u)
			                       : 0;
		}
		multiply(&now, step & 1u, from->blocks - step * 4u, &at, most, format,
		         acc);
		now = next;
	}
}

/*
 * Through LDS, each lane to itself: the activation is long, and a loop over registers
 * would have to be unrolled. The block is past its last barrier, so `staged` is free.
 */
GPU_DEVICE void finish_tile(const struct mxfp4_args *a, const struct gpu_rows *tile,
                            gpu_u32 panel, gpu_u32 most, int format, gpu_u8 *staged,
                            struct gpu_sums (*acc)[4])
{
	gpu_u32 thread = gpu_thread(), lane = lane_of_wave(), first, m, t, i;
	float *own = (float *)(void *)staged + thread;

	GPU_UNROLL(4)
	for (first = 0; first < most; first += FINISHED) {
		gpu_u32 end = first + FINISHED < most ? first + FINISHED : most;

		for (m = first; m < end; m++)
			for (t = 0; t < 4; t++)
				for (i = 0; i < 4; i++)
					own[256u * (16u * (m - first) + 4u * t + i)] =
						acc[t][m].f[i];
		GPU_UNROLL(1)
		for (i = 0; i < 4 * (end - first); i++) {
			gpu_u32 row = first * 16u + i / 4u * 16u + 4u * (lane >> 4) +
			              i % 4u;
			int valid = row < tile->rows;
			gpu_u32 place = tile->first + (valid ? row : tile->rows - 1u);
			const float *from = own + 256u * (i / 4u * 16u + i % 4u);
			float gate[2] = { from[0], from[256 * 4] };
			float up[2] = { from[256 * 8], from[256 * 12] };

			finish_gate_up(a, a->routing.sorted[place], valid, tile->expert,
			               panel, gate, up, format);
		}
	}
}

/* `down`: 0 or 1, constant. `most`: 1, 2 or 4, constant. */
GPU_DEVICE void run_tile(const struct mxfp4_args *a, const struct gpu_rows *tile,
                         gpu_u32 down, gpu_u32 most, int format, gpu_u8 *staged)
{
	const struct mxfp4_plane *plane = down ? &a->down : &a->gate_up;
	const gpu_u32 stride = step_bytes(format) + MXFP4_PAD;
	gpu_u32 thread = gpu_thread(), lane = lane_of_wave(),
		per_row = step_bytes(format) / 16u;
	gpu_u32 panels = plane->rows / MXFP4_DOWN_PANEL, panel, inside, first, i, m, t;
	const gpu_u8 *scales[4];
	struct gpu_sums acc[4][4];
	struct staging s;
	struct weights w;
	struct source from;

	panel = gpu_block_y() * WAVES + (thread >> 6);
	inside = panel < panels ? panel : panels - 1u; /* idle waves read too */
	first = inside * (down ? MXFP4_DOWN_PANEL : MXFP4_PANEL);
	find_weights(a, plane, tile->expert, first,
	             down ? first + 32u : a->down.steps * MXFP4_STEP + first, &w);
	find_source(a, down, format, &from);
	s.count = (most * 16u * per_row + 255u) / 256u;
	s.block = format == MXFP4_F16 || format == MXFP4_BF16 ? (thread & 15u) / 4u : 0;
	for (i = 0; i < 4; i++) {
		gpu_u32 piece = thread + 256u * i, row = piece / per_row;
		gpu_u32 place = tile->first +
		                (row < tile->rows ? row : tile->rows - 1u);
		gpu_u32 slot = a->routing.sorted[place];

		s.from[i] = from.rows +
		            (gpu_u64)(slot / from.divisor) * from.row_bytes +
		            piece % per_row * 16u;
		s.to[i] = (row & (GPU_TILE_ROWS - 1u)) * stride + piece % per_row * 16u;
	}
	for (m = 0; m < most; m++) {
		gpu_u32 row = m * 16u + (lane & 15u);
		gpu_u32 place = tile->first +
		                (row < tile->rows ? row : tile->rows - 1u);

		scales[m] = from.scales +
		            (gpu_u64)(a->routing.sorted[place] / from.divisor) *
		                    from.scale_bytes;
		for (t = 0; t < 4; t++)
			for (i = 0; i < 4; i++)
				acc[t][m].f[i] = 0.0f;
	}
	multiply_tile(plane, &w, &from, &s, scales, most, format, staged, acc);
	if (!down) {
		gpu_barrier();
		finish_tile(a, tile, panel, most, format, staged, acc);
		return;
	}
	for (m = 0; panel < panels && m < most; m++)
		for (i = 0; i < 4; i++) {
			gpu_u32 row = m * 16u + 4u * (lane >> 4) + i;

			for (t = 0; row < tile->rows && t < 4; t++)
				finish_down(a, a->routing.sorted[tile->first + row],
				            tile->expert, panel, t, acc[t][m].f[i],
				            format);
		}
}

/* grid: most tiles there can be x panels / 4 */
GPU_DEVICE void tile_kernel(const struct mxfp4_args *a, gpu_u32 down, int format,
                            gpu_u8 *staged)
{
	const struct gpu_rows *tile = &a->routing.tiles[gpu_block_x()];

	if (gpu_block_x() >= a->routing.first[a->routing.experts_local + 1])
		return;
	if (tile->rows <= 16)
		run_tile(a, tile, down, 1, format, staged);
	else if (tile->rows <= 32)
		run_tile(a, tile, down, 2, format, staged);
	else
		run_tile(a, tile, down, 4, format, staged);
}

/* --------------------------------------------------------------------------- instances
 */

GPU_KERNEL(256) mxfp4_sort(struct mxfp4_args args)
{
	gpu_sort(&args.routing);
}

GPU_KERNEL(256) mxfp4_tiles(struct mxfp4_args args)
{
	gpu_cut_tiles(&args.routing);
}

GPU_KERNEL(256) mxfp4_reduce(struct mxfp4_args args)
{
	gpu_reduce(&args.routing, args.slots_out, args.output, args.hidden,
	           args.output_type);
}

GPU_KERNEL(256) mxfp4_flat_begin(struct mxfp4_args args)
{
	flat_begin(&args);
}

GPU_KERNEL(256) mxfp4_flat_end(struct mxfp4_args args)
{
	flat_end(&args);
}

#define QUANTISE(suffix, type)                                                         \
	GPU_KERNEL(256) mxfp4_quantise_a4_##suffix(struct mxfp4_args args)             \
	{                                                                              \
		quantise_a4(&args, type);                                              \
	}                                                                              \
	GPU_KERNEL(256) mxfp4_quantise_a8_##suffix(struct mxfp4_args args)             \
	{                                                                              \
		quantise_a8(&args, type);                                              \
	}

QUANTISE(f32, GPU_F32)
QUANTISE(f16, GPU_F16)
QUANTISE(bf16, GPU_BF16)

/* LDS of a tile: two buffers of 64 rows; of gate_up, later 16 floats of each thread for
 * each tile that is finished. Two blocks in a unit, as many as their registers let in.
 */
#define BUFFERS(bytes) (2 * 64 * ((bytes) + MXFP4_PAD))
#define FLOATS (256 * 64 * (int)FINISHED)

#define INSTANCE(suffix, format, bytes)                                                \
	GPU_KERNEL(256) mxfp4_gate_up_decode_##suffix(struct mxfp4_args args)          \
	{                                                                              \
		decode(&args, 0, format);                                              \
	}                                                                              \
	GPU_KERNEL(256) mxfp4_down_decode_##suffix(struct mxfp4_args args)             \
	{                                                                              \
		decode(&args, 1, format);                                              \
	}                                                                              \
	GPU_KERNEL_WAVES(256, 2) mxfp4_gate_up_tile_##suffix(struct mxfp4_args args)   \
	{                                                                              \
		GPU_SHARED(gpu_u8, staged,                                             \
		           BUFFERS(bytes) > FLOATS ? BUFFERS(bytes) : FLOATS);         \
		tile_kernel(&args, 0, format, staged);                                 \
	}                                                                              \
	GPU_KERNEL_WAVES(256, 2) mxfp4_down_tile_##suffix(struct mxfp4_args args)      \
	{                                                                              \
		GPU_SHARED(gpu_u8, staged, BUFFERS(bytes));                            \
		tile_kernel(&args, 1, format, staged);                                 \
	}

INSTANCE(a4, MXFP4_A4, 64)
INSTANCE(a8, MXFP4_A8, 128)
INSTANCE(f16, MXFP4_F16, 256)
INSTANCE(bf16, MXFP4_BF16, 256)
