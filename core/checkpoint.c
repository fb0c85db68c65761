/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_checkpoint_is_to_come;
