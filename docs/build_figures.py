"""Pictures of README and of the site's first pages, light and dark, from stored results: python docs/build_figures.py

headline   compute saved on the ladder                   bench/results/ladder_cpu
schedules  weight decay and learning rate of a run       danalab.optim
moving/    the guide's moving figures as they begin      docs/_tooling/moving.py
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np

from _tooling import moving as arithmetic
from danalab.experiments.analysis import Analysis, analyse
from danalab.experiments.rows import read_ladder, validation_points
from danalab.experiments.saving import first_crossing, smoothed
from danalab.optim import get_schedule

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
LADDER = ROOT / "bench" / "results" / "ladder_cpu"
FIGURES = ROOT / "docs" / "figures"

INKS = {"light": {"text": "#24292f", "faint": "#8c959f"}, "dark": {"text": "#e6edf3", "faint": "#7d8590"}}
COLORS = {
    "light": {"adana": "#1a7f37", "adamw": "#1f6fb5", "dana-muon": "#c25a00"},
    "dark": {"adana": "#4ac26b", "adamw": "#6cb6ff", "dana-muon": "#f0883e"},
}

NAMES = {"adamw": "AdamW", "adana": "ADana", "dana-muon": "DanaMuon"}


@cache
def ladder() -> Analysis:
    """The results of the stored ladder."""
    return analyse(read_ladder(LADDER))


def mean_curve(opt: str, params: int) -> tuple[list[float], list[float]]:
    """Compute [FLOPs] and smoothed validation loss of an optimizer's best runs of a size, the mean over seeds."""
    (best,) = (each for each in ladder().tuned if (each.opt, each.params) == (opt, params))
    points = [validation_points(row) for row in best.runs]
    whole = (
        best.flops / points[0][-1]["flops"]
    )  # with the optimizer's own matrix products, alike in every step
    compute = whole * np.array([point["flops"] for point in points[0]])
    losses = np.mean(
        [smoothed(compute, np.array([point["val/loss"] for point in own])) for own in points], axis=0
    )
    return compute.tolist(), losses.tolist()


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
            figure, axes = plt.subplots(
                panels, figsize=(width, 3.6 * panels), layout="constrained", squeeze=False
            )
            yield theme, list(axes[:, 0])
            figure.savefig(FIGURES / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})
            plt.close(figure)


def against_adamw(axes: Axes, theme: str, curves: dict[str, tuple[list, list]], first: float) -> None:
    """Curves with their names, and the arrow of what the best one saves at AdamW's final loss."""
    color, ink = COLORS[theme], INKS[theme]["text"]
    for opt, (x, y) in curves.items():
        kept = [(a, b) for a, b in zip(x, y, strict=True) if a >= first]
        axes.plot(*zip(*kept, strict=True), color=color[opt], linewidth=2.5)
    low, high = axes.get_ylim()
    for opt, (x, y) in curves.items():
        axes.annotate(NAMES[opt], (x[-1], y[-1]), xytext=(6, 4 if opt == "adamw" else -14), textcoords="offset points",
                      color=color[opt], fontweight="bold")  # fmt: skip
    end, final = (values[-1] for values in curves["adamw"])
    reached = min(first_crossing(*map(np.array, curve), final) or end for curve in curves.values())
    axes.annotate(
        "", (reached, final), xytext=(end, final), arrowprops={"arrowstyle": "->", "color": ink, "lw": 1.6}
    )
    axes.set_ylim(low - 0.2 * (high - low), high)
    words = f"arrow: same loss, {100 * (1 - reached / end):.0f}% less compute"
    axes.annotate(words, (0.03, 0.05), xycoords="axes fraction", color=ink)
    axes.set_ylabel("validation loss [nats/token]")


