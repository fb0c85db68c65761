/* SPDX-License-Identifier: MIT */
/* Weights that the host has in memory, as a source of canonical experts. Its two
 * functions, moek_tensors_source() and moek_source_close(), are public. */
#ifndef MOEK_CORE_TENSORS_H
#define MOEK_CORE_TENSORS_H

#include <moek/moek.h>

#endif
