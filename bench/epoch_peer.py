"""The epochs of epoch_bench.c by PyTorch: DataLoader over bytes, normalised a sample at a time, Adam (fused). One JSON object a line.

usage: python epoch_peer.py [--device cuda] [mlp] [lenet] [gpt2] [loop]      KILN_BENCH_AMP=bf16, f16: under autocast; f16 with a GradScaler
"""
import json, os, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
arguments = sys.argv[1:]
device = "cpu"
if "--device" in arguments:
    at = arguments.index("--device")
    device = arguments[at + 1]
    del arguments[at:at + 2]


class Images(Dataset):
    def __init__(self, count):
        self.x = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8)
        self.y = torch.arange(count) % 10

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return (self.x[i].float() / 255 - 0.1307) / 0.3081, self.y[i]


class Text(Dataset):
    def __init__(self, count, length):
        self.t, self.length = torch.randint(0, 256, (count,)), length

    def __len__(self):
        return (len(self.t) - 1) // self.length

    def __getitem__(self, i):
        at = i * self.length
        return self.t[at:at + self.length], self.t[at + 1:at + self.length + 1]


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, d=128, layers=4, heads=4, length=128):
        super().__init__()
        self.tok, self.pos = nn.Embedding(256, d), nn.Parameter(torch.randn(length, d) * 0.02)
        self.blocks, self.ln = nn.Sequential(*(Block(d, heads) for _ in range(layers))), nn.LayerNorm(d)

    def forward(self, x):
        return self.ln(self.blocks(self.tok(x) + self.pos)) @ self.tok.weight.T


amp = dict(bf16=torch.bfloat16, f16=torch.float16).get(os.environ.get("KILN_BENCH_AMP"))


def epoch(model, optimizer, loader, scaler):
    start, samples = time.perf_counter(), 0
    for x, y in loader:
        x, y = x.to(device, non_blocking=loader.pin_memory), y.to(device, non_blocking=loader.pin_memory)
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, amp, enabled=amp is not None):
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        samples += len(x)
    if device != "cpu":
        torch.cuda.synchronize()
    return samples, time.perf_counter() - start


def measure(work, model, data, batch, tokens=1):
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    many = 2 if device == "cpu" else 4
    for workers in (0, many) if tokens == 1 else (0,):
        loader = DataLoader(data, batch, shuffle=True, num_workers=workers, pin_memory=device != "cpu" and workers > 0,
                            persistent_workers=workers > 0)
        scaler = torch.amp.GradScaler(torch.device(device).type, enabled=amp == torch.float16)
        samples, seconds = min((epoch(model, optimizer, loader, scaler) for _ in range(2)), key=lambda r: r[1])
        print(json.dumps(dict(work="epoch " + work, batch=batch, peer="torch" + {None: "", torch.bfloat16: " bf16", torch.float16: " f16 scaled"}[amp], workers=workers,
                              samples_s=round(samples * tokens / seconds), us=round(seconds * 1e6 * batch / samples, 1))), flush=True)


for work in arguments or ["mlp", "lenet", "gpt2"]:
    if work == "gpt2":
        measure("gpt2 4x128", Gpt(), Text(200000, 128), 16, 128)
    else:
        measure(work, lenet() if work == "lenet" else mlp(), Images(12000 if work == "lenet" else 60000), 32)
