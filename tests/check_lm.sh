#!/bin/sh
# SPDX-License-Identifier: MIT
# Whole models through examples/lm: logits, loss and answers as transformers has them, on
# every backend that is built; a damaged backend shows; bad input is told apart.
# MOEK_TEST_LONG=1 scores all of the text and all tasks against expected/scores.json.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_FAKES:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

models=$MOEK_TEST_SOURCE/fixtures/checkpoints
qwen=$models/tiny-qwen3moe-ct-sym-g32
gptoss=$models/tiny-gptoss-mxfp4
json() { "$MOEK_TEST_BUILD/tests/jsonpath" "$@" <"$work/out" 2>&1; }
cat >"$work/moek.ini" <<END
[registry]
schema = 1
plugin_dirs = $MOEK_TEST_PLUGINS
END
lm() {
	model=$1
	shift
	"$MOEK_TEST_BUILD/examples/lm/moek-lm" "$model" --config "$work/moek.ini" --threads 2 "$@"
}
# near VALUE EXPECTED MARGIN; apart: the opposite. Neither holds for what is no number.
number='^-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?$'
near() {
	awk -v a="$1" -v b="$2" -v m="$3" -v n="$number" \
		'BEGIN { exit !(a ~ n && b ~ n && a - b <= m && b - a <= m) }' ||
		{ echo "# $1, expected $2 within $3"; return 1; }
}
apart() {
	awk -v a="$1" -v b="$2" -v m="$3" -v n="$number" \
		'BEGIN { exit !(a ~ n && b ~ n && (a - b > m || b - a > m)) }' ||
		{ echo "# $1 and $2 are within $3"; return 1; }
}
is() { [ "$1" = "$2" ] || { echo "# '$1', expected '$2'"; return 1; }; }

backends=emulation
if [ -e "$MOEK_TEST_PLUGINS/cpu.so" ]; then
	backends='emulation cpu'
else
	skipped 'models on cpu' 'not built'
fi

# ---- scores ----

# The loss on the first 256 bytes and the answers to the first 2 rows of each task, from a
# run whose scores on the whole were those of expected/scores.json.
short() {
	case $1 in
	*bf16) loss=0.714759 ;;
	*ct-sym-g32) loss=0.712741 ;;
	*gptoss*) loss=0.718420 ;;
	*gptq*) loss=0.716002 ;;
	*quark*) loss=0.718811 ;;
	esac
	fine=0.00001 # a window one key too wide is 0.00007
	limit='--limit 1'
	rows='--limit 2'
	match=1
}

# All of it, by transformers.
long() {
	fine=0.0001
	limit=
	rows=
	cp "$1/expected/scores$inputs.json" "$work/out"
	loss=$(json nats_per_byte)
	match=$(json exact_match_mean)
}

for model in "$models/tiny-qwen3moe-bf16" "$qwen" "$gptoss" "$models/tiny-qwen3moe-gptq-sym-g32" \
	"$models/tiny-qwen3moe-quark-mxfp4"; do
	name=${model##*/}
	case $name in *quark*) inputs=_w4a4 ;; *) inputs= ;; esac
	if [ -n "${MOEK_TEST_LONG-}" ]; then long "$model"; else short "$model"; fi
	for backend in $backends; do
		lm "$model" --prompt x --max-tokens 1 --backend "require $backend" \
			>"$work/out" 2>"$work/err"
		if grep -Eq 'refused: (gate_up weight|activations)' "$work/err"; then
			skipped "$name on $backend" 'it refuses the weights or how activations are quantised'
			continue
		fi
		for type in fp32 bf16; do
			[ $type = fp32 ] && margin=$fine || margin=0.001
			what="$name on $backend, $type"
			set -- --backend "require $backend" --input-type $type --json
			# rows rounded to bf16 have other codes of four bits than the oracle's
			if [ "$type$inputs" != bf16_w4a4 ]; then
				exits 0 "$what: logits are those of transformers" \
					lm "$model" "$@" --logits "$model/expected/oracle$inputs.safetensors"
				check "$what: and so is each greedy byte" is "$(json greedy_agreement)" 1
			fi
			exits 0 "$what: a text is scored" lm "$model" "$@" --loss "$model/heldout.txt" $limit
			check "$what: and its loss is as expected" \
				near "$(json nats_per_byte)" "$loss" $margin
			shows "$(json backend)" "^$backend\\." "$what: it was $backend that ran"
			exits 0 "$what: tasks are scored" lm "$model" "$@" --tasks "$model/tasks.tsv" $rows
			check "$what: and the answers are as right as they should be" \
				near "$(json exact_match)" "$match" 0.01
		done
	done
