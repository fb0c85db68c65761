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

# one line for each run: the target and, for codecs, which
for target in "$source"/tests/fuzz/fuzz_*.c; do
	name=$(basename "$target" .c)
	$CLANG $flags -std=c11 -pthread -I"$work" -I"$source" -I"$source/include" \
		-I"$source/tests" $(pkg-config --cflags $packages) "$target" \
		"$work"/objects/*.o $(pkg-config --libs $packages) -lm -ldl -o "$work/$name"
	if [ "$name" = fuzz_codec ]; then
		MOEK_FUZZ_KIND= "$work/$name" 2>&1 </dev/null | sed -n 's/.* none of: //p' | tr ' ' '\n' |
			sed "s/^/$name /"
	else
		echo "$name -"
	fi
done >"$work/runs"

# as many at once as there are processors, each in a folder of its own
cat >"$work/one.sh" <<'END'
name=$1 kind=$2 run=$work/$1.$2
corpus=$source/tests/fuzz/corpus_${name#fuzz_}
mkdir -p "$run/corpus"
[ -d "$corpus" ] || corpus=
export MOEK_FUZZ_KIND=$kind
if (cd "$run" && "$work/$name" -max_total_time="$seconds" -timeout=10 -max_len=16384 \
	-rss_limit_mb=2048 -print_final_stats=1 "$run/corpus" $corpus >"$run/log" 2>&1); then
	echo "$name $kind: $seconds s, $(sed -n 's/stat::number_of_executed_units: *//p' "$run/log") inputs," \
		"$(sed -n 's/stat::new_units_added: *//p' "$run/log") new"
else
	touch "$work/failed"
	echo "$name $kind: a finding"
	tail -50 "$run/log"
fi
END
export work source seconds
xargs -n 2 -P "$(nproc)" sh "$work/one.sh" <"$work/runs"
if [ -e "$work/failed" ]; then
	echo "findings are in $work"
	exit 1
fi
rm -rf "$work"
