/* SPDX-License-Identifier: MIT */
/* The command line: one table, from which both parsing and --help come. */
#include "config.h"

#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES (COMMAND_EXPLAIN | COMMAND_LOCK)
#define ALL                                                                            \
	(COMMAND_LIST | CHOICES | COMMAND_INSPECT | COMMAND_RUN |                      \
	 COMMAND_PRINT_CONFIG | BENCHES | COMMAND_CONVERT | COMMAND_PLACE |            \
	 COMMAND_VERIFY | COMMAND_REASONS | COMMAND_NEW_PLUGIN | COMMAND_REPLAY |      \
	 COMMAND_DOCTOR)
/* those that open a registry */
#define OPENS (ALL & ~(COMMAND_REASONS | COMMAND_NEW_PLUGIN))
#define BENCHES (COMMAND_BENCH | COMMAND_BENCH_LOAD)

enum option_id {
	OPTION_CONFIG,
	OPTION_PLUGIN_DIR,
	OPTION_BACKEND,
	OPTION_THREADS,
	OPTION_FACTS,
	OPTION_CASE,
	OPTION_REPRODUCE,
	OPTION_IN_PROCESS,
	OPTION_REFERENCE,
	OPTION_TIME_LIMIT,
	OPTION_REPORT,
	OPTION_OPEN,
	OPTION_ROOT,
	OPTION_PROBLEM,
	OPTION_AGAINST,
	OPTION_MAN,
	OPTION_TENSORS,
	OPTION_TO,
	OPTION_TOKENS,
	OPTION_SEED,
	OPTION_LAYER,
	OPTION_LAYERS,
	OPTION_TYPE,
	OPTION_INPUTS,
	OPTION_FAMILY_FILE,
	OPTION_SHARD,
	OPTION_EXPERTS,
	OPTION_PARALLEL,
	OPTION_RANKS,
	OPTION_TRACE,
	OPTION_MOST,
	OPTION_CHECKS,
	OPTION_SHADOW,
	OPTION_LOCKED,
	OPTION_CAPSULE,
	OPTION_CAPSULE_ON_ERROR,
	OPTION_OUTPUT,
	OPTION_SHAPE,
	OPTION_SCHEME,
	OPTION_GROUP,
	OPTION_ACTIVATIONS,
	OPTION_TOKEN_LIST,
	OPTION_THREAD_LIST,
	OPTION_ROUTING,
	OPTION_COMPARE,
	OPTION_REPETITIONS,
	OPTION_MEMORY,
	OPTION_PLOT,
	OPTION_JSON,
	OPTION_HELP,
	OPTION_COUNT
};

