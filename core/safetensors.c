/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_safetensors_is_to_come;
