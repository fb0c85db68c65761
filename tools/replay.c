/* SPDX-License-Identifier: MIT */
/* moek replay: the call of a capsule on whatever backend is asked for here. */
#include "config.h"

#include "tools/capsule.h"
#include "tools/numbers.h"
#include "tools/outcome.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** Of any size, so that no product of three overflows. */
#define MOST_SIZE (UINT64_C(1) << 30)

struct replay {
	const struct options *options;
	struct moek_registry *registry;
	struct moek_safetensors *file;
	struct moek_problem problem;
	struct moek_numerics numerics; /* of who made the capsule */
	char label[64], backend[96];
	uint64_t tokens;
	void *input;
	const void *ids, *map, *weights; /* map NULL: all experts are local */
	float *expected;                 /* NULL: the call had failed */
	const void *stored;              /* the same as it lies in the file */
};

/* ---- reading ---- */

/** @name, of @bytes where it is not 0; MOEK_BAD_FILE. */
static int32_t find(const struct replay *replay, const char *name, uint64_t bytes,
                    struct moek_tensor *tensor_out, struct moek_error *error_out)
{
	int32_t status;

	tensor_out->struct_size = MOEK_INIT(TENSOR);
	status = moek_safetensors_tensor(replay->file, name, tensor_out, error_out);
	if (status != MOEK_OK)
		return status;
	if (bytes != 0 && tensor_out->bytes != bytes)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: %s has %llu bytes, expected %llu",
		                  replay->options->checkpoint, name,
		                  (unsigned long long)tensor_out->bytes,
		                  (unsigned long long)bytes);
	return MOEK_OK;
}

/** The same for what is used where it lies. */
static int32_t find_aligned(const struct replay *replay, const char *name,
                            uint64_t bytes, const void **data_out,
                            struct moek_error *error_out)
{
	struct moek_tensor tensor = { 0 };
	int32_t status = find(replay, name, bytes, &tensor, error_out);

	if (status == MOEK_OK && (uintptr_t)tensor.data % 4 != 0)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: %s does not begin at a multiple of 4 bytes",
		                  replay->options->checkpoint, name);
	*data_out = tensor.data;
	return status;
}

static int has(const struct replay *replay, const char *name)
{
	uint64_t count = moek_safetensors_count(replay->file), length;

	for (uint64_t i = 0; i < count; i++)
		if (strcmp(moek_safetensors_name(replay->file, i, &length), name) == 0)
			return 1;
	return 0;
}

static int32_t read_text(const struct replay *replay, const char *name, char *text_out,
                         size_t bytes, struct moek_error *error_out)
{
	struct moek_tensor tensor = { 0 };
	int32_t status = find(replay, name, 0, &tensor, error_out);

	if (status == MOEK_OK)
		snprintf(text_out, bytes, "%.*s",
		         (int)(tensor.bytes < bytes ? tensor.bytes : bytes - 1),
		         (const char *)tensor.data);
	return status;
}

/** A struct that begins with its size. */
static int32_t read_struct(const struct replay *replay, const char *name, void *to,
                           uint32_t size, struct moek_error *error_out)
{
	struct moek_tensor tensor = { 0 };
	uint32_t stored;
	int32_t status = find(replay, name, 0, &tensor, error_out);

	if (status != MOEK_OK)
		return status;
	if (tensor.bytes < size)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: %s has %llu bytes, expected %u or more",
		                  replay->options->checkpoint, name,
		                  (unsigned long long)tensor.bytes, size);
	memcpy(&stored, tensor.data, sizeof(stored));
	if (stored < size || stored > tensor.bytes)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: struct_size of %s is %u, expected %u to %llu",
		                  replay->options->checkpoint, name, stored, size,
		                  (unsigned long long)tensor.bytes);
	memcpy(to, tensor.data, size);
	memcpy(to, &size, sizeof(size));
	return MOEK_OK;
}

static int32_t read_problem(struct replay *replay, struct moek_error *error_out)
{
	struct moek_problem *p = &replay->problem;
	char cause[sizeof(error_out->text)];
	int32_t status = read_struct(replay, "problem", p, MOEK_INIT(PROBLEM),
	                             error_out);

	if (status == MOEK_OK)
		status = read_struct(replay, "numerics", &replay->numerics,
		                     MOEK_INIT(NUMERICS), error_out);
	if (status == MOEK_OK)
		status = read_text(replay, "label", replay->label,
		                   sizeof(replay->label), error_out);
	if (status == MOEK_OK)
		status = read_text(replay, "backend", replay->backend,
		                   sizeof(replay->backend), error_out);
	if (status != MOEK_OK)
		return status;
	if (p->hidden > MOST_SIZE || p->intermediate > MOST_SIZE ||
	    p->experts > MOST_SIZE)
		return tool_error(error_out, MOEK_BAD_FILE,
		                  "%s: problem: a size is over %" PRIu64,
		                  replay->options->checkpoint, MOST_SIZE);
	if (moek_problem_check(p, error_out) == MOEK_OK)
		return MOEK_OK;
	snprintf(cause, sizeof(cause), "%s", error_out->text);
	return tool_error(error_out, MOEK_BAD_FILE, "%s: problem: %s",
	                  replay->options->checkpoint, cause);
}

