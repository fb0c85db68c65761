/* SPDX-License-Identifier: MIT */
/* moek doctor: looks in the world for what lies behind the states of a report. */
#include "config.h"

#include "tools/doctor.h"
#include "tools/tool.h"
#include "tools/writer.h"

#include <elf.h>
#include <errno.h>
#include <glob.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define REPORT_MOST (64 << 20) /* bytes */
#define DEPTH_MOST 32
#define WORD_MOST 512

/* ---- the report: any JSON with objects that have a name and a state ---- */

struct frame {
	char name[WORD_MOST], state[WORD_MOST], path[WORD_MOST], found[WORD_MOST],
		rule[WORD_MOST];
};

struct reader {
	const char *at;
	struct frame frames[DEPTH_MOST];
	int depth;
};

/** The string that begins at reader->at; escapes stay as they are but for \" and \\. */
static int read_string(struct reader *reader, char word_out[WORD_MOST])
{
	size_t used = 0;

	for (reader->at++; *reader->at != '"'; reader->at++) {
		if (*reader->at == '\\' &&
		    (reader->at[1] == '"' || reader->at[1] == '\\' ||
		     reader->at[1] == '/'))
			reader->at++;
		if (*reader->at == '\0')
			return 0;
		if (used + 1 < WORD_MOST)
			word_out[used++] = *reader->at;
	}
	reader->at++;
	word_out[used] = '\0';
	return 1;
}

/** A string after "key": kept when it is one that matters. */
static void keep(struct frame *frame, const char *key, const char *word)
{
	struct {
		const char *key;
		char *to;
	} const kept[] = { { "name", frame->name },
		           { "state", frame->state },
		           { "path", frame->path },
		           { "found", frame->found },
		           { "rule", frame->rule } };

	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		if (strcmp(kept[i].key, key) == 0)
			snprintf(kept[i].to, WORD_MOST, "%s", word);
}

/** 1 and a candidate in *frame_out; 0: no more; -1: it is no JSON. */
static int next_candidate(struct reader *reader, struct frame *frame_out)
{
	char word[WORD_MOST], key[WORD_MOST] = "";
	struct frame *frame = &reader->frames[reader->depth];

	for (; *reader->at != '\0'; frame = &reader->frames[reader->depth]) {
		char c = *reader->at;

		if (c == '"') {
			if (!read_string(reader, word))
				return -1;
			if (reader->at[strspn(reader->at, " \t\r\n")] == ':')
				snprintf(key, sizeof(key), "%s", word);
			else
				keep(frame, key, word);
			continue;
		}
		reader->at++;
		if (c == '{' || c == '[') {
			if (++reader->depth == DEPTH_MOST)
				return -1;
			memset(&reader->frames[reader->depth], 0, sizeof(*frame));
		} else if (c == '}' || c == ']') {
			if (--reader->depth < 0)
				return -1;
			/* the verdict within the candidate */
			if (frame->rule[0] != '\0' && frame->state[0] == '\0')
				snprintf(reader->frames[reader->depth].rule, WORD_MOST,
				         "%s", frame->rule);
			if (frame->name[0] != '\0' && frame->state[0] != '\0') {
				*frame_out = *frame;
				return 1;
			}
		}
	}
	return reader->depth == 0 ? 0 : -1;
}

/* ---- the world, or a tree that looks like it ---- */

struct finding {
	char cause[WORD_MOST], evidence[2 * WORD_MOST], next[WORD_MOST];
};

struct doctor {
	const char *root; /* "" : the world */
	struct finding finding;
};

static const char *in_root(const struct doctor *doctor, const char *path)
{
	static char whole[4096];

	snprintf(whole, sizeof(whole), "%s%s", doctor->root, path);
	return whole;
}

static int is_there(const struct doctor *doctor, const char *path)
{
	struct stat facts;

	return stat(in_root(doctor, path), &facts) == 0;
}

/** What only containers have, or NULL. */
static const char *container_sign(const struct doctor *doctor)
{
	static const char *const signs[] = { "/.dockerenv", "/run/.containerenv",
		                             "/run/systemd/container" };

	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
		if (is_there(doctor, signs[i]))
			return signs[i];
	return NULL;
}

