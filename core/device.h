/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_DEVICE_H
#define MOEK_CORE_DEVICE_H

#endif
