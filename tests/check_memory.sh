#!/bin/sh
# SPDX-License-Identifier: MIT
# Preparing a 2 GiB layer holds no more than the prepared weights, one canonical expert for
# each thread, and 64 MiB: anonymous memory sampled while `moek run` works on a checkpoint
# made here of holes.
experts=256 hidden=2048 intermediate=683 threads=2
moek=$MOEK_TEST_BUILD/tools/moek
[ -x "$moek" ] || exit 77

# a sanitizer's shadow is memory too
if ldd "$MOEK_TEST_BUILD/tools/.libs/moek" | grep -qE 'lib(a|t)san'; then
	echo "skip: built with a sanitizer"
	exit 77
fi
available=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
if [ "$available" -lt 7000 ]; then
	echo "skip: $available MiB of memory available, 7000 needed"
	exit 77
fi
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT

cat >"$work/config.json" <<END
{ "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16",
  "hidden_size": $hidden, "moe_intermediate_size": $intermediate, "num_experts": $experts,
  "num_experts_per_tok": 8, "norm_topk_prob": true, "num_hidden_layers": 1,
  "hidden_act": "silu" }
END
awk -v experts=$experts -v hidden=$hidden -v intermediate=$intermediate 'BEGIN {
	at = 0
	printf "{"
	for (e = 0; e < experts; e++)
		for (p = 0; p < 3; p++) {
			name = p == 0 ? "gate" : p == 1 ? "up" : "down"
			rows = p == 2 ? hidden : intermediate
			columns = p == 2 ? intermediate : hidden
			end = at + rows * columns * 2
			printf "\"model.layers.0.mlp.experts.%d.%s_proj.weight\":{\"dtype\":\"BF16\"," \
				"\"shape\":[%d,%d],\"data_offsets\":[%.0f,%.0f]},", e, name, rows, columns, at, end
			at = end
		}
	end = at + experts * hidden * 2
	printf "\"model.layers.0.mlp.gate.weight\":{\"dtype\":\"BF16\",\"shape\":[%d,%d]," \
		"\"data_offsets\":[%.0f,%.0f]}}", experts, hidden, at, end
}' >"$work/header"
bytes=$(wc -c <"$work/header")
file=$work/model.safetensors
# the header's length, eight bytes with the lowest first
for shift in 0 8 16 24; do
	printf %b "\\0$(printf %03o $((bytes >> shift & 255)))"
done >"$file"
printf '\0\0\0\0' >>"$file"
cat "$work/header" >>"$file"
weights=$((experts * 3 * hidden * intermediate * 2))
truncate -s $((8 + bytes + weights + experts * hidden * 2)) "$file"

"$moek" run "$work" --tokens 1 --threads $threads --backend 'require emulation' \
	>"$work/out" 2>&1 &
pid=$!
peak=0
while kill -0 $pid 2>/dev/null; do
	now=$(awk '/^RssAnon/ { print $2 }' /proc/$pid/status 2>/dev/null)
	[ "${now:-0}" -gt "$peak" ] && peak=$now
	sleep 0.02
done
wait $pid
status=$?
if [ $status -ne 0 ]; then
	cat "$work/out"
	exit 1
fi
allowed=$(((weights + threads * 3 * hidden * intermediate * 2) / 1024 + 64 * 1024))
echo "peak $((peak / 1024)) MiB anonymous; $((weights / 1048576)) MiB of weights, allowed $((allowed / 1024)) MiB"
# a peak under the weights themselves means that the sampling missed it
[ "$peak" -ge $((weights / 1024)) ] && [ "$peak" -le "$allowed" ]
