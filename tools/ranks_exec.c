/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/ranks.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int ranks_run(const struct command *command, struct options *options, char **arguments)
{
	static const char name[] = "moek-mpi";
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - sizeof(name));
	char *slash;

	(void)options;
	path[length > 0 ? length : 0] = '\0';
	slash = strrchr(path, '/');
	if (slash != NULL) {
		memcpy(slash + 1, name, sizeof(name));
		execv(path, arguments);
	}
	tool_say("%s: --parallel: %s: %s; moek-mpi comes with configure --with-mpi",
	         command->name, path, strerror(errno));
	return TOOL_REFUSED;
}
