"""The compute-optimal frontier of three algorithms: loss against compute for many sizes, envelope and exponent."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.theory.prediction.exponents import FAMILIES, compute_optimum, frontier
from danalab.theory.studies.study import LABELS, Study, canvas, loglog

SIZES = tuple(100 * 2**k for k in range(11))


def compute(alpha: float = 1.0, beta: float = 0.3, *, sizes: Sequence[int] = SIZES, h: float = 1e-2) -> Study:
    """Frontiers of SGD, DANA-constant and DANA-decaying over d in `sizes`, v = 4 d, batch 1."""
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
    settings = {"alpha": alpha, "beta": beta, "sizes": list(sizes), "h": h, "fit": "later half of the interior"}
    return Study("compute_optimal", arrays, settings, findings)


def draw_figure(study: Study) -> Figure:
    """One panel an algorithm, and the three envelopes together."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(2, 2, 5.4, 4.2)
    for panel, family in zip(axes.flat, FAMILIES, strict=False):
        for d in p["sizes"]:
            panel.plot(*a[f"curve_{family}_{d}"], color=optimizer_color(family), lw=0.8, alpha=0.45)
        inside = a[f"interior_{family}"]
        panel.plot(a["flops"][inside], a[f"risk_{family}"][inside], color="black", lw=2, label="envelope")
        fitted = study.findings[f"{LABELS[family]}: fitted exponent"]
        theory = study.findings[f"{LABELS[family]}: theory"]
        anchor = np.flatnonzero(inside)[-1]
        line = a[f"risk_{family}"][anchor] * (a["flops"] / a["flops"][anchor]) ** -theory
        panel.plot(
            a["flops"][inside], line[inside], color="black", lw=1, ls=":", label=f"slope of theory, -{theory:.3f}"
        )
        loglog(panel, f"{LABELS[family]}: fitted {fitted:.3f}", "compute f = d (t + 1)", "population risk P")
        panel.set(ylim=(1e-8, 2), xlim=(1e3, a["flops"][-1]))
        panel.legend(loc="lower left")
    last = axes[1][1]
    for family in FAMILIES:
        inside = a[f"interior_{family}"]
        last.plot(a["flops"][inside], a[f"risk_{family}"][inside], color=optimizer_color(family), label=LABELS[family])
    loglog(
        last, f"envelopes, alpha = {p['alpha']:g}, beta = {p['beta']:g}", "compute f = d (t + 1)", "population risk P"
    )
    last.legend(loc="lower left")
    return figure
