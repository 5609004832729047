"""One fixed colour for each optimizer, in every figure."""

from __future__ import annotations

OPTIMIZER_COLORS = {
    "adamw": "#1f77b4",
    "adamw-decaying-wd": "#00CED1",
    "adana": "#228B22",
    "dana-mk4": "#CD853F",
    "dana-star": "#7f7f7f",
    "dana-star-mk4": "#d62728",
}
_OTHERS = ("#9467bd", "#e377c2", "#ff7f0e", "#8B4513", "#17becf", "#bcbd22")


def optimizer_color(opt: str) -> str:
    """The optimizer's colour; one without a place of its own always gets the same of the remaining ones."""
    return OPTIMIZER_COLORS.get(opt) or _OTHERS[sum(opt.encode()) % len(_OTHERS)]
