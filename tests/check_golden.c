/* SPDX-License-Identifier: MIT */
/* Before a layer is made of a backend, it computes a small case as emulation does. */
#include "config.h"

#include "core/golden.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/choice.h"
#include "tests/kit.h"
#include "tests/stage.h"
#include "tools/kernelcheck/run.h"

static struct stage stage;
static struct kernel_case c;
static struct material material;
static struct moek_layer *layer;
static struct moek_error error;

static void begin(void)
{
	static const char *plugins[2];

	stage_begin(&stage);
	stage_plugin(&stage, "damaged");
	/* emulation and cpu */
	plugins[0] = getenv("MOEK_TEST_PLUGINS");
	stage.options.plugin_dirs = plugins;
	stage.options.threads = 1;
}

static void end(void)
{
	moek_layer_destroy(layer);
	layer = NULL;
	if (material.experts != NULL)
		material_free(&material);
	stage_end(&stage);
}

static void reopen(void)
{
	moek_layer_destroy(layer);
	layer = NULL;
	stage_open(&stage);
}

static void set(const char *golden, const char *fault, const char *more)
{
	char text[2048];

	snprintf(text, sizeof(text),
	         "unlisted = ignore\non_degraded = allow\nprobe = never\ngolden = %s\n"
	         "%s\n[plugin damaged]\nfault = %s\n"
	         "[priority]\ndamaged = on\ncpu = on\nemulation = on\n",
	         golden, more, fault);
	stage_ini(&stage, text);
	reopen();
}

/** With a cache that outlives the registry. */
static const char *with_cache(void)
{
	static char text[1100];

	snprintf(text, sizeof(text), "cache = %s/cache", stage.folder);
	return text;
}

static void use(const char *name)
{
	for (uint64_t i = 0; i < case_count(); i++) {
		case_at(i, &c);
		if (strcmp(c.name, name) == 0)
			break;
	}
	ck_assert_str_eq(c.name, name);
	if (material.experts != NULL)
		material_free(&material);
	ck_assert(material_make(&c, 1, &material));
}

/** Choose and make the layer; the status. */
static int32_t make(const char *request)
{
	int32_t status;

	moek_layer_destroy(layer);
	layer = NULL;
	moek_choice_destroy(stage.choice);
	stage.choice = NULL;
	status = moek_choose(stage.registry, &material.problem, request, NULL,
	                     &stage.choice, &error);
	if (status != MOEK_OK)
		return status;
	return moek_layer_create(stage.choice, &material.source, NULL, &layer, &error);
}

static const char *runs_on(void)
{
	return moek_choice_winner(moek_layer_choice(layer));
}

static const struct {
	const char *fault, *name, *says;
} faults[] = {
	{ "dropped", "qwen3_shape", "golden test of 1 token: output" },
	{ "dropped", "a8_int8", "golden test of 17 tokens: output" },
	{ "zero", "qwen3_shape", "golden test of 1 token: output" },
	{ "swapped", "gpt_oss_shape", "golden test of 1 token: output" },
	{ "swapped", "decode", "golden test of 1 token: output" },
	{ "no_zeros", "int4_g32_asym/silu/bf16", "golden test of 1 token: output" },
	{ "no_limit", "int4_g32/step/bf16", "golden test of 1 token: output" },
	{ "no_limit", "mxfp4/oai/bf16", "golden test of 1 token: output" },
	{ "past", "qwen3_shape", "damaged.any: forward wrote outside its workspace" },
	{ "input", "qwen3_shape", "damaged.any: forward changed its input" },
	{ "rounds", "qwen3_shape", "damaged.any: forward left its thread rounding" },
};

