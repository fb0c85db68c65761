/* SPDX-License-Identifier: MIT */
/* The experts table ends before version 1.0 does. */
#include "fake.h"

static const struct moek_experts any = {
	FAKE_EXPERTS_BUT_SIZE("any", MOEK_NATIVE),
	.struct_size = MOEK_EXPERTS_SIZE_1_0 - (uint32_t)sizeof(void *),
};
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("short_table", experts),
};
