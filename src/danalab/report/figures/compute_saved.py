"""The figures of compute: saved at each size, at equal loss by the laws and beside the losses (the headline); spent."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from danalab.colors import optimizer_color
from danalab.ladder.analysis import Analysis
from danalab.ladder.saving import compute_gain
from danalab.report.data import LEAST_SEEDS, PARTS, MissingFigure, ReportData, relative_time, spent
from danalab.report.figures import drawing
from danalab.report.figures.loss_laws import draw_laws


@drawing.styled
def saved_figure(data: ReportData) -> Figure | MissingFigure:
    """Compute saved against size, with intervals over seeds."""
    analysis = data.analysis
    if not any(analysis.saved.values()):
        return MissingFigure(f"runs of {analysis.baseline} and of another optimizer at the same size: danalab ladder")
    figure, axes = drawing.canvas(drawing.SIZE, "")
    draw_saved(axes, analysis, f"{analysis.baseline} (baseline)")
    drawing.legend(figure, *few_seeds(analysis))
    return figure


@drawing.styled
def gain_figure(data: ReportData) -> Figure | MissingFigure:
    """Compute saved at equal loss, by the laws, over the losses that both measured, and dashed beyond."""
    analysis = data.analysis
    if not analysis.gains:
        return MissingFigure("loss laws of two optimizers: finished runs at four sizes or more")
    figure, axes = drawing.canvas(
        f"{analysis.baseline}'s compute at the same loss [FLOPs]", f"compute saved against {analysis.baseline}"
    )
    axes.axhline(0, color=optimizer_color(analysis.baseline), linewidth=1.4, label=f"{analysis.baseline} (baseline)")
    base, seen = analysis.loss_laws[analysis.baseline], [0.0]
    for opt, gain in analysis.gains.items():
        color, inside = optimizer_color(opt), [point for point in gain.points if not point.extrapolated]
        axes.plot([p.baseline_compute for p in inside], [p.saved for p in inside], color=color, label=opt)
        bounds = [(p.baseline_compute, p.interval.low, p.interval.high) for p in inside if p.interval is not None]
        if bounds:
            axes.fill_between(*np.array(bounds).T, color=color, alpha=0.12, linewidth=0)
        start = max(p.baseline_compute for p in inside)
        further = base(np.geomspace(start, drawing.EXTRAPOLATED * base.measured[0][1], 20))
        beyond = compute_gain(base, analysis.loss_laws[opt], further).points
        seen += [p.saved for p in (*inside, *beyond)]
        seen += [bound for p in inside if p.interval for bound in (p.interval.low, p.interval.high) if abs(bound) < 0.6]
        axes.plot(
            [p.baseline_compute for p in beyond], [p.saved for p in beyond],
            color=color, linewidth=1.2, linestyle=drawing.DASHED, alpha=0.8,
        )  # fmt: skip
    _limit(axes, seen)
    axes.set_xscale("log")
    drawing.powers(axes.xaxis)
    drawing.percent(axes.yaxis, signed=True)
    drawing.legend(figure, drawing.law_handles()[1])
    return figure


@drawing.styled
def headline_figure(data: ReportData) -> Figure:
    """The two main panels: loss against compute, compute saved against size."""
    analysis = data.analysis
    figure, (left, right) = drawing.panels(2, columns=2, each=(4.3, 3.7))
    draw_laws(left, analysis)
    draw_saved(right, analysis)
    drawing.legend(figure, *(drawing.law_handles() if analysis.compute_laws else ()), *few_seeds(analysis))
    return figure


def draw_saved(axes: Axes, analysis: Analysis, named: str | None = None) -> None:
    """Compute saved at each size with 95% intervals; hollow where there are too few seeds. `named`: as the baseline."""
    contenders = [opt for opt in analysis.opts[1:] if analysis.saved.get(opt)]
    values = [0.0]
    axes.axhline(0, color=optimizer_color(analysis.baseline), linewidth=1.4, label=named)
    for position, opt in enumerate(contenders):
        factor = drawing.aside(position, len(contenders))
        sizes = sorted(analysis.saved[opt].items())
        results = [(each.saved, each.interval) for _, each in sizes]
        drawing.estimates(axes, [params * factor for params, _ in sizes], results, opt, linewidth=1.2)
        values += [value for value, _ in results]
        values += [bound for _, interval in results if interval for bound in (interval.low, interval.high)]
    _limit(axes, values)
    axes.set(xscale="log", xlabel=drawing.SIZE, ylabel=f"compute saved against {analysis.baseline}")
    every = [params for sizes in analysis.saved.values() for params in sizes]
    if every:
        drawing.widen(axes.xaxis, every)
        drawing.counts(axes.xaxis, every)
    drawing.percent(axes.yaxis, signed=True)


def few_seeds(analysis: Analysis) -> list[Line2D]:
    """The legend entry of hollow points, where there are any."""
    few = any(each.interval is None for sizes in analysis.saved.values() for each in sizes.values())
    return drawing.hollow_handles(f"fewer than {LEAST_SEEDS} seeds", few)


def _limit(axes: Axes, values: Sequence[float]) -> None:
    """Vertical limits around these values, between -100% and 100%: wide intervals are cut off."""
    low, high = max(min(values), -1.0), min(max(values), 1.0)
    span = max(high - low, 0.1)
    axes.set_ylim(low - 0.05 * span, low + 1.05 * span)


_STRENGTHS = {"trials": 0.45, "seeds": 1.0, "failed": 0.2}
_LABELS = {"trials": "learning-rate trials", "seeds": "chosen rate, all seeds", "failed": "no final loss"}


@drawing.styled
def cost_figure(data: ReportData) -> Figure | MissingFigure:
    """Device-hours of each optimizer, by what they were spent on, and the time of a token against the baseline's."""
    taken = {opt: mine for opt, mine in spent(data).items() if mine.total}
    if not taken:
        return MissingFigure("rows that say how many seconds a run took")
    figure, (left, right) = drawing.panels(2, columns=2, each=(4.3, 0.34 * len(taken) + 1.1))
    names = list(taken)[::-1]
    whole = max(mine.total for mine in taken.values())
    unit, scale = ("device-hours", 1.0) if whole >= 1 else ("device-minutes", 60.0)
    at = np.zeros(len(names))
    for part, strength in _STRENGTHS.items():
        values = np.array([taken[opt].hours[part] * scale for opt in names])
        left.barh(names, values, left=at, color=[optimizer_color(opt) for opt in names], alpha=strength, height=0.62)
        at += values
    for y, opt in enumerate(names):
        money = "" if data.dollars_per_hour is None else f"  ${taken[opt].total * data.dollars_per_hour:,.2f}"
        left.annotate(f" {at[y]:.3g}{money}", (at[y], y), va="center", fontsize=8.5, color=drawing.SOFT)
    left.set(xlabel=f"{unit}, evaluation apart", xlim=(0, 1.18 * max(at)))
    left.grid(False, axis="y")
    ratios = relative_time(data)
    names = [opt for opt in names if opt in ratios]
    right.barh(names, [ratios[opt] for opt in names], color=[optimizer_color(opt) for opt in names], height=0.62)
    for y, opt in enumerate(names):
        right.annotate(f" {ratios[opt]:.2f}", (ratios[opt], y), va="center", fontsize=8.5, color=drawing.SOFT)
    right.axvline(1, color=drawing.SOFT, linewidth=1, linestyle=":")
    right.set(
        xlabel=f"time a token over {data.analysis.baseline}'s", xlim=(0, 1.15 * max(ratios.values(), default=1.0))
    )
    right.grid(False, axis="y")
    shares = {part: Patch(color=drawing.SOFT, alpha=_STRENGTHS[part], label=_LABELS[part]) for part in PARTS}
    handles = [shares[part] for part in PARTS if any(mine.hours[part] for mine in taken.values())]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure
