/* SPDX-License-Identifier: MIT */
/* The ranks of a communicator, and how they agree. */
#include "config.h"

#include "parallel/ep.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TEXT 65536 /* of what is compared */

/* ---- errors ---- */

int32_t ep_fail(struct moek_error *error_out, int32_t status, uint32_t rule,
                const char *format, ...)
{
	va_list arguments;

	if (error_out == NULL)
		return status;
	memset(error_out, 0, sizeof(*error_out));
	error_out->status = status;
	error_out->rule = rule;
	va_start(arguments, format);
	vsnprintf(error_out->text, sizeof(error_out->text), format, arguments);
	va_end(arguments);
	return status;
}

int32_t ep_fail_memory(struct moek_error *error_out, const char *what)
{
	return ep_fail(error_out, MOEK_NO_MEMORY, MOEK_RULE_MEMORY,
	               "out of memory for %s", what);
}

/* ---- agreement ---- */

/** The first rank that says 1; the number of ranks when none does. */
static int first_rank(const struct moek_ep *ep, int says)
{
	int mine = says ? ep->rank : ep->ranks, first;

	MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, ep->communicator);
	return first;
}

int32_t moek_ep_agree(struct moek_ep *ep, int32_t status, struct moek_error *error)
{
	int first = first_rank(ep, status != MOEK_OK);
	char text[sizeof(error->text)];

	if (first == ep->ranks)
		return MOEK_OK;
	error->status = status;
	MPI_Bcast(error, (int)sizeof(*error), MPI_BYTE, first, ep->communicator);
	memcpy(text, error->text, sizeof(text));
	text[sizeof(text) - 1] = '\0';
	if (snprintf(error->text, sizeof(error->text), "rank %d of %d: %s", first,
	             ep->ranks, text) < 0)
		error->text[0] = '\0';
	return error->status;
}

uint64_t ep_hash(uint64_t hash, const void *bytes, uint64_t count)
{
	const unsigned char *at = bytes;

	for (; count != 0; count--)
		hash = (hash ^ *at++) * UINT64_C(0x100000001b3);
	return hash;
}

/** The line of @text that begins at @at, cut to what a message holds. */
static void copy_line(const char *text, size_t at, char line_out[256])
{
	size_t length = strcspn(text + at, "\n");

	if (length == 0)
		snprintf(line_out, 256, "nothing");
	else
		snprintf(line_out, 256, "%.*s", length < 250 ? (int)length : 250,
		         text + at);
}

/** Where the first line begins that differs. */
static size_t different_line(const char *a, const char *b)
{
	size_t line = 0;

	for (size_t i = 0; a[i] != '\0' && a[i] == b[i]; i++)
		if (a[i] == '\n')
			line = i + 1;
	return line;
}

/** Both ranks' texts to everybody, and the first line that differs. */
static int32_t tell_difference(struct moek_ep *ep, int32_t status, const char *what,
                               const char *text, const int ranks[2],
                               struct moek_error *error_out)
{
	char *both = calloc(2, MOST_TEXT), lines[2][256];
	struct moek_error error;
	int32_t agreed = moek_ep_agree(
		ep,
		both != NULL ? MOEK_OK
			     : ep_fail_memory(&error, "what ranks disagree on"),
		&error);
	size_t at;

	if (agreed != MOEK_OK) {
		if (error_out != NULL)
			*error_out = error;
		free(both);
		return agreed;
	}
	for (int i = 0; i < 2; i++) {
		char *mine = both + i * MOST_TEXT;

		snprintf(mine, MOST_TEXT, "%s", text);
		MPI_Bcast(mine, MOST_TEXT, MPI_BYTE, ranks[i], ep->communicator);
	}
	at = different_line(both, both + MOST_TEXT);
	copy_line(both, at, lines[0]);
	copy_line(both + MOST_TEXT, at, lines[1]);
	free(both);
	return ep_fail(error_out, status, MOEK_RULE_NONE,
	               "rank %d of %d: has another %s than rank %d: %s, not %s",
	               ranks[1], ep->ranks, what, ranks[0], lines[1], lines[0]);
}

