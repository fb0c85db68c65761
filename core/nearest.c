/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/nearest.h"

#include <string.h>

#define NEAREST_MOST 64 /* longer names are not compared */

static size_t edit_distance(const char *a, size_t a_length, const char *b,
                            size_t b_length)
{
	size_t row[NEAREST_MOST + 1];

	for (size_t j = 0; j <= b_length; j++)
		row[j] = j;
	for (size_t i = 1; i <= a_length; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= b_length; j++) {
			size_t best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[b_length];
}

const char *moek_nearest(const char *name, const char *const *names, size_t count)
{
	size_t length = strlen(name), best = length / 3 + 2;
	const char *nearest = NULL;

	if (length > NEAREST_MOST)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		size_t other = strlen(names[i]), distance;

		if (other > NEAREST_MOST)
			continue;
		distance = edit_distance(name, length, names[i], other);
		if (distance < best) {
			best = distance;
			nearest = names[i];
		}
	}
	return nearest;
}
