#!/bin/sh
# SPDX-License-Identifier: MIT
# Programs in C, C++ and Python that use the installed library as programs do: several
# registries, many threads, fork, exit without closing, plugins replaced while they run.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

unset MAKEFLAGS MFLAGS MAKELEVEL
stage=$work/stage
variable() { sed -n "s/^$1 = //p" "$MOEK_TEST_BUILD/Makefile"; }
cc=$(variable CC)
cflags=$(variable CFLAGS)
exits 0 'make install DESTDIR= succeeds' make -C "$MOEK_TEST_BUILD" install DESTDIR="$stage"
root=$stage$(variable prefix)
asked() { PKG_CONFIG_PATH=$root/lib/pkgconfig pkg-config --define-variable=prefix="$root" "$@"; }
LD_LIBRARY_PATH=$root/lib
MOEK_CONFIG=$root/etc/moek/moek.ini
MOEK_PLUGIN_DIRS=$root/lib/moek
export LD_LIBRARY_PATH MOEK_CONFIG MOEK_PLUGIN_DIRS
cd "$work" || exit 1

try() { # PROGRAM NAME
	exits 0 "$2: one forward is right" ./"$1" one
	if [ -e "$root/lib/moek/cpu.so" ]; then
		exits 0 "$2: two registries differ in a setting, and one outlives the other" ./"$1" two
		shows "$out" '^cpu\.plain, cpu\.' 'and each has its own'
	else
		skipped "$2: two registries" 'cpu.so was not built'
	fi
	exits 0 "$2: eight threads, a layer each" ./"$1" threads
	case $cflags in
	*-fsanitize=thread*) skipped "$2: a child goes on after fork" 'the thread sanitizer forbids it' ;;
	*) exits 0 "$2: a child goes on after fork" ./"$1" fork ;;
	esac
	exits 0 "$2: exit without closing" ./"$1" leave
	cp "$root/lib/moek/emulation.so" "$root/lib/moek/new.so"
	exits 0 "$2: a plugin is replaced while a layer of it runs" ./"$1" swap "$root/lib/moek"
}

exits 0 'a host in C compiles' $cc $cflags -std=gnu11 -Wall -Wextra -Werror -pthread -o host \
	"$MOEK_TEST_SOURCE/embed/host.c" $(asked --cflags --libs moek)
try host C
cxx=$(variable CXX)
cxx=${cxx:-$(command -v c++ || command -v g++ || command -v clang++ || true)}
if [ -n "$cxx" ]; then
	exits 0 'and in C++' $cxx $cflags -x c++ -std=c++17 -pthread -o host++ \
		"$MOEK_TEST_SOURCE/embed/host.c" $(asked --cflags --libs moek)
	exits 0 'C++: one forward is right' ./host++ one
	exits 0 'C++: eight threads, a layer each' ./host++ threads
else
	skipped 'a host in C++' 'no C++ compiler'
fi
case $cflags in
*-fsanitize*) skipped 'a host in Python' 'a sanitizer must come first in a program' ;;
*)
	if command -v python3 >/dev/null; then
		exits 0 'a host in Python loads the library for itself alone' \
			python3 "$MOEK_TEST_SOURCE/embed/host.py" "$root/lib/libmoek.so"
		shows "$out" '^([a-z0-9_.]+) gives bf16 0x3d8f, by its report \1$' \
			'and gets the number and the report'
	else
		skipped 'a host in Python' 'no python3'
	fi
	;;
esac

done_testing
