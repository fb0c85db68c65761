#!/bin/sh
# SPDX-License-Identifier: MIT
# README.md and plugins/README.md say what is so.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

top=$MOEK_TEST_SOURCE/..
moek=$MOEK_TEST_BUILD/tools/moek
variable() { sed -n "s/^$1 = //p" "$MOEK_TEST_BUILD/Makefile"; }

# blocks LANGUAGE FILE: the fenced blocks of one language
blocks() { awk -v fence="\`\`\`$1" '/^```/ { on = !on && $0 == fence; next } on' "$2"; }

# ---- the program ----

blocks c "$top/README.md" >"$work/embed.c"
check "the README's program is examples/minimal.c" cmp "$work/embed.c" "$top/examples/minimal.c"
exits 0 'and compiles' $(variable CC) $(variable CFLAGS) -std=c11 -Wall -Wextra -Werror \
	-I"$top/include" -o "$work/embed" "$work/embed.c" -L"$MOEK_TEST_BUILD/.libs" \
	-Wl,-rpath,"$MOEK_TEST_BUILD/.libs" -lmoek
MOEK_PLUGIN_DIRS=$MOEK_TEST_PLUGINS MOEK_CONFIG=$top/conf/moek.ini
export MOEK_PLUGIN_DIRS MOEK_CONFIG
exits 0 'and runs' "$work/embed"
check 'and prints what the README says' grep -qF -- " ${out#* }" "$top/README.md"
exits 0 'examples/engine runs' "$MOEK_TEST_BUILD/examples/engine"
shows "$out" 'tensors and callback give the same bits on 3 threads' 'with the same bits'
unset MOEK_PLUGIN_DIRS MOEK_CONFIG

# ---- the commands ----

# every command and option on a line that runs moek is one that its help has
blocks sh "$top/README.md" | sed -n 's|^\(build/tools/\)\{0,1\}moek |&|p' >"$work/lines"
check 'the README shows commands' [ "$(wc -l <"$work/lines")" -ge 5 ]
while read -r line; do
	command=$(printf '%s\n' "$line" | sed 's/^[^ ]* //;s/ .*//')
	help=$("$moek" "$command" --help 2>&1) || help=
	check "moek $command exists" [ -n "$help" ]
	for option in $(printf '%s\n' "$line" | grep -o -- ' --[a-z-]*'); do
		check "moek $command takes $option" says "$help" "^  $option( |\$)"
	done
done <"$work/lines"

# ---- the picture: the same lines in the same order, whatever the machine ----

# candidates, numbers and the device are those of the machine where it was taken
frame() {
	sed -nE 's/^(layers\.0-3|  problem|  request|  order|  device|  numerics) .*/\1/p
		s/^(layers\.0-3): .*/\1/p
		s/^(layers\.[0-9]) .* equal, .* ms$/\1/p
		s/^(4 layers agree with [^ ]*;) .*/\1/p
		/^  backend  |^layer  /{s/ +/ /g;p;}'
}
model=tests/fixtures/checkpoints/tiny-qwen3moe-ct-sym-g32
blocks text "$top/README.md" | frame >"$work/picture"
(cd "$top" && "$moek" run $model --against $model/expected/oracle.safetensors) 2>&1 |
	frame >"$work/now"
check "the README's picture of moek run has 13 lines of a fixed form" \
	[ "$(wc -l <"$work/picture")" -eq 13 ]
check 'which are those that moek run prints' diff "$work/picture" "$work/now"

# ---- the walk through a backend ----

blocks c "$top/plugins/README.md" | sed 's/[[:space:]]*$//' | grep -v '^$' >"$work/walk"
check 'plugins/README.md shows code' [ "$(wc -l <"$work/walk")" -ge 40 ]
awk 'NR == FNR { want[++n] = $0; next }
	{ sub(/[[:space:]]*$/, "") }
	at < n && $0 == want[at + 1] { at++ }
	END { if (at < n) print "not in tests/embed/plain.c, in this order: " want[at + 1]
		exit at < n }' "$work/walk" "$MOEK_TEST_SOURCE/embed/plain.c" >"$work/lost"
check 'and all of it is tests/embed/plain.c' [ ! -s "$work/lost" ]
sed 's/^/# /' "$work/lost"

done_testing
