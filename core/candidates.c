/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/choice.h"
#include "core/log.h"
#include "core/nearest.h"
#include "core/priority.h"
#include "core/registry.h"
#include "core/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- entrants ---- */

struct asking {
	struct moek_registry *registry;
	struct moek_choice *choice;
	struct moek_order order;
	int ignore_unlisted;
	enum moek_asked asked;
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
	size_t at = moek_request_find(&choice->request, name);
	struct moek_entrant *entrant;

	if (entrants == NULL)
		return NULL;
	choice->entrants = entrants;
	entrant = &entrants[choice->count++];
	memset(entrant, 0, sizeof(*entrant));
	snprintf(entrant->name, sizeof(entrant->name), "%s", name);
	entrant->source = rank != NULL ? moek_origin_short(rank->origin) : "unlisted";
	entrant->path = "";
	entrant->verdict.struct_size = MOEK_VERDICT_SIZE_1_0;
	entrant->is_listed = rank != NULL;
	entrant->is_named = at != MOEK_NOT_NAMED &&
	                    (choice->request.mode == MOEK_PREFER ||
	                     choice->request.mode == MOEK_REQUIRE);
	entrant->place.preferred = choice->request.mode == MOEK_PREFER ? at
	                                                               : MOEK_NOT_NAMED;
	entrant->place.rank = rank != NULL ? (size_t)(rank - asking->order.ranks)
	                                   : asking->order.count + unlisted_rank;
	entrant->place.within = within;
	return entrant;
}

