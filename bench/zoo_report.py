"""What bench/zoo writes: zoo.json with all results, and of one machine a table in Markdown and a plot of the ratios.

zoo.json is a list of runs. A run is a machine with its device and versions ("about"), its rows, and those of the first minute.
"""
import json
import os
from html import escape

DTYPES = ("f32", "tf32", "bf16", "f16")


def is_peer(name):
    return name not in ("kiln", "torch")


def size_of(row):
    return f"{row['batch']}×{row['length']}" if row.get("length") else str(row["batch"])


def best_peer(row):
    """The name of PyTorch's fastest way, or None."""
    times = {n: r["us"] for n, r in row["results"].items() if is_peer(n) and "us" in r}
    return min(times, key=times.get) if times else None


def ratio(row):
    """How many times as fast as PyTorch's fastest way Kiln is; None where one of them is missing."""
    best, kiln = best_peer(row), row["results"].get("kiln", {})
    return row["results"][best]["us"] / kiln["us"] if best and "us" in kiln and "error" not in kiln else None


def number(value, digits=0):
    return "" if value is None else f"{value:,.{digits}f}"


def errors_of(row):
    return "; ".join(f"{name}: {r['error']}" for name, r in row["results"].items() if "error" in r)


def line_of(row):
    """For the terminal."""
    said = []
    for name, r in row["results"].items():
        if "us" in r:
            said.append(f"{name} {number(r['us'])} µs")
        elif "steps" in r:
            said.append(f"{name} " + " ".join(f"{s} s: {n}" for s, n in r["steps"].items()))
    ours = ratio(row)
    text = f"{row['name']} {size_of(row)} {row['dtype']}: " + ", ".join(said) + (f", ratio {ours:.2f}" if ours else "")
    return text + (f" [{errors_of(row)}]" if errors_of(row) else "")


# ---- Markdown ----


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def step_rows(rows, peers):
    for row in rows:
        kiln, best, ours = row["results"].get("kiln", {}), best_peer(row), ratio(row)
        theirs = row["results"].get(best, {})
        yield (row["name"], size_of(row), row["dtype"], number(kiln.get("us")),
               *(number(row["results"].get(p, {}).get("us")) for p in peers), f"**{ours:.2f}**" if ours else "",
               number(kiln.get("per_s")), number(kiln.get("peak_mib")), number(theirs.get("peak_mib")), kiln.get("kernels", ""),
               number(kiln.get("first_s"), 1), number(theirs.get("first_s"), 1), errors_of(row).replace("|", "\\|"))


def first_rows(rows):
    for row in rows:
        for name, r in row["results"].items():
            steps = r.get("steps", {})
            yield (row["name"], size_of(row), row["dtype"], name,
                   *(steps.get(mark, "") for mark in ("1", "3", "10", "30", "60")), r.get("error", "").replace("|", "\\|"))


def markdown(run):
    about = run["about"]
    text = ", ".join(f"{k} {v}" for k, v in about.items() if v and k != "machine")
    parts = [f"{about['machine']}: {text}. Made by `bench/zoo`.\n"]
    if run["rows"]:
        peers = [p for p in ("eager", "graph", "compile", "compile+graph") if any(p in r["results"] for r in run["rows"])]
        head = ("network", "batch", "dtype", "Kiln, µs", *(f"{p}, µs" for p in peers), "ratio", "a second", "MiB",
                "PyTorch, MiB", "kernels", "first step, s", "PyTorch, s", "errors")
        parts.append("The ratio is PyTorch's fastest way over Kiln: above 1 Kiln is faster. Memory is the peak on the device; "
                     "tokens or images a second are Kiln's; PyTorch's memory and first step are those of its fastest way.\n")
        parts.append(table(head, step_rows(run["rows"], peers)))
    if run["first"]:
        parts.append("Steps done so many seconds after the start of the process, with empty caches:\n")
        parts.append(table(("network", "batch", "dtype", "who", "1 s", "3 s", "10 s", "30 s", "60 s", "errors"),
                           first_rows(run["first"])))
    return "\n".join(parts)


