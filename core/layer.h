/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_LAYER_H
#define MOEK_CORE_LAYER_H

#endif
