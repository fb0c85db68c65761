/* SPDX-License-Identifier: MIT */
/* A tree that looks like /sys to plugins/gpu/facts.c, made in a temporary folder. */
#ifndef MOEK_TESTS_GPU_SYSFS_H
#define MOEK_TESTS_GPU_SYSFS_H

/** A new empty tree; its path goes to @path_out. */
void sysfs_create(char *path_out, unsigned long bytes);
void sysfs_destroy(const char *path);
/** A PCI card: "0000:03:00.0", 0x1002, 0x744c, 0x030000. */
void sysfs_card(const char *root, const char *address, unsigned int vendor,
                unsigned int device, unsigned int class);
/** A KFD node for the card at bus @bus, device 0, function 0; 110000 is gfx1100. */
void sysfs_node(const char *root, unsigned int number, unsigned int gfx_version,
                unsigned int bus);

#endif
