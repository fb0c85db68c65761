/* SPDX-License-Identifier: MIT */
/*
 * Who runs MXFP4 experts, and why: every card, with and without AITER's kernels,
 * whatever use_aiter says, for each scheme of activations. On any host: the card is a
 * facts file, AITER a folder.
 */
#include "config.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugins/aiter_mxfp4/aiter.h"
#include "stage.h"
#include "tests/gpu/aiter_files.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct stage stage;

static void begin(void)
{
	stage_begin(&stage);
}

static void end(void)
{
	stage_end(&stage);
}

/* ------------------------------------------------------------------------- the matrix
 */

enum device { GFX950, GFX942, GFX1100, NONE };
enum files { FOUND, ABSENT, BROKEN };
static const char *const uses[] = { "auto", "on", "off" };

/* what the report says of the plugin's three backends; OWN and AITER run */
enum why { OWN, AITER, ARCH, LACKS, SPOILT, NO_CARD };

static const struct {
	enum device device;
	enum files files;
	/* auto, on, off: for 16-bit and fp8 activations; then for MXFP4 ones by AITER's
	 * rule. Refusals are the same for all */
	enum why why[3], a4[3];
} matrix[] = {
	{ GFX950, FOUND, { OWN, OWN, OWN }, { AITER, AITER, OWN } },
	{ GFX950, ABSENT, { OWN, LACKS, OWN }, { OWN, LACKS, OWN } },
	{ GFX950, BROKEN, { OWN, SPOILT, OWN }, { OWN, SPOILT, OWN } },
	{ GFX942, FOUND, { ARCH, ARCH, ARCH }, { ARCH, ARCH, ARCH } },
	{ GFX942, ABSENT, { ARCH, ARCH, ARCH }, { ARCH, ARCH, ARCH } },
	{ GFX942, BROKEN, { ARCH, ARCH, ARCH }, { ARCH, ARCH, ARCH } },
	{ GFX1100, FOUND, { ARCH, ARCH, ARCH }, { ARCH, ARCH, ARCH } },
	{ GFX1100, ABSENT, { ARCH, ARCH, ARCH }, { ARCH, ARCH, ARCH } },
	{ GFX1100, BROKEN, { ARCH, ARCH, ARCH }, { ARCH, ARCH, ARCH } },
	{ NONE, FOUND, { NO_CARD, NO_CARD, NO_CARD }, { NO_CARD, NO_CARD, NO_CARD } },
	{ NONE, ABSENT, { NO_CARD, NO_CARD, NO_CARD }, { NO_CARD, NO_CARD, NO_CARD } },
	{ NONE, BROKEN, { NO_CARD, NO_CARD, NO_CARD }, { NO_CARD, NO_CARD, NO_CARD } },
};

/* activations, the backend that has them, and what the others say */
static const struct {
	const char *over, *backend;
	int a4;
} schemes[] = {
	{ "activations=a16", "w4a16", 0 },
	{ "activations=fp8_static,input_scale=1", "w4a8", 0 },
	{ "activations=mxfp4_round_up", "w4a4", 1 },
};

