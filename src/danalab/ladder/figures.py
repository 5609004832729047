"""Figures of studies: token multipliers, losses and rates against horizons and batches; sensitivity to the rate."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from danalab.colors import optimizer_color
from danalab.ladder.fit.tuning import diverged_trials, horizon_of, rate_trials
from danalab.ladder.horizon import HorizonAnalysis
from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures import drawing
from danalab.report.formats import fraction, short
from danalab.sweep.rows import is_usable

TALLEST = 5.0  # a panel of losses shows this many times the median excess; points above are drawn at its edge
_ABOVE = "above, or not finite"
HORIZON = "horizon f = tokens / (20 parameters)"
_MISSING = MissingFigure("several horizons of two optimizers at one size: danalab ladder with horizons")


@drawing.styled
def multiplier_figure(data: ReportData) -> Figure | MissingFigure:
    """Token multiplier against the horizon, one panel per size, with the law of all sizes."""
    horizon = data.analysis.studies.get("horizon")
    if horizon is None or not horizon.multipliers:
        return _MISSING
    sizes = sorted({each.params for each in horizon.multipliers})
    figure, places = drawing.panels(len(sizes), each=(3.6, 3.3))
    values = [value for each in horizon.multipliers for value in _shown(each.interval, each.value)]
    for axes, params in zip(places, sizes, strict=True):
        _multipliers(axes, horizon, params)
        axes.set(title=f"{short(params)} parameters", xlabel=HORIZON, xscale="log", yscale="log")
        axes.set_ylim(max(min(values), 0.2) / 1.06, min(max(values), 8.0) * 1.06)
        drawing.widen(axes.xaxis, [each.horizon for each in horizon.multipliers])
        drawing.counts(axes.xaxis, {each.horizon for each in horizon.multipliers}, fraction)
        drawing.plain(axes.yaxis)
        if drawing.is_leftmost(axes):
            axes.set_ylabel(f"tokens of {horizon.baseline} at equal loss\n/ tokens of the optimizer")
    unknown = any(each.interval is None for each in horizon.multipliers)
    drawing.legend(figure, *drawing.hollow_handles("noise not known", unknown))
    return figure


@drawing.styled
def horizon_loss_figure(data: ReportData) -> Figure | MissingFigure:
    """Final loss against the tokens of the whole run, one panel per size, with the law."""
    horizon = data.analysis.studies.get("horizon")
    if horizon is None:
        return _MISSING
    sizes = sorted({each.params for each in horizon.points})
    figure, places = drawing.panels(len(sizes), each=(3.6, 3.3))
    pairs = zip(data.analysis.tuned, horizon.points, strict=True)
    tokens_of = {point.params: each.tokens / point.horizon for each, point in pairs}
    for axes, params in zip(places, sizes, strict=True):
        for opt in data.analysis.opts:
            mine = [each for each in horizon.points if (each.opt, each.params) == (opt, params)]
            drawing.group(axes, opt, [(tokens_of[params] * each.horizon, each.losses) for each in mine], opt)
            if horizon.law is not None and opt in horizon.law.slopes and params in horizon.law.floors and len(mine) > 1:
                f = np.geomspace(min(each.horizon for each in mine), max(each.horizon for each in mine), 60)
                curve = [horizon.law(opt, params, each) for each in f]
                axes.plot(tokens_of[params] * f, curve, color=optimizer_color(opt), linewidth=1.2)
        axes.set(title=f"{short(params)} parameters", xlabel="training tokens of the run", xscale="log", yscale="log")
        drawing.counts(axes.xaxis)
        drawing.plain(axes.yaxis)
        if drawing.is_leftmost(axes):
            axes.set_ylabel("final " + drawing.LOSS)
    drawing.legend(figure, *drawing.hollow_handles("one seed", any(len(each.losses) == 1 for each in horizon.points)))
    return figure


@drawing.styled
def batch_figure(data: ReportData) -> Figure | MissingFigure:
    """Final loss and best learning rate against the batch at equal tokens, a pair of panels per size and horizon."""
    analysis = data.analysis
    batches = analysis.studies.get("batches")
    if batches is None:
        return MissingFigure("several batches at equal tokens: danalab ladder with batches")
    rungs, laws = batches.rungs, analysis.studies["exponents"]["lr"]
    figure, places = drawing.panels(2 * len(rungs), columns=2, each=(4.0, 3.5))
    for rung, losses, rates in zip(rungs, places[::2], places[1::2], strict=True):
        for opt in analysis.opts:
            mine = [each for each in rung if each.opt == opt]
            sizes, lr = [each.batch for each in mine], [each.lr for each in mine]
            drawing.group(losses, opt, [(each.batch, [row["final_loss"] for row in each.runs]) for each in mine], opt)
            rates.plot(sizes, lr, linestyle="", **drawing.look(opt))
            law = laws.get(opt)
            if mine and law is not None and "T" in law.exponents:
                line = np.exp(np.mean(np.log(lr)) + law.exponents["T"] * (np.log(sizes) - np.mean(np.log(sizes))))
                rates.plot(sizes, line, color=optimizer_color(opt), linewidth=1.0, alpha=0.7)
        title = f"{short(rung[0].params)} parameters, f = {horizon_of(rung[0].runs[0]):.3g}"
        for axes in (losses, rates):
            axes.set(title=title, xlabel="batch [sequences per step]", xscale="log", yscale="log")
            drawing.widen(axes.xaxis, [each.batch for each in rung])
            drawing.counts(axes.xaxis, {each.batch for each in rung})
        drawing.plain(losses.yaxis)
        drawing.powers(rates.yaxis)
        losses.set_ylabel("final " + drawing.LOSS)
        rates.set_ylabel("best learning rate")
    alone = any(len(each.runs) == 1 for each in batches.tuned)
    drawing.legend(figure, *drawing.hollow_handles("one seed", alone))
    return figure


def _multipliers(axes: Axes, horizon: HorizonAnalysis, params: int) -> None:
    """One size: points with intervals, and the law's line over the size's horizons."""
    axes.axhline(1, color=optimizer_color(horizon.baseline), linewidth=1.4, label=f"{horizon.baseline} (baseline)")
    opts = list(dict.fromkeys(each.opt for each in horizon.multipliers))
    for position, opt in enumerate(opts):
        mine = [each for each in horizon.multipliers if (each.opt, each.params) == (opt, params)]
        mine.sort(key=lambda each: each.horizon)
        if not mine:
            continue
        factor = drawing.aside(position, len(opts))
        x = [each.horizon * factor for each in mine]
        drawing.estimates(axes, x, [(each.value, each.interval) for each in mine], opt, linestyle="")
        if horizon.law is not None:
            f = np.geomspace(mine[0].horizon, mine[-1].horizon, 40)
            line = np.exp([horizon.law.log_multiplier(opt, each) for each in f])
            axes.plot(f * factor, line, color=optimizer_color(opt), linewidth=1.0, alpha=0.7)


def _shown(interval: object, value: float) -> list[float]:
    low, high = getattr(interval, "low", value), getattr(interval, "high", value)
    return [value, *(bound for bound in (low, high) if 0.2 < bound < 8)]


@drawing.styled
def sensitivity_figure(data: ReportData) -> Figure | MissingFigure:
    """Final loss above the best trial against the multiplier of the learning-rate law, one panel per size."""
    analysis = data.analysis
    sizes = sorted({each.params for each in analysis.tuned if len(each.rates) > 1})
    if not sizes:
        return MissingFigure(
            "several learning rates at a size: danalab ladder with multipliers, or danalab sweep --grid lr=..."
        )
    figure, places = drawing.panels(len(sizes))
    for axes, params in zip(places, sizes, strict=True):
        lines = {opt: line for opt in analysis.opts if (line := _trials(data, opt, params))}
        top = _top(lines.values())
        for opt, line in lines.items():
            inside = [(x, [y for y in losses if y <= top]) for x, losses in line]
            drawing.group(axes, opt, [(x, losses) for x, losses in inside if losses], opt, linestyle="-", linewidth=1.1)
            outside = [x for x, losses in line if min(losses) > top]
            at_the_edge(axes, outside, optimizer_color(opt))
            _parabola(axes, data, opt, params, [x for x, _ in line], top)
        axes.set(xscale="log", title=f"{short(params)} parameters", xlabel="multiplier of the learning-rate law")
        lowest = min(loss for line in lines.values() for _, losses in line for loss in losses)
        axes.set_ylim(min(-0.05 * top, 1.2 * lowest), 1.08 * top)
        shown = [x for line in lines.values() for x, losses in line if min(losses) <= top]
        near = {x for line in lines.values() for x, _ in line if min(shown) / 4 <= x <= 4 * max(shown)}
        drawing.widen(axes.xaxis, sorted(near))
        drawing.counts(axes.xaxis, near, words=fraction)
        if drawing.is_leftmost(axes):
            axes.set_ylabel("loss above best trial [nats/token]")
    drawing.legend(figure)
    return figure


@drawing.styled
def curvature_figure(data: ReportData) -> Figure | MissingFigure:
    """Curvature of the final loss in the logarithm of the learning rate."""
    analysis = data.analysis
    if not analysis.shared_curvatures and not any(analysis.studies["curvature"].values()):
        return MissingFigure(
            "three learning rates at two sizes, or five at one, with the best one inside: danalab ladder with "
            "multipliers: [0.25, 0.5, 1, 2, 4]"
        )
    figure, axes = drawing.canvas(drawing.SIZE, "curvature [nats/token per squared e-fold]")
    sizes = sorted({each.params for each in analysis.tuned})
    for opt in analysis.opts:
        color, shared = optimizer_color(opt), analysis.shared_curvatures.get(opt)
        if shared is not None:
            low, high = max(shared.interval.low, 0.0), shared.interval.high
            style = "-" if shared.is_known else ":"
            axes.hlines(shared.curvature, sizes[0], sizes[-1], color=color, linewidth=1.2, linestyle=style)
            if shared.is_known:
                axes.fill_between([sizes[0], sizes[-1]], low, high, color=color, alpha=0.1, linewidth=0)
        own = analysis.studies["curvature"].get(opt, {})
        if own or shared is not None:
            axes.plot(list(own), [each.curvature for each in own.values()], label=opt, linewidth=0, **drawing.look(opt))
    axes.set_xscale("log")
    highest = [each.curvature for own in analysis.studies["curvature"].values() for each in own.values()]
    for each in analysis.shared_curvatures.values():
        highest.append(min(each.interval.high, 2 * each.curvature) if each.is_known else each.curvature)
    axes.set_ylim(0, 1.15 * max(highest))
    drawing.widen(axes.xaxis, sizes)
    drawing.counts(axes.xaxis, sizes)
    shared = [Line2D([], [], color=drawing.SOFT, linewidth=1.2, label="shared by all sizes, 95% band")]
    drawing.legend(figure, *(shared if analysis.shared_curvatures else ()))
    return figure


def _trials(data: ReportData, opt: str, params: int) -> list[tuple[float, list[float]]]:
    """(multiplier, losses above the optimizer's best mean, over seeds); infinite where a loss was not finite.

    Of the longest horizon; all but the learning rate as in the tuned run.
    """
    tuned = [each for each in data.analysis.at(opt) if each.params == params]
    if not tuned:
        return []
    longest = max(tuned, key=lambda each: each.tokens)
    trials = rate_trials([row for row in data.rows if is_usable(row)], longest)
    lost = diverged_trials(data.rows, longest)
    rates: dict[float, list[float]] = defaultdict(list)
    for row in (*longest.runs, *(row for row in trials if row not in longest.runs), *lost):
        rates[row["lr_multiplier"] or row["lr"]].append(row["final_loss"] if is_usable(row) else math.inf)
    means = [float(np.mean(losses)) for losses in rates.values() if all(map(math.isfinite, losses))]
    if not means:
        return []
    return [(rate, [loss - min(means) for loss in losses]) for rate, losses in sorted(rates.items())]


def _top(lines: Iterable[list[tuple[float, list[float]]]]) -> float:
    """The upper limit of a panel of losses above the best, so that one bad run does not flatten the others."""
    means = [sorted(float(np.mean(losses)) for _, losses in line) for line in lines]
    others = [loss for line in means for loss in line[1:] if math.isfinite(loss)]
    return min(max(others), TALLEST * float(np.median(others))) if others else 1.0


def at_the_edge(axes: Axes, x: Sequence[float], color: str) -> None:
    """Marks at the upper edge, for points above it or not finite."""
    if x:
        axes.plot(
            x, [0.985] * len(x), linestyle="", marker="x", color=color, markersize=6, markeredgewidth=1.4,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
        if _ABOVE not in axes.get_legend_handles_labels()[1]:
            axes.plot([], [], linestyle="", marker="x", color=drawing.SOFT, label=_ABOVE)


def _parabola(axes: Axes, data: ReportData, opt: str, params: int, tried: Sequence[float], top: float) -> None:
    """The fitted parabola, where there are rates enough for one."""
    curvature = data.analysis.studies["curvature"].get(opt, {}).get(params)
    tuned = [each for each in data.analysis.at(opt) if each.params == params]
    if curvature is None or not tuned or not tuned[0].lr_multiplier:
        return
    per_multiplier = tuned[0].lr / tuned[0].lr_multiplier
    x = np.geomspace(min(tried), max(tried), 50)
    y = curvature.best_loss - tuned[0].loss + curvature.curvature * np.log(x * per_multiplier / curvature.best_lr) ** 2
    inside = y <= top
    axes.plot(x[inside], y[inside], color=optimizer_color(opt), linewidth=0.9, linestyle=":")
