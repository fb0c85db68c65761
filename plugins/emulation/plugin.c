/* SPDX-License-Identifier: MIT */
typedef int emulation_is_to_come;
