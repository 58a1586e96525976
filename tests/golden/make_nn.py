"""Writes the golden files of test_nn_layers: PyTorch's layers with small weights, their results and gradients.

Run in this folder with PyTorch 2.11: python make_nn.py. nn.txt has the format that make_golden.py describes; a case
is named after the row of test_nn_layers.c that makes the layer, and has

    in    x
    in    all tensors of the state_dict, one after the other (before the forward pass)
    out   the result, then further results (states of recurrent layers), in training mode unless the case says eval
    out   last: the state_dict after the forward pass
    grad 0, grad 1   for x and for all parameters, one after the other, of sum(first result * w), w as in make_golden.py

All was computed in f64 from numbers that f32 holds exactly. nn_names.txt has a line for each layer: its name and the
state_dict's names with their shapes, in order.
"""
import torch
from torch import nn

torch.manual_seed(4)
TEXT = {torch.float64: "f64", torch.int64: "i64"}


def values(t):
    shape = " ".join(str(s) for s in t.shape)
    numbers = " ".join(str(int(v)) if not t.dtype.is_floating_point else "%.10g" % v
                       for v in t.detach().reshape(-1).tolist())
    return f"{shape} : {numbers}".strip()


def coarse(*shape):
    """Numbers that f32, and ten digits, hold exactly."""
    return (torch.rand(*shape, dtype=torch.float64) * 4 - 2).mul(256).round().div(256)


def flat(tensors):
    return torch.cat([t.detach().double().reshape(-1) for t in tensors] + [torch.zeros(0, dtype=torch.float64)])


class Residual(nn.Module):
    def __init__(self, body, shortcut=None):
        super().__init__()
        self.body = body
        if shortcut is not None:
            self.shortcut = shortcut

    def forward(self, x):
        return self.body(x) + (self.shortcut(x) if hasattr(self, "shortcut") else x)


class Attention(nn.Module):
    """nn.MultiheadAttention of x to itself, or of its first part to the rest."""

    def __init__(self, layer, causal=False, cross=False):
        super().__init__()
        self.layer, self.causal, self.cross = layer, causal, cross

    def state_dict(self):
        return self.layer.state_dict()

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (x[:, :2], x[:, 2:], x[:, 2:] * 0.5) if self.cross else (x, x, x)
        mask = nn.Transformer.generate_square_subsequent_mask(n, dtype=x.dtype) if self.causal else None
        return self.layer(q, k, v, attn_mask=mask, need_weights=False)[0]


class Recurrent(nn.Module):
    """A recurrent layer's output and states; with `start` from a given state."""

    def __init__(self, layer, start=None):
        super().__init__()
        self.layer, self.start = layer, start

    def state_dict(self):
        return self.layer.state_dict()

    def forward(self, x):
        y, end = self.layer(x, self.start)
        return (y, *end) if isinstance(end, tuple) else (y, end)


cases, names = [], []


def case(name, module, x, training=True):
    module = module.double().train(training)
    with torch.no_grad():
        for key, t in module.state_dict().items():
            if t.dtype.is_floating_point:
                new = coarse(*t.shape) / 4
                t.copy_(new.abs() + 0.5 if key.endswith("running_var") else new)
    names.append(name + "".join(f" {key}[{','.join(map(str, t.shape))}]" for key, t in module.state_dict().items()))
    before = flat(module.state_dict().values())
    floats = x.dtype.is_floating_point
    given = x.clone().requires_grad_(floats)
    outs = module(given)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    parameters = [p for p in module.parameters()]
    w = (torch.arange(outs[0].numel()) * 37 % 19 - 9).double().reshape(outs[0].shape) / 8
    wanted = ([given] if floats else []) + parameters
    grads = torch.autograd.grad(outs[0], wanted, w, allow_unused=True)
    grads = [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads)]
    lines = [f"case {name}", f"in{'*' if floats else ''} {TEXT[x.dtype]} {values(x)}", f"in f64 {values(before)}"]
    lines += [f"out f64 {values(o)}" for o in outs + [flat(module.state_dict().values())]]
    if floats:
        lines.append(f"grad 0 {values(grads[0])}")
    lines.append(f"grad 1 {values(flat(grads[1:] if floats else grads))}")
    cases.append("\n".join(lines + ["end"]))


case("linear", nn.Linear(3, 4), coarse(2, 3))
case("linear_no_bias", nn.Linear(3, 4, bias=False), coarse(2, 2, 3))
case("conv1d", nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2, groups=2), coarse(2, 2, 9))
case("conv2d", nn.Conv2d(2, 3, 3, stride=2, padding=1), coarse(2, 2, 5, 6))
case("conv2d_uneven", nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
     coarse(1, 2, 5, 6))
case("conv_transpose1d", nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2), coarse(2, 2, 4))
case("conv_transpose2d", nn.ConvTranspose2d(2, 3, 3, stride=(2, 1), padding=1, output_padding=(1, 0)),
     coarse(1, 2, 3, 4))
