/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_workspace_is_to_come;
