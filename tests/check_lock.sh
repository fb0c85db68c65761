#!/bin/sh
# SPDX-License-Identifier: MIT
# moek lock: the world as it was is let through, each single change of it is refused by
# name, and a lock that is none is bad input.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_PLUGINS:?}"
: "${MOEK_TEST_FAKES:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
model=$MOEK_TEST_SOURCE/fixtures/checkpoints/tiny-qwen3moe-ct-sym-g32
mkdir "$work/plugins"
cp "$MOEK_TEST_PLUGINS/emulation.so" "$work/plugins/"
cp "$MOEK_TEST_FAKES/good_host.so" "$MOEK_TEST_FAKES/last_resort.so" "$work/plugins/"
ini() { printf '%s\n' '[registry]' 'schema = 1' 'on_degraded = allow' "$@" >"$work/moek.ini"; }
ini '[priority]' 'emulation = on' 'good_host = on' 'last_resort = on'

# only the plugins of this folder count
at() {
	command=$1
	shift
	"$moek" "$command" "$model" --config "$work/moek.ini" --plugin-dir "$work/plugins" "$@"
}
lock=$work/moek.lock
relock() { at lock --output "$lock" >/dev/null; }
held() { at explain --locked "$lock" "$@"; }

exits 0 'a lock is written' at lock --output "$lock"
shows "$out" 'moek\.lock: 1 choice; --locked ' 'and the tool says how to use it'
check 'nothing is left beside it' [ ! -e "$lock.new" ]
hash=$(sha256sum "$work/plugins/last_resort.so" | cut -d ' ' -f 1)
check 'it names plugins by the hash of their files' \
	grep -q "^plugin last_resort .*sha256 $hash\$" "$lock"
check 'and choices by what was asked' grep -Eq \
	'^choice experts=16,.*weight=int4,.*group_size=32,.* auto: emulation\.any on host' "$lock"
exits 0 'the same world is let through' held
exits 0 'by run, too, whose batches are others' at run --layer 0 --locked "$lock" --type bf16
echo '; a remark' >>"$work/moek.ini"
exits 0 'a comment in moek.ini is no difference' held

# differs SENTENCE LOCKED FOUND [ARGUMENTS]: refused, and both sides are told
differs() {
	sentence=$1 locked=$2 found=$3
	shift 3
	exits 1 "$sentence" held "$@"
	shows "$err" "locked: $locked" 'with what was locked'
	shows "$err" "found:  $found" 'and what is found'
	shows "$err" 'moek\.lock: [0-9]+ lines? differs?: this is not what was locked' 'as one refusal'
}
ini '[priority]' 'good_host = on' 'emulation = on' 'last_resort = on'
differs 'another order is refused' 'setting \[priority\] 1\. emulation = on' \
	'setting \[priority\] 1\. good_host = on'
check 'by run before anything runs' test -z "$(at run --locked "$lock" 2>/dev/null)"
ini '[priority]' 'emulation = on' 'good_host = on' 'last_resort = off'
differs 'a plugin that is off is refused' 'setting \[priority\] 3\. last_resort = on' \
	'setting \[priority\] 3\. last_resort = off'
ini 'unlisted = ignore' '[priority]' 'emulation = on' 'good_host = on' 'last_resort = on'
differs 'another rule of the registry is refused' 'setting \[registry\] unlisted = append' \
	'setting \[registry\] unlisted = ignore'
ini '[priority]' 'emulation = on' 'good_host = on' 'last_resort = on'
exits 0 'and as it was again it is let through' held

cp "$MOEK_TEST_FAKES/good_host.so" "$work/plugins/new.so"
exits 1 'a plugin that was dropped in is refused' held
shows "$err" 'found:  plugin new ' 'by name'
check 'with no line that is gone' [ "$(printf '%s\n' "$err" | grep -c 'locked:')" = 0 ]
rm "$work/plugins/new.so"
mv "$work/plugins/last_resort.so" "$work/away.so"
exits 1 'a plugin that is gone is refused' held
shows "$err" 'locked: plugin last_resort ' 'by name'
{ cat "$work/away.so" && printf '\0'; } >"$work/plugins/last_resort.so"
differs 'a file with one byte more is refused' "plugin last_resort .*$hash" 'plugin last_resort .*sha256'
cp "$work/away.so" "$work/plugins/last_resort.so"

