/* SPDX-License-Identifier: MIT */
/* Brings a library of its own, by the name that another plugin uses too. */
#include "tests/fakes/fake.h"

int zoo_helper(void);

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	*plugin_out = (void *)(uintptr_t)host;
	return zoo_helper() > 0 ? MOEK_OK : MOEK_DEVICE;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=first_helper\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("first_helper", experts),
	.open = open_plugin,
};
