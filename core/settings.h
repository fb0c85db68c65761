/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_SETTINGS_H
#define MOEK_CORE_SETTINGS_H

#endif
