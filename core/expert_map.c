/* SPDX-License-Identifier: MIT */
/* Expert parallel: the experts that one of several ranks holds, as text. */
#include "config.h"

#include <moek/moek.h>

#include "core/status.h"

#include <stddef.h>

struct reader {
	const char *text, *at;
	uint64_t experts;
	int32_t *map;
	uint64_t local;
	struct moek_error *error_out;
};

static int32_t refuse(const struct reader *r, const char *why)
{
	return moek_fail(r->error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
	                 "experts \"%.64s\": at \"%.16s\": %s", r->text, r->at, why);
}

/** Decimal digits; 0: there are none, or too many. */
static int read_number(struct reader *r, uint64_t *number_out)
{
	const char *first = r->at;
	uint64_t number = 0;

	while (*r->at >= '0' && *r->at <= '9' && r->at - first < 10)
		number = number * 10 + (uint64_t)(*r->at++ - '0');
	*number_out = number;
	return r->at != first && !(*r->at >= '0' && *r->at <= '9');
}

static int32_t take(struct reader *r, uint64_t expert)
{
	if (r->map[expert] >= 0)
		return moek_fail(r->error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
		                 "experts \"%.64s\": expert %llu is given twice",
		                 r->text, (unsigned long long)expert);
	r->map[expert] = (int32_t)r->local++;
	return MOEK_OK;
}

/** "5", "0-7" or "0-63/4". */
static int32_t read_range(struct reader *r)
{
	uint64_t first, last, step = 1;
	int32_t status = MOEK_OK;

	if (!read_number(r, &first))
		return refuse(r, "expected the number of an expert");
	last = first;
	if (*r->at == '-') {
		r->at++;
		if (!read_number(r, &last) || last < first)
			return refuse(r, "expected the last of a range, A-B");
		if (*r->at == '/') {
			r->at++;
			if (!read_number(r, &step) || step == 0)
				return refuse(r, "expected a stride over 0, A-B/S");
		}
	}
	if (last >= r->experts)
		return moek_fail(r->error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
		                 "experts \"%.64s\": found %llu, expected 0 .. %llu",
		                 r->text, (unsigned long long)last,
		                 (unsigned long long)r->experts - 1);
	for (uint64_t e = first; e <= last && status == MOEK_OK; e += step)
		status = take(r, e);
	return status;
}

int32_t moek_expert_map_parse(const char *text, uint64_t experts, int32_t *map_out,
                              uint64_t *local_out, struct moek_error *error_out)
{
	struct reader r = {
		.text = text,
		.at = text,
		.experts = experts,
		.map = map_out,
		.error_out = error_out,
	};
	int32_t status;

	if (text == NULL || map_out == NULL || local_out == NULL || experts == 0 ||
	    experts > INT32_MAX)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "experts: text, map_out or local_out is NULL, or "
		                 "experts is not 1 .. 2147483647");
	for (uint64_t e = 0; e < experts; e++)
		map_out[e] = -1;
	do {
		status = read_range(&r);
	} while (status == MOEK_OK && *r.at == ',' && *++r.at != '\0');
	if (status != MOEK_OK)
		return status;
	if (*r.at != '\0' || r.at[-1] == ',')
		return refuse(&r, "expected N, A-B or A-B/S, with commas between");
	*local_out = r.local;
	return MOEK_OK;
}