done

# ---- answers one token at a time, and many at once ----

exits 0 'a prompt is answered' lm "$qwen" --prompt '347+586='
check 'with the right number and a newline' is "$out" 933
shows "$err" 'tokens/s, [0-9]+% in experts' 'and speed and share are told'
exits 0 'ids are answered with ids' lm "$gptoss" --max-tokens 3 \
	--ids 10,51,52,55,43,53,56,54,61
check 'which are the same bytes' is "$out" '57 51 51 '
tasks=$gptoss/tasks.tsv
exits 0 'answers are judged in one forward' \
	lm "$gptoss" --tasks "$tasks" --limit 12 --json --backend 'require emulation'
judged=$(json exact_match wrong.0 wrong.1)
for batch in 1 7; do
	exits 0 "answers are generated, $batch at a time" lm "$gptoss" --tasks "$tasks" \
		--limit 12 --json --batch $batch --backend 'require emulation'
	check 'with the same mistakes' is "$(json exact_match wrong.0 wrong.1)" "$judged"
done
# the sliding window of 128 and a cache filled piece by piece
exits 0 'a text in one forward' lm "$gptoss" --loss "$gptoss/heldout.txt" --limit 1 --json \
	--backend 'require emulation'
whole=$(json nats_per_byte)
exits 0 'the same in forwards of 17 tokens' lm "$gptoss" --loss "$gptoss/heldout.txt" \
	--limit 1 --chunk 17 --json --backend 'require emulation'
check 'has the same loss' is "$(json nats_per_byte)" "$whole"
exits 0 'logits in forwards of 17 tokens are good too' lm "$gptoss" --chunk 17 --json \
	--logits "$gptoss/expected/oracle.safetensors"
check 'and so are the layers' near "$(json layers.3.relative_norm)" 0 0.00001
exits 0 '--bench measures' lm "$qwen" --bench --json
check 'six batch sizes' is "$(json bench.#)" 6

# ---- one backend against another ----

exits 0 'emulation compares with itself' \
	lm "$qwen" --compare emulation,emulation --prompt '347+586=' --json
check 'and is the same to the bit' is "$(json logits.max layers.3.max layers.#)" '0
0
4'
if [ "$backends" != emulation ]; then
	exits 0 'emulation compares with cpu' lm "$gptoss" --compare emulation,cpu \
		--loss "$gptoss/heldout.txt" --json
	check 'and every greedy byte is the same' is "$(json greedy_agreement)" 1
	check 'though the sums are others' apart "$(json logits.max)" 0 0
fi

# ---- int8 and mxfp4 activations ----

for activations in int8 mxfp4_even mxfp4_round_up; do
	exits 0 "$activations activations run" lm "$qwen" --activations $activations --json \
		--loss "$qwen/heldout.txt" --limit 1 --backend 'require emulation'
	short "$qwen"
	check 'and cost little' near "$(json nats_per_byte)" "$loss" 0.01
	check 'but something' apart "$(json nats_per_byte)" "$loss" 0.000003
done

# ---- a damaged backend ----

mkdir "$work/plugins"
cp "$MOEK_TEST_FAKES/damaged.so" "$work/plugins"
damage() {
	# numbers are to be judged here by what a model says
	sed 's/^\[registry\]/&\ngolden = off/' "$work/moek.ini" >"$work/damaged.ini"
	printf '[plugin damaged]\nfault = %s\n' "$1" >>"$work/damaged.ini"
}
for fault in none dropped zero; do
	damage $fault
	set -- --config "$work/damaged.ini" --plugin-dir "$work/plugins" \
		--backend 'require damaged' --json
	expected=0
	[ $fault = none ] || expected=1
	exits $expected "fault $fault: logits are checked" \
		lm "$qwen" "$@" --logits "$qwen/expected/oracle.safetensors"
	check 'and the verdict says the same' is "$(json within)" \
		"$([ $expected = 0 ] && echo true || echo false)"
	exits 0 "fault $fault: a text is scored" \
		lm "$qwen" "$@" --loss "$qwen/heldout.txt" --limit 1
	short "$qwen"
	if [ $fault = none ]; then
		check 'and the loss is that of emulation' near "$(json nats_per_byte)" "$loss" 0.000001
	else
		check 'and the loss tells' apart "$(json nats_per_byte)" "$loss" 0.01
	fi
