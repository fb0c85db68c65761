/* SPDX-License-Identifier: MIT */
/*
 * Kernels' view of the routing: the expert of a slot, the slots of an expert, all slots
 * in the order of their experts, and the sum of the slots of a token. Nothing is added
 * atomically and nothing must be zeroed before, so each run gives the same bits.
 */
#ifndef MOEK_GPU_ROUTING_H
#define MOEK_GPU_ROUTING_H

#include "kernel.h"

/* local expert of a slot, or -1: not routed */
GPU_DEVICE int gpu_slot_expert(const struct gpu_routing *r, gpu_u32 slot)
{
	int id;

	if (slot >= r->slots)
		return -1;
	id = r->topk_ids[slot];
	if (id < 0 || (gpu_u32)id >= r->experts)
		return -1;
	if (r->expert_map)
		id = r->expert_map[id];
	return (gpu_u32)id < r->experts_local ? id : -1;
}

GPU_DEVICE float gpu_slot_weight(const struct gpu_routing *r, gpu_u32 slot)
{
	return r->topk_weights && !r->weight_on_input ? r->topk_weights[slot] : 1.0f;
}

/*
 * The slots that chose the expert of slot `own`, ascending, in list; 0 if there is none
 * or an earlier slot leads them: then another block does the work. All threads agree.
 */
GPU_DEVICE gpu_u32 gpu_claim_slots(const struct gpu_routing *r, gpu_u32 own, int expert,
                                   gpu_u32 *list)
{
	gpu_u32 lane = gpu_thread() & (GPU_WAVE - 1u), count = 0, base;

	if (expert < 0)
		return 0;
	for (base = 0; base < r->slots; base += GPU_WAVE) {
		gpu_u32 slot = base + lane;
		gpu_lanes same = gpu_ballot(gpu_slot_expert(r, slot) == expert);

		if (count == 0 && same != 0 && base + gpu_first_one(same) < own)
			return 0;
		if (gpu_thread() < GPU_WAVE && (same >> lane & 1u))
			list[count + gpu_count_ones(same & (((gpu_lanes)1 << lane) -
			                                    1u))] = slot;
		count += gpu_count_ones(same);
	}
	gpu_barrier();
	return count;
}

/* inclusive sums over the 256 threads, in place; `values` holds 512 */
GPU_DEVICE gpu_u32 gpu_scan_256(gpu_u32 *values, gpu_u32 value)
{
	gpu_u32 t = gpu_thread(), from = 0, distance;

	values[t] = value;
	gpu_barrier();
	for (distance = 1; distance < 256; distance *= 2) {
		value += t >= distance ? values[from + t - distance] : 0u;
		from = 256 - from;
		values[from + t] = value;
		gpu_barrier();
	}
	return value;
}

/* 256 threads, grid: experts_local. Each block finds the slots of one expert, in order.
 */
GPU_DEVICE void gpu_sort(const struct gpu_routing *r)
{
	GPU_SHARED(gpu_u32, scratch, 512);
	GPU_SHARED(gpu_u32, totals, 2);
	gpu_u32 t = gpu_thread(), expert = gpu_block_x();
	gpu_u32 each = (r->slots + 255u) / 256u, less = 0, equal = 0, place, slot;
	gpu_u32 begin = t * each < r->slots ? t * each : r->slots;
	gpu_u32 end = begin + each < r->slots ? begin + each : r->slots;

	for (slot = begin; slot < end; slot++) {
		int other = gpu_slot_expert(r, slot);

		less += other >= 0 && (gpu_u32)other < expert;
		equal += other >= 0 && (gpu_u32)other == expert;
	}
	less = gpu_scan_256(scratch, less);
	if (t == 255)
		totals[0] = less;
	gpu_barrier();
	place = gpu_scan_256(scratch, equal);
	if (t == 255)
		totals[1] = place;
	gpu_barrier();
	place += totals[0] - equal;
	for (slot = begin; slot < end; slot++)
		if (gpu_slot_expert(r, slot) == (int)expert)
			r->sorted[place++] = slot;
	if (t == 0) {
		r->first[expert] = totals[0];
		if (expert + 1 == r->experts_local)
			r->first[expert + 1] = totals[0] + totals[1];
	}
}

/* 256 threads, grid: 1. Cuts the slots of each expert into tiles. */
GPU_DEVICE void gpu_cut_tiles(const struct gpu_routing *r)
{
	GPU_SHARED(gpu_u32, scratch, 512);
	gpu_u32 t = gpu_thread(), each = (r->experts_local + 255u) / 256u, mine = 0, at;
	gpu_u32 begin = t * each < r->experts_local ? t * each : r->experts_local;
	gpu_u32 end = begin + each < r->experts_local ? begin + each : r->experts_local;
	gpu_u32 expert;

	for (expert = begin; expert < end; expert++)
		mine += (r->first[expert + 1] - r->first[expert] + GPU_TILE_ROWS - 1u) /
		        GPU_TILE_ROWS;
	at = gpu_scan_256(scratch, mine);
	if (t == 255)
		r->first[r->experts_local + 1] = at;
	at -= mine;
	for (expert = begin; expert < end; expert++) {
		gpu_u32 place = r->first[expert], stop = r->first[expert + 1];

		for (; place < stop; place += GPU_TILE_ROWS) {
			struct gpu_rows *tile = &r->tiles[at++];

			tile->expert = expert;
			tile->first = place;
			tile->rows = stop - place < GPU_TILE_ROWS ? stop - place
			                                          : GPU_TILE_ROWS;
			tile->reserved = 0;
		}
	}
}

/*
 * 256 threads, grid: tokens x hidden / 256, rounded up. Output rows from the rows of
 * the slots, in slot order.
 */
GPU_DEVICE void gpu_reduce(const struct gpu_routing *r, const float *slots,
                           void *output, gpu_u32 hidden, gpu_u32 output_type)
{
	gpu_u32 token = gpu_block_x(), column = gpu_block_y() * 256u + gpu_thread(), i;
	float total = 0.0f;

	if (column >= hidden)
		return;
	for (i = 0; i < r->top_k; i++) {
		gpu_u32 slot = token * r->top_k + i;

		if (gpu_slot_expert(r, slot) >= 0)
			total = gpu_fma(gpu_slot_weight(r, slot),
			                slots[(gpu_u64)slot * hidden + column], total);
	}
	gpu_store_float(output, (gpu_u64)token * hidden + column, total, output_type);
}

#endif
