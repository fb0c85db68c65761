/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/select.h"

#include "core/log.h"
#include "core/priority.h"
#include "core/problem.h"
#include "core/registry.h"
#include "core/report.h"
#include "core/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE SIZE_MAX

/* ---- the request ---- */

static int starts_with(const char *text, const char *word, const char **rest_out)
{
	size_t length = strlen(word);

	if (strncmp(text, word, length) != 0 ||
	    (text[length] != ' ' && text[length] != '\0'))
		return 0;
	*rest_out = text + length;
	return 1;
}

static int is_backend_name(const char *name)
{
	const char *dot = strchr(name, '.');
	char plugin[48];

	if (dot == NULL)
		return moek_plugin_name_is_valid(name);
	if ((size_t)(dot - name) >= sizeof(plugin))
		return 0;
	snprintf(plugin, sizeof(plugin), "%.*s", (int)(dot - name), name);
	return moek_plugin_name_is_valid(plugin) && moek_plugin_name_is_valid(dot + 1);
}

static int32_t parse_names(const char *text, struct moek_request *request_out,
                           struct moek_error *error_out)
{
	while (*text != '\0') {
		size_t length = strcspn(text, ", ");
		char *name = request_out->names[request_out->count];

		if (length != 0) {
			if (request_out->count == MOEK_NAMES_MOST)
				return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
				                 "request: more than %d names",
				                 MOEK_NAMES_MOST);
			snprintf(name, sizeof(request_out->names[0]), "%.*s",
			         (int)(length < 83 ? length : 83), text);
			if (length > 81 || !is_backend_name(name))
				return moek_fail(
					error_out, MOEK_BAD_ARGUMENT, 0,
					"request: '%s' is not a name: plugin or "
					"plugin.experts, of a-z 0-9 _ -",
					name);
			request_out->count++;
		}
		text += length;
		text += strspn(text, ", ");
	}
	return MOEK_OK;
}

static int32_t parse_request(const char *text, struct moek_request *request_out,
                             struct moek_error *error_out)
{
	static const struct {
		const char *word;
		enum moek_mode mode;
	} modes[] = { { "auto", MOEK_AUTO },
		      { "prefer", MOEK_PREFER },
		      { "require", MOEK_REQUIRE },
		      { "exclude", MOEK_EXCLUDE } };
	const char *rest;
	int32_t status;

	memset(request_out, 0, sizeof(*request_out));
	if (text == NULL)
		return MOEK_OK;
	text += strspn(text, " ");
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (!starts_with(text, modes[i].word, &rest))
			continue;
		request_out->mode = modes[i].mode;
		status = parse_names(rest, request_out, error_out);
		if (status != MOEK_OK)
			return status;
		if ((request_out->mode == MOEK_AUTO) != (request_out->count == 0) ||
		    (request_out->mode == MOEK_REQUIRE && request_out->count != 1))
			break;
		return MOEK_OK;
	}
	return moek_fail(
		error_out, MOEK_BAD_ARGUMENT, 0,
		"request '%.100s': expected auto, 'prefer a,b', 'require a' or "
		"'exclude a,b'",
		text);
}

/** Does @pattern ("a" or "a.w4a16") name @name ("a" or "a.w4a16")? */
static int names(const char *pattern, const char *name)
{
	size_t length = strlen(pattern);

	return strncmp(pattern, name, length) == 0 &&
	       (name[length] == '\0' ||
	        (name[length] == '.' && strchr(pattern, '.') == NULL));
}

/** Index in the request of what names @name, or NOWHERE. */
static size_t named_at(const struct moek_request *request, const char *name)
{
	for (size_t i = 0; i < request->count; i++)
		if (names(request->names[i], name))
			return i;
	return NOWHERE;
}

/** Does the request name @plugin, or some of its experts? */
static int concerns(const struct moek_request *request, const char *plugin)
{
	size_t length = strlen(plugin);

	for (size_t i = 0; i < request->count; i++)
		if (strncmp(request->names[i], plugin, length) == 0 &&
		    (request->names[i][length] == '\0' ||
		     request->names[i][length] == '.'))
			return 1;
	return 0;
}

/* ---- entrants ---- */

struct asking {
	struct moek_registry *registry;
	struct moek_choice *choice;
	struct moek_order order;
	int ignore_unlisted;
	int is_survey; /* there is no problem: the device answers */
};

/** The line that speaks of @name: its own, else its plugin's; NULL: unlisted. */
static const struct moek_rank *rank_of(const struct moek_order *order, const char *name)
{
	const struct moek_rank *rank = moek_order_find(order, name);
	const char *dot = strchr(name, '.');
	char plugin[48];

	if (rank != NULL || dot == NULL)
		return rank;
	snprintf(plugin, sizeof(plugin), "%.*s", (int)(dot - name), name);
	return moek_order_find(order, plugin);
}

