/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "stage.h"

#include "kit.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_log(void *self, uint32_t level, const char *text)
{
	struct stage *stage = self;
	size_t room = sizeof(stage->log) - stage->log_used;
	int length = snprintf(stage->log + stage->log_used, room, "%u %s\n", level,
	                      text);

	ck_assert(length > 0 && (size_t)length < room);
	stage->log_used += (size_t)length;
}

void stage_begin(struct stage *stage)
{
	char here[256];

	memset(stage, 0, sizeof(*stage));
	ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
	snprintf(stage->folder, sizeof(stage->folder), "%s/%s", here, kit_folder());
	snprintf(stage->plugins, sizeof(stage->plugins), "%s/plugins", stage->folder);
	ck_assert_int_eq(mkdir(stage->plugins, 0777), 0);
	stage->options = (struct moek_registry_options){
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.threads = 1,
		.log = write_log,
		.log_self = stage,
		.ignore_environment = 1,
	};
	stage_ini(stage, "");
}

static void close_all(struct stage *stage)
{
	moek_choice_destroy(stage->choice);
	stage->choice = NULL;
	moek_registry_close(stage->registry);
	stage->registry = NULL;
}

void stage_end(struct stage *stage)
{
	close_all(stage);
	kit_clean();
}

void stage_plugin_in(struct stage *stage, const char *folder, const char *name)
{
	char from[1024], to[1024];
	size_t count;
	char *bytes;

	ck_assert_ptr_nonnull(getenv("MOEK_TEST_FAKES"));
	snprintf(from, sizeof(from), "%s/%s.so", getenv("MOEK_TEST_FAKES"), name);
	if (access(from, R_OK) != 0)
		snprintf(from, sizeof(from), "%s/%s.so", getenv("MOEK_TEST_ZOO"), name);
	snprintf(to, sizeof(to), "%s/%s", stage->folder, folder);
	mkdir(to, 0777);
	snprintf(to, sizeof(to), "%s/%s/%s.so", stage->folder, folder, name);
	bytes = kit_read(from, &count);
	kit_write(to, bytes, count);
	free(bytes);
}

void stage_plugin(struct stage *stage, const char *name)
{
	stage_plugin_in(stage, "plugins", name);
}

void stage_remove(struct stage *stage, const char *name)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/%s.so", stage->plugins, name);
	ck_assert_int_eq(unlink(path), 0);
}

void stage_file(struct stage *stage, const char *name, const char *text)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/%s", stage->folder, name);
	kit_write(path, text, strlen(text));
}

void stage_ini(struct stage *stage, const char *text)
{
	static char whole[8192];

	ck_assert_uint_lt(strlen(text), sizeof(whole) - 64);
	snprintf(whole, sizeof(whole), "[registry]\nplugin_dirs = plugins\n%s", text);
	stage_file(stage, "moek.ini", whole);
}

int32_t stage_try_open(struct stage *stage)
{
	char path[1024];
	const char *wanted = stage->options.config_file;
	int32_t status;

	close_all(stage);
	stage->log_used = 0;
	stage->log[0] = '\0';
	memset(&stage->error, 0, sizeof(stage->error));
	snprintf(path, sizeof(path), "%s/moek.ini", stage->folder);
	if (wanted == NULL)
		stage->options.config_file = path;
	status = moek_registry_open(&stage->options, &stage->registry, &stage->error);
	stage->options.config_file = wanted;
	return status;
}

void stage_open(struct stage *stage)
{
	ck_assert_msg(stage_try_open(stage) == MOEK_OK, "%s", stage->error.text);
}

struct moek_problem stage_problem(void)
{
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_error error;

	ck_assert_msg(moek_problem_parse("experts=8,top_k=2,hidden=64,intermediate=32,"
	                                 "weight=mxfp4,max_tokens=16,input_type=bf16,"
	                                 "output_type=bf16,activation=silu,gated=1",
	                                 &problem, &error) == MOEK_OK,
	              "%s", error.text);
	return problem;
}

int32_t stage_choose(struct stage *stage, const char *request, const char *over)
{
	struct moek_problem problem = stage_problem();

	moek_choice_destroy(stage->choice);
	stage->choice = NULL;
	memset(&stage->error, 0, sizeof(stage->error));
	if (over != NULL)
		ck_assert_msg(moek_problem_parse(over, &problem, &stage->error) ==
		                      MOEK_OK,
		              "%s", stage->error.text);
	return moek_choose(stage->registry, &problem, request, "layers.3",
	                   &stage->choice, &stage->error);
}

const char *stage_winner(const struct stage *stage)
{
	const char *name = stage->choice != NULL ? moek_choice_winner(stage->choice)
	                                         : NULL;

	return name != NULL ? name : "";
}

struct moek_candidate stage_candidate(const struct stage *stage, const char *name)
{
	struct moek_candidate candidate = { .struct_size = MOEK_INIT(CANDIDATE) };

	for (uint64_t i = 0; i < moek_choice_candidates(stage->choice); i++) {
		ck_assert_int_eq(moek_choice_candidate(stage->choice, i, &candidate),
		                 MOEK_OK);
		if (strcmp(candidate.name, name) == 0)
			return candidate;
	}
	ck_abort_msg("no candidate %s", name);
	return candidate;
}

const char *stage_state(const struct stage *stage, const char *name)
{
	static char texts[4][1024];
	static unsigned next;
	struct moek_candidate candidate = stage_candidate(stage, name);
	char *text = texts[next++ % 4];

	snprintf(text, sizeof(texts[0]), "%s%s%s%s%s", moek_state_name(candidate.state),
	         candidate.found[0] != '\0' ? ": " : "", candidate.found,
	         candidate.accepted[0] != '\0' ? ", accepts " : "", candidate.accepted);
	return text;
}

size_t stage_logged(const struct stage *stage, const char *level, const char *text)
{
	size_t count = 0;

	for (const char *line = stage->log; *line != '\0';) {
		const char *end = strchr(line, '\n'), *at = strstr(line, text);

		if (strncmp(line, level, strlen(level)) == 0 && at != NULL && at < end)
			count++;
		line = end + 1;
	}
	return count;
}
