#!/bin/sh
# SPDX-License-Identifier: MIT
# Create ./configure. Needs autoconf, automake, libtool and pkg-config.
set -e
cd "$(dirname "$0")"
mkdir -p m4
autoreconf --force --install --warnings=all,no-portability

# configure deletes core dumps by the name "core", which here is a folder.
sed 's/rm -f core /rm -f /' configure > configure.tmp
cat configure.tmp > configure
rm configure.tmp
