"""The three figures of `danalab theory phases`, for SGD, DANA-constant and DANA-decaying.

phases            compute-optimal exponents over the plane of the two exponents, and the gain
compute_optimal   loss against compute for many sizes at one point of it: envelope and exponent
slopes            local slopes in three phases, on spectra so large that the power laws show
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import ink, optimizer_color
from danalab.errors import UserError
from danalab.theory.algorithms import standard
from danalab.theory.exponents import FAMILIES, IVA_BORDER, compute_optimum, frontier, phase, time_exponents
from danalab.theory.moments import ode
from danalab.theory.problem import binned_spectrum, power_sum
from danalab.theory.study import LABELS, Study, canvas, label
from danalab.theory_studies import PhaseFlags

SLOPE_POINTS = ((1.0, 0.3), (1.0, 0.7), (1.0, 1.3))
"""(alpha, beta) in the phases Ia, II and III."""
_NAMES = {
    "Ia": (1.6, 0.5),
    "II": (2.35, 1.6),
    "III": (1.4, 2.3),
    "Ib": (0.72, 0.7),
    "IVa": (0.79, 1.85),
    "IVb": (0.545, 2.7),
    "Ic": (0.25, 1.85),
}


def compute(p: PhaseFlags) -> list[Study]:
    """The diagram, the frontier at one point of it, and the slopes."""
    if p.sizes < 3 or p.points < 3:
        raise UserError(f"--sizes {p.sizes} and --points {p.points}: at least 3 of each are needed")
    sizes = [100 * 2**k for k in range(p.sizes)]
    return [_phase_diagram(p.points), _compute_frontier(p.alpha, p.beta, sizes, p.h), _local_slopes(p.h)]


def _phase_diagram(points: int) -> Study:
    """Exponents e of P ~ f^-e on a grid of 2 alpha in (0, 3], 2 beta in (0, 3]; NaN where no phase is defined."""
    two_alpha, two_beta = np.linspace(0.05, 3, points), np.linspace(0.0, 3, points)
    arrays = {"two_alpha": two_alpha, "two_beta": two_beta}
    for family in FAMILIES:
        arrays[f"exponent_{family}"] = np.asarray(
            [
                [compute_optimum(a / 2, b / 2, family).loss if a + b > 1.0001 else np.nan for a in two_alpha]
                for b in two_beta
            ]
        )
    gain = arrays["exponent_dana-decaying"] / arrays["exponent_sgd"]
    best = np.unravel_index(np.nanargmax(gain), gain.shape)
    findings = {
        "largest gain in the compute exponent, DANA-decaying / SGD": float(np.nanmax(gain)),
        "largest gain: alpha": float(two_alpha[best[1]] / 2),
        "largest gain: beta": float(two_beta[best[0]] / 2),
        "gain below the line 2 alpha = 1": 1.0,
    }
    return Study("phases", arrays, {"points": points}, findings, _draw_phases)


def _draw_phases(study: Study) -> Figure:
    """Three maps of the exponent, one of the gain, with the borders and names of the phases."""
    figure, axes = canvas(4)
    a = study.arrays
    maps = [(f"{LABELS[f]}: e in P ~ compute^-e", a[f"exponent_{f}"], "viridis", (0, 1.2)) for f in FAMILIES]
    gain = a["exponent_dana-decaying"] / a["exponent_sgd"]
    maps.append(("gain: e of DANA-decaying / e of SGD", gain, "magma", (1, float(np.nanmax(gain)))))
    for panel, (title, values, colors, limits) in zip(axes, maps, strict=True):
        mesh = panel.pcolormesh(
            a["two_alpha"],
            a["two_beta"],
            values,
            cmap=colors,
            vmin=limits[0],
            vmax=limits[1],
            shading="nearest",
            rasterized=True,
        )
        figure.colorbar(mesh, ax=panel, shrink=0.85)
        for x, y in (([1, 1], [0, 3]), ([0.05, 3], [1, 1]), ([1, 3], [1, 3]), ([0.5, 0.5], [1, 3])):
            panel.plot(x, y, color="white", lw=1.2)
        panel.plot([2 * IVA_BORDER] * 2, [1, 3], color="white", lw=0.8, ls="--")
        for name, (x, y) in _NAMES.items():
            words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "fontweight": "bold"}
            panel.text(x, y, name, color="white", rotation=90 if name == "IVb" else 0, **words)
        panel.set(title=title, xlabel="2 alpha (data)", ylabel="2 beta (target)", xlim=(0.05, 3), ylim=(0, 3))
        panel.grid(False)
    return figure


def _compute_frontier(alpha: float, beta: float, sizes: Sequence[int], h: float) -> Study:
    """Compute-optimal frontiers over d in `sizes`, v = 4 d, batch 1."""
    flops = np.geomspace(1e4, 20.0 * float(sizes[-1]) ** 3, 201)
    arrays = {"flops": flops, "sizes": np.asarray(sizes)}
    findings = {}
    for family in FAMILIES:
        result = frontier(alpha, beta, family, sizes, flops=flops, h=h)
        arrays[f"risk_{family}"], arrays[f"best_{family}"] = result.risk, result.best
        arrays[f"interior_{family}"] = result.interior()
        for d, curve in zip(sizes, result.curves, strict=True):
            at = np.geomspace(1, curve.t[-1], 80)
            arrays[f"curve_{family}_{d}"] = np.stack([d * (at + 1), curve.at(at)])
        findings[f"{LABELS[family]}: fitted exponent"] = result.slope(0.5)
        findings[f"{LABELS[family]}: theory"] = compute_optimum(alpha, beta, family).loss
    settings = {
        "alpha": alpha,
        "beta": beta,
        "sizes": list(sizes),
        "h": h,
        "fit": "later half of the interior",
    }
    return Study("compute_optimal", arrays, settings, findings, _draw_frontier)


def _draw_frontier(study: Study) -> Figure:
    """One panel per algorithm, and the three envelopes together."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(4)
    last, labels = axes[-1], ("compute f = d (t + 1)", "population risk P")
    for panel, family in zip(axes, FAMILIES, strict=False):
        color, inside = optimizer_color(family), a[f"interior_{family}"]
        flops, envelope = a["flops"][inside], a[f"risk_{family}"][inside]
        for d in p["sizes"]:
            panel.plot(*a[f"curve_{family}_{d}"], color=color, lw=0.8, alpha=0.45)
        panel.plot(flops, envelope, color=ink(), lw=2, label="envelope")
        fitted, theory = (study.findings[f"{LABELS[family]}: {key}"] for key in ("fitted exponent", "theory"))
        line = envelope[-1] * (flops / flops[-1]) ** -theory
        panel.plot(flops, line, color=ink(), lw=1, ls=":", label=f"slope of theory, -{theory:.3f}")
        title = f"{LABELS[family]}: fitted {fitted:.3f}"
        label(panel, title, *labels, "lower left", ylim=(1e-8, 2), xlim=(1e3, a["flops"][-1]))
        last.plot(flops, envelope, color=color, label=LABELS[family])
    label(last, f"envelopes, alpha = {p['alpha']:g}, beta = {p['beta']:g}", *labels, "lower left")
    return figure


