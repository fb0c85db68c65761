/* SPDX-License-Identifier: MIT */
/* Rows of a record: as they are, or in fp8. */
#include "config.h"

#include "parallel/ep.h"

#include <string.h>

#include <moek/formats.h>

#define GROUP 128u /* columns that share a scale */

static uint64_t input_bytes(const struct moek_problem *problem)
{
	return problem->hidden * (problem->input_type == MOEK_F32 ? 4 : 2);
}

uint64_t wire_row_bytes(const struct moek_ep_layer *layer)
{
	uint64_t hidden = layer->problem.hidden;
	uint64_t bytes = layer->wire == MOEK_WIRE_FP8
	                         ? hidden + (hidden + GROUP - 1) / GROUP
	                         : input_bytes(&layer->problem);

	return (bytes + 3) / 4 * 4;
}

static float value_at(uint32_t type, const void *row, uint64_t i)
{
	return type == MOEK_F32 ? ((const float *)row)[i]
	                        : moek_bf16_to_f32(((const uint16_t *)row)[i]);
}

/** The least power of two by which @amax comes to at most 448 = 1.75 * 2^8. */
static uint8_t scale_of(float amax)
{
	uint32_t bits = moek_f32_bits(amax);
	int32_t byte = (int32_t)(bits >> 23) - 8 + ((bits & 0x7fffffu) > 0x600000u);

	if (bits >= 0x7f800000u)
		return 255;
	return (uint8_t)(byte < 0 ? 0 : byte);
}

static void write_fp8(const struct moek_problem *p, const void *row, uint8_t *record)
{
	uint8_t *scales = record + p->hidden;

	for (uint64_t first = 0; first < p->hidden; first += GROUP) {
		uint64_t last = first + GROUP < p->hidden ? first + GROUP : p->hidden;
		uint32_t largest = 0;
		float inverse;
		uint8_t scale;

		/* as bits, where a NaN is larger than all */
		for (uint64_t i = first; i < last; i++) {
			uint32_t size = moek_f32_bits(value_at(p->input_type, row, i)) &
			                0x7fffffffu;

			largest = size > largest ? size : largest;
		}
		scale = scale_of(moek_f32_from_bits(largest));
		scales[first / GROUP] = scale;
		/* at most 247, so this is a normal number; 255 is not looked at again
		 */
		inverse = moek_f32_from_bits((254u - (scale < 254 ? scale : 253u))
		                             << 23);
		for (uint64_t i = first; i < last; i++)
			record[i] = moek_e4m3_from_f32(value_at(p->input_type, row, i) *
			                               inverse);
	}
}

static void read_fp8(const struct moek_problem *p, const uint8_t *record, void *row)
{
	const uint8_t *scales = record + p->hidden;

	for (uint64_t i = 0; i < p->hidden; i++) {
		float value = moek_e4m3_to_f32(record[i]) *
		              moek_e8m0_to_f32(scales[i / GROUP]);

		if (p->input_type == MOEK_F32)
			((float *)row)[i] = value;
		else
			((uint16_t *)row)[i] = moek_bf16_from_f32(value);
	}
}

void wire_write(const struct moek_ep_layer *layer, const void *row, uint8_t *record)
{
	const struct moek_problem *p = &layer->problem;
	uint64_t bytes = layer->wire == MOEK_WIRE_FP8
	                         ? p->hidden + (p->hidden + GROUP - 1) / GROUP
	                         : input_bytes(p);

	if (layer->wire == MOEK_WIRE_FP8)
		write_fp8(p, row, record);
	else
		memcpy(record, row, bytes);
	memset(record + bytes, 0, layer->row_bytes - bytes);
}

void wire_read(const struct moek_ep_layer *layer, const uint8_t *record, void *row)
{
	const struct moek_problem *p = &layer->problem;

	if (layer->wire == MOEK_WIRE_FP8)
		read_fp8(p, record, row);
	else
		memcpy(row, record, input_bytes(p));
}
