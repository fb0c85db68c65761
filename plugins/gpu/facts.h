/* SPDX-License-Identifier: MIT */
/* Which AMD cards this machine has, from the operating system and from the runtime. */
#ifndef MOEK_GPU_FACTS_H
#define MOEK_GPU_FACTS_H

#include <moek/problem.h>

#include "driver.h"

struct gpu_facts_paths {
	const char *sysfs; /* "/sys" */
	const char *kfd;   /* "/dev/kfd": the compute device file */
};

/**
 * Every AMD display or accelerator card under sysfs/bus/pci/devices, then those that
 * only the runtime shows. Architecture, memory and units come from the KFD topology
 * (sysfs/class/kfd). A card that cannot be used has cause_rule and cause. Writes at
 * most
 * @capacity; returns how many there are.
 */
uint32_t gpu_facts_list(const struct gpu_driver *driver,
                        const struct gpu_facts_paths *paths,
                        struct moek_device *devices_out, uint32_t capacity);

#endif
