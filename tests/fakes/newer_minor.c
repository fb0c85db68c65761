/* SPDX-License-Identifier: MIT */
/* From a later minor version: its tables go on with what we do not know. */
#include "fake.h"

struct later_experts {
	struct moek_experts known;
	void *unknown[8];
};

struct later_plugin {
	struct moek_plugin known;
	void *unknown[8];
};

#define RUBBISH                                                                        \
	.unknown = { (void *)-1, (void *)-1, (void *)-1, (void *)-1,                   \
		     (void *)-1, (void *)-1, (void *)-1, (void *)-1 }

static const struct later_experts any = {
	.known = { FAKE_EXPERTS_BUT_SIZE("any", MOEK_NATIVE),
	           .struct_size = (uint32_t)sizeof(struct later_experts) },
	RUBBISH,
};
static const struct moek_experts *const experts[] = { &any.known, NULL };

MOEK_PLUGIN_EXPORT struct later_plugin moek_plugin_v1 = {
	.known = { FAKE_PLUGIN_BUT_SIZE("newer_minor", experts),
	           .struct_size = (uint32_t)sizeof(struct later_plugin) },
	RUBBISH,
};