static struct moek_entrant *add_entrant(struct asking *asking, const char *name,
                                        size_t unlisted_rank, size_t within)
{
	struct moek_choice *choice = asking->choice;
	struct moek_entrant *entrants = realloc(
		choice->entrants, (choice->count + 1) * sizeof(*entrants));
	const struct moek_rank *rank = rank_of(&asking->order, name);
	size_t at = named_at(&choice->request, name);
	struct moek_entrant *entrant;

	if (entrants == NULL)
		return NULL;
	choice->entrants = entrants;
	entrant = &entrants[choice->count++];
	memset(entrant, 0, sizeof(*entrant));
	snprintf(entrant->name, sizeof(entrant->name), "%s", name);
	snprintf(entrant->source, sizeof(entrant->source), "%s",
	         rank != NULL ? moek_origin_short(rank->origin) : "unlisted");
	entrant->path = "";
	entrant->verdict.struct_size = MOEK_VERDICT_SIZE_1_0;
	entrant->is_listed = rank != NULL;
	entrant->is_named = at != NOWHERE && (choice->request.mode == MOEK_PREFER ||
	                                      choice->request.mode == MOEK_REQUIRE);
	entrant->place.preferred = choice->request.mode == MOEK_PREFER ? at : NOWHERE;
	entrant->place.rank = rank != NULL ? (size_t)(rank - asking->order.ranks)
	                                   : asking->order.count + unlisted_rank;
	entrant->place.within = within;
	return entrant;
}

/** Give @entrant the state that goes with @rule, and words for what was found. */
static void settle(struct moek_entrant *entrant, uint32_t state, uint32_t rule,
                   const char *found)
{
	entrant->state = state;
	moek_refuse(&entrant->verdict, rule, 0);
	snprintf(entrant->found, sizeof(entrant->found), "%s", found);
}

/** Where a plugin or experts were switched off before anything was opened. 1: they are.
 */
static int rule_out(struct asking *asking, const char *name, uint32_t *rule_out,
                    const char **origin_out)
{
	const struct moek_request *request = &asking->choice->request;
	char plugin[48];

	*origin_out = "";
	snprintf(plugin, sizeof(plugin), "%.*s", (int)strcspn(name, "."), name);
	*rule_out = MOEK_RULE_DISABLED;
	if (moek_registry_is_off(asking->registry, plugin, origin_out) ||
	    moek_priority_is_off(asking->registry->settings, &asking->order, name,
	                         origin_out))
		return 1;
	/* a line of its own switches experts on though their plugin is off */
	if (strcmp(plugin, name) != 0 &&
	    moek_order_find(&asking->order, name) == NULL &&
	    moek_priority_is_off(asking->registry->settings, &asking->order, plugin,
	                         origin_out))
		return 1;
	*rule_out = MOEK_RULE_EXCLUDED;
	if (request->mode == MOEK_EXCLUDE && named_at(request, name) != NOWHERE)
		return 1;
	*rule_out = MOEK_RULE_NOT_REQUIRED;
	if (request->mode == MOEK_REQUIRE && named_at(request, name) == NOWHERE)
		return 1;
	*rule_out = MOEK_RULE_UNLISTED;
	return asking->ignore_unlisted && rank_of(&asking->order, name) == NULL;
}

static void settle_ruled_out(struct moek_entrant *entrant, uint32_t rule,
                             const char *origin)
{
	char found[512] = "";

	if (rule == MOEK_RULE_DISABLED)
		snprintf(found, sizeof(found), "switched off %s%s",
		         strcmp(origin, "api") == 0 ? "by the " : "at ",
		         moek_origin_short(origin));
	settle(entrant, MOEK_STATE_DISABLED, rule, found);
}

/* ---- asking one table ---- */

