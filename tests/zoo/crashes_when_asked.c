/* SPDX-License-Identifier: MIT */
/* Crashes when it is asked about a device. */
#include "tests/fakes/fake.h"

static int32_t ask(void *plugin, const struct moek_device *device,
                   struct moek_verdict *no_out)
{
	(void)plugin;
	(void)device;
	(void)no_out;
	__builtin_trap();
}

static const struct moek_experts any = {
	FAKE_EXPERTS_BUT_DEVICE("any", MOEK_NATIVE),
	.understands = EVERYTHING,
	.supports_device = ask,
};
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=crashes_when_asked\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = { FAKE_PLUGIN(
	"crashes_when_asked", experts) };
