/* SPDX-License-Identifier: MIT */
/*
 * How near plugins/cpu comes to the limits of this machine:
 *
 *     cpu_bench [SHAPE SCHEME [TOKENS [THREADS [MODES [REPETITIONS]]]]]
 *
 * SHAPE qwen3 gptoss mixtral; SCHEME int4 (group 32) or mxfp4; TOKENS and THREADS are
 * lists "1,16,256"; MODES a list of LEVEL or LEVEL:int8, "avx512bf16,avx512vnni:int8".
 *
 * The machine is shared: before each repetition the program waits until a short probe
 * finds the wanted cores free, and measures read bandwidth; a repetition counts only
 * when its threads got 93 % of the time. Modes are interleaved. Weights are read from
 * memory: each repetition draws new experts from more than four times the last cache.
 * Printed are the medians of time, of its share of the bandwidth probed just before,
 * and of the best peak of the arithmetic that the mode uses.
 */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <moek/formats.h>
#include "core/memory.h"
#include "core/threads.h"
#include "plugins/cpu/cpu.h"

extern const struct moek_plugin moek_plugin_v1;

#define PROBE_BYTES ((uint64_t)256 << 20)
#define SLICE_BYTES ((uint64_t)32 << 20)
#define MOST_REPETITIONS 1000
#define MOST_MODES 8

static uint64_t seed = 88172645463325252u;

static uint64_t random_bits(void)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return seed * UINT64_C(0x2545f4914f6cdd1d);
}

static double clock_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), by_size);
	return count == 0 ? 0 : values[count / 2];
}

/* ---- probes ---- */

static uint8_t *probe_memory;
static volatile uint64_t sink;

/* A short piece of the probe's memory, another one each time. */
struct slice {
	uint64_t at, parts;
};

static void read_part(void *arg, uint64_t i, uint32_t worker)
{
	const struct slice *slice = arg;
	uint64_t bytes = SLICE_BYTES / slice->parts, k;
	const uint8_t *from = probe_memory + slice->at + i * bytes;
	typedef uint64_t wide __attribute__((vector_size(64), aligned(64)));
	const wide *lines = (const void *)from;
	wide a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

	(void)worker;
	for (k = 0; k < bytes / 64; k += 4) {
		a ^= lines[k];
		b ^= lines[k + 1];
		c ^= lines[k + 2];
		d ^= lines[k + 3];
	}
	a ^= b ^ c ^ d;
	sink = a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

static double best_read[9]; /* by worker count */

/* GB/s by the clock, and by the processor time that the threads got. */
static double probe_read(const struct moek_workers *workers, double *cpu_rate_out)
{
	static uint64_t at;
	struct slice slice = { at, workers->count };
	double start = clock_of(CLOCK_MONOTONIC);
	double cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID), rate;

	at = (at + SLICE_BYTES) % PROBE_BYTES;
	moek_parallel_for(workers, slice.parts, read_part, &slice);
	rate = (double)SLICE_BYTES / (clock_of(CLOCK_MONOTONIC) - start) / 1e9;
	cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	*cpu_rate_out = (double)SLICE_BYTES / (cpu / workers->count) / 1e9;
	if (rate > best_read[workers->count])
		best_read[workers->count] = rate;
	return rate;
}

/* Twelve chains of one instruction; operations of one instruction are `ops`. */
#define PEAK(name, instruction)                                                        \
	static void name(void *arg, uint64_t i, uint32_t worker)                       \
	{                                                                              \
		uint64_t loops = *(const uint64_t *)arg;                               \
		(void)i;                                                               \
		(void)worker;                                                          \
		__asm__ volatile(                                                      \
			"vpxorq %%zmm30,%%zmm30,%%zmm30\n"                             \
			"vpxorq %%zmm31,%%zmm31,%%zmm31\n"                             \
			"1:\n" instruction "0\n" instruction "1\n" instruction         \
			"2\n" instruction "3\n" instruction "4\n" instruction          \
			"5\n" instruction "6\n" instruction "7\n" instruction          \
			"8\n" instruction "9\n" instruction "10\n" instruction "11\n"  \
			"dec %0\n"                                                     \
			"jnz 1b\n"                                                     \
			: "+r"(loops)::"cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",   \
			  "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");   \
	}
