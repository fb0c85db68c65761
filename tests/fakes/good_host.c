/* SPDX-License-Identifier: MIT */
/* Two backends of the host that say yes to everything; outputs are zeros. */
#include "fake.h"

static const struct moek_experts first = { FAKE_EXPERTS("first", MOEK_NATIVE) };
static const struct moek_experts second = { FAKE_EXPERTS("second", MOEK_GENERIC) };

static const struct moek_experts *const experts[] = { &first, &second, NULL };
static const char *const options[] = { "colour", "threads", NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("good_host", experts),
	.options = options,
};
