/* SPDX-License-Identifier: MIT */
/* Compiled for a CPU that there is not. Loading it would end the process. */
#include "tests/fakes/fake.h"

#include <stdlib.h>

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_GENERIC) };
static const struct moek_experts *const experts[] = { &any, NULL };

__attribute__((constructor)) static void load(void)
{
	abort();
}

MOEK_PLUGIN_NOTE("id=needs_isa\nversion=0\nisa=fake_word\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("needs_isa",
	                                                             experts) };
