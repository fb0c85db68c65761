/* SPDX-License-Identifier: MIT */
/*
 * The expert layer for RDNA3. Decode, two launches:
 *   gate_up_decode   one block: 16 gate and 16 up rows of one expert, for every slot
 * that chose it; activation; rows of `activated` down_decode      one block owns 16
 * output columns of all tokens, sums their slots Prefill, five: sort, tiles,
 * gate_up_tile, down_tile, reduce. Nothing is added atomically and nothing must be
 * zeroed before, so each run gives the same bits.
 *
 * A weight is formed exactly (code - zero, or the E2M1 value, as fp16 or bf16), a block
 * of 32 columns is summed in fp32, and the scale multiplies that sum.
 */
#include "kernel.h"
#include "activation.h"
#include "routing.h"
#include "args.h"

#define WAVES RDNA3_WAVES

/* ----------------------------------------------------------------------------- scales
 */

/* the same for a whole wave: a scalar branch on the type */
GPU_DEVICE float load_scale(const struct rdna3_plane *plane, const gpu_u8 *expert,
                            gpu_u32 index, int format)
{
	if (format == RDNA3_MXFP4) {
		gpu_u32 byte = expert[plane->scales + index];

		/* 0 is the subnormal 2^-127, 255 is NaN */
		return gpu_float(byte << 23 |
		                 (byte == 0 || byte == 255 ? 0x00400000u : 0u));
	} else {
		gpu_u16 bits = ((const gpu_u16 *)(expert + plane->scales))[index];

		return plane->scale == GPU_F16 ? gpu_f16_to_f32(bits)
		                               : gpu_bf16_to_f32(bits);
	}
}

GPU_DEVICE gpu_u32 load_zero(const struct rdna3_plane *plane, const gpu_u8 *expert,
                             gpu_u32 index, int format)
{
	return format == RDNA3_INT4_ZEROS ? expert[plane->zeros + index] : 8u;
}

/* ------------------------------------------------------------- codes to exact numbers
 */

/*
 * A word holds columns 0..7 at bits 0, 16, 4, 20, 8, 24, 12, 28: the nibbles of a pair
 * of columns stand 16 bits apart.
 */
GPU_DEVICE void expand_int4_f16(gpu_u32 word, gpu_u32 zero, gpu_u32 *pairs)
{
	gpu_u32 offset = (0x6400u | zero) * 0x00010001u; /* 1024 + zero, twice */
	gpu_u32 i;

	for (i = 0; i < 4; i++)
		pairs[i] = gpu_f16x2_subtract(
			(word >> 4 * i & 0x000f000fu) | 0x64006400u, offset);
}

/* bf16 has no packed subtraction: through fp32, whose upper half is the exact result */
GPU_DEVICE void expand_int4_bf16(gpu_u32 word, gpu_u32 zero, gpu_u32 *pairs)
{
	float offset = 1024.0f + (float)zero;
	gpu_u32 i;

	for (i = 0; i < 4; i++) {
		gpu_u32 raw = (word >> 4 * i & 0x000f000fu) | 0x64006400u; /* fp16 */

		pairs[i] = gpu_pick_bytes(gpu_bits(gpu_f16_high_minus(raw, offset)),
		                          gpu_bits(gpu_f16_low_minus(raw, offset)),
		                          0x07060302u);
	}
}

/* Upper bytes of 0 0.5 1 1.5 2 3 4 6 looked up four at a time; fp16 has no lower bytes.
 */
GPU_DEVICE void expand_mxfp4(gpu_u32 word, int type, gpu_u32 *pairs)
{
	gpu_u32 i;

	for (i = 0; i < 2; i++) {
		gpu_u32 codes = word >> 4 * i, size = codes & 0x07070707u;
		gpu_u32 sign = (codes & 0x08080808u) << 4, high, low;

		if (type == GPU_F16) {
			high = gpu_pick_bytes(0x46444240u, 0x3e3c3800u, size) | sign;
			low = 0;
		} else {
			high = gpu_pick_bytes(0x40404040u, 0x3f3f3f00u, size) | sign;
			low = gpu_pick_bytes(0xc0804000u, 0xc0800000u, size);
		}
		/* bytes: low 0, high 0, low 2, high 2; then 1 and 3 */
		pairs[i] = gpu_pick_bytes(high, low, 0x06020400u);
		pairs[i + 2] = gpu_pick_bytes(high, low, 0x07030501u);
	}
}