PEAK(peak_int8, "vpdpbusd %%zmm30,%%zmm31,%%zmm")
PEAK(peak_bf16, "vdpbf16ps %%zmm30,%%zmm31,%%zmm")
PEAK(peak_f32, "vfmadd231ps %%zmm30,%%zmm31,%%zmm")

static double peak(const struct moek_workers *workers, uint32_t arithmetic)
{
	static void (*const bodies[ARITHMETICS])(void *, uint64_t, uint32_t) = {
		[BY_F32] = peak_f32, [BY_BF16] = peak_bf16, [BY_INT8] = peak_int8
	};
	static const double ops[ARITHMETICS] = {
		[BY_F32] = 32, [BY_BF16] = 64, [BY_INT8] = 128
	};
	uint64_t loops = 50000;
	double start = clock_of(CLOCK_MONOTONIC);

	moek_parallel_for(workers, workers->count, bodies[arithmetic], &loops);
	return (double)loops * 12 * ops[arithmetic] * workers->count /
	       (clock_of(CLOCK_MONOTONIC) - start) / 1e9;
}

static double best_peak[9][ARITHMETICS]; /* by worker count */

/* Wait for free cores, two seconds at most. */
static void gate(const struct moek_workers *workers, uint32_t arithmetic)
{
	const struct timespec ten_ms = { 0, 10000000 };
	double *best = &best_peak[workers->count][arithmetic], now;
	int i;

	for (i = 0; i < 200; i++) {
		now = peak(workers, arithmetic);
		if (now > *best)
			*best = now;
		if (now > 0.85 * *best)
			return;
		nanosleep(&ten_ms, NULL);
	}
}

/* ---- layers ---- */

struct mode {
	char name[40];
	const struct moek_experts *experts;
	struct moek_problem problem;
	uint32_t arithmetic;
	void *weights, *layer;
	void *memory[MOEK_MAX_BUFFERS];
	uint32_t buffers;
	double ms[MOST_REPETITIONS], read[MOST_REPETITIONS], compute[MOST_REPETITIONS];
	double bytes[MOST_REPETITIONS];
	int counted;
	/* the same by processor time, for a machine that is never quiet; all
	 * repetitions */
	double cpu_ms[MOST_REPETITIONS], cpu_read[MOST_REPETITIONS];
	double flop;
	int all;
};

static const struct {
	const char *name;
	uint64_t experts, top_k, hidden, intermediate;
} shapes[] = {
	{ "qwen3", 128, 8, 2048, 768 },
	{ "gptoss", 32, 4, 2880, 2880 },
	{ "mixtral", 8, 2, 4096, 14336 },
};

static void fail(const char *text)
{
	fprintf(stderr, "cpu_bench: %s\n", text);
	exit(1);
}

static struct moek_matrix random_matrix(const struct moek_scheme *scheme, uint64_t rows,
                                        uint64_t columns)
{
	uint64_t groups = columns / 32, i;
	uint8_t *codes = malloc(rows * columns / 2);
	uint8_t *scales = malloc(rows * groups * 2);
	float *bias = calloc(rows, sizeof(float));

	if (codes == NULL || scales == NULL || bias == NULL)
		fail("no memory");
	for (i = 0; i < rows * columns / 2; i++)
		codes[i] = (uint8_t)random_bits();
	for (i = 0; i < rows * groups; i++)
		if (scheme->weight == MOEK_MXFP4)
			scales[i] = (uint8_t)(120 + random_bits() % 2);
		else
			((uint16_t *)(void *)scales)[i] = moek_f16_from_f32(
				0.004f + (float)(random_bits() % 256) / 65536.0f);
	return (struct moek_matrix){
		.struct_size = MOEK_MATRIX_SIZE_1_0,
		.weight = scheme->weight,
		.rows = rows,
		.columns = columns,
		.group_size = 32,
		.codes = codes,
		.scales = scales,
		.bias = bias,
		.scale = scheme->scale,
	};
}

