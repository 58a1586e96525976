#!/bin/bash
# Kiln on the GPU beside the GPU's own copy, cuBLASLt, empty CUDA graphs, PyTorch and JAX, all in one run on one machine.
#
# usage: bench/gpu.sh [-o FILE] [-t SECONDS] BIN_DIR [PART …]
#   -o FILE       tables in Markdown (gpu-bench.md); what the programs said goes to FILE.jsonl
#   -t SECONDS    all in all (360); each part has a limit of its own as well
#   PART          train epoch steps memory matmul start launch (all of them, in this order); generate, only where named
# KILN_PEERS_PYTHON: a Python that has PyTorch and JAX (python3). KILN_BENCH_DEVICE: another device than cuda.
# KILN_MLP_PEER: a script that measures the MLP's steps in place of peers_gpu.py; it gets the argument mlp.
set -uo pipefail

report=gpu-bench.md seconds=360 device=${KILN_BENCH_DEVICE:-cuda} python=${KILN_PEERS_PYTHON:-python3}
usage() {
    sed -n '2,/^set /{ /^set /d; s/^# \{0,1\}//; p; }' "$0" >&2
    exit 2
}
while getopts o:t: option; do
    case $option in
    o) report=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] && [ -x "$1/kiln_bench_step" ] && [[ $seconds =~ ^[0-9]+$ ]] || usage
bin=$(cd "$1" && pwd)
shift
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(train epoch steps memory matmul start launch)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu-bench-XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
"$here/../tools/link-libraries" "$bin/../lib" "$work/lib" || exit 2
export KILN_PLUGIN_PATH=$work/lib LD_LIBRARY_PATH=$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
results=$report.jsonl
: >"$results" || exit 2

out=$("$bin/kiln_bench_cuda_launch" --device "$device" 2>&1)
case $out in
'no '*)
    echo "$out"
    exit 0
    ;;
esac

begun=$SECONDS failed=0
# Runs a command for so many seconds at most, shows what it says and keeps its JSON.
limited() { # limit command…
    local limit=$1 left=$((seconds - (SECONDS - begun))) rc
    shift
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 3 ]; then
        echo "no time left: $*" >&2
        failed=1
        return
    fi
    timeout -k 5 "$limit" "$@" 2>&1 | while IFS= read -r line; do
        line=${line%$'\r'}
        echo "${line##*$'\r'}" >&2
        case $line in '{'*) echo "$line" >>"$results" ;; esac
    done
    rc=${PIPESTATUS[0]}
    [ "$rc" -eq 0 ] || {
        echo "ended with $rc: $*" >&2
        failed=1
    }
}
ours() { # limit program arguments…
    local limit=$1 program=$2
    shift 2
    limited "$limit" "$bin/$program" --device "$device" "$@"
}
peer() { # limit script arguments…
    local limit=$1 script=$2
    shift 2
    limited "$limit" env "KILN_PEERS_SECONDS=$((limit - 15))" "$python" "$here/$script" "$@"
}

part_memory() { ours 60 kiln_bench_cuda_memory; }
part_matmul() {
    ours 60 kiln_bench_cuda_matmul
    KILN_TF32=1 ours 30 kiln_bench_cuda_matmul f32
}
part_launch() { ours 20 kiln_bench_cuda_launch; }
part_steps() {
    ours 60 kiln_bench_step mlp odd lenet
    KILN_TF32=1 ours 60 kiln_bench_step mlp odd lenet
    if [ -n "${KILN_MLP_PEER:-}" ]; then
        limited 110 "$python" "$KILN_MLP_PEER" mlp
        peer 75 peers_gpu.py odd lenet
    else
        peer 120 peers_gpu.py mlp odd lenet
    fi
}
part_epoch() {
    ours 40 kiln_bench_epoch mlp
    peer 60 epoch_peer.py --device cuda mlp
}
# The command as people call it, with a terminal for its progress bar, once its kernels are compiled; its log says how
# many samples a second each epoch had. Their median counts.
part_train() {
    KILN_CUDA_JIT=wait limited 40 "$bin/kiln" train --quiet --device "$device" --model mlp --batch 32 --limit 200 \
        --save "$work/first"
    local command="'$bin/kiln' train --device $device --model mlp --batch 32 --epochs 12 --save '$work/run'"
    limited 40 script -q -e -c "$command" /dev/null
    "$python" - "$work/run/log.jsonl" <<'PYTHON' | tee -a "$results"
import json, statistics, sys
epochs = [r for r in map(json.loads, open(sys.argv[1])) if "samples_per_second" in r]
if epochs:
    print(json.dumps({"work": "epoch mlp", "batch": 32, "peer": "kiln train", "workers": 1,
                      "samples_s": round(statistics.median(r["samples_per_second"] for r in epochs))}))
PYTHON
}
part_generate() { # PyTorch compiles each variant first: three minutes
    KILN_CUDA_JIT=wait ours 90 kiln_bench_generate
    peer 240 generate_peer.py --device cuda
}
part_start() { limited 60 bash "$here/start.sh" "$bin" "$device"; }

for part in "${parts[@]}"; do
    declare -F "part_$part" >/dev/null || usage
done
for part in "${parts[@]}"; do
    echo "== $part" >&2
    "part_$part"
done
"$python" "$here/gpu_table.py" "$results" >"$report"
echo "took $((SECONDS - begun)) s" >&2
cat "$report"
exit $failed