/** What a plugin wrote is not trusted: ended, printable, in range. */
static void clean_verdict(struct moek_verdict *verdict)
{
	verdict->struct_size = MOEK_VERDICT_SIZE_1_0;
	verdict->note[sizeof(verdict->note) - 1] = '\0';
	for (char *c = verdict->note; *c != '\0'; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	if (verdict->count > 6)
		verdict->count = 6;
	if (verdict->rule == MOEK_RULE_NONE) {
		moek_refuse(verdict, MOEK_RULE_UNKNOWN_VALUE, 0);
		moek_refuse_note(verdict, "the plugin gave no reason");
	}
}

/** The problem as a backend on @device sees it. */
static struct moek_problem seen_by(const struct moek_problem *problem,
                                   const struct moek_device *device)
{
	struct moek_problem seen = *problem;

	if (device->kind == MOEK_HOST) /* on the host the core maps and weighs */
		seen.must_understand &= ~(MOEK_EXPERT_MAP | MOEK_WEIGHT_ON_INPUT);
	return seen;
}

static uint32_t ask_device(const struct moek_experts *experts,
                           const struct moek_device *device,
                           struct moek_verdict *no_out)
{
	struct moek_device usable = *device;

	usable.cause_rule = 0;
	usable.cause[0] = '\0';
	if (experts->supports_device(&usable, no_out) != 1) {
		clean_verdict(no_out);
		return no_out->rule == MOEK_RULE_DEVICE_KIND ? MOEK_STATE_ABSENT
		                                             : MOEK_STATE_UNUSABLE;
	}
	if (device->cause_rule == 0)
		return MOEK_STATE_READY;
	moek_refuse(no_out, device->cause_rule, 0);
	moek_refuse_note(no_out, device->cause);
	return MOEK_STATE_UNUSABLE;
}

static uint32_t ask_problem(const struct moek_experts *experts,
                            const struct moek_problem *problem,
                            struct moek_verdict *no_out)
{
	uint64_t unknown = problem->must_understand & ~experts->understands;

	if (unknown != 0) {
		moek_refuse(no_out, MOEK_RULE_UNKNOWN_BIT,
		            (uint64_t)__builtin_ctzll(unknown));
		return MOEK_STATE_REFUSED;
	}
	if (experts->supports_quant_scheme(problem, no_out) == 1 &&
	    experts->supports_activation(problem, no_out) == 1 &&
	    experts->supports_parallel(problem, no_out) == 1 &&
	    experts->supports_shape(problem, no_out) == 1)
		return MOEK_STATE_READY;
	clean_verdict(no_out);
	return MOEK_STATE_REFUSED;
}

/** How good a state is among the devices of one table. */
static int goodness(uint32_t state)
{
	return state == MOEK_STATE_READY      ? 4
	       : state == MOEK_STATE_REFUSED  ? 3
	       : state == MOEK_STATE_UNUSABLE ? 2
	       : state == MOEK_STATE_ABSENT   ? 1
	                                      : 0;
}

/** Ask for every device; the best answer stays. */
static void ask(struct asking *asking, const struct moek_file *file,
                struct moek_entrant *entrant)
{
	const struct moek_experts *experts = entrant->experts;
	const struct moek_device *devices;
	size_t count = moek_registry_devices(asking->registry, file, &devices);

	entrant->state = MOEK_STATE_ABSENT;
	moek_refuse(&entrant->verdict, MOEK_RULE_DEVICE_KIND, 0);
	for (size_t i = 0; i < count; i++) {
		struct moek_problem problem = seen_by(&asking->choice->problem,
		                                      &devices[i]);
		struct moek_verdict verdict = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
		uint32_t state = ask_device(experts, &devices[i], &verdict);

		if (state == MOEK_STATE_READY && !asking->is_survey)
			state = ask_problem(experts, &problem, &verdict);
		if (i != 0 && goodness(state) <= goodness(entrant->state))
			continue;
		entrant->state = state;
		entrant->verdict = verdict;
		entrant->device = state == MOEK_STATE_ABSENT ? NULL : &devices[i];
	}
	if (entrant->state == MOEK_STATE_READY)
		moek_refuse(&entrant->verdict, MOEK_RULE_NONE, 0);
}

static int32_t add_experts(struct asking *asking, struct moek_file *file, size_t rank)
{
	struct moek_loaded *loaded = file->loaded;

	for (uint32_t i = 0; i < loaded->experts_count; i++) {
		struct moek_entrant *entrant;
		const char *origin;
		uint32_t rule;
		char name[84];

		snprintf(name, sizeof(name), "%s.%s", file->name,
		         loaded->experts[i].name);
		entrant = add_entrant(asking, name, rank, i);
		if (entrant == NULL)
			return MOEK_NO_MEMORY;
		entrant->path = file->path;
		entrant->loaded = loaded;
		entrant->experts = &loaded->experts[i];
		entrant->rank_class = loaded->experts[i].rank_class;
		if (rule_out(asking, name, &rule, &origin))
			settle_ruled_out(entrant, rule, origin);
		else
			ask(asking, file, entrant);
	}
	return MOEK_OK;
}

static int has_own_line_on(const struct asking *asking, const char *plugin)
{
	size_t length = strlen(plugin);

	for (size_t i = 0; i < asking->order.count; i++) {
		const struct moek_rank *rank = &asking->order.ranks[i];

		if (rank->on && strncmp(rank->name, plugin, length) == 0 &&
		    rank->name[length] == '.')
			return 1;
	}
	return 0;
}

/** Can the whole file be left unopened? */
static int rule_out_file(struct asking *asking, const char *name, uint32_t *rule,
                         const char **origin_out)
{
	if (!rule_out(asking, name, rule, origin_out))
		return 0;
	switch (*rule) {
	case MOEK_RULE_DISABLED:
		return moek_registry_is_off(asking->registry, name, origin_out) ||
		       !has_own_line_on(asking, name);
	case MOEK_RULE_NOT_REQUIRED:
		return !concerns(&asking->choice->request, name);
	case MOEK_RULE_UNLISTED:
		return !has_own_line_on(asking, name);
	default:
		return 1;
	}
}

static int32_t add_file(struct asking *asking, struct moek_file *file, size_t rank,
                        struct moek_error *error_out)
{
	struct moek_entrant *entrant;
	const char *origin;
	uint32_t rule;
	int32_t status = MOEK_OK;
	int is_out = rule_out_file(asking, file->name, &rule, &origin);

	if (!is_out)
		status = moek_registry_require(asking->registry, file, error_out);
	if (status != MOEK_OK)
		return status;
	if (!is_out && file->state == MOEK_FILE_OPEN) {
		if (add_experts(asking, file, rank) == MOEK_OK)
			return MOEK_OK;
		return moek_fail_memory(error_out, "choice");
	}
	entrant = add_entrant(asking, file->name, rank, 0);
	if (entrant == NULL)
		return moek_fail_memory(error_out, "choice");
	entrant->path = file->path;
	if (is_out) {
		settle_ruled_out(entrant, rule, origin);
	} else {
		settle(entrant, MOEK_STATE_BROKEN, 0, file->cause.text);
		entrant->verdict = file->cause.verdict;
	}
	return MOEK_OK;
}

/* ---- names without a file ---- */

static int is_there(const struct asking *asking, const char *name)
{
	for (size_t i = 0; i < asking->choice->count; i++)
		if (names(name, asking->choice->entrants[i].name))
			return 1;
	/* experts of a file that was not opened */
	for (size_t i = 0; i < asking->choice->count; i++) {
		const struct moek_entrant *entrant = &asking->choice->entrants[i];

		if (entrant->experts == NULL && entrant->path[0] != '\0' &&
		    names(entrant->name, name))
			return 1;
	}
	return 0;
}

static const char *nearest_name(const struct asking *asking, const char *name)
{
	const struct moek_choice *choice = asking->choice;
	const char **known = calloc(choice->count + asking->registry->file_count + 1,
	                            sizeof(*known));
	const char *nearest;
	size_t count = 0;

	if (known == NULL)
		return NULL;
	for (size_t i = 0; i < asking->registry->file_count; i++)
		known[count++] = asking->registry->files[i].name;
	for (size_t i = 0; i < choice->count; i++)
		if (choice->entrants[i].state != MOEK_STATE_MISSING)
			known[count++] = choice->entrants[i].name;
	nearest = moek_nearest(name, known, count);
	free(known);
	return nearest;
}

static int32_t add_missing(struct asking *asking, const char *name, size_t rank,
                           int from_request)
{
	struct moek_entrant *entrant;
	const char *nearest, *dot = strchr(name, '.'), *origin;
	char plugin[48], found[512];
	uint32_t rule;

	if (is_there(asking, name))
		return MOEK_OK;
	nearest = nearest_name(asking, name);
	entrant = add_entrant(asking, name, rank, NOWHERE);
	if (entrant == NULL)
		return MOEK_NO_MEMORY;
	if (!entrant->is_listed && from_request)
		snprintf(entrant->source, sizeof(entrant->source), "request");
	if (rule_out(asking, name, &rule, &origin)) {
		settle_ruled_out(entrant, rule, origin);
		return MOEK_OK;
	}
	snprintf(plugin, sizeof(plugin), "%.*s", (int)strcspn(name, "."), name);
	snprintf(found, sizeof(found), "%s%s%s%s",
	         dot != NULL && moek_registry_file(asking->registry, plugin) != NULL
	                 ? "no experts of this name in the plugin"
	                 : "not installed",
	         nearest != NULL ? "; did you mean " : "",
	         nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
	settle(entrant, MOEK_STATE_MISSING, MOEK_RULE_NOT_INSTALLED, found);
	return MOEK_OK;
}

static int32_t add_all_missing(struct asking *asking)
{
	const struct moek_request *request = &asking->choice->request;
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < asking->order.count && status == MOEK_OK; i++)
		status = add_missing(asking, asking->order.ranks[i].name, i, 0);
	if (request->mode != MOEK_PREFER && request->mode != MOEK_REQUIRE)
		return status;
	for (size_t i = 0; i < request->count && status == MOEK_OK; i++)
		status = add_missing(asking, request->names[i],
		                     asking->registry->file_count + i, 1);
	return status;
}

/* ---- ranking ---- */

static int compare(const void *a, const void *b)
{
	const struct moek_place_in_order *one = &((const struct moek_entrant *)a)
	                                                 ->place;
	const struct moek_place_in_order *two = &((const struct moek_entrant *)b)
	                                                 ->place;

	if (one->preferred != two->preferred)
		return one->preferred < two->preferred ? -1 : 1;
	if (one->rank != two->rank)
		return one->rank < two->rank ? -1 : 1;
	return one->within < two->within ? -1 : one->within > two->within;
}

static int is_degraded(const struct moek_choice *choice)
{
	const struct moek_entrant *winner = &choice->entrants[choice->winner];

	for (size_t i = 0; i < choice->count; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];
		uint32_t state = entrant->state;

		/* whoever asked for one backend alone has got it */
		if (i == choice->winner ||
		    entrant->verdict.rule == MOEK_RULE_NOT_REQUIRED)
			continue;
		if (i < choice->winner &&
		    (state == MOEK_STATE_UNUSABLE || state == MOEK_STATE_BROKEN ||
		     state == MOEK_STATE_FAILED))
			return 1;
		if (winner->rank_class == MOEK_EMULATION &&
		    (state == MOEK_STATE_MISSING || state == MOEK_STATE_UNUSABLE ||
		     state == MOEK_STATE_BROKEN || state == MOEK_STATE_DISABLED))
			return 1;
	}
	return 0;
}

