/* SPDX-License-Identifier: MIT */
/* One case on one backend: everything that is asked of it. */
#ifndef KERNELCHECK_CHECK_H
#define KERNELCHECK_CHECK_H

#include "run.h"

enum outcome { PASSED, FAILED, SKIPPED };

struct answer {
	enum outcome outcome;
	double worst;   /* error beside its allowance */
	char text[600]; /* why it failed or was skipped */
};

/**
 * Ask emulation, then run @backend ("cpu.avx2"): after a larger batch that leaves its
 * traces in the workspace, twice, and with one worker; compare each with what is
 * expected.
 */
void check_case(const struct bed *bed, const struct material *material,
                const struct kernel_case *c, const char *backend,
                struct answer *answer_out);

/** The backends of the subject for a problem: "cpu.avx2" ... At most @capacity of them.
 */
uint64_t check_backends(const struct bed *bed, const struct moek_problem *problem,
                        char names_out[][64], uint64_t capacity);

/** Compare one output with a reference. Returns 1, or 0 and *answer_out says why. */
int check_output(const struct material *material, const struct kernel_case *c,
                 const struct moek_numerics *numerics, struct reference *reference,
                 const struct rows *rows, struct answer *answer_out);

#endif
