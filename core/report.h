/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_REPORT_H
#define MOEK_CORE_REPORT_H

#endif
