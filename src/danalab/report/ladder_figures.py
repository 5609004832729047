"""The figures of a ladder: points with their spread for what was measured, lines for laws, dashed beyond that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, PercentFormatter, ScalarFormatter

from danalab.ladder.analysis import Analysis, Tuned
from danalab.report.colors import optimizer_color
from danalab.train.metrics import read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS = "final validation loss [nats a token]"
COMPUTE = "training compute [FLOPs]"
SIZE = "parameters"
EXTRAPOLATED = 4.0
"""Laws are drawn, dashed, to this many times the largest compute that was measured."""


def law_figure(found: Analysis) -> Figure:
    """Final loss against compute: a point a size (mean over seeds, bar from lowest to highest), and the laws."""
    figure, axes = _figure(COMPUTE, LOSS)
    for opt in found.opts:
        _points(axes, opt, [(each.flops, [row["final_loss"] for row in each.runs]) for each in found.at(opt)])
        if opt in found.loss_laws:
            law = found.loss_laws[opt]
            low, high = law.measured[0]
            inside, beyond = np.geomspace(low, high, 100), np.geomspace(high, EXTRAPOLATED * high, 30)
            axes.plot(inside, law(inside), color=optimizer_color(opt), linewidth=1.3)
            axes.plot(beyond, law(beyond), color=optimizer_color(opt), linewidth=1.0, linestyle="--")
    axes.set(xscale="log", yscale="log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    return _finished(figure, axes)


def saved_figure(found: Analysis) -> Figure:
    """Compute saved against size, with intervals; sizes where it was not reached stand at the lower edge."""
    figure, axes = _figure(SIZE, f"compute saved against {found.baseline}")
    axes.axhline(0, color=optimizer_color(found.baseline), linewidth=1, label=f"{found.baseline} (baseline)")
    for position, opt in enumerate(found.opts[1:]):
        # Beside each other, where intervals would hide one another.
        aside = 1.03 ** (position - (len(found.opts) - 2) / 2)
        reached = [(p, s) for p, s in sorted(found.saved.get(opt, {}).items()) if s.saved is not None]
        missed = [p for p, s in sorted(found.saved.get(opt, {}).items()) if s.saved is None]
        color = optimizer_color(opt)
        x, y = [p * aside for p, _ in reached], [s.saved for _, s in reached]
        axes.plot(
            np.array(x, float), np.array(y, float), marker="o", markersize=4, color=color, label=opt, linewidth=1.2
        )
        known = [(p * aside, s.interval) for p, s in reached if s.interval is not None]
        low, high = [i.low for _, i in known], [i.high for _, i in known]
        axes.vlines([p for p, _ in known], low, high, color=color, alpha=0.6)
        if missed:
            axes.plot(
                [p * aside for p in missed], [0.02] * len(missed), transform=axes.get_xaxis_transform(), linestyle="",
                marker="x", color=color, label=f"{opt}: not reached", clip_on=False,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return _finished(figure, axes)


def gain_figure(found: Analysis) -> Figure:
    """Compute saved at equal loss, by the laws, over the losses that both measured."""
    figure, axes = _figure("validation loss [nats a token]", f"compute saved against {found.baseline}")
    axes.axhline(0, color=optimizer_color(found.baseline), linewidth=1, label=f"{found.baseline} (baseline)")
    for opt, gain in found.gains.items():
        points = [point for point in gain.points if not point.extrapolated]
        color, x = optimizer_color(opt), [point.loss for point in points]
        axes.plot(x, [point.saved for point in points], color=color, label=opt)
        bounds = [(point.loss, point.interval.low, point.interval.high) for point in points if point.interval]
        if bounds:
            at, low, high = np.array(bounds).T
            axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
    axes.invert_xaxis()  # compute grows to the right, as everywhere
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return _finished(figure, axes)


def sensitivity_figure(found: Analysis, rows: Sequence[Any]) -> Figure:
    """What a wrong learning rate costs: loss above the best trial of a size, a panel a size."""
    sizes = sorted({each.params for each in found.tuned})
    figure, panels = _panels(len(sizes))
    for axes, params in zip(panels, sizes, strict=True):
        for opt in found.opts:
            here = [row for row in rows if row["opt"] == opt and row["params"] == params]
            mine = [row for row in here if row["name"] not in found.excluded]
            if not mine:
                continue
            first = min(row["seed"] for row in mine)
            trials = sorted((row["lr"], row["final_loss"]) for row in mine if row["seed"] == first)
            best = min(loss for _, loss in trials)
            axes.plot(
                [lr for lr, _ in trials], [loss - best for _, loss in trials], marker="o", markersize=3,
                color=optimizer_color(opt), label=opt, linewidth=1.1,
            )  # fmt: skip
        axes.set(xscale="log", title=f"{params:,} parameters", xlabel="peak learning rate")
    panels[0].set_ylabel("loss above the best trial [nats a token]")
    return _finished(figure, panels[0], *panels[1:])


def lr_law_figure(found: Analysis) -> Figure:
    """The best learning rate of each size, and the law through the best few."""
    figure, axes = _figure("non-embedding parameters", "peak learning rate")
    for opt in found.opts:
        points = found.at(opt)
        color = optimizer_color(opt)
        axes.plot([p.non_emb_params for p in points], [p.lr for p in points], "o", markersize=4, color=color, label=opt)
        if opt in found.lr_laws:
            sizes = np.array([p.non_emb_params for p in points], float)
            x = np.geomspace(sizes.min(), EXTRAPOLATED * sizes.max(), 60)
            inside = x <= sizes.max()
            axes.plot(x[inside], found.lr_laws[opt](x[inside]), color=color, linewidth=1.2)
            axes.plot(x[~inside], found.lr_laws[opt](x[~inside]), color=color, linewidth=1.0, linestyle="--")
    axes.set(xscale="log", yscale="log")
    return _finished(figure, axes)


def residual_figure(found: Analysis) -> Figure:
    """How far each run lies from its law."""
    figure, axes = _figure(COMPUTE, "law over measured loss, minus 1")
    axes.axhline(0, color="#888888", linewidth=1)
    for opt, law in found.loss_laws.items():
        compute = [each.flops for each in found.at(opt) for _ in each.runs]
        axes.plot(compute, np.expm1(law.residuals), "o", markersize=4, alpha=0.7, color=optimizer_color(opt), label=opt)
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=2))
    return _finished(figure, axes)


def curves_figure(found: Analysis) -> Figure:
    """Validation loss over training, a panel a size: mean over seeds, band from lowest to highest."""
    sizes = sorted({each.params for each in found.tuned})
    figure, panels = _panels(len(sizes))
    for axes, params in zip(panels, sizes, strict=True):
        ends = []
        for opt in found.opts:
            for each in found.at(opt):
                if each.params == params:
                    ends.append(_curve(axes, each))
        final, first = min(ends, default=(1.0, 2.0))[0], max(end[1] for end in ends)
        axes.set_ylim(final - 0.03 * (first - final), final + 0.5 * (first - final))
        axes.set(xscale="log", title=f"{params:,} parameters", xlabel="training tokens")
    panels[0].set_ylabel("validation loss [nats a token]")
    return _finished(figure, panels[0], *panels[1:])


def kappa_figure(rows: Sequence[Any]) -> Figure | None:
    """Final loss against kappa, the hummingbird on a language model; None where kappa was not varied."""
    by_opt: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.get("final_loss") is not None and row.get("kappa") is not None and "dana" in row["opt"]:
            by_opt[f"{row['opt']}, {row['params']:,} parameters"][row["kappa"]].append(row["final_loss"])
    varied = {name: losses for name, losses in by_opt.items() if len(losses) > 2}
    if not varied:
        return None
    figure, axes = _figure("kappa", LOSS)
    for name, losses in varied.items():
        opt = name.split(",")[0]
        _points(axes, opt, sorted(losses.items()), label=name, line=True)
    return _finished(figure, axes)


def _curve(axes: Axes, tuned: Tuned) -> tuple[float, float]:
    """Draw one optimizer's curve; returns its last and its first loss."""
    runs = [[row for row in read_rows(Path(run["curve"])) if "val/loss" in row] for run in tuned.runs]
    length = min(map(len, runs))
    x = [point["tokens"] for point in runs[0][:length]]
    y = np.array([[point["val/loss"] for point in run[:length]] for run in runs])
    color = optimizer_color(tuned.opt)
    axes.plot(x, y.mean(axis=0), color=color, label=tuned.opt, linewidth=1.2)
    axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=color, alpha=0.2, linewidth=0)
    return float(y.mean(axis=0)[-1]), float(y.mean(axis=0)[0])


