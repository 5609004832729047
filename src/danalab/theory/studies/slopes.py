"""Local slopes of the loss against the exponents of the phase, on spectra so large that the power laws show."""

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.theory.dynamics.algorithms import standard
from danalab.theory.dynamics.ode import ode
from danalab.theory.prediction.exponents import FAMILIES, Family, phase, time_exponents
from danalab.theory.problem.model import power_sum
from danalab.theory.problem.spectra import binned_spectrum
from danalab.theory.studies.study import LABELS, Study, canvas

_POINTS = ((1.0, 0.3), (1.0, 0.7), (1.0, 1.3))


def compute(*, horizon: float = 1e8, h: float = 1e-2, d_constant: int = 100_000, d_other: int = 10**9) -> Study:
    """-d log P / d log t of SGD, DANA-constant and DANA-decaying in phases Ia, II and III, without the limit risk."""
    centers = np.geomspace(3, horizon / 3, 120)
    arrays = {"t": centers}
    findings = {}
    for alpha, beta in _POINTS:
        for family in FAMILIES:
            d = d_constant if family == "dana-constant" else d_other
            algorithm = standard(family, alpha=alpha, beta=beta, d=d, trace=power_sum(2 * alpha, 10**6))
            curve = ode(binned_spectrum(alpha, beta, d), algorithm, horizon, h=h)
            wide = np.log(np.stack([curve.at(centers / 1.8), curve.at(centers * 1.8)]))
            slope = (wide[0] - wide[1]) / (2 * np.log(1.8))
            arrays[f"slope_{phase(alpha, beta)}_{family}"] = slope
            findings[f"phase {phase(alpha, beta)}, {LABELS[family]}: largest slope"] = float(slope[20:].max())
    settings = {"points": [list(p) for p in _POINTS], "horizon": horizon, "h": h}
    return Study("slopes", arrays, {**settings, "d_constant": d_constant, "d_other": d_other}, findings)


def draw_figure(study: Study) -> Figure:
    """One panel a phase: measured slopes, and the predicted levels as dashed lines."""
    figure, axes = canvas(1, 3, 4.7, 4.2)
    for panel, (alpha, beta) in zip(axes[0], study.parameters["points"], strict=True):
        name = phase(alpha, beta)
        for family in FAMILIES:
            color = optimizer_color(family)
            panel.plot(study.arrays["t"], study.arrays[f"slope_{name}_{family}"], color=color, label=LABELS[family])
            if family == "dana-constant" and name != "Ia":
                continue  # its capacity term takes over before these slopes are reached
            term, level = _leading(alpha, beta, family)
            panel.axhline(level, color=color, lw=1, ls="--")
            panel.annotate(
                f"{term}: {level:.3g}", (1.0, level), (-2, 3), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", fontsize=8, color=color,
            )  # fmt: skip
        panel.set(xscale="log", xlabel="steps t", ylabel="-d log P / d log t", ylim=(0, 3.2))
        panel.set_title(f"phase {name}: alpha = {alpha:g}, beta = {beta:g}")
    axes[0][0].legend(loc="upper left")
    return figure


def _leading(alpha: float, beta: float, family: Family) -> tuple[str, float]:
    """The term of the loss that the figure's window shows: Kpp in phase III, else Fpp."""
    exponents = time_exponents(alpha, beta, family)
    term = "Kpp" if phase(alpha, beta) == "III" else "Fpp"
    return term, exponents[term]
