/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/layer.h"

#include <check.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moek/formats.h>

#include "core/expert.h"
#include "core/problem.h"

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

static struct moek_error error;

/* ---- weights made of numbers that all differ ---- */

#define MOST_ROWS 64
#define MOST_COLUMNS 64

struct matrix {
	float codes[MOST_ROWS * MOST_COLUMNS];
	float bias[MOST_ROWS];
};

struct expert {
	struct matrix gate, up, down;
};

struct weights {
	struct moek_problem problem;
	float scale;  /* changes every number: for reload */
	int broken;   /* number of a row of the table of broken experts, plus 1 */
	int fails_at; /* expert at which the source fails; -1: none */
	int silent;   /* it fails without a text */
	_Atomic uint32_t calls;
	_Atomic uint64_t seen; /* bit of each expert asked for */
	const float *given;    /* numbers of EX-FW: gate, up, down of each expert */
};

static float number(const struct weights *w, uint64_t expert, uint64_t matrix,
                    uint64_t row, uint64_t column)
{
	uint64_t mix = expert * 7919 + matrix * 104729 + row * 1299709 +
	               column * 15485863;

	mix ^= mix >> 7;
	return w->scale * ((float)(mix % 1009) / 1009.0f - 0.5f);
}

static void fill_matrix(const struct weights *w, struct matrix *data, uint64_t expert,
                        uint64_t which, struct moek_matrix *out)
{
	const struct moek_problem *p = &w->problem;
	uint64_t rows = which == 2 ? p->hidden : p->intermediate;
	uint64_t columns = which == 2 ? p->intermediate : p->hidden;

	for (uint64_t r = 0; r < rows; r++) {
		for (uint64_t c = 0; c < columns; c++)
			data->codes[r * columns + c] =
				w->given != NULL
					? w->given[((expert * 3 + which) * rows + r) *
			                                   columns +
			                           c]
					: number(w, expert, which, r, c);
		data->bias[r] = number(w, expert, which + 3, r, 0);
	}
	out->weight = MOEK_F32;
	out->rows = rows;
	out->columns = columns;
	out->codes = data->codes;
	out->bias = p->gate_up.bias ? data->bias : NULL;
}

static void break_expert(int how, struct moek_expert *expert);

static int32_t give_expert(void *self, uint64_t number, void *scratch,
                           struct moek_expert *expert_out, struct moek_error *error_out)
{
	struct weights *w = self;
	struct expert *data = scratch;

	w->calls++;
	w->seen |= UINT64_C(1) << number;
	if (w->fails_at >= 0 && (uint64_t)w->fails_at == number) {
		if (!w->silent) {
			error_out->status = MOEK_BAD_FILE;
			snprintf(error_out->text, sizeof(error_out->text),
			         "x.safetensors: gone");
		}
		return MOEK_BAD_FILE;
	}
	fill_matrix(w, &data->gate, number, 0, &expert_out->gate);
	if (w->problem.gated)
		fill_matrix(w, &data->up, number, 1, &expert_out->up);
	fill_matrix(w, &data->down, number, 2, &expert_out->down);
	if (w->broken != 0 && number == 3)
		break_expert(w->broken - 1, expert_out);
	return MOEK_OK;
}

static struct moek_source source_of(struct weights *w)
{
	return (struct moek_source){ .struct_size = MOEK_SOURCE_SIZE_1_0,
		                     .self = w,
		                     .scratch_bytes = sizeof(struct expert),
		                     .expert = give_expert };
}

/* ---- a registry, a choice, a layer, a workspace ---- */

struct rig {
	const char *plugins; /* name of the variable with the folder */
	const char *request;
	const char *text; /* of the problem, over the usual one */
	const char *facts;
	const int32_t *map;
	const struct moek_workers *workers;
	uint32_t threads;
	int checks;
	const char *watch; /* the setting `checks`, in place of that; NULL: none */
	const char *fault; /* of the plugin damaged; NULL: none */
	const float *given;

	struct moek_registry *registry;
	struct moek_choice *choice;
	struct moek_layer *layer;
	struct moek_workspace *workspace;
	struct weights weights;
	struct moek_source source;
	struct moek_problem problem;
};

#define USUAL                                                                          \
	"experts=6,top_k=2,hidden=40,intermediate=24,max_tokens=16,weight=fp32,"       \
	"input_type=fp32,output_type=fp32,activation=silu,gated=1"

static void parse(const char *text, struct moek_problem *problem)
{
	ck_assert_msg(moek_problem_parse(text, problem, &error) == MOEK_OK, "%s: %s",
	              text, error.text);
}

static void open_registry(struct rig *rig)
{
	struct moek_registry_options options = { .struct_size = MOEK_INIT(
							 REGISTRY_OPTIONS) };
	const char *dirs[2] = {
		getenv(rig->plugins != NULL ? rig->plugins : "MOEK_TEST_PLUGINS"), NULL
	};

	options.config_file = "";
	options.plugin_dirs = dirs;
	options.ignore_environment = 1;
	options.threads = rig->threads;
	options.workers = rig->workers;
	options.facts_file = rig->facts;
	const struct moek_setting settings[] = {
		{ "plugin damaged", "fault", rig->fault },
		{ "registry", "checks", rig->watch },
	};

	options.checks = rig->watch != NULL ? 0 : rig->checks ? 1 : 2;
	options.settings = rig->fault != NULL ? settings : settings + 1;
	options.setting_count = (rig->fault != NULL) + (rig->watch != NULL);
	ck_assert_msg(moek_registry_open(&options, &rig->registry, &error) == MOEK_OK,
	              "%s", error.text);
}

static void choose(struct rig *rig)
{
	rig->problem = (struct moek_problem){ .struct_size = MOEK_INIT(PROBLEM) };
	parse(USUAL, &rig->problem);
	if (rig->text != NULL)
		parse(rig->text, &rig->problem);
	/* of the real plugins the one whose arithmetic is known to the last bit */
	if (rig->request == NULL && rig->plugins == NULL)
		rig->request = "require emulation";
	open_registry(rig);
	ck_assert_msg(moek_choose(rig->registry, &rig->problem, rig->request, NULL,
	                          &rig->choice, &error) == MOEK_OK,
	              "%s", error.text);
	rig->weights.problem = rig->problem;
	rig->weights.scale = 1;
	rig->weights.fails_at = -1;
	rig->weights.given = rig->given;
	rig->source = source_of(&rig->weights);
}

static int32_t create(struct rig *rig)
{
	struct moek_layer_options options = { .struct_size = MOEK_INIT(LAYER_OPTIONS) };

	options.expert_map = rig->map;
	return moek_layer_create(rig->choice, &rig->source, &options, &rig->layer,
	                         &error);
}

static void set_up(struct rig *rig)
{
	choose(rig);
	ck_assert_msg(create(rig) == MOEK_OK, "%s", error.text);
	ck_assert_msg(moek_workspace_create(&rig->layer, 1, NULL, 0, &rig->workspace,
	                                    &error) == MOEK_OK,
	              "%s", error.text);
}

static void tear_down(struct rig *rig)
{
	moek_workspace_destroy(rig->workspace);
	moek_layer_destroy(rig->layer);
	moek_choice_destroy(rig->choice);
	moek_registry_close(rig->registry);
}

/* ---- tokens ---- */

#define TOKENS 5
#define HIDDEN 40
#define TOP_K 2

struct tokens {
	float input[TOKENS * HIDDEN];
	float output[TOKENS * HIDDEN];
	int32_t ids[TOKENS * TOP_K];
	float weights[TOKENS * TOP_K];
	struct moek_forward forward;
};

static struct moek_rows rows_of(void *data, uint64_t tokens, uint64_t columns)
{
	return (struct moek_rows){ data, tokens, columns, 0, MOEK_F32, 0 };
}

static void fill_tokens(struct tokens *t, struct rig *rig)
{
	static const int32_t ids[TOKENS * TOP_K] = { 0, 3, 5, 1, 2, 2, 4, 0, 3, 5 };

	for (int i = 0; i < TOKENS * HIDDEN; i++) {
		t->input[i] = (float)((i * 37) % 101) / 50.0f - 1;
		t->output[i] = 77;
	}
	memcpy(t->ids, ids, sizeof(ids));
	for (int i = 0; i < TOKENS * TOP_K; i++)
		t->weights[i] = 0.1f * (float)(i + 1);
	t->forward = (struct moek_forward){ .struct_size = MOEK_FORWARD_SIZE_1_0,
		                            .input = rows_of(t->input, TOKENS, HIDDEN),
		                            .output = rows_of(t->output, TOKENS,
		                                              HIDDEN),
		                            .topk_ids = t->ids,
		                            .topk_weights = t->weights,
		                            .workspace = rig->workspace };
}

