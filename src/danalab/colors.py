"""The look of every figure of the package: one style, and a fixed colour and marker for each optimizer."""

from typing import Any

from danalab.optimizer_facts import FACTS

OPTIMIZER_COLORS = {
    **{name: facts.color for name, facts in FACTS.items() if facts.color},
    "adana-cooldown": "#76b900",
    "sgd": "#8c8c8c",
}
_MARKERS = {**{name: facts.marker for name, facts in FACTS.items()}, "adana-cooldown": "d"}
ALGORITHM_COLORS = {
    "adam": "#1f77b4",
    "sgd-m": "#3a3a3a",
    "dana-constant": "#ff7f0e",
    "dana-decaying": "#006d5b",
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
