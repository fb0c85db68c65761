/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/probe.h"

#include "core/log.h"
#include "core/settings.h"
#include "core/status.h"
#include "core/verdicts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT 4096      /* bytes of a stream */
#define WORDS_MOST 160 /* of its last words, in a text */

extern char **environ; /* the helper's is ours: it must find what we would find */

/* ---- the helper's process ---- */

enum { OUTPUT, ERROR_OUTPUT, REPORT, STREAMS };

struct stream {
	int to_read, to_write; /* ends of a pipe, or -1 */
	char text[KEPT +
	          1]; /* REPORT and OUTPUT: the first bytes; ERROR_OUTPUT: the last */
	size_t bytes;
};

struct child {
	pid_t pid;
	struct stream streams[STREAMS];
	int has_ended, is_late;
	int is_gone;            /* there is nothing to wait for */
	int has_status, status; /* as waitpid() gives it */
};

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_streams(struct child *child)
{
	for (int i = 0; i < STREAMS; i++) {
		close_end(&child->streams[i].to_read);
		close_end(&child->streams[i].to_write);
	}
}

/** The errno of what failed, or 0. */
static int open_streams(struct child *child)
{
	for (int i = 0; i < STREAMS; i++)
		child->streams[i].to_read = child->streams[i].to_write = -1;
	for (int i = 0; i < STREAMS; i++) {
		int ends[2], high;

		if (pipe2(ends, O_CLOEXEC) != 0)
			return errno;
		child->streams[i].to_read = ends[0];
		child->streams[i].to_write = ends[1];
		/* above those that the helper gets, or one would replace another */
		high = fcntl(ends[1], F_DUPFD_CLOEXEC, MOEK_PROBE_REPORT + 1);
		if (high < 0)
			return errno;
		close(ends[1]);
		child->streams[i].to_write = high;
		if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
			return errno;
	}
	return 0;
}

static int set_files(posix_spawn_file_actions_t *files, const struct child *child)
{
	int error = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY,
	                                             0);

	for (int i = 0; i < STREAMS && error == 0; i++)
		error = posix_spawn_file_actions_adddup2(
			files, child->streams[i].to_write,
			i == REPORT ? MOEK_PROBE_REPORT : i + 1);
	return error;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
	sigset_t none, all;
	int error;

	sigemptyset(&none);
	sigfillset(&all);
	error = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP |
	                                                     POSIX_SPAWN_SETSIGMASK |
	                                                     POSIX_SPAWN_SETSIGDEF);
	if (error == 0)
		error = posix_spawnattr_setsigmask(attributes, &none);
	return error != 0 ? error : posix_spawnattr_setsigdefault(attributes, &all);
}

/** The errno of what failed, or 0. */
static int start(const struct moek_probe *probe, char **options, struct child *child)
{
	const char *helper = moek_settings_value(probe->settings, "probe_helper");
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	size_t count = 0;
	char **arguments;
	int error;

	while (options[count] != NULL)
		count++;
	arguments = calloc(count + 5, sizeof(*arguments));
	if (arguments == NULL)
		return ENOMEM;
	arguments[0] = (char *)(uintptr_t)helper;
	arguments[1] = (char *)(uintptr_t)probe->path;
	arguments[2] = (char *)(uintptr_t)probe->name;
	arguments[3] = (char *)(uintptr_t)probe->features;
	memcpy(arguments + 4, options, count * sizeof(*options));
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	error = open_streams(child);
	if (error == 0)
		error = set_files(&files, child);
	if (error == 0)
		error = set_attributes(&attributes);
	if (error == 0)
		error = posix_spawn(&child->pid, helper, &files, &attributes, arguments,
		                    environ);
	for (int i = 0; i < STREAMS; i++)
		close_end(&child->streams[i].to_write);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	free(arguments);
	return error;
}

/** Take what is there; of more than fits, what matters stays. */
static void take(struct stream *stream, int keeps_last)
{
	char buffer[KEPT];
	ssize_t got;

	while (stream->to_read >= 0 &&
	       (got = read(stream->to_read, buffer, sizeof(buffer))) != 0) {
		size_t count = got > 0 ? (size_t)got : 0, room = KEPT - stream->bytes;

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return; /* nothing more for now */
		if (keeps_last && count > room) {
			size_t leaving = count - room;

			memmove(stream->text, stream->text + leaving,
			        stream->bytes - leaving);
			stream->bytes -= leaving;
			room = count;
		}
		memcpy(stream->text + stream->bytes, buffer,
		       count < room ? count : room);
		stream->bytes += count < room ? count : room;
	}
	close_end(&stream->to_read);
}