done

# ---- the GPU plugin on the runtime for tests ----

rdna3() {
	if [ ! -e "$MOEK_TEST_PLUGINS/rdna3.so" ] || [ ! -e "$MOEK_TEST_FAKES/fakehip.so" ]; then
		skipped 'models on rdna3' 'not built'
		return
	fi
	if ldd "$MOEK_TEST_FAKES/fakehip.so" | grep -q tsan; then
		skipped 'models on rdna3' 'fibers and the thread sanitizer do not go together'
		return
	fi
	card=$work/sys/bus/pci/devices/0000:03:00.0
	node=$work/sys/class/kfd/kfd/topology/nodes/1
	mkdir -p "$card" "$node/mem_banks/0"
	echo 0x1002 >"$card/vendor"
	echo 0x744c >"$card/device"
	echo 0x030000 >"$card/class"
	cat >"$node/properties" <<-END
		cpu_cores_count 0
		simd_count 192
		simd_per_cu 2
		wave_front_size 32
		gfx_target_version 110000
		location_id 768
		domain 0
	END
	printf 'heap_type 1\nsize_in_bytes 25753026560\n' >"$node/mem_banks/0/properties"
	: >"$work/kfd"
	cp "$work/moek.ini" "$work/rdna3.ini"
	cat >>"$work/rdna3.ini" <<-END
		[plugin rdna3]
		runtime = $MOEK_TEST_FAKES/fakehip.so
		sysfs = $work/sys
		kfd = $work/kfd
	END
	if "$MOEK_TEST_BUILD/tools/moek" explain "$qwen" --config "$work/rdna3.ini" |
		grep -q 'built without a GPU compiler'; then
		skipped 'models on rdna3' 'rdna3 was built without a GPU compiler'
		return
	fi
	for model in "$qwen" "$gptoss"; do
		set -- --config "$work/rdna3.ini" --backend 'require rdna3' --input-type bf16
		exits 0 "${model##*/} on rdna3: logits are those of transformers" \
			lm "$model" "$@" --logits "$model/expected/oracle.safetensors"
		exits 0 "${model##*/} on rdna3: a prompt is answered" \
			lm "$model" "$@" --prompt '347+586='
		check 'with the right number' is "$out" 933
	done
}
rdna3

# ---- what is wrong with the input ----

long=$(printf '%01100d' 0)
exits 3 'a prompt longer than the context is bad input' lm "$qwen" --prompt "$long"
shows "$err" '1101 tokens of prompt and 1 of answer, the context is 1024' 'and both are told'
exits 3 'and so is an answer that cannot fit' lm "$qwen" --prompt 1+1= --max-tokens 1020
exits 3 'an id beyond the vocabulary is bad input' lm "$qwen" --ids 10,256
shows "$err" 'id 256 is outside the vocabulary of 256' 'and is told'
exits 3 'no checkpoint is bad input' lm "$work/none" --prompt x
exits 3 'no text is bad input' lm "$qwen" --loss "$work/none"
printf 'short' >"$work/text"
exits 3 'a text that is too short is bad input' lm "$qwen" --loss "$work/text"
printf 'add\t1+1=\t2\nadd 1+2=\t3\n' >"$work/text"
exits 3 'a row of tasks without its tabs is bad input' lm "$qwen" --tasks "$work/text"
shows "$err" 'text:2: must be task, prompt and answer' 'with its line'
exits 3 'an oracle that is none is bad input' lm "$qwen" --logits "$work/text"

