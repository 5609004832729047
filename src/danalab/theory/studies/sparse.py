"""Sparse gradients: a mixture of experts under ADana and Dana-Star-MK4, each expert on its own clock."""

import dataclasses
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.theory.problem.model import PLRF
from danalab.theory.simulation.experts import moe
from danalab.theory.studies.study import LABELS, Study, canvas, loglog

_ORDER = ("adana", "dana-mk4", "dana-star-mk4", "adam")


def compute(model: PLRF, **settings: Any) -> Study:
    """`moe(model, **settings)` as a study."""
    result = moe(model, **settings)
    arrays = {"t": result.t, "kappa": result.kappas, "activity": result.activity, "probabilities": result.probabilities}
    arrays.update({f"total_{n}": result.total(n) for n in _ORDER}, limit=result.limit)
    arrays.update(
        {f"risk_{n}": np.exp(np.log(result.risk[n]).mean(0)) for n in _ORDER}, tau=result.tau.mean(-1).mean(0)
    )
    findings = {}
    for i, kappa in enumerate(result.kappas):
        for name in _ORDER[:-1]:
            findings[f"{LABELS[name]}, kappa = {kappa:g}: total risk"] = float(arrays[f"total_{name}"][-1, i])
        findings[f"slope of log tau on log P, kappa = {kappa:g}"] = result.tau_slope(i)
    findings["Adam: total risk"] = float(arrays["total_adam"][-1, 0])
    return Study("moe", arrays, {**dataclasses.asdict(model), **settings}, findings)


def draw_figure(study: Study) -> Figure:
    """Total risk; then one expert a line, ADana and Dana-Star-MK4 against the expert's own clock P_i t."""
    a = study.arrays
    figure, axes = canvas(1, 3, 5.0, 4.3)
    total, left, right = axes[0]
    middle = len(a["kappa"]) // 2
    styles = ["-", "--", ":", "-."]
    for name in _ORDER:
        for i in range(a[f"total_{name}"].shape[1]):
            kappa = "" if name == "adam" else f", kappa = {a['kappa'][i]:g}"
            style = "-" if name == "adam" else styles[i % 4]
            if name == "dana-mk4" and i > 0:
                continue  # the same as ADana wherever ADana is stable
            total.plot(
                a["t"] + 1, a[f"total_{name}"][:, i], color=optimizer_color(name), ls=style, label=LABELS[name] + kappa
            )
    loglog(total, "total risk, geometric mean over draws", "steps t + 1", "population risk P")
    total.set_ylim(0.5 * float(a["limit"].mean()), 1e5)
    total.legend(loc="upper left", fontsize=8, ncols=2)
    colors = mpl.colormaps["plasma"]
    shade = np.log(a["activity"] / a["activity"].min()) / np.log(a["activity"].max() / a["activity"].min())
    for panel, name in ((left, "adana"), (right, "dana-star-mk4")):
        for i, activity in enumerate(a["activity"]):
            panel.plot(
                np.maximum(a["t"] * activity, 0.1),
                a[f"risk_{name}"][:, middle, i],
                color=colors(0.92 * shade[i]),
                lw=1.2,
            )
        loglog(
            panel,
            f"{LABELS[name]}, kappa = {a['kappa'][middle]:g}",
            "active steps P_i t of the expert",
            "risk of the expert",
        )
        panel.set_ylim(0.5 * float(a["limit"].mean()), 1e3)
        panel.set_xlim(left=0.1)
    lowest, highest = float(a["activity"].min()), float(a["activity"].max())
    norm = LogNorm(lowest, highest)
    cut = LinearSegmentedColormap.from_list("cut", colors(np.linspace(0, 0.92, 64)))
    bar = figure.colorbar(ScalarMappable(norm, cut), ax=right, label="activity P_i", shrink=0.85)
    ticks = [x for x in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if lowest <= x <= highest]
    bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
    bar.minorticks_off()
    return figure
