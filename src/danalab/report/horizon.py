"""Tables and figures of a ladder with several horizons: exponents, token multipliers, tests of pairs, budgets."""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.ladder.analysis import Analysis
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.horizon.analysis import REFERENCES, HorizonAnalysis
from danalab.ladder.horizon.budget import Budget
from danalab.ladder.horizon.paired import POWER, PairedTest
from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures.drawing import (
    LOSS,
    aside,
    counts,
    fraction,
    group,
    hollow,
    hollow_handle,
    is_leftmost,
    legend,
    look,
    panels,
    plain,
    short,
    styled,
    widen,
)
from danalab.report.formats import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NOT_KNOWN = "noise not known"
_BOUND = 1000
"""Multipliers beyond it are given as bounds: near the loss that the baseline never reaches they mean nothing."""
_OPEN = 1e6
"""Where a bar without an upper end ends: beyond the axis."""
HORIZON = "horizon f = tokens / (20 parameters)"
_MISSING = MissingFigure("several horizons of two optimizers at one size: danalab ladder with horizons")
TITLES = {
    "horizon-exponents": "Equivalent overtraining: the loss at horizon f is the baseline's at C f^p",
    "horizon-multipliers": "Token multiplier: the baseline's tokens at equal loss over the optimizer's",
    "horizon-pairs": "Pairs of optimizers at their longest horizon of each size, paired by seed",
    "horizon-budgets": "Budgets: settings tried by each optimizer on each rung",
}


def horizon_tables(found: Analysis) -> dict[str, Table]:
    """Name -> table; without lines where there is one horizon."""
    if found.horizon is None:
        return {name: ([], []) for name in TITLES}
    makers = (exponent_table, multiplier_table, pair_table, budget_table)
    return {name: make(found.horizon) for name, make in zip(TITLES, makers, strict=True)}


def exponent_table(found: HorizonAnalysis) -> Table:
    """A line for each contender: its exponent, and which references the interval contains."""
    lines = []
    for opt, each in found.exponents.items():
        known = each.interval
        inside = ["-" if known is None else "yes" if value in known else "no" for value in REFERENCES]
        lines.append([opt, f"{each.value:.3f}", number_interval(known, 3), *inside])
    asked = [f"{value:g} inside" for value in REFERENCES]
    return ["optimizer", "p", "95% interval", *asked], lines


def multiplier_table(found: HorizonAnalysis) -> Table:
    """A line for each contender, size and horizon."""
    losses = {(each.opt, each.params, each.horizon): each.losses for each in found.points}
    lines = []
    for each in sorted(found.multipliers, key=lambda each: (each.params, each.horizon, each.opt)):
        mine = losses[each.opt, each.params, each.horizon]
        base = losses[found.baseline, each.params, each.horizon]
        beyond = " (extrapolated)" if each.extrapolated else ""
        lines.append([
            each.opt, f"{each.params:,}", f"{each.horizon:.3g}", f"{_mean(mine):.4f}", f"{_mean(base):.4f}",
            f"{times(each.value)}{beyond}", _times_interval(each.interval), str(len(mine)),
        ])  # fmt: skip
    base = found.baseline
    return ["optimizer", "parameters", "f", "loss", f"{base}'s loss", "multiplier", "95% interval", "seeds"], lines


def pair_table(found: HorizonAnalysis) -> Table:
    """A line for each pair and size, at the longest horizon that both have."""
    longest: dict[tuple[str, str, int], PairedTest] = {}
    for each in sorted(found.tests, key=lambda each: each.horizon):
        longest[each.first, each.second, each.params] = each
    chosen = longest.values()
    lines = [_pair(each) for each in sorted(chosen, key=lambda each: each.params)]
    needed = f"seeds for {POWER:.0%} power"
    return ["pair", "parameters", "f", "difference [nats]", "95% interval", "p value", "seeds", needed], lines


def budget_table(found: HorizonAnalysis) -> Table:
    """A line for each optimizer: trials on a rung, dials with their median gain, best values at an edge."""
    lines = []
    for opt in dict.fromkeys(each.opt for each in found.budgets):
        mine = [each for each in found.budgets if each.opt == opt]
        edges = [f"f={each.horizon:.3g} {each.params:,}: {', '.join(each.edges)}" for each in mine if each.edges]
        lines.append([
            opt, _range([each.trials for each in mine]), _range([each.seeds for each in mine]), str(len(mine)),
            ", ".join(_gains(mine)), "; ".join(edges) or "none",
        ])  # fmt: skip
    return ["optimizer", "settings tried", "seeds", "rungs", "dials (gain, nats)", "best at an edge"], lines


def budget_sentence(found: HorizonAnalysis) -> str:
    """Whether budgets were equal, and how many best values lie at an edge."""
    edges = sum(bool(each.edges) for each in found.budgets)
    equal = "Every optimizer had the same number of trials on the same number of dials on each rung" if (
        found.equal_budgets
    ) else "Budgets differ between optimizers on some rung"  # fmt: skip
    return f"{equal}; at {edges} of {len(found.budgets)} tuned points a best value lies at the edge of its grid."


def times(value: float) -> str:
    """A token multiplier with three digits, or a bound."""
    if value > _BOUND or value < 1 / _BOUND:
        return f"> {_BOUND:,}" if value > 1 else f"< 1/{_BOUND:,}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _times_interval(interval: Interval | None) -> str:
    return NOT_KNOWN if interval is None else f"{times(interval.low)} to {times(interval.high)}"


