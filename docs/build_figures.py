"""Pictures of README and of the site's first pages, light and dark, from stored results: python docs/build_figures.py

demo       loss against tokens of `make demo`            bench/results/demo/curves.json
headline   compute saved on the ladder                   bench/results/ladder_cpu_v1
badges     tests, Python, licence, docs                  docs/coverage.md, pyproject.toml
moving/    the guide's moving figures as they begin      docs/_tooling/moving.py
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np

from _tooling import moving as arithmetic

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
LADDER = ROOT / "bench" / "results" / "ladder_cpu_v1"
DEMO = ROOT / "bench" / "results" / "demo" / "curves.json"
FIGURES = ROOT / "docs" / "figures"

INKS = {"light": {"text": "#24292f", "faint": "#8c959f"}, "dark": {"text": "#e6edf3", "faint": "#7d8590"}}
COLORS = {
    "light": {"adana": "#1a7f37", "adamw": "#1f6fb5", "muon": "#c25a00"},
    "dark": {"adana": "#4ac26b", "adamw": "#6cb6ff", "muon": "#f0883e"},
}


@dataclass(frozen=True)
class Saved:
    """A row of table-saved.md, in percent."""

    opt: str
    params: int | None
    """None: by the fitted laws."""
    middle: float
    low: float
    high: float


def saved() -> list[Saved]:
    """The rows of the stored table."""
    rows = []
    for line in (LADDER / "table-saved.md").read_text(encoding="utf-8").splitlines():
        cells = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell.strip()) for cell in line.split("|")[1:-1]]
        if len(cells) > 4 and re.match(r"[+-][\d.]+%", cells[2]):
            low, high = (float(each.rstrip("%")) for each in cells[3].split(" to "))
            size = None if "laws" in cells[1] else int(cells[1].replace(",", ""))
            rows.append(Saved(cells[0], size, float(cells[2].rstrip("%")), low, high))
    return rows


def mean_curve(pattern: str) -> tuple[list[float], list[float]]:
    """Compute and validation loss, the mean over the stored seeds of a run."""
    files = sorted((LADDER / "curves").glob(pattern))
    rows = [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    flops = [row["flops"] for row in rows[0] if "val/loss" in row]
    losses = [[row["val/loss"] for row in each if "val/loss" in row] for each in rows]
    return flops, [sum(values) / len(values) for values in zip(*losses, strict=True)]


def drawn(name: str, panels: int, width: float) -> Iterator[tuple[str, list[Axes]]]:
    """For each theme: (theme, axes), to draw on; writes NAME-light.svg and NAME-dark.svg."""
    for theme, ink in INKS.items():
        look = {
            "svg.hashsalt": "danalab", "font.size": 12, "font.family": "DejaVu Sans", "text.color": ink["text"],
            "axes.edgecolor": ink["faint"], "axes.labelcolor": ink["text"], "xtick.color": ink["text"],
            "ytick.color": ink["text"], "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 14,
            "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 14,
        }  # fmt: skip
        with mpl.rc_context(look):
            figure, axes = plt.subplots(1, panels, figsize=(width, 3.9), layout="constrained", squeeze=False)
            yield theme, list(axes[0])
            figure.savefig(FIGURES / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})
            plt.close(figure)


def at_loss(flops: list[float], losses: list[float], loss: float) -> float:
    """Where a curve first reaches a loss, by interpolation."""
    for (x0, y0), (x1, y1) in pairwise(zip(flops, losses, strict=True)):
        if y1 <= loss <= y0:
            return x0 + (x1 - x0) * (y0 - loss) / (y0 - y1)
    return flops[-1]


def two_curves(axes: Axes, theme: str, adamw: tuple[list, list], adana: tuple[list, list], first: float) -> None:
    """Two curves with their names, and the arrow of what is saved at AdamW's final loss."""
    color, ink = COLORS[theme], INKS[theme]["text"]
    for name, label, (x, y) in (("adamw", "AdamW", adamw), ("adana", "ADana", adana)):
        kept = [(a, b) for a, b in zip(x, y, strict=True) if a >= first]
        axes.plot(*zip(*kept, strict=True), color=color[name], linewidth=2.5)
        axes.annotate(label, kept[-1], xytext=(6, 0), textcoords="offset points", color=color[name], va="center",
                      fontweight="bold")  # fmt: skip
    final, end = adamw[1][-1], adamw[0][-1]
    reached = at_loss(*adana, final)
    axes.annotate("", (reached, final), xytext=(end, final), arrowprops={"arrowstyle": "->", "color": ink, "lw": 1.6})
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.12 * (high - low), high)
    axes.annotate(f"same loss, {100 * (1 - reached / end):.0f}% less compute", ((reached + end) / 2, final),
                  xytext=(0.03, 0.05), textcoords="axes fraction", color=ink,
                  arrowprops={"arrowstyle": "-", "color": ink, "lw": 0.7, "relpos": (1, 0.5)})  # fmt: skip
    axes.set_ylabel("validation loss [nats/token]")


