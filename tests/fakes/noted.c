/* SPDX-License-Identifier: MIT */
/* A good backend, with a note. */
#include "fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_GENERIC) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=noted\nversion=0\nclass=generic\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("noted",
	                                                             experts) };
