/* SPDX-License-Identifier: MIT */
/* Options, the loop over cases.h, and what is printed. */
#include "config.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "tools/kernelcheck/check.h"

#define BACKENDS 32 /* tables of one plugin, at most */

static const char usage[] =
	"kernelcheck PLUGIN.so [options]: hold every backend of a plugin to emulation\n"
	"  --case GLOB       only cases whose name matches\n"
	"  --backend GLOB    only backends whose name matches, as cpu.avx2\n"
	"  --list            print the names of the cases\n"
	"  --seed N          of the random values (1)\n"
	"  --random N        N random problems in place of the cases, of seeds --seed\n"
	"                    and up; what failed with seed S is --random 1 --seed S\n"
	"  --seconds N       start no random problem after so long\n"
	"  --threads N       workers (2); each case also runs with one\n"
	"  --config FILE     a moek.ini, for options of the plugin (default: none)\n"
	"  --reference FILE  emulation.so (default: beside PLUGIN.so)\n"
	"  --quiet           print failures and the closing line only\n"
	"  --bench           when a case agrees, time it; then layers of models\n"
	"  --tap             Test Anything Protocol\n"
	"  --json            one JSON object a line\n";

enum format { PLAIN, TAP, JSON };

struct options {
	const char *plugin, *cases, *backend, *config;
	char reference[4096];
	uint64_t seed, random, seconds;
	uint32_t threads;
	enum format format;
	int list, bench, quiet;
};

struct tally {
	uint64_t count[3]; /* by enum outcome */
};

/* ---- output ---- */

static void print_string(const char *text)
{
	putchar('"');
	for (; *text != '\0'; text++)
		if (*text == '"' || *text == '\\')
			printf("\\%c", *text);
		else if ((unsigned char)*text < 0x20)
			printf("\\u%04x", (unsigned)*text);
		else
			putchar(*text);
	putchar('"');
}

struct line {
	const char *name, *backend;
	const struct answer *answer;
	const struct timing *timing; /* NULL: not timed */
	uint64_t tokens;
};

static double nanoseconds(const struct line *line)
{
	return line->timing->median / (double)(line->tokens > 0 ? line->tokens : 1) *
	       1e9;
}

static void print_json(const struct options *o, const struct line *line)
{
	static const char *const words[] = { "passed", "failed", "skipped" };
	const struct timing *t = line->timing;

	printf("{\"case\": \"%s\", \"backend\": \"%s\", \"seed\": %" PRIu64
	       ", \"outcome\": \"%s\", \"worst\": %.6g, \"text\": ",
	       line->name, line->backend, o->seed, words[line->answer->outcome],
	       line->answer->worst <= 1e300 ? line->answer->worst : 1e300);
	print_string(line->answer->text);
	if (t != NULL)
		printf(", \"ns_per_token\": %.1f, \"seconds\": [%.9g, %.9g, %.9g], "
		       "\"runs\": %u, \"gb_per_second\": %.3f, "
		       "\"gflop_per_second\": %.3f",
		       nanoseconds(line), t->low, t->median, t->high, t->runs,
		       t->expert_bytes / t->median / 1e9, t->flops / t->median / 1e9);
	printf("}\n");
}

static void print_tap(const struct options *o, const struct tally *tally,
                      const struct line *line)
{
	const struct answer *a = line->answer;

	printf("%sok %" PRIu64 " - %s on %s", a->outcome == FAILED ? "not " : "",
	       tally->count[0] + tally->count[1] + tally->count[2], line->name,
	       line->backend);
	if (a->outcome == SKIPPED)
		printf(" # SKIP %s", a->text);
	printf("\n");
	if (a->outcome == FAILED)
		printf("# seed %" PRIu64 ": %s\n", o->seed, a->text);
}

static void print_plain(const struct options *o, const struct line *line)
{
	static const char *const words[] = { "PASS", "FAIL", "SKIP" };
	const struct answer *a = line->answer;
	const struct timing *t = line->timing;

	if (o->quiet && a->outcome != FAILED && t == NULL)
		return;
	printf("%s %-34s %s", words[a->outcome], line->name, line->backend);
	if (a->outcome == FAILED)
		printf(": seed %" PRIu64 ": %s", o->seed, a->text);
	else if (a->outcome == SKIPPED)
		printf(": %s", a->text);
	else
		printf(": %.3f of the allowance", a->worst);
	if (t != NULL)
		printf("; %.0f ns/token (%.0f%% .. +%.0f%%, %u runs), %.2f GB/s of "
		       "weights, %.2f GFLOP/s",
		       nanoseconds(line), 100 * (t->low / t->median - 1),
		       100 * (t->high / t->median - 1), t->runs,
		       t->expert_bytes / t->median / 1e9, t->flops / t->median / 1e9);
	printf("\n");
}

