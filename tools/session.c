/* SPDX-License-Identifier: MIT */
/* Opening what a command works on; and finding the build tree of an uninstalled tool.
 */
#include "config.h"

#include "tools/ranks.h"
#include "tools/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INT8_GROUP 32 /* columns that share a scale of --activations int8 */

#define MOST_SETTINGS 10 /* with those for the build tree, --shadow, --locked */

/** Cut the last part off @path: 1, or 0 when there is none. */
static int cut(char *path)
{
	char *slash = strrchr(path, '/');

	if (slash == NULL || slash == path)
		return 0;
	*slash = '\0';
	return 1;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

/* 1: @path_out is the build tree that this program was not installed from.
 *
 * The program is BUILD/tools/.libs/moek, or BUILD/tools/moek when all is static. Asking
 * the kernel keeps any path of the build out of the binary. config.status tells a build
 * tree from an installation that happens to have a folder "tools". */
static int find_build_tree(char *path_out, size_t bytes)
{
	char file[4096];
	char *path = path_out;
	ssize_t length = readlink("/proc/self/exe", path, bytes - 1);

	if (length <= 0 || (size_t)length >= bytes - 1)
		return 0;
	path[length] = '\0';
	if (!cut(path))
		return 0;
	if (strcmp(last_part(path), ".libs") == 0 && !cut(path))
		return 0;
	if (strcmp(last_part(path), "tools") != 0 || !cut(path))
		return 0;
	return snprintf(file, sizeof(file), "%s/config.status", path) <
	               (int)sizeof(file) &&
	       access(file, R_OK) == 0;
}

static void print_log(void *self, uint32_t level, const char *text)
{
	(void)self;
	if (level <= 4)
		tool_say("%s: %s", level <= 3 ? "error" : "warning", text);
}

/** The folder of @build as the last one to search, its moek.ini as the one to read. */
static void use_build_tree(const struct options *options, const char *build,
                           char plugins[4096], char config[4096],
                           struct moek_registry_options *registry_options)
{
	size_t dirs = 0;

	if (snprintf(plugins, 4096, "%s/plugins/.libs", build) >= 4096 ||
	    snprintf(config, 4096, "%s/conf/moek.ini", build) >= 4096)
		return;
	while (options->plugin_dirs[dirs] != NULL)
		dirs++;
	options->plugin_dirs[dirs] = plugins;
	if (options->config == NULL && getenv("MOEK_CONFIG") == NULL)
		registry_options->config_file = config;
}

int32_t tool_registry(const struct options *options,
                      struct moek_registry **registry_out, struct moek_error *error_out)
{
	const struct moek_setting none = { 0 };

	return tool_registry_with(options, &none, 0, registry_out, error_out);
}

int32_t tool_registry_with(const struct options *options,
                           const struct moek_setting *settings, size_t count,
                           struct moek_registry **registry_out,
                           struct moek_error *error_out)
{
	struct moek_registry_options registry_options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.threads = (uint32_t)options->threads,
		.config_file = options->config,
		.plugin_dirs = options->plugin_dirs,
		.facts_file = options->facts,
		.workers = options->workers,
		.log = print_log,
		.checks = options->checks,
	};
	char build[4000], plugins[4096], config[4096], helper[4096], shadow[24];
	char lock[PATH_MAX];
	struct moek_setting all[MOST_SETTINGS];
	size_t dirs = 0;
	int32_t status;

	memcpy(all, settings, count * sizeof(*settings));
	registry_options.settings = all;
	registry_options.setting_count = count;
	if (options->shadow != 0) {
		snprintf(shadow, sizeof(shadow), "%llu",
		         (unsigned long long)options->shadow);
		all[registry_options.setting_count++] = (struct moek_setting){
			"registry", "shadow", shadow
		};
	}
	if (options->locked != NULL) {
		if (realpath(options->locked, lock) == NULL)
			return tool_error(error_out, MOEK_BAD_FILE, "%s: %s",
			                  options->locked, strerror(errno));
		all[registry_options.setting_count++] = (struct moek_setting){
			"registry", "lock", lock
		};
	}
	while (options->plugin_dirs[dirs] != NULL)
		dirs++;
	if (find_build_tree(build, sizeof(build))) {
		use_build_tree(options, build, plugins, config, &registry_options);
		snprintf(helper, sizeof(helper), "%s/core/moek-probe", build);
		all[registry_options.setting_count++] = (struct moek_setting){
			"registry", "probe_helper", helper
		};
	}
	status = moek_registry_open(&registry_options, registry_out, error_out);
	options->plugin_dirs[dirs] = NULL; /* there may be a next one */
	return status;
}

