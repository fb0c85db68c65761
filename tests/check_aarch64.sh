#!/bin/sh
# SPDX-License-Identifier: MIT
# The same tree for aarch64, cross-compiled and run by qemu's user emulation: cpu.plain, as
# that compiler makes vectors of it, against emulation. Debian packages: gcc-aarch64-linux-gnu,
# qemu-user, libinih-dev:arm64, libjansson-dev:arm64, check:arm64. The build stays in
# tests/aarch64 of this one.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

host=aarch64-linux-gnu
build=$MOEK_TEST_BUILD/tests/aarch64
PKG_CONFIG_LIBDIR=/usr/lib/$host/pkgconfig
export PKG_CONFIG_LIBDIR

# why_not: says what is lacking, if anything is
why_not() {
	case $(sed -n 's/^CFLAGS = //p' "$MOEK_TEST_BUILD/Makefile") in
	*-fsanitize*) echo 'it is the same whatever sanitizer this build has' && return ;;
	esac
	for program in $host-gcc qemu-aarch64 pkg-config; do
		command -v "$program" >/dev/null || { echo "no $program" && return; }
	done
	for library in inih jansson check; do
		pkg-config --exists "$library" || { echo "no $library for $host" && return; }
	done
	[ ! -e "$MOEK_TEST_SOURCE/../config.status" ] || echo 'the source tree itself is configured'
}

logged() {
	"$@" >>"$work/log" 2>&1 && return
	tail -n 20 "$work/log" | sed 's/^/# /'
	return 1
}

configured() {
	[ -e "$build/config.status" ] && return
	mkdir -p "$build"
	source=$(cd "$MOEK_TEST_SOURCE/.." && pwd)
	(cd "$build" && logged "$source/configure" --host=$host --enable-werror --with-mpi=no \
		HIPCLANG=no CC=$host-gcc CFLAGS='-O2 -Wno-format-truncation')
}

# not a part of the make that runs this
made() { (unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES; logged make -s -C "$build" -j2 "$@"); }

emulated() {
	program=$1
	shift
	LD_LIBRARY_PATH=$build/.libs MOEK_TEST_PLUGINS=$build/plugins/.libs \
		timeout -k 5 100 qemu-aarch64 "$program" "$@"
}

kernelcheck() { emulated "$build/tests/kernelcheck/.libs/kernelcheck" "$@"; }

reason=$(why_not)
if [ -n "$reason" ]; then
	skipped 'aarch64' "$reason"
	done_testing
fi
check 'configures for aarch64' configured
check 'builds for aarch64 without a warning' made plugins/cpu.la plugins/emulation.la \
	tools/moek tests/check_cpu tests/kernelcheck/kernelcheck

exits 0 'is found on an aarch64 host' emulated "$build/tools/.libs/moek" list --open \
	--plugin-dir "$build/plugins/.libs"
shows "$out" '^ +cpu.plain +ready +generic .* host aarch64' \
	'cpu has the one table that can run there'

# all the rest of check_cpu kernelcheck has, too
CK_RUN_CASE=layout
export CK_RUN_CASE
exits 0 'lays weights out as it says' emulated "$build/tests/check_cpu"
exits 0 'agrees with emulation' kernelcheck "$build/plugins/.libs/cpu.so" --quiet --threads 1
shows "$out" '^[1-9][0-9]{2,} passed, 0 failed' 'in hundreds of cases'
exits 0 'agrees with emulation on random problems' kernelcheck "$build/plugins/.libs/cpu.so" \
	--quiet --random 20
done_testing
