/* SPDX-License-Identifier: MIT */
/* Ends the process that loads it. Its note is in order. */
#include "tests/fakes/fake.h"

#include <stdlib.h>

__attribute__((constructor)) static void load(void)
{
	abort();
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=aborts_at_load\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("aborts_at_load",
	                                                             experts) };
