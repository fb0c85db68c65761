#!/bin/sh
# SPDX-License-Identifier: MIT
# summary.sh BUILD: add up the tests that `make check` ran in BUILD: those that Check
# counted in a log, else the lines of TAP, else the program as one test.
cd "${1:?usage: summary.sh BUILD}" || exit 1
for result in $(find tests -name '*.trs' | sort); do
	log=${result%.trs}.log
	awk -v outcome="$(sed -n 's/^:test-result: *//p' "$result")" '
		/^[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/ {
			split($0, n, /[^0-9]+/)
			counted = 1; passed += n[2] - n[3] - n[4]; failed += n[3] + n[4]
		}
		/^ok .*# [Ss][Kk][Ii][Pp]/ { counted = 1; skipped++; next }
		/^ok / { counted = 1; passed++ }
		/^not ok / { counted = 1; failed++ }
		END {
			if (!counted && outcome == "PASS") passed = 1
			# a program that skips its rest has counted what came before
			if (outcome == "SKIP") skipped++
			# a program that ended badly failed, whatever it counted before
			if (outcome != "PASS" && outcome != "SKIP" && failed == 0) failed = 1
			print passed + 0, failed + 0, skipped + 0
		}' "$log"
done | awk '
	{ passed += $1; failed += $2; skipped += $3 }
	END {
		printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
		exit failed > 0 || passed == 0
	}'
