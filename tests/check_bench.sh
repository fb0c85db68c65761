#!/bin/sh
# SPDX-License-Identifier: MIT
# moek bench on shapes that take seconds: what it prints, not how fast this machine is.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

moek=$MOEK_TEST_BUILD/tools/moek
json() { "$MOEK_TEST_BUILD/tests/jsonpath" "$@" <"$work/out" 2>&1; }
# keys FROM: all keys of the JSON from the line of that key on
keys() { sed -n "/\"$1\":/,\$p" "$work/out" | grep -o '"[a-z0-9_]*":' | tr -d '":' | sort -u | tr '\n' ' '; }
bench() { "$moek" bench --shape tiny --repetitions 3 "$@"; }
models=$MOEK_TEST_SOURCE/fixtures/checkpoints
qwen=$models/tiny-qwen3moe-ct-sym-g32

# ---- what makes no sense ----

for wrong in '--shape nosuch' '--scheme int3' '--scheme int4,' '--activations fp8' \
	'--tokens 0' '--tokens 1,' '--tokens 1,,2' '--tokens 1x' '--threads 0' \
	'--threads 1,5000' '--routing odd' '--compare cpu' '--compare a,b,c' \
	'--compare ,b' '--compare a,b --backend c' '--group 70000' '--repetitions 0' \
	'--memory 0' 'load' 'load --shape tiny' 'surplus' '--layers 0-1'; do
	exits 2 "bench $wrong is a usage error" "$moek" bench $wrong
done
shows "$("$moek" bench --shape nosuch 2>&1)" 'nosuch: not known; there are qwen3-30b-a3b, ' \
	'and an unknown shape is answered with those there are'
exits 3 'bench load of a folder that is not there exits 3' "$moek" bench load "$work/nowhere"
exits 1 'a backend that refuses exits 1' bench --group 48 --backend 'require cpu'
shows "$err" 'group_size 48' 'and says why'
exits 1 'what does not fit into memory exits 1' "$moek" bench --shape gpt-oss-120b --memory 1
shows "$err" 'gpt-oss-120b int4 g32: needs about [0-9.]+ GiB, --memory allows 1\.0 GiB' \
	'and says how much it needs'

# ---- what is measured ----

exits 0 'bench succeeds' bench --tokens 1,16 --threads 1,2 --compare emulation,cpu \
	--activations a16,int8 --repetitions 9 --json
check 'and is strict JSON with each point' [ "$(json results.#)" = 16 ]
check 'and the parts that are promised' [ "$(sed -n 's/^  "\([a-z]*\)":.*/\1/p' "$work/out" |
	tr '\n' ' ')" = 'machine probes results ' ]
check 'and their keys' [ "$(keys results)" = 'activations backend limit ms results scheme shape share_of_limit spread threads tokens ' ]
check 'and names each point' [ "$(json results.15.backend results.15.shape results.15.scheme \
	results.15.activations results.15.tokens results.15.threads |
	sed 's/cpu\..*/cpu/' | tr '\n' ' ')" = 'cpu tiny int4 g32 int8 16 2 ' ]
between() { # KEY LEAST MOST: that many numbers of this key, all above LEAST, at most MOST
	sed -n "s/.*\"$1\": \\([0-9.e+-]*\\),*/\\1/p" "$work/out" |
		awk -v least="$2" -v most="$3" -v count="$4" '
			!($1 > least && $1 <= most) { print "# '"$1"' is " $1; bad = 1 }
			END { exit bad || NR != count }'
}
check 'with shares of a limit' between share_of_limit 0 1.2 16
check 'and times' between ms 0 10000 16
check 'and read bandwidth for each number of threads' between read_gb_per_second 0.1 10000 2
check 'and peaks' between fp32_gflop_per_second 0.1 100000 2
check 'of which int8 is the fastest' awk '
	/int8_gop/ { int8 = $2 + 0 } /fp32_gflop/ { fp32 = $2 + 0 }
	END { exit !(int8 == 0 || int8 > fp32) }' "$work/out"
# one or two of the 8 pairs may fall to what else runs here
check 'and emulation is slower than cpu' awk '
	/"backend": "emulation/ { slow = 1 } /"backend": "cpu/ { slow = 0 }
	/"ms"/ && slow { before = $2 + 0 }
	/"ms"/ && !slow { pairs++; good += before > $2 + 0 }
	END { exit pairs != 8 || good < 6 }' "$work/out"
check 'and has a smaller share of the limit' awk '
	/"backend": "emulation/ { slow = 1 } /"backend": "cpu/ { slow = 0 }
	/"share_of_limit"/ && slow { before = $2 + 0 }
	/"share_of_limit"/ && !slow { pairs++; good += before < $2 + 0 }
	END { exit pairs != 8 || good < 6 }' "$work/out"

exits 0 'bench prints a table' bench --tokens 2 --threads 1 --compare cpu,emulation \
	--scheme mxfp4 --routing skewed
shows "$out" '^threads +read GB/s +int8 Gop/s' 'below the probes'
shows "$out" '^tiny +mxfp4 +a16 +emulation\.any +2 +1 .*, [0-9.]+ times cpu\.' 'and compares'
shows "$out" '; [0-9]+ CPUs?, [0-9]+ nodes?, last cache ' 'below the machine, its nodes counted'
exits 0 'without --threads there are one and all' bench --tokens 1 --json
check 'of them' [ "$(json results.0.threads)" = 1 ]
exits 0 'bench load succeeds' "$moek" bench load "$qwen" --layers 1-2 --threads 1,2 \
	--repetitions 2 --json
check 'and times the layers asked for' [ "$(json results.# results.0.layers results.0.bytes)" = \
	"2
2
$("$moek" inspect "$qwen" --json --layers 1-2 | awk '/"weight_bytes"/ { sum += $2 } END { print sum }')" ]
check 'and gives its share of read bandwidth' between share_of_limit 0 1.2 2
exits 0 'bench load prints a table' "$moek" bench load "$qwen" --threads 1 --repetitions 1
shows "$out" '4 layers, 0\.00[0-9] GB of expert weights, for ' 'of all layers'

# ---- the plot: gnuplot is played by a script ----

mkdir "$work/bin"
fake() { printf '#!/bin/sh\n%s\n' "$1" >"$work/bin/gnuplot" && chmod +x "$work/bin/gnuplot"; }
plot() { PATH=$work/bin:$PATH bench --tokens 1,2 --threads 1 --plot "$@"; }
fake 'exit 127'
exits 0 'without gnuplot nothing is drawn' plot "$work/none.svg"
shows "$err" 'none\.svg: there is no gnuplot, so nothing is drawn' 'and that is said'
check 'and no file is made' [ ! -e "$work/none.svg" ]
fake "cat | tee '$work/script'"
exits 0 'with gnuplot' plot "$work/roof.svg"
check 'what it prints is the file' cmp -s "$work/script" "$work/roof.svg"
check 'two points in one series' [ "$(sed -n '/^[0-9.]* [0-9.e+]*$/p;/^e$/p' "$work/script" |
	tail -n 3 | sed 's/^[0-9].*/point/' | tr '\n' ' ')" = 'point point e ' ]
exits 2 'a plot that cannot be written is a usage error' plot "$work/nowhere/roof.svg"

rm "$work/bin/gnuplot"
if command -v gnuplot >/dev/null; then
	exits 0 'the real gnuplot draws' plot "$work/real.svg"
	check 'an SVG' grep -q '</svg>' "$work/real.svg"
else
	skipped 'the real gnuplot draws' 'not installed'
fi
done_testing
