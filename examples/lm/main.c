/* SPDX-License-Identifier: MIT */
#include "lm.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"usage: moek-lm CHECKPOINT COMMAND [OPTION]...\n"
	"Run a Qwen3-MoE or gpt-oss model; the experts run through libmoek.\n"
	"\n"
	"commands\n"
	"  --prompt TEXT     answer it (vocabularies of bytes), up to a newline\n"
	"  --ids N,N,...     the same with tokens: ids in, ids out\n"
	"  --tasks FILE      exact match over rows of task, prompt and answer\n"
	"  --loss FILE       nats per byte of a text\n"
	"  --logits FILE     compare with the logits in a safetensors file\n"
	"  --compare A,B     two backends over one text (--prompt, --ids or --loss)\n"
	"  --bench           tokens per second over batch sizes\n"
	"\n"
	"options\n"
	"  --backend REQUEST auto, 'prefer a,b', 'require a' or 'exclude a'\n"
	"  --input-type TYPE of the experts' input and output: fp32 (default) or bf16\n"
	"  --activations A   a16, int8, mxfp4_even, mxfp4_round_up: over the "
	"checkpoint's\n"
	"  --problem K=V,... any other part of the problem\n"
	"  --batch N         --tasks: generate the answers, N requests at a time\n"
	"  --limit N         --tasks: rows of each task; --loss: windows of 256 bytes\n"
	"  --max-tokens N    of an answer (64)\n"
	"  --chunk N         most tokens of one forward (1024)\n"
	"  --threads N       workers (as many as the process may use)\n"
	"  --config FILE     the moek.ini to read\n"
	"  --plugin-dir DIR  searched before those of moek.ini\n"
	"  --json            for programs\n"
	"  --help, --version\n"
	"\n"
	"exit codes: 0 done; 1 refused, wrong numbers, or a failure while running; 2 "
	"usage;\n"
	"3 bad input: checkpoint, text or moek.ini\n";

struct options {
	const char *checkpoint, *prompt, *ids, *tasks, *loss, *logits, *compare;
	int bench, json;
	const char *backend, *activations, *problem, *config, *plugin_dir;
	uint32_t type;
	size_t batch, limit, most, chunk, threads;
};

enum {
	PROMPT = 256,
	IDS,
	TASKS,
	LOSS,
	LOGITS,
	COMPARE,
	BENCH,
	BACKEND,
	INPUT_TYPE,
	ACTIVATIONS,
	PROBLEM,
	BATCH,
	LIMIT,
	MAX_TOKENS,
	CHUNK,
	THREADS,
	CONFIG,
	PLUGIN_DIR,
	JSON,
	HELP,
	VERSION
};

static const struct option long_options[] = {
	{ "prompt", required_argument, NULL, PROMPT },
	{ "ids", required_argument, NULL, IDS },
	{ "tasks", required_argument, NULL, TASKS },
	{ "loss", required_argument, NULL, LOSS },
	{ "logits", required_argument, NULL, LOGITS },
	{ "compare", required_argument, NULL, COMPARE },
	{ "bench", no_argument, NULL, BENCH },
	{ "backend", required_argument, NULL, BACKEND },
	{ "input-type", required_argument, NULL, INPUT_TYPE },
	{ "activations", required_argument, NULL, ACTIVATIONS },
	{ "problem", required_argument, NULL, PROBLEM },
	{ "batch", required_argument, NULL, BATCH },
	{ "limit", required_argument, NULL, LIMIT },
	{ "max-tokens", required_argument, NULL, MAX_TOKENS },
	{ "chunk", required_argument, NULL, CHUNK },
	{ "threads", required_argument, NULL, THREADS },
	{ "config", required_argument, NULL, CONFIG },
	{ "plugin-dir", required_argument, NULL, PLUGIN_DIR },
	{ "json", no_argument, NULL, JSON },
	{ "help", no_argument, NULL, HELP },
	{ "version", no_argument, NULL, VERSION },
	{ NULL, 0, NULL, 0 },
};

static size_t parse_count(const char *option, const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text < '1' || *text > '9' || *end != '\0' || value > 1000000)
		lm_stop(LM_USAGE, "--%s: \"%s\" is not a number from 1 to 1000000",
		        option, text);
	return value;
}

static uint32_t parse_type(const char *text)
{
	if (strcmp(text, "fp32") == 0)
		return MOEK_F32;
	if (strcmp(text, "bf16") == 0)
		return MOEK_BF16;
	lm_stop(LM_USAGE, "--input-type: \"%s\", must be fp32 or bf16", text);
}

