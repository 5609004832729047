"""Predictions of the theory against measurements, and the speed of the integrator.

Expected values are closed forms if available, otherwise results of an independent float64 implementation.

python bench/theory.py [--output FILE]
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from danalab.files import write_json
from danalab.hardware import available_cores
from danalab.theory import (
    PLRF,
    binned_spectrum,
    dana_decaying,
    draw,
    moment_recursion,
    noise_floor,
    ode,
    power_law_spectrum,
    sgd,
    simulate,
    standard,
)
from danalab.theory.equivalents import density, limit_loss, smallest_eigenvalue
from danalab.theory.exponents import Family, compute_optimum, frontier
from danalab.theory.problem import power_sum
from danalab.theory.races import hummingbird, moe
from danalab.theory.tau_statistics import measure_tau, tau_limit
from danalab_bench.theory_checks import limit_kappa, limit_loss_continuum, sgd_volterra

BOUNDS = {"<": float.__lt__, ">": float.__gt__}


class Row(NamedTuple):
    """One claim: |measured / expected - 1| <= tolerance, or an inequality where `relation` is < or >."""

    what: str
    expected: float
    measured: float
    tolerance: float = 0.0
    relation: str = "="

    @property
    def holds(self) -> bool:
        if self.relation != "=":
            return BOUNDS[self.relation](float(self.measured), float(self.expected))
        return abs(self.measured - self.expected) <= self.tolerance * abs(self.expected)


def limits() -> Iterator[Row]:
    """Limit loss and spectrum against random draws."""
    yield Row(
        "limit loss (1, .5, 4000, 1000), fixed point", 6.920303e-6, limit_loss(1, 0.5, 4000, 1000), 1e-6
    )
    yield Row("the same, continuum", 6.9322e-6, limit_loss_continuum(1, 0.5, 4000, 1000), 3e-3)
    yield Row("kappa(1, v/d = 4)", 0.514778, limit_kappa(1, 4), 2e-3)
    for alpha, beta in ((1.0, 0.3), (1.0, 0.5), (1.0, 0.7), (0.7, 0.3)):
        model = PLRF(alpha, beta, 2000, 500)
        drawn = np.mean([draw(model, 1000 + s).spectrum.limit for s in range(5)])
        yield Row(
            f"mean limit of 5 draws / deterministic, ({alpha}, {beta})",
            1.0,
            drawn / limit_loss(alpha, beta, 2000, 500),
            0.1,
        )
    model = PLRF(1.0, 0.5, 2000, 500)
    lam = draw(model, 0).spectrum.lam
    ranks = np.arange(5, 51)
    yield Row(
        "slope of log lam on log j", -2.0, np.polyfit(np.log(ranks), np.log(lam[ranks - 1]), 1)[0], 0.015
    )
    yield Row("smallest eigenvalue of a draw / theory", 1.0, lam[-1] / smallest_eigenvalue(model), 0.05)
    x = np.geomspace(0.5 * smallest_eigenvalue(model), 4, 1000)
    yield Row(
        "eigenvalues in the density, d = 500",
        500,
        float(np.trapezoid(density(model, x)[0], x)),
        0.01,
    )


def curves() -> Iterator[Row]:
    """The equation in log time against known values, the exact recursion and the Volterra equation."""
    spectrum = power_law_spectrum(1.0, 0.5, 1000, 6.932e-6)
    known = {
        "sgd": (6.364e-4, 7.116e-5),
        "dana-constant": (6.130e-4, 5.338e-5),
        "dana-decaying": (2.800e-4, 2.210e-5),
        "ademamix": (2.95e-4, 4.40e-5),
    }
    for name, values in known.items():
        algorithm = standard(name, alpha=1.0, beta=0.5, d=1000, trace=power_sum(2, 4000))
        got = ode(spectrum, algorithm, 1e4, h=1e-3).at([1e3, 1e4])
        for t, want, risk in zip(("1e3", "1e4"), values, got, strict=True):
            yield Row(f"P({t}) of {name}, d = 1000", want, risk, 0.01)
    small = draw(PLRF(1.0, 0.5, 400, 100), 3).spectrum
    gamma2 = 0.5 / power_sum(2, 400)
    for name in ("sgd", "sgd-m", "dana-constant", "dana-decaying"):
        algorithm = standard(name, alpha=1.0, beta=0.5, d=100, trace=power_sum(2, 400))
        times = [100, 1000, 3000]
        exact = moment_recursion(small, algorithm, 3000, times=times).risk
        ratio = ode(small, algorithm, 3000, h=1e-3).at(times) / exact
        for t, value, tolerance in zip(times, ratio, (0.02, 3e-3, 1e-3), strict=True):
            yield Row(f"equation / exact recursion at t = {t}, {name}", 1.0, value, tolerance)
    times = [1, 10, 100, 500]
    worst = np.abs(
        sgd_volterra(small, gamma2, times) / ode(small, sgd(gamma2), 500, h=1e-3).at(times) - 1
    ).max()
    yield Row(
        "SGD: Volterra equation against moment equation, worst relative difference", 2e-4, worst, relation="<"
    )
    for name, floor in (("sgd", 1.57965), ("dana-constant", 2.6456)):
        algorithm = standard(name, alpha=1.0, beta=0.5, d=100, trace=power_sum(2, 400))
        yield Row(
            f"noise floor / limit, {name}: kernel norm",
            floor,
            noise_floor(small, algorithm) / small.limit,
            1e-4,
        )
        yield Row(
            f"noise floor / limit, {name}: curve at 1e9",
            floor,
            ode(small, algorithm, 1e9).risk[-1] / small.limit,
            1e-3,
        )


def ordering() -> Iterator[Row]:
    """DANA-decaying < DANA-constant < SGD = SGD-M, expected and sampled, d = 500, t in [8000, 12000)."""
    expected = {
        0.3: (7.772e-4, 6.933e-4, 5.680e-4, 3.358e-4),
        0.5: (1.945e-4, 1.737e-4, 1.421e-4, 8.605e-5),
        0.7: (7.229e-5, 6.472e-5, 5.463e-5, 3.559e-5),
    }
    names = ("sgd", "sgd-m", "dana-constant", "dana-decaying")
    times = np.arange(8025, 12_000, 50)  # midpoints, so that the mean is that over all steps
    for beta, values in expected.items():
        model = PLRF(1.0, beta, 2000, 500)
        spectrum = draw(model, 0).spectrum
        for name, want in zip(names, values, strict=True):
            algorithm = standard(name, alpha=1.0, beta=beta, d=500, trace=model.trace)
            exact = moment_recursion(spectrum, algorithm, 12_000, times=times).risk.mean()
            yield Row(f"mean risk, beta = {beta}, {name}: exact", want, exact, 2e-3)
            sampled = simulate(spectrum, algorithm, 12_000, times=times, runs=4, seed=1).risk.mean()
            yield Row(f"mean risk, beta = {beta}, {name}: 4 runs / exact", 1.0, sampled / exact, 0.06)


def slopes() -> Iterator[Row]:
    """Time exponents on binned spectra."""
    cases = [
        ((1.0, 0.3), "sgd", 10**9, (1e5, 1e6), 0.8, 0.0125),
        ((1.0, 0.3), "sgd-m", 10**9, (1e5, 1e6), 0.8, 0.0125),
        ((1.0, 0.3), "dana-decaying", 10**9, (1e6, 1e7), 1.2, 0.017),
        ((1.5, 0.3), "dana-decaying", 10**9, (1e6, 1e7), 1.4444, 0.014),
        ((1.0, 1.3), "dana-decaying", 10**9, (1e5, 1e6), 2.25, 0.036),
        ((1.5, 2.5), "dana-decaying", 10**9, (1e4, 1e5), 2.778, 0.018),
        ((1.5, 0.3), "dana-constant", 10**5, (1e2, 1e3), 0.884, 0.02),
        ((1.5, 0.3), "dana-constant", 10**5, (1e7, 1e8), 1.669, 0.02),
    ]
    for (alpha, beta), name, d, window, want, tolerance in cases:
        algorithm = standard(name, alpha=alpha, beta=beta, d=d, trace=power_sum(2 * alpha, 10**6))
        curve = ode(binned_spectrum(alpha, beta, d, per_decade=60), algorithm, 1e8, h=5e-3)
        yield Row(
            f"slope of {name} at ({alpha}, {beta}) on {window[0]:.0e}..{window[1]:.0e}",
            want,
            curve.slope(*window),
            tolerance,
        )
    gamma2 = 0.5 / power_sum(2, 10**6)
    steep = [
        ode(binned_spectrum(1.0, 0.7, 10**7), dana_decaying(gamma2, 0.5 * gamma2, 0.5, delta), 1e6).slope(
            1e4, 1e5
        )
        for delta in (0.5, 3.0)
    ]
    yield Row(
        "delta too small: slope at delta = 3 minus slope at 0.5, (1, .7)",
        0.5,
        steep[1] - steep[0],
        relation=">",
    )


def compute_exponents() -> Iterator[Row]:
    """Slopes of the compute-optimal frontier."""
    sizes = [100 * 2**k for k in range(7)]
    families: dict[Family, float] = {"sgd": 0.530, "dana-constant": 0.607, "dana-decaying": 0.659}
    for name, want in families.items():
        fitted = frontier(1.0, 0.3, name, sizes).slope()
        yield Row(f"frontier slope (1, .3), d = 100..6400, {name}", want, fitted, 0.02)
        yield Row(
            f"the same against the law of large d, {name}",
            compute_optimum(1.0, 0.3, name).loss,
            fitted,
            0.055,
        )
    flops = np.geomspace(1e6, 1e20, 400)
    wide = frontier(1.5, 0.8, "dana-constant", [100 * 4**k for k in range(11)], flops=flops)
    yield Row(
        "frontier slope (1.5, .8) of DANA-constant, d = 100..1e8, last third", 1.0, wide.slope(1 / 3), 0.02
    )


def kappa() -> Iterator[Row]:
    """The U-curve in kappa and its cliff."""
    kappas = np.round(np.arange(0.2, 1.001, 0.05), 2)
    gamma2 = 0.5 / power_sum(2, 8000)
    sweep = [dana_decaying(gamma2, 0.5 * gamma2, k, 5.3) for k in kappas]
    risk = dict(
        zip(kappas.tolist(), ode(power_law_spectrum(1.0, 0.3, 2000), sweep, 1e5).at([1e5])[:, 0], strict=True)
    )
    yield Row("best kappa at t = 1e5, alpha = 1", 0.4, min(risk, key=risk.__getitem__), 0.13)
    yield Row("risk at kappa = .3 / .4", 1e3, risk[0.3] / risk[0.4], relation=">")
    yield Row("risk at kappa = 1 / .5", 12.6, risk[1.0] / risk[0.5], 0.1)
    guard = ode(binned_spectrum(1.0, 0.3, 10**7), sweep[:1] + sweep[4:5], 1e7).at([1e5, 1e7])
    yield Row("kappa = .2 diverges: risk at 1e5", 1e10, guard[0, 0], relation=">")
    yield Row("kappa = .4 does not: risk at 1e7", 1e-6, guard[1, 1], relation="<")


def adaptive() -> Iterator[Row]:
    """Hummingbird, sparse experts, tau."""
    for kind in ("sign", "gauss", "product"):
        found = measure_tau([1.0, 0.5, 0.1, 0.01], kind)
        for p, value in zip((1.0, 0.5, 0.1, 0.01), found, strict=True):
            yield Row(f"tau of {kind} gradients, P = {p}", tau_limit(p, kind), float(value), 0.015)
    wing = hummingbird()
    yield Row(
        "ADana, kappa = 0: final risk / initial", 100, wing.risk["adana"][-1, 0] / wing.initial, relation=">"
    )
    yield Row("Dana-MK4 clip .5, kappa = 0: final risk", 5e-3, wing.risk["dana-mk4"][-1, 0], relation="<")
    late = wing.t >= 1600
    gap = np.abs(wing.risk["dana-mk4"] / wing.risk["adana"] - 1)[late][:, wing.kappas >= 0.69].max()
    yield Row("clipping where kappa >= .7: largest relative difference, t >= 1600", 0.02, gap, relation="<")
    sparse = moe()
    adana, star, adam = (sparse.total(name)[-1] for name in ("adana", "dana-star-mk4", "adam"))
    yield Row("sparse experts, kappa = .75: Dana-Star-MK4 / ADana", 0.1, star[1] / adana[1], relation="<")
    yield Row("sparse experts, kappa = .75: Dana-Star-MK4 / Adam", 0.5, star[1] / adam[0], relation="<")
    yield Row("sparse experts, kappa = .5: ADana / initial risk", 10, adana[0] / sparse.initial, relation=">")
    yield Row("sparse experts, kappa = .5: Dana-Star-MK4", 0.1, star[0], relation="<")
    yield Row("slope of log tau on log P over the experts", 0.85, sparse.tau_slope(1), 0.1 / 0.85)


def speed() -> Iterator[Row]:
    """Seconds of the integrator; the first includes compilation."""
    spectrum = power_law_spectrum(1.0, 0.5, 1000, 6.92e-6)
    algorithm = standard("dana-decaying", alpha=1.0, beta=0.5, d=1000, trace=power_sum(2, 4000))
    jax.clear_caches()
    yield Row(
        "10^6 steps, d = 1000, h = 1e-3 [s], compilation included",
        10.0,
        _seconds(lambda: ode(spectrum, algorithm, 1e6, h=1e-3)),
        relation="<",
    )
    times = [
        min(_seconds(lambda t=t: ode(spectrum, algorithm, t, h=1e-3)) for _ in range(5))
        for t in (1e3, 1e6, 1e9)
    ]
    yield Row("10^6 steps again [s]", 10.0, times[1], relation="<")
    yield Row("time for 10^9 steps / for 10^6 (log law: 1.5)", 2.0, times[2] / times[1], relation="<")
    yield Row("time for 10^6 steps / for 10^3 (log law: 2)", 3.0, times[1] / times[0], relation="<")


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """All rows, about two minutes on one core.

    Args:
        say: called with each line of text.
    Returns:
        {"machine", "seconds", "rows"}; a row has `holds`.
    """
    begun = time.perf_counter()
    rows: list[Row] = []
    for group in (limits, curves, ordering, slopes, compute_exponents, kappa, adaptive, speed):
        for row in group():
            rows.append(row)
            mark = "ok  " if row.holds else "FAIL"
            limit = f"+-{100 * row.tolerance:.2g}%" if row.relation == "=" else ""
            say(f"{mark} {row.what:<78} {row.relation} {row.expected:<11.5g} {row.measured:.5g} {limit}")
    seconds = time.perf_counter() - begun
    say(f"{sum(row.holds for row in rows)} of {len(rows)} hold; {seconds:.0f} s")
    machine = {"cpu": platform.processor() or platform.machine(), "cores": available_cores()}
    machine |= {"jax": jax.__version__, "python": platform.python_version()}
    return {"machine": machine, "seconds": round(seconds, 1), "rows": [_as_json(row) for row in rows]}


def _as_json(row: Row) -> dict[str, Any]:
    numbers = {"expected": float(row.expected), "measured": float(row.measured)}
    return {**row._asdict(), **numbers, "holds": bool(row.holds)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "theory_cpu.json")
    chosen = parser.parse_args()
    found = measure(print)
    write_json(chosen.output, found)
    sys.exit(sum(not row["holds"] for row in found["rows"]))
