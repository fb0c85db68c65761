#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/moek as a user meets it: commands, exit codes, what is printed.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
json() { "$MOEK_TEST_BUILD/tests/jsonpath" "$@" <"$work/out" 2>&1; }
models=$MOEK_TEST_SOURCE/fixtures/checkpoints
qwen=$models/tiny-qwen3moe-ct-sym-g32
bf16=$models/tiny-qwen3moe-bf16
oracle=$qwen/expected/oracle.safetensors
problem=weight=int4,group_size=32,scale=bf16,experts=8,top_k=2,hidden=256,intermediate=128

# ---- usage ----

exits 2 'no command is a usage error' "$moek"
shows "$err" '^usage: moek COMMAND' 'and shows the usage on stderr'
exits 2 'an unknown command is a usage error' "$moek" frobnicate
shows "$err" 'frobnicate: no such command' 'which names it'
exits 2 'an option before the command is a usage error' "$moek" --threads 2 list
shows "$err" '^moek: --threads: options follow the command' 'which says where it goes'
exits 0 '--help succeeds' "$moek" --help
shows "$out" '^exit codes: 0 done; 1 refused' 'and shows the exit codes'
exits 0 '--version succeeds' "$moek" --version
shows "$out" '^moek [0-9]+\.[0-9]+\.[0-9]+$' 'and is one line'
check 'and is that of the manual' grep -qF "\"$out\"" "$MOEK_TEST_SOURCE/../tools/moek.1"
for command in list explain inspect run bench "bench load" convert place verify new-plugin reasons print-config; do
	exits 0 "$command --help succeeds" "$moek" $command --help
	printf '%s\n' "$out" | grep -o '^  --[a-z-]*' | tr -d ' ' >"$work/$command.options"
	case $command in
	new-plugin | reasons) takes='json help' ;; # these open no plugin
	*) takes='config plugin-dir backend threads json help' ;;
	esac
	for option in $takes; do
		check "$command takes --$option" grep -qx -- "--$option" "$work/$command.options"
	done
done
exits 2 'what would do nothing is an unknown option' "$moek" reasons --backend auto
exits 2 'an unknown option is a usage error' "$moek" list --frobnicate
shows "$err" 'list: --frobnicate is no option of it' 'which names it'
exits 2 'an option of another command is a usage error' "$moek" list --against x
exits 2 'an option without its value is a usage error' "$moek" list --config
shows "$err" 'list: --config needs a value' 'which names it'
exits 2 'run without a checkpoint is a usage error' "$moek" run
exits 2 'two checkpoints are a usage error' "$moek" run "$qwen" "$qwen"
for value in 0 -1 1x '' 99999999999999999999; do
	exits 2 "--tokens '$value' is a usage error" "$moek" run "$qwen" --tokens "$value"
done
for value in 1 2-1 a-b 1- -1; do
	exits 2 "--layers '$value' is a usage error" "$moek" run "$qwen" --layers "$value"
done
shows "$("$moek" run "$qwen" --layers 2-1 2>&1)" '2-1: not two numbers A-B, A at most B' \
	'and says what layers are'
exits 2 'a layer that is not there is a usage error' "$moek" run "$qwen" --layers 4-9
shows "$err" 'the last is 3' 'which names the last one'
exits 2 'a type that is none is a usage error' "$moek" run "$qwen" --type int4
exits 2 'a request that is none is a usage error' "$moek" run "$qwen" --backend 'demand x'
if [ -w /dev/full ]; then
	check 'a full disk is an error' sh -c '! "$1" list >/dev/full 2>&1' - "$moek"
fi

# ---- list and print-config ----

exits 0 'list succeeds in a build tree, with no options' "$moek" list
shows "$out" 'emulation +unopened +emulation +0' 'and shows emulation by its note'
exits 0 'list --json succeeds' "$moek" list --json
check 'and is strict JSON' json
exits 0 'list --open succeeds' "$moek" list --open
shows "$out" 'emulation\.any +ready' 'and shows who can run'
exits 0 'print-config succeeds' "$moek" print-config
shows "$out" 'conf/moek\.ini:[0-9]+' 'and shows where a setting comes from'
exits 0 'print-config --json succeeds' "$moek" print-config --json
check 'and is strict JSON' json