static void print(const struct options *o, struct tally *tally, const struct line *line)
{
	tally->count[line->answer->outcome]++;
	if (o->format == JSON)
		print_json(o, line);
	else if (o->format == TAP)
		print_tap(o, tally, line);
	else
		print_plain(o, line);
	fflush(stdout);
}

static void print_closing(const struct options *o, const struct tally *t)
{
	if (o->format == JSON)
		printf("{\"passed\": %" PRIu64 ", \"failed\": %" PRIu64
		       ", \"skipped\": %" PRIu64 ", \"seed\": %" PRIu64 "}\n",
		       t->count[PASSED], t->count[FAILED], t->count[SKIPPED], o->seed);
	else if (o->format == TAP)
		printf("1..%" PRIu64 "\n", t->count[0] + t->count[1] + t->count[2]);
	if (o->format != JSON)
		printf("%s%" PRIu64 " passed, %" PRIu64 " failed, %" PRIu64
		       " skipped\n",
		       o->format == TAP ? "# " : "", t->count[PASSED], t->count[FAILED],
		       t->count[SKIPPED]);
}

/* ---- a backend that crashes ends the run, but not without its name ---- */

static char running[160];

static void crashed(int number)
{
	static const char text[] = "\nnot ok: crashed while it ran: ";
	ssize_t written = write(STDOUT_FILENO, text, sizeof(text) - 1);

	written += write(STDOUT_FILENO, running, strlen(running));
	(void)written;
	signal(number, SIG_DFL);
	raise(number);
}

