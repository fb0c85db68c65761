/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_settings_is_to_come;
