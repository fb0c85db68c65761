/* SPDX-License-Identifier: MIT */
/*
 * The kernels of plugins/cpu alone, with weights in the cache: share of the peak of
 * their arithmetic, for 1 to 4 rows of activations. Least processor time of many. Whole
 * layers are the business of moek bench.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/memory.h"
#include "plugins/cpu/cpu.h"

static double clock_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *text)
{
	fprintf(stderr, "cpu_kernels: %s\n", text);
	exit(1);
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

/* Tiles: four sums of 16 x 16, of 64 bytes of each token. */
#define PEAK_TILES(name, instruction)                                                  \
	static void name(void *arg, uint64_t i, uint32_t worker)                       \
	{                                                                              \
		static const uint8_t config[64] __attribute__((aligned(64))) = {       \
			1,         [16] = 64, [18] = 64, [20] = 64, [22] = 64,         \
			[24] = 64, [26] = 64, [48] = 16, 16,        16,                \
			16,        16,        16                                       \
		};                                                                     \
		uint64_t loops = *(const uint64_t *)arg;                               \
		(void)i;                                                               \
		(void)worker;                                                          \
		__asm__ volatile(                                                      \
			"ldtilecfg %1\n"                                               \
			"tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n"        \
			"tilezero %%tmm3\n tilezero %%tmm4\n tilezero %%tmm5\n"        \
			"1:\n" instruction "0\n" instruction "1\n" instruction         \
			"2\n" instruction "3\n dec %0\n jnz 1b\n tilerelease\n"        \
			: "+r"(loops)                                                  \
			: "m"(config)                                                  \
			: "cc", "memory");                                             \
	}
PEAK_TILES(tiles_bf16, "tdpbf16ps %%tmm5,%%tmm4,%%tmm")

static double rate_of(void (*body)(void *arg, uint64_t i, uint32_t worker),
                      double ops_per_loop)
{
	double best = 0;
	uint64_t loops = 50000;

	for (int i = 0; i < 300; i++) {
		double time = clock_of(CLOCK_THREAD_CPUTIME_ID);

		body(&loops, 0, 0);
		time = clock_of(CLOCK_THREAD_CPUTIME_ID) - time;
		best = best == 0 || time < best ? time : best;
	}
	return ops_per_loop * (double)loops / best / 1e9;
}

static void (*kernel_of(const struct kernels *kernels, uint32_t arithmetic,
                        uint32_t format, uint32_t count))(struct panel *panel)
{
	return count <= TILE ? kernels->panel[arithmetic][format][count - 1]
	                     : kernels->many[arithmetic][format];
}

static double kernel_rate(const struct kernels *kernels, uint32_t arithmetic,
                          struct panel *panel, uint32_t count)
{
	double best = 0;
	int i, k;

	panel->count = count;
	for (i = 0; i < 300; i++) {
		double time = clock_of(CLOCK_THREAD_CPUTIME_ID);

		for (k = 0; k < 20; k++)
			kernel_of(kernels, arithmetic, panel->layout->format,
			          count)(panel);
		time = clock_of(CLOCK_THREAD_CPUTIME_ID) - time;
		if (best == 0 || time < best)
			best = time;
	}
	return 20.0 * 2 * ROWS * (double)panel->layout->columns * count / best / 1e9;
}

int main(void)
{
	static const char *const schemes[] = { "int4", "int4 g128", "int4 zeros",
		                               "int4 g16", "mxfp4" };
	uint32_t scheme, arithmetic, count, t;
	int level;
	double peaks[ARITHMETICS];
	uint8_t *memory = moek_memory_alloc(2 << 20, 64);
	struct panel panel = { 0 };
	struct plan plan;

	if ((cpu_levels_here() >> LEVEL_AVX512BF16 & 1) == 0)
		fail("the peaks need AVX-512 with bf16");
	if (memory == NULL)
		fail("no memory");
	memset(memory, 0x3c, 2 << 20);
	peaks[BY_F32] = rate_of(peak_f32, 12 * 32);
	peaks[BY_BF16] = rate_of(peak_bf16, 12 * 64);
	peaks[BY_INT8] = rate_of(peak_int8, 12 * 128);
	printf("share of peak at 1, 2, 3, 4 rows; peaks: fp32 %.0f, bf16 %.0f GFLOP/s, "
	       "int8 "
	       "%.0f Gop/s\n",
	       peaks[0], peaks[1], peaks[2]);
	if ((cpu_levels_here() >> LEVEL_AMX & 1) != 0 && cpu_ask_for_tiles() == 0)
		printf("amx: 8, 16, 32 rows, too; the peak of its tiles: bf16 %.0f "
		       "GFLOP/s\n",
		       rate_of(tiles_bf16, 4 * 16384));
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
				if (!cpu_plan(&p, &plan) || kernels == NULL ||
				    (cpu_levels_here() >> level & 1) == 0 ||
				    kernels->panel[arithmetic][plan.gate_up.format]
				                  [0] == NULL)
					continue;
				panel.layout = &plan.gate_up;
				panel.weights = memory;
				for (t = 0; t < MANY; t++)
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
					               peaks[arithmetic]);
				for (count = 8; count <= MANY; count *= 2)
					if (kernels->many[arithmetic]
					                 [plan.gate_up.format] != NULL)
						printf(" %6.3f",
						       kernel_rate(kernels, arithmetic,
						                   &panel, count) /
						               peaks[arithmetic]);
				printf("\n");
			}
	moek_memory_free(memory);
	return 0;
}