START_TEST(one_that_lies_is_passed_over)
{
	struct moek_candidate candidate = { .struct_size = MOEK_INIT(CANDIDATE) };

	set("first", faults[_i].fault, "");
	use(faults[_i].name);
	/* nothing is known yet, and choosing runs nothing */
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(moek_choice_winner(stage.choice), "damaged.any");
	ck_assert_str_eq(runs_on(), "emulation.any");
	moek_choice_candidate(moek_layer_choice(layer), 0, &candidate);
	ck_assert_uint_eq(candidate.state, MOEK_STATE_FAILED);
	ck_assert_uint_eq(candidate.verdict->rule, MOEK_RULE_GOLDEN);
	ck_assert_msg(
		strncmp(candidate.found, faults[_i].says, strlen(faults[_i].says)) == 0,
		"%s", candidate.found);
	ck_assert_uint_eq(stage_logged(&stage, "3", "damaged.any: failed: "), 1);
	/* now it is */
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(moek_choice_winner(stage.choice), "emulation.any");
	ck_assert_int_eq(make("require damaged"), MOEK_REFUSED);
	ck_assert_uint_eq(error.rule, MOEK_RULE_GOLDEN);

	set("off", faults[_i].fault, "");
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(runs_on(), "damaged.any");
	set("first", "none", "");
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(runs_on(), "damaged.any");
}
END_TEST

START_TEST(what_is_required_is_not_replaced)
{
	set("first", "swapped", "");
	use("qwen3_shape");
	ck_assert_int_eq(make("require damaged"), MOEK_PLUGIN);
	ck_assert_uint_eq(error.rule, MOEK_RULE_GOLDEN);
	ck_assert_ptr_null(layer);
}
END_TEST

START_TEST(a_fault_of_one_kind_of_problem_is_of_no_other)
{
	set("first", "no_zeros", "");
	use("int4_g32/silu/bf16");
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(runs_on(), "damaged.any");
	use("int4_g32_asym/silu/bf16");
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(runs_on(), "emulation.any");
	use("int4_g32/silu/bf16");
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(runs_on(), "damaged.any");
}
END_TEST

static const char *const tables[] = { "damaged.any", "cpu.plain", "cpu.avx2",
	                              "cpu.avx512vnni", "cpu.avx512bf16" };

START_TEST(a_good_backend_passes)
{
	uint64_t tested = 0;
	char request[64];

	snprintf(request, sizeof(request), "require %s", tables[_i]);
	set("always", "none", "");
	for (uint64_t i = 0; i < case_count(); i++) {
		struct moek_choice *choice = NULL;

		case_at(i, &c);
		c.problem.max_tokens = c.tokens + 1;
		if (moek_choose(stage.registry, &c.problem, request, NULL, &choice,
		                &error) == MOEK_OK) {
			ck_assert_msg(moek_golden_test(choice, &error) == MOEK_OK,
			              "%s: %s: %s", tables[_i], c.name, error.text);
			tested++;
		}
		moek_choice_destroy(choice);
	}
	ck_assert_uint_eq(stage_logged(&stage, "6", "no golden test"), 0);
	printf("# %s: %llu cases\n", tables[_i], (unsigned long long)tested);
	ck_assert(tested > 100 || _i > 1);
}
END_TEST

/* ---- what is kept ---- */

/** The only file of cache/golden, or "". */
static const char *kept_file(void)
{
	static char path[1600];
	char folder[1100];
	const struct dirent *entry;
	DIR *open;

	path[0] = '\0';
	snprintf(folder, sizeof(folder), "%s/cache/golden", stage.folder);
	open = opendir(folder);
	while (open != NULL && (entry = readdir(open)) != NULL)
		if (entry->d_name[0] != '.') {
			ck_assert_str_eq(path, "");
			snprintf(path, sizeof(path), "%s/%.200s", folder,
			         entry->d_name);
		}
	if (open != NULL)
		closedir(open);
	return path;
}

/** Put another verdict into the file that is kept, of this moment. */
static void forge(const char *verdict)
{
	const char *path = kept_file();
	size_t count;
	char *text = kit_read(path, &count), forged[8192];

	ck_assert_uint_lt(count, 4096);
	snprintf(forged, sizeof(forged), "%.*s\n%lld %s\n", (int)strcspn(text, "\n"),
	         text, (long long)time(NULL), verdict);
	kit_write(path, forged, strlen(forged));
	free(text);
}

