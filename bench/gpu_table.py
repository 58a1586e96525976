"""The tables of gpu.sh: JSON objects, one a line, to Markdown.

usage: python3 gpu_table.py FILE
"""
import json
import statistics
import sys


def table(title, head, rows):
    if not rows:
        return
    print(f"## {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def number(value, digits=0):
    return "" if value is None else f"{value:,.{digits}f}"


def named(result):
    """Other scripts name a variant of PyTorch, with its precision for products."""
    if "variant" in result:
        variant = result["variant"]
        tf32 = variant.endswith("high") and "tf32"
        result["peer"] = " ".join(filter(None, ("PyTorch", variant.removesuffix(", highest").removesuffix(", high"), tf32)))
    return result


def precision(peer):
    return "tf32" if peer.endswith("tf32") else "f32"


def steps(results):
    rows = []
    steps_ = [r for r in results if "us" in r and "batch" in r and "samples_s" not in r]
    own = {(r["work"], r["batch"], precision(r["peer"])): r["us"] for r in steps_ if r["peer"].startswith("kiln")}
    for r in sorted(steps_, key=lambda r: (list(own).index(k) if (k := (r["work"], r["batch"], precision(r["peer"]))) in own
                                           else len(own), not r["peer"].startswith("kiln"), -r["us"])):
        mine = own.get((r["work"], r["batch"], precision(r["peer"])))
        kiln = r["peer"].startswith("kiln")
        rows.append((r["work"], r["batch"], f"**{r['peer']}**" if kiln else r["peer"], number(r["us"], 1),
                     "" if kiln or not mine else number(r["us"] / mine, 2), r.get("kernels", "")))
    return rows


def epochs(results):
    rates = [r for r in results if "samples_s" in r]
    best = max((r["samples_s"] for r in rates if r["peer"] == "kiln"), default=None)
    return [(r["work"], r["batch"], r["peer"], r.get("workers", ""), number(r["samples_s"]),
             number(best / r["samples_s"], 2) if best and r["samples_s"] else "") for r in rates]


def texts(results):
    rates = [r for r in results if "tokens_s" in r]
    own = {(r["work"], r["batch"], r["dtype"]): r["tokens_s"] for r in rates if r["peer"] == "kiln"}
    rows = []
    for r in sorted(rates, key=lambda r: (r["work"], r["dtype"], r["batch"], r["tokens_s"])):
        mine = own.get((r["work"], r["batch"], r["dtype"]))
        kiln = r["peer"] == "kiln"
        rows.append((r["work"].removeprefix("generate "), r["dtype"], r["batch"], "**kiln**" if kiln else r["peer"],
                     number(r["prompt_ms"], 2), number(r["tokens_s"]),
                     "" if kiln or not mine else number(mine / r["tokens_s"], 2)))
    return rows


def starts(results):
    seconds = {}
    for r in results:
        if r.get("work") == "start":
            seconds.setdefault(r["peer"], []).append(r["seconds"])
    return [(peer, number(statistics.median(s), 3), len(s)) for peer, s in seconds.items()]


def main():
    results = [named(json.loads(line)) for line in open(sys.argv[1])]
    table("Memory: tensors of 1 GiB, beside the GPU's own copy",
          ("work", "GB/s", "copy, GB/s", "share of the copy"),
          [(r["what"], number(r["gb_s"]), number(r["copy_gb_s"]), f"{100 * r['of_copy']:.1f} %")
           for r in results if "of_copy" in r])
    table("Matrix products, beside cuBLASLt with its own first choice",
          ("product", "dtype", "m", "n", "k", "TFLOP/s", "cuBLASLt", "share"),
          [(r["work"].removeprefix("matmul "), r["dtype"], r["m"], r["n"], r["k"], number(r["tflop_s"], 1),
            number(r["cublaslt_tflop_s"], 1), f"{100 * r['of_cublaslt']:.1f} %") for r in results if "of_cublaslt" in r])
    table("Launching: steps of tiny kernels, beside a CUDA graph of empty ones",
          ("kernels", "µs a step", "of the host", "graph, µs", "times the graph"),
          [(r["kernels"], number(r["us"], 2), number(r["host_us"], 2), number(r["graph_us"], 2), number(r["times_graph"], 2))
           for r in results if "times_graph" in r])
    table("Training steps, data on the GPU", ("network", "batch", "by", "µs a step", "times Kiln", "kernels"),
          steps(results))
    table("Epochs as people write them: loading, shuffled", ("work", "batch", "by", "workers", "samples/s", "Kiln's best is"),
          epochs(results))
    table("Texts, token by token", ("network", "in", "batch", "by", "prompt, ms", "tokens/s", "Kiln is"), texts(results))
    table("From the start of the process to the end of the first step", ("by", "s, median", "runs"), starts(results))


main()
