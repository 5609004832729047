"""Figures that are made to be read: labelled axes with units, one colour an optimizer, log axes for power laws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter, NullLocator

from danalab.report.colors import optimizer_color
from danalab.report.curves import Point, RunCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES: dict[str, tuple[str, Callable[[Point], float]]] = {
    "tokens": ("training tokens", lambda point: point.tokens),
    "flops": ("training compute [FLOPs]", lambda point: point.flops),
    "step": ("optimizer steps", lambda point: point.step),
}
"""Horizontal axes: label with unit, and where a point stands on it."""


def loss_figure(curves: Sequence[RunCurve], axis: str = "tokens", baseline: RunCurve | None = None) -> Figure:
    """Validation loss against tokens, compute or steps.

    Runs that differ in nothing but the seed are drawn as one: mean line, band from lowest to highest. The baseline's
    final loss is a dotted line, so that the eye finds where the others cross it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.5), layout="constrained")
    axes = figure.add_subplot()
    label, position = AXES[axis]
    groups = _by_settings(curves)
    for name, runs in groups.items():
        _draw_group(axes, name, runs, position)
    if baseline is not None:
        axes.axhline(baseline.final.val_loss, color=optimizer_color(baseline.opt), linestyle=":", linewidth=1)
        axes.annotate(
            f"final loss of {baseline.opt}",
            (0.01, baseline.final.val_loss),
            xycoords=("axes fraction", "data"),
            va="bottom",
            fontsize=8,
            color=optimizer_color(baseline.opt),
        )
    axes.set(xscale="log", xlabel=label, ylabel="validation loss [nats a token]")
    _zoom(axes, curves, position)
    _label_log_axis(axes)
    axes.grid(True, which="both", alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False, loc="upper right")
    return figure


def lr_figure(curves: Sequence[RunCurve]) -> Figure:
    """Final validation loss against peak learning rate: how each optimizer was tuned, and how sharply it minds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.5), layout="constrained")
    axes = figure.add_subplot()
    by_opt: dict[str, list[RunCurve]] = defaultdict(list)
    for curve in curves:
        by_opt[curve.opt].append(curve)
    for opt, runs in by_opt.items():
        runs = sorted(runs, key=lambda run: run.config["config"]["lr"])
        rates = [run.config["config"]["lr"] for run in runs]
        losses = [run.final.val_loss for run in runs]
        axes.plot(rates, losses, marker="o", color=optimizer_color(opt), label=f"{opt} ({len(runs)} trials)")
    axes.set(xscale="log", xlabel="peak learning rate", ylabel="final validation loss [nats a token]")
    tried = sorted({curve.config["config"]["lr"] for curve in curves})
    axes.set_xticks(tried, [f"{rate:.3g}" for rate in tried])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(True, which="both", alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False)
    return figure


def _by_settings(curves: Sequence[RunCurve]) -> dict[str, list[RunCurve]]:
    """Runs grouped by optimizer and learning rate; a group is named by its optimizer where that says enough."""
    groups: dict[tuple[str, float], list[RunCurve]] = defaultdict(list)
    for curve in curves:
        groups[curve.opt, curve.config["config"]["lr"]].append(curve)
    opts = [opt for opt, _ in groups]
    named: dict[str, list[RunCurve]] = {}
    for (opt, lr), runs in groups.items():
        name = opt if opts.count(opt) == 1 else f"{opt}, lr {lr:.3g}"
        named[f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name] = runs
    return named


def _draw_group(axes: Axes, name: str, runs: list[RunCurve], position: Callable[[Point], float]) -> None:
    color = optimizer_color(runs[0].opt)
    shared = set.intersection(*({point.step for point in run.points} for run in runs))
    picked = [[point for point in run.points if point.step in shared and point.tokens > 0] for run in runs]
    x = [position(point) for point in picked[0]]
    losses = np.array([[point.val_loss for point in points] for points in picked])
    axes.plot(x, losses.mean(axis=0), color=color, label=name, marker="o", markersize=2.5, linewidth=1.6)
    if len(runs) > 1:
        axes.fill_between(x, losses.min(axis=0), losses.max(axis=0), color=color, alpha=0.2, linewidth=0)


def _zoom(axes: Axes, curves: Sequence[RunCurve], position: Callable[[Point], float]) -> None:
    """Leave the first fall from ln(vocabulary) out of the picture: the question is decided below it."""
    points = [point for curve in curves for point in curve.points if point.tokens > 0]
    losses = [point.val_loss for point in points]
    lowest = min(losses)
    final = max(curve.final.val_loss for curve in curves)
    top = max(final + 0.1, min(max(losses), lowest + 0.45 * (max(losses) - lowest)))
    axes.set_ylim(lowest - 0.03 * (top - lowest), top)
    shown = [position(point) for point in points if point.val_loss <= top]
    axes.set_xlim(0.9 * min(shown), 1.1 * max(shown))


def _label_log_axis(axes: Axes) -> None:
    """Labels at 1, 2 and 5 of each decade, and nowhere else: minor labels run into each other."""
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(9, 9)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; returns both paths."""
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    figure.savefig(png, dpi=160)
    with matplotlib.rc_context({"svg.hashsalt": "danalab"}):
        figure.savefig(svg, metadata={"Date": None})
    return [png, svg]
