/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_plugin_is_to_come;
