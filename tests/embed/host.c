/* SPDX-License-Identifier: MIT */
/*
 * A program that links the installed libmoek and does to it what programs do:
 *
 *   host one      one layer, one forward
 *   host two      two registries at once, of different settings
 *   host threads  eight layers in eight threads
 *   host fork     a child that goes on with what its parent opened, and ends
 *   host leave    exit() without closing anything
 *   host swap DIR a plugin file of DIR replaced by another while a layer of it runs
 *
 * Compiles as C and as C++. The layer is that of examples/minimal.c, whose output is
 * known.
 */
#include <moek/moek.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, FORWARDS = 50, RIGHT = 0x3d8f };

static uint32_t gate_up[4][64][8], down[4][64][4];
static uint16_t gate_up_scales[4][64][2], down_scales[4][64], input[64];
static const int32_t ids[2] = { 0, 3 };
static const float weights[2] = { 0.75f, 0.25f };

static struct moek_error error;

static void need(int32_t status)
{
	if (status == MOEK_OK)
		return;
	fprintf(stderr, "%s\n", error.text);
	exit(1);
}

static void fill(void)
{
	memset(gate_up, 0x99, sizeof(gate_up));
	memset(down, 0x99, sizeof(down));
	memset(gate_up_scales, 0x3c, sizeof(gate_up_scales));
	memset(down_scales, 0x3c, sizeof(down_scales));
	memset(input, 0x3f, sizeof(input));
}

/** A registry with one setting in force, or none. */
static struct moek_registry *open_registry(const char *section, const char *key,
                                           const char *value)
{
	struct moek_setting setting;
	struct moek_registry_options options;
	struct moek_registry *registry = NULL;

	setting.section = section;
	setting.key = key;
	setting.value = value;
	memset(&options, 0, sizeof(options));
	options.struct_size = MOEK_INIT(REGISTRY_OPTIONS);
	options.threads = 2;
	options.settings = &setting;
	options.setting_count = section != NULL;
	need(moek_registry_open(&options, &registry, &error));
	return registry;
}

struct one {
	struct moek_choice *choice;
	struct moek_layer *layer;
	struct moek_workspace *workspace;
};

/** That of examples/minimal.c. */
static struct moek_problem the_problem(void)
{
	struct moek_problem problem;

	memset(&problem, 0, sizeof(problem));
	problem.struct_size = MOEK_INIT(PROBLEM);
	need(moek_problem_parse(
		"weight=int4,group_size=32,scale=bf16,experts=4,top_k=2,"
		"hidden=64,intermediate=32,max_tokens=1,shards=1,gated=1,"
		"activation=silu,input_type=bf16,output_type=bf16",
		&problem, &error));
	return problem;
}

static struct moek_choice *choose(struct moek_registry *registry, const char *request)
{
	const struct moek_problem problem = the_problem();
	struct moek_choice *choice = NULL;

	need(moek_choose(registry, &problem, request, "host", &choice, &error));
	return choice;
}

static void make(struct moek_registry *registry, const char *request, struct one *one)
{
	const struct moek_problem problem = the_problem();
	struct moek_stack first, second;
	struct moek_source source;

	memset(&first, 0, sizeof(first));
	first.struct_size = MOEK_INIT(STACK);
	first.layout = MOEK_LAYOUT_PACKED;
	first.gate_order = MOEK_GATE_FIRST;
	second = first;
	first.codes = gate_up;
	first.codes_bytes = sizeof(gate_up);
	first.scales = gate_up_scales;
	first.scales_bytes = sizeof(gate_up_scales);
	second.codes = down;
	second.codes_bytes = sizeof(down);
	second.scales = down_scales;
	second.scales_bytes = sizeof(down_scales);
	second.gate_order = 0;
	memset(&source, 0, sizeof(source));
	source.struct_size = MOEK_INIT(SOURCE);
	memset(one, 0, sizeof(*one));
	one->choice = choose(registry, request);
	need(moek_tensors_source(&problem, &first, &second, &source, &error));
	need(moek_layer_create(one->choice, &source, NULL, &one->layer, &error));
	need(moek_workspace_create(&one->layer, 1, NULL, 0, &one->workspace, &error));
	moek_source_close(&source);
}

static void end(struct one *one)
{
	moek_workspace_destroy(one->workspace);
	moek_layer_destroy(one->layer);
	moek_choice_destroy(one->choice);
}

/** The first output of one forward; exits on failure. */
static unsigned run(struct one *one)
{
	uint16_t output[64];
	struct moek_forward forward;
	struct moek_error mine;

	memset(output, 0, sizeof(output));
	memset(&forward, 0, sizeof(forward));
	forward.struct_size = MOEK_INIT(FORWARD);
	forward.input.data = input;
	forward.input.rows = 1;
	forward.input.columns = 64;
	forward.input.type = MOEK_BF16;
	forward.output = forward.input;
	forward.output.data = output;
	forward.topk_ids = ids;
	forward.topk_weights = weights;
	forward.workspace = one->workspace;
	if (moek_layer_forward(one->layer, &forward, &mine) != MOEK_OK) {
		fprintf(stderr, "%s\n", mine.text);
		exit(1);
	}
	return output[0];
}

