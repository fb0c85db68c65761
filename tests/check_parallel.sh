#!/bin/sh
# SPDX-License-Identifier: MIT
# libmoek-mpi on 2, 3 and 4 ranks, with each MPI that is here: the bits of one process, the
# bytes that the formula says, one report when a rank fails, an end when one dies.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}" "${MOEK_TEST_PLUGINS:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

variable() { sed -n "s/^$1 = //p" "$MOEK_TEST_BUILD/Makefile"; }
source=$MOEK_TEST_SOURCE/..
# MPI itself leaves memory behind, and its threads are not ours
cflags=$(variable CFLAGS)
case $cflags in
*-fsanitize=thread*) skipped 'expert parallel' 'thread sanitizer knows no MPI'; done_testing ;;
esac
ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS+:$ASAN_OPTIONS}
# as root, on fewer processors than ranks, without a network
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
OMPI_MCA_mpi_yield_when_idle=1
OMPI_MCA_btl=self,vader
OMPI_MCA_btl_vader_single_copy_mechanism=none
OMPI_MCA_plm=isolated
LD_LIBRARY_PATH=$MOEK_TEST_BUILD/.libs${LD_LIBRARY_PATH+:$LD_LIBRARY_PATH}
OMPI_CC=$(variable CC)
MPICH_CC=$OMPI_CC
export ASAN_OPTIONS OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_CC MPICH_CC \
	OMPI_MCA_rmaps_base_oversubscribe OMPI_MCA_mpi_yield_when_idle OMPI_MCA_btl OMPI_MCA_plm \
	OMPI_MCA_btl_vader_single_copy_mechanism LD_LIBRARY_PATH

