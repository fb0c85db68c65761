/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_ROUTE_H
#define MOEK_CORE_ROUTE_H

#endif
