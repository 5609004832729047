"""The schedules, and the loss against kappa: a U with a cliff on its left."""

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.theory.algorithms import ALGORITHMS, critical_kappa, dana_decaying, default_delta, standard
from danalab.theory.curve import enable_x64
from danalab.theory.moments import ode
from danalab.theory.problem import PLRF, binned_spectrum
from danalab.theory.studies.study import LABELS, Study, canvas, label

SHOWN = ("sgd-m", "dana-constant", "dana-decaying", "ademamix")


def compute(
    model: PLRF, *, batch: int = 1, horizon: float = 1e7, points: int = 41, d_sweep: int = 10_000_000, h: float = 1e-2
) -> Study:
    """gamma3 / gamma2 and Delta of each algorithm, and the risk at four times against kappa on `d_sweep` modes."""
    if not horizon >= 1000:
        raise UserError(f"horizon = {horizon:g}: at least 1,000 steps are needed")
    if points < 3:
        raise UserError(f"points = {points}: at least 3 values of kappa are needed")
    t = np.geomspace(1, horizon, 200)
    arrays = {"t": t}
    settings = {"alpha": model.alpha, "beta": model.beta, "d": model.d, "trace": model.trace, "batch": batch}
    for name in ALGORITHMS:
        algorithm = standard(name, **settings)
        with enable_x64():
            rates = algorithm.at(t)
            arrays[f"weight_{name}"] = np.broadcast_to(np.asarray(rates.gamma3 / rates.gamma2), t.shape)
            arrays[f"forget_{name}"] = np.broadcast_to(np.asarray(rates.forget), t.shape)
    critical = critical_kappa(model.alpha)
    kappas = np.linspace(0.4 * critical, max(1.0, 1.4 * critical), points)
    gamma2 = 0.5 * min(1.0, batch / model.trace)
    delta = default_delta(model.alpha, model.beta)
    sweep = [dana_decaying(gamma2, 0.5 * gamma2, k, delta) for k in kappas]
    curve = ode(binned_spectrum(model.alpha, model.beta, d_sweep), sweep, horizon, batch=batch, h=h)
    checkpoints = np.geomspace(horizon / 1000, horizon, 4)
    arrays.update(kappa=kappas, checkpoints=checkpoints, risk=curve.at(checkpoints))
    best = kappas[np.argmin(arrays["risk"], axis=0)]
    findings = {f"best kappa at t = {at:.0e}": float(k) for at, k in zip(checkpoints, best, strict=True)}
    findings["1 / (2 alpha)"] = critical
    extra = {"horizon": horizon, "d_sweep": d_sweep, "h": h, "delta": delta}
    return Study("schedules", arrays, {**settings, **extra}, findings, draw_figure)


def draw_figure(study: Study) -> Figure:
    """Weight of the momentum, its memory, and the U-curves."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(1, 3, 5.0, 4.2)
    weight, memory, sweep = axes[0]
    for name in SHOWN:
        weight.plot(a["t"], a[f"weight_{name}"], color=optimizer_color(name), label=LABELS[name])
        # Both DANA variants have the same memory: dashes show both colours.
        style = "--" if name == "dana-decaying" else "-"
        memory.plot(a["t"], 1 / a[f"forget_{name}"], color=optimizer_color(name), ls=style, label=LABELS[name])
    label(weight, "weight of the momentum", "steps t", "gamma3 / gamma2", "lower left", ylim=(1e-6, None))
    label(memory, "memory of the momentum", "steps t", "1 / Delta [steps]", "upper left")
    colors = ["#bdd7e7", "#6baed6", "#2171b5", "#08306b"]
    for i, at in enumerate(a["checkpoints"]):
        risk = np.where(a["risk"][:, i] < 1, a["risk"][:, i], np.nan)
        sweep.plot(a["kappa"], risk, color=colors[i], marker="o", ms=3, label=f"t = {at:.0e}")
    critical = study.findings["1 / (2 alpha)"]
    sweep.axvline(critical, color="black", lw=1, ls="--", label="1 / (2 alpha)")
    title, y = f"DANA-decaying, d = {p['d_sweep']:.0e}", "population risk P, without the limit risk"
    label(sweep, title, "kappa", y, "upper right", "y", ylim=(None, 3))
    return figure
