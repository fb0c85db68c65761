/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/select.h"
#include "core/status.h"
#include "stage.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct stage stage;

static void begin(void)
{
	stage_begin(&stage);
}

static void end(void)
{
	stage_end(&stage);
}

#define CHOSEN(request, over)                                                          \
	ck_assert_msg(stage_choose(&stage, request, over) == MOEK_OK, "%s",            \
	              stage.error.text)
#define REFUSED(request, over)                                                         \
	ck_assert_int_eq(stage_choose(&stage, request, over), MOEK_REFUSED)
#define STATE(name, text) ck_assert_str_eq(stage_state(&stage, name), text)

/* ---- who wins ---- */

START_TEST(the_order_of_lines_decides)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\nlast_resort = on\ngood_host = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	STATE("good_host.first", "ready: outranked");
	ck_assert_str_eq(stage_candidate(&stage, "last_resort.any").source,
	                 "moek.ini:4");

	stage_ini(&stage, "[priority]\ngood_host = on\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	STATE("last_resort.any", "ready: outranked");
}
END_TEST

START_TEST(a_new_file_is_a_candidate_and_a_removed_one_leaves_the_rest)
{
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\ngood_host = on\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	STATE("good_host", "missing: not installed");

	stage_plugin(&stage, "good_host");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");

	stage_remove(&stage, "good_host");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
}
END_TEST

START_TEST(unlisted_plugins_come_last_by_name)
{
	stage_plugin(&stage, "refuses_with_reason");
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	ck_assert_uint_eq(moek_choice_candidates(stage.choice), 4);
	ck_assert_str_eq(stage_candidate(&stage, "good_host.first").source, "unlisted");

	CHOSEN("exclude last_resort", NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	CHOSEN("exclude last_resort,good_host", NULL);
	ck_assert_str_eq(stage_winner(&stage), "refuses_with_reason.any");
}
END_TEST

START_TEST(unlisted_plugins_can_be_ignored_or_an_error)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "unlisted = ignore\n[priority]\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	STATE("good_host", "disabled: not in [priority], and unlisted = ignore");

	stage_ini(&stage, "unlisted = error\n[priority]\nlast_resort = on\n");
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, NULL), MOEK_BAD_CONFIG);
	ck_assert_ptr_nonnull(strstr(stage.error.text,
	                             "good_host.so is installed, and "
	                             "[priority] does not list good_host"));
	stage_ini(&stage,
	          "unlisted = error\n[priority]\nlast_resort = on\ngood_host = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
}
END_TEST

START_TEST(experts_of_one_plugin_are_ordered_by_their_own_lines)
{
	stage_plugin(&stage, "good_host");
	stage_ini(&stage, "[priority]\ngood_host.second = on\ngood_host = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.second");
	STATE("good_host.first", "ready: outranked");

	stage_ini(&stage, "[priority]\ngood_host = on\ngood_host.first = off\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.second");
	STATE("good_host.first", "disabled: switched off at moek.ini:5");

	stage_ini(&stage, "[priority]\ngood_host = off\ngood_host.first = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	STATE("good_host.second", "disabled: switched off at moek.ini:4");

	stage_ini(&stage, "[priority]\ngood_host.third = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	STATE("good_host.third",
	      "missing: no experts of this name in the plugin; did you "
	      "mean good_host.first?");
}
END_TEST

START_TEST(a_section_for_the_scheme_replaces_the_general_one)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\ngood_host = on\nlast_resort = on\n"
	                  "[priority mxfp4]\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	ck_assert_str_eq(stage_candidate(&stage, "good_host.first").source, "unlisted");

	CHOSEN(NULL, "weight=int4,group_size=32,scale=bf16");
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
}
END_TEST

/* ---- the request ---- */

