# SPDX-License-Identifier: MIT
# For the shell tests, to be sourced: counts in TAP, a scratch folder that goes away.
#   check "sentence" COMMAND...      ok when it succeeds
#   exits CODE "sentence" COMMAND... ok when it exits with CODE; $out and $err hold what
#                                    it printed
work=$(mktemp -d "${TMPDIR:-/tmp}/moek-test.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
count=0
failures=0

passed() { count=$((count + 1)); echo "ok $count - $1"; }
failed() {
	count=$((count + 1))
	failures=$((failures + 1))
	echo "not ok $count - $1"
}
skipped() { count=$((count + 1)); echo "ok $count - $1 # skip $2"; }

check() {
	sentence=$1
	shift
	if "$@"; then passed "$sentence"; else failed "$sentence"; fi
}

exits() {
	expected=$1 sentence=$2
	shift 2
	code=0
	"$@" >"$work/out" 2>"$work/err" || code=$?
	out=$(cat "$work/out")
	err=$(cat "$work/err")
	if [ "$code" -eq "$expected" ]; then
		passed "$sentence"
	else
		failed "$sentence"
		printf '# exit code %s, expected %s: %s\n' "$code" "$expected" "$*"
		sed 's/^/# /' "$work/out" "$work/err"
	fi
}

# says TEXT PATTERN: an extended expression matches a line of it
says() {
	printf '%s\n' "$1" | grep -Eq -- "$2" && return
	printf '%s\n' "$1" | sed "s/^/# no '$(printf '%s' "$2" | sed 's/[\/&]/\\&/g')' in: /"
	return 1
}

# shows TEXT PATTERN "sentence"
shows() { check "$3" says "$1" "$2"; }

done_testing() {
	echo "1..$count"
	[ "$failures" -eq 0 ]
	exit
}
