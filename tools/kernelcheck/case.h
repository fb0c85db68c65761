/* SPDX-License-Identifier: MIT */
/* A row of cases.h, and the problem, weights and batch that are made of it. */
#ifndef KERNELCHECK_CASE_H
#define KERNELCHECK_CASE_H

#include <moek/moek.h>

enum twist {
	TWIST_ONE_EXPERT = 1 << 0,   /* every slot goes to the last expert */
	TWIST_DUPLICATES = 1 << 1,   /* a token names an expert more than once */
	TWIST_OUTSIDE = 1 << 2,      /* some ids are -1 or out of range */
	TWIST_NOBODY = 1 << 3,       /* all of them are */
	TWIST_ZERO_WEIGHTS = 1 << 4, /* some router weights are 0 */
	TWIST_STRIDE = 1 << 5,       /* rows are not adjacent */
	TWIST_MAP = 1 << 6,          /* not all experts are local */
	TWIST_ON_INPUT = 1 << 7,     /* router weights belong on the input */
	TWIST_ZERO_SCALES = 1 << 8,
	TWIST_EXTREME = 1 << 9,
	TWIST_LARGEST = 1 << 10,
	TWIST_NAN_TOKEN = 1 << 11,
	TWIST_NAN_SCALE = 1 << 12,
	TWIST_GATE_FIRST = 1 << 13, /* these three: through moek_tensors_source() */
	TWIST_UP_FIRST = 1 << 14,
	TWIST_INTERLEAVED = 1 << 15
};
#define TWIST_STACKED (TWIST_GATE_FIRST | TWIST_UP_FIRST | TWIST_INTERLEAVED)
/** Values are no longer a plain random mix, so what holds on average is not asked. */
#define TWIST_UNEVEN (TWIST_EXTREME | TWIST_LARGEST)

struct kernel_case {
	char name[64];
	struct moek_problem problem; /* max_tokens not set */
	uint64_t tokens;
	uint32_t twist;
};

uint64_t case_count(void);
void case_at(uint64_t index, struct kernel_case *case_out);
uint64_t bench_count(void);
void bench_at(uint64_t index, struct kernel_case *case_out);
/** What a random number generator thinks of, from @seed alone (random.c). */
void case_random(uint64_t seed, struct kernel_case *case_out);
/** Set the fields of the problem that the twist needs. */
void case_twist(struct kernel_case *c);

/** One batch of tokens. */
struct tokens {
	uint64_t count, stride; /* of input rows, in elements */
	void *input;
	int32_t *ids;
	float *weights;
};

/** Everything that one case needs; the same for every backend. */
struct material {
	struct moek_problem problem, all; /* all: as if every expert were local */
	struct moek_expert *experts;      /* of the model */
	int32_t *map;                     /* or NULL */
	struct tokens tokens, larger;     /* larger: a batch that comes before it */
	struct moek_source source;        /* as the case wants it */
	struct moek_source plain;         /* canonical experts, for the reference */
	void *stacked[8];
};

/** Returns 1, or 0: no memory. */
int material_make(const struct kernel_case *c, uint64_t seed,
                  struct material *material_out);
void material_free(struct material *material);

/** A plain source over @material's experts, for changed ones. */
struct moek_source material_source(struct material *material);

#endif