static void open_machine(enum device device, enum files files, const char *use)
{
	static const char *const archs[] = { "gfx950", "gfx942", "gfx1100", NULL };
	static const char *dirs[2];
	static char facts[1024];
	char text[2048];

	snprintf(text, sizeof(text),
	         "{ \"host\": { \"arch\": \"x86_64\", \"features\": \"\" }, "
	         "\"devices\": ["
	         "%s%s%s ] }",
	         archs[device] != NULL ? "{ \"kind\": \"hip\", \"arch\": \"" : "",
	         archs[device] != NULL ? archs[device] : "",
	         archs[device] != NULL ? "\", \"compute_units\": 256 }" : "");
	stage_file(&stage, "facts.json", text);
	snprintf(facts, sizeof(facts), "%s/facts.json", stage.folder);
	stage.options.facts_file = facts;
	dirs[0] = getenv("MOEK_TEST_PLUGINS");
	stage.options.plugin_dirs = dirs;

	/* each has a folder of its own */
	if (files != ABSENT)
		aiter_files_create(stage.folder, files == FOUND ? "whole" : "bad",
		                   files == FOUND ? AITER_LIST
		                                  : AITER_HEADER "x,y.co,0\n",
		                   aiter_header, sizeof(aiter_header));
	snprintf(text, sizeof(text),
	         "unlisted = ignore\non_degraded = allow\nprobe = never\n"
	         "[priority]\naiter_mxfp4 = on\nemulation = on\n"
	         "[plugin aiter_mxfp4]\nuse_aiter = %s\naiter_dir = %s/%s\n",
	         use, stage.folder,
	         files == FOUND    ? "whole"
	         : files == BROKEN ? "bad"
	                           : "nothing");
	stage_ini(&stage, text);
	stage_open(&stage);
}

static void expect_refusal(const char *name, enum why why)
{
	const char *state = stage_state(&stage, name);

	switch (why) {
	case ARCH:
		ck_assert_msg(strncmp(state, "unusable: device gfx", 20) == 0, "%s",
		              state);
		return;
	case LACKS:
		/* it says where it looked */
		ck_assert_msg(strncmp(state, "unusable: ", 10) == 0 &&
		                      strstr(state, "no fmoe/silu/*.csv in ") != NULL &&
		                      strstr(state, "/nothing") != NULL,
		              "%s", state);
		return;
	case SPOILT:
		ck_assert_msg(strncmp(state, "unusable: ", 10) == 0 &&
		                      strstr(state,
		                             "fmoe_bf16_pertokenMXfp4_g1u1_silu.csv:2: "
		                             "not ten fields") != NULL,
		              "%s", state);
		return;
	default:
		ck_assert_msg(0, "%s: %s", name, state);
	}
}

static void expect(enum why why, size_t scheme)
{
	struct moek_numerics numerics;
	char own[64], over[128];
	size_t i;

	snprintf(own, sizeof(own), "aiter_mxfp4.%s", schemes[scheme].backend);
	snprintf(over, sizeof(over), "hidden=256,intermediate=256,%s",
	         schemes[scheme].over);
	ck_assert_msg(stage_choose(&stage, "auto", over) == MOEK_OK, "%s",
	              stage.error.text);
	ck_assert_int_eq(moek_choice_numerics(stage.choice, &numerics), MOEK_OK);
	if (why == OWN || why == AITER) {
		ck_assert_str_eq(stage_winner(&stage), own);
		ck_assert_msg((strstr(numerics.text, "AITER") != NULL) ==
		                      (why == AITER),
		              "%s", numerics.text);
		ck_assert_int_eq(numerics.repeatable, why == OWN);
		ck_assert_int_eq(moek_choice_degraded(stage.choice), 0);
	} else {
		ck_assert_str_eq(stage_winner(&stage), "emulation.any");
	}
	for (i = 0; i < COUNT(schemes); i++) {
		char name[64];

		snprintf(name, sizeof(name), "aiter_mxfp4.%s", schemes[i].backend);
		if (why == NO_CARD)
			ck_assert_str_eq(stage_state(&stage, name),
			                 "absent: no such device here");
		else if (why != OWN && why != AITER)
			expect_refusal(name, why);
		else if (i != scheme) /* never another scheme than the one asked for */
			ck_assert_msg(strncmp(stage_state(&stage, name),
			                      "refused: activations ", 21) == 0,
			              "%s: %s", name, stage_state(&stage, name));
	}
	/* a card that was meant to run it and does not: said aloud */
	if (why == ARCH || why == LACKS || why == SPOILT)
		ck_assert_int_eq(moek_choice_degraded(stage.choice), 1);
}

