"""Training in mixed precision by PyTorch on a GPU: autocast and, for f16, GradScaler; from the weights and batches of make_models.py.

usage: python make_scaler.py > scaler.txt
A block a model and type: its specification, then a line a step: the loss, the scale behind the step, whether it was left out, and how
far rounding to 16 bits moves the loss: the largest difference to runs of PyTorch's own, one in f32 that leaves out the same steps, the
others from weights whose last bit was disturbed.
The logits are made f32 before the loss: F.cross_entropy would round logarithms of probabilities to 16 bits (it asks log_softmax for the
logits' own type), which Kiln does not. The scale begins far too high, so that the first steps are left out; a loss that is infinite forces that twice more.
"""
import sys
import torch
import torch.nn.functional as F
from make_models import CharLstm, Gpt2, Resnet18, batch, lenet, mlp, optimizer_of, set_weights

STEPS, FORCED = 14, (6, 11)
INIT, GROWTH, BACKOFF, INTERVAL = 2.0**40, 2.0, 2.0**-13, 3


def train(model, optimizer, lr, shape, dtype, disturb=0, left_out=()):
    torch.backends.cudnn.deterministic = True
    set_weights(model)
    if disturb:
        torch.manual_seed(disturb)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 2.0**-23 * torch.randint(-1, 2, p.shape))
    model = model.cuda()
    o = optimizer_of(optimizer, model.parameters(), lr)
    scaler = torch.amp.GradScaler("cuda", init_scale=INIT, growth_factor=GROWTH, backoff_factor=BACKOFF, growth_interval=INTERVAL,
                                  enabled=dtype == torch.float16)
    steps = []
    for step in range(STEPS):
        x, y = (t.cuda() for t in batch(shape, step, torch.float32))
        o.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(x).flatten(0, -2).float(), y.flatten())
        forced = scaler.is_enabled() and step in FORCED
        scaler.scale(loss * float("inf") if forced else loss).backward()
        before = scaler.get_scale()
        if step in left_out:
            o.zero_grad()
        scaler.step(o)
        scaler.update()
        steps.append((loss.item(), scaler.get_scale(), int(scaler.get_scale() < before)))
    return steps


def run(spec, make, optimizer, lr, shape):
    for dtype in (torch.float16, torch.bfloat16):
        steps = train(make(), optimizer, lr, shape, dtype)
        others = [train(make(), optimizer, lr, shape, dtype, 1 + k) for k in range(4)]
        left_out = [i for i, s in enumerate(steps) if s[2]]
        exact = train(make(), optimizer, lr, shape, torch.float32, 0, left_out)
        print("model", spec, str(dtype)[6:], optimizer, repr(lr), *shape)
        for i, (loss, scale, out) in enumerate(steps):
            off = max(abs(o[i][0] - loss) for o in others + [exact])
            if any(o[i][1:] != (scale, out) for o in others):
                sys.exit(f"{spec}: step {i} is too near to the limit")
            print("step", repr(loss), repr(scale), out, f"{off:.3g}")


run("mlp", mlp, "adam", 1e-3, (16, 1, 28, 28))
run("lenet", lenet, "adam", 1e-3, (16, 1, 28, 28))
run("resnet18", Resnet18, "sgd", 1e-4, (8, 3, 32, 32))
run("char-lstm:embed=32,hidden=64", CharLstm, "adam", 1e-3, (8, 24))
run("gpt2:layers=3,embed=64,heads=4,context=32,vocabulary=256", Gpt2, "adamw", 1e-3, (4, 24))