/* One random expert, copied to the places of all others. */
static void load(struct mode *mode, const struct moek_problem *problem,
                 const struct moek_expert *expert, uint32_t most_workers)
{
	struct moek_device device = { .struct_size = MOEK_DEVICE_SIZE_1_0 };
	struct moek_buffer buffers[MOEK_MAX_BUFFERS];
	uint64_t align, total, each, i;
	int32_t count;

	mode->problem = *problem;
	total = mode->experts->prepared_size(NULL, &mode->problem, &align);
	each = total / problem->experts_local;
	mode->weights = moek_memory_alloc(total, align);
	if (mode->weights == NULL ||
	    mode->experts->create(NULL, &device, &mode->problem, mode->weights,
	                          &mode->layer))
		fail("cannot make the layer");
	if (mode->experts->load_expert(mode->layer, 0, expert) != MOEK_OK)
		fail("cannot load an expert");
	for (i = 1; i < problem->experts_local; i++)
		memcpy((uint8_t *)mode->weights + i * each, mode->weights, each);
	count = mode->experts->workspace_shapes(NULL, &mode->problem,
	                                        problem->max_tokens, most_workers,
	                                        buffers, MOEK_MAX_BUFFERS);
	mode->buffers = (uint32_t)count;
	for (i = 0; i < (uint64_t)count; i++) {
		uint64_t bytes = buffers[i].elements *
		                 (buffers[i].type == MOEK_U8 ? 1 : 4) *
		                 (buffers[i].per_worker ? most_workers : 1);

		mode->memory[i] = moek_memory_alloc(bytes + 64, 64);
		if (mode->memory[i] == NULL)
			fail("no memory");
		memset(mode->memory[i], 0, bytes);
	}
}

/* Distinct experts of each token; how many different ones there are. */
static uint64_t route(const struct moek_problem *problem, uint64_t tokens, int32_t *ids)
{
	uint8_t hit[256] = { 0 };
	uint64_t t, k, j, count = 0;

	for (t = 0; t < tokens; t++)
		for (k = 0; k < problem->top_k; k++) {
			int32_t *row = ids + t * problem->top_k;

			do {
				row[k] = (int32_t)(random_bits() % problem->experts);
				for (j = 0; j < k && row[j] != row[k]; j++)
					;
			} while (j < k);
			count += !hit[row[k]];
			hit[row[k]] = 1;
		}
	return count;
}

static void repeat(struct mode *mode, const struct moek_workers *workers,
                   uint64_t tokens, struct moek_batch *batch)
{
	const struct moek_problem *p = &mode->problem;
	uint64_t align, hit = route(p, tokens, (int32_t *)(uintptr_t)batch->topk_ids);
	double bytes = (double)mode->experts->prepared_size(NULL, p, &align) /
	               (double)p->experts * (double)hit;
	double flop = 6.0 * (double)(p->hidden * p->intermediate * tokens * p->top_k);
	double read, cpu_read, wall, cpu;

	gate(workers, mode->arithmetic);
	read = probe_read(workers, &cpu_read);
	mode->flop = flop;
	batch->buffers = mode->memory;
	batch->buffer_count = mode->buffers;
	batch->workers = workers;
	batch->input.rows = batch->output.rows = tokens;
	wall = clock_of(CLOCK_MONOTONIC);
	cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
	if (mode->experts->forward(mode->layer, batch) != MOEK_OK)
		fail("forward failed");
	cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	wall = clock_of(CLOCK_MONOTONIC) - wall;
	if (mode->all < MOST_REPETITIONS) {
		mode->cpu_ms[mode->all] = cpu / workers->count * 1e3;
		mode->cpu_read[mode->all++] = bytes / (cpu / workers->count) / 1e9 /
		                              cpu_read;
	}
	if (cpu < 0.93 * wall * workers->count || mode->counted == MOST_REPETITIONS)
		return;
	mode->ms[mode->counted] = wall * 1e3;
	mode->read[mode->counted] = bytes / wall / 1e9 / read;
	mode->bytes[mode->counted] = bytes / wall / 1e9;
	mode->compute[mode->counted++] = flop / wall / 1e9;
}

