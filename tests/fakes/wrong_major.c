/* SPDX-License-Identifier: MIT */
/* Built for another major version, whose descriptor nobody here can read. */
#include "fake.h"

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = 16,
	.abi_major = MOEK_ABI_MAJOR + 1,
};
