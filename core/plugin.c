/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/plugin.h"

#include "core/log.h"
#include "core/memory.h"
#include "core/nearest.h"
#include "core/note.h"
#include "core/settings.h"
#include "core/status.h"

#include <dlfcn.h>
#include <elf.h>
#include <fenv.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SYMBOL "moek_plugin_v1"
#define TABLE_MOST 65536 /* bytes of a table: above it is rubbish */
#define EXPERTS_MOST 64
#define OPTIONS_MOST 256
#define VERSION_BYTES 8 /* struct_size and version: readable in every descriptor */

int32_t moek_plugin_break(struct moek_cause *cause_out, uint32_t rule, uint64_t found,
                          const char *format, ...)
{
	va_list arguments;

	memset(cause_out, 0, sizeof(*cause_out));
	cause_out->verdict.struct_size = MOEK_VERDICT_SIZE_1_0;
	moek_refuse(&cause_out->verdict, rule, found);
	va_start(arguments, format);
	vsnprintf(cause_out->text, sizeof(cause_out->text), format, arguments);
	va_end(arguments);
	return MOEK_PLUGIN;
}

int moek_plugin_name_is_valid(const char *name)
{
	size_t length = strnlen(name, 41);

	return length >= 1 && length <= 40 &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == length;
}

/* ---- the file's one symbol ---- */

/** "NAME.so.1: " and no path: the loader speaks of a library that it does not find. */
static int names_a_library(const char *text)
{
	size_t length = strcspn(text, ":/");
	const char *end = memmem(text, length, ".so", 3);

	return text[length] == ':' && end != NULL;
}

static int32_t load_library(struct moek_loaded *loaded, const char *path,
                            struct moek_cause *cause_out)
{
	const char *text;

	loaded->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (loaded->library != NULL)
		return MOEK_OK;
	text = dlerror();
	/* the report has the path already */
	if (text != NULL && strncmp(text, path, strlen(path)) == 0 &&
	    strncmp(text + strlen(path), ": ", 2) == 0)
		text += strlen(path) + 2;
	return moek_plugin_break(
		cause_out,
		text != NULL && names_a_library(text) ? MOEK_RULE_LIBRARY
						      : MOEK_RULE_LOAD,
		0, "%s", text != NULL ? text : "the loader gave no reason");
}

/* ---- the libraries that it brings ---- */

/** Is the library @name that this process has the file @own? -1: neither is known. */
static int is_same_library(const char *name, const char *own, char *other_out,
                           size_t bytes)
{
	void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
	struct stat mine, theirs;
	struct link_map *map;
	int is_same = -1;

	if (library == NULL)
		return -1;
	if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && stat(own, &mine) == 0 &&
	    stat(map->l_name, &theirs) == 0) {
		is_same = mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
		snprintf(other_out, bytes, "%s", map->l_name);
	}
	dlclose(library);
	return is_same;
}

/** A library is found by its name first: another plugin's may have taken the place of
 *  the one that lies beside this file, where $ORIGIN of @folders says. */
static int32_t check_library(const struct moek_plugin_request *request,
                             const char *name, const char *folders,
                             struct moek_cause *cause_out)
{
	const char *slash = strrchr(request->path, '/');
	char own[4096], other[4096];

	while (*folders != '\0' && slash != NULL) {
		size_t length = strcspn(folders, ":");

		if (strncmp(folders, "$ORIGIN", 7) == 0 &&
		    snprintf(own, sizeof(own), "%.*s%.*s/%s",
		             (int)(slash - request->path), request->path,
		             (int)length - 7, folders + 7, name) < (int)sizeof(own) &&
		    is_same_library(name, own, other, sizeof(other)) == 0)
			return moek_plugin_break(
				cause_out, MOEK_RULE_TWO_HELPERS, 0,
				"needs its own %s, but another one was here first: %s",
				name, other);
		folders += length + (folders[length] == ':');
	}
	return MOEK_OK;
}

static int32_t check_libraries(const struct moek_loaded *loaded,
                               const struct moek_plugin_request *request,
                               struct moek_cause *cause_out)
{
	const char *strings = NULL, *folders = "";
	struct link_map *own;
	int32_t status = MOEK_OK;