START_TEST(prefer_comes_first_and_going_past_it_is_told)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_plugin(&stage, "refuses_with_reason");
	stage_ini(&stage, "[priority]\ngood_host = on\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN("prefer last_resort", NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	ck_assert_uint_eq(stage_logged(&stage, "4", ""), 0);

	CHOSEN("prefer good_host.second, last_resort", NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.second");

	CHOSEN("prefer refuses_with_reason", "hidden=96");
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	CHOSEN("prefer refuses_with_reason", "hidden=96");
	ck_assert_uint_eq(stage_logged(&stage, "4", "none of those preferred"), 1);

	/* named by the user and not there: louder than a line of the INI would be */
	CHOSEN("prefer last_resrt", NULL);
	STATE("last_resrt", "missing: not installed; did you mean last_resort?");
	ck_assert_uint_eq(stage_logged(&stage, "3", "last_resrt: missing"), 1);
}
END_TEST

START_TEST(require_takes_nothing_else)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_plugin(&stage, "refuses_with_reason");
	stage_open(&stage);
	CHOSEN("require last_resort", NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	STATE("good_host", "disabled: the request requires another");
	CHOSEN("require good_host.second", NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.second");
	STATE("good_host.first", "disabled: the request requires another");

	CHOSEN("require refuses_with_reason", NULL);
	REFUSED("require refuses_with_reason", "hidden=96");
	ck_assert_ptr_null(moek_choice_winner(stage.choice));
	ck_assert_ptr_null(moek_choice_backend(stage.choice));
	ck_assert_uint_eq(stage.error.rule, MOEK_RULE_HIDDEN);
	STATE("refuses_with_reason.any",
	      "refused: hidden 96, accepts a multiple of 64");
	ck_assert_ptr_nonnull(strstr(stage.error.text,
	                             "refuses_with_reason.any: refused: hidden 96 "
	                             "(accepts a multiple of 64)"));
}
END_TEST

START_TEST(require_of_what_is_not_there_suggests_a_name)
{
	stage_plugin(&stage, "good_host");
	stage_open(&stage);
	REFUSED("require god_host", NULL);
	ck_assert_uint_eq(stage.error.rule, MOEK_RULE_NOT_INSTALLED);
	ck_assert_ptr_nonnull(strstr(stage.error.text,
	                             "god_host: missing: not installed; did you mean "
	                             "good_host?"));
	ck_assert_ptr_nonnull(strstr(stage.error.text, stage.plugins));
	REFUSED("require good_host.frist", NULL);
	ck_assert_ptr_nonnull(
		strstr(stage.error.text, "did you mean good_host.first?"));
}
END_TEST

START_TEST(excluding_everything_is_an_error)
{
	stage_plugin(&stage, "good_host");
	stage_open(&stage);
	REFUSED("exclude good_host", NULL);
	STATE("good_host", "disabled: excluded by the request");
	CHOSEN("exclude good_host.first", NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.second");
}
END_TEST

START_TEST(a_request_that_nobody_can_read_is_an_error)
{
	static const char *const bad[] = {
		"",
		"autos",
		"require",
		"require a,b",
		"prefer",
		"exclude",
		"auto cpu",
		"prefer A",
		"prefer a.b.c",
		"prefer .a",
		"prefer a.",
		"require a b",
		"prefer a/../b",
		"prefer a;b",
	};

	stage_open(&stage);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ck_assert_msg(stage_choose(&stage, bad[i], NULL) == MOEK_BAD_ARGUMENT,
		              "'%s'", bad[i]);
		ck_assert_ptr_null(stage.choice);
		ck_assert_ptr_nonnull(strstr(stage.error.text, "request"));
	}
}
END_TEST

START_TEST(a_problem_that_contradicts_itself_is_an_error)
{
	stage_open(&stage);
	ck_assert_int_eq(stage_choose(&stage, NULL, "top_k=9"), MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "top_k"));
}
END_TEST

START_TEST(nobody_installed_names_the_folders)
{
	stage_open(&stage);
	REFUSED(NULL, NULL);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "none is installed"));
	ck_assert_ptr_nonnull(strstr(stage.error.text, stage.plugins));
	ck_assert_uint_eq(moek_choice_candidates(stage.choice), 0);
}
END_TEST