int tool_wants_layer(const struct options *options, uint32_t number)
{
	return number >= options->first_layer && number <= options->last_layer;
}

/** MOEK_BAD_ARGUMENT when --layer or --layers leaves none of the checkpoint's. */
static int32_t check_layers(const struct options *options,
                            const struct moek_checkpoint *checkpoint,
                            struct moek_error *error_out)
{
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	uint64_t count = moek_checkpoint_layers(checkpoint);

	for (uint64_t i = 0; i < count; i++)
		if (moek_checkpoint_layer(checkpoint, i, &info) == MOEK_OK &&
		    tool_wants_layer(options, info.number))
			return MOEK_OK;
	if (count == 0)
		return tool_error(error_out, MOEK_BAD_FILE, "%s: no expert layer found",
		                  options->checkpoint);
	return tool_error(error_out, MOEK_BAD_ARGUMENT,
	                  "%s: no expert layer of the number asked for; the last is %u",
	                  options->checkpoint, info.number);
}

/** The experts of this rank, or of its group of @shards ranks, as
 * moek_ep_layer_create() deals them out. */
static int32_t map_rank(const struct ranks *ranks, uint32_t shards, uint64_t experts,
                        struct session *session, struct moek_error *error_out)
{
	const struct moek_placing placing = {
		.struct_size = MOEK_INIT(PLACING),
		.experts = experts,
		.ranks = (uint64_t)ranks->count / (shards > 1 ? shards : 1),
	};
	uint64_t group = (uint64_t)ranks->rank / (shards > 1 ? shards : 1);
	uint8_t *placement = calloc(experts, placing.ranks);
	int32_t status = placement == NULL
	                         ? tool_error(error_out, MOEK_NO_MEMORY,
	                                      "no memory for a map of experts")
	                         : moek_place(&placing, placement, NULL, error_out);

	for (uint64_t e = 0; status == MOEK_OK && e < experts; e++)
		session->expert_map[e] = placement[group * experts + e]
		                                 ? (int32_t)session->experts_local++
		                                 : -1;
	free(placement);
	if (status == MOEK_OK && placing.ranks > experts)
		return tool_error(error_out, MOEK_BAD_ARGUMENT,
		                  "%llu ranks%s for %llu experts: start fewer",
		                  (unsigned long long)placing.ranks,
		                  shards > 1 ? " or groups" : "",
		                  (unsigned long long)experts);
	return status;
}

static int32_t read_experts(const struct options *options, struct session *session,
                            struct moek_error *error_out)
{
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };

	if (options->experts == NULL && options->ranks == NULL)
		return MOEK_OK;
	/* the same in every layer */
	moek_checkpoint_problem(session->checkpoint, 0, &problem);
	session->expert_map = calloc(problem.experts, sizeof(*session->expert_map));
	if (session->expert_map == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "no memory for a map of experts");
	if (options->ranks != NULL)
		return map_rank(options->ranks, options->shards, problem.experts,
		                session, error_out);
	return moek_expert_map_parse(options->experts, problem.experts,
	                             session->expert_map, &session->experts_local,
	                             error_out);
}

void tool_problem(const struct session *session, uint64_t index,
                  struct moek_problem *problem_out)
{
	problem_out->struct_size = MOEK_INIT(PROBLEM);
	moek_checkpoint_problem(session->checkpoint, index, problem_out);
	if (session->expert_map == NULL)
		return;
	problem_out->experts_local = session->experts_local;
	problem_out->must_understand |= MOEK_EXPERT_MAP;
}

int32_t tool_open_checkpoint(const struct options *options,
                             struct moek_registry *registry,
                             struct moek_checkpoint **checkpoint_out,
                             struct moek_error *error_out)
{
	const struct moek_checkpoint_options checkpoint_options = {
		.struct_size = MOEK_INIT(CHECKPOINT_OPTIONS),
		.family_file = options->family_file,
		.shard = options->shard,
		.shards = options->shards,
	};
	struct moek_checkpoint *checkpoint = NULL;
	int32_t status = moek_checkpoint_open_with(registry, options->checkpoint,
	                                           &checkpoint_options, &checkpoint,
	                                           error_out);

	if (status != MOEK_OK)
		return status;
	status = check_layers(options, checkpoint, error_out);
	if (status != MOEK_OK) {
		moek_checkpoint_close(checkpoint);
		return status;
	}
	*checkpoint_out = checkpoint;
	return MOEK_OK;
}

void tool_set_activations(const struct options *options, struct moek_problem *problem)
{
	if (options->activations == NULL)
		return;
	problem->activations = options->inputs;
	problem->activations_group = options->inputs == MOEK_A8_INT8 ? INT8_GROUP : 0;
}

