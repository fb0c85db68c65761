/* SPDX-License-Identifier: MIT */
/* Leaves the calling thread rounding upwards and flushing small numbers to zero, as a
 * library built with -ffast-math does: once when it is loaded, once more in open(). */
#include "fake.h"

#include <fenv.h>

static void spoil(void)
{
	fesetround(FE_UPWARD);
#ifdef __SSE__
	__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
}

__attribute__((constructor)) static void spoil_at_load(void)
{
	spoil();
}

static int32_t open_it(const struct moek_host *host, void **plugin_out)
{
	(void)host;
	*plugin_out = NULL;
	spoil();
	return MOEK_OK;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("flips_rounding", experts),
	.open = open_it,
};
