/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/registry.h"

#include "core/golden.h"
#include "core/lock.h"
#include "core/probe.h"
#include "core/report.h"
#include "core/status.h"
#include "core/threads.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#define DEVICES_MOST 256 /* of one plugin */

/* ---- finding files ---- */

static int is_plugin_file(const char *entry)
{
	size_t length = strlen(entry);

	return length > 3 && entry[0] != '.' && strcmp(entry + length - 3, ".so") == 0;
}

static void break_file(struct moek_file *file, uint32_t rule, const char *text)
{
	file->state = MOEK_FILE_BROKEN;
	file->cause.verdict.struct_size = MOEK_VERDICT_SIZE_1_0;
	moek_refuse(&file->cause.verdict, rule, 0);
	snprintf(file->cause.text, sizeof(file->cause.text), "%s", text);
}

static const char *features_of(const struct moek_machine *machine)
{
	return machine->features != NULL ? machine->features : "";
}

/** Read the note, and leave a file alone that cannot run there, or be opened here. */
static int32_t read_note(const struct moek_registry *registry, struct moek_file *file)
{
	int32_t status = moek_note_read(file->path, &file->note, &file->cause);

	if (status == MOEK_OK && file->note.text != NULL)
		status = moek_note_judge(&file->note, file->name,
		                         features_of(&registry->machine), &file->cause);
	if (status == MOEK_OK && file->note.text != NULL &&
	    moek_registry_answers_only(registry))
		status = moek_note_judge(&file->note, file->name,
		                         features_of(&registry->here), &file->cause);
	if (status == MOEK_PLUGIN)
		file->state = MOEK_FILE_BROKEN;
	return status == MOEK_PLUGIN ? MOEK_OK : status;
}

