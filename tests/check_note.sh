#!/bin/sh
# SPDX-License-Identifier: MIT
# MOEK_PLUGIN_NOTE gets into the file and stays there, whatever compiles, optimises,
# collects or strips it, in C and in C++.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
mkdir "$work/plugins"
cat >"$work/note.c" <<'END'
#include <moek/experts.h>
MOEK_PLUGIN_NOTE("id=kept\n" "version=9.9\nclass=native\ndevices=host\n");
END

# kept COMPILER LANGUAGE FLAGS: a file of the note alone is listed by it
kept() {
	compiler=$1 language=$2
	shift 2
	command -v "$compiler" >/dev/null 2>&1 || return 0
	"$compiler" -x "$language" -Wall -Wextra -Werror -I"$MOEK_TEST_SOURCE/../include" \
		-shared -fPIC "$@" -o "$work/plugins/kept.so" "$work/note.c" || return 1
	exits 0 "moek list reads a note of $compiler $*" "$moek" list \
		--plugin-dir "$work/plugins" --config ''
	shows "$out" 'kept +unopened +native +9\.9 +host' 'and shows what it says'
	rm "$work/plugins/kept.so"
}

for flags in -O0 '-O2 -ffunction-sections -fdata-sections -Wl,--gc-sections -s' '-O2 -flto -s'; do
	for compiler in gcc clang clang-14; do
		# shellcheck disable=SC2086
		kept $compiler c -std=c99 -pedantic $flags ||
			skipped "a note of $compiler $flags" 'it does not compile here'
	done
	for compiler in g++ clang++ clang++-14; do
		# shellcheck disable=SC2086
		kept $compiler c++ -std=c++17 -pedantic $flags ||
			skipped "a note of $compiler $flags" 'it does not compile here'
	done
done
check 'some compiler was here' [ "$count" -ge 4 ]
done_testing
