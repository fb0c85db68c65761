/* SPDX-License-Identifier: MIT */
/* The machine's own limits, measured beside what is to be judged by them. */
#ifndef MOEK_TOOLS_PROBE_H
#define MOEK_TOOLS_PROBE_H

#include <moek/moek.h>

enum limit { LIMIT_READ, LIMIT_INT8, LIMIT_BF16, LIMIT_FP32, LIMITS };

/** "read", "int8", "bf16", "fp32". */
extern const char *const limit_names[LIMITS];

/** One number of threads, and the best that was seen of each limit: GB/s, then 10^9
 * operations a second. 0: this machine has no instruction for it. */
#define RECENT 8
struct probe {
	const struct moek_workers *workers; /* borrowed */
	double best[LIMITS];
	double reads[RECENT]; /* the last ones */
	uint64_t read_count;
};

/** Memory that probes read, larger than any cache. Shared by all probes. */
struct probe_memory {
	unsigned char *bytes;
	uint64_t count, slice; /* a probe reads one slice, each time the next one */
	uint64_t at;
};

/** @cache_bytes: of the last cache. 1, or 0: no memory. */
int probe_memory_make(struct probe_memory *memory, uint64_t cache_bytes,
                      const struct moek_workers *workers);
void probe_memory_free(struct probe_memory *memory);

/** Read bandwidth now, in GB/s: the best of the last 8 times, as what disturbs one can
 * only lower it, while the memory's own pace changes in minutes. Puts other data into
 * the caches. */
double probe_read(struct probe *probe, struct probe_memory *memory);
/** The peak of int8, bf16 or fp32 now; under a millisecond. */
double probe_peak(struct probe *probe, enum limit limit);
/** Wait until the processors are free, which a peak near the best one shows; not
 * forever. */
void probe_wait(struct probe *probe);

#endif
