#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The machine code of plugins/rdna3 on an instruction emulator: the unmodified plugin, the
# cases of tests/check_rdna3.c, then a checkpoint. The emulator is in the tests of tinygrad
# (MIT), which no package has, so this is run by hand:
#
#   git clone https://github.com/tinygrad/tinygrad
#   git -C tinygrad checkout a9069c177a9da9cca18593edf55acd2e6073cca6
#   tests/gpu/run-emulator.sh BUILD tinygrad        # BUILD: a build tree, after make check
#
# Needs python3 and clang. Exits 77 when something is not there.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '3,12s/^# \{0,1\}//p' "$0"; exit 2; }
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
object=$build/plugins/rdna3/kernels.gfx1100.hsaco
missing() { echo "skip: $1"; exit 77; }
[ -e "$2/test/mockgpu/amd/emu.py" ] || missing "$2 has no test/mockgpu/amd/emu.py"
[ -e "$object" ] || missing "$object is not there: rdna3 was built without a GPU compiler"
[ -x "$build/tests/check_rdna3" ] || missing "$build/tests/check_rdna3 is not there: run make check"
command -v clang >/dev/null || missing 'clang is not there'
readelf=$(command -v llvm-readelf-22 || command -v readelf) || missing 'readelf is not there'

work=$(mktemp -d "${TMPDIR:-/tmp}/moek-emulator.XXXXXX")
trap 'rm -rf "$work"' EXIT
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden \
	"$source/tests/gpu/emuhip.c" -o "$work/fakehip.so"
export TINYGRAD EMULATE_LOG=$work/log
TINYGRAD=$(cd "$2" && pwd)
export EMUHIP_COMMAND="python3 $source/tests/gpu/emulate.py"

# a card as the operating system shows it, and an INI that has the plugin use the emulator
pci=$work/sys/bus/pci/devices/0000:03:00.0
node=$work/sys/class/kfd/kfd/topology/nodes/1
mkdir -p "$pci" "$node"
echo 0x1002 >"$pci/vendor"
echo 0x744c >"$pci/device"
echo 0x030000 >"$pci/class"
printf '%s\n' 'simd_count 192' 'simd_per_cu 2' 'wave_front_size 32' 'location_id 768' 'domain 0' \
	'gfx_target_version 110000' >"$node/properties"
printf '%s\n' '[registry]' 'schema = 1' '[priority]' 'rdna3 = on' 'emulation = on' \
	'[plugin rdna3]' "sysfs = $work/sys" 'kfd = /dev/null' "runtime = $work/fakehip.so" \
	>"$work/moek.ini"

echo '== the first tokens of two checkpoints'
for model in tiny-qwen3moe-ct-sym-g32 tiny-gptoss-mxfp4; do
	folder=$source/tests/fixtures/checkpoints/$model
	for tokens in 3 9; do # the decode kernels, then those of prefill
		"$build/tools/moek" run "$folder" --config "$work/moek.ini" --type bf16 --layer 0 \
			--tokens $tokens --backend 'require rdna3' \
			--against "$folder/expected/oracle.safetensors" | tail -n 1
	done
done

echo '== the cases of check_rdna3'
MOEK_TEST_SOURCE=$source/tests MOEK_TEST_PLUGINS=$build/plugins/.libs MOEK_TEST_FAKES=$work \
	CK_DEFAULT_TIMEOUT=900 "$build/tests/check_rdna3"

echo '== kernels that ran, and how often'
sort "$work/log" | uniq -c
"$readelf" -Ws "$object" | sed -n 's/.* \(rdna3_[a-z0-9_]*\)\.kd$/\1/p' | sort -u >"$work/all"
sort -u "$work/log" >"$work/ran"
if left=$(comm -23 "$work/all" "$work/ran") && [ -n "$left" ]; then
	echo "never ran: $left"
	exit 1
fi
echo "all $(wc -l <"$work/all") kernels of $(basename "$object") ran"
