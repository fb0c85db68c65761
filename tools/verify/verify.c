/* SPDX-License-Identifier: MIT */
/* moek verify: the list of cases, each in a process of its own, and the certificate. */
#include "config.h"

#include "tools/verify/verify.h"

#include "core/sha256.h"
#include "tools/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANDOM_CASES 16
#define REPORT_FD 3

extern char **environ;

struct result {
	char name[160]; /* "N.mxfp4/silu/bf16 on cpu.avx2" */
	enum verify_outcome outcome;
	char text[640];
};

/** A backend of the file, and whether it was ever more than talked about. */
struct backend {
	char name[64];
	uint64_t passed, unrun;
	char why[256]; /* it did not run */
};

struct verify {
	const struct options *options;
	struct verify_task task;
	char plugin[4096], reference[4096];
	char running[96]; /* the case */
	struct result *results;
	size_t count, room;
	uint64_t tally[VERIFY_OUTCOMES];
	struct backend backends[32];
	size_t backend_count;
	int is_out_of_memory;
};

/* ---- results ---- */

static struct backend *find_backend(struct verify *verify, const char *name)
{
	for (size_t i = 0; i < verify->backend_count; i++)
		if (strcmp(verify->backends[i].name, name) == 0)
			return &verify->backends[i];
	if (verify->backend_count ==
	    sizeof(verify->backends) / sizeof(verify->backends[0]))
		return NULL;
	snprintf(verify->backends[verify->backend_count].name,
	         sizeof(verify->backends[0].name), "%s", name);
	return &verify->backends[verify->backend_count++];
}

/** Only numbers are a run. */
static void note_backend(struct verify *verify, const struct result *result,
                         const char *subject)
{
	struct backend *backend;

	if (subject[0] == '\0' ||
	    (verify->running[0] != 'N' && verify->running[0] != 'F'))
		return;
	backend = find_backend(verify, subject);
	if (backend == NULL)
		return;
	backend->passed += result->outcome == VERIFY_PASSED;
	backend->unrun += result->outcome == VERIFY_UNRUN;
	if (result->outcome == VERIFY_UNRUN || result->outcome == VERIFY_SKIPPED)
		snprintf(backend->why, sizeof(backend->why), "%.255s", result->text);
}

static void print_tap(const struct verify *verify, const struct result *result)
{
	printf("%sok %zu - %s", result->outcome == VERIFY_FAILED ? "not " : "",
	       verify->count, result->name);
	if (result->outcome == VERIFY_SKIPPED || result->outcome == VERIFY_UNRUN)
		printf(" # SKIP %s%s",
		       result->outcome == VERIFY_UNRUN ? "claimed and not run: " : "",
		       result->text);
	putchar('\n');
	if (result->outcome == VERIFY_FAILED)
		printf("# %s\n", result->text);
	fflush(stdout);
}

static void add_result(struct verify *verify, enum verify_outcome outcome,
                       const char *subject, const char *text)
{
	struct result *result;

	if (verify->count == verify->room) {
		size_t room = 2 * verify->room + 64;
		struct result *results = realloc(verify->results,
		                                 room * sizeof(*results));

		if (results == NULL) {
			verify->is_out_of_memory = 1;
			return;
		}
		verify->results = results;
		verify->room = room;
	}
	result = &verify->results[verify->count++];
	snprintf(result->name, sizeof(result->name), "%s%s%s", verify->running,
	         subject[0] != '\0' ? " on " : "", subject);
	result->outcome = outcome;
	snprintf(result->text, sizeof(result->text), "%s", text);
	for (char *c = result->text; *c != '\0'; c++)
		if ((unsigned char)*c < 0x20)
			*c = ' ';
	verify->tally[outcome]++;
	note_backend(verify, result, subject);
	if (!verify->options->json)
		print_tap(verify, result);
}

void verify_say(const struct verify_task *task, enum verify_outcome outcome,
                const char *subject, const char *format, ...)
{
	struct verify *verify = task->verify;
	char text[640], line[800];
	va_list arguments;
	int length;

	if (verify == NULL)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (verify->options->report == 0) {
		add_result(verify, outcome, subject, text);
		return;
	}
	for (char *c = text; *c != '\0'; c++)
		if (*c == '\n')
			*c = ' ';
	length = snprintf(line, sizeof(line), "%d\t%s\t%s\n", (int)outcome, subject,
	                  text);
	if (write((int)verify->options->report, line, (size_t)length) != length)
		_exit(TOOL_REFUSED);
}

/* ---- cases ---- */

