/* SPDX-License-Identifier: MIT */
/* 10,000 random corruptions of a plugin file and of its note. Listing survives each of
 * them; so does a choice with `probe = always`, on a sample of $MOEK_CORRUPTIONS (300).
 * A failing one is named by its number, from which it is made again. */
#include "config.h"

#include "kit.h"
#include "stage.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CORRUPTIONS 10000
#define BATCH 100

static struct stage stage;
static char *sound, *damaged;
static size_t sound_bytes, note_at, note_bytes;

static void begin(void)
{
	static const char first[] = "abi=";
	char path[1024];
	const char *note;

	stage_begin(&stage);
	snprintf(path, sizeof(path), "%s/noted.so", getenv("MOEK_TEST_FAKES"));
	sound = kit_read(path, &sound_bytes);
	damaged = malloc(sound_bytes);
	ck_assert_ptr_nonnull(damaged);
	note = memmem(sound, sound_bytes, first, strlen(first));
	ck_assert_ptr_nonnull(note);
	note_at = (size_t)(note - sound);
	note_bytes = strlen(note);
}

static void end(void)
{
	free(sound);
	free(damaged);
	stage_end(&stage);
}

static size_t below(uint32_t *state, size_t limit)
{
	return ((size_t)kit_random(state) << 16 ^ kit_random(state)) % limit;
}

/** Corruption @number in `damaged`; its length. */
static size_t corrupt(uint32_t number)
{
	uint32_t state = number * 2654435761u + 1;
	/* where: the note, the headers, the last quarter with the sections, anywhere */
	size_t from[] = { note_at - 20, 0, sound_bytes - sound_bytes / 4, 0 };
	size_t over[] = { note_bytes + 20, 1024, sound_bytes / 4, sound_bytes };
	size_t where = below(&state, 4), count = 1 + below(&state, 8);

	memcpy(damaged, sound, sound_bytes);
	if (below(&state, 16) == 0)
		return below(&state, sound_bytes);
	for (size_t i = 0; i < count; i++) {
		char *byte = damaged + from[where] + below(&state, over[where]);

		switch (below(&state, 4)) {
		case 0:
			*byte = (char)kit_random(&state);
			break;
		case 1:
			*byte = (char)0xff;
			break;
		case 2:
			*byte = 0;
			break;
		default:
			*byte ^= (char)(1u << below(&state, 8));
		}
	}
	return sound_bytes;
}

START_TEST(listing_survives_every_corruption)
{
	size_t kept = 0;

	for (uint32_t number = 0; number < CORRUPTIONS; number += BATCH) {
		char path[1024], *report;

		for (uint32_t i = 0; i < BATCH; i++) {
			snprintf(path, sizeof(path), "%s/c%02u.so", stage.plugins, i);
			unlink(path); /* else the file system waits for its disk */
			kit_write(path, damaged, corrupt(number + i));
		}
		stage_open(&stage);
		report = moek_registry_listing(stage.registry, MOEK_TEXT);
		ck_assert_ptr_nonnull(report);
		for (const char *at = report; (at = strstr(at, "file's 'c")) != NULL;
		     at++)
			kept++;
		moek_free(report);
	}
	/* those whose note is whole are told by their name alone */
	ck_assert_uint_gt(kept, CORRUPTIONS / 4);
	ck_assert_uint_lt(kept, CORRUPTIONS * 9 / 10);
}
END_TEST

/** What becomes of it, and of the good one beside it. */
static uint32_t choose_beside(uint32_t number)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/noted.so", stage.plugins);
	unlink(path); /* this process has the one before mapped */
	kit_write(path, damaged, corrupt(number));
	stage_open(&stage);
	ck_assert_msg(stage_choose(&stage, NULL, NULL) == MOEK_OK, "%s",
	              stage.error.text);
	for (uint64_t i = 0; i < moek_choice_candidates(stage.choice); i++) {
		struct moek_candidate candidate = { .struct_size = MOEK_INIT(
							    CANDIDATE) };

		moek_choice_candidate(stage.choice, i, &candidate);
		if (strncmp(candidate.name, "noted", 5) == 0)
			return candidate.state;
	}
	return MOEK_STATE_MISSING;
}

START_TEST(a_choice_survives_every_corruption_that_it_probes)
{
	const char *wanted = getenv("MOEK_CORRUPTIONS");
	uint32_t count = wanted != NULL ? (uint32_t)strtoul(wanted, NULL, 10) : 300;
	uint32_t number, tally[16] = { 0 };
	char ini[1024];

	if (count == 0 || count > CORRUPTIONS)
		count = CORRUPTIONS;
	stage_plugin(&stage, "good_host");
	snprintf(
		ini, sizeof(ini),
		"probe = always\nprobe_seconds = 2\nprobe_helper = %s/core/moek-probe\n"
		"[priority]\nnoted = on\ngood_host = on\n",
		getenv("MOEK_TEST_BUILD"));
	stage_ini(&stage, ini);
	for (uint32_t i = 0; i < count; i++) {
		number = i * (CORRUPTIONS / count);
		/* for whoever looks for the one that ended this process */
		kit_write("corrupt.number", &number, sizeof(number));
		tally[choose_beside(number)]++;
	}
	unlink("corrupt.number");
	printf("# of %u corrupt files, %u were broken, %u no plugins, %u ran all the "
	       "same\n",
	       count, tally[MOEK_STATE_BROKEN], tally[MOEK_STATE_NOT_PLUGIN],
	       tally[MOEK_STATE_CHOSEN]);
	ck_assert_uint_gt(tally[MOEK_STATE_BROKEN], count / 4);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("corrupt");
	TCase *tests = tcase_create("corrupt");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, listing_survives_every_corruption);
	tcase_add_test(tests, a_choice_survives_every_corruption_that_it_probes);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
