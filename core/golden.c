/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/agree.h"
#include "core/choice.h"
#include "core/layer.h"
#include "core/problem.h"
#include "core/reduce.h"
#include "core/registry.h"
#include "core/status.h"
#include "core/verdicts.h"

#define TOKENS 17                         /* of the second forward; the first has one */
#define ELEMENTS_MOST (UINT64_C(1) << 22) /* of a matrix: more is not tested */

/* ---- what is known, so that nobody is asked twice ---- */

/** One answer; its rule is 0 when all was well. */
struct moek_golden {
	struct moek_golden *next;
	const struct moek_experts *experts;
	const struct moek_device *device;
	struct moek_problem problem; /* the small one */
	struct moek_cause cause;
};

void moek_golden_end(struct moek_golden *golden)
{
	while (golden != NULL) {
		struct moek_golden *next = golden->next;

		free(golden);
		golden = next;
	}
}

static int find(struct moek_registry *registry, const struct moek_backend *backend,
                const struct moek_problem *problem, struct moek_cause *cause_out)
{
	const struct moek_golden *golden;

	pthread_mutex_lock(&registry->lock);
	for (golden = registry->golden; golden != NULL; golden = golden->next)
		if (golden->experts == backend->experts &&
		    golden->device == backend->device &&
		    memcmp(&golden->problem, problem, sizeof(*problem)) == 0)
			break;
	if (golden != NULL)
		*cause_out = golden->cause;
	pthread_mutex_unlock(&registry->lock);
	return golden != NULL;
}

/** Without memory it is asked again, that is all. */
static void keep(struct moek_registry *registry, const struct moek_backend *backend,
                 const struct moek_problem *problem, const struct moek_cause *cause)
{
	struct moek_golden *golden = malloc(sizeof(*golden));

	if (golden == NULL)
		return;
	golden->experts = backend->experts;
	golden->device = backend->device;
	golden->problem = *problem;
	golden->cause = *cause;
	pthread_mutex_lock(&registry->lock);
	golden->next = registry->golden;
	registry->golden = golden;
	pthread_mutex_unlock(&registry->lock);
}

/* ---- the same across processes ---- */

static const char *mode_of(const struct moek_registry *registry)
{
	return moek_settings_value(registry->settings, "golden");
}

/** Of the file, its options, the experts, the device and the problem. */
static int make_key(const struct moek_registry *registry,
                    const struct moek_backend *backend,
                    const struct moek_problem *problem, const char *path,
                    char text_out[1280], struct moek_verdict_key *key_out)
{
	char **options = moek_settings_options(registry->settings,
	                                       backend->plugin->name);
	int used = snprintf(text_out, 256, "%s %s ", backend->name,
	                    backend->device->arch);
	int is_made;

	moek_problem_text(problem, text_out + used, 1280 - (size_t)used);
	is_made = options != NULL && moek_verdict_key(path, options, key_out);
	key_out->kind = "golden";
	key_out->what = text_out;
	moek_settings_options_free(options);
	return is_made;
}

static int is_kept(const struct moek_registry *registry)
{
	return strcmp(mode_of(registry), "first") == 0 &&
	       moek_settings_value(registry->settings, "cache")[0] != '\0';
}

static int recall(struct moek_registry *registry, const struct moek_backend *backend,
                  const struct moek_problem *problem, const char *path,
                  struct moek_cause *cause_out)
{
	const char *cache = moek_settings_value(registry->settings, "cache");
	struct moek_verdict_key key;
	char text[1280];

	if (find(registry, backend, problem, cause_out))
		return 1;
	if (!is_kept(registry) ||
	    !make_key(registry, backend, problem, path, text, &key) ||
	    !moek_verdict_recall(cache, &key, cause_out))
		return 0;
	keep(registry, backend, problem, cause_out);
	return 1;
}

/* ---- the small problem ---- */

