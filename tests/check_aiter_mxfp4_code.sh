#!/bin/sh
# SPDX-License-Identifier: MIT
# The machine code of plugins/aiter_mxfp4, read and not run: nothing spilled, limits kept, and
# in the innermost loops the instructions that the design rests on.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"
. "$MOEK_TEST_SOURCE/gpu/code.sh"
code_begin aiter_mxfp4

# one line for each loop (a branch back to a label) that multiplies: name scaled 16-bit streamed
loops() {
	"$objdump" -d --symbolize-operands --mcpu="$2" "$1" | awk '
		/^[0-9a-f]+ <mxfp4_/ { name = $2; gsub(/[<>:]/, "", name); n = 0; split("", at); next }
		/^[0-9a-f]+ <L[0-9]+>:/ { label = $2; gsub(/[<>:]/, "", label); at[label] = n; next }
		/^\t/ {
			line[++n] = $0
			if ($1 !~ /^s_c?branch/ || !($2 in at))
				next
			scaled = wide = streamed = 0
			for (i = at[$2] + 1; i <= n; i++) {
				scaled += gsub(/v_mfma_scale_f32_16x16x128_f8f6f4/, "&", line[i])
				wide += gsub(/v_mfma_f32_16x16x32_(bf16|f16)/, "&", line[i])
				streamed += line[i] ~ /global_load_dwordx4.* nt/
			}
			if (scaled + wide > 0)
				print name, scaled, wide, streamed
		}'
}

for code in $codes; do
	arch=${code%.hsaco}
	arch=${arch##*.}
	notes "$code" mxfp4_ >"$work/notes"
	check "$arch: 27 kernels" test "$(wc -l <"$work/notes")" -eq 27
	check "$arch: nothing is spilled" all "$work/notes" '$3 == 0'
	check "$arch: no scratch" all "$work/notes" '$4 == 0'
	check "$arch: at most 64 KiB of LDS: two blocks in 160" all "$work/notes" '$5 <= 65536'
	check "$arch: all take the same arguments" all "$work/notes" "\$6 == $(awk 'NR == 1 { print $6 }' "$work/notes")"
	# 512 registers a lane, accumulators among them: waves that fit a SIMD
	check "$arch: 2 waves a SIMD everywhere" all "$work/notes" '$2 <= 256'
	grep _decode_ "$work/notes" >"$work/decode"
	check "$arch: 3 waves a SIMD in decode" all "$work/decode" '$2 <= 168'

	"$readelf" -sW "$code" | awk '$4 == "FUNC" { print $8, $3 }' >"$work/sizes"
	check "$arch: each kernel fits half of the instruction cache, 32 KiB" all "$work/sizes" '$2 <= 32768'

	"$objdump" -d --mcpu="$arch" "$code" >"$work/code"
	check "$arch: no flat access" lacks "$work/code" '[[:space:]]flat_'
	check "$arch: no scratch access" lacks "$work/code" '[[:space:]]scratch_'
	check "$arch: no atomics" lacks "$work/code" '_atomic_'
	# FP4 with FP4 and FP8 with FP4, each of the four bytes of a scale
	for format in 'cbsz:4 blgp:4' 'blgp:4'; do
		for byte in '\[0,0,0\]' '\[0,1,0\]'; do
			check "$arch: $format with op_sel_hi:$byte" \
				grep -Eq "v_mfma_scale.* op_sel_hi:$byte $format" "$work/code"
		done
	done

	loops "$code" "$arch" >"$work/loops"
	# decode: four tiles of weights in two steps, eight loads of sixteen bytes a lane
	check "$arch: a loop of 8 v_mfma_scale and 8 streamed loads in 4 decode kernels" \
		has "$work/loops" 4 '_decode_a[48] 8 0 8$'
	check "$arch: a loop of 32 v_mfma of 16 bits in 4 decode kernels" \
		has "$work/loops" 4 '_decode_b?f16 0 32 0$'
	# tiles: four tiles of weights and 1, 2 or 4 of rows, once for each half of a scale's word
	for scaled in 8 16 32; do
		check "$arch: a loop of $scaled v_mfma_scale and 4 streamed loads in 4 tile kernels" \
			has "$work/loops" 4 "_tile_a[48] $scaled 0 4\$"
	done
	for wide in 16 32 64; do
		check "$arch: a loop of $wide v_mfma of 16 bits in 4 tile kernels" \
			has "$work/loops" 4 "_tile_b?f16 0 $wide 0\$"
	done
done
done_testing
