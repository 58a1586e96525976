"""What PyTorch takes for a row of bench/zoo: the network, the step and the measurement of zoo_bench.c. One JSON object a line.

usage: python3 zoo_peer.py ROW      ROW: a JSON object with the keys of ROW_DEFAULTS below; {"about": true}: versions alone
Peers: eager; graph: the whole step captured in a CUDA graph; compile: loss and network by torch.compile; compile+graph.
The optimizer is fused. Images are channels-last where products may be TF32 or 16 bits. A peer that fails is a line with its error.
"""
import json
import statistics
import sys
import time

BEGUN = time.time()
ROW_DEFAULTS = {"model": None, "batch": 1, "length": 0, "padding": False, "dtype": "f32", "optimizer": "adam", "clip": 0,
                "device": "cpu", "seconds": 0.4, "peers": ["eager"], "threads": 2, "first": 0, "since": BEGUN}
MARKS = (1, 3, 10, 30, 60)
ROUNDS = 5
row = {**ROW_DEFAULTS, **json.loads(sys.argv[1])}

import torch  # noqa: E402: what it takes is part of the first minute

import zoo_networks  # noqa: E402

cuda = row["device"].startswith("cuda")
wait = torch.cuda.synchronize if cuda else lambda: None


def say(**what):
    print(json.dumps(what), flush=True)


def data(shape, classes):
    """x and y; of texts as make_texts of zoo_bench.c has it."""
    n, length, device = row["batch"], row["length"], row["device"]
    if not length:
        x = torch.randn(n, *shape, device=device)
        return x, torch.randint(0, classes, (n,), device=device)
    x = torch.randint(1, classes, (n, length), device=device)
    y = x.clone()
    if row["padding"]:
        half = length // 2
        ends = half + (length - half) * torch.arange(n, device=device) // n
        behind = torch.arange(length, device=device) >= ends[:, None]
        x, y = x.masked_fill(behind, 0), y.masked_fill(behind, -100)
    return x, y.flatten()


def training(compiled):
    """A function that takes a step, and the network's number of parameters."""
    torch.manual_seed(0)
    net, shape = zoo_networks.build(row["model"])
    net = net.to(row["device"])
    with torch.no_grad():
        sample = torch.zeros(2, *(shape or (2,)), device=row["device"], dtype=torch.float32 if shape else torch.int64)
        classes = net(sample).shape[-1]
    x, y = data(shape, classes)
    if cuda and shape and row["dtype"] != "f32":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    kind = torch.optim.AdamW if row["optimizer"] == "adamw" else torch.optim.Adam
    optimizer = kind(net.parameters(), lr=1e-3, fused=True, **({"capturable": True} if cuda else {}))
    half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(row["dtype"])
    parameters = list(net.parameters())

    def loss():
        with torch.autocast(row["device"].split(":")[0], half or torch.bfloat16, enabled=half is not None):
            return torch.nn.functional.cross_entropy(net(x).flatten(0, -2), y)

    loss_of = torch.compile(loss, dynamic=False) if compiled else loss

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        if row["clip"]:
            torch.nn.utils.clip_grad_norm_(parameters, row["clip"])
        optimizer.step()

    return step, sum(p.numel() for p in parameters)


def captured(step):
    """The step as a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def run(step, n):
    start = time.perf_counter()
    for _ in range(n):
        step()
    wait()
    return time.perf_counter() - start


def next_burst(n, seconds):
    """How many steps to take before waiting: about 20 ms of them."""
    return 2 * n if seconds < 0.01 else max(1, n // 2) if seconds > 0.04 else n


def warm_up(step):
    start, done, burst = time.perf_counter(), 0, 1
    while done < (10 if cuda else 2) or time.perf_counter() - start < (0.5 if cuda else 0.2):
        took = run(step, burst)
        each = took / burst
        done += burst
        burst = next_burst(burst, took)
    return each


def measure(peer):
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    step, parameters = training("compile" in peer)
    first = run(step, 1)
    if "graph" in peer:
        step = captured(step)
    n = max(1, int(row["seconds"] / warm_up(step)))
    rounds = sorted(run(step, n) / n for _ in range(ROUNDS))
    seconds = statistics.median(rounds)
    say(peer=peer, us=round(1e6 * seconds, 1), spread=round((rounds[-1] - rounds[0]) / seconds, 3),
        per_s=round(row["batch"] * (row["length"] or 1) / seconds), first_s=round(first, 3), parameters=parameters,
        **({"peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1)} if cuda else {}))


def count_steps(peer):
    """How many steps the device has done at each mark of the first minute."""
    step, _ = training("compile" in peer)
    done, burst, at, now = 0, 1, dict.fromkeys(MARKS, 0), time.time() - row["since"]
    while now < row["first"]:
        took = run(step, burst)
        now = time.time() - row["since"]
        done += burst
        at.update((m, done) for m in MARKS if now <= m)
        burst = next_burst(burst, took)
    say(peer=peer, steps={str(m): n for m, n in at.items() if m <= row["first"]})


def main():
    if row.get("about"):
        about = {"torch": torch.__version__}
        if cuda and torch.cuda.is_available():
            about.update(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
        say(**about)
        return
    torch.set_float32_matmul_precision("highest" if row["dtype"] == "f32" else "high")
    torch.backends.cudnn.allow_tf32 = row["dtype"] != "f32"
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(row["threads"])
    for peer in row["peers"]:
        try:
            (count_steps if row["first"] else measure)(peer)
        except Exception as e:  # whatever it is, the next peer may work
            say(peer=peer, error=f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"[:300])
        torch.compiler.reset()
        if cuda:
            torch.cuda.empty_cache()


main()
