/* SPDX-License-Identifier: MIT */
/* Its note is no list of keys and values. */
#include "tests/fakes/fake.h"

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=note_malformed\nversion=0\nclass=native\ncolour\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN("note_malformed",
	                                                             experts) };
