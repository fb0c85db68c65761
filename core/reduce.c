/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_reduce_is_to_come;
