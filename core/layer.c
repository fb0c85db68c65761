/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_layer_is_to_come;