static void take_all(struct child *child)
{
	for (int i = 0; i < STREAMS; i++)
		take(&child->streams[i], i == ERROR_OUTPUT);
}

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/** Has it ended? Its number stays taken until end_child(). */
static void look_after(struct child *child)
{
	siginfo_t found = { .si_pid = 0 };

	if (waitid(P_PID, (id_t)child->pid, &found, WEXITED | WNOHANG | WNOWAIT) == 0)
		child->has_ended = found.si_pid == child->pid;
	else if (errno == ECHILD) /* a host that waits for every child took it */
		child->has_ended = child->is_gone = 1;
}

/** With all that it has started. */
static void end_child(struct child *child)
{
	if (child->is_gone)
		return;
	kill(-child->pid, SIGKILL);
	while (!child->has_status && !child->is_gone) {
		child->has_status = waitpid(child->pid, &child->status, 0) ==
		                    child->pid;
		child->is_gone = !child->has_status && errno != EINTR;
	}
}

/** Until it ends or @deadline; its group is gone afterwards. */
static void attend(struct child *child, int64_t deadline)
{
	while (!child->has_ended && !child->is_late) {
		struct pollfd waiting[STREAMS];
		int64_t left = deadline - milliseconds();
		nfds_t count = 0;

		for (int i = 0; i < STREAMS; i++)
			if (child->streams[i].to_read >= 0)
				waiting[count++] = (struct pollfd){
					.fd = child->streams[i].to_read,
					.events = POLLIN
				};
		/* once all are closed, the end is near */
		poll(waiting, count,
		     count == 0  ? 1
		     : left < 20 ? (int)(left > 0 ? left : 0)
		                 : 20);
		take_all(child);
		look_after(child);
		child->is_late = !child->has_ended && milliseconds() >= deadline;
	}
	end_child(child);
	take_all(child);
	for (int i = 0; i < STREAMS; i++)
		child->streams[i].text[child->streams[i].bytes] = '\0';
}

/* ---- what it means ---- */

/** The last line that begins with @word and what follows that, up to its end. */
static int last_line(const char *text, const char *word, char *rest_out, size_t bytes)
{
	int is_found = 0;

	while (*text != '\0') {
		size_t length = strcspn(text, "\n");

		if (strncmp(text, word, strlen(word)) == 0 && text[length] == '\n') {
			snprintf(rest_out, bytes, "%.*s", (int)(length - strlen(word)),
			         text + strlen(word));
			is_found = 1;
		}
		text += length + (text[length] == '\n');
	}
	return is_found;
}

/** "; it said: ..." of the last line on standard error, or "". */
static void last_words(const struct child *child, char words_out[WORDS_MOST + 16])
{
	const char *text = child->streams[ERROR_OUTPUT].text;
	size_t end = child->streams[ERROR_OUTPUT].bytes, start;

	words_out[0] = '\0';
	while (end > 0 && (unsigned char)text[end - 1] <= ' ')
		end--;
	for (start = end; start > 0 && text[start - 1] != '\n'; start--)
		;
	if (start == end)
		return;
	snprintf(words_out, WORDS_MOST, "; it said: %.*s", (int)(end - start),
	         text + start);
	for (char *c = words_out; *c != '\0'; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
}

static const char *signal_name(int number)
{
	static const struct {
		int number;
		const char *name;
	} names[] = { { SIGABRT, "SIGABRT" }, { SIGSEGV, "SIGSEGV" },
		      { SIGBUS, "SIGBUS" },   { SIGFPE, "SIGFPE" },
		      { SIGILL, "SIGILL" },   { SIGTRAP, "SIGTRAP" },
		      { SIGSYS, "SIGSYS" },   { SIGKILL, "SIGKILL" } };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].number == number)
			return names[i].name;
	return "?";
}

static int32_t judge(const struct child *child, const char *seconds,
                     struct moek_cause *cause_out)
{
	char step[32] = "start", words[WORDS_MOST + 16], line[1024];
	const char *report = child->streams[REPORT].text;
	int32_t status = MOEK_OK;

	last_line(report, "step ", step, sizeof(step));
	last_words(child, words);
	if (child->is_late)
		return moek_plugin_break(cause_out, MOEK_RULE_PROBE_TIME, 0,
		                         "no answer within %s s, at step %s%s", seconds,
		                         step, words);
	if (child->has_status && WIFSIGNALED(child->status))
		return moek_plugin_break(cause_out, MOEK_RULE_PROBE_CRASH,
		                         (uint64_t)WTERMSIG(child->status),
		                         "crashed with signal %d (%s) at step %s%s",
		                         WTERMSIG(child->status),
		                         signal_name(WTERMSIG(child->status)), step,
		                         words);
	if (strcmp(step, "exit") != 0 || (child->has_status && child->status != 0))
		return moek_plugin_break(cause_out, MOEK_RULE_PROBE_EXIT, 0,
		                         "ended the process with code %d at step %s%s",
		                         child->has_status ? WEXITSTATUS(child->status)
		                                           : 0,
		                         step, words);
	if (last_line(report, "cause ", line, sizeof(line)))
		status = moek_verdict_parse(line, cause_out) ? MOEK_PLUGIN : MOEK_OK;
	if (status == MOEK_OK && child->streams[OUTPUT].bytes != 0)
		return moek_plugin_break(
			cause_out, MOEK_RULE_PROBE_NOISE, 0,
			"writes to standard output: %.*s",
			(int)strcspn(child->streams[OUTPUT].text, "\n"),
			child->streams[OUTPUT].text);
	return status;
}

