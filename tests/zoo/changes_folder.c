/* SPDX-License-Identifier: MIT */
/* Goes to another folder. */
#include "tests/fakes/fake.h"

#include <unistd.h>

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	if (chdir("/") != 0)
		return MOEK_DEVICE;
	*plugin_out = (void *)(uintptr_t)host;
	return MOEK_OK;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=changes_folder\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("changes_folder", experts),
	.open = open_plugin,
};