/* ---- gates: one fact flipped, one verdict flipped ---- */

START_TEST(each_bit_that_is_not_understood_is_named)
{
	static const struct {
		const char *over, *bit;
	} cases[] = {
		{ "limit=7", "limit" },
		{ "activation=swiglu_oai,alpha=1.702,beta=1", "alpha_beta" },
		{ "column_groups=1,weight=int4,group_size=32,scale=bf16",
		  "column_groups" },
		{ "activation=relu2,gated=0", "not_gated" },
		{ "row_stride=1", "row_stride" },
		{ "deterministic=1", "deterministic" },
		{ "capture=1", "capture" },
		{ "lora=1", "lora" },
		{ "shards=2", "partial_sum" },
	};
	char expected[64];

	stage_plugin(&stage, "refuses_with_reason");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	CHOSEN(NULL, "bias=1");
	CHOSEN(NULL, "weight=int4,group_size=32,scale=bf16,zero_points=1");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct moek_problem problem = stage_problem();

		if (moek_problem_parse(cases[i].over, &problem, &stage.error) !=
		    MOEK_OK)
			ck_abort_msg("%s: %s", cases[i].over, stage.error.text);
		ck_assert_msg(stage_choose(&stage, NULL, cases[i].over) == MOEK_REFUSED,
		              "%s: %s", cases[i].over, stage.error.text);
		snprintf(expected, sizeof(expected), "refused: does not understand %s",
		         cases[i].bit);
		STATE("refuses_with_reason.any", expected);
		ck_assert_uint_eq(stage.error.rule, MOEK_RULE_UNKNOWN_BIT);
	}
}
END_TEST

START_TEST(on_the_host_the_core_maps_and_weighs)
{
	const struct moek_backend *backend;

	/* it traps when a bit that it does not know reaches it */
	stage_plugin(&stage, "refuses_with_reason");
	stage_open(&stage);
	CHOSEN(NULL, "expert_map=1,experts_local=4");
	backend = moek_choice_backend(stage.choice);
	ck_assert_uint_eq(backend->problem.must_understand, 0);
	ck_assert_uint_eq(moek_choice_problem(stage.choice)->must_understand,
	                  MOEK_EXPERT_MAP);
	CHOSEN(NULL, "weight_on_input=1,top_k=1");
}
END_TEST

START_TEST(a_refusal_without_a_reason_is_one_all_the_same)
{
	stage_plugin(&stage, "gives_no_reason");
	stage_open(&stage);
	REFUSED(NULL, NULL);
	ck_assert_int_eq(stage_candidate(&stage, "gives_no_reason.any").state,
	                 MOEK_STATE_REFUSED);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "the plugin gave no reason"));
	/* rubbish with a rule: ended, and printed without a crash */
	ck_assert_uint_eq(strlen(stage_candidate(&stage, "gives_no_reason.rubbish")
	                                 .verdict->note),
	                  sizeof(((struct moek_verdict *)NULL)->note) - 1);
	ck_assert_int_eq(
		stage_candidate(&stage, "gives_no_reason.rubbish").verdict->rule,
		MOEK_RULE_HIDDEN);
}
END_TEST

/* ---- states ---- */

/** A stage with the fake GPU ranked first and the last resort behind it. */
static void gpu_stage(const char *facts, const char *more)
{
	char ini[1024];

	stage_plugin(&stage, "fake_gpu");
	stage_plugin(&stage, "last_resort");
	if (facts != NULL)
		stage_file(&stage, "facts", facts);
	snprintf(ini, sizeof(ini),
	         "[priority]\nfake_gpu = on\nlast_resort = on\n%s[plugin "
	         "fake_gpu]\n%s%s%s\n",
	         more, facts != NULL ? "facts = " : "",
	         facts != NULL ? stage.folder : "", facts != NULL ? "/facts" : "");
	stage_ini(&stage, ini);
	stage_open(&stage);
}

