/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_device_is_to_come;
