/* SPDX-License-Identifier: MIT */
/* Its note says another version than its descriptor. */
#include "fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_GENERIC) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=note_lies\nversion=7\nclass=generic\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("note_lies",
	                                                             experts) };