static void run(struct rig *rig, struct tokens *t)
{
	ck_assert_msg(moek_layer_forward(rig->layer, &t->forward, &error) == MOEK_OK,
	              "%s", error.text);
}

/* ---- the worked examples of the contract ---- */

/* EX-FW1: gate, up, down of two experts */
static const float fw1[] = {
	1, 0, 0, 1, /**/ 1, 1, 1, -1, /**/ 1, 2, 3, 4,
	0, 1, 1, 0, /**/ 2, 0, 0, 2,  /**/ 1, 0, 0, 1,
};

#define FW1 "experts=2,hidden=2,intermediate=2,max_tokens=4"

static void run_fw(struct rig *rig, uint64_t top_k, float weight, float output[2])
{
	float input[2] = { 1, 2 }, weights[2] = { weight, 0.25f };
	int32_t ids[2] = { 0, 1 };
	struct moek_forward forward = { .struct_size = MOEK_FORWARD_SIZE_1_0,
		                        .input = rows_of(input, 1, 2),
		                        .output = rows_of(output, 1, 2),
		                        .topk_ids = ids,
		                        .topk_weights = weights };

	rig->given = fw1;
	set_up(rig);
	ck_assert_uint_eq(rig->problem.top_k, top_k);
	forward.workspace = rig->workspace;
	ck_assert_msg(moek_layer_forward(rig->layer, &forward, &error) == MOEK_OK, "%s",
	              error.text);
	tear_down(rig);
}

static void assert_near(const float got[2], double first, double second)
{
	ck_assert_msg(fabs((double)got[0] - first) < 2e-7 &&
	                      fabs((double)got[1] - second) < 2e-7,
	              "got %.9g %.9g, expected %.9g %.9g", (double)got[0],
	              (double)got[1], first, second);
}

START_TEST(two_experts_are_weighed_and_summed)
{
	struct rig rig = { .text = FW1, .threads = 2, .checks = _i };
	float output[2];

	run_fw(&rig, 2, 0.75f, output);
	assert_near(output, -0.1167124, 0.3809215);
}
END_TEST

START_TEST(the_router_weight_is_applied_once)
{
	struct rig on_output = { .text = FW1 ",top_k=1", .threads = 1, .checks = _i };
	struct rig on_input = { .text = FW1 ",top_k=1,weight_on_input=1",
		                .threads = 1,
		                .checks = _i };
	float output[2];

	run_fw(&on_output, 1, 0.5f, output);
	assert_near(output, -0.6650063, -0.2334247);
	run_fw(&on_input, 1, 0.5f, output);
	assert_near(output, -0.2642141, -0.0615837);
}
END_TEST

START_TEST(a_weight_on_the_input_is_rounded_once)
{
	struct rig rig = { .text = "top_k=1,weight_on_input=1,input_type=bf16",
		           .threads = 2,
		           .checks = 1 };
	struct rig plain = { .text = "top_k=1,input_type=bf16",
		             .threads = 2,
		             .checks = 1 };
	struct tokens t;
	uint16_t input[TOKENS * HIDDEN], scaled[TOKENS * HIDDEN];
	float expected[TOKENS * HIDDEN];

	set_up(&rig);
	set_up(&plain);
	fill_tokens(&t, &rig);
	t.ids[2] = -1;
	t.weights[2] = NAN; /* belongs to nobody: not read */
	for (int i = 0; i < TOKENS * HIDDEN; i++) {
		input[i] = moek_bf16_from_f32(t.input[i]);
		scaled[i] = moek_bf16_from_f32(moek_bf16_to_f32(input[i]) *
		                               t.weights[i / HIDDEN]);
	}
	t.forward.input.data = input;
	t.forward.input.type = MOEK_BF16;
	run(&rig, &t);
	memcpy(expected, t.output, sizeof(expected));
	for (int i = 0; i < TOKENS; i++)
		t.weights[i] = 1;
	t.forward.input.data = scaled;
	t.forward.workspace = plain.workspace;
	run(&plain, &t);
	ck_assert_mem_eq(t.output, expected, sizeof(expected));
	tear_down(&plain);
	tear_down(&rig);
}
END_TEST

/* ---- the same bits however it is run ---- */

static struct {
	uint32_t calls;
	struct moek_layer *layer; /* run once more from within */
	struct moek_forward *forward;
	int32_t status;
} serial;

static void serial_for(void *self, uint64_t tasks,
                       void (*body)(void *arg, uint64_t i, uint32_t worker), void *arg)
{
	(void)self;
	serial.calls++;
	if (serial.forward != NULL)
		serial.status = moek_layer_forward(serial.layer, serial.forward,
		                                   &error);
	for (uint64_t i = tasks; i-- > 0;)
		body(arg, i, 1);
}

static const struct moek_workers serial_workers = { MOEK_WORKERS_SIZE_1_0, 2, NULL,
	                                            serial_for };

START_TEST(checks_and_workers_do_not_change_a_bit)
{
	struct rig first = { .threads = 1 };
	struct tokens t, other;

	set_up(&first);
	fill_tokens(&t, &first);
	run(&first, &t);
	for (int way = 0; way < 7; way++) {
		struct rig rig = { .threads = (uint32_t)(1 + way % 3),
			           .checks = way >= 3 };

		if (way == 6)
			rig.workers = &serial_workers;
		serial.calls = 0;
		set_up(&rig);
		fill_tokens(&other, &rig);
		run(&rig, &other);
		ck_assert_mem_eq(other.output, t.output, sizeof(t.output));
		/* a second time, over what the first left behind */
		memset(other.output, 1, sizeof(other.output));
		run(&rig, &other);
		ck_assert_mem_eq(other.output, t.output, sizeof(t.output));
		ck_assert(way == 6 ? serial.calls > 2 : serial.calls == 0);
		tear_down(&rig);
	}
	tear_down(&first);
}
END_TEST

struct thread {
	struct rig *rig;
	struct tokens tokens;
	pthread_t id;
};

static void *run_often(void *arg)
{
	struct thread *thread = arg;

	for (int i = 0; i < 20; i++) {
		memset(thread->tokens.output, 0, sizeof(thread->tokens.output));
		if (moek_layer_forward(thread->rig->layer, &thread->tokens.forward,
		                       NULL) != MOEK_OK)
			return thread;
	}
	return NULL;
}

START_TEST(two_layers_on_two_threads_are_independent)
{
	struct rig rig = { .threads = 2, .checks = _i }, twin;
	struct thread threads[2];
	struct tokens alone[2];

	set_up(&rig);
	twin = rig;
	twin.weights.scale = 0.75f;
	twin.source.self = &twin.weights;
	ck_assert_int_eq(create(&twin), MOEK_OK);
	ck_assert_int_eq(
		moek_workspace_create(&twin.layer, 1, NULL, 0, &twin.workspace, NULL),
		MOEK_OK);
	for (int i = 0; i < 2; i++) {
		threads[i].rig = i == 0 ? &rig : &twin;
		fill_tokens(&alone[i], threads[i].rig);
		run(threads[i].rig, &alone[i]);
		fill_tokens(&threads[i].tokens, threads[i].rig);
	}
	ck_assert(memcmp(alone[0].output, alone[1].output, sizeof(alone[0].output)) !=
	          0);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(
			pthread_create(&threads[i].id, NULL, run_often, &threads[i]),
			0);
	for (int i = 0; i < 2; i++) {
		void *failed;

		pthread_join(threads[i].id, &failed);
		ck_assert_ptr_null(failed);
		ck_assert_mem_eq(threads[i].tokens.output, alone[i].output,
		                 sizeof(alone[i].output));
	}
	moek_workspace_destroy(twin.workspace);
	moek_layer_destroy(twin.layer);
	tear_down(&rig);
}
END_TEST

