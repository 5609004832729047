"""Common parts of figures: style, legends, the look of each optimizer."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from danalab.colors import optimizer_color, optimizer_marker
from danalab.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, LINE = "#24292f", "#6e7781", "#d8dee4"
"""Colours of text, secondary text and rules; pages replace them with their own."""

STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlepad": 8,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "figure.constrained_layout.use": True,
}

LOSS = "validation loss [nats a token]"
_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")
"""Superfluous decimals of an SVG: a hundredth of a point is invisible."""
PROLOGUE = '<?xml version="1.0" encoding="utf-8" standalone="no"?>\n'
EDGE = "above, or not finite"
COMPUTE = "training compute [FLOPs]"
SIZE = "model parameters"
EXTRAPOLATED = 4.0
"""Laws are drawn, dashed, to this many times the largest x that was measured."""
TALLEST = 5.0
"""A panel of losses shows this many times the median excess; points above are drawn at its edge."""

styled = matplotlib.rc_context(STYLE)  # pyright: ignore[reportArgumentType]
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


_OVER = "_hollow"
"""Label of marks over points that another line has."""


def hollow(
    axes: Axes, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, color: str, marker: str
) -> None:
    """Mark points whose noise is not known."""
    if len(x):
        axes.plot(x, y, linestyle="", marker=marker, color=color, markerfacecolor="#ffffff", zorder=3, label=_OVER)


def aside(position: int, count: int) -> float:
    """A small factor on x, so that intervals do not overlap."""
    return 1.025 ** (position - (count - 1) / 2)


def law_lines(
    axes: Axes, color: str, law: Callable[[np.ndarray], Any], low: float, high: float, beyond: float = EXTRAPOLATED
) -> None:
    """A law over what was measured, and dashed to `beyond` times that."""
    inside, outside = np.geomspace(low, high, 60), np.geomspace(high, beyond * high, 20)
    axes.plot(inside, law(inside), color=color, linewidth=1.4)
    axes.plot(outside, law(outside), color=color, linewidth=1.2, linestyle=(0, (4, 3)), alpha=0.8)


def hollow_handle(words: str) -> Line2D:
    """Legend entry of hollow points."""
    return Line2D([], [], linestyle="", marker="o", color=SOFT, markerfacecolor="#ffffff", label=words)


def law_handles() -> list[Line2D]:
    """Legend entries of solid and dashed lines."""
    return [
        Line2D([], [], color=SOFT, linewidth=1.4, label="law"),
        Line2D([], [], color=SOFT, linewidth=1.2, linestyle=(0, (4, 3)), label="extrapolated"),
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
    longest = max(map(len, handles))
    room = max(int(figure.get_figwidth() / (0.45 + 0.07 * longest)), 1)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper left",
        ncols=min(room, len(handles)),
        title=title,
        title_fontproperties={"size": 8.5},
        alignment="left",
        columnspacing=1.4,
        handlelength=3.4 if dashed else 1.8,  # long enough to show the dashes
    )


def at_the_edge(axes: Axes, x: Sequence[float], color: Any) -> None:
    """Marks at the upper edge, for points above it or not finite."""
    if x:
        axes.plot(
            x, [0.985] * len(x), linestyle="", marker="x", color=color, markersize=6, markeredgewidth=1.4,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
        if EDGE not in axes.get_legend_handles_labels()[1]:
            axes.plot([], [], linestyle="", marker="x", color=SOFT, label=EDGE)


def save_figure(figure: Figure, stem: Path, svg: str | None = None) -> list[Path]:
    """Write `stem`.png, .svg and .pdf; returns their paths.

    Args:
        svg: its `svg_text`, where the caller has it already.
    """
    files = [stem.with_suffix(suffix) for suffix in (".png", ".svg", ".pdf")]
    picture = io.BytesIO()
    figure.savefig(picture, dpi=160)
    write_atomically(files[0], picture.getvalue())
    write_atomically(files[1], PROLOGUE + (svg or svg_text(figure)))
    picture = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # text stays text
        figure.savefig(picture, format="pdf", metadata={"CreationDate": None})
    write_atomically(files[2], picture.getvalue())
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["panel", "label", "x", "y"])
    for axes in figure.axes:
        for line in axes.get_lines():
            label = str(line.get_gid() or line.get_label())
            if label == _OVER:
                continue
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):  # pyright: ignore[reportArgumentType]
                writer.writerow([axes.get_title(), "" if label.startswith("_") else label, _short(x), _short(y)])
    write_atomically(path, text.getvalue())


def _short(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, (int, float, np.number)) else value
