"""What PyTorch and JAX take on the GPU for the work of step_bench.c --device cuda. One JSON object a line.

usage: python3 peers_gpu.py [mlp] [odd] [lenet] [amp]      KILN_PEERS_SECONDS: no variant is begun after that many (150)
A step is zero_grad, forward, cross-entropy, backward, Adam, with the data on the GPU. Eager; the whole step captured in a
CUDA graph with a fused Adam; the same with the network compiled by torch.compile; jax.jit of the whole step. Each in f32
and with products in TF32. amp: only what mixed precision takes, eager: TF32, autocast to bf16, and to f16 with a GradScaler. Median of five rounds of 0.2 s that end when the GPU has done all of it.
"""
import json
import os
import statistics
import sys
import time

BEGUN = time.perf_counter()
SECONDS = float(os.environ.get("KILN_PEERS_SECONDS", "150"))
BATCHES = {"mlp": (32, 1024, 8192), "odd": (37,), "lenet": (32, 1024)}
SIZES = {"mlp": (784, 256, 128, 10), "odd": (100, 300, 77, 50, 10)}
PRECISIONS = ("f32", "tf32")


def timed(step, wait, seconds=0.2, rounds=5):
    """Microseconds a step."""
    for _ in range(10):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(20):
        step()
    wait()
    calls = max(20, int(seconds / ((time.perf_counter() - start) / 20)))
    figures = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            step()
        wait()
        figures.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(figures)


def report(work, batch, peer, us, **more):
    print(json.dumps({"work": work, "batch": batch, "peer": peer, "us": round(us, 1), **more}), flush=True)


def attempt(what, f, *arguments):
    """A peer that fails is told on stderr and left out."""
    if time.perf_counter() - BEGUN > SECONDS:
        print(f"{what}: no time left", file=sys.stderr)
        return
    try:
        f(*arguments)
    except Exception as e:
        print(f"{what}: {type(e).__name__}: {str(e)[:300]}", file=sys.stderr)


# ---- PyTorch ----


def network(work):
    from torch import nn

    if work == "lenet":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    layers = []
    for a, b in zip(SIZES[work], SIZES[work][1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def torch_parts(work, batch, precision):
    import torch

    torch.set_float32_matmul_precision("highest" if precision == "f32" else "high")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    shape = (1, 28, 28) if work == "lenet" else (SIZES[work][0],)
    x, y = torch.randn(batch, *shape, device="cuda"), torch.randint(0, 10, (batch,), device="cuda")
    return torch, network(work).cuda(), x, y


def torch_eager(work, batch, precision):
    torch, net, x, y = torch_parts(work, batch, precision)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step():
        adam.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        adam.step()

    report(work, batch, f"torch eager {precision}", timed(step, torch.cuda.synchronize))


def torch_amp(work, batch, precision):
    torch, net, x, y = torch_parts(work, batch, "tf32")
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "f16 scaled")

    def step():
        adam.zero_grad()
        with torch.autocast("cuda", dtype, enabled=precision != "tf32"):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()

    report(work, batch, f"torch eager {precision}", timed(step, torch.cuda.synchronize))


def torch_graph(work, batch, precision, compiled=False):
    torch, net, x, y = torch_parts(work, batch, precision)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=True)

    def loss_of(a, b):
        return torch.nn.functional.cross_entropy(net(a), b)

    if compiled:
        torch.compiler.reset()
        loss_of = torch.compile(loss_of, dynamic=False)

    def step():
        adam.zero_grad(set_to_none=True)
        loss_of(x, y).backward()
        adam.step()

    start = time.perf_counter()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    name = "torch compile+graph" if compiled else "torch graph"
    report(work, batch, f"{name} {precision}", timed(graph.replay, torch.cuda.synchronize), ready_s=round(ready, 1))


# ---- JAX ----


def jax_step(work, batch, precision):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    sizes = SIZES[work]
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 8))
    params = [(jax.random.normal(next(keys), (a, b)) * a**-0.5, jnp.zeros(b)) for a, b in zip(sizes, sizes[1:])]
    x = jax.random.normal(next(keys), (batch, sizes[0]))
    y = jax.random.randint(next(keys), (batch,), 0, sizes[-1])

    def loss(p, a, b):
        for i, (w, bias) in enumerate(p):
            a = a @ w + bias
            a = jax.nn.relu(a) if i + 1 < len(p) else a
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(a), b[:, None], 1))

    def train(p, m, v, t, a, b):
        g, t = jax.grad(loss)(p, a, b), t + 1
        m = jax.tree.map(lambda s, d: 0.9 * s + 0.1 * d, m, g)
        v = jax.tree.map(lambda s, d: 0.999 * s + 0.001 * d * d, v, g)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        p = jax.tree.map(lambda w, s, r: w - 1e-3 * (s / c1) / (jnp.sqrt(r / c2) + 1e-8), p, m, v)
        return p, m, v, t

    with jax.default_matmul_precision("highest" if precision == "f32" else "tensorfloat32"):
        jitted = jax.jit(train, donate_argnums=(0, 1, 2, 3))
        zeros = jax.tree.map(jnp.zeros_like, params)
        state = [params, zeros, jax.tree.map(jnp.copy, zeros), jnp.float32(0)]

        def step():
            state[:] = jitted(*state, x, y)

        us = timed(step, lambda: jax.block_until_ready(state))
    report(work, batch, f"jax.jit {precision}", us)


def main():
    works = [w for w in sys.argv[1:] if w in BATCHES] or list(BATCHES)
    todo = [(w, b, p) for w in works for b in BATCHES[w] for p in PRECISIONS]
    try:
        import torch
        there = torch.cuda.is_available()
    except ImportError:
        there = False
    if not there:
        print("no PyTorch with CUDA: skipped")
        return
    if "amp" in sys.argv:
        for work, batch in ((w, b) for w in works for b in BATCHES[w]):
            for precision in ("tf32", "bf16", "f16 scaled"):
                attempt(f"torch eager {precision} {work} {batch}", torch_amp, work, batch, precision)
        return
    for work, batch, precision in todo: # the slowest to begin with comes last: time may run out
        attempt(f"torch graph {work} {batch}", torch_graph, work, batch, precision)
    for work, batch, precision in todo:
        if precision == "f32":
            attempt(f"torch eager {work} {batch}", torch_eager, work, batch, precision)
    for work, batch, precision in todo:
        attempt(f"torch compile+graph {work} {batch}", torch_graph, work, batch, precision, True)
    for work, batch, precision in todo:
        if work in SIZES:
            attempt(f"jax {work} {batch}", jax_step, work, batch, precision)


main()
