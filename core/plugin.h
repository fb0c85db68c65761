/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_PLUGIN_H
#define MOEK_CORE_PLUGIN_H

#endif
