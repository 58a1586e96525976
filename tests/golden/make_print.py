"""Writes print.txt, what test_print compares with: tensors and the text PyTorch prints them as.

Run in this folder with PyTorch 2.11: python make_print.py. The dtype names in the text are Kiln's ("dtype=f64"); they are
put in before PyTorch breaks the lines, since they are shorter than its own. A case is

    in f32 2 3 : 1 2 3 4 5 6     dtype, shape, elements; "in*" needs a gradient
    on sim:0                     the device, where it is not the CPU
    |tensor([[1., 2., 3.],       the text, a line each
    |        [4., 5., 6.]])
    end
"""
import math

import torch
import torch._tensor_str as layout

DTYPES = {torch.bool: "bool", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64", torch.float16: "f16",
          torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
INF, NAN = math.inf, math.nan
torch.manual_seed(20240602)

device = None  # the device the next text is to name
add_suffixes = layout._add_suffixes


def add_kiln_suffixes(text, suffixes, indent, force_newline):
    for dtype, name in DTYPES.items():
        suffixes = [s if s != f"dtype={dtype}" else f"dtype={name}" for s in suffixes]
    if device:
        suffixes = [f"device='{device}'"] + suffixes
    return add_suffixes(text, suffixes, indent, force_newline)


layout._add_suffixes = add_kiln_suffixes


def element(value, dtype):
    if not dtype.is_floating_point:
        return str(int(value))
    if math.isnan(value):
        return "-nan" if math.copysign(1, value) < 0 else "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return "%.17g" % value if dtype == torch.float64 else "%.9g" % value


cases = []


def case(t, on=None):
    global device
    device = on
    shape = "".join(f" {s}" for s in t.shape)
    values = "".join(" " + element(v, t.dtype) for v in t.detach().reshape(-1).tolist())
    lines = [f"in{'*' if t.requires_grad else ''} {DTYPES[t.dtype]}{shape} :{values}"]
    if on:
        lines.append(f"on {on}")
    cases.append("\n".join(lines + ["|" + line for line in repr(t).split("\n")] + ["end\n"]))


def values(*v, dtype=torch.float32):
    return torch.tensor(v, dtype=dtype)


def plain(*shape, dtype=torch.float32):
    """Random numbers of few digits, to keep the file small."""
    return (torch.randn(*shape) * 64).round().to(dtype) / 64


def scalars():
    for v in (0.0, -0.0, 1.0, -1.0, 3.14159, 1e-5, 1e8, 1e9, 123456.789, NAN, -NAN, INF, -INF, 0.00009999, 99999999.0):
        case(torch.tensor(v))
    for v in (True, False):
        case(torch.tensor(v))
    for v in (0, -7, 2**63 - 1, -2**63):
        case(torch.tensor(v))
    for dtype in (torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float64):
        case(torch.tensor(3, dtype=dtype))
    case(torch.tensor(0.1, dtype=torch.float16))
    case(torch.tensor(0.1, dtype=torch.bfloat16))
    case(torch.tensor(2.5, dtype=torch.float64, requires_grad=True))


def notations():
    case(values(1, 2, 3))
    case(values(1.5, 2, 3))
    case(values(0.5, -0.25, 100))
    case(values(0, -0.0, 0))
    case(values(0, -0.0, 7))
    case(values(0, -0.0, 0.125))
    case(values(1, 1000))
    case(values(1, 1001))
    case(values(0.001, 1))
    case(values(0.001, 1.5))
    case(values(0.5, 501))
    case(values(1e8, 1e8 - 8))
    case(values(1e8 + 8, 1e8))
    case(values(1e-4, 2e-4))
    case(values(1e-4, 2e-4, dtype=torch.float64))
    case(values(9.99e-5, 2e-4))
    case(values(1e-45, 3e38))
    case(values(5e-324, 1e308, dtype=torch.float64))
    case(values(-1e100, 1e-100, 0, dtype=torch.float64))
    case(values(NAN, INF, -INF))
    case(values(NAN, -NAN, 1, INF, -INF))
    case(values(NAN, 1.5, INF, -INF, 0))
    case(values(NAN, 1e-9, INF, -INF, 0, -0.0))
    case(values(-INF, 0))
    case(values(0.99995, 0.00005, 1.00005))
    case(values(0.12345, 0.12355, -0.12345, 2.00005))
    case(values(65504, 1, dtype=torch.float16))
    case(values(6e-8, 1, 0.5, dtype=torch.float16))
    case(values(3.3e38, 1e-40, 1, dtype=torch.bfloat16))
    case(values(1, 2, 300, dtype=torch.bfloat16))
    case(values(0, 7, 255, dtype=torch.uint8))
    case(values(-1, 2**31 - 1, -2**31, dtype=torch.int32))
    case(values(-2**63, 2**63 - 1, 0, dtype=torch.int64))
    case(values(True, False, True, dtype=torch.bool))
    case(values(True, True, dtype=torch.bool))


def shapes():
    case(torch.tensor([[1., 2.], [3., 4.]]))
    case(torch.arange(24).reshape(2, 3, 4))
    case(torch.arange(48).reshape(2, 2, 3, 2, 2) - 20)
    case(torch.randn(3, 5))
    case(torch.randn(2, 2, 3) * 100)
    case(torch.randn(1, 1, 1, 1, 1, 1, 1, 1))
    case(torch.arange(12).reshape(2, 1, 1, 3, 1, 2, 1, 1) / 4)
    case(torch.randn(3, 4, dtype=torch.float64))
    case(torch.randn(4, 1).half())
    case(torch.randint(0, 2, (3, 4)).bool())
    case(torch.eye(5))
    case(torch.randn(5) * torch.tensor([1e-6, 1, 1e6, 1, 1]))


def rows():
    """Long rows wrap; the widths below move where they do."""
    for n in (1, 8, 9, 10, 17, 100):
        case(torch.randn(n))
    case(torch.arange(1000))
    case(torch.arange(40).float())
    case(torch.arange(40) % 2 == 0)
    case(torch.randn(2, 25) * 1e5)
    case(torch.randn(2, 2, 13))
    case(torch.randn(1, 1, 1, 1, 1, 1, 2, 20))
    case(torch.randn(30, dtype=torch.float64) * 1e200)
    case(torch.arange(30) * 10**16)
    case(torch.full((20,), -2**63))


def summaries():
    case(torch.arange(1001))
    case(torch.arange(1001).float())
    case(plain(2000))
    case(plain(40, 30))
    case(torch.arange(1200).reshape(300, 4))
    case(torch.arange(1200).reshape(4, 300))
    case(torch.arange(1200).reshape(6, 200))
    case(torch.arange(1200).reshape(200, 6))
    case(torch.arange(1400).reshape(7, 200))
    case(torch.arange(1400).reshape(200, 7))
    case(plain(10, 11, 12))
    case(torch.arange(1331).reshape(11, 11, 11) > 700)
    case(torch.arange(2048).reshape(2, 8, 8, 16))
    case(plain(1001) + torch.tensor([0.] * 500 + [1e9] + [0.] * 500))  # what is not shown has no say
    case(plain(1001) + torch.tensor([1e9] + [0.] * 1000))
    case(torch.arange(1001) * 10**14)
    case(plain(33, 34, dtype=torch.float64))


def empties():
    case(torch.zeros(0))
    case(torch.zeros(0, 3))
    case(torch.zeros(2, 0, 3))
    case(torch.zeros(0, dtype=torch.int64))
    case(torch.zeros(0, 2, dtype=torch.int64))
    case(torch.zeros(0, dtype=torch.bool))
    case(torch.zeros(0, 5, dtype=torch.float64, requires_grad=True))
    case(torch.zeros(0, 1, 2, 3, 4, 5, 6, 7, dtype=torch.float16), on="sim:0")
    case(torch.zeros(1234567, 0, 12345, 1, 1234567, 0, 12, 1, dtype=torch.float16), on="sim:0")


def suffixes():
    """What follows the elements moves to a line of its own where it does not fit."""
    for dtype in (torch.float64, torch.float16, torch.int32, torch.uint8):
        for n in range(3, 24, 2):
            case(torch.arange(n).to(dtype))
    for n in range(6, 24):
        case(torch.arange(n).float().requires_grad_())
    for n in range(10, 22):
        case(torch.arange(n).double().requires_grad_(), on="sim:0")
    case(torch.randn(2, 3, requires_grad=True))
    case(torch.tensor(1.5), on="sim:0")
    case(torch.randn(3, 3), on="sim:1")
    case(torch.arange(6).reshape(2, 3), on="sim:0")
    case(plain(50, 60, dtype=torch.float64).requires_grad_(), on="sim:0")


for group in (scalars, notations, shapes, rows, summaries, empties, suffixes):
    group()
with open("print.txt", "w", encoding="ascii") as f:
    f.write("".join(cases))
print(len(cases), "cases")
