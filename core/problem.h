/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_PROBLEM_H
#define MOEK_CORE_PROBLEM_H

#endif
