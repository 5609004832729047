"""Common parts of figures: panels, legends, ticks, intervals."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from danalab.colors import optimizer_color, optimizer_marker
from danalab.experiments.formats import short
from danalab.experiments.statistics import Interval

LOSS = "validation loss [nats/token]"
COMPUTE = "training compute [FLOPs]"
SIZE = "model parameters"
DASHED = (0, (4, 3))
EXTRAPOLATED = 4.0  # laws are drawn, dashed, to this many times the largest x that was measured


def soft() -> str:
    """The colour of secondary lines in this theme."""
    return matplotlib.rcParams["xtick.color"]


def canvas(xlabel: str, ylabel: str, width: float = 5.4, height: float = 3.6) -> tuple[Figure, Axes]:
    """A figure of one panel [inches]: as wide as a phone shows it readably."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def panels(count: int, columns: int = 2, each: tuple[float, float] = (3.1, 2.7)) -> tuple[Figure, list[Axes]]:
    """A figure of several panels, row by row, in few columns, for phones; `each` is the size of one [inches]."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(each[0] * columns + 0.5, 5.0), each[1] * rows + 0.5))
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


def is_leftmost(axes: Axes) -> bool:
    """Whether a panel is the first of its row, which has the row's label."""
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def look(opt: str) -> dict[str, Any]:
    """The optimizer's colour and marker."""
    return {"color": optimizer_color(opt), "marker": optimizer_marker(opt)}


def group(
    axes: Axes,
    opt: str,
    groups: Iterable[tuple[float, Sequence[float] | np.ndarray]],
    label: str,
    **line: Any,
) -> None:
    """Means of groups of values, with bars from the lowest to the highest; hollow for single values."""
    groups = list(groups)
    kind = {**look(opt), "linestyle": "", "label": label, **line}
    if all(len(values) == 1 for _, values in groups):  # the legend's entry, too
        kind["markerfacecolor"] = matplotlib.rcParams["axes.facecolor"]
    axes.plot([x for x, _ in groups], [float(np.mean(values)) for _, values in groups], **kind)
    hollow(axes, [(x, values[0]) for x, values in groups if len(values) == 1], kind)
    for x, values in groups:
        if len(values) > 1:
            axes.vlines(x, min(values), max(values), color=kind["color"], linewidth=1.2)


def band(axes: Axes, x: Sequence[float] | np.ndarray, runs: np.ndarray, color: str, **line: Any) -> None:
    """The mean of runs [runs, points] as a line, and a band from lowest to highest where there are several."""
    axes.plot(x, runs.mean(axis=0), color=color, **line)
    if len(runs) > 1:
        axes.fill_between(x, runs.min(axis=0), runs.max(axis=0), color=color, alpha=0.2, linewidth=0)


def estimates(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[tuple[float, Interval | None]],
    opt: str,
    within: tuple[float, float],
    **line: Any,
) -> None:
    """An optimizer's values with bars for their intervals, hollow without one; an arrow ends a bar at `within`."""
    kind, (low, high) = look(opt), within
    axes.plot(x, [value for value, _ in values], label=opt, **kind, **line)
    hollow(axes, [(at, value) for at, (value, known) in zip(x, values, strict=True) if known is None], kind)
    for at, (_, known) in zip(x, values, strict=True):
        if known is not None:
            ends = max(known.low, low), min(known.high, high)
            axes.vlines(at, *ends, color=kind["color"], linewidth=1.2, alpha=0.8)
            for end, whole, arrow in zip(ends, (known.low, known.high), "v^", strict=True):
                if end != whole:
                    axes.plot(at, end, marker=arrow, markersize=4, color=kind["color"])


def hollow(axes: Axes, points: Sequence[tuple[float, float]], kind: dict[str, Any]) -> None:
    """Mark points whose noise is not known."""
    if points:
        paper = matplotlib.rcParams["axes.facecolor"]
        style = {"color": kind["color"], "marker": kind["marker"], "markerfacecolor": paper}
        axes.plot([x for x, _ in points], [y for _, y in points], linestyle="", zorder=3, **style)


def aside(position: int, count: int) -> float:
    """A small factor on x, so that intervals do not overlap."""
    return 1.025 ** (position - (count - 1) / 2)


Law = Callable[[np.ndarray], Any]


def law_lines(axes: Axes, color: str, law: Law, low: float, high: float, samples: Sequence[Law] = ()) -> None:
    """A law over what was measured, and dashed to `EXTRAPOLATED` times that; the 95% band of its `samples`."""
    inside, outside = np.geomspace(low, high, 60), np.geomspace(high, EXTRAPOLATED * high, 20)
    axes.plot(inside, law(inside), color=color, linewidth=1.4)
    axes.plot(outside, law(outside), color=color, linewidth=1.2, linestyle=DASHED, alpha=0.8)
    if samples:
        x = np.geomspace(low, EXTRAPOLATED * high, 40)
        least, most = np.quantile([sample(x) for sample in samples], [0.025, 0.975], axis=0)
        axes.fill_between(x, least, most, color=color, alpha=0.1, linewidth=0)


def legend(figure: Figure, *, laws: bool = False, unknown: str = "") -> None:
    """One legend for all panels, above them; with entries for `laws` and for hollow points, which are `unknown`."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if laws:
        handles["law"] = Line2D([], [], color=soft(), linewidth=1.4)
        handles["extrapolated"] = Line2D([], [], color=soft(), linewidth=1.2, linestyle=DASHED)
    if unknown:
        paper = matplotlib.rcParams["axes.facecolor"]
        handles[unknown] = Line2D([], [], linestyle="", marker="o", color=soft(), markerfacecolor=paper)
    if handles:
        room = max(int((figure.get_figwidth() + 0.2) / (0.65 + 0.073 * max(map(len, handles)))), 1)
        place: dict[str, Any] = {
            "loc": "outside upper left",
            "ncols": min(room, len(handles)),
            "handlelength": 2.4,
        }
        figure.legend([*handles.values()], [*handles], **place)


# ---- axes ----
def counts(axis: Axis, values: Iterable[float] = (), words: Callable[[float], str] = short) -> None:
    """Ticks of a logarithmic axis of counts: at a few `values`, else at 1, 2 and 5."""
    at = sorted(set(values))
    few = 0 < len(at) <= 5
    axis.set_major_locator(ticker.FixedLocator(at) if few else ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_locator(ticker.NullLocator())


def plain(axis: Axis) -> None:
    """Ticks of a logarithmic axis that spans less than a decade or so, as plain numbers."""
    axis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def limit_shares(axes: Axes, values: Sequence[float]) -> tuple[float, float]:
    """Set vertical limits around shares; returns their range, between -100% and 100%."""
    low, high = max(min([*values, 0.0]), -1.0), min(max([*values, 0.0]), 1.0)
    span = max(high - low, 0.1)
    axes.set_ylim(low - 0.05 * span, low + 1.05 * span)
    shown = ticker.FuncFormatter(lambda value, _: f"{100 * value:+.4g}%" if value else "0")
    axes.yaxis.set_major_formatter(shown)
    return low, high


def zoom(axes: Axes, finals: Sequence[float], highest: float) -> None:
    """Vertical limits that leave out the first fall of losses, but no final loss."""
    lowest = min(finals)
    top = max(lowest + 0.45 * (highest - lowest), max(finals) + 0.1 * (highest - lowest))
    if math.isfinite(top) and top > lowest:
        axes.set_ylim(lowest - 0.04 * (top - lowest), top)
