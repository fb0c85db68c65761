/* SPDX-License-Identifier: MIT */
/* moek reasons: what each reason means, how to see its cause, and how to mend it. The
 * manual's page moek-reasons(7) is printed from the same table. */
#include "config.h"

#include "tools/doctor.h"
#include "core/nearest.h"
#include "tools/tool.h"
#include "tools/writer.h"

#include <stdio.h>
#include <string.h>

/* How a reason about the problem is seen, and what mends it when nothing special does.
 */
#define EXPLAIN                                                                        \
	"`moek explain CHECKPOINT` prints what was found and what would be accepted; " \
	"`moek inspect CHECKPOINT` prints where it comes from."
#define ANOTHER "Let a backend run it that accepts it; emulation takes everything."

static const struct reason {
	uint32_t rule; /* enum moek_rule */
	const char *cause, *see, *fix;
} reasons[] = {
	/* ---- configuration and request ---- */
	{ MOEK_RULE_DISABLED,
	  "A line of moek.ini, or the program, switches the plugin or backend off.",
	  "The report names the file and line; `moek print-config` shows the line and "
	  "what it overrode.",
	  "Set that line to on, or remove it. An `off` in [priority] holds in each "
	  "more "
	  "specific section that does not name the plugin." },
	{ MOEK_RULE_EXCLUDED, "The request was `exclude NAME`, and this is NAME.",
	  "The report's line `request`.", "Leave the name out of --backend." },
	{ MOEK_RULE_UNLISTED,
	  "The plugin is installed, but no line of [priority] names it, and "
	  "[registry] unlisted = ignore.",
	  "`moek print-config` shows both.",
	  "Add `NAME = on` where it is to stand in [priority], or set unlisted = "
	  "append." },
	{ MOEK_RULE_SHADOWED,
	  "Two folders of plugins hold a file of this name; the first one counts.",
	  "`moek list` shows both paths and the order of the folders.",
	  "Remove or rename the file that is not wanted, or reorder plugin_dirs." },
	{ MOEK_RULE_NOT_INSTALLED,
	  "[priority] or the request names a plugin of which there is no file NAME.so.",
	  "`moek list` shows the folders that were searched, and what each held.",
	  "Install the plugin, mend the spelling, or remove the line." },
	{ MOEK_RULE_NOT_REQUIRED, "The request was `require`, and of another backend.",
	  "The report's line `request`.",
	  "Require this one, or ask with auto or prefer." },
	{ MOEK_RULE_OPTION,
	  "A key of [plugin NAME] is none that the plugin has, or its value makes no "
	  "sense to it.",
	  "The text names key and line; `moek list --open --json` shows the plugin's "
	  "options.",
	  "Mend the key or its value. Keys that begin with x- are never looked at." },
	/* ---- the file ---- */
	{ MOEK_RULE_NOT_REGULAR,
	  "NAME.so is a folder, a device, a dangling link, or cannot be looked at.",
	  "`ls -lL PATH`; `moek list` prints the path.", "Replace it by the file." },
	{ MOEK_RULE_WRITABLE,
	  "Others than its owner can change the file or a folder above it, so that "
	  "whoever can write there decides what runs here.",
	  "`namei -l PATH` shows owner and mode of each step.",
	  "chown it to root or to yourself, and chmod go-w." },
	{ MOEK_RULE_MACHINE, "The file was built for another machine.",
	  "`file PATH` names it; the text names what this one is.",
	  "Take the file for this machine, or build the plugin here." },
	{ MOEK_RULE_NOT_PLUGIN,
	  "A library of another kind lies in the folder of plugins: it has no note and "
	  "no moek_plugin_v1.",
	  "`nm -D --defined-only PATH`.",
	  "Move it out of the folder; it does no harm there but is named each time." },
	{ MOEK_RULE_NOTE_DISAGREES,
	  "The note says one thing of the plugin and its table another: name, version, "
	  "contract, or what it has.",
	  "The text prints both.",
	  "Rebuild the plugin whole; its author fills both from the same constants." },
	{ MOEK_RULE_DAMAGED, "The file is cut off, or its parts do not fit together.",
	  "`readelf -a PATH` complains too; compare its size with the original's.",
	  "Copy it again; a copy that was interrupted looks like this." },
	{ MOEK_RULE_NOTE, "The plugin's note is not as <moek/experts.h> has it.",
	  "The text names the field. `readelf -n PATH` shows the note.",
	  "Declare it with MOEK_PLUGIN_NOTE and nothing else." },
	{ MOEK_RULE_ABI_MAJOR,
	  "The plugin was made for another major version of the contract.",
	  "`moek list` prints the version found and the one expected.",
	  "Rebuild the plugin against the installed <moek/experts.h>." },
	{ MOEK_RULE_ABI_MINOR, "The plugin says that it needs a newer host than this.",
	  "`moek list` prints the version it wants.",
	  "Update moek, or take an older version of the plugin." },
	{ MOEK_RULE_ABI_TABLE,
	  "A table of the plugin says of itself that it is shorter than version 1.0, "
	  "or "
	  "absurdly long: its struct_size is wrong.",
	  "`moek list --open` prints the size found and the least that is accepted.",
	  "Set struct_size to the constant MOEK_..._SIZE_1_0, never to sizeof." },
	{ MOEK_RULE_ABI_SLOT, "A function that every backend must have is NULL.",
	  "`moek list --open` names the table and the slot.",
	  "Fill the slot. <moek/experts.h> marks those that may be NULL." },
	{ MOEK_RULE_ABI_NAME,
	  "The name in the plugin's table is not that of its file, or is no name: a-z "
	  "0-9 _ -, at most 40.",
	  "`moek list --open` prints both.",
	  "Rename the file as the table says; a plugin has one name only." },
	/* ---- the machine's instruction set ---- */
	{ MOEK_RULE_ISA,
	  "The backend needs an instruction set that the operating system does not "
	  "list "
	  "for this CPU.",
	  "The report names it; /proc/cpuinfo lists what there is. A virtual machine "
	  "may "
	  "hide what the CPU has.",
	  "Use a backend for less, or give the virtual machine the host's CPU. An "
	  "option "
	  "of [plugin NAME] may limit it too; the text then says so." },
	/* ---- tried in a process of its own ---- */
	{ MOEK_RULE_PROBE_CRASH,
	  "The plugin ended the process that tried it, by a signal.",
	  "The text names the signal, the step and its last words. `moek verify PATH` "
	  "repeats it, with --in-process under a debugger.",
	  "Report it to its author; until then `NAME = off` in [priority] keeps the "
	  "reports short." },
	{ MOEK_RULE_PROBE_TIME, "The plugin gave no answer in time.",
	  "The text names the step.",
	  "[registry] probe_seconds gives it longer; a plugin that hangs is to be "
	  "reported." },
	{ MOEK_RULE_PROBE_HELPER,
	  "probe = always is asked for, and the program moek-probe cannot be run.",
	  "The text names the path that was tried.",
	  "Install moek whole, or name the program in [registry] probe_helper." },
	{ MOEK_RULE_PROBE_EXIT, "The plugin called exit() when it was opened.",
	  "The text names the code and the step.",
	  "Report it: a plugin returns a status and leaves the process to its host." },
	{ MOEK_RULE_PROBE_NOISE,
	  "The plugin wrote to standard output when it was opened.",
	  "The text quotes it.",
	  "Report it: a program's output is its own. Plugins log through their host." },
	{ MOEK_RULE_SIDE_EFFECT,
	  "Opening the plugin, or a forward, changed the process around it: locale, "
	  "signals, the current folder, rounding, threads ...",
	  "The text names what changed.", "Report it to its author." },
	{ MOEK_RULE_GOLDEN,
	  "Before the first layer of a kind, the backend ran a small case of it and "
	  "did "
	  "not get what emulation gets, within its declared arithmetic.",
	  "The text has the element or the row that is off most. `moek verify PATH` "
	  "runs "
	  "the whole kit.",
	  "Report it to its author. The verdict is kept for this file and this kind of "
	  "problem; golden = off in moek.ini lets the backend run all the same." },
	/* ---- loading ---- */
	{ MOEK_RULE_LIBRARY, "A library that the plugin needs is missing.",
	  "The text names it; `ldd PATH` shows the others.",
	  "Install it, or take the plugin out of [priority]." },
	{ MOEK_RULE_TWO_HELPERS,
	  "Another plugin brought a library of the same name first, and the loader "
	  "keeps one of a name.",
	  "The text names both files; `ldd` on each shows the paths.",
	  "Install the same version for both, or switch one off." },
	{ MOEK_RULE_SYMBOL,
	  "The file loads but exports no moek_plugin_v1: it is a library of another "
	  "kind, or its symbol is hidden.",
	  "`nm -D --defined-only PATH`.",
	  "Keep other libraries out of the folder of plugins; declare the table with "
	  "MOEK_PLUGIN_EXPORT." },
	{ MOEK_RULE_SYMBOL_FOREIGN,
	  "moek_plugin_v1 was found, but in a library that the file depends on.",
	  "`ldd PATH`, then `nm -D` on each.",
	  "A plugin defines its own table; do not link plugins to each other." },
	{ MOEK_RULE_LOAD,
	  "The dynamic loader refused the file: a library or symbol it needs is "
	  "missing, "
	  "it is damaged, or made for another machine.",
	  "The text is the loader's own. `ldd -r PATH` lists what is missing.",
	  "Install what is missing, or rebuild the plugin on this machine." },
	{ MOEK_RULE_OPEN, "The plugin's open() failed.",
	  "The text is what the plugin logged.",
	  "As the plugin says; its options stand in [plugin NAME]." },
	/* ---- devices ---- */
	{ MOEK_RULE_DEVICE_KIND,
	  "The machine has no device of the kind that the backend runs on.",
	  "`moek list --open` shows every device that the operating system shows.",
	  "Nothing to mend on a machine without one. In a container, pass the device "
	  "in "
	  "(--device=/dev/kfd --device=/dev/dri, or --gpus all)." },
	{ MOEK_RULE_DEVICE_DRIVER,
	  "The card is there; the driver, or the runtime library that speaks with it, "
	  "is "
	  "not.",
	  "The text names the library or node that was looked for.",
	  "Install the vendor's runtime, load the kernel module, or name the library "
	  "in "
	  "[plugin NAME]." },
	{ MOEK_RULE_DEVICE_PERMISSION,
	  "The device node is there, and this user may not open it.",
	  "`ls -l /dev/kfd /dev/dri` and `id`.",
	  "Add the user to the group that owns the node (render or video) and log in "
	  "anew; in a container, pass --group-add." },
	{ MOEK_RULE_DEVICE_VERSION, "The driver is older than the backend needs.",
	  "The report prints the version found and the one needed.",
	  "Update the driver, or use a plugin made for the older one." },
	{ MOEK_RULE_DEVICE_ARCH,
	  "The card is of the right kind, but the plugin's file holds no code for its "
	  "architecture.",
	  "The report prints the architecture and those in the file.",
	  "Build the plugin for it, or let another backend run." },
	/* ---- the problem ---- */
	{ MOEK_RULE_WEIGHT, "The backend has no kernel for this type of weights.",
	  EXPLAIN,
	  "Let another backend run it, or write the checkpoint in a format that is "
	  "accepted: `moek convert`." },
	{ MOEK_RULE_GROUP_SIZE,
	  "The weights share a scale over a number of columns that the kernel cannot "
	  "take.",
	  EXPLAIN,
	  "Let another backend run it, or convert or quantise the model anew with a "
	  "group size that is accepted." },
	{ MOEK_RULE_ZERO_POINTS,
	  "The weights have zero points (asymmetric), and the backend has none, or the "
	  "other way round.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_ACTIVATION,
	  "The backend lacks the function between the two products (silu, gelu ...).",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_LIMIT,
	  "The model clamps its activations, and the backend does not, or not so.",
	  EXPLAIN, ANOTHER " Leaving the clamp out would give other numbers." },
	{ MOEK_RULE_INPUT_TYPE, "The backend does not take input rows of this type.",
	  EXPLAIN,
	  "Hand over rows of a type that is accepted (the tool: --type), or " ANOTHER },
	{ MOEK_RULE_HIDDEN, "The width of the model does not fit the kernel.", EXPLAIN,
	  ANOTHER },
	{ MOEK_RULE_TOP_K, "More experts for each token than the kernel takes.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_EXPERT_MAP,
	  "Some experts live elsewhere (expert parallelism), and the backend does not "
	  "know such maps.",
	  EXPLAIN, "Hold all experts here, or " ANOTHER },
	{ MOEK_RULE_LORA, "LoRA adapters on experts are asked for.", EXPLAIN,
	  "Merge the adapter into the weights." },
	{ MOEK_RULE_COLUMN_GROUPS,
	  "Activation order scattered the groups over the columns (g_idx), and the "
	  "backend reads groups in order.",
	  EXPLAIN, ANOTHER " Quantising without activation order avoids it." },
	{ MOEK_RULE_UNKNOWN_BIT,
	  "The problem has a meaning that the backend does not claim to understand; it "
	  "was not even asked.",
	  "The report names the meaning; `moek list --open --json` lists what each "
	  "backend "
	  "understands.",
	  ANOTHER " A plugin's author claims a bit once the kernel computes it." },
	{ MOEK_RULE_UNKNOWN_VALUE,
	  "A field of the problem holds a value that this version does not know.",
	  "The report prints the number.",
	  "Update the older of program, library and plugin." },
	{ MOEK_RULE_ACTIVATIONS,
	  "The backend does not compute with activations so quantised, alone or with "
	  "these weights. Nothing else is ever put in the place of what was asked for.",
	  EXPLAIN, "Ask for a16 where the model allows it, or " ANOTHER },
	{ MOEK_RULE_SCALE, "The scales are of a type that the kernel does not read.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_BIAS, "The experts have biases, and the backend adds none.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_EXPERTS, "More experts, or fewer, than the kernel takes.", EXPLAIN,
	  ANOTHER },
	{ MOEK_RULE_ALIGNMENT, "An address or stride is less aligned than it must be.",
	  "The text prints what was found and what is accepted.",
	  "Align the buffer; moek_workspace_create(NULL) and the core's own buffers "
	  "are "
	  "aligned." },
	{ MOEK_RULE_WEIGHT_ON_INPUT,
	  "Router weights belong on the experts' input (Llama-4), and the backend "
	  "multiplies outputs only.",
	  EXPLAIN, "With host rows the core does it. On a device, " ANOTHER },
	{ MOEK_RULE_DETERMINISTIC,
	  "The same bits on every run are asked for, and the backend's sums have no "
	  "fixed order.",
	  "`moek explain --backend 'require NAME'` prints the numerics of NAME.",
	  "Do not ask for it, or " ANOTHER },
	{ MOEK_RULE_INTERMEDIATE,
	  "The inner width of the experts does not fit the kernel; tensor-parallel "
	  "shards make it smaller.",
	  EXPLAIN, "Use fewer shards, or " ANOTHER },
	{ MOEK_RULE_GATED,
	  "The experts have no gate (or have one), and the backend is made for the "
	  "other kind.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_ALPHA_BETA,
	  "The activation has an alpha or beta of its own, and the kernel has them "
	  "fixed.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_OUTPUT_TYPE, "The backend does not write rows of this type.",
	  EXPLAIN, "Take a type that is accepted (the tool: --type), or " ANOTHER },
	{ MOEK_RULE_ROW_STRIDE,
	  "Rows lie further apart than they are long, and the backend reads dense "
	  "rows.",
	  EXPLAIN, "Hand over dense rows, or " ANOTHER },
	{ MOEK_RULE_CAPTURE,
	  "The forward is to be captured into a graph, and the backend cannot be.",
	  EXPLAIN, "Do not ask for it, or " ANOTHER },
	{ MOEK_RULE_PARTIAL_SUM,
	  "This rank's output is a part of a sum over ranks, and the backend would "
	  "round it too early.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_SHARDS, "The layer cannot be cut into so many shards.", EXPLAIN,
	  "Use a number of ranks that divides the inner width into whole groups." },
	{ MOEK_RULE_TOKENS,
	  "More rows in one forward than the backend, or this layer, takes.",
	  "The text prints both numbers.",
	  "Plan with a larger max_tokens, or cut the batch." },
	{ MOEK_RULE_INDEX_RANGE,
	  "Experts times rows times columns pass the range of the kernel's indices.",
	  EXPLAIN, ANOTHER },
	{ MOEK_RULE_DEPENDENCY,
	  "The backend can run this only with something that is not installed.",
	  "The text names it.", "Install it." },
	{ MOEK_RULE_INVALID,
	  "The problem contradicts itself, so nobody could run it: top_k over experts, "
	  "a group of no columns ...",
	  "The text names the field, what it says and what it must.",
	  "Mend the checkpoint's config.json, or what the program filled in." },
	{ MOEK_RULE_EXCEPTION,
	  "The plugin is written in C++, and a question to it ended in an exception, "
	  "which "
	  "its wrapper caught.",
	  "The note is what the exception says.",
	  "Report it to the plugin's author; meanwhile another backend runs." },
	/* ---- resources and running ---- */
	{ MOEK_RULE_WORKSPACE,
	  "The scratch memory does not fit, or, with checks on, a backend wrote "
	  "outside "
	  "of its part of it.",
	  "The text names the buffer. `moek run --checks` finds who does it.",
	  "Plan for fewer tokens; a backend that writes outside is to be switched off "
	  "and reported to its author." },
	{ MOEK_RULE_MEMORY, "There was not enough memory.",
	  "The text says for what, and how much.",
	  "Free some, plan for fewer tokens, or run fewer layers here." },
	{ MOEK_RULE_CREATE,
	  "The backend said yes to every question and then could not make the layer.",
	  "The text is its status; its log line before it says more.",
	  "Memory or device short: free some. Else it is the plugin's mistake: switch "
	  "it off and tell its author." },
	{ MOEK_RULE_OUTRANKED, "It would run; a backend that stands before it does.",
	  "The report's column `source` shows the line that gives the rank.",
	  "Nothing is wrong. To prefer it, move its line up, or --backend 'prefer "
	  "NAME'." },
};

