/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_route_is_to_come;