static void parse_option(struct options *options, int code)
{
	switch (code) {
	case PROMPT:
		options->prompt = optarg;
		break;
	case IDS:
		options->ids = optarg;
		break;
	case TASKS:
		options->tasks = optarg;
		break;
	case LOSS:
		options->loss = optarg;
		break;
	case LOGITS:
		options->logits = optarg;
		break;
	case COMPARE:
		options->compare = optarg;
		break;
	case BENCH:
		options->bench = 1;
		break;
	case BACKEND:
		options->backend = optarg;
		break;
	case INPUT_TYPE:
		options->type = parse_type(optarg);
		break;
	case ACTIVATIONS:
		options->activations = optarg;
		break;
	case PROBLEM:
		options->problem = optarg;
		break;
	case BATCH:
		options->batch = parse_count("batch", optarg);
		break;
	case LIMIT:
		options->limit = parse_count("limit", optarg);
		break;
	case MAX_TOKENS:
		options->most = parse_count("max-tokens", optarg);
		break;
	case CHUNK:
		options->chunk = parse_count("chunk", optarg);
		break;
	case THREADS:
		options->threads = parse_count("threads", optarg);
		break;
	case CONFIG:
		options->config = optarg;
		break;
	case PLUGIN_DIR:
		options->plugin_dir = optarg;
		break;
	case JSON:
		options->json = 1;
		break;
	case HELP:
		fputs(usage, stdout);
		exit(LM_DONE);
	case VERSION:
		printf("moek-lm %s\n", moek_version());
		exit(LM_DONE);
	default:
		fputs("try moek-lm --help\n", stderr);
		exit(LM_USAGE);
	}
}

static struct options parse(int argc, char **argv)
{
	struct options options = { .type = MOEK_F32, .chunk = 1024 };
	int code, commands, texts;

