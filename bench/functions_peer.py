"""What PyTorch takes for the functions of functions.def. One JSON object a line, as kiln_bench_functions prints them.

usage: OMP_NUM_THREADS=2 python3 functions_peer.py [f32] [f64] [name...]
"""
import json
import os
import re
import sys

import torch
from best_call import timed
from torch.nn import functional as F

COUNT = 1 << 20
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

CALLS = {
    "pow_scalar": lambda a, b: a ** 1.7,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=0.3),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b, value=0.3),
    "clamp": lambda a, b: torch.clamp(a, -1, 1),
    "leaky_relu": lambda a, b: F.leaky_relu(a, 0.01),
    "elu": lambda a, b: F.elu(a, 1.0),
    "celu": lambda a, b: F.celu(a, 1.0),
    "gelu_tanh": lambda a, b: F.gelu(a, approximate="tanh"),
    "softplus": lambda a, b: F.softplus(a, 1, 20),
    "hardtanh": lambda a, b: F.hardtanh(a, -1, 1),
}
TWO = {"add", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "atan2", "hypot", "maximum", "gt"}


def call_of(name):
    if name in CALLS:
        return CALLS[name]
    f = getattr(F, name) if hasattr(F, name) and not hasattr(torch, name) else getattr(torch, name, None) or getattr(F, name)
    return (lambda a, b: f(a, b)) if name in TWO else (lambda a, b: f(a))


def drawn(kind, dtype):
    if kind == "NORMAL":
        return torch.randn(COUNT, dtype=dtype)
    if kind == "WIDE":
        return torch.randn(COUNT, dtype=dtype) * 10
    low, high = {"POSITIVE": (0.1, 3), "INSIDE": (-0.9, 0.9), "ABOVE": (1.1, 4)}[kind]
    return torch.rand(COUNT, dtype=dtype) * (high - low) + low


def measure(name, kinds, dtype, grad):
    run = call_of(name)
    a, b = drawn(kinds[0], dtype), drawn(kinds[1], dtype)
    gy = torch.ones_like(a)
    a.requires_grad_(grad)

    def once():
        y = run(a, b)
        if grad:
            torch.autograd.grad(y, a, gy)

    us = 1e6 * timed(once, 0.02)
    print(json.dumps({"work": name + "'" * grad, "batch": "f32" if dtype == torch.float32 else "f64", "peer": "torch",
                      "us": round(us, 1)}), flush=True)


table = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "functions.def")).read()
rows = re.findall(r"^ROW\((\w+), (\w+), (\w+), (\w+),", table, re.M)
dtypes = [d for d in sys.argv[1:] if d in ("f32", "f64")] or ["f32", "f64"]
names = [n for n in sys.argv[1:] if n not in ("f32", "f64")]
for dtype in dtypes:
    for name, a, b, grad in rows:
        if names and name not in names:
            continue
        for with_grad in (False, True)[:1 + (grad == "true")]:
            measure(name, (a, b), torch.float32 if dtype == "f32" else torch.float64, with_grad)
