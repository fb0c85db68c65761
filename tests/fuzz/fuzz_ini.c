/* SPDX-License-Identifier: MIT */
/* moek.ini: what is read must be the same when it is written and read again, give an
 * order for every scheme, and print; what is refused must say where and why. */
#include "config.h"

#include "core/priority.h"
#include "core/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int is_true)
{
	if (!is_true)
		abort();
}

/** The lines of @ini, written plainly. */
static char *write_again(const struct moek_ini *ini, size_t *bytes_out)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, bytes_out);

	for (size_t i = 0; i < ini->count; i++) {
		const struct moek_ini_line *line = &ini->lines[i];

		if (line->key == NULL)
			fprintf(out, "[%s]\n", line->section);
		else
			fprintf(out, "%s=%s\n", line->key, line->value);
	}
	fclose(out);
	return text;
}

static void reads_back(const struct moek_ini *ini)
{
	struct moek_ini *again;
	size_t bytes;
	char *text = write_again(ini, &bytes);

	demand(moek_ini_parse(text, bytes, "again", &again, NULL) == MOEK_OK);
	demand(again->count == ini->count);
	for (size_t i = 0; i < ini->count; i++) {
		const struct moek_ini_line *a = &ini->lines[i], *b = &again->lines[i];

		demand(strcmp(a->section, b->section) == 0);
		demand((a->key == NULL) == (b->key == NULL));
		demand(a->key == NULL || (strcmp(a->key, b->key) == 0 &&
		                          strcmp(a->value, b->value) == 0));
	}
	moek_ini_free(again);
	free(text);
}

static void orders(const struct moek_settings *settings)
{
	const struct moek_device host = { .kind = MOEK_HOST, .arch = "x86_64" };
	const struct moek_device card = { .kind = MOEK_HIP, .arch = "gfx1100" };
	const struct moek_device *devices[] = { &host, &card };

	for (uint32_t scheme = 0; scheme <= MOEK_INT8; scheme++) {
		struct moek_order order;

		demand(moek_priority_order(settings, scheme, devices, 2, &order,
		                           NULL) == MOEK_OK);
		for (size_t i = 0; i < order.count; i++)
			demand(moek_order_find(&order, order.ranks[i].name) ==
			       &order.ranks[i]);
		moek_order_end(&order);
	}
}

static void opens(const char *path)
{
	const struct moek_registry_options options = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.config_file = path,
		.ignore_environment = 1,
	};
	const struct moek_place place = { .system_file = "/nonexistent" };
	struct moek_error error = { .text = "" };
	struct moek_settings *settings;
	struct moek_registry *registry;

	if (moek_settings_open(&options, &place, &settings, &error) != MOEK_OK) {
		demand(strncmp(error.text, "/", 1) == 0); /* FILE:LINE: why */
		return;
	}
	orders(settings);
	moek_settings_close(settings);
	demand(moek_registry_open(&options, &registry, &error) == MOEK_OK);
	moek_free(moek_registry_config(registry, MOEK_TEXT));
	moek_free(moek_registry_config(registry, MOEK_JSON));
	moek_registry_close(registry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int file = -1;
	struct moek_error error = { .text = "" };
	struct moek_ini *ini;
	char path[64];

	if (file < 0)
		file = memfd_create("moek.ini", MFD_CLOEXEC);
	demand(file >= 0);
	if (moek_ini_parse((const char *)data, size, "f.ini", &ini, &error) !=
	    MOEK_OK) {
		demand(strncmp(error.text, "f.ini:", 6) == 0);
		return 0;
	}
	reads_back(ini);
	moek_ini_free(ini);
	demand(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	opens(path);
	return 0;
}
