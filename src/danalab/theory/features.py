"""Studies of the power-law random features: loss curves, limits of random draws, schedules.

`plrf_study`: SGD, SGD with momentum, DANA-constant, DANA-decaying and AdEMAMix on one random draw, by the exact
recursion, by its differential equation in log time, and by stochastic runs. `limit_study`: deterministic equivalents
against random draws. `schedule_study`: the schedules, and the loss against kappa, a U with a cliff on its left.
"""

import numpy as np
from matplotlib.figure import Figure

from danalab.colors import ink, optimizer_color, shades
from danalab.errors import UserError
from danalab.theory.algorithms import ALGORITHMS, critical_kappa, dana_decaying, default_delta, standard
from danalab.theory.curve import geometric_times, own_settings
from danalab.theory.equivalents import density, limit_loss, smallest_eigenvalue
from danalab.theory.moments import moment_recursion, ode, simulate
from danalab.theory.problem import binned_spectrum, draw, model_of
from danalab.theory.study import LABELS, Study, canvas, label
from danalab.theory_studies import LimitFlags, PLRFFlags, ScheduleFlags


def plrf_study(p: PLRFFlags) -> Study:
    """Curves of all algorithms of `ALGORITHMS` on one draw of the model; `runs` stochastic runs each."""
    model, steps, batch = model_of(p), p.steps, p.batch
    spectrum = draw(model, p.seed).spectrum
    times = geometric_times(steps)
    arrays = {"t": times.astype(float), "limit": np.asarray(spectrum.limit)}
    findings = {}
    for name in ALGORITHMS:
        algorithm = standard(
            name, alpha=model.alpha, beta=model.beta, d=model.d, trace=model.trace, batch=batch
        )
        equation = ode(spectrum, algorithm, steps, batch=batch, h=p.h)
        exact = moment_recursion(spectrum, algorithm, steps, batch=batch, times=times)
        stochastic = simulate(spectrum, algorithm, steps, batch=batch, runs=p.runs, seed=p.seed, times=times)
        arrays[f"ode_{name}"] = equation.at(times)
        arrays[f"exact_{name}"] = exact.risk
        arrays[f"runs_{name}"] = stochastic.risk
        findings[f"final risk, {LABELS[name]}"] = float(exact.risk[-1])
    findings["limit risk of this draw"] = spectrum.limit
    findings["limit risk, deterministic equivalent"] = limit_loss(model.alpha, model.beta, model.v, model.d)
    derived = {"kappa": critical_kappa(model.alpha), "delta": default_delta(model.alpha, model.beta)}
    return Study("plrf", arrays, {**p.settings(), **derived}, findings, draw_curves)


