/* SPDX-License-Identifier: MIT */
#include "config.h"

typedef int moek_codec_blocks_is_to_come;
