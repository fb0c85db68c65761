#!/bin/sh
# SPDX-License-Identifier: MIT
# moek verify: our plugins pass, each fault of tests/fakes/damaged.c and the zoo is found by
# the case that is there for it, and what did not run is not certified.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_FAKES:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
table=$MOEK_TEST_BUILD/verify.md
json() { "$MOEK_TEST_BUILD/tests/jsonpath" "$@" <"$work/out"; }

# ---- what passes ----

emulation=$MOEK_TEST_PLUGINS/emulation.so
exits 0 'emulation passes all but numbers' "$moek" verify "$emulation" --case '[!N]*'
shows "$out" '^ok [0-9]+ - F\.seed 16 on emulation\.any$' 'with random cases'
shows "$out" '^# certificate: incomplete$' 'and a part is not the whole'
for plugin in cpu rdna3; do
	exits 0 "$plugin passes all but numbers" "$moek" verify "$MOEK_TEST_PLUGINS/$plugin.so" \
		--case '[!NF]*'
done
exits 0 'and numbers' "$moek" verify "$emulation" --case 'N.int4_g32/*'
exits 0 'in JSON' "$moek" verify "$emulation" --case 'S.*' --json
check 'which says what passed' [ "$(json passed failed complete cases.0.name)" = "4
0
false
S.probe" ]
check 'of which file' [ "$(json sha256)" = "$(sha256sum <"$emulation" | cut -d' ' -f1)" ]
exits 0 'a random case is reproduced' "$moek" verify "$emulation" --reproduce 7
shows "$out" '^ok 1 - F\.seed 7 on emulation\.any$' 'alone'
exits 0 'and in this process' "$moek" verify "$emulation" --reproduce 7 --in-process
shows "$out" '^ok 1 - F\.seed 7 on emulation\.any$' 'too'
if "$moek" list --open | grep -q 'rdna3\.w4a16 *ready'; then
	skipped 'a device that is not here' 'it is here'
else
	exits 0 'what did not run fails nothing' "$moek" verify "$MOEK_TEST_PLUGINS/rdna3.so" \
		--case 'N.int4_g32/silu/*'
	shows "$out" '^ok .* # SKIP claimed and not run: (absent|unusable),' 'but is listed'
	shows "$out" '^# not run: rdna3\.w4a16: (absent|unusable),' 'for each backend'
	shows "$out" '^# certificate: incomplete$' 'and not certified'
fi
exits 3 'a file that is not there is bad input' "$moek" verify "$work/nowhere.so"
exits 2 'no file is a usage error' "$moek" verify
shows "$err" 'verify: needs a PLUGIN\.so' 'which is named'
exits 1 'a case that is none is no pass' "$moek" verify "$emulation" --case 'no such'

# ---- what fails: a row for each fault ----

printf '| fault | what moek verify says | case |\n|---|---|---|\n' >"$table"
# finds FAULT CASE PATTERN: the case fails with it, and passes without the fault
finds() {
	printf '[plugin damaged]\nfault = %s\n' "$1" >"$work/damaged.ini"
	exits 1 "$1: it is found" "$moek" verify "$MOEK_TEST_FAKES/damaged.so" --case "$2" \
		--config "$work/damaged.ini" --time-limit 1
	shows "$out" "^not ok 1 - $2" 'by its case'
	shows "$out" "^# $3" 'which says how'
	printf '| %s | %s | %s |\n' "$1" "$(printf '%s\n' "$out" | grep -E "^# $3" | head -n 1 |
		sed 's/^# //; s/output\[[0-9]*\]\[[0-9]*\] is .*/an output beyond its allowance/
			s/ of [0-9]* bytes//')" "$2" >>"$table"
	printf '[plugin damaged]\nfault = none\n' >"$work/damaged.ini"
	exits 0 'and without the fault the case passes' "$moek" verify \
		"$MOEK_TEST_FAKES/damaged.so" --case "$2" --config "$work/damaged.ini"
}
finds dropped 'N.int4_g32/silu/bf16' 'output\['
finds zero 'N.int4_g32/silu/bf16' 'output\['
finds swapped 'N.int4_g32/silu/bf16' 'output\['
finds no_zeros 'N.int4_g32_asym/silu/bf16' 'output\['
finds no_limit 'N.int4_g32/silu_limit/bf16' 'output\['
finds lies 'N.int4_g32/silu/bf16' '.*create'
finds past 'N.int4_g32/silu/bf16' '.*wrote outside its workspace buffer'
finds input 'N.int4_g32/silu/bf16' '.*changed its input'
finds crashes 'N.int4_g32/silu/bf16' 'crashed with signal 6'
finds hangs 'N.int4_g32/silu/bf16' 'no end within 1 s'
finds rounds 'E.forward' 'changes how the thread rounds'
exits 1 'what does not survive a probe' "$moek" verify "$MOEK_TEST_ZOO/aborts_at_load.so"
shows "$out" '^# crashed with signal 6 \(SIGABRT\) at step load \(probe_crash, 501\)' 'is told'
shows "$out" '^1\.\.1$' 'and let near nothing else'
exits 1 'a plugin without a note' "$moek" verify "$MOEK_TEST_FAKES/good_host.so" --case 'S.note'
shows "$out" 'it has no note' 'is told to have one'
exits 1 'yes to everything' "$moek" verify "$MOEK_TEST_FAKES/good_host.so" --case 'A.unknown*'
shows "$out" 'says yes to gate_up\.weight = 0xffff' 'is not believed'
exits 1 'a no without a reason' "$moek" verify "$MOEK_TEST_FAKES/gives_no_reason.so" --case 'C.*'
shows "$out" 'a no without a rule' 'is none'
exits 1 'static TLS' "$moek" verify "$MOEK_TEST_ZOO/static_tls.so" --case 'S.loading'
shows "$out" 'needs static TLS' 'is found'

while read -r line; do
	check "tests/zoo/README.md has: $line" grep -qF -- "$line" "$MOEK_TEST_SOURCE/zoo/README.md"
done <"$table"
done_testing