START_TEST(a_gpu_that_is_there_is_chosen)
{
	gpu_stage("arch=fake_a\nname=Fake A\nbus=3\n", "");
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "fake_gpu.any");
	ck_assert_str_eq(moek_choice_device(stage.choice)->name, "Fake A");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
	/* on a device the backend maps: it must understand the bit */
	CHOSEN(NULL, "expert_map=1,experts_local=4");
	ck_assert_uint_eq(moek_choice_backend(stage.choice)->problem.must_understand,
	                  MOEK_EXPERT_MAP);
}
END_TEST

START_TEST(no_gpu_is_absent_and_degrades_nothing)
{
	gpu_stage(NULL, "");
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	STATE("fake_gpu.any", "absent: no such device here");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
	ck_assert_uint_eq(stage_logged(&stage, "4", ""), 0);
}
END_TEST

START_TEST(a_gpu_without_its_runtime_is_unusable_and_degrades)
{
	gpu_stage("arch=fake_a\ncause_rule=702\ncause=libfake.so.6 is not installed\n",
	          "");
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	STATE("fake_gpu.any", "unusable: libfake.so.6 is not installed");
	ck_assert_int_eq(stage_candidate(&stage, "fake_gpu.any").verdict->rule,
	                 MOEK_RULE_DEVICE_DRIVER);
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
	ck_assert_uint_eq(
		stage_logged(&stage, "4", "degraded: last_resort.any was chosen"), 1);
}
END_TEST

START_TEST(unusable_above_the_winner_degrades_and_below_it_does_not)
{
	char ini[1400];

	stage_plugin(&stage, "fake_gpu");
	stage_plugin(&stage, "good_host");
	stage_file(&stage, "facts", "arch=fake_b\n");
	for (int above = 0; above < 2; above++) {
		snprintf(ini, sizeof(ini),
		         "[priority]\n%sgood_host = on\n%s[plugin fake_gpu]\n"
		         "facts = %s/facts\n",
		         above ? "fake_gpu = on\n" : "", above ? "" : "fake_gpu = on\n",
		         stage.folder);
		stage_ini(&stage, ini);
		stage_open(&stage);
		CHOSEN(NULL, NULL);
		ck_assert_str_eq(stage_winner(&stage), "good_host.first");
		ck_assert_int_eq(stage_candidate(&stage, "fake_gpu.any").state,
		                 MOEK_STATE_UNUSABLE);
		ck_assert_int_eq(moek_choice_degraded(stage.choice), above);
	}
}
END_TEST

START_TEST(a_gpu_without_permission_is_unusable)
{
	gpu_stage("arch=fake_a\ncause_rule=703\ncause=permission denied: /dev/kfd\n",
	          "");
	CHOSEN(NULL, NULL);
	STATE("fake_gpu.any", "unusable: permission denied: /dev/kfd");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
}
END_TEST

START_TEST(a_gpu_without_code_in_the_file_is_unusable)
{
	gpu_stage("arch=fake_b\n", "");
	CHOSEN(NULL, NULL);
	STATE("fake_gpu.any", "unusable: device fake_b, accepts fake_a");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
}
END_TEST

START_TEST(of_several_devices_the_best_answer_counts)
{
	gpu_stage("arch=fake_b\nbus=1\n\narch=fake_a\nbus=2\n\narch=fake_a\nbus=3\n",
	          "");
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "fake_gpu.any");
	ck_assert_uint_eq(moek_choice_device(stage.choice)->pci[1], 2);
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
	/* refused is better than unusable */
	CHOSEN(NULL, "lora=1");
	STATE("fake_gpu.any", "refused: does not understand lora");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
}
END_TEST

