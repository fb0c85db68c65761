/* SPDX-License-Identifier: MIT */
/* Sets a variable of the environment. */
#define _GNU_SOURCE 1
#include "tests/fakes/fake.h"

#include <stdlib.h>

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	setenv("MOEK_ZOO", "1", 1);
	*plugin_out = (void *)(uintptr_t)host;
	return MOEK_OK;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=changes_environment\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("changes_environment", experts),
	.open = open_plugin,
};
