/* SPDX-License-Identifier: MIT */
/* "Did you mean": knows nothing of the core, and the tool needs it too. */
#ifndef MOEK_CORE_NEAREST_H
#define MOEK_CORE_NEAREST_H

#include <stddef.h>

/** Edit distance for "did you mean": the nearest of @count names to @name within a
 * third of its length, or NULL. */
const char *moek_nearest(const char *name, const char *const *names, size_t count);

#endif
