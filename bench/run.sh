#!/bin/bash
# Kiln's figures beside PyTorch's and JAX's, taken in turn in one run on the same number of threads, and a table of the
# ratios at the end. Takes some minutes on two cores that nobody else uses.
#
# usage: bench/run.sh BIN_DIR [epochs]
#   epochs               also whole epochs with loading: ten minutes more
#   KILN_PEERS_PYTHON    a Python that has PyTorch, and JAX if it is to be compared (default: python3)
#   OMP_NUM_THREADS      threads of all of them (default: 2)
set -eu
bin=$1
here=$(dirname "$0")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} KILN_BENCH_SECONDS=${KILN_BENCH_SECONDS:-0.1}
results=$(mktemp)
trap 'rm -f "$results"' EXIT
python=${KILN_PEERS_PYTHON:-python3}
has_peer=false
"$python" -c 'import torch' 2>/dev/null && has_peer=true

both() { # program, script, arguments…
    local program=$1 script=$2
    shift 2
    "$bin/kiln_bench_$program" "$@" | tee -a "$results"
    ! $has_peer || "$python" "$here/$script" "$@" 2>/dev/null | tee -a "$results"
}

echo "threads: $OMP_NUM_THREADS"
"$bin/kiln_bench_costs"
for _ in 1 2; do # in turn, since a machine's speed may change; the best round of each counts
    both step peers.py mlp wide lenet gpt2 lstm
    both index index_peer.py
done
both functions functions_peer.py
both conv conv_peer.py f32 bf16 # in f16 PyTorch takes seconds for a gradient
if [ "${2-}" = epochs ]; then
    both epoch epoch_peer.py
fi
echo
awk -f "$here/field.awk" -f "$here/peers.awk" "$results"
$has_peer || echo "$python has no PyTorch to compare with: name one that has, KILN_PEERS_PYTHON=DIR/bin/python make bench"