#define REASONS (sizeof(reasons) / sizeof(reasons[0]))

static void print_text(const struct reason *reason)
{
	printf("%u %s\n  cause  %s\n  see    %s\n  fix    %s\n", reason->rule,
	       moek_rule_name(reason->rule), reason->cause, reason->see, reason->fix);
}

static void print_json(struct writer *writer, const struct reason *reason)
{
	writer_open(writer, NULL, '{');
	writer_number(writer, "number", reason->rule);
	writer_string(writer, "name", moek_rule_name(reason->rule));
	writer_string(writer, "cause", reason->cause);
	writer_string(writer, "see", reason->see);
	writer_string(writer, "fix", reason->fix);
	writer_close(writer, '}');
}

/** @text for roff: what stands between backquotes is bold; a dash is a dash. */
static void print_roff(const char *text)
{
	int bold = 0;

	for (; *text != '\0'; text++) {
		if (*text == '`')
			fputs((bold = !bold) ? "\\fB" : "\\fR", stdout);
		else if (*text == '-')
			fputs("\\-", stdout);
		else if (*text == '\\')
			fputs("\\e", stdout);
		else
			putchar(*text);
	}
	putchar('\n');
}

static void print_manual(void)
{
	printf(".\\\" SPDX-License-Identifier: MIT\n"
	       ".\\\" Printed by moek reasons --man.\n"
	       ".TH MOEK\\-REASONS 7 \"\" \"moek %s\" \"Miscellaneous Information\"\n"
	       ".SH NAME\n"
	       "moek\\-reasons \\- why a backend was not used, and what to do about "
	       "it\n"
	       ".SH DESCRIPTION\n"
	       "Each refusal of\n.BR moek (1)\nand\n.BR libmoek (3)\n"
	       "has a reason with a number and a name. Numbers are never used again "
	       "for\n"
	       "something else.\n.B moek reasons\n.I NUMBER\n"
	       "prints one of these paragraphs.\n.SH REASONS\n",
	       moek_version());
	for (size_t i = 0; i < REASONS; i++) {
		printf(".TP\n.B %u %s\n", reasons[i].rule,
		       moek_rule_name(reasons[i].rule));
		print_roff(reasons[i].cause);
		fputs(".br\n.I See:\n", stdout);
		print_roff(reasons[i].see);
		fputs(".br\n.I Fix:\n", stdout);
		print_roff(reasons[i].fix);
	}
	fputs(".SH SEE ALSO\n.BR moek (1),\n.BR moek.ini (5),\n.BR libmoek (3),\n"
	      ".BR moek\\-plugin (7)\n",
	      stdout);
}

