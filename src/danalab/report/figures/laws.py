"""The figures of laws and compute: loss against compute, compute saved at each size and by the laws, what was spent."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from danalab.colors import optimizer_color
from danalab.ladder.analysis import Analysis
from danalab.ladder.fit.tuning import Tuned
from danalab.ladder.rows import validation_points
from danalab.ladder.saving import LEAST_SEEDS, compute_gain
from danalab.report.data import PARTS, MissingFigure, ReportData, Row, relative_time, spent
from danalab.report.figures import drawing
from danalab.report.formats import short
from danalab.sweep.rows import is_usable


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
        xlabel=f"time per token over {data.analysis.baseline}'s", xlim=(0, 1.15 * max(ratios.values(), default=1.0))
    )
    right.grid(False, axis="y")
    shares = {part: Patch(color=drawing.SOFT, alpha=_STRENGTHS[part], label=_LABELS[part]) for part in PARTS}
    handles = [shares[part] for part in PARTS if any(mine.hours[part] for mine in taken.values())]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


ABOVE = 0.45  # share of the way from final to first loss that a loss curve shows: the rest is left out


@drawing.styled
def law_figure(data: ReportData) -> Figure:
    """Final loss against compute with its laws, and its distance from the baseline's at the same size."""
    analysis = data.analysis
    figure, (left, right) = drawing.panels(2, columns=2, each=(4.3, 3.7))
    draw_laws(left, analysis)
    _draw_distances(right, analysis)
    alone = any(len(each.runs) == 1 for each in analysis.tuned)
    lines = drawing.law_handles() if analysis.compute_laws else []
    drawing.legend(figure, *lines, *drawing.hollow_handles("one seed", alone))
    return figure