static const struct line {
	const char *name;
	const char *value; /* what follows, or NULL */
	uint32_t commands;
	const char *help;
} lines[OPTION_COUNT] = {
	[OPTION_CONFIG] = { "config", "FILE", OPENS,
	                    "read FILE in place of moek.ini; \"\": none" },
	[OPTION_PLUGIN_DIR] = { "plugin-dir", "DIR", OPENS,
	                        "search DIR first; may be repeated" },
	[OPTION_BACKEND] = { "backend", "REQUEST", OPENS,
	                     "'auto', 'prefer a,b', 'require a' or 'exclude a'" },
	[OPTION_THREADS] = { "threads", "N", OPENS & ~BENCHES,
	                     "threads; as many as allowed by default" },
	[OPTION_OPEN] = { "open", NULL, COMMAND_LIST,
	                  "open the plugins: which cards there are, who can run" },
	[OPTION_ROOT] = { "root", "DIR", COMMAND_DOCTOR,
	                  "look below DIR in place of /: a container's, a test's" },
	[OPTION_CASE] = { "case", "GLOB", COMMAND_VERIFY,
	                  "only cases whose name matches; S.*, 'N.mxfp4*' ..." },
	[OPTION_REPRODUCE] = { "reproduce", "SEED", COMMAND_VERIFY,
	                       "only the random case of this seed" },
	[OPTION_IN_PROCESS] = { "in-process", NULL, COMMAND_VERIFY,
	                        "all in this process, for a debugger" },
	[OPTION_REFERENCE] = { "reference", "FILE", COMMAND_VERIFY,
	                       "emulation.so; the one that is installed" },
	[OPTION_TIME_LIMIT] = { "time-limit", "SECONDS", COMMAND_VERIFY,
	                        "of one case; 60" },
	[OPTION_REPORT] = { "report", "FD", COMMAND_VERIFY,
	                    "bare results, as the tool's own children write them" },
	[OPTION_FACTS] = { "facts", "FILE", COMMAND_LIST | CHOICES,
	                   "devices of another machine, in JSON" },
	[OPTION_PROBLEM] = { "problem", "KEY=VALUE,...", CHOICES,
	                     "a problem in place of a checkpoint" },
	[OPTION_AGAINST] = { "against", "FILE", COMMAND_RUN,
	                     "compare with the outputs in this safetensors file" },
	[OPTION_MAN] = { "man", NULL, COMMAND_REASONS,
	                 "print the manual's page moek-reasons(7)" },
	[OPTION_TENSORS] = { "tensors", NULL, COMMAND_INSPECT,
	                     "list every tensor: shape, use, range, zeros, NaN" },
	[OPTION_TO] = { "to", "SCHEME", COMMAND_CONVERT,
	                "w4a16-g32, w4a16-g64-asym, mxfp4, bf16 ...; see above" },
	[OPTION_TOKENS] = { "tokens", "N", COMMAND_RUN | CHOICES,
	                    "rows of a forward; 16, all of --against, or 1024" },
	[OPTION_SEED] = { "seed", "N", COMMAND_RUN | COMMAND_VERIFY,
	                  "of the random values; 1" },
	[OPTION_LAYER] = { "layer", "N",
	                   COMMAND_PLACE | CHOICES | COMMAND_RUN | COMMAND_INSPECT |
	                           COMMAND_BENCH_LOAD,
	                   "layers.N alone" },
	[OPTION_LAYERS] = { "layers", "A-B",
	                    COMMAND_PLACE | CHOICES | COMMAND_RUN | COMMAND_INSPECT |
	                            COMMAND_BENCH_LOAD,
	                    "layers.A to layers.B" },
	[OPTION_TYPE] = { "type", "TYPE", COMMAND_RUN | CHOICES | COMMAND_BENCH,
	                  "bf16, fp16 or fp32 input and output" },
	[OPTION_INPUTS] = { "activations", "HOW", COMMAND_RUN | CHOICES,
	                    "a16, int8, mxfp4_even ... in place of the checkpoint's" },
	[OPTION_FAMILY_FILE] = { "family-file", "FILE",
	                         COMMAND_PLACE | CHOICES | COMMAND_RUN |
	                                 COMMAND_BENCH_LOAD | COMMAND_INSPECT |
	                                 COMMAND_CONVERT,
	                         "an INI that describes a model moek does not know" },
	[OPTION_SHARD] = { "shard", "R/N", CHOICES | COMMAND_RUN | COMMAND_INSPECT,
	                   "what rank R of N tensor-parallel ranks holds" },
	[OPTION_EXPERTS] = { "experts", "LIST", CHOICES | COMMAND_RUN | COMMAND_INSPECT,
	                     "these experts alone: 0-7, 0,5,9 or 0-63/4" },
	[OPTION_PARALLEL] = { "parallel", "experts[,...]", COMMAND_RUN | COMMAND_BENCH,
	                      "share experts among MPI ranks; tensor=T, wire=fp8" },
	[OPTION_RANKS] = { "ranks", "N", COMMAND_PLACE | COMMAND_INSPECT,
	                   "what each of so many ranks would hold" },
	[OPTION_TRACE] = { "trace", "FILE", COMMAND_PLACE | COMMAND_INSPECT,
	                   "a safetensors file with layers.N.topk_ids" },
	[OPTION_MOST] = { "most", "N", COMMAND_PLACE,
	                  "balance; at most N experts of a layer on a rank" },
	[OPTION_CHECKS] = { "checks", NULL, COMMAND_RUN,
	                    "poison and guard every buffer, watch the inputs" },
	[OPTION_SHADOW] = { "shadow", "N", COMMAND_RUN,
	                    "run one in N forwards on emulation too, and compare" },
	[OPTION_LOCKED] = { "locked", "FILE",
	                    COMMAND_EXPLAIN | COMMAND_RUN | BENCHES | COMMAND_REPLAY,
	                    "refuse to differ from what moek lock wrote there" },
	[OPTION_CAPSULE] = { "capsule", "DIR", COMMAND_RUN,
	                     "keep each layer's call, to be run by moek replay" },
	[OPTION_CAPSULE_ON_ERROR] = { "capsule-on-error", "DIR", COMMAND_RUN,
	                              "the same of calls that fail or are wrong" },
	[OPTION_OUTPUT] = { "output", "FILE", COMMAND_LOCK,
	                    "in place of moek.lock; -: standard output" },
	[OPTION_SHAPE] = { "shape", "NAME,...", COMMAND_BENCH,
	                   "expert layers of these models; qwen3-30b-a3b" },
	[OPTION_SCHEME] = { "scheme", "SCHEME,...", COMMAND_BENCH,
	                    "weights: int4, mxfp4, bf16; int4" },
	[OPTION_GROUP] = { "group", "N", COMMAND_BENCH,
	                   "columns that share a scale of int4; 0: all; 32" },
	[OPTION_ACTIVATIONS] = { "activations", "HOW,...", COMMAND_BENCH,
	                         "a16, int8; a16" },
	[OPTION_TOKEN_LIST] = { "tokens", "N,...", COMMAND_BENCH,
	                        "rows of a forward; 1,16,256" },
	[OPTION_THREAD_LIST] = { "threads", "N,...", BENCHES,
	                         "threads; one, and as many as allowed" },
	[OPTION_ROUTING] = { "routing", "HOW", COMMAND_BENCH,
	                     "uniform, or skewed: the n-th expert 1/n as often" },
	[OPTION_COMPARE] = { "compare", "A,B", COMMAND_BENCH,
	                     "two backends in turns, and the ratio of their times" },
	[OPTION_REPETITIONS] = { "repetitions", "N", BENCHES,
	                         "of each point, at least; 15, or 5" },
	[OPTION_MEMORY] = { "memory", "GIB", COMMAND_BENCH,
	                    "the most to take; 3/4 of what is available" },
	[OPTION_PLOT] = { "plot", "FILE", COMMAND_BENCH,
	                  "draw a roofline, in SVG, with gnuplot" },
	[OPTION_JSON] = { "json", NULL, ALL, "print JSON" },
	[OPTION_HELP] = { "help", NULL, ALL, "print this" },
};

