/* SPDX-License-Identifier: MIT */
/* Lists devices, but cannot allocate on them. */
#include "fake.h"

static uint32_t list(void *plugin, struct moek_device *devices_out, uint32_t capacity)
{
	(void)plugin;
	(void)devices_out;
	(void)capacity;
	return 0;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("half_a_device", experts),
	.list = list,
};