	if (dlinfo(loaded->library, RTLD_DI_LINKMAP, &own) != 0)
		return MOEK_OK;
	for (const ElfW(Dyn) *entry = own->l_ld; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag ==
		    DT_STRTAB) /* the loader may have moved it already */
			strings = (const char *)(entry->d_un.d_ptr < own->l_addr
			                                 ? entry->d_un.d_ptr +
			                                           own->l_addr
			                                 : entry->d_un.d_ptr);
	for (const ElfW(Dyn) *entry = own->l_ld; entry->d_tag != DT_NULL; entry++)
		if (strings != NULL &&
		    (entry->d_tag == DT_RUNPATH || entry->d_tag == DT_RPATH))
			folders = strings + entry->d_un.d_val;
	for (const ElfW(Dyn) *entry = own->l_ld;
	     entry->d_tag != DT_NULL && status == MOEK_OK; entry++)
		if (strings != NULL && entry->d_tag == DT_NEEDED)
			status = check_library(request, strings + entry->d_un.d_val,
			                       folders, cause_out);
	return status;
}

/** dlsym() looks into dependencies too: the symbol must be this file's own. */
static int32_t find_symbol(const struct moek_loaded *loaded, const void **symbol_out,
                           uint64_t *bytes_out, struct moek_cause *cause_out)
{
	const void *symbol = dlsym(loaded->library, SYMBOL);
	struct link_map *own = NULL, *owner = NULL;
	const ElfW(Sym) *entry = NULL;
	Dl_info info;

	if (symbol == NULL)
		return moek_plugin_break(cause_out, MOEK_RULE_SYMBOL, 0, "%s", "");
	if (dlinfo(loaded->library, RTLD_DI_LINKMAP, &own) != 0 ||
	    dladdr1(symbol, &info, (void **)&owner, RTLD_DL_LINKMAP) == 0 ||
	    dladdr1(symbol, &info, (void **)(uintptr_t)&entry, RTLD_DL_SYMENT) == 0 ||
	    entry == NULL)
		return moek_plugin_break(cause_out, MOEK_RULE_SYMBOL, 0,
		                         SYMBOL " cannot be traced to a file");
	if (owner != own)
		return moek_plugin_break(cause_out, MOEK_RULE_SYMBOL_FOREIGN, 0,
		                         SYMBOL " belongs to the dependency %s",
		                         owner->l_name);
	if ((entry->st_info & 0xf) != STT_OBJECT || entry->st_size < VERSION_BYTES)
		return moek_plugin_break(cause_out, MOEK_RULE_SYMBOL, 0,
		                         SYMBOL " is not a descriptor");
	*symbol_out = symbol;
	*bytes_out = entry->st_size;
	return MOEK_OK;
}

/* ---- tables ---- */

/** Copy min(theirs, mine) of a table that says its own size into zeroed memory. */
static int32_t copy_table(void *mine, size_t mine_bytes, const void *theirs,
                          uint32_t least, const char *what,
                          struct moek_cause *cause_out)
{
	uint32_t bytes;

	memcpy(&bytes, theirs, sizeof(bytes));
	if (bytes < least) {
		moek_plugin_break(cause_out, MOEK_RULE_ABI_TABLE, bytes,
		                  "%s has %u bytes", what, bytes);
		cause_out->verdict.accepts = MOEK_ACCEPTS_AT_LEAST;
		cause_out->verdict.accepted[0] = least;
		return MOEK_PLUGIN;
	}
	if (bytes > TABLE_MOST) {
		moek_plugin_break(cause_out, MOEK_RULE_ABI_TABLE, bytes,
		                  "%s claims %u bytes", what, bytes);
		cause_out->verdict.accepts = MOEK_ACCEPTS_AT_MOST;
		cause_out->verdict.accepted[0] = TABLE_MOST;
		return MOEK_PLUGIN;
	}
	memset(mine, 0, mine_bytes);
	memcpy(mine, theirs, bytes < mine_bytes ? bytes : mine_bytes);
	return MOEK_OK;
}

struct slot {
	size_t at;
	const char *name;
};

static const struct slot plugin_slots[] = {
	{ offsetof(struct moek_plugin, name), "name" },
	{ offsetof(struct moek_plugin, version), "version" },
	{ offsetof(struct moek_plugin, experts), "experts" },
	{ offsetof(struct moek_plugin, open), "open" },
	{ offsetof(struct moek_plugin, close), "close" },
};

