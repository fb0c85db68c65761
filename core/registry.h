/* SPDX-License-Identifier: MIT */
/* What the rest of core asks of a registry. */
#ifndef MOEK_CORE_REGISTRY_H
#define MOEK_CORE_REGISTRY_H

#include <moek/moek.h>

struct moek_log;

struct moek_log *moek_registry_log(struct moek_registry *registry);
/** 1: workspaces are poisoned and guarded, inputs compared before and after. */
int moek_registry_checks(const struct moek_registry *registry);
/** 1: device facts came from a file, so no layer can be made here. */
int moek_registry_answers_only(const struct moek_registry *registry);

#endif
