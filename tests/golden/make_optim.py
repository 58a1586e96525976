"""Writes the golden files of test_optim and test_schedule: what torch.optim and torch.optim.lr_scheduler do.

Run in this folder with PyTorch 2.11: python make_optim.py. optim.txt, a word a token:

    start 0 : ...            parameter 0 before the first step
    grad 2 0 : ...           its gradient in step 2 (from 1); parameter 1 has none in some steps
    case adam lr 0.1 amsgrad 1 | lr 0.5     options of the first group, and those of parameter 1 where it has its own
    at 3 1 f64 : ...         parameter 1 after step 3, computed in f64
    clip 0.5 7.25 0 : ...    gradients of step 2 clipped to the norm 0.5; the norm before; parameter 0's gradient after
    end

optim_schedules.txt: "case NAME arguments", "rates GROUP : ..." for units 0, 1, ... of groups whose rate in unit 0 would
be 0.1 and 0.02; in the plateau's cases "observed : ..." is what each unit ends with.
"""
import itertools

import torch
from torch.optim import lr_scheduler as sched

STEPS, LOOKS = 10, (1, 2, 3, 10)
LATE = {1, 4}  # steps in which parameter 1 has no gradient: it starts late
SHAPES = ((2, 3), (4,), (5, 2, 2))
torch.manual_seed(20240602)
START = [torch.randn(s, dtype=torch.float32) for s in SHAPES[:2]]
GRADS = [[torch.randn(s, dtype=torch.float32) for s in SHAPES[:2]] for _ in range(STEPS)]
START.append(torch.randn(SHAPES[2], dtype=torch.float32))
for row in GRADS:
    row.append(torch.randn(SHAPES[2], dtype=torch.float32))


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., 2023; PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = (m * b1 + p.grad * (1 - b1)).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction * group["lr"])
                m.mul_(b2).add_(p.grad * (1 - b2))


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of You et al., 2020, with phi the identity; PyTorch has none."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=1e-2):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["t"] += 1
                s["m"].mul_(b1).add_(p.grad * (1 - b1))
                s["v"].mul_(b2).add_(p.grad * p.grad * (1 - b2))
                by = s["m"] / (1 - b1 ** s["t"]) / ((s["v"] / (1 - b2 ** s["t"])).sqrt() + group["eps"])
                by = by + group["weight_decay"] * p
                length, step = p.norm(), by.norm()
                trust = length / step if length > 0 and step > 0 else 1.0
                p.sub_(by * (group["lr"] * trust))


class Muon(torch.optim.Optimizer):
    """PyTorch's, in the parameters' own type instead of bf16; kernels as matrices, other parameters by AdamW."""

    def __init__(self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, betas=(0.9, 0.999), eps=1e-7,
                 iterations=5, match_rms=False, adamw=False):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                                      betas=betas, eps=eps, iterations=iterations, match_rms=match_rms, adamw=adamw))
        self.others = [torch.optim.AdamW([p], lr=g["lr"], betas=g["betas"], eps=g["eps"], foreach=False,
                                         weight_decay=g["weight_decay"])
                       for g in self.param_groups for p in g["params"] if p.dim() < 2 or g["adamw"]]

    @torch.no_grad()
    def step(self):
        for other in self.others:
            other.step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or p.dim() < 2 or group["adamw"]:
                    continue
                m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                x = (p.grad.lerp(m, group["momentum"]) if group["nesterov"] else m).reshape(p.shape[0], -1)
                rows, columns = x.shape
                tall = rows > columns
                x = x.T if tall else x
                x = x / x.norm().clamp(min=group["eps"])
                for _ in range(int(group["iterations"])):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
                x = (x.T if tall else x).reshape(p.shape)
                by = 0.2 * max(rows, columns) ** 0.5 if group["match_rms"] else max(1, rows / columns) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(x * (group["lr"] * by))


def check_muon():
    """That the class above is PyTorch's, once that does not round to bf16."""
    rounded, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, lambda t: t.clone()
    for match in (None, "match_rms_adamw"):
        start, grads, ends = torch.randn(9, 6), torch.randn(5, 9, 6), []
        for kind, options in ((torch.optim.Muon, {"adjust_lr_fn": match}), (Muon, {"match_rms": match is not None})):
            p = start.clone().requires_grad_()
            o = kind([p], lr=0.1, **options)
            for g in grads:
                p.grad = g.clone()
                o.step()
            ends.append(p.detach())
        assert (ends[0] - ends[1]).norm() < 1e-5 * (ends[0] - start).norm()
    torch.Tensor.bfloat16 = rounded


KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop,
         "adagrad": torch.optim.Adagrad, "lion": Lion, "adadelta": torch.optim.Adadelta, "nadam": torch.optim.NAdam,
         "radam": torch.optim.RAdam, "adafactor": torch.optim.Adafactor, "lamb": Lamb, "muon": Muon}
NAMES = {"initial_accumulator": "initial_accumulator_value", "decoupled": "decoupled_weight_decay", "max_rms": "d"}


def torch_options(options):
    o = {NAMES.get(k, k): v for k, v in options.items()}
    if "beta1" in o:
        o["betas"] = (o.pop("beta1"), o.pop("beta2"))
    if "beta2_decay" in o:
        o["beta2_decay"] = -o["beta2_decay"]
    if "eps2" in o:
        o["eps"] = (o.pop("eps", None), o.pop("eps2"))
    return o


def run(kind, options, second, dtype):
    params = [s.to(dtype).clone().requires_grad_() for s in START]
    groups = [dict(params=params)] if second is None else [dict(params=params[:1]),
                                                           dict(params=params[1:], **torch_options(second))]
    keywords = torch_options(options)
    if kind not in ("lion", "lamb", "muon"):
        keywords["foreach"] = False
    optimizer = KINDS[kind](groups, **keywords)
    for step in range(1, STEPS + 1):
        for i, p in enumerate(params):
            p.grad = None if i == 1 and step in LATE else GRADS[step - 1][i].to(dtype)
        optimizer.step()
        if step in LOOKS:
            yield step, [p.detach().clone() for p in params]


def numbers(t):
    form = "%.17g" if t.dtype == torch.float64 else "%.9g"
    return " ".join(form % v for v in t.reshape(-1).tolist())


def option_text(options):
    return " ".join(f"{k} {float(v):.17g}" for k, v in options.items())


def combinations(**choices):
    """All ways to take one dict of each list."""
    for parts in itertools.product(*choices.values()):
        yield {k: v for part in parts for k, v in part.items()}


DECAY = [{}, {"weight_decay": 0.1}]
BETAS = [{}, {"beta1": 0.8, "beta2": 0.95, "eps": 1e-3}]
CASES = {
    "sgd": combinations(lr=[{"lr": 0.1}], d=DECAY, m=[{}, {"momentum": 0.9}, {"momentum": 0.7, "dampening": 0.3},
                                                       {"momentum": 0.8, "nesterov": True}]),
    "adam": combinations(lr=[{"lr": 0.05}], d=DECAY, b=BETAS, a=[{}, {"amsgrad": True}]),
    "adamw": combinations(lr=[{"lr": 0.05}], d=DECAY, b=BETAS, a=[{}, {"amsgrad": True}]),
    "rmsprop": combinations(lr=[{"lr": 0.02}], d=DECAY, m=[{}, {"momentum": 0.9}], c=[{}, {"centered": True}],
                            a=[{}, {"alpha": 0.8, "eps": 1e-4}]),
    "adagrad": combinations(lr=[{"lr": 0.1}], d=DECAY, l=[{}, {"lr_decay": 0.05}],
                            i=[{}, {"initial_accumulator": 0.3, "eps": 1e-6}]),
    "lion": combinations(lr=[{"lr": 0.01}], d=DECAY, b=[{}, {"beta1": 0.7, "beta2": 0.9}]),
    "adadelta": combinations(lr=[{"lr": 0.5}], d=DECAY, r=[{}, {"rho": 0.7, "eps": 1e-4}]),
    "nadam": combinations(lr=[{"lr": 0.05}], d=DECAY, b=BETAS, m=[{}, {"momentum_decay": 0.1, "decoupled": True}]),
    "radam": combinations(lr=[{"lr": 0.05}], d=DECAY, b=BETAS, m=[{}, {"decoupled": True}]),
    "adafactor": combinations(lr=[{"lr": 0.2}], d=DECAY, e=[{}, {"eps": 1e-3, "eps2": 0.9}],
                              b=[{}, {"beta2_decay": 0.5, "max_rms": 2.0}]),
    "lamb": combinations(lr=[{"lr": 0.05}], d=DECAY, b=BETAS),
    "muon": combinations(lr=[{"lr": 0.05}], d=DECAY, b=[{}, {"momentum": 0.8, "match_rms": True}],
                         i=[{}, {"iterations": 2, "adamw": True}]),
}


