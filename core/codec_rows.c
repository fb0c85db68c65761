/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_codec_rows_is_to_come;
