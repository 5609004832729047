"""The figure of costs: device-hours by purpose, and the time of a token against the baseline's."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from danalab.colors import optimizer_color
from danalab.report.cost import PARTS, relative_time, spent
from danalab.report.data import MissingFigure, ReportData
from danalab.report.figures.drawing import SOFT, panels, styled

_STRENGTHS = {"trials": 0.45, "seeds": 1.0, "failed": 0.2}
_LABELS = {"trials": "learning-rate trials", "seeds": "chosen rate, all seeds", "failed": "no final loss"}


@styled
def cost_figure(data: ReportData) -> Figure | MissingFigure:
    """Device-hours of each optimizer, by what they were spent on, and the time of a token against the baseline's."""
    taken = {opt: mine for opt, mine in spent(data).items() if mine.total}
    if not taken:
        return MissingFigure("rows that say how many seconds a run took")
    figure, (left, right) = panels(2, columns=2, each=(4.3, 0.34 * len(taken) + 1.1))
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
        left.annotate(f" {at[y]:.3g}{money}", (at[y], y), va="center", fontsize=8.5, color=SOFT)
    left.set(xlabel=f"{unit}, evaluation apart", xlim=(0, 1.18 * max(at)))
    left.grid(False, axis="y")
    ratios = relative_time(data)
    names = [opt for opt in names if opt in ratios]
    right.barh(names, [ratios[opt] for opt in names], color=[optimizer_color(opt) for opt in names], height=0.62)
    for y, opt in enumerate(names):
        right.annotate(f" {ratios[opt]:.2f}", (ratios[opt], y), va="center", fontsize=8.5, color=SOFT)
    right.axvline(1, color=SOFT, linewidth=1, linestyle=":")
    right.set(
        xlabel=f"time a token over {data.analysis.baseline}'s", xlim=(0, 1.15 * max(ratios.values(), default=1.0))
    )
    right.grid(False, axis="y")
    shares = {part: Patch(color=SOFT, alpha=_STRENGTHS[part], label=_LABELS[part]) for part in PARTS}
    handles = [shares[part] for part in PARTS if any(mine.hours[part] for mine in taken.values())]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure
