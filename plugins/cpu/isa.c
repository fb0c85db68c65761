/* SPDX-License-Identifier: MIT */
/* Which instruction sets this machine has: from words, and from the CPU itself. */
#define _GNU_SOURCE /* syscall() */
#include "cpu.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

const char *const cpu_level_names[LEVELS] = { "plain",      "avx2",       "avxvnni",
	                                      "avx512vnni", "avx512bf16", "amx" };

extern const struct kernels cpu_kernels_plain;
#ifdef CPU_AVX2
extern const struct kernels cpu_kernels_avx2;
#endif
#ifdef CPU_AVXVNNI
extern const struct kernels cpu_kernels_avxvnni;
#endif
#ifdef CPU_AVX512VNNI
extern const struct kernels cpu_kernels_avx512vnni;
#endif
#ifdef CPU_AVX512BF16
extern const struct kernels cpu_kernels_avx512bf16;
#endif
#ifdef CPU_AMX
extern const struct kernels cpu_kernels_amx;
#endif

const struct kernels *cpu_kernels(enum level level)
{
	switch (level) {
	case LEVEL_PLAIN:
		return &cpu_kernels_plain;
#ifdef CPU_AVX2
	case LEVEL_AVX2:
		return &cpu_kernels_avx2;
#endif
#ifdef CPU_AVXVNNI
	case LEVEL_AVXVNNI:
		return &cpu_kernels_avxvnni;
#endif
#ifdef CPU_AVX512VNNI
	case LEVEL_AVX512VNNI:
		return &cpu_kernels_avx512vnni;
#endif
#ifdef CPU_AVX512BF16
	case LEVEL_AVX512BF16:
		return &cpu_kernels_avx512bf16;
#endif
#ifdef CPU_AMX
	case LEVEL_AMX:
		return &cpu_kernels_amx;
#endif
	default:
		return NULL;
	}
}

static int has_word(const char *words, const char *word)
{
	size_t length = strlen(word);
	const char *at;

	for (at = strstr(words, word); at != NULL; at = strstr(at + 1, word))
		if ((at == words || at[-1] == ' ') &&
		    (at[length] == ' ' || at[length] == '\0'))
			return 1;
	return 0;
}

static int has_words(const char *words, const char *const *needed)
{
	for (; *needed != NULL; needed++)
		if (!has_word(words, *needed))
			return 0;
	return 1;
}

/* Which level each one builds on. */
static const enum level base[LEVELS] = {
	[LEVEL_AVX2] = LEVEL_PLAIN,      [LEVEL_AVXVNNI] = LEVEL_AVX2,
	[LEVEL_AVX512VNNI] = LEVEL_AVX2, [LEVEL_AVX512BF16] = LEVEL_AVX512VNNI,
	[LEVEL_AMX] = LEVEL_AVX512BF16,
};

/* Of what levels have by themselves, those whose bases are there, too. */
static uint32_t with_bases(const int has[LEVELS])
{
	uint32_t levels = 1u << LEVEL_PLAIN, level;

	for (level = LEVEL_PLAIN + 1; level < LEVELS; level++)
		if (has[level] && (levels >> base[level] & 1) != 0)
			levels |= 1u << level;
	return levels;
}

uint32_t cpu_levels_of_words(const char *features)
{
	static const char *const needed[LEVELS][6] = {
		[LEVEL_AVX2] = { "avx2", "fma", "f16c" },
		[LEVEL_AVXVNNI] = { "avx_vnni" },
		[LEVEL_AVX512VNNI] = { "avx512f", "avx512bw", "avx512vl", "avx512dq",
		                       "avx512_vnni" },
		[LEVEL_AVX512BF16] = { "avx512_bf16" },
		[LEVEL_AMX] = { "amx_tile", "amx_bf16" },
	};
	int has[LEVELS];

	for (int level = 0; level < LEVELS; level++)
		has[level] = features != NULL && has_words(features, needed[level]);
	return with_bases(has);
}

#if defined(__x86_64__)
/* Which register states the operating system saves. */
static uint64_t saved_states(void)
{
	uint32_t low, high;

	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}

static int has_all(uint64_t bits, uint64_t needed)
{
	return (bits & needed) == needed;
}

uint32_t cpu_levels_here(void)
{
	const uint32_t avx = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
	const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL |
	                        bit_AVX512DQ;
	/* bits of EDX of leaf 7, of XCR0 */
	const uint32_t amx = 1u << 22 | 1u << 24;
	const uint64_t ymm = 6, zmm = 0xe6, tiles = 0x60000;
	uint32_t a = 0, b = 0, c = 0, d = 0, leaf1_c, leaf7_d, leaf7_1_a = 0;
	uint64_t states = 0;
	int has[LEVELS] = { 0 };

	if (!__get_cpuid(1, &a, &b, &leaf1_c, &d))
		return with_bases(has);
	if (has_all(leaf1_c, bit_OSXSAVE))
		states = saved_states();
	if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
		leaf7_1_a = a;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &leaf7_d))
		return with_bases(has);
	has[LEVEL_AVX2] = has_all(leaf1_c, avx) && has_all(b, bit_AVX2) &&
	                  has_all(states, ymm);
	has[LEVEL_AVXVNNI] = has_all(leaf7_1_a, 1u << 4);
	has[LEVEL_AVX512VNNI] = has_all(b, avx512) && has_all(c, bit_AVX512VNNI) &&
	                        has_all(states, zmm);
	has[LEVEL_AVX512BF16] = has_all(leaf7_1_a, bit_AVX512BF16);
	has[LEVEL_AMX] = has_all(leaf7_d, amx) && has_all(states, tiles);
	return with_bases(has);
}
#else
uint32_t cpu_levels_here(void)
{
	return 1u << LEVEL_PLAIN;
}
#endif

int cpu_ask_for_tiles(void)
{
#if defined(__x86_64__) && defined(SYS_arch_prctl)
	/* ARCH_REQ_XCOMP_PERM of Linux 5.16, for XTILEDATA: once for the process, and
	 * no matter how often */
	return syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? 0 : errno;
#else
	return ENOSYS;
#endif
}
