"""A study: named arrays, the parameters that made them, and a figure; saved as NPZ, JSON and pictures."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.colors import save_figure
from danalab.files import write_atomically, write_json
from danalab.theory.algorithms import ALGORITHMS

LABELS = {
    **ALGORITHMS,
    "adam": "Adam",
    "adana": "ADana",
    "dana-mk4": "Dana-MK4",
    "dana-star-mk4": "Dana-Star-MK4",
}
"""Names in figures."""


@dataclass(frozen=True)
class Study:
    """Data of one figure, and the figure."""

    name: str
    arrays: dict[str, np.ndarray]
    parameters: dict[str, Any]
    """Settings that reproduce the arrays."""
    findings: dict[str, Any]
    """The main numbers."""
    draw_figure: Callable[["Study"], Figure]

    def save(self, folder: str | Path) -> dict[str, str]:
        """Write `NAME.png` (and .svg, -dark), `NAME.npz` and `NAME.json` (parameters and findings); returns paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {kind: folder / f"{self.name}.{kind}" for kind in ("png", "npz", "json")}
        arrays = io.BytesIO()
        save_figure(lambda: self.draw_figure(self), folder / self.name)
        np.savez_compressed(arrays, allow_pickle=False, **self.arrays)
        write_atomically(paths["npz"], arrays.getvalue())
        write_json(
            paths["json"], {"study": self.name, "parameters": self.parameters, "findings": self.findings}
        )
        return {kind: str(path) for kind, path in paths.items()}


def canvas(panels: int) -> tuple[Figure, list[Axes]]:
    """An empty figure and its panels, one below the other: as wide as a phone shows it readably."""
    figure = Figure(figsize=(5.4, 3.9 * panels), layout="constrained")
    return figure, list(figure.subplots(panels, squeeze=False)[:, 0])


def label(axes: Axes, title: str, x: str, y: str, legend: Any = "", log: str = "xy", **limits: Any) -> None:
    """Title, axis labels, logarithmic axes, limits (`xlim`, `ylim`), and the legend's place where there is one."""
    axes.set(title=title, xlabel=x, ylabel=y, **{f"{axis}scale": "log" for axis in log}, **limits)
    if legend:
        axes.legend(loc=legend, frameon=True, edgecolor="none", framealpha=1)
