/* SPDX-License-Identifier: MIT */
/* moek new-plugin: a folder with a backend that is whole, to be made into another one.
 */
#include "config.h"

#include "tools/tool.h"
#include "tools/writer.h"

#include <errno.h>
#include <limits.h>
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

/** make and a shell take it too: no dash first. */
static int is_name(const char *name)
{
	size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return length >= 1 && length <= NAME_MOST && name[length] == '\0' &&
	       name[0] != '-' && name[0] != '_';
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

/** Lines with @NAME@, and @ID@ as make takes it. */
static void write_lines(FILE *file, const char *name, const char *const *lines)
{
	char id[NAME_MOST + 1], line[256];

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
}

/** NAME.c: the model, with another comment in the place of its first, which speaks of
 * the model. */
static void write_plugin(FILE *file, const char *name)
{
	char quoted[NAME_MOST + 3], id[NAME_MOST + 4];
	const char *const *line = plugin_lines;

	snprintf(quoted, sizeof(quoted), "\"%s\"", name);
	snprintf(id, sizeof(id), "id=%s", name);
	fputs(*line, file); /* the licence */
	while (strcmp(*line, " */\n") != 0)
		line++;
	fprintf(file, "/* %s: bf16 experts with SiLU, on the host. */\n", name);
	for (line++; *line != NULL; line++)
		if (strstr(*line, "\"plain\"") != NULL)
			put_line(file, *line, "\"plain\"", quoted);
		else
			put_line(file, *line, "id=plain", id);
}

/** What the folder holds. */
static const struct {
	const char *name;         /* NULL: NAME.c */
	const char *const *lines; /* NULL: the model */
} parts[] = {
	{ NULL, NULL },
	{ "Makefile", makefile_lines },
	{ "configure.ac", configure_lines },
	{ "Makefile.am", automake_lines },
	{ "README.md", readme_lines },
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

static void part_path(char path_out[PATH_MAX], const char *folder, const char *name,
                      size_t part)
{
	if (parts[part].name != NULL)
		snprintf(path_out, PATH_MAX, "%s/%s", folder, parts[part].name);
	else
		snprintf(path_out, PATH_MAX, "%s/%s.c", folder, name);
}

/** 0: what went wrong is in errno. */
static int write_part(const char *folder, const char *name, size_t part)
{
	char path[PATH_MAX];
	FILE *file;
	int is_good;

	part_path(path, folder, name, part);
	file = fopen(path, "wxe");
	if (file == NULL)
		return 0;
	if (parts[part].lines != NULL)
		write_lines(file, name, parts[part].lines);
	else
		write_plugin(file, name);
	is_good = !ferror(file);
	return fclose(file) == 0 && is_good;
}

/** The folder @temporary with all its parts becomes @folder. 0: see errno. */
static int write_folder(const char *temporary, const char *folder, const char *name)
{
	mode_t mask = umask(0);

	umask(mask);
	for (size_t part = 0; part < PARTS; part++)
		if (!write_part(temporary, name, part))
			return 0;
	return chmod(temporary, 0777 & ~mask) == 0 && rename(temporary, folder) == 0;
}

static void remove_folder(const char *temporary, const char *name)
{
	char path[PATH_MAX];

	for (size_t part = 0; part < PARTS; part++) {
		part_path(path, temporary, name, part);
		unlink(path);
	}
	rmdir(temporary);
}

static void print_json(const char *folder)
{
	struct writer writer = { 0 };

	writer_open(&writer, NULL, '{');
	writer_string(&writer, "folder", folder);
	writer_close(&writer, '}');
}

static int refuse(const char *folder, int error)
{
	tool_say("new-plugin: %s: cannot write the folder: %s", folder,
	         strerror(error));
	return TOOL_REFUSED;
}

int command_new_plugin(const struct options *options)
{
	const char *name = options->checkpoint;
	const char *folder = options->destination != NULL ? options->destination : name;
	char temporary[PATH_MAX - NAME_MAX];
	int length = (int)strnlen(folder, INT_MAX), error;

	if (!is_name(name)) {
		tool_say("new-plugin: %s: a name has 1 to %d of a-z 0-9 _ -, the first "
		         "a letter or digit",
		         name, NAME_MOST);
		return TOOL_USAGE;
	}
	while (length > 1 && folder[length - 1] == '/')
		length--; /* it lies beside the folder, not in it */
	length = snprintf(temporary, sizeof(temporary), "%.*s.XXXXXX", length, folder);
	if (length < 0 || (size_t)length >= sizeof(temporary))
		return refuse(folder, ENAMETOOLONG);
	if (mkdtemp(temporary) == NULL)
		return refuse(folder, errno);
	if (!write_folder(temporary, folder, name)) {
		error = errno;
		remove_folder(temporary, name);
		return refuse(folder, error);
	}
	if (!options->json)
		printf("%s: a backend that is whole; cd %s && make && make check\n",
		       name, folder);
	else
		print_json(folder);
	return TOOL_DONE;
}