static int32_t read_output(struct replay *replay, struct moek_error *error_out)
{
	const struct moek_problem *p = &replay->problem;
	uint64_t elements = replay->tokens * p->hidden;
	struct moek_tensor tensor = { 0 };
	int32_t status = find(replay, "moe_out",
	                      elements * row_type_bytes(p->output_type), &tensor,
	                      error_out);

	if (status != MOEK_OK)
		return status;
	replay->expected = alloc_array(elements, 1, sizeof(float));
	if (replay->expected == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY, "no memory for moe_out");
	replay->stored = tensor.data;
	for (uint64_t i = 0; i < elements; i++)
		replay->expected[i] = row_get(tensor.data, p->output_type, i);
	return MOEK_OK;
}

static int32_t read_call(struct replay *replay, struct moek_error *error_out)
{
	const struct moek_problem *p = &replay->problem;
	uint64_t row = p->hidden * row_type_bytes(p->input_type), slots;
	struct moek_tensor tensor = { 0 };
	int32_t status = find(replay, "hidden_in", 0, &tensor, error_out);

	if (status != MOEK_OK)
		return status;
	replay->tokens = row != 0 ? tensor.bytes / row : 0;
	if (replay->tokens == 0 || tensor.bytes % row != 0 ||
	    replay->tokens > p->max_tokens)
		return tool_error(
			error_out, MOEK_BAD_FILE,
			"%s: hidden_in has %llu bytes, expected 1 to %llu rows of "
			"%llu",
			replay->options->checkpoint, (unsigned long long)tensor.bytes,
			(unsigned long long)p->max_tokens, (unsigned long long)row);
	replay->input = alloc_array(tensor.bytes, 1, 1);
	if (replay->input == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY, "no memory for hidden_in");
	memcpy(replay->input, tensor.data, tensor.bytes);
	slots = replay->tokens * p->top_k * 4;
	status = find_aligned(replay, "topk_ids", slots, &replay->ids, error_out);
	if (status == MOEK_OK)
		status = find_aligned(replay, "topk_weights", slots, &replay->weights,
		                      error_out);
	if (status == MOEK_OK && has(replay, "expert_map"))
		status = find_aligned(replay, "expert_map", p->experts * 4,
		                      &replay->map, error_out);
	return status == MOEK_OK && has(replay, "moe_out")
	               ? read_output(replay, error_out)
	               : status;
}

/* ---- its experts ---- */

static int32_t find_part(const struct replay *replay, const char *matrix,
                         const char *part, uint64_t bytes, const void **data_out,
                         struct moek_error *error_out)
{
	char name[96];

	snprintf(name, sizeof(name), "%s.%s", matrix, part);
	return find_aligned(replay, name, (bytes + 63) / 64 * 64, data_out, error_out);
}

static int32_t find_matrix(const struct replay *replay, const char *name,
                           const struct moek_scheme *scheme, struct moek_matrix *m,
                           struct moek_error *error_out)
{
	uint64_t groups = capsule_groups(scheme, m->columns) * m->rows;
	const void *zeros = NULL, *order = NULL, *bias = NULL, *input = NULL;
	char optional[96];
	int32_t status = find_part(replay, name, "codes",
	                           capsule_code_bytes(scheme, m->rows, m->columns),
	                           &m->codes, error_out);

	m->weight = scheme->weight;
	m->scale = scheme->scale;
	m->group_size = scheme->group_size != 0 ? scheme->group_size : m->columns;
	if (status == MOEK_OK && scheme->scale != 0)
		status = find_part(replay, name, "scales",
		                   groups * capsule_scale_bytes(scheme), &m->scales,
		                   error_out);
	/* a matrix without zero points is symmetric */
	snprintf(optional, sizeof(optional), "%s.zeros", name);
	if (status == MOEK_OK && has(replay, optional))
		status = find_part(replay, name, "zeros", groups, &zeros, error_out);
	if (status == MOEK_OK && scheme->column_groups)
		status = find_part(replay, name, "column_group", m->columns * 4, &order,
		                   error_out);
	if (status == MOEK_OK && scheme->bias)
		status = find_part(replay, name, "bias", m->rows * 4, &bias, error_out);
	if (status == MOEK_OK && scheme->input_scale)
		status = find_part(replay, name, "input_scale", 4, &input, error_out);
	m->zeros = zeros;
	m->column_group = order;
	m->bias = bias;
	if (input != NULL)
		memcpy(&m->input_scale, input, sizeof(m->input_scale));
	return status;
}