int32_t ep_same(struct moek_ep *ep, int32_t status, const char *what, const char *text,
                struct moek_error *error_out)
{
	uint64_t mine = ep_hash(EP_HASH, text, strlen(text)), first;
	int ranks[2] = { first_rank(ep, text[0] != '\0') };

	if (ranks[0] == ep->ranks)
		return MOEK_OK;
	first = mine;
	MPI_Bcast(&first, 1, MPI_UINT64_T, ranks[0], ep->communicator);
	ranks[1] = first_rank(ep, text[0] != '\0' && mine != first);
	if (ranks[1] == ep->ranks)
		return MOEK_OK;
	return tell_difference(ep, status, what, text, ranks, error_out);
}

/* ---- open ---- */

static int is_of_the_machine(const char *line)
{
	return strncmp(line, "threads =", 9) == 0 ||
	       strncmp(line, "plugin_dirs =", 13) == 0 ||
	       strncmp(line, "probe_helper =", 14) == 0;
}

static int compare_lines(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/**
 * The settings that decide what runs, as lines "[section] key = value": no comments,
 * threads or folders. Sorted, since where a value comes from orders them; in sections
 * of priority, where order is all, lines are numbered. Returns how many; the first is
 * at @lines_out. They are written to @to.
 */
static size_t list_settings(const char *config, char *to, char **lines_out)
{
	const char *section = "";
	size_t count = 0, number = 0;

	for (const char *line = config; *line != '\0';) {
		int length = (int)strcspn(line, "\n");
		int name = (int)strcspn(section, "\n");

		if (line[0] == '[') {
			section = line;
			number = 0;
		} else if (length > 0 && line[0] != '#' && !is_of_the_machine(line)) {
			lines_out[count++] = to;
			to += strncmp(section, "[priority", 9) == 0
			              ? sprintf(to, "%.*s %3zu. %.*s", name, section,
			                        ++number, length, line)
			              : sprintf(to, "%.*s %.*s", name, section, length,
			                        line);
			to++;
		}
		line += length + (line[length] == '\n');
	}
	qsort(lines_out, count, sizeof(*lines_out), compare_lines);
	return count;
}

/** malloc'ed, or NULL. */
static char *settings_text(const char *config)
{
	size_t lines = 1, section = 0, bytes = strlen(config) + 1, count;
	char *space, *text, **list;

	for (const char *at = config; *at != '\0'; at++)
		lines += *at == '\n';
	for (const char *at = strchr(config, '['); at != NULL; at = strchr(at + 1, '['))
		if (strcspn(at, "\n") > section)
			section = strcspn(at, "\n");
	bytes += lines * (section + 32);
	space = malloc(bytes);
	text = malloc(bytes);
	list = malloc(lines * sizeof(*list));
	if (space != NULL && text != NULL && list != NULL) {
		char *to = text;

		*to = '\0';
		count = list_settings(config, space, list);
		for (size_t i = 0; i < count; i++)
			to += sprintf(to, "%s\n", list[i]);
	} else {
		free(text);
		text = NULL;
	}
	free(space);
	free(list);
	return text;
}

static int32_t same_settings(struct moek_ep *ep, struct moek_error *error_out)
{
	struct moek_error error;
	char *config = moek_registry_config(ep->registry, MOEK_TEXT);
	char *text = config != NULL ? settings_text(config) : NULL;
	int32_t status = moek_ep_agree(
		ep, text != NULL ? MOEK_OK : ep_fail_memory(&error, "settings"),
		&error);

	if (status == MOEK_OK)
		status = ep_same(ep, MOEK_BAD_CONFIG, "moek.ini", text, &error);
	free(text);
	moek_free(config);
	if (status != MOEK_OK && error_out != NULL)
		*error_out = error;
	return status;
}

static int32_t check_open(MPI_Comm communicator, struct moek_error *error_out)
{
	int begun = 0, ended = 0;

	MPI_Initialized(&begun);
	if (begun)
		MPI_Finalized(&ended);
	if (!begun || ended)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		               "parallel: MPI_Init() has not been called, or "
		               "MPI_Finalize() has");
	if (communicator == MPI_COMM_NULL)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		               "parallel: the communicator is MPI_COMM_NULL");
	return MOEK_OK;
}