def number_interval(interval: Interval | None, digits: int) -> str:
    """An interval of plain numbers."""
    return NOT_KNOWN if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _pair(test: PairedTest) -> list[str]:
    known = NOT_KNOWN
    if test.interval is not None:
        known = f"{test.interval.low:+.4f} to {test.interval.high:+.4f}"
    return [
        f"{test.first} - {test.second}", f"{test.params:,}", f"{test.horizon:.3g}", f"{test.difference:+.4f}", known,
        "-" if test.p_value is None else f"{test.p_value:.2g}", str(test.n_seeds),
        "-" if test.seeds_needed is None else str(test.seeds_needed),
    ]  # fmt: skip


def _gains(budgets: Sequence[Budget]) -> list[str]:
    names = dict.fromkeys(dial.name for each in budgets for dial in each.dials)
    gains = {name: [dial.gain for each in budgets for dial in each.dials if dial.name == name] for name in names}
    return [f"{name} {median(values):.4f}" for name, values in gains.items()]


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)


@styled
def multiplier_figure(data: ReportData) -> Figure | MissingFigure:
    """Token multiplier against the horizon, one panel per size, with the law of all sizes."""
    found = data.analysis.horizon
    if found is None or not found.multipliers:
        return _MISSING
    sizes = sorted({each.params for each in found.multipliers})
    figure, places = panels(len(sizes), each=(3.6, 3.3))
    values = [value for each in found.multipliers for value in _shown(each.interval, each.value)]
    for axes, params in zip(places, sizes, strict=True):
        _multipliers(axes, found, params)
        axes.set(title=f"{short(params)} parameters", xlabel=HORIZON, xscale="log", yscale="log")
        axes.set_ylim(max(min(values), 0.2) / 1.06, min(max(values), 8.0) * 1.06)
        widen(axes.xaxis, [each.horizon for each in found.multipliers])
        counts(axes.xaxis, {each.horizon for each in found.multipliers}, fraction)
        plain(axes.yaxis)
        if is_leftmost(axes):
            axes.set_ylabel(f"tokens of {found.baseline} at equal loss\n/ tokens of the optimizer")
    unknown = any(each.interval is None for each in found.multipliers)
    legend(figure, *([hollow_handle("noise not known")] if unknown else ()))
    return figure


@styled
def horizon_loss_figure(data: ReportData) -> Figure | MissingFigure:
    """Final loss against the tokens of the whole run, one panel per size, with the law."""
    found = data.analysis.horizon
    if found is None:
        return _MISSING
    sizes = sorted({each.params for each in found.points})
    figure, places = panels(len(sizes), each=(3.6, 3.3))
    tokens_of = {
        point.params: each.tokens / point.horizon for each, point in zip(data.analysis.tuned, found.points, strict=True)
    }
    for axes, params in zip(places, sizes, strict=True):
        for opt in data.analysis.opts:
            mine = [each for each in found.points if (each.opt, each.params) == (opt, params)]
            group(axes, opt, [(tokens_of[params] * each.horizon, each.losses) for each in mine], opt)
            if found.law is not None and opt in found.law.slopes and params in found.law.floors and len(mine) > 1:
                f = np.geomspace(min(each.horizon for each in mine), max(each.horizon for each in mine), 60)
                curve = [found.law(opt, params, each) for each in f]
                axes.plot(tokens_of[params] * f, curve, color=optimizer_color(opt), linewidth=1.2)
        axes.set(title=f"{short(params)} parameters", xlabel="training tokens of the run", xscale="log", yscale="log")
        counts(axes.xaxis)
        plain(axes.yaxis)
        if is_leftmost(axes):
            axes.set_ylabel("final " + LOSS)
    alone = any(len(each.losses) == 1 for each in found.points)
    legend(figure, *([hollow_handle("one seed")] if alone else ()))
    return figure


def _multipliers(axes: "Axes", found: HorizonAnalysis, params: int) -> None:
    """One size: points with intervals, and the law's line over the size's horizons."""
    axes.axhline(1, color=optimizer_color(found.baseline), linewidth=1.4, label=f"{found.baseline} (baseline)")
    opts = list(dict.fromkeys(each.opt for each in found.multipliers))
    for position, opt in enumerate(opts):
        mine = sorted(
            (each for each in found.multipliers if (each.opt, each.params) == (opt, params)),
            key=lambda each: each.horizon,
        )
        if not mine:
            continue
        factor, kind = aside(position, len(opts)), look(opt)
        x = [each.horizon * factor for each in mine]
        axes.plot(x, [each.value for each in mine], label=opt, linestyle="", **kind)
        lone = [i for i, each in enumerate(mine) if each.interval is None]
        hollow(axes, [x[i] for i in lone], [mine[i].value for i in lone], kind["color"], kind["marker"])
        for at, each in zip(x, mine, strict=True):
            if each.interval is not None:
                axes.vlines(
                    at, each.interval.low, min(each.interval.high, _OPEN), color=kind["color"], linewidth=1.2, alpha=0.8
                )
        if found.law is not None:
            f = np.geomspace(mine[0].horizon, mine[-1].horizon, 40)
            line = np.exp([found.law.log_multiplier(opt, each) for each in f])
            axes.plot(f * factor, line, color=kind["color"], linewidth=1.0, alpha=0.7)


def _shown(interval: object, value: float) -> list[float]:
    low, high = getattr(interval, "low", value), getattr(interval, "high", value)
    return [value, *(bound for bound in (low, high) if 0.2 < bound < 8)]
