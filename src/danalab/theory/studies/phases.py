"""The phase diagram: compute-optimal exponents of SGD and DANA over the plane of the two exponents, and the gain."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.theory.prediction.exponents import FAMILIES, IVA_BORDER, compute_optimum
from danalab.theory.studies.study import LABELS, Study, canvas

_NAMES = {
    "Ia": (1.6, 0.5), "II": (2.35, 1.6), "III": (1.4, 2.3), "Ib": (0.72, 0.7), "IVa": (0.79, 1.85), "IVb": (0.545, 2.7),
    "Ic": (0.25, 1.85),
}  # fmt: skip


def compute(*, points: int = 121) -> Study:
    """Exponents e of P ~ f^-e on a grid of 2 alpha in (0, 3], 2 beta in (0, 3]; NaN where no phase is defined."""
    two_alpha, two_beta = np.linspace(0.05, 3, points), np.linspace(0.0, 3, points)
    arrays = {"two_alpha": two_alpha, "two_beta": two_beta}
    for family in FAMILIES:
        grid = np.full((points, points), np.nan)
        for i, b in enumerate(two_beta):
            for k, a in enumerate(two_alpha):
                if a + b > 1.0001:
                    grid[i, k] = compute_optimum(a / 2, b / 2, family).loss
        arrays[f"exponent_{family}"] = grid
    gain = arrays["exponent_dana-decaying"] / arrays["exponent_sgd"]
    best = np.unravel_index(np.nanargmax(gain), gain.shape)
    findings = {
        "largest gain in the compute exponent, DANA-decaying / SGD": float(np.nanmax(gain)),
        "at alpha": float(two_alpha[best[1]] / 2),
        "at beta": float(two_beta[best[0]] / 2),
        "gain below the line 2 alpha = 1": 1.0,
    }
    return Study("phases", arrays, {"points": points}, findings)


def draw_figure(study: Study) -> Figure:
    """Three maps of the exponent, one of the gain, with the borders and names of the phases."""
    figure, axes = canvas(2, 2, 5.4, 4.6)
    a = study.arrays
    maps = [(f"{LABELS[f]}: e in P ~ compute^-e", a[f"exponent_{f}"], "viridis", (0, 1.2)) for f in FAMILIES]
    gain = a["exponent_dana-decaying"] / a["exponent_sgd"]
    maps.append(("gain: e of DANA-decaying / e of SGD", gain, "magma", (1, float(np.nanmax(gain)))))
    for panel, (title, values, colors, limits) in zip(axes.flat, maps, strict=True):
        mesh = panel.pcolormesh(
            a["two_alpha"], a["two_beta"], values, cmap=colors, vmin=limits[0], vmax=limits[1], shading="nearest"
        )
        figure.colorbar(mesh, ax=panel, shrink=0.85)
        _borders(panel)
        panel.set(title=title, xlabel="2 alpha (data)", ylabel="2 beta (target)", xlim=(0.05, 3), ylim=(0, 3))
        panel.grid(False)
    return figure


def _borders(panel: Axes) -> None:
    line: dict[str, Any] = {"color": "white", "lw": 1.2}
    panel.plot([1, 1], [0, 3], **line)
    panel.plot([0.05, 3], [1, 1], **line)
    panel.plot([1, 3], [1, 3], **line)
    panel.plot([0.5, 0.5], [1, 3], **line)
    panel.plot([2 * IVA_BORDER] * 2, [1, 3], color="white", lw=0.8, ls="--")
    for name, (x, y) in _NAMES.items():
        turn = 90 if name == "IVb" else 0
        panel.text(x, y, name, color="white", ha="center", va="center", fontsize=9, fontweight="bold", rotation=turn)