static int run_one(void)
{
	struct moek_registry *registry = open_registry(NULL, NULL, NULL);
	struct one one;
	unsigned got;

	make(registry, "auto", &one);
	got = run(&one);
	end(&one);
	moek_registry_close(registry);
	return got != RIGHT;
}

/** What one registry switches off, the other has. */
static int run_two(void)
{
	struct moek_registry *without = open_registry("plugin cpu", "isa", "plain");
	struct moek_registry *with = open_registry(NULL, NULL, NULL);
	struct one first, second;
	int failed;

	make(without, "require cpu", &first);
	make(with, "require cpu", &second);
	printf("%s, %s\n", moek_choice_winner(moek_layer_choice(first.layer)),
	       moek_choice_winner(moek_layer_choice(second.layer)));
	failed = strcmp(moek_choice_winner(moek_layer_choice(first.layer)),
	                "cpu.plain") != 0;
	failed |= run(&first) != RIGHT || run(&second) != RIGHT;
	end(&first);
	moek_registry_close(without); /* the other goes on */
	failed |= run(&second) != RIGHT;
	end(&second);
	moek_registry_close(with);
	return failed;
}

struct work {
	struct moek_registry *registry;
	int wrong;
};

static void *work(void *arg)
{
	struct work *mine = (struct work *)arg;
	struct one one;

	make(mine->registry, "auto", &one);
	for (int i = 0; i < FORWARDS; i++)
		mine->wrong += run(&one) != RIGHT;
	end(&one);
	return NULL;
}

static int run_threads(void)
{
	struct moek_registry *registry = open_registry(NULL, NULL, NULL);
	pthread_t threads[THREADS];
	struct work works[THREADS];
	int wrong = 0;

	for (int i = 0; i < THREADS; i++) {
		works[i].registry = registry;
		works[i].wrong = 0;
		if (pthread_create(&threads[i], NULL, work, &works[i]) != 0)
			return 1;
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		wrong += works[i].wrong;
	}
	moek_registry_close(registry);
	return wrong != 0;
}

/** The child has no threads of its parent's: it opens its own, and may ask the old one.
 */
static int run_fork(void)
{
	struct moek_registry *registry = open_registry(NULL, NULL, NULL);
	struct one one;
	int status = 1;
	pid_t child;

	make(registry, "auto", &one);
	if (run(&one) != RIGHT)
		return 1;
	child = fork();
	if (child == 0) {
		struct moek_registry *own = open_registry(NULL, NULL, NULL);
		struct moek_choice *again = choose(registry, "auto");
		struct one mine;
		unsigned got;

		make(own, "auto", &mine);
		got = run(&mine);
		moek_choice_destroy(again);
		end(&mine);
		moek_registry_close(own);
		_exit(got != RIGHT);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return 1;
	status |= run(&one) != RIGHT;
	end(&one);
	moek_registry_close(registry);
	return status != 0;
}

static int run_leave(void)
{
	struct moek_registry *registry = open_registry(NULL, NULL, NULL);
	static struct one one;

	make(registry, "auto", &one);
	exit(run(&one) != RIGHT);
}

/** As a package manager does it: a new file takes the name of the old one. */
static int run_swap(const char *folder)
{
	struct moek_registry *registry = open_registry(NULL, NULL, NULL), *later;
	char from[4096], to[4096];
	struct one old, fresh;
	int wrong;

	make(registry, "require emulation", &old);
	wrong = run(&old) != RIGHT;
	snprintf(from, sizeof(from), "%s/new.so", folder);
	snprintf(to, sizeof(to), "%s/emulation.so", folder);
	if (rename(from, to) != 0) {
		perror(to);
		return 1;
	}
	wrong |= run(&old) != RIGHT;
	later = open_registry(NULL, NULL, NULL);
	make(later, "require emulation", &fresh);
	wrong |= run(&fresh) != RIGHT || run(&old) != RIGHT;
	end(&fresh);
	moek_registry_close(later);
	end(&old);
	moek_registry_close(registry);
	return wrong;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "one";

	fill();
	return strcmp(what, "one") == 0                ? run_one()
	       : strcmp(what, "two") == 0              ? run_two()
	       : strcmp(what, "threads") == 0          ? run_threads()
	       : strcmp(what, "fork") == 0             ? run_fork()
	       : strcmp(what, "leave") == 0            ? run_leave()
	       : strcmp(what, "swap") == 0 && argc > 2 ? run_swap(argv[2])
	                                               : 2;
}