def write_optim():
    lines = [f"start {i} : {numbers(s.double())}" for i, s in enumerate(START)]
    lines += [f"grad {t + 1} {i} : {numbers(g.double())}" for t, row in enumerate(GRADS) for i, g in enumerate(row)
              if not (i == 1 and t + 1 in LATE)]
    for kind in KINDS:
        cases = [({}, None)] + [(o, None) for o in CASES[kind]]
        cases.append(({"lr": 0.05, "weight_decay": 0.2}, {"lr": 0.01}))
        cases.append(({"lr": 0.05}, {"weight_decay": 0.3}))
        for options, second in cases:
            tail = "" if second is None else " | " + option_text(second)
            lines.append(f"case {kind} {option_text(options)}".rstrip() + tail)
            for dtype, name in ((torch.float64, "f64"), (torch.float32, "f32")):
                torch.set_default_dtype(dtype)  # of numbers that optimizers keep beside the parameters
                for step, params in run(kind, options, second, dtype):
                    if name == "f64" or step == STEPS:
                        lines += [f"at {step} {i} {name} : {numbers(p)}" for i, p in enumerate(params)]
            lines.append("end")
    for limit in (0.5, 2.0, 100.0):
        params = [s.double().requires_grad_() for s in START]
        for p, g in zip(params, GRADS[1]):
            p.grad = g.double()
        norm = torch.nn.utils.clip_grad_norm_(params, limit)
        lines += [f"clip {limit} {norm.item():.17g} {i} : {numbers(p.grad)}" for i, p in enumerate(params)]
    open("optim.txt", "w").write("\n".join(lines) + "\n")


def write_schedule():
    lines, bases = [], (0.1, 0.02)

    def optimizer():
        return torch.optim.SGD([dict(params=[torch.zeros(1)], lr=b) for b in bases], momentum=0.9)

    def record(text, o, step, units, observed=()):
        rates = [[], []]
        for unit in range(units):
            for g in range(2):
                rates[g].append(o.param_groups[g]["lr"])
            if unit + 1 < units:
                o.step()
                step(unit)
        lines.append("case " + text)
        if observed:
            lines.append("observed : " + " ".join("%.17g" % v for v in observed))
        lines.extend(f"rates {g} : " + " ".join("%.17g" % r for r in rates[g]) for g in range(2))
        lines.append("end")

    def cosine_at(base, unit):
        o = torch.optim.SGD([torch.zeros(1)], lr=base)
        s = sched.CosineAnnealingLR(o, 12, 0.1 * base)
        for _ in range(unit):
            o.step()
            s.step()
        return o.param_groups[0]["lr"]

    def simple(text, make, units=25):
        o = optimizer()
        s = make(o)
        record(text, o, lambda unit: s.step(), units)

    simple("constant", lambda o: sched.LambdaLR(o, lambda unit: 1.0))
    simple("step 7 0.3", lambda o: sched.StepLR(o, 7, 0.3))
    simple("multistep 3 2 5 5 0.5", lambda o: sched.MultiStepLR(o, [2, 5, 5], 0.5))
    simple("exponential 0.9", lambda o: sched.ExponentialLR(o, 0.9))
    simple("linear 0.25 0.75 10", lambda o: sched.LinearLR(o, 0.25, 0.75, 10))
    for total in (24, 7):
        simple(f"cosine {total} 0", lambda o: sched.CosineAnnealingLR(o, total, 0.0), total + 1)
    simple("cosine 12 0.1", lambda o: sched.LambdaLR(o, [  # CosineAnnealingLR has one eta_min for all groups
        lambda unit, b=b: cosine_at(b, unit) / b for b in bases]), 13)
    for total, up in ((25, 0.3), (10, 0.5), (4, 0.3), (3, 0.3)):
        simple(f"one_cycle 0.4 {total} {up}",
               lambda o: sched.OneCycleLR(o, 0.4, total_steps=total, pct_start=up, cycle_momentum=False), total)
    for units, start in ((5, 0.1), (8, 0.125)):
        simple(f"warmup {units} {start} step 4 0.5", lambda o: sched.SequentialLR(
            o, [sched.LinearLR(o, start, 1.0, units), sched.StepLR(o, 4, 0.5)], [units]))
    torch.manual_seed(3)
    for factor, patience, mode in ((0.1, 2, "min"), (0.5, 0, "min"), (0.3, 1, "max")):
        values = [3.0, 2.5, 2.4999, 2.6, 2.4, 2.4, 2.4, 2.5, 2.6] + (torch.rand(30) * 3).tolist()
        o = optimizer()
        s = sched.ReduceLROnPlateau(o, mode=mode, factor=factor, patience=patience)
        text = f"plateau {factor} {patience} {int(mode == 'max')}"
        record(text, o, lambda unit: s.step(values[unit]), len(values) + 1, values)
    open("optim_schedules.txt", "w").write("\n".join(lines) + "\n")


check_muon()
write_optim()
write_schedule()