START_TEST(the_winner_and_the_reason_are_these)
{
	size_t use, scheme;

	for (use = 0; use < COUNT(uses); use++)
		for (scheme = 0; scheme < COUNT(schemes); scheme++) {
			open_machine(matrix[_i].device, matrix[_i].files, uses[use]);
			expect(schemes[scheme].a4 ? matrix[_i].a4[use]
			                          : matrix[_i].why[use],
			       scheme);
		}
}
END_TEST

START_TEST(switched_off_it_runs_nowhere_and_says_so)
{
	open_machine(GFX950, FOUND, "auto");
	ck_assert_int_eq(stage_choose(&stage, "exclude aiter_mxfp4", ""), MOEK_OK);
	ck_assert_str_eq(stage_winner(&stage), "emulation.any");
	ck_assert_str_eq(stage_state(&stage, "aiter_mxfp4"), "disabled: excluded by the request");
}
END_TEST

START_TEST(required_it_is_refused_and_nobody_else_runs)
{
	open_machine(GFX950, ABSENT, "on");
	ck_assert_int_eq(stage_choose(&stage, "require aiter_mxfp4", ""), MOEK_REFUSED);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "aiter_mxfp4"));
}
END_TEST

/* a W4A4 checkpoint with the even rule never meets AITER's, which rounds up */
START_TEST(aiter_runs_only_what_it_covers)
{
#define ROUND_UP "activations=mxfp4_round_up,"
#define SIZES "hidden=256,intermediate=256,"
	static const char *const others[] = {
		SIZES "activations=mxfp4_even",
		ROUND_UP "hidden=128,intermediate=256",
		ROUND_UP "hidden=256,intermediate=64",
		SIZES ROUND_UP "activation=gelu",
		SIZES ROUND_UP "limit=7",
		SIZES ROUND_UP "bias=1",
		SIZES ROUND_UP "input_type=fp16,output_type=fp16",
		SIZES ROUND_UP "output_type=fp32",
		SIZES ROUND_UP "experts=32,top_k=17",
	};
	struct moek_numerics numerics;
	size_t i;

	open_machine(GFX950, FOUND, "on");
	ck_assert_int_eq(
		stage_choose(&stage, "auto", SIZES "activations=mxfp4_round_up"),
		MOEK_OK);
	moek_choice_numerics(stage.choice, &numerics);
	ck_assert_ptr_nonnull(strstr(numerics.text, "AITER"));
	for (i = 0; i < COUNT(others); i++) {
		ck_assert_msg(stage_choose(&stage, "auto", others[i]) == MOEK_OK,
		              "%s: %s", others[i], stage.error.text);
		ck_assert_str_eq(stage_winner(&stage), "aiter_mxfp4.w4a4");
		moek_choice_numerics(stage.choice, &numerics);
		ck_assert_msg(strstr(numerics.text, "AITER") == NULL, "%s", others[i]);
	}
}
END_TEST

START_TEST(a_bad_switch_breaks_the_plugin_and_names_itself)
{
	open_machine(GFX950, FOUND, "maybe");
	ck_assert_int_eq(stage_choose(&stage, "auto", ""), MOEK_OK);
	ck_assert_msg(strstr(stage_state(&stage, "aiter_mxfp4"),
	                     "use_aiter = maybe: expected auto, on or off") != NULL,
	              "%s", stage_state(&stage, "aiter_mxfp4"));
}
END_TEST

/* --------------------------------------------------------------------------- the files
 */

static struct aiter aiter;

static void find(const char *below)
{
	char dir[1024];

	snprintf(dir, sizeof(dir), "%s/%s", stage.folder, below);
	memset(&aiter, 0, sizeof(aiter));
	aiter_find(&aiter, dir);
}

/* where the files are, and what aiter_dir may be then */
static const struct {
	const char *below, *dir;
} places[] = {
	{ "gfx950", "gfx950" },                   /* the card's own folder */
	{ "hsa/gfx950", "hsa" },                  /* that of all cards */
	{ "checkout/hsa/gfx950", "checkout" },    /* a checkout */
	{ "site/aiter_meta/hsa/gfx950", "site" }, /* where packages are installed */
	{ "other/aiter_meta/hsa/gfx950", "other/aiter" }, /* the package itself */
};

