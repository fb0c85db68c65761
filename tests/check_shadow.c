/* SPDX-License-Identifier: MIT */
/* Some forwards also on emulation: a good backend is not accused, one that lies is. */
#include "config.h"

#include "core/shadow.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/agree.h"
#include "tools/kernelcheck/run.h"

static struct moek_error error;

/* ---- a registry of one plugin, with or without emulation ---- */

struct rig {
	const char *plugin, *fault, *every;
	int alone; /* no emulation */
	struct moek_registry *registry;
	char log[4096];
};

static void keep_log(void *self, uint32_t level, const char *text)
{
	struct rig *rig = self;
	size_t used = strlen(rig->log);

	if (level <= 4)
		snprintf(rig->log + used, sizeof(rig->log) - used, "%u %s\n", level,
		         text);
}

static void rig_open(struct rig *rig)
{
	const char *dirs[] = { getenv("MOEK_TEST_FAKES"), getenv("MOEK_TEST_PLUGINS"),
		               NULL };
	const struct moek_setting settings[] = {
		{ "registry", "shadow", rig->every },
		{ "registry", "unlisted", "ignore" },
		{ "registry", "probe", "never" },
		{ "registry", "on_degraded", "allow" },
		{ "registry", "golden", "off" },
		{ "priority", rig->plugin, "on" },
		{ "plugin damaged", "fault", rig->fault != NULL ? rig->fault : "none" },
		{ "plugin emulation", "enabled", "off" },
	};
	const struct moek_registry_options options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.threads = 2,
		.config_file = "",
		.settings = settings,
		.setting_count = rig->alone ? 8 : 7,
		.plugin_dirs = dirs,
		.log = keep_log,
		.log_self = rig,
		.ignore_environment = 1,
	};

	ck_assert_msg(moek_registry_open(&options, &rig->registry, &error) == MOEK_OK,
	              "%s", error.text);
}

static void rig_close(struct rig *rig)
{
	moek_registry_close(rig->registry);
}

/** A layer of @c on @backend, and a forward of it. 0: it does not run this case. */
static int run_case(struct moek_registry *registry, const struct kernel_case *c,
                    const char *backend, struct moek_shadow *shadow_out)
{
	struct material material;
	struct runner runner;
	struct rows rows;
	char request[128];
	int32_t status;

	ck_assert(material_make(c, 7, &material));
	snprintf(request, sizeof(request), "require %s", backend);
	status = runner_open(registry, &material.problem, &material.source,
	                     material.map, request, &runner, &error);
	ck_assert_msg(status == MOEK_OK || status == MOEK_REFUSED, "%s: %s", c->name,
	              error.text);
	if (status == MOEK_OK) {
		ck_assert(rows_make(material.tokens.count, material.problem.hidden,
		                    material.tokens.stride,
		                    material.problem.output_type, &rows));
		status = runner_forward(&runner, &material.tokens, &rows, NULL, &error);
		ck_assert_msg(status == MOEK_OK, "%s: %s", c->name, error.text);
		*shadow_out = (struct moek_shadow){ .struct_size = MOEK_INIT(SHADOW) };
		ck_assert_int_eq(moek_layer_shadow(runner.layer, shadow_out), MOEK_OK);
		ck_assert_str_eq(shadow_out->reference, "emulation.any");
		rows_free(&rows);
		runner_close(&runner);
	}
	material_free(&material);
	return status == MOEK_OK;
}

static void find_case(const char *name, struct kernel_case *c)
{
	for (uint64_t i = 0; i < case_count(); i++) {
		case_at(i, c);
		if (strcmp(c->name, name) == 0)
			return;
	}
	ck_abort_msg("no case %s", name);
}

/* ---- who is accused ---- */

static const char *const honest[] = { "damaged.any", "cpu.plain", "cpu.avx2",
	                              "cpu.avx512vnni", "cpu.avx512bf16" };

START_TEST(a_good_backend_is_not_accused)
{
	struct rig rig = { .plugin = _i == 0 ? "damaged" : "cpu", .every = "1" };
	struct moek_shadow shadow;
	uint64_t compared = 0;
	double worst = 0;

	rig_open(&rig);
	for (uint64_t i = 0; i < case_count(); i++) {
		struct kernel_case c;

		case_at(i, &c);
		if (!run_case(rig.registry, &c, honest[_i], &shadow))
			continue;
		ck_assert_uint_eq(shadow.compared, c.tokens != 0);
		ck_assert_uint_eq(shadow.skipped, 0);
		ck_assert_uint_eq(shadow.rows, c.tokens);
		ck_assert_msg(shadow.rows_over == 0, "%s: %s: %g of the allowance, %s",
		              honest[_i], c.name, shadow.worst, rig.log);
		worst = shadow.worst > worst ? shadow.worst : worst;
		compared++;
	}
	printf("# %s: %llu cases, the worst share is %.3f\n", honest[_i],
	       (unsigned long long)compared, worst);
	/* who does not run here was asked all the same */
	ck_assert(compared > 100 || _i > 1);
	rig_close(&rig);
}
END_TEST

