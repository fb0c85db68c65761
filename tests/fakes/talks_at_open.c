/* SPDX-License-Identifier: MIT */
/* Tells at open what the host table gives it: an option, memory, and an option that it
 * has not declared. */
#include "fake.h"

static int32_t open_it(const struct moek_host *host, void **plugin_out)
{
	const char *word = host->option(host->self, "word");
	void *memory = host->alloc(host->self, 100, 256);
	int32_t is_good = memory != NULL && (uintptr_t)memory % 256 == 0 &&
	                  host->option(host->self, "x-undeclared") == NULL;

	host->free(host->self, memory);
	host->log(host->self, 6, word != NULL ? word : "no word");
	*plugin_out = NULL;
	return is_good ? MOEK_OK : MOEK_PLUGIN;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };
static const char *const options[] = { "word", NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("talks_at_open", experts),
	.options = options,
	.open = open_it,
};
