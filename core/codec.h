/* SPDX-License-Identifier: MIT */
/* Codecs: from one file format to the canonical expert. One file and one line of the table
 * in codec.c for each. Filled in by the checkpoint work. */
#ifndef MOEK_CORE_CODEC_H
#define MOEK_CORE_CODEC_H

#include <moek/moek.h>

#endif
