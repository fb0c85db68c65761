/* SPDX-License-Identifier: MIT */
/* Knows zero points and bias alone, and runs hidden sizes that are multiples of 64. */
#include "fake.h"

static int32_t supports_shape(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	(void)plugin;
	/* the core promised: a bit that we do not know never gets here */
	if ((problem->must_understand & ~(MOEK_ZERO_POINTS | MOEK_BIAS)) != 0)
		__builtin_trap();
	if (problem->hidden % 64 != 0)
		return moek_refuse_multiple(no_out, MOEK_RULE_HIDDEN, problem->hidden,
		                            64);
	return 1;
}

static const struct moek_experts any = {
	FAKE_EXPERTS_BUT_SHAPE("any", MOEK_NATIVE),
	.understands = MOEK_ZERO_POINTS | MOEK_BIAS,
	.supports_shape = supports_shape,
};
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("refuses_with_reason", experts),
};