START_TEST(a_section_for_a_device_counts_where_it_is)
{
	const char
		*sections = "[priority hip fake_a]\nlast_resort = on\nfake_gpu = on\n";

	gpu_stage("arch=fake_a\n", sections);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	stage_file(&stage, "facts", "arch=fake_b\n\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_candidate(&stage, "fake_gpu.any").source, "moek.ini:4");
}
END_TEST

START_TEST(the_most_words_win_and_a_device_before_a_scheme)
{
	gpu_stage("arch=fake_a\n", "[priority mxfp4]\nlast_resort = on\n"
	                           "[priority hip]\nfake_gpu = on\n"
	                           "[priority hip fake_a int4]\nlast_resort = on\n");
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "fake_gpu.any");
	CHOSEN(NULL, "weight=int4,group_size=32,scale=bf16");
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
}
END_TEST

START_TEST(off_in_the_ini_is_disabled_and_degrades_emulation)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\ngood_host = off\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	STATE("good_host", "disabled: switched off at moek.ini:4");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);

	stage_ini(&stage, "[plugin good_host]\nenabled = no\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	STATE("good_host", "disabled: switched off at moek.ini:4");

	/* the winner is no emulation: nothing is degraded */
	stage_ini(&stage, "[plugin last_resort]\nenabled = off\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
}
END_TEST

START_TEST(off_by_the_api_is_disabled)
{
	static const struct moek_setting settings[] = {
		{ "priority", "good_host", "off" },
		{ "plugin good_host", "enabled", "off" },
	};

	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\ngood_host = on\n"
	                  "[priority mxfp4]\ngood_host = on\n");
	for (size_t i = 0; i < 2; i++) {
		stage.options.settings = &settings[i];
		stage.options.setting_count = 1;
		stage_open(&stage);
		CHOSEN(NULL, NULL);
		ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
		STATE("good_host", "disabled: switched off by the api");
		ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
		REFUSED("require good_host", NULL);
		ck_assert_uint_eq(stage.error.rule, MOEK_RULE_DISABLED);
	}
	stage.options.setting_count = 0;
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
}
END_TEST

START_TEST(a_line_of_the_api_changes_a_name_where_it_stands)
{
	static const struct moek_setting settings[] = {
		{ "priority", "good_host", "on" },
		{ "priority", "last_resort", "on" },
	};

	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_plugin(&stage, "create_fails_for_memory");
	stage_ini(&stage, "[priority]\ngood_host = off\n");
	stage.options.settings = settings;
	stage.options.setting_count = 2;
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	ck_assert_str_eq(stage_candidate(&stage, "good_host.first").source, "api");
	/* added at the end, before the unlisted */
	CHOSEN("exclude good_host", NULL);
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
}
END_TEST

START_TEST(off_in_the_general_section_holds_in_a_special_one)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage,
	          "[priority]\ngood_host = off\n[priority mxfp4]\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	STATE("good_host", "disabled: switched off at moek.ini:4");
	stage_ini(&stage,
	          "[priority]\ngood_host = off\n[priority mxfp4]\ngood_host = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
}
END_TEST

START_TEST(missing_degrades_emulation_alone)
{
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\nnot_here = on\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	STATE("not_here", "missing: not installed");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);

	stage_plugin(&stage, "good_host");
	stage_ini(&stage, "[priority]\nnot_here = on\ngood_host = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
}
END_TEST

START_TEST(broken_above_the_winner_degrades_and_below_it_does_not)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "null_slot");
	stage_ini(&stage, "[priority]\nnull_slot = on\ngood_host = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	STATE("null_slot", "broken: forward of experts table 0 is NULL");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
	CHOSEN(NULL, NULL);
	ck_assert_uint_eq(stage_logged(&stage, "4", "null_slot: broken"), 1);
	ck_assert_uint_eq(stage_logged(&stage, "4", "degraded: good_host.first"), 1);

	stage_ini(&stage, "[priority]\ngood_host = on\nnull_slot = on\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
}
END_TEST

START_TEST(a_refusal_above_the_winner_degrades_nothing)
{
	stage_plugin(&stage, "refuses_with_reason");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "[priority]\nrefuses_with_reason = on\nlast_resort = on\n");
	stage_open(&stage);
	CHOSEN(NULL, "hidden=96");
	ck_assert_str_eq(stage_winner(&stage), "last_resort.any");
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
}
END_TEST