# ---- The plot ----

STYLE = """svg { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 13px; }
.paper { fill: #ffffff; } text { fill: #1f2328; } text.faint { fill: #59636e; } line { stroke: #e3e7ec; } line.even { stroke: #59636e; }
.ahead { fill: #1f6fd1; } .behind { fill: #d9680b; }
@media (prefers-color-scheme: dark) { .paper { fill: #0d1117; } text { fill: #f0f6fc; } text.faint { fill: #9198a1; }
line { stroke: #2a313c; } line.even { stroke: #9198a1; } .ahead { fill: #4493f8; } .behind { fill: #f0883e; } }"""


def plot(run):
    """Bars of the ratios, a line at 1."""
    rows = [r for r in run["rows"] if ratio(r)]
    left, width, each, top = 230, 560, 22, 54
    most = max([2.0] + [ratio(r) for r in rows]) * 1.08
    height = top + each * len(rows) + 34
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {height}">', f"<style>\n{STYLE}\n</style>",
             '<rect class="paper" width="100%" height="100%"/>',
             f'<text x="16" y="24">Training steps: times as fast as PyTorch\'s fastest way</text>',
             f'<text class="faint" x="16" y="42">{escape(run["about"]["machine"])}, PyTorch {escape(run["about"]["torch"])}</text>']
    step = 0.5 if most < 5 else 1 if most < 10 else 5
    marks = [i * step for i in range(int(most / step) + 1)]
    for mark in marks:
        x, bottom = left + width * mark / most, top + each * len(rows)
        parts.append(f'<line{" class=" + chr(34) + "even" + chr(34) if mark == 1 else ""} x1="{x:.1f}" x2="{x:.1f}" '
                     f'y1="{top}" y2="{bottom}"/><text class="faint" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{mark:g}</text>')
    for i, row in enumerate(rows):
        y, value = top + each * i, ratio(row)
        parts.append(f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(row["name"])} {size_of(row)} {row["dtype"]}</text>'
                     f'<rect class="{"ahead" if value >= 1 else "behind"}" x="{left}" y="{y + 3}" width="{width * value / most:.1f}" '
                     f'height="{each - 6}" rx="2"/><text x="{left + width * value / most + 6:.1f}" y="{y + 15}">{value:.2f}</text>')
    return "\n".join(parts + ["</svg>", ""])


# ---- The folder ----


def write(path, text):
    """All of it or nothing."""
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".new", path)


class Report:
    """The results of a folder, to which those of this machine and these versions are added."""

    def __init__(self, folder, about, first, order):
        self.folder, self.about, self.part = folder, about, "first" if first else "rows"
        self.order = {name: i for i, name in enumerate(order)}
        os.makedirs(folder, exist_ok=True)

    def read(self):
        path = os.path.join(self.folder, "zoo.json")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as f:
            return json.load(f)

    def add(self, row):
        """A row replaces the one of the same work; the folder has it at once, whatever happens next."""
        def work(r):
            return r["name"], r["dtype"], r["batch"], r.get("length")

        runs = self.read()
        run = next((r for r in runs if r["about"] == self.about), None)
        if not run:
            run = {"about": self.about, "rows": [], "first": []}
            runs.append(run)
        rows = [r for r in run[self.part] if work(r) != work(row)] + [row]
        run[self.part] = sorted(rows, key=lambda r: (self.order.get(r["name"], len(self.order)), DTYPES.index(r["dtype"])))
        write(os.path.join(self.folder, "zoo.json"), json.dumps(runs, indent=1, ensure_ascii=False) + "\n")
        write(os.path.join(self.folder, "zoo.md"), markdown(run))
        if run["rows"]:
            write(os.path.join(self.folder, "zoo.svg"), plot(run))
