/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/problem.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/nearest.h"
#include "core/status.h"

#define MOST_IDS ((uint64_t)INT32_MAX) /* topk_ids and expert maps are int32 */
#define MOST_BYTES ((uint64_t)INT64_MAX)

uint64_t moek_scheme_groups(const struct moek_scheme *scheme, uint64_t columns)
{
	uint64_t size = scheme->group_size != 0 ? scheme->group_size : columns;

	if (scheme->scale == 0 || size == 0)
		return 0;
	return columns / size + (columns % size != 0);
}

/* ---- checking ---- */

static int32_t invalid(struct moek_error *error_out, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int32_t invalid(struct moek_error *error_out, const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_INVALID, "problem: %s",
	                 text);
}

static int32_t unknown(struct moek_error *error_out, const char *field, uint32_t value)
{
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_UNKNOWN_VALUE,
	                 "problem: %s %u is not known to moek " PACKAGE_VERSION, field,
	                 value);
}

static int is_float_type(uint32_t type)
{
	return type == MOEK_F32 || type == MOEK_F16 || type == MOEK_BF16;
}

static int32_t check_sizes(const struct moek_problem *p, struct moek_error *error_out)
{
	const struct {
		const char *name;
		uint64_t value, most;
	} sizes[] = {
		{ "experts", p->experts, MOST_IDS },
		{ "experts_local", p->experts_local, MOST_IDS },
		{ "top_k", p->top_k, MOST_IDS },
		{ "hidden", p->hidden, MOST_BYTES },
		{ "intermediate", p->intermediate, MOST_BYTES },
		{ "max_tokens", p->max_tokens, MOST_BYTES },
		{ "shards", p->shards, MOST_IDS },
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		if (sizes[i].value == 0)
			return invalid(error_out, "%s is 0, must be at least 1",
			               sizes[i].name);
		if (sizes[i].value > sizes[i].most)
			return invalid(error_out, "%s %llu is over %llu", sizes[i].name,
			               (unsigned long long)sizes[i].value,
			               (unsigned long long)sizes[i].most);
	}
	return MOEK_OK;
}

static int32_t check_relations(const struct moek_problem *p,
                               struct moek_error *error_out)
{
	int mapped = (p->must_understand & MOEK_EXPERT_MAP) != 0;

	if (p->top_k > p->experts)
		return invalid(error_out, "top_k %llu is over experts %llu",
		               (unsigned long long)p->top_k,
		               (unsigned long long)p->experts);
	if (p->experts_local > p->experts ||
	    (!mapped && p->experts_local != p->experts))
		return invalid(
			error_out,
			"experts_local %llu, experts %llu%s: must be equal without an "
			"expert map, at most experts with one",
			(unsigned long long)p->experts_local,
			(unsigned long long)p->experts,
			mapped ? "" : " and no expert map");
	if (p->shard >= p->shards)
		return invalid(error_out, "shard %u of shards %u: shards count from 0",
		               p->shard, p->shards);
	if ((p->must_understand & MOEK_WEIGHT_ON_INPUT) != 0 && p->top_k != 1)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_WEIGHT_ON_INPUT,
			"problem: weight_on_input needs top_k 1, found top_k %llu",
			(unsigned long long)p->top_k);
	return MOEK_OK;
}

/** The canonical weights and one fp32 row per slot must have sizes in 63 bits. */
static int32_t check_extent(const struct moek_problem *p, struct moek_error *error_out)
{
	int weights = 0, rows = 0;
	uint64_t gate_up = moek_multiply(p->intermediate, 2, &weights);
	uint64_t bytes = moek_multiply(moek_multiply(gate_up, p->hidden, &weights),
	                               p->experts_local, &weights);
	uint64_t widest = p->hidden > gate_up ? p->hidden : gate_up;
	uint64_t row_bytes = moek_multiply(
		moek_multiply(p->max_tokens, p->top_k, &rows), widest, &rows);

	if (weights || bytes > MOST_BYTES / 8)
		return invalid(error_out,
		               "experts_local %llu * intermediate %llu * hidden %llu "
		               "does not fit "
		               "64 bits",
		               (unsigned long long)p->experts_local,
		               (unsigned long long)p->intermediate,
		               (unsigned long long)p->hidden);
	if (rows || row_bytes > MOST_BYTES / 8)
		return invalid(error_out,
		               "max_tokens %llu * top_k %llu rows of hidden %llu and "
		               "intermediate "
		               "%llu do not fit 64 bits",
		               (unsigned long long)p->max_tokens,
		               (unsigned long long)p->top_k,
		               (unsigned long long)p->hidden,
		               (unsigned long long)p->intermediate);
	return MOEK_OK;
}

static int32_t check_plain(const char *name, const struct moek_scheme *s,
                           struct moek_error *error_out)
{
	if (s->scale != 0 || s->group_size != 0 || s->zero_points != 0 ||
	    s->column_groups != 0)
		return invalid(error_out,
		               "%s.weight %s has no scale, group_size, zero_points or "
		               "column_groups: they must be 0",
		               name, moek_type_name(s->weight));
	return MOEK_OK;
}

static int32_t check_quantised(const char *name, const struct moek_scheme *s,
                               struct moek_error *error_out)
{
	int is_mx = s->weight == MOEK_MXFP4;

	if (is_mx ? s->scale != MOEK_E8M0
	          : !is_float_type(s->scale) && s->scale != MOEK_E8M0)
		return invalid(error_out, "%s.scale %s with weight %s, must be %s",
		               name, s->scale == 0 ? "none" : moek_type_name(s->scale),
		               moek_type_name(s->weight),
		               is_mx ? "e8m0" : "bf16, fp16, fp32 or e8m0");
	if (is_mx && (s->group_size != 32 || s->zero_points != 0))
		return invalid(error_out,
		               "%s.weight mxfp4 with group_size %llu, zero_points %u: "
		               "has 32 and 0",
		               name, (unsigned long long)s->group_size, s->zero_points);
	if (s->column_groups != 0 && s->group_size == 0)
		return invalid(error_out,
		               "%s.column_groups 1 with one group for all columns",
		               name);
	return MOEK_OK;
}

static int32_t check_scheme(const char *name, const struct moek_scheme *s,
                            struct moek_error *error_out)
{
	const struct {
		const char *name;
		uint64_t value;
	} flags[] = {
		{ "zero_points", s->zero_points },
		{ "column_groups", s->column_groups },
		{ "bias", s->bias },
		{ "input_scale", s->input_scale },
		{ "reserved", s->reserved },
	};
	char field[32];

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (flags[i].value > (i < 4))
			return invalid(error_out, "%s.%s %llu, must be 0%s", name,
			               flags[i].name,
			               (unsigned long long)flags[i].value,
			               i < 4 ? " or 1" : "");
	switch (s->weight) {
	case MOEK_F32:
	case MOEK_F16:
	case MOEK_BF16:
		return check_plain(name, s, error_out);
	case MOEK_INT4:
	case MOEK_INT8:
	case MOEK_MXFP4:
		return check_quantised(name, s, error_out);
	case 0:
		return invalid(error_out, "%s.weight is not set", name);
	default:
		snprintf(field, sizeof(field), "%s.weight", name);
		return unknown(error_out, field, s->weight);
	}
}

static int32_t check_activation(const struct moek_problem *p,
                                struct moek_error *error_out)
{
	const char *name = moek_activation_name(p->activation);
	int takes_alpha = p->activation == MOEK_SWIGLU_OAI ||
	                  p->activation == MOEK_SITU;
	int takes_limit = p->activation != MOEK_RELU2 && p->activation != MOEK_SITU;

	if (p->activation < MOEK_SILU || p->activation > MOEK_SITU)
		return unknown(error_out, "activation", p->activation);
	if (p->gated > 1 || (p->gated == 1 && p->activation == MOEK_RELU2))
		return invalid(error_out, "gated %u with activation %s", p->gated,
		               name);
	if (!isfinite(p->alpha) || !isfinite(p->beta) || !isfinite(p->limit) ||
	    p->limit < 0)
		return invalid(
			error_out,
			"alpha %g, beta %g, limit %g: must be finite, limit >= 0",
			(double)p->alpha, (double)p->beta, (double)p->limit);
	if (takes_alpha && !(p->alpha > 0))
		return invalid(error_out, "alpha %g, activation %s needs one above 0",
		               (double)p->alpha, name);
	if (!takes_alpha && (p->alpha != 0 || p->beta != 0))
		return invalid(error_out,
		               "alpha %g, beta %g: activation %s has none, must be 0",
		               (double)p->alpha, (double)p->beta, name);
	if (!takes_limit && p->limit != 0)
		return invalid(error_out, "limit %g: activation %s has none, must be 0",
		               (double)p->limit, name);
	return MOEK_OK;
}

