/* SPDX-License-Identifier: MIT */
/* A family from a file: one section [family] whose keys are the fields of a row. */
#include "config.h"

#include "core/family.h"
#include "core/nearest.h"
#include "core/priority.h"
#include "core/problem.h"
#include "core/settings.h"
#include "core/status.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct file_family {
	struct moek_family family; /* first: this is what callers hold */
	struct moek_ini *ini;      /* its strings point into it */
};

enum kind { TEXT, YES_NO, NUMBER, WORD };

/** A word and what it stands for. */
struct choice {
	const char *word;
	uint32_t value;
};

static const struct choice orders[] = { { "gate_first", MOEK_GATE_FIRST },
	                                { "up_first", MOEK_UP_FIRST },
	                                { "interleaved", MOEK_GATE_INTERLEAVED },
	                                { NULL, 0 } };
static const struct choice transposed[] = { { "none", 0 },
	                                    { "gate_up", MOEK_TRANSPOSED_GATE_UP },
	                                    { "down", MOEK_TRANSPOSED_DOWN },
	                                    { "both", MOEK_TRANSPOSED_BOTH },
	                                    { NULL, 0 } };
static const struct choice activations[] = { { "config", 0 },
	                                     { "silu", MOEK_SILU },
	                                     { "gelu", MOEK_GELU },
	                                     { "gelu_tanh", MOEK_GELU_TANH },
	                                     { "relu2", MOEK_RELU2 },
	                                     { "swiglu_oai", MOEK_SWIGLU_OAI },
	                                     { "swiglu_step", MOEK_SWIGLU_STEP },
	                                     { "situ", MOEK_SITU },
	                                     { NULL, 0 } };
static const struct choice scorings[] = { { "softmax", MOEK_SOFTMAX },
	                                  { "sigmoid", MOEK_SIGMOID },
	                                  { "sqrt_softplus", MOEK_SQRT_SOFTPLUS },
	                                  { NULL, 0 } };
static const struct choice renormalisings[] = { { "never", MOEK_RENORM_NEVER },
	                                        { "always", MOEK_RENORM_ALWAYS },
	                                        { "config", MOEK_RENORM_CONFIG },
	                                        { NULL, 0 } };
static const struct choice groupings[] = { { "never", MOEK_GROUPS_NEVER },
	                                   { "method", MOEK_GROUPS_BY_METHOD },
	                                   { "config", MOEK_GROUPS_CONFIG },
	                                   { NULL, 0 } };

#define FIELD(name, kind, choices)                                                     \
	{                                                                              \
#name, offsetof(struct moek_family, name), kind, choices               \
	}

static const struct field {
	const char *name;
	size_t offset;
	enum kind kind;
	const struct choice *choices;
} fields[] = {
	{ "model_type", offsetof(struct moek_family, name), TEXT, NULL },
	FIELD(experts, TEXT, NULL),
	FIELD(gate, TEXT, NULL),
	FIELD(up, TEXT, NULL),
	FIELD(down, TEXT, NULL),
	FIELD(fused_gate_up, TEXT, NULL),
	FIELD(fused_gate, TEXT, NULL),
	FIELD(fused_up, TEXT, NULL),
	FIELD(fused_down, TEXT, NULL),
	FIELD(fused_suffix, TEXT, NULL),
	FIELD(fused_order, WORD, orders),
	FIELD(fused_transposed, WORD, transposed),
	FIELD(fused_flat, YES_NO, NULL),
	FIELD(router, TEXT, NULL),
	FIELD(router_bias, YES_NO, NULL),
	FIELD(correction, TEXT, NULL),
	FIELD(expert_scale, TEXT, NULL),
	FIELD(by_token, TEXT, NULL),
	FIELD(shared, TEXT, NULL),
	FIELD(intermediate, TEXT, NULL),
	FIELD(latent, TEXT, NULL),
	FIELD(requires, TEXT, NULL),
	FIELD(not_gated, YES_NO, NULL),
	FIELD(activation, WORD, activations),
	FIELD(alpha, NUMBER, NULL),
	FIELD(beta, NUMBER, NULL),
	FIELD(limit, NUMBER, NULL),
	FIELD(scoring, WORD, scorings),
	FIELD(score_chosen, YES_NO, NULL),
	FIELD(renormalise, WORD, renormalisings),
	FIELD(groups, WORD, groupings),
	FIELD(scaling, YES_NO, NULL),
	FIELD(weight_on_input, YES_NO, NULL),
	FIELD(own_input, YES_NO, NULL),
	FIELD(epsilon, NUMBER, NULL),
	FIELD(jitter, NUMBER, NULL),
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static int32_t refuse_line(const char *path, const struct moek_ini_line *line,
                           const char *expected, struct moek_error *error_out)
{
	return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s:%u: %s = %s: expected %s",
	                 path, line->number, line->key, line->value, expected);
}

static int32_t set_word(const char *path, const struct moek_ini_line *line,
                        const struct choice *choices, uint32_t *value_out,
                        struct moek_error *error_out)
{
	char known[256] = "";
	size_t used = 0;

	for (const struct choice *c = choices; c->word != NULL; c++) {
		if (strcmp(c->word, line->value) == 0) {
			*value_out = c->value;
			return MOEK_OK;
		}
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
		                         used == 0 ? "" : ", ", c->word);
	}
	return refuse_line(path, line, known, error_out);
}

static int32_t set_field(const char *path, const struct moek_ini_line *line,
                         const struct field *field, struct moek_family *family,
                         struct moek_error *error_out)
{
	void *at = (char *)family + field->offset;
	float number;
	int boolean;