case("embedding", nn.Embedding(5, 3), torch.tensor([[1, 4, 0], [2, 2, 3]]))
case("embedding_padding", nn.Embedding(5, 3, padding_idx=-1), torch.tensor([4, 1, 4, 0]))
case("batch_norm", nn.BatchNorm1d(3), coarse(4, 3))
case("batch_norm_2d", nn.BatchNorm2d(2, eps=1e-3, momentum=0.3), coarse(2, 2, 3, 2))
case("batch_norm_eval", nn.BatchNorm1d(3), coarse(2, 3, 4), training=False)
case("batch_norm_plain", nn.BatchNorm1d(3, affine=False), coarse(4, 3))
case("batch_norm_untracked", nn.BatchNorm2d(2, track_running_stats=False), coarse(3, 2, 2, 2), training=False)
case("layer_norm", nn.LayerNorm(5), coarse(2, 3, 5))
case("layer_norm_no_bias", nn.LayerNorm(4, eps=1e-3, bias=False), coarse(3, 4))
case("rms_norm", nn.RMSNorm(5, eps=2.0 ** -23), coarse(2, 5))
case("group_norm", nn.GroupNorm(2, 4), coarse(2, 4, 3))
case("max_pool1d", nn.MaxPool1d(3, stride=2, padding=1), coarse(2, 2, 7))
case("max_pool2d", nn.MaxPool2d(2, stride=1, dilation=2, ceil_mode=True), coarse(1, 2, 5, 5))
case("avg_pool1d", nn.AvgPool1d(2, ceil_mode=True), coarse(1, 2, 7))
case("avg_pool2d", nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), coarse(1, 2, 5, 5))
case("adaptive_avg_pool1d", nn.AdaptiveAvgPool1d(3), coarse(1, 2, 7))
case("adaptive_max_pool1d", nn.AdaptiveMaxPool1d(3), coarse(1, 2, 7))
case("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((2, 3)), coarse(1, 2, 5, 4))
case("adaptive_max_pool2d", nn.AdaptiveMaxPool2d((1, 2)), coarse(1, 2, 5, 4))

for name, module in [
        ("relu", nn.ReLU()), ("relu6", nn.ReLU6()), ("leaky_relu", nn.LeakyReLU(0.1)), ("elu", nn.ELU(0.7)),
        ("selu", nn.SELU()), ("celu", nn.CELU(1.5)), ("gelu", nn.GELU()), ("gelu_tanh", nn.GELU("tanh")),
        ("silu", nn.SiLU()), ("sigmoid", nn.Sigmoid()), ("logsigmoid", nn.LogSigmoid()),
        ("softplus", nn.Softplus(2, 3)), ("hardswish", nn.Hardswish()), ("hardsigmoid", nn.Hardsigmoid()),
        ("hardtanh", nn.Hardtanh(-0.5, 1.5)), ("mish", nn.Mish()), ("softsign", nn.Softsign()), ("tanh", nn.Tanh()),
        ("softmax", nn.Softmax(1)), ("log_softmax", nn.LogSoftmax(-1)), ("flatten", nn.Flatten()),
        ("identity", nn.Identity()), ("dropout_none", nn.Dropout(0.0))]:
    case(name, module, coarse(2, 3, 2) * 3)
case("dropout_eval", nn.Dropout(0.5), coarse(2, 3), training=False)
case("unflatten", nn.Unflatten(1, (2, 3)), coarse(2, 6))
case("upsample_nearest", nn.Upsample(scale_factor=2, mode="nearest"), coarse(1, 2, 2, 3))
case("upsample_linear", nn.Upsample(scale_factor=3, mode="linear"), coarse(1, 2, 3))
case("upsample_bilinear", nn.Upsample(scale_factor=2, mode="bilinear"), coarse(1, 2, 2, 3))

case("attention", Attention(nn.MultiheadAttention(4, 2, batch_first=True)), coarse(2, 3, 4))
case("attention_causal", Attention(nn.MultiheadAttention(4, 2, bias=False, batch_first=True), causal=True),
     coarse(1, 3, 4))
case("attention_cross", Attention(nn.MultiheadAttention(4, 1, batch_first=True), cross=True), coarse(2, 5, 4))

case("rnn", Recurrent(nn.RNN(3, 4)), coarse(3, 2, 3))
case("rnn_relu", Recurrent(nn.RNN(3, 2, num_layers=2, nonlinearity="relu", bias=False, batch_first=True)),
     coarse(2, 3, 3))
case("gru", Recurrent(nn.GRU(3, 2, batch_first=True)), coarse(2, 4, 3))
case("gru_both", Recurrent(nn.GRU(2, 2, num_layers=2, bidirectional=True)), coarse(3, 2, 2))
case("lstm", Recurrent(nn.LSTM(3, 2)), coarse(5, 2, 3))
case("lstm_both", Recurrent(nn.LSTM(2, 2, num_layers=2, bidirectional=True, batch_first=True)), coarse(2, 3, 2))
ramp = torch.arange(8, dtype=torch.float64).reshape(2, 2, 2) / 8
case("lstm_start", Recurrent(nn.LSTM(3, 2, num_layers=2), (ramp - 0.5, ramp)), coarse(2, 2, 3))

case("sequential", nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))),
     coarse(4, 3))
case("residual", Residual(nn.Linear(3, 3)), coarse(2, 3))
case("residual_shortcut", Residual(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Linear(3, 2, bias=False)),
     coarse(2, 3))

with open("nn.txt", "w") as f:
    f.write("\n".join(cases) + "\n")
with open("nn_names.txt", "w") as f:
    f.write("\n".join(names) + "\n")