GPU_DEVICE void expand(gpu_u32 word, gpu_u32 zero, int type, int format, gpu_u32 *pairs)
{
	if (format == RDNA3_MXFP4)
		expand_mxfp4(word, type, pairs);
	else if (type == GPU_F16)
		expand_int4_f16(word, zero, pairs);
	else
		expand_int4_bf16(word, zero, pairs);
}

GPU_DEVICE float dot2(gpu_u32 a, gpu_u32 b, float c, int type)
{
	return type == GPU_F16 ? gpu_dot2_f16(a, b, c) : gpu_dot2_bf16(a, b, c);
}

/* one piece of 32 codes with the same 32 columns of `rows` inputs */
GPU_DEVICE void add_block(struct gpu_u32x4 codes, gpu_u32 zero, float scale,
                          const gpu_u8 *const *inputs, gpu_u32 block, gpu_u32 rows,
                          float *sums, int type, int format)
{
	gpu_u32 pairs[16], r, i;

	for (i = 0; i < 4; i++)
		expand(codes.u[i], zero, type, format, pairs + 4 * i);
	for (r = 0; r < rows; r++) {
		float part[2] = { 0.0f, 0.0f };

		for (i = 0; i < 4; i++) {
			struct gpu_u32x4 x = gpu_load16(inputs[r] + 64u * block +
			                                16u * i);
			gpu_u32 j;

			for (j = 0; j < 4; j++)
				part[i & 1] = dot2(x.u[j], pairs[4 * i + j],
				                   part[i & 1], type);
		}
		sums[r] = gpu_fma(scale, part[0] + part[1], sums[r]);
	}
}

/* ----------------------------------------------------------------------------- decode
 */

/* `rows` slots of the list from `first` on; `most` is the constant that rows is at most
 */
GPU_DEVICE void gate_up_rows(const struct rdna3_args *a, const gpu_u32 *list,
                             gpu_u32 expert_number, gpu_u32 rows, gpu_u32 most,
                             int type, int format, float *sums)
{
	gpu_u32 wave = gpu_thread() >> 5, lane = gpu_thread() & 31u,
		tile = gpu_block_y();
	gpu_u32 blocks = a->gate_up.blocks, block, r;
	const gpu_u8 *expert = a->weights + expert_number * a->expert_bytes;
	const gpu_u8 *codes = expert + a->gate_up.codes +
	                      ((gpu_u64)tile * blocks * 32u + lane) * 16u;
	const gpu_u8 *inputs[8];
	float acc[8];

	for (r = 0; r < most; r++) {
		gpu_u32 token = list[r < rows ? r : rows - 1] / a->routing.top_k;

		inputs[r] = (const gpu_u8 *)a->input + (gpu_u64)token * a->hidden * 2u;
		acc[r] = 0.0f;
	}
	for (block = wave; block < blocks; block += WAVES) {
		gpu_u32 group = (tile * a->gate_up.groups +
		                 (block >> a->gate_up.group_shift)) *
		                        32u +
		                lane;

		add_block(gpu_stream16(codes + block * 512u),
		          load_zero(&a->gate_up, expert, group, format),
		          load_scale(&a->gate_up, expert, group, format), inputs, block,
		          most, acc, type, format);
	}
	for (r = 0; r < most; r++)
		sums[(wave * 8u + r) * 32u + lane] = acc[r];
	gpu_barrier();
	if (wave < rows) { /* wave r finishes row r */
		gpu_u32 slot = list[wave];
		float total = 0.0f, other;

		for (r = 0; r < WAVES; r++)
			total += sums[(r * 8u + wave) * 32u + lane];
		if (a->routing.weight_on_input && a->routing.topk_weights)
			total *= a->routing.topk_weights[slot];
		if (a->gate_up.has_bias)
			total += ((const float *)(expert +
			                          a->gate_up.bias))[tile * 32u + lane];
		other = gpu_shuffle_xor(total, 16);
		if (lane < 16)
			gpu_store_float(a->activated,
			                (gpu_u64)slot * a->intermediate + tile * 16u +
			                        lane,
			                gpu_activate(total, other, &a->activation),
			                (gpu_u32)type);
	}
	gpu_barrier();
}

