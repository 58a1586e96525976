"""Writes autocast.txt: the type that each operation has under PyTorch's autocast on a GPU.

Run in this folder with PyTorch 2.11: python make_autocast.py. Nothing is computed, so no GPU is needed: fake tensors know
their types alone. A line each:

    matmul bf16 : f32 bf16 -> bf16      the operation, what autocast converts to, the operands' types, the result's

Combinations that PyTorch refuses have no line.
"""
import itertools
import logging

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
NAMES = {v: k for k, v in TYPES.items()}

# How many operands of the type under test, and what is done with them: a is [4, 4], labels are i64 [4].
ONE = {
    "neg": torch.neg, "abs": torch.abs, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log10": torch.log10,
    "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "erf": torch.erf,
    "floor": torch.floor, "relu": F.relu, "leaky_relu": F.leaky_relu, "elu": F.elu, "gelu": F.gelu, "silu": F.silu,
    "sigmoid": torch.sigmoid, "logsigmoid": F.logsigmoid, "softplus": F.softplus, "hardswish": F.hardswish,
    "mish": F.mish, "softmax": lambda a: F.softmax(a, -1), "log_softmax": lambda a: F.log_softmax(a, -1),
    "dropout": lambda a: F.dropout(a, 0.5, True), "sum": torch.sum, "mean": torch.mean, "prod": torch.prod,
    "amax": torch.amax, "var": torch.var, "std": torch.std, "logsumexp": lambda a: torch.logsumexp(a, -1),
    "norm": lambda a: torch.norm(a, 2), "cumsum": lambda a: torch.cumsum(a, 0), "cumprod": lambda a: torch.cumprod(a, 0),
    "pow_scalar": lambda a: a ** 3, "square": torch.square, "add_scalar": lambda a: a + 1, "clamp": lambda a: a.clamp(-1, 1),
    "max_pool2d": lambda a: F.max_pool2d(a.view(1, 1, 4, 4), 2), "avg_pool2d": lambda a: F.avg_pool2d(a.view(1, 1, 4, 4), 2),
    "adaptive_avg_pool2d": lambda a: F.adaptive_avg_pool2d(a.view(1, 1, 4, 4), 2),
    "interpolate": lambda a: F.interpolate(a.view(1, 1, 4, 4), size=(8, 8), mode="bilinear"),
    "transpose": lambda a: a.transpose(0, 1), "flip": lambda a: a.flip(0), "pad": lambda a: F.pad(a, (1, 1)),
    "tril": torch.tril, "sort": lambda a: torch.sort(a)[0], "max": lambda a: torch.max(a, 0)[0],
    "erfc": torch.erfc, "exp2": torch.exp2, "selu": F.selu, "celu": F.celu, "hardsigmoid": F.hardsigmoid,
    "softsign": F.softsign, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "round": torch.round,
    "frac": torch.frac, "rdiv_scalar": lambda a: 1 / a, "rsub_scalar": lambda a: 1 - a, "remainder_scalar": lambda a: a % 2,
    "relu6": F.relu6, "gelu_tanh": lambda a: F.gelu(a, approximate="tanh"), "hardtanh": F.hardtanh,
    "nearest": lambda a: F.interpolate(a.view(1, 1, 4, 4), size=(8, 8)),
    "bicubic": lambda a: F.interpolate(a.view(1, 1, 4, 4), size=(8, 8), mode="bicubic"),
    "embedding": lambda a: F.embedding(LABELS, a), "index_select": lambda a: torch.index_select(a, 0, LABELS),
    "adaptive_max_pool2d": lambda a: F.adaptive_max_pool2d(a.view(1, 1, 4, 4), 2), "topk": lambda a: torch.topk(a, 2)[0],
    "cross_entropy": lambda a: F.cross_entropy(a, LABELS), "nll_loss": lambda a: F.nll_loss(a, LABELS),
}
TWO = {
    "matmul": torch.matmul, "linear": F.linear, "conv2d": lambda a, b: F.conv2d(a.view(1, 1, 4, 4), b.view(1, 1, 4, 4)),
    "conv_transpose2d": lambda a, b: F.conv_transpose2d(a.view(1, 1, 4, 4), b.view(1, 1, 4, 4)),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b), "dot": lambda a, b: torch.dot(a[0], b[0]),
    "outer": lambda a, b: torch.outer(a[0], b[0]), "hypot": torch.hypot, "fmod": torch.fmod,
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "atan2": torch.atan2,
    "maximum": torch.maximum, "where": lambda a, b: torch.where(a > 0, a, b), "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=0.5), "addcdiv": lambda a, b: torch.addcdiv(a, b, b, value=0.5),
    "cat": lambda a, b: torch.cat([a, b]), "stack": lambda a, b: torch.stack([a, b]), "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss, "huber_loss": F.huber_loss, "smooth_l1_loss": F.smooth_l1_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits, "kl_div": lambda a, b: F.kl_div(a, b, reduction="mean"),
    "layer_norm": lambda a, b: F.layer_norm(a, (4,), b[0]), "rms_norm": lambda a, b: F.rms_norm(a, (4,), b[0]),
    "group_norm": lambda a, b: F.group_norm(a, 2, b[0]),
    "batch_norm": lambda a, b: F.batch_norm(a, None, None, b[0], b[0], True),
    "attention": lambda a, b: F.scaled_dot_product_attention(a.view(1, 1, 4, 4), b.view(1, 1, 4, 4), b.view(1, 1, 4, 4)),
    "scatter_add": lambda a, b: torch.scatter_add(a, 0, torch.zeros(4, 4, dtype=torch.int64, device="cuda"), b),
}


def lines():
    for lower in ("bf16", "f16"):
        torch.set_autocast_dtype("cuda", TYPES[lower])
        for table, count in ((ONE, 1), (TWO, 2)):
            for name, function in table.items():
                for types in itertools.product(TYPES, repeat=count):
                    if "f64" in types and set(types) != {"f64"}:
                        continue  # fake tensors do not know what is refused there
                    operands = [torch.empty(4, 4, dtype=TYPES[t], device="cuda") for t in types]
                    try:
                        result = NAMES[function(*operands).dtype]
                    except (RuntimeError, ValueError, NotImplementedError):
                        continue
                    yield f"{name} {lower} : {' '.join(types)} -> {result}\n"


logging.disable(logging.CRITICAL)  # of what is refused
torch.set_autocast_enabled("cuda", True)
with FakeTensorMode():
    LABELS = torch.zeros(4, dtype=torch.int64, device="cuda")
    with open("autocast.txt", "w", encoding="ascii") as out:
        out.writelines(lines())
