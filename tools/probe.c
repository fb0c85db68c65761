/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/numbers.h"
#include "tools/probe.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#define LEAST_SLICE ((uint64_t)32 << 20)
#define MOST_SLICE ((uint64_t)256 << 20)
#define SLICES 8
#define LOOPS 100000 /* of a peak */
#define WAITS 25     /* of 4 ms */

const char *const limit_names[LIMITS] = { "read", "int8", "bf16", "fp32" };

typedef void body_fn(void *arg, uint64_t i, uint32_t worker);

/* ---- all workers at once, without the time it takes to wake them ---- */

#define LONGEST_GATHERING 2e-3

struct gathering {
	body_fn *body;
	void *arg;
	uint32_t count;
	double called, start, end; /* `start`: once all are there */
	_Atomic uint32_t arrived, finished, late;
};

static void gathered(void *arg, uint64_t i, uint32_t worker)
{
	struct gathering *g = arg;

	if (atomic_fetch_add(&g->arrived, 1) == g->count - 1)
		g->start = seconds_now();
	while (atomic_load(&g->arrived) < g->count && !atomic_load(&g->late))
		if (seconds_now() - g->called > LONGEST_GATHERING)
			atomic_store(&g->late, 1);
	g->body(g->arg, i, worker);
	if (atomic_fetch_add(&g->finished, 1) == g->count - 1)
		g->end = seconds_now();
}

/** Seconds that it takes to run body(arg, i) for each worker i. */
static double time_all(const struct moek_workers *workers, body_fn *body, void *arg)
{
	struct gathering g = { .body = body,
		               .arg = arg,
		               .count = workers->count,
		               .called = seconds_now() };

	workers->parallel_for(workers->self, workers->count, gathered, &g);
	return g.end - (atomic_load(&g.late) ? g.called : g.start);
}

/** The compiler may not leave out what computes *value. */
static void keep(const void *value)
{
	__asm__ volatile("" : : "r"(value) : "memory");
}

/* ---- peaks: independent chains of one instruction, enough to hide its latency ---- */

#if defined(__x86_64__)
#define CHAINS(name, before, body)                                                     \
	static void name(void *arg, uint64_t i, uint32_t worker)                       \
	{                                                                              \
		uint64_t loops = *(const uint64_t *)arg;                               \
                                                                                       \
		(void)i;                                                               \
		(void)worker;                                                          \
		__asm__ volatile(before "1:\n" body "dec %0\n"                         \
		                        "jnz 1b\n"                                     \
		                        "vzeroupper\n"                                 \
		                 : "+r"(loops)::"cc", "xmm0", "xmm1", "xmm2", "xmm3",  \
		                   "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",     \
		                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",        \
		                   "xmm15");                                           \
	}
#define TEN(a, b)                                                                      \
	a "0" b a "1" b a "2" b a "3" b a "4" b a "5" b a "6" b a "7" b a "8" b a "9" b
#define YMM_ZERO                                                                       \
	"vpxor %%ymm13,%%ymm13,%%ymm13\n"                                              \
	"vpxor %%ymm14,%%ymm14,%%ymm14\n"
CHAINS(fp32_avx2, YMM_ZERO, TEN("vfmadd231ps %%ymm13,%%ymm14,%%ymm", "\n"))
/* 32 products in words, their pairs in dwords, the sum */
CHAINS(int8_avx2, YMM_ZERO,
       TEN("vpmaddubsw %%ymm13,%%ymm14,%%ymm12\n"
           "vpmaddwd %%ymm13,%%ymm12,%%ymm12\n"
           "vpaddd %%ymm12,%%ymm14,%%ymm",
           "\n"))
#ifdef PROBE_AVX512
#define ZMM_ZERO                                                                       \
	"vpxorq %%zmm13,%%zmm13,%%zmm13\n"                                             \
	"vpxorq %%zmm14,%%zmm14,%%zmm14\n"
CHAINS(fp32_avx512, ZMM_ZERO, TEN("vfmadd231ps %%zmm13,%%zmm14,%%zmm", "\n"))
CHAINS(bf16_avx512, ZMM_ZERO, TEN("vdpbf16ps %%zmm13,%%zmm14,%%zmm", "\n"))
CHAINS(int8_avx512, ZMM_ZERO, TEN("vpdpbusd %%zmm13,%%zmm14,%%zmm", "\n"))
#endif
#endif

typedef float lanes __attribute__((vector_size(16)));

static void fp32_plain(void *arg, uint64_t i, uint32_t worker)
{
	uint64_t loops = *(const uint64_t *)arg;
	lanes sums[10] = { { 0 } };
	lanes factor = { 0.5f, 0.5f, 0.5f, 0.5f };

	(void)i;
	(void)worker;
	for (; loops > 0; loops--)
		for (int c = 0; c < 10; c++)
			sums[c] = sums[c] * factor + factor;
	for (int c = 1; c < 10; c++)
		sums[0] += sums[c];
	keep(sums);
}

struct chains {
	body_fn *body;
	double operations; /* of one loop; a multiplication and an addition are two */
};

/** The widest that this processor, and its operating system, will run. */
static struct chains find_chains(enum limit limit)
{
	struct chains chains = { 0 };

	if (limit == LIMIT_FP32)
		chains = (struct chains){ fp32_plain, 10 * 2 * 4 };
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
		if (limit == LIMIT_FP32)
			chains = (struct chains){ fp32_avx2, 10 * 2 * 8 };
		if (limit == LIMIT_INT8)
			chains = (struct chains){ int8_avx2, 10 * 2 * 32 };
	}
#ifdef PROBE_AVX512
	if (limit == LIMIT_FP32 && __builtin_cpu_supports("avx512f"))
		chains = (struct chains){ fp32_avx512, 10 * 2 * 16 };
	if (limit == LIMIT_INT8 && __builtin_cpu_supports("avx512vnni"))
		chains = (struct chains){ int8_avx512, 10 * 2 * 64 };
	if (limit == LIMIT_BF16 && __builtin_cpu_supports("avx512bf16"))
		chains = (struct chains){ bf16_avx512, 10 * 2 * 32 };
#endif
#endif
	return chains;
}

double probe_peak(struct probe *probe, enum limit limit)
{
	const struct moek_workers *workers = probe->workers;
	struct chains chains = find_chains(limit);
	uint64_t loops = LOOPS;
	double rate;

	if (chains.body == NULL)
		return 0;
	rate = chains.operations * (double)loops * workers->count /
	       time_all(workers, chains.body, &loops) / 1e9;
	if (rate > probe->best[limit])
		probe->best[limit] = rate;
	return rate;
}

void probe_wait(struct probe *probe)
{
	const struct timespec moment = { .tv_nsec = 4000000 };

	for (int i = 0; i < WAITS; i++) {
		double now = probe_peak(probe, LIMIT_FP32);

		if (now > 0.85 * probe->best[LIMIT_FP32])
			return;
		nanosleep(&moment, NULL);
	}
}

/* ---- read bandwidth ---- */

struct piece {
	const unsigned char *bytes;
	uint64_t count; /* of one task */
};

typedef uint64_t line __attribute__((vector_size(64), may_alias));

#define READ(name, attributes)                                                         \
	attributes static void name(void *arg, uint64_t i, uint32_t worker)            \
	{                                                                              \
		const struct piece *piece = arg;                                       \
		const line *lines = (const void *)(piece->bytes + i * piece->count);   \
		line a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };                       \
                                                                                       \
		(void)worker;                                                          \
		for (uint64_t k = 0; k < piece->count / 64; k += 4) {                  \
			a ^= lines[k];                                                 \
			b ^= lines[k + 1];                                             \
			c ^= lines[k + 2];                                             \
			d ^= lines[k + 3];                                             \
		}                                                                      \
		a ^= b ^ c ^ d;                                                        \
		keep(&a);                                                              \
	}
