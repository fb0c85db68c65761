/* SPDX-License-Identifier: MIT */
/* Memory nodes of a machine: what a processor reads fast lies on its own. */
#ifndef MOEK_TOOLS_NODES_H
#define MOEK_TOOLS_NODES_H

#include <stdint.h>

/** Nodes with a processor that this process may use; at least 1. @root: as
 * /sys/devices/system/node. */
uint64_t nodes_count(const char *root);

#endif
