/* SPDX-License-Identifier: MIT */
/* Group S: the file as it lies there. The core has read it before, so that its parts
 * are where they say. */
#include "config.h"

#include "tools/verify/verify.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
	const char *bytes;
	size_t count;
	const ElfW(Phdr) * segments;
	const ElfW(Dyn) * dynamic; /* ended by DT_NULL */
	const ElfW(Sym) * symbols;
	size_t symbol_count;
	const char *names, *strings; /* of symbols; of the dynamic part */
};

static const ElfW(Ehdr) * header_of(const struct file *file)
{
	return (const ElfW(Ehdr) *)(const void *)file->bytes;
}

static void find_sections(struct file *file)
{
	const ElfW(Ehdr) *header = header_of(file);
	const ElfW(Shdr) *sections = (const ElfW(
		Shdr) *)(const void *)(file->bytes + header->e_shoff);

	for (unsigned i = 0; i < header->e_shnum; i++) {
		const char *at = file->bytes + sections[i].sh_offset;
		const char *names = file->bytes +
		                    sections[sections[i].sh_link].sh_offset;

		if (sections[i].sh_type == SHT_DYNSYM) {
			file->symbols = (const ElfW(Sym) *)(const void *)at;
			file->symbol_count = sections[i].sh_size / sizeof(ElfW(Sym));
			file->names = names;
		} else if (sections[i].sh_type == SHT_DYNAMIC) {
			file->dynamic = (const ElfW(Dyn) *)(const void *)at;
			file->strings = names;
		}
	}
}

/** 0: said why not. */
static int map_file(const struct verify_task *task, struct file *file)
{
	int fd = open(task->plugin, O_RDONLY | O_CLOEXEC);
	struct stat facts;
	void *bytes = MAP_FAILED;

	memset(file, 0, sizeof(*file));
	if (fd >= 0 && fstat(fd, &facts) == 0)
		bytes = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd,
		             0);
	if (fd >= 0)
		close(fd);
	if (bytes == MAP_FAILED) {
		verify_say(task, VERIFY_FAILED, "", "the file cannot be read");
		return 0;
	}
	file->bytes = bytes;
	file->count = (size_t)facts.st_size;
	file->segments = (const ElfW(Phdr) *)(const void *)(file->bytes +
	                                                    header_of(file)->e_phoff);
	find_sections(file);
	if (file->dynamic != NULL && file->symbols != NULL)
		return 1;
	verify_say(task, VERIFY_UNRUN, "", "its section headers are cut off");
	munmap(bytes, file->count);
	return 0;
}

static void unmap(struct file *file)
{
	munmap((void *)(uintptr_t)file->bytes, file->count);
}

/* ---- the core's own judgement ---- */

/** In a process of its own, as every host would under `probe = always`. */
static void probe(const struct verify_task *task)
{
	struct moek_candidate found = { .struct_size = MOEK_INIT(CANDIDATE) };
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_registry *registry = NULL;
	struct moek_choice *choice = NULL;
	struct moek_error error = { .text = "" };
	struct options options = { .config = task->config };
	const char *folders[3] = { NULL };
	char folder[4096], name[64];
	const struct moek_setting settings[] = {
		{ "registry", "unlisted", "ignore" },
		{ "registry", "probe", "always" },
		{ "registry", "cache", "" },
		{ "priority", name, "on" },
	};

	snprintf(folder, sizeof(folder), "%s", task->plugin);
	*strrchr(folder, '/') = '\0';
	folders[0] = folder;
	options.plugin_dirs = folders;
	verify_name(task->plugin, name, sizeof(name));
	if (tool_registry_with(&options, settings, 4, &registry, &error) != MOEK_OK ||
	    moek_problem_parse(
		    "experts=8,top_k=2,hidden=64,intermediate=32,weight=bf16,"
		    "input_type=bf16,output_type=bf16,activation=silu,gated=1,"
		    "max_tokens=4",
		    &problem, &error) != MOEK_OK) {
		verify_say(task, VERIFY_FAILED, "", "%s", error.text);
		moek_registry_close(registry);
		return;
	}
	moek_choose(registry, &problem, NULL, NULL, &choice, &error);
	for (uint64_t i = 0; choice != NULL && i < moek_choice_candidates(choice);
	     i++) {
		moek_choice_candidate(choice, i, &found);
		if (strcmp(found.name, name) == 0)
			break;
	}
	/* opened, it is there by its experts' names, else by its own */
	if (choice != NULL && found.name != NULL && strcmp(found.name, name) == 0)
		verify_say(task, VERIFY_FAILED, "", "%s (%s, %u)", found.found,
		           moek_rule_name(found.verdict->rule), found.verdict->rule);
	else
		verify_say(task, choice != NULL ? VERIFY_PASSED : VERIFY_FAILED, "",
		           "%s", choice != NULL ? "" : error.text);
	moek_choice_destroy(choice);
	moek_registry_close(registry);
}