static void set_backend(struct moek_choice *choice)
{
	const struct moek_entrant *winner = &choice->entrants[choice->winner];

	choice->backend = (struct moek_backend){
		.name = winner->name,
		.plugin = &winner->loaded->plugin,
		.experts = winner->experts,
		.plugin_handle = winner->loaded->handle,
		.device = winner->device,
		.problem = seen_by(&choice->problem, winner->device),
	};
}

/** What the verdict says, in words; words that are there already stay. */
static void write_texts(struct moek_entrant *entrant)
{
	if (entrant->found[0] == '\0')
		moek_verdict_found(&entrant->verdict, entrant->device, entrant->found,
		                   sizeof(entrant->found));
	moek_verdict_accepted(&entrant->verdict, entrant->accepted,
	                      sizeof(entrant->accepted));
}

/** The first that is ready wins; the texts of all are made. */
static void decide(struct moek_choice *choice)
{
	choice->winner = choice->count;
	for (size_t i = 0; i < choice->count; i++) {
		struct moek_entrant *entrant = &choice->entrants[i];

		if (entrant->state == MOEK_STATE_READY) {
			if (choice->winner == choice->count) {
				choice->winner = i;
				entrant->state = MOEK_STATE_CHOSEN;
				moek_refuse(&entrant->verdict, MOEK_RULE_NONE, 0);
			} else {
				moek_refuse(&entrant->verdict, MOEK_RULE_OUTRANKED, 0);
			}
			entrant->found[0] = '\0';
		}
		write_texts(entrant);
	}
	choice->degraded = 0;
	choice->is_past_preferred = 0;
	if (choice->winner == choice->count)
		return;
	choice->degraded = is_degraded(choice);
	choice->is_past_preferred = choice->request.mode == MOEK_PREFER &&
	                            choice->entrants[choice->winner].place.preferred ==
	                                    NOWHERE;
	set_backend(choice);
}

