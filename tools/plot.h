/* SPDX-License-Identifier: MIT */
/* A roofline, drawn by gnuplot. */
#ifndef MOEK_TOOLS_PLOT_H
#define MOEK_TOOLS_PLOT_H

#include "tools/rig.h"

struct plot_point {
	const char *title; /* points with one title in a row are a series */
	double intensity;  /* operations for each byte of weights */
	double gop_per_second;
};

/** Before anything is measured: MOEK_BAD_ARGUMENT when @path cannot be written.
 * *possible_out is 0 when there is no gnuplot. */
int32_t plot_check(const char *path, int *possible_out, struct moek_error *error_out);
int32_t plot_roofline(const char *path, const struct rig *rig,
                      const struct plot_point *points, uint64_t count,
                      struct moek_error *error_out);

#endif
