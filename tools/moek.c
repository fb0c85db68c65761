/* SPDX-License-Identifier: MIT */
/* moek: ask what is installed and why, look into checkpoints, run expert layers. */
#include "config.h"

#include "tools/ranks.h"
#include "tools/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char run_text[] =
	"Reads config.json and the safetensors of the folder CHECKPOINT, asks\n"
	"the backends, prepares each expert layer and runs it.\n"
	"\n"
	"With --against FILE, for each layer N: layers.N.hidden_in\n"
	"[tokens][hidden] is the input and layers.N.moe_out [tokens][hidden]\n"
	"what is expected. With layers.N.router_logits, moek routes hidden_in by\n"
	"itself and the choice is compared: the same experts for each token,\n"
	"weights within 1e-6. A difference counts as a tie only if moving the\n"
	"logits by no more than their fp32 summation error, 2 * hidden * 2^-24 *\n"
	"sum|x * w|, makes it vanish. With layers.N.topk_ids [tokens][top_k] and\n"
	"layers.N.topk_weights, the experts run on those. A NaN expected is a\n"
	"NaN required.\n"
	"\n"
	"The allowance of an output y is derived, not chosen. S is its sum of\n"
	"magnitudes, as emulation gives it; terms, accumulator and roundings are\n"
	"what the backend declares; u is half an eps, the most that one rounding\n"
	"can be off: 2^-24 for fp32, 2^-11 for fp16, 2^-8 for bf16.\n"
	"\n"
	"  (terms * u(accumulator) + roundings * u(input)) * S   the backend\n"
	"  + (hidden + intermediate + top_k + 16) * 2^-24 * S    the file\n"
	"  + u(output) * |y|                     one rounding to the output\n"
	"  + u(input) * S  only where --type rounds hidden_in once more\n"
	"\n"
	"The second line takes the expected file to be summed in plain fp32.\n"
	"\n"
	"Without --against, seeded random rows are routed by the model's router\n"
	"and run; norms and times are printed.\n";

static const char explain_text[] =
	"Answers who would run the expert layers of the folder CHECKPOINT, or\n"
	"the problem that --problem states, and why each other candidate would\n"
	"not. Reads no weights. Layers that are alike are answered once.\n"
	"\n"
	"--problem takes key=value,key=value with the fields of moek/problem.h:\n"
	"experts, top_k, hidden, intermediate, weight, group_size, scale,\n"
	"zero_points, activation, input_type and so on; \"down.\" before a key\n"
	"sets that projection alone. What is not given is: input_type=bf16,\n"
	"output_type=bf16, activation=silu, gated=1, activations=a16.\n"
	"\n"
	"--facts FILE answers for another machine: the JSON of its devices, as\n"
	"`moek list --open --json` prints them there.\n";

static const char lock_text[] =
	"Chooses as moek explain does and writes down what the choices followed\n"
	"from: versions, the host, plugins by the hash of their files, settings;\n"
	"and the choices. A program that is held to it (--locked, or the setting\n"
	"lock in moek.ini) starts only where all of that is so, and says which\n"
	"lines are not. Changed comments of moek.ini are no difference.\n";

static const char replay_text[] =
	"Runs the call that a capsule holds (moek run --capsule) on the backend\n"
	"that is asked for here, whatever machine it came from, and compares\n"
	"with the output of the one that made it: both may be off by what they\n"
	"declare. FILE is DIR/LAYER.safetensors.\n";

static const char bench_text[] =
	"Times expert layers of models by name, with random weights, on the\n"
	"backend that --backend gives, or on two in turns with --compare, beside\n"
	"probes of the machine's own limits: read bandwidth, and the peak of\n"
	"int8, bf16 and fp32 arithmetic.\n"
	"\n"
	"Every point is run again and again in turns with all others. Before\n"
	"each repetition the processors must be free for a moment, and read\n"
	"bandwidth is measured, which also leaves no weights in the caches; each\n"
	"repetition is routed anew, to layers that together are 4 times the last\n"
	"cache. A repetition counts when its threads were not interrupted; if\n"
	"there are fewer than 3 of these, all count and a warning says so.\n"
	"\n"
	"ms is the median, spread the distance between the quarters as a share\n"
	"of it. The limit is the one that would take longest: reading the weights\n"
	"of the experts hit, or 6 * hidden * intermediate * tokens * top_k\n"
	"operations at the peak of int8, bf16 or fp32, whichever is the fastest\n"
	"that the activations allow. share is the limit's time over ours.\n"
	"\n"
	"Under mpirun, --parallel experts times layers on 1, 2, 4 ... ranks in\n"
	"place of this: bytes sent, the slowest rank, the speed-up.\n";

static const char bench_load_text[] =
	"Times how the expert layers of the folder CHECKPOINT are decoded and\n"
	"prepared, in bytes of weights in the file a second, beside the read\n"
	"bandwidth of the machine. A first pass, which is not counted, brings the\n"
	"files into memory.\n";
