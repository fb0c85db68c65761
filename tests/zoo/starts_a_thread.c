/* SPDX-License-Identifier: MIT */
/* Leaves a thread running. */
#include "tests/fakes/fake.h"

#include <pthread.h>
#include <unistd.h>

static void *run(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static int32_t open_plugin(const struct moek_host *host, void **plugin_out)
{
	pthread_t thread;

	pthread_create(&thread, NULL, run, NULL);
	pthread_detach(thread);
	*plugin_out = (void *)(uintptr_t)host;
	return MOEK_OK;
}

static const struct moek_experts any = { FAKE_EXPERTS("any", MOEK_NATIVE) };
static const struct moek_experts *const experts[] = { &any, NULL };

MOEK_PLUGIN_NOTE("id=starts_a_thread\nversion=0\nclass=native\ndevices=host\n");
MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	FAKE_PLUGIN_BUT_OPEN("starts_a_thread", experts),
	.open = open_plugin,
};
