"""What PyTorch and JAX take for the work of mlp_bench.c and lenet_bench.c, on the same number of threads. One JSON object
a line.

usage: OMP_NUM_THREADS=2 python3 peers.py [mlp] [lenet]
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


def timed(step, seconds=0.8, rounds=5):
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


def torch_mlp(batch):
    def make(nn):
        layers = []
        for a, b in zip(SIZES, SIZES[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    torch_steps("mlp", batch, make, (SIZES[0],))


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


PEERS = {"mlp": (torch_mlp, jax_mlp), "lenet": (torch_lenet,)}
for work in sys.argv[1:] or PEERS:
    for size in (32, 1024):
        for peer in PEERS[work]:
            try:
                peer(size)
            except ImportError:
                pass