/* ---- telling ---- */

/** One line of a report in words. Returns its length as snprintf does. */
static int describe(const struct moek_entrant *entrant, char *text_out, size_t bytes)
{
	return snprintf(text_out, bytes, "%s: %s: %s%s%s%s", entrant->name,
	                moek_state_name(entrant->state), entrant->found,
	                entrant->accepted[0] != '\0' ? " (accepts " : "",
	                entrant->accepted, entrant->accepted[0] != '\0' ? ")" : "");
}

/** Each distinct cause once: failures that somebody expected not to happen louder. */
static void log_entrants(const struct moek_choice *choice)
{
	for (size_t i = 0; i < choice->count; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];
		int failed = entrant->state == MOEK_STATE_BROKEN ||
		             entrant->state == MOEK_STATE_UNUSABLE ||
		             entrant->state == MOEK_STATE_FAILED;
		int lacks = entrant->state == MOEK_STATE_MISSING ||
		            entrant->state == MOEK_STATE_DISABLED ||
		            entrant->state == MOEK_STATE_ABSENT;
		uint32_t level = entrant->is_named && (failed || lacks) ? MOEK_LOG_ERROR
		                 : entrant->is_listed && failed ? MOEK_LOG_WARNING
		                                                : MOEK_LOG_INFO;
		char line[960], key[sizeof(line) + 8];

		if (!failed && !lacks)
			continue;
		describe(entrant, line, sizeof(line));
		snprintf(key, sizeof(key), "%u %s", level, line);
		moek_log_once(moek_registry_log(choice->registry), level, key, "%s",
		              line);
	}
}

/** "cpu (broken: open() failed)", for the first that makes the choice degraded. */
static void why_degraded(const struct moek_choice *choice, char *text_out, size_t bytes)
{
	size_t used = 0;

	text_out[0] = '\0';
	for (size_t i = 0; i < choice->count && used < bytes; i++) {
		const struct moek_entrant *entrant = &choice->entrants[i];

		if (i == choice->winner || entrant->state == MOEK_STATE_READY ||
		    entrant->state == MOEK_STATE_REFUSED ||
		    entrant->state == MOEK_STATE_ABSENT ||
		    entrant->verdict.rule == MOEK_RULE_NOT_REQUIRED)
			continue;
		used += (size_t)snprintf(text_out + used, bytes - used, "%s%s %s",
		                         used != 0 ? ", " : "", entrant->name,
		                         moek_state_name(entrant->state));
	}
}

/** on_degraded: allow, warn or error. */
static int32_t judge_degraded(const struct moek_choice *choice,
                              struct moek_error *error_out)
{
	struct moek_log *log = moek_registry_log(choice->registry);
	const char *policy = moek_settings_value(choice->registry->settings,
	                                         "on_degraded");
	const char *winner = choice->entrants[choice->winner].name;
	char why[600], key[700];

	why_degraded(choice, why, sizeof(why));
	if (choice->is_past_preferred) {
		snprintf(key, sizeof(key), "preferred %s %s", winner, why);
		moek_log_once(log, MOEK_LOG_WARNING, key,
		              "%s was chosen, which is none of those preferred",
		              winner);
	}
	if (!choice->degraded || strcmp(policy, "allow") == 0)
		return MOEK_OK;
	if (strcmp(policy, "error") == 0)
		return moek_fail(
			error_out, MOEK_REFUSED, 0,
			"degraded: only %s would run %s (%s), and on_degraded = error",
			winner, choice->label[0] != '\0' ? choice->label : "it", why);
	snprintf(key, sizeof(key), "degraded %s %s", winner, why);
	moek_log_once(log, MOEK_LOG_WARNING, key, "degraded: %s was chosen (%s)",
	              winner, why);
	return MOEK_OK;
}

/** Is the machine such that this candidate could have run? Those are told first. */
static int is_near(const struct moek_entrant *entrant)
{
	return entrant->device != NULL || entrant->state == MOEK_STATE_BROKEN;
}

static size_t add_line(char *text, size_t bytes, size_t used, const char *line)
{
	size_t length = strlen(line);

	if (used + length + 2 > bytes)
		return used;
	text[used++] = '\n';
	memcpy(text + used, line, length + 1);
	return used + length;
}

/** The error that carries the report: one line for each candidate. */
static int32_t refuse(const struct moek_choice *choice, struct moek_error *error_out)
{
	const struct moek_registry *registry = choice->registry;
	const struct moek_request *request = &choice->request;
	uint32_t rule = choice->count == 1 ? choice->entrants[0].verdict.rule : 0;
	char text[2032], line[960];
	size_t used;

	if (request->mode == MOEK_REQUIRE)
		for (size_t i = 0; i < choice->count; i++)
			if (choice->entrants[i].is_named)
				rule = choice->entrants[i].verdict.rule;
	used = (size_t)snprintf(text, sizeof(text), "no backend%s%s runs %s%s",
	                        request->mode == MOEK_REQUIRE ? " required as " : "",
	                        request->mode == MOEK_REQUIRE ? request->names[0] : "",
	                        choice->label[0] != '\0' ? choice->label
	                                                 : "the problem",
	                        choice->count == 0 ? ": none is installed" : ":");
	for (int near = 1; near >= 0; near--) {
		for (size_t i = 0; i < choice->count; i++) {
			const struct moek_entrant *entrant = &choice->entrants[i];

			if (is_near(entrant) != near)
				continue;
			describe(entrant, line + 2, sizeof(line) - 2);
			memcpy(line, "  ", 2);
			used = add_line(text, sizeof(text), used, line);
		}
	}
	for (size_t i = 0; i < registry->searched_count; i++) {
		const struct moek_searched *searched = &registry->searched[i];

		if (searched->error != 0)
			snprintf(line, sizeof(line), "searched %.600s: %s",
			         searched->folder->path, strerror(searched->error));
		else
			snprintf(line, sizeof(line), "searched %.600s: %zu plugin%s",
			         searched->folder->path, searched->plugins,
			         searched->plugins == 1 ? "" : "s");
		used = add_line(text, sizeof(text), used, line);
	}
	return moek_fail(error_out, MOEK_REFUSED, rule, "%s", text);
}

/** The end of a choice that is decided: MOEK_OK, or MOEK_REFUSED and nobody has won. */
static int32_t conclude(struct moek_choice *choice, struct moek_error *error_out)
{
	struct moek_entrant *winner;
	int32_t status;

	if (choice->winner == choice->count)
		return refuse(choice, error_out);
	status = judge_degraded(choice, error_out);
	if (status == MOEK_OK)
		return MOEK_OK;
	winner = &choice->entrants[choice->winner];
	winner->state = MOEK_STATE_READY;
	snprintf(winner->found, sizeof(winner->found),
	         "would run it, but degraded, and on_degraded = error");
	choice->winner = choice->count;
	return status;
}

/* ---- choosing ---- */

static struct moek_choice *new_choice(struct moek_registry *registry, const char *label)
{
	struct moek_choice *choice = calloc(1, sizeof(*choice));

