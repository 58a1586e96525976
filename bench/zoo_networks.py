"""PyTorch's side of the networks of bench/zoo: the same layers as models/ and the model files have, written as people write
them in PyTorch. build("gpt2:layers=6,embed=384") and build("bench/networks/cnn.yaml") take what kiln takes.
"""
import json
import re

import torch
import torch.nn.functional as F
from torch import nn


def attend(q, k, v, heads, **options):
    """q, k, v [N, T, …] in heads; options as of scaled_dot_product_attention."""
    q, k, v = (t.unflatten(-1, (h, -1)).transpose(1, 2) for t, h in zip((q, k, v), heads))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


# ---- Images ----


def mlp(channels=1, height=28, width=28, classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
                         nn.Linear(128, classes))


def conv(i, o, kernel, stride=1):
    return nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False)


class ResBlock(nn.Module):
    def __init__(self, i, width, stride, bottleneck):
        super().__init__()
        o = 4 * width if bottleneck else width
        sizes = [(i, width, 1, 1), (width, width, 3, stride), (width, o, 1, 1)] if bottleneck else [
            (i, width, 3, stride), (width, width, 3, 1)]
        self.convs = nn.ModuleList(conv(*s) for s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(s[1]) for s in sizes)
        self.downsample = nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o)) if stride != 1 or i != o else None

    def forward(self, x):
        y = x
        for n, (c, norm) in enumerate(zip(self.convs, self.norms)):
            y = norm(c(y))
            if n + 1 < len(self.convs):
                y = F.relu(y)
        return F.relu(y + (self.downsample(x) if self.downsample else x))


def resnet(counts, bottleneck, channels=3, height=32, width=0, classes=10):
    """Images of any width; below 64 pixels they get a stem without pooling."""
    stem = [conv(channels, 64, 3)] if height < 64 else [conv(channels, 64, 7, 2)]
    layers = stem + [nn.BatchNorm2d(64), nn.ReLU()] + ([nn.MaxPool2d(3, 2, 1)] if height >= 64 else [])
    i = 64
    for stage, count in enumerate(counts):
        for n in range(count):
            layers.append(ResBlock(i, 64 << stage, 2 if stage and not n else 1, bottleneck))
            i = (64 << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, classes))


class Block(nn.Module):
    """Of gpt2 and vit: norms in front."""

    def __init__(self, width, heads, causal, eps, gelu):
        super().__init__()
        self.heads, self.causal, self.gelu = heads, causal, gelu
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(attend(q, k, v, 3 * (self.heads,), is_causal=self.causal))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.gelu))


class Vit(nn.Module):
    def __init__(self, channels=3, height=32, width=32, classes=10, layers=12, heads=3, embed=192, patch=0):
        super().__init__()
        patch = patch or (16 if height >= 224 else 4)
        places = height // patch * (width // patch) + 1
        self.cls, self.places = nn.Parameter(torch.zeros(1, 1, embed)), nn.Parameter(torch.zeros(1, places, embed))
        self.patches = nn.Conv2d(channels, embed, patch, patch)
        self.blocks = nn.Sequential(*(Block(embed, heads, False, 1e-6, "none") for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(embed, eps=1e-6), nn.Linear(embed, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


# ---- Text ----


class CharLstm(nn.Module):
    def __init__(self, vocabulary=256, embed=64, hidden=256, layers=1, context=0):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, embed), nn.Linear(hidden, vocabulary)
        self.lstm = nn.LSTM(embed, hidden, layers, batch_first=True)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50257, context=1024, layers=12, heads=12, embed=768):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, embed), nn.Embedding(context, embed)
        nn.init.normal_(self.words.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(embed, heads, True, 1e-5, "tanh") for _ in range(layers)))
        self.norm = nn.LayerNorm(embed)

    def forward(self, x):
        x = self.blocks(self.words(x) + self.places.weight[: x.shape[1]])
        return F.linear(self.norm(x), self.words.weight)


def bare(i, o):
    return nn.Linear(i, o, bias=False)