/* grid: slots x intermediate / 16 */
GPU_DEVICE void gate_up_decode(const struct rdna3_args *a, int type, int format)
{
	GPU_SHARED(gpu_u32, list, RDNA3_DECODE_SLOTS);
	GPU_SHARED(float, sums, WAVES * 8 * 32);
	gpu_u32 own = gpu_block_x();
	int expert = gpu_slot_expert(&a->routing, own);
	gpu_u32 count = gpu_claim_slots(&a->routing, own, expert, list), done;

	for (done = 0; done < count; done += 8) {
		gpu_u32 rows = count - done < 8 ? count - done : 8;
		const gpu_u32 *from = list + done;

		if (rows == 1)
			gate_up_rows(a, from, (gpu_u32)expert, rows, 1, type, format,
			             sums);
		else if (rows == 2)
			gate_up_rows(a, from, (gpu_u32)expert, rows, 2, type, format,
			             sums);
		else if (rows <= 4)
			gate_up_rows(a, from, (gpu_u32)expert, rows, 4, type, format,
			             sums);
		else
			gate_up_rows(a, from, (gpu_u32)expert, rows, 8, type, format,
			             sums);
	}
}

/* steps (pairs of blocks) of one expert for `rows` slots: weighed sums of each lane */
GPU_DEVICE void down_rows(const struct rdna3_args *a, const gpu_u32 *list,
                          gpu_u32 expert_number, gpu_u32 rows, gpu_u32 most,
                          gpu_u32 step, gpu_u32 end, int type, int format, float *sums)
{
	gpu_u32 wave = gpu_thread() >> 5, lane = gpu_thread() & 31u,
		tile = gpu_block_x();
	gpu_u32 blocks = a->down.blocks, r;
	const gpu_u8 *expert = a->weights + expert_number * a->expert_bytes;
	const gpu_u8 *codes = expert + a->down.codes +
	                      ((gpu_u64)tile * blocks * 16u + (lane & 15u)) * 16u;
	const gpu_u8 *inputs[8];
	float acc[8];

	for (r = 0; r < most; r++) {
		inputs[r] = (const gpu_u8 *)a->activated +
		            (gpu_u64)list[r < rows ? r : rows - 1] * a->intermediate *
		                    2u;
		acc[r] = 0.0f;
	}
	for (; step < end; step++) {
		gpu_u32 block = 2u * step + (lane >> 4);

		if (block < blocks) {
			gpu_u32 group = (tile * a->down.groups +
			                 (block >> a->down.group_shift)) *
			                        16u +
			                (lane & 15u);

			add_block(gpu_stream16(codes + block * 256u),
			          load_zero(&a->down, expert, group, format),
			          load_scale(&a->down, expert, group, format), inputs,
			          block, most, acc, type, format);
		}
	}
	for (r = 0; r < most; r++)
		if (r < rows) {
			float *sum =
				&sums[(wave * 8u + list[r] / a->routing.top_k) * 32u +
			              lane];

			*sum = gpu_fma(gpu_slot_weight(&a->routing, list[r]), acc[r],
			               *sum);
		}
}

/*
 * Order the slots by expert, stable, and find where each expert begins. groups[g] ..
 * groups[g + 1] are the places of one expert; returns how many there are.
 */
GPU_DEVICE gpu_u32 group_slots(const struct rdna3_args *a, int *experts, gpu_u32 *order,
                               gpu_u32 *groups)
{
	GPU_SHARED(gpu_u32, counted, 1);
	gpu_u32 t = gpu_thread(), place = 0, routed = 0, count = 0, base, i;
	int own = gpu_slot_expert(&a->routing, t);

	experts[t] = own;
	gpu_barrier();
	for (i = 0; i < a->routing.slots; i++) {
		int other = experts[i];

		place += other >= 0 && (other < own || (other == own && i < t));
		routed += other >= 0;
	}
	if (own >= 0)
		order[place] = t;
	gpu_barrier();
	if (t < 32) {
		for (base = 0; base < routed; base += 32) {
			gpu_u32 p = base + t;
			int starts = p < routed &&
			             (p == 0 ||
			              experts[order[p]] != experts[order[p - 1]]);
			gpu_u32 bits = gpu_ballot(starts);

			if (starts)
				groups[count +
				       gpu_count_ones(bits & ((1u << t) - 1u))] = p;
			count += gpu_count_ones(bits);
		}
		if (t == 0) {
			groups[count] = routed;
			counted[0] = count;
		}
	}
	gpu_barrier();
	return counted[0];
}