START_TEST(one_workspace_serves_many_layers)
{
	struct rig large = { .threads = 1 };
	struct rig small = { .text = "top_k=1,max_tokens=5", .threads = 1 };
	struct moek_layer *both[2];
	struct moek_workspace *workspace = NULL;
	struct tokens a, b;

	set_up(&large);
	set_up(&small);
	ck_assert_uint_lt(moek_layer_workspace_bytes(small.layer),
	                  moek_layer_workspace_bytes(large.layer));
	fill_tokens(&a, &large);
	run(&large, &a);
	both[0] = small.layer;
	both[1] = large.layer;
	ck_assert_int_eq(moek_workspace_create(both, 2, NULL, 0, &workspace, NULL),
	                 MOEK_OK);
	fill_tokens(&b, &large);
	b.forward.workspace = workspace;
	run(&small, &b);
	run(&large, &b);
	ck_assert_mem_eq(a.output, b.output, sizeof(a.output));
	moek_workspace_destroy(workspace);

	b.forward.workspace = small.workspace;
	ck_assert_int_eq(moek_layer_forward(large.layer, &b.forward, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_uint_eq(error.rule, MOEK_RULE_WORKSPACE);
	ck_assert_ptr_nonnull(
		strstr(error.text, "create it with this layer in the list"));
	tear_down(&small);
	tear_down(&large);
}
END_TEST

START_TEST(the_hosts_memory_may_be_the_workspace)
{
	struct rig rig = { .threads = 1, .checks = _i };
	struct moek_workspace *workspace = NULL;
	struct tokens a, b;
	uint64_t bytes;
	char *memory;

	set_up(&rig);
	bytes = moek_layer_workspace_bytes(rig.layer);
	memory = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
	fill_tokens(&a, &rig);
	run(&rig, &a);
	ck_assert_int_eq(moek_workspace_create(&rig.layer, 1, memory, bytes - 1,
	                                       &workspace, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(error.text, "the layers need"));
	ck_assert_int_eq(
		moek_workspace_create(&rig.layer, 1, memory, bytes, &workspace, NULL),
		MOEK_OK);
	memset(memory, 0x5a, (bytes + 8191) / 4096 * 4096);
	fill_tokens(&b, &rig);
	b.forward.workspace = workspace;
	run(&rig, &b);
	ck_assert_mem_eq(a.output, b.output, sizeof(a.output));
	for (uint64_t i = bytes; i < (bytes + 8191) / 4096 * 4096; i++)
		ck_assert_int_eq(memory[i], 0x5a);
	moek_workspace_destroy(workspace);
	free(memory);
	tear_down(&rig);
}
END_TEST

/* ---- routing ---- */

START_TEST(what_is_not_routed_is_exactly_zero)
{
	struct rig rig = { .threads = 2, .checks = _i };
	struct tokens t, one;

	set_up(&rig);
	fill_tokens(&t, &rig);
	t.ids[0] = -1; /* token 0: one of two */
	t.weights[0] = NAN;
	t.ids[2] = 6; /* token 1: none */
	t.ids[3] = INT32_MIN;
	t.ids[4] = INT32_MAX; /* token 2: none */
	t.ids[5] = -7;
	t.weights[2] = t.weights[3] = t.weights[4] = t.weights[5] = INFINITY;
	for (int i = HIDDEN; i < 3 * HIDDEN; i++)
		t.input[i] = NAN;
	run(&rig, &t);
	for (int i = HIDDEN; i < 3 * HIDDEN; i++)
		ck_assert_uint_eq(moek_f32_bits(t.output[i]), 0);
	fill_tokens(&one, &rig);
	one.weights[0] = 0; /* a weight of 0 adds 0 times a number: the same here */
	run(&rig, &one);
	ck_assert_mem_eq(t.output, one.output, HIDDEN * sizeof(float));
	ck_assert_mem_eq(t.output + 3 * HIDDEN, one.output + 3 * HIDDEN,
	                 2 * HIDDEN * sizeof(float));
	tear_down(&rig);
}
END_TEST

START_TEST(a_map_leaves_out_what_is_not_local)
{
	static const int32_t map[6] = { -1, 2, 0, -1, -1, 1 };
	struct rig whole = { .threads = 2, .checks = 1 };
	struct rig part = { .text = "expert_map=1,experts_local=3",
		            .map = map,
		            .threads = 2,
		            .checks = 1 };
	struct tokens a, b;

	set_up(&whole);
	set_up(&part);
	ck_assert_uint_eq(part.weights.seen, 1 << 1 | 1 << 2 | 1 << 5);
	ck_assert_uint_eq(part.weights.calls, 3);
	fill_tokens(&a, &whole);
	fill_tokens(&b, &part);
	run(&part, &b);
	for (int i = 0; i < TOKENS * TOP_K; i++)
		if (map[a.ids[i]] < 0)
			a.ids[i] = -1;
	run(&whole, &a);
	ck_assert_mem_eq(a.output, b.output, sizeof(a.output));
	tear_down(&part);
	tear_down(&whole);
}
END_TEST

static const struct {
	int32_t map[6];
	const char *says;
} bad_maps[] = {
	{ { -1, 2, 0, -1, -1, 3 },
	  "expert_map: expert 5 maps to 3, must be -1 or 0..2" },
	{ { -1, 2, 0, -2, -1, 1 }, "expert_map: expert 3 maps to -2" },
	{ { -1, 2, 0, 2, -1, 1 }, "local expert 2 is given twice, again for expert 3" },
	{ { -1, 2, 0, -1, -1, -1 }, "2 experts are local, experts_local is 3" },
};

START_TEST(a_bad_map_is_refused)
{
	struct rig rig = { .text = "expert_map=1,experts_local=3", .threads = 1 };

	rig.map = bad_maps[_i].map;
	choose(&rig);
	ck_assert_int_eq(create(&rig), MOEK_BAD_ARGUMENT);
	ck_assert_uint_eq(error.rule, MOEK_RULE_EXPERT_MAP);
	ck_assert_msg(strstr(error.text, bad_maps[_i].says) != NULL, "\"%s\"",
	              error.text);
	ck_assert_uint_eq(rig.weights.calls, 0);
	tear_down(&rig);
}
END_TEST

START_TEST(map_and_problem_must_agree)
{
	static const int32_t map[6] = { 0, 1, 2, 3, 4, 5 };
	struct rig without = { .map = map, .threads = 1 };
	struct rig with = { .text = "expert_map=1,experts_local=3", .threads = 1 };

	choose(&without);
	ck_assert_int_eq(create(&without), MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "layer: an expert_map is given, the problem has none");
	tear_down(&without);
	choose(&with);
	ck_assert_int_eq(create(&with), MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "layer: the problem has an expert_map, none is given");
	tear_down(&with);
}
END_TEST

/* ---- weights ---- */

static const uint32_t far_group[MOST_COLUMNS] = { [7] = 3 };
static const uint8_t high_zeros[MOST_ROWS * 2] = { [5] = 17 };
static const uint16_t some_scales[MOST_ROWS * 2];

static const struct broken {
	const char *text; /* of the problem */
	const char *says;
} broken[] = {
	{ NULL, "expert 3: gate: rows 23, the problem needs 24" },
	{ NULL, "expert 3: up: rows 0, the problem needs 24" },
	{ NULL, "expert 3: down: columns 25, the problem needs 24" },
	{ NULL, "expert 3: up: weight bf16, the problem needs fp32" },
	{ NULL, "expert 3: down: codes are NULL, the problem has them" },
	{ NULL, "expert 3: gate: scale bf16, the problem needs none" },
	{ NULL, "expert 3: gate: biases are given, the problem has none" },
	{ "bias=1", "expert 3: down: biases are NULL, the problem has them" },
	{ NULL, "expert 3: down: codes are not aligned to 4 bytes" },
	{ NULL, "expert 3: gate: struct_size 4, the problem needs 80" },
	{ "gated=0", "expert 3: up: rows 24, the problem needs 0" },
	{ "weight=int4,scale=bf16,group_size=32",
	  "expert 3: gate: group_size 20, the problem needs 32" },
	{ "weight=int4,scale=bf16,group_size=20",
	  "expert 3: gate: scales are NULL, the problem has them" },
	{ "weight=int4,scale=bf16,group_size=20,zero_points=1",
	  "expert 3: gate: zero point 17 in row 2, group 1, at most 16" },
	{ "weight=int4,scale=bf16,group_size=20,column_groups=1",
	  "expert 3: gate: column 7 is in group 3, there are 2 groups" },
	{ "weight=int4,scale=bf16,group_size=20,input_scale=1,activations=fp8_static",
	  "expert 3: gate: input_scale nan, must be above 0" },
};

static void break_expert(int how, struct moek_expert *expert)
{
	struct moek_matrix *gate = &expert->gate;

	if (how >= 11) {
		gate->weight = MOEK_INT4;
		gate->scale = MOEK_BF16;
		gate->scales = some_scales;
		gate->group_size = 20;
	}
	switch (how) {
	case 0:
		gate->rows--;
		break;
	case 1:
		expert->up.rows = 0;
		break;
	case 2:
		expert->down.columns++;
		break;
	case 3:
		expert->up.weight = MOEK_BF16;
		break;
	case 4:
		expert->down.codes = NULL;
		break;
	case 5:
		gate->scale = MOEK_BF16;
		break;
	case 6:
		gate->bias = gate->codes;
		break;
	case 7:
		expert->down.bias = NULL;
		break;
	case 8:
		expert->down.codes = (const char *)expert->down.codes + 1;
		break;
	case 9:
		gate->struct_size = 4;
		break;
	case 10:
		expert->up = *gate;
		break;
	case 11:
		break;
	case 12:
		gate->scales = NULL;
		break;
	case 13:
		gate->zeros = high_zeros;
		break;
	case 14:
		gate->column_group = far_group;
		break;
	case 15:
		gate->input_scale = NAN;
		break;
	}
}

START_TEST(an_expert_at_odds_with_the_problem_is_named)
{
	struct rig rig = { .text = broken[_i].text, .threads = 1 };

	choose(&rig);
	rig.weights.broken = _i + 1;
	if (_i >= 11) {
		/* experts before the third would not fit this problem */
		struct moek_source source = rig.source;
		struct moek_expert expert = { .gate = { .struct_size = 80 } };
		void *scratch = malloc(sizeof(struct expert));

		ck_assert_int_eq(source.expert(source.self, 3, scratch, &expert, NULL),
		                 MOEK_OK);
		ck_assert_int_eq(moek_expert_check(&rig.problem, 3, &expert, &error),
		                 MOEK_BAD_ARGUMENT);
		free(scratch);
	} else {
		ck_assert_int_eq(create(&rig), MOEK_BAD_ARGUMENT);
	}
	ck_assert_msg(strcmp(error.text, broken[_i].says) == 0, "\"%s\", not \"%s\"",
	              error.text, broken[_i].says);
	ck_assert_ptr_null(rig.layer);
	tear_down(&rig);
}
END_TEST

START_TEST(what_the_source_says_is_passed_on)
{
	struct rig rig = { .threads = 2 };

	choose(&rig);
	rig.weights.fails_at = 4;
	ck_assert_int_eq(create(&rig), MOEK_BAD_FILE);
	ck_assert_str_eq(error.text, "x.safetensors: gone");
	rig.weights.silent = 1;
	ck_assert_int_eq(create(&rig), MOEK_BAD_FILE);
	ck_assert_str_eq(error.text,
	                 "layer: the source failed at expert 4 and gave no reason");
	ck_assert_ptr_null(rig.layer);
	/* and nothing of it stays: */
	rig.weights.fails_at = -1;
	ck_assert_int_eq(create(&rig), MOEK_OK);
	tear_down(&rig);
}
END_TEST

struct meter {
	pthread_mutex_t lock;
	void *pieces[8];
	uint32_t count;
	struct moek_source source;
	pthread_t caller;
	uint64_t last, all, calls, wrong;
};

static int32_t metered_expert(void *self, uint64_t number, void *scratch,
                              struct moek_expert *expert_out,
                              struct moek_error *error_out)
{
	struct meter *meter = self;
	uint32_t i = 0;

	pthread_mutex_lock(&meter->lock);
	while (i < meter->count && meter->pieces[i] != scratch)
		i++;
	if (i == meter->count)
		meter->pieces[meter->count++] = scratch;
	pthread_mutex_unlock(&meter->lock);
	return meter->source.expert(meter->source.self, number, scratch, expert_out,
	                            error_out);
}

static void count_progress(void *self, uint64_t done, uint64_t all)
{
	struct meter *meter = self;

	meter->wrong += !pthread_equal(pthread_self(), meter->caller) ||
	                done <= meter->last;
	meter->last = done;
	meter->all = all;
	meter->calls++;
}

START_TEST(loading_holds_one_piece_of_scratch_for_each_thread)
{
	struct rig rig = { .threads = 3 };
	struct meter meter = { .caller = pthread_self() };
	struct moek_layer_options options = { .struct_size = MOEK_INIT(LAYER_OPTIONS) };
	struct moek_source metered;

	choose(&rig);
	pthread_mutex_init(&meter.lock, NULL);
	meter.source = rig.source;
	metered = rig.source;
	metered.self = &meter;
	metered.expert = metered_expert;
	options.progress = count_progress;
	options.progress_self = &meter;
	ck_assert_int_eq(
		moek_layer_create(rig.choice, &metered, &options, &rig.layer, &error),
		MOEK_OK);
	ck_assert_uint_le(meter.count, 3);
	ck_assert_uint_ge(meter.count, 1);
	ck_assert_uint_eq(rig.weights.calls, 6);
	ck_assert_uint_eq(rig.weights.seen, 63);
	ck_assert_uint_eq(meter.wrong, 0);
	ck_assert_uint_eq(meter.last, 6);
	ck_assert_uint_eq(meter.all, 6);
	ck_assert_uint_ge(moek_layer_weight_bytes(rig.layer), 6 * 3 * 40 * 24 * 4);
	ck_assert_ptr_eq(moek_layer_choice(rig.layer), rig.choice);
	pthread_mutex_destroy(&meter.lock);
	tear_down(&rig);
}
END_TEST

START_TEST(an_expert_can_be_loaded_again)
{
	struct rig rig = { .threads = 1, .checks = 1 };
	struct tokens before, after, back;

	set_up(&rig);
	fill_tokens(&before, &rig);
	run(&rig, &before);
	rig.weights.scale = 0.5f;
	ck_assert_int_eq(moek_layer_reload(rig.layer, &rig.source, 4, &error), MOEK_OK);
	fill_tokens(&after, &rig);
	run(&rig, &after);
	/* expert 4 serves token 3 only */
	for (int t = 0; t < TOKENS; t++)
		ck_assert((memcmp(before.output + t * HIDDEN, after.output + t * HIDDEN,
		                  HIDDEN * sizeof(float)) != 0) == (t == 3));
	rig.weights.scale = 1;
	ck_assert_int_eq(moek_layer_reload(rig.layer, &rig.source, 4, &error), MOEK_OK);
	fill_tokens(&back, &rig);
	run(&rig, &back);
	ck_assert_mem_eq(before.output, back.output, sizeof(back.output));

	ck_assert_int_eq(moek_layer_reload(rig.layer, &rig.source, 6, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "layer: expert 6 is none of the model's, it cannot be "
	                 "reloaded");
	rig.weights.fails_at = 2;
	ck_assert_int_eq(moek_layer_reload(rig.layer, &rig.source, 2, &error),
	                 MOEK_BAD_FILE);
	ck_assert_str_eq(error.text, "x.safetensors: gone");
	tear_down(&rig);
}
END_TEST

START_TEST(only_local_experts_can_be_loaded_again)
{
	static const int32_t map[6] = { -1, 2, 0, -1, -1, 1 };
	struct rig rig = { .text = "expert_map=1,experts_local=3",
		           .map = map,
		           .threads = 1 };

	set_up(&rig);
	ck_assert_int_eq(moek_layer_reload(rig.layer, &rig.source, 5, &error), MOEK_OK);
	ck_assert_int_eq(moek_layer_reload(rig.layer, &rig.source, 0, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "layer: expert 0 is not local, it cannot be reloaded");
	tear_down(&rig);
}
END_TEST

START_TEST(sources_and_options_are_checked)
{
	struct rig rig = { .threads = 1 };
	struct moek_layer_options options = { .struct_size = 8 };
	struct moek_source source;

	choose(&rig);
	source = rig.source;
	source.expert = NULL;
	ck_assert_int_eq(
		moek_layer_create(rig.choice, &source, NULL, &rig.layer, &error),
		MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text, "layer: source has no expert()");
	source = rig.source;
	source.struct_size = 8;
	ck_assert_int_eq(moek_layer_create(rig.choice, &source, NULL, &rig.layer, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_layer_create(rig.choice, NULL, NULL, &rig.layer, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_layer_create(NULL, &rig.source, NULL, &rig.layer, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_layer_create(rig.choice, &rig.source, NULL, NULL, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(
		moek_layer_create(rig.choice, &rig.source, &options, &rig.layer, NULL),
		MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(
		moek_layer_create(rig.choice, &rig.source, NULL, &rig.layer, NULL),
		MOEK_OK);
	moek_layer_destroy(NULL);
	tear_down(&rig);
}
END_TEST

/* ---- arguments of a forward ---- */

static const struct {
	const char *says;
	int32_t status;
} bad_calls[] = {
	{ "forward: 17 tokens, max_tokens is 16", MOEK_BAD_ARGUMENT },
	{ "forward: output rows 4, must be 5", MOEK_BAD_ARGUMENT },
	{ "forward: input has 39 columns, hidden is 40", MOEK_BAD_ARGUMENT },
	{ "forward: output has 41 columns, hidden is 40", MOEK_BAD_ARGUMENT },
	{ "forward: input is bf16, the problem says fp32", MOEK_BAD_ARGUMENT },
	{ "forward: output is fp16, the problem says fp32", MOEK_BAD_ARGUMENT },
	{ "forward: input has row_stride 39 for 40 columns", MOEK_BAD_ARGUMENT },
	{ "forward: output has row_stride 48 for 40 columns, and the problem has no "
	  "row_stride",
	  MOEK_BAD_ARGUMENT },
	{ "forward: input is in space 1, the layer is on the host", MOEK_BAD_ARGUMENT },
	{ "forward: output is NULL", MOEK_BAD_ARGUMENT },
	{ "forward: input is not aligned to its elements", MOEK_BAD_ARGUMENT },
	{ "forward: topk_ids is NULL", MOEK_BAD_ARGUMENT },
	{ "forward: topk_weights is NULL", MOEK_BAD_ARGUMENT },
	{ "forward: topk_ids or topk_weights is not aligned to 4 bytes",
	  MOEK_BAD_ARGUMENT },
	{ "forward: a stream goes with rows on a device", MOEK_BAD_ARGUMENT },
	{ "forward: output overlaps input", MOEK_BAD_ARGUMENT },
	{ "forward: output overlaps input", MOEK_BAD_ARGUMENT },
	{ "forward: output overlaps topk_weights", MOEK_BAD_ARGUMENT },
	{ "forward: output overlaps topk_ids", MOEK_BAD_ARGUMENT },
	{ "forward: workspace is NULL", MOEK_BAD_ARGUMENT },
	{ "forward: its struct has a short struct_size", MOEK_BAD_ARGUMENT },
};

static void spoil(int how, struct tokens *t)
{
	struct moek_forward *f = &t->forward;

	switch (how) {
	case 0:
		f->input.rows = f->output.rows = 17;
		break;
	case 1:
		f->output.rows = 4;
		break;
	case 2:
		f->input.columns = 39;
		break;
	case 3:
		f->output.columns = 41;
		break;
	case 4:
		f->input.type = MOEK_BF16;
		break;
	case 5:
		f->output.type = MOEK_F16;
		break;
	case 6:
		f->input.row_stride = 39;
		break;
	case 7:
		f->output.row_stride = 48;
		break;
	case 8:
		f->input.space = 1;
		break;
	case 9:
		f->output.data = NULL;
		break;
	case 10:
		f->input.data = (char *)f->input.data + 2;
		break;
	case 11:
		f->topk_ids = NULL;
		break;
	case 12:
		f->topk_weights = NULL;
		break;
	case 13:
		f->topk_ids = (const int32_t *)((const char *)f->topk_ids + 1);
		break;
	case 14:
		f->stream = t;
		break;
	case 15:
		f->output.data = f->input.data;
		break;
	case 16: /* by its last element only */
		f->output.data = t->input + TOKENS * HIDDEN - 1;
		break;
	case 17:
		f->topk_weights = t->output + 3;
		break;
	case 18:
		f->topk_ids = (const int32_t *)(t->output + TOKENS * HIDDEN - 1);
		break;
	case 19:
		f->workspace = NULL;
		break;
	case 20:
		f->struct_size = 8;
		break;
	}
}

START_TEST(a_bad_call_is_refused_and_changes_nothing)
{
	struct rig rig = { .threads = 1 };
	struct tokens t, before;

	set_up(&rig);
	fill_tokens(&t, &rig);
	spoil(_i, &t);
	before = t;
	ck_assert_int_eq(moek_layer_forward(rig.layer, &t.forward, &error),
	                 bad_calls[_i].status);
	ck_assert_str_eq(error.text, bad_calls[_i].says);
	ck_assert_mem_eq(t.output, before.output, sizeof(t.output));
	ck_assert_int_eq(moek_layer_forward(NULL, &t.forward, NULL), MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_layer_forward(rig.layer, NULL, NULL), MOEK_BAD_ARGUMENT);
	tear_down(&rig);
}
END_TEST

START_TEST(no_token_touches_nothing)
{
	struct rig rig = { .threads = 1, .checks = 1 };
	struct moek_forward forward = { .struct_size = MOEK_FORWARD_SIZE_1_0 };

	set_up(&rig);
	ck_assert_int_eq(moek_layer_forward(rig.layer, &forward, &error), MOEK_OK);
	tear_down(&rig);
}
END_TEST

START_TEST(every_count_of_tokens_works)
{
	struct rig rig = { .text = "max_tokens=5", .threads = 2, .checks = 1 };
	struct tokens all, some;

	set_up(&rig);
	fill_tokens(&all, &rig);
	run(&rig, &all);
	for (uint64_t tokens = 1; tokens <= TOKENS; tokens++) {
		fill_tokens(&some, &rig);
		some.forward.input.rows = some.forward.output.rows = tokens;
		run(&rig, &some);
		ck_assert_mem_eq(some.output, all.output,
		                 tokens * HIDDEN * sizeof(float));
		for (uint64_t i = tokens * HIDDEN; i < TOKENS * HIDDEN; i++)
			ck_assert(some.output[i] == 77);
	}
	tear_down(&rig);
}
END_TEST

START_TEST(rows_may_stand_apart_if_the_problem_says_so)
{
	struct rig rig = { .text = "row_stride=1", .threads = 2, .checks = _i };
	float input[TOKENS * 48], output[TOKENS * 56];
	struct tokens t, apart;

	set_up(&rig);
	fill_tokens(&t, &rig);
	run(&rig, &t);
	fill_tokens(&apart, &rig);
	for (int i = 0; i < TOKENS * 48; i++)
		input[i] = NAN;
	for (int i = 0; i < TOKENS * 56; i++)
		output[i] = 77;
	for (int r = 0; r < TOKENS; r++)
		memcpy(input + r * 48, t.input + r * HIDDEN, HIDDEN * sizeof(float));
	apart.forward.input.data = input;
	apart.forward.input.row_stride = 48;
	apart.forward.output.data = output;
	apart.forward.output.row_stride = 56;
	run(&rig, &apart);
	for (int r = 0; r < TOKENS; r++) {
		ck_assert_mem_eq(output + r * 56, t.output + r * HIDDEN,
		                 HIDDEN * sizeof(float));
		for (int c = HIDDEN; c < 56; c++)
			ck_assert(output[r * 56 + c] == 77);
	}
	tear_down(&rig);
}
END_TEST

START_TEST(a_busy_layer_or_workspace_is_said_to_be_busy)
{
	struct rig rig = { .workers = &serial_workers }, other;
	struct tokens t, nested;

	set_up(&rig);
	other = rig;
	ck_assert_int_eq(create(&other), MOEK_OK);
	for (int same = 0; same < 2; same++) {
		fill_tokens(&t, &rig);
		fill_tokens(&nested, &rig);
		serial.layer = same ? rig.layer : other.layer;
		serial.forward = &nested.forward;
		serial.status = MOEK_OK;
		run(&rig, &t);
		ck_assert_int_eq(serial.status, MOEK_BUSY);
		ck_assert_str_eq(
			error.text,
			same ? "forward: the layer is in use by another call"
			     : "forward: the workspace is in use by another forward");
		serial.forward = NULL;
		run(&rig, &nested);
		ck_assert_mem_eq(t.output, nested.output, sizeof(t.output));
	}
	moek_layer_destroy(other.layer);
	tear_down(&rig);
}
END_TEST

START_TEST(workspaces_need_layers)
{
	struct rig rig = { .threads = 1 };
	struct moek_layer *none[2] = { NULL, NULL };
	struct moek_workspace *workspace = NULL;

	set_up(&rig);
	ck_assert_int_eq(moek_workspace_create(NULL, 1, NULL, 0, &workspace, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_workspace_create(none, 0, NULL, 0, &workspace, NULL),
	                 MOEK_BAD_ARGUMENT);
	none[0] = rig.layer;
	ck_assert_int_eq(moek_workspace_create(none, 2, NULL, 0, &workspace, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text, "workspace: layer 1 is NULL");
	ck_assert_ptr_null(workspace);
	tear_down(&rig);
}
END_TEST

START_TEST(more_weights_than_32_bits_are_planned)
{
	struct rig rig = { .text = "experts=512,hidden=8192,intermediate=4096,top_k=10,"
		                   "weight=int4,scale=bf16,group_size=32",
		           .threads = 2 };
	const struct moek_backend *backend;
	uint64_t align = 0, bytes, codes = UINT64_C(512) * 3 * 8192 * 4096;

	choose(&rig);
	backend = moek_choice_backend(rig.choice);
	bytes = backend->experts->prepared_size(backend->plugin_handle,
	                                        &backend->problem, &align);
	/* between codes with their scales, and a wasteful layout */
	ck_assert_uint_ge(bytes, codes / 2 + codes / 32 * 2);
	ck_assert_uint_le(bytes, codes * 4);
	tear_down(&rig);
}
END_TEST

START_TEST(more_tokens_than_32_bits_are_planned)
{
	struct rig rig = { .text = "max_tokens=1073741824,top_k=1,weight_on_input=1",
		           .threads = 1 };
	uint64_t bytes;

	/* nothing of it is allocated before a workspace is made */
	choose(&rig);
	ck_assert_int_eq(create(&rig), MOEK_OK);
	bytes = moek_layer_workspace_bytes(rig.layer);
	ck_assert_uint_ge(bytes, (UINT64_C(1) << 30) * (4 + 40 * 4));
	ck_assert_uint_le(bytes, (UINT64_C(1) << 30) * 512);
	tear_down(&rig);
}
END_TEST

/* ---- backends that misbehave ---- */

static const struct {
	const char *request, *says;
	int32_t status;
	const char *by; /* the check that finds it; NULL: it is seen without any */
	const char *fault;
} misbehaviours[] = {
	{ "require writes_past_workspace.after",
	  "writes_past_workspace.after: forward wrote outside its workspace buffer "
	  "\"rows\" of "
	  "5120 bytes: 0 bytes after its end",
	  MOEK_PLUGIN, "guards", NULL },
	{ "require writes_past_workspace.before",
	  "writes_past_workspace.before: forward wrote outside its workspace buffer "
	  "\"rows\" of "
	  "5120 bytes: 4 bytes before its start",
	  MOEK_PLUGIN, "guards", NULL },
	{ "require forward_fails.device",
	  "forward_fails.device: forward failed: device", MOEK_DEVICE, NULL, NULL },
	{ "require forward_fails.odd",
	  "forward_fails.odd: forward failed: ?, it may fail for memory or device only",
	  MOEK_PLUGIN, NULL, NULL },
	{ "require claims_reduced_falsely",
	  "claims_reduced_falsely.any: forward did not write output row 0, column 0, "
	  "or made it "
	  "from workspace that nobody wrote",
	  MOEK_PLUGIN, "poison", NULL },
	{ "require reads_unzeroed",
	  "reads_unzeroed.any: forward did not write output row 0, column 0, or made "
	  "it from "
	  "workspace that nobody wrote",
	  MOEK_PLUGIN, "poison", NULL },
	{ "require ignores_ids",
	  "ignores_ids.any: output row 1, column 0 is not 0, its token has no routed "
	  "expert",
	  MOEK_PLUGIN, "poison", NULL },
	{ "require writes_input.input",
	  "writes_input.input: forward changed its input, topk_ids, topk_weights or "
	  "the space "
	  "between output rows",
	  MOEK_PLUGIN, "inputs", NULL },
	{ "require writes_input.weights",
	  "writes_input.weights: forward changed its input", MOEK_PLUGIN, "inputs",
	  NULL },
	{ "require writes_input.gap", "writes_input.gap: forward changed its input",
	  MOEK_PLUGIN, "inputs", NULL },
	{ "require leaves_slots.forgets",
	  "leaves_slots.forgets: forward did not write slot row 9, column 0",
	  MOEK_PLUGIN, "poison", NULL },
	{ "require damaged",
	  "damaged.any: forward left its thread rounding in another direction",
	  MOEK_PLUGIN, "fp_state", "rounds" },
#ifdef __SSE__
	{ "require damaged",
	  "damaged.any: forward left its thread flushing small numbers to 0",
	  MOEK_PLUGIN, "fp_state", "flushes" },
#endif
};

/** All checks but @by, as a setting. */
static const char *other_checks(const char *by)
{
	static const char *const names[] = { "fp_state", "guards", "poison", "inputs" };
	static char text[64];

	text[0] = '\0';
	for (int i = 0; i < COUNT(names); i++) {
		if (strcmp(names[i], by) == 0)
			continue;
		strcat(text, text[0] != '\0' ? "," : "");
		strcat(text, names[i]);
	}
	return text;
}

START_TEST(what_a_backend_does_wrong_is_caught_by_name)
{
	const char *by = misbehaviours[_i].by;
	/* all checks, the one alone, none, all but the one */
	const char *const watched[] = { "on", by != NULL ? by : "off", "off",
		                        by != NULL ? other_checks(by) : "off" };
	int unusual = misbehaviours[_i].fault != NULL;
	float output[TOKENS * 48];
	struct tokens t;

	for (int way = 0; way < 4; way++) {
		struct rig rig = { .plugins = "MOEK_TEST_FAKES",
			           .request = misbehaviours[_i].request,
			           .text = unusual ? NULL : "row_stride=1",
			           .threads = 1,
			           .watch = watched[way],
			           .fault = misbehaviours[_i].fault };
		int seen = way < 2 || by == NULL;
		int rounding = fegetround();

		set_up(&rig);
		fill_tokens(&t, &rig);
		t.ids[2] = -1;
		t.ids[3] = 99;
		memset(output, 0, sizeof(output));
		for (int i = 0; i < TOKENS; i++)
			output[i * 48 + HIDDEN] = 5;
		if (!unusual) {
			t.forward.output.data = output;
			t.forward.output.row_stride = 48;
		}
		/* the layer and the workspace are free again */
		for (int again = 0; again < 2; again++) {
			ck_assert_int_eq(
				moek_layer_forward(rig.layer, &t.forward, &error),
				seen ? misbehaviours[_i].status : MOEK_OK);
			ck_assert_msg(
				!seen || strncmp(error.text, misbehaviours[_i].says,
			                         strlen(misbehaviours[_i].says)) == 0,
				"\"%s\"", error.text);
			ck_assert(!seen || fegetround() == rounding);
			error.text[0] = '\0';
			if (!seen)
				fesetenv(FE_DFL_ENV);
		}
		tear_down(&rig);
	}
}
END_TEST

START_TEST(slots_are_summed_by_the_core)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = "require leaves_slots.good",
		           .text = _i >= 2 ? "output_type=bf16" : NULL,
		           .threads = 2,
		           .checks = _i % 2 };
	struct tokens t;
	uint16_t half[TOKENS * HIDDEN];

	set_up(&rig);
	fill_tokens(&t, &rig);
	t.ids[2] = -1;
	t.ids[3] = 99;
	t.ids[4] = -1;
	if (_i >= 2) {
		t.forward.output.data = half;
		t.forward.output.type = MOEK_BF16;
	}
	run(&rig, &t);
	for (int i = 0; i < TOKENS * HIDDEN; i++) {
		float sum = 0;

		for (int j = i / HIDDEN * TOP_K; j < (i / HIDDEN + 1) * TOP_K; j++)
			if (t.ids[j] >= 0 && t.ids[j] < 6) {
				float slot = t.input[i] * (float)(1 + t.ids[j]);
				float product = t.weights[j] * slot;

				sum += product;
			}
		if (_i >= 2)
			ck_assert_uint_eq(half[i], moek_bf16_from_f32(sum));
		else
			ck_assert(t.output[i] == sum);
	}
	tear_down(&rig);
}
END_TEST

START_TEST(a_weight_on_the_input_is_not_on_the_slots)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = "require leaves_slots.good",
		           .text = "top_k=1,weight_on_input=1",
		           .threads = 1,
		           .checks = 1 };
	struct tokens t;

	set_up(&rig);
	fill_tokens(&t, &rig);
	run(&rig, &t);
	for (int i = 0; i < TOKENS * HIDDEN; i++) {
		float scaled = t.input[i] * t.weights[i / HIDDEN];

		ck_assert(t.output[i] == scaled * (float)(1 + t.ids[i / HIDDEN]));
	}
	tear_down(&rig);
}
END_TEST

START_TEST(who_sums_may_depend_on_the_tokens)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = "require leaves_slots.by_tokens",
		           .threads = 1,
		           .checks = 1 };
	struct tokens t;

	set_up(&rig);
	fill_tokens(&t, &rig);
	run(&rig, &t);
	ck_assert(t.output[0] != 0);
	t.forward.input.rows = t.forward.output.rows = 1;
	run(&rig, &t);
	ck_assert(t.output[0] == 0); /* its zeros, not a sum */
	tear_down(&rig);
}
END_TEST

static const struct {
	const char *request, *says;
	int32_t status;
} bad_plans[] = {
	{ "require plans_badly.align",
	  "plans_badly.align: workspace buffer \"rows\": align must be a power of two "
	  "up to "
	  "2097152, found 3",
	  MOEK_PLUGIN },
	{ "require plans_badly.many",
	  "plans_badly.many: has 33 workspace buffers, at most 32 can be had",
	  MOEK_PLUGIN },
	{ "require plans_badly.large",
	  "plans_badly.large: its workspace does not fit 64 bits", MOEK_NO_MEMORY },
	{ "require plans_badly.neither",
	  "plans_badly.neither: finalize answers 7 for 4 tokens, must be 1 or 2",
	  MOEK_PLUGIN },
	{ "require plans_badly.nothing",
	  "plans_badly.nothing: its prepared weights do not fit 64 bits",
	  MOEK_NO_MEMORY },
	{ "require plans_badly.oddly",
	  "plans_badly.oddly: prepared weights aligned to 48, must be a power of two",
	  MOEK_PLUGIN },
	{ "require plans_badly.vast",
	  "plans_badly.vast: out of memory for 1152921504606846976 bytes of prepared "
	  "weights",
	  MOEK_NO_MEMORY },
	{ "require loads_badly.refuses",
	  "loads_badly.refuses: create failed: refused, it may fail for memory or "
	  "device only",
	  MOEK_PLUGIN },
	{ "require loads_badly.memory",
	  "loads_badly.memory: load_expert failed: no_memory", MOEK_NO_MEMORY },
	{ "require loads_badly.odd",
	  "loads_badly.odd: load_expert failed: bad_file, it may fail for memory or "
	  "device only",
	  MOEK_PLUGIN },
	{ "require loads_badly.finish", "loads_badly.finish: finish failed: device",
	  MOEK_DEVICE },
	{ "require fake_card.no_reduce",
	  "fake_card.no_reduce: leaves slots on a device and has no reduce",
	  MOEK_PLUGIN },
};

START_TEST(a_backend_that_cannot_be_made_is_named)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = bad_plans[_i].request,
		           .threads = 2 };

	choose(&rig);
	ck_assert_int_eq(create(&rig), bad_plans[_i].status);
	ck_assert_str_eq(error.text, bad_plans[_i].says);
	ck_assert_ptr_null(rig.layer);
	tear_down(&rig);
}
END_TEST

START_TEST(the_next_one_runs_where_memory_or_device_failed)
{
	static const char *const first[] = { "loads_badly.memory", "loads_badly.finish",
		                             "plans_badly.vast", "plans_badly.large" };
	struct rig rig = { .plugins = "MOEK_TEST_FAKES", .threads = 1, .checks = 1 };
	char request[80];
	struct tokens t;
	char *report;

	snprintf(request, sizeof(request), "prefer %s,leaves_slots.good", first[_i]);
	rig.request = request;
	choose(&rig);
	ck_assert_str_eq(moek_choice_winner(rig.choice), first[_i]);
	ck_assert_msg(create(&rig) == MOEK_OK, "%s", error.text);
	ck_assert_str_eq(moek_choice_winner(moek_layer_choice(rig.layer)),
	                 "leaves_slots.good");
	/* the choice that was given is what it was */
	ck_assert_str_eq(moek_choice_winner(rig.choice), first[_i]);
	report = moek_choice_report(moek_layer_choice(rig.layer), MOEK_TEXT);
	ck_assert_ptr_nonnull(strstr(report, "failed"));
	moek_free(report);
	moek_choice_destroy(rig.choice);
	rig.choice = NULL;
	ck_assert_int_eq(
		moek_workspace_create(&rig.layer, 1, NULL, 0, &rig.workspace, NULL),
		MOEK_OK);
	fill_tokens(&t, &rig);
	run(&rig, &t);
	ck_assert(t.output[0] != 77);
	tear_down(&rig);
}
END_TEST

START_TEST(a_plugin_at_fault_is_not_passed_over)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = "prefer loads_badly.odd,leaves_slots.good",
		           .threads = 1 };

	choose(&rig);
	ck_assert_int_eq(create(&rig), MOEK_PLUGIN);
	tear_down(&rig);
}
END_TEST

START_TEST(a_failing_source_is_not_the_backends_fault)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = "prefer loads_badly.finish,leaves_slots.good",
		           .threads = 1 };

	choose(&rig);
	rig.weights.fails_at = 0;
	ck_assert_int_eq(create(&rig), MOEK_BAD_FILE);
	ck_assert_uint_eq(rig.weights.calls, 1);
	tear_down(&rig);
}
END_TEST

/* ---- layers on a device ---- */

static void expected_on_card(const struct tokens *t, const int32_t *map, float *output)
{
	for (int i = 0; i < TOKENS * HIDDEN; i++) {
		output[i] = 0;
		for (int j = i / HIDDEN * TOP_K; j < (i / HIDDEN + 1) * TOP_K; j++) {
			int32_t local = t->ids[j] < 0 || t->ids[j] >= 6 ? -1
			                : map != NULL                   ? map[t->ids[j]]
			                                                : t->ids[j];

			if (local >= 0)
				output[i] += t->weights[j] * (float)(1 + local) *
				             t->input[i];
		}
	}
}

static void assert_close(const float *got, const float *expected, int count)
{
	for (int i = 0; i < count; i++)
		ck_assert_msg(fabsf(got[i] - expected[i]) <= 4e-6f,
		              "%d: got %.9g, expected %.9g", i, (double)got[i],
		              (double)expected[i]);
}

START_TEST(host_rows_are_staged_to_the_device)
{
	static const int32_t map[6] = { -1, 2, 0, -1, 3, 1 };
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = _i < 4 ? "require fake_card.reduced"
		                             : "require fake_card.slots",
		           .text = "row_stride=1,expert_map=1,experts_local=4",
		           .map = map,
		           .threads = 2,
		           .checks = _i % 2 };
	float expected[TOKENS * HIDDEN], output[TOKENS * 48];
	struct tokens t;
	int strided = _i / 2 % 2;

	set_up(&rig);
	ck_assert_uint_eq(moek_layer_weight_bytes(rig.layer), 16);
	fill_tokens(&t, &rig);
	t.ids[2] = -1;
	t.ids[3] = 99;
	t.ids[0] = -7;
	for (int i = 0; i < TOKENS * 48; i++)
		output[i] = 77;
	if (strided) {
		t.forward.output.data = output;
		t.forward.output.row_stride = 48;
	}
	expected_on_card(&t, map, expected);
	for (int again = 0; again < 2; again++) {
		run(&rig, &t);
		for (int r = 0; r < TOKENS; r++)
			assert_close(strided ? output + r * 48 : t.output + r * HIDDEN,
			             expected + r * HIDDEN, HIDDEN);
		ck_assert(!strided || output[40] == 77);
	}
	tear_down(&rig);
}
END_TEST