def headline() -> None:
    """Above: the largest size, loss against compute. Below: the saving at every size."""
    found = ladder().saved
    params = max(found["adana"])
    for theme, (left, right) in drawn("headline", 2, width=6.4):
        curves = {opt: mean_curve(opt, params) for opt in ("adamw", "adana", "dana-muon")}
        whole = curves["adamw"][0][-1]
        against_adamw(left, theme, curves, first=whole * 0.4)
        left.set_title("The same loss with less compute")
        left.set_xlabel(f"training compute [TFLOPs], {params / 1000:.0f} k parameters, one seed")
        longest = max(
            compute[-1] for compute, _ in curves.values()
        )  # with the optimizer's own matrix products
        left.set_xlim(right=longest * 1.16)
        left.xaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}")
        for opt in ("adana", "dana-muon"):
            own, color = found[opt], COLORS[theme][opt]
            middle = [100 * each.saved for each in own.values()]
            bands = {size: each.interval for size, each in own.items() if each.interval}
            low, high = ([100 * getattr(each, end) for each in bands.values()] for end in ("low", "high"))
            right.fill_between(list(bands), low, high, color=color, alpha=0.15, linewidth=0)
            right.plot(list(own), middle, "o-", color=color, linewidth=2.5, markersize=6)
            named(right, f"{NAMES[opt]} {middle[-1]:+.0f}%", params, middle[-1], color, -2)
        tokens = {size: 100 * each.saved for size, each in ladder().tokens_saved["dana-muon"].items()}
        right.plot(list(tokens), list(tokens.values()), "o--", color=COLORS[theme]["dana-muon"], markersize=4)
        named(
            right,
            f"DanaMuon, tokens {tokens[params]:+.0f}%",
            params,
            tokens[params],
            COLORS[theme]["dana-muon"],
            -2,
        )
        right.axhline(0, color=COLORS[theme]["adamw"], linewidth=2)
        named(right, NAMES["adamw"], params, 0, COLORS[theme]["adamw"], 6)
        sizes = list(found["adana"])
        right.set_title(f"At each of {len(sizes)} sizes")
        right.set_xscale("log")
        right.set_xticks(sizes, [f"{size / 1000:.0f}" for size in sizes], fontsize=10)
        right.minorticks_off()
        right.set_xlim(sizes[0] * 0.88, params * 5.5)
        right.set_xlabel("thousand parameters; bands: 95% intervals over three seeds")
        right.set_ylabel("compute saved")
        right.yaxis.set_major_formatter(lambda value, _: f"{value:+.0f}%" if value else "0")


def named(axes: Axes, label: str, x: float, y: float, color: str, offset: float) -> None:
    """The name of a line at its end."""
    axes.annotate(
        label, (x, y), xytext=(10, offset), textcoords="offset points", color=color, fontweight="bold"
    )


def moving() -> None:
    """What the guide's moving figures show at their first values, for readers without JavaScript."""
    steps, compute = np.geomspace(1, 1e5, 80), np.geomspace(0.05, 1.2, 60)
    at = [arithmetic.schedule(8, 0.85, step) for step in steps]
    names = {"sgd": "SGD", "momentum": "momentum of 10 steps", "log": "logarithmic time"}
    losses = {name: arithmetic.features(1.0, 0.3, 1, method, 1500) for method, name in names.items()}
    share = arithmetic.saved(0.05, 1.0, 0.15)
    figures = {
        "schedule": (
            ("step t", "log", "steps"),
            {
                "ADana's momentum window, 1 / (1 - beta)": (steps, [each["memory"] for each in at]),
                "AdamW's, 10 steps": ([1, 1e5], [10, 10]),
            },
        ),
        "features": (
            ("step", "log", "excess loss"),
            {name: (range(1, 1501), each) for name, each in losses.items()},
        ),
        "saved": (
            ("compute, relative to the baseline", "linear", "loss above the floor, relative"),
            {
                "contender": (compute, (compute / (1 - share)) ** -0.15),
                "baseline": (compute, compute**-0.15),
                "saved": ([1 - share, 1], [1, 1]),
            },
        ),
    }
    (FIGURES / "moving").mkdir(exist_ok=True)
    for name, ((label, scale, unit), lines) in figures.items():
        for theme, (axes,) in drawn(f"moving/{name}", 1, width=6.4):
            colors = COLORS[theme]["adana"], COLORS[theme]["adamw"], COLORS[theme]["dana-muon"]
            for color, (text, (x, y)) in zip(colors, lines.items(), strict=False):
                axes.plot(x, y, color=color, linewidth=2.2, label=text)
            axes.set(xscale=scale, yscale=scale, xlabel=label, ylabel=unit)
            axes.legend(frameon=False)


def schedules() -> None:
    """Independent weight decay and learning rate over a run of 20,000 steps."""
    steps, peak = np.arange(1, 20_001), 1e-3
    schedule = get_schedule("cos_inf", 20_000, 400)
    factor = np.array([schedule(step - 1) for step in steps])
    decay = np.minimum(4 / (2000 + steps), 2 * peak)
    for theme, (left, right) in drawn("optimizers/schedules", 2, width=6.4):
        color = COLORS[theme]["adana"]
        left.plot(steps, decay, color=color, linewidth=2.2, label="λ(t), omega 4")
        left.plot(steps, factor * decay, "--", color=color, linewidth=2.2, label="s(t) λ(t), what is applied")
        left.set(xscale="log", yscale="log", xlabel="step t", title="Weight decay of a step")
        left.legend(frameon=False, loc="lower center")
        right.plot(steps, peak * factor, color=color, linewidth=2.2)
        right.set(xlabel="step t", title="Learning rate, cos_inf", xticks=range(0, 20_001, 5000))
        right.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def main() -> None:
    headline()
    schedules()
    moving()


if __name__ == "__main__":
    main()
