/* SPDX-License-Identifier: MIT */
/* The shadow of a layer: the same weights on the reference, which some forwards are
 * compared with. What the host gets stays what its backend made. */
#ifndef MOEK_CORE_SHADOW_H
#define MOEK_CORE_SHADOW_H

#include "core/layer.h"

struct moek_shadowing {
	struct moek_layer *layer;      /* on the reference */
	struct moek_numerics numerics; /* of who is watched */
	uint64_t every;
	_Atomic uint64_t forwards, compared, skipped, rows, rows_over;
	_Atomic double worst;
	int is_told; /* of a difference, or of what keeps it from comparing */
};

/** Give @layer its shadow, as the setting `shadow` says. What keeps it from having one
 *  is logged: the layer is good without. */
void moek_shadow_cast(struct moek_layer *layer, const struct moek_source *source);
/** NULL is fine. */
void moek_shadow_end(struct moek_shadowing *shadow);

int moek_shadow_fits(const struct moek_shadowing *shadow,
                     const struct moek_workspace *workspace);

/** After a forward of @layer that went well: its turn to be compared? */
void moek_shadow_follow(struct moek_layer *layer, const struct moek_forward *forward);

#endif
