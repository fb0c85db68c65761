/* SPDX-License-Identifier: MIT */
/* Needs a function that nobody has: with lazy binding the host would die at the call.
 */
#include "fake.h"

int32_t fake_nobody_has_this(const struct moek_host *host);

static int32_t open_it(const struct moek_host *host, void **plugin_out)
{
	*plugin_out = NULL;
	return fake_nobody_has_this(host);
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("undefined_symbol", experts),
	.open = open_it,
};