/** Name of a group by its number, from /etc/group. */
static void group_name(const struct doctor *doctor, gid_t gid, char name_out[64])
{
	FILE *file = fopen(in_root(doctor, "/etc/group"), "re");
	char line[1024], name[64];
	unsigned number;

	snprintf(name_out, 64, "%u", (unsigned)gid);
	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "%63[^:]:%*[^:]:%u", name, &number) == 2 &&
		    number == (unsigned)gid)
			snprintf(name_out, 64, "%s", name);
	if (file != NULL)
		fclose(file);
}

static int is_member(gid_t gid)
{
	gid_t groups[1024];
	int count = getgroups(1024, groups);

	for (int i = 0; i < count; i++)
		if (groups[i] == gid)
			return 1;
	return getegid() == gid;
}

/* ---- devices: the plugin's own words name the file of the driver ---- */

/** The first absolute path below /dev in @text. */
static int device_path(const char *text, char path_out[WORD_MOST])
{
	const char *at = strstr(text, "/dev/");

	if (at == NULL)
		return 0;
	snprintf(path_out, WORD_MOST, "%.*s", (int)strcspn(at, " ,;:)"), at);
	return 1;
}

static void look_at_device(struct doctor *doctor, const struct frame *candidate)
{
	struct finding *f = &doctor->finding;
	const char *sign = container_sign(doctor);
	char path[WORD_MOST], group[64];
	struct stat facts;

	if (!device_path(candidate->found, path))
		return;
	if (stat(in_root(doctor, path), &facts) != 0) {
		snprintf(f->evidence, sizeof(f->evidence), "%.200s: %s%s%s", path,
		         strerror(errno), sign != NULL ? "; this is a container: " : "",
		         sign != NULL ? sign : "");
		if (sign != NULL)
			snprintf(f->next, sizeof(f->next),
			         "Start the container with the device: "
			         "--device=%.200s, and its group with --group-add.",
			         path);
		else
			snprintf(f->next, sizeof(f->next),
			         "Load the card's kernel driver, which makes %.200s.",
			         path);
		return;
	}
	group_name(doctor, facts.st_gid, group);
	snprintf(f->evidence, sizeof(f->evidence),
	         "%.200s has mode %04o and group %s; this process is %s of it", path,
	         (unsigned)(facts.st_mode & 07777), group,
	         is_member(facts.st_gid) ? "a member" : "no member");
	if ((facts.st_mode & 0060) != 0060)
		snprintf(f->next, sizeof(f->next), "chmod g+rw %.200s.", path);
	else if (!is_member(facts.st_gid))
		snprintf(f->next, sizeof(f->next),
		         "usermod -aG %s USER, then log in again.", group);
	else
		snprintf(f->next, sizeof(f->next),
		         "It may be opened now: ask again with moek list --open.");
}

/* ---- plugin files ---- */

static const char *machine_name(unsigned machine)
{
	static const struct {
		unsigned machine;
		const char *name;
	} names[] = { { EM_X86_64, "x86_64" },   { EM_386, "i386" },
		      { EM_AARCH64, "aarch64" }, { EM_ARM, "arm" },
		      { EM_RISCV, "riscv" },     { EM_PPC64, "ppc64" } };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].machine == machine)
			return names[i].name;
	return "another machine";
}

static void look_at_machine(struct doctor *doctor, const struct frame *candidate)
{
	struct finding *f = &doctor->finding;
	unsigned char header[20];
	struct utsname here;
	FILE *file = fopen(candidate->path, "re");

	if (file == NULL)
		return;
	if (fread(header, sizeof(header), 1, file) == 1 && uname(&here) == 0)
		snprintf(f->evidence, sizeof(f->evidence),
		         "the file is for %s, this is %s",
		         machine_name(header[18] | (unsigned)header[19] << 8),
		         here.machine);
	fclose(file);
}

/** The library that the loader's words name: "libx.so.1: cannot open ...". */
static int library_name(const char *text, char name_out[WORD_MOST])
{
	const char *end = strstr(text, ".so"), *start = end;

	while (start != NULL && start > text && strchr(" :/\"'", start[-1]) == NULL)
		start--;
	if (start == NULL || start == end)
		return 0;
	snprintf(name_out, WORD_MOST, "%.*s", (int)strcspn(start, " :,;\"'"), start);
	return 1;
}