@drawing.styled
def curves_figure(data: ReportData) -> Figure:
    """Validation loss over training, one panel per size: mean over seeds, band from lowest to highest."""
    analysis = data.analysis
    sizes = sorted({each.params for each in analysis.tuned})
    figure, places = drawing.panels(len(sizes))
    for axes, params in zip(places, sizes, strict=True):
        here = [each for opt in analysis.opts for each in analysis.at(opt) if each.params == params]
        drawn = [_curve(axes, each) for each in here if _has_curves(each)]
        axes.set(title=f"{short(params)} parameters", xlabel="training tokens")
        if not drawn:
            continue
        finals, first = [y[-1] for _, y in drawn], max(y[0] for _, y in drawn)
        low = min(finals)
        top = max(low + ABOVE * (first - low), max(finals) + 0.1 * (first - low))
        axes.set_ylim(low - 0.04 * (top - low), top)
        base = [each for each in here if each.opt == analysis.baseline and _has_curves(each)]
        if base:
            axes.axhline(
                float(np.mean([_validation(row)[-1][1] for row in base[-1].runs])),
                color=optimizer_color(analysis.baseline), linewidth=1, linestyle=":",
                label=f"{analysis.baseline}'s last evaluation",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(0.93 * min(x[y <= top][0] for x, y in drawn), 1.05 * max(x[-1] for x, _ in drawn))
        drawing.counts(axes.xaxis)
        if drawing.is_leftmost(axes):
            axes.set_ylabel(drawing.LOSS)
    drawing.legend(figure)
    return figure


@drawing.styled
def lr_law_figure(data: ReportData) -> Figure | MissingFigure:
    """The best learning rate of each size, those within a share of its loss, all that were tried, and the law."""
    analysis = data.analysis
    if not any(len(each.rates) > 1 for each in analysis.tuned):
        return MissingFigure("several learning rates at three sizes or more: danalab ladder with multipliers")
    figure, axes = drawing.canvas("non-embedding parameters", "peak learning rate")
    for opt in analysis.opts:
        points, color = analysis.at(opt), optimizer_color(opt)
        tried = [row for row in data.rows if row["opt"] == opt and is_usable(row)]
        axes.plot(
            [row["non_emb_params"] for row in tried], [row["lr"] for row in tried],
            linestyle="", markersize=2.2, alpha=0.5, color=color, marker="o", markeredgewidth=0,
        )  # fmt: skip
        sizes = [float(p.non_emb_params) for p in points]
        axes.plot(sizes, [p.lr for p in points], linestyle="", label=opt, **drawing.look(opt))
        for params, tolerance in analysis.tolerances.get(opt, {}).items():
            at = next(p.non_emb_params for p in points if p.params == params)
            axes.vlines(at, tolerance.low, tolerance.high, color=color, linewidth=3.2, alpha=0.25)
        if opt in analysis.lr_laws:
            law = analysis.lr_laws[opt]
            samples = [replace(law, a=a, b=b, d=d) for a, b, d in law.samples]
            drawing.law_lines(axes, color, law, min(sizes), max(sizes), samples)
    axes.set(xscale="log", yscale="log")
    rates = [row["lr"] for row in data.rows if is_usable(row)]
    axes.set_ylim(0.6 * min(rates), 1.6 * max(rates))
    sizes = [each.non_emb_params for each in analysis.tuned]
    drawing.widen(axes.xaxis, [*sizes, drawing.EXTRAPOLATED * max(sizes)] if analysis.lr_laws else sizes)
    drawing.counts(axes.xaxis)
    drawing.powers(axes.yaxis)
    drawing.legend(figure, *(drawing.law_handles() if analysis.lr_laws else ()))
    return figure


@drawing.styled
def residual_figure(data: ReportData) -> Figure | MissingFigure:
    """Distance of each run from its law."""
    analysis = data.analysis
    if not analysis.loss_laws:
        return MissingFigure("laws of the loss: finished runs at four sizes or more of each optimizer")
    figure, axes = drawing.canvas(drawing.COMPUTE, "measured loss over its law, minus 1")
    axes.axhline(0, color=drawing.SOFT, linewidth=1)
    for position, (opt, law) in enumerate(analysis.loss_laws.items()):
        factor = drawing.aside(position, len(analysis.loss_laws))
        compute = [each.flops * factor for each in analysis.at(opt) for _ in each.runs]
        style = {"linestyle": "", "alpha": 0.8, "label": f"{opt} (R² {law.r2:.4f})", **drawing.look(opt)}
        axes.plot(compute, np.expm1(-law.residuals), **style)
    axes.set_xscale("log")
    drawing.powers(axes.xaxis)
    drawing.percent(axes.yaxis, signed=True)
    drawing.legend(figure)
    return figure


def draw_laws(axes: Axes, analysis: Analysis) -> None:
    """Final loss against compute: one point per size, bars over seeds, the laws with their 95% band."""
    for opt in analysis.opts:
        groups = [(each.flops, [row["final_loss"] for row in each.runs]) for each in analysis.at(opt)]
        drawing.group(axes, opt, groups, opt)
        if opt in analysis.compute_laws:
            law = analysis.compute_laws[opt]
            drawing.law_lines(axes, optimizer_color(opt), law, *law.measured[0], law.samples)
    axes.set(xscale="log", yscale="log", xlabel=drawing.COMPUTE, ylabel="final " + drawing.LOSS)
    reach = [each.flops for each in analysis.tuned]
    drawing.widen(axes.xaxis, [*reach, drawing.EXTRAPOLATED * max(reach)] if analysis.compute_laws else reach)
    drawing.powers(axes.xaxis)
    drawing.plain(axes.yaxis)


def _draw_distances(axes: Axes, analysis: Analysis) -> None:
    """Final loss minus the baseline's at the same size and horizon, bars over seeds."""
    base = {(each.params, each.tokens): each for each in analysis.at(analysis.baseline)}
    axes.axhline(0, color=optimizer_color(analysis.baseline), linewidth=1.4)
    spread = [(each.flops, [row["final_loss"] - each.loss for row in each.runs]) for each in base.values()]
    axes.fill_between(
        [x for x, _ in spread], [min(d) for _, d in spread], [max(d) for _, d in spread],
        color=optimizer_color(analysis.baseline), alpha=0.2, linewidth=0,
    )  # fmt: skip
    for position, opt in enumerate(analysis.opts[1:]):
        factor = drawing.aside(position, len(analysis.opts) - 1)
        both = [each for each in analysis.at(opt) if (each.params, each.tokens) in base]
        gaps = [[row["final_loss"] - base[each.params, each.tokens].loss for row in each.runs] for each in both]
        groups = zip([each.flops * factor for each in both], gaps, strict=True)
        drawing.group(axes, opt, groups, opt, linestyle="-", linewidth=1.0)
    axes.set(xscale="log", xlabel=drawing.COMPUTE, ylabel=f"final loss minus {analysis.baseline}'s [nats/token]")
    drawing.widen(axes.xaxis, [each.flops for each in analysis.tuned])
    drawing.powers(axes.xaxis)


def _curve(axes: Axes, tuned: Tuned) -> tuple[np.ndarray, np.ndarray]:
    """Draw one optimizer's curve; returns tokens and mean losses."""
    runs = [_validation(run) for run in tuned.runs]
    length = min(map(len, runs))
    x = np.array([tokens for tokens, _ in runs[0][:length]], float)
    y = np.array([[loss for _, loss in run[:length]] for run in runs])
    drawing.band(axes, x, y, optimizer_color(tuned.opt), label=tuned.opt, linewidth=1.3)
    return x, y.mean(axis=0)


def _has_curves(tuned: Tuned) -> bool:
    return all(_validation(row) for row in tuned.runs)


def _validation(row: Row) -> list[tuple[float, float]]:
    return [(point["tokens"], point["val/loss"]) for point in validation_points(row)]
