/* SPDX-License-Identifier: MIT */
/* Crashes when the process ends. */
#include "tests/fakes/fake.h"

__attribute__((destructor)) static void unload(void)
{
	__builtin_trap();
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=crashes_at_exit\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("crashes_at_exit",
	                                                             experts) };