/* all of them, or none */
static const struct slot device_slots[] = {
	{ offsetof(struct moek_plugin, list), "list" },
	{ offsetof(struct moek_plugin, alloc), "alloc" },
	{ offsetof(struct moek_plugin, free), "free" },
	{ offsetof(struct moek_plugin, copy), "copy" },
	{ offsetof(struct moek_plugin, wait), "wait" },
};

#define EXPERTS_SLOT(name)                                                             \
	{                                                                              \
		offsetof(struct moek_experts, name), #name                             \
	}
static const struct slot experts_slots[] = {
	EXPERTS_SLOT(name),
	EXPERTS_SLOT(supports_device),
	EXPERTS_SLOT(supports_quant_scheme),
	EXPERTS_SLOT(supports_activation),
	EXPERTS_SLOT(supports_parallel),
	EXPERTS_SLOT(supports_shape),
	EXPERTS_SLOT(problem_size),
	EXPERTS_SLOT(workspace_shapes),
	EXPERTS_SLOT(finalize),
	EXPERTS_SLOT(numerics),
	EXPERTS_SLOT(prepared_size),
	EXPERTS_SLOT(create),
	EXPERTS_SLOT(load_expert),
	EXPERTS_SLOT(finish),
	EXPERTS_SLOT(forward),
	EXPERTS_SLOT(destroy),
};

/** The first empty slot, or NULL. */
static const char *empty_slot(const void *table, const struct slot *slots, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		void *pointer;

		memcpy(&pointer, (const char *)table + slots[i].at, sizeof(pointer));
		if (pointer == NULL)
			return slots[i].name;
	}
	return NULL;
}
#define EMPTY_SLOT(table, slots)                                                       \
	empty_slot(table, slots, sizeof(slots) / sizeof((slots)[0]))

static int has_devices(const struct moek_plugin *plugin)
{
	return plugin->list != NULL || plugin->alloc != NULL || plugin->free != NULL ||
	       plugin->copy != NULL || plugin->wait != NULL;
}

static int32_t read_descriptor(struct moek_loaded *loaded, struct moek_cause *cause_out)
{
	struct moek_plugin *plugin = &loaded->plugin;
	const void *symbol = NULL;
	const char *slot;
	uint16_t major;
	uint64_t bytes = 0;
	int32_t status = find_symbol(loaded, &symbol, &bytes, cause_out);

	if (status != MOEK_OK)
		return status;
	memcpy(&major, (const char *)symbol + offsetof(struct moek_plugin, abi_major),
	       sizeof(major));
	if (major != MOEK_ABI_MAJOR) {
		moek_plugin_break(cause_out, MOEK_RULE_ABI_MAJOR, major, "%s", "");
		cause_out->verdict.accepts = MOEK_ACCEPTS_VALUES;
		cause_out->verdict.count = 1;
		cause_out->verdict.accepted[0] = MOEK_ABI_MAJOR;
		return MOEK_PLUGIN;
	}
	status = copy_table(plugin, sizeof(*plugin), symbol, MOEK_PLUGIN_SIZE_1_0,
	                    "the descriptor", cause_out);
	if (status != MOEK_OK)
		return status;
	if (plugin->struct_size > bytes)
		return moek_plugin_break(
			cause_out, MOEK_RULE_ABI_TABLE, plugin->struct_size,
			"the descriptor claims %u bytes, the file has %llu of it",
			plugin->struct_size, (unsigned long long)bytes);
	slot = EMPTY_SLOT(plugin, plugin_slots);
	if (slot == NULL && has_devices(plugin))
		slot = EMPTY_SLOT(plugin, device_slots);
	if (slot != NULL)
		return moek_plugin_break(cause_out, MOEK_RULE_ABI_SLOT, 0,
		                         "%s of the descriptor is NULL", slot);
	if (!moek_plugin_name_is_valid(plugin->name) ||
	    strcmp(plugin->name, loaded->name) != 0)
		return moek_plugin_break(cause_out, MOEK_RULE_ABI_NAME, 0,
		                         "its name is '%.40s', the file's '%s'",
		                         plugin->name, loaded->name);
	return MOEK_OK;
}

static int32_t read_experts(struct moek_loaded *loaded,
                            const struct moek_experts *theirs,
                            struct moek_cause *cause_out)
{
	struct moek_experts *mine = &loaded->experts[loaded->experts_count];
	char what[32];
	const char *slot;
	int32_t status;