# ---- bad input files ----

printf '[registry]\nschema = 1\non_degarded = warn\n' >"$work/bad.ini"
exits 3 'a bad INI exits 3' "$moek" list --config "$work/bad.ini"
shows "$err" 'bad\.ini.*3.*on_degraded' 'and names file, line and the nearest key'
exits 3 'a checkpoint that is not there exits 3' "$moek" run "$work/nowhere"
shows "$err" 'nowhere' 'and names it'
cp -r "$bf16" "$work/short"
chmod -R u+w "$work/short"
dd if="$bf16/model.safetensors" of="$work/short/model.safetensors" bs=1000000 count=1 2>/dev/null
exits 3 'a truncated checkpoint exits 3' "$moek" inspect "$work/short"
shows "$err" 'model\.safetensors' 'and names the file'
exits 3 'a facts file that is not JSON exits 3' "$moek" list --facts "$work/bad.ini"
exits 3 'expected outputs of other sizes exit 3' "$moek" run "$qwen" \
	--against "$models/tiny-gptoss-mxfp4/expected/oracle.safetensors"
shows "$err" 'layers\.0\.[a-z_]* is \[48\]\[[0-9]*\], expected \[48\]\[[0-9]*\]' \
	'and name tensor, found and expected'
exits 3 'a file without outputs exits 3' "$moek" run "$qwen" --against "$bf16/model.safetensors"
shows "$err" 'layers\.0\.hidden_in' 'and names what it lacks'

# ---- inspect ----

