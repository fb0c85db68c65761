/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_PRIORITY_H
#define MOEK_CORE_PRIORITY_H

#endif