START_TEST(files_are_found_where_aiter_puts_them)
{
	aiter_files_create(stage.folder, places[_i].below, AITER_LIST, aiter_header,
	                   64);
	stage_file(&stage, "ignore", "");
	if (strcmp(places[_i].dir, "other/aiter") == 0)
		aiter_files_create(stage.folder, "other/aiter/elsewhere", AITER_LIST,
		                   aiter_header, 64);
	find(places[_i].dir);
	ck_assert_int_eq(aiter.state, AITER_FOUND);
	/* of four rows the two that are flat and skip nothing */
	ck_assert_uint_eq(aiter.count, 2);
	ck_assert_str_eq(aiter.kernels[0].name, AITER_SYMBOL("128"));
	ck_assert_uint_eq(aiter.kernels[0].columns, 128);
	ck_assert_uint_eq(aiter.kernels[1].columns, 256);
	ck_assert_uint_eq(aiter.kernels[1].function, MOEK_SILU);
	ck_assert_ptr_nonnull(strstr(aiter.kernels[1].path, AITER_OBJECT("256")));
}
END_TEST

#define ROW(changed) AITER_HEADER AITER_FLAT("128", "2") changed

static const struct {
	const char *list, *cause;
} bad[] = {
	{ "", "g1u1_silu.csv:1: other columns than expected" },
	{ "knl_name,co_name\n", ":1: other columns" },
	{ "knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n\n",
	  ":1: other columns" },
	{ AITER_HEADER, "no flat kernel in its lists" },
	{ ROW("a,b.co,0,0,0,2,0,16,128\n"), ":3: not ten fields" },
	{ ROW("a,b.co,0,0,0,2,0,16,128,1,1\n"), ":3: not ten fields" },
	{ ROW("\n"), ":3: not ten fields" },
	{ ROW("a b,b.co,0,0,0,2,0,16,128,1\n"), ":3: knl_name is no symbol" },
	{ ROW(",b.co,0,0,0,2,0,16,128,1\n"), ":3: knl_name is no symbol" },
	{ ROW("a,../b.co,0,0,0,2,0,16,128,1\n"), ":3: co_name is no file.co" },
	{ ROW("a,b,0,0,0,2,0,16,128,1\n"), ":3: co_name is no file.co" },
	{ ROW("a,b.co,0,0,0,2,0,16,-8,1\n"), ":3: not a number" },
	{ ROW("a,b.co,0,0,0,2,0,16,128,\n"), ":3: not a number" },
	{ ROW("a,b.co,0,0,0,2,0,16,1e2,1\n"), ":3: not a number" },
	{ ROW("a,b.co,0,0,0,2,0,16,0,1\n"), ":3: subGU_n is 0" },
	{ ROW("a,b.co,0,0,0,2,0,16,128,1\n"), ":3: co_name: no code for gfx950" },
	{ AITER_HEADER "a,b.co,0,0,0,2,0,16,128,1", ":2: cut off, or too long" },
};

START_TEST(a_list_is_taken_whole_or_not_at_all)
{
	aiter_files_create(stage.folder, "gfx950", bad[_i].list, aiter_header, 64);
	find("gfx950");
	ck_assert_msg(aiter.state == AITER_BROKEN && strstr(aiter.cause, bad[_i].cause),
	              "%d: %s, not %s", (int)aiter.state, aiter.cause, bad[_i].cause);
}
END_TEST

