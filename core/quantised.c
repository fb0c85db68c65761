/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/json.h"
#include "core/quantised.h"
#include "core/status.h"

#include <stdio.h>

/** An integer under one of two names; absent: @otherwise. */
static int64_t integer_of(const struct moek_json *object, const char *key,
                          const char *old_key, int64_t otherwise)
{
	int64_t integer = otherwise;

	if (!moek_json_integer(moek_json_get(object, key), &integer))
		moek_json_integer(moek_json_get(object, old_key), &integer);
	return integer;
}

int32_t moek_quantised_read(const struct moek_expert_layer *layer,
                            const struct moek_json *quantization,
                            struct moek_quantised *quantised_out,
                            struct moek_error *error_out)
{
	int64_t bits = integer_of(quantization, "bits", "w_bit", 0);
	int64_t group = integer_of(quantization, "group_size", "q_group_size", 0);
	const struct moek_json *zeros = moek_json_get(quantization, "zero_point");
	const struct moek_json *symmetric = moek_json_get(quantization, "sym");
	int has_zeros = 0, is_symmetric = 1;

	if (bits != 4)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_WEIGHT,
		                 "%s: quantization_config: bits is %lld, read is: 4",
		                 layer->config_path, (long long)bits);
	if (group != -1 && (group < 1 || group > (int64_t)MOEK_MODEL_SIZE))
		return moek_fail(
			error_out, MOEK_BAD_FILE, MOEK_RULE_GROUP_SIZE,
			"%s: quantization_config: group_size is %lld, expected -1 "
			"or 1 .. %llu",
			layer->config_path, (long long)group,
			(unsigned long long)MOEK_MODEL_SIZE);
	if (moek_json_bool(zeros, &has_zeros))
		is_symmetric = !has_zeros;
	else if (!moek_json_bool(symmetric, &is_symmetric))
		return moek_fail(
			error_out, MOEK_BAD_FILE, MOEK_RULE_ZERO_POINTS,
			"%s: quantization_config: neither sym nor zero_point is "
			"true or false",
			layer->config_path);
	quantised_out->group_size = group == -1 ? 0 : (uint64_t)group;
	quantised_out->symmetric = is_symmetric;
	return MOEK_OK;
}

void moek_quantised_format(struct moek_expert_layer *layer,
                           const struct moek_quantised *quantised, const char *who)
{
	char size[32] = "channel";

	if (quantised->group_size != 0)
		snprintf(size, sizeof(size), "group %llu",
		         (unsigned long long)quantised->group_size);
	snprintf(layer->format, sizeof(layer->format), "%s int4%s, %s%s", who,
	         quantised->symmetric ? "" : " asymmetric", size,
	         layer->gate_up.column_groups || layer->down.column_groups
	                 ? ", activation order"
	                 : "");
}