/** Who asks may depart from what the checkpoint asks, but never unnoticed; and static
 *  scales must be there. */
static int32_t check_activations(const struct options *options,
                                 const struct session *session,
                                 struct moek_error *error_out)
{
	struct alike alike;

	for (uint64_t from = 0;
	     options->activations != NULL && tool_alike(options, session, from, &alike);
	     from = alike.first + alike.count) {
		const struct moek_problem *problem = &alike.problem;
		const char *stored = moek_activations_name(problem->activations);

		if (problem->activations == options->inputs)
			continue;
		if (options->inputs == MOEK_A8_FP8_STATIC &&
		    (!problem->gate_up.input_scale || !problem->down.input_scale))
			return tool_error(
				error_out, MOEK_REFUSED,
				"%s: --activations %s needs input scales; the "
				"checkpoint is for activations %s and has none",
				alike.label, options->activations, stored);
		if (session->ranks == NULL || session->ranks->rank == 0)
			tool_say(
				"warning: %s: activations %s as asked, in place of the "
				"checkpoint's %s",
				alike.label, options->activations, stored);
	}
	return MOEK_OK;
}

int32_t tool_open(const struct options *options, struct session *session_out,
                  struct moek_error *error_out)
{
	struct session session = { .ranks = options->ranks };
	int32_t status = tool_registry(options, &session.registry, error_out);

	if (session.ranks != NULL)
		status = session.ranks->open(
			session.ranks, status == MOEK_OK ? session.registry : NULL,
			error_out);
	if (status != MOEK_OK) {
		tool_close(&session);
		return status;
	}
	status = tool_open_checkpoint(options, session.registry, &session.checkpoint,
	                              error_out);
	if (status == MOEK_OK)
		status = read_experts(options, &session, error_out);
	if (status == MOEK_OK)
		status = check_activations(options, &session, error_out);
	status = ranks_agree(session.ranks, status, error_out);
	if (status == MOEK_OK && session.ranks != NULL)
		status = session.ranks->same_checkpoint(session.ranks,
		                                        session.checkpoint, error_out);
	if (status != MOEK_OK) {
		tool_close(&session);
		return status;
	}
	*session_out = session;
	return MOEK_OK;
}

void tool_close(struct session *session)
{
	if (session->ranks != NULL)
		session->ranks->close(session->ranks);
	moek_checkpoint_close(session->checkpoint);
	moek_registry_close(session->registry);
	free(session->expert_map);
	session->expert_map = NULL;
	session->checkpoint = NULL;
	session->registry = NULL;
}

static int same_but_number(const struct moek_layer_info *a,
                           const struct moek_layer_info *b)
{
	return a->weight_bytes == b->weight_bytes &&
	       a->shared_bytes == b->shared_bytes &&
	       strcmp(a->unrouted, b->unrouted) == 0 &&
	       strcmp(a->family, b->family) == 0 && strcmp(a->format, b->format) == 0;
}

/** Layer @index: 1, or 0 when it is not there or not wanted. */
static int get_layer(const struct options *options, const struct session *session,
                     uint64_t index, struct moek_layer_info *info_out,
                     struct moek_problem *problem_out)
{
	info_out->struct_size = MOEK_INIT(LAYER_INFO);
	if (moek_checkpoint_layer(session->checkpoint, index, info_out) != MOEK_OK)
		return 0;
	tool_problem(session, index, problem_out);
	return tool_wants_layer(options, info_out->number);
}

int tool_alike(const struct options *options, const struct session *session,
               uint64_t from, struct alike *alike_out)
{
	struct moek_layer_info info = { 0 };
	struct moek_problem problem = { 0 };
	uint64_t count = moek_checkpoint_layers(session->checkpoint);

	memset(alike_out, 0, sizeof(*alike_out));
	while (from < count && !get_layer(options, session, from, &alike_out->info,
	                                  &alike_out->problem))
		from++;
	if (from >= count)
		return 0;
	alike_out->first = from;
	alike_out->count = 1;
	while (get_layer(options, session, from + alike_out->count, &info, &problem) &&
	       same_but_number(&info, &alike_out->info) &&
	       memcmp(&problem, &alike_out->problem, sizeof(problem)) == 0)
		alike_out->count++;
	if (alike_out->count == 1)
		snprintf(alike_out->label, sizeof(alike_out->label), "%s",
		         alike_out->info.name);
	else
		snprintf(alike_out->label, sizeof(alike_out->label), "%s-%llu",
		         alike_out->info.name,
		         (unsigned long long)(alike_out->info.number +
		                              alike_out->count - 1));
	return 1;
}
