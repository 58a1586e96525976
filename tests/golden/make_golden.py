"""Writes the golden files of test_golden: inputs, results and input gradients of PyTorch.

Run in this folder with PyTorch 2.11: python make_golden.py. The files are text, a word a token:

    case NAME           the function of test_golden.c that repeats the call
    ints 1 2            integer arguments
    floats 0.5 inf      float arguments
    text ij,jk->ik      a text argument
    in f64 2 3 : 1 2 3 4 5 6     an input: dtype, shape, elements ("in -" is an absent one; "in*" wants a gradient)
    out f64 2 3 : ...   a result, in order
    grad 0 2 3 : ...    the gradient of sum(first result * w) for input 0, with w[i] = (37 i mod 19 - 9) / 8
    end
"""
import itertools
import math
import warnings

import torch
import torch.nn.functional as F

DTYPES = {torch.bool: "bool", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64", torch.float16: "f16",
          torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
INF, NAN = math.inf, math.nan
torch.manual_seed(20240601)
warnings.simplefilter("ignore")  # kl_div's mean, var of one sample: both wanted here


def text_of(value, dtype):
    if not dtype.is_floating_point:
        return str(int(value))
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return "%.17g" % value if dtype == torch.float64 else "%.9g" % value


def tensor_text(t):
    shape = " ".join(str(s) for s in t.shape)
    values = " ".join(text_of(v, t.dtype) for v in t.detach().reshape(-1).tolist())
    return f"{shape} : {values}".strip()


class File:
    """One golden file; a case adds one call to it."""

    def __init__(self, name):
        self.name, self.lines, self.cases, self.ops = name, [], 0, set()

    def case(self, op, call, *inputs, ints=(), floats=(), text="", grad=True):
        """grad: True for all float inputs, or the numbers of those that get one, or False."""
        wanted = {i for i, t in enumerate(inputs) if t is not None and t.dtype.is_floating_point
                  and (grad is True or (grad and i in grad))}
        before = [None if t is None else t.clone() for t in inputs]
        given = [None if t is None else t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
        outs = call(*given)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        if not outs[0].requires_grad:  # nothing differentiable was done
            wanted = set()
        lines = [f"case {op}"]
        if ints:
            lines.append("ints " + " ".join(str(int(i)) for i in ints))
        if floats:
            lines.append("floats " + " ".join(text_of(float(f), torch.float64) for f in floats))
        if text:
            lines.append("text " + text)
        for i, t in enumerate(before):
            mark = "in*" if i in wanted else "in"
            lines.append(f"{mark} -" if t is None else f"{mark} {DTYPES[t.dtype]} {tensor_text(t)}")
        for t in outs:
            lines.append(f"out {DTYPES[t.dtype]} {tensor_text(t)}")
        if wanted:
            first = outs[0]
            w = (torch.arange(first.numel()) * 37 % 19 - 9).to(first.dtype).reshape(first.shape) / 8
            order = sorted(wanted)
            grads = torch.autograd.grad(first, [given[i] for i in order], w, allow_unused=True)
            for i, g in zip(order, grads):
                g = torch.zeros_like(given[i]) if g is None else g
                lines.append(f"grad {i} {tensor_text(g)}")
        lines.append("end")
        self.lines += lines
        self.cases += 1
        self.ops.add(op)

    def write(self):
        with open(self.name + ".txt", "w") as f:
            f.write("\n".join(self.lines) + "\n")


def rand(*shape, lo=-2.0, hi=2.0, dtype=torch.float64):
    # few digits keep the files small; distinct values and no kinks at 0 are near certain
    return (torch.rand(*shape, dtype=torch.float64) * (hi - lo) + lo).mul(4096).round().div(4096).to(dtype)


def randi(high, *shape, low=0):
    return torch.randint(low, high, shape)


def t64(*values):
    return torch.tensor(values, dtype=torch.float64)


def convolutions():
    f = File("conv")
    for k, s, p, d, g in [(3, 1, 0, 1, 1), (3, 2, 1, 1, 1), (3, 1, 2, 2, 1), (2, 3, 1, 2, 2), (1, 1, 0, 1, 1),
                          (5, 2, 4, 1, 4)]:
        f.case("conv1d", lambda x, w, b: F.conv1d(x, w, b, s, p, d, g), rand(2, 4, 9), rand(4, 4 // g, k), rand(4),
               ints=(s, p, d, g))
    f.case("conv1d", lambda x, w: F.conv1d(x, w, None, 2, 1), rand(1, 2, 6), rand(3, 2, 3), ints=(2, 1, 1, 1))
    for (kh, kw), (sh, sw), (ph, pw), (dh, dw), g in [
            ((3, 3), (1, 1), (0, 0), (1, 1), 1), ((3, 3), (2, 2), (1, 1), (1, 1), 1),
            ((3, 2), (1, 2), (2, 0), (2, 1), 1),
            ((2, 3), (2, 1), (1, 2), (1, 2), 2), ((1, 1), (1, 1), (0, 0), (1, 1), 1),
            ((3, 3), (1, 1), (1, 1), (1, 1), 4),
            ((1, 1), (2, 2), (1, 1), (1, 1), 2), ((3, 1), (3, 2), (3, 1), (1, 1), 2)]:
        f.case("conv2d", lambda x, w, b: F.conv2d(x, w, b, (sh, sw), (ph, pw), (dh, dw), g), rand(2, 4, 6, 5),
               rand(4, 4 // g, kh, kw), rand(4), ints=(sh, sw, ph, pw, dh, dw, g))
    f.case("conv2d", lambda x, w: F.conv2d(x, w), rand(1, 3, 4, 4), rand(2, 3, 2, 2), ints=(1, 1, 0, 0, 1, 1, 1))
    for k, s, p, op, g, d in [(3, 1, 0, 0, 1, 1), (3, 2, 1, 1, 1, 1), (2, 3, 0, 2, 2, 1), (3, 2, 2, 1, 2, 2)]:
        f.case("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, s, p, op, g, d), rand(2, 4, 5),
               rand(4, 6 // g, k), rand(6), ints=(s, p, op, g, d))
    for (kh, kw), (sh, sw), (ph, pw), (oh, ow), (dh, dw), g in [
            ((3, 3), (1, 1), (0, 0), (0, 0), (1, 1), 1), ((3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1),
            ((2, 3), (3, 2), (0, 1), (2, 0), (1, 1), 2), ((3, 2), (2, 1), (2, 1), (1, 0), (2, 2), 2),
            ((1, 1), (2, 2), (0, 0), (1, 0), (1, 1), 4)]:
        f.case("conv_transpose2d",
               lambda x, w, b: F.conv_transpose2d(x, w, b, (sh, sw), (ph, pw), (oh, ow), g, (dh, dw)),
               rand(2, 4, 4, 3), rand(4, 4 // g, kh, kw), rand(4), ints=(sh, sw, ph, pw, oh, ow, dh, dw, g))
    f.case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w), rand(1, 2, 3, 3), rand(2, 3, 2, 2),
           ints=(1, 1, 0, 0, 0, 0, 1, 1, 1))
    return f


def pools():
    f = File("pool")
    for k, s, p, d, ceil in [(2, 2, 0, 1, 0), (3, 2, 1, 1, 1), (3, 1, 1, 2, 0), (2, 3, 1, 1, 1), (3, 3, 0, 1, 1)]:
        f.case("max_pool1d", lambda x: F.max_pool1d(x, k, s, p, d, bool(ceil)), rand(2, 3, 8), ints=(k, s, p, d, ceil))
        if d == 1:
            for include in (0, 1):
                f.case("avg_pool1d", lambda x: F.avg_pool1d(x, k, s, p, bool(ceil), bool(include)), rand(2, 3, 8),
                       ints=(k, s, p, ceil, include))
    for (kh, kw), (sh, sw), (ph, pw), (dh, dw), ceil in [
            ((2, 2), (2, 2), (0, 0), (1, 1), 0), ((3, 3), (2, 2), (1, 1), (1, 1), 0),
            ((3, 3), (2, 2), (1, 1), (1, 1), 1),
            ((2, 3), (3, 1), (1, 0), (1, 2), 1), ((3, 2), (1, 1), (1, 1), (2, 2), 0),
            ((2, 2), (3, 3), (1, 1), (1, 1), 1)]:
        f.case("max_pool2d", lambda x: F.max_pool2d(x, (kh, kw), (sh, sw), (ph, pw), (dh, dw), bool(ceil)),
               rand(1, 2, 7, 6), ints=(kh, kw, sh, sw, ph, pw, dh, dw, ceil))
        if dh * dw == 1:
            for exclude in (0, 1):
                f.case("avg_pool2d",
                       lambda x: F.avg_pool2d(x, (kh, kw), (sh, sw), (ph, pw), bool(ceil), not exclude),
                       rand(1, 2, 7, 6), ints=(kh, kw, sh, sw, ph, pw, ceil, exclude))
    ties = torch.tensor([[[[1., 1, 2, 2], [1, 1, 2, 2], [3, 0, 3, 0], [0, 3, 0, 3]]]], dtype=torch.float64)
    f.case("max_pool2d", lambda x: F.max_pool2d(x, 2), ties, ints=(2, 2, 2, 2, 0, 0, 1, 1, 0))
    nans = ties.clone()
    nans[0, 0, 1, 1] = NAN
    f.case("max_pool2d", lambda x: F.max_pool2d(x, 2), nans, ints=(2, 2, 2, 2, 0, 0, 1, 1, 0), grad=False)
    for n in (1, 3, 5, 7, 10):
        f.case("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, n), rand(2, 2, 7), ints=(n,))
        f.case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, n), rand(2, 2, 7), ints=(n,))
    for h, w in [(1, 1), (2, 3), (5, 4), (7, 6), (3, 9)]:
        f.case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (h, w)), rand(1, 2, 7, 6), ints=(h, w))
        f.case("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (h, w)), rand(1, 2, 7, 6), ints=(h, w))
    return f


def resizes():
    f = File("resize")
    for size in [1, 3, 5, 8, 13]:
        f.case("interpolate1d", lambda x: F.interpolate(x, size, mode="nearest"), rand(2, 2, 5), ints=(size, 0, 0))
        for align in (0, 1):
            f.case("interpolate1d", lambda x: F.interpolate(x, size, mode="linear", align_corners=bool(align)),
                   rand(2, 2, 5), ints=(size, 1, align))
    for h, w in [(1, 1), (3, 2), (4, 5), (8, 10), (7, 3), (6, 11)]:
        f.case("interpolate2d", lambda x: F.interpolate(x, (h, w), mode="nearest"), rand(1, 2, 4, 5), ints=(h, w, 0, 0))
        for mode, name in ((1, "bilinear"), (2, "bicubic")):
            for align in (0, 1):
                f.case("interpolate2d", lambda x: F.interpolate(x, (h, w), mode=name, align_corners=bool(align)),
                       rand(1, 2, 4, 5), ints=(h, w, mode, align))
    return f


REDUCTIONS = ["mean", "sum", "none"]


def losses():
    f = File("loss")
    x, y = rand(4, 5), randi(5, 4)
    y[1] = 2
    x3, y3 = rand(2, 4, 3), randi(4, 2, 3)
    weight = rand(5, lo=0.25, hi=2)
    for r, name in enumerate(REDUCTIONS):
        for w, smooth, ignore in itertools.product((None, weight), (0.0, 0.1), (-100, 2, 0)):
            f.case("cross_entropy",
                   lambda a, b, c: F.cross_entropy(a, b, c, ignore_index=ignore,
                                                   reduction=name, label_smoothing=smooth),
                   x, y, w, ints=(ignore, r), floats=(smooth,), grad=(0,))
        for w in (None, weight[:4]):
            f.case("cross_entropy", lambda a, b, c: F.cross_entropy(a, b, c, reduction=name, label_smoothing=0.2),
                   x3, y3, w, ints=(-100, r), floats=(0.2,), grad=(0,))
        for w, smooth in itertools.product((None, weight), (0.0, 0.1)):
            f.case("cross_entropy", lambda a, b, c: F.cross_entropy(a, b, c, reduction=name, label_smoothing=smooth),
                   x, torch.softmax(rand(4, 5), 1), w, ints=(-100, r), floats=(smooth,), grad=(0, 1))
        f.case("cross_entropy", lambda a, b, c: F.cross_entropy(a, b, c, reduction=name, label_smoothing=0.1),
               x3, torch.softmax(rand(2, 4, 3), 1), weight[:4], ints=(-100, r), floats=(0.1,), grad=(0, 1))
        for w, ignore in itertools.product((None, weight), (-100, 2)):
            f.case("nll_loss", lambda a, b, c: F.nll_loss(a, b, c, ignore_index=ignore, reduction=name),
                   torch.log_softmax(x, 1), y, w, ints=(ignore, r), grad=(0,))
        f.case("nll_loss", lambda a, b: F.nll_loss(a, b, reduction=name), torch.log_softmax(x3, 1), y3,
               ints=(-100, r), grad=(0,))
        a, b = rand(3, 4), rand(3, 4)
        f.case("mse_loss", lambda p, q: F.mse_loss(p, q, reduction=name), a, b, ints=(r,))
        f.case("l1_loss", lambda p, q: F.l1_loss(p, q, reduction=name), a, b, ints=(r,))
        for d in (0.5, 1.0, 2.0):
            f.case("huber_loss", lambda p, q: F.huber_loss(p, q, name, d), a, b, ints=(r,), floats=(d,))
        for d in (0.0, 0.5, 1.0):
            f.case("smooth_l1_loss", lambda p, q: F.smooth_l1_loss(p, q, reduction=name, beta=d), a, b, ints=(r,),
                   floats=(d,))
        p, q = rand(3, 4, lo=0.05, hi=0.95), rand(3, 4, lo=0, hi=1)
        edge = t64(0, 1, 0, 1, 0.5).reshape(1, 5)
        target = t64(0, 1, 1, 0, 0.25).reshape(1, 5)
        for w in (None, rand(3, 4, lo=0.25, hi=2)):
            f.case("binary_cross_entropy", lambda u, v, k: F.binary_cross_entropy(u, v, k, reduction=name), p, q, w,
                   ints=(r,), grad=(0,))
        f.case("binary_cross_entropy", lambda u, v: F.binary_cross_entropy(u, v, reduction=name), edge, target,
               ints=(r,), grad=False)
        for w, pos in itertools.product((None, rand(3, 4, lo=0.25, hi=2)), (None, rand(4, lo=0.25, hi=2))):
            f.case("binary_cross_entropy_with_logits",
                   lambda u, v, k, l: F.binary_cross_entropy_with_logits(u, v, k, pos_weight=l, reduction=name),
                   rand(3, 4), q, w, pos, ints=(r,), grad=(0,))
        f.case("binary_cross_entropy_with_logits",
               lambda u, v: F.binary_cross_entropy_with_logits(u, v, reduction=name), t64(-800, -30, 0, 30, 800),
               t64(1, 0, 0.5, 1, 0), ints=(r,), grad=(0,))
        lp = torch.log_softmax(rand(3, 4), 1)
        probs = torch.softmax(rand(3, 4), 1)
        zero = probs.clone()
        zero[0, 1] = 0
        f.case("kl_div", lambda u, v: F.kl_div(u, v, reduction=name), lp, probs, ints=(0, r), grad=(0,))
        f.case("kl_div", lambda u, v: F.kl_div(u, v, reduction=name), lp, zero, ints=(0, r), grad=(0,))
        f.case("kl_div", lambda u, v: F.kl_div(u, v, reduction=name, log_target=True), lp, probs.log(), ints=(1, r),
               grad=(0,))
        lens, tlens = torch.tensor([6, 5, 6]), torch.tensor([3, 2, 0])
        for zero_inf in (0, 1):
            f.case("ctc_loss",
                   lambda u, v, il, tl: F.ctc_loss(torch.log_softmax(u, 2), v, il, tl, 0, name, bool(zero_inf)),
                   rand(6, 3, 4), torch.tensor([[1, 1, 2], [3, 2, 1], [1, 2, 3]]), lens, tlens, ints=(0, r, zero_inf))
        f.case("ctc_loss", lambda u, v, il, tl: F.ctc_loss(torch.log_softmax(u, 2), v, il, tl, 3, name, True),
               rand(4, 2, 4), torch.tensor([[1, 1, 1], [0, 2, 1]]), torch.tensor([4, 4]), torch.tensor([3, 3]),
               ints=(3, r, 1))
    return f


def norms():
    f = File("norm")
    for affine in (False, True):
        w, b = (rand(3), rand(3)) if affine else (None, None)
        stats = (rand(3), rand(3, lo=0.5, hi=2))
        for shape in [(4, 3), (2, 3, 4), (2, 3, 2, 3)]:
            f.case("batch_norm",
                   lambda x, m, v, p, q: (F.batch_norm(x, m, v, p, q, True, 0.1, 1e-5), m, v),
                   rand(*shape), *stats, w, b, ints=(1,), floats=(0.1, 1e-5), grad=(0, 3, 4))
            f.case("batch_norm", lambda x, m, v, p, q: (F.batch_norm(x, m, v, p, q, False, 0.1, 1e-3), m, v),
                   rand(*shape), *stats, w, b, ints=(0,), floats=(0.1, 1e-3), grad=(0, 3, 4))
        f.case("batch_norm", lambda x, m, v, p, q: F.batch_norm(x, m, v, p, q, True, 0.1, 1e-5),
               rand(4, 3), None, None, w, b, ints=(1,), floats=(0.1, 1e-5), grad=(0, 3, 4))
        f.case("batch_norm", lambda x, m, v, p, q: (F.batch_norm(x, m, v, p, q, True, 0.7, 1e-5), m, v),
               rand(2, 3, 3), *stats, w, b, ints=(1,), floats=(0.7, 1e-5), grad=(0, 3, 4))
        for n, shape in [(1, (2, 3, 4)), (2, (2, 3, 4)), (3, (2, 3, 4)), (1, (2, 1))]:
            tail = shape[len(shape) - n:]
            w2, b2 = (rand(*tail), rand(*tail)) if affine else (None, None)
            f.case("layer_norm", lambda x, p, q: F.layer_norm(x, tail, p, q, 1e-5), rand(*shape), w2, b2, ints=(n,),
                   floats=(1e-5,))
            f.case("rms_norm", lambda x, p: F.rms_norm(x, tail, p, 1e-6), rand(*shape), w2, ints=(n,), floats=(1e-6,))
        for g, shape in [(1, (2, 4)), (2, (2, 4, 3)), (4, (1, 4, 2, 3)), (2, (2, 6, 2, 2))]:
            w2, b2 = (rand(shape[1]), rand(shape[1])) if affine else (None, None)
            f.case("group_norm", lambda x, p, q: F.group_norm(x, g, p, q, 1e-5), rand(*shape), w2, b2, ints=(g,),
                   floats=(1e-5,))
    for dim in (0, 1, -1):
        x = rand(2, 3, 4) * 8
        f.case("softmax", lambda u: torch.softmax(u, dim), x, ints=(dim,))
        f.case("log_softmax", lambda u: torch.log_softmax(u, dim), x, ints=(dim,))
    masked = t64(-INF, 1, 2, -INF).reshape(1, 4)
    f.case("softmax", lambda u: torch.softmax(u, 1), masked, ints=(1,))
    f.case("log_softmax", lambda u: torch.log_softmax(u, 1), masked, ints=(1,), grad=False)
    f.case("softmax", lambda u: torch.softmax(u, 0), t64(800, 801, -800), ints=(0,))
    f.case("log_softmax", lambda u: torch.log_softmax(u, 0), t64(800, 801, -800), ints=(0,))
    return f


def attentions():
    f = File("attention")
    sdpa = F.scaled_dot_product_attention
    for shape, length in [((2, 3, 4), 5), ((1, 2, 3, 4), 3)]:
        q = rand(*shape)
        kv = [rand(*shape[:-2], length, 4) for _ in range(2)]
        full = (*shape[:-2], shape[-2], length)
        keep = torch.rand(full) > 0.4
        keep[..., 0] = True
        for scale in (0.0, 0.3):
            s = scale or None
            f.case("attention", lambda a, b, c, m: sdpa(a, b, c, scale=s), q, *kv, None, ints=(0,), floats=(scale,))
            f.case("attention", lambda a, b, c, m: sdpa(a, b, c, is_causal=True, scale=s), q, *kv, None, ints=(1,),
                   floats=(scale,))
            f.case("attention", lambda a, b, c, m: sdpa(a, b, c, m, scale=s), q, *kv, keep, ints=(0,), floats=(scale,))
            f.case("attention", lambda a, b, c, m: sdpa(a, b, c, m, scale=s), q, *kv, rand(*full[-2:]), ints=(0,),
                   floats=(scale,))
    none = torch.ones(3, 5, dtype=torch.bool)
    none[1] = False
    f.case("attention", lambda a, b, c, m: sdpa(a, b, c, m), rand(2, 3, 4), rand(2, 5, 4), rand(2, 5, 4), none,
           ints=(0,),
           floats=(0,))
    for pad in (-1, 2):
        for shape in [(4,), (2, 3)]:
            index = randi(5, *shape)
            index.view(-1)[0] = 2
            index.view(-1)[1] = index.view(-1)[2]
            f.case("embedding", lambda w, i: F.embedding(i, w, None if pad < 0 else pad), rand(5, 3), index,
                   ints=(pad,))
    return f


def reductions():
    f = File("reduce")
    x = rand(2, 3, 4)
    for dims, keep in [((0,), 0), ((1, 2), 1), ((-1,), 1), ((0, 1, 2), 0)]:
        tail = (keep, *dims)
        f.case("sum", lambda u: u.sum(dims, bool(keep)), x, ints=tail)
        f.case("mean", lambda u: u.mean(dims, bool(keep)), x, ints=tail)
        f.case("amax", lambda u: u.amax(dims, bool(keep)), x, ints=tail)
        f.case("amin", lambda u: u.amin(dims, bool(keep)), x, ints=tail)
        f.case("logsumexp", lambda u: u.logsumexp(dims, bool(keep)), x, ints=tail)
        for c in (0, 1) if dims == (0,) else (0, 1, 2):
            f.case("var", lambda u: u.var(dims, correction=c, keepdim=bool(keep)), x, ints=(c, *tail))
            f.case("std", lambda u: u.std(dims, correction=c, keepdim=bool(keep)), x, ints=(c, *tail))
        for p in (0, 0.5, 1, 2, 3, INF, -INF):
            f.case("norm", lambda u: torch.linalg.vector_norm(u, p, dims, bool(keep)), x, ints=tail, floats=(p,))
    f.case("var", lambda u: u.var(0, correction=1), rand(1, 3), ints=(1, 0, 0), grad=False)
    zeros = t64(0, 2, 0, 3, 4, 5).reshape(2, 3)
    for p in (1, 2, 3, INF):
        f.case("norm", lambda u: torch.linalg.vector_norm(u, p, 1), torch.zeros(2, 3, dtype=torch.float64), ints=(0, 1),
               floats=(p,))
    ones = [t64(2, 3, 4), t64(0, 3, 4), t64(0, 0, 4), t64(0, 0, 0)]
    for v in ones:
        f.case("prod", lambda u: u.prod(0), v, ints=(0, 0))
        f.case("cumprod", lambda u: u.cumprod(0), v, ints=(0,))
    f.case("prod", lambda u: u.prod(1, True), zeros, ints=(1, 1))
    f.case("cumprod", lambda u: u.cumprod(1), t64(1, 0, 3, 4, 2, 0, 0, 5).reshape(2, 4), ints=(1,))
    f.case("cumprod", lambda u: u.cumprod(0), rand(4, 3), ints=(0,))
    for dim in (0, 1, -1):
        f.case("cumsum", lambda u: u.cumsum(dim), x, ints=(dim,))
    ties = t64(3, 1, 3, 1, 3, 2, 2, 2).reshape(2, 4)
    f.case("amax", lambda u: u.amax(1), ties, ints=(0, 1))
    f.case("amin", lambda u: u.amin(1), ties, ints=(0, 1))
    f.case("amax", lambda u: u.amax((0, 1)), ties, ints=(0, 0, 1))
    f.case("max", lambda u: u.max(1), rand(3, 4), ints=(1, 0))
    f.case("min", lambda u: u.min(0, True), rand(3, 4), ints=(0, 1))
    for v in [t64(1, NAN, 3), t64(INF, 1, -INF)]:
        f.case("amax", lambda u: u.amax(0), v, ints=(0, 0), grad=False)
        f.case("amin", lambda u: u.amin(0), v, ints=(0, 0), grad=False)
        f.case("max", lambda u: u.max(0), v, ints=(0, 0), grad=False)
        f.case("min", lambda u: u.min(0), v, ints=(0, 0), grad=False)
        f.case("sum", lambda u: u.sum(0), v, ints=(0, 0), grad=False)
        f.case("argmax", lambda u: u.argmax(0), v, ints=(0, 0))
        f.case("argmin", lambda u: u.argmin(0), v, ints=(0, 0))
    for v in [t64(-INF, -INF), t64(INF, 1), t64(-INF, 1, 2), t64(1000, 1001), t64(-1000, -1001), t64(INF, INF)]:
        f.case("logsumexp", lambda u: u.logsumexp(0), v, ints=(0, 0), grad=False)
    f.case("logsumexp", lambda u: u.logsumexp(0), t64(1000, 1001, -INF), ints=(0, 0))
    f.case("any", lambda u: u.any(1), torch.tensor([[0, 1], [0, 0]], dtype=torch.bool), ints=(0, 1))
    f.case("all", lambda u: u.all(1), torch.tensor([[0, 1], [1, 1]], dtype=torch.bool), ints=(0, 1))
    f.case("any", lambda u: u.any(1), t64(0, NAN, 0, 0).reshape(2, 2), ints=(0, 1))
    f.case("all", lambda u: u.all(1), t64(0, 1, NAN, -1).reshape(2, 2), ints=(0, 1))
    for dt in (torch.bool, torch.uint8, torch.int32, torch.int64):
        v = randi(3, 2, 3).to(dt)
        f.case("sum", lambda u: u.sum(1), v, ints=(0, 1))
        f.case("prod", lambda u: u.prod(1), v, ints=(0, 1))
        f.case("cumsum", lambda u: u.cumsum(1), v, ints=(1,))
    big = torch.tensor([200, 100, 7], dtype=torch.uint8)
    f.case("sum", lambda u: u.sum(0), big, ints=(0, 0))
    empty = torch.zeros(2, 0, 3, dtype=torch.float64)
    f.case("sum", lambda u: u.sum(1), empty, ints=(0, 1))
    f.case("prod", lambda u: u.prod(1), empty, ints=(0, 1))
    f.case("mean", lambda u: u.mean(1), empty, ints=(0, 1), grad=False)
    f.case("logsumexp", lambda u: u.logsumexp(1), empty, ints=(0, 1), grad=False)
    return f


def picking():
    f = File("pick")
    x = rand(3, 4)
    ties = t64(2, 1, 2, 3, 1, 3, 0, 2).reshape(2, 4)
    nans = t64(2, NAN, -INF, 1, INF, NAN)
    for desc in (0, 1):
        for dim in (0, 1, -1):
            f.case("sort", lambda u: torch.sort(u, dim=dim, descending=bool(desc), stable=True), x, ints=(dim, desc))
        f.case("sort", lambda u: torch.sort(u, dim=1, descending=bool(desc), stable=True), ties, ints=(1, desc))
        f.case("sort", lambda u: torch.sort(u, dim=0, descending=bool(desc), stable=True), nans, ints=(0, desc),
               grad=False)
        f.case("argsort", lambda u: torch.argsort(u, dim=1, descending=bool(desc), stable=True), ties, ints=(1, desc))
    for k, dim, largest in [(2, 1, 1), (3, 0, 1), (2, -1, 0), (1, 1, 1), (4, 1, 0)]:
        f.case("topk", lambda u: torch.topk(u, k, dim, bool(largest)), x, ints=(k, dim, largest))

    def stable_topk(u, k, largest):
        v, i = torch.sort(u, dim=-1, descending=largest, stable=True)
        return v[..., :k], i[..., :k]
    for largest in (0, 1):
        f.case("topk", lambda u: stable_topk(u, 3, bool(largest)), ties, ints=(3, 1, largest), grad=False)
    f.case("argmax", lambda u: u.argmax(1), x, ints=(1, 0))
    f.case("argmin", lambda u: u.argmin(0, True), x, ints=(0, 1))
    f.case("argmax_flat", lambda u: u.argmax(), x)
    f.case("argmin_flat", lambda u: u.argmin(), x)
    for dim, ishape in [(0, (2, 4)), (1, (3, 6)), (1, (2, 3)), (-1, (3, 1))]:
        size = x.shape[dim]
        index = randi(size, *ishape)
        f.case("gather", lambda u, i: u.gather(dim, i), x, index, ints=(dim,))
        f.case("scatter_add", lambda u, i, s: u.scatter_add(dim, i, s), x, index, rand(*ishape), ints=(dim,))
    unique = torch.stack([torch.randperm(4)[:3] for _ in range(3)])
    f.case("scatter", lambda u, i, s: u.scatter(1, i, s), x, unique, rand(3, 3), ints=(1,))
    f.case("scatter", lambda u, i, s: u.scatter(-1, i, s), x, unique[:2, :2], rand(2, 2), ints=(-1,))
    f.case("gather", lambda u, i: u.gather(0, i), rand(3, 2, 2), randi(3, 2, 1, 2), ints=(0,))
    f.case("scatter_add", lambda u, i, s: u.scatter_add(1, i, s), rand(2, 3, 2), randi(3, 2, 5, 1), rand(2, 5, 1),
           ints=(1,))
    for dim in (0, 1, -1):
        index = randi(x.shape[dim], 5)
        f.case("index_select", lambda u, i: u.index_select(dim, i), x, index, ints=(dim,))
        src = rand(5, 4) if dim == 0 else rand(3, 5)
        f.case("index_add", lambda u, i, s: u.index_add(dim, i, s), x, index, src, ints=(dim,))
    f.case("one_hot", lambda i: F.one_hot(i, 5), randi(5, 2, 3), ints=(5,))
    for d in (-2, -1, 0, 1, 3):
        f.case("tril", lambda u: u.tril(d), x, ints=(d,))
        f.case("triu", lambda u: u.triu(d), x, ints=(d,))
    f.case("tril", lambda u: u.tril(0), rand(2, 3, 2), ints=(0,))
    cond = torch.tensor([True, False, True, False])
    f.case("where", torch.where, cond, rand(3, 4), rand(4))
    f.case("where", torch.where, cond, t64(NAN, 1, 2, 3), t64(4, 5, INF, 6))
    f.case("masked_fill", lambda u, m: u.masked_fill(m, -INF), x, cond, floats=(-INF,))
    f.case("masked_fill", lambda u, m: u.masked_fill(m, 7), randi(5, 3, 4), cond, floats=(7,))
    return f


def shapes():
    f = File("shape")
    x = rand(2, 3, 4)
    for pad in [(1, 2), (-1, 1), (1, 0, 0, 2), (0, 0, 1, 1, 2, 0), (-1, -2)]:
        f.case("pad", lambda u: F.pad(u, pad, "constant", 1.5), x, ints=(0, *pad), floats=(1.5,))
    for mode, name in ((1, "reflect"), (2, "replicate"), (3, "circular")):
        f.case("pad", lambda u: F.pad(u, (2, 1), name), x, ints=(mode, 2, 1), floats=(0,))
        f.case("pad", lambda u: F.pad(u, (1, 2, 0, 1), name), rand(1, 2, 3, 4), ints=(mode, 1, 2, 0, 1), floats=(0,))
    f.case("pad", lambda u: F.pad(u, (5, 6), "replicate"), x, ints=(2, 5, 6), floats=(0,))
    for dim, size, step in [(0, 1, 1), (2, 2, 1), (2, 3, 1), (2, 2, 2), (-1, 4, 1), (1, 2, 1)]:
        f.case("unfold", lambda u: u.unfold(dim, size, step), x, ints=(dim, size, step))
    for shift, dim in [(1, 0), (2, 2), (-1, 2), (5, 1), (0, 1)]:
        f.case("roll", lambda u: torch.roll(u, shift, dim), x, ints=(shift, dim))
    for offset, a, b in [(0, 0, 1), (1, 1, 2), (-1, 0, 2), (2, 1, 2), (0, -1, -2)]:
        f.case("diagonal", lambda u: torch.diagonal(u, offset, a, b), x, ints=(offset, a, b))
    for dims in [(0,), (1, 2), (-1,)]:
        f.case("flip", lambda u: torch.flip(u, dims), x, ints=dims)
    f.case("repeat", lambda u: u.repeat(2, 1, 3), x, ints=(2, 1, 3))
    f.case("repeat", lambda u: u.repeat(2, 1, 2, 1), x, ints=(2, 1, 2, 1))
    f.case("permute", lambda u: u.permute(2, 0, 1), x, ints=(2, 0, 1))
    f.case("unsqueeze", lambda u: u.unsqueeze(-1), x, ints=(-1,))
    f.case("unsqueeze", lambda u: u.unsqueeze(1), x, ints=(1,))
    f.case("clone", torch.clone, x)
    f.case("contiguous", lambda u: u.transpose(0, 2).contiguous(), x)
    f.case("mean_all", torch.mean, x)
    f.case("movedim", lambda u: u.movedim(0, -1), x, ints=(0, -1))
    f.case("movedim", lambda u: u.movedim(2, 0), x, ints=(2, 0))
    for dim, start, end, step in [(0, 0, 1, 1), (2, -3, -1, 1), (2, 0, 100, 2), (1, 2, 1, 1), (2, 1, 4, 3),
                                  (1, -100, 2, 1)]:
        index = [slice(None)] * 3
        index[dim] = slice(start, end, step)
        f.case("slice", lambda u: u[tuple(index)], x, ints=(dim, start, end, step))
    f.case("select", lambda u: u.select(1, -1), x, ints=(1, -1))
    f.case("expand", lambda u: u.expand(2, -1, 4), rand(3, 1), ints=(2, -1, 4))
    f.case("flatten", lambda u: u.flatten(1, -1), x, ints=(1, -1))
    f.case("flatten", lambda u: u.flatten(0, -1), rand(1)[0], ints=(0, -1))
    f.case("squeeze_all", lambda u: u.squeeze(), rand(1, 2, 1), ints=())
    f.case("squeeze", lambda u: u.squeeze(1), rand(2, 3, 1), ints=(1,))
    f.case("cat", lambda a, b: torch.cat([a, b], 1), rand(2, 1), rand(2, 3), ints=(1,))
    f.case("cat", lambda a, b: torch.cat([a, b], -1), rand(2, 2), randi(4, 2, 1), ints=(-1,))
    f.case("stack", lambda a, b: torch.stack([a, b], -1), rand(2, 3), rand(2, 3), ints=(-1,))
    f.case("chunk", lambda a: torch.chunk(a, 3, 0), rand(7, 2), ints=(3, 0))
    f.case("chunk", lambda a: torch.chunk(a, 4, 0), rand(6, 1), ints=(4, 0))
    f.case("split", lambda a: torch.split(a, 3, 1), rand(2, 7), ints=(3, 1))
    return f


def products():
    f = File("product")
    for equation, *sizes in [
            ("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)), ("i,j->ij", (3,), (2,)),
            ("i,i->", (4,), (4,)), ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("ii->i", (3, 3)), ("ii->", (3, 3)),
            ("ij,kj->ik", (2, 3), (4, 3)), ("bhid,bhjd->bhij", (1, 2, 3, 2), (1, 2, 2, 2)), ("ij,j", (2, 3), (3,)),
            ("ij,jk", (2, 3), (3, 2)), ("...ij,...jk->...ik", (2, 2, 3), (3, 2)),
            ("abc,cd,de->abe", (2, 2, 3), (3, 2), (2, 2)),
            ("ij,ij->ij", (2, 3), (2, 3)), ("ij,ij->i", (2, 3), (2, 3)), ("ba", (2, 3)),
            ("aij,ajk,akl->ail", (2, 1, 2), (2, 2, 3), (2, 3, 1)),
            ("i...->...", (2, 3)), ("ij,k->jk", (2, 3), (2,))]:
        f.case("einsum", lambda *a: torch.einsum(equation, *a), *[rand(*s) for s in sizes],
               text=equation.replace(" ", ""))
    for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 2)), ((2, 1, 2, 3), (4, 3, 2)),
                 ((3,), (2, 3, 2)),
                 ((2, 2, 3), (3,)), ((2, 0), (0, 3))]:
        f.case("matmul", torch.matmul, rand(*a), rand(*b))
    f.case("linear", F.linear, rand(2, 2, 3), rand(4, 3), rand(4))
    f.case("linear", lambda x, w: F.linear(x, w), rand(3), rand(4, 3))
    f.case("outer", torch.outer, rand(3), rand(2))
    f.case("dot", torch.dot, rand(3), rand(3))
    return f


def pointwise():
    f = File("pointwise")
    a = t64(7, -7, 7, -7, 5.5, -5.5, 5.5, -5.5, 0, -0.0, 3, 1e10)
    b = t64(3, 3, -3, -3, 2.5, 2.5, -2.5, -2.5, 3, 3, INF, 7)
    ia, ib = torch.tensor([7, -7, 7, -7, 6, -6, 0]), torch.tensor([3, 3, -3, -3, 3, -3, 5])
    for name, op in [("remainder", torch.remainder), ("fmod", torch.fmod), ("floor_divide", torch.floor_divide)]:
        f.case(name, op, a, b, grad=name != "floor_divide")
        f.case(name, op, ia, ib)
        f.case(name, op, ia.int(), ib.int())
        f.case(name, op, a.float(), b.float(), grad=False)
    f.case("remainder_scalar", lambda u: torch.remainder(u, -2.5), a, floats=(-2.5,), grad=(0,))
    f.case("round", torch.round, t64(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4999, 1e300, -0.2))
    for name in ("floor", "ceil", "trunc", "frac", "sign"):
        f.case(name, getattr(torch, name), t64(-2.5, -1, -0.5, 0, 0.5, 1, 2.75))
    finite = t64(-100, -50, -20.5, -5, -3, -1, -1e-3, 0, 1e-3, 1, 3, 5, 6, 19.5, 20.5, 50, 100)
    edges = t64(-INF, -1e5, -0.0, 1e5, INF, NAN)
    acts = {"relu": (F.relu, ()), "relu6": (F.relu6, ()), "leaky_relu": (lambda u: F.leaky_relu(u, 0.1), (0.1,)),
            "elu": (lambda u: F.elu(u, 1.5), (1.5,)), "selu": (F.selu, ()), "celu": (lambda u: F.celu(u, 2.0), (2.0,)),
            "gelu": (F.gelu, ()), "gelu_tanh": (lambda u: F.gelu(u, approximate="tanh"), ()), "silu": (F.silu, ()),
            "sigmoid": (torch.sigmoid, ()), "logsigmoid": (F.logsigmoid, ()),
            "softplus": (lambda u: F.softplus(u, 2.0, 15.0), (2.0, 15.0)), "hardswish": (F.hardswish, ()),
            "hardsigmoid": (F.hardsigmoid, ()), "hardtanh": (lambda u: F.hardtanh(u, -1.0, 3.0), (-1.0, 3.0)),
            "mish": (F.mish, ()), "softsign": (F.softsign, ()), "tanh": (torch.tanh, ()), "abs": (torch.abs, ()),
            "clamp": (lambda u: torch.clamp(u, -1, 3), (-1, 3)), "erf": (torch.erf, ()), "erfc": (torch.erfc, ()),
            "exp": (torch.exp, ()), "expm1": (torch.expm1, ()), "square": (torch.square, ()), "atan": (torch.atan, ()),
            "asinh": (torch.asinh, ())}
    for name, (op, floats) in acts.items():
        # hardsigmoid's gradient has 1/6 rounded to f32 in it, whatever the type
        f.case(name, op, finite.float() if name == "hardsigmoid" else finite, floats=floats)
        f.case(name, op, edges, floats=floats, grad=False)
        # in f32 some of PyTorch's formulas lose digits to cancellation: the f64 result is what is right
        f.case(name, lambda u: op(u.double()).float(), torch.cat([finite, edges]).float(), floats=floats, grad=False)
    f.case("clamp", lambda u: torch.clamp(u, min=0.5), finite, floats=(0.5, INF))
    domain = t64(-INF, -1, -0.5, -0.0, 0, 1e-300, 0.5, 1, 2, INF, NAN)
    for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "asin", "acos", "acosh", "atanh",
                 "isnan",
                 "isinf", "isfinite", "sin", "cos", "tan", "sinh", "cosh", "exp2"):
        f.case(name, getattr(torch, name), domain, grad=False)
    f.case("sqrt", torch.sqrt, t64(0, 0.25, 4))
    pa = t64(0, 0, 0, -2, -2, -8, 2, -1, INF, 0.5, 1, NAN, 2)
    pb = t64(0, 2, -1, 2, 3, 1 / 3, 0.5, INF, 0, -INF, NAN, 0, 10)
    f.case("pow", torch.pow, pa, pb, grad=False)
    f.case("pow", torch.pow, t64(0, 0, 2, 3, 1.5), t64(2, 1, 3, 0, -2))
    for s in (0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.0):
        f.case("pow_scalar", lambda u: torch.pow(u, s), t64(0.5, 1, 2, 3), floats=(s,))
    f.case("pow_scalar", lambda u: torch.pow(u, 2.0), t64(-2, 0, 2), floats=(2,))
    f.case("pow_scalar", lambda u: torch.pow(u, 3.0), t64(-2, 0, 2), floats=(3,))
    ma, mb = t64(1, 2, NAN, 3, INF), t64(2, 2, 1, NAN, -INF)
    for name in ("maximum", "minimum"):
        f.case(name, getattr(torch, name), t64(1, 2, 3), t64(2, 2, 1))
        f.case(name, getattr(torch, name), ma, mb, grad=False)
    f.case("atan2", torch.atan2, t64(0, -0.0, 0, -0.0, 1, -1, INF, INF), t64(0, 0, -0.0, -0.0, 0, 0, INF, -INF),
           grad=False)
    f.case("atan2", torch.atan2, t64(1, -1, 2, -2), t64(1, 2, -1, -3))
    f.case("hypot", torch.hypot, t64(3, 1e200, INF), t64(4, 1e200, NAN), grad=False)
    f.case("hypot", torch.hypot, t64(3, -1), t64(4, 2))
    f.case("lerp", lambda u, v: torch.lerp(u, v, 0.25), rand(2, 3), rand(2, 3), floats=(0.25,))
    f.case("addcmul", lambda u, v, w: torch.addcmul(u, v, w, value=0.5), rand(2, 3), rand(3), rand(2, 1), floats=(0.5,))
    f.case("addcdiv", lambda u, v, w: torch.addcdiv(u, v, w, value=2), rand(2, 3), rand(3), rand(2, 1, lo=0.5),
           floats=(2,))
    ints = torch.tensor([12, 10, 0, -1, 255])
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        f.case(name, getattr(torch, name), ints, torch.tensor([10, 3, 5, 7, 128]))
    f.case("bitwise_not", torch.bitwise_not, ints)
    f.case("bitwise_not", torch.bitwise_not, torch.tensor([0, 7, 255], dtype=torch.uint8))
    f.case("bitwise_not", torch.bitwise_not, torch.tensor([True, False]))
    f.case("logical_not", torch.logical_not, t64(0, -0.0, 2, NAN))
    f.case("logical_and", torch.logical_and, t64(0, 1, NAN), t64(1, 2, 3))
    a, b = t64(1, 2, 3, NAN, INF, -INF), t64(2, 2, 1, 1, INF, INF)
    for name in ("ne", "lt", "le", "gt", "ge", "eq"):
        f.case(name, getattr(torch, name), a, b)
        f.case(name + "_scalar", lambda u: getattr(torch, name)(u, 2.0), a, floats=(2,))
        f.case(name + "_scalar", lambda u: getattr(torch, name)(u, 2.5), torch.tensor([1, 2, 3]), floats=(2.5,))
    for name in ("logical_or", "logical_xor"):
        f.case(name, getattr(torch, name), t64(0, 1, NAN, 0), t64(1, 2, 3, 0))
    f.case("rsub_scalar", lambda u: 2.5 - u, rand(2, 3), floats=(2.5,))
    f.case("rdiv_scalar", lambda u: 2.5 / u, rand(2, 3, lo=0.5), floats=(2.5,))
    f.case("rdiv_scalar", lambda u: 2.5 / u, torch.tensor([1, 2, 4]), floats=(2.5,))
    f.case("sub", torch.sub, rand(2, 1, 3), rand(4, 1))
    f.case("add", torch.add, rand(2, 1, 3), rand(4, 1))
    f.case("mul", torch.mul, rand(3, 1), rand(1, 2))
    f.case("div", torch.div, t64(1, -1, 0, 1), t64(0, 0, 0, 3), grad=False)
    return f


def promotion():
    f = File("promote")
    dtypes = list(DTYPES)
    one = {d: torch.tensor([1, 1], dtype=d) for d in dtypes}
    zero = {d: torch.tensor(1, dtype=d) for d in dtypes}
    for a, b in itertools.product(dtypes, dtypes):
        f.case("add", torch.add, one[a], one[b], grad=False)
        f.case("mul", torch.mul, one[a], zero[b], grad=False)
        f.case("mul", torch.mul, zero[a], zero[b], grad=False)
        f.case("div", torch.div, one[a], zero[b], grad=False)
        f.case("eq", torch.eq, one[a], one[b], grad=False)
        f.case("maximum", torch.maximum, one[a], one[b], grad=False)
        f.case("where", torch.where, torch.tensor([True, False]), one[a], zero[b], grad=False)
        f.case("cat", lambda u, v: torch.cat([u, v]), one[a], one[b], ints=(0,), grad=False)
    for d in dtypes:
        f.case("add_scalar", lambda u: u + 1.5, one[d], floats=(1.5,), grad=False)
        f.case("mul_scalar", lambda u: u * 0.5, one[d], floats=(0.5,), grad=False)
        f.case("div_scalar", lambda u: u / 2.5, one[d], floats=(2.5,), grad=False)
        f.case("sum", lambda u: u.sum(0), one[d], ints=(0, 0), grad=False)
        f.case("prod", lambda u: u.prod(0), one[d], ints=(0, 0), grad=False)
        f.case("cumsum", lambda u: u.cumsum(0), one[d], ints=(0,), grad=False)
        f.case("exp", torch.exp, one[d], grad=False)
        f.case("sqrt", torch.sqrt, one[d], grad=False)
        f.case("sigmoid", torch.sigmoid, one[d], grad=False)
        if d != torch.uint8:  # the one type whose any() is not bool
            f.case("any", lambda u: u.any(0), one[d], ints=(0, 0), grad=False)
        f.case("logical_not", torch.logical_not, one[d], grad=False)
        if d != torch.bool:
            f.case("abs", torch.abs, one[d], grad=False)
            f.case("neg", torch.neg, one[d], grad=False)
        for e in dtypes:
            f.case("cast", lambda u: u.to(e), one[d], ints=(dtypes.index(e),), grad=False)
    f.case("cast", lambda u: u.to(torch.int64), t64(-1.9, 1.9, 0.5, 1e10), ints=(3,))
    f.case("cast", lambda u: u.to(torch.int32), t64(-1.9, 1.9, 0.5), ints=(2,))
    f.case("cast", lambda u: u.to(torch.uint8), torch.tensor([0, 255, 256, 257, -1]), ints=(1,))
    f.case("cast", lambda u: u.to(torch.bool), t64(0, -0.0, 0.1, NAN), ints=(0,))
    f.case("cast", lambda u: u.to(torch.float16), t64(65504, 65519, 65520, 1e-8, 6e-8, 1.00048828125, -INF), ints=(4,),
           grad=False)
    f.case("cast", lambda u: u.to(torch.bfloat16), t64(1.00390625, 1.01171875, 3.4e38, 1e39, 1e-40), ints=(5,),
           grad=False)
    return f


def creation():
    f = File("create")
    dtypes = list(DTYPES)
    for start, end, step in [(0, 5, 1), (2, 11, 3), (5, 0, -2), (3, 3, 1), (0, 1, 0.25), (1, 2.05, 0.1), (-1, 1, 0.3),
                             (0, 7, 2.5)]:
        for d in (torch.float64, torch.float32, torch.int64, torch.int32):
            if not d.is_floating_point and step != int(step):
                continue
            f.case("arange", lambda: torch.arange(start, end, step, dtype=d), ints=(dtypes.index(d),),
                   floats=(start, end, step))
    for start, end, steps in [(0, 1, 5), (3, -3, 4), (1, 1, 3), (2, 5, 1), (0, 1, 0), (-0.1, 0.7, 7)]:
        for d in (torch.float64, torch.float32, torch.float16):
            f.case("linspace", lambda: torch.linspace(start, end, steps, dtype=d), ints=(steps, dtypes.index(d)),
                   floats=(start, end))
    for d in dtypes:
        f.case("eye", lambda: torch.eye(2, 3, dtype=d), ints=(2, 3, dtypes.index(d)))
        x = torch.ones(2, 2).to(d)
        f.case("zeros_like", torch.zeros_like, x, grad=False)
        f.case("ones_like", torch.ones_like, x, grad=False)
        f.case("full_like", lambda u: torch.full_like(u, 1), x, floats=(1,), grad=False)
        f.case("zeros", lambda: torch.zeros(2, 3, dtype=d), ints=(dtypes.index(d), 2, 3))
        f.case("ones", lambda: torch.ones(3, dtype=d), ints=(dtypes.index(d), 3))
        f.case("scalar", lambda: torch.tensor(1, dtype=d), ints=(dtypes.index(d),), floats=(1,))
    return f


def recurrences():
    f = File("recurrent")

    def lstm(x, h, c, *weights):
        weights = [w for w in weights if w is not None]
        y, hn, cn = torch._VF.lstm(x, (h[None], c[None]), weights, len(weights) == 4, 1, 0.0, False, False, False)
        return y, hn[0], cn[0]

    for steps, n, size, width, biases in [(3, 2, 3, 2, True), (5, 1, 2, 3, True), (2, 3, 1, 4, False), (1, 2, 2, 1, True)]:
        f.case("lstm", lstm, rand(steps, n, size), rand(n, width), rand(n, width), rand(4 * width, size, lo=-1, hi=1),
               rand(4 * width, width, lo=-1, hi=1), *(rand(4 * width) if biases else None for _ in range(2)))
    return f


def numbers(dtype, *shape, low=-3, high=9):
    return torch.randint(0 if dtype == torch.uint8 else low, high, shape).to(dtype)


def integers():
    """What PyTorch computes with integers on the CPU."""
    f = File("integers")
    for d in (torch.int64, torch.int32, torch.uint8):
        for a, b in [((2, 3), (3, 4)), ((3,), (3,)), ((2, 2, 3), (3, 2)), ((3,), (2, 3, 2)), ((2, 0), (0, 3)),
                     ((2, 1, 2, 3), (3, 3, 2))]:
            f.case("matmul", torch.matmul, numbers(d, *a, high=200), numbers(d, *b, high=200))
        f.case("dot", torch.dot, numbers(d, 5), numbers(d, 5))
        f.case("linear", F.linear, numbers(d, 2, 3), numbers(d, 4, 3), numbers(d, 4))
        f.case("linear", F.linear, numbers(d, 2, 2, 3), numbers(d, 4, 3), None)
        for s, p, dl, g in [(1, 0, 1, 1), (2, 1, 2 if d == torch.int64 else 1, 2)]:
            f.case("conv1d", lambda x, w, b: F.conv1d(x, w, b, s, p, dl, g), numbers(d, 2, 4, 7),
                   numbers(d, 6, 4 // g, 3), numbers(d, 6), ints=(s, p, dl, g))
            f.case("conv2d", lambda x, w, b: F.conv2d(x, w, b, (s, 1), (0, p), (dl, 1), g), numbers(d, 2, 4, 6, 5),
                   numbers(d, 6, 4 // g, 2, 3), numbers(d, 6), ints=(s, 1, 0, p, dl, 1, g))
        for k, s, p, dl, ceil in [(2, 2, 0, 1, 0), (3, 2, 1, 1, 1), (3, 1, 1, 2, 0)]:
            f.case("max_pool1d", lambda x: F.max_pool1d(x, k, s, p, dl, bool(ceil), return_indices=True)[0],
                   numbers(d, 2, 3, 8), ints=(k, s, p, dl, ceil))
            f.case("max_pool2d", lambda x: F.max_pool2d(x, (k, 2), (s, 1), (p, 1), (dl, 1), bool(ceil)),
                   numbers(d, 2, 2, 8, 5), ints=(k, 2, s, 1, p, 1, dl, 1, ceil))
        for name, low, high in [("hardtanh", 0, 5), ("clamp", 1, 6), ("clamp", 0.5, 2.5), ("hardtanh", 0.7, 2.5)]:
            call = F.hardtanh if name == "hardtanh" else torch.clamp
            f.case(name, lambda x: call(x, low, high), numbers(d, 6), floats=(low, high))
        f.case("any", lambda x: x.any(1), numbers(d, 2, 3, high=2), ints=(0, 1))
        f.case("all", lambda x: x.all(1), numbers(d, 2, 3), ints=(0, 1))
        f.case("l1_loss", lambda x, y: F.l1_loss(x, y, reduction="sum"), numbers(d, 5), numbers(d, 5), ints=(1,))
        f.case("l1_loss", lambda x, y: F.l1_loss(x, y, reduction="none"), numbers(d, 2, 3), numbers(d, 2, 3), ints=(2,))
        f.case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=2), numbers(d, 4), numbers(d, 4), numbers(d, 4),
               floats=(2,))
        for text in ("ij,jk->ik", "ij->i", "ii", "ij->ji", "i,j->ij", "i,j->i"):
            inputs = [numbers(d, *(3 for _ in term)) for term in text.split("->")[0].split(",")]
            f.case("einsum", lambda *x: torch.einsum(text, *x), *inputs, text=text)
        if d == torch.int64:
            f.case("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), numbers(torch.int64, 2, 3, 8),
                   ints=(3, 2, 1, 1, 0))
            f.case("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1, 2, 2), numbers(d, 2, 4, 4),
                   numbers(d, 4, 3, 3), numbers(d, 6), ints=(2, 1, 1, 2, 2))
            f.case("conv_transpose2d", lambda x, w, _: F.conv_transpose2d(x, w, None, (2, 1), (1, 0)),
                   numbers(d, 1, 2, 3, 3), numbers(d, 2, 3, 2, 3), None, ints=(2, 1, 1, 0, 0, 0, 1, 1, 1))
    for include in (False, True):
        f.case("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True, include), numbers(torch.int64, 2, 2, 7, 6),
               ints=(3, 2, 2, 2, 1, 1, 1, not include))
    pixels = numbers(torch.uint8, 1, 2, 3, 4, high=256)
    f.case("interpolate2d", lambda x: F.interpolate(x, (5, 3)), pixels, ints=(5, 3, 0, 0))
    flags = torch.tensor([True, False, False])
    for name in ("sign", "square"):
        f.case(name, getattr(torch, name), flags)
    f.case("index_add", lambda x, i, s: x.index_add(0, i, s), flags, torch.tensor([1, 1]), flags[:2], ints=(0,))
    f.case("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), flags, torch.tensor([1, 1]), flags[:2], ints=(0,))
    f.case("embedding", lambda w, i: F.embedding(i, w), flags.view(3, 1), torch.tensor([2, 0]), ints=(-1,))
    f.case("einsum", lambda x: torch.einsum("i->", x), flags, text="i->")
    return f


def corners():
    """Numbers without dims, empty tensors, bounds that are no numbers, the ends of functions."""
    f = File("corners")
    one, zero = torch.tensor([0]), torch.tensor(0)
    for x in (torch.tensor(3.0), t64(3, 4)):
        for i in (one, zero):
            f.case("gather", lambda u, k: torch.gather(u, 0, k), x, i, ints=(0,))
            f.case("index_select", lambda u, k: torch.index_select(u, 0, k), x, i, ints=(0,))
            for s in (torch.tensor(5, dtype=x.dtype), torch.tensor([5], dtype=x.dtype)):
                alike = x.dim() == i.dim() == s.dim()  # PyTorch has no gradient of the others
                f.case("scatter", lambda u, k, v: torch.scatter(u, 0, k, v), x, i, s, ints=(0,), grad=alike)
                f.case("scatter_add", lambda u, k, v: torch.scatter_add(u, 0, k, v), x, i, s, ints=(0,), grad=alike)
                if s.dim() == x.dim():
                    f.case("index_add", lambda u, k, v: torch.index_add(u, 0, k, v), x, i, s, ints=(0,))
    for size in (0, 1):
        f.case("unfold", lambda u: u.unfold(0, size, 3), torch.tensor(3.0), ints=(0, size, 3))
    f.case("roll", lambda u: torch.roll(u, 1), torch.tensor(3.0), ints=(1, -2**31), grad=False)
    f.case("eye", lambda: torch.eye(0, 2**31), ints=(0, 2**31, 6))
    for shape in ((0,), (0, 3), (2, 0), (2, 3, 0)):
        channels = shape[1] if len(shape) > 1 else 0
        for training in (True, False):
            f.case("batch_norm", lambda x, m, v, *_: (F.batch_norm(x, m, v, training=training), m, v), torch.zeros(shape),
                   torch.zeros(channels), torch.ones(channels), None, None, ints=(training,), floats=(0.1, 1e-5),
                   grad=False)
    for size in (0, 2):
        f.case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (size, 3)), rand(2, 2, 4, 5), ints=(size, 3),
               grad=size > 0)
        f.case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, size), rand(2, 2, 5), ints=(size,),
               grad=size > 0)
    f.case("repeat", lambda x: x.repeat(1, 1), rand(2, 3), ints=(1, 1))
    for pad, mode in [((-1, 2), "reflect"), ((-2, 2), "reflect"), ((2, -3), "reflect"), ((-4, 5), "replicate"),
                      ((2, -4), "replicate"), ((-1, -2), "replicate"), ((-1, 2), "circular"), ((3, -1), "circular")]:
        f.case("pad", lambda x: F.pad(x, pad, mode), rand(2, 4), floats=(0,),
               ints=(("constant", "reflect", "replicate", "circular").index(mode), *pad))
    for low, high in ((NAN, 1), (-1, NAN), (NAN, NAN), (2, 1)):
        f.case("clamp", lambda x: x.clamp(low, high), t64(-2, 0, 2, NAN), floats=(low, high))
        f.case("clamp", lambda x: x.clamp(low, high), torch.tensor([-2, 0, 2]), floats=(low, high))
    f.case("hardtanh", lambda x: F.hardtanh(x, NAN, 1), t64(-2, 0, 2), floats=(NAN, 1), grad=False)
    far = t64(-60, -40, -20, -6, -1, 0, 1)
    for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        f.case("elu", lambda x: F.elu(x, 1.5), far.to(d), floats=(1.5,))
        f.case("selu", F.selu, far.to(d))
        f.case("celu", lambda x: F.celu(x, 1.5), far.to(torch.float64), floats=(1.5,))
    f.case("hardswish", F.hardswish, t64(-3, 3, NAN, -4, 4, 0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12))
    p, t = t64(0, 0, 1, 1, 0.5, 1e-30, 1 - 1e-12), t64(0, 1, 0, 1, 0.25, 0, 1)
    for reduction in (0, 1, 2):
        f.case("binary_cross_entropy",
               lambda x, y, _: F.binary_cross_entropy(x, y, reduction=("mean", "sum", "none")[reduction]), p, t, None,
               ints=(reduction,))
    for x, y in ((torch.tensor([1, 2]), t64(1.5, 2.5)), (t64(1.5, 2.5), torch.tensor([1, 2]))):
        f.case("l1_loss", F.l1_loss, x, y, ints=(0,))
        f.case("mse_loss", F.mse_loss, x, y, ints=(0,), grad=False)
    return f


def casts():
    """Floats that an integer type does not hold."""
    f = File("casts")
    dtypes = list(DTYPES)
    values = t64(0.5, -0.5, -1, 1.9, -1.9, 127, 128, 255, 256, 257.9, -129, -300, 65504, 1e5, 2147483520, 2147483647,
                 2147483647.5, 2147483648, -2147483648, -2147483648.9, -2147483649, 3e9, -3e9, 4294967297, 1e10, 9.2e18,
                 9223372036854775807, -9223372036854775808, 1e19, -1e19, 1e30, -1e30, INF, -INF, NAN)
    many = values.repeat(3)  # a vector of the processor, and more
    for source in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for target in (torch.bool, torch.uint8, torch.int32, torch.int64):
            for x in (values, many):
                f.case("cast", lambda u: u.to(target), x.to(source), ints=(dtypes.index(target),), grad=False)
    return f


def main():
    total, ops = 0, set()
    for make in (convolutions, pools, resizes, losses, norms, attentions, reductions, picking, shapes, products,
                 pointwise,
                 promotion, creation, recurrences, integers, corners, casts):
        f = make()
        f.write()
        total += f.cases
        ops |= f.ops
    print(f"{total} cases of {len(ops)} operations")


main()