/** MOEK_OK, also when it is broken, or MOEK_NO_MEMORY. */
static int32_t look_at(const struct moek_registry *registry, struct moek_file *file)
{
	struct stat facts;
	int32_t status = MOEK_OK;

	if (stat(file->path, &facts) != 0)
		break_file(file, MOEK_RULE_NOT_REGULAR, strerror(errno));
	else if (!S_ISREG(facts.st_mode))
		break_file(file, MOEK_RULE_NOT_REGULAR, "");
	else if (!moek_plugin_name_is_valid(file->name))
		break_file(file, MOEK_RULE_ABI_NAME,
		           "the file's name is not one: a-z 0-9 _ -, at most 40, then "
		           ".so");
	else
		status = read_note(registry, file);
	for (char *c = file->name; *c != '\0'; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	return status;
}

static int32_t add_file(struct moek_registry *registry, const char *folder,
                        const char *entry, struct moek_error *error_out)
{
	struct moek_file *files = realloc(registry->files,
	                                  (registry->file_count + 1) * sizeof(*files));
	struct moek_file file = { 0 };

	if (files == NULL)
		return moek_fail_memory(error_out, "list of plugins");
	registry->files = files;
	file.name = strndup(entry, strlen(entry) - 3);
	if (asprintf(&file.path, "%s/%s", folder, entry) < 0)
		file.path = NULL;
	if (file.name == NULL || file.path == NULL ||
	    look_at(registry, &file) != MOEK_OK) {
		free(file.name);
		free(file.path);
		return moek_fail_memory(error_out, "list of plugins");
	}
	files[registry->file_count++] = file;
	return MOEK_OK;
}

/** Was the same folder searched before, perhaps under another name? Its files would
 *  shadow themselves. */
static int is_repeated(const struct moek_registry *registry,
                       const struct moek_searched *searched)
{
	struct stat this_one, other;

	if (stat(searched->folder->path, &this_one) != 0)
		return 0;
	for (size_t i = 0; &registry->searched[i] != searched; i++)
		if (stat(registry->searched[i].folder->path, &other) == 0 &&
		    other.st_dev == this_one.st_dev && other.st_ino == this_one.st_ino)
			return 1;
	return 0;
}

static int32_t search(struct moek_registry *registry, const struct moek_folder *named,
                      struct moek_error *error_out)
{
	struct moek_searched *searched = &registry->searched[registry->searched_count];
	const struct dirent *entry;
	int32_t status = MOEK_OK;
	DIR *folder;

	searched->folder = named;
	if (is_repeated(registry, searched))
		return MOEK_OK;
	registry->searched_count++;
	folder = opendir(named->path);
	if (folder == NULL) {
		int is_wanted = strcmp(named->origin, "built-in") != 0;

		searched->error = errno;
		moek_log_write(
			&registry->log, is_wanted ? MOEK_LOG_WARNING : MOEK_LOG_INFO,
			"plugin folder %s: %s", named->path, strerror(searched->error));
		return MOEK_OK;
	}
	while (status == MOEK_OK && (entry = readdir(folder)) != NULL) {
		if (!is_plugin_file(entry->d_name))
			continue;
		status = add_file(registry, named->path, entry->d_name, error_out);
		searched->plugins++;
	}
	closedir(folder);
	return status;
}

/** By name; the stable order of the folders decides between equals. */
static void sort_files(struct moek_registry *registry)
{
	struct moek_file *files = registry->files;

	for (size_t i = 1; i < registry->file_count; i++) {
		struct moek_file file = files[i];
		size_t at = i;

		for (; at > 0 && strcmp(files[at - 1].name, file.name) > 0; at--)
			files[at] = files[at - 1];
		files[at] = file;
	}
	for (size_t i = 1; i < registry->file_count; i++) {
		if (strcmp(files[i - 1].name, files[i].name) != 0)
			continue;
		files[i].shadowed_by = files[i - 1].shadowed_by != NULL
		                               ? files[i - 1].shadowed_by
		                               : files[i - 1].path;
		moek_log_write(&registry->log, MOEK_LOG_INFO, "%s is shadowed by %s",
		               files[i].path, files[i].shadowed_by);
	}
}

/** Options for a plugin that is not here may be right or wrong: nobody can tell. */
static void note_absent_options(struct moek_registry *registry)
{
	const struct moek_settings *settings = registry->settings;

	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];

		if (entry->key != NULL && strncmp(entry->section, "plugin ", 7) == 0 &&
		    moek_registry_file(registry, entry->section + 7) == NULL)
			moek_log_once(&registry->log, MOEK_LOG_INFO, entry->section,
			              "[%s] at %s: not installed, its options are not "
			              "checked",
			              entry->section, moek_origin_short(entry->origin));
	}
}

static int32_t find_files(struct moek_registry *registry, struct moek_error *error_out)
{
	const struct moek_settings *settings = registry->settings;
	int32_t status = MOEK_OK;

	registry->searched = calloc(settings->folder_count + 1,
	                            sizeof(*registry->searched));
	if (registry->searched == NULL)
		return moek_fail_memory(error_out, "list of plugin folders");
	for (size_t i = 0; i < settings->folder_count && status == MOEK_OK; i++)
		status = search(registry, &settings->folders[i], error_out);
	if (status != MOEK_OK)
		return status;
	sort_files(registry);
	note_absent_options(registry);
	return MOEK_OK;
}

struct moek_file *moek_registry_file(struct moek_registry *registry, const char *name)
{
	for (size_t i = 0; i < registry->file_count; i++)
		if (registry->files[i].shadowed_by == NULL &&
		    strcmp(registry->files[i].name, name) == 0)
			return &registry->files[i];
	return NULL;
}

/* ---- opening them, when one is needed ---- */

static int32_t list_devices(struct moek_file *file)
{
	const struct moek_plugin *plugin = &file->loaded->plugin;
	struct moek_device *devices = calloc(DEVICES_MOST, sizeof(*devices));
	uint32_t count;

	if (devices == NULL)
		return MOEK_NO_MEMORY;
	for (size_t i = 0; i < DEVICES_MOST; i++)
		devices[i].struct_size = MOEK_DEVICE_SIZE_1_0;
	count = plugin->list(file->loaded->handle, devices, DEVICES_MOST);
	file->devices = devices;
	file->device_count = count < DEVICES_MOST ? count : DEVICES_MOST;
	for (size_t i = 0; i < file->device_count; i++)
		moek_device_clean(&devices[i]);
	return MOEK_OK;
}

