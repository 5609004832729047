"""Deterministic equivalents against random draws: eigenvalues, the target's energy, and the limit loss against d."""

import dataclasses

import numpy as np
from matplotlib.figure import Figure

from danalab.theory.problem import PLRF, density, draw, limit_loss, smallest_eigenvalue
from danalab.theory.studies.study import Study, canvas, label

BETAS = (0.3, 0.5, 0.7, 1.0)


def compute(model: PLRF, *, draws: int = 3, points: int = 700, seed: int = 0) -> Study:
    """Spectra of `draws` random W against the density, and limit losses for d = 2^5 .. 2^13 with v = 4 d."""
    spectra = [draw(model, seed + i).spectrum for i in range(draws)]
    edge = smallest_eigenvalue(model)
    x = np.geomspace(max(0.6 * edge, 1e-13), 3.0, points)
    dense = density(model, x)
    widths = np.diff(x, prepend=x[0])
    sizes = 2 ** np.arange(5, 14)
    limits = [[limit_loss(model.alpha, max(b, 0.51 - model.alpha), 4 * int(d), int(d)) for d in sizes] for b in BETAS]
    arrays = {
        "x": x,
        "eigenvalues_above": np.cumsum((dense.eigenvalues * widths)[::-1])[::-1],
        "energy_below": np.cumsum(0.5 * x * dense.rho * widths),
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
    return Study("limit", arrays, {**dataclasses.asdict(model), "draws": draws, "seed": seed}, findings, draw_figure)


def draw_figure(study: Study) -> Figure:
    """Eigenvalues, cumulated energy of the target, limit loss."""
    a, p = study.arrays, study.parameters
    figure, axes = canvas(1, 3, 5.0, 4.2)
    spectrum, energy, limit = axes[0]
    rank = np.arange(1, p["d"] + 1)
    for i, lam in enumerate(a["lam"]):
        style = {"color": "#6baed6", "lw": 3, "alpha": 0.5, "label": "random draws" if i == 0 else None}
        spectrum.plot(rank, lam, **style)
        energy.plot(lam[::-1], np.cumsum((0.5 * lam * a["rho"][i])[::-1]), **style)
    shown = a["eigenvalues_above"] > 0.5
    spectrum.plot(a["eigenvalues_above"][shown], a["x"][shown], color="#08306b", lw=1.4, label="density")
    spectrum.plot(rank, rank ** (-2.0 * p["alpha"]), color="black", lw=1, ls=":", label="j^(-2 alpha)")
    title = f"eigenvalues, alpha = {p['alpha']:g}, v = {p['v']}, d = {p['d']}"
    label(spectrum, title, "rank j", "eigenvalue of K", "lower left")
    seen = a["energy_below"] > 0
    energy.plot(a["x"][seen], a["energy_below"][seen], color="#08306b", lw=1.4, label="rho-measure")
    title, floor = f"what is left to learn, beta = {p['beta']:g}", float(a["energy_below"][-1]) * 1e-6
    y = "sum of lam rho / 2 over eigenvalues < x"
    label(energy, title, "eigenvalue x", y, "upper left", ylim=(floor, None))
    shades = ["#c6dbef", "#6baed6", "#2171b5", "#08306b"]
    for row, beta, color in zip(a["limit_loss"], BETAS, shades, strict=True):
        power = 2 * p["alpha"] - max(0.0, 1 - 2 * beta)
        limit.plot(a["sizes"], row, color=color, marker="o", ms=4, label=f"beta = {beta:g}, theory d^-{power:.2g}")
        limit.plot(a["sizes"], row[-1] * (a["sizes"] / a["sizes"][-1]) ** -power, color=color, lw=1, ls=":")
    label(limit, "limit loss, v = 4d", "parameters d", "limit risk P", "lower left")
    return figure
