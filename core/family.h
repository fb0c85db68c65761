/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_FAMILY_H
#define MOEK_CORE_FAMILY_H

#endif
