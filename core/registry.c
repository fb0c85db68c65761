/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_registry_is_to_come;