# build MPI: check_ep with its compiler
build() {
	# shellcheck disable=SC2086
	"mpicc.$1" -std=c11 -Wall -Wextra $cflags -pthread -I"$MOEK_TEST_BUILD" \
		-I"$source/include" -I"$source/parallel" -I"$source" -I"$MOEK_TEST_SOURCE" \
		-o "$work/check_ep.$1" "$MOEK_TEST_SOURCE/parallel/check_ep.c" \
		"$source/tools/kernelcheck/weights.c" "$source"/parallel/*.c \
		-Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=posix_memalign \
		-L"$MOEK_TEST_BUILD/.libs" -lmoek -lm
}

# taken RANKS WHAT: its lines become ours
taken() {
	mode=$2
	timeout 120 "mpirun.$mpi" -n "$1" "$work/check_ep.$mpi" "$mode" >"$work/lines" 2>"$work/said"
	code=$?
	while read -r line; do
		case $line in
		'ok '*'# skip'*)
			line=${line#*- }
			skipped "$mpi, ${line%% # skip*}" "${line##*# skip }" ;;
		'ok '*) passed "$mpi, ${line#*- }" ;;
		'not ok '*) failed "$mpi, ${line#*- }" ;;
		esac
	done <"$work/lines"
	grep '^#' "$work/said"
	grep -q '^1\.\.[1-9]' "$work/lines" || code="$code, and no plan"
	[ "$code" = 0 ] && return
	failed "$mpi, $1 ranks, $mode: exit code $code"
	sed 's/^/# /' "$work/said" | head -n 20
}

dies() {
	start=$(date +%s)
	timeout 30 "mpirun.$mpi" -n 3 "$work/check_ep.$mpi" killed >"$work/out" 2>&1
	code=$?
	[ "$code" -ne 0 ] && [ "$code" -ne 124 ] && return
	echo "# exit code $code after $(($(date +%s) - start)) s"
	return 1
}

# ---- placements need no MPI ----

moek=$MOEK_TEST_BUILD/tools/moek
qwen=$MOEK_TEST_SOURCE/fixtures/checkpoints/tiny-qwen3moe-ct-sym-g32
trace=$qwen/expected/oracle.safetensors
json() { "$MOEK_TEST_BUILD/tests/jsonpath" "$@" <"$work/out" 2>&1; }
is() { [ "$1" = "$2" ] || { echo "# '$1', expected '$2'"; return 1; }; }
exits 0 'inspect shows ranks' "$moek" inspect "$qwen" --ranks 3
shows "$out" '^ +0 +24 +1\.27 +37\.5%$' 'with experts, bytes and load'
shows "$out" '^ +2 +20 +1\.06 +31\.2%$' 'of each'
exits 0 'inspect takes a trace' "$moek" inspect "$qwen" --ranks 3 --trace "$trace" --json
check 'and sums bytes in JSON' is "$(json ranks.0.weight_bytes)" 1328256
exits 0 'place deals experts out' "$moek" place "$qwen" --ranks 3 --trace "$trace" --layer 1
shows "$out" '^layers\.1 +0 +6 +0\.32 +41\.7%  0-5$' 'and tells their load from the trace'
shows "$out" '^the most loaded rank gets 1\.25 times the mean' 'and the worst of it'
exits 0 'place balances' "$moek" place "$qwen" --ranks 3 --trace "$trace" --layer 1 --most 7
shows "$out" '^the most loaded rank gets 1\.0[01] times the mean' 'with replicas'
exits 2 'too few places' "$moek" place "$qwen" --ranks 3 --trace "$trace" --most 5
shows "$err" '16 experts do not fit 3 ranks of 5, it takes 6' 'are told'
exits 2 'place without ranks' "$moek" place "$qwen"
exits 2 '--most without a trace' "$moek" place "$qwen" --ranks 3 --most 7
exits 2 'a trace without ranks' "$moek" inspect "$qwen" --trace "$trace"
exits 3 'a trace that lacks the layers' "$moek" place "$qwen" --ranks 3 \
	--trace "$qwen/model-00001-of-00003.safetensors"
shows "$err" 'topk_ids' 'is told by name'

for mpi in openmpi mpich; do
	if ! command -v "mpicc.$mpi" >/dev/null 2>&1 || ! command -v "mpirun.$mpi" >/dev/null 2>&1; then
		skipped "expert parallel with $mpi" "no mpicc.$mpi and mpirun.$mpi here"
		continue
	fi
	build "$mpi" >"$work/log" 2>&1 || {
		failed "$mpi compiles it"
		sed 's/^/# /' "$work/log"
		continue
	}
	check "$mpi compiles it without a warning" [ ! -s "$work/log" ]
	for ranks in 2 3 4; do
		taken "$ranks" equal
	done
	taken 3 faults
	check "$mpi: a killed rank ends the job within 30 s" dies
done
# ---- moek run --parallel, with the MPI that configure found ----

case $(variable MPI_LIBS) in
*openmpi*) mpi=openmpi ;;
*mpich*) mpi=mpich ;;
*) mpi= ;;
esac
if [ ! -e "$MOEK_TEST_BUILD/tools/moek-mpi" ] || ! command -v "mpirun.$mpi" >/dev/null 2>&1; then
	exits 1 'without moek-mpi --parallel says what is missing' \
		"$MOEK_TEST_BUILD/tools/moek" run . --parallel experts
	shows "$err" 'configure --with-mpi' 'and how to get it'
	skipped 'moek run --parallel' 'built without MPI'
	done_testing
fi
cat >"$work/moek.ini" <<END
[registry]
schema = 1
plugin_dirs = $MOEK_TEST_PLUGINS
END
run() {
	on=$1
	shift
	timeout 60 "mpirun.$mpi" -n "$on" "$MOEK_TEST_BUILD/tools/moek" run \
		--config "$work/moek.ini" --threads 1 --parallel experts "$@"
}
for model in tiny-qwen3moe-ct-sym-g32 tiny-gptoss-mxfp4; do
	folder=$MOEK_TEST_SOURCE/fixtures/checkpoints/$model
	for ranks in 1 4; do
		exits 0 "$model on $ranks ranks agrees with the oracle" \
			run $ranks "$folder" --against "$folder/expected/oracle.safetensors"
		shows "$out" '^4 layers agree with ' 'and says so'
		check 'once' is "$(printf '%s\n' "$out" | grep -c ' agree with ')" 1
	done
	for ranks in 2 4; do
		exits 0 "$model in shards on $ranks ranks agrees with the oracle" \
			run $ranks "$folder" --against "$folder/expected/oracle.safetensors" \
			--parallel experts,tensor=$ranks
		shows "$out" '^4 layers agree with ' 'and says so'
	done
	exits 0 "$model in 2 groups of 2 shards, fp8 on the wire, agrees" \
		run 4 "$folder" --against "$folder/expected/oracle.safetensors" \
		--parallel experts,tensor=2,wire=fp8,combine=ranks
	shows "$out" '^rows travelled in fp8: e4m3' 'and says what travelled'
	exits 0 "$model in JSON" run 3 "$folder" --json --layer 1
	check 'has all ranks' is "$(json ranks.2.rank)" 2
	all=$(($(json ranks.0.weight_bytes_read) + $(json ranks.1.weight_bytes_read) + \
		$(json ranks.2.weight_bytes_read)))
	"$MOEK_TEST_BUILD/tools/moek" inspect "$folder" --layer 1 --json >"$work/out"
	check 'which together read the weights once' is "$all" "$(json layers.0.weight_bytes)"
done
exits 3 'a checkpoint that is not there' run 2 "$work/none"
check 'is told once' is "$(printf '%s\n' "$err" | grep -c '^moek: ')" 1
shows "$err" '^moek: rank 0 of 2: .*/none' 'by name'
exits 1 'a backend that nobody has' run 2 "$folder" --backend 'require nobody'
shows "$err" '^moek: rank 0 of 2: nobody, which is required' 'is refused on all ranks'
exits 2 'more ranks than experts' run 9 "$folder"
shows "$err" '9 ranks for 8 experts' 'are refused'
for wrong in 'tensor=2' 'experts,tensor=0' 'experts,tensor=x' 'experts,wire=fp4' 'experts,'; do
	exits 2 "--parallel $wrong" "$MOEK_TEST_BUILD/tools/moek" run . --parallel "$wrong"
done
exits 2 'shards that do not divide the ranks' run 3 "$folder" --parallel experts,tensor=2
shows "$err" '^moek: run: tensor=2 does not divide 3 ranks' 'are refused'

# ---- moek bench --parallel ----

bench() {
	on=$1
	shift
	timeout 60 "mpirun.$mpi" -n "$on" "$MOEK_TEST_BUILD/tools/moek" bench --shape tiny \
		--config "$work/moek.ini" --repetitions 2 --tokens 1,48 "$@"
}
exits 0 'bench --parallel succeeds' bench 4 --parallel experts --scheme int4,mxfp4 --json
check 'on 1, 2 and 4 ranks' is "$(for i in 0 1 2 3 4 5; do json results.$i.ranks; done | tr '\n' ' ')" '1 1 2 2 4 4 '
check 'for every scheme' is "$(json results.#) $(json results.11.scheme)" '12 mxfp4'
check 'and sends nothing to itself' is "$(json results.1.bytes_sent)" 0
# 48 tokens of 256 bf16, 4 of 16 experts: up to 528 bytes for each pair, 1024 for each slot
check 'but rows and slots to others' awk -v bytes="$(json results.5.bytes_sent)" 'BEGIN {
	exit !(bytes > 48 * 2 * 1024 && bytes < 48 * (3 * 528 + 4 * 1024)) }'
