#!/bin/sh
# SPDX-License-Identifier: MIT
# The machine code of the GPU plugins on an instruction emulator that no package has: run
# where MOEK_TEST_TINYGRAD says where it is (a quarter of an hour), else skipped.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
if [ -z "${MOEK_TEST_TINYGRAD:-}" ]; then
	echo 'skip: MOEK_TEST_TINYGRAD names no checkout of tinygrad; see tests/gpu/run-emulator.sh'
	exit 77
fi
for plugin in rdna3 aiter_mxfp4; do
	"$MOEK_TEST_SOURCE/gpu/run-emulator.sh" $plugin "$MOEK_TEST_BUILD" "$MOEK_TEST_TINYGRAD" ||
		exit
done