static int32_t check_types(const struct moek_problem *p, struct moek_error *error_out)
{
	int is_int8 = p->activations == MOEK_A8_INT8;

	if (!is_float_type(p->input_type))
		return invalid(error_out, "input_type %s, must be bf16, fp16 or fp32",
		               p->input_type == 0 ? "none"
		                                  : moek_type_name(p->input_type));
	if (!is_float_type(p->output_type))
		return invalid(error_out, "output_type %s, must be bf16, fp16 or fp32",
		               p->output_type == 0 ? "none"
		                                   : moek_type_name(p->output_type));
	if (p->activations > MOEK_A4_MXFP4_ROUND_UP)
		return unknown(error_out, "activations", p->activations);
	if (is_int8 != (p->activations_group != 0))
		return invalid(error_out,
		               "activations_group %u with activations %s, must be %s",
		               p->activations_group,
		               moek_activations_name(p->activations),
		               is_int8 ? "at least 1" : "0");
	if (p->activations == MOEK_A8_FP8_STATIC &&
	    (p->gate_up.input_scale == 0 || p->down.input_scale == 0))
		return invalid(error_out, "activations fp8_static needs input_scale 1 "
		                          "in both projections");
	return MOEK_OK;
}

static uint64_t implied_bits(const struct moek_problem *p)
{
	uint64_t bits = 0;

	if (p->gate_up.zero_points != 0 || p->down.zero_points != 0)
		bits |= MOEK_ZERO_POINTS;
	if (p->gate_up.column_groups != 0 || p->down.column_groups != 0)
		bits |= MOEK_COLUMN_GROUPS;
	if (p->gate_up.bias != 0 || p->down.bias != 0)
		bits |= MOEK_BIAS;
	if (p->limit != 0)
		bits |= MOEK_LIMIT;
	if (p->activation == MOEK_SWIGLU_OAI || p->activation == MOEK_SITU)
		bits |= MOEK_ALPHA_BETA;
	if (p->gated == 0)
		bits |= MOEK_NOT_GATED;
	if (p->shards > 1)
		bits |= MOEK_PARTIAL_SUM;
	return bits;
}

static int32_t check_struct(const struct moek_problem *p, struct moek_error *error_out)
{
	if (p == NULL)
		return invalid(error_out, "is NULL");
	if (p->struct_size < MOEK_PROBLEM_SIZE_1_0)
		return invalid(error_out, "struct_size %u, version 1.0 has %u",
		               p->struct_size, MOEK_PROBLEM_SIZE_1_0);
	return MOEK_OK;
}

static int32_t check_fields(const struct moek_problem *p, struct moek_error *error_out)
{
	int32_t status;

	if ((status = check_sizes(p, error_out)) != MOEK_OK ||
	    (status = check_relations(p, error_out)) != MOEK_OK ||
	    (status = check_extent(p, error_out)) != MOEK_OK ||
	    (status = check_scheme("gate_up", &p->gate_up, error_out)) != MOEK_OK ||
	    (status = check_scheme("down", &p->down, error_out)) != MOEK_OK ||
	    (status = check_activation(p, error_out)) != MOEK_OK)
		return status;
	return check_types(p, error_out);
}

int32_t moek_problem_check(struct moek_problem *problem, struct moek_error *error_out)
{
	int32_t status = check_struct(problem, error_out);

	if (status == MOEK_OK)
		status = check_fields(problem, error_out);
	if (status == MOEK_OK)
		problem->must_understand = (problem->must_understand &
		                            ~MOEK_IMPLIED_BITS) |
		                           implied_bits(problem);
	return status;
}

