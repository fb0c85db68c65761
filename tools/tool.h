/* SPDX-License-Identifier: MIT */
/* What the commands of tools/moek share. */
#ifndef MOEK_TOOLS_TOOL_H
#define MOEK_TOOLS_TOOL_H

#include <moek/moek.h>

#include <stddef.h>

/** Exit codes, as the manual gives them. */
enum {
	TOOL_DONE = 0,
	TOOL_REFUSED = 1, /* refused, wrong numbers, or a failure while running */
	TOOL_USAGE = 2,
	TOOL_INPUT = 3 /* a checkpoint, moek.ini or facts file that is bad */
};

/** Numbers with commas between. */
#define MOST_LIST 32
struct list {
	uint64_t count, values[MOST_LIST];
};

/** What the command line said; NULL, 0 and UNSET where it said nothing. */
struct options {
	const char *checkpoint;
	const char *destination;
	const char *config;
	const char **
		plugin_dirs; /* NULL-ended; the last entry is free for the build tree */
	const char *backend;
	const char *facts;
	const char *problem;
	const char *against;
	const char *family_file;
	const char *to;
	const char *reason; /* of reasons; of doctor: the report */
	const char *root;   /* of doctor */
	const char *experts;    /* local ones */
	uint32_t shard, shards; /* 0 of 0: the whole */
	uint64_t threads, tokens, seed;
	uint64_t first_layer,
		last_layer; /* numbers N of layers.N; 0 and UINT64_MAX: all */
	uint32_t type;      /* enum moek_type of input and output, or 0 */
	uint32_t inputs;    /* enum moek_activations, if `activations` is set */
	uint32_t open; /* list: open the plugins */
	uint32_t checks, json, tensors, man;
	const char *output;  /* of lock: a file, "-", or NULL */
	const char *capsule; /* a folder, or NULL */
	uint32_t capsule_on_error; /* only of what failed or was wrong */
	const char *locked;  /* a lock to hold to */
	uint64_t shadow; /* every so many forwards; 0: as moek.ini says */
	/* of bench: */
	struct list token_list, thread_list;
	const char *shape, *scheme, *activations, *routing, *compare, *plot;
	uint64_t group, repetitions, memory_gib;
	/* of verify, whose PLUGIN.so is the checkpoint: */
	const char *cases, *reference;
	uint64_t time_limit, report;
	uint32_t reproduces, in_process;
	/* --parallel experts,tensor=T,wire=fp8,combine=ranks: */
	uint32_t parallel; /* 1: given */
	uint32_t tensor, wire, combine; /* 0: not said; enums of moek/parallel.h */
	/* of place and inspect: */
	const char *trace;
	uint64_t ranks_wanted, most;
	struct ranks *ranks;  /* of the job; NULL: alone */
	/* not of the command line: workers in place of a pool, or NULL */
	const struct moek_workers *workers;
};

/** One command: bits of `options` say which lines of the table in options.c it takes.
 */
struct command {
	const char *name;
	const char *arguments;
	const char *summary; /* one line */
	const char *text;    /* more, for --help */
	uint32_t bit;
	uint32_t checkpoint; /* 1: takes CHECKPOINT; 2: and DESTINATION */
	int (*run)(const struct options *options);
};

enum {
	COMMAND_LIST = 1,
	COMMAND_EXPLAIN = 2,
	COMMAND_INSPECT = 4,
	COMMAND_RUN = 8,
	COMMAND_PRINT_CONFIG = 16,
	COMMAND_BENCH = 32,
	COMMAND_BENCH_LOAD = 64,
	COMMAND_CONVERT = 128,
	COMMAND_VERIFY = 256,
	COMMAND_PLACE = 512,
	COMMAND_REASONS = 1024,
	COMMAND_NEW_PLUGIN = 2048,
	COMMAND_LOCK = 4096,
	COMMAND_REPLAY = 8192,
	COMMAND_DOCTOR = 16384
};

int command_new_plugin(const struct options *options);
int command_doctor(const struct options *options);
int command_reasons(const struct options *options);
int command_verify(const struct options *options); /* verify/verify.c */
/* list.c, explain.c (lock too), inspect.c, run.c, bench.c, load.c, convert.c: each returns an exit
 * code. */
int command_list(const struct options *options);
int command_print_config(const struct options *options);
int command_explain(const struct options *options);
int command_lock(const struct options *options);
int command_replay(const struct options *options);
int command_inspect(const struct options *options);
int command_run(const struct options *options);
int command_bench(const struct options *options);
int command_bench_load(const struct options *options);
int command_convert(const struct options *options);
int command_place(const struct options *options);

/** Parse what follows the command's name. TOOL_DONE with *help_out 1 when help was
 * asked for; TOOL_USAGE once the mistake is told. options_free() in any case. */
int options_parse(const struct command *command, int argc, char **argv,
                  struct options *options_out, int *help_out);
void options_free(struct options *options);
/** The options that @command takes, a line each. */
void options_help(const struct command *command);

/** Say on stderr what went wrong and give its exit code. */
int tool_fail(const struct moek_error *error);
int tool_status(int32_t status);
/** One line on stderr, "moek: " before it. */
void tool_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** From now on tool_say() says nothing: another rank does. */
void tool_quiet(void);

/** Print @text, ended by one newline. */
void tool_print(const char *text);

struct writer;
/** tensors.c: the table of --tensors, or its array. */
void list_tensors(const struct options *options, const struct moek_checkpoint *checkpoint,
                  struct writer *writer);

/** A registry as the options say. In a build tree, its plugins and its moek.ini. */
int32_t tool_registry(const struct options *options,
                      struct moek_registry **registry_out,
                      struct moek_error *error_out);

/** The same with @settings, at most 7, over what the INI says. */
int32_t tool_registry_with(const struct options *options,
                           const struct moek_setting *settings, size_t count,
                           struct moek_registry **registry_out,
                           struct moek_error *error_out);

/** A registry and the checkpoint of the options; closed by tool_close(). */
struct session {
	struct ranks *ranks; /* of the options */
	struct moek_registry *registry;
	struct moek_checkpoint *checkpoint;
	int32_t *expert_map; /* of --experts or of this rank; NULL: all are local */
	uint64_t experts_local;
};
int32_t tool_open(const struct options *options, struct session *session_out,
                  struct moek_error *error_out);
void tool_close(struct session *session);

/** The checkpoint alone; MOEK_BAD_ARGUMENT when no layer of it is wanted. */
int32_t tool_open_checkpoint(const struct options *options,
                             struct moek_registry *registry,
                             struct moek_checkpoint **checkpoint_out,
                             struct moek_error *error_out);

/** Is layer number @number within --layer or --layers? */
int tool_wants_layer(const struct options *options, uint32_t number);

/** A run of layers that differ in nothing but their number. */
struct alike {
	uint64_t first, count; /* indices in the checkpoint */
	struct moek_layer_info info;
	struct moek_problem problem;
	char label[96]; /* "layers.0", or "layers.0-3" */
};
/** The next run, among those that --layer and --layers leave, from index @from on. 0:
 * no more. */
int tool_alike(const struct options *options, const struct session *session,
               uint64_t from, struct alike *alike_out);
/** The problem of layer @index, with the local experts of --experts. */
void tool_problem(const struct session *session, uint64_t index,
                  struct moek_problem *problem_out);

/** What --activations of run and explain says, over the checkpoint. */
void tool_set_activations(const struct options *options, struct moek_problem *problem);

/** Fill *error_out and return @status, for `return`. */
int32_t tool_error(struct moek_error *error_out, int32_t status, const char *format,
                   ...) __attribute__((format(printf, 3, 4)));

#endif
