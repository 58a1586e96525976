"""What PyTorch and JAX take for the work of step_bench.c, on the same number of threads. One JSON object a line.

usage: OMP_NUM_THREADS=2 python3 peers.py [mlp] [wide] [lenet] [gpt2] [lstm]      KILN_BENCH_SECONDS: of a round
A step is zero_grad, forward, cross-entropy, backward, Adam. Median of five rounds of 0.8 s, after ten steps to warm up.
A peer that is not installed is left out.
"""
import json
import os
import statistics
import sys
import time

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
SIZES = (784, 256, 128, 10)


def timed(step, seconds=float(os.environ.get("KILN_BENCH_SECONDS", "0.8")), rounds=5):
    for _ in range(10):
        step()
    figures = []
    for _ in range(rounds):
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            step()
            n += 1
        figures.append((time.perf_counter() - start) / n * 1e6)
    return statistics.median(figures)


def report(work, batch, peer, us):
    print(json.dumps({"work": work, "batch": batch, "peer": peer, "us": round(us, 1)}), flush=True)


def torch_steps(work, batch, make_net, shape):
    import torch
    from torch import nn

    torch.set_num_threads(THREADS)
    x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
    for fused in (False, True):
        net = make_net(nn)
        adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused or None)

        def step():
            adam.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            adam.step()

        report(work, batch, "torch fused adam" if fused else "torch eager", timed(step))


def torch_mlp(batch, work="mlp", sizes=SIZES):
    def make(nn):
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    torch_steps(work, batch, make, (sizes[0],))


def wide():
    for batch in (128, 512):
        torch_mlp(batch, "wide", (784, 2048, 2048, 10))


def torch_lenet(batch):
    def make(nn):
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    torch_steps("lenet", batch, make, (1, 28, 28))


def jax_mlp(batch):
    import jax
    import jax.numpy as jnp

    keys = iter(jax.random.split(jax.random.PRNGKey(0), 8))
    params = [(jax.random.normal(next(keys), (a, b)) * a**-0.5, jnp.zeros(b)) for a, b in zip(SIZES, SIZES[1:])]
    x = jax.random.normal(next(keys), (batch, SIZES[0]))
    y = jax.random.randint(next(keys), (batch,), 0, SIZES[-1])

    def loss(p):
        h = x
        for i, (w, b) in enumerate(p):
            h = h @ w + b
            if i + 1 < len(p):
                h = jax.nn.relu(h)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1))

    def train(p, m, v, t):
        g, t = jax.grad(loss)(p), t + 1
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        p = jax.tree.map(lambda a, b, c: a - 1e-3 * (b / c1) / (jnp.sqrt(c / c2) + 1e-8), p, m, v)
        return p, m, v, t

    train = jax.jit(train, donate_argnums=(0, 1, 2, 3))
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = [params, zeros, jax.tree.map(jnp.copy, zeros), jnp.float32(0)]

    def step():
        state[:] = train(*state)
        state[3].block_until_ready()

    report("mlp", batch, "jax.jit", timed(step))


def images(*peers):
    for size in (32, 1024):
        for peer in peers:
            try:
                peer(size)
            except ImportError:
                pass


def train_tokens(work, batch, net, tokens):
    """A step on tokens that are their own targets, by PyTorch with its fused Adam."""
    import torch

    torch.set_num_threads(THREADS)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)

    def step():
        adam.zero_grad()
        torch.nn.functional.cross_entropy(net(tokens).flatten(0, -2), tokens.flatten()).backward()
        adam.step()

    us = timed(step)
    print(json.dumps({"work": work, "batch": batch, "peer": "torch fused adam", "us": round(us, 1),
                      "tok_s": round(tokens.numel() / us * 1e6)}), flush=True)


def gpt2(layers=4, width=128, heads=4, vocabulary=256, batch=16, length=128):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            parts = self.qkv(self.norm1(x)).chunk(3, -1)
            q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in parts)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width) * 0.02)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width)

        def forward(self, i):
            return self.norm(self.blocks(self.tokens(i) + self.positions)) @ self.tokens.weight.T

    train_tokens("gpt2", "16x128", Gpt(), torch.randint(0, vocabulary, (batch, length)))


def lstm(vocabulary=256, embedding=64, hidden=256, steps=64, sequences=32):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, embedding)
            self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
            self.head = nn.Linear(hidden, vocabulary)

        def forward(self, i):
            return self.head(self.lstm(self.tokens(i))[0])

    train_tokens("lstm", "32x64", Net(), torch.randint(0, vocabulary, (sequences, steps)))


PEERS = {"mlp": lambda: images(torch_mlp, jax_mlp), "wide": wide, "lenet": lambda: images(torch_lenet), "gpt2": gpt2, "lstm": lstm}
for work in sys.argv[1:] or PEERS:
    try:
        PEERS[work]()
    except ImportError:
        pass