def _local_slopes(h: float) -> Study:
    """-d log P / d log t in the phases Ia, II and III, without the limit risk."""
    horizon, d_constant, d_other = 1e8, 100_000, 10**9
    centers = np.geomspace(3, horizon / 3, 120)
    arrays = {"t": centers}
    findings = {}
    for alpha, beta in SLOPE_POINTS:
        for family in FAMILIES:
            d = d_constant if family == "dana-constant" else d_other
            algorithm = standard(family, alpha=alpha, beta=beta, d=d, trace=power_sum(2 * alpha, 10**6))
            curve = ode(binned_spectrum(alpha, beta, d), algorithm, horizon, h=h)
            wide = np.log(np.stack([curve.at(centers / 1.8), curve.at(centers * 1.8)]))
            slope = (wide[0] - wide[1]) / (2 * np.log(1.8))
            arrays[f"slope_{phase(alpha, beta)}_{family}"] = slope
            findings[f"phase {phase(alpha, beta)}, {LABELS[family]}: largest slope"] = float(slope[20:].max())
    settings = {"points": [list(p) for p in SLOPE_POINTS], "horizon": horizon, "h": h}
    settings |= {"d_constant": d_constant, "d_other": d_other}
    return Study("slopes", arrays, settings, findings, _draw_slopes)


def _draw_slopes(study: Study) -> Figure:
    """One panel per phase: measured slopes, and the predicted levels as dashed lines."""
    figure, axes = canvas(3)
    for panel, (alpha, beta) in zip(axes, study.parameters["points"], strict=True):
        name = phase(alpha, beta)
        for family in FAMILIES:
            color = optimizer_color(family)
            panel.plot(
                study.arrays["t"], study.arrays[f"slope_{name}_{family}"], color=color, label=LABELS[family]
            )
            if family == "dana-constant" and name != "Ia":
                continue  # its capacity term takes over before these slopes are reached
            term = "Kpp" if name == "III" else "Fpp"  # the leading one in the figure's window
            level = time_exponents(alpha, beta, family)[term]
            panel.axhline(level, color=color, lw=1, ls="--")
            panel.annotate(
                f"{term}: {level:.3g}",
                (1.0, level),
                (-2, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=color,
            )
        title = f"phase {name}: alpha = {alpha:g}, beta = {beta:g}"
        legend = "upper left" if panel is axes[0] else ""
        right = 30 * study.arrays["t"][-1]  # room for the labels
        label(panel, title, "steps t", "-d log P / d log t", legend, "x", ylim=(0, 3.2), xlim=(1, right))
    return figure
