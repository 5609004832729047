"""Sweeps of kappa and gamma3: final loss against each value, at its best learning rate."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.report.data import SWEPT, MissingFigure, ReportData, Row, has_diverged, is_finished, setting, varied
from danalab.report.figures.drawing import (
    LOSS,
    TALLEST,
    at_the_edge,
    canvas,
    counts,
    group,
    hollow,
    hollow_handle,
    law_handles,
    law_lines,
    legend,
    look,
    panels,
    short,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_VALUES = 3
"""Values of a setting that make a sweep."""


@dataclass(frozen=True)
class Line:
    """A line of a sweep figure."""

    opt: str
    words: str
    """Its name: the common settings of the runs apart from the swept one."""
    steps: int | None


Sweep = dict[Line, dict[float, list[list[float]]]]
"""Line -> value -> final losses of each learning rate, the best first, each a list over seeds."""


def kappa_figure(data: ReportData) -> Figure | MissingFigure:
    """Final loss against kappa, each at its best learning rate: the hummingbird on a language model."""
    return _sweep(data, "kappa", r"$\kappa$ (damping of the long momentum, $(1+t)^{1-\kappa}$)")


def gamma3_figure(data: ReportData) -> Figure | MissingFigure:
    """Final loss against gamma3, each at its best learning rate; with several horizons also its best value's law."""
    return _sweep(data, "gamma3", r"$\gamma_3$ (weight of the long momentum)", log=True)


@styled
def _sweep(data: ReportData, name: str, label: str, log: bool = False) -> Figure | MissingFigure:
    lines = _sweep_lines(data, name)
    if not lines:
        flag = name.replace("_", "-")
        return MissingFigure(
            f"{LEAST_VALUES} values of {name} at a size: "
            f"danalab sweep --grid opt=adana {flag}={'0.25,0.5,1,2' if log else '0.5,0.7,0.85,1'} lr-multiplier=0.5,1,2"
        )
    bests = _bests(lines) if log else {}
    figure, places = panels(2, columns=2, each=(4.3, 3.7)) if bests else (None, [])
    if figure is None:
        figure, axes = canvas(label, "final " + LOSS)
    else:
        axes = places[0]
        axes.set(xlabel=label, ylabel="final " + LOSS)
    shades = itertools.cycle(("-", "--", "-.", ":"))
    for line, values in lines.items():
        color = optimizer_color(line.opt)
        best = [(value, losses[0]) for value, losses in sorted(values.items()) if math.isfinite(max(losses[0]))]
        rest = [(value, loss) for value, losses in values.items() for others in losses[1:] for loss in others]
        rest = [(value, loss) for value, loss in rest if math.isfinite(loss)]
        axes.plot(
            [x for x, _ in rest], [y for _, y in rest], linestyle="", marker="o", markersize=2.4, alpha=0.45,
            color=color, markeredgewidth=0,
        )  # fmt: skip
        group(axes, line.opt, best, line.words, linestyle=next(shades) if len(lines) > 1 else "-", linewidth=1.2)
    _draw_baseline(axes, data, name)
    bests_of = {line: {value: _mean(losses[0]) for value, losses in lines[line].items()} for line in lines}
    top = _ceiling([loss for values in bests_of.values() for loss in values.values() if math.isfinite(loss)])
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, top))
    for line, values in bests_of.items():
        at_the_edge(axes, [value for value, loss in values.items() if loss > top], optimizer_color(line.opt))
    if log:
        axes.set_xscale("log")
    ticks = sorted({value for values in lines.values() for value in values})
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.set_xticks([], minor=True)
    has_law = bool(bests) and _draw_bests(places[1], bests, r"\gamma_3", ticks)
    edges = any(value in (ticks[0], ticks[-1]) for points in bests.values() for _, value in points)
    more = [hollow_handle("outermost value tried")] if edges else []
    legend(figure, *(law_handles() if has_law else ()), *more)
    return figure


def _draw_baseline(axes: "Axes", data: ReportData, name: str) -> None:
    """The baseline's loss as a line, where all runs of the sweep have one size and horizon, and it was not swept."""
    found, swept = data.analysis, varied(data.rows)
    places = {(row["params"], row["tokens"]) for row in data.rows
              if is_finished(row) and name in swept.get(row["opt"], [])}  # fmt: skip
    here = [each for each in found.at(found.baseline) if places == {(each.params, each.tokens)}]
    if here and name not in swept.get(found.baseline, []):
        axes.axhline(
            here[0].loss, color=optimizer_color(found.baseline), linewidth=1.2, linestyle=":", label=found.baseline
        )