def headline() -> None:
    """Left: the largest size, loss against compute. Right: the saving at every size."""
    rows = saved()
    for theme, (left, right) in drawn("headline", 2, width=11.0):
        adamw = mean_curve("adamw-d64-L4-H2-lrx2-s*.jsonl")
        adana = mean_curve("adana-d64-L4-H2-lrx0.25-s*.jsonl")
        two_curves(left, theme, adamw, adana, first=adamw[0][-1] * 0.6)
        left.set_title("The same loss with less compute")
        left.set_xlabel("training compute [TFLOPs], 263 k parameters")
        left.set_xlim(right=adamw[0][-1] * 1.1)
        left.xaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}")
        for opt, label, offset in (("muon", "Muon", -10), ("adana", "ADana", -2)):
            own = [row for row in rows if row.opt == opt and row.params]
            sizes, middle = [row.params for row in own], [row.middle for row in own]
            color, main = COLORS[theme][opt], opt == "adana"
            if main:
                low, high = ([getattr(row, name) for row in own] for name in ("low", "high"))
                right.fill_between(sizes, low, high, color=color, alpha=0.18, linewidth=0)
            right.plot(sizes, middle, "o-", color=color, linewidth=2.5 if main else 1.2, markersize=6 if main else 3)
            named(right, label, sizes[-1], middle[-1], color, offset)
            for row in own if main else []:
                right.annotate(f"{row.middle:+.0f}%", (row.params, row.middle), xytext=(0, 9), ha="center",
                               textcoords="offset points", color=color)  # fmt: skip
        right.axhline(0, color=COLORS[theme]["adamw"], linewidth=2)
        named(right, "AdamW", sizes[-1], 0, COLORS[theme]["adamw"], -14)
        right.set_title("At each of five sizes")
        right.set_xscale("log")
        right.set_xticks(sizes, [f"{size / 1000:.0f} k" for size in sizes])
        right.minorticks_off()
        right.set_xlim(sizes[0] * 0.88, sizes[-1] * 1.45)
        right.set_xlabel("parameters; band: 95% interval of ADana")
        right.set_ylabel("compute saved")
        right.yaxis.set_major_formatter(lambda value, _: f"{value:+.0f}%" if value else "0")


def named(axes: Axes, label: str, x: float, y: float, color: str, offset: float) -> None:
    """The name of a line at its end."""
    axes.annotate(label, (x, y), xytext=(10, offset), textcoords="offset points", color=color, fontweight="bold")


def demo() -> None:
    """The two best runs of `make demo`."""
    curves = json.loads(DEMO.read_text(encoding="utf-8"))["curves"]
    for theme, (axes,) in drawn("demo", 1, width=8.0):
        adamw, adana = (tuple(curves[name].values()) for name in ("adamw", "adana"))
        two_curves(axes, theme, adamw, adana, first=adamw[0][-1] * 0.2)
        axes.set_title("Two optimizers, tuned alike, on the same text")
        axes.set_xlabel("training tokens")
        axes.set_xlim(right=adamw[0][-1] * 1.12)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f} k")


