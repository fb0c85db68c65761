/* SPDX-License-Identifier: MIT */
/* Writes to standard output when it is opened. */
#include "tests/fakes/fake.h"

#include <stdio.h>

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	puts("welcome");
	fflush(stdout);
	*plugin_out = (void *)(uintptr_t)host;
	return MOEK_OK;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=prints_at_open\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("prints_at_open", experts),
	.open = open_plugin,
};