int32_t moek_problem_read(const struct moek_problem *theirs,
                          struct moek_problem *problem_out,
                          struct moek_error *error_out)
{
	struct moek_problem mine = { 0 };
	int32_t status = check_struct(theirs, error_out);

	if (status != MOEK_OK)
		return status;
	memcpy(&mine, theirs, MOEK_PROBLEM_SIZE_1_0);
	mine.struct_size = MOEK_PROBLEM_SIZE_1_0;
	status = moek_problem_check(&mine, error_out);
	if (status == MOEK_OK)
		*problem_out = mine;
	return status;
}

/* ---- text ---- */

enum value_kind {
	VALUE_U64,
	VALUE_U32,
	VALUE_FLAG,
	VALUE_FLOAT,
	VALUE_TYPE,
	VALUE_ACTIVATION,
	VALUE_ACTIVATIONS,
	VALUE_GROUP, /* a number, or "channel" for 0 */
	VALUE_BIT    /* of must_understand */
};

struct key {
	const char *name;
	enum value_kind kind;
	uint32_t offset; /* in the problem, in the scheme, or the number of the bit */
};

#define FIELD(name, kind)                                                              \
	{                                                                              \
#name, kind, offsetof(struct moek_problem, name)                       \
	}
static const struct key problem_keys[] = {
	FIELD(experts, VALUE_U64),
	FIELD(experts_local, VALUE_U64),
	FIELD(top_k, VALUE_U64),
	FIELD(hidden, VALUE_U64),
	FIELD(intermediate, VALUE_U64),
	FIELD(max_tokens, VALUE_U64),
	FIELD(input_type, VALUE_TYPE),
	FIELD(output_type, VALUE_TYPE),
	FIELD(activation, VALUE_ACTIVATION),
	FIELD(gated, VALUE_FLAG),
	FIELD(alpha, VALUE_FLOAT),
	FIELD(beta, VALUE_FLOAT),
	FIELD(limit, VALUE_FLOAT),
	FIELD(activations, VALUE_ACTIVATIONS),
	FIELD(activations_group, VALUE_U32),
	FIELD(shard, VALUE_U32),
	FIELD(shards, VALUE_U32),
	{ "expert_map", VALUE_BIT, 6 },
	{ "weight_on_input", VALUE_BIT, 7 },
	{ "row_stride", VALUE_BIT, 8 },
	{ "deterministic", VALUE_BIT, 9 },
	{ "capture", VALUE_BIT, 10 },
	{ "lora", VALUE_BIT, 11 },
};
#undef FIELD

/* weight first: it resets the others, so it is set before them */
#define FIELD(name, kind)                                                              \
	{                                                                              \
#name, kind, offsetof(struct moek_scheme, name)                        \
	}
static const struct key scheme_keys[] = {
	FIELD(weight, VALUE_TYPE),        FIELD(scale, VALUE_TYPE),
	FIELD(group_size, VALUE_GROUP),   FIELD(zero_points, VALUE_FLAG),
	FIELD(column_groups, VALUE_FLAG), FIELD(bias, VALUE_FLAG),
	FIELD(input_scale, VALUE_FLAG),
};
#undef FIELD

#define PROBLEM_KEYS (sizeof(problem_keys) / sizeof(problem_keys[0]))
#define SCHEME_KEYS (sizeof(scheme_keys) / sizeof(scheme_keys[0]))

static int parse_number(const char *text, uint64_t most, uint64_t *number_out)
{
	uint64_t number = 0;
	int overflow = 0;

	if (*text == '\0')
		return 0;
	for (; *text != '\0'; text++) {
		if (*text < '0' || *text > '9')
			return 0;
		number = moek_add(moek_multiply(number, 10, &overflow),
		                  (uint64_t)(*text - '0'), &overflow);
	}
	*number_out = number;
	return !overflow && number <= most;
}

int moek_float_parse(const char *text, float *number_out)
{
	locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	char *end;

	if (locale == (locale_t)0)
		return 0;
	*number_out = strtof_l(text, &end, locale);
	freelocale(locale);
	return end != text && *end == '\0' && isfinite(*number_out);
}

