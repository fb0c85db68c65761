/* SPDX-License-Identifier: MIT */
/* moek new-plugin: a folder with a backend that is whole, to be made into another one.
 */
#include "config.h"

#include "tools/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_MOST 40

/* tests/embed/plain.c, line by line: what plugins/README.md walks through */
static const char *const plugin_lines[] = {
#include "tools/new-plugin.inc"
	NULL
};

/* @NAME@ is the plugin's name. */
static const char *const makefile_lines[] = {
	"# make, make check, make install: against the moek that pkg-config finds\n",
	"NAME = @NAME@\n",
	"CFLAGS ?= -O2 -g\n",
	"MOEK ?= moek\n",
	"\n",
	"$(NAME).so: $(NAME).c\n",
	"\t$(CC) -std=c11 $(CFLAGS) $$(pkg-config --cflags moek-plugin) -shared -fPIC "
	"\\\n",
	"\t\t-fvisibility=hidden -o $@ $(NAME).c -lm\n",
	"\n",
	"check: $(NAME).so\n",
	"\t$(MOEK) verify ./$(NAME).so\n",
	"\n",
	"install: $(NAME).so\n",
	"\tinstall -d \"$(DESTDIR)$$(pkg-config --variable=plugindir moek-plugin)\"\n",
	"\tinstall -m 644 $(NAME).so \"$(DESTDIR)$$(pkg-config --variable=plugindir "
	"moek-plugin)\"\n",
	"\n",
	"clean:\n",
	"\trm -f $(NAME).so\n",
	".PHONY: check install clean\n",
	NULL
};

static const char *const configure_lines[] = {
	"AC_INIT([@NAME@], [1])\n",
	"AC_CONFIG_SRCDIR([@NAME@.c])\n",
	"AM_INIT_AUTOMAKE([foreign])\n",
	"AC_PROG_CC\n",
	"AM_PROG_AR\n",
	"LT_INIT([disable-static])\n",
	"PKG_CHECK_MODULES([MOEK], [moek-plugin])\n",
	"PKG_CHECK_VAR([plugindir], [moek-plugin], [plugindir])\n",
	"AC_CONFIG_FILES([Makefile])\n",
	"AC_OUTPUT\n",
	NULL
};

static const char *const automake_lines[] = {
	"plugin_LTLIBRARIES = @NAME@.la\n",
	"@ID@_la_SOURCES = @NAME@.c\n",
	"@ID@_la_CFLAGS = -std=c11 -fvisibility=hidden $(MOEK_CFLAGS)\n",
	"@ID@_la_LDFLAGS = -module -avoid-version -shared\n",
	"@ID@_la_LIBADD = -lm\n",
	"MOEK = moek\n",
	"check-local: @NAME@.la\n",
	"\t$(MOEK) verify .libs/@NAME@.so\n",
	NULL
};

static const char *const readme_lines[] = {
	"# @NAME@\n",
	"\n",
	"A backend for moek: bf16 experts with SiLU, in plain loops, whole. Make it "
	"another one.\n",
	"\n",
	"    make && make check       # builds @NAME@.so, holds it to the contract\n",
	"    make install             # into the folder of plugins\n",
	"    moek explain CHECKPOINT --backend 'require @NAME@'\n",
	"\n",
	"With autotools, in a folder of its own, since ./configure would write over "
	"Makefile:\n",
	"\n",
	"    autoreconf -i && mkdir build && cd build && ../configure && make && make "
	"check\n",
	"\n",
	"What each function promises is said in <moek/experts.h> and in "
	"moek-plugin(7).\n",
	NULL
};

static int is_name(const char *name)
{
	size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return length >= 1 && length <= NAME_MOST && name[length] == '\0';
}

/** @line with each @from turned into @to. */
static void put_line(FILE *file, const char *line, const char *from, const char *to)
{
	const char *at;

	while ((at = strstr(line, from)) != NULL) {
		fprintf(file, "%.*s%s", (int)(at - line), line, to);
		line = at + strlen(from);
	}
	fputs(line, file);
}

static FILE *create(const char *folder, const char *name)
{
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "wx");
	if (file == NULL)
		tool_say("%s: cannot write: %s", path, strerror(errno));
	return file;
}

static int finish(FILE *file, const char *folder)
{
	if (fclose(file) == 0)
		return 1;
	tool_say("%s: cannot write: %s", folder, strerror(errno));
	return 0;
}

/** A file of lines with @NAME@, and @ID@ as make takes it. */
static int write_lines(const char *name, const char *file_name,
                       const char *const *lines)
{
	FILE *file = create(name, file_name);
	char id[NAME_MOST + 1], line[256];

	if (file == NULL)
		return 0;
	snprintf(id, sizeof(id), "%s", name);
	for (char *c = id; *c != '\0'; c++)
		if (*c == '-')
			*c = '_';
	for (; *lines != NULL; lines++) {
		const char *at = strstr(*lines, "@ID@");

		if (at != NULL)
			snprintf(line, sizeof(line), "%.*s%s%s", (int)(at - *lines),
			         *lines, id, at + 4);
		else
			snprintf(line, sizeof(line), "%s", *lines);
		put_line(file, line, "@NAME@", name);
	}
	return finish(file, name);
}

/** NAME.c: the model without its first comment, which speaks of the model. */
static int write_plugin(const char *name)
{
	char file_name[NAME_MOST + 3], quoted[NAME_MOST + 3], id[NAME_MOST + 4];
	const char *const *line = plugin_lines;
	FILE *file;

	snprintf(file_name, sizeof(file_name), "%s.c", name);
	snprintf(quoted, sizeof(quoted), "\"%s\"", name);
	snprintf(id, sizeof(id), "id=%s", name);
	file = create(name, file_name);
	if (file == NULL)
		return 0;
	while (strcmp(*line, " */\n") != 0)
		line++;
	fprintf(file, "/* %s: bf16 experts with SiLU, on the host. */\n", name);
	for (line++; *line != NULL; line++)
		if (strstr(*line, "\"plain\"") != NULL)
			put_line(file, *line, "\"plain\"", quoted);
		else
			put_line(file, *line, "id=plain", id);
	return finish(file, name);
}

int command_new_plugin(const struct options *options)
{
	const char *name = options->checkpoint;

	if (!is_name(name)) {
		tool_say("new-plugin: %s: a name has 1 to %d of a-z 0-9 _ -", name,
		         NAME_MOST);
		return TOOL_USAGE;
	}
	if (mkdir(name, 0777) != 0) {
		tool_say("new-plugin: %s: cannot make the folder: %s", name,
		         strerror(errno));
		return TOOL_REFUSED;
	}
	if (!write_plugin(name) || !write_lines(name, "Makefile", makefile_lines) ||
	    !write_lines(name, "configure.ac", configure_lines) ||
	    !write_lines(name, "Makefile.am", automake_lines) ||
	    !write_lines(name, "README.md", readme_lines))
		return TOOL_REFUSED;
	if (!options->json)
		printf("%s: a backend that is whole; cd %s && make && make check\n",
		       name, name);
	else
		printf("{ \"folder\": \"%s\" }\n", name);
	return TOOL_DONE;
}