exits 0 'inspect succeeds' "$moek" inspect "$qwen"
shows "$out" '^layers\.0-3  qwen3_moe, ' 'layers that are alike are shown once'
shows "$out" 'experts 16, top_k 4, hidden 256, intermediate 128' 'with their sizes'
shows "$out" 'gate_up +int4, groups of 32, scales bf16' 'and their scheme'
shows "$out" 'top 4 of 16, softmax' 'and their router'
exits 0 'inspect --json succeeds' "$moek" inspect "$qwen" --json
check 'and lists each layer' [ "$(json layers.# layers.3.name layers.3.gate_up.group_size)" = \
	"4
layers.3
32" ]

# ---- a model that is not known ----

cp -r "$bf16" "$work/unknown"
chmod -R u+w "$work/unknown"
sed -i 's/"model_type": "qwen3_moe"/"model_type": "my_moe"/' "$work/unknown/config.json"
exits 1 'an unknown model is refused' "$moek" inspect "$work/unknown"
shows "$err" 'model_type "my_moe" is not known to moek; its tensors are named as those of: .*qwen3_moe' \
	'and is told whose names its tensors have'
printf '[family]\nmodel_type = my_moe\nlike = qwen3_moe\n' >"$work/my_moe.ini"
exits 0 'with a family file it runs' "$moek" run "$work/unknown" --family-file "$work/my_moe.ini" \
	--against "$bf16/expected/oracle.safetensors" --backend 'require emulation'
exits 0 'and is inspected' "$moek" inspect "$work/unknown" --family-file "$work/my_moe.ini"
shows "$out" '^layers\.0-3  my_moe, ' 'by its own name'
exits 0 'and explained' "$moek" explain "$work/unknown" --family-file "$work/my_moe.ini"
printf 'own_input = yes\n' >>"$work/my_moe.ini"
exits 0 'a router that reads other rows' "$moek" run "$work/unknown" --family-file "$work/my_moe.ini"
shows "$err" 'warning: layers\.2: its router reads other rows than its experts: it is routed at random' \
	'is not asked'
exits 3 'and its logits are not compared' "$moek" run "$work/unknown" \
	--family-file "$work/my_moe.ini" --against "$bf16/expected/oracle.safetensors"
printf 'ruoter = x\n' >>"$work/my_moe.ini"
exits 3 'a bad family file exits 3' "$moek" inspect "$work/unknown" --family-file "$work/my_moe.ini"
shows "$err" 'my_moe\.ini:5: ruoter is no key of \[family\]; did you mean router' 'and is named with its line'

# ---- one rank of several ----

exits 0 'inspect --shard succeeds' "$moek" inspect "$qwen" --shard 1/4
shows "$out" 'hidden 256, intermediate 32 \(shard 1/4\)' 'and shows the sizes of the shard'
shows "$out" 'reads +0\.21 MiB of them' 'and what is read'
exits 0 'inspect --experts --json succeeds' "$moek" inspect "$qwen" --experts 0-15/4,1 --json
check 'and counts local experts' [ "$(json layers.0.experts_local layers.0.read_bytes)" = "5
$(($(json layers.0.weight_bytes) / 16 * 5))" ]
exits 0 'run --shard --experts runs a part' "$moek" run "$qwen" --shard 3/4 --experts 8-15
shows "$out" '16 experts \(8 local\), top 4, hidden 256, intermediate 32 \(shard 3/4\)' 'and says which'
exits 1 'more shards than groups are refused' "$moek" explain "$qwen" --shard 0/5
shows "$err" 'found 5 shards, expected at most 4: intermediate 128 in groups of 32' \
	'with the most there can be'
for value in 2/2 0/0 1 /2 1/ -1/2 0/2x; do
	exits 2 "--shard '$value' is a usage error" "$moek" run "$qwen" --shard "$value"
done
for value in '' 16 3-1 0-7/0 1,1 x 1, 1-; do
	exits 2 "--experts '$value' is a usage error" "$moek" run "$qwen" --experts "$value"
done
exits 2 'a part is not compared with the whole' "$moek" run "$qwen" --against "$oracle" --shard 0/2
exits 2 'nor are some experts' "$moek" run "$qwen" --against "$oracle" --experts 0-3

# ---- explain ----

exits 0 'explain answers for a checkpoint' "$moek" explain "$qwen"
shows "$out" 'emulation\.any' 'and names the backends'
exits 0 'explain --layer answers for one layer' "$moek" explain "$qwen" --layer 2
shows "$out" 'layers\.2' 'and names it'
exits 0 'explain answers for a problem' "$moek" explain --problem "$problem"
exits 0 'explain --json succeeds' "$moek" explain --problem "$problem" --json
check 'and is strict JSON, one report' [ "$(json '#')" = 1 ]
exits 2 'a problem with an unknown key is a usage error' "$moek" explain \
	--problem "$problem,hiden=3"
shows "$err" 'hiden' 'which names it'
exits 1 'a problem that all refuse exits 1' "$moek" explain --problem "$problem,lora=1"
shows "$out" 'lora' 'and its report says why'

# ---- folders that are not what they seem ----

mkdir "$work/adapter" "$work/lone"
echo '{ "peft_type": "LORA" }' >"$work/adapter/adapter_config.json"
exits 3 'a folder of adapters is bad input' "$moek" inspect "$work/adapter"
shows "$err" 'adapter: holds adapters \(adapter_config\.json\) and no model; merge' 'with what to do'
cp "$bf16/config.json" "$work/lone"
exits 3 'a folder without weights is bad input' "$moek" inspect "$work/lone"
shows "$err" 'lone/model\.safetensors: No such file' 'and the file is named'
touch "$work/lone/pytorch_model.bin"
exits 3 'so is one with weights of another kind' "$moek" inspect "$work/lone"
shows "$err" 'no safetensors: 1 files of weights are of other kinds, the first is pytorch_model\.bin' \
	'which is named'
cp "$bf16/model.safetensors" "$work/lone/consolidated.safetensors"
rm "$work/lone/pytorch_model.bin"
exits 0 'a lone file of another name is read' "$moek" inspect "$work/lone"
cp "$bf16/model.safetensors" "$work/lone/second.safetensors"
exits 3 'two files without an index are not' "$moek" inspect "$work/lone"
shows "$err" '2 files end in \.safetensors, the first is [a-z]+\.safetensors, .* no model\.safetensors\.index\.json' 'and the index is missed'
cp -r "$qwen" "$work/holes"
chmod -R u+w "$work/holes"
sed -i '/layers\.1\.mlp\.experts\.7\.up_proj\.weight_packed/d' "$work/holes/model.safetensors.index.json"
exits 3 'an expert that is missing is bad input' "$moek" inspect "$work/holes"
shows "$err" 'no tensor model\.layers\.1\.mlp\.experts\.7\.up_proj\.weight_packed; nearest: ' 'and named'
rm "$work/holes/model-00002-of-00003.safetensors"
exits 3 'and so is a shard' "$moek" inspect "$work/holes"
shows "$err" 'model-00002-of-00003\.safetensors: No such file' 'by its name'

# ---- every tensor ----

exits 0 'inspect --tensors lists every tensor' "$moek" inspect "$qwen" --tensors --json
check 'of all files' [ "$(json tensors.#)" = "$(grep -c '"model' "$qwen/model.safetensors.index.json")" ]
check 'and what the backend will keep' [ "$(json layers.0.prepared_bytes)" -ge 860000 ]
exits 0 'as a table too' "$moek" inspect "$models/tiny-gptoss-mxfp4" --tensors
shows "$out" '^model\.layers\.0\.mlp\.experts\.down_proj_scales +U8 +\[8,256,5\] .* experts$' \
	'with what experts have'
shows "$out" '^model\.layers\.0\.mlp\.router\.weight +BF16 +\[8,256\] +-[0-9.e-]+ +[0-9.e-]+ .* router$' \
	'what routers have, and its range'
shows "$out" '^lm_head\.weight .* other, not read$' 'and what nobody reads'

# ---- run ----

for model in tiny-qwen3moe-ct-sym-g32 tiny-qwen3moe-bf16 tiny-gptoss-mxfp4 \
	tiny-qwen3moe-gptq-sym-g32; do
	exits 0 "run agrees with the outputs of $model" "$moek" run "$models/$model" \
		--against "$models/$model/expected/oracle.safetensors" --checks
	shows "$out" '^4 layers agree with ' 'and says so'
	check 'each layer with equal routing' [ "$(printf '%s\n' "$out" |
		grep -Ec '^layers\.[0-3] .* equal, [0-9]e[-+][0-9]+ off ')" = 4 ]
	check 'and nothing but warnings on stderr' sh -c \
		'! printf "%s" "$1" | grep -v "^moek: warning: "' - "$err"
	shows "$out" 'fp32 to fp32, up to 48 tokens' 'and runs in the type of the file'
done
# activations in four bits: Quark's own code agrees, and 16 bits are far from it
quark=$models/tiny-qwen3moe-quark-mxfp4
exits 0 'run agrees with the outputs of Quark, W4A4' "$moek" run "$quark" --checks \
	--against "$quark/expected/oracle_w4a4.safetensors"
shows "$out" '^4 layers agree with ' 'and says so'
shows "$out" 'mxfp4 g32 mxfp4_even,' 'and how activations are quantised'
shows "$out" '^ +cpu\.[a-z0-9]+ +refused .*activations mxfp4_even +a16 or int8' \
	'which cpu refuses by rule, rather than run it in 16 bits'
exits 1 'and differs from those of 16-bit activations' "$moek" run "$quark" \
	--against "$quark/expected/oracle.safetensors"
shows "$out" '^4 of 4 layers wrong$' 'in every layer'
exits 0 'which agree when it is asked for them' "$moek" run "$quark" --activations a16 \
	--against "$quark/expected/oracle.safetensors"
shows "$err" 'warning: layers\.0-3: activations a16 as asked, in place of the checkpoint.s mxfp4_even' \
	'and told what it departs from'
exits 1 'the other rule of shared exponents differs too' "$moek" run "$quark" \
	--activations mxfp4_round_up --against "$quark/expected/oracle_w4a4.safetensors"
shows "$out" '^4 of 4 layers wrong$' 'in every layer'
exits 2 'nor is another type compared' "$moek" run "$quark" --type bf16 \
	--against "$quark/expected/oracle_w4a4.safetensors"
shows "$err" 'layers\.0-3: bf16 input is rounded to other codes of activations mxfp4_even than the fp32 of ' \
	'since its codes are others'
exits 1 'static activations need their scales' "$moek" run "$quark" --activations fp8_static
shows "$err" 'layers\.0-3: --activations fp8_static needs input scales; the checkpoint is for activations mxfp4_even and has none' \
	'and both are named'
exits 0 'as asked by the checkpoint' "$moek" explain "$quark" --activations mxfp4_even
check 'is no departure' sh -c '! printf "%s" "$1" | grep "as asked"' - "$err"
exits 0 'explain answers for other activations' "$moek" explain "$qwen" --activations int8
shows "$out" 'int4 g32 int8' 'and shows them'
exits 2 'activations that are none are a usage error' "$moek" run "$qwen" --activations int9
emulated() { "$moek" run "$bf16" --against "$bf16/expected/oracle.safetensors" \
	--backend 'require emulation' "$@"; }
exits 0 'run counts shares of the allowance' emulated --json
worst=$(for n in 0 1 2 3; do echo "$(json layers.$n.worst.share) $n"; done |
	sort -g | tail -n 1 | cut -d ' ' -f 2)
check 'of which another layer than the first has the largest' [ "$worst" != 0 ]
exits 0 'and the text' emulated
shows "$out" "^4 layers agree .* of its allowance \\(layers\\.$worst\\)\$" 'names that layer'
exits 0 'run --json succeeds' "$moek" run "$qwen" --against "$oracle" --json --layers 1-2
check 'and has each layer' [ "$(json layers.# layers.1.layer layers.1.tokens agrees \
	layers.0.routing.wrong layers.0.wrong_outputs)" = "2
layers.2
48
true
0
0" ]
exits 0 '--tokens takes the first rows of the file' "$moek" run "$qwen" --against "$oracle" \
	--layers 0-0 --tokens 3
shows "$out" '^layers\.0 .* 3 ' 'and counts them'
exits 0 'run without a file succeeds' "$moek" run "$qwen" --tokens 5 --seed 7 \
	--backend 'require emulation'
shows "$out" '^4 layers ran on 5 random rows, seed 7$' 'and says on what'
norms() { printf '%s\n' "$out" | awk '/^layers\./ { print $4 }'; }
first=$(norms)
exits 0 'the same seed again' "$moek" run "$qwen" --tokens 5 --seed 7 --threads 1 \
	--backend 'require emulation'
check 'gives the same norms with any number of threads' [ "$first" = "$(norms)" ]
exits 0 'another seed' "$moek" run "$qwen" --tokens 5 --seed 8 --backend 'require emulation'
check 'gives other norms' [ "$first" != "$(norms)" ]

# ---- wrong numbers ----

# other SED-SCRIPT: expected outputs of layers.0 with names exchanged in the header
other() { LC_ALL=C sed "$1" "$oracle" >"$work/other.safetensors"; }
# offset NAME [FILE]: where the bytes of a tensor begin
offset() {
	header=$(od -An -tu8 -N8 "${2:-$oracle}" | tr -d ' ')
	at=$(dd if="${2:-$oracle}" bs=1 skip=8 count="$header" 2>/dev/null |
		grep -o "\"$1\":{[^}]*}" | sed 's/.*data_offsets":\[\([0-9]*\),.*/\1/')
	echo $((8 + header + at))
}
# patch NAME ELEMENT OCTAL: four bytes of one element
patch() {
	cp "$oracle" "$work/other.safetensors"
	chmod u+w "$work/other.safetensors"
	printf "$3" | dd of="$work/other.safetensors" bs=1 conv=notrunc \
		seek=$(($(offset "$1") + 4 * $2)) 2>/dev/null
}
# flip NAME ELEMENT BYTE BIT: the same, one bit of one byte
flip() {
	byte=$(dd if="$oracle" bs=1 skip=$(($(offset "$1") + 4 * $2 + $3)) count=1 2>/dev/null |
		od -An -tu1 | tr -d ' ')
	cp "$oracle" "$work/other.safetensors"
	chmod u+w "$work/other.safetensors"
	printf "\\$(printf %03o $((byte ^ $4)))" | dd of="$work/other.safetensors" bs=1 \
		conv=notrunc seek=$(($(offset "$1") + 4 * $2 + $3)) 2>/dev/null
}
run_other() { "$moek" run "$qwen" --against "$work/other.safetensors" --layers 0-1 "$@"; }

other 's/"layers.0.moe_out"/"layers.X.moe_out"/;s/"layers.1.moe_out"/"layers.0.moe_out"/
s/"layers.X.moe_out"/"layers.1.moe_out"/'
exits 1 "another layer's outputs exit 1" run_other
shows "$out" 'layers\.0: [0-9]+ of 12288 outputs are wrong; the worst is moe_out\[[0-9]+\]\[[0-9]+\]: .*, expected .*, error .*, allowance ' \
	'and name the worst element'
shows "$out" '^2 of 2 layers wrong$' 'and count the layers'
exits 1 'the same in JSON' run_other --json
check 'says that it does not agree' [ "$(json agrees layers.0.agrees)" = "false
false" ]
patch layers.0.moe_out 261 '\000\000\300\177'
exits 1 'a NaN expected and not there exits 1' run_other
shows "$out" 'layers\.0: 1 of 12288 outputs are wrong; the worst is moe_out\[1\]\[5\]: .*, expected nan' \
	'and is named'
patch layers.0.hidden_in 256 '\000\000\300\177'
exits 1 'a NaN that is not expected exits 1' run_other
shows "$out" 'layers\.0: 256 of 12288 outputs are wrong; the worst is moe_out\[1\]\[0\]: nan, expected -?[0-9]' \
	'and so does each output that it reaches'
largest=$(dd if="$oracle" bs=1 skip="$(offset layers.0.moe_out)" count=49152 2>/dev/null |
	od -An -v -w4 -tf4 | awk '{ size = $1 < 0 ? -$1 : $1
		if (size > most) { most = size; at = NR - 1 } } END { print at }')
flip layers.0.moe_out "$largest" 2 1
exits 1 'an output one part in 256 or less off exits 1' run_other
shows "$out" 'layers\.0: 1 of 12288 outputs are wrong' 'and is the only one'
flip layers.1.topk_weights 0 1 1
exits 1 'a router weight 1e-5 off exits 1' run_other
shows "$out" 'layers\.1: routing differs for 1 of 48 tokens, first for token 0; largest weight error [0-9.]+e-0[56]' \
	'and by how much'
check 'though each output is within its allowance' sh -c \
	'! printf "%s" "$1" | grep -q "outputs are wrong"' - "$out"
patch layers.1.topk_weights 0 '\000\000\300\177'
exits 1 'a router weight that is NaN exits 1' run_other
shows "$out" 'layers\.1: routing differs for 1 of 48 tokens, first for token 0; largest weight error inf' \
	'and is off without bound'
other 's/"layers.1.hidden_in":{"dtype":"F32","shape":\[48,256\]/"layers.1.hidden_in":{"dtype":"F16","shape":[96,256]/'
exits 3 'layers of two types in a file exit 3' run_other
shows "$err" 'layers\.1\.hidden_in is fp16, before it was fp32' 'and both are named'
patch layers.1.topk_weights 0 '\000\000\000\077'
exits 1 'another router weight exits 1' run_other
shows "$out" 'layers\.1: routing differs for 1 of 48 tokens, first for token 0' 'and is named'
ids=$(dd if="$oracle" bs=1 skip="$(offset layers.0.topk_ids)" count=16 2>/dev/null |
	od -An -td4 | tr -s ' ')
for id in 0 1 2 3 4; do
	case "$ids " in *" $id "*) ;; *) break ;; esac
done
patch layers.0.topk_ids 1 "\\00$id\\000\\000\\000"
exits 1 'another expert exits 1' run_other
shows "$out" 'layers\.0: routing differs for 1 of 48 tokens, first for token 0' 'and is named'
shows "$out" 'layers\.0: [0-9]+ of 12288 outputs are wrong' 'and gives other outputs'

# ---- a tie ----

# token 0 of layers.0 has 7 as its last expert and does not choose 0; with the router's row 0
# made equal to row 7, both logits are the same bits, and the lower id is moek's choice
cp -r "$bf16" "$work/tied"
chmod -R u+w "$work/tied"
router=$(offset model.layers.0.mlp.gate.weight "$bf16/model.safetensors")
dd if="$bf16/model.safetensors" bs=1 skip=$((router + 7 * 512)) count=512 2>/dev/null |
	dd of="$work/tied/model.safetensors" bs=1 seek="$router" conv=notrunc 2>/dev/null
exits 0 'a tie that falls otherwise is no error' "$moek" run "$work/tied" \
	--against "$bf16/expected/oracle.safetensors" --layers 0-0 --tokens 1
shows "$out" '^layers\.0 .* equal but 1 tie ' 'and is counted'

# ---- weights that are not numbers, backends that misbehave ----

cp -r "$bf16" "$work/nan"
chmod -R u+w "$work/nan"
for expert in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
	printf '\300\177' | dd of="$work/nan/model.safetensors" bs=1 conv=notrunc 2>/dev/null \
		seek="$(offset model.layers.0.mlp.experts.$expert.down_proj.weight "$bf16/model.safetensors")"
done
exits 0 'inspect --tensors counts what is no number' "$moek" inspect "$work/nan" --tensors
shows "$out" '^model\.layers\.0\.mlp\.experts\.3\.down_proj\.weight .* experts; [1-9][0-9]* NaN, 0 infinite$' \
	'of the tensor that has it'
exits 1 'random rows that give no numbers exit 1' "$moek" run "$work/nan" --layers 0-0 \
	--tokens 3 --backend 'require emulation'
shows "$out" 'layers\.0: 3 of 768 outputs are not finite' 'and are counted'
mkdir "$work/fakes"
cp "$MOEK_TEST_FAKES/writes_input.so" "$work/fakes"
printf '[registry]\ngolden = off\n' >"$work/trusting.ini"
misbehaving() { "$moek" run "$qwen" --layers 0-0 --tokens 3 --type fp32 --plugin-dir "$work/fakes" \
	--config "$work/trusting.ini" --backend 'require writes_input' "$@"; }
exits 0 'without --checks a backend that changes its input passes' misbehaving
exits 1 'with --checks it exits 1' misbehaving --checks
shows "$err" 'writes_input.*changed its input' 'and is named'
cp "$MOEK_TEST_FAKES/damaged.so" "$work/fakes"
printf '[registry]\nunlisted = append\ngolden = off\n[plugin damaged]\nfault = dropped\n' >"$work/dropped.ini"
shadowed() { "$moek" run "$qwen" --layers 0-1 --tokens 40 --plugin-dir "$work/fakes" "$@"; }
exits 0 'a backend that lies passes without --shadow' shadowed --backend 'require damaged' \
	--config "$work/dropped.ini"
exits 1 'with --shadow it exits 1' shadowed --backend 'require damaged' \
	--config "$work/dropped.ini" --shadow 2
shows "$out" 'layers\.1: shadow: 2 of 3 forwards compared with emulation\.any; [1-9][0-9]* of 80 rows over' \
	'and is counted'
shows "$err" 'layers\.0, damaged\.any: output.*emulation\.any' 'and is named'
sed 's/^golden = off/golden = first/' "$work/dropped.ini" >"$work/golden.ini"
exits 1 'with golden it does not get so far' shadowed --backend 'require damaged' \
	--config "$work/golden.ini"
shows "$err" 'golden test of .* token.*: output.*emulation\.any' 'and is named'
exits 0 'and another one runs, if one may' shadowed --backend 'prefer damaged,cpu' \
	--config "$work/golden.ini"
shows "$out" '^layers\.1 +cpu\.' 'which is the next'
exits 0 'what is known' "$moek" explain "$qwen" --plugin-dir "$work/fakes" \
	--backend 'prefer damaged,cpu' --config "$work/golden.ini"
shows "$out" '^  damaged\.any +failed .*golden test of' 'is in the next report'
exits 0 'one that does not lie is not accused' shadowed --backend 'require cpu' --shadow 1
shows "$out" 'layers\.0: shadow: 3 of 3 forwards compared with emulation\.any; 0 of 120 rows over' \
	'and is counted'
exits 0 'emulation needs no shadow' shadowed --backend 'require emulation' --shadow 1
printf '[registry]\nunlisted = append\n[plugin emulation]\nenabled = off\n' >"$work/alone.ini"
exits 1 'a shadow that nobody can cast exits 1' shadowed --backend 'require cpu' --shadow 1 \
	--config "$work/alone.ini"
shows "$err" 'layers\.0, cpu\..*: has no shadow: no backend of class emulation' 'and says why'
exits 0 'the same in JSON' shadowed --backend 'require cpu' --shadow 3 --json
check 'with the counts' [ "$(json layers.0.shadow.compared)$(json layers.0.shadow.rows_over)" = 10 ]

# ---- the machine ----

exits 0 'list --json of one machine' "$moek" list --json
cp "$work/out" "$work/facts.json"
exits 0 'is the facts of another' "$moek" explain --problem "$problem" --facts "$work/facts.json"
shows "$out" 'facts\.json, not this machine' 'and the report says so'
printf '{ "host": { "arch": "x86_64", "features": "avx2 fma f16c" }, "devices": [] }' >"$work/avx2.json"
printf '[priority]\ncpu = on\nemulation = on\n[plugin cpu]\nisa = plain\n' >"$work/plain.ini"
exits 0 'facts of a CPU' "$moek" explain --problem "$problem" --facts "$work/avx2.json" \
	--backend 'prefer cpu'
shows "$out" 'cpu\.avx2 +chosen' 'answer for all of it'
exits 0 'facts with a limit in the INI' "$moek" explain --problem "$problem" --facts "$work/avx2.json" \
	--config "$work/plain.ini"
shows "$out" 'cpu\.avx2 .*isa in \[plugin cpu\] limits it' 'answer within the limit'
printf '{ "host": { "arch": "riscv64" },\n"devices": [ { "kind": "hip", "arch": "gfx1100" } ] }' \
	>"$work/facts.json"
exits 0 'facts of a machine with a card' "$moek" list --facts "$work/facts.json"
shows "$out" 'hip gfx1100' 'show the card'
shows "$out" 'riscv64' 'and the host'
exits 2 'run takes no facts of another machine' "$moek" run "$qwen" --facts "$work/facts.json"

# ---- refused ----

exits 1 'a required backend that is not there exits 1' "$moek" run "$qwen" \
	--backend 'require nosuch'
shows "$err" 'nosuch' 'and is named'
printf '[registry]\nschema = 1\nunlisted = ignore\n[priority]\nemulation = off\n' >"$work/nobody.ini"
exits 1 'a checkpoint that nobody may run exits 1' "$moek" run "$qwen" --config "$work/nobody.ini"
shows "$err" 'emulation.*disabled.*nobody\.ini:5' 'with a line for each candidate'
check 'and nothing on stdout' [ -z "$out" ]
exits 1 'the same in JSON' "$moek" run "$qwen" --config "$work/nobody.ini" --json
check 'has the report' [ "$(json choices.#)" = 1 ]
sanitized=$(sed -n 's/^CFLAGS = //p' "$MOEK_TEST_BUILD/Makefile" | grep -c sanitize)
if [ "$sanitized" -gt 0 ] || [ -z "$(date +%N | tr -d 'N')" ]; then
	skipped 'a refusal takes under 0.3 s' 'sanitizers are slow'
else
	best=999999
	for _ in 1 2 3; do
		start=$(date +%s%N)
		"$moek" run "$bf16" --config "$work/nobody.ini" >/dev/null 2>&1
		took=$((($(date +%s%N) - start) / 1000000))
		[ $took -lt $best ] && best=$took
	done
	echo "# a refusal took $best ms"
	check 'a refusal takes under 0.3 s' [ $best -lt 300 ]
fi

# ---- manual and completion know every option ----

cat "$work"/*.options | sort -u | while read -r option; do
	manual=$(printf '%s' "$option" | sed 's/-/\\\\-/g')
	grep -Eq "^\.BI? ([^ ]* .*)?$manual( |\$)" "$MOEK_TEST_SOURCE/../tools/moek.1" || echo "the manual lacks $option"
	for command in list explain inspect run bench "bench load" place reasons print-config; do
		grep -qx -- "$option" "$work/$command.options" || continue
		bash -c '. "$1"; COMP_WORDS=(moek $2 "$3")
			COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); compopt() { :; }
			_moek; printf "%s\n" "${COMPREPLY[@]}"' - \
			"$MOEK_TEST_SOURCE/../tools/moek.bash-completion" "$command" "$option" |
			grep -qx -- "$option" || echo "completion of $command lacks $option"
	done
done >"$work/lacking"
if command -v bash >/dev/null; then
	check 'manual and completion know every option' [ ! -s "$work/lacking" ]
	sed 's/^/# /' "$work/lacking"
else
	skipped 'manual and completion know every option' 'no bash'
fi

done_testing
