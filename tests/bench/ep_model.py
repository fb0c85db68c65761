#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How long one layer takes on N ranks: rounds of dispatch, compute and combine.

    ep_model.py                          the table for 8, 64 and 512 ranks
    ep_model.py --check FILE RATE ...    JSON of moek bench --parallel beside the model, on
                                         links of RATE Mbit/s (see ep_netns.sh)

A rank computes at --gflops or reads its experts' weights at --gbs, whichever takes longer
(from moek bench). Links: --latency and --message seconds of each phase and message,
--bandwidth GB/s of a rank to other nodes, --local GB/s to the --node ranks of its own.
"""
import argparse
import json

SHAPES = {  # experts, top_k, hidden, intermediate
    "deepseek-v3": (256, 8, 7168, 2048),
    "kimi-k2": (384, 8, 7168, 2048),
    "tiny": (16, 4, 256, 128),
}


def missed(experts, top_k, held):
    """That none of a token's experts is among so many."""
    p = 1.0
    for i in range(top_k):
        p *= max(0.0, (experts - held - i) / (experts - i))
    return p


def bytes_of_rank(shape, tokens, ranks, to, fp8=False, sums=False):
    """(dispatch, combine) bytes that a rank sends to `to` of the others."""
    experts, top_k, hidden, _ = shape
    held = experts / ranks
    p = 1 - missed(experts, top_k, held)
    row = hidden + -(-hidden // 128) if fp8 else 2 * hidden
    record = (row + 3) // 4 * 4 + top_k * (8 if sums else 4)
    result = p * 2 * hidden if sums else top_k / ranks * 4 * hidden
    return tokens / ranks * to * p * record, tokens / ranks * to * result


def compute(shape, tokens, ranks, a):
    experts, top_k, hidden, width = shape
    slots = tokens * top_k / ranks * a.imbalance
    hit = experts / ranks * (1 - (1 - top_k / experts) ** tokens)
    weights = hit * 3 * hidden * width * (0.5 + 2 / 32)
    return max(6 * hidden * width * slots / a.gflops, weights / a.gbs) / 1e9


def phase(shape, tokens, ranks, which, a):
    """Seconds of one Alltoallv."""
    near = min(a.node, ranks) - 1
    far = ranks - 1 - near
    inside = bytes_of_rank(shape, tokens, ranks, near, a.fp8, a.sums)[which] / a.local
    outside = bytes_of_rank(shape, tokens, ranks, far, a.fp8, a.sums)[which] / a.bandwidth
    return a.latency + a.message * (ranks - 1) + max(inside, outside) / 1e9


def forward(shape, tokens, ranks, a):
    """The rounds as parallel/forward.c starts them; (seconds, computing, on the wire)."""
    chunk = max(16, 16384 // ranks // shape[1]) * ranks  # tokens of a round
    rounds = max(1, -(-tokens // chunk))
    each = tokens / rounds
    c = compute(shape, each, ranks, a)
    d, r = (phase(shape, each, ranks, i, a) for i in (0, 1))
    counts = a.latency + a.message * (ranks - 1)
    wire = d + r
    return counts + wire + c + (rounds - 1) * max(c, wire), rounds * c, rounds * wire


def table(a):
    print(f"a rank: {a.gflops:g} GFLOP/s, {a.gbs:g} GB/s; links: {a.bandwidth:g} GB/s, "
          f"{a.local:g} within {a.node} ranks; {a.latency * 1e6:g} us + {a.message * 1e6:g} us a message")
    print(f"{'shape':<12} {'ranks':>5} {'tokens':>6} {'ms':>9} {'computing':>9} {'on wire':>9} "
          f"{'MB a rank':>9} {'tokens/s':>9}")
    for name in ("deepseek-v3", "kimi-k2"):
        for ranks in (8, 64, 512):
            for tokens in (64, 1024, 8192, 65536):
                shape = SHAPES[name]
                if ranks > shape[0]:
                    # replicas: as many places as ranks, each expert on several
                    shape = (ranks,) + shape[1:]
                t, c, w = forward(shape, tokens, ranks, a)
                sent = sum(bytes_of_rank(shape, tokens, ranks, ranks - 1, a.fp8, a.sums))
                print(f"{name:<12} {ranks:5} {tokens:6} {t * 1e3:9.3f} {c * 1e3:9.3f} {w * 1e3:9.3f} "
                      f"{sent / 1e6:9.2f} {tokens / t:9.0f}")


def check(a):
    print("Mbit/s ranks tokens      ms   model  error   KiB sent  formula")
    for path, rate in zip(a.check[::2], a.check[1::2]):
        with open(path) as f:
            results = json.load(f)["results"]
        for r in (r for r in results if r["ranks"] > 1 and r["tokens"] > 1):
            # what does not depend on bytes: a forward of one token on the same ranks
            idle = next(o["ms"] for o in results if o["ranks"] == r["ranks"] and o["tokens"] == 1)
            shape, n = SHAPES[r["shape"]], r["ranks"]
            sent = sum(bytes_of_rank(shape, r["tokens"], n, n - 1))
            ms = idle + sent * 8 / float(rate) / 1e3 + r["ms"] * r["slowest_share"]
            print(f"{rate:>6} {n:5} {r['tokens']:6} {r['ms']:7.1f} {ms:7.1f} {ms / r['ms'] - 1:+6.0%} "
                  f"{r['bytes_sent'] / 1024:10.1f} {n * sent / 1024:8.1f}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--check", nargs="+", metavar="FILE RATE")
    p.add_argument("--gflops", type=float, default=373)
    p.add_argument("--gbs", type=float, default=23)
    p.add_argument("--bandwidth", type=float, default=12.5)
    p.add_argument("--local", type=float, default=50)
    p.add_argument("--node", type=int, default=8)
    p.add_argument("--latency", type=float, default=5e-6)
    p.add_argument("--message", type=float, default=1e-6)
    p.add_argument("--imbalance", type=float, default=1.2)
    p.add_argument("--fp8", action="store_true")
    p.add_argument("--sums", action="store_true", help="combine=ranks")
    a = p.parse_args()
    check(a) if a.check else table(a)


if __name__ == "__main__":
    main()