/* grid: hidden / 16 */
GPU_DEVICE void down_decode(const struct rdna3_args *a, int type, int format)
{
	GPU_SHARED(int, experts, RDNA3_DECODE_SLOTS);
	GPU_SHARED(gpu_u32, order, RDNA3_DECODE_SLOTS);
	GPU_SHARED(gpu_u32, groups, RDNA3_DECODE_SLOTS + 1);
	GPU_SHARED(float, sums, WAVES *RDNA3_DECODE_TOKENS * 32);
	gpu_u32 t = gpu_thread(), wave = t >> 5, lane = t & 31u, i;
	gpu_u32 steps = (a->down.blocks + 1) / 2, count, at, end;

	for (i = 0; i < RDNA3_DECODE_TOKENS; i++)
		sums[(wave * 8u + i) * 32u + lane] = 0.0f;
	count = group_slots(a, experts, order, groups);

	/* each wave takes an equal run of all steps of all experts */
	at = count * steps * wave / WAVES;
	end = count * steps * (wave + 1) / WAVES;
	while (at < end) {
		gpu_u32 group = at / steps, step = at - group * steps;
		gpu_u32 last = steps - step < end - at ? steps : step + end - at, place;
		gpu_u32 expert = (gpu_u32)experts[order[groups[group]]];

		for (place = groups[group]; place < groups[group + 1]; place += 8) {
			gpu_u32 rows = groups[group + 1] - place;
			const gpu_u32 *list = order + place;

			if (rows == 1)
				down_rows(a, list, expert, rows, 1, step, last, type,
				          format, sums);
			else if (rows == 2)
				down_rows(a, list, expert, rows, 2, step, last, type,
				          format, sums);
			else if (rows <= 4)
				down_rows(a, list, expert, rows, 4, step, last, type,
				          format, sums);
			else
				down_rows(a, list, expert, rows < 8 ? rows : 8, 8, step,
				          last, type, format, sums);
		}
		at += last - step;
	}
	gpu_barrier();
	if (t < a->routing.tokens * 16u) {
		gpu_u32 token = t >> 4, row = t & 15u,
			column = gpu_block_x() * 16u + row;
		float total = 0.0f;

		for (i = 0; i < WAVES; i++)
			total += sums[(i * 8u + token) * 32u + row] +
			         sums[(i * 8u + token) * 32u + row + 16u];
		for (i = 0; a->down.has_bias && i < a->routing.top_k; i++) {
			gpu_u32 slot = token * a->routing.top_k + i;
			int expert = experts[slot];

			if (expert >= 0)
				total = gpu_fma(
					gpu_slot_weight(&a->routing, slot),
					((const float *)(a->weights +
				                         (gpu_u32)expert *
				                                 a->expert_bytes +
				                         a->down.bias))[column],
					total);
		}
		gpu_store_float(a->output, (gpu_u64)token * a->hidden + column, total,
		                a->output_type);
	}
}

/* ---------------------------------------------------------------- prefill: the sorting
 */

GPU_KERNEL(256) rdna3_sort(struct rdna3_args args)
{
	gpu_sort(&args.routing);
}

GPU_KERNEL(256) rdna3_tiles(struct rdna3_args args)
{
	gpu_cut_tiles(&args.routing);
}

GPU_KERNEL(256) rdna3_reduce(struct rdna3_args args)
{
	gpu_reduce(&args.routing, args.slots_out, args.output, args.hidden,
	           args.output_type);
}

/* -------------------------------------------------------------- prefill: the
 * multiplies */