/** All ranks opened theirs; if not, *error_out of the first that did not has the
 * reason. */
static int32_t have_registries(struct moek_ep *ep, struct moek_error *error_out)
{
	struct moek_error error;
	int32_t status = MOEK_OK;

	if (ep->registry == NULL) {
		status = MOEK_BAD_ARGUMENT;
		ep_fail(&error, status, MOEK_RULE_NONE, "registry is NULL");
		if (error_out != NULL && error_out->status < 0) {
			error = *error_out;
			status = error.status;
		}
	}
	status = moek_ep_agree(ep, status, &error);
	if (status != MOEK_OK && error_out != NULL)
		*error_out = error;
	return status;
}

int32_t moek_ep_open(MPI_Comm communicator, struct moek_registry *registry,
                     struct moek_ep **ep_out, struct moek_error *error_out)
{
	struct moek_ep made = { .registry = registry };
	struct moek_error error;
	struct moek_ep *ep;
	int32_t status = check_open(communicator, error_out);

	if (status != MOEK_OK)
		return status;
	MPI_Comm_dup(communicator, &made.communicator);
	MPI_Comm_set_errhandler(made.communicator, MPI_ERRORS_ARE_FATAL);
	MPI_Comm_rank(made.communicator, &made.rank);
	MPI_Comm_size(made.communicator, &made.ranks);
	/* first: other versions may agree in another way on all that follows */
	status = ep_same(&made, MOEK_BAD_CONFIG, "version of moek", moek_version(),
	                 error_out);
	if (status == MOEK_OK)
		status = have_registries(&made, error_out);
	if (status == MOEK_OK)
		status = same_settings(&made, error_out);
	if (status != MOEK_OK) {
		MPI_Comm_free(&made.communicator);
		return status;
	}
	ep = malloc(sizeof(*ep));
	status = moek_ep_agree(
		&made, ep != NULL ? MOEK_OK : ep_fail_memory(&error, "ranks"), &error);
	if (status != MOEK_OK) {
		free(ep);
		MPI_Comm_free(&made.communicator);
		if (error_out != NULL)
			*error_out = error;
		return status;
	}
	*ep = made;
	*ep_out = ep;
	return MOEK_OK;
}

void moek_ep_close(struct moek_ep *ep)
{
	if (ep == NULL)
		return;
	MPI_Comm_free(&ep->communicator);
	free(ep);
}

/* ---- checkpoints ---- */

static uint64_t hash_tensor(uint64_t hash, const char *name,
                            const struct moek_tensor *tensor, uint32_t use)
{
	hash = ep_hash(hash, name, strlen(name) + 1);
	hash = ep_hash(hash, tensor->dtype, strlen(tensor->dtype) + 1);
	hash = ep_hash(hash, tensor->shape, tensor->rank * sizeof(tensor->shape[0]));
	/* small, read by every rank anyway, and never the same in two trainings */
	return use == MOEK_USE_ROUTER ? ep_hash(hash, tensor->data, tensor->bytes)
	                              : hash;
}

int32_t moek_ep_same_checkpoint(struct moek_ep *ep,
                                const struct moek_checkpoint *checkpoint,
                                struct moek_error *error_out)
{
	const char *config = moek_checkpoint_config(checkpoint);
	uint64_t count = moek_checkpoint_tensors(checkpoint), sum = 0;
	char text[80];

	for (uint64_t i = 0; i < count; i++) {
		struct moek_tensor tensor = { .struct_size = MOEK_INIT(TENSOR) };
		uint32_t use = 0;
		const char *name = moek_checkpoint_tensor_at(checkpoint, i, &tensor,
		                                             &use);

		/* a sum: shards of files may list their tensors in any order */
		if (name != NULL)
			sum += hash_tensor(EP_HASH, name, &tensor, use);
	}
	snprintf(text, sizeof(text), "%llu tensors, hash %016llx",
	         (unsigned long long)count,
	         (unsigned long long)ep_hash(sum, config, strlen(config)));
	return ep_same(ep, MOEK_BAD_FILE, "checkpoint", text, error_out);
}
