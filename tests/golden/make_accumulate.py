"""Writes accumulate.txt: training with ignored labels by PyTorch, for test_fit_accumulate.

Run in this folder with PyTorch 2.11: python make_accumulate.py. The format is that of make_golden.py. A case is a linear
layer trained with SGD by cross_entropy with its default ignore_index of -100:

    ints EPOCHS BATCH
    floats LR
    in  x, labels, weight, bias
    out weight and bias afterwards, and for each epoch: loss, accuracy, top-5 accuracy over the labels that count
"""
import torch
import torch.nn.functional as F

TYPES = {torch.int64: "i64", torch.float32: "f32", torch.float64: "f64"}


def tensor_text(t):
    digits = "%.9g" if t.dtype == torch.float32 else "%.17g"
    values = " ".join(digits % v for v in t.detach().reshape(-1).tolist())
    return f"{TYPES[t.dtype]} {' '.join(str(s) for s in t.shape)} : {values}"


def train(x, y, weight, bias, epochs, batch, lr):
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    rows = []
    for _ in range(epochs):
        loss_sum = correct = top5 = count = 0
        for i in range(0, len(x), batch):
            out, labels = F.linear(x[i:i + batch], weight, bias), y[i:i + batch]
            out, labels = out.reshape(-1, out.shape[-1]), labels.reshape(-1)
            loss = F.cross_entropy(out, labels)
            gw, gb = torch.autograd.grad(loss, [weight, bias])
            counts = labels != -100
            loss_sum += F.cross_entropy(out, labels, reduction="sum").item()
            correct += (out.argmax(-1) == labels)[counts].sum().item()
            top5 += (out.topk(5).indices == labels[:, None]).any(-1)[counts].sum().item()
            count += counts.sum().item()
            with torch.no_grad():
                weight -= lr * gw
                bias -= lr * gb
        rows.append([loss_sum / count, correct / count, top5 / count])
    return weight, bias, torch.tensor(rows, dtype=torch.float64)


def main():
    torch.manual_seed(7)
    with open("accumulate.txt", "w", encoding="utf-8") as out:
        for shape, count, batch in (((), 44, 16), ((5,), 22, 8)):
            x = torch.randn(count, *shape, 6)
            y = torch.randint(0, 9, (count, *shape))
            y.view(-1)[torch.randperm(y.numel())[:y.numel() // 3]] = -100
            y[:batch // 4] = -100  # the first small batch of the first window has nothing that counts
            weight, bias = torch.randn(9, 6) / 3, torch.randn(9) / 3
            out.write(f"case fit\nints 3 {batch}\nfloats 0.5\n")
            out.writelines(f"in {tensor_text(t)}\n" for t in (x, y, weight, bias))
            out.writelines(f"out {tensor_text(t)}\n" for t in train(x, y, weight, bias, 3, batch, 0.5))
            out.write("end\n")


if __name__ == "__main__":
    main()