/* where a wave finds its two column tiles: gate and up, or two neighbours of down */
struct columns {
	const gpu_u8 *codes;
	gpu_u32 step;       /* bytes from block to block */
	gpu_u32 other;      /* bytes from the first tile to the second */
	gpu_u32 scale[2];   /* index of group 0 */
	gpu_u32 group_step; /* from group to group */
	int active;
};

GPU_DEVICE struct gpu_tile wmma(struct gpu_fragment a, struct gpu_fragment b,
                                struct gpu_tile c, int type)
{
	return type == GPU_F16 ? gpu_wmma_f16(a, b, c) : gpu_wmma_bf16(a, b, c);
}

GPU_DEVICE void expand_fragments(struct gpu_u32x4 codes, gpu_u32 zero, int type,
                                 int format, struct gpu_fragment *fragments)
{
	gpu_u32 i;

	for (i = 0; i < 4; i++)
		expand(codes.u[i], zero, type, format,
		       fragments[i >> 1].u + 4 * (i & 1u));
}

/* one block of 32 columns: `most` * 16 rows of LDS times two column tiles */
GPU_DEVICE void multiply_block(const struct rdna3_plane *plane, const gpu_u8 *expert,
                               const struct columns *at, const struct gpu_u32x4 *codes,
                               gpu_u32 block, gpu_u32 most, const gpu_u8 *staged,
                               int type, int format, struct gpu_tile (*acc)[4])
{
	gpu_u32 lane = gpu_thread() & 31u, group = block >> plane->group_shift, c, m, i;
	struct gpu_fragment weights[2][2];
	float scale[2];

	for (c = 0; c < 2; c++) {
		gpu_u32 index = at->scale[c] + group * at->group_step;

		scale[c] = load_scale(plane, expert, index, format);
		expand_fragments(codes[c], load_zero(plane, expert, index, format),
		                 type, format, weights[c]);
	}
	for (m = 0; m < most; m++) {
		const gpu_u8 *row = staged +
		                    (m * 16u + (lane & 15u)) * RDNA3_TILE_STRIDE;
		struct gpu_fragment x[2];

		for (i = 0; i < 4; i++) {
			struct gpu_u32x4 piece = gpu_load16(row + 16u * i);
			gpu_u32 j;

			for (j = 0; j < 4; j++)
				x[i >> 1].u[4 * (i & 1u) + j] = piece.u[j];
		}
		for (c = 0; c < 2; c++) {
			struct gpu_tile sum = { { 0, 0, 0, 0, 0, 0, 0, 0 } };

			sum = wmma(x[0], weights[c][0], sum, type);
			sum = wmma(x[1], weights[c][1], sum, type);
			for (i = 0; i < 8; i++)
				acc[c][m].f[i] = gpu_fma(scale[c], sum.f[i],
				                         acc[c][m].f[i]);
		}
	}
}

/*
 * `most` * 16 rows times the two tiles of each wave, over all columns; two buffers in
 * LDS, the next block on its way while this one is multiplied.
 */
GPU_DEVICE void multiply_tile(const struct rdna3_plane *plane, const gpu_u8 *expert,
                              const struct columns *at, const gpu_u8 *const *sources,
                              gpu_u32 most, int type, int format, gpu_u8 *staged,
                              struct gpu_tile (*acc)[4])
{
	const gpu_u32 pieces = most * 64u, each = (pieces + 127u) / 128u;
	const gpu_u32 half = GPU_TILE_ROWS * RDNA3_TILE_STRIDE;
	gpu_u32 t = gpu_thread(), blocks = plane->blocks, block, i;
	struct gpu_u32x4 next[2], codes[2], after[2];