int verify_name(const char *path, char *name_out, size_t bytes)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash != NULL ? slash + 1 : path;
	size_t length = strlen(name);

	if (length <= 3 || length - 3 >= bytes || strcmp(name + length - 3, ".so") != 0)
		return 0;
	snprintf(name_out, bytes, "%.*s", (int)length - 3, name);
	return 1;
}

/** What there is to run: first the two lists, then E, then numbers, then random ones.
 */
static uint64_t list_length(const struct verify_case *list)
{
	uint64_t count = 0;

	while (list[count].name != NULL)
		count++;
	return count;
}

/** Name case @index, and with @runs, run it. 0: there is no such case. */
static int visit_case(const struct verify *verify, uint64_t index, int runs,
                      char name_out[96])
{
	const struct verify_case *lists[] = { verify_file_cases, verify_table_cases };
	const struct verify_task *task = &verify->task;

	for (size_t i = 0; i < 2; i++) {
		if (index < list_length(lists[i])) {
			snprintf(name_out, 96, "%s", lists[i][index].name);
			if (runs)
				lists[i][index].run(task);
			return 1;
		}
		index -= list_length(lists[i]);
	}
	if (index == 0) {
		snprintf(name_out, 96, "E.forward");
		if (runs)
			verify_effects(task);
		return 1;
	}
	index--;
	if (index < verify_number_count()) {
		verify_number_name(index, name_out);
		if (runs)
			verify_numbers(task, index);
		return 1;
	}
	index -= verify_number_count();
	if (index >= RANDOM_CASES)
		return 0;
	snprintf(name_out, 96, "F.seed %llu", (unsigned long long)(task->seed + index));
	if (runs)
		verify_random(task, task->seed + index);
	return 1;
}

static int is_wanted(const struct verify *verify, const char *name)
{
	const struct options *options = verify->options;
	char reproduced[96];

	if (options->reproduces) {
		snprintf(reproduced, sizeof(reproduced), "F.seed %llu",
		         (unsigned long long)options->seed);
		return strcmp(name, reproduced) == 0;
	}
	return options->cases == NULL || fnmatch(options->cases, name, 0) == 0;
}

/* ---- a case in a process of its own ---- */

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/** Itself again, for one case. 0, or the errno. */
static int start(const struct verify *verify, int report, pid_t *pid_out)
{
	char seed[32], threads[16], report_fd[8];
	char *arguments[] = { (char *)(uintptr_t) "moek",
		              (char *)(uintptr_t) "verify",
		              (char *)(uintptr_t)verify->plugin,
		              (char *)(uintptr_t) "--in-process",
		              (char *)(uintptr_t) "--report",
		              report_fd,
		              (char *)(uintptr_t) "--case",
		              (char *)(uintptr_t)verify->running,
		              (char *)(uintptr_t) "--seed",
		              seed,
		              (char *)(uintptr_t) "--reference",
		              (char *)(uintptr_t)verify->reference,
		              (char *)(uintptr_t) "--config",
		              (char *)(uintptr_t)verify->task.config,
		              (char *)(uintptr_t) "--threads",
		              threads,
		              NULL };
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	int error;

	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)verify->task.seed);
	snprintf(threads, sizeof(threads), "%u", verify->task.threads);
	snprintf(report_fd, sizeof(report_fd), "%d", REPORT_FD);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
	error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	if (error == 0)
		error = posix_spawn_file_actions_addopen(&files, 1, "/dev/null",
		                                         O_WRONLY, 0);
	if (error == 0)
		error = posix_spawn_file_actions_addopen(&files, 2, "/dev/null",
		                                         O_WRONLY, 0);
	if (error == 0)
		error = posix_spawn_file_actions_adddup2(&files, report, REPORT_FD);
	if (error == 0)
		error = posix_spawn(pid_out, "/proc/self/exe", &files, &attributes,
		                    arguments, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	return error;
}

/** One line "OUTCOME\tSUBJECT\tTEXT" of a child. */
static void take_line(struct verify *verify, char *line)
{
	char *subject = strchr(line, '\t'), *text;

	if (subject == NULL || line[0] < '0' || line[0] >= '0' + VERIFY_OUTCOMES)
		return;
	*subject++ = '\0';
	text = strchr(subject, '\t');
	if (text == NULL)
		return;
	*text++ = '\0';
	add_result(verify, (enum verify_outcome)(line[0] - '0'), subject, text);
}