static const struct {
	const char *fault, *name;
} lies[] = {
	{ "dropped", "many_tokens" },
	{ "dropped", "many_tokens_mxfp4" },
	{ "zero", "qwen3_shape" },
	{ "swapped", "qwen3_shape" },
	{ "swapped", "gpt_oss_shape" },
	{ "no_zeros", "int4_g32_asym/silu/bf16" },
	{ "no_limit", "int4_g32/step/bf16" },
	{ "dropped", "a8_int8" },
	{ "swapped", "a4_even" },
};

START_TEST(one_that_lies_is_found)
{
	struct rig rig = { .plugin = "damaged", .fault = lies[_i].fault, .every = "1" };
	struct rig good = { .plugin = "damaged", .every = "1" };
	struct moek_shadow shadow;
	struct kernel_case c;

	find_case(lies[_i].name, &c);
	rig_open(&rig);
	ck_assert(run_case(rig.registry, &c, "damaged.any", &shadow));
	ck_assert_msg(shadow.rows_over != 0, "%s: %s: %g of the allowance",
	              lies[_i].fault, c.name, shadow.worst);
	ck_assert(shadow.worst > 1);
	ck_assert_ptr_nonnull(strstr(rig.log, "4 damaged.any: output"));
	ck_assert_ptr_nonnull(strstr(rig.log, "emulation.any"));
	rig_close(&rig);

	rig_open(&good);
	ck_assert(run_case(good.registry, &c, "damaged.any", &shadow));
	ck_assert_uint_eq(shadow.rows_over, 0);
	ck_assert_str_eq(good.log, "");
	rig_close(&good);
}
END_TEST

/* ---- how it is done ---- */

