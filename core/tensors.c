/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_tensors_is_to_come;