void options_help(const struct command *command)
{
	char left[40];

	puts("options:");
	for (int i = 0; i < OPTION_COUNT; i++) {
		if ((lines[i].commands & command->bit) == 0)
			continue;
		snprintf(left, sizeof(left), "--%s%s%s", lines[i].name,
		         lines[i].value != NULL ? " " : "",
		         lines[i].value != NULL ? lines[i].value : "");
		printf("  %-24s%s\n", left, lines[i].help);
	}
}

/** A decimal number of digits only, at most @most, up to @end. */
static int parse_digits(const char *text, const char *end, uint64_t most,
                        uint64_t *number_out)
{
	uint64_t number = 0;

	if (text == end)
		return 0;
	for (; text < end; text++) {
		uint64_t digit = (uint64_t)(*text - '0');

		if (*text < '0' || *text > '9' || number > (most - digit) / 10)
			return 0;
		number = number * 10 + digit;
	}
	*number_out = number;
	return 1;
}

static int parse_number(const char *name, const char *text, uint64_t least,
                        uint64_t most, uint64_t *number_out)
{
	uint64_t number;

	if (!parse_digits(text, text + strlen(text), most, &number) || number < least) {
		tool_say("--%s %s: not a number from %llu to %llu", name, text,
		         (unsigned long long)least, (unsigned long long)most);
		return TOOL_USAGE;
	}
	*number_out = number;
	return TOOL_DONE;
}

static int parse_list(const char *name, const char *text, uint64_t most,
                      struct list *list)
{
	list->count = 0;
	for (;;) {
		size_t length = strcspn(text, ",");
		uint64_t number;

		if (!parse_digits(text, text + length, most, &number) || number == 0 ||
		    list->count == MOST_LIST) {
			tool_say("--%s %s: not up to %d numbers from 1 to %llu, with "
			         "commas between",
			         name, text, MOST_LIST, (unsigned long long)most);
			return TOOL_USAGE;
		}
		list->values[list->count++] = number;
		if (text[length] == '\0')
			return TOOL_DONE;
		text += length + 1;
	}
}