static void put_u64(void *base, uint32_t offset, uint64_t value)
{
	memcpy((char *)base + offset, &value, sizeof(value));
}

static void put_u32(void *base, uint32_t offset, uint64_t value)
{
	uint32_t narrow = (uint32_t)value;

	memcpy((char *)base + offset, &narrow, sizeof(narrow));
}

/** Set the field of @base that @key names from @text; 0: @text is no value for it. */
static int set_value(void *base, const struct key *key, const char *text)
{
	uint64_t number = 0;
	uint32_t small = 0;
	float real;

	switch (key->kind) {
	case VALUE_GROUP:
		if (strcmp(text, "channel") != 0 &&
		    !parse_number(text, UINT64_MAX, &number))
			return 0;
		put_u64(base, key->offset, number);
		return 1;
	case VALUE_U64:
		if (!parse_number(text, UINT64_MAX, &number))
			return 0;
		put_u64(base, key->offset, number);
		return 1;
	case VALUE_U32:
	case VALUE_FLAG:
		if (!parse_number(text, key->kind == VALUE_FLAG ? 1 : UINT32_MAX,
		                  &number))
			return 0;
		put_u32(base, key->offset, number);
		return 1;
	case VALUE_FLOAT:
		if (!moek_float_parse(text, &real))
			return 0;
		memcpy((char *)base + key->offset, &real, sizeof(real));
		return 1;
	case VALUE_BIT: {
		struct moek_problem *problem = base;

		if (!parse_number(text, 1, &number))
			return 0;
		problem->must_understand &= ~(UINT64_C(1) << key->offset);
		problem->must_understand |= number << key->offset;
		return 1;
	}
	case VALUE_ACTIVATIONS:
		if (!moek_activations_parse(text, &small))
			return 0;
		put_u32(base, key->offset, small);
		return 1;
	case VALUE_ACTIVATION:
		small = moek_activation_parse(text);
		break;
	case VALUE_TYPE:
		small = moek_type_parse(text);
		if (small == 0 && strcmp(text, "none") == 0) {
			put_u32(base, key->offset, 0);
			return 1;
		}
		break;
	}
	put_u32(base, key->offset, small);
	return small != 0;
}

static const char *values_of(enum value_kind kind)
{
	switch (kind) {
	case VALUE_FLAG:
	case VALUE_BIT:
		return "0 or 1";
	case VALUE_FLOAT:
		return "a number such as 1.702";
	case VALUE_TYPE:
		return "bf16, fp16, fp32, int4, int8, mxfp4, e8m0 or none";
	case VALUE_ACTIVATION:
		return "silu, gelu, gelu_tanh, relu2, swiglu_oai, swiglu_step or situ";
	case VALUE_ACTIVATIONS:
		return "a16, fp8_static, int8, mxfp4_even or mxfp4_round_up";
	case VALUE_GROUP:
		return "a whole number or channel";
	default:
		return "a whole number";
	}
}

/** A new kind of weight takes nothing over from the old one. */
static void set_weight(struct moek_scheme *scheme, uint32_t weight)
{
	if (scheme->weight == weight)
		return;
	scheme->weight = weight;
	scheme->scale = weight == MOEK_MXFP4 ? (uint32_t)MOEK_E8M0 : 0;
	scheme->group_size = weight == MOEK_MXFP4 ? 32 : 0;
	scheme->zero_points = 0;
	scheme->column_groups = 0;
}

static int set_scheme(struct moek_scheme *scheme, const struct key *key,
                      const char *text)
{
	struct moek_scheme before = *scheme;
	int known = set_value(scheme, key, text);

	if (known && key->offset == offsetof(struct moek_scheme, weight)) {
		uint32_t weight = scheme->weight;

		*scheme = before;
		set_weight(scheme, weight);
	}
	return known;
}

static const struct key *find_key(const struct key *keys, size_t count,
                                  const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(keys[i].name, name) == 0)
			return &keys[i];
	return NULL;
}

