/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_memory_is_to_come;
