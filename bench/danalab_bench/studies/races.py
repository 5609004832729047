"""The hummingbird and the mixture of experts of `danalab.theory.races`, as studies with a figure."""

from __future__ import annotations

import dataclasses
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.theory.problem.model import PLRF
from danalab.theory.races import SWEPT, hummingbird, moe
from danalab_bench.studies.study import LABELS, Study, canvas, label

_LIMIT: dict[str, Any] = {"color": "black", "lw": 0.8, "ls": ":", "label": "limit risk"}


def hummingbird_study(model: PLRF, **settings: Any) -> Study:
    """`hummingbird(model, **settings)` as a study."""
    result = hummingbird(model, **settings)
    limits = {"limit": np.asarray(result.limit), "initial": np.asarray(result.initial)}
    risks = {f"risk_{name}": risk for name, risk in result.risk.items()}
    findings: dict[str, Any] = {"limit risk": result.limit, "initial risk": result.initial}
    for name in (*SWEPT, "adam", "sgd"):
        final = result.final(name)
        findings[f"{LABELS[name]}: best final risk"] = float(final.min())
        if len(final) > 1:
            findings[f"{LABELS[name]}: best kappa"] = float(result.kappas[final.argmin()])
    arrays = {"t": result.t, "kappa": result.kappas, **limits, **risks}
    return Study("hummingbird", arrays, {**dataclasses.asdict(model), **settings}, findings, _draw_hummingbird)


def _draw_hummingbird(study: Study) -> Figure:
    """Three panels of curves coloured by kappa, one of final risks."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(2, 2, 5.4, 4.2)
    colors = mpl.colormaps["viridis"]
    low, high = float(a["limit"]) * 0.7, 10.0
    last = axes[1][1]
    for panel, name in zip(axes.flat, SWEPT, strict=False):
        for i, kappa in enumerate(a["kappa"]):
            panel.plot(a["t"] + 1, a[f"risk_{name}"][:, i], color=colors(kappa), lw=1.4)
        panel.plot(a["t"] + 1, a["risk_adam"][:, 0], color="black", ls="--", lw=1.6, label="Adam")
        panel.plot(a["t"] + 1, a["risk_sgd"][:, 0], color=optimizer_color("sgd"), ls="-.", lw=1.4, label="SGD")
        panel.axhline(float(a["limit"]), **_LIMIT)
        clip = f", clipsnr = {p.get('clipsnr', 0.5):g}" if name.endswith("mk4") else ""
        legend = "lower left" if panel is axes[0][0] else ""
        label(panel, LABELS[name] + clip, "steps t + 1", "population risk P", legend, ylim=(low, high))
        final = np.minimum(a[f"risk_{name}"][-1], high)
        last.plot(a["kappa"], final, color=optimizer_color(name), marker="o", ms=4, label=LABELS[name])
    figure.colorbar(ScalarMappable(Normalize(0, 1), colors), ax=axes[:, 1], label="kappa", shrink=0.6, aspect=40)
    last.axhline(a["risk_adam"][-1, 0], color="black", ls="--", lw=1.4, label="Adam")
    title, y = "final risk (off the top: cut at 10)", f"risk after {int(a['t'][-1]):,} steps"
    label(last, title, "kappa", y, "upper right", "y", ylim=(low, high))
    return figure


def moe_study(model: PLRF, **settings: Any) -> Study:
    """`moe(model, **settings)` as a study."""
    result = moe(model, **settings)
    arrays = {name: getattr(result, name) for name in ("t", "activity", "probabilities", "limit")}
    arrays |= {"kappa": result.kappas, "tau": result.tau.mean(-1).mean(0)}
    findings = {}
    for name in (*SWEPT, "adam"):
        arrays[f"total_{name}"] = result.total(name)
        arrays[f"risk_{name}"] = np.exp(np.log(result.risk[name]).mean(0))
    for i, kappa in enumerate(result.kappas):
        for name in SWEPT:
            findings[f"{LABELS[name]}, kappa = {kappa:g}: total risk"] = float(arrays[f"total_{name}"][-1, i])
        findings[f"slope of log tau on log P, kappa = {kappa:g}"] = result.tau_slope(i)
    findings["Adam: total risk"] = float(arrays["total_adam"][-1, 0])
    return Study("moe", arrays, {**dataclasses.asdict(model), **settings}, findings, _draw_moe)


def _draw_moe(study: Study) -> Figure:
    """Total risk; then one line per expert, ADana and Dana-Star-MK4 against the expert's own clock P_i t."""
    a = study.arrays
    figure, axes = canvas(1, 3, 5.0, 4.3)
    total, left, right = axes[0]
    middle, floor = len(a["kappa"]) // 2, 0.5 * float(a["limit"].mean())
    for name in (*SWEPT, "adam"):
        columns = 1 if name == "dana-mk4" else a[f"total_{name}"].shape[1]  # it is ADana wherever ADana is stable
        for i in range(columns):
            kappa = "" if name == "adam" else f", kappa = {a['kappa'][i]:g}"
            style = {"color": optimizer_color(name), "ls": ("-", "--", ":", "-.")[i % 4], "label": LABELS[name] + kappa}
            total.plot(a["t"] + 1, a[f"total_{name}"][:, i], **style)
    title = "total risk, geometric mean over draws"
    label(total, title, "steps t + 1", "population risk P", ylim=(floor, 1e5))
    total.legend(loc="upper left", fontsize=8, ncols=2)
    colors = mpl.colormaps["plasma"]
    lowest, highest = float(a["activity"].min()), float(a["activity"].max())
    shade = np.log(a["activity"] / lowest) / np.log(highest / lowest)
    for panel, name in ((left, "adana"), (right, "dana-star-mk4")):
        for i, activity in enumerate(a["activity"]):
            clock = np.maximum(a["t"] * activity, 0.1)
            panel.plot(clock, a[f"risk_{name}"][:, middle, i], color=colors(0.92 * shade[i]), lw=1.2)
        title = f"{LABELS[name]}, kappa = {a['kappa'][middle]:g}"
        x, y = "active steps P_i t of the expert", "risk of the expert"
        label(panel, title, x, y, ylim=(floor, 1e3), xlim=(0.1, None))
    cut = LinearSegmentedColormap.from_list("cut", colors(np.linspace(0, 0.92, 64)))
    norm = LogNorm(lowest, highest)
    bar = figure.colorbar(ScalarMappable(norm, cut), ax=right, label="activity P_i", shrink=0.85)
    ticks = [x for x in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if lowest <= x <= highest]
    bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
    bar.minorticks_off()
    return figure
