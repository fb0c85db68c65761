/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_family_is_to_come;