START_TEST(who_requires_emulation_gets_it_undegraded)
{
	stage_plugin(&stage, "good_host");
	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, "on_degraded = error\n");
	stage_open(&stage);
	CHOSEN("require last_resort", NULL);
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
	/* excluded is disabled, and emulation stands in for it */
	REFUSED("exclude good_host", NULL);
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
}
END_TEST

START_TEST(on_degraded_allows_warns_or_refuses)
{
	static const char ini[] = "[priority]\nrdna3 = on\naiter_mxfp4 = on\n"
				  "last_resort = on\n";
	char text[256];

	stage_plugin(&stage, "last_resort");
	stage_ini(&stage, ini);
	stage_open(&stage);
	for (int i = 0; i < 3; i++)
		CHOSEN(NULL, NULL);
	ck_assert_uint_eq(stage_logged(&stage, "4", ""), 1);
	ck_assert_uint_eq(
		stage_logged(&stage, "4", "rdna3 missing, aiter_mxfp4 missing"), 1);

	snprintf(text, sizeof(text), "on_degraded = allow\n%s", ini);
	stage_ini(&stage, text);
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_uint_eq(stage_logged(&stage, "4", ""), 0);
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);

	snprintf(text, sizeof(text), "on_degraded = error\n%s", ini);
	stage_ini(&stage, text);
	stage_open(&stage);
	REFUSED(NULL, NULL);
	ck_assert_ptr_null(moek_choice_winner(stage.choice));
	ck_assert_ptr_null(moek_choice_backend(stage.choice));
	ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "rdna3 missing"));
}
END_TEST

/* ---- the next choice ---- */

START_TEST(who_fails_to_be_made_is_marked_and_the_next_one_wins)
{
	struct moek_choice *next, *last;
	struct moek_choice *first;

	stage_plugin(&stage, "create_fails_for_memory");
	stage_plugin(&stage, "good_host");
	stage_ini(&stage,
	          "[priority]\ncreate_fails_for_memory = on\ngood_host.first = on\n"
	          "good_host.second = off\n");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	ck_assert_str_eq(stage_winner(&stage), "create_fails_for_memory.any");
	ck_assert_int_eq(moek_choice_next(stage.choice, MOEK_NO_MEMORY,
	                                  "48 GiB do not fit", &next, &stage.error),
	                 MOEK_OK);
	first = stage.choice;
	ck_assert_str_eq(moek_choice_winner(first), "create_fails_for_memory.any");
	ck_assert_int_eq(moek_choice_degraded(first), 0);

	stage.choice = next;
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
	STATE("create_fails_for_memory.any", "failed: 48 GiB do not fit");
	ck_assert_int_eq(
		stage_candidate(&stage, "create_fails_for_memory.any").verdict->rule,
		MOEK_RULE_MEMORY);
	ck_assert_int_eq(moek_choice_degraded(next), 1);
	ck_assert_str_eq(moek_choice_backend(next)->name, "good_host.first");

	last = NULL;
	ck_assert_int_eq(moek_choice_next(next, MOEK_DEVICE, "the card fell off", &last,
	                                  &stage.error),
	                 MOEK_REFUSED);
	ck_assert_ptr_null(last);
	ck_assert_ptr_nonnull(
		strstr(stage.error.text, "good_host.first: failed: the card"));
	moek_choice_destroy(first);
}
END_TEST