	if (choice == NULL)
		return NULL;
	choice->owners = 1;
	choice->registry = registry;
	choice->label = strdup(label != NULL ? label : "");
	if (choice->label == NULL) {
		free(choice);
		return NULL;
	}
	return choice;
}

/** Sections for devices need to know the devices: open whoever may list some. */
static int32_t find_order(struct asking *asking, struct moek_error *error_out)
{
	struct moek_registry *registry = asking->registry;
	const struct moek_device **devices;
	const char *origin;
	size_t count;
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < registry->file_count && status == MOEK_OK &&
	                   moek_priority_needs_devices(registry->settings) &&
	                   !moek_registry_answers_only(registry);
	     i++)
		if (registry->files[i].shadowed_by == NULL &&
		    !moek_registry_is_off(registry, registry->files[i].name, &origin))
			status = moek_registry_require(registry, &registry->files[i],
			                               error_out);
	if (status == MOEK_OK)
		status = moek_registry_all_devices(registry, &devices, &count,
		                                   error_out);
	if (status != MOEK_OK)
		return status;
	status = moek_priority_order(registry->settings,
	                             asking->choice->problem.gate_up.weight, devices,
	                             count, &asking->order, error_out);
	free(devices);
	return status;
}

static int32_t check_unlisted(const struct asking *asking, struct moek_error *error_out)
{
	const struct moek_registry *registry = asking->registry;

	for (size_t i = 0; i < registry->file_count; i++) {
		const struct moek_file *file = &registry->files[i];

		if (file->shadowed_by == NULL &&
		    moek_order_find(&asking->order, file->name) == NULL &&
		    !has_own_line_on(asking, file->name))
			return moek_fail(error_out, MOEK_BAD_CONFIG, MOEK_RULE_UNLISTED,
			                 "%s is installed, and [%s] does not list %s "
			                 "(unlisted = error)",
			                 file->path,
			                 asking->order.section != NULL
			                         ? asking->order.section
			                         : "priority",
			                 file->name);
	}
	return MOEK_OK;
}

static int32_t ask_all(struct asking *asking, struct moek_error *error_out)
{
	struct moek_registry *registry = asking->registry;
	struct moek_choice *choice = asking->choice;
	const char *unlisted = moek_settings_value(registry->settings, "unlisted");
	int32_t status = find_order(asking, error_out);

	asking->ignore_unlisted = strcmp(unlisted, "ignore") == 0;
	if (status == MOEK_OK && strcmp(unlisted, "error") == 0 && !asking->is_survey)
		status = check_unlisted(asking, error_out);
	for (size_t i = 0; i < registry->file_count && status == MOEK_OK; i++)
		if (registry->files[i].shadowed_by == NULL)
			status = add_file(asking, &registry->files[i], i, error_out);
	if (status == MOEK_OK && add_all_missing(asking) != MOEK_OK)
		status = moek_fail_memory(error_out, "choice");
	if (status == MOEK_OK && asking->order.section != NULL) {
		snprintf(choice->order_section, sizeof(choice->order_section), "%s",
		         asking->order.section);
		snprintf(choice->order_origin, sizeof(choice->order_origin), "%s",
		         asking->order.origin);
	}
	moek_order_end(&asking->order);
	if (status == MOEK_OK && choice->count != 0)
		qsort(choice->entrants, choice->count, sizeof(*choice->entrants),
		      compare);
	return status;
}

int32_t moek_survey(struct moek_registry *registry, struct moek_choice **survey_out,
                    struct moek_error *error_out)
{
	struct asking asking = { .registry = registry, .is_survey = 1 };
	int32_t status;

	asking.choice = new_choice(registry, NULL);
	if (asking.choice == NULL)
		return moek_fail_memory(error_out, "survey");
	status = ask_all(&asking, error_out);
	if (status != MOEK_OK) {
		moek_choice_destroy(asking.choice);
		return status;
	}
	asking.choice->winner = asking.choice->count;
	for (size_t i = 0; i < asking.choice->count; i++)
		write_texts(&asking.choice->entrants[i]);
	*survey_out = asking.choice;
	return MOEK_OK;
}

int32_t moek_choose(struct moek_registry *registry, const struct moek_problem *problem,
                    const char *request, const char *label,
                    struct moek_choice **choice_out, struct moek_error *error_out)
{
	struct asking asking = { .registry = registry };
	struct moek_choice *choice;
	int32_t status;

	if (registry == NULL || problem == NULL || choice_out == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0, "%s is NULL",
		                 registry == NULL  ? "registry"
		                 : problem == NULL ? "problem"
		                                   : "choice_out");
	choice = new_choice(registry, label);
	if (choice == NULL)
		return moek_fail_memory(error_out, "choice");
	asking.choice = choice;
	status = parse_request(request, &choice->request, error_out);
	if (status == MOEK_OK)
		status = moek_problem_read(problem, &choice->problem, error_out);
	if (status == MOEK_OK)
		status = ask_all(&asking, error_out);
	if (status != MOEK_OK) {
		moek_choice_destroy(choice);
		return status;
	}
	decide(choice);
	log_entrants(choice);
	status = conclude(choice, error_out);
	*choice_out = choice;
	return status;
}

