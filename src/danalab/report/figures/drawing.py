"""Common parts of figures: style, legends, the look of each optimizer."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from danalab.colors import FIGURE_STYLE, SOFT, optimizer_color, optimizer_marker
from danalab.files import write_atomically
from danalab.ladder.fit.statistics import Interval
from danalab.report.formats import as_csv, short

LOSS = "validation loss [nats/token]"
_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")  # superfluous decimals of an SVG: a hundredth of a point is invisible
_PLACED = {"figure.constrained_layout.use": False, "figure.autolayout": False, "pdf.fonttype": 42}
"""All formats have the layout of the SVG: placing everything anew takes half of their time. 42: text stays text."""
PROLOGUE = '<?xml version="1.0" encoding="utf-8" standalone="no"?>\n'
COMPUTE = "training compute [FLOPs]"
SIZE = "model parameters"
DASHED = (0, (4, 3))
EXTRAPOLATED = 4.0  # laws are drawn, dashed, to this many times the largest x that was measured

styled = matplotlib.rc_context(FIGURE_STYLE)  # pyright: ignore[reportArgumentType]
"""Decorator of functions that draw."""


def canvas(xlabel: str, ylabel: str, width: float = 5.4, height: float = 3.6) -> tuple[Figure, Axes]:
    """A figure of one panel [inches]: as wide as a phone shows it readably."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def is_leftmost(axes: Axes) -> bool:
    """Whether a panel is the first of its row, which has the row's label."""
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def panels(count: int, columns: int = 3, each: tuple[float, float] = (3.1, 2.7)) -> tuple[Figure, list[Axes]]:
    """A figure of several panels, row by row; `each` is the size of one [inches]."""
    columns = min(count, 2 if count == 4 else columns)
    rows = -(-count // columns)
    width = max(each[0] * columns + 0.5, 5.0)
    figure = Figure(figsize=(width, each[1] * rows + 0.5))
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


def look(opt: str) -> dict[str, Any]:
    """The optimizer's colour and marker."""
    return {"color": optimizer_color(opt), "marker": optimizer_marker(opt)}


def shades(count: int, alone: str | None = None) -> list[Any]:
    """Colours from dark to light; `alone` for a single one."""
    if count == 1 and alone is not None:
        return [alone]
    return [matplotlib.colormaps["viridis"](0.88 * i / max(count - 1, 1)) for i in range(count)]


def group(axes: Axes, opt: str, groups: Iterable[tuple[float, Sequence[float]]], label: str, **settings: Any) -> None:
    """Means of groups of values, with bars from the lowest to the highest; hollow for single values."""
    groups = list(groups)
    x, means = [at for at, _ in groups], [float(np.mean(values)) for _, values in groups]
    kind = {**look(opt), "linestyle": "", "label": label, **settings}
    axes.plot(x, means, **kind)
    alone = [i for i, (_, values) in enumerate(groups) if len(values) == 1]
    hollow(axes, [x[i] for i in alone], [means[i] for i in alone], kind["color"], kind["marker"])
    several = [(at, min(values), max(values)) for at, values in groups if len(values) > 1]
    if several:
        at, low, high = zip(*several, strict=True)
        axes.vlines(at, low, high, color=kind["color"], linewidth=1.2)


def band(axes: Axes, x: Sequence[float] | np.ndarray, runs: np.ndarray, color: str, **line: Any) -> None:
    """The mean of runs [runs, points] as a line, and a band from lowest to highest where there are several."""
    axes.plot(x, runs.mean(axis=0), color=color, **line)
    if len(runs) > 1:
        axes.fill_between(x, runs.min(axis=0), runs.max(axis=0), color=color, alpha=0.2, linewidth=0)


def estimates(
    axes: Axes, x: Sequence[float], values: Sequence[tuple[float, Interval | None]], opt: str, **line: Any
) -> None:
    """An optimizer's values with bars for their intervals; hollow without one."""
    kind = look(opt)
    axes.plot(x, [value for value, _ in values], label=opt, **kind, **line)
    unknown = [(at, value) for at, (value, interval) in zip(x, values, strict=True) if interval is None]
    hollow(axes, [at for at, _ in unknown], [value for _, value in unknown], kind["color"], kind["marker"])
    bars = [(at, i.low, min(i.high, _OPEN)) for at, (_, i) in zip(x, values, strict=True) if i is not None]
    if bars:
        axes.vlines(*zip(*bars, strict=True), color=kind["color"], linewidth=1.2, alpha=0.8)


_OPEN = 1e6  # where a bar without an upper end ends: beyond the axis
_OVER = "_hollow"  # label of marks over points that another line has


def hollow(
    axes: Axes, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, color: str, marker: str
) -> None:
    """Mark points whose noise is not known."""
    if len(x):
        axes.plot(x, y, linestyle="", marker=marker, color=color, markerfacecolor="#ffffff", zorder=3, label=_OVER)


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


def hollow_handles(words: str, shown: bool) -> list[Line2D]:
    """The legend entry of hollow points, where they are shown."""
    return [Line2D([], [], linestyle="", marker="o", color=SOFT, markerfacecolor="#ffffff", label=words)] * shown


def law_handles() -> list[Line2D]:
    """Legend entries of solid and dashed lines."""
    return [
        Line2D([], [], color=SOFT, linewidth=1.4, label="law"),
        Line2D([], [], color=SOFT, linewidth=1.2, linestyle=DASHED, label="extrapolated"),
    ]


def legend(figure: Figure, *more: Line2D, title: str | None = None) -> None:
    """One legend for all panels, above them; `title` names the run."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for handle in more:
        handles.setdefault(str(handle.get_label()), handle)
    if not handles:
        return
    dashed = any(line.get_linestyle() not in ("-", "None") for line in handles.values() if isinstance(line, Line2D))
    room = max(int(figure.get_figwidth() / (0.45 + 0.07 * max(map(len, handles)))), 1)
    style: dict[str, Any] = {"loc": "outside upper left", "alignment": "left", "ncols": min(room, len(handles))}
    style |= {"columnspacing": 1.4, "handlelength": 3.4 if dashed else 1.8}  # long enough to show the dashes
    figure.legend([*handles.values()], [*handles], title=title, title_fontproperties={"size": 8.5}, **style)


def save_figure(figure: Figure, stem: Path, svg: str | None = None) -> list[Path]:
    """Write `stem`.png, .svg (`svg`, where the caller has its `svg_text`) and .pdf; returns their paths."""
    files = [stem.with_suffix(suffix) for suffix in (".png", ".svg", ".pdf")]
    write_atomically(files[1], PROLOGUE + (svg or svg_text(figure)))
    engine = figure.get_layout_engine()
    formats: dict[Path, dict[str, Any]] = {files[0]: {"dpi": 160}, files[2]: {"metadata": {"CreationDate": None}}}
    with matplotlib.rc_context(_PLACED):  # pyright: ignore[reportArgumentType]
        figure.set_layout_engine(None)
        for file, settings in formats.items():
            picture = io.BytesIO()
            figure.savefig(picture, format=file.suffix[1:], **settings)
            write_atomically(file, picture.getvalue())
        figure.set_layout_engine(engine)
    return files


def svg_text(figure: Figure) -> str:
    """A figure as SVG markup without the XML prologue; the same figure always gives the same text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "danalab"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return _COORDINATES.sub(lambda match: _DECIMALS.sub(r"\1", match.group()), text[text.index("<svg") :])


def save_points(figure: Figure, path: Path) -> None:
    """The lines of a figure as numbers: panel, label, x, y; lines without a label are laws, bands and rules."""
    rows = []
    for axes in figure.axes:
        for line in axes.get_lines():
            label = str(line.get_gid() or line.get_label())
            if label == _OVER:
                continue
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):  # pyright: ignore[reportArgumentType]
                rows.append([axes.get_title(), "" if label.startswith("_") else label, _short(x), _short(y)])
    write_atomically(path, as_csv((["panel", "label", "x", "y"], rows)))