static int parse_layers(const char *text, struct options *options)
{
	const char *dash = strchr(text, '-');
	uint64_t first, last;

	if (dash == NULL || !parse_digits(text, dash, UINT32_MAX, &first) ||
	    !parse_digits(dash + 1, text + strlen(text), UINT32_MAX, &last) ||
	    first > last) {
		tool_say("--layers %s: not two numbers A-B, A at most B", text);
		return TOOL_USAGE;
	}
	options->first_layer = first;
	options->last_layer = last;
	return TOOL_DONE;
}

static int parse_shard(const char *text, struct options *options)
{
	const char *slash = strchr(text, '/');
	uint64_t shard, shards;

	if (slash == NULL || !parse_digits(text, slash, UINT32_MAX, &shard) ||
	    !parse_digits(slash + 1, text + strlen(text), UINT32_MAX, &shards) ||
	    shard >= shards) {
		tool_say("--shard %s: not R/N, R from 0 to N - 1", text);
		return TOOL_USAGE;
	}
	options->shard = (uint32_t)shard;
	options->shards = (uint32_t)shards;
	return TOOL_DONE;
}

static int parse_type(const char *text, uint32_t *type_out)
{
	static const uint32_t types[] = { MOEK_BF16, MOEK_F16, MOEK_F32 };

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (strcmp(text, moek_type_name(types[i])) == 0) {
			*type_out = types[i];
			return TOOL_DONE;
		}
	}
	tool_say("--type %s: not bf16, fp16 or fp32", text);
	return TOOL_USAGE;
}

static int parse_activations(const char *text, struct options *options)
{
	const char *name;

	for (uint32_t i = 0; i <= MOEK_A4_MXFP4_ROUND_UP; i++) {
		name = moek_activations_name(i);
		if (name == NULL || strcmp(text, name) != 0)
			continue;
		options->activations = name;
		options->inputs = i;
		return TOOL_DONE;
	}
	tool_say("--activations %s: not a16, fp8_static, int8, mxfp4_even or "
	         "mxfp4_round_up",
	         text);
	return TOOL_USAGE;
}

static int take_layer(const char *text, struct options *options)
{
	int code = parse_number("layer", text, 0, UINT32_MAX, &options->first_layer);

	options->last_layer = options->first_layer;
	return code;
}

/** One part of --parallel: 1, or 0 when it makes no sense. */
static int take_axis(const char *text, size_t length, struct options *options)
{
	uint64_t shards;

	if (length == 7 && strncmp(text, "experts", length) == 0) {
		options->parallel = 1;
	} else if (length == 8 && strncmp(text, "wire=fp8", length) == 0) {
		options->wire = 1;
	} else if (length == 13 && strncmp(text, "combine=ranks", length) == 0) {
		options->combine = 1;
	} else if (length > 7 && strncmp(text, "tensor=", 7) == 0 &&
	           parse_digits(text + 7, text + length, 4096, &shards) && shards > 0) {
		options->tensor = (uint32_t)shards;
	} else {
		return 0;
	}
	return 1;
}

static int take_parallel(const char *text, struct options *options)
{
	const char *at = text;

	options->parallel = options->tensor = options->wire = options->combine = 0;
	for (size_t length; take_axis(at, length = strcspn(at, ","), options);
	     at += length + 1)
		if (at[length] == '\0' && options->parallel)
			return TOOL_DONE;
		else if (at[length] == '\0')
			break;
	tool_say("--parallel %s: not experts[,tensor=T][,wire=fp8][,combine=ranks]",
	         text);
	return TOOL_USAGE;
}

static int take_option(enum option_id option, const char *value,
                       struct options *options)
{
	size_t dirs = 0;