/** Read lines until the child closes its end or time is up. 1: it is. */
static int take_lines(struct verify *verify, int from, double deadline)
{
	char buffer[8192];
	size_t used = 0;

	for (;;) {
		struct pollfd waiting = { .fd = from, .events = POLLIN };
		double left = deadline - seconds();
		ssize_t got;
		char *end;

		if (left <= 0)
			return 1;
		if (poll(&waiting, 1, (int)(left * 1000) + 1) <= 0)
			continue;
		got = read(from, buffer + used, sizeof(buffer) - used - 1);
		if (got <= 0)
			return 0;
		used += (size_t)got;
		buffer[used] = '\0';
		while ((end = strchr(buffer, '\n')) != NULL) {
			*end = '\0';
			take_line(verify, buffer);
			used -= (size_t)(end + 1 - buffer);
			memmove(buffer, end + 1, used + 1);
		}
		if (used == sizeof(buffer) - 1)
			used = 0; /* no line of ours */
	}
}

static void run_apart(struct verify *verify)
{
	size_t before = verify->count;
	uint64_t limit = verify->options->time_limit;
	char text[160];
	int ends[2], status = 0, is_late = 0, error, high = -1;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) != 0) {
		add_result(verify, VERIFY_FAILED, "", strerror(errno));
		return;
	}
	/* above REPORT_FD, or dup2() of it to itself would keep it from the child */
	high = fcntl(ends[1], F_DUPFD_CLOEXEC, REPORT_FD + 1);
	close(ends[1]);
	error = high < 0 ? errno : start(verify, high, &pid);
	if (high >= 0)
		close(high);
	if (error != 0) {
		close(ends[0]);
		add_result(verify, VERIFY_FAILED, "", strerror(error));
		return;
	}
	is_late = take_lines(verify, ends[0], seconds() + (double)limit);
	close(ends[0]);
	if (is_late)
		kill(-pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (is_late)
		snprintf(text, sizeof(text), "no end within %llu s",
		         (unsigned long long)limit);
	else if (WIFSIGNALED(status))
		snprintf(text, sizeof(text), "crashed with signal %d",
		         WTERMSIG(status));
	else if (WEXITSTATUS(status) == TOOL_DONE && verify->count != before)
		return;
	else
		snprintf(text, sizeof(text), "ended the process with code %d",
		         WEXITSTATUS(status));
	add_result(verify, VERIFY_FAILED, "", text);
}

/* ---- all of them ---- */

static void run_case(struct verify *verify, uint64_t index)
{
	char name[96];

	if (!verify->options->in_process)
		run_apart(verify);
	else
		visit_case(verify, index, 1, name);
}

static void run_all(struct verify *verify)
{
	for (uint64_t index = 0; visit_case(verify, index, 0, verify->running);
	     index++) {
		if (!is_wanted(verify, verify->running))
			continue;
		run_case(verify, index);
		/* what does not survive a probe is not let near anything else */
		if (strcmp(verify->running, "S.probe") == 0 &&
		    verify->tally[VERIFY_FAILED] != 0)
			break;
	}
}

/* ---- the certificate ---- */

/** Every backend of the file has run something. */
static int is_complete(const struct verify *verify)
{
	const struct options *options = verify->options;
	int complete = options->cases == NULL && !options->reproduces &&
	               verify->tally[VERIFY_FAILED] == 0 && verify->backend_count != 0;

	for (size_t i = 0; i < verify->backend_count; i++)
		complete = complete && verify->backends[i].passed != 0 &&
		           verify->backends[i].unrun == 0;
	return complete;
}

static void certify_tap(const struct verify *verify, const char *hash)
{
	printf("1..%zu\n", verify->count);
	printf("# moek %s verified %s\n# sha256 %s, seed %llu\n", moek_version(),
	       verify->plugin, hash, (unsigned long long)verify->task.seed);
	printf("# %llu passed, %llu failed, %llu not claimed, %llu claimed and not "
	       "run\n",
	       (unsigned long long)verify->tally[VERIFY_PASSED],
	       (unsigned long long)verify->tally[VERIFY_FAILED],
	       (unsigned long long)verify->tally[VERIFY_SKIPPED],
	       (unsigned long long)verify->tally[VERIFY_UNRUN]);
	for (size_t i = 0; i < verify->backend_count; i++)
		if (verify->backends[i].passed == 0 && verify->backends[i].unrun != 0)
			printf("# not run: %s: %s\n", verify->backends[i].name,
			       verify->backends[i].why);
	printf("# certificate: %s\n", is_complete(verify) ? "complete" : "incomplete");
}

