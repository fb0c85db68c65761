/* SPDX-License-Identifier: MIT */
/* Which instruction sets this machine has: from words, and from the CPU itself. */
#include "cpu.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

const char *const cpu_level_names[LEVELS] = { "plain", "avx2", "avx512vnni",
	                                      "avx512bf16" };

extern const struct kernels cpu_kernels_plain;
#ifdef CPU_AVX2
extern const struct kernels cpu_kernels_avx2;
#endif
#ifdef CPU_AVX512VNNI
extern const struct kernels cpu_kernels_avx512vnni;
#endif
#ifdef CPU_AVX512BF16
extern const struct kernels cpu_kernels_avx512bf16;
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
#ifdef CPU_AVX512VNNI
	case LEVEL_AVX512VNNI:
		return &cpu_kernels_avx512vnni;
#endif
#ifdef CPU_AVX512BF16
	case LEVEL_AVX512BF16:
		return &cpu_kernels_avx512bf16;
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

enum level cpu_level_of_words(const char *features)
{
	static const char *const needed[LEVELS][6] = {
		[LEVEL_AVX2] = { "avx2", "fma", "f16c" },
		[LEVEL_AVX512VNNI] = { "avx512f", "avx512bw", "avx512vl", "avx512dq",
		                       "avx512_vnni" },
		[LEVEL_AVX512BF16] = { "avx512_bf16" },
	};
	int level = LEVEL_PLAIN;

	if (features == NULL)
		return LEVEL_PLAIN;
	while (level + 1 < LEVELS && has_words(features, needed[level + 1]))
		level++;
	return (enum level)level;
}

#if defined(__x86_64__)
/* Which register states the operating system saves. */
static uint64_t saved_states(void)
{
	uint32_t low, high;

	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}

enum level cpu_level_here(void)
{
	const uint32_t avx_bits = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
	const uint32_t avx512_bits = bit_AVX512F | bit_AVX512BW | bit_AVX512VL |
	                             bit_AVX512DQ;
	const uint64_t ymm = 6, zmm = 0xe6; /* bits of XCR0 */
	uint32_t a, b, c, d, leaf7_b, leaf7_c;
	uint64_t states;

	if (!__get_cpuid(1, &a, &b, &c, &d) || (c & avx_bits) != avx_bits)
		return LEVEL_PLAIN;
	states = saved_states();
	if ((states & ymm) != ymm ||
	    !__get_cpuid_count(7, 0, &a, &leaf7_b, &leaf7_c, &d) ||
	    (leaf7_b & bit_AVX2) == 0)
		return LEVEL_PLAIN;
	if ((states & zmm) != zmm || (leaf7_b & avx512_bits) != avx512_bits ||
	    (leaf7_c & bit_AVX512VNNI) == 0)
		return LEVEL_AVX2;
	if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & bit_AVX512BF16) == 0)
		return LEVEL_AVX512VNNI;
	return LEVEL_AVX512BF16;
}
#else
enum level cpu_level_here(void)
{
	return LEVEL_PLAIN;
}
#endif
