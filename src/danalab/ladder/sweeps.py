"""Sweeps of kappa and gamma3: final loss against each value, at its best learning rate."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.ladder.figures import TALLEST, at_the_edge
from danalab.optim.settings import LogTime
from danalab.report.data import MissingFigure, ReportData, Row
from danalab.report.figures import drawing
from danalab.report.formats import short
from danalab.scaling.optimizers import OMEGA
from danalab.sweep.rows import has_diverged, is_usable

SWEPT = {"kappa": LogTime.kappa, "gamma3": None, "delta": LogTime.delta, "clipsnr": None, "omega": OMEGA}
"""Settings that sweeps vary, with their defaults."""
LEAST_VALUES = 3  # values of a setting that make a sweep


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


@drawing.styled
def _sweep(data: ReportData, name: str, label: str, log: bool = False) -> Figure | MissingFigure:
    lines = _sweep_lines(data, name)
    if not lines:
        flag = name.replace("_", "-")
        return MissingFigure(
            f"{LEAST_VALUES} values of {name} at a size: "
            f"danalab sweep --grid opt=adana {flag}={'0.25,0.5,1,2' if log else '0.5,0.7,0.85,1'} lr-multiplier=0.5,1,2"
        )
    bests = _bests(lines) if log else {}
    ticks = sorted({value for values in lines.values() for value in values})
    if bests:
        figure, (axes, right) = drawing.panels(2, columns=2, each=(4.3, 3.7))
        axes.set(xlabel=label, ylabel="final " + drawing.LOSS)
        has_law = _draw_bests(right, bests, r"\gamma_3", ticks)
    else:
        (figure, axes), has_law = drawing.canvas(label, "final " + drawing.LOSS), False
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
        drawing.group(
            axes, line.opt, best, line.words, linestyle=next(shades) if len(lines) > 1 else "-", linewidth=1.2
        )
    _draw_baseline(axes, data, name)
    bests_of = {line: {value: _mean(losses[0]) for value, losses in lines[line].items()} for line in lines}
    finite = [loss for values in bests_of.values() for loss in values.values() if math.isfinite(loss)]
    # Losses of values that hardly train are above the figure.
    top = min(finite) + TALLEST * max(float(np.median(finite)) - min(finite), 0.02)
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, top))
    for line, values in bests_of.items():
        at_the_edge(axes, [value for value, loss in values.items() if loss > top], optimizer_color(line.opt))
    if log:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.set_xticks([], minor=True)
    edges = any(value in (ticks[0], ticks[-1]) for points in bests.values() for _, value in points)
    more = drawing.hollow_handles("outermost value tried", edges)
    drawing.legend(figure, *(drawing.law_handles() if has_law else ()), *more)
    return figure


def _draw_baseline(axes: Axes, data: ReportData, name: str) -> None:
    """The baseline's loss as a line, where all runs of the sweep have one size and horizon, and it was not swept."""
    analysis, swept = data.analysis, varied(data.rows)
    places = {(row["params"], row["tokens"]) for row in data.rows
              if is_usable(row) and name in swept.get(row["opt"], [])}  # fmt: skip
    here = [each for each in analysis.at(analysis.baseline) if places == {(each.params, each.tokens)}]
    if here and name not in swept.get(analysis.baseline, []):
        color = optimizer_color(analysis.baseline)
        axes.axhline(here[0].loss, color=color, linewidth=1.2, linestyle=":", label=analysis.baseline)


def _draw_bests(axes: Axes, bests: dict[str, list[tuple[float, float]]], symbol: str, tried: Sequence[float]) -> bool:
    """The best value against the horizon, with the power law through it where it moves at all; whether it does."""
    for opt, points in bests.items():
        steps, values = (np.array(column, float) for column in zip(*points, strict=True))
        label = opt
        if np.ptp(values) > 0:
            slope, level = np.polyfit(np.log(steps), np.log(values), 1)
            law = lambda x, a=level, b=slope: np.exp(a + b * np.log(x))  # noqa: E731
            drawing.law_lines(axes, optimizer_color(opt), law, steps.min(), steps.max())
            label = f"{opt}: best ${symbol} \\sim T^{{{slope:.2f}}}$"
        axes.plot(steps, values, linestyle="", label=label, **drawing.look(opt))
        edge = np.isin(values, [min(tried), max(tried)])
        drawing.hollow(axes, steps[edge], values[edge], drawing.look(opt)["color"], drawing.look(opt)["marker"])
    axes.set(xscale="log", yscale="log", xlabel="optimizer steps T", ylabel=f"best ${symbol}$")
    axes.set_ylim(min(tried) / 1.2, max(tried) * 1.2)
    axes.set_yticks(tried, [f"{value:g}" for value in tried])
    axes.set_yticks([], minor=True)
    drawing.counts(axes.xaxis)
    return any(np.ptp([value for _, value in points]) > 0 for points in bests.values())


def _bests(lines: Sweep) -> dict[str, list[tuple[float, float]]]:
    """Optimizer -> (steps, best value) of each horizon, where there are three horizons or more."""
    bests: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line, values in lines.items():
        if line.steps is not None:
            bests[line.opt].append((line.steps, min(values, key=lambda value: _mean(values[value][0]))))
    return {opt: points for opt, points in bests.items() if len({steps for steps, _ in points}) >= LEAST_VALUES}


def _sweep_lines(data: ReportData, name: str) -> Sweep:
    """The lines of a setting's sweep, one for each size, horizon and value of other swept settings."""
    swept = varied(data.rows)
    cells: dict[Line, dict[float, dict[float, list[float]]]] = {}
    for row in data.rows:
        if name not in swept.get(row["opt"], []) or not (is_usable(row) or has_diverged(row)):
            continue
        if (value := _value(row, name)) is not None:
            others = [other for other in swept[row["opt"]] if other != name]
            line = Line(row["opt"], _words(row, others), setting(row, "iterations"))
            rates = cells.setdefault(line, {}).setdefault(value, {})
            rates.setdefault(row["lr"], []).append(row["final_loss"] if is_usable(row) else math.inf)
    return {
        line: {value: _best_first(list(rates.values())) for value, rates in values.items()}
        for line, values in cells.items()
        if len(values) >= LEAST_VALUES
    }


def _value(row: Row, name: str) -> float | None:
    from danalab.optim import optimizer_spec

    value = setting(row, name)
    if value is None:
        known = optimizer_spec(row["opt"]).settings.get(name)
        value = None if known is None else known.default
    return None if value is None else float(value)


def _words(row: Row, others: Sequence[str]) -> str:
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


def setting(row: Row, name: str) -> Any:
    """A setting of a run, from its row or its settings."""
    return row[name] if row.get(name) is not None else row.get("settings", {}).get(name)


def varied(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Optimizer -> settings of `SWEPT` that have several values among its runs."""
    return {
        opt: [name for name in SWEPT if len({setting(row, name) for row in rows if row["opt"] == opt}) > 1]
        for opt in dict.fromkeys(row["opt"] for row in rows)
    }
