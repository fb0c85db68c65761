/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/helper/world.h"

#include <dirent.h>
#include <locale.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIGNALS 65

extern char **environ;

struct world {
	char locale[512], folder[4096];
	mode_t mask;
	void *handlers[SIGNALS];
	size_t threads;
	char *environment; /* every variable, and a NUL after each */
	size_t environment_bytes;
};

static void *handler_of(int number)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	sigaction(number, NULL, &action);
	return (void *)(uintptr_t)action.sa_handler;
}

static size_t count_threads(void)
{
	DIR *folder = opendir("/proc/self/task");
	const struct dirent *entry;
	size_t count = 0;

	while (folder != NULL && (entry = readdir(folder)) != NULL)
		count += entry->d_name[0] != '.';
	if (folder != NULL)
		closedir(folder);
	return count;
}

static int copy_environment(struct world *world)
{
	size_t bytes = 0, at = 0;

	for (char **variable = environ; *variable != NULL; variable++)
		bytes += strlen(*variable) + 1;
	world->environment = malloc(bytes + 1);
	if (world->environment == NULL)
		return 0;
	for (char **variable = environ; *variable != NULL; variable++) {
		memcpy(world->environment + at, *variable, strlen(*variable) + 1);
		at += strlen(*variable) + 1;
	}
	world->environment_bytes = bytes;
	return 1;
}

struct world *world_look(void)
{
	struct world *world = calloc(1, sizeof(*world));

	if (world == NULL || !copy_environment(world)) {
		free(world);
		return NULL;
	}
	snprintf(world->locale, sizeof(world->locale), "%s", setlocale(LC_ALL, NULL));
	if (getcwd(world->folder, sizeof(world->folder)) == NULL)
		world->folder[0] = '\0';
	world->mask = umask(077);
	umask(world->mask);
	for (int i = 1; i < SIGNALS; i++)
		world->handlers[i] = handler_of(i);
	world->threads = count_threads();
	return world;
}

const char *world_changed(const struct world *before)
{
	struct world *now = world_look();
	const char *changed = NULL;

	if (now == NULL)
		return NULL;
	if (strcmp(before->locale, now->locale) != 0)
		changed = "the locale";
	else if (strcmp(before->folder, now->folder) != 0)
		changed = "the current directory";
	else if (before->mask != now->mask)
		changed = "the umask";
	else if (memcmp(before->handlers, now->handlers, sizeof(now->handlers)) != 0)
		changed = "what a signal does";
	else if (before->environment_bytes != now->environment_bytes ||
	         memcmp(before->environment, now->environment,
	                now->environment_bytes) != 0)
		changed = "the environment";
	else if (before->threads != now->threads)
		changed = "the number of threads";
	world_free(now);
	return changed;
}

void world_free(struct world *world)
{
	free(world->environment);
	free(world);
}
