#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The kernels and the host code of a GPU plugin on an NVIDIA GPU: nvcc builds the kernels,
# cudahip.c stands for the HIP runtime, the cases are those of tests/check_PLUGIN.c, large
# ones included. Then the sanitizers of CUDA on the small ones. Matrix operations of 64 lanes
# are the model of plugins/gpu/mfma.h, a wave two warps. From the root of the tree, with gcc
# and the CUDA toolkit only:
#
#   tests/gpu/run-nvidia.sh [rdna3 | aiter_mxfp4] \
#       [all | build | cases | memcheck | racecheck | synccheck | initcheck]
set -euo pipefail
cd "$(dirname "$0")/../.."
plugin=rdna3
case ${1:-} in rdna3 | aiter_mxfp4) plugin=$1 && shift ;; esac
what=${1:-all}
work=${MOEK_NVIDIA_BUILD:-/tmp/moek-nvidia}/$plugin
# what a code object would be named and look like: its list, architecture, EF_AMDGPU_MACH
case $plugin in
rdna3) list=rdna3_images image=gfx1100 mach=0x41 ;;
aiter_mxfp4) list=mxfp4_images image=gfx950 mach=0x4f ;;
esac
cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
arch=${MOEK_NVIDIA_ARCH:-sm_90}
mkdir -p "$work"

kernels() { # FILE [option]
	nvcc -x cu -arch="$arch" -std=c++17 -O3 -lineinfo --cubin -Iplugins/gpu -Iinclude $2 \
		"plugins/$plugin/kernels.hip" -o "$work/$1"
}

build() {
	kernels kernels.cubin '' &
	local first=$!
	kernels even.cubin -DGPU_MEET_ALL &
	# an ELF header that says so: what the plugin and the runtime look at
	cat >"$work/images.c" <<-CODE
		#include "plugins/gpu/plugin.h"
		static const unsigned char header[64] = { 0x7f, 'E', 'L', 'F', [18] = 0xe0, [48] = $mach };
		extern const struct gpu_image $list[];
		const struct gpu_image $list[] = { { "$image", header }, { 0, 0 } };
	CODE
	local flags="-std=gnu11 -O2 -g -Wall -Wextra -fPIC -fvisibility=hidden -Iinclude -I."
	gcc $flags -shared "plugins/$plugin"/*.c plugins/gpu/*.c "$work/images.c" \
		-o "$work/$plugin.so" -ldl -lpthread
	gcc $flags -shared -I"$cuda/include" tests/gpu/cudahip.c -o "$work/fakehip.so" \
		-L"$cuda/lib64/stubs" -lcuda
	gcc $flags -Itests/gpu/minicheck "tests/check_$plugin.c" "plugins/$plugin/layout.c" \
		tests/gpu/{aiter_files,harness,sysfs}.c -o "$work/check" -lm -ldl
	wait $first && wait $!
}

export MOEK_TEST_PLUGINS=$work MOEK_TEST_FAKES=$work CUDAHIP_CUBIN=$work/kernels.cubin

cases() {
	nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
	MOEK_TEST_VERBOSE=1 MOEK_TEST_LARGE=1 "$work/check"
}

sanitize() { # TOOL [environment]
	local tool=$1 more=
	shift
	# the tests copy whole buffers back, unwritten ends too; what kernels read counts
	[ "$tool" != initcheck ] || more='--check-api-memory-access no'
	echo "== compute-sanitizer $tool"
	env "$@" timeout 540 compute-sanitizer --tool "$tool" --print-limit 4 --error-exitcode 9 $more \
		"$work/check" >"$work/$tool.log" || { head -n 60 "$work/$tool.log"; return 1; }
	tail -n 4 "$work/$tool.log"
}

# Waves of two warps (aiter_mxfp4's) meet at barriers of their own, which racecheck takes for none: decode
# kernels are looked at in a build whose waves all meet, with as much to do in each.
racecheck() {
	if [ "$plugin" = rdna3 ]; then
		sanitize racecheck
	else
		sanitize racecheck CUDAHIP_CUBIN="$work/even.cubin" MOEK_TEST_ONLY='even waves'
	fi
}

case $what in
build) build ;;
cases) cases ;;
memcheck | synccheck) sanitize "$what" ;;
racecheck) racecheck ;;
initcheck) sanitize initcheck CUDAHIP_POISON=0 ;;
all)
	build
	cases
	sanitize memcheck
	racecheck
	sanitize synccheck
	sanitize initcheck CUDAHIP_POISON=0
	;;
*)
	echo "unknown: $what"
	exit 2
	;;
esac
