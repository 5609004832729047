"""Loss curves of SGD, SGD with momentum, DANA-constant, DANA-decaying and AdEMAMix on one random draw.

Three methods: the exact recursion, its differential equation in log time, and stochastic runs.
"""

import dataclasses

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.theory.algorithms import ALGORITHMS, critical_kappa, default_delta, standard
from danalab.theory.curve import geometric_times
from danalab.theory.moments import moment_recursion, ode
from danalab.theory.problem import PLRF, draw, limit_loss
from danalab.theory.stochastic import simulate
from danalab.theory.studies.study import LABELS, Study, canvas, label


def compute(
    model: PLRF, *, batch: int = 1, steps: int = 30_000, runs: int = 8, h: float = 1e-2, seed: int = 0
) -> Study:
    """Curves of all algorithms of `ALGORITHMS` on one draw of `model`; `runs` stochastic runs each."""
    spectrum = draw(model, seed).spectrum
    times = geometric_times(steps)
    arrays = {"t": times.astype(float), "limit": np.asarray(spectrum.limit)}
    findings = {}
    for name in ALGORITHMS:
        algorithm = standard(name, alpha=model.alpha, beta=model.beta, d=model.d, trace=model.trace, batch=batch)
        equation = ode(spectrum, algorithm, steps, batch=batch, h=h)
        exact = moment_recursion(spectrum, algorithm, steps, batch=batch, times=times)
        stochastic = simulate(spectrum, algorithm, steps, batch=batch, runs=runs, seed=seed, times=times)
        arrays[f"ode_{name}"] = equation.at(times)
        arrays[f"exact_{name}"] = exact.risk
        arrays[f"runs_{name}"] = stochastic.risk
        findings[f"final risk, {LABELS[name]}"] = float(exact.risk[-1])
    findings["limit risk of this draw"] = spectrum.limit
    findings["limit risk, deterministic equivalent"] = limit_loss(model.alpha, model.beta, model.v, model.d)
    settings = {"batch": batch, "steps": steps, "runs": runs, "h": h, "seed": seed}
    derived = {"kappa": critical_kappa(model.alpha), "delta": default_delta(model.alpha, model.beta)}
    return Study("plrf", arrays, {**dataclasses.asdict(model), **settings, **derived}, findings, draw_figure)


def draw_figure(study: Study) -> Figure:
    """Left: expected curves and one run each; middle: spread of the runs; right: equation against exact recursion."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(1, 3, 5.2, 4.5)
    left, middle, right = axes[0]
    t = a["t"] + 1
    for name in ALGORITHMS:
        color = optimizer_color(name)
        left.plot(t, a[f"runs_{name}"][0], color=color, alpha=0.3, lw=1)
        left.plot(t, a[f"exact_{name}"], color=color, label=LABELS[name])
        late = a["t"] >= 10
        right.plot(t[late], 100 * (a[f"ode_{name}"] / a[f"exact_{name}"] - 1)[late], color=color, label=LABELS[name])
    for name in ("sgd", "dana-decaying"):
        low, high = np.quantile(a[f"runs_{name}"], [0.1, 0.9], axis=0)
        color = optimizer_color(name)
        middle.fill_between(t, low, high, color=color, alpha=0.3, lw=0, label=f"{LABELS[name]}: 80% of the runs")
        middle.plot(t, a[f"exact_{name}"], color=color, label=f"{LABELS[name]}: exact mean")
        middle.plot(t, a[f"ode_{name}"], color="black", lw=1, ls=":")
    middle.plot([], [], color="black", lw=1, ls=":", label="equation in log time")
    _mark_limits(left, study)
    title = f"alpha = {p['alpha']:g}, beta = {p['beta']:g}, v = {p['v']}, d = {p['d']}, B = {p['batch']}"
    labels = "steps t + 1", "population risk P = MSE / 2", "lower left"
    label(left, title, *labels, ylim=(0.2 * float(a["limit"]) or None, None))
    label(middle, f"{p['runs']} stochastic runs", *labels)
    title = "equation in log time against the exact mean"
    label(right, title, "steps t + 1", "difference [%]", "lower right", "x")
    right.axhline(0, color="black", lw=0.8)
    return figure


def _mark_limits(panel: Axes, study: Study) -> None:
    p = study.parameters
    panel.axhline(float(study.arrays["limit"]), color="black", lw=1, ls="--", label="limit risk")
    transition = 4 * p["d"] / p["batch"]
    if transition < p["steps"]:
        color = optimizer_color("dana-constant")
        panel.axvline(transition, color=color, lw=1, ls=":")
        panel.annotate(
            "DANA-constant sets in, t = 4d/B", (transition, 0.98), (-4, 0), xycoords=("data", "axes fraction"),
            textcoords="offset points", rotation=90, ha="right", va="top", fontsize=8, color=color,
        )  # fmt: skip