class LlamaBlock(nn.Module):
    def __init__(self, embed, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, embed // heads
        kv = kv_heads * self.width
        self.q, self.k, self.v, self.o = bare(embed, embed), bare(embed, kv), bare(embed, kv), bare(embed, embed)
        self.gate, self.up, self.down = bare(embed, hidden), bare(embed, hidden), bare(hidden, embed)
        self.norm1, self.norm2 = nn.RMSNorm(embed, eps=1e-5), nn.RMSNorm(embed, eps=1e-5)

    def attend(self, x, cos, sin):
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat([-t[..., self.width // 2:], t[..., : self.width // 2]], -1) * sin for t in (q, k))
        q, k = q.to(v.dtype), k.to(v.dtype)
        native = v.is_cuda and v.dtype != torch.float32  # other kernels know no shared heads
        if self.kv_heads != self.heads and not native:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=native)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary=32000, context=2048, layers=8, heads=8, kv_heads=0, embed=512, hidden=0):
        super().__init__()
        hidden = hidden or (embed * 8 // 3 + 255) // 256 * 256
        self.words, self.head = nn.Embedding(vocabulary, embed), bare(embed, vocabulary)
        self.blocks = nn.ModuleList(LlamaBlock(embed, heads, kv_heads or heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(embed, eps=1e-5)
        width = embed // heads
        angles = torch.outer(torch.arange(context), 10000 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        x = self.words(x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class BertBlock(nn.Module):
    def __init__(self, embed, heads, hidden):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(embed, embed) for _ in range(4))
        self.up, self.down = nn.Linear(embed, hidden), nn.Linear(hidden, embed)
        self.norm1, self.norm2 = nn.LayerNorm(embed, eps=1e-12), nn.LayerNorm(embed, eps=1e-12)

    def forward(self, x, mask):
        a = attend(self.query(x), self.key(x), self.value(x), 3 * (self.heads,), attn_mask=mask)
        x = self.norm1(self.out(a) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class Bert(nn.Module):
    def __init__(self, vocabulary=30522, context=512, layers=12, heads=12, embed=768, hidden=0):
        super().__init__()
        self.words = nn.Embedding(vocabulary, embed, padding_idx=0)
        self.places, self.segments = nn.Embedding(context, embed), nn.Embedding(2, embed)
        nn.init.normal_(self.words.weight, std=0.02)
        self.blocks = nn.ModuleList(BertBlock(embed, heads, hidden or 4 * embed) for _ in range(layers))
        self.transform, self.bias = nn.Linear(embed, embed), nn.Parameter(torch.zeros(vocabulary))
        self.norm, self.transform_norm = nn.LayerNorm(embed, eps=1e-12), nn.LayerNorm(embed, eps=1e-12)

    def forward(self, tokens):
        x = self.words(tokens) + self.segments.weight[0] + self.places.weight[: tokens.shape[1]]
        x, mask = self.norm(x), (tokens != 0)[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.transform_norm(F.gelu(self.transform(x))), self.words.weight, self.bias)


# ---- Model files ----


def read_model_file(path):
    """The layers of a model file as pairs of name and options, and the input's shape: lines "- name" and "- name: options"."""
    layers, shape = [], None
    for line in open(path, encoding="utf-8"):
        line = line.split("#")[0].rstrip()
        if found := re.fullmatch(r"input: *(\[.*\])", line):
            shape = json.loads(found[1])
        elif found := re.fullmatch(r" *- (\w+)(?:: *(.+))?", line):
            options = re.sub(r"(\w+):", r'"\1":', found[2]) if found[2] else "null"
            layers.append((found[1], json.loads(options)))
        elif line and not re.fullmatch(r"name: .*|layers:", line):
            raise ValueError(f"{path}: cannot read '{line}'")
    return layers, shape


def from_file(path):
    layers, shape = read_model_file(path)
    channels, size, made = shape[0], 1, []
    for s in shape:
        size *= s
    for name, o in layers:
        if name == "conv2d":
            made.append(nn.Conv2d(channels, o["out"], o["kernel"], padding=o.get("padding", 0)))
            channels = o["out"]
            size = None
        elif name == "linear":
            made.append(nn.Linear(size or channels, o))
            size = channels = o
        else:
            kinds = {"batch_norm": lambda: nn.BatchNorm2d(channels), "relu": nn.ReLU, "flatten": nn.Flatten,
                     "max_pool2d": lambda: nn.MaxPool2d(o), "adaptive_avg_pool2d": lambda: nn.AdaptiveAvgPool2d(o or 1)}
            made.append(kinds[name]())
    return nn.Sequential(*made), tuple(shape)


# ---- By name ----

MODELS = {
    "mlp": mlp,
    "resnet18": lambda **o: resnet((2, 2, 2, 2), False, **o),
    "resnet50": lambda **o: resnet((3, 4, 6, 3), True, **o),
    "vit-tiny": Vit,
    "char-lstm": CharLstm,
    "gpt2": Gpt2,
    "llama": Llama,
    "bert": Bert,
}


def build(model):
    """The network, and the shape of an image it takes (None: text)."""
    if model.endswith(".yaml"):
        return from_file(model)
    name, _, text = model.partition(":")
    options = {key: int(value) for key, value in (o.split("=") for o in text.split(",") if o)}
    shape = tuple(options[k] for k in ("channels", "height", "width")) if "height" in options else None
    return MODELS[name](**options), shape
