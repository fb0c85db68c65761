#!/bin/sh
# SPDX-License-Identifier: MIT
# ep_netns.sh RANKS MBIT MOEK [OPTION...]: moek bench --parallel experts, each rank in a network
# namespace of its own behind a link of so many Mbit/s. As root; MOEK must be built with MPICH,
# whose ranks keep their pipe to hydra when they enter a namespace. Prints JSON.
set -e
ranks=$1 rate=$2 moek=$3
shift 3
name=moek$$
away() {
	for i in $(seq 0 $((ranks - 1))); do ip netns del "$name-$i" 2>/dev/null; done
	ip link del "$name" 2>/dev/null
}
trap away EXIT
trap 'exit 1' INT TERM
ip link add "$name" type bridge
ip link set "$name" up
for i in $(seq 0 $((ranks - 1))); do
	ip netns add "$name-$i"
	ip link add "${name}v$i" type veth peer name eth0 netns "$name-$i"
	ip link set "${name}v$i" master "$name" up
	ip -n "$name-$i" link set lo up
	ip -n "$name-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
	ip -n "$name-$i" link set eth0 up
	tc -n "$name-$i" qdisc add dev eth0 root tbf rate "${rate}mbit" burst 32kb latency 200ms
done
# by TCP only, and as if no two ranks shared a machine
export MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
# shellcheck disable=SC2016 # the rank's own shell expands it
timeout 120 mpirun.mpich -n "$ranks" sh -c 'exec ip netns exec "$0-$PMI_RANK" "$@"' "$name" \
	"$moek" bench --parallel experts --threads 1 --json "$@"
