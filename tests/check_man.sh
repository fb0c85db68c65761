#!/bin/sh
# SPDX-License-Identifier: MIT
# The manual says what there is: every key, every function, every reason; and roff has no
# complaint about any page.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

top=$MOEK_TEST_SOURCE/..
moek=$MOEK_TEST_BUILD/tools/moek
pages="moek.1 libmoek.3 moek.ini.5 moek-plugin.7 moek-reasons.7"
[ ! -e "$top/tools/moek-mpi.1" ] || pages="$pages moek-mpi.1"

# ---- reasons ----

exits 0 'moek reasons lists them' "$moek" reasons --json
sed -n 's/^[[:space:]]*MOEK_RULE_[A-Z0-9_]* = \([1-9][0-9]*\).*/\1/p' "$top/include/moek/problem.h" | sort >"$work/rules"
grep -o '"number": [0-9]*' "$work/out" | cut -d ' ' -f 2 | sort >"$work/told"
check 'each rule of problem.h and no other' cmp "$work/rules" "$work/told"
check 'and there are many' [ "$(wc -l <"$work/rules")" -ge 70 ]
exits 0 'one by its name' "$moek" reasons group_size
shows "$out" '^802 group_size$' 'has its number'
exits 0 'and by its number' "$moek" reasons 802
shows "$out" '^  fix +[A-Z]' 'tells how to mend it'
exits 2 'one that is none is a usage error' "$moek" reasons 9999
shows "$err" '9999 is no reason; moek reasons lists them' 'and named'
exits 2 'a misspelt one is, too' "$moek" reasons grop_size --json
shows "$err" 'grop_size is no reason; did you mean group_size\?' 'with the nearest name'
check 'and no JSON looks like an answer' [ -z "$out" ]
exits 0 'the page of the manual is printed from the same table' "$moek" reasons --man
check 'and is the one that is kept' cmp "$work/out" "$top/tools/moek-reasons.7"

# ---- what the pages name ----

# what stands in a page, without its roff
plain() { sed 's/\\-/-/g' "$top/tools/$1"; }
missing() { # PAGE WORD...
	page=$1
	shift
	plain "$page" >"$work/page"
	for word in "$@"; do
		grep -qw -- "$word" "$work/page" || echo "# $page lacks $word"
	done
}
keys=$(sed -n '/known_keys\[\] = {/,/^};/s/^\t{ "\([a-z_]*\)".*/\1/p' "$top/core/settings.c")
check 'moek.ini has keys' [ "$(echo "$keys" | wc -l)" -ge 9 ]
lacks=$(missing moek.ini.5 $keys enabled isa runtime sysfs kfd use_aiter aiter_dir MOEK_CONFIG MOEK_PLUGIN_DIRS MOEK_THREADS MOEK_CHECK)
check "moek.ini(5) names each${lacks:+: $lacks}" [ -z "$lacks" ]
functions=$(grep -o 'moek_[a-z0-9_]*;' "$top/core/moek.map" | tr -d ';')
check 'libmoek has functions' [ "$(echo "$functions" | wc -l)" -ge 50 ]
lacks=$(missing libmoek.3 $functions)
check "libmoek(3) names each${lacks:+: $lacks}" [ -z "$lacks" ]
hooks=$(sed -n '/^struct moek_experts {/,/^};/s/.*(\*\([a-z_]*\)).*/\1/p' "$top/include/moek/experts.h")
check 'backends have hooks' [ "$(echo "$hooks" | wc -l)" -ge 16 ]
lacks=$(missing moek-plugin.7 $hooks moek_plugin_v1 MOEK_PLUGIN_NOTE)
check "moek-plugin(7) names each${lacks:+: $lacks}" [ -z "$lacks" ]
commands=$("$moek" --help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p' | sort -u)
lacks=$(missing moek.1 $commands)
check "moek(1) names each command${lacks:+: $lacks}" [ -z "$lacks" ]

# ---- roff ----

for page in $pages; do
	if ! command -v groff >/dev/null || ! groff -man -Tutf8 -z /dev/null 2>/dev/null; then
		skipped "$page has no mistake of roff" 'groff with its man macros is not installed'
		continue
	fi
	groff -ww -man -Tutf8 -z "$top/tools/$page" 2>"$work/complaints"
	check "$page has no mistake of roff" [ ! -s "$work/complaints" ]
	sed 's/^/# /' "$work/complaints"
done

done_testing