static void measure(struct mode *modes, int count, uint32_t threads, uint64_t tokens,
                    int repetitions, struct moek_batch *batch)
{
	struct moek_threads *pool;
	const struct moek_workers *workers;
	int i, r;

	if (moek_threads_create(threads, &pool, NULL) != MOEK_OK)
		fail("no threads");
	workers = moek_threads_workers(pool);
	for (i = 0; i < count; i++) {
		modes[i].counted = 0;
		for (r = 0; r < 5; r++)
			gate(workers, modes[i].arithmetic);
		repeat(&modes[i], workers, tokens, batch); /* warm */
		modes[i].counted = 0;
		modes[i].all = 0;
	}
	for (r = 0; r < 3 * repetitions; r++)
		for (i = 0; i < count; i++)
			if (modes[i].counted < repetitions)
				repeat(&modes[i], workers, tokens, batch);
	for (i = 0; i < count; i++) {
		struct mode *m = &modes[i];
		double gflops = median(m->compute, m->counted);
		double cpu_ms = median(m->cpu_ms, m->all);

		printf("%-20s %6llu %7u %9.3f %8.1f %7.2f %9.0f %7.3f %8d | %8.3f "
		       "%7.2f %7.3f\n",
		       m->name, (unsigned long long)tokens, threads,
		       median(m->ms, m->counted), median(m->bytes, m->counted),
		       median(m->read, m->counted), gflops,
		       gflops / best_peak[threads][m->arithmetic], m->counted, cpu_ms,
		       median(m->cpu_read, m->all),
		       m->flop / cpu_ms / 1e6 / best_peak[threads][m->arithmetic]);
		fflush(stdout);
	}
	moek_threads_destroy(pool);
}

/* ---- kernels alone, in the cache ---- */

static double kernel_rate(const struct kernels *kernels, uint32_t arithmetic,
                          struct panel *panel, uint32_t count)
{
	double best = 0;
	int i, k;

	for (i = 0; i < 300; i++) {
		double time = clock_of(CLOCK_THREAD_CPUTIME_ID);

		for (k = 0; k < 20; k++)
			kernels->panel[arithmetic][panel->layout->format][count - 1](
				panel);
		time = clock_of(CLOCK_THREAD_CPUTIME_ID) - time;
		if (best == 0 || time < best)
			best = time;
	}
	return 20.0 * 2 * ROWS * (double)panel->layout->columns * count / best / 1e9;
}

static void bench_kernels(void)
{
	static const char *const schemes[] = { "int4", "int4 g128", "int4 zeros",
		                               "int4 g16", "mxfp4" };
	uint32_t scheme, arithmetic, count, t;
	int level;
	uint64_t one = 50000;
	uint8_t *memory = moek_memory_alloc(1 << 20, 64);
	struct panel panel = { 0 };
	struct plan plan;

	if (memory == NULL)
		fail("no memory");
	memset(memory, 0x3c, 1 << 20);
	for (arithmetic = 0; arithmetic < ARITHMETICS; arithmetic++) {
		static const double ops[] = { 32, 64, 128 };
		double best = 0, time;
		int i;

		for (i = 0; i < 300; i++) {
			time = clock_of(CLOCK_THREAD_CPUTIME_ID);
			(arithmetic == BY_F32    ? peak_f32
			 : arithmetic == BY_BF16 ? peak_bf16
			                         : peak_int8)(&one, 0, 0);
			time = clock_of(CLOCK_THREAD_CPUTIME_ID) - time;
			best = best == 0 || time < best ? time : best;
		}
		best_peak[1][arithmetic] = 12.0 * (double)one * ops[arithmetic] / best /
		                           1e9;
	}
	printf("share of peak at 1, 2, 3, 4 rows; peaks: fp32 %.0f, bf16 %.0f GFLOP/s, "
	       "int8 "
	       "%.0f Gop/s\n",
	       best_peak[1][0], best_peak[1][1], best_peak[1][2]);
	for (level = LEVELS - 1; level >= 0; level--)
		for (scheme = 0; scheme < 5; scheme++)
			for (arithmetic = 0; arithmetic < ARITHMETICS; arithmetic++) {
				struct moek_problem p = { .hidden = 2048,
					                  .intermediate = 2048,
					                  .experts_local = 1,
					                  .gated = 1 };
				const struct kernels *kernels = cpu_kernels(level);

				p.gate_up = (struct moek_scheme){
					.weight = scheme == 4 ? MOEK_MXFP4 : MOEK_INT4,
					.scale = scheme == 4 ? MOEK_E8M0 : MOEK_F16,
					.group_size = scheme == 1   ? 128
					              : scheme == 3 ? 16
					                            : 32,
					.zero_points = scheme == 2,
				};
				p.down = p.gate_up;
				if (!cpu_plan(&p, &plan) ||
				    kernels->panel[arithmetic][plan.gate_up.format]
				                  [0] == NULL)
					continue;
				panel.layout = &plan.gate_up;
				panel.weights = memory;
				for (t = 0; t < TILE; t++)
					panel.rows[t] = memory + (512 << 10) +
					                t * 16448;
				printf("%-11s %-10s %s", cpu_level_names[level],
				       schemes[scheme],
				       arithmetic == 0   ? "fp32"
				       : arithmetic == 1 ? "bf16"
				                         : "int8");
				for (count = 1; count <= TILE; count++)
					printf(" %6.3f",
					       kernel_rate(kernels, arithmetic, &panel,
					                   count) /
					               best_peak[1][arithmetic]);
				printf("\n");
			}
	moek_memory_free(memory);
}