static void certify_json(const struct verify *verify, const char *hash)
{
	static const char *const words[] = { "passed", "failed", "not_claimed",
		                             "not_run" };
	struct writer writer = { .depth = 0 };

	writer_open(&writer, NULL, '{');
	writer_string(&writer, "kit", moek_version());
	writer_string(&writer, "plugin", verify->plugin);
	writer_string(&writer, "sha256", hash);
	writer_number(&writer, "seed", verify->task.seed);
	writer_bool(&writer, "complete", is_complete(verify));
	for (int i = 0; i < VERIFY_OUTCOMES; i++)
		writer_number(&writer, words[i], verify->tally[i]);
	writer_open(&writer, "backends", '[');
	for (size_t i = 0; i < verify->backend_count; i++) {
		writer_open(&writer, NULL, '{');
		writer_string(&writer, "name", verify->backends[i].name);
		writer_number(&writer, "passed", verify->backends[i].passed);
		if (verify->backends[i].passed == 0 && verify->backends[i].unrun != 0)
			writer_string(&writer, "not_run", verify->backends[i].why);
		writer_close(&writer, '}');
	}
	writer_close(&writer, ']');
	writer_open(&writer, "cases", '[');
	for (size_t i = 0; i < verify->count; i++) {
		writer_open(&writer, NULL, '{');
		writer_string(&writer, "name", verify->results[i].name);
		writer_string(&writer, "outcome", words[verify->results[i].outcome]);
		if (verify->results[i].text[0] != '\0')
			writer_string(&writer, "text", verify->results[i].text);
		writer_close(&writer, '}');
	}
	writer_close(&writer, ']');
	writer_close(&writer, '}');
}

/* ---- what it works on ---- */

/** Emulation as the registry finds it. 0: it does not. */
static int find_reference(const struct options *options, char path_out[4096])
{
	static const char any[] =
		"experts=1,top_k=1,hidden=8,intermediate=8,weight=fp32,"
		"input_type=fp32,output_type=fp32,activation=silu,"
		"gated=1,max_tokens=1";
	struct moek_candidate found = { .struct_size = MOEK_INIT(CANDIDATE) };
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_registry *registry = NULL;
	struct moek_choice *choice = NULL;
	struct moek_error error = { .text = "" };
	int is_found = 0;

	if (tool_registry(options, &registry, &error) != MOEK_OK ||
	    moek_problem_parse(any, &problem, &error) != MOEK_OK ||
	    moek_choose(registry, &problem, "require emulation", NULL, &choice,
	                &error) != MOEK_OK)
		tool_say("no emulation to compare with: %s; name it with --reference",
		         error.text);
	for (uint64_t i = 0; choice != NULL && i < moek_choice_candidates(choice);
	     i++) {
		moek_choice_candidate(choice, i, &found);
		if (found.state == MOEK_STATE_CHOSEN) {
			snprintf(path_out, 4096, "%s", found.path);
			is_found = 1;
		}
	}
	moek_choice_destroy(choice);
	moek_registry_close(registry);
	return is_found;
}

/** An exit code. */
static int begin(struct verify *verify, const struct options *options)
{
	char name[64];

	verify->options = options;
	if (realpath(options->checkpoint, verify->plugin) == NULL) {
		tool_say("%s: %s", options->checkpoint, strerror(errno));
		return TOOL_INPUT;
	}
	if (!verify_name(verify->plugin, name, sizeof(name))) {
		tool_say("%s: not the name of a plugin, NAME.so", verify->plugin);
		return TOOL_INPUT;
	}
	if (options->reference != NULL)
		snprintf(verify->reference, sizeof(verify->reference), "%s",
		         options->reference);
	else if (!find_reference(options, verify->reference))
		return TOOL_REFUSED;
	verify->task = (struct verify_task){
		.plugin = verify->plugin,
		.reference = verify->reference,
		.config = options->config != NULL ? options->config : "",
		.seed = options->seed,
		.threads = options->threads != 0 ? (uint32_t)options->threads : 2,
		.verify = verify,
	};
	return TOOL_DONE;
}

int command_verify(const struct options *options)
{
	struct verify *verify = calloc(1, sizeof(*verify));
	char hash[65] = "";
	int code;

	if (verify == NULL) {
		tool_say("no memory to verify");
		return TOOL_REFUSED;
	}
	code = begin(verify, options);
	if (code == TOOL_DONE) {
		run_all(verify);
		if (options->report == 0) {
			sha256_file(verify->plugin, hash);
			if (options->json)
				certify_json(verify, hash);
			else
				certify_tap(verify, hash);
			if (verify->count == 0)
				tool_say("no case has this name");
			code = verify->tally[VERIFY_FAILED] != 0 ||
			                       verify->count == 0 ||
			                       verify->is_out_of_memory
			               ? TOOL_REFUSED
			               : TOOL_DONE;
		}
	}
	free(verify->results);
	free(verify);
	return code;
}
