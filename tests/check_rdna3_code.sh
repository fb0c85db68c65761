#!/bin/sh
# SPDX-License-Identifier: MIT
# The machine code of plugins/rdna3, read and not run: nothing spilled, limits kept, and in
# the innermost loops the instructions that the design rests on.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

. "$MOEK_TEST_SOURCE/gpu/code.sh"
code_begin rdna3

# one line for each loop (a branch back to a label) that multiplies: name wmma dot2 streamed
loops() {
	"$objdump" -d --symbolize-operands --mcpu="$2" "$1" | awk '
		/^[0-9a-f]+ <rdna3_/ { name = $2; gsub(/[<>:]/, "", name); n = 0; split("", at); next }
		/^[0-9a-f]+ <L[0-9]+>:/ { label = $2; gsub(/[<>:]/, "", label); at[label] = n; next }
		/^\t/ {
			line[++n] = $0
			if ($1 !~ /^s_c?branch/ || !($2 in at))
				next
			wmma = dot2 = streamed = 0
			for (i = at[$2] + 1; i <= n; i++) {
				wmma += gsub(/v_wmma_f32_16x16x16/, "&", line[i])
				dot2 += gsub(/dot2(acc)?_f32/, "&", line[i])
				streamed += line[i] ~ /global_load_b128.* slc/
			}
			if (wmma + dot2 > 0)
				print name, wmma, dot2, streamed
		}'
}

for code in $codes; do
	arch=${code%.hsaco}
	arch=${arch##*.}
	notes "$code" rdna3_ >"$work/notes"
	check "$arch: 27 kernels" test "$(wc -l <"$work/notes")" -eq 27
	check "$arch: nothing is spilled" all "$work/notes" '$3 == 0'
	check "$arch: no scratch" all "$work/notes" '$4 == 0'
	check "$arch: at most 32 KiB of LDS: two blocks in 64" all "$work/notes" '$5 <= 32768'
	check "$arch: all take the same arguments" all "$work/notes" "\$6 == $(awk 'NR == 1 { print $6 }' "$work/notes")"
	# 1536 registers a lane, given out in 24s: waves that fit a SIMD
	grep _decode_ "$work/notes" >"$work/decode"
	check "$arch: 8 waves a SIMD in decode" all "$work/decode" '$2 <= 192'
	grep _tile_ "$work/notes" >"$work/tile"
	check "$arch: 6 waves a SIMD in prefill" all "$work/tile" '$2 <= 256'

	"$objdump" -d --mcpu="$arch" "$code" >"$work/code"
	check "$arch: no flat access" lacks "$work/code" '[[:space:]]flat_'
	check "$arch: no scratch access" lacks "$work/code" '[[:space:]]scratch_'
	check "$arch: no atomics" lacks "$work/code" '_atomic_'

	loops "$code" "$arch" >"$work/loops"
	# per 32 columns: 16 dot2 for each of 1, 2, 4 and 8 slots; 2 WMMAs for each of two
	# column tiles and 1, 2 or 4 row tiles
	for dot2 in 16 32 64 128; do
		check "$arch: a loop of $dot2 v_dot2 and one streamed load in 12 decode kernels" \
			has "$work/loops" 12 "_decode_[a-z0-9_]* 0 $dot2 1\$"
	done
	for wmma in 4 8 16; do
		check "$arch: a loop of $wmma v_wmma in 12 prefill kernels" \
			has "$work/loops" 12 "_tile_[a-z0-9_]* $wmma 0 0\$"
	done
	awk '/^[0-9a-f]+ <rdna3_/ { name = $2 } /global_load_.* slc/ { n[name]++ }
		END { for (name in n) print name, n[name] }' "$work/code" >"$work/streams"
	check "$arch: one streamed load in each of the four loops of 12 decode kernels, no other" \
		has "$work/streams" 12 ' 4$'
	check "$arch: and in no other kernel" all "$work/streams" '$1 ~ /_decode_/ && $2 == 4'
done
done_testing