	snprintf(what, sizeof(what), "experts table %u", loaded->experts_count);
	status = copy_table(mine, sizeof(*mine), theirs, MOEK_EXPERTS_SIZE_1_0, what,
	                    cause_out);
	if (status != MOEK_OK)
		return status;
	slot = EMPTY_SLOT(mine, experts_slots);
	if (slot != NULL)
		return moek_plugin_break(cause_out, MOEK_RULE_ABI_SLOT, 0,
		                         "%s of %s is NULL", slot, what);
	if (!moek_plugin_name_is_valid(mine->name))
		return moek_plugin_break(
			cause_out, MOEK_RULE_ABI_NAME, 0,
			"%s is named '%.41s': expected a-z 0-9 _ -, at most 40", what,
			mine->name);
	if (mine->rank_class < MOEK_NATIVE || mine->rank_class > MOEK_EMULATION)
		return moek_plugin_break(
			cause_out, MOEK_RULE_UNKNOWN_VALUE, mine->rank_class,
			"%s is of the unknown class %u", mine->name, mine->rank_class);
	for (uint32_t i = 0; i < loaded->experts_count; i++)
		if (strcmp(loaded->experts[i].name, mine->name) == 0)
			return moek_plugin_break(
				cause_out, MOEK_RULE_ABI_NAME, 0,
				"two of its experts tables are named '%s'", mine->name);
	loaded->experts_count++;
	return MOEK_OK;
}

static int32_t read_all_experts(struct moek_loaded *loaded,
                                struct moek_cause *cause_out)
{
	const struct moek_experts *const *list = loaded->plugin.experts;
	size_t count = 0;
	int32_t status = MOEK_OK;

	while (count <= EXPERTS_MOST && list[count] != NULL)
		count++;
	if (count == 0 || count > EXPERTS_MOST)
		return moek_plugin_break(
			cause_out, MOEK_RULE_ABI_TABLE, count,
			"%s experts tables: expected 1 to %d, ended by NULL",
			count == 0 ? "no" : "too many", EXPERTS_MOST);
	loaded->experts = calloc(count, sizeof(*loaded->experts));
	if (loaded->experts == NULL)
		return MOEK_NO_MEMORY;
	for (size_t i = 0; i < count && status == MOEK_OK; i++)
		status = read_experts(loaded, list[i], cause_out);
	return status;
}

/* ---- options ---- */

static size_t count_options(const struct moek_plugin *plugin)
{
	size_t count = 0;

	while (plugin->options != NULL && count < OPTIONS_MOST &&
	       plugin->options[count] != NULL)
		count++;
	return count;
}

static int is_declared(const struct moek_plugin *plugin, const char *key)
{
	size_t count = count_options(plugin);

	for (size_t i = 0; i < count; i++)
		if (strcmp(plugin->options[i], key) == 0)
			return 1;
	return 0;
}

static int32_t check_options(const struct moek_loaded *loaded,
                             struct moek_cause *cause_out)
{
	const struct moek_settings *settings = loaded->settings;
	const struct moek_plugin *plugin = &loaded->plugin;
	char section[64];

	snprintf(section, sizeof(section), "plugin %s", loaded->name);
	for (size_t i = 0; i < settings->count; i++) {
		const struct moek_entry *entry = &settings->entries[i];
		const char *nearest;

		if (entry->key == NULL || strcmp(entry->section, section) != 0 ||
		    strcmp(entry->key, "enabled") == 0 ||
		    strncmp(entry->key, "x-", 2) == 0 ||
		    is_declared(plugin, entry->key))
			continue;
		nearest = moek_nearest(entry->key, plugin->options,
		                       count_options(plugin));
		return moek_plugin_break(cause_out, MOEK_RULE_OPTION, 0,
		                         "unknown option '%s' at %s%s%s%s", entry->key,
		                         moek_origin_short(entry->origin),
		                         nearest != NULL ? "; did you mean '" : "",
		                         nearest != NULL ? nearest : "",
		                         nearest != NULL ? "'?" : "");
	}
	return MOEK_OK;
}

/* ---- what the plugin may call ---- */

