/* SPDX-License-Identifier: MIT */
/* Which rank holds which experts, and what of the load it would get. */
#ifndef MOEK_TOOLS_PLACE_H
#define MOEK_TOOLS_PLACE_H

#include "tools/tool.h"
#include "tools/writer.h"

/** moek inspect --ranks: adjacent experts together, summed over layers. @writer NULL: text. */
int32_t place_summary(const struct options *options, const struct session *session,
                      struct writer *writer, struct moek_error *error_out);

#endif
