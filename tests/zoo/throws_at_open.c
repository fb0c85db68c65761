/* SPDX-License-Identifier: MIT */
/* Lets an exception out of open(), as C++ does: by the unwinder, which finds nobody. */
#include "tests/fakes/fake.h"

#include <stdlib.h>
#include <unwind.h>

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };
static struct _Unwind_Exception thrown;

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	(void)host;
	(void)plugin_out;
	_Unwind_RaiseException(&thrown);
	abort(); /* what std::terminate() does where nobody catches */
}

MOEK_PLUGIN_NOTE("id=throws_at_open\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("throws_at_open", experts),
	.open = open_plugin,
};