static const char convert_text[] =
	"Reads any CHECKPOINT that moek reads and writes the new folder\n"
	"DESTINATION: experts rounded to the nearest values of SCHEME, every\n"
	"other tensor and file as it is, config.json rewritten. SCHEME is\n"
	"\n"
	"  w4a16-g32, -g64, -g128     compressed-tensors int4, symmetric\n"
	"  w4a16-g32-asym, ...        the same with zero points\n"
	"  mxfp4                      compressed-tensors mxfp4-pack-quantized\n"
	"  mxfp4-gpt-oss              blocks and scales as gpt-oss has them\n"
	"  bf16, fp16, fp32           plain rows\n"
	"\n"
	"Tensors beside the experts must be plain. One expert at a time is held\n"
	"for each thread.\n";

static const char verify_text[] =
	"Runs the conformance kit on a plugin file, each case in a process of its\n"
	"own with a time limit, and prints TAP; then a certificate. Groups:\n"
	"\n"
	"  S  the file: probe, note, exports, flags that loaders stumble over\n"
	"  A  the ABI: longer structs, unknown values\n"
	"  L  life: open and close, two contexts, no memory\n"
	"  C  claims: pure, with reasons, fast\n"
	"  E  nothing of the process is changed by a forward\n"
	"  W  workspaces grow with the tokens\n"
	"  N  numbers: every case of kernelcheck beside emulation, with poisoned and\n"
	"     guarded memory, twice, and with one worker\n"
	"  F  random problems; --reproduce SEED runs one again\n"
	"\n"
	"The certificate is complete only if every backend of the file ran: what\n"
	"was claimed and not run, for want of a device, is listed and passes\n"
	"nothing. Exits 0 when nothing failed.\n";

static const char place_text[] =
	"Prints, for each layer and rank, how many experts it holds, their bytes,\n"
	"the share of the load that it gets, and which experts: adjacent ones\n"
	"together, or with --most balanced by --trace, the hottest experts in\n"
	"replicas that share their load. FILE has layers.N.topk_ids, int32\n"
	"[tokens][top_k], as the expected outputs of `moek run` do.\n";

static const struct command commands[] = {
	{ "list", "", "what is installed: plugins, each with its state and cause",
	  "Prints every plugin that is installed or named in moek.ini. Nothing of\n"
	  "a plugin is run: what is known of it is the note in its file. With\n"
	  "--open the plugins are opened and asked: that lists every device, too,\n"
	  "and who can run on it.\n",
	  COMMAND_LIST, 0, command_list },
	{ "explain", "CHECKPOINT | --problem KEY=VALUE,...",
	  "who would run the expert layers, and why not the others", explain_text,
	  COMMAND_EXPLAIN, 1, command_explain },
	{ "lock", "CHECKPOINT | --problem KEY=VALUE,...",
	  "write down what the choices follow from, to be held to it", lock_text,
	  COMMAND_LOCK, 1, command_lock },
	{ "inspect", "CHECKPOINT",
	  "expert layers of a checkpoint: format, sizes, router",
	  "Prints what a checkpoint holds, from its config.json and headers.\n",
	  COMMAND_INSPECT, 1, command_inspect },
	{ "run", "CHECKPOINT",
	  "run expert layers and compare with outputs known to be right", run_text,
	  COMMAND_RUN, 1, command_run },
	{ "replay", "FILE", "run one layer's call that was kept by moek run --capsule",
	  replay_text, COMMAND_REPLAY, 1, command_replay },
	{ "bench", "",
	  "time expert layers of models against the limits of this machine", bench_text,
	  COMMAND_BENCH, 0, command_bench },
	{ "bench load", "CHECKPOINT", "time decoding and preparing of expert layers",
	  bench_load_text, COMMAND_BENCH_LOAD, 1, command_bench_load },
	{ "convert", "CHECKPOINT DESTINATION",
	  "write a checkpoint with its experts in another format", convert_text,
	  COMMAND_CONVERT, 2, command_convert },
	{ "place", "CHECKPOINT --ranks N",
	  "which experts to put on which rank of a parallel job", place_text,
	  COMMAND_PLACE, 1, command_place },
	{ "verify", "PLUGIN.so", "hold a plugin to the contract, and certify it",
	  verify_text, COMMAND_VERIFY, 1, command_verify },
	{ "new-plugin", "NAME [FOLDER]",
	  "begin a plugin of one's own, with a backend that is whole",
	  "Writes FOLDER, or else NAME: NAME.c, a small backend that passes moek\n"
	  "verify, a Makefile, and files for autotools. It builds against an\n"
	  "installed moek.\n",
	  COMMAND_NEW_PLUGIN, 1, command_new_plugin },
	{ "doctor", "[REPORT.json]", "look in the world for what a report complains of",
	  "Takes what `moek explain --json` or `moek list --open --json` printed, or "
	  "asks\n"
	  "by itself, and for each backend that is missing, broken, unusable or "
	  "failed\n"
	  "prints the cause, what of it can be seen here, and what to do: libraries,\n"
	  "device files and their groups, containers, machines of files, owners, "
	  "ages.\n"
	  "Exits 0 when nothing is wrong, 1 when something is.\n",
	  COMMAND_DOCTOR, 0, command_doctor },
	{ "reasons", "[REASON]", "why a backend was not used, and what to do about it",
	  "Prints each reason that a refusal can have, or the one whose number or\n"
	  "name is REASON: its cause, how to see it, and how to mend it.\n",
	  COMMAND_REASONS, 0, command_reasons },
	{ "print-config", "", "every setting in force and where it came from",
	  "Prints each effective setting with its source, and those it overrode.\n",
	  COMMAND_PRINT_CONFIG, 0, command_print_config },
};