/** Device memory for the tests, with what @host holds. */
static void *on_card(struct rig *rig, const void *host, uint64_t bytes)
{
	const struct moek_space *space = &rig->layer->space;
	void *there = moek_space_alloc(space, bytes, 256);

	ck_assert_ptr_nonnull(there);
	ck_assert_int_eq(moek_space_copy(space, there, host, bytes, MOEK_TO_DEVICE,
	                                 NULL, &error),
	                 MOEK_OK);
	return there;
}

START_TEST(rows_on_the_device_stay_there)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = _i < 2 ? "require fake_card.reduced"
		                             : "require fake_card.slots",
		           .threads = 1,
		           .checks = _i % 2 };
	float expected[TOKENS * HIDDEN];
	const struct moek_space *space;
	struct tokens t;
	int stream;

	set_up(&rig);
	space = &rig.layer->space;
	fill_tokens(&t, &rig);
	t.ids[4] = 99;
	expected_on_card(&t, NULL, expected);
	t.forward.input.data = on_card(&rig, t.input, sizeof(t.input));
	t.forward.output.data = on_card(&rig, t.output, sizeof(t.output));
	t.forward.topk_ids = on_card(&rig, t.ids, sizeof(t.ids));
	t.forward.topk_weights = on_card(&rig, t.weights, sizeof(t.weights));
	t.forward.input.space = t.forward.output.space = 1;
	t.forward.stream = &stream;
	run(&rig, &t);
	ck_assert_int_eq(moek_space_copy(space, t.output, t.forward.output.data,
	                                 sizeof(t.output), MOEK_TO_HOST, NULL, &error),
	                 MOEK_OK);
	assert_close(t.output, expected, TOKENS * HIDDEN);
	t.forward.output.space = 0;
	ck_assert_int_eq(moek_layer_forward(rig.layer, &t.forward, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text, "forward: space of the output 0, must be 1");
	moek_space_free(space, t.forward.input.data);
	moek_space_free(space, t.forward.output.data);
	moek_space_free(space, (void *)(uintptr_t)t.forward.topk_ids);
	moek_space_free(space, (void *)(uintptr_t)t.forward.topk_weights);
	tear_down(&rig);
}
END_TEST