START_TEST(require_has_no_next_one)
{
	struct moek_choice *next = NULL;

	stage_plugin(&stage, "create_fails_for_memory");
	stage_plugin(&stage, "good_host");
	stage_open(&stage);
	CHOSEN("require create_fails_for_memory", NULL);
	ck_assert_int_eq(moek_choice_next(stage.choice, MOEK_NO_MEMORY, "no room",
	                                  &next, &stage.error),
	                 MOEK_REFUSED);
	ck_assert_ptr_null(next);
	ck_assert_uint_eq(stage.error.rule, MOEK_RULE_MEMORY);
	/* not even other experts of the same plugin */
	CHOSEN("require good_host", NULL);
	STATE("good_host.second", "ready: outranked");
	ck_assert_int_eq(moek_choice_next(stage.choice, MOEK_NO_MEMORY, "no room",
	                                  &next, &stage.error),
	                 MOEK_REFUSED);
	ck_assert_ptr_null(next);
}
END_TEST

START_TEST(a_retained_choice_outlives_its_first_owner)
{
	struct moek_choice *again;

	stage_plugin(&stage, "good_host");
	stage_open(&stage);
	CHOSEN(NULL, NULL);
	again = moek_choice_retain(stage.choice);
	moek_choice_destroy(stage.choice);
	stage.choice = again;
	ck_assert_str_eq(stage_winner(&stage), "good_host.first");
}
END_TEST

/* ---- the error ---- */

START_TEST(a_refusal_tells_those_of_this_machine_first)
{
	const char *near, *far;

	stage_plugin(&stage, "fake_gpu");
	stage_plugin(&stage, "refuses_with_reason");
	stage_ini(
		&stage,
		"[priority]\nfake_gpu = on\nnot_here = on\nrefuses_with_reason = on\n");
	stage_open(&stage);
	REFUSED(NULL, "hidden=96");
	near = strstr(stage.error.text, "refuses_with_reason.any: refused");
	far = strstr(stage.error.text, "fake_gpu.any: absent");
	ck_assert_ptr_nonnull(near);
	ck_assert_ptr_nonnull(far);
	ck_assert(near < far);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "not_here: missing"));
	ck_assert_ptr_nonnull(strstr(stage.error.text, "no backend runs layers.3"));
}
END_TEST

START_TEST(a_refusal_that_is_too_long_says_how_much_is_missing)
{
	char ini[4096] = "[priority]\n";

	for (int i = 0; i < 80; i++)
		snprintf(ini + strlen(ini), sizeof(ini) - strlen(ini),
		         "a_backend_that_is_not_here_%d = on\n", i);
	stage_ini(&stage, ini);
	stage_open(&stage);
	REFUSED(NULL, NULL);
	ck_assert_uint_lt(strlen(stage.error.text), sizeof(stage.error.text));
	ck_assert_ptr_nonnull(strstr(stage.error.text, "more lines: see the report)"));
	ck_assert_uint_eq(moek_choice_candidates(stage.choice), 80);
}
END_TEST

START_TEST(a_refusal_takes_no_time)
{
	struct timespec from, to;
	double seconds;

	stage_plugin(&stage, "refuses_with_reason");
	stage_plugin(&stage, "fake_gpu");
	stage_plugin(&stage, "null_slot");
	clock_gettime(CLOCK_MONOTONIC, &from);
	stage_open(&stage);
	REFUSED(NULL, "hidden=96");
	clock_gettime(CLOCK_MONOTONIC, &to);
	seconds = (double)(to.tv_sec - from.tv_sec) +
	          1e-9 * (double)(to.tv_nsec - from.tv_nsec);
	ck_assert_msg(seconds < 0.3, "%.3f s", seconds);
}
END_TEST