static void look_for_library(struct doctor *doctor, const struct frame *candidate)
{
	static const char *const elsewhere[] = { "/opt/*/lib",     "/opt/*/lib64",
		                                 "/usr/local/lib", "/usr/local/*/lib",
		                                 "/usr/lib/*",     "/usr/lib64" };
	struct finding *f = &doctor->finding;
	char name[WORD_MOST], pattern[1024];
	glob_t found;

	if (!library_name(candidate->found, name))
		return;
	snprintf(f->evidence, sizeof(f->evidence),
	         "%.200s is in no folder that the loader searches, nor below /opt, "
	         "/usr/lib or /usr/local",
	         name);
	snprintf(f->next, sizeof(f->next), "Install the package that has %.200s.",
	         name);
	for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++) {
		snprintf(pattern, sizeof(pattern), "%.300s%s/%.200s", doctor->root,
		         elsewhere[i], name);
		if (glob(pattern, 0, NULL, &found) != 0)
			continue;
		snprintf(f->evidence, sizeof(f->evidence),
		         "%.300s is there, in a folder that the loader does not search",
		         found.gl_pathv[0]);
		snprintf(f->next, sizeof(f->next),
		         "Write its folder into /etc/ld.so.conf.d and run ldconfig.");
		globfree(&found);
		return;
	}
}

/** Who can change the file, or a folder above it. */
static void look_at_owner(struct doctor *doctor, const struct frame *candidate)
{
	struct finding *f = &doctor->finding;
	char path[WORD_MOST], *slash;
	struct stat facts;

	snprintf(path, sizeof(path), "%s", candidate->path);
	while (path[0] != '\0') {
		if (stat(path, &facts) == 0 &&
		    ((facts.st_mode & 0022) != 0 ||
		     (facts.st_uid != 0 && facts.st_uid != geteuid()))) {
			snprintf(f->evidence, sizeof(f->evidence),
			         "%.300s has mode %04o and owner %u", path,
			         (unsigned)(facts.st_mode & 07777),
			         (unsigned)facts.st_uid);
			snprintf(f->next, sizeof(f->next),
			         "chmod go-w %.300s, and chown "
			         "it to root or to yourself.",
			         path);
			return;
		}
		slash = strrchr(path, '/');
		if (slash == NULL)
			return;
		*slash = '\0';
	}
}

/** A file of another build: its date tells which. */
static void look_at_age(struct doctor *doctor, const struct frame *candidate)
{
	struct finding *f = &doctor->finding;
	struct stat facts;
	struct tm day;

	if (stat(candidate->path, &facts) != 0 ||
	    localtime_r(&facts.st_mtime, &day) == NULL)
		return;
	snprintf(f->evidence, sizeof(f->evidence),
	         "%.300s is of %04d-%02d-%02d; this is moek %s: %.400s",
	         candidate->path, day.tm_year + 1900, day.tm_mon + 1, day.tm_mday,
	         moek_version(), candidate->found);
}

static void look_at_cpu(struct doctor *doctor, const struct frame *candidate)
{
	FILE *file = fopen(in_root(doctor, "/proc/cpuinfo"), "re");
	char line[8192];
	int is_virtual = 0;

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		is_virtual |= strstr(line, " hypervisor") != NULL;
	if (file != NULL)
		fclose(file);
	if (is_virtual)
		snprintf(doctor->finding.evidence, sizeof(doctor->finding.evidence),
		         "%.400s; this is a virtual machine, which may hide what the "
		         "CPU "
		         "has",
		         candidate->found);
}

/* ---- who is looked at ---- */

static const struct {
	const char *rule;
	void (*look)(struct doctor *doctor, const struct frame *candidate);
} looks[] = {
	{ "device_permission", look_at_device },
	{ "device_driver", look_at_device },
	{ "machine", look_at_machine },
	{ "library", look_for_library },
	{ "writable", look_at_owner },
	{ "abi_major", look_at_age },
	{ "abi_minor", look_at_age },
	{ "abi_table", look_at_age },
	{ "abi_slot", look_at_age },
	{ "note_disagrees", look_at_age },
	{ "damaged", look_at_age },
	{ "isa", look_at_cpu },
};

