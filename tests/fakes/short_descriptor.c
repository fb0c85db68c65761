/* SPDX-License-Identifier: MIT */
/* The descriptor ends before version 1.0 does. */
#include "fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_SIZE("short_descriptor", experts),
	.struct_size = MOEK_PLUGIN_SIZE_1_0 - (uint32_t)sizeof(void *),
};