static void host_log(void *self, uint32_t level, const char *text)
{
	struct moek_loaded *loaded = self;

	if (text == NULL)
		return;
	if (level != MOEK_LOG_ERROR && level != MOEK_LOG_WARNING &&
	    level != MOEK_LOG_INFO)
		level = MOEK_LOG_DEBUG;
	if (level == MOEK_LOG_ERROR && loaded->complaint != NULL)
		snprintf(loaded->complaint, loaded->complaint_bytes, "%s", text);
	else
		moek_log_write(loaded->log, level, "%s: %s", loaded->name, text);
}

static const char *host_option(void *self, const char *key)
{
	const struct moek_loaded *loaded = self;
	const struct moek_entry *entry;

	if (key == NULL || !is_declared(&loaded->plugin, key))
		return NULL;
	entry = moek_settings_plugin(loaded->settings, loaded->name, key);
	return entry != NULL ? entry->value : NULL;
}

static void *host_alloc(void *self, uint64_t bytes, uint64_t align)
{
	(void)self;
	return moek_memory_alloc(bytes, align);
}

static void host_free(void *self, void *address)
{
	(void)self;
	moek_memory_free(address);
}

static int32_t open_plugin(struct moek_loaded *loaded, struct moek_cause *cause_out)
{
	char complaint[sizeof(cause_out->text)] = "";
	int32_t status;

	loaded->host = (struct moek_host){
		.struct_size = MOEK_HOST_SIZE_1_0,
		.self = loaded,
		.log = host_log,
		.option = host_option,
		.alloc = host_alloc,
		.free = host_free,
	};
	loaded->complaint = complaint;
	loaded->complaint_bytes = sizeof(complaint);
	status = loaded->plugin.open(&loaded->host, &loaded->handle);
	loaded->complaint = NULL;
	if (status == MOEK_OK) {
		loaded->is_open = 1;
		if (complaint[0] != '\0')
			moek_log_write(loaded->log, MOEK_LOG_ERROR, "%s: %s",
			               loaded->name, complaint);
		return MOEK_OK;
	}
	if (complaint[0] != '\0')
		return moek_plugin_break(cause_out, MOEK_RULE_OPEN, 0,
		                         "open() failed: %s", complaint);
	return moek_plugin_break(cause_out, MOEK_RULE_OPEN, 0,
	                         "open() failed with %d (%s)", status,
	                         moek_status_name(status));
}

static int32_t load(struct moek_loaded *loaded,
                    const struct moek_plugin_request *request,
                    struct moek_cause *cause_out)
{
	int32_t status;

	if (request->step != NULL)
		request->step("load");
	status = load_library(loaded, request->path, cause_out);
	if (status == MOEK_OK)
		status = check_libraries(loaded, request, cause_out);
	if (status == MOEK_OK)
		status = read_descriptor(loaded, cause_out);
	if (status == MOEK_OK)
		status = read_all_experts(loaded, cause_out);
	if (status == MOEK_OK && request->note != NULL)
		status = moek_note_compare(request->note, loaded, cause_out);
	if (status == MOEK_OK)
		status = check_options(loaded, cause_out);
	if (status == MOEK_OK && request->step != NULL)
		request->step("open");
	if (status == MOEK_OK)
		status = open_plugin(loaded, cause_out);
	return status;
}

int32_t moek_plugin_load(const struct moek_plugin_request *request,
                         struct moek_loaded **loaded_out, struct moek_cause *cause_out)
{
	struct moek_loaded *loaded = calloc(1, sizeof(*loaded));
	int32_t status;
	fenv_t environment;

	if (loaded == NULL)
		return MOEK_NO_MEMORY;
	snprintf(loaded->name, sizeof(loaded->name), "%s", request->name);
	loaded->log = request->log;
	loaded->settings = request->settings;

	/* constructors and open() may change how this thread rounds and flushes */
	fegetenv(&environment);
	status = load(loaded, request, cause_out);
	fesetenv(&environment);
	if (status != MOEK_OK) {
		moek_plugin_unload(loaded);
		return status;
	}
	*loaded_out = loaded;
	return MOEK_OK;
}

void moek_plugin_unload(struct moek_loaded *loaded)
{
	if (loaded == NULL)
		return;
	if (loaded->is_open)
		loaded->plugin.close(loaded->handle);
	if (loaded->library != NULL)
		dlclose(loaded->library);
	free(loaded->experts);
	free(loaded);
}