	switch (option) {
	case OPTION_CONFIG:
		options->config = value;
		return TOOL_DONE;
	case OPTION_PLUGIN_DIR:
		while (options->plugin_dirs[dirs] != NULL)
			dirs++;
		options->plugin_dirs[dirs] = value;
		return TOOL_DONE;
	case OPTION_BACKEND:
		options->backend = value;
		return TOOL_DONE;
	case OPTION_THREADS:
		return parse_number("threads", value, 1, 4096, &options->threads);
	case OPTION_ROOT:
		options->root = value;
		return TOOL_DONE;
	case OPTION_OPEN:
		options->open = 1;
		return TOOL_DONE;
	case OPTION_CASE:
		options->cases = value;
		return TOOL_DONE;
	case OPTION_REPRODUCE:
		options->reproduces = 1;
		return parse_number("reproduce", value, 0, UINT64_MAX, &options->seed);
	case OPTION_IN_PROCESS:
		options->in_process = 1;
		return TOOL_DONE;
	case OPTION_REFERENCE:
		options->reference = value;
		return TOOL_DONE;
	case OPTION_TIME_LIMIT:
		return parse_number("time-limit", value, 1, 86400,
		                    &options->time_limit);
	case OPTION_REPORT:
		return parse_number("report", value, 3, 1024, &options->report);
	case OPTION_FACTS:
		options->facts = value;
		return TOOL_DONE;
	case OPTION_PROBLEM:
		options->problem = value;
		return TOOL_DONE;
	case OPTION_AGAINST:
		options->against = value;
		return TOOL_DONE;
	case OPTION_MAN:
		options->man = 1;
		return TOOL_DONE;
	case OPTION_TENSORS:
		options->tensors = 1;
		return TOOL_DONE;
	case OPTION_TO:
		options->to = value;
		return TOOL_DONE;
	case OPTION_TOKENS:
		return parse_number("tokens", value, 1, UINT32_MAX, &options->tokens);
	case OPTION_SEED:
		return parse_number("seed", value, 0, UINT64_MAX, &options->seed);
	case OPTION_LAYER:
		return take_layer(value, options);
	case OPTION_LAYERS:
		return parse_layers(value, options);
	case OPTION_TYPE:
		return parse_type(value, &options->type);
	case OPTION_INPUTS:
		return parse_activations(value, options);
	case OPTION_FAMILY_FILE:
		options->family_file = value;
		return TOOL_DONE;
	case OPTION_SHARD:
		return parse_shard(value, options);
	case OPTION_EXPERTS:
		options->experts = value;
		return TOOL_DONE;
	case OPTION_RANKS:
		return parse_number("ranks", value, 1, 65536, &options->ranks_wanted);
	case OPTION_TRACE:
		options->trace = value;
		return TOOL_DONE;
	case OPTION_MOST:
		return parse_number("most", value, 1, 65536, &options->most);
	case OPTION_PARALLEL:
		return take_parallel(value, options);
	case OPTION_CHECKS:
		options->checks = 1;
		return TOOL_DONE;
	case OPTION_CAPSULE:
	case OPTION_CAPSULE_ON_ERROR:
		options->capsule = value;
		options->capsule_on_error = option == OPTION_CAPSULE_ON_ERROR;
		return TOOL_DONE;
	case OPTION_LOCKED:
		options->locked = value;
		return TOOL_DONE;
	case OPTION_OUTPUT:
		options->output = value;
		return TOOL_DONE;
	case OPTION_SHADOW:
		return parse_number("shadow", value, 1, 999999999, &options->shadow);
	case OPTION_SHAPE:
		options->shape = value;
		return TOOL_DONE;
	case OPTION_SCHEME:
		options->scheme = value;
		return TOOL_DONE;
	case OPTION_GROUP:
		return parse_number("group", value, 0, 65536, &options->group);
	case OPTION_ACTIVATIONS:
		options->activations = value;
		return TOOL_DONE;
	case OPTION_TOKEN_LIST:
		return parse_list("tokens", value, 1 << 20, &options->token_list);
	case OPTION_THREAD_LIST:
		return parse_list("threads", value, 4096, &options->thread_list);
	case OPTION_ROUTING:
		options->routing = value;
		return TOOL_DONE;
	case OPTION_COMPARE:
		options->compare = value;
		return TOOL_DONE;
	case OPTION_REPETITIONS:
		return parse_number("repetitions", value, 1, 1000,
		                    &options->repetitions);
	case OPTION_MEMORY:
		return parse_number("memory", value, 1, 1 << 20, &options->memory_gib);
	case OPTION_PLOT:
		options->plot = value;
		return TOOL_DONE;
	case OPTION_JSON:
		options->json = 1;
		return TOOL_DONE;
	case OPTION_HELP:
	case OPTION_COUNT:
		break;
	}
	return TOOL_USAGE;
}