def _points(
    axes: Axes, opt: str, groups: Sequence[tuple[float, list[float]]], label: str | None = None, line: bool = False
) -> None:
    """Means of groups of values, with bars from the lowest to the highest."""
    x, means = [at for at, _ in groups], [float(np.mean(values)) for _, values in groups]
    color = optimizer_color(opt)
    axes.plot(x, means, marker="o", markersize=4, linestyle="-" if line else "", color=color, label=label or opt)
    axes.vlines(x, [min(values) for _, values in groups], [max(values) for _, values in groups], color=color, alpha=0.7)


def _figure(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.2 * columns + 0.6, 3.0 * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


def _finished(figure: Figure, legend: Axes, *others: Axes) -> Figure:
    for axes in (legend, *others):
        axes.grid(True, which="both", alpha=0.25, linewidth=0.6)
        if axes.get_xscale() == "log":
            axes.xaxis.set_minor_formatter(NullFormatter())
    legend.legend(frameon=False, fontsize=8)
    return figure


FIGURES: dict[str, tuple[Callable[..., Figure], str]] = {
    "loss-compute": (
        law_figure,
        "Final loss against compute. Lines are the fitted laws, dashed beyond what was measured.",
    ),
    "compute-saved": (
        saved_figure,
        "Compute saved at each size: how much sooner the baseline's final loss was reached.",
    ),
    "compute-saved-laws": (
        gain_figure,
        "Compute saved at equal loss, by the laws, over the losses that both measured.",
    ),
    "loss-curves": (curves_figure, "Validation loss over training, at each size and the best learning rate."),
    "lr-law": (lr_law_figure, "The best learning rate of each size, and the law through the best few."),
    "residuals": (residual_figure, "Distance of each run from its law."),
}
"""Figures of an analysis, by file name, with what they show."""
