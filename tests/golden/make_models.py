"""Ten training steps of the models in models/, by PyTorch, from weights and batches that both sides make by formula.

usage: python make_models.py > models.txt
A block a model: its specification, ten losses (f32), then for each parameter, of a run in f64: the norm of its change, how far
rounding moves it (the norm of the difference, and the largest one of an element), and a few elements of the change. What rounding
does is seen from PyTorch's own runs in f32: one from the given weights, four from weights whose last bit was disturbed.
"""
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(2)
SAMPLES = 6


def numbers(count, stream):
    """Hashes of 0 … count-1: the same integers as hash_of in test_models.c."""
    i = np.arange(count, dtype=np.uint64)
    h = (i * np.uint64(2654435761) + np.uint64((stream + 1) * 2246822519 & 0xFFFFFFFF)) & np.uint64(0xFFFFFFFF)
    for _ in range(2):
        h ^= h >> np.uint64(16)
        h = h * np.uint64(0x45D9F3B) & np.uint64(0xFFFFFFFF)
    return h ^ (h >> np.uint64(16))


def uniform(count, stream):
    """f32 in [-1, 1)"""
    return ((numbers(count, stream) >> np.uint64(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1))


def set_weights(model):
    for stream, (name, p) in enumerate(model.named_parameters()):
        u = uniform(p.numel(), stream)
        if p.dim() >= 2:
            v = u * np.float32(math.sqrt(1.0 / (p.numel() // p.shape[0])))
        elif name.endswith("weight"):
            v = np.float32(1) + u * np.float32(0.25)
        else:
            v = u * np.float32(0.125)
        with torch.no_grad():
            p.copy_(torch.from_numpy(v).reshape(p.shape))


# ---- The models, with the names that models/ has ----

def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if stride > 1 or i != o else None

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class Resnet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        i = 64
        for n, o in enumerate((64, 128, 256, 512)):
            setattr(self, f"layer{n + 1}", nn.Sequential(BasicBlock(i, o, 2 if n else 1), BasicBlock(o, o, 1)))
            i = o
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for n in range(4):
            x = getattr(self, f"layer{n + 1}")(x)
        return self.fc(x.mean((2, 3)))


def attend(qkv, heads, causal):
    n, t, d = qkv.shape
    q, k, v = (p.view(n, t, heads, -1).transpose(1, 2) for p in qkv.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(n, t, d // 3)


class Group(nn.Module):
    def __init__(self, /, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class VitBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(d, eps=1e-6)
        self.attn = Group(qkv=nn.Linear(d, 3 * d), proj=nn.Linear(d, d))
        self.norm2 = nn.LayerNorm(d, eps=1e-6)
        self.mlp = Group(fc1=nn.Linear(d, 4 * d), fc2=nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn.proj(attend(self.attn.qkv(self.norm1(x)), self.heads, False))
        return x + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, d=192, heads=3, layers=12):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos_embed = nn.Parameter(torch.zeros(1, 65, d))
        self.patch_embed = Group(proj=nn.Conv2d(3, d, 4, 4))
        self.blocks = nn.Sequential(*(VitBlock(d, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(d, eps=1e-6), nn.Linear(d, 10)

    def forward(self, x):
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class CharLstm(nn.Sequential):
    def __init__(self, embed=32, hidden=64):
        super().__init__(nn.Embedding(256, embed), nn.LSTM(embed, hidden, batch_first=True), nn.Linear(hidden, 256))

    def forward(self, x):
        return self[2](self[1](self[0](x))[0])


class Conv1D(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(i, o)), nn.Parameter(torch.zeros(o))

    def forward(self, x):
        return x @ self.weight + self.bias


class GptBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(d)
        self.attn = Group(c_attn=Conv1D(d, 3 * d), c_proj=Conv1D(d, d))
        self.ln_2 = nn.LayerNorm(d)
        self.mlp = Group(c_fc=Conv1D(d, 4 * d), c_proj=Conv1D(4 * d, d))

    def forward(self, x):
        x = x + self.attn.c_proj(attend(self.attn.c_attn(self.ln_1(x)), self.heads, True))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, d=64, heads=4, layers=3, context=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, d), nn.Embedding(context, d)
        self.h = nn.Sequential(*(GptBlock(d, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(d)

    def forward(self, x):
        return self.ln_f(self.h(self.wte(x) + self.wpe.weight[: x.shape[1]])) @ self.wte.weight.T


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class LlamaBlock(nn.Module):
    def __init__(self, d, heads, kv_heads, hidden):
        super().__init__()
        self.width = d // heads
        kv = kv_heads * self.width
        self.self_attn = Group(q_proj=linear(d, d), k_proj=linear(d, kv), v_proj=linear(d, kv), o_proj=linear(d, d))
        self.mlp = Group(gate_proj=linear(d, hidden), up_proj=linear(d, hidden), down_proj=linear(hidden, d))
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)

    def turned(self, x):
        """Hugging Face's apply_rotary_pos_emb."""
        inverse = 1.0 / 10000 ** (torch.arange(0, self.width, 2, dtype=x.dtype) / self.width)
        angles = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), inverse).repeat(1, 2)
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    def attend(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
                   for p in (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj))
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True)
        return self.self_attn.o_proj(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class Llama(nn.Module):
    def __init__(self, d=64, heads=4, kv_heads=2, hidden=96, layers=2):
        super().__init__()
        self.model = Group(embed_tokens=nn.Embedding(256, d),
                           layers=nn.Sequential(*(LlamaBlock(d, heads, kv_heads, hidden) for _ in range(layers))),
                           norm=nn.RMSNorm(d, eps=1e-5))
        self.lm_head = linear(d, 256)

    def forward(self, x):
        return self.lm_head(self.model.norm(self.model.layers(self.model.embed_tokens(x))))


class BertBlock(nn.Module):
    def __init__(self, d, heads, hidden):
        super().__init__()
        self.heads = heads
        inner = Group(query=nn.Linear(d, d), key=nn.Linear(d, d), value=nn.Linear(d, d))
        self.attention = Group(self=inner, output=Group(dense=nn.Linear(d, d), LayerNorm=nn.LayerNorm(d, eps=1e-12)))
        self.intermediate = Group(dense=nn.Linear(d, hidden))
        self.output = Group(dense=nn.Linear(hidden, d), LayerNorm=nn.LayerNorm(d, eps=1e-12))

    def forward(self, x, mask):
        inner, output = getattr(self.attention, "self"), self.attention.output
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (inner.query, inner.key, inner.value))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = output.LayerNorm(output.dense(a) + x)
        return self.output.LayerNorm(self.output.dense(F.gelu(self.intermediate.dense(x))) + x)


class Bert(nn.Module):
    def __init__(self, d=64, heads=4, hidden=96, layers=2, context=48):
        super().__init__()
        embeddings = Group(word_embeddings=nn.Embedding(256, d, padding_idx=0), position_embeddings=nn.Embedding(context, d),
                           token_type_embeddings=nn.Embedding(2, d), LayerNorm=nn.LayerNorm(d, eps=1e-12))
        layers = nn.ModuleList(BertBlock(d, heads, hidden) for _ in range(layers))
        self.bert = Group(embeddings=embeddings, encoder=Group(layer=layers))
        transform = Group(dense=nn.Linear(d, d), LayerNorm=nn.LayerNorm(d, eps=1e-12))
        self.cls = Group(predictions=Group(bias=nn.Parameter(torch.zeros(256)), transform=transform))

    def forward(self, t):
        e, head = self.bert.embeddings, self.cls.predictions
        x = e.word_embeddings(t) + e.token_type_embeddings.weight[0] + e.position_embeddings.weight[: t.shape[1]]
        x, mask = e.LayerNorm(x), (t != 0)[:, None, None]
        for layer in self.bert.encoder.layer:
            x = layer(x, mask)
        x = head.transform.LayerNorm(F.gelu(head.transform.dense(x)))
        return F.linear(x, e.word_embeddings.weight, head.bias)


def batch(shape, step, dtype):
    """shape: two sizes are tokens, four an image"""
    if len(shape) == 2:
        t = numbers(shape[0] * (shape[1] + 1), 1000 + step % 2) % np.uint64(256)
        t = torch.from_numpy(t.astype(np.int64)).reshape(shape[0], shape[1] + 1)
        return t[:, :-1], t[:, 1:]
    x = torch.from_numpy(uniform(int(np.prod(shape)), 1000 + step % 2)).reshape(shape).to(dtype)
    return x, torch.from_numpy((numbers(shape[0], 2000 + step % 2) % np.uint64(10)).astype(np.int64))


def optimizer_of(name, parameters, lr):
    return {"adam": lambda p: torch.optim.Adam(p, lr=lr),
            "adamw": lambda p: torch.optim.AdamW(p, lr=lr),
            "sgd": lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9)}[name](parameters)


def train(model, optimizer, lr, shape, steps, dtype, disturb=0):
    """The losses, and by name how much each parameter has changed."""
    set_weights(model)
    if disturb:
        torch.manual_seed(disturb)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 2.0**-23 * torch.randint(-1, 2, p.shape))
    model = model.to(dtype)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    o = optimizer_of(optimizer, model.parameters(), lr)
    losses = []
    for step in range(steps):
        x, y = batch(shape, step, dtype)
        o.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        o.step()
        losses.append(loss.item())
    return losses, {n: (p.detach() - start[n]).flatten().double() for n, p in model.named_parameters()}


def run(spec, make, optimizer, lr, shape, steps=10):
    losses, rough = train(make(), optimizer, lr, shape, steps, torch.float32)
    _, exact = train(make(), optimizer, lr, shape, steps, torch.float64)
    runs = [rough] + [train(make(), optimizer, lr, shape, steps, torch.float32, 1 + k)[1] for k in range(4)]
    print("model", spec, optimizer, repr(lr), *shape)
    for loss in losses:
        print("loss", repr(loss))
    for name, change in exact.items():
        off = [change - r[name] for r in runs]
        noise, most = max(o.norm() for o in off), max(o.abs().max() for o in off)
        n = len(change)
        picks = [k * (n - 1) // (SAMPLES - 1) for k in range(SAMPLES)] if n >= SAMPLES else []
        print("tensor", name, *(f"{v:.7g}" for v in (change.norm(), noise, most, *(change[k] for k in picks))))


if __name__ == "__main__":
    run("mlp", mlp, "adam", 1e-3, (16, 1, 28, 28))
    run("lenet", lenet, "adam", 1e-3, (16, 1, 28, 28))
    run("resnet18", Resnet18, "sgd", 1e-4, (8, 3, 32, 32))
    run("vit-tiny", Vit, "adamw", 1e-4, (4, 3, 32, 32))
    run("char-lstm:embed=32,hidden=64", CharLstm, "adam", 1e-3, (8, 24))
    run("gpt2:layers=3,embed=64,heads=4,context=32,vocabulary=256", Gpt2, "adamw", 1e-3, (4, 24))
    run("llama:layers=2,embed=64,heads=4,kv_heads=2,hidden=96,vocabulary=256", Llama, "adamw", 1e-3, (4, 24))
    run("bert:layers=2,embed=64,heads=4,hidden=96,context=48,vocabulary=256", Bert, "sgd", 1e-2, (14, 40))
