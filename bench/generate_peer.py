"""What PyTorch takes for the work of generate_bench.c: GPT-2 by hand, with a key/value cache of a fixed size and the
position as data, so that torch.compile compiles it once. One JSON object a line.

usage: OMP_NUM_THREADS=2 python3 generate_peer.py [--device cuda] [6x384] [gpt2] [f32] [amp] [bf16] [eager] [compile]
amp: weights in f32, autocast to bf16; bf16: weights in bf16, too. Without any of a kind: all of them. compile is
torch.compile, on CUDA with mode="reduce-overhead" (graphs). The prompt is eager. The best of up to five rounds.
"""
import json
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

PROMPT, TOKENS, ROOM, WARM_UP, ROUNDS, SECONDS = 32, 200, 256, 20, 5, 4.0
WORKS = {"6x384": (6, 6, 384, 256, 256), "gpt2": (12, 12, 768, 1024, 50257)}  # layers, heads, width, positions, tokens

words = sys.argv[1:]
DEVICE = "cpu"
if "--device" in words:
    at = words.index("--device")
    DEVICE = words[at + 1]
    del words[at : at + 2]
CUDA = DEVICE.startswith("cuda")
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
torch.manual_seed(0)


def wanted(*kind):
    return [k for k in kind if k in words] or list(kind)


def wait():
    if CUDA:
        torch.cuda.synchronize()


class Block(nn.Module):
    def __init__(self, heads, width, batch, dtype):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, heads, ROOM, width // heads, dtype=dtype))

    def forward(self, x, places, visible):
        n, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, 2)
        q, k, v = (p.view(n, length, self.heads, -1).transpose(1, 2) for p in parts)
        self.keys[:, :, places] = k
        self.values[:, :, places] = v
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=visible)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, work, batch, dtype):
        super().__init__()
        layers, heads, width, positions, tokens = WORKS[work]
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(Block(heads, width, batch, dtype) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.register_buffer("all", torch.arange(ROOM))

    def forward(self, tokens, places):
        """Appends tokens at these places; the likeliest next ones, [N, 1]."""
        x = self.wte(tokens) + self.wpe(places)
        visible = self.all <= places[:, None]
        for block in self.h:
            x = block(x, places, visible)
        return F.linear(self.ln_f(x[:, -1:]), self.wte.weight).argmax(2)


def run_text(net, step, prompt, count):
    begun = time.perf_counter()
    token = net(prompt, torch.arange(PROMPT, device=DEVICE))
    place = torch.tensor([PROMPT], device=DEVICE)
    wait()
    between, busy = time.perf_counter(), time.process_time()
    for _ in range(count - 1):
        token = step(token, place).clone()  # a graph writes the next one to the same memory
        place += 1
    wait()
    return between - begun, time.perf_counter() - between, time.process_time() - busy


def measure(work, batch, dtype, way):
    half = torch.bfloat16
    net = GPT2(work, batch, torch.float32 if dtype == "f32" else half).to(DEVICE).eval()
    if dtype == "bf16":
        net = net.to(half)
    step = torch.compile(net, mode="reduce-overhead" if CUDA else None) if way == "compile" else net
    prompt = torch.randint(0, 256, (batch, PROMPT), device=DEVICE)
    best = [float("inf")] * 3
    with torch.no_grad(), torch.autocast("cuda" if CUDA else "cpu", half, enabled=dtype == "amp"):
        run_text(net, step, prompt, WARM_UP)
        begun = time.perf_counter()
        for i in range(ROUNDS):
            if not i or time.perf_counter() - begun < SECONDS:
                best = [min(a, b) for a, b in zip(best, run_text(net, step, prompt, TOKENS))]
    print(json.dumps({"work": "generate " + work, "batch": batch, "dtype": dtype, "peer": "torch " + way,
                      "prompt_ms": round(1e3 * best[0], 2), "tokens_s": round(batch * (TOKENS - 1) / best[1], 1),
                      "cpu_ms": round(1e3 * best[2] / (TOKENS - 1), 3)}), flush=True)


for work in wanted(*WORKS):
    for dtype in wanted("f32", "amp", "bf16"):
        for batch in (1, 32):
            for way in wanted("eager", "compile"):
                torch.compiler.reset()
                measure(work, batch, dtype, way)
