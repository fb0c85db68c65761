#!/bin/sh
# SPDX-License-Identifier: MIT
# Build every fuzz_*.c beside this file with libFuzzer and run each for SECONDS (10),
# from the seeds in corpus_*/. Without clang: exit 77. A finding is kept in the folder
# that is printed.
set -eu

seconds=${1:-10}
source=$(cd "$(dirname "$0")/../.." && pwd)
base=${TMPDIR:-/dev/shm} # targets write files, thousands a second
[ -w "$base" ] || base=/tmp
work=$(mktemp -d "$base/moek-fuzz.XXXXXX")
CLANG=${CLANG:-$(command -v clang-14 || command -v clang || true)}
flags="-g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined"

if [ -z "$CLANG" ] || ! echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
	$CLANG $flags -x c - -o "$work/try" 2>/dev/null; then
	echo "skipped: no clang with libFuzzer"
	rm -rf "$work"
	exit 77
fi

# what ./configure would find out
printf '#define _GNU_SOURCE 1\n#define PACKAGE_VERSION "fuzz"\n' > "$work/config.h"
packages="inih jansson"
mkdir "$work/objects"
(cd "$work/objects" && $CLANG $flags -fsanitize=fuzzer-no-link -std=c11 -pthread -c \
	-I"$work" -I"$source" -I"$source/include" -I"$source/tests" \
	-DMOEK_PLUGIN_DIR='"/nonexistent"' -DMOEK_PROBE_HELPER='"/nonexistent"' -DMOEK_CONFIG_FILE='"/nonexistent"' \
	$(pkg-config --cflags $packages) "$source"/core/*.c "$source/tests/kit.c")

failed=0
for target in "$source"/tests/fuzz/fuzz_*.c; do
	name=$(basename "$target" .c)
	corpus=$source/tests/fuzz/corpus_${name#fuzz_}
	mkdir -p "$work/$name.corpus"
	$CLANG $flags -std=c11 -pthread -I"$work" -I"$source" -I"$source/include" \
		-I"$source/tests" $(pkg-config --cflags $packages) "$target" \
		"$work"/objects/*.o $(pkg-config --libs $packages) -lm -ldl -o "$work/$name"
	echo "$name: $seconds s"
	if (cd "$work" && "./$name" -max_total_time="$seconds" -timeout=10 -max_len=16384 \
		-rss_limit_mb=2048 -print_final_stats=1 "$work/$name.corpus" "$corpus" \
		> "$work/$name.log" 2>&1); then
		grep -E 'number_of_executed_units|new_units_added' "$work/$name.log"
	else
		failed=1
		tail -50 "$work/$name.log"
	fi
done
if [ $failed != 0 ]; then
	echo "findings are in $work"
	exit 1
fi
rm -rf "$work"
