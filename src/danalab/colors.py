"""The look of every figure of the package: two themes, and a fixed colour and marker for each optimizer.

A figure is a function that draws; `save_figure` calls it once a theme, for NAME.png, NAME.svg and NAME-dark.*
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.optimizer_facts import FACTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMIZER_COLORS = {
    **{name: facts.color for name, facts in FACTS.items() if facts.color},
    "adana-cooldown": "#76b900",
    "sgd": "#8c8c8c",
}
_MARKERS = {**{name: facts.marker for name, facts in FACTS.items()}, "adana-cooldown": "d"}
ALGORITHM_COLORS = {
    "adam": "#1f77b4",
    "sgd-m": "#17becf",
    "dana-constant": "#ff7f0e",
    "dana-decaying": "#0b9e86",
}
"""Algorithms of the theory that are not optimizers of `danalab.optim`."""
_OTHERS = ("#393b79", "#637939", "#ad494a", "#7b4173", "#3182bd", "#e6550d")


def optimizer_color(opt: str) -> str:
    """The colour of an optimizer or algorithm; an unlisted name always gets the same of a few others."""
    return OPTIMIZER_COLORS.get(opt) or ALGORITHM_COLORS.get(opt) or _OTHERS[sum(opt.encode()) % len(_OTHERS)]


def optimizer_marker(opt: str) -> str:
    """The optimizer's marker, for eyes and printers without colours."""
    return _MARKERS.get(opt, "o")


INK, SOFT, LINE = "#24292f", "#6e7781", "#d8dee4"
"""Colours of text, secondary text and rules; pages replace them with their own."""

FIGURE_STYLE: dict[str, Any] = {
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
"""Settings of matplotlib."""
_PAPER, _INK, _SOFT, _LINE = "#0d1117", "#e6edf3", "#9198a1", "#30363d"
_DARK = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), _PAPER),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), _INK),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor"), _SOFT),
    "grid.color": _LINE,
}
THEMES: dict[str, dict[str, Any]] = {"": FIGURE_STYLE, "-dark": FIGURE_STYLE | _DARK}
"""Ending of a file's name -> settings of matplotlib."""


def save_figure(draw: Callable[[], Figure], stem: Path) -> list[Path]:
    """Draw in every theme, as PNG and SVG; returns the files."""
    from matplotlib import rc_context

    files = []
    for ending, style in THEMES.items():
        with rc_context({**style, "svg.hashsalt": "danalab"}):  # pyright: ignore[reportArgumentType]
            figure = draw()
            for suffix, how in ((".png", {"dpi": 160}), (".svg", {"metadata": {"Date": None}})):
                files.append(stem.with_name(f"{stem.name}{ending}{suffix}"))
                figure.savefig(files[-1], **how)  # pyright: ignore[reportArgumentType]
    return files


def ink() -> str:
    """The colour of text in this theme."""
    from matplotlib import rcParams

    return rcParams["text.color"]


def shades(count: int) -> list[Any]:
    """Colours from dark to light, which show on both themes."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.3 + 0.58 * i / max(count - 1, 1)) for i in range(count)]
