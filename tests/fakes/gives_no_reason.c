/* SPDX-License-Identifier: MIT */
/* Says no, and not why; or with a rule and rubbish around it. */
#include "fake.h"

static int32_t supports_shape(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	(void)plugin;
	(void)problem;
	memset(no_out, 0xff, sizeof(*no_out)); /* unended text, counts out of range */
	no_out->rule = MOEK_RULE_NONE;
	return 0;
}

static int32_t rubbish_shape(void *plugin, const struct moek_problem *problem,
                             struct moek_verdict *no_out)
{
	(void)plugin;
	supports_shape(plugin, problem, no_out);
	no_out->rule = MOEK_RULE_HIDDEN;
	no_out->accepts = MOEK_ACCEPTS_VALUES;
	return 0;
}

static const struct moek_experts any = {
	FAKE_EXPERTS_BUT_SHAPE("any", MOEK_NATIVE),
	.understands = EVERYTHING,
	.supports_shape = supports_shape,
};
static const struct moek_experts rubbish = {
	FAKE_EXPERTS_BUT_SHAPE("rubbish", MOEK_NATIVE),
	.understands = EVERYTHING,
	.supports_shape = rubbish_shape,
};
static const struct moek_experts *const experts[] = { &any, &rubbish, NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN("gives_no_reason", experts),
};
