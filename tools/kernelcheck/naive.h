/* SPDX-License-Identifier: MIT */
/*
 * The meaning of a layer once more: one expert and one token at a time, in double, from
 * the definitions. Shares nothing with emulation, nor with formats.h.
 */
#ifndef KERNELCHECK_NAIVE_H
#define KERNELCHECK_NAIVE_H

#include <moek/problem.h>

/** Weight [row][column], exact but for one rounding to fp32, as the contract has it. */
double naive_weight(const struct moek_matrix *matrix, uint64_t row, uint64_t column);

/** sum of weight * x + bias of one row; *size_out: the sum of magnitudes. */
double naive_dot(const struct moek_matrix *matrix, uint64_t row, const double *x,
                 double *size_out);

/** The function between the GEMMs. */
double naive_activate(const struct moek_problem *problem, double gate, double up);

/** A row as the next GEMM multiplies it (fp32 values in, fp32 values out). */
void naive_quantise(const struct moek_problem *problem, const float *row,
                    uint64_t count, float input_scale, float *row_out);

/** Nearest value of F32, F16 or BF16, ties to even. */
double naive_round(uint32_t type, double value);

/** One slot: the expert's output for @x [hidden] before the router weight, in [hidden].
 */
int naive_slot(const struct moek_problem *problem, const struct moek_expert *expert,
               const float *x, double *y_out);

#endif