START_TEST(guards_work_on_a_device)
{
	struct rig rig = { .plugins = "MOEK_TEST_FAKES",
		           .request = "require fake_card.past",
		           .threads = 1,
		           .checks = 1 };
	struct tokens t;

	set_up(&rig);
	fill_tokens(&t, &rig);
	ck_assert_int_eq(moek_layer_forward(rig.layer, &t.forward, &error),
	                 MOEK_PLUGIN);
	ck_assert_str_eq(error.text, "fake_card.past: forward wrote outside its "
	                             "workspace buffer \"zeros\" of "
	                             "1200000 bytes: 0 bytes after its end");
	tear_down(&rig);
}
END_TEST

START_TEST(a_workspace_belongs_to_its_device)
{
	struct rig card = { .plugins = "MOEK_TEST_FAKES",
		            .request = "require fake_card.reduced",
		            .threads = 1 };
	struct rig host = { .threads = 1 };
	struct moek_layer *both[2];
	struct moek_workspace *workspace = NULL;
	struct tokens t;

	set_up(&card);
	set_up(&host);
	both[0] = card.layer;
	both[1] = host.layer;
	ck_assert_int_eq(moek_workspace_create(both, 2, NULL, 0, &workspace, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "workspace: layer 1 (emulation.any) is on another device "
	                 "than layer 0 (fake_card.reduced)");
	fill_tokens(&t, &host);
	ck_assert_int_eq(moek_layer_forward(card.layer, &t.forward, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "forward: the workspace is on another device than the layer");
	t.forward.workspace = card.workspace;
	ck_assert_int_eq(moek_layer_forward(host.layer, &t.forward, &error),
	                 MOEK_BAD_ARGUMENT);
	/* the workspace keeps what it needs of a choice whose layer is gone */
	moek_layer_destroy(card.layer);
	card.layer = NULL;
	tear_down(&host);
	tear_down(&card);
}
END_TEST

START_TEST(a_machine_in_a_file_runs_nothing)
{
	char path[] = "/tmp/moek-facts-XXXXXX";
	static const char facts[] =
		"{\"host\": {\"arch\": \"x86_64\"}, \"devices\": []}";
	struct rig rig = { .facts = path, .threads = 1 };
	int file = mkstemp(path);

	ck_assert_int_ge(file, 0);
	ck_assert_int_eq(write(file, facts, sizeof(facts) - 1), sizeof(facts) - 1);
	close(file);
	choose(&rig);
	ck_assert_int_eq(create(&rig), MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "layer: the registry answers for a machine described in a "
	                 "file; open one without facts_file to run here");
	unlink(path);
	tear_down(&rig);
}
END_TEST

/* ---- stacked tensors ---- */

#define EXPERTS 6
#define INTERMEDIATE 24

struct stacks {
	float gate_up[EXPERTS][2 * INTERMEDIATE][HIDDEN];
	float down[EXPERTS][HIDDEN][INTERMEDIATE];
	float gate_up_bias[EXPERTS][2 * INTERMEDIATE];
	float down_bias[EXPERTS][HIDDEN];
};

/** Row of the tensor where gate (@up 0) or up row @r stands. */
static int stacked_row(uint32_t order, int up, int r)
{
	if (order == MOEK_GATE_INTERLEAVED)
		return 2 * r + up;
	return (order == MOEK_GATE_FIRST ? up : 1 - up) * INTERMEDIATE + r;
}

static void fill_stacks(const struct weights *w, uint32_t order, struct stacks *s)
{
	for (uint64_t e = 0; e < EXPERTS; e++) {
		for (int r = 0; r < 2 * INTERMEDIATE; r++) {
			uint64_t which = (uint64_t)(r / INTERMEDIATE),
				 row = (uint64_t)r % INTERMEDIATE;
			int at = stacked_row(order, r / INTERMEDIATE, r % INTERMEDIATE);

			for (uint64_t c = 0; c < HIDDEN; c++)
				s->gate_up[e][at][c] = number(w, e, which, row, c);
			s->gate_up_bias[e][at] = number(w, e, which + 3, row, 0);
		}
		for (uint64_t r = 0; r < HIDDEN; r++) {
			for (uint64_t c = 0; c < INTERMEDIATE; c++)
				s->down[e][r][c] = number(w, e, 2, r, c);
			s->down_bias[e][r] = number(w, e, 5, r, 0);
		}
	}
}

START_TEST(stacked_tensors_make_the_same_layer)
{
	static const uint32_t orders[] = { MOEK_GATE_FIRST, MOEK_UP_FIRST,
		                           MOEK_GATE_INTERLEAVED };
	struct rig one_by_one = { .text = "bias=1", .threads = 2 };
	struct rig stacked = { .text = "bias=1", .threads = 2 };
	static struct stacks stacks;
	struct moek_stack gate_up = { .struct_size = MOEK_INIT(STACK),
		                      .layout = MOEK_LAYOUT_ROWS,
		                      .codes = stacks.gate_up,
		                      .codes_bytes = sizeof(stacks.gate_up),
		                      .bias = stacks.gate_up_bias,
		                      .bias_bytes = sizeof(stacks.gate_up_bias),
		                      .bias_type = MOEK_F32,
		                      .gate_order = orders[_i] };
	struct moek_stack down = { .struct_size = MOEK_INIT(STACK),
		                   .layout = MOEK_LAYOUT_ROWS,
		                   .codes = stacks.down,
		                   .codes_bytes = sizeof(stacks.down),
		                   .bias = stacks.down_bias,
		                   .bias_bytes = sizeof(stacks.down_bias),
		                   .bias_type = MOEK_F32 };
	struct tokens a, b;

	set_up(&one_by_one);
	fill_tokens(&a, &one_by_one);
	run(&one_by_one, &a);
	choose(&stacked);
	fill_stacks(&stacked.weights, orders[_i], &stacks);
	ck_assert_msg(moek_tensors_source(&stacked.problem, &gate_up, &down,
	                                  &stacked.source, &error) == MOEK_OK,
	              "%s", error.text);
	ck_assert_msg(create(&stacked) == MOEK_OK, "%s", error.text);
	moek_source_close(&stacked.source);
	memset(&stacks, 0xff, sizeof(stacks)); /* nothing is read after the load */
	ck_assert_int_eq(moek_workspace_create(&stacked.layer, 1, NULL, 0,
	                                       &stacked.workspace, NULL),
	                 MOEK_OK);
	fill_tokens(&b, &stacked);
	run(&stacked, &b);
	ck_assert_mem_eq(a.output, b.output, sizeof(a.output));
	tear_down(&stacked);
	tear_down(&one_by_one);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("layer");
	TCase *tests = tcase_create("layer");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_loop_test(tests, two_experts_are_weighed_and_summed, 0, 2);
	tcase_add_loop_test(tests, the_router_weight_is_applied_once, 0, 2);
	tcase_add_test(tests, a_weight_on_the_input_is_rounded_once);
	tcase_add_test(tests, checks_and_workers_do_not_change_a_bit);
	tcase_add_loop_test(tests, two_layers_on_two_threads_are_independent, 0, 2);
	tcase_add_test(tests, one_workspace_serves_many_layers);
	tcase_add_loop_test(tests, the_hosts_memory_may_be_the_workspace, 0, 2);
	tcase_add_loop_test(tests, what_is_not_routed_is_exactly_zero, 0, 2);
	tcase_add_test(tests, a_map_leaves_out_what_is_not_local);
	tcase_add_loop_test(tests, a_bad_map_is_refused, 0, COUNT(bad_maps));
	tcase_add_test(tests, map_and_problem_must_agree);
	tcase_add_loop_test(tests, an_expert_at_odds_with_the_problem_is_named, 0,
	                    COUNT(broken));
	tcase_add_test(tests, what_the_source_says_is_passed_on);
	tcase_add_test(tests, loading_holds_one_piece_of_scratch_for_each_thread);
	tcase_add_test(tests, an_expert_can_be_loaded_again);
	tcase_add_test(tests, only_local_experts_can_be_loaded_again);
	tcase_add_test(tests, sources_and_options_are_checked);
	tcase_add_loop_test(tests, a_bad_call_is_refused_and_changes_nothing, 0,
	                    COUNT(bad_calls));
	tcase_add_test(tests, no_token_touches_nothing);
	tcase_add_test(tests, every_count_of_tokens_works);
	tcase_add_loop_test(tests, rows_may_stand_apart_if_the_problem_says_so, 0, 2);
	tcase_add_test(tests, a_busy_layer_or_workspace_is_said_to_be_busy);
	tcase_add_test(tests, workspaces_need_layers);
	tcase_add_test(tests, more_weights_than_32_bits_are_planned);
	tcase_add_test(tests, more_tokens_than_32_bits_are_planned);
	tcase_add_loop_test(tests, what_a_backend_does_wrong_is_caught_by_name, 0,
	                    COUNT(misbehaviours));
	tcase_add_loop_test(tests, slots_are_summed_by_the_core, 0, 4);
	tcase_add_test(tests, a_weight_on_the_input_is_not_on_the_slots);
	tcase_add_test(tests, who_sums_may_depend_on_the_tokens);
	tcase_add_loop_test(tests, a_backend_that_cannot_be_made_is_named, 0,
	                    COUNT(bad_plans));
	tcase_add_loop_test(tests, the_next_one_runs_where_memory_or_device_failed, 0,
	                    4);
	tcase_add_test(tests, a_plugin_at_fault_is_not_passed_over);
	tcase_add_test(tests, a_failing_source_is_not_the_backends_fault);
	tcase_add_loop_test(tests, host_rows_are_staged_to_the_device, 0, 8);
	tcase_add_loop_test(tests, rows_on_the_device_stay_there, 0, 4);
	tcase_add_test(tests, guards_work_on_a_device);
	tcase_add_test(tests, a_workspace_belongs_to_its_device);
	tcase_add_test(tests, a_machine_in_a_file_runs_nothing);
	tcase_add_loop_test(tests, stacked_tensors_make_the_same_layer, 0, 3);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
