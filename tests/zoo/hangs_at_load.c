/* SPDX-License-Identifier: MIT */
/* Never comes back from loading. */
#include "tests/fakes/fake.h"

#include <unistd.h>

__attribute__((constructor)) static void load(void)
{
	for (;;)
		pause();
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=hangs_at_load\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("hangs_at_load",
	                                                             experts) };