START_TEST(an_answer_is_kept_for_the_next_process)
{
	set("first", "none", with_cache());
	use("qwen3_shape");
	ck_assert_int_eq(make("require damaged"), MOEK_OK);
	ck_assert_str_ne(kept_file(), "");
	/* it is read, and already by a choice */
	forge("508 0 0 0 0 so it is written");
	reopen();
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(moek_choice_winner(stage.choice), "emulation.any");
	ck_assert_str_eq(stage_state(&stage, "damaged.any"),
	                 "failed: so it is written");
	/* not for options that are others */
	set("first", "zero", with_cache());
	ck_assert_int_eq(make("prefer damaged,emulation"), MOEK_OK);
	ck_assert_str_eq(moek_choice_winner(stage.choice), "damaged.any");
	ck_assert_str_eq(runs_on(), "emulation.any");
}
END_TEST

START_TEST(an_answer_is_not_kept_for_another_file)
{
	char path[1100];
	size_t count;
	char *bytes;

	set("first", "none", with_cache());
	use("qwen3_shape");
	ck_assert_int_eq(make("require damaged"), MOEK_OK);
	forge("508 0 0 0 0 so it is written");
	snprintf(path, sizeof(path), "%s/damaged.so", stage.plugins);
	bytes = kit_read(path, &count);
	bytes[count - 1] ^= 1;
	stage_remove(&stage, "damaged"); /* it is mapped */
	kit_write(path, bytes, count);
	free(bytes);
	reopen();
	ck_assert_int_eq(make("require damaged"), MOEK_OK);
}
END_TEST

START_TEST(always_asks_each_process)
{
	set("first", "none", with_cache());
	use("qwen3_shape");
	ck_assert_int_eq(make("require damaged"), MOEK_OK);
	forge("508 0 0 0 0 so it is written");
	set("always", "none", with_cache());
	ck_assert_int_eq(make("require damaged"), MOEK_OK);
	set("off", "none", with_cache());
	ck_assert_int_eq(make("require damaged"), MOEK_OK);
	set("first", "none", with_cache());
	ck_assert_int_eq(make("require damaged"), MOEK_REFUSED);
}
END_TEST

/* ---- what cannot be tested runs ---- */

START_TEST(without_a_reference_nothing_is_tested)
{
	set("first", "swapped", "[plugin emulation]\nenabled = off");
	use("qwen3_shape");
	ck_assert_int_eq(make("require damaged"), MOEK_OK);
	ck_assert_str_eq(runs_on(), "damaged.any");
	ck_assert_uint_eq(stage_logged(&stage, "6",
	                               "damaged.any: no golden test: no backend of "
	                               "class emulation"),
	                  1);
}
END_TEST

START_TEST(who_cannot_be_made_is_not_judged_by_its_numbers)
{
	set("first", "lies", "");
	use("qwen3_shape");
	ck_assert_int_eq(make("auto"), MOEK_PLUGIN);
	ck_assert_uint_eq(error.rule, MOEK_RULE_CREATE);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("golden");
	TCase *tests = tcase_create("golden");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_loop_test(tests, one_that_lies_is_passed_over, 0,
	                    (int)(sizeof(faults) / sizeof(faults[0])));
	tcase_add_test(tests, what_is_required_is_not_replaced);
	tcase_add_test(tests, a_fault_of_one_kind_of_problem_is_of_no_other);
	tcase_add_loop_test(tests, a_good_backend_passes, 0, 5);
	tcase_add_test(tests, an_answer_is_kept_for_the_next_process);
	tcase_add_test(tests, an_answer_is_not_kept_for_another_file);
	tcase_add_test(tests, always_asks_each_process);
	tcase_add_test(tests, without_a_reference_nothing_is_tested);
	tcase_add_test(tests, who_cannot_be_made_is_not_judged_by_its_numbers);
	suite_add_tcase(suite, tests);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
