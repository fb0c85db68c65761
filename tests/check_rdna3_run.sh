#!/bin/sh
# SPDX-License-Identifier: MIT
# The main job on a made-up card: moek.ini, rdna3.so and a checkpoint, from select to
# output, on the fake HIP runtime; then other cards and other runtimes, and what is said.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_PLUGINS:?}"
: "${MOEK_TEST_FAKES:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
models=$MOEK_TEST_SOURCE/fixtures/checkpoints
fake=$MOEK_TEST_FAKES/fakehip.so
int4=weight=int4,group_size=32,scale=bf16,experts=8,top_k=2,hidden=256,intermediate=128

# card GFX_TARGET_VERSION: the only card in $work/sys
card() {
	rm -rf "$work/sys"
	pci=$work/sys/bus/pci/devices/0000:03:00.0
	nodes=$work/sys/class/kfd/kfd/topology/nodes
	mkdir -p "$pci" "$nodes/1"
	echo 0x1002 >"$pci/vendor"
	echo 0x744c >"$pci/device"
	echo 0x030000 >"$pci/class"
	printf 'simd_count 192\nsimd_per_cu 2\nwave_front_size 32\nlocation_id 768\ndomain 0\n' \
		>"$nodes/1/properties"
	echo "gfx_target_version $1" >>"$nodes/1/properties"
}

# ini [RUNTIME]: without one, the runtime is found by its name
ini() {
	printf '%s\n' '[registry]' 'schema = 1' 'on_degraded = allow' \
		'[priority]' 'rdna3 = on' 'emulation = on' \
		'[plugin rdna3]' "sysfs = $work/sys" 'kfd = /dev/null' \
		${1:+"runtime = $1"} >"$work/moek.ini"
}
run() { # MODEL [options]
	folder=$models/$1
	shift
	"$moek" run "$folder" --config "$work/moek.ini" --type bf16 \
		--against "$folder/expected/oracle.safetensors" "$@"
}
explain() { "$moek" explain --config "$work/moek.ini" --problem "$int4"; }

# ---- what has no code is told, on any machine ----

card 100300
ini "$fake"
export FAKEHIP_ARCH=gfx1030
exits 0 'on gfx1030 another backend runs' explain
shows "$out" '^ +rdna3\.w4a16 +unusable +hip gfx1030 +device gfx1030 ' 'and the report names the architecture'
shows "$out" '^ +emulation\.any +chosen' 'and who runs'
card 90402
FAKEHIP_ARCH=gfx942
exits 0 'on gfx942 too' explain
shows "$out" '^ +rdna3\.w4a16 +unusable +hip gfx942 +device gfx942 ' 'with its reason'
unset FAKEHIP_ARCH

rm -rf "$work/sys"
mkdir "$work/sys"
ini "$work/nowhere.so"
exits 0 'without a card another backend runs' explain
shows "$out" '^ +rdna3[a-z0-9_.]* +absent' 'and rdna3 is absent'
# ---- with code: the layers run ----

card 110000
ini "$fake"
exits 0 'with gfx1100 and its runtime somebody is chosen' explain
if ! says "$out" '^ +rdna3\.w4a16 +chosen +hip gfx1100' >/dev/null; then
	check 'rdna3 was built without a GPU compiler, and says so' \
		says "$out" '^ +rdna3\.w4a16 .*built without a GPU compiler'
	echo "1..$count # the rest is skipped: rdna3 was built without GPU code"
	[ "$failures" -eq 0 ] && exit 77
	exit 1
fi
passed 'and that is rdna3'

ini "$work/nowhere.so"
exits 0 'with a card and no runtime another backend runs' explain
shows "$out" '^ +rdna3[a-z0-9_.]* +unusable.*no HIP runtime' 'and rdna3 is unusable, with the cause'
ini "$MOEK_TEST_FAKES/good_host.so"
exits 0 'with a broken runtime too' explain
shows "$out" '^ +rdna3[a-z0-9_.]* +unusable.*lacks hipInit' 'with what it lacks'
ini "$fake"
export FAKEHIP_VERSION=50221153
exits 0 'with an old runtime too' explain
shows "$out" '^ +rdna3[a-z0-9_.]* +unusable.*5\.2 is too old, 5\.7 is needed' 'with what is needed'
unset FAKEHIP_VERSION
ini "$fake"

if nm -D "$fake" 2>/dev/null | grep -q __tsan; then
	echo "1..$count # the rest is skipped: fibers do not run under the thread sanitizer"
	[ "$failures" -eq 0 ] && exit 77
	exit 1
fi
for model in tiny-qwen3moe-ct-sym-g32 tiny-gptoss-mxfp4; do
	for tokens in 5 48; do
		exits 0 "$model, $tokens tokens: agrees with the outputs of other people's code" \
			run $model --tokens $tokens --layers 1-1
		shows "$out" "^layers\.1 +rdna3\.w4a16[a-z0-9_]* +$tokens " 'and rdna3 ran it'
	done
done
export MOEK_CHECK=1
exits 0 'with poisoned and guarded buffers it agrees too' \
	run tiny-qwen3moe-ct-sym-g32 --tokens 20 --layers 0-0
unset MOEK_CHECK
export FAKEHIP_REVERSE=1
exits 0 'with threads in reverse order it agrees too' \
	run tiny-gptoss-mxfp4 --tokens 20 --layers 3-3
unset FAKEHIP_REVERSE

# a part of the table of every backend; the whole takes ten times as long
for cases in '*/gelu/bf16' '*/silu/f16' 'nan_*' 'expert_map*' weight_on_input duplicate_ids; do
	exits 0 "kernelcheck agrees: $cases" "$MOEK_TEST_BUILD/tests/kernelcheck/kernelcheck" \
		"$MOEK_TEST_PLUGINS/rdna3.so" --config "$work/moek.ini" --case "$cases"
done

mkdir "$work/lib"
ln -s "$fake" "$work/lib/libamdhip64.so.7"
ini
export LD_LIBRARY_PATH="$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exits 0 'a runtime is found by its name' explain
shows "$out" '^ +rdna3\.w4a16 +chosen' 'and used'
done_testing
