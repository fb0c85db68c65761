/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_select_is_to_come;