	for (i = 0; i < each; i++)
		if (t + 128u * i < pieces)
			next[i] = gpu_load16(sources[i]);
	for (i = 0; i < 2; i++)
		codes[i] = after[i] = gpu_load16(at->codes + i * at->other);
	for (block = 0; block < blocks; block++) {
		gpu_u8 *buffer = staged + (block & 1u) * half;

		for (i = 0; i < each; i++) {
			gpu_u32 piece = t + 128u * i;

			if (piece < pieces)
				gpu_store16(buffer + (piece >> 2) * RDNA3_TILE_STRIDE +
				                    (piece & 3u) * 16u,
				            next[i]);
		}
		gpu_barrier();
		if (block + 1 < blocks) {
			for (i = 0; i < each; i++)
				if (t + 128u * i < pieces)
					next[i] = gpu_load16(sources[i] +
					                     (block + 1) * 64u);
			for (i = 0; i < 2; i++)
				after[i] = gpu_load16(at->codes + i * at->other +
				                      (block + 1) * at->step);
		}
		if (at->active)
			multiply_block(plane, expert, at, codes, block, most, buffer,
			               type, format, acc);
		codes[0] = after[0];
		codes[1] = after[1];
	}
}

/*
 * Through LDS, each lane to itself: the activation is long, and a loop over registers
 * would have to be unrolled. The block is past its last barrier, so `staged` is free.
 */
GPU_DEVICE void finish_gate_up(const struct rdna3_args *a, const struct gpu_rows *tile,
                               const gpu_u8 *expert, gpu_u32 columns, gpu_u32 most,
                               int type, gpu_u8 *staged, struct gpu_tile (*acc)[4])
{
	gpu_u32 t = gpu_thread(), lane = t & 31u, m, i;
	const float *bias = (const float *)(expert + a->gate_up.bias) + columns * 32u;
	float gate_bias = a->gate_up.has_bias ? bias[lane & 15u] : 0.0f;
	float up_bias = a->gate_up.has_bias ? bias[(lane & 15u) + 16u] : 0.0f;
	float *own = (float *)staged + t;

	for (m = 0; m < most; m++) {
		for (i = 0; i < 8; i++) {
			own[128u * i] = acc[0][m].f[i];
			own[128u * (i + 8)] = acc[1][m].f[i];
		}
		GPU_UNROLL(1)
		for (i = 0; i < 8; i++) {
			gpu_u32 row = m * 16u + 2u * i + (lane >> 4);
			float weight = 1.0f;

			if (row >= tile->rows)
				break; /* rows ascend */
			if (a->routing.weight_on_input && a->routing.topk_weights)
				weight = a->routing.topk_weights
				                 [a->routing.sorted[tile->first + row]];
			gpu_store_float(
				a->activated,
				(gpu_u64)(tile->first + row) * a->intermediate +
					columns * 16u + (lane & 15u),
				gpu_activate(
					gpu_fma(own[128u * i], weight, gate_bias),
					gpu_fma(own[128u * (i + 8)], weight, up_bias),
					&a->activation),
				(gpu_u32)type);
		}
	}
}

GPU_DEVICE void finish_down(const struct rdna3_args *a, const struct gpu_rows *tile,
                            const gpu_u8 *expert, gpu_u32 columns, gpu_u32 most,
                            struct gpu_tile (*acc)[4])
{
	gpu_u32 lane = gpu_thread() & 31u, c, m, i;

	for (c = 0; c < 2; c++) {
		gpu_u32 column = (columns * 2u + c) * 16u + (lane & 15u);
		float bias = a->down.has_bias
		                     ? ((const float *)(expert + a->down.bias))[column]
		                     : 0.0f;

		for (m = 0; m < most; m++)
			for (i = 0; i < 8; i++) {
				gpu_u32 row = m * 16u + 2u * i + (lane >> 4);

				if (row < tile->rows)
					a->slots_out[(gpu_u64)a->routing.sorted
					                             [tile->first +
					                              row] *
					                     a->hidden +
					             column] = acc[c][m].f[i] + bias;
			}
	}
}