static int32_t give_expert(void *self, uint64_t expert, void *scratch,
                           struct moek_expert *out, struct moek_error *error_out)
{
	const struct replay *replay = self;
	const struct moek_problem *p = &replay->problem;
	char name[64];
	int32_t status;

	(void)scratch;
	out->gate.rows = p->intermediate;
	out->gate.columns = p->hidden;
	out->down.rows = p->hidden;
	out->down.columns = p->intermediate;
	snprintf(name, sizeof(name), "experts.%llu.gate", (unsigned long long)expert);
	status = find_matrix(replay, name, &p->gate_up, &out->gate, error_out);
	if (status == MOEK_OK && p->gated) {
		out->up.rows = p->intermediate;
		out->up.columns = p->hidden;
		snprintf(name, sizeof(name), "experts.%llu.up",
		         (unsigned long long)expert);
		status = find_matrix(replay, name, &p->gate_up, &out->up, error_out);
	}
	if (status != MOEK_OK)
		return status;
	snprintf(name, sizeof(name), "experts.%llu.down", (unsigned long long)expert);
	return find_matrix(replay, name, &p->down, &out->down, error_out);
}

/* ---- running ---- */

struct ran {
	struct moek_layer *layer;
	struct moek_workspace *workspace;
	double seconds;
};

static void end(struct ran *ran)
{
	moek_workspace_destroy(ran->workspace);
	moek_layer_destroy(ran->layer);
}

/** On whom @request gives; end() in any case. */
static int32_t run_on(struct replay *replay, const char *request, void *output,
                      struct moek_trace *trace, struct ran *ran,
                      struct moek_error *error_out)
{
	const struct moek_problem *p = &replay->problem;
	struct moek_layer_options options = { .struct_size = MOEK_INIT(LAYER_OPTIONS),
		                              .expert_map = replay->map };
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE),
		                      .self = replay,
		                      .expert = give_expert };
	struct moek_forward forward = {
		.struct_size = MOEK_INIT(FORWARD),
		.input = { .data = replay->input,
		           .rows = replay->tokens,
		           .columns = p->hidden,
		           .type = p->input_type },
		.output = { .data = output,
		            .rows = replay->tokens,
		            .columns = p->hidden,
		            .type = p->output_type },
		.topk_ids = replay->ids,
		.topk_weights = replay->weights,
		.trace = trace,
	};
	struct moek_choice *choice = NULL;
	int32_t status = moek_choose(replay->registry, p, request, replay->label,
	                             &choice, error_out);

	if (status == MOEK_OK)
		status = moek_layer_create(choice, &source, &options, &ran->layer,
		                           error_out);
	if (status == MOEK_BAD_ARGUMENT &&
	    choice != NULL) { /* the capsule's, not the caller's */
		char cause[sizeof(error_out->text)];

		snprintf(cause, sizeof(cause), "%s", error_out->text);
		status = tool_error(error_out, MOEK_BAD_FILE, "%s: %s",
		                    replay->options->checkpoint, cause);
	}
	moek_choice_destroy(choice);
	if (status == MOEK_OK)
		status = moek_workspace_create(&ran->layer, 1, NULL, 0, &ran->workspace,
		                               error_out);
	if (status != MOEK_OK)
		return status;
	forward.workspace = ran->workspace;
	ran->seconds = seconds_now();
	status = moek_layer_forward(ran->layer, &forward, error_out);
	ran->seconds = seconds_now() - ran->seconds;
	return status;
}

/** Both sides may be off by what they declare. */
static int32_t compare(struct replay *replay, const struct ran *ran,
                       const struct moek_rows *output, struct comparison *out,
                       struct moek_error *error_out)
{
	const struct moek_problem *p = &replay->problem;
	struct moek_numerics numerics = { .struct_size = MOEK_INIT(NUMERICS) };
	uint64_t elements = replay->tokens * p->hidden;
	float *magnitudes = alloc_array(elements, 1, sizeof(float));
	void *again = alloc_array(elements, 1, row_type_bytes(p->output_type));
	struct moek_trace trace = { .struct_size = MOEK_INIT(TRACE),
		                    .magnitudes = magnitudes };
	struct allowance allowance, theirs;
	struct ran reference = { 0 };
	int32_t status;