void moek_candidate_settle(struct moek_entrant *entrant, uint32_t state, uint32_t rule,
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
	if (request->mode == MOEK_EXCLUDE &&
	    moek_request_find(request, name) != MOEK_NOT_NAMED)
		return 1;
	*rule_out = MOEK_RULE_NOT_REQUIRED;
	if (request->mode == MOEK_REQUIRE &&
	    moek_request_find(request, name) == MOEK_NOT_NAMED)
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
	moek_candidate_settle(entrant, MOEK_STATE_DISABLED, rule, found);
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

struct moek_problem moek_candidate_problem(const struct moek_problem *problem,
                                           const struct moek_device *device)
{
	struct moek_problem seen = *problem;

	if (device->kind == MOEK_HOST) /* on the host the core maps and weighs */
		seen.must_understand &= ~(MOEK_EXPERT_MAP | MOEK_WEIGHT_ON_INPUT);
	return seen;
}

struct moek_backend moek_candidate_backend(const struct moek_entrant *entrant,
                                           const struct moek_problem *problem)
{
	return (struct moek_backend){
		.name = entrant->name,
		.plugin = &entrant->loaded->plugin,
		.experts = entrant->experts,
		.plugin_handle = entrant->loaded->handle,
		.device = entrant->device,
		.problem = moek_candidate_problem(problem, entrant->device),
	};
}

static uint32_t ask_device(const struct moek_entrant *entrant,
                           const struct moek_device *device,
                           struct moek_verdict *no_out)
{
	const struct moek_experts *experts = entrant->experts;
	void *plugin = entrant->loaded->handle;
	struct moek_device usable = *device;

	usable.cause_rule = 0;
	usable.cause[0] = '\0';
	if (experts->supports_device(plugin, &usable, no_out) != 1) {
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

static uint32_t ask_problem(const struct moek_entrant *entrant,
                            const struct moek_problem *problem,
                            struct moek_verdict *no_out)
{
	const struct moek_experts *experts = entrant->experts;
	void *plugin = entrant->loaded->handle;
	uint64_t unknown = problem->must_understand & ~experts->understands;

	if (unknown != 0) {
		moek_refuse(no_out, MOEK_RULE_UNKNOWN_BIT,
		            (uint64_t)__builtin_ctzll(unknown));
		return MOEK_STATE_REFUSED;
	}
	if (experts->supports_quant_scheme(plugin, problem, no_out) == 1 &&
	    experts->supports_activation(plugin, problem, no_out) == 1 &&
	    experts->supports_parallel(plugin, problem, no_out) == 1 &&
	    experts->supports_shape(plugin, problem, no_out) == 1)
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
	const struct moek_device *devices;
	size_t count = moek_registry_devices(asking->registry, file, &devices);

	entrant->state = MOEK_STATE_ABSENT;
	moek_refuse(&entrant->verdict, MOEK_RULE_DEVICE_KIND, 0);
	for (size_t i = 0; i < count; i++) {
		struct moek_problem problem = moek_candidate_problem(
			&asking->choice->problem, &devices[i]);
		struct moek_verdict verdict = { .struct_size = MOEK_VERDICT_SIZE_1_0 };
		uint32_t state = ask_device(entrant, &devices[i], &verdict);

		if (state == MOEK_STATE_READY && asking->asked == MOEK_ASK_PROBLEM)
			state = ask_problem(entrant, &problem, &verdict);
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
		return !moek_request_concerns(&asking->choice->request, name);
	case MOEK_RULE_UNLISTED:
		return !has_own_line_on(asking, name);
	default:
		return 1;
	}
}

/** Files that nobody can use, but not all for a fault of theirs. */
static void settle_broken(struct moek_entrant *entrant, const struct moek_cause *cause)
{
	uint32_t state = MOEK_STATE_BROKEN;

	if (cause->verdict.rule == MOEK_RULE_NOT_PLUGIN)
		state = MOEK_STATE_NOT_PLUGIN;
	else if (cause->verdict.rule == MOEK_RULE_ISA)
		state = MOEK_STATE_UNUSABLE;
	moek_candidate_settle(entrant, state, 0, cause->text);
	entrant->verdict = cause->verdict;
}

static int32_t add_file(struct asking *asking, struct moek_file *file, size_t rank,
                        struct moek_error *error_out)
{
	struct moek_entrant *entrant;
	struct moek_cause known;
	const char *origin;
	uint32_t rule;
	int32_t status = MOEK_OK;
	int is_out = rule_out_file(asking, file->name, &rule, &origin);

	if (!is_out && asking->asked != MOEK_ASK_NOTES)
		status = moek_registry_require(asking->registry, file, error_out);
	if (status != MOEK_OK)
		return status;
	if (!is_out && file->state == MOEK_FILE_OPEN &&
	    asking->asked != MOEK_ASK_NOTES) {
		if (add_experts(asking, file, rank) == MOEK_OK)
			return MOEK_OK;
		return moek_fail_memory(error_out, "choice");
	}
	entrant = add_entrant(asking, file->name, rank, 0);
	if (entrant == NULL)
		return moek_fail_memory(error_out, "choice");
	entrant->path = file->path;
	entrant->note = file->note.text != NULL ? &file->note : NULL;
	if (is_out)
		settle_ruled_out(entrant, rule, origin);
	else if (file->state == MOEK_FILE_BROKEN)
		settle_broken(entrant, &file->cause);
	else if (moek_registry_recall(asking->registry, file, &known))
		settle_broken(entrant, &known);
	else
		moek_candidate_settle(entrant, MOEK_STATE_UNOPENED, MOEK_RULE_NONE,
		                      entrant->note == NULL
		                              ? "no note: open it to know "
		                                "more"
		                              : "");
	return MOEK_OK;
}

/* ---- references ---- */

/** As far as is known without opening it. */
static int may_be_reference(struct moek_registry *registry,
                            const struct moek_file *file)
{
	const char *rank_class;
	int is_open;

	if (file->shadowed_by != NULL)
		return 0;
	if (file->note.text != NULL) {
		rank_class = moek_note_value(&file->note, "class");
		return rank_class != NULL &&
		       strcmp(rank_class, moek_class_name(MOEK_EMULATION)) == 0;
	}
	pthread_mutex_lock(&registry->lock);
	is_open = file->state == MOEK_FILE_OPEN;
	pthread_mutex_unlock(&registry->lock);
	return is_open;
}

static int32_t add_references(struct asking *asking, const struct moek_file *file)
{
	struct moek_loaded *loaded = file->loaded;

	for (uint32_t i = 0; i < loaded->experts_count; i++) {
		struct moek_entrant *entrant;
		char name[84];

		if (loaded->experts[i].rank_class != MOEK_EMULATION)
			continue;
		snprintf(name, sizeof(name), "%s.%s", file->name,
		         loaded->experts[i].name);
		entrant = add_entrant(asking, name, 0, i);
		if (entrant == NULL)
			return MOEK_NO_MEMORY;
		entrant->path = file->path;
		entrant->loaded = loaded;
		entrant->experts = &loaded->experts[i];
		entrant->rank_class = MOEK_EMULATION;
		ask(asking, file, entrant);
		if (entrant->state == MOEK_STATE_READY &&
		    entrant->device->kind != MOEK_HOST)
			moek_candidate_settle(entrant, MOEK_STATE_REFUSED,
			                      MOEK_RULE_DEVICE_KIND, "not on the host");
	}
	return MOEK_OK;
}

int32_t moek_candidates_ask_reference(struct moek_choice *choice,
                                      struct moek_error *error_out)
{
	struct moek_registry *registry = choice->registry;
	struct asking asking = { .registry = registry,
		                 .choice = choice,
		                 .asked = MOEK_ASK_PROBLEM };
	int32_t status = MOEK_OK;

	for (size_t i = 0; i < registry->file_count && status == MOEK_OK; i++) {
		struct moek_file *file = &registry->files[i];
		const char *origin;

		if (!may_be_reference(registry, file) ||
		    moek_registry_is_off(registry, file->name, &origin))
			continue;
		status = moek_registry_require(registry, file, error_out);
		if (status == MOEK_OK && file->state == MOEK_FILE_OPEN &&
		    add_references(&asking, file) != MOEK_OK)
			status = moek_fail_memory(error_out, "choice");
	}
	choice->winner = choice->count;
	return status;
}

/* ---- names without a file ---- */

static int is_there(const struct asking *asking, const char *name)
{
	for (size_t i = 0; i < asking->choice->count; i++)
		if (moek_request_covers(name, asking->choice->entrants[i].name))
			return 1;
	/* experts of a file that was not opened */
	for (size_t i = 0; i < asking->choice->count; i++) {
		const struct moek_entrant *entrant = &asking->choice->entrants[i];

		if (entrant->experts == NULL && entrant->path[0] != '\0' &&
		    moek_request_covers(entrant->name, name))
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
	char plugin[48], meant[128] = "", found[512];
	uint32_t rule;

	if (is_there(asking, name))
		return MOEK_OK;
	/* copied: the name may be an entrant's, and adding one moves them */
	nearest = nearest_name(asking, name);
	if (nearest != NULL)
		snprintf(meant, sizeof(meant), "; did you mean %s?", nearest);
	entrant = add_entrant(asking, name, rank, MOEK_NOT_NAMED);
	if (entrant == NULL)
		return MOEK_NO_MEMORY;
	if (!entrant->is_listed && from_request)
		entrant->source = "request";
	if (rule_out(asking, name, &rule, &origin)) {
		settle_ruled_out(entrant, rule, origin);
		return MOEK_OK;
	}
	snprintf(plugin, sizeof(plugin), "%.*s", (int)strcspn(name, "."), name);
	snprintf(found, sizeof(found), "%s%s",
	         dot != NULL && moek_registry_file(asking->registry, plugin) != NULL
	                 ? "no experts of this name in the plugin"
	                 : "not installed",
	         meant);
	moek_candidate_settle(entrant, MOEK_STATE_MISSING, MOEK_RULE_NOT_INSTALLED,
	                      found);
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

/* ---- all of them ---- */

void moek_candidate_write(struct moek_entrant *entrant)
{
	if (entrant->found[0] == '\0')
		moek_verdict_found(&entrant->verdict, entrant->device, entrant->found,
		                   sizeof(entrant->found));
	moek_verdict_accepted(&entrant->verdict, entrant->accepted,
	                      sizeof(entrant->accepted));
}

static int compare_numbers(size_t a, size_t b)
{
	return a < b ? -1 : a > b;
}

static int compare(const void *a, const void *b)
{
	const struct moek_entrant *one = a, *two = b;
	int result = compare_numbers(one->place.preferred, two->place.preferred);

	if (result == 0)
		result = compare_numbers(one->place.rank, two->place.rank);
	if (result == 0)
		result = compare_numbers(one->place.within, two->place.within);
	return result;
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
	                   asking->asked != MOEK_ASK_NOTES &&
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

int32_t moek_candidates_ask(struct moek_choice *choice, enum moek_asked asked,
                            struct moek_error *error_out)
{
	struct moek_registry *registry = choice->registry;
	struct asking asking = { .registry = registry,
		                 .choice = choice,
		                 .asked = asked };
	const char *unlisted = moek_settings_value(registry->settings, "unlisted");
	int32_t status = find_order(&asking, error_out);

	asking.ignore_unlisted = strcmp(unlisted, "ignore") == 0;
	if (status == MOEK_OK && strcmp(unlisted, "error") == 0 &&
	    asked == MOEK_ASK_PROBLEM)
		status = check_unlisted(&asking, error_out);
	for (size_t i = 0; i < registry->file_count && status == MOEK_OK; i++)
		if (registry->files[i].shadowed_by == NULL)
			status = add_file(&asking, &registry->files[i], i, error_out);
	if (status == MOEK_OK && add_all_missing(&asking) != MOEK_OK)
		status = moek_fail_memory(error_out, "choice");
	choice->order_section = asking.order.section;
	choice->order_origin = asking.order.origin;
	choice->winner = choice->count;
	moek_order_end(&asking.order);
	if (status == MOEK_OK && choice->count != 0)
		qsort(choice->entrants, choice->count, sizeof(*choice->entrants),
		      compare);
	return status;
}
