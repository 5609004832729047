"""The figures of tuning: loss against learning rate, and its curvature."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from danalab.colors import optimizer_color
from danalab.ladder.fit.tuning import diverged_trials, rate_trials
from danalab.report.data import MissingFigure, ReportData, is_finished
from danalab.report.figures.drawing import (
    SIZE,
    SOFT,
    TALLEST,
    at_the_edge,
    canvas,
    counts,
    fraction,
    group,
    is_leftmost,
    legend,
    look,
    panels,
    short,
    styled,
    widen,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def sensitivity_figure(data: ReportData) -> Figure | MissingFigure:
    """Final loss above the best trial against the multiplier of the learning-rate law, one panel per size."""
    found = data.analysis
    sizes = sorted({each.params for each in found.tuned if len(each.rates) > 1})
    if not sizes:
        return MissingFigure(
            "several learning rates at a size: danalab ladder with multipliers, or danalab sweep --grid lr=..."
        )
    figure, places = panels(len(sizes))
    for axes, params in zip(places, sizes, strict=True):
        lines = {opt: line for opt in found.opts if (line := _trials(data, opt, params))}
        top = _top(lines.values())
        for opt, line in lines.items():
            inside = [(x, [y for y in losses if y <= top]) for x, losses in line]
            group(axes, opt, [(x, losses) for x, losses in inside if losses], opt, linestyle="-", linewidth=1.1)
            outside = [x for x, losses in line if min(losses) > top]
            at_the_edge(axes, outside, optimizer_color(opt))
            _parabola(axes, data, opt, params, [x for x, _ in line], top)
        axes.set(xscale="log", title=f"{short(params)} parameters", xlabel="multiplier of the learning-rate law")
        lowest = min(loss for line in lines.values() for _, losses in line for loss in losses)
        axes.set_ylim(min(-0.05 * top, 1.2 * lowest), 1.08 * top)
        shown = [x for line in lines.values() for x, losses in line if min(losses) <= top]
        near = {x for line in lines.values() for x, _ in line if min(shown) / 4 <= x <= 4 * max(shown)}
        widen(axes.xaxis, sorted(near))
        counts(axes.xaxis, near, words=fraction)
        if is_leftmost(axes):
            axes.set_ylabel("loss above best trial [nats/token]")
    legend(figure)
    return figure


@styled
def curvature_figure(data: ReportData) -> Figure | MissingFigure:
    """Curvature of the final loss in the logarithm of the learning rate."""
    found = data.analysis
    if not found.shared_curvatures and not any(found.curvatures.values()):
        return MissingFigure(
            "three learning rates at two sizes, or five at one, with the best one inside: danalab ladder with "
            "multipliers: [0.25, 0.5, 1, 2, 4]"
        )
    figure, axes = canvas(SIZE, "curvature [nats/token per squared e-fold]")
    sizes = sorted({each.params for each in found.tuned})
    for opt in found.opts:
        color, shared = optimizer_color(opt), found.shared_curvatures.get(opt)
        if shared is not None:
            low, high = max(shared.interval.low, 0.0), shared.interval.high
            style = "-" if shared.is_known else ":"
            axes.hlines(shared.curvature, sizes[0], sizes[-1], color=color, linewidth=1.2, linestyle=style)
            if shared.is_known:
                axes.fill_between([sizes[0], sizes[-1]], low, high, color=color, alpha=0.1, linewidth=0)
        own = found.curvatures.get(opt, {})
        if own or shared is not None:
            axes.plot(list(own), [each.curvature for each in own.values()], label=opt, linewidth=0, **look(opt))
    axes.set_xscale("log")
    highest = [each.curvature for own in found.curvatures.values() for each in own.values()]
    highest += [
        min(each.interval.high, 2 * each.curvature) if each.is_known else each.curvature
        for each in found.shared_curvatures.values()
    ]
    axes.set_ylim(0, 1.15 * max(highest))
    widen(axes.xaxis, sizes)
    counts(axes.xaxis, sizes)
    shared = [Line2D([], [], color=SOFT, linewidth=1.2, label="shared by all sizes, 95% band")]
    legend(figure, *(shared if found.shared_curvatures else ()))
    return figure


def _trials(data: ReportData, opt: str, params: int) -> list[tuple[float, list[float]]]:
    """(multiplier, losses above the optimizer's best mean, over seeds); infinite where a loss was not finite.

    Of the longest horizon; all but the learning rate as in the tuned run.
    """
    tuned = [each for each in data.analysis.at(opt) if each.params == params]
    if not tuned:
        return []
    longest = max(tuned, key=lambda each: each.tokens)
    trials = rate_trials([row for row in data.rows if is_finished(row)], longest)
    lost = diverged_trials(data.rows, longest)
    rates: dict[float, list[float]] = defaultdict(list)
    for row in (*longest.runs, *(row for row in trials if row not in longest.runs), *lost):
        rates[row["lr_multiplier"] or row["lr"]].append(row["final_loss"] if is_finished(row) else math.inf)
    means = [float(np.mean(losses)) for losses in rates.values() if all(map(math.isfinite, losses))]
    if not means:
        return []
    return [(rate, [loss - min(means) for loss in losses]) for rate, losses in sorted(rates.items())]


def _top(lines: Iterable[list[tuple[float, list[float]]]]) -> float:
    """The upper limit of a panel of losses above the best, so that one bad run does not flatten the others."""
    means = [sorted(float(np.mean(losses)) for _, losses in line) for line in lines]
    others = [loss for line in means for loss in line[1:] if math.isfinite(loss)]
    return min(max(others), TALLEST * float(np.median(others))) if others else 1.0


def _parabola(axes: "Axes", data: ReportData, opt: str, params: int, tried: Sequence[float], top: float) -> None:
    """The fitted parabola, where there are rates enough for one."""
    curvature = data.analysis.curvatures.get(opt, {}).get(params)
    tuned = [each for each in data.analysis.at(opt) if each.params == params]
    if curvature is None or not tuned or not tuned[0].lr_multiplier:
        return
    per_multiplier = tuned[0].lr / tuned[0].lr_multiplier
    x = np.geomspace(min(tried), max(tried), 50)
    y = curvature.best_loss - tuned[0].loss + curvature.curvature * np.log(x * per_multiplier / curvature.best_lr) ** 2
    inside = y <= top
    axes.plot(x[inside], y[inside], color=optimizer_color(opt), linewidth=0.9, linestyle=":")
