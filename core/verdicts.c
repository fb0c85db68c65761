/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/verdicts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAY 86400

/** As FNV-1a, but eight bytes at a time: it tells files apart, and guards no secret. */
static uint64_t hash_on(uint64_t hash, const void *bytes, size_t count)
{
	const char *at = bytes;

	while (count != 0) {
		size_t taken = count < sizeof(uint64_t) ? count : sizeof(uint64_t);
		uint64_t word = 0;

		memcpy(&word, at, taken);
		hash = (hash ^ word) * UINT64_C(0x100000001b3);
		hash ^= hash >> 32; /* high bits would never come down */
		at += taken;
		count -= taken;
	}
	return hash;
}

#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

static int hash_file(int fd, uint64_t *hash)
{
	char buffer[65536];
	ssize_t got;

	while ((got = read(fd, buffer, sizeof(buffer))) != 0) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return 0;
		*hash = hash_on(*hash, buffer, (size_t)got);
	}
	return 1;
}

int moek_verdict_key(const char *path, char *const *options,
                     struct moek_verdict_key *key_out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	uint64_t hash = HASH_BEGIN;
	struct stat facts;
	int is_read = fd >= 0 && fstat(fd, &facts) == 0 && hash_file(fd, &hash);

	if (fd >= 0)
		close(fd);
	if (!is_read)
		return 0;
	for (; *options != NULL; options++)
		hash = hash_on(hash, *options, strlen(*options) + 1);
	*key_out = (struct moek_verdict_key){
		.kind = "probe",
		.path = path,
		.what = "",
		.bytes = (uint64_t)facts.st_size,
		.seconds = (uint64_t)facts.st_mtim.tv_sec,
		.nanoseconds = (uint64_t)facts.st_mtim.tv_nsec,
		.hash = hash,
	};
	return 1;
}

/* ---- one file for each path ---- */

static void file_name(const char *folder, const struct moek_verdict_key *key,
                      char name_out[4096])
{
	uint64_t hash = hash_on(HASH_BEGIN, key->path, strlen(key->path));

	hash = hash_on(hash, key->what, strlen(key->what));
	snprintf(name_out, 4096, "%s/%s/%016llx", folder, key->kind,
	         (unsigned long long)hash);
}

/** All but the time and the verdict: other versions judge otherwise. */
static void write_key(const struct moek_verdict_key *key, char text_out[6144])
{
	snprintf(text_out, 6144, "moek %s %llu %llu.%09llu %016llx %s%s%s\n",
	         PACKAGE_VERSION, (unsigned long long)key->bytes,
	         (unsigned long long)key->seconds, (unsigned long long)key->nanoseconds,
	         (unsigned long long)key->hash, key->path,
	         key->what[0] != '\0' ? " " : "", key->what);
}

int moek_verdict_parse(const char *line, struct moek_cause *cause_out)
{
	struct moek_cause cause = { .verdict.struct_size = MOEK_VERDICT_SIZE_1_0 };
	struct moek_verdict *verdict = &cause.verdict;
	unsigned long long found, accepted;
	int at = 0;

	if (sscanf(line, "%9u %20llu %9u %9u %20llu%n", &verdict->rule, &found,
	           &verdict->accepts, &verdict->count, &accepted, &at) != 5 ||
	    line[at] != ' ' || verdict->count > 1 ||
	    verdict->accepts > MOEK_ACCEPTS_AT_LEAST)
		return 0;
	verdict->found = found;
	verdict->accepted[0] = accepted;
	snprintf(cause.text, sizeof(cause.text), "%s", line + at + 1);
	for (char *c = cause.text; *c != '\0'; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = *c == '\n' ? '\0' : '?';
	*cause_out = cause;
	return 1;
}

int moek_verdict_recall(const char *folder, const struct moek_verdict_key *key,
                        struct moek_cause *cause_out)
{
	char name[4096], wanted[6144], line[6144];
	long long then, now = (long long)time(NULL);
	int is_known = 0, at = 0;
	FILE *file;

	file_name(folder, key, name);
	file = fopen(name, "re");
	if (file == NULL)
		return 0;
	write_key(key, wanted);
	if (fgets(line, sizeof(line), file) != NULL && strcmp(line, wanted) == 0 &&
	    fgets(line, sizeof(line), file) != NULL && strchr(line, '\n') != NULL &&
	    sscanf(line, "%18lld %n", &then, &at) == 1 && at != 0 && then <= now &&
	    now - then < (long long)MOEK_VERDICT_DAYS * DAY)
		is_known = moek_verdict_parse(line + at, cause_out);
	fclose(file);
	return is_known;
}

int moek_verdict_is_bad(const char *folder, const char *path)
{
	const struct moek_verdict_key key = { .kind = "probe",
		                              .path = path,
		                              .what = "" };
	char name[4096], line[4608];
	unsigned rule = 0;
	FILE *file;

	file_name(folder, &key, name);
	file = fopen(name, "re");
	if (file == NULL)
		return 0;
	if (fgets(line, sizeof(line), file) != NULL &&
	    fgets(line, sizeof(line), file) != NULL &&
	    sscanf(line, "%*18d %9u", &rule) != 1)
		rule = 0;
	fclose(file);
	return rule != MOEK_RULE_NONE;
}

/** Make @folder and what is above it; for its owner alone. */
static void make_folder(const char *folder)
{
	char path[4096];

	if (snprintf(path, sizeof(path), "%s/", folder) >= (int)sizeof(path))
		return;
	for (char *c = path + 1; *c != '\0'; c++) {
		if (*c != '/')
			continue;
		*c = '\0';
		mkdir(path, 0700);
		*c = '/';
	}
}

void moek_verdict_keep(const char *folder, const struct moek_verdict_key *key,
                       const struct moek_cause *cause)
{
	const struct moek_verdict *verdict = &cause->verdict;
	char name[4096], fresh[4160], line[6144];
	FILE *file;
	int fd;

	file_name(folder, key, name);
	snprintf(fresh, sizeof(fresh), "%s/%s", folder, key->kind);
	make_folder(fresh);
	snprintf(fresh, sizeof(fresh), "%s.XXXXXX", name);
	fd = mkostemp(fresh, O_CLOEXEC);
	if (fd < 0)
		return;
	file = fdopen(fd, "w");
	if (file == NULL) {
		close(fd);
		unlink(fresh);
		return;
	}
	write_key(key, line);
	fprintf(file, "%s%lld %u %llu %u %u %llu %s\n", line, (long long)time(NULL),
	        verdict->rule, (unsigned long long)verdict->found, verdict->accepts,
	        verdict->count, (unsigned long long)verdict->accepted[0], cause->text);
	if (fclose(file) != 0 || rename(fresh, name) != 0)
		unlink(fresh);
}
