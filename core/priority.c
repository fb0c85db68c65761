/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_priority_is_to_come;
