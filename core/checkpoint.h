/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_CHECKPOINT_H
#define MOEK_CORE_CHECKPOINT_H

#endif