def _draw_bests(axes: "Axes", bests: dict[str, list[tuple[float, float]]], symbol: str, tried: Sequence[float]) -> bool:
    """The best value against the horizon, with the power law through it where it moves at all; whether it does."""
    for opt, points in bests.items():
        steps, values = (np.array(column, float) for column in zip(*points, strict=True))
        label = opt
        if np.ptp(values) > 0:
            slope, level = np.polyfit(np.log(steps), np.log(values), 1)
            law_lines(
                axes, optimizer_color(opt), lambda x, a=level, b=slope: np.exp(a + b * np.log(x)),
                steps.min(), steps.max(),
            )  # fmt: skip
            label = f"{opt}: best ${symbol} \\sim T^{{{slope:.2f}}}$"
        axes.plot(steps, values, linestyle="", label=label, **look(opt))
        edge = np.isin(values, [min(tried), max(tried)])
        hollow(axes, steps[edge], values[edge], look(opt)["color"], look(opt)["marker"])
    axes.set(xscale="log", yscale="log", xlabel="optimizer steps T", ylabel=f"best ${symbol}$")
    axes.set_ylim(min(tried) / 1.2, max(tried) * 1.2)
    axes.set_yticks(tried, [f"{value:g}" for value in tried])
    axes.set_yticks([], minor=True)
    counts(axes.xaxis)
    return any(np.ptp([value for _, value in points]) > 0 for points in bests.values())


def _bests(lines: Sweep) -> dict[str, list[tuple[float, float]]]:
    """Optimizer -> (steps, best value) of each horizon, where there are three horizons or more."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line, values in lines.items():
        if line.steps is not None:
            found[line.opt].append((line.steps, min(values, key=lambda value: _mean(values[value][0]))))
    return {opt: points for opt, points in found.items() if len({steps for steps, _ in points}) >= LEAST_VALUES}


def _sweep_lines(data: ReportData, name: str) -> Sweep:
    """The lines of a setting's sweep, one for each size, horizon and value of other swept settings."""
    swept = varied(data.rows)
    cells: dict[Line, dict[float, dict[float, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in data.rows:
        if not (is_finished(row) or has_diverged(row)) or name not in swept.get(row["opt"], []):
            continue
        others = [other for other in swept[row["opt"]] if other != name]
        value = _value(row, name)
        if value is not None:
            line = Line(row["opt"], _words(row, others), setting(row, "iterations"))
            cells[line][value][row["lr"]].append(row["final_loss"] if is_finished(row) else math.inf)
    return {
        line: {value: _best_first(list(rates.values())) for value, rates in values.items()}
        for line, values in cells.items()
        if len(values) >= LEAST_VALUES
    }


def _value(row: Row, name: str) -> float | None:
    """The value of a setting, or the optimizer's default."""
    from danalab.optim import optimizer_spec

    value = setting(row, name)
    if value is None:
        known = optimizer_spec(row["opt"]).settings.get(name)
        value = None if known is None else known.default
    return None if value is None else float(value)


def _words(row: Row, others: Sequence[str]) -> str:
    """The name of a line of a sweep."""
    said = [f"{name} {_value(row, name):g}" for name in others if setting(row, name) != SWEPT[name]]
    steps = setting(row, "iterations")
    horizon = [] if steps is None else [f"{steps:,} steps"]
    return ", ".join([row["opt"], *said, f"{short(row['params'])} parameters", *horizon])


def _best_first(rates: list[list[float]]) -> list[list[float]]:
    """Losses of several learning rates; the best is one of those with the most seeds."""
    most = max(map(len, rates))
    best = min((losses for losses in rates if len(losses) == most), key=_mean)
    return [best, *(losses for losses in rates if losses is not best)]


def _mean(losses: Sequence[float]) -> float:
    return float(np.mean(losses)) if math.isfinite(max(losses)) else math.inf


def _ceiling(losses: Sequence[float]) -> float:
    """The upper limit of a figure: losses of values that hardly train are above it."""
    low = min(losses)
    return low + TALLEST * max(float(np.median(losses)) - low, 0.02)
