/* SPDX-License-Identifier: MIT */
/* A stage for tests of the registry: a scratch folder with a moek.ini and plugin files,
 * and a registry opened on them, hermetically. One at a time. */
#ifndef MOEK_TESTS_STAGE_H
#define MOEK_TESTS_STAGE_H

#include <moek/moek.h>

#include <stddef.h>

struct stage {
	char folder[512];  /* absolute; moek.ini is in it */
	char plugins[600]; /* its folder of plugins, named by the stage's INI */
	struct moek_registry_options options; /* change it before stage_open() */
	struct moek_registry *registry;
	struct moek_choice *choice; /* of the last stage_choose() */
	struct moek_error error;
	char log[16384]; /* "6 text\n" for each line */
	size_t log_used;
};

/** An empty stage: no plugin, and an INI that says where plugins are and nothing else.
 */
void stage_begin(struct stage *stage);
/** Closes and deletes everything. */
void stage_end(struct stage *stage);

/** Copy NAME.so of the fakes, or of the zoo, into the stage's folder of plugins. */
void stage_plugin(struct stage *stage, const char *name);
/** The same under another folder of the stage, made when it is not there. */
void stage_plugin_in(struct stage *stage, const char *folder, const char *name);
void stage_remove(struct stage *stage, const char *name);
/** Write FOLDER/NAME. */
void stage_file(struct stage *stage, const char *name, const char *text);
/** Write moek.ini: [registry] with plugin_dirs, and then @text, which may go on in it.
 */
void stage_ini(struct stage *stage, const char *text);

/** Open again whatever was open. The status. */
int32_t stage_try_open(struct stage *stage);
void stage_open(struct stage *stage);

/** A small problem that everybody runs: mxfp4, 8 experts, top 2, hidden 64. */
struct moek_problem stage_problem(void);
/** Choose for stage_problem(), with "key=value,..." over it. The status. */
int32_t stage_choose(struct stage *stage, const char *request, const char *over);
/** The winner's name, or "". */
const char *stage_winner(const struct stage *stage);
/** The candidate @name of the last choice; fails the test if there is none. */
struct moek_candidate stage_candidate(const struct stage *stage, const char *name);
/** "missing: not installed" of it. Static memory. */
const char *stage_state(const struct stage *stage, const char *name);
/** How many lines of the log begin with @level ("4") and hold @text. */
size_t stage_logged(const struct stage *stage, const char *level, const char *text);

#endif
