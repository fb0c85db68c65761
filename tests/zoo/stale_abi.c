/* SPDX-License-Identifier: MIT */
/* Was built for an ABI that is gone. */
#include "tests/fakes/fake.h"

#undef MOEK_NOTE_ABI
#define MOEK_NOTE_ABI "abi=0.9\n"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=stale_abi\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("stale_abi",
	                                                             experts) };