/** @wanted: a number, a name, or NULL for all. */
static int is_wanted(const struct reason *reason, const char *wanted)
{
	char number[16];

	snprintf(number, sizeof(number), "%u", reason->rule);
	return wanted == NULL || strcmp(wanted, number) == 0 ||
	       strcmp(wanted, moek_rule_name(reason->rule)) == 0;
}

const char *reason_of(const char *rule, const char **fix_out)
{
	for (size_t i = 0; i < REASONS; i++) {
		if (strcmp(moek_rule_name(reasons[i].rule), rule) != 0)
			continue;
		*fix_out = reasons[i].fix;
		return reasons[i].cause;
	}
	return "";
}

/** @wanted is none; the nearest name is told, if one is near. */
static int refuse(const char *wanted)
{
	const char *names[REASONS], *nearest;

	for (size_t i = 0; i < REASONS; i++)
		names[i] = moek_rule_name(reasons[i].rule);
	nearest = moek_nearest(wanted, names, REASONS);
	if (nearest != NULL)
		tool_say("reasons: %s is no reason; did you mean %s?", wanted, nearest);
	else
		tool_say("reasons: %s is no reason; moek reasons lists them", wanted);
	return TOOL_USAGE;
}

static int is_known(const char *wanted)
{
	for (size_t i = 0; i < REASONS; i++)
		if (is_wanted(&reasons[i], wanted))
			return 1;
	return 0;
}

int command_reasons(const struct options *options)
{
	struct writer writer = { 0 };

	if (options->man) {
		print_manual();
		return TOOL_DONE;
	}
	if (!is_known(options->reason))
		return refuse(options->reason);
	if (options->json)
		writer_open(&writer, NULL, '[');
	for (size_t i = 0; i < REASONS; i++) {
		if (!is_wanted(&reasons[i], options->reason))
			continue;
		if (options->json)
			print_json(&writer, &reasons[i]);
		else
			print_text(&reasons[i]);
	}
	if (options->json)
		writer_close(&writer, ']');
	return TOOL_DONE;
}
