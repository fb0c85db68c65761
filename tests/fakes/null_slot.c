/* SPDX-License-Identifier: MIT */
/* A mandatory slot of the experts table is empty. */
#include "fake.h"

static const struct moek_experts any = {
	FAKE_EXPERTS_BUT_FORWARD("any", MOEK_NATIVE),
	.forward = NULL,
};
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("null_slot", experts),
};
