/* SPDX-License-Identifier: MIT */
/* Running a case on one backend, through the public API. */
#ifndef KERNELCHECK_RUN_H
#define KERNELCHECK_RUN_H

#include "case.h"

/** Where the backends come from: two registries, of many workers and of one. */
struct bed {
	struct moek_registry *many, *one;
	char plugin[64]; /* name of the subject's file without .so */
};

/** @reference: path of emulation.so. */
int32_t bed_open(const char *subject, const char *reference, const char *config,
                 uint32_t threads, struct bed *bed_out, struct moek_error *error_out);
void bed_close(struct bed *bed);

/** One layer on one backend, with its workspace. */
struct runner {
	struct moek_choice *choice;
	struct moek_layer *layer;
	struct moek_workspace *workspace;
	struct moek_problem problem;
	struct moek_numerics numerics;
};

int32_t runner_open(struct moek_registry *registry, const struct moek_problem *problem,
                    const struct moek_source *source, const int32_t *map,
                    const char *request, struct runner *runner_out,
                    struct moek_error *error_out);
void runner_close(struct runner *runner);

/** Rows of output between guards, all of it filled with a pattern that is no number
 * that comes out of a layer. */
struct rows {
	uint8_t *memory;
	void *data;
	uint64_t rows, columns, stride, bytes; /* of `memory` */
	uint32_t type;
};

int rows_make(uint64_t count, uint64_t columns, uint64_t stride, uint32_t type,
              struct rows *rows_out);
void rows_free(struct rows *rows);
void rows_poison(struct rows *rows);
/** What was written outside of the elements. NULL: nothing. */
const char *rows_broken(const struct rows *rows);
/** The elements as fp32, [rows][columns]. */
void rows_widen(const struct rows *rows, float *values_out);

int32_t runner_forward(const struct runner *runner, const struct tokens *tokens,
                       const struct rows *rows, struct moek_trace *trace,
                       struct moek_error *error_out);

/** What emulation says of a case: unrounded, and how far others may be off. */
struct reference {
	float *output;     /* [tokens][hidden] */
	float *magnitudes; /* [tokens][hidden] */
	float *gate_up;    /* [tokens * top_k][...] */
	double *flips; /* [tokens][hidden], or NULL: activations are not quantised */
};

int32_t reference_make(const struct bed *bed, const struct material *material,
                       struct reference *reference_out, struct moek_error *error_out);
/**
 * With quantised activations: where one lies so near to a tie that an error of the
 * first GEMM within the allowance of a backend of these @numerics may turn its code,
 * what that can do to each output.
 */
int reference_flips(const struct material *material,
                    const struct moek_numerics *numerics, struct reference *reference);
/** Put the output in double, from the definitions, in the place of emulation's. */
int reference_from_naive(const struct material *material, struct reference *reference);
void reference_free(struct reference *reference);

#endif
