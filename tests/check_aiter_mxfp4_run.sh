#!/bin/sh
# SPDX-License-Identifier: MIT
# The main job on a made-up card: moek.ini, aiter_mxfp4.so and a checkpoint, from select to
# output, on the fake HIP runtime.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_PLUGINS:?}"
: "${MOEK_TEST_FAKES:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
models=$MOEK_TEST_SOURCE/fixtures/checkpoints
fake=$MOEK_TEST_FAKES/fakehip.so
quark=$models/tiny-qwen3moe-quark-mxfp4
gptoss=$models/tiny-gptoss-mxfp4

# card GFX_TARGET_VERSION: the only card in $work/sys
card() {
	rm -rf "$work/sys"
	pci=$work/sys/bus/pci/devices/0000:03:00.0
	nodes=$work/sys/class/kfd/kfd/topology/nodes
	mkdir -p "$pci" "$nodes/1"
	echo 0x1002 >"$pci/vendor"
	echo 0x75a0 >"$pci/device"
	echo 0x120000 >"$pci/class"
	printf 'simd_count 1024\nsimd_per_cu 4\nwave_front_size 64\nlocation_id 768\ndomain 0\n' \
		>"$nodes/1/properties"
	echo "gfx_target_version $1" >>"$nodes/1/properties"
}
printf '%s\n' '[registry]' 'schema = 1' 'on_degraded = allow' \
	'[priority]' 'aiter_mxfp4 = on' 'emulation = on' \
	'[plugin aiter_mxfp4]' "sysfs = $work/sys" 'kfd = /dev/null' "runtime = $fake" \
	>"$work/moek.ini"
explain() {
	folder=$1
	shift
	"$moek" explain "$folder" --config "$work/moek.ini" "$@"
}
run() { # MODEL ORACLE [options]
	folder=$1 oracle=$2
	shift 2
	"$moek" run "$folder" --config "$work/moek.ini" --against "$folder/expected/$oracle" "$@"
}

card 90402
export FAKEHIP_ARCH=gfx942
exits 0 'on gfx942 another backend runs' explain "$gptoss" --type bf16
shows "$out" '^ +aiter_mxfp4\.w4a16 +unusable +hip gfx942 +device gfx942 ' 'and the report names the architecture'
shows "$out" '^ +emulation\.any +chosen' 'and who runs'

card 90500
export FAKEHIP_ARCH=gfx950
exits 0 'with gfx950 and its runtime somebody is chosen' explain "$gptoss" --type bf16
if ! says "$out" '^ +aiter_mxfp4\.w4a16 +chosen +hip gfx950' >/dev/null; then
	check 'aiter_mxfp4 was built without a GPU compiler, and says so' \
		says "$out" '^ +aiter_mxfp4\.w4a16 .*built without a GPU compiler'
	echo "1..$count # the rest is skipped: aiter_mxfp4 was built without GPU code"
	[ "$failures" -eq 0 ] && exit 77
	exit 1
fi
passed 'and that is aiter_mxfp4, with 16-bit activations'
shows "$out" 'aiter_mxfp4\.w4a4 +refused .*activations a16 +mxfp4_even or mxfp4_round_up' \
	'which never quantises them unasked'
exits 0 'a checkpoint that asks for W4A4' explain "$quark"
shows "$out" '^ +aiter_mxfp4\.w4a4 +chosen' 'gets it'
shows "$out" 'shared exponent: even' 'and the report says by which rule'
shows "$out" 'aiter_mxfp4\.w4a16 +refused .*activations mxfp4_even +a16' \
	'and never runs with 16-bit activations unasked'

if nm -D "$fake" 2>/dev/null | grep -q __tsan; then
	echo "1..$count # the rest is skipped: fibers do not run under the thread sanitizer"
	[ "$failures" -eq 0 ] && exit 77
	exit 1
fi
for tokens in 5 48; do
	exits 0 "W4A16, five blocks, $tokens tokens: agrees with the outputs of other people's code" \
		run "$gptoss" oracle.safetensors --type bf16 --tokens $tokens --layers 1-1
	shows "$out" "^layers\.1 +aiter_mxfp4\.w4a16 +$tokens " 'and aiter_mxfp4 ran it'
	exits 0 "W4A4, $tokens tokens: agrees with what Quark's own code computed" \
		run "$quark" oracle_w4a4.safetensors --tokens $tokens --layers 0-0
	shows "$out" "^layers\.0 +aiter_mxfp4\.w4a4 +$tokens " 'and aiter_mxfp4 ran it'
done
exits 1 'and is told apart from 16-bit activations' \
	run "$quark" oracle.safetensors --tokens 5 --layers 0-0
shows "$out" '^1 of 1 layer wrong' 'by the values'
export MOEK_CHECK=1 FAKEHIP_REVERSE=1
exits 0 'with poisoned and guarded buffers, in reverse order, W4A4 agrees too' \
	run "$quark" oracle_w4a4.safetensors --tokens 20 --layers 3-3
exits 0 'and W4A16' run "$gptoss" oracle.safetensors --type bf16 --tokens 20 --layers 3-3
unset MOEK_CHECK FAKEHIP_REVERSE

# a part of the table of every backend
for cases in 'a4_*' 'a8_fp8' '*_mxfp4' 'expert_map_bias' 'mxfp4*/silu/f16'; do
	exits 0 "kernelcheck agrees: $cases" "$MOEK_TEST_BUILD/tests/kernelcheck/kernelcheck" \
		"$MOEK_TEST_PLUGINS/aiter_mxfp4.so" --config "$work/moek.ini" --case "$cases"
done
done_testing