START_TEST(a_code_object_for_another_card_is_none)
{
	unsigned char other[64];

	memcpy(other, aiter_header, sizeof(other));
	other[48] = 0x4c; /* gfx942 */
	aiter_files_create(stage.folder, "gfx950", AITER_LIST, other, 64);
	find("gfx950");
	ck_assert_int_eq(aiter.state, AITER_BROKEN);
	aiter_files_create(stage.folder, "gfx950", AITER_LIST, aiter_header, 63);
	find("gfx950");
	ck_assert_int_eq(aiter.state, AITER_BROKEN);
	aiter_files_create(stage.folder, "gfx950", AITER_LIST, aiter_header, 64);
	find("gfx950");
	ck_assert_int_eq(aiter.state, AITER_FOUND);
}
END_TEST

START_TEST(without_a_folder_it_says_so)
{
	memset(&aiter, 0, sizeof(aiter));
	aiter_find(&aiter, NULL);
	ck_assert_int_eq(aiter.state, AITER_ABSENT);
	ck_assert_str_eq(aiter.cause, "aiter_dir is not set");
}
END_TEST

/* ------------------------------------------------------------------- choice and launch
 */

/* AITER's own rule, worked by hand for 256 units */
START_TEST(the_tile_with_the_fewest_rounds_then_the_fewest_idle_units_is_chosen)
{
	static const struct {
		uint64_t intermediate, slots;
		uint32_t units, columns; /* 0: none */
	} cases[] = {
		{ 256, 8, 256, 128 }, /* 16 and 8 groups: one round, 240 and 248 idle */
		{ 256, 128, 256, 128 }, /* 256: none idle */
		{ 2048, 32, 256, 256 }, /* 512 and 256: two rounds and one */
		{ 384, 8, 256, 128 },   /* 256 does not divide */
		{ 1024, 96, 256, 256 }, /* 768 and 384: three and two */
		{ 512, 100, 256, 256 }, /* 400 and 200: two and one */
		{ 512, 1, 0, 256 },     /* units unknown: as with one */
		{ 192, 8, 256, 0 },
	};
	struct moek_problem problem = stage_problem();
	const struct aiter_kernel *kernel;
	size_t i;

	aiter_files_create(stage.folder, "gfx950", AITER_LIST, aiter_header, 64);
	find("gfx950");
	for (i = 0; i < COUNT(cases); i++) {
		problem.intermediate = cases[i].intermediate;
		kernel = aiter_choose(&aiter, &problem, cases[i].slots, cases[i].units);
		ck_assert_msg((kernel != NULL ? kernel->columns : 0) ==
		                      cases[i].columns,
		              "case %u: %u", (unsigned int)i,
		              kernel != NULL ? kernel->columns : 0);
	}
}
END_TEST

