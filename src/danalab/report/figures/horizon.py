"""Figures of a ladder with several horizons or batches: token multipliers, final losses and rates against these."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.ladder.fit.tuning import horizon_of
from danalab.ladder.horizon import HorizonAnalysis
from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures import drawing
from danalab.report.formats import fraction, short

HORIZON = "horizon f = tokens / (20 parameters)"
_MISSING = MissingFigure("several horizons of two optimizers at one size: danalab ladder with horizons")


@drawing.styled
def multiplier_figure(data: ReportData) -> Figure | MissingFigure:
    """Token multiplier against the horizon, one panel per size, with the law of all sizes."""
    horizon = data.analysis.horizon
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
    horizon = data.analysis.horizon
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
    if analysis.batches is None:
        return MissingFigure("several batches at equal tokens: danalab ladder with batches")
    rungs = analysis.batches.rungs
    figure, places = drawing.panels(2 * len(rungs), columns=2, each=(4.0, 3.5))
    for rung, losses, rates in zip(rungs, places[::2], places[1::2], strict=True):
        for opt in analysis.opts:
            mine = [each for each in rung if each.opt == opt]
            batches, lr = [each.batch for each in mine], [each.lr for each in mine]
            drawing.group(losses, opt, [(each.batch, [row["final_loss"] for row in each.runs]) for each in mine], opt)
            rates.plot(batches, lr, linestyle="", **drawing.look(opt))
            law = analysis.rate_exponents.get(opt)
            if mine and law is not None and "T" in law.exponents:
                line = np.exp(np.mean(np.log(lr)) + law.exponents["T"] * (np.log(batches) - np.mean(np.log(batches))))
                rates.plot(batches, line, color=optimizer_color(opt), linewidth=1.0, alpha=0.7)
        title = f"{short(rung[0].params)} parameters, f = {horizon_of(rung[0].runs[0]):.3g}"
        for axes in (losses, rates):
            axes.set(title=title, xlabel="batch [sequences per step]", xscale="log", yscale="log")
            drawing.widen(axes.xaxis, [each.batch for each in rung])
            drawing.counts(axes.xaxis, {each.batch for each in rung})
        drawing.plain(losses.yaxis)
        drawing.powers(rates.yaxis)
        losses.set_ylabel("final " + drawing.LOSS)
        rates.set_ylabel("best learning rate")
    alone = any(len(each.runs) == 1 for each in analysis.batches.tuned)
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
