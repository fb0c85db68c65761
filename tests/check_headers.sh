#!/bin/sh
# SPDX-License-Identifier: MIT
# Every public header compiles by itself, without a warning, in the languages that hosts
# and plugins are written in, with each compiler that is here.
cd "${srcdir:-.}" || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
status=0
tried=0
warnings='-Wall -Wextra -pedantic -Werror'

compile() { # compiler language standard header flags
	echo "#include <$4>" >"$scratch/one.c"
	# $5 holds several flags
	# shellcheck disable=SC2086
	if ! "$1" -x "$2" -std="$3" $warnings $5 -Iinclude -fsyntax-only "$scratch/one.c" \
		>"$scratch/said" 2>&1; then
		echo "$4 does not compile by itself: $1 -std=$3"
		cat "$scratch/said"
		status=1
	fi
	tried=$((tried + 1))
}

for header in include/moek/*.h; do
	header=${header#include/}
	for compiler in ${CC:-cc} gcc clang clang-14; do
		command -v "$compiler" >/dev/null 2>&1 || continue
		compile "$compiler" c c99 "$header" -Wstrict-prototypes
		compile "$compiler" c c11 "$header" '-Wconversion -Wshadow'
	done
	for compiler in g++ clang++ clang++-14; do
		command -v "$compiler" >/dev/null 2>&1 || continue
		compile "$compiler" c++ c++17 "$header" -Wshadow
	done
done

# A header that is guarded may be included twice, and all of them together.
for header in include/moek/*.h include/moek/*.h; do
	echo "#include <${header#include/}>"
done >"$scratch/all.c"
if ! "${CC:-cc}" -std=c11 -Wall -Wextra -Iinclude -fsyntax-only "$scratch/all.c"; then
	echo 'the headers do not go together'
	status=1
fi

if [ "$tried" -eq 0 ]; then
	echo 'no compiler here'
	exit 77
fi
echo "$tried compilations"
exit $status
