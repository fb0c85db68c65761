/* SPDX-License-Identifier: MIT */
/* open() says why it fails. */
#include "fake.h"

static int32_t open_it(const struct moek_host *host, void **plugin_out)
{
	(void)plugin_out;
	host->log(host->self, 3, "the moon is full");
	return MOEK_DEVICE;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("open_fails", experts),
	.open = open_it,
};