static int32_t unknown_key(const char *name, struct moek_error *error_out)
{
	const char *names[PROBLEM_KEYS + SCHEME_KEYS];
	const char *near, *bare = strchr(name, '.');
	size_t count = 0;

	for (size_t i = 0; i < PROBLEM_KEYS; i++)
		names[count++] = problem_keys[i].name;
	for (size_t i = 0; i < SCHEME_KEYS; i++)
		names[count++] = scheme_keys[i].name;
	near = moek_nearest(bare != NULL ? bare + 1 : name, names, count);
	return invalid(error_out, "unknown key \"%s\"%s%s%s", name,
	               near != NULL ? ", did you mean \"" : "",
	               near != NULL ? near : "", near != NULL ? "\"?" : "");
}

enum pass { PASS_WEIGHT, PASS_REST };

struct parse {
	struct moek_problem *problem;
	enum pass pass;
	uint64_t seen; /* one bit for a key of the problem, three for one of a scheme */
	int local_seen;
	struct moek_error *error_out;
};

static int32_t seen_before(struct parse *parse, size_t bit, const char *name)
{
	if (parse->pass == PASS_WEIGHT)
		return MOEK_OK;
	if ((parse->seen >> bit & 1) != 0)
		return invalid(parse->error_out, "key \"%s\" is given twice", name);
	parse->seen |= UINT64_C(1) << bit;
	return MOEK_OK;
}

static int32_t parse_pair(struct parse *parse, const char *name, const char *value)
{
	int gate_up = strncmp(name, "gate_up.", 8) == 0,
	    down = strncmp(name, "down.", 5) == 0;
	const char *bare = name + (gate_up ? 8 : down ? 5 : 0);
	const struct key *key = find_key(scheme_keys, SCHEME_KEYS, bare);
	int of_scheme = key != NULL, known = 1;
	size_t bit;

	if (!of_scheme && !gate_up && !down)
		key = find_key(problem_keys, PROBLEM_KEYS, name);
	if (key == NULL)
		return unknown_key(name, parse->error_out);
	bit = of_scheme ? PROBLEM_KEYS + 3 * (size_t)(key - scheme_keys) +
	                          (size_t)(gate_up + 2 * down)
	                : (size_t)(key - problem_keys);
	if (seen_before(parse, bit, name) != MOEK_OK)
		return MOEK_BAD_ARGUMENT;
	if ((parse->pass == PASS_WEIGHT) != (of_scheme && key == &scheme_keys[0]))
		return MOEK_OK;
	if (!of_scheme)
		known = set_value(parse->problem, key, value);
	else if (!down)
		known = set_scheme(&parse->problem->gate_up, key, value);
	if (known && of_scheme && !gate_up)
		known = set_scheme(&parse->problem->down, key, value);
	if (key->offset == offsetof(struct moek_problem, experts_local) && !of_scheme)
		parse->local_seen = 1;
	if (!known)
		return invalid(parse->error_out, "%s=%s: expected %s", name, value,
		               values_of(key->kind));
	return MOEK_OK;
}

/** Cut the pair at *at out of the text and move on; 0: no "=" in it. */
static int next_pair(const char **at, char *name_out, char *value_out, size_t bytes)
{
	size_t length = strcspn(*at, ",");
	const char *equals = memchr(*at, '=', length);
	size_t name = equals != NULL ? (size_t)(equals - *at) : length;
	size_t value = equals != NULL ? length - name - 1 : 0;

	snprintf(name_out, bytes, "%.*s", (int)(name < bytes ? name : bytes), *at);
	snprintf(value_out, bytes, "%.*s", (int)(value < bytes ? value : bytes),
	         equals != NULL ? equals + 1 : "");
	*at += length + ((*at)[length] == ',');
	return equals != NULL;
}

static int32_t parse_pass(struct parse *parse, const char *text)
{
	char name[64], value[64];
	int32_t status;

	while (*text != '\0') {
		if (!next_pair(&text, name, value, sizeof(name)))
			return invalid(parse->error_out, "\"%s\" is no key=value",
			               name);
		status = parse_pair(parse, name, value);
		if (status != MOEK_OK)
			return status;
	}
	return MOEK_OK;
}

int32_t moek_problem_parse(const char *text, struct moek_problem *problem,
                           struct moek_error *error_out)
{
	struct moek_problem parsed;
	struct parse parse = { .problem = &parsed, .error_out = error_out };
	int32_t status;

