#!/bin/bash
# Kiln's figures beside PyTorch's and JAX's, all taken in one run on the same number of threads.
# usage: bench/run.sh BIN_DIR      KILN_PEERS_PYTHON: a Python that has PyTorch and JAX (default: python3)
set -eu
bin=$1
here=$(dirname "$0")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
results=$(mktemp)
trap 'rm -f "$results"' EXIT
echo "threads: $OMP_NUM_THREADS"
python=${KILN_PEERS_PYTHON:-python3}
"$bin/kiln_bench_costs"
for round in 1 2 3 4 5; do # in turn, since a machine's speed may change; the best round of each counts
    for work in mlp lenet gpt2 lstm; do
        "$bin/kiln_bench_step" $work | tee -a "$results"
        "$python" "$here/peers.py" $work 2>/dev/null | tee -a "$results" || true
    done
    "$bin/kiln_bench_epoch" | tee -a "$results"
    "$python" "$here/epoch_peer.py" 2>/dev/null | tee -a "$results" || true
done
echo
awk '
function field(name,   text) {
    if (!match($0, "\"" name "\": *\"?[^,\"}]*"))
        return ""
    text = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*: *"?/, "", text)
    return text
}
field("peer") {
    w = field("work"); b = field("batch"); p = field("peer"); us = field("us") + 0
    if (!((w, b, p) in best)) order[++n] = w SUBSEP b SUBSEP p
    if (!((w, b, p) in best) || us < best[w, b, p]) best[w, b, p] = us
}
END {
    printf "%-16s %-8s %-18s %10s %16s\n", "work", "batch", "by", "us a step", "times Kiln"
    for (i = 1; i <= n; i++) {
        split(order[i], k, SUBSEP)
        printf "%-16s %-8s %-18s %10.1f %16.2f\n", k[1], k[2], k[3], best[order[i]], best[order[i]] / best[k[1], k[2], "kiln"]
    }
}' "$results"
