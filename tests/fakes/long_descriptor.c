/* SPDX-License-Identifier: MIT */
/* Claims more bytes than the file has of it. */
#include "fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_SIZE("long_descriptor", experts),
	.struct_size = 4096,
};
