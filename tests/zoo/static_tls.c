/* SPDX-License-Identifier: MIT */
/* Needs more room for its thread-local variables than a loaded library can get. */
#include "tests/fakes/fake.h"

static _Thread_local
	__attribute__((tls_model("initial-exec"))) volatile char large[1 << 20];

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	large[0] = 1;
	*plugin_out = (void *)(uintptr_t)host;
	return MOEK_OK;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=static_tls\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("static_tls", experts),
	.open = open_plugin,
};