static int accepts(const struct moek_backend *backend,
                   const struct moek_problem *problem)
{
	const struct moek_experts *experts = backend->experts;
	void *plugin = backend->plugin_handle;
	struct moek_verdict no = { .struct_size = MOEK_VERDICT_SIZE_1_0 };

	return experts->supports_quant_scheme(plugin, problem, &no) == 1 &&
	       experts->supports_activation(plugin, problem, &no) == 1 &&
	       experts->supports_parallel(plugin, problem, &no) == 1 &&
	       experts->supports_shape(plugin, problem, &no) == 1;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/** Few experts and the smallest sizes that are accepted and leave the same remainder,
 * so that they take the same turns. 0: there are none. */
static int shrink(const struct moek_backend *backend, const struct moek_problem *asked,
                  struct moek_problem *small_out)
{
	struct moek_problem p = *asked;

	p.must_understand &= MOEK_IMPLIED_BITS | MOEK_DETERMINISTIC |
	                     MOEK_WEIGHT_ON_INPUT;
	p.experts = least(p.experts, p.top_k > 4 ? p.top_k : 4);
	p.experts_local = p.experts;
	p.max_tokens = TOKENS;
	for (uint64_t base = 128; base <= 2048; base *= 2) {
		struct moek_problem seen;

		p.hidden = least(asked->hidden, base + asked->hidden % 128);
		p.intermediate = least(asked->intermediate,
		                       base + asked->intermediate % 128);
		seen = moek_candidate_problem(&p, backend->device);
		if (p.hidden * p.intermediate > ELEMENTS_MOST)
			return 0;
		if (accepts(backend, &seen)) {
			*small_out = p;
			return 1;
		}
	}
	return 0;
}

/* ---- its weights and tokens ---- */

/** splitmix64 */
static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static float between(uint64_t *state, float low, float high)
{
	return low + (high - low) * ((float)(next(state) >> 40) / 16777216.0f);
}

static void put(uint32_t type, void *values, uint64_t i, float value)
{
	int exponent;

	if (type != MOEK_E8M0) {
		moek_row_from_f32(type, &value, 1,
		                  (char *)values + i * moek_type_bytes(type));
		return;
	}
	frexpf(value, &exponent);
	((uint8_t *)values)[i] = (uint8_t)(exponent + 126);
}

/** What is still free of a thread's scratch. */
struct arena {
	char *at;
	uint64_t state; /* of the random numbers */
};

static void *take(struct arena *arena, uint64_t bytes)
{
	char *taken = arena->at;

	arena->at += (bytes + 63) & ~UINT64_C(63);
	return taken;
}

/** More than fill_matrix() takes. */
static uint64_t matrix_bytes(uint64_t rows, uint64_t columns)
{
	return 9 * rows * columns + 4 * (rows + columns) + 5 * 64;
}

static void fill_codes(struct moek_matrix *m, struct arena *arena)
{
	int is_rows = m->scale == 0;
	uint64_t bytes = is_rows ? m->columns * moek_type_bytes(m->weight)
	                 : m->weight == MOEK_INT8 ? m->columns
	                                          : (m->columns + 1) / 2;
	uint8_t *codes = take(arena, m->rows * bytes);
	float size = 1.5f / sqrtf((float)m->columns);

	m->codes = codes;
	for (uint64_t i = 0; i < m->rows * (is_rows ? m->columns : bytes); i++)
		if (is_rows)
			put(m->weight, codes, i, between(&arena->state, -size, size));
		else
			codes[i] = (uint8_t)next(&arena->state);
}

static void fill_scales(struct moek_matrix *m, struct arena *arena, uint64_t count)
{
	void *scales = take(arena, count * sizeof(float));
	float size = (m->weight == MOEK_INT8   ? 0.02f
	              : m->weight == MOEK_INT4 ? 0.3f
	                                       : 0.5f) /
	             sqrtf((float)m->columns);

	m->scales = scales;
	for (uint64_t i = 0; i < count; i++)
		put(m->scale, scales, i, between(&arena->state, 0.4f, 1.6f) * size);
}

static void fill_zeros(struct moek_matrix *m, struct arena *arena, uint64_t count)
{
	uint8_t *zeros = take(arena, count);

	m->zeros = zeros;
	for (uint64_t i = 0; i < count; i++)
		zeros[i] = m->weight == MOEK_INT8
		                   ? (uint8_t)(96 + next(&arena->state) % 64)
		                   : (uint8_t)(next(&arena->state) % 16);
}

/** Groups keep their sizes; their columns are dealt out one by one. */
static void fill_column_group(struct moek_matrix *m, struct arena *arena,
                              uint64_t groups)
{
	uint32_t *column_group = take(arena, m->columns * sizeof(*column_group));
	uint64_t column = 0;

	m->column_group = column_group;
	for (uint64_t within = 0; within < m->group_size; within++)
		for (uint64_t g = 0; g < groups; g++)
			if (g * m->group_size + within < m->columns)
				column_group[column++] = (uint32_t)g;
}

static void fill_bias(struct moek_matrix *m, struct arena *arena)
{
	float *bias = take(arena, m->rows * sizeof(*bias));

	m->bias = bias;
	for (uint64_t i = 0; i < m->rows; i++)
		bias[i] = between(&arena->state, -0.5f, 0.5f);
}

static void fill_matrix(const struct moek_scheme *scheme, uint64_t rows,
                        uint64_t columns, struct arena *arena, struct moek_matrix *m)
{
	uint64_t groups = moek_scheme_groups(scheme, columns);

	m->weight = scheme->weight;
	m->scale = scheme->scale;
	m->rows = rows;
	m->columns = columns;
	m->group_size = scheme->group_size != 0 ? scheme->group_size : columns;
	m->input_scale = scheme->input_scale ? 0.015625f : 0;
	fill_codes(m, arena);
	if (scheme->scale != 0)
		fill_scales(m, arena, rows * groups);
	if (scheme->zero_points)
		fill_zeros(m, arena, rows * groups);
	if (scheme->column_groups)
		fill_column_group(m, arena, groups);
	if (scheme->bias)
		fill_bias(m, arena);
}

static int32_t give_expert(void *self, uint64_t expert, void *scratch,
                           struct moek_expert *expert_out, struct moek_error *error_out)
{
	const struct moek_problem *p = self;
	struct arena arena = { .at = scratch, .state = expert };

	(void)error_out;
	fill_matrix(&p->gate_up, p->intermediate, p->hidden, &arena, &expert_out->gate);
	if (p->gated)
		fill_matrix(&p->gate_up, p->intermediate, p->hidden, &arena,
		            &expert_out->up);
	fill_matrix(&p->down, p->hidden, p->intermediate, &arena, &expert_out->down);
	return MOEK_OK;
}

/** A batch, and what came of it. */
struct batch {
	float *values;
	char *input, *output;
	int32_t *ids;
	float *weights;
};

static void fill_batch(const struct moek_problem *p, struct batch *batch)
{
	uint64_t elements = TOKENS * p->hidden, state = 17;

	for (uint64_t i = 0; i < elements; i++)
		batch->values[i] = between(&state, -2, 2);
	moek_row_from_f32(p->input_type, batch->values, elements, batch->input);
	for (uint64_t i = 0; i < TOKENS * p->top_k; i++) {
		batch->ids[i] = (int32_t)((i / p->top_k + i % p->top_k) % p->experts);
		batch->weights[i] = between(&state, 0.1f, 0.9f);
	}
	/* nobody's, in the second token */
	batch->ids[p->top_k] = -1;
}

/* ---- the test ---- */

struct testing {
	struct moek_registry *registry;
	const struct moek_backend *backend;
	const char *path;            /* of its file */
	struct moek_problem problem; /* the small one */
	struct moek_layer *layer, *reference;
	struct moek_workspace *workspace, *reference_workspace;
	struct batch batch;
	struct moek_error error;
};

/** Layers, workspaces and the batch. */
static int32_t set_up(struct testing *t)
{
	struct moek_problem *p = &t->problem, wanted = *p;
	const struct moek_source source = {
		.struct_size = MOEK_SOURCE_SIZE_1_0,
		.self = p,
		.scratch_bytes = 3 * matrix_bytes(p->hidden, p->intermediate),
		.expert = give_expert,
	};
	struct moek_layer_request request = { .source = &source };
	int32_t status;
	int ignored;

	wanted.output_type = MOEK_F32;
	status = moek_choose_reference(t->registry, &wanted, &request.choice,
	                               &t->error);
	request.is_reference = 1;
	if (status == MOEK_OK)
		status = moek_layer_make(&request, &t->reference, &ignored, &t->error);
	request.is_reference = 0;
	request.checks = MOEK_CHECK_ALL;
	if (status == MOEK_OK)
		status = moek_choice_of(t->registry, t->backend, p, &request.choice,
		                        &t->error);
	if (status == MOEK_OK)
		status = moek_layer_make(&request, &t->layer, &ignored, &t->error);
	if (status == MOEK_OK)
		status = moek_workspace_create(&t->reference, 1, NULL, 0,
		                               &t->reference_workspace, &t->error);
	if (status == MOEK_OK)
		status = moek_workspace_create(&t->layer, 1, NULL, 0, &t->workspace,
		                               &t->error);
	/* no layer, so no numbers: whoever makes the real one will say it */
	return status == MOEK_PLUGIN ? MOEK_REFUSED : status;
}

static int take_batch(struct testing *t)
{
	uint64_t elements = TOKENS * t->problem.hidden;
	uint64_t choices = TOKENS * t->problem.top_k;
	struct batch *batch = &t->batch;

	batch->values = malloc(elements * sizeof(float));
	batch->input = malloc(elements * sizeof(float));
	batch->output = malloc(elements * sizeof(float));
	batch->ids = malloc(choices * sizeof(int32_t));
	batch->weights = malloc(choices * sizeof(float));
	if (batch->values == NULL || batch->input == NULL || batch->output == NULL ||
	    batch->ids == NULL || batch->weights == NULL)
		return 0;
	fill_batch(&t->problem, batch);
	return 1;
}

static void tear_down(struct testing *t)
{
	moek_workspace_destroy(t->workspace);
	moek_workspace_destroy(t->reference_workspace);
	moek_layer_destroy(t->layer);
	moek_layer_destroy(t->reference);
	free(t->batch.values);
	free(t->batch.input);
	free(t->batch.output);
	free(t->batch.ids);
	free(t->batch.weights);
}

/** MOEK_PLUGIN with MOEK_RULE_GOLDEN: the numbers are not those of the reference. */
static int32_t compare(struct testing *t, uint64_t tokens)
{
	const struct moek_problem *p = &t->problem;
	struct moek_numerics numerics = { .struct_size = MOEK_NUMERICS_SIZE_1_0 };
	const struct moek_forward forward = {
		.struct_size = MOEK_FORWARD_SIZE_1_0,
		.input = { t->batch.input, tokens, p->hidden, 0, p->input_type, 0 },
		.output = { t->batch.output, tokens, p->hidden, 0, p->output_type, 0 },
		.topk_ids = t->batch.ids,
		.topk_weights = t->batch.weights,
		.workspace = t->workspace,
	};
	struct moek_outputs outputs = { .problem = p,
		                        .numerics = &numerics,
		                        .got = &forward.output };
	struct moek_agreement agreement;
	struct moek_wanted wanted;
	char text[256];
	int32_t status = moek_forward_reference(t->reference, t->reference_workspace,
	                                        &forward, &wanted, &t->error);

	if (status != MOEK_OK) /* that is the reference's fault, if anybody's */
		return MOEK_REFUSED;
	status = moek_layer_forward(t->layer, &forward, &t->error);
	if (status != MOEK_OK)
		return status;
	moek_choice_numerics(moek_layer_choice(t->layer), &numerics);
	outputs.wanted = wanted.values;
	outputs.magnitudes = wanted.magnitudes;
	moek_agree(&outputs, &agreement);
	if (agreement.rows_over == 0)
		return MOEK_OK;
	moek_agreement_text(&agreement, p->hidden, t->reference->backend->name, text,
	                    sizeof(text));
	return moek_fail(&t->error, MOEK_PLUGIN, MOEK_RULE_GOLDEN,
	                 "golden test of %llu token%s: %s", (unsigned long long)tokens,
	                 tokens == 1 ? "" : "s", text);
}

static int32_t run(struct testing *t)
{
	int32_t status = set_up(t);

	if (status == MOEK_OK && !take_batch(t))
		status = moek_fail_memory(&t->error, "golden test");
	if (status == MOEK_OK)
		status = compare(t, 1);
	if (status == MOEK_OK)
		status = compare(t, TOKENS);
	tear_down(t);
	return status;
}

/** MOEK_OK and MOEK_PLUGIN are answers; others are not. */
static int32_t answer(struct testing *t, struct moek_cause *cause_out)
{
	const char *cache = moek_settings_value(t->registry->settings, "cache");
	int32_t status = run(t);
	struct moek_verdict_key key;
	char text[1280];

	memset(cause_out, 0, sizeof(*cause_out));
	if (status == MOEK_PLUGIN)
		moek_plugin_break(cause_out, MOEK_RULE_GOLDEN, 0, "%.500s",
		                  t->error.text);
	else if (status != MOEK_OK)
		return status;
	keep(t->registry, t->backend, &t->problem, cause_out);
	if (is_kept(t->registry) &&
	    make_key(t->registry, t->backend, &t->problem, t->path, text, &key))
		moek_verdict_keep(cache, &key, cause_out);
	return status;
}

/* ---- who is tested ---- */

static int is_tested(const struct moek_registry *registry,
                     const struct moek_experts *experts)
{
	return strcmp(mode_of(registry), "off") != 0 &&
	       experts->rank_class != MOEK_EMULATION &&
	       !moek_registry_answers_only(registry);
}

int moek_golden_recall(struct moek_registry *registry,
                       const struct moek_entrant *entrant,
                       const struct moek_problem *problem, struct moek_cause *cause_out)
{
	struct moek_problem small;
	struct moek_backend backend;

	if (!is_tested(registry, entrant->experts))
		return 0;
	backend = moek_candidate_backend(entrant, problem);
	return shrink(&backend, problem, &small) &&
	       recall(registry, &backend, &small, entrant->path, cause_out) &&
	       cause_out->verdict.rule != MOEK_RULE_NONE;
}

int32_t moek_golden_test(const struct moek_choice *choice, struct moek_error *error_out)
{
	struct testing testing = { .registry = choice->registry,
		                   .backend = &choice->backend,
		                   .path = choice->entrants[choice->winner].path };
	struct moek_cause cause;
	int32_t status = MOEK_OK;

	if (!is_tested(choice->registry, choice->backend.experts) ||
	    !shrink(&choice->backend, &choice->problem, &testing.problem))
		return MOEK_OK;
	if (!recall(choice->registry, &choice->backend, &testing.problem, testing.path,
	            &cause))
		status = answer(&testing, &cause);
	if (status != MOEK_OK && status != MOEK_PLUGIN) {
		moek_log_once(&choice->registry->log, MOEK_LOG_INFO,
		              choice->backend.name, "%s: no golden test: %s",
		              choice->backend.name, testing.error.text);
		return MOEK_OK;
	}
	if (cause.verdict.rule == MOEK_RULE_NONE)
		return MOEK_OK;
	return moek_fail(error_out, MOEK_PLUGIN, MOEK_RULE_GOLDEN, "%s", cause.text);
}
