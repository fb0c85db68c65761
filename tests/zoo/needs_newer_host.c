/* SPDX-License-Identifier: MIT */
/* Needs a host that there is not yet. */
#include "tests/fakes/fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE(
	"id=needs_newer_host\nversion=0\nabi-min=1.99\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("needs_newer_host",
	                                                             experts) };