READ(read_plain, )
#if defined(__x86_64__)
READ(read_avx2, __attribute__((target("avx2"))))
#ifdef PROBE_AVX512
READ(read_avx512, __attribute__((target("avx512f"))))
#endif
#endif

static body_fn *find_reader(void)
{
#if defined(__x86_64__)
#ifdef PROBE_AVX512
	if (__builtin_cpu_supports("avx512f"))
		return read_avx512;
#endif
	if (__builtin_cpu_supports("avx2"))
		return read_avx2;
#endif
	return read_plain;
}

double probe_read(struct probe *probe, struct probe_memory *memory)
{
	const struct moek_workers *workers = probe->workers;
	/* whole groups of four lines */
	struct piece piece = { memory->bytes + memory->at,
		               memory->slice / workers->count / 256 * 256 };
	double rate = (double)(piece.count * workers->count) /
	              time_all(workers, find_reader(), &piece) / 1e9;

	memory->at = (memory->at + memory->slice) % memory->count;
	probe->reads[probe->read_count++ % RECENT] = rate;
	for (int i = 0; i < RECENT; i++)
		rate = probe->reads[i] > rate ? probe->reads[i] : rate;
	if (rate > probe->best[LIMIT_READ])
		probe->best[LIMIT_READ] = rate;
	return rate;
}

struct filling {
	unsigned char *bytes;
	uint64_t count; /* of one task */
};

static void fill(void *arg, uint64_t i, uint32_t worker)
{
	const struct filling *filling = arg;

	(void)worker;
	for (uint64_t k = 0; k < filling->count; k += 64)
		filling->bytes[i * filling->count + k] = (unsigned char)k;
}

int probe_memory_make(struct probe_memory *memory, uint64_t cache_bytes,
                      const struct moek_workers *workers)
{
	uint64_t slice = LEAST_SLICE;
	struct filling filling;
	void *bytes;

	while (slice < cache_bytes && slice < MOST_SLICE)
		slice *= 2;
	bytes = mmap(NULL, slice * SLICES, PROT_READ | PROT_WRITE,
	             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bytes == MAP_FAILED)
		return 0;
	madvise(bytes, slice * SLICES, MADV_HUGEPAGE);
	*memory = (struct probe_memory){ .bytes = bytes,
		                         .count = slice * SLICES,
		                         .slice = slice };
	filling = (struct filling){ bytes, slice };
	workers->parallel_for(workers->self, SLICES, fill, &filling);
	return 1;
}

void probe_memory_free(struct probe_memory *memory)
{
	if (memory->bytes != NULL)
		munmap(memory->bytes, memory->count);
	memory->bytes = NULL;
}
