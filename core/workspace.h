/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_WORKSPACE_H
#define MOEK_CORE_WORKSPACE_H

#endif
