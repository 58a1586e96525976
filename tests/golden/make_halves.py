"""Makes halves.safetensors: the same numbers as f32, f64, bf16 and f16, converted by PyTorch and written by its
safetensors. Among them ties, subnormal numbers, infinities and NaN."""
import torch
from safetensors.torch import save_file

torch.manual_seed(4)
hard = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, 1.00048828125, 1.00146484375, 6e-8, 2.9e-8, 1e-40, 65504.0, 65519.0, -3.1e-5,
        float("inf"), -float("inf"), float("nan")]
x = torch.cat([torch.tensor(hard), torch.randn(40), torch.randn(8) * 1e-6])
save_file({"f32": x, "f64": x.double(), "bf16": x.bfloat16(), "f16": x.half(), "count": torch.tensor([3, 4])},
          "halves.safetensors")