static const size_t command_count = sizeof(commands) / sizeof(commands[0]);

static int quiet;

void tool_quiet(void)
{
	quiet = 1;
}

void tool_say(const char *format, ...)
{
	va_list arguments;

	if (quiet)
		return;
	va_start(arguments, format);
	fputs("moek: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

void tool_print(const char *text)
{
	size_t length = strlen(text);

	fputs(text, stdout);
	if (length == 0 || text[length - 1] != '\n')
		putchar('\n');
}

int tool_status(int32_t status)
{
	switch (status) {
	case MOEK_OK:
		return TOOL_DONE;
	case MOEK_BAD_ARGUMENT:
		return TOOL_USAGE;
	case MOEK_BAD_CONFIG:
	case MOEK_BAD_FILE:
		return TOOL_INPUT;
	default:
		return TOOL_REFUSED;
	}
}

int tool_fail(const struct moek_error *error)
{
	tool_say("%s", error->text);
	return tool_status(error->status);
}

int32_t tool_error(struct moek_error *error_out, int32_t status, const char *format,
                   ...)
{
	va_list arguments;

	memset(error_out, 0, sizeof(*error_out));
	error_out->status = status;
	va_start(arguments, format);
	vsnprintf(error_out->text, sizeof(error_out->text), format, arguments);
	va_end(arguments);
	return status;
}

static void print_usage(FILE *to)
{
	fputs("usage: moek COMMAND [OPTION...]\n"
	      "\n"
	      "Run the expert layers of Mixture-of-Experts models on the best\n"
	      "kernel that is installed, and tell why it was chosen.\n"
	      "\n",
	      to);
	for (size_t i = 0; i < command_count; i++)
		fprintf(to, "  %-14s%s\n", commands[i].name, commands[i].summary);
	fputs("\n"
	      "  moek COMMAND --help    a command's options\n"
	      "  moek --version\n"
	      "\n"
	      "exit codes: 0 done; 1 refused, wrong numbers, or a failure in a run;\n"
	      "2 usage; 3 bad input file (checkpoint, moek.ini, facts, family)\n",
	      to);
}

static int print_help(const struct command *command)
{
	printf("usage: moek %s%s%s [OPTION...]\n\n%s\n", command->name,
	       command->arguments[0] != '\0' ? " " : "", command->arguments,
	       command->text);
	options_help(command);
	return TOOL_DONE;
}

/** The command that the first words are, and how many: the longest name wins. */
static const struct command *find_command(int argc, char **argv, int *words_out)
{
	const struct command *found = NULL;
	char two[32];

	for (int words = 1; words <= 2 && words < argc; words++) {
		snprintf(two, sizeof(two), "%s%s%s", argv[1], words == 2 ? " " : "",
		         words == 2 ? argv[2] : "");
		for (size_t i = 0; i < command_count; i++)
			if (strcmp(commands[i].name, two) == 0) {
				found = &commands[i];
				*words_out = words;
			}
	}
	return found;
}

static char **arguments; /* of main() */

static int run_command(const struct command *command, int argc, char **argv)
{
	struct options options;
	int help = 0;
	int code = options_parse(command, argc, argv, &options, &help);

	if (code == TOOL_DONE)
		code = help ? print_help(command)
		       : options.parallel
		               ? ranks_run(command, &options, arguments)
		               : command->run(&options);
	options_free(&options);
	return code;
}

static int dispatch(int argc, char **argv)
{
	const struct command *command;
	int words = 1;

	if (argc < 2) {
		print_usage(stderr);
		return TOOL_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		print_usage(stdout);
		return TOOL_DONE;
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("moek %s\n", moek_version());
		return TOOL_DONE;
	}
	command = find_command(argc, argv, &words);
	if (argv[1][0] == '-') {
		tool_say("%s: options follow the command: moek COMMAND %s ...", argv[1],
		         argv[1]);
		return TOOL_USAGE;
	}
	if (command == NULL) {
		tool_say("%s: no such command; moek --help lists them", argv[1]);
		return TOOL_USAGE;
	}
	return run_command(command, argc - words, argv + words);
}

int main(int argc, char **argv)
{
	int code;

	arguments = argv;
	code = dispatch(argc, argv);
	/* a full disk behind stdout must not look like success */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		tool_say("standard output: cannot write");
		return code != TOOL_DONE ? code : TOOL_REFUSED;
	}
	return code;
}