# copy MODEL: a checkpoint to spoil, in $copy
copies=0
copy() {
	copies=$((copies + 1))
	copy=$work/copy$copies
	mkdir "$copy"
	cp "$1"/config.json "$1"/*.safetensors "$copy"
	chmod -R u+w "$copy"
	! [ -e "$1/model.safetensors.index.json" ] || cp "$1"/*.index.json "$copy"
}
# spoil FILE EXPRESSION: the same number of bytes, please
spoil() { LC_ALL=C sed -i -b "$2" "$copy/$1"; }

copy "$gptoss"
spoil model.safetensors 's/"model\.norm\.weight"/"model.norn.weight"/'
exits 3 'a tensor that is missing is bad input' lm "$copy" --prompt x
shows "$err" 'no tensor model\.norm\.weight; nearest: ' 'and is named'
copy "$models/tiny-qwen3moe-bf16"
spoil config.json 's/"qwen3_moe"/"olmoe"/
	s/"intermediate_size": 512/"intermediate_size": 128/'
exits 3 'an architecture with experts but unknown here is bad input' lm "$copy" --prompt x
shows "$err" 'model_type olmoe, must be qwen3_moe or gpt_oss' 'and is named'
spoil config.json 's/"olmoe"/"perceptron"/'
exits 3 'an architecture that nobody knows is bad input' lm "$copy" --prompt x
shows "$err" 'perceptron' 'and is named'
copy "$gptoss"
spoil config.json 's/"rope_type": "yarn"/"rope_type": "warp"/'
exits 3 'a rotary embedding that is not known is bad input' lm "$copy" --prompt x
shows "$err" 'rope_type warp, must be default, linear or yarn' 'and is named'
# as transformers 5.24 has them for the same files
rope() { # EXPECTED SENTENCE PARAMETERS
	copy "$models/tiny-qwen3moe-bf16"
	spoil config.json "s/\"rope_theta\": 10000.0,/&$3,/;/\"rope_type\": \"default\"/d"
	spoil config.json '/^ *"rope_theta": 10000/s/,$//'
	exits 0 "a rotary embedding that is $2" lm "$copy" --limit 1 --json \
		--loss "$models/tiny-qwen3moe-bf16/heldout.txt"
	check 'gives the loss of transformers' near "$(json nats_per_byte)" "$1" 0.00001
}
rope 3.469616 'linear, by 2' '"rope_type": "linear", "factor": 2.0'
yarn='"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256'
rope 0.804111 'YaRN, by 4' "$yarn"
rope 0.804006 'YaRN with all its numbers' "$yarn, \"beta_fast\": 16.0, \"beta_slow\": 2.0, \"truncate\": false, \"attention_factor\": 1.1"
copy "$gptoss"
spoil config.json 's/"num_key_value_heads": 2/"num_key_value_heads": 1/'
exits 3 'sizes at odds with the tensors are bad input' lm "$copy" --prompt x
shows "$err" 'k_proj\.weight is \[128, 256\], by config\.json \[64, 256\]' 'with both shapes'
# half as many rows of twice the width are the same bytes
spoil config.json 's/"num_key_value_heads": 1/"num_key_value_heads": 2/
	s/"vocab_size": 256/"vocab_size": 128/'
for tensor in model.embed_tokens.weight lm_head.weight; do
	spoil model.safetensors "s/\"$tensor\":{\"dtype\":\"BF16\",\"shape\":\[256,256\]/\"$tensor\":{\"dtype\":\"F32\", \"shape\":[128,256]/"
done
exits 0 'a vocabulary of 128 runs' lm "$copy" --prompt x --max-tokens 1
exits 3 'a byte that it lacks is bad input' lm "$copy" --prompt "$(printf 'x\303\244')"
shows "$err" 'byte 0xc3 at 2 is outside the vocabulary of 128' 'and is told, with its place'

# ---- usage ----

exits 2 'no command is a usage error' lm "$qwen"
exits 2 'two commands are a usage error' lm "$qwen" --prompt x --bench
exits 2 'a count that is none is a usage error' lm "$qwen" --prompt x --max-tokens 0
exits 2 'an option of another command is a usage error' lm "$qwen" --prompt x --batch 2
exits 2 'one backend to compare is a usage error' lm "$qwen" --compare emulation --prompt x
exits 2 'an activation scheme that is none is a usage error' \
	lm "$qwen" --prompt x --activations int9
exits 1 'a problem that no backend runs is exit code 1' lm "$qwen" --prompt x \
	--activations int8 --problem lora=1
shows "$err" 'lora' 'and what it is about is told'
exits 1 'a backend that refuses is exit code 1' \
	lm "$qwen" --prompt x --backend 'require nobody'
exits 0 '--help succeeds' lm "$qwen" --help
shows "$out" '^exit codes: 0 done' 'and shows the exit codes'
done_testing
