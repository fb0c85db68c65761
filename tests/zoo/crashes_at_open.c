/* SPDX-License-Identifier: MIT */
/* Crashes when it is opened, after some last words. */
#include "tests/fakes/fake.h"

#include <stdio.h>

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	(void)host;
	(void)plugin_out;
	fprintf(stderr, "first words\nabout to crash\n");
	__builtin_trap();
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=crashes_at_open\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("crashes_at_open", experts),
	.open = open_plugin,
};