/* `down`: 0 or 1, constant. `most`: 1, 2 or 4, constant. */
GPU_DEVICE void run_tile(const struct rdna3_args *a, const struct gpu_rows *tile,
                         gpu_u32 down, gpu_u32 most, int type, int format,
                         gpu_u8 *staged)
{
	const struct rdna3_plane *plane = down ? &a->down : &a->gate_up;
	const gpu_u8 *expert = a->weights + tile->expert * a->expert_bytes;
	gpu_u32 t = gpu_thread(), lane = t & 15u, i, m;
	gpu_u32 tiles = down ? a->hidden / 32u : a->intermediate / 16u;
	gpu_u32 columns = gpu_block_y() * RDNA3_TILE_WAVES + (t >> 5);
	gpu_u32 inside = columns < tiles ? columns
	                                 : tiles - 1; /* idle waves read too */
	const gpu_u8 *sources[2];
	struct columns at;
	struct gpu_tile acc[2][4];

	at.active = columns < tiles;
	/* of gate_up, 32 rows stand side by side in a block; of down, 16 */
	at.step = down ? 256u : 512u;
	at.other = down ? plane->blocks * 256u : 256u;
	at.codes = expert + plane->codes + (gpu_u64)inside * plane->blocks * 512u +
	           lane * 16u;
	at.group_step = down ? 16u : 32u;
	at.scale[0] = inside * plane->groups * 32u + lane;
	at.scale[1] = at.scale[0] + (down ? plane->groups * 16u : 16u);
	for (i = 0; i < 2; i++) {
		gpu_u32 row = (t + 128u * i) >> 2;
		gpu_u32 place = tile->first + (row < tile->rows ? row : tile->rows - 1);

		sources[i] = down ? (const gpu_u8 *)a->activated +
		                             (gpu_u64)place * a->intermediate * 2u
		                  : (const gpu_u8 *)a->input +
		                             (gpu_u64)(a->routing.sorted[place] /
		                                       a->routing.top_k) *
		                                     a->hidden * 2u;
		sources[i] += (t & 3u) * 16u;
	}
	for (m = 0; m < most; m++)
		for (i = 0; i < 8; i++)
			acc[0][m].f[i] = acc[1][m].f[i] = 0.0f;
	multiply_tile(plane, expert, &at, sources, most, type, format, staged, acc);
	if (!down)
		gpu_barrier();
	if (at.active && down)
		finish_down(a, tile, expert, columns, most, acc);
	else if (at.active)
		finish_gate_up(a, tile, expert, columns, most, type, staged, acc);
}

/* grid: most tiles there can be x column blocks of 4 waves */
GPU_DEVICE void tile_kernel(const struct rdna3_args *a, gpu_u32 down, int type,
                            int format)
{
	GPU_SHARED(gpu_u8, staged, 2 * GPU_TILE_ROWS * RDNA3_TILE_STRIDE);
	const struct gpu_rows *tile = &a->routing.tiles[gpu_block_x()];

	if (gpu_block_x() >= a->routing.first[a->routing.experts_local + 1])
		return;
	if (tile->rows <= 16)
		run_tile(a, tile, down, 1, type, format, staged);
	else if (tile->rows <= 32)
		run_tile(a, tile, down, 2, type, format, staged);
	else
		run_tile(a, tile, down, 4, type, format, staged);
}

/* -------------------------------------------------------------------------- instances
 */

#define INSTANCE(suffix, type, format)                                                 \
	GPU_KERNEL(256) rdna3_gate_up_decode_##suffix(struct rdna3_args args)          \
	{                                                                              \
		gate_up_decode(&args, type, format);                                   \
	}                                                                              \
	GPU_KERNEL(256) rdna3_down_decode_##suffix(struct rdna3_args args)             \
	{                                                                              \
		down_decode(&args, type, format);                                      \
	}                                                                              \
	GPU_KERNEL(128) rdna3_gate_up_tile_##suffix(struct rdna3_args args)            \
	{                                                                              \
		tile_kernel(&args, 0, type, format);                                   \
	}                                                                              \
	GPU_KERNEL(128) rdna3_down_tile_##suffix(struct rdna3_args args)               \
	{                                                                              \
		tile_kernel(&args, 1, type, format);                                   \
	}

INSTANCE(int4_f16, GPU_F16, RDNA3_INT4)
INSTANCE(int4_bf16, GPU_BF16, RDNA3_INT4)
INSTANCE(int4_zeros_f16, GPU_F16, RDNA3_INT4_ZEROS)
INSTANCE(int4_zeros_bf16, GPU_BF16, RDNA3_INT4_ZEROS)
INSTANCE(mxfp4_f16, GPU_F16, RDNA3_MXFP4)
INSTANCE(mxfp4_bf16, GPU_BF16, RDNA3_MXFP4)
