/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_threads_is_to_come;