	while ((code = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		parse_option(&options, code);
	if (argc - optind != 1)
		lm_stop(LM_USAGE, "give one checkpoint; try moek-lm --help");
	options.checkpoint = argv[optind];
	texts = (options.prompt != NULL) + (options.ids != NULL) +
	        (options.loss != NULL);
	commands = (options.tasks != NULL) + (options.logits != NULL) + options.bench;
	if (options.compare != NULL ? texts != 1 || commands != 0
	                            : texts + commands != 1)
		lm_stop(LM_USAGE, "give one command; try moek-lm --help");
	if (options.batch > 0 && options.tasks == NULL)
		lm_stop(LM_USAGE, "--batch goes with --tasks");
	if (options.limit > 0 && options.tasks == NULL && options.loss == NULL)
		lm_stop(LM_USAGE, "--limit goes with --tasks and --loss");
	if (options.most > 0 && options.prompt == NULL && options.ids == NULL)
		lm_stop(LM_USAGE, "--max-tokens goes with --prompt and --ids");
	return options;
}

/* ---- libmoek ---- */

static void print_log(void *self, uint32_t level, const char *text)
{
	(void)self;
	if (level <= 4)
		fprintf(stderr, "moek-lm: %s\n", text);
}

static struct moek_registry *open_registry(const struct options *options)
{
	const char *folders[] = { options->plugin_dir, NULL };
	struct moek_registry_options wanted = {
		.struct_size = MOEK_INIT(REGISTRY_OPTIONS),
		.threads = (uint32_t)options->threads,
		.config_file = options->config,
		.plugin_dirs = folders,
		.log = print_log,
	};
	struct moek_registry *registry = NULL;
	struct moek_error error;

	lm_must(moek_registry_open(&wanted, &registry, &error), &error);
	return registry;
}

static struct lm_experts *open_experts(const struct options *options,
                                       struct moek_registry *registry,
                                       const struct lm_model *model,
                                       const char *request)
{
	const char *activations = options->activations, *problem = options->problem;
	const char *group = activations != NULL && strcmp(activations, "int8") == 0
	                            ? "32" /* columns that share a scale */
	                            : "0";
	size_t bytes = (activations != NULL ? strlen(activations) : 0) +
	               (problem != NULL ? strlen(problem) : 0) + 64;
	char *change = lm_allocate(bytes, 1);
	struct lm_experts_options wanted = { request, NULL, options->type,
		                             options->chunk };
	struct lm_experts *experts;

	if (activations != NULL)
		snprintf(change, bytes, "activations=%s,activations_group=%s%s",
		         activations, group, problem != NULL ? "," : "");
	if (problem != NULL)
		strcat(change, problem);
	if (change[0] != '\0')
		wanted.change = change;
	experts = lm_experts_open(registry, model->checkpoint, &wanted);
	free(change);
	return experts;
}

/* ---- commands ---- */

static struct lm_text read_prompt(const struct options *options,
                                  const struct lm_model *model)
{
	struct lm_text text;

	if (options->ids != NULL)
		text.ids = lm_tokens_parse(model, options->ids, &text.count);
	else
		text.ids = lm_tokens(model, options->prompt, strlen(options->prompt),
		                     &text.count);
	if (text.count + (options->most > 0 ? options->most : 1) > model->context)
		lm_stop(LM_BAD_INPUT,
		        "%zu tokens of prompt and %zu of answer, the context is %zu",
		        text.count, options->most > 0 ? options->most : 1,
		        model->context);
	return text;
}

static void print_byte(uint32_t id)
{
	putchar((int)id);
	fflush(stdout);
}

static void print_id(uint32_t id)
{
	printf("%u ", id);
	fflush(stdout);
}

static void print_answer_json(const struct lm_request *request,
                              const struct lm_runner *runner, int is_text)
{
	printf("{\"backend\": ");
	lm_print_json(lm_experts_backend(runner->experts));
	printf(", \"answer\": ");
	if (is_text) {
		char *text = lm_allocate(request->answer_count + 1, 1);

		for (size_t i = 0; i < request->answer_count; i++)
			text[i] = (char)request->answer[i];
		lm_print_json(text);
		free(text);
	} else {
		for (size_t i = 0; i < request->answer_count; i++)
			printf("%c%u", i > 0 ? ',' : '[', request->answer[i]);
		putchar(']');
	}
	printf(", \"tokens_per_second\": %.1f, \"share_in_experts\": %.3f}\n",
	       (double)runner->tokens / runner->seconds,
	       runner->experts->seconds / runner->seconds);
}

static void answer(const struct options *options, const struct lm_model *model,
                   struct lm_experts *experts)
{
	int is_text = options->prompt != NULL;
	struct lm_text text = read_prompt(options, model);
	size_t room = model->context - text.count;
	size_t most = options->most > 0 ? options->most : room < 64 ? room : 64;
	struct lm_runner *runner = lm_runner_open(model, experts, 1, text.count + most);
	struct lm_request request = {
		.prompt = text.ids,
		.prompt_count = text.count,
		.most = most,
		.end = is_text ? '\n' : UINT32_MAX,
		.answer = lm_allocate(most, sizeof(uint32_t)),
		.token = options->json ? NULL
		         : is_text     ? print_byte
		                       : print_id,
	};

	lm_serve(runner, &request, 1, 1);
	if (options->json) {
		print_answer_json(&request, runner, is_text);
	} else {
		if (request.answer[request.answer_count - 1] != request.end)
			putchar('\n');
		fflush(stdout);
		fprintf(stderr, "%s: %zu tokens, %.0f tokens/s, %.0f%% in experts\n",
		        lm_experts_backend(experts), runner->tokens,
		        (double)runner->tokens / runner->seconds,
		        100 * experts->seconds / runner->seconds);
	}
	free(request.answer);
	free(text.ids);
	lm_runner_close(runner);
}

/* "a,b" -> "require a" and "require b" */
static void split(const char *names, char requests[2][128])
{
	const char *comma = strchr(names, ',');

	if (comma == NULL || strchr(comma + 1, ',') != NULL || comma == names ||
	    comma[1] == '\0' || strlen(names) > 100)
		lm_stop(LM_USAGE, "--compare: \"%s\", must be two backends: a,b",
		        names);
	snprintf(requests[0], 128, "require %.*s", (int)(comma - names), names);
	snprintf(requests[1], 128, "require %s", comma + 1);
}

static void compare(const struct options *options, struct moek_registry *registry,
                    const struct lm_model *model)
{
	struct lm_experts *pair[2];
	struct lm_text text;
	char requests[2][128];

	split(options->compare, requests);
	if (options->loss != NULL) {
		size_t bytes, windows = options->limit > 0 ? options->limit : 1;
		char *bytes_of = lm_read(options->loss, &bytes);

		bytes = bytes < windows * 256 ? bytes : windows * 256;
		bytes = bytes < model->context ? bytes : model->context - 1;
		text.ids = lm_tokens(model, bytes_of, bytes, &text.count);
		free(bytes_of);
	} else {
		text = read_prompt(options, model);
	}
	pair[0] = open_experts(options, registry, model, requests[0]);
	pair[1] = open_experts(options, registry, model, requests[1]);
	lm_compare(model, pair, &text, options->json);
	lm_experts_close(pair[0]);
	lm_experts_close(pair[1]);
	free(text.ids);
}

static int run(const struct options *options, const struct lm_model *model,
               struct lm_experts *experts)
{
	struct lm_score_options score = { options->tasks != NULL ? options->tasks
		                                                 : options->loss,
		                          options->limit, options->batch,
		                          options->json };

	if (options->tasks != NULL)
		lm_score_tasks(model, experts, &score);
	else if (options->loss != NULL)
		lm_score_loss(model, experts, &score);
	else if (options->bench)
		lm_bench(model, experts, &score);
	else if (options->logits != NULL)
		return lm_check_logits(model, experts, options->logits, options->json)
		               ? LM_DONE
		               : LM_WRONG;
	else
		answer(options, model, experts);
	return LM_DONE;
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	struct moek_registry *registry = open_registry(&options);
	struct lm_model *model = lm_model_open(registry, options.checkpoint);
	int code = LM_DONE;

	if (options.compare != NULL) {
		compare(&options, registry, model);
	} else {
		struct lm_experts *experts = open_experts(&options, registry, model,
		                                          options.backend);

		code = run(&options, model, experts);
		lm_experts_close(experts);
	}
	lm_model_close(model);
	moek_registry_close(registry);
	return code;
}
