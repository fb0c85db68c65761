#!/bin/sh
# SPDX-License-Identifier: MIT
# Capsules: one call of one layer, kept by moek run and run again by moek replay, alone.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_FAKES:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
models=$MOEK_TEST_SOURCE/fixtures/checkpoints
json() { "$MOEK_TEST_BUILD/tests/jsonpath" "$1" <"$work/out"; }
keep() { "$moek" run "$@" --capsule "$work/kept" --backend 'require emulation'; }
replay() { "$moek" replay "$work/kept/$1.safetensors" --backend "${2:-require emulation}"; }

# every scheme that a fixture has, with what belongs to it: bias, quantised activations
for model in tiny-qwen3moe-ct-sym-g32 tiny-qwen3moe-bf16 tiny-gptoss-mxfp4 \
	tiny-qwen3moe-quark-mxfp4; do
	rm -rf "$work/kept"
	exits 0 "$model: a call is kept" keep "$models/$model" --layer 1 --tokens 5
	check 'with the report of its choice beside it' \
		grep -q '"winner": "emulation.any"' "$work/kept/layers.1.json"
	exits 0 'and runs again' replay layers.1
	shows "$out" '^layers\.1 +emulation\.any +5 ' 'on who is asked for'
	shows "$out" '^the same bits as the output of emulation\.any' 'with the same bits'
done

rm -rf "$work/kept"
keep "$models/tiny-qwen3moe-ct-sym-g32" --layer 2 --experts 3,0,4-12 --type fp32 --tokens 24 \
	>/dev/null
exits 0 'a part of the experts is kept as such' replay layers.2
shows "$out" '^the same bits as' 'and runs as such'

# another backend, and one that is wrong
good=$work/kept/layers.2.safetensors
if [ -e "$MOEK_TEST_BUILD/plugins/.libs/cpu.so" ]; then
	exits 0 'another backend agrees' replay layers.2 'require cpu.plain'
	shows "$out" '^(agrees with|the same bits as) the output of emulation\.any' 'within what both declare'
else
	skipped 'another backend agrees' 'cpu.so was not built'
fi
printf '%s\n' '[registry]' 'schema = 1' 'golden = off' '[plugin damaged]' 'fault = dropped' >"$work/damaged.ini"
exits 1 'one that drops an expert does not' "$moek" replay "$good" --config "$work/damaged.ini" \
	--plugin-dir "$MOEK_TEST_FAKES" --backend 'require damaged'
shows "$out" '^differs from the output of emulation\.any' 'and is told'
exits 0 'the same as JSON' "$moek" replay "$good" --backend 'require emulation' --json
check 'says whose it was, and how it went' [ "$(json made_by)$(json same_bits)$(json agrees)" = \
	emulation.anytruetrue ]

# calls that fail or are wrong
printf '%s\n' '[registry]' 'schema = 1' >"$work/plain.ini"
exits 1 'a call that fails' "$moek" run "$models/tiny-qwen3moe-bf16" --layer 0 \
	--config "$work/plain.ini" --plugin-dir "$MOEK_TEST_FAKES" \
	--backend 'require forward_fails' --capsule-on-error "$work/failed"
check 'is kept' [ -e "$work/failed/layers.0.safetensors" ]
exits 0 'and runs elsewhere' "$moek" replay "$work/failed/layers.0.safetensors" \
	--backend 'require emulation'
shows "$out" '^the call had failed on forward_fails\.[a-z]+: nothing to compare with' 'without an output'
model=$models/tiny-qwen3moe-ct-sym-g32
exits 1 'a layer that is wrong' "$moek" run "$model" --layer 0 --config "$work/damaged.ini" \
	--plugin-dir "$MOEK_TEST_FAKES" --backend 'require damaged' \
	--against "$model/expected/oracle.safetensors" --capsule-on-error "$work/wrong"
check 'is kept, too' [ -e "$work/wrong/layers.0.safetensors" ]
exits 1 'and its output is not what others make of it' "$moek" replay \
	"$work/wrong/layers.0.safetensors" --backend 'require emulation'
exits 0 'one that is right' "$moek" run "$model" --layer 0 --backend 'require emulation' \
	--against "$model/expected/oracle.safetensors" --capsule-on-error "$work/right"
check 'is not' [ ! -e "$work/right" ]

# bad files
exits 3 'a capsule that is not there' "$moek" replay "$work/none.safetensors"
exits 3 'a file that is none' "$moek" replay "$models/tiny-qwen3moe-bf16/config.json"
exits 3 'another safetensors file' "$moek" replay "$model/expected/oracle.safetensors"
shows "$err" 'no tensor problem' 'is told by what it lacks'
head -c 20000 "$good" >"$work/short.safetensors"
exits 3 'one that is cut off' "$moek" replay "$work/short.safetensors"
# rename TENSOR to one of the same length: it is then not there
sed 's/experts\.3\.up\.scales/experts.3.up.Scales/' "$good" >"$work/renamed.safetensors"
exits 3 'an expert without a part' "$moek" replay "$work/renamed.safetensors"
shows "$err" 'no tensor experts\.3\.up\.scales' 'is named'
sed 's/expert_map/expert_mop/' "$good" >"$work/renamed.safetensors"
exits 3 'a part of the experts without its map' "$moek" replay "$work/renamed.safetensors"
shows "$err" 'renamed\.safetensors: .*expert_map' 'is named'
sed 's/topk_ids/topk_idz/' "$good" >"$work/renamed.safetensors"
exits 3 'a call without its routing' "$moek" replay "$work/renamed.safetensors"
shows "$err" 'no tensor topk_ids' 'is named'
exits 3 'a folder that cannot be made' "$moek" run "$model" --layer 0 --capsule "$work/no/such"
shows "$err" 'no/such: No such file' 'is told'

# bytes at random in the header and in what decides sizes: no crash
bytes=$(wc -c <"$good")
problem=$(grep -abo '"problem"' "$good" | head -n 1 | cut -d : -f 1)
crashes=0 i=0
while [ $i -lt 60 ]; do
	cp "$good" "$work/bad.safetensors"
	# the first half in the header, the rest in the last 2 KiB, where the problem lies
	at=$(((i * 7919) % (problem + 400)))
	[ $i -lt 30 ] || at=$((bytes - 1 - (i * 389) % 2048))
	printf "\\$(printf %o $(((i * 37 + 11) % 256)))" |
		dd of="$work/bad.safetensors" bs=1 seek=$at conv=notrunc 2>/dev/null
	code=0
	timeout 20 "$moek" replay "$work/bad.safetensors" --backend 'require emulation' \
		>/dev/null 2>&1 || code=$?
	[ $code -le 3 ] || crashes=$((crashes + 1))
	i=$((i + 1))
done
check 'none of 60 damaged capsules crashes moek' [ $crashes = 0 ]
done_testing
