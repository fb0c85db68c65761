/* SPDX-License-Identifier: MIT */
/* Says yes to everything, and is of class emulation. */
#include "fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_EMULATION) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("last_resort", experts),
};
