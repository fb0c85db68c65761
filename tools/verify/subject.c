/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/verify/subject.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

const char *subject_load(const char *path, struct subject *subject_out)
{
	struct subject subject = { .count = 0 };
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (library == NULL)
		return dlerror();
	subject.plugin = dlsym(library, "moek_plugin_v1");
	if (subject.plugin == NULL)
		return dlerror();
	while (subject.plugin->experts[subject.count] != NULL)
		subject.count++;
	*subject_out = subject;
	return NULL;
}

static void host_log(void *self, uint32_t level, const char *text)
{
	(void)self;
	(void)level;
	(void)text;
}

static const char *host_option(void *self, const char *key)
{
	(void)self;
	(void)key;
	return NULL;
}

static void *host_alloc(void *self, uint64_t bytes, uint64_t align)
{
	struct subject_host *host = self;
	void *memory = NULL;

	if (++host->allocations == host->fail_at)
		return NULL;
	if (posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align,
	                   bytes + 1) != 0)
		return NULL;
	host->in_use++;
	return memory;
}

static void host_free(void *self, void *address)
{
	struct subject_host *host = self;

	host->in_use -= address != NULL;
	free(address);
}

void subject_host_begin(struct subject_host *host)
{
	memset(host, 0, sizeof(*host));
	host->table = (struct moek_host){
		.struct_size = MOEK_HOST_SIZE_1_0,
		.self = host,
		.log = host_log,
		.option = host_option,
		.alloc = host_alloc,
		.free = host_free,
	};
}

int subject_ask(const struct subject *subject, const struct moek_experts *experts,
                const struct moek_problem *problem, struct moek_verdict *no_out)
{
	memset(no_out, 0, sizeof(*no_out));
	no_out->struct_size = MOEK_VERDICT_SIZE_1_0;
	return experts->supports_quant_scheme(subject->handle, problem, no_out) == 1 &&
	       experts->supports_activation(subject->handle, problem, no_out) == 1 &&
	       experts->supports_parallel(subject->handle, problem, no_out) == 1 &&
	       experts->supports_shape(subject->handle, problem, no_out) == 1;
}