START_TEST(arguments_are_checked)
{
	struct moek_problem problem = stage_problem();
	struct moek_candidate candidate = { .struct_size = MOEK_INIT(CANDIDATE) };
	struct moek_numerics numerics;

	stage_plugin(&stage, "good_host");
	stage_open(&stage);
	ck_assert_int_eq(moek_choose(NULL, &problem, NULL, NULL, &stage.choice, NULL),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(
		moek_choose(stage.registry, NULL, NULL, NULL, &stage.choice, NULL),
		MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_choose(stage.registry, &problem, NULL, NULL, NULL, NULL),
	                 MOEK_BAD_ARGUMENT);
	CHOSEN(NULL, NULL);
	ck_assert_int_eq(moek_choice_candidate(stage.choice, 2, &candidate),
	                 MOEK_BAD_ARGUMENT);
	candidate.struct_size = 8;
	ck_assert_int_eq(moek_choice_candidate(stage.choice, 0, &candidate),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_int_eq(moek_choice_numerics(stage.choice, &numerics), MOEK_OK);
	ck_assert_uint_eq(numerics.terms, 96);
	moek_choice_destroy(NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("select");
	TCase *tests = tcase_create("select");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, the_order_of_lines_decides);
	tcase_add_test(tests,
	               a_new_file_is_a_candidate_and_a_removed_one_leaves_the_rest);
	tcase_add_test(tests, unlisted_plugins_come_last_by_name);
	tcase_add_test(tests, unlisted_plugins_can_be_ignored_or_an_error);
	tcase_add_test(tests, experts_of_one_plugin_are_ordered_by_their_own_lines);
	tcase_add_test(tests, a_section_for_the_scheme_replaces_the_general_one);
	tcase_add_test(tests, prefer_comes_first_and_going_past_it_is_told);
	tcase_add_test(tests, require_takes_nothing_else);
	tcase_add_test(tests, require_of_what_is_not_there_suggests_a_name);
	tcase_add_test(tests, excluding_everything_is_an_error);
	tcase_add_test(tests, a_request_that_nobody_can_read_is_an_error);
	tcase_add_test(tests, a_problem_that_contradicts_itself_is_an_error);
	tcase_add_test(tests, nobody_installed_names_the_folders);
	tcase_add_test(tests, each_bit_that_is_not_understood_is_named);
	tcase_add_test(tests, on_the_host_the_core_maps_and_weighs);
	tcase_add_test(tests, a_refusal_without_a_reason_is_one_all_the_same);
	tcase_add_test(tests, a_gpu_that_is_there_is_chosen);
	tcase_add_test(tests, no_gpu_is_absent_and_degrades_nothing);
	tcase_add_test(tests, a_gpu_without_its_runtime_is_unusable_and_degrades);
	tcase_add_test(tests, unusable_above_the_winner_degrades_and_below_it_does_not);
	tcase_add_test(tests, a_gpu_without_permission_is_unusable);
	tcase_add_test(tests, a_gpu_without_code_in_the_file_is_unusable);
	tcase_add_test(tests, of_several_devices_the_best_answer_counts);
	tcase_add_test(tests, a_section_for_a_device_counts_where_it_is);
	tcase_add_test(tests, the_most_words_win_and_a_device_before_a_scheme);
	tcase_add_test(tests, off_in_the_ini_is_disabled_and_degrades_emulation);
	tcase_add_test(tests, off_by_the_api_is_disabled);
	tcase_add_test(tests, a_line_of_the_api_changes_a_name_where_it_stands);
	tcase_add_test(tests, off_in_the_general_section_holds_in_a_special_one);
	tcase_add_test(tests, missing_degrades_emulation_alone);
	tcase_add_test(tests, broken_above_the_winner_degrades_and_below_it_does_not);
	tcase_add_test(tests, a_refusal_above_the_winner_degrades_nothing);
	tcase_add_test(tests, who_requires_emulation_gets_it_undegraded);
	tcase_add_test(tests, on_degraded_allows_warns_or_refuses);
	tcase_add_test(tests, who_fails_to_be_made_is_marked_and_the_next_one_wins);
	tcase_add_test(tests, require_has_no_next_one);
	tcase_add_test(tests, a_retained_choice_outlives_its_first_owner);
	tcase_add_test(tests, a_refusal_tells_those_of_this_machine_first);
	tcase_add_test(tests, a_refusal_that_is_too_long_says_how_much_is_missing);
	tcase_add_test(tests, a_refusal_takes_no_time);
	tcase_add_test(tests, arguments_are_checked);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
