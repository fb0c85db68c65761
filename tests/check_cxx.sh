#!/bin/sh
# SPDX-License-Identifier: MIT
# A plugin in C++ on the installed header: it passes the conformance kit, and whatever a
# hook of it throws stays inside, is told, and lets a good plugin beside it run.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_PLUGINS:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

cxx=$(sed -n 's/^CXX = //p' "$MOEK_TEST_BUILD/Makefile")
cxx=${cxx:-$(command -v c++ || command -v g++ || command -v clang++ || true)}
[ -n "$cxx" ] || {
	echo 'skip: no C++ compiler'
	exit 77
}
cflags=$(sed -n 's/^CFLAGS = //p' "$MOEK_TEST_BUILD/Makefile")
moek=$MOEK_TEST_BUILD/tools/moek
model=$MOEK_TEST_SOURCE/fixtures/checkpoints/tiny-qwen3moe-bf16
unset MAKEFLAGS MFLAGS MAKELEVEL
stage=$work/stage
exits 0 'make install DESTDIR= succeeds' make -C "$MOEK_TEST_BUILD" install-data DESTDIR="$stage"
include=$stage$(sed -n 's/^prefix = //p' "$MOEK_TEST_BUILD/Makefile")/include

mkdir "$work/plugins"
cp "$MOEK_TEST_PLUGINS/emulation.so" "$work/plugins/"
# templates of the C++ library are visible whatever -fvisibility says
echo '{ global: moek_plugin_v1; local: *; };' >"$work/exports"
compile() { # COMPILER
	# shellcheck disable=SC2086
	$1 $cflags -std=c++17 -Wall -Wextra -Wpedantic -Werror -fPIC -shared -Wl,--version-script="$work/exports" \
		-I"$include" -o "$work/plugins/cxx.so" "$MOEK_TEST_SOURCE/embed/plugin.cpp"
}
for other in g++ clang++; do
	if command -v $other >/dev/null && [ "$other" != "$cxx" ] && [ "${cflags#*-fsanitize}" = "$cflags" ]; then
		exits 0 "it compiles with $other" compile $other
	fi
done
exits 0 "it compiles with $cxx" compile "$cxx"
ini() {
	printf '%s\n' '[registry]' 'schema = 1' 'on_degraded = allow' '[priority]' 'cxx = on' \
		'emulation = on' '[plugin cxx]' "fault = $1" >"$work/moek.ini"
}
ini ''
run() { "$moek" run "$model" --layer 0 --type bf16 --tokens 3 --config "$work/moek.ini" \
	--plugin-dir "$work/plugins" "$@"; }
exits 0 'it runs' run
shows "$out" '^layers\.0 +cxx\.bf16 ' 'as the first in the order'
exits 0 'and passes moek verify' "$moek" verify "$work/plugins/cxx.so"
shows "$out" '^# certificate: complete$' 'with a complete certificate'

for hook in supports_device supports_quant_scheme supports_activation supports_parallel \
	supports_shape; do
	ini $hook
	exits 0 "$hook throws: the next one runs" run
	shows "$out" "^ +cxx\.bf16 +(refused|unusable) .*exception: thrown by $hook" 'the report says why'
	shows "$out" '^layers\.0 +emulation\.any' 'and who ran'
done
ini open
exits 0 'open throws: the next one runs' run
shows "$out$err" 'open: exception: thrown by open' 'and the text is told'
# after five yeses: memory and device let another one run, the rest is the plugin's fault
for hook in create load_expert finish forward worker; do
	ini $hook
	code=0
	run >"$work/out" 2>"$work/err" || code=$?
	check "$hook throws: it is no crash" [ $code -le 1 ]
	check 'its text is told' says "$(cat "$work/out" "$work/err")" "exception: thrown by $hook"
	ini number_$hook
	code=0
	run >"$work/out" 2>"$work/err" || code=$?
	check "$hook throws a number: it is no crash" [ $code -le 1 ]
	check 'and is told' says "$(cat "$work/out" "$work/err")" 'exception of an unknown type'
done
ini memory_create
exits 0 'bad_alloc in create is a lack of memory: the next one runs' run
shows "$out" '^layers\.0 +emulation\.any' 'which is emulation'
for plan in workspace_shapes finalize numerics prepared_size; do
	ini $plan
	code=0
	run >"$work/out" 2>"$work/err" || code=$?
	check "$plan throws: it is no crash" [ $code -le 1 ]
	check 'and is told' says "$(cat "$work/out" "$work/err")" "thrown by $plan"
done
done_testing
