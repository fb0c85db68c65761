/* SPDX-License-Identifier: MIT */
/* Errors, and the words for statuses, rules, types and verdicts. Texts are made here only. */
#ifndef MOEK_CORE_STATUS_H
#define MOEK_CORE_STATUS_H

#include <stddef.h>

#include <moek/moek.h>

/**
 * Fill *error_out (which may be NULL) and return @status, for `return`. The first to know
 * speaks: callers that only pass a failure on leave the error alone.
 */
int32_t moek_fail(struct moek_error *error_out, int32_t status, uint32_t rule,
                  const char *format, ...) __attribute__((format(printf, 4, 5)));

/** Out of memory while making @what ("tensor index"). Returns MOEK_NO_MEMORY. */
int32_t moek_fail_memory(struct moek_error *error_out, const char *what);

/**
 * "group_size 48" and "a multiple of 32" of a verdict; @device may be NULL (it names the
 * arch that was found). Buffers of at least MOEK_VERDICT_TEXT bytes; always ended.
 */
#define MOEK_VERDICT_TEXT 256
void moek_verdict_found(const struct moek_verdict *verdict, const struct moek_device *device,
                        char *text_out, size_t bytes);
void moek_verdict_accepted(const struct moek_verdict *verdict, char *text_out, size_t bytes);

/** "zero_points" for bit 0 ...; NULL for a bit without a name. */
const char *moek_bit_name(uint32_t bit);
const char *moek_class_name(uint32_t rank_class);
const char *moek_device_kind_name(uint32_t kind);

/**
 * Size in bytes of @elements of @type, 4-bit types as rows of their own are not counted
 * here: 0 for them and for unknown types.
 */
uint64_t moek_type_bytes(uint32_t type);

/** Value of a name among those of the enumeration, or 0: "bf16" -> MOEK_BF16. */
uint32_t moek_type_parse(const char *name);
uint32_t moek_activation_parse(const char *name);
/** a16 is 0, so found or not is apart: 1 or 0. */
int moek_activations_parse(const char *name, uint32_t *activations_out);

/** a * b and a + b, or 0 and *overflow = 1 (never cleared here). */
uint64_t moek_multiply(uint64_t a, uint64_t b, int *overflow);
uint64_t moek_add(uint64_t a, uint64_t b, int *overflow);

#endif
