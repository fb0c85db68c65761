/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_REDUCE_H
#define MOEK_CORE_REDUCE_H

#endif