/** 1: this state is a fault of the world, not of the problem or of anybody's wish. */
static int examine(struct doctor *doctor, const struct frame *candidate)
{
	struct finding *f = &doctor->finding;
	const char *fix = "";

	if (strcmp(candidate->state, "missing") != 0 &&
	    strcmp(candidate->state, "broken") != 0 &&
	    strcmp(candidate->state, "unusable") != 0 &&
	    strcmp(candidate->state, "failed") != 0)
		return 0;
	memset(f, 0, sizeof(*f));
	snprintf(f->cause, sizeof(f->cause), "%s", reason_of(candidate->rule, &fix));
	snprintf(f->evidence, sizeof(f->evidence), "%s", candidate->found);
	snprintf(f->next, sizeof(f->next), "%s", fix);
	for (size_t i = 0; i < sizeof(looks) / sizeof(looks[0]); i++)
		if (strcmp(looks[i].rule, candidate->rule) == 0)
			looks[i].look(doctor, candidate);
	return 1;
}

static void show(const struct doctor *doctor, const struct frame *candidate,
                 struct writer *writer)
{
	const struct finding *f = &doctor->finding;

	if (writer == NULL) {
		printf("%s: %s\n  cause     %s\n  evidence  %s\n  next      %s\n",
		       candidate->name, candidate->state, f->cause, f->evidence,
		       f->next);
		return;
	}
	writer_open(writer, NULL, '{');
	writer_string(writer, "name", candidate->name);
	writer_string(writer, "state", candidate->state);
	writer_string(writer, "rule", candidate->rule);
	writer_string(writer, "cause", f->cause);
	writer_string(writer, "evidence", f->evidence);
	writer_string(writer, "next", f->next);
	writer_close(writer, '}');
}

/** The text of the report, malloc'ed; NULL: said why. */
static char *read_report(const char *path)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	long bytes;

	if (file != NULL && fseek(file, 0, SEEK_END) == 0 &&
	    (bytes = ftell(file)) >= 0 && bytes < REPORT_MOST) {
		rewind(file);
		text = calloc(1, (size_t)bytes + 1);
		if (text != NULL && bytes != 0 &&
		    fread(text, (size_t)bytes, 1, file) != 1) {
			free(text);
			text = NULL;
		}
	}
	if (text == NULL)
		tool_say("%s: cannot be read: %s", path, strerror(errno));
	if (file != NULL)
		fclose(file);
	return text;
}

static char *make_report(const struct options *options, int *code_out)
{
	struct moek_registry *registry;
	struct moek_error error;
	char *text;

	if (tool_registry(options, &registry, &error) != MOEK_OK) {
		*code_out = tool_fail(&error);
		return NULL;
	}
	text = moek_registry_report(registry, MOEK_JSON);
	moek_registry_close(registry);
	return text;
}

int command_doctor(const struct options *options)
{
	struct doctor doctor = { .root = options->root != NULL ? options->root : "" };
	struct reader *reader = calloc(1, sizeof(*reader));
	struct writer writer = { 0 };
	int code = TOOL_INPUT, got = 0;
	unsigned findings = 0;
	struct frame candidate;
	char *text = options->reason != NULL ? read_report(options->reason)
	                                     : make_report(options, &code);

	if (text == NULL || reader == NULL) {
		free(text);
		free(reader);
		return code;
	}
	reader->at = text;
	if (options->json)
		writer_open(&writer, NULL, '[');
	while ((got = next_candidate(reader, &candidate)) == 1)
		if (examine(&doctor, &candidate)) {
			show(&doctor, &candidate, options->json ? &writer : NULL);
			findings++;
		}
	if (options->json)
		writer_close(&writer, ']');
	else if (got == 0 && findings == 0)
		puts("nothing is wrong");
	if (got < 0)
		tool_say("%s: not a report in JSON",
		         options->reason != NULL ? options->reason : "report");
	free(text);
	free(reader);
	return got < 0 ? TOOL_INPUT : findings != 0 ? TOOL_REFUSED : TOOL_DONE;
}