check 'the loaded rank has the mean or more' awk -v load="$(json results.5.load)" 'BEGIN {
	exit !(load >= 1 && load < 4) }'
check 'and computes for a share of the time' awk -v share="$(json results.1.slowest_share)" 'BEGIN {
	exit !(share > 0 && share <= 1) }'
plain=$(json results.5.bytes_sent)
exits 0 'bench --parallel with shards and fp8' bench 4 --parallel experts,tensor=2,wire=fp8
shows "$out" '^4 ranks of .* fp8 .*slots come back; experts and tensor shards$' 'says so'
check 'once' is "$(printf '%s\n' "$out" | grep -c 'speed-up$')" 1
shows "$out" '^tiny +int4 g32 +a16 +[a-z0-9.]+ +48 +2 .* 1\.00$' 'from the fewest ranks'
exits 0 'bench in fp8' bench 4 --parallel experts,wire=fp8 --json
# the same routing, twice: 512 bytes of a row become 260
check 'sends fewer bytes for the same rows' awk -v a="$plain" -v b="$(json results.5.bytes_sent)" 'BEGIN {
	exit !(b < a && (a - b) % 126 == 0) }'
exits 2 'bench --parallel --compare' bench 2 --parallel experts --compare cpu,emulation
exits 1 'bench without room' bench 2 --parallel experts --shape deepseek-v3 --memory 1
shows "$err" 'deepseek-v3 int4 g32: 2 ranks need about [0-9.]+ GiB each' 'says how much it needs'
exits 2 'an unknown axis' "$MOEK_TEST_BUILD/tools/moek" run . --parallel rows
exits 2 'a part of a part' "$MOEK_TEST_BUILD/tools/moek" run . --parallel experts --shard 0/2
done_testing