static struct moek_probe probe_of(struct moek_registry *registry,
                                  const struct moek_file *file)
{
	const struct moek_machine *here = moek_registry_answers_only(registry)
	                                          ? &registry->here
	                                          : &registry->machine;

	return (struct moek_probe){
		.path = file->path,
		.name = file->name,
		.features = features_of(here),
		.log = &registry->log,
		.settings = registry->settings,
	};
}

int moek_registry_recall(struct moek_registry *registry, const struct moek_file *file,
                         struct moek_cause *cause_out)
{
	const struct moek_probe probe = probe_of(registry, file);

	return moek_probe_recall(&probe, cause_out);
}

static int32_t open_file(struct moek_registry *registry, struct moek_file *file)
{
	const struct moek_plugin_request request = {
		.path = file->path,
		.name = file->name,
		.note = file->note.text != NULL ? &file->note : NULL,
		.log = &registry->log,
		.settings = registry->settings,
	};
	const struct moek_probe probe = probe_of(registry, file);
	int32_t status = moek_probe_run(&probe, &file->cause);

	if (status == MOEK_OK)
		status = moek_plugin_load(&request, &file->loaded, &file->cause);
	if (status != MOEK_OK || file->loaded->plugin.list == NULL ||
	    moek_registry_answers_only(registry))
		return status;
	status = list_devices(file);
	if (status != MOEK_OK) {
		moek_plugin_unload(file->loaded);
		file->loaded = NULL;
	}
	return status;
}

/** Does this thread sit inside the open() of some plugin? Under the lock. */
static int is_opening(const struct moek_registry *registry)
{
	for (size_t i = 0; i < registry->file_count; i++)
		if (registry->files[i].state == MOEK_FILE_OPENING &&
		    pthread_equal(registry->files[i].opener, pthread_self()))
			return 1;
	return 0;
}

/** Whose turn is it? 1: the caller's, who opens it now. Who is inside an open() must
 * not wait: another one might be waiting for it. */
static int32_t take_turn(struct moek_registry *registry, struct moek_file *file,
                         int *is_mine_out, struct moek_error *error_out)
{
	int32_t status = MOEK_OK;

	*is_mine_out = 0;
	pthread_mutex_lock(&registry->lock);
	if (is_opening(registry))
		status = moek_fail(error_out, MOEK_BUSY, 0,
		                   "%s: asked for from inside a plugin's open()",
		                   file->name);
	while (file->state == MOEK_FILE_OPENING && status == MOEK_OK)
		pthread_cond_wait(&registry->changed, &registry->lock);
	if (file->state == MOEK_FILE_UNOPENED && status == MOEK_OK) {
		file->state = MOEK_FILE_OPENING;
		file->opener = pthread_self();
		*is_mine_out = 1;
	}
	pthread_mutex_unlock(&registry->lock);
	return status;
}

int32_t moek_registry_require(struct moek_registry *registry, struct moek_file *file,
                              struct moek_error *error_out)
{
	enum moek_file_state state = MOEK_FILE_OPEN;
	int is_mine;
	int32_t status = take_turn(registry, file, &is_mine, error_out);

	if (status != MOEK_OK || !is_mine)
		return status;
	status = open_file(registry, file);
	if (status == MOEK_NO_MEMORY) {
		state = MOEK_FILE_UNOPENED; /* may go better another time */
		moek_fail_memory(error_out, "plugin");
	} else if (status != MOEK_OK) {
		state = MOEK_FILE_BROKEN;
		status = MOEK_OK;
	}
	pthread_mutex_lock(&registry->lock);
	file->state = state;
	pthread_cond_broadcast(&registry->changed);
	pthread_mutex_unlock(&registry->lock);
	return status;
}

