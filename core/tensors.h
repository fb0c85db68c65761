/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_TENSORS_H
#define MOEK_CORE_TENSORS_H

#endif
