/* SPDX-License-Identifier: MIT */
/* jsonpath PATH...: read JSON from stdin, strictly, and print the value at each path,
 * such as layers.0.backend, a line each; # is the number of elements. For the shell
 * tests. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"

static const struct moek_json *step(const struct moek_json *value, const char *key)
{
	if (moek_json_kind(value) == MOEK_JSON_ARRAY)
		return moek_json_at(value, strtoul(key, NULL, 10));
	return moek_json_get(value, key);
}

static void print_value(const struct moek_json *value)
{
	int64_t integer;
	double number;
	int boolean;

	if (value == NULL)
		puts("(nothing)");
	else if (moek_json_string(value, NULL) != NULL)
		puts(moek_json_string(value, NULL));
	else if (moek_json_integer(value, &integer))
		printf("%" PRId64 "\n", integer);
	else if (moek_json_number(value, &number))
		printf("%.9g\n", number);
	else if (moek_json_bool(value, &boolean))
		puts(boolean ? "true" : "false");
	else
		puts(moek_json_kind(value) == MOEK_JSON_NULL ? "null" : "(nested)");
}

static void print_path(const struct moek_json *value, char *path)
{
	for (char *key = strtok(path, "."); key != NULL; key = strtok(NULL, ".")) {
		if (strcmp(key, "#") == 0) {
			printf("%zu\n", moek_json_count(value));
			return;
		}
		value = value != NULL ? step(value, key) : NULL;
	}
	print_value(value);
}

int main(int argc, char **argv)
{
	static char text[1 << 20];
	size_t bytes = fread(text, 1, sizeof(text), stdin);
	struct moek_error error;
	struct moek_json *root;

	if (moek_json_parse(text, bytes, "stdin", &root, &error) != MOEK_OK) {
		fprintf(stderr, "%s\n", error.text);
		return 1;
	}
	for (int i = 1; i < argc; i++)
		print_path(root, argv[i]);
	moek_json_free(root);
	return 0;
}