static _Atomic uint64_t allocations; /* on pool threads too */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
int __real_posix_memalign(void **address, size_t align, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
int __wrap_posix_memalign(void **address, size_t align, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
	allocations++;
	return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
	allocations++;
	return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
	allocations++;
	return __real_realloc(memory, bytes);
}

int __wrap_posix_memalign(void **address, size_t align, size_t bytes)
{
	allocations++;
	return __real_posix_memalign(address, align, bytes);
}

START_TEST(every_nth_forward_is_followed_and_none_is_changed)
{
	struct rig rigs[2] = { { .plugin = "damaged", .fault = "zero", .every = "3" },
		               { .plugin = "damaged", .fault = "zero", .every = "0" } };
	struct moek_shadow shadow = { .struct_size = MOEK_INIT(SHADOW) };
	struct kernel_case c;
	struct material material;
	struct runner runners[2];
	struct rows rows[2];
	uint64_t before;
	int32_t status;

	find_case("prime_tokens", &c);
	ck_assert(material_make(&c, 7, &material));
	for (int i = 0; i < 2; i++) {
		rig_open(&rigs[i]);
		ck_assert_int_eq(runner_open(rigs[i].registry, &material.problem,
		                             &material.source, material.map,
		                             "require damaged", &runners[i], &error),
		                 MOEK_OK);
		ck_assert(rows_make(material.tokens.count, material.problem.hidden,
		                    material.tokens.stride,
		                    material.problem.output_type, &rows[i]));
	}
	ck_assert_int_eq(moek_layer_shadow(runners[1].layer, &shadow), MOEK_REFUSED);
	ck_assert_uint_eq(moek_layer_workspace_bytes(runners[0].layer),
	                  moek_layer_workspace_bytes(runners[1].layer));
	for (int n = 0; n < 7; n++) {
		for (int i = 0; i < 2; i++) {
			before = allocations;
			status = runner_forward(&runners[i], &material.tokens, &rows[i],
			                        NULL, &error);
			before = allocations - before;
			ck_assert_int_eq(status, MOEK_OK);
			ck_assert_uint_eq(before, 0);
		}
		ck_assert_int_eq(memcmp(rows[0].memory, rows[1].memory, rows[0].bytes),
		                 0);
		ck_assert_int_eq(moek_layer_shadow(runners[0].layer, &shadow), MOEK_OK);
		ck_assert_uint_eq(shadow.every, 3);
		ck_assert_uint_eq(shadow.forwards, (uint64_t)n + 1);
		ck_assert_uint_eq(shadow.compared, (uint64_t)n / 3 + 1);
		ck_assert_uint_eq(shadow.rows, shadow.compared * material.tokens.count);
		ck_assert_uint_eq(shadow.rows_over, shadow.rows);
	}
	/* told once */
	ck_assert_ptr_nonnull(strstr(rigs[0].log, "4 damaged.any: output"));
	ck_assert_ptr_eq(strchr(rigs[0].log, '\n'), strrchr(rigs[0].log, '\n'));
	for (int i = 0; i < 2; i++) {
		rows_free(&rows[i]);
		runner_close(&runners[i]);
		rig_close(&rigs[i]);
	}
	material_free(&material);
}
END_TEST

START_TEST(weights_that_are_loaded_again_are_the_shadows_too)
{
	struct rig rig = { .plugin = "damaged", .every = "1" };
	struct moek_shadow shadow = { .struct_size = MOEK_INIT(SHADOW) };
	struct kernel_case c;
	struct material material, other;
	struct runner runner;
	struct rows rows;

	find_case("expert_map", &c);
	ck_assert(material_make(&c, 7, &material));
	ck_assert(material_make(&c, 8, &other));
	rig_open(&rig);
	ck_assert_int_eq(runner_open(rig.registry, &material.problem, &material.source,
	                             material.map, "require damaged", &runner, &error),
	                 MOEK_OK);
	ck_assert(rows_make(material.tokens.count, material.problem.hidden,
	                    material.tokens.stride, material.problem.output_type,
	                    &rows));
	for (uint64_t e = 0; e < material.problem.experts; e++)
		if (material.map[e] >= 0)
			ck_assert_int_eq(moek_layer_reload(runner.layer, &other.source,
			                                   e, &error),
			                 MOEK_OK);
	ck_assert_int_eq(runner_forward(&runner, &material.tokens, &rows, NULL, &error),
	                 MOEK_OK);
	ck_assert_int_eq(moek_layer_shadow(runner.layer, &shadow), MOEK_OK);
	ck_assert_uint_eq(shadow.compared, 1);
	ck_assert_uint_eq(shadow.rows_over, 0);
	rows_free(&rows);
	runner_close(&runner);
	rig_close(&rig);
	material_free(&other);
	material_free(&material);
}
END_TEST

START_TEST(a_workspace_has_room_for_the_shadow_or_is_refused)
{
	struct rig rig = { .plugin = "damaged", .every = "1" };
	struct rig without = { .plugin = "damaged", .every = "0" };
	struct kernel_case c;
	struct material material;
	struct runner runner, other;
	struct moek_workspace *own;
	struct rows rows;

	find_case("decode", &c);
	ck_assert(material_make(&c, 7, &material));
	rig_open(&rig);
	rig_open(&without);
	ck_assert_int_eq(runner_open(rig.registry, &material.problem, &material.source,
	                             NULL, "require damaged", &runner, &error),
	                 MOEK_OK);
	ck_assert_int_eq(runner_open(without.registry, &material.problem,
	                             &material.source, NULL, "require damaged", &other,
	                             &error),
	                 MOEK_OK);
	ck_assert(rows_make(material.tokens.count, material.problem.hidden,
	                    material.tokens.stride, material.problem.output_type,
	                    &rows));
	own = runner.workspace;
	runner.workspace = other.workspace;
	ck_assert_int_eq(runner_forward(&runner, &material.tokens, &rows, NULL, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(error.text,
	                 "forward: the workspace has no room for the layer's shadow; "
	                 "create it with this layer in the list");
	runner.workspace = own;
	ck_assert_int_eq(runner_forward(&runner, &material.tokens, &rows, NULL, &error),
	                 MOEK_OK);
	rows_free(&rows);
	runner_close(&other);
	runner_close(&runner);
	rig_close(&without);
	rig_close(&rig);
	material_free(&material);
}
END_TEST

/* 0: without a reference; 1: on the reference itself */
START_TEST(who_has_no_shadow_runs_without)
{
	struct rig rig = { .plugin = _i == 0 ? "damaged" : "emulation",
		           .every = "1",
		           .alone = _i == 0 };
	struct moek_shadow shadow = { .struct_size = MOEK_INIT(SHADOW) };
	struct kernel_case c;
	struct material material;
	struct runner runner;
	struct rows rows;

	find_case("decode", &c);
	ck_assert(material_make(&c, 7, &material));
	rig_open(&rig);
	ck_assert_int_eq(runner_open(rig.registry, &material.problem, &material.source,
	                             NULL, "auto", &runner, &error),
	                 MOEK_OK);
	ck_assert(rows_make(material.tokens.count, material.problem.hidden,
	                    material.tokens.stride, material.problem.output_type,
	                    &rows));
	ck_assert_int_eq(runner_forward(&runner, &material.tokens, &rows, NULL, &error),
	                 MOEK_OK);
	ck_assert_int_eq(moek_layer_shadow(runner.layer, &shadow), MOEK_REFUSED);
	shadow.struct_size--;
	ck_assert_int_eq(moek_layer_shadow(runner.layer, &shadow), MOEK_BAD_ARGUMENT);
	ck_assert_str_eq(rig.log, _i == 0 ? "4 damaged.any: has no shadow: no backend "
	                                    "of class emulation is installed\n"
	                                  : "");
	rows_free(&rows);
	runner_close(&runner);
	rig_close(&rig);
	material_free(&material);
}
END_TEST

static void *on_card(const struct moek_space *space, const void *data, uint64_t bytes)
{
	void *there = moek_space_alloc(space, bytes, 256);

	ck_assert_ptr_nonnull(there);
	ck_assert_int_eq(moek_space_copy(space, there, data, bytes, MOEK_TO_DEVICE,
	                                 NULL, &error),
	                 MOEK_OK);
	return there;
}

/* it computes something of its own, so what is compared is found to differ */
START_TEST(host_rows_of_a_device_are_compared_and_its_own_are_left)
{
	struct rig rig = { .plugin = "fake_card", .every = "1" };
	struct moek_shadow shadow = { .struct_size = MOEK_INIT(SHADOW) };
	struct kernel_case c;
	struct material material;
	struct tokens there;
	struct runner runner;
	struct rows rows;
	const struct moek_space *space;
	uint64_t choices, bytes;
	struct moek_forward forward;
	void *output;

	find_case("int4_g32/silu/f32", &c);
	ck_assert(material_make(&c, 7, &material));
	rig_open(&rig);
	ck_assert_int_eq(runner_open(rig.registry, &material.problem, &material.source,
	                             NULL, "require fake_card.slots", &runner, &error),
	                 MOEK_OK);
	ck_assert(rows_make(c.tokens, c.problem.hidden, material.tokens.stride,
	                    MOEK_F32, &rows));
	ck_assert_int_eq(runner_forward(&runner, &material.tokens, &rows, NULL, &error),
	                 MOEK_OK);
	ck_assert_int_eq(moek_layer_shadow(runner.layer, &shadow), MOEK_OK);
	ck_assert_uint_eq(shadow.compared, 1);
	ck_assert_uint_eq(shadow.rows_over, c.tokens);

	space = &runner.layer->space;
	choices = c.tokens * c.problem.top_k;
	bytes = c.tokens * c.problem.hidden * sizeof(float);
	there.input = on_card(space, material.tokens.input, bytes);
	there.ids = on_card(space, material.tokens.ids, choices * 4);
	there.weights = on_card(space, material.tokens.weights, choices * 4);
	output = on_card(space, rows.data, bytes);
	forward = (struct moek_forward){
		.struct_size = MOEK_FORWARD_SIZE_1_0,
		.input = { there.input, c.tokens, c.problem.hidden, 0, MOEK_F32, 1 },
		.output = { output, c.tokens, c.problem.hidden, 0, MOEK_F32, 1 },
		.topk_ids = there.ids,
		.topk_weights = there.weights,
		.workspace = runner.workspace,
	};
	ck_assert_msg(moek_layer_forward(runner.layer, &forward, &error) == MOEK_OK,
	              "%s", error.text);
	ck_assert_int_eq(moek_layer_shadow(runner.layer, &shadow), MOEK_OK);
	ck_assert_uint_eq(shadow.forwards, 2);
	ck_assert_uint_eq(shadow.compared, 1);
	ck_assert_uint_eq(shadow.skipped, 1);
	moek_space_free(space, there.input);
	moek_space_free(space, there.ids);
	moek_space_free(space, there.weights);
	moek_space_free(space, output);
	rows_free(&rows);
	runner_close(&runner);
	rig_close(&rig);
	material_free(&material);
}
END_TEST

/* ---- the measure itself ---- */

static struct moek_agreement agree(const float *got, const float *wanted,
                                   uint64_t columns, uint32_t terms)
{
	float magnitudes[32];
	const struct moek_problem problem = { .input_type = MOEK_F32 };
	const struct moek_numerics numerics = { .accumulator = MOEK_F32,
		                                .terms = terms };
	const struct moek_rows rows = {
		(void *)(uintptr_t)got, 1, columns, 0, MOEK_F32, 0
	};
	const struct moek_outputs outputs = { &problem, &numerics, &rows, wanted,
		                              magnitudes };
	struct moek_agreement agreement;

	for (uint64_t i = 0; i < columns; i++)
		magnitudes[i] = 1;
	moek_agree(&outputs, &agreement);
	return agreement;
}

START_TEST(an_element_may_use_all_of_its_allowance)
{
	/* 2^-13 and half a unit in the last place, 2^-24 */
	const float wanted[] = { 0, 1 };
	float got[] = { 0, 1 + 0x1p-13f };
	struct moek_agreement a = agree(got, wanted, 2, 1024);
	char text[256];

	ck_assert_uint_eq(a.rows_over, 0);
	ck_assert(fabs(a.worst - 0x1p-13 / (0x1p-13 + 0x1p-24)) < 1e-12);
	ck_assert_uint_eq(a.column, 1);
	got[1] = 1 + 0x1.008p-13f;
	a = agree(got, wanted, 2, 1024);
	ck_assert_uint_eq(a.rows_over, 1);
	moek_agreement_text(&a, 2, "x.y", text, sizeof(text));
	ck_assert_str_eq(text, "output[0][1] is 1.00012231, x.y says 1, 0.000122 is "
	                       "allowed");
}
END_TEST

START_TEST(a_row_may_not_be_off_in_one_direction)
{
	float got[32], wanted[32];
	struct moek_agreement a;
	char text[256];

	for (int i = 0; i < 32; i++) {
		wanted[i] = 1;
		/* a quarter of what each alone may be off */
		got[i] = 1 + 0x1p-15f;
	}
	a = agree(got, wanted, 31, 1024);
	ck_assert_uint_eq(a.rows_over, 0);
	a = agree(got, wanted, 32, 1024);
	ck_assert_uint_eq(a.rows_over, 1);
	ck_assert_uint_eq(a.column, 32);
	/* 4 * sqrt(1024) * 2^-23 and half of 2^-23 */
	ck_assert_msg(fabs(a.worst - 0x1p-15 / (0x1p-16 + 2 * 0x1p-24)) < 0.02, "%g",
	              a.worst);
	moek_agreement_text(&a, 32, "x.y", text, sizeof(text));
	ck_assert_str_eq(text, "output row 0 is off by 3.05e-05 of its length beside "
	                       "x.y, 1.53e-05 is allowed");
}
END_TEST

START_TEST(what_is_no_number_must_be_none_on_both_sides)
{
	static const struct {
		float got, wanted;
		double share;
	} rows[] = {
		{ NAN, NAN, 0 },
		{ NAN, 1, INFINITY },
		{ 1, NAN, INFINITY },
		{ INFINITY, INFINITY, 0 },
		{ INFINITY, -INFINITY, INFINITY },
		{ INFINITY, 1e38f, INFINITY },
		{ 1e38f, INFINITY, INFINITY },
		{ -INFINITY, -3.4028234e38f, 0 },
	};
	struct moek_agreement a = agree(&rows[_i].got, &rows[_i].wanted, 1, 16);

	ck_assert(a.worst == rows[_i].share);
	ck_assert_uint_eq(a.rows_over, rows[_i].share > 1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("shadow");
	TCase *tests = tcase_create("shadow");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tests, a_good_backend_is_not_accused, 0, 5);
	tcase_add_loop_test(tests, one_that_lies_is_found, 0,
	                    (int)(sizeof(lies) / sizeof(lies[0])));
	tcase_add_test(tests, every_nth_forward_is_followed_and_none_is_changed);
	tcase_add_test(tests, weights_that_are_loaded_again_are_the_shadows_too);
	tcase_add_test(tests, a_workspace_has_room_for_the_shadow_or_is_refused);
	tcase_add_loop_test(tests, who_has_no_shadow_runs_without, 0, 2);
	tcase_add_test(tests, host_rows_of_a_device_are_compared_and_its_own_are_left);
	tcase_add_test(tests, an_element_may_use_all_of_its_allowance);
	tcase_add_test(tests, a_row_may_not_be_off_in_one_direction);
	tcase_add_loop_test(tests, what_is_no_number_must_be_none_on_both_sides, 0, 8);
	suite_add_tcase(suite, tests);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