static int parse_modes(char *text, struct mode *modes)
{
	const struct moek_experts *const *experts;
	int count = 0;
	char *word;

	for (word = strtok(text, ","); word != NULL; word = strtok(NULL, ",")) {
		struct mode *mode = &modes[count++];
		char *int8 = strstr(word, ":int8");
		int level = LEVELS - 1;

		snprintf(mode->name, sizeof(mode->name), "%s", word);
		if (int8 != NULL)
			*int8 = '\0';
		while (level > 0 && strcmp(cpu_level_names[level], word) != 0)
			level--;
		experts = moek_plugin_v1.experts;
		while (strcmp((*experts)->name, cpu_level_names[level]) != 0)
			experts++;
		mode->experts = *experts;
		mode->arithmetic = int8 != NULL                ? BY_INT8
		                   : level == LEVEL_AVX512BF16 ? BY_BF16
		                                               : BY_F32;
		if (count == MOST_MODES)
			break;
	}
	return count;
}

static int parse_numbers(const char *text, uint64_t *numbers)
{
	int count = 0;
	char *end;

	while (count < 16 && *text != '\0') {
		numbers[count++] = strtoull(text, &end, 10);
		text = *end == ',' ? end + 1 : end;
	}
	return count;
}

int main(int argc, char **argv)
{
	static struct mode modes[MOST_MODES];
	char default_modes[] = "avx512bf16,avx512bf16:int8";
	const char *shape = argc > 1 ? argv[1] : "qwen3";
	const char *scheme_name = argc > 2 ? argv[2] : "int4";
	uint64_t tokens[16], threads[16], most_tokens = 1, most_threads = 1;
	int token_count = parse_numbers(argc > 3 ? argv[3] : "1,16,256", tokens);
	int thread_count = parse_numbers(argc > 4 ? argv[4] : "1,2", threads);
	int mode_count = parse_modes(argc > 5 ? argv[5] : default_modes, modes);
	int repetitions = argc > 6 ? atoi(argv[6]) : 15;
	struct moek_scheme scheme = { .weight = MOEK_INT4,
		                      .scale = MOEK_F16,
		                      .group_size = 32 };
	struct moek_problem problem = { .struct_size = MOEK_PROBLEM_SIZE_1_0,
		                        .input_type = MOEK_BF16,
		                        .output_type = MOEK_BF16,
		                        .activation = MOEK_SILU,
		                        .gated = 1,
		                        .shards = 1 };
	struct moek_batch batch = { .struct_size = MOEK_BATCH_SIZE_1_0 };
	struct moek_expert expert;
	uint64_t s = 0, i;
	int a, b;
	uint16_t *input;
	float *weights;

	if (cpu_level_here() < LEVEL_AVX512BF16)
		fail("the probes need AVX-512 with bf16");
	if (strcmp(shape, "kernels") == 0) {
		bench_kernels();
		return 0;
	}
	while (s < 2 && strcmp(shapes[s].name, shape) != 0)
		s++;
	if (strcmp(scheme_name, "mxfp4") == 0)
		scheme = (struct moek_scheme){ .weight = MOEK_MXFP4,
			                       .scale = MOEK_E8M0,
			                       .group_size = 32,
			                       .bias = 1 };
	for (a = 0; a < token_count; a++)
		most_tokens = tokens[a] > most_tokens ? tokens[a] : most_tokens;
	for (a = 0; a < thread_count; a++)
		most_threads = threads[a] > most_threads ? threads[a] : most_threads;
	if (most_threads > 8)
		fail("at most 8 threads");
	problem.experts = problem.experts_local = shapes[s].experts;
	problem.top_k = shapes[s].top_k;
	problem.hidden = shapes[s].hidden;
	problem.intermediate = shapes[s].intermediate;
	problem.max_tokens = most_tokens;
	problem.gate_up = problem.down = scheme;
	if (s == 1) {
		problem.activation = MOEK_SWIGLU_OAI;
		problem.alpha = 1.702f;
		problem.beta = 1;
		problem.limit = 7;
	}
	expert.gate = random_matrix(&scheme, problem.intermediate, problem.hidden);
	expert.up = random_matrix(&scheme, problem.intermediate, problem.hidden);
	expert.down = random_matrix(&scheme, problem.hidden, problem.intermediate);
	for (a = 0; a < mode_count; a++) {
		struct moek_problem p = problem;

		if (modes[a].arithmetic == BY_INT8) {
			p.activations = MOEK_A8_INT8;
			p.activations_group = 32;
		}
		load(&modes[a], &p, &expert, (uint32_t)most_threads);
	}
	probe_memory = moek_memory_alloc(PROBE_BYTES, 64);
	input = malloc(most_tokens * problem.hidden * 2);
	weights = malloc(most_tokens * problem.top_k * sizeof(float));
	batch.topk_ids = malloc(most_tokens * problem.top_k * sizeof(int32_t));
	batch.output.data = malloc(most_tokens * problem.hidden * 2);
	if (probe_memory == NULL || input == NULL || weights == NULL ||
	    batch.topk_ids == NULL || batch.output.data == NULL)
		fail("no memory");
	memset(probe_memory, 1, PROBE_BYTES);
	for (i = 0; i < most_tokens * problem.hidden; i++)
		input[i] = moek_bf16_from_f32(
			(float)(random_bits() >> 40) / 8388608.0f - 1);
	for (i = 0; i < most_tokens * problem.top_k; i++)
		weights[i] = 1.0f / (float)problem.top_k;
	batch.topk_weights = weights;
	batch.input = (struct moek_rows){ input, 0, problem.hidden, 0, MOEK_BF16, 0 };
	batch.output = (struct moek_rows){ batch.output.data, 0, problem.hidden, 0,
		                           MOEK_BF16,         0 };
	printf("%s %s\n%-20s %6s %7s %9s %8s %7s %9s %7s %8s | %8s %7s %7s\n",
	       shapes[s].name, scheme_name, "mode", "tokens", "threads", "ms", "GB/s",
	       "of read", "GFLOP/s", "of peak", "counted", "cpu ms", "of read",
	       "of peak");
	for (a = 0; a < thread_count; a++) {
		for (b = 0; b < token_count; b++)
			measure(modes, mode_count, (uint32_t)threads[a], tokens[b],
			        repetitions, &batch);
		printf("best probes, %llu threads: read %.1f GB/s,",
		       (unsigned long long)threads[a], best_read[threads[a]]);
		printf(" fp32 %.0f, bf16 %.0f GFLOP/s, int8 %.0f Gop/s\n",
		       best_peak[threads[a]][BY_F32], best_peak[threads[a]][BY_BF16],
		       best_peak[threads[a]][BY_INT8]);
	}
	return 0;
}
