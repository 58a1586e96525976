"""What PyTorch takes for the work of index_bench.c. One JSON object a line.

usage: OMP_NUM_THREADS=2 python3 index_peer.py [name...]
"""
import json
import os
import sys

import torch
from best_call import timed

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

SELECT = (lambda x, i, s: x.index_select(0, i), lambda x, i, s: x.index_select(1, i))
EMBED = lambda x, i, s: torch.nn.functional.embedding(i, x)
GATHER = (lambda x, i, s: x.gather(0, i), lambda x, i, s: x.gather(1, i))
SCATTER = (lambda x, i, s: x.scatter_add(0, i, s), lambda x, i, s: x.scatter_add(1, i, s))
ADD = lambda x, i, s: x.index_add(0, i, s)
SUM = (lambda x, i, s: x.cumsum(0), lambda x, i, s: x.cumsum(1))
PROD = (lambda x, i, s: x.cumprod(0), lambda x, i, s: x.cumprod(1))

# name, shape in words, x, indices, below, with gradient, call
WORKS = [
    ("index_select 0", "50000x256, 16384", (50000, 256), (16384,), 50000, False, SELECT[0]),
    ("index_select 0", "1000000x1, 1000000", (1000000, 1), (1000000,), 1000000, False, SELECT[0]),
    ("index_select 1", "4096x1024, 512", (4096, 1024), (512,), 1024, False, SELECT[1]),
    ("embedding", "32000x512, 8x512", (32000, 512), (8, 512), 32000, False, EMBED),
    ("embedding", "50257x768, 16x1024", (50257, 768), (16, 1024), 50257, False, EMBED),
    ("embedding", "256x64, 32x64", (256, 64), (32, 64), 256, False, EMBED),
    ("embedding'", "32000x512, 8x512", (32000, 512), (8, 512), 32000, True, EMBED),
    ("gather 0", "4096x1024", (4096, 1024), (4096, 1024), 4096, False, GATHER[0]),
    ("gather 1", "4096x1024", (4096, 1024), (4096, 1024), 1024, False, GATHER[1]),
    ("gather 1", "4096x1024, 4096x1", (4096, 1024), (4096, 1), 1024, False, GATHER[1]),
    ("scatter_add 0", "4096x1024", (4096, 1024), (4096, 1024), 4096, False, SCATTER[0]),
    ("scatter_add 1", "4096x1024", (4096, 1024), (4096, 1024), 1024, False, SCATTER[1]),
    ("index_add 0", "32000x512, 4096", (32000, 512), (4096,), 32000, False, ADD),
    ("index_add 0", "1000x64, 20000", (1000, 64), (20000,), 1000, False, ADD),
    ("cumsum 1", "1024x1024", (1024, 1024), (1,), 1, False, SUM[1]),
    ("cumsum 0", "1024x1024", (1024, 1024), (1,), 1, False, SUM[0]),
    ("cumprod' 1", "1024x1024", (1024, 1024), (1,), 1, True, PROD[1]),
    ("cumprod' 0", "1024x1024", (1024, 1024), (1,), 1, True, PROD[0]),
]


for name, words, shape, index_shape, below, grad, call in WORKS:
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    x = (torch.rand(shape) * 0.02 + 0.99).requires_grad_(grad)
    index = torch.randint(0, below, index_shape)
    src = torch.rand(index_shape if len(index_shape) == 2 else (index_shape[0], shape[1]))
    gy = torch.ones_like(call(x, index, src)).detach()

    def once():
        y = call(x, index, src)
        if grad:
            torch.autograd.grad(y, x, gy)

    print(json.dumps({"work": name, "batch": words, "peer": "torch", "us": round(1e6 * timed(once, 0.1), 1)}), flush=True)
