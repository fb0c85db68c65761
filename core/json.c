/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_json_is_to_come;