struct moek_choice *moek_choice_retain(struct moek_choice *choice)
{
	__atomic_add_fetch(&choice->owners, 1, __ATOMIC_RELAXED);
	return choice;
}

void moek_choice_destroy(struct moek_choice *choice)
{
	if (choice == NULL ||
	    __atomic_sub_fetch(&choice->owners, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	free(choice->entrants);
	free(choice->label);
	free(choice);
}

/** A copy with one owner. */
static struct moek_choice *copy_choice(const struct moek_choice *choice)
{
	struct moek_choice *copy = new_choice(choice->registry, choice->label);
	char *label;

	if (copy == NULL)
		return NULL;
	label = copy->label;
	*copy = *choice;
	copy->owners = 1;
	copy->label = label;
	copy->entrants = malloc((choice->count + 1) * sizeof(*copy->entrants));
	if (copy->entrants == NULL) {
		moek_choice_destroy(copy);
		return NULL;
	}
	memcpy(copy->entrants, choice->entrants,
	       choice->count * sizeof(*copy->entrants));
	return copy;
}

int32_t moek_choice_next(const struct moek_choice *choice, int32_t status,
                         const char *cause, struct moek_choice **next_out,
                         struct moek_error *error_out)
{
	struct moek_choice *next;
	struct moek_entrant *failed;
	int32_t result;

	if (choice->winner == choice->count)
		return moek_fail(error_out, MOEK_REFUSED, 0, "nobody was chosen");
	next = copy_choice(choice);
	if (next == NULL)
		return moek_fail_memory(error_out, "choice");
	failed = &next->entrants[next->winner];
	settle(failed, MOEK_STATE_FAILED,
	       status == MOEK_NO_MEMORY ? MOEK_RULE_MEMORY : MOEK_RULE_CREATE, cause);
	decide(next);
	log_entrants(next);
	result = next->request.mode == MOEK_REQUIRE ? refuse(next, error_out)
	                                            : conclude(next, error_out);
	if (result != MOEK_OK) {
		moek_choice_destroy(next);
		return result;
	}
	*next_out = next;
	return MOEK_OK;
}

/* ---- asking a choice ---- */

const struct moek_backend *moek_choice_backend(const struct moek_choice *choice)
{
	return choice->winner != choice->count ? &choice->backend : NULL;
}

struct moek_registry *moek_choice_registry(const struct moek_choice *choice)
{
	return choice->registry;
}

const struct moek_problem *moek_choice_problem(const struct moek_choice *choice)
{
	return &choice->problem;
}

uint64_t moek_choice_candidates(const struct moek_choice *choice)
{
	return choice->count;
}

int32_t moek_choice_candidate(const struct moek_choice *choice, uint64_t index,
                              struct moek_candidate *candidate_out)
{
	const struct moek_entrant *entrant;
	struct moek_candidate candidate = { .struct_size = MOEK_CANDIDATE_SIZE_1_0 };
	uint32_t bytes = candidate_out->struct_size;

	if (index >= choice->count || bytes < MOEK_CANDIDATE_SIZE_1_0)
		return MOEK_BAD_ARGUMENT;
	entrant = &choice->entrants[index];
	candidate.state = entrant->state;
	candidate.name = entrant->name;
	candidate.path = entrant->path;
	candidate.source = entrant->source;
	candidate.found = entrant->found;
	candidate.accepted = entrant->accepted;
	candidate.verdict = &entrant->verdict;
	memcpy(candidate_out, &candidate, sizeof(candidate));
	return MOEK_OK;
}

const char *moek_choice_winner(const struct moek_choice *choice)
{
	return choice->winner != choice->count ? choice->entrants[choice->winner].name
	                                       : NULL;
}

int32_t moek_choice_degraded(const struct moek_choice *choice)
{
	return choice->degraded;
}

const struct moek_device *moek_choice_device(const struct moek_choice *choice)
{
	return choice->winner != choice->count ? choice->entrants[choice->winner].device
	                                       : NULL;
}

int32_t moek_choice_numerics(const struct moek_choice *choice,
                             struct moek_numerics *numerics_out)
{
	struct moek_numerics numerics = { .struct_size = MOEK_NUMERICS_SIZE_1_0 };

	if (choice->winner == choice->count)
		return MOEK_REFUSED;
	choice->backend.experts->numerics(&choice->backend.problem, &numerics);
	numerics.struct_size = MOEK_NUMERICS_SIZE_1_0;
	numerics.text[sizeof(numerics.text) - 1] = '\0';
	*numerics_out = numerics;
	return MOEK_OK;
}