int moek_registry_is_off(const struct moek_registry *registry, const char *name,
                         const char **origin_out)
{
	const struct moek_entry *entry = moek_settings_plugin(registry->settings, name,
	                                                      "enabled");

	if (entry == NULL || moek_settings_boolean(entry->value) == 1)
		return 0;
	*origin_out = entry->origin;
	return 1;
}

/* ---- devices ---- */

size_t moek_registry_devices(const struct moek_registry *registry,
                             const struct moek_file *file,
                             const struct moek_device **devices_out)
{
	const struct moek_machine *machine = &registry->machine;

	if (file->loaded->plugin.list == NULL) {
		*devices_out = &machine->host;
		return 1;
	}
	if (moek_registry_answers_only(registry)) {
		*devices_out = machine->devices;
		return machine->device_count;
	}
	*devices_out = file->devices;
	return file->device_count;
}

static size_t add_device(const struct moek_device **devices, size_t count,
                         const struct moek_device *device)
{
	for (size_t i = 0; i < count; i++)
		if (devices[i] == device || moek_device_is_same(devices[i], device))
			return count;
	devices[count] = device;
	return count + 1;
}

int32_t moek_registry_all_devices(struct moek_registry *registry,
                                  const struct moek_device ***devices_out,
                                  size_t *count_out, struct moek_error *error_out)
{
	const struct moek_machine *machine = &registry->machine;
	size_t most = 1 + machine->device_count, count = 0;
	const struct moek_device **devices;

	pthread_mutex_lock(&registry->lock);
	for (size_t i = 0; i < registry->file_count; i++)
		if (registry->files[i].state == MOEK_FILE_OPEN)
			most += registry->files[i].device_count;
	devices = calloc(most, sizeof(*devices));
	if (devices != NULL) {
		devices[count++] = &machine->host;
		for (size_t i = 0; i < machine->device_count; i++)
			devices[count++] = &machine->devices[i];
		for (size_t i = 0; i < registry->file_count; i++) {
			const struct moek_file *file = &registry->files[i];

			for (size_t j = 0;
			     file->state == MOEK_FILE_OPEN && j < file->device_count;
			     j++)
				count = add_device(devices, count, &file->devices[j]);
		}
	}
	pthread_mutex_unlock(&registry->lock);
	if (devices == NULL)
		return moek_fail_memory(error_out, "list of devices");
	*devices_out = devices;
	*count_out = count;
	return MOEK_OK;
}

/* ---- the registry itself ---- */

static int32_t read_options(const struct moek_registry_options *theirs,
                            struct moek_registry_options *options_out,
                            struct moek_error *error_out)
{
	memset(options_out, 0, sizeof(*options_out));
	if (theirs == NULL)
		return MOEK_OK;
	if (theirs->struct_size < MOEK_REGISTRY_OPTIONS_SIZE_1_0 ||
	    theirs->struct_size > 65536)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "options: struct_size is %u, expected %u or more",
		                 theirs->struct_size, MOEK_REGISTRY_OPTIONS_SIZE_1_0);
	memcpy(options_out, theirs,
	       theirs->struct_size < sizeof(*options_out) ? theirs->struct_size
	                                                  : sizeof(*options_out));
	return MOEK_OK;
}

static int32_t find_workers(struct moek_registry *registry,
                            const struct moek_workers *theirs,
                            struct moek_error *error_out)
{
	uint32_t count = (uint32_t)strtoul(
		moek_settings_value(registry->settings, "threads"), NULL, 10);
	int32_t status;

	if (theirs != NULL) {
		if (theirs->struct_size < MOEK_WORKERS_SIZE_1_0 || theirs->count == 0 ||
		    theirs->parallel_for == NULL)
			return moek_fail(
				error_out, MOEK_BAD_ARGUMENT, 0,
				"workers: struct_size is %u, count %u; expected %u "
				"or more, 1 or more, and parallel_for",
				theirs->struct_size, theirs->count,
				MOEK_WORKERS_SIZE_1_0);
		registry->workers = theirs;
		return MOEK_OK;
	}
	status = moek_threads_create(count, &registry->threads, error_out);
	if (status == MOEK_OK)
		registry->workers = moek_threads_workers(registry->threads);
	return status;
}

