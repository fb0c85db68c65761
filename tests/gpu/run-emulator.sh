#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The machine code of a GPU plugin on an instruction emulator: the unmodified plugin, tokens of
# two checkpoints, then the cases of tests/check_PLUGIN.c. The emulator is in the tests of
# tinygrad (MIT), which no package has, so this is run by hand:
#
#   git clone https://github.com/tinygrad/tinygrad
#   git -C tinygrad checkout a9069c177a9da9cca18593edf55acd2e6073cca6
#   tests/gpu/run-emulator.sh rdna3 BUILD tinygrad        # or aiter_mxfp4
#
# BUILD is a build tree, after make check. Needs python3 and clang. Exits 77 when something is
# not there.
set -euo pipefail
[ $# -eq 3 ] || { sed -n '3,13s/^# \{0,1\}//p' "$0"; exit 2; }
plugin=$1
build=$(cd "$2" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
# a card as the operating system shows it, and checkpoints:oracle:type of the rows
case $plugin in
rdna3)
	arch=gfx1100 card=0x744c class=0x030000 version=110000 simds='simd_count 192' per=2 wave=32
	models='tiny-qwen3moe-ct-sym-g32:oracle:bf16 tiny-gptoss-mxfp4:oracle:bf16'
	;;
aiter_mxfp4)
	arch=gfx950 card=0x75a0 class=0x120000 version=90500 simds='simd_count 1024' per=4 wave=64
	models='tiny-qwen3moe-quark-mxfp4:oracle_w4a4:fp32 tiny-gptoss-mxfp4:oracle:bf16'
	;;
*)
	echo "unknown: $plugin"
	exit 2
	;;
esac
object=$build/plugins/$plugin/kernels.$arch.hsaco
missing() { echo "skip: $1"; exit 77; }
[ -e "$3/test/mockgpu/amd/emu.py" ] || missing "$3 has no test/mockgpu/amd/emu.py"
[ -e "$object" ] || missing "$object is not there: $plugin was built without a GPU compiler"
[ -x "$build/tests/check_$plugin" ] || missing "$build/tests/check_$plugin is not there: run make check"
command -v clang >/dev/null || missing 'clang is not there'
readelf=$(command -v llvm-readelf-22 || command -v readelf) || missing 'readelf is not there'

work=$(mktemp -d "${TMPDIR:-/tmp}/moek-emulator.XXXXXX")
trap 'rm -rf "$work"' EXIT
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden \
	"$source/tests/gpu/emuhip.c" -o "$work/fakehip.so"
export TINYGRAD EMULATE_LOG=$work/log EMUHIP_ARCH=$arch
TINYGRAD=$(cd "$3" && pwd)
export EMUHIP_COMMAND="python3 $source/tests/gpu/emulate.py"

pci=$work/sys/bus/pci/devices/0000:03:00.0
node=$work/sys/class/kfd/kfd/topology/nodes/1
mkdir -p "$pci" "$node"
echo 0x1002 >"$pci/vendor"
echo "$card" >"$pci/device"
echo "$class" >"$pci/class"
printf '%s\n' "$simds" "simd_per_cu $per" "wave_front_size $wave" 'location_id 768' 'domain 0' \
	"gfx_target_version $version" >"$node/properties"
printf '%s\n' '[registry]' 'schema = 1' '[priority]' "$plugin = on" 'emulation = on' \
	"[plugin $plugin]" "sysfs = $work/sys" 'kfd = /dev/null' "runtime = $work/fakehip.so" \
	>"$work/moek.ini"

echo '== the first tokens of two checkpoints'
for model in $models; do
	IFS=: read -r name oracle type <<<"$model"
	folder=$source/tests/fixtures/checkpoints/$name
	for tokens in 3 20; do # the decode kernels, then those of prefill
		"$build/tools/moek" run "$folder" --config "$work/moek.ini" --type "$type" --layer 0 \
			--tokens $tokens --backend "require $plugin" \
			--against "$folder/expected/$oracle.safetensors" | tail -n 1
	done
done

echo "== the cases of check_$plugin"
MOEK_TEST_SOURCE=$source/tests MOEK_TEST_PLUGINS=$build/plugins/.libs MOEK_TEST_FAKES=$work \
	CK_FORK=no "$build/tests/check_$plugin" # one emulator for all: it compiles what it meets

echo '== kernels that ran, and how often'
sort "$work/log" | uniq -c
# what stands around a kernel of AITER's runs with one only
"$readelf" -Ws "$object" | sed -n '/_flat_/d; s/.* \([a-z0-9_]*\)\.kd$/\1/p' | sort -u >"$work/all"
sort -u "$work/log" >"$work/ran"
if left=$(comm -23 "$work/all" "$work/ran") && [ -n "$left" ]; then
	echo "never ran: $left"
	exit 1
fi
echo "all $(wc -l <"$work/all") kernels of $(basename "$object") ran"
