#!/bin/sh
# SPDX-License-Identifier: MIT
# moek doctor: one fault in each report or tree, and a neighbour that differs in one fact.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_FAKES:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
json() { "$MOEK_TEST_BUILD/tests/jsonpath" "$@" <"$work/out" 2>&1; }
root=$work/root
mkdir -p "$root/dev" "$root/etc" "$root/proc" "$root/opt/thing/lib"
printf 'root:x:0:\ncards:x:%s:\nothers:x:54321:\n' "$(id -g)" >"$root/etc/group"

# report STATE RULE FOUND [PATH]: of one candidate, beside one that is well
report() {
	printf '[{"label":"x","candidates":[{"name":"good.any","state":"ready","found":"","path":"/x"},
	{"name":"bad.any","state":"%s","found":"%s","path":"%s",
	 "verdict":{"rule":"%s","number":1,"accepted":[1,2]}}],"searched":[{"path":"/x"}]}]' \
		"$1" "$3" "$4" "$2" >"$work/report.json"
}
doctor() { "$moek" doctor "$work/report.json" --root "$root" "$@"; }
# sick WHAT EVIDENCE NEXT: found, and told
sick() {
	exits 1 "$1" doctor
	shows "$out" "^  evidence  .*$2" 'is seen'
	shows "$out" "^  next      .*$3" 'and it is said what to do'
}

# ---- who is well ----

for state in ready chosen refused absent disabled; do
	report $state device_permission 'permission denied: /dev/card'
	exits 0 "nothing is wrong with what is $state" doctor
done
shows "$out" '^nothing is wrong$' 'and it is said'

# ---- device files ----

report unusable device_driver 'not there: /dev/card'
sick 'no device file' '/dev/card: No such file' "Load the card's kernel driver"
: >"$root/.dockerenv"
sick 'the same in a container' 'this is a container: /.dockerenv' '--device=/dev/card'
rm "$root/.dockerenv"
: >"$root/dev/card"
chmod 0660 "$root/dev/card"
report unusable device_permission 'permission denied: /dev/card'
sick 'of a group that one is in' 'mode 0660 and group cards; this process is a member' 'ask again'
chmod 0600 "$root/dev/card"
sick 'closed to its group' 'mode 0600' 'chmod g.rw /dev/card'
chmod 0660 "$root/dev/card"
if [ "$(id -u)" = 0 ]; then
	chgrp 54321 "$root/dev/card"
	sick 'of a group that one is not in' 'group others; this process is no member' 'usermod -aG others'
else
	skipped 'of a group that one is not in' 'needs root'
fi

# ---- files ----

report broken library 'libthing.so.3: cannot open shared object file: No such file'
sick 'a library that is nowhere' 'libthing\.so\.3 is in no folder' 'Install the package that has libthing\.so\.3'
: >"$root/opt/thing/lib/libthing.so.3"
sick 'one that is elsewhere' 'opt/thing/lib/libthing\.so\.3 is there' 'ldconfig'

cp "$MOEK_TEST_FAKES/good_host.so" "$work/other.so"
printf '\363\000' | dd of="$work/other.so" bs=1 seek=18 conv=notrunc 2>/dev/null
report broken machine 'built for another machine' "$work/other.so"
sick 'a file of another machine' 'the file is for riscv, this is ' 'Take the file for this machine'

chmod 0755 "$work"
cp "$MOEK_TEST_FAKES/good_host.so" "$work/open.so"
chmod 0666 "$work/open.so"
report broken writable 'can be changed by others' "$work/open.so"
sick 'a file that all may write' 'open\.so has mode 0666' 'chmod go-w .*open\.so'
touch -d 2001-02-03 "$work/open.so"
report broken abi_major 'abi 0.9' "$work/open.so"
sick 'a stale file' 'open\.so is of 2001-02-03; this is moek .*abi 0\.9' 'Rebuild'

printf 'flags : fpu avx hypervisor\n' >"$root/proc/cpuinfo"
report unusable isa 'lacks x'
sick 'a virtual machine' 'lacks x; this is a virtual machine' 'give the virtual machine'
printf 'flags : fpu avx\n' >"$root/proc/cpuinfo"
exits 1 'a real one' doctor
check 'is none' [ -z "$(printf '%s' "$out" | grep 'virtual machine, which may')" ]

report missing not_installed 'not installed; did you mean x?'
sick 'a name without a file' 'did you mean x' '.'
report failed golden 'golden test of 1 token: \"off\"'
sick 'wrong numbers' 'golden test of 1 token: "off"' 'Report it'

# ---- reports ----

exits 1 'in JSON' doctor --json
check 'with the rule' [ "$(json 0.rule)" = golden ]
check 'of one' [ "$(json '#')" = 1 ]
printf '[{"name":"x"' >"$work/report.json"
exits 3 'half a report is no report' doctor
shows "$err" 'not a report in JSON' 'and it is said'
exits 3 'nor is none' "$moek" doctor "$work/nothing.json"

mkdir "$work/plugins"
cp "$MOEK_TEST_FAKES/good_host.so" "$work/plugins"
printf '[registry]\nunlisted = ignore\n[priority]\ngood_host = on\n' >"$work/good.ini"
exits 0 'a report of its own, all well' "$moek" doctor --config "$work/good.ini" --plugin-dir "$work/plugins"
printf 'nosuch = on\n' >>"$work/good.ini"
exits 1 'and with a name too many' "$moek" doctor --config "$work/good.ini" --plugin-dir "$work/plugins"
shows "$out" '^nosuch: missing' 'which is named'
done_testing