	if (text == NULL)
		return invalid(error_out, "the text is NULL");
	status = check_struct(problem, error_out);
	if (status != MOEK_OK)
		return status;
	parsed = *problem;
	parse.pass = PASS_WEIGHT;
	status = parse_pass(&parse, text);
	if (status != MOEK_OK)
		return status;
	parse.pass = PASS_REST;
	status = parse_pass(&parse, text);
	if (status != MOEK_OK)
		return status;
	/* what these mean when nobody speaks of them: a whole layer in one place */
	if (!parse.local_seen && (parsed.must_understand & MOEK_EXPERT_MAP) == 0)
		parsed.experts_local = parsed.experts;
	if (parsed.shards == 0)
		parsed.shards = 1;
	*problem = parsed;
	return MOEK_OK;
}

struct writer {
	char *text;
	size_t bytes, used;
};

static void write_text(struct writer *writer, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void write_text(struct writer *writer, const char *format, ...)
{
	size_t left = writer->used < writer->bytes ? writer->bytes - writer->used : 0;
	va_list arguments;

	va_start(arguments, format);
	writer->used += (size_t)vsnprintf(left != 0 ? writer->text + writer->used
	                                            : NULL,
	                                  left, format, arguments);
	va_end(arguments);
}

/** The shortest decimals that read back as @real, without the host's decimal comma. */
static void write_float(struct writer *writer, float real)
{
	char digits[32];

	for (int precision = 1; precision <= 9; precision++) {
		float back;

		snprintf(digits, sizeof(digits), "%.*g", precision, (double)real);
		for (char *c = digits; *c != '\0'; c++)
			if (*c == ',')
				*c = '.';
		if (moek_float_parse(digits, &back) && back == real)
			break;
	}
	write_text(writer, "%s", digits);
}

static void write_value(struct writer *writer, const void *base, const struct key *key)
{
	const char *field = (const char *)base + key->offset;
	uint64_t wide;
	uint32_t narrow;
	float real;

	switch (key->kind) {
	case VALUE_U64:
	case VALUE_GROUP:
		memcpy(&wide, field, sizeof(wide));
		if (wide == 0 && key->kind == VALUE_GROUP)
			write_text(writer, "channel");
		else
			write_text(writer, "%llu", (unsigned long long)wide);
		return;
	case VALUE_FLOAT:
		memcpy(&real, field, sizeof(real));
		write_float(writer, real);
		return;
	case VALUE_BIT:
		wide = ((const struct moek_problem *)base)->must_understand;
		write_text(writer, "%u", (unsigned)(wide >> key->offset & 1));
		return;
	default:
		break;
	}
	memcpy(&narrow, field, sizeof(narrow));
	if (key->kind == VALUE_TYPE)
		write_text(writer, "%s", narrow == 0 ? "none" : moek_type_name(narrow));
	else if (key->kind == VALUE_ACTIVATION)
		write_text(writer, "%s", moek_activation_name(narrow));
	else if (key->kind == VALUE_ACTIVATIONS)
		write_text(writer, "%s", moek_activations_name(narrow));
	else
		write_text(writer, "%u", narrow);
}

static void write_scheme(struct writer *writer, const char *prefix,
                         const struct moek_scheme *scheme)
{
	for (size_t i = 0; i < SCHEME_KEYS; i++) {
		write_text(writer, ",%s%s=", prefix, scheme_keys[i].name);
		write_value(writer, scheme, &scheme_keys[i]);
	}
}

size_t moek_problem_text(const struct moek_problem *problem, char *text_out,
                         size_t bytes)
{
	struct writer writer = { text_out, bytes, 0 };
	int same = memcmp(&problem->gate_up, &problem->down, sizeof(problem->down)) ==
	           0;

	for (size_t i = 0; i < PROBLEM_KEYS; i++) {
		write_text(&writer, "%s%s=", i != 0 ? "," : "", problem_keys[i].name);
		write_value(&writer, problem, &problem_keys[i]);
	}
	write_scheme(&writer, same ? "" : "gate_up.", &problem->gate_up);
	if (!same)
		write_scheme(&writer, "down.", &problem->down);
	return writer.used;
}
