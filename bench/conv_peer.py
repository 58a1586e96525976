"""What PyTorch takes for the layers of conv.def. One JSON object a line, as kiln_bench_conv prints them.

usage: OMP_NUM_THREADS=2 python3 conv_peer.py [f32] [bf16] [f16]

What PyTorch cannot do on this machine is named on stderr and left out.
"""
import json
import os
import re
import sys

import torch
from best_call import timed

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def measure(name, batch, channels, outputs, size, kernel, stride, groups, dtype):
    padding = 0 if kernel == stride else kernel // 2
    x = torch.randn(batch, channels, size, size).to(DTYPES[dtype])
    w = torch.randn(outputs, channels // groups, kernel, kernel).to(DTYPES[dtype])
    gy = torch.ones_like(torch.nn.functional.conv2d(x, w, None, stride, padding, 1, groups))

    def gradient(which):
        return lambda: torch.ops.aten.convolution_backward(
            gy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, [which == 0, which == 1, False])

    calls = {"": lambda: torch.nn.functional.conv2d(x, w, None, stride, padding, 1, groups), "'x": gradient(0),
             "'w": gradient(1)}
    for kind, once in calls.items():
        us = 1e6 * timed(once, 0.1, least=5)
        print(json.dumps({"work": name + kind, "batch": dtype, "peer": "torch", "us": round(us, 1)}), flush=True)


table = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "conv.def")).read()
rows = re.findall(r"^LAYER\(([^,]+), (.*)\)", table, re.M)
for dtype in sys.argv[1:] or list(DTYPES):
    for name, numbers in rows:
        try:
            measure(name, *map(int, numbers.split(", ")), dtype)
        except RuntimeError as e:
            print(f"{name} {dtype}: {e}", file=sys.stderr)