def draw_curves(study: Study) -> Figure:
    """Expected curves and one run each; spread of the runs; equation against exact recursion."""
    a, p = study.arrays, study.parameters
    figure, (left, middle, right) = canvas(3)
    t = a["t"] + 1
    for name in ALGORITHMS:
        color = optimizer_color(name)
        left.plot(t, a[f"runs_{name}"][0], color=color, alpha=0.3, lw=1)
        left.plot(t, a[f"exact_{name}"], color=color, label=LABELS[name])
        late = a["t"] >= 10
        right.plot(
            t[late], 100 * (a[f"ode_{name}"] / a[f"exact_{name}"] - 1)[late], color=color, label=LABELS[name]
        )
    for name in ("sgd", "dana-decaying"):
        low, high = np.quantile(a[f"runs_{name}"], [0.1, 0.9], axis=0)
        color = optimizer_color(name)
        middle.fill_between(
            t, low, high, color=color, alpha=0.3, lw=0, label=f"{LABELS[name]}: 80% of the runs"
        )
        middle.plot(t, a[f"exact_{name}"], color=color, label=f"{LABELS[name]}: exact mean")
        middle.plot(t, a[f"ode_{name}"], color=ink(), lw=1, ls=":")
    middle.plot([], [], color=ink(), lw=1, ls=":", label="equation in log time")
    left.axhline(float(a["limit"]), color=ink(), lw=1, ls="--", label="limit risk")
    transition, color = 4 * p["d"] / p["batch"], optimizer_color("dana-constant")
    if transition < p["steps"]:
        left.axvline(transition, color=color, lw=1, ls=":")
        left.annotate(
            "DANA-constant sets in, t = 4d/B",
            (transition, 0.98),
            (-4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=8,
            color=color,
        )
    title = f"alpha = {p['alpha']:g}, beta = {p['beta']:g}, v = {p['v']}, d = {p['d']}, B = {p['batch']}"
    labels = "steps t + 1", "population risk P = MSE / 2", "lower left"
    label(left, title, *labels, ylim=(0.03 * float(a["limit"]) or None, None))
    left.legend(loc="lower left", ncols=2, frameon=True, edgecolor="none", framealpha=1)  # below the limit
    label(middle, f"{p['runs']} stochastic runs", *labels)
    title = "equation in log time against the exact mean"
    label(right, title, "steps t + 1", "difference [%]", "lower right", "x")
    right.axhline(0, color=ink(), lw=0.8)
    return figure


BETAS = (0.3, 0.5, 0.7, 1.0)


def limit_study(p: LimitFlags) -> Study:
    """Spectra of `draws` random W against the density, and limit losses for d = 2^5 .. 2^13 with v = 4 d."""
    if p.draws < 1:
        raise UserError(f"--draws {p.draws}: at least one is needed")
    model = model_of(p)
    spectra = [draw(model, p.seed + i).spectrum for i in range(p.draws)]
    edge = smallest_eigenvalue(model)
    x = np.geomspace(max(0.6 * edge, 1e-13), 3.0, 700)
    eigenvalues, rho = density(model, x)
    widths = np.diff(x, prepend=x[0])
    sizes = 2 ** np.arange(5, 14)
    limits = [
        [limit_loss(model.alpha, max(b, 0.51 - model.alpha), 4 * int(d), int(d)) for d in sizes]
        for b in BETAS
    ]
    arrays = {
        "x": x,
        "eigenvalues_above": np.cumsum((eigenvalues * widths)[::-1])[::-1],
        "energy_below": np.cumsum(0.5 * x * rho * widths),
        "lam": np.stack([s.lam for s in spectra]),
        "rho": np.stack([s.rho for s in spectra]),
        "limits": np.asarray([s.limit for s in spectra]),
        "sizes": sizes,
        "limit_loss": np.asarray(limits),
    }
    middle = np.arange(5, max(model.d // 10, 8))
    slopes = [np.polyfit(np.log(middle), np.log(s.lam[middle - 1]), 1)[0] for s in spectra]
    findings = {
        "limit loss, deterministic equivalent": limit_loss(model.alpha, model.beta, model.v, model.d),
        "limit loss, mean of the draws": float(arrays["limits"].mean()),
        "smallest eigenvalue, theory": edge,
        "smallest eigenvalue, mean of the draws": float(arrays["lam"][:, -1].mean()),
        "slope of log lam on log j": float(np.mean(slopes)),
        "-2 alpha": -2 * model.alpha,
    }
    return Study("limit", arrays, p.settings(), findings, draw_limits)


def draw_limits(study: Study) -> Figure:
    """Eigenvalues, cumulated energy of the target, limit loss."""
    a, p = study.arrays, study.parameters
    figure, (spectrum, energy, limit) = canvas(3)
    rank = np.arange(1, p["d"] + 1)
    for i, lam in enumerate(a["lam"]):
        style = {"color": "#6baed6", "lw": 3, "alpha": 0.5, "label": "random draws" if i == 0 else None}
        spectrum.plot(rank, lam, **style)
        energy.plot(lam[::-1], np.cumsum((0.5 * lam * a["rho"][i])[::-1]), **style)
    shown = a["eigenvalues_above"] > 0.5
    spectrum.plot(a["eigenvalues_above"][shown], a["x"][shown], color="#2171b5", lw=1.4, label="density")
    spectrum.plot(rank, rank ** (-2.0 * p["alpha"]), color=ink(), lw=1, ls=":", label="j^(-2 alpha)")
    title = f"eigenvalues, alpha = {p['alpha']:g}, v = {p['v']}, d = {p['d']}"
    label(spectrum, title, "rank j", "eigenvalue of K", "lower left")
    seen = a["energy_below"] > 0
    energy.plot(a["x"][seen], a["energy_below"][seen], color="#2171b5", lw=1.4, label="rho-measure")
    title, floor = f"what is left to learn, beta = {p['beta']:g}", float(a["energy_below"][-1]) * 1e-6
    y = "sum of lam rho / 2 over eigenvalues < x"
    label(energy, title, "eigenvalue x", y, "upper left", ylim=(floor, None))
    for row, beta, color in zip(a["limit_loss"], BETAS, shades(len(BETAS)), strict=True):
        power = 2 * p["alpha"] - max(0.0, 1 - 2 * beta)
        limit.plot(
            a["sizes"], row, color=color, marker="o", ms=4, label=f"beta = {beta:g}, theory d^-{power:.2g}"
        )
        limit.plot(a["sizes"], row[-1] * (a["sizes"] / a["sizes"][-1]) ** -power, color=color, lw=1, ls=":")
    label(limit, "limit loss, v = 4d", "parameters d", "limit risk P", "lower left")
    return figure


D_SWEEP = 10_000_000
SHOWN = ("sgd-m", "dana-constant", "dana-decaying", "ademamix")


def schedule_study(p: ScheduleFlags) -> Study:
    """gamma3 / gamma2 and Delta of each algorithm, and the risk at four times against kappa on D_SWEEP modes."""
    model, batch, horizon, points = model_of(p), p.batch, p.horizon, p.points
    if not horizon >= 1000:
        raise UserError(f"horizon = {horizon:g}: at least 1,000 steps are needed")
    if points < 3:
        raise UserError(f"points = {points}: at least 3 values of kappa are needed")
    t = np.geomspace(1, horizon, 200)
    arrays = {"t": t}
    settings = {"alpha": model.alpha, "beta": model.beta, "d": model.d, "trace": model.trace, "batch": batch}
    for name in ALGORITHMS:
        algorithm = standard(name, **settings)
        with own_settings(x64=True):
            rates = algorithm.at(t)
            arrays[f"weight_{name}"] = np.broadcast_to(np.asarray(rates.gamma3 / rates.gamma2), t.shape)
            arrays[f"forget_{name}"] = np.broadcast_to(np.asarray(rates.forget), t.shape)
    critical = critical_kappa(model.alpha)
    kappas = np.linspace(0.4 * critical, max(1.0, 1.4 * critical), points)
    gamma2 = 0.5 * min(1.0, batch / model.trace)
    delta = default_delta(model.alpha, model.beta)
    sweep = [dana_decaying(gamma2, 0.5 * gamma2, k, delta) for k in kappas]
    curve = ode(binned_spectrum(model.alpha, model.beta, D_SWEEP), sweep, horizon, batch=batch, h=p.h)
    checkpoints = np.geomspace(horizon / 1000, horizon, 4)
    arrays.update(kappa=kappas, checkpoints=checkpoints, risk=curve.at(checkpoints))
    best = kappas[np.argmin(arrays["risk"], axis=0)]
    findings = {f"best kappa at t = {at:.0e}": float(k) for at, k in zip(checkpoints, best, strict=True)}
    findings["1 / (2 alpha)"] = critical
    extra = {"horizon": horizon, "d_sweep": D_SWEEP, "h": p.h, "delta": delta}
    return Study("schedules", arrays, {**settings, **extra}, findings, draw_schedules)


def draw_schedules(study: Study) -> Figure:
    """Weight of the momentum, its memory, and the U-curves."""
    a, p = study.arrays, study.parameters
    figure, (weight, memory, sweep) = canvas(3)
    for name in SHOWN:
        weight.plot(a["t"], a[f"weight_{name}"], color=optimizer_color(name), label=LABELS[name])
        # Both DANA variants have the same memory: dashes show both colours.
        style = "--" if name == "dana-decaying" else "-"
        memory.plot(
            a["t"], 1 / a[f"forget_{name}"], color=optimizer_color(name), ls=style, label=LABELS[name]
        )
    label(weight, "weight of the momentum", "steps t", "gamma3 / gamma2", "lower left", ylim=(1e-6, None))
    label(memory, "memory of the momentum", "steps t", "1 / Delta [steps]", "upper left")
    colors = shades(len(a["checkpoints"]))
    for i, at in enumerate(a["checkpoints"]):
        risk = np.where(a["risk"][:, i] < 1, a["risk"][:, i], np.nan)
        sweep.plot(a["kappa"], risk, color=colors[i], marker="o", ms=3, label=f"t = {at:.0e}")
    critical = study.findings["1 / (2 alpha)"]
    sweep.axvline(critical, color=ink(), lw=1, ls="--", label="1 / (2 alpha)")
    title, y = f"DANA-decaying, d = {p['d_sweep']:.0e}", "population risk P, without the limit risk"
    label(sweep, title, "kappa", y, "upper right", "y", ylim=(None, 3))
    return figure
