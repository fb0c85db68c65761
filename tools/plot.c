/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/** gnuplot with @in and @out as standard input and output: its exit code, or -1 when it
 * cannot be started; then *child_out is not set. */
static int start_gnuplot(int in, int out, pid_t *child_out)
{
	char *const arguments[] = { (char[]){ "gnuplot" }, NULL };
	posix_spawn_file_actions_t actions;
	int failed;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	failed = posix_spawnp(child_out, "gnuplot", &actions, NULL, arguments, environ);
	posix_spawn_file_actions_destroy(&actions);
	return failed ? -1 : 0;
}

static int wait_for(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int has_gnuplot(void)
{
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC), code = -1;
	pid_t child;

	if (nothing >= 0 && start_gnuplot(nothing, nothing, &child) == 0)
		code = wait_for(child);
	if (nothing >= 0)
		close(nothing);
	return code == 0;
}

static int32_t open_plot(const char *path, int flags, int *file_out,
                         struct moek_error *error_out)
{
	*file_out = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
	if (*file_out < 0)
		return tool_error(error_out, MOEK_BAD_ARGUMENT, "--plot %s: %s", path,
		                  strerror(errno));
	return MOEK_OK;
}

int32_t plot_check(const char *path, int *possible_out, struct moek_error *error_out)
{
	int file;
	int32_t status = MOEK_OK;

	*possible_out = has_gnuplot();
	if (!*possible_out)
		return MOEK_OK;
	status = open_plot(path, 0, &file, error_out);
	if (status == MOEK_OK)
		close(file);
	return status;
}

static void write_roofs(FILE *to, const struct rig *rig)
{
	const char *comma = "plot ";

	for (uint64_t i = 0; i < rig->pool_count; i++) {
		const double *best = rig->probes[i].best;

		for (int limit = LIMIT_INT8; limit < LIMITS; limit++) {
			if (best[limit] <= 0)
				continue;
			fprintf(to,
			        "%s(%g*x < %g ? %g*x : %g) with lines lw 1 "
			        "title '%s, %u thread%s'",
			        comma, best[LIMIT_READ], best[limit], best[LIMIT_READ],
			        best[limit], limit_names[limit],
			        rig->probes[i].workers->count,
			        rig->probes[i].workers->count == 1 ? "" : "s");
			comma = ", ";
		}
	}
}

/** How many of @points have the title of the first. */
static uint64_t series(const struct plot_point *points, uint64_t count)
{
	uint64_t length = 1;

	while (length < count && strcmp(points[length].title, points[0].title) == 0)
		length++;
	return length;
}

static void write_script(FILE *to, const struct rig *rig,
                         const struct plot_point *points, uint64_t count)
{
	fprintf(to,
	        "set terminal svg size 1200,700 font ',12' background '#ffffff'\n"
	        "set title \"%s\" noenhanced\n"
	        "set logscale xy\nset grid\nset key outside right noenhanced\n"
	        "set samples 500\n"
	        "set xlabel 'operations for each byte of weights'\n"
	        "set ylabel 'Gop/s'\n"
	        "set xrange [0.5:20000]\nset yrange [1:*]\nset offsets graph 0, graph "
	        "0, graph 0.05\n",
	        rig->machine.name);
	write_roofs(to, rig);
	for (uint64_t i = 0; i < count; i += series(points + i, count - i))
		fprintf(to, ", '-' with points pt 7 title '%s'", points[i].title);
	fputc('\n', to);
	for (uint64_t i = 0; i < count;) {
		uint64_t end = i + series(points + i, count - i);

		for (; i < end; i++)
			fprintf(to, "%g %g\n", points[i].intensity,
			        points[i].gop_per_second);
		fputs("e\n", to);
	}
}

int32_t plot_roofline(const char *path, const struct rig *rig,
                      const struct plot_point *points, uint64_t count,
                      struct moek_error *error_out)
{
	FILE *script;
	pid_t child;
	int out, code = -1;
	int32_t status = open_plot(path, O_TRUNC, &out, error_out);

	if (status != MOEK_OK)
		return status;
	script = tmpfile(); /* a file needs nobody who reads at the same time */
	if (script != NULL) {
		write_script(script, rig, points, count);
		rewind(script);
		if (start_gnuplot(fileno(script), out, &child) == 0)
			code = wait_for(child);
		fclose(script);
	}
	close(out);
	if (code != 0)
		return tool_error(error_out, MOEK_DEVICE,
		                  "--plot %s: gnuplot failed (exit code %d)", path,
		                  code);
	return MOEK_OK;
}