static void catch_crashes(void)
{
	static const int numbers[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
	struct sigaction old, action = { .sa_handler = crashed };
	size_t i;

	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		/* a sanitizer that was there first says more */
		if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
			sigaction(numbers[i], &action, NULL);
}

static void now_running(const struct options *o, const char *name, const char *backend)
{
	snprintf(running, sizeof(running), "%s on %s, seed %" PRIu64 "\n", name,
	         backend, o->seed);
}

/* ---- the loop ---- */

static int matches(const char *glob, const char *name)
{
	return glob == NULL || fnmatch(glob, name, 0) == 0;
}

static int wanted(const struct options *o, const char names[][64], uint64_t i)
{
	return matches(o->backend, names[i]);
}

/* Time the case's own batch on a layer like the one that agreed, without guards. */
static void time_runner(const struct runner *runner, const struct tokens *batches,
                        uint64_t count, struct answer *answer, struct line *line)
{
	static struct timing timing;
	struct moek_error error = { .text = "" };

	if (bench(runner, batches, count, &timing, &error) == MOEK_OK) {
		line->timing = &timing;
		return;
	}
	answer->outcome = FAILED;
	snprintf(answer->text, sizeof(answer->text), "%.500s", error.text);
}

static void time_case(struct moek_registry *fast, const struct material *m,
                      struct answer *answer, struct line *line)
{
	struct moek_error error = { .text = "" };
	struct runner runner;
	char request[80];

	if (m->tokens.count == 0)
		return;
	snprintf(request, sizeof(request), "require %s", line->backend);
	if (runner_open(fast, &m->problem, &m->source, m->map, request, &runner,
	                &error) != MOEK_OK)
		return;
	time_runner(&runner, &m->tokens, 1, answer, line);
	runner_close(&runner);
}

static void check_one(const struct options *o, const struct bed *bed,
                      struct moek_registry *fast, const struct kernel_case *of,
                      struct tally *tally)
{
	char names[BACKENDS][64];
	struct kernel_case c = *of;
	struct material material;
	struct answer answer = { FAILED, 0, "cannot make the material of this case" };
	uint64_t count, i;

	if (!matches(o->cases, c.name))
		return;
	if (!material_make(&c, o->seed, &material)) {
		const struct line line = { c.name, bed->plugin, &answer, NULL, 0 };

		print(o, tally, &line);
		return;
	}
	count = check_backends(bed, &material.problem, names, BACKENDS);
	for (i = 0; i < count; i++) {
		struct line line = { c.name, names[i], &answer, NULL, c.tokens };

		if (!wanted(o, (const char(*)[64])names, i))
			continue;
		now_running(o, c.name, names[i]);
		check_case(bed, &material, &c, names[i], &answer);
		if (answer.outcome == PASSED && fast != NULL)
			time_case(fast, &material, &answer, &line);
		print(o, tally, &line);
	}
	material_free(&material);
}

static void check_cases(const struct options *o, const struct bed *bed,
                        struct moek_registry *fast, struct tally *tally)
{
	struct kernel_case c;
	uint64_t i;

	for (i = 0; i < case_count(); i++) {
		case_at(i, &c);
		check_one(o, bed, fast, &c, tally);
	}
}

static void check_random(const struct options *o, const struct bed *bed,
                         struct moek_registry *fast, struct tally *tally)
{
	struct options one = *o;
	struct kernel_case c;
	time_t start = time(NULL);
	uint64_t i;

	for (i = 0; i < o->random; i++) {
		if (o->seconds != 0 && (uint64_t)(time(NULL) - start) >= o->seconds)
			break;
		one.seed = o->seed + i;
		case_random(one.seed, &c);
		check_one(&one, bed, fast, &c, tally);
	}
	if (o->format != JSON)
		printf("%s%" PRIu64 " random problems, seeds %" PRIu64 " and up%s\n",
		       o->format == TAP ? "# " : "", i, o->seed,
		       i < o->random ? ": out of time" : "");
}

/* ---- layers of models ---- */

static void check_model(const struct bed *bed, struct moek_registry *fast,
                        const struct kernel_case *c, const struct model *model,
                        struct answer *answer, struct line *line)
{
	const struct moek_problem *p = &model->problem;
	struct material m = { .problem = *p,
		              .all = *p,
		              .experts = model->experts,
		              .tokens = model->batches[0],
		              .plain = model->source };
	struct moek_error error = { .text = "" };
	struct reference reference = { 0 };
	struct rows rows = { 0 };
	struct runner runner;
	char request[80];

	answer->outcome = FAILED;
	snprintf(request, sizeof(request), "require %s", line->backend);
	if (runner_open(fast, p, &model->source, NULL, request, &runner, &error) !=
	    MOEK_OK) {
		answer->outcome = error.status == MOEK_REFUSED ? SKIPPED : FAILED;
		snprintf(answer->text, sizeof(answer->text), "%.500s", error.text);
		return;
	}
	snprintf(answer->text, sizeof(answer->text), "out of memory");
	if (reference_make(bed, &m, &reference, &error) == MOEK_OK &&
	    reference_flips(&m, &runner.numerics, &reference) &&
	    rows_make(c->tokens, p->hidden, p->hidden, p->output_type, &rows) &&
	    runner_forward(&runner, &m.tokens, &rows, NULL, &error) == MOEK_OK &&
	    check_output(&m, c, &runner.numerics, &reference, &rows, answer)) {
		answer->outcome = PASSED;
		answer->text[0] = '\0';
		time_runner(&runner, model->batches, model->batch_count, answer, line);
	}
	rows_free(&rows);
	reference_free(&reference);
	runner_close(&runner);
}

static void bench_models(const struct options *o, const struct bed *bed,
                         struct moek_registry *fast, struct tally *tally)
{
	char names[BACKENDS][64];
	uint64_t index, count, i;

	for (index = 0; index < bench_count(); index++) {
		struct kernel_case c;
		struct model model;

		bench_at(index, &c);
		if (!matches(o->cases, c.name) || !model_make(&c, o->seed, &model))
			continue;
		count = check_backends(bed, &model.problem, names, BACKENDS);
		for (i = 0; i < count; i++) {
			struct answer answer = { FAILED, 0, "" };
			struct line line = { c.name, names[i], &answer, NULL,
				             c.tokens };

			if (!wanted(o, (const char(*)[64])names, i))
				continue;
			now_running(o, c.name, names[i]);
			check_model(bed, fast, &c, &model, &answer, &line);
			print(o, tally, &line);
		}
		model_free(&model);
	}
}

/* ---- options ---- */

static int take_number(const char *text, uint64_t most, uint64_t *number_out)
{
	char *end;
	unsigned long long number = strtoull(text, &end, 0);

	if (*text == '\0' || *text == '-' || *end != '\0' || number > most)
		return 0;
	*number_out = number;
	return 1;
}

/* An option with a value. Returns 0 if it is none, or the value is bad. */
static int take_value(const char *name, const char *value, struct options *o)
{
	uint64_t number;

	if (value == NULL)
		return 0;
	if (strcmp(name, "--case") == 0)
		o->cases = value;
	else if (strcmp(name, "--backend") == 0)
		o->backend = value;
	else if (strcmp(name, "--config") == 0)
		o->config = value;
	else if (strcmp(name, "--reference") == 0)
		snprintf(o->reference, sizeof(o->reference), "%s", value);
	else if (strcmp(name, "--seed") == 0)
		return take_number(value, UINT64_MAX, &o->seed);
	else if (strcmp(name, "--random") == 0)
		return take_number(value, 1000000000, &o->random);
	else if (strcmp(name, "--seconds") == 0)
		return take_number(value, 1000000, &o->seconds);
	else if (strcmp(name, "--threads") == 0 && take_number(value, 1024, &number))
		o->threads = (uint32_t)number;
	else
		return 0;
	return 1;
}

static int take_options(int argc, char **argv, struct options *o)
{
	int i;

	for (i = 1; i < argc; i++) {
		const char *arg = argv[i];

		if (strcmp(arg, "--list") == 0)
			o->list = 1;
		else if (strcmp(arg, "--bench") == 0)
			o->bench = 1;
		else if (strcmp(arg, "--quiet") == 0)
			o->quiet = 1;
		else if (strcmp(arg, "--tap") == 0)
			o->format = TAP;
		else if (strcmp(arg, "--json") == 0)
			o->format = JSON;
		else if (arg[0] != '-' && o->plugin == NULL)
			o->plugin = arg;
		else if (!take_value(arg, argv[i + 1], o))
			return 0;
		else
			i++;
	}
	return o->plugin != NULL || o->list;
}

static void default_reference(struct options *o)
{
	const char *slash = strrchr(o->plugin, '/');
	int length = slash != NULL ? (int)(slash - o->plugin) + 1 : 0;

	if (o->reference[0] == '\0')
		snprintf(o->reference, sizeof(o->reference), "%.*semulation.so", length,
		         o->plugin);
}

static void list(void)
{
	struct kernel_case c;
	uint64_t i;

	for (i = 0; i < case_count(); i++) {
		case_at(i, &c);
		printf("%s\n", c.name);
	}
	for (i = 0; i < bench_count(); i++) {
		bench_at(i, &c);
		printf("%s (--bench)\n", c.name);
	}
}

/* Without checks: what is timed is what users run. */
static struct moek_registry *open_fast(const struct options *o)
{
	char folder[4096];
	const char *const folders[] = { folder, NULL };
	const struct moek_registry_options options = {
		.struct_size = MOEK_REGISTRY_OPTIONS_SIZE_1_0,
		.threads = o->threads,
		.config_file = o->config,
		.plugin_dirs = folders,
		.checks = 2,
		.ignore_environment = 1,
	};
	struct moek_registry *registry = NULL;
	char *slash;

	snprintf(folder, sizeof(folder), "%s", o->plugin);
	slash = strrchr(folder, '/');
	if (slash == NULL)
		strcpy(folder, ".");
	else
		*slash = '\0';
	moek_registry_open(&options, &registry, NULL);
	return registry;
}

int main(int argc, char **argv)
{
	struct options o = { .seed = 1, .threads = 2, .config = "" };
	struct moek_error error = { .text = "" };
	struct moek_registry *fast = NULL;
	struct tally tally = { { 0, 0, 0 } };
	struct bed bed;

	if (!take_options(argc, argv, &o)) {
		fputs(usage, stderr);
		return 2;
	}
	if (o.list) {
		list();
		return 0;
	}
	default_reference(&o);
	catch_crashes();
	if (bed_open(o.plugin, o.reference, o.config, o.threads, &bed, &error) !=
	    MOEK_OK) {
		fprintf(stderr, "kernelcheck: %s\n", error.text);
		return 2;
	}
	if (o.bench)
		fast = open_fast(&o);
	if (o.random > 0)
		check_random(&o, &bed, fast, &tally);
	else
		check_cases(&o, &bed, fast, &tally);
	if (fast != NULL && o.random == 0)
		bench_models(&o, &bed, fast, &tally);
	moek_registry_close(fast);
	bed_close(&bed);
	print_closing(&o, &tally);
	if (tally.count[FAILED] != 0)
		return 1;
	return tally.count[PASSED] != 0 ? 0 : 77; /* a skip is no pass */
}
