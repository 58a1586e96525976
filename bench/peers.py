"""What PyTorch and JAX take for the work of mlp_bench.c, on the same number of threads. One JSON object a line.

usage: OMP_NUM_THREADS=2 python3 peers.py
A step is zero_grad, forward, cross-entropy, backward, Adam. Median of five rounds of 0.8 s, after ten steps to warm up.
A peer that is not installed is left out.
"""
import json
import os
import statistics
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


def report(batch, peer, us):
    print(json.dumps({"work": "mlp", "batch": batch, "peer": peer, "us": round(us, 1)}), flush=True)


def torch_steps(batch):
    import torch
    from torch import nn

    torch.set_num_threads(THREADS)
    x, y = torch.randn(batch, SIZES[0]), torch.randint(0, SIZES[-1], (batch,))
    for fused in (False, True):
        layers = []
        for a, b in zip(SIZES, SIZES[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        net = nn.Sequential(*layers[:-1])
        adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused or None)

        def step():
            adam.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            adam.step()

        report(batch, "torch fused adam" if fused else "torch eager", timed(step))


def jax_step(batch):
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

    report(batch, "jax.jit", timed(step))


for size in (32, 1024):
    for peer in (torch_steps, jax_step):
        try:
            peer(size)
        except ImportError:
            pass