def moving() -> None:
    """What the guide's moving figures show at their first values, for readers without JavaScript."""
    steps, ends = np.geomspace(1, 1e5, 80), np.linspace(0, 1000, 51)
    share = arithmetic.saved(0.05, 1.0, 0.15)
    compute = np.geomspace(0.05, 1.2, 60)
    at = [arithmetic.schedule(8, 0.85, step) for step in steps]
    losses = {name: arithmetic.features(1.0, 0.3, 1, name, 1500) for name in ("sgd", "momentum", "log")}
    counts = list(range(2, 21))
    figures = {
        "schedule": ("step t", "log", "log", {
            "memory 1 / (1 - beta) [steps]": (steps, [each["memory"] for each in at]),
            "alpha": (steps, [each["alpha"] for each in at])}),
        "features": ("step", "log", "log", {
            name: (range(1, 1501), losses[key])
            for key, name in (("sgd", "SGD"), ("momentum", "momentum of 10 steps"), ("log", "logarithmic time"))}),
        "remaining": ("step", "linear", "linear", {
            "omega / (T / 10 + t), at most 2 lr": (ends, arithmetic.remaining(4, 1e-3, 1000, 0, 50)),
            "constant: 0.1 lr, as AdamW": (ends, arithmetic.remaining(4, 1e-3, 1000, 0.1, 50))}),
        "power": ("seeds on each side", "linear", "linear", {
            "chance to find the gap": (counts, [arithmetic.power(0.02, 0.01, n) for n in counts]),
            "four times of five": (counts, [0.8] * len(counts))}),
        "saved": ("compute, of the baseline's", "linear", "linear", {
            "contender": (compute, (compute / (1 - share)) ** -0.15), "baseline": (compute, compute**-0.15),
            "saved": ([1 - share, 1], [1, 1])}),
    }  # fmt: skip
    (FIGURES / "moving").mkdir(exist_ok=True)
    for name, (label, x_scale, y_scale, lines) in figures.items():
        for theme, (axes,) in drawn(f"moving/{name}", 1, width=8.0):
            colors = COLORS[theme]["adana"], COLORS[theme]["adamw"], COLORS[theme]["muon"]
            for color, (text, (x, y)) in zip(colors, lines.items(), strict=False):
                axes.plot(x, y, color=color, linewidth=2.2, label=text)
            axes.set(xscale=x_scale, yscale=y_scale, xlabel=label)
            axes.legend(frameon=False)


def badge(label: str, value: str, color: str) -> str:
    """A small label as SVG."""
    left, right = (round(6.4 * len(text) + 14) for text in (label, value))
    wide = left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="20" role="img" aria-label="{label}: {value}">'
        f'<clipPath id="r"><rect width="{wide}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#444c56"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{color}"/>'
        '</g><g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2:g}" y="14">{label}</text><text x="{left + right / 2:g}" y="14">{value}</text></g></svg>\n'
    )


def badges() -> dict[str, str]:
    """File name -> SVG."""
    coverage = re.search(r"([\d.]+)%", (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8"))
    python = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert coverage is not None
    assert python is not None
    return {
        "tests.svg": badge("tests cover", f"{coverage[1]}% of lines", "#1a7f37"),
        "python.svg": badge("Python", f"{python[1]} or newer", "#1f5fbf"),
        "licence.svg": badge("licence", "Apache 2.0", "#1f5fbf"),
        "docs.svg": badge("docs", "every block runs", "#6639ba"),
    }


def main() -> None:
    (FIGURES / "badges").mkdir(parents=True, exist_ok=True)
    for name, text in badges().items():
        (FIGURES / "badges" / name).write_text(text, encoding="utf-8")
    headline()
    moving()
    if DEMO.is_file():
        demo()


if __name__ == "__main__":
    main()
