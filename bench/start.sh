#!/bin/bash
# From the start of the process to the end of the first training step: Kiln with no compiled kernels on disk, with those of
# the run before, the whole of `kiln train` with a limit of one step (data, test set and checkpoint included), and PyTorch.
# One JSON object a line. usage: bench/start.sh BIN_DIR [DEVICE]      KILN_PEERS_PYTHON: a Python that has PyTorch
set -u
[ $# -ge 1 ] && [ -x "$1/kiln_bench_first" ] || {
    echo "usage: bench/start.sh BIN_DIR [DEVICE]" >&2
    exit 2
}
bin=$1 device=${2:-cuda} python=${KILN_PEERS_PYTHON:-python3}
work=$(mktemp -d "${TMPDIR:-/tmp}/kiln-start-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

first() { # cache
    XDG_CACHE_HOME=$work/$1 "$bin/kiln_bench_first" --device "$device" "$EPOCHREALTIME"
}
train() { # cache
    local begun=$EPOCHREALTIME
    XDG_CACHE_HOME=$work/$1 "$bin/kiln" train --quiet --device "$device" --limit 1 --batch 32 --save "$work/run$RANDOM" ||
        return
    awk -v a="$begun" -v b="$EPOCHREALTIME" -v cache="$1" \
        'BEGIN { printf "{\"work\": \"start\", \"peer\": \"kiln train, %s cache\", \"seconds\": %.3f}\n", cache, b - a }'
}
named() { sed "s/\"peer\": \"kiln\"/\"peer\": \"kiln, $1\"/"; }

out=$(first probe)
case $out in
'no '*)
    echo "$out"
    exit 0
    ;;
esac
for round in 1 2 3; do
    first "cold$round" | named "cold cache"
done
KILN_CUDA_JIT=wait first warm >/dev/null # fills it
for _ in 1 2 3; do
    first warm | named "warm cache"
done
train cold
train warm
"$python" - "$EPOCHREALTIME" "${device%%:*}" <<'PYTHON' || echo "no PyTorch here: its start is left out" >&2
import json, sys, time
import torch
from torch import nn

imported = time.time() - float(sys.argv[1])
device = sys.argv[2] if sys.argv[2] == "cuda" and torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = torch.randn(32, 784, device=device), torch.randint(0, 10, (32,), device=device)
adam.zero_grad()
nn.functional.cross_entropy(net(x), y).backward()
adam.step()
if device == "cuda":
    torch.cuda.synchronize()
print(json.dumps({"work": "start", "peer": "torch", "seconds": round(time.time() - float(sys.argv[1]), 3),
                  "importing": round(imported, 3)}))
PYTHON