/* ---- what the core does not mind ---- */

static int has_note(const struct file *file)
{
	for (unsigned i = 0; i < header_of(file)->e_phnum; i++)
		if (file->segments[i].p_type == PT_NOTE &&
		    memmem(file->bytes + file->segments[i].p_offset,
		           file->segments[i].p_filesz, "moek\0\0\0\0abi=", 12) != NULL)
			return 1;
	return 0;
}

static void note(const struct verify_task *task)
{
	struct file file;

	if (!map_file(task, &file))
		return;
	if (has_note(&file))
		verify_say(task, VERIFY_PASSED, "", "%s", "");
	else
		verify_say(task, VERIFY_FAILED, "",
		           "it has no note: see MOEK_PLUGIN_NOTE in moek/experts.h");
	unmap(&file);
}

/** What every linker adds. */
static int is_ordinary(const char *name)
{
	static const char *const names[] = { "moek_plugin_v1", "_init",  "_fini",
		                             "__bss_start",    "_edata", "_end" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(names[i], name) == 0)
			return 1;
	return strncmp(name, "__odr_asan.", 11) == 0; /* and a sanitizer */
}

static void exports(const struct verify_task *task)
{
	const char *other = NULL;
	struct file file;

	if (!map_file(task, &file))
		return;
	for (size_t i = 0; i < file.symbol_count && other == NULL; i++) {
		const ElfW(Sym) *symbol = &file.symbols[i];
		const char *name = file.names + symbol->st_name;
		unsigned binding = symbol->st_info >> 4;

		if (symbol->st_shndx != SHN_UNDEF && binding != STB_LOCAL &&
		    (symbol->st_other & 3) == STV_DEFAULT && !is_ordinary(name))
			other = name;
	}
	if (other == NULL)
		verify_say(task, VERIFY_PASSED, "", "%s", "");
	else
		verify_say(task, VERIFY_FAILED, "",
		           "exports %s beside moek_plugin_v1: compile with "
		           "-fvisibility=hidden",
		           other);
	unmap(&file);
}

/** What of it a loader stumbles over, or NULL. */
static const char *find_trouble(const struct file *file)
{
	for (size_t i = 0; i < file->symbol_count; i++)
		if (file->symbols[i].st_info >> 4 == STB_GNU_UNIQUE)
			return "has unique symbols, which pin it: compile with "
			       "-fno-gnu-unique";
	for (unsigned i = 0; i < header_of(file)->e_phnum; i++)
		if (file->segments[i].p_type == PT_GNU_STACK &&
		    (file->segments[i].p_flags & PF_X) != 0)
			return "wants an executable stack";
	for (const ElfW(Dyn) *entry = file->dynamic; entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_TEXTREL ||
		    (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL) != 0))
			return "relocates its code: compile with -fPIC";
		if (entry->d_tag == DT_FLAGS &&
		    (entry->d_un.d_val & DF_STATIC_TLS) != 0)
			return "needs static TLS, of which there may be none left";
		if (entry->d_tag == DT_RPATH)
			return "has an RPATH, which goes before LD_LIBRARY_PATH: use "
			       "RUNPATH";
		if (entry->d_tag == DT_NEEDED &&
		    strncmp(file->strings + entry->d_un.d_val, "libmoek.so", 10) == 0)
			return "links libmoek: everything comes from the host's table";
	}
	return NULL;
}

static void loading(const struct verify_task *task)
{
	const char *trouble;
	struct file file;

	if (!map_file(task, &file))
		return;
	trouble = find_trouble(&file);
	verify_say(task, trouble == NULL ? VERIFY_PASSED : VERIFY_FAILED, "", "%s",
	           trouble != NULL ? trouble : "");
	unmap(&file);
}

const struct verify_case verify_file_cases[] = {
	{ "S.probe", probe },     { "S.note", note }, { "S.exports", exports },
	{ "S.loading", loading }, { NULL, NULL },
};