/** MOEK_DEVICE stands for: there is no helper, and *error_out says why. */
static int32_t ask_helper(const struct moek_probe *probe, char **options,
                          int *error_out, struct moek_cause *cause_out)
{
	const char *seconds = moek_settings_value(probe->settings, "probe_seconds");
	struct child *child = calloc(1, sizeof(*child));
	int32_t status = MOEK_DEVICE;

	if (child == NULL)
		return MOEK_NO_MEMORY;
	*error_out = start(probe, options, child);
	if (*error_out == 0) {
		attend(child, milliseconds() + 1000 * strtol(seconds, NULL, 10));
		/* whatever else was found under the helper's name */
		if (strncmp(child->streams[REPORT].text, MOEK_PROBE_GREETING "\n",
		            strlen(MOEK_PROBE_GREETING) + 1) == 0)
			status = judge(child, seconds, cause_out);
		else
			*error_out = ENOEXEC;
	}
	close_streams(child);
	free(child);
	return status;
}

static int32_t without_helper(const struct moek_probe *probe, int is_demanded,
                              int error, struct moek_cause *cause_out)
{
	const char *helper = moek_settings_value(probe->settings, "probe_helper");

	if (is_demanded)
		return moek_plugin_break(
			cause_out, MOEK_RULE_PROBE_HELPER, 0,
			"probe = always, and probe_helper %s does not run: %s", helper,
			strerror(error));
	moek_log_once(probe->log, error == ENOENT ? MOEK_LOG_INFO : MOEK_LOG_WARNING,
	              "probe_helper",
	              "plugins are opened unprobed: probe_helper %s does not run: %s",
	              helper, strerror(error));
	return MOEK_OK;
}

static int32_t probe_with(const struct moek_probe *probe, int is_demanded,
                          char **options, struct moek_cause *cause_out)
{
	const char *cache = moek_settings_value(probe->settings, "cache");
	struct moek_verdict_key key;
	int is_kept = cache[0] != '\0' && moek_verdict_key(probe->path, options, &key);
	int32_t status;
	int error = 0;

	if (is_kept && moek_verdict_recall(cache, &key, cause_out))
		return cause_out->verdict.rule == MOEK_RULE_NONE ? MOEK_OK
		                                                 : MOEK_PLUGIN;
	status = ask_helper(probe, options, &error, cause_out);
	if (status == MOEK_DEVICE)
		return without_helper(probe, is_demanded, error, cause_out);
	if (status == MOEK_OK)
		memset(cause_out, 0, sizeof(*cause_out));
	if (is_kept && status != MOEK_NO_MEMORY)
		moek_verdict_keep(cache, &key, cause_out);
	return status;
}

int32_t moek_probe_run(const struct moek_probe *probe, struct moek_cause *cause_out)
{
	const char *mode = moek_settings_value(probe->settings, "probe");
	int is_demanded = strcmp(mode, "always") == 0;
	char **options;
	int32_t status;

	/* a verdict that nobody can keep would cost every process anew */
	if (!is_demanded && (strcmp(mode, "never") == 0 ||
	                     moek_settings_value(probe->settings, "cache")[0] == '\0'))
		return MOEK_OK;
	options = moek_settings_options(probe->settings, probe->name);
	if (options == NULL)
		return MOEK_NO_MEMORY;
	status = probe_with(probe, is_demanded, options, cause_out);
	moek_settings_options_free(options);
	return status;
}

int moek_probe_recall(const struct moek_probe *probe, struct moek_cause *cause_out)
{
	const char *cache = moek_settings_value(probe->settings, "cache");
	struct moek_verdict_key key;
	char **options;
	int is_bad;

	if (cache[0] == '\0' ||
	    strcmp(moek_settings_value(probe->settings, "probe"), "never") == 0 ||
	    !moek_verdict_is_bad(cache, probe->path))
		return 0;
	options = moek_settings_options(probe->settings, probe->name);
	is_bad = options != NULL && moek_verdict_key(probe->path, options, &key) &&
	         moek_verdict_recall(cache, &key, cause_out) &&
	         cause_out->verdict.rule != MOEK_RULE_NONE;
	moek_settings_options_free(options);
	return is_bad;
}
