/* SPDX-License-Identifier: MIT */
/* Calls itself otherwise than its file. */
#include "fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("right_name", experts),
};