/* every byte: those of a slot of 16 that are not given are zero, and so is the tail */
START_TEST(the_argument_block_is_this_byte_for_byte)
{
	static const struct {
		unsigned int offset, bytes;
		uint64_t value;
	} slots[] = {
		{ 0, 8, 0x1122334455667700 },  /* output */
		{ 16, 8, 0x1122334455667710 }, /* x */
		{ 32, 8, 0x1122334455667720 }, /* w_gate_up */
		{ 48, 8,
		  0x1122334455667790 }, /* num_valid_ids: the ids, valid memory */
		{ 64, 8, 0x1122334455667730 }, /* w_down */
		{ 80, 8, 0 },                  /* x_scale: none */
		{ 96, 8, 0x1122334455667740 }, /* scales of w_gate_up */
		{ 112, 8, 0x1122334455667750 },
		{ 128, 8, 0 },                  /* smooth scale: none */
		{ 144, 8, 0x1122334455667790 }, /* ids */
		{ 160, 8, 0x11223344556677a0 }, /* weights */
		{ 176, 8, 0x1122334455667790 }, /* sorted_expert_ids: valid memory */
		{ 192, 4, 7168 },               /* dim */
		{ 208, 4, 512 },                /* inter_dim */
		{ 224, 4, 3 },                  /* tokens */
		{ 240, 4, 257 },                /* experts */
		{ 256, 4, 14336 },              /* bytes of a row of x */
		{ 272, 4, 3584 },               /* of gate_up */
		{ 288, 4, 256 },                /* of down */
		{ 304, 4, 14336 },              /* of the output */
		{ 320, 4, 3670016 },            /* 3584 * 2 * 512 */
		{ 336, 4, 1835008 },            /* 256 * 7168 */
		{ 352, 4, 229376 },             /* 1024 * 224 */
		{ 368, 4, 114688 },             /* 7168 * 16 */
		{ 384, 4, 0 },
		{ 400, 4, 9 }, /* topk */
		{ 416, 4, 0 }, /* total_tgs */
		{ 432, 4, 4 }, /* ps_deno: 512 / 128 */
	};
	struct moek_problem problem = stage_problem();
	unsigned char expected[AITER_KERNARG_BYTES] = { 0 },
		      got[AITER_KERNARG_BYTES + 16];
	const struct aiter_call call = {
		.output = (void *)0x1122334455667700,
		.input = (void *)0x1122334455667710,
		.gate_up = (void *)0x1122334455667720,
		.gate_up_scales = (void *)0x1122334455667740,
		.down = (void *)0x1122334455667730,
		.down_scales = (void *)0x1122334455667750,
		.topk_ids = (void *)0x1122334455667790,
		.topk_weights = (void *)0x11223344556677a0,
		.tokens = 3,
		.gate_up_scale_stride = 229376,
		.down_scale_stride = 114688,
	};
	unsigned int i, k;

	problem.hidden = 7168;
	problem.intermediate = 512;
	problem.experts = problem.experts_local = 257;
	problem.top_k = 9;
	for (i = 0; i < COUNT(slots); i++)
		for (k = 0; k < slots[i].bytes; k++)
			expected[slots[i].offset + k] =
				(unsigned char)(slots[i].value >> 8 * k);
	memset(got, 0xa5, sizeof(got));
	aiter_pack(&problem, &call, 128, got);
	for (i = 0; i < AITER_KERNARG_BYTES; i++)
		ck_assert_msg(got[i] == expected[i], "byte %u is %02x, not %02x", i,
		              got[i], expected[i]);
	ck_assert_uint_eq(got[AITER_KERNARG_BYTES], 0xa5);
}
END_TEST

/* has the plugin of this build code for gfx950? */
static int has_code(void)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/plugins/aiter_mxfp4/kernels.gfx950.hsaco",
	         getenv("MOEK_TEST_BUILD"));
	return access(path, R_OK) == 0;
}

int main(void)
{
	Suite *suite = suite_create("aiter_select");
	TCase *tests = tcase_create("aiter_select");
	const int with_code = has_code();
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(tests, begin, end);
	if (with_code) {
		tcase_add_loop_test(tests, the_winner_and_the_reason_are_these, 0,
		                    (int)COUNT(matrix));
		tcase_add_test(tests, switched_off_it_runs_nowhere_and_says_so);
		tcase_add_test(tests, required_it_is_refused_and_nobody_else_runs);
		tcase_add_test(tests, aiter_runs_only_what_it_covers);
	}
	tcase_add_test(tests, a_bad_switch_breaks_the_plugin_and_names_itself);
	tcase_add_loop_test(tests, files_are_found_where_aiter_puts_them, 0,
	                    (int)COUNT(places));
	tcase_add_loop_test(tests, a_list_is_taken_whole_or_not_at_all, 0,
	                    (int)COUNT(bad));
	tcase_add_test(tests, a_code_object_for_another_card_is_none);
	tcase_add_test(tests, without_a_folder_it_says_so);
	tcase_add_test(
		tests,
		the_tile_with_the_fewest_rounds_then_the_fewest_idle_units_is_chosen);
	tcase_add_test(tests, the_argument_block_is_this_byte_for_byte);
	suite_add_tcase(suite, tests);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	if (failed == 0 && !with_code) {
		printf("skipped: the matrix (aiter_mxfp4.so has no code for gfx950)\n");
		return 77;
	}
	return failed != 0;
}