	switch (field->kind) {
	case TEXT:
		*(const char **)at = line->value[0] == '\0' ? NULL : line->value;
		return MOEK_OK;
	case WORD:
		return set_word(path, line, field->choices, at, error_out);
	case YES_NO:
		boolean = moek_settings_boolean(line->value);
		if (boolean < 0)
			return refuse_line(path, line, "yes or no", error_out);
		*(uint32_t *)at = (uint32_t)boolean;
		return MOEK_OK;
	case NUMBER:
		if (!moek_float_parse(line->value, &number) || number < 0)
			return refuse_line(path, line, "a number from 0", error_out);
		*(float *)at = number;
		return MOEK_OK;
	}
	return MOEK_OK;
}

static int32_t refuse_key(const char *path, const struct moek_ini_line *line,
                          struct moek_error *error_out)
{
	const char *names[FIELDS + 1], *nearest;

	for (size_t i = 0; i < FIELDS; i++)
		names[i] = fields[i].name;
	names[FIELDS] = "like";
	nearest = moek_nearest(line->key, names, FIELDS + 1);
	return moek_fail(error_out, MOEK_BAD_CONFIG, 0,
	                 "%s:%u: %s is no key of [family]%s%s", path, line->number,
	                 line->key, nearest != NULL ? "; did you mean " : "",
	                 nearest != NULL ? nearest : "");
}

/** Begin with the row that "like" names. */
static int32_t begin_like(const char *path, const struct moek_ini_line *line,
                          struct moek_family *family, struct moek_error *error_out)
{
	size_t count;
	const struct moek_family *rows = moek_families(&count);

	for (size_t i = 0; i < count; i++)
		if (strcmp(rows[i].name, line->value) == 0 && rows[i].refused == NULL) {
			*family = rows[i];
			family->name = family->aliases = NULL;
			return MOEK_OK;
		}
	return refuse_line(path, line, "a model_type that moek reads", error_out);
}

static int32_t read_line(const char *path, const struct moek_ini_line *line,
                         struct moek_family *family, struct moek_error *error_out)
{
	if (strcmp(line->section, "family") != 0)
		return moek_fail(error_out, MOEK_BAD_CONFIG, 0,
		                 "%s:%u: [%s]: a family file has one section, [family]",
		                 path, line->number, line->section);
	if (line->key == NULL || strcmp(line->key, "like") == 0)
		return MOEK_OK;
	for (size_t i = 0; i < FIELDS; i++)
		if (strcmp(line->key, fields[i].name) == 0)
			return set_field(path, line, &fields[i], family, error_out);
	return refuse_key(path, line, error_out);
}

/** What no family can be without. */
static int32_t check_family(const char *path, struct moek_family *family,
                            struct moek_error *error_out)
{
	int is_apart = family->gate != NULL;
	int is_fused = family->fused_gate_up != NULL || family->fused_gate != NULL;
	const char *lacks = family->name == NULL           ? "model_type"
	                    : family->experts == NULL      ? "experts"
	                    : family->router == NULL       ? "router"
	                    : family->intermediate == NULL ? "intermediate"
	                    : family->scoring == 0         ? "scoring"
	                    : !is_apart && !is_fused       ? "gate, or fused_gate_up"
	                    : is_apart && family->down == NULL       ? "down"
	                    : is_fused && family->fused_down == NULL ? "fused_down"
	                    : is_apart && family->up == NULL && !family->not_gated
	                            ? "up, or not_gated = yes"
	                    : is_fused && family->fused_gate_up == NULL &&
	                                    family->fused_up == NULL &&
	                                    !family->not_gated
	                            ? "fused_up, or not_gated = yes"
	                    : family->fused_gate_up != NULL && family->fused_order == 0
	                            ? "fused_order"
	                            : NULL;

	if (lacks != NULL)
		return moek_fail(error_out, MOEK_BAD_CONFIG, 0, "%s: [family] lacks %s",
		                 path, lacks);
	if (family->fused_suffix == NULL)
		family->fused_suffix = "";
	return MOEK_OK;
}

static int32_t read_lines(const char *path, const struct moek_ini *ini,
                          struct moek_family *family, struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < ini->count && status == MOEK_OK; i++)
		if (ini->lines[i].key != NULL && strcmp(ini->lines[i].key, "like") == 0)
			status = begin_like(path, &ini->lines[i], family, error_out);
	for (size_t i = 0; i < ini->count && status == MOEK_OK; i++)
		status = read_line(path, &ini->lines[i], family, error_out);
	return status == MOEK_OK ? check_family(path, family, error_out) : status;
}

int32_t moek_family_read(const char *path, struct moek_family **family_out,
                         struct moek_error *error_out)
{
	struct file_family *file = calloc(1, sizeof(*file));
	int32_t status;

	if (file == NULL)
		return moek_fail_memory(error_out, "family");
	status = moek_ini_self_test(error_out);
	if (status == MOEK_OK)
		status = moek_ini_read(path, 0, &file->ini, error_out);
	if (status == MOEK_OK)
		status = read_lines(path, file->ini, &file->family, error_out);
	if (status != MOEK_OK) {
		moek_family_free(&file->family);
		return status;
	}
	*family_out = &file->family;
	return MOEK_OK;
}

void moek_family_free(struct moek_family *family)
{
	struct file_family *file = (struct file_family *)family;

	if (file == NULL)
		return;
	moek_ini_free(file->ini);
	free(file);
}