def _short(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, (int, float, np.number)) else value


def counts(axis: Axis, values: Iterable[float] = (), words: Callable[[float], str] = short) -> None:
    """Ticks of a logarithmic axis of counts: at `values` where they stand apart, else at 1, 2 and 5."""
    at = sorted(set(values))
    low, high = axis.get_view_interval()
    fits = bool(at) and apart(at, math.log(high / low), 0.08)
    axis.set_major_locator(ticker.FixedLocator(at if fits else round_numbers(low, high)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_locator(ticker.NullLocator())


def powers(axis: Axis) -> None:
    """Ticks of a logarithmic axis of large or small numbers, as a x 10^b."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.FixedLocator(round_numbers(low, high, 4)))
    axis.set_major_formatter(ticker.LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(99, 99)))
    axis.set_minor_locator(ticker.NullLocator())


def plain(axis: Axis, ticks: int = 6) -> None:
    """Ticks of a logarithmic axis that spans less than a decade or so, as plain numbers."""
    low, high = axis.get_view_interval()
    wide = high > 8 * low > 0
    even = ticker.MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10])
    axis.set_major_locator(ticker.FixedLocator(round_numbers(low, high, ticks)) if wide else even)
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.set_minor_locator(ticker.NullLocator())


def percent(axis: Axis, signed: bool = False) -> None:
    """Ticks of an axis of shares."""

    def words(value: float, _: Any) -> str:
        number = f"{100 * value:{'+' if signed else ''}.4g}"
        return ("0" if float(number) == 0 else number.replace("-", "\N{MINUS SIGN}")) + "%"

    axis.set_major_formatter(ticker.FuncFormatter(words))


def round_numbers(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between `low` and `high`, evenly enough spread on a logarithmic axis, `most` at most."""
    if not 0 < low < high:
        return [low]
    if high < 2 * low:  # less than an octave: even numbers are as good
        even = [float(value) for value in ticker.MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)]
        if len(inside := [value for value in even if low <= value <= high]) >= 2:
            return inside
    whole = math.log(high / low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [round(digit * 10.0**power, 12) for power in decades for digit in digits]
        ticks = [value for value in ticks if low <= value <= high]
        if len(ticks) <= most and apart(ticks, whole, 0.75 / most):
            return ticks
    return ticks[:: -(-len(ticks) // (most + 2))]


def apart(values: Sequence[float], whole: float, share: float) -> bool:
    """Whether no two of these are nearer than a `share` of the `whole`, on a logarithmic axis."""
    return len(values) < 2 or bool(min(np.diff(np.log(values))) >= share * whole)


def widen(axis: Axis, values: Sequence[float]) -> None:
    """Limits of a logarithmic axis around these values, with a margin even for a single value."""
    low, high = min(values), max(values)
    margin = max((high / low) ** 0.06, 1.25 if high < 1.5 * low else 1.0)
    axis.axes.set_xlim(low / margin, high * margin)