# the machine: facts of another one, then of a third
facts() {
	printf '{"host":{"arch":"x86_64","features":"%s"},"devices":[]}\n' "$1" >"$work/facts.json"
}
facts 'avx2 fma f16c'
exits 0 'a lock for another machine' at lock --facts "$work/facts.json" --output "$lock"
exits 0 'holds there' held --facts "$work/facts.json"
facts 'avx2 fma'
differs 'and not where a feature is missing' 'host x86_64, .*: avx2 fma f16c$' \
	'host x86_64, .*: avx2 fma$' --facts "$work/facts.json"

# the choice itself, all else being equal
relock
sed 's/auto: emulation\.any on host/auto: good_host.any on host/' "$lock" >"$work/other.lock"
exits 1 'another choice than the locked one is refused' at explain --locked "$work/other.lock"
shows "$err" 'locked: choice .*: good_host\.any on host' 'with what was locked'
shows "$err" 'found:  choice .*: emulation\.any on host' 'and what is found'
shows "$out" 'emulation\.any +ready .*would run it, but another is locked' 'and the report says so'
check 'and no reason, as all are the same' [ "$(printf '%s\n' "$err" | grep -Ec '(locked|found): ')" = 2 ]
sed -E 's/^(  good_host\.first) ready.*/\1 refused: hidden 7/' "$lock" >"$work/reason.lock"
check 'reasons are in the lock' grep -Eq '^  good_host\.[a-z]+ refused: hidden 7$' "$work/reason.lock"
exits 0 'another reason alone is no difference' at explain --locked "$work/reason.lock"
sed -i 's/auto: emulation\.any on host/auto: good_host.any on host/' "$work/reason.lock"
exits 1 'it is told with a choice that differs' at explain --locked "$work/reason.lock"
shows "$err" 'locked:   good_host\.[a-z]+ refused: hidden 7' 'as it was locked'
shows "$err" 'found:    good_host\.[a-z]+ ready' 'and as it is found'
check 'and no other' [ "$(printf '%s\n' "$err" | grep -Ec '(locked|found): ')" = 4 ]
exits 0 'a problem that is not in the lock follows from the rest' at explain --locked "$lock" \
	--activations int8

# by moek.ini alone, without an option
ini "lock = $lock" '[priority]' 'emulation = on' 'good_host = on' 'last_resort = on'
exits 0 'moek.ini can name the lock' at explain
ini "lock = $lock" '[priority]' 'good_host = on' 'emulation = on' 'last_resort = on'
exits 1 'and every program is held to it' at explain
ini '[priority]' 'emulation = on' 'good_host = on' 'last_resort = on'

exits 3 'a lock that is not there' at explain --locked "$work/none.lock"
shows "$err" 'none\.lock: No such file' 'is bad input'
echo 'moek lock 2' >"$work/bad.lock"
exits 3 'a lock of another version' at explain --locked "$work/bad.lock"
shows "$err" "bad\.lock:1: 'moek lock 2', expected 'moek lock 1'" 'is named by its line'
printf 'moek lock 1\nplugin cpu\ncolour red\n' >"$work/bad.lock"
exits 3 'a line that is none' at explain --locked "$work/bad.lock"
shows "$err" "bad\.lock:3: 'colour red' is no line of a lock" 'is named, too'
exits 1 'a folder that is not there' at lock --output "$work/none/moek.lock"
shows "$err" 'none/moek\.lock: cannot write: No such file' 'is told'
exits 0 'a lock on standard output' at lock --output -
shows "$out" '^moek lock 1$' 'is the lock alone'
exits 1 'what nobody runs is not locked' at lock --output "$work/no.lock" --backend 'require none'
check 'and no file is made' [ ! -e "$work/no.lock" ]
done_testing
