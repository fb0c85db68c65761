/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t open_pool(struct rig *rig, struct options options, uint64_t threads,
                         struct moek_error *error_out)
{
	struct moek_registry **pool = &rig->pools[rig->pool_count];
	int32_t status;

	options.threads = threads;
	status = tool_registry(&options, pool, error_out);
	if (status == MOEK_OK)
		rig->probes[rig->pool_count++].workers = moek_registry_workers(*pool);
	return status;
}

static int32_t open_pools(const struct options *options, struct rig *rig,
                          struct moek_error *error_out)
{
	const struct list *threads = &options->thread_list;
	int32_t status = MOEK_OK;

	for (uint64_t i = 0; status == MOEK_OK && i < threads->count; i++)
		status = open_pool(rig, *options, threads->values[i], error_out);
	if (threads->count > 0)
		return status;
	status = open_pool(rig, *options, 0, error_out);
	if (status != MOEK_OK || rig->probes[0].workers->count == 1)
		return status;
	status = open_pool(rig, *options, 1, error_out);
	if (status == MOEK_OK) {
		struct moek_registry *all = rig->pools[0];
		struct probe probe = rig->probes[0];

		rig->pools[0] = rig->pools[1];
		rig->probes[0] = rig->probes[1];
		rig->pools[1] = all;
		rig->probes[1] = probe;
	}
	return status;
}

void rig_use(struct rig *rig, uint64_t i)
{
	rig->workers = *rig->probes[i].workers;
}

void rig_use_all(struct rig *rig)
{
	uint64_t most = 0;

	for (uint64_t i = 1; i < rig->pool_count; i++)
		if (rig->probes[i].workers->count > rig->probes[most].workers->count)
			most = i;
	rig_use(rig, most);
}

int32_t rig_open(const struct options *options, struct rig *rig,
                 struct moek_error *error_out)
{
	struct options mine = *options;
	int32_t status;

	memset(rig, 0, sizeof(*rig));
	machine_read(&rig->machine);
	status = open_pools(options, rig, error_out);
	if (status != MOEK_OK)
		return status;
	rig_use_all(rig);
	mine.workers = &rig->workers;
	status = tool_registry(&mine, &rig->registry, error_out);
	if (status != MOEK_OK)
		return status;
	if (!probe_memory_make(&rig->memory, rig->machine.last_cache_bytes,
	                       &rig->workers))
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "no memory for the probes of read bandwidth");
	/* a peak is the best of many: the first ones are as good as any */
	for (uint64_t i = 0; i < rig->pool_count; i++)
		for (int r = 0; r < 10; r++) {
			for (int limit = LIMIT_INT8; limit < LIMITS; limit++)
				probe_peak(&rig->probes[i], (enum limit)limit);
			probe_read(&rig->probes[i], &rig->memory);
		}
	return MOEK_OK;
}

void rig_close(struct rig *rig)
{
	moek_registry_close(rig->registry);
	for (uint64_t i = 0; i < rig->pool_count; i++)
		moek_registry_close(rig->pools[i]);
	probe_memory_free(&rig->memory);
}

void rig_print(const struct rig *rig)
{
	machine_print(&rig->machine);
	printf("\n%-8s %10s %11s %13s %13s\n", "threads", "read GB/s", "int8 Gop/s",
	       "bf16 GFLOP/s", "fp32 GFLOP/s");
	for (uint64_t i = 0; i < rig->pool_count; i++) {
		const double *best = rig->probes[i].best;

		printf("%-8u %10.1f %11.0f ", rig->probes[i].workers->count,
		       best[LIMIT_READ], best[LIMIT_INT8]);
		if (best[LIMIT_BF16] > 0)
			printf("%13.0f ", best[LIMIT_BF16]);
		else
			printf("%13s ", "none");
		printf("%13.0f\n", best[LIMIT_FP32]);
	}
	putchar('\n');
}

void rig_write(struct writer *writer, const struct rig *rig)
{
	static const char *const keys[LIMITS] = { "read_gb_per_second",
		                                  "int8_gop_per_second",
		                                  "bf16_gflop_per_second",
		                                  "fp32_gflop_per_second" };

	machine_write(writer, &rig->machine);
	writer_open(writer, "probes", '[');
	for (uint64_t i = 0; i < rig->pool_count; i++) {
		writer_open(writer, NULL, '{');
		writer_number(writer, "threads", rig->probes[i].workers->count);
		for (int limit = 0; limit < LIMITS; limit++)
			writer_real(writer, keys[limit], rig->probes[i].best[limit]);
		writer_close(writer, '}');
	}
	writer_close(writer, ']');
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double median(double *values, uint64_t count)
{
	qsort(values, count, sizeof(*values), by_size);
	return count > 0 ? (values[(count - 1) / 2] + values[count / 2]) / 2 : 0;
}

double quartile_spread(double *values, uint64_t count)
{
	double middle = median(values, count);

	return middle > 0 ? (values[count - 1 - (count - 1) / 4] -
	                     values[(count - 1) / 4]) /
	                            middle
	                  : 0;
}