	if (magnitudes == NULL || again == NULL) {
		status = tool_error(error_out, MOEK_NO_MEMORY,
		                    "no memory for magnitudes");
		goto done;
	}
	status = run_on(replay, "require emulation", again, &trace, &reference,
	                error_out);
	if (status == MOEK_OK)
		status = moek_choice_numerics(moek_layer_choice(ran->layer), &numerics);
	if (status != MOEK_OK)
		goto done;
	allowance = derive_allowance(p, &numerics, p->input_type);
	theirs = derive_allowance(p, &replay->numerics, p->input_type);
	allowance.per_magnitude += theirs.per_magnitude;
	allowance.per_output += theirs.per_output;
	allowance.least += theirs.least;
	*out = compare_outputs(&allowance, output, replay->expected, magnitudes);
done:
	end(&reference);
	free(magnitudes);
	free(again);
	return status;
}

static void print(const struct replay *replay, const struct outcome *outcome, int same)
{
	struct writer writer = { 0 };

	if (replay->options->json) {
		writer_open(&writer, NULL, '{');
		writer_string(&writer, "capsule", replay->options->checkpoint);
		writer_string(&writer, "made_by", replay->backend);
		writer_bool(&writer, "same_bits", same);
		writer_open(&writer, "layers", '[');
		outcome_write(&writer, outcome);
		writer_close(&writer, ']');
		writer_bool(&writer, "agrees", !outcome_is_wrong(outcome));
		writer_close(&writer, '}');
		return;
	}
	outcome_print_heading(outcome->compared);
	outcome_print(outcome);
	if (!outcome->compared)
		printf("\nthe call had failed on %s: nothing to compare with\n",
		       replay->backend);
	else
		printf("\n%s the output of %s, which made the capsule\n",
		       same                        ? "the same bits as"
		       : outcome_is_wrong(outcome) ? "differs from"
		                                   : "agrees with",
		       replay->backend);
}

static int32_t run(struct replay *replay, int *wrong_out, struct moek_error *error_out)
{
	const struct moek_problem *p = &replay->problem;
	struct outcome outcome = { .layer = replay->label,
		                   .tokens = replay->tokens,
		                   .elements = replay->tokens * p->hidden,
		                   .compared = replay->expected != NULL };
	struct moek_rows output = { .rows = replay->tokens,
		                    .columns = p->hidden,
		                    .type = p->output_type };
	uint64_t bytes = outcome.elements * row_type_bytes(p->output_type);
	struct ran ran = { 0 };
	int32_t status;

	output.data = alloc_array(bytes, 1, 1);
	if (output.data == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "no memory for the output");
	status = run_on(replay, replay->options->backend, output.data, NULL, &ran,
	                error_out);
	if (status == MOEK_OK && outcome.compared)
		status = compare(replay, &ran, &output, &outcome.outputs, error_out);
	if (status == MOEK_OK) {
		outcome.backend = moek_choice_winner(moek_layer_choice(ran.layer));
		outcome.seconds = ran.seconds;
		outcome.weight_bytes = moek_layer_weight_bytes(ran.layer);
		outcome.workspace_bytes = moek_layer_workspace_bytes(ran.layer);
		for (uint64_t i = 0; i < outcome.elements; i++) {
			double y = (double)row_get(output.data, p->output_type, i);

			outcome.norm += isfinite(y) ? y * y : 0;
			outcome.not_finite += !outcome.compared && !isfinite(y);
		}
		outcome.norm = sqrt(outcome.norm);
		print(replay, &outcome,
		      outcome.compared &&
		              memcmp(output.data, replay->stored, bytes) == 0);
		*wrong_out = outcome_is_wrong(&outcome);
	}
	end(&ran);
	free(output.data);
	return status;
}

int command_replay(const struct options *options)
{
	struct replay replay = { .options = options };
	struct moek_error error;
	int wrong = 0, code = TOOL_DONE;
	int32_t status = moek_safetensors_open(options->checkpoint, &replay.file,
	                                       &error);

	if (status == MOEK_OK)
		status = read_problem(&replay, &error);
	if (status == MOEK_OK)
		status = read_call(&replay, &error);
	if (status == MOEK_OK)
		status = tool_registry(options, &replay.registry, &error);
	if (status == MOEK_OK)
		status = run(&replay, &wrong, &error);
	if (status != MOEK_OK)
		code = tool_fail(&error);
	else if (wrong)
		code = TOOL_REFUSED;
	moek_registry_close(replay.registry);
	free(replay.expected);
	free(replay.input);
	moek_safetensors_close(replay.file);
	return code;
}
