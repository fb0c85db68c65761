/* SPDX-License-Identifier: MIT */
/* Needs a library that is not installed. */
#include "tests/fakes/fake.h"

int zoo_helper(void);

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	*plugin_out = (void *)(uintptr_t)host;
	return zoo_helper() > 0 ? MOEK_OK : MOEK_DEVICE;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=needs_a_library\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("needs_a_library", experts),
	.open = open_plugin,
};
