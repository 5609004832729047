"""The hummingbird plot: risk against steps for every kappa, one panel an optimizer, and final risk against kappa."""

import dataclasses
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.theory.problem.model import PLRF
from danalab.theory.simulation.kappa_sweep import SWEPT, hummingbird
from danalab.theory.studies.study import LABELS, Study, canvas, loglog


def compute(model: PLRF, **settings: Any) -> Study:
    """`hummingbird(model, **settings)` as a study."""
    result = hummingbird(model, **settings)
    arrays = {
        "t": result.t,
        "kappa": result.kappas,
        "limit": np.asarray(result.limit),
        "initial": np.asarray(result.initial),
    }
    arrays.update({f"risk_{name}": risk for name, risk in result.risk.items()})
    findings: dict[str, Any] = {"limit risk": result.limit, "initial risk": result.initial}
    for name in (*SWEPT, "adam", "sgd"):
        final = result.final(name)
        findings[f"{LABELS[name]}: best final risk"] = float(final.min())
        if len(final) > 1:
            findings[f"{LABELS[name]}: best kappa"] = float(result.kappas[final.argmin()])
    return Study("hummingbird", arrays, {**dataclasses.asdict(model), **settings}, findings)


def draw_figure(study: Study) -> Figure:
    """Three panels of curves coloured by kappa, one of final risks."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(2, 2, 5.4, 4.2)
    colors = mpl.colormaps["viridis"]
    low, high = float(a["limit"]) * 0.7, 10.0
    for panel, name in zip(axes.flat, SWEPT, strict=False):
        for i, kappa in enumerate(a["kappa"]):
            panel.plot(a["t"] + 1, a[f"risk_{name}"][:, i], color=colors(kappa), lw=1.4)
        panel.plot(a["t"] + 1, a["risk_adam"][:, 0], color="black", ls="--", lw=1.6, label="Adam")
        panel.plot(a["t"] + 1, a["risk_sgd"][:, 0], color=optimizer_color("sgd"), ls="-.", lw=1.4, label="SGD")
        panel.axhline(float(a["limit"]), color="black", lw=0.8, ls=":", label="limit risk")
        clip = f", clipsnr = {p.get('clipsnr', 0.5):g}" if name.endswith("mk4") else ""
        loglog(panel, LABELS[name] + clip, "steps t + 1", "population risk P")
        panel.set_ylim(low, high)
    axes[0][0].legend(loc="lower left")
    scale = ScalarMappable(Normalize(0, 1), colors)
    figure.colorbar(scale, ax=axes[:, 1], label="kappa", shrink=0.6, aspect=40)
    last = axes[1][1]
    for name in SWEPT:
        last.plot(
            a["kappa"],
            np.minimum(a[f"risk_{name}"][-1], high),
            color=optimizer_color(name),
            marker="o",
            ms=4,
            label=LABELS[name],
        )
    last.axhline(a["risk_adam"][-1, 0], color="black", ls="--", lw=1.4, label="Adam")
    last.set(yscale="log", xlabel="kappa", ylabel=f"risk after {int(a['t'][-1]):,} steps", ylim=(low, high))
    last.set_title("final risk (off the top: cut at 10)")
    last.legend(loc="upper right")
    return figure
