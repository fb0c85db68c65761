/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_report_is_to_come;