/** As the setting `lock` says. */
static int32_t hold_lock(struct moek_registry *registry, struct moek_error *error_out)
{
	const char *path = moek_settings_value(registry->settings, "lock");
	int32_t status;

	if (path[0] == '\0')
		return MOEK_OK;
	status = moek_lock_read(path, &registry->held, error_out);
	return status == MOEK_OK ? moek_lock_hold(registry->held, registry, error_out)
	                         : status;
}

static int32_t fill(struct moek_registry *registry,
                    const struct moek_registry_options *options,
                    struct moek_error *error_out)
{
	const struct moek_place place = { .system_file = MOEK_CONFIG_FILE,
		                          .elevated = getauxval(AT_SECURE) != 0 };
	int32_t status = moek_settings_open(options, &place, &registry->settings,
	                                    error_out);

	if (status != MOEK_OK)
		return status;
	if (place.elevated)
		moek_log_write(
			&registry->log, MOEK_LOG_INFO,
			"elevated rights: the environment and the user's moek.ini "
			"are not read");
	status = moek_machine_open(options->facts_file, &registry->machine, error_out);
	if (status == MOEK_OK && moek_registry_answers_only(registry))
		status = moek_machine_open(NULL, &registry->here, error_out);
	if (status == MOEK_OK)
		status = find_workers(registry, options->workers, error_out);
	if (status == MOEK_OK)
		status = find_files(registry, error_out);
	if (status == MOEK_OK)
		status = hold_lock(registry, error_out);
	return status;
}

int32_t moek_registry_open(const struct moek_registry_options *theirs,
                           struct moek_registry **registry_out,
                           struct moek_error *error_out)
{
	struct moek_registry_options options;
	struct moek_registry *registry;
	int32_t status = read_options(theirs, &options, error_out);

	if (status != MOEK_OK)
		return status;
	if (registry_out == NULL)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, 0,
		                 "registry_out is NULL");
	registry = calloc(1, sizeof(*registry));
	if (registry == NULL)
		return moek_fail_memory(error_out, "registry");
	moek_log_init(&registry->log, options.log, options.log_self);
	pthread_mutex_init(&registry->lock, NULL);
	pthread_cond_init(&registry->changed, NULL);
	status = fill(registry, &options, error_out);
	if (status != MOEK_OK) {
		moek_registry_close(registry);
		return status;
	}
	*registry_out = registry;
	return MOEK_OK;
}

void moek_registry_close(struct moek_registry *registry)
{
	if (registry == NULL)
		return;
	for (size_t i = 0; i < registry->file_count; i++) {
		struct moek_file *file = &registry->files[i];

		moek_plugin_unload(file->loaded);
		free(file->devices);
		moek_note_end(&file->note);
		free(file->name);
		free(file->path);
	}
	free(registry->files);
	moek_golden_end(registry->golden);
	free(registry->searched);
	moek_threads_destroy(registry->threads);
	moek_machine_close(&registry->machine);
	moek_machine_close(&registry->here);
	moek_settings_close(registry->settings);
	moek_lock_close(registry->held);
	pthread_cond_destroy(&registry->changed);
	pthread_mutex_destroy(&registry->lock);
	moek_log_end(&registry->log);
	free(registry);
}

const struct moek_workers *moek_registry_workers(struct moek_registry *registry)
{
	return registry->workers;
}

struct moek_log *moek_registry_log(struct moek_registry *registry)
{
	return &registry->log;
}

uint32_t moek_registry_checks(const struct moek_registry *registry)
{
	return (uint32_t)moek_settings_checks(
		moek_settings_value(registry->settings, "checks"));
}

uint64_t moek_registry_shadow(const struct moek_registry *registry)
{
	return strtoull(moek_settings_value(registry->settings, "shadow"), NULL, 10);
}

int moek_registry_answers_only(const struct moek_registry *registry)
{
	return registry->machine.facts_file != NULL;
}
