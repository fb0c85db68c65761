/* SPDX-License-Identifier: MIT */
/* Reports: one JSON object each, of which text and JSON are two views. */
#ifndef MOEK_CORE_REPORT_H
#define MOEK_CORE_REPORT_H

#include <moek/moek.h>

struct moek_json;

/** What moek_choice_report(), moek_registry_report() and moek_registry_config() print;
 *  NULL: no memory. The caller frees it. */
struct moek_json *moek_report_choice(const struct moek_choice *choice);
struct moek_json *moek_report_registry(struct moek_registry *registry);
struct moek_json *moek_report_config(const struct moek_registry *registry);

#endif
