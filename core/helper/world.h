/* SPDX-License-Identifier: MIT */
/* What a plugin must leave as it is in the process around it. */
#ifndef MOEK_HELPER_WORLD_H
#define MOEK_HELPER_WORLD_H

struct world;

struct world *world_look(void); /* NULL: no memory */
/** What of it is different now, in words, or NULL. */
const char *world_changed(const struct world *before);
void world_free(struct world *world);

#endif
