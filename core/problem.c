/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_problem_is_to_come;
