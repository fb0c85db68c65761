/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_SHA256_H
#define MOEK_CORE_SHA256_H

/** The SHA-256 of a file in hexadecimal. 0: it cannot be read. */
int sha256_file(const char *path, char hex_out[65]);

#endif