/** getopt's view of the lines that @command takes. */
static void fill_long_options(const struct command *command,
                              struct option long_options[OPTION_COUNT + 1])
{
	size_t count = 0;

	for (int i = 0; i < OPTION_COUNT; i++) {
		if ((lines[i].commands & command->bit) == 0)
			continue;
		long_options[count++] = (struct option){
			.name = lines[i].name,
			.has_arg = lines[i].value != NULL ? required_argument
			                                  : no_argument,
			.val = i,
		};
	}
	long_options[count] = (struct option){ 0 };
}

static int check_operands(const struct command *command, int argc, char **argv,
                          struct options *options)
{
	int left = argc - optind;

	if (left > 0 && command->checkpoint && options->problem == NULL) {
		options->checkpoint = argv[optind++];
		left--;
	}
	if (left > 0 &&
	    (command->bit == COMMAND_REASONS || command->bit == COMMAND_DOCTOR)) {
		options->reason = argv[optind++];
		left--;
	}
	if (left > 0 &&
	    (command->checkpoint == 2 || command->bit == COMMAND_NEW_PLUGIN)) {
		options->destination = argv[optind++];
		left--;
	}
	if (left > 0) {
		tool_say("%s: one argument too many: %s", command->name, argv[optind]);
		return TOOL_USAGE;
	}
	if (command->checkpoint && options->checkpoint == NULL &&
	    options->problem == NULL) {
		tool_say("%s: needs %s; moek %s --help", command->name,
		         command->bit == COMMAND_VERIFY       ? "a PLUGIN.so"
		         : command->bit == COMMAND_NEW_PLUGIN ? "a NAME"
		         : command->bit == COMMAND_REPLAY     ? "a capsule"
		                                              : "a CHECKPOINT folder",
		         command->name);
		return TOOL_USAGE;
	}
	if (command->checkpoint == 2 && options->destination == NULL) {
		tool_say("%s: needs the folder to write after CHECKPOINT; moek %s "
		         "--help",
		         command->name, command->name);
		return TOOL_USAGE;
	}
	return TOOL_DONE;
}

int options_parse(const struct command *command, int argc, char **argv,
                  struct options *options_out, int *help_out)
{
	struct option long_options[OPTION_COUNT + 1];
	int code = TOOL_DONE;
	int found;

	*options_out = (struct options){
		.seed = 1, .time_limit = 60, .group = 32, .last_layer = UINT64_MAX
	};
	/* every argument could be a directory; one for the build tree; the NULL */
	options_out->plugin_dirs = calloc((size_t)argc + 2, sizeof(char *));
	if (options_out->plugin_dirs == NULL) {
		tool_say("no memory for the options");
		return TOOL_REFUSED;
	}
	fill_long_options(command, long_options);
	opterr = 0; /* its messages would begin with the path of the program */
	while (code == TOOL_DONE &&
	       (found = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
		if (found == OPTION_HELP || found == 'h') {
			*help_out = 1;
			return TOOL_DONE;
		}
		if (found == '?' || found == ':') {
			tool_say("%s: %s %s; moek %s --help", command->name,
			         argv[optind - 1],
			         found == '?' ? "is no option of it" : "needs a value",
			         command->name);
			return TOOL_USAGE;
		}
		code = take_option((enum option_id)found, optarg, options_out);
	}
	if (code == TOOL_DONE)
		code = check_operands(command, argc, argv, options_out);
	if (code == TOOL_DONE && options_out->parallel &&
	    (options_out->experts != NULL || options_out->shards > 0)) {
		tool_say(
			"%s: --parallel says what each rank holds: not with --shard or "
			"--experts",
			command->name);
		code = TOOL_USAGE;
	}
	return code;
}

void options_free(struct options *options)
{
	free(options->plugin_dirs);
	options->plugin_dirs = NULL;
}
