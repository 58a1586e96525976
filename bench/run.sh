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
"$bin/kiln_bench_mlp" costs
for round in 1 2 3 4 5; do # in turn, since a machine's speed may change; the best round of each counts
    "$bin/kiln_bench_mlp" mlp | tee -a "$results"
    "${KILN_PEERS_PYTHON:-python3}" "$here/peers.py" 2>/dev/null | tee -a "$results" || true
done
for round in 1 2 3 4 5; do
    "$bin/kiln_bench_gpt2" | tee -a "$results"
    "${KILN_PEERS_PYTHON:-python3}" "$here/peers.py" gpt2 lstm 2>/dev/null | tee -a "$results" || true
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
field("work") == "mlp" {
    b = field("batch"); p = field("peer"); us = field("us") + 0
    if (!((b, p) in best) || us < best[b, p]) best[b, p] = us
    if (!((b, p) in seen)) { seen[b, p] = 1; order[++n] = b SUBSEP p }
}
END {
    printf "%-8s %-18s %10s %16s\n", "batch", "MLP 784-256-128-10", "us a step", "times Kiln"
    for (i = 1; i <= n; i++) {
        split(order[i], k, SUBSEP)
        printf "%-8s %-18s %10.1f %16.2f\n", k[1], k[2], best[order[i]], best[order[i]] / best[k[1], "kiln"]
    }
}' "$results"
awk -F'[:,}] *' '
/"work": "(gpt2|lstm)"/ {
    w = $2; b = $4; p = $6; us = $8 + 0; tok = $10 + 0
    gsub(/"/, "", w); gsub(/"/, "", b); gsub(/"/, "", p)
    if (!((w, p) in best) || us < best[w, p]) { best[w, p] = us; rate[w, p] = tok }
    if (!((w, p) in seen)) { seen[w, p] = 1; order[++n] = w SUBSEP p; batch[w] = b }
}
END {
    printf "\n%-14s %-18s %10s %10s %12s\n", "model, batch", "", "us a step", "tokens/s", "times Kiln"
    for (i = 1; i <= n; i++) {
        split(order[i], k, SUBSEP)
        printf "%-14s %-18s %10.1f %10d %12.2f\n", k[1] " " batch[k[1]], k[2], best[order[i]], rate[order[i]],
            best[order[i]] / best[k[1], "kiln"]
    }
}' "$results"
