#!/bin/sh
# SPDX-License-Identifier: MIT
# moek convert as a user meets it, and what other people's code makes of its files.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
models=$MOEK_TEST_SOURCE/fixtures/checkpoints
bf16=$models/tiny-qwen3moe-bf16

exits 2 'without --to it is a usage error' "$moek" convert "$bf16" "$work/none"
shows "$err" 'needs --to SCHEME, one of: w4a16-g32,' 'which lists the schemes'
exits 2 'so is a scheme that is none' "$moek" convert "$bf16" "$work/none" --to w4a16-g48
shows "$err" '--to w4a16-g48: not one of w4a16-g32,' 'which is named'
exits 2 'so is one folder alone' "$moek" convert "$bf16" --to bf16
exits 2 'so are three' "$moek" convert "$bf16" "$work/none" "$work/more" --to bf16
check 'and nothing was written' [ ! -e "$work/none" ]

exits 0 'experts become int4' "$moek" convert "$bf16" "$work/int4" --to w4a16-g32
check 'without a word on stderr' [ -z "$err" ]
exits 0 'the result runs' "$moek" run "$work/int4" --tokens 4
exits 3 'nothing is overwritten' "$moek" convert "$bf16" "$work/int4" --to bf16
shows "$err" 'int4: is there already' 'and the folder is named'
exits 1 'a format that the model has no names for exits 1' \
	"$moek" convert "$models/tiny-gptoss-mxfp4" "$work/none" --to w4a16-g32
exits 3 'a folder that cannot be made exits 3' "$moek" convert "$bf16" "$work/no/such" --to bf16
exits 0 'gpt-oss stays gpt-oss' \
	"$moek" convert "$models/tiny-gptoss-mxfp4" "$work/oss" --to mxfp4-gpt-oss
exits 0 'and gives the same outputs' "$moek" run "$work/oss" \
	--against "$models/tiny-gptoss-mxfp4/expected/oracle.safetensors"

# ---- read by others ----

python=${MOEK_TEST_PYTHON:-python3}
for scheme in w4a16-g32 w4a16-g128 w4a16-g64-asym mxfp4; do
	if ! "$python" -c 'import compressed_tensors, safetensors, torch' 2>"$work/why"; then
		skipped "compressed-tensors reads $scheme" "$(tail -n 1 "$work/why"); set MOEK_TEST_PYTHON"
		continue
	fi
	rm -rf "$work/rows" "$work/theirs"
	exits 0 "experts become $scheme" "$moek" convert "$bf16" "$work/theirs" --to "$scheme"
	exits 0 'and rows again' "$moek" convert "$work/theirs" "$work/rows" --to fp32
	exits 0 'which compressed-tensors reads the same' \
		"$python" "$MOEK_TEST_SOURCE/pypi/read_back.py" "$work/theirs" "$work/rows"
	shows "$out" '^192 modules equal$' 'all of them'
done

done_testing
