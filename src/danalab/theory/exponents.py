"""Which phase a problem is in, how fast each algorithm's loss falls, and the compute-optimal exponents.

Up to constants P = F0 + Fpp + Fac + Kpp, each a power of d and of the effective clock
theta(t) = gamma2 t + (int_0^t sqrt(gamma1 gamma3))^2:

    F0 = d^(-2a + max(0, 1 - 2b)),  Fpp = theta^-x,  Fac = theta^-(1 - 1/2a) / d,  Kpp = gamma2 theta^-y,
    x = (2a + 2b - 1) / 2a,  y = 2 - 1/2a,  gamma2 = d^-max(0, 1 - 2a).

Exponents at fixed compute f = d t come from minimising the largest term over d = f^u: a linear programme in logarithms.
Source: SGD: Paquette et al. 2024 (arXiv 2405.15074). DANA: balance of terms after Ferbach et al. 2025
(arXiv 2505.16098), checked against the integrated loss (bench/theory.py).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from danalab.errors import UserError, nearest
from danalab.theory.algorithms import standard
from danalab.theory.curve import Curve
from danalab.theory.equivalents import limit_loss
from danalab.theory.moments import ode
from danalab.theory.problem import Spectrum, binned_spectrum, check_exponents, power_sum

Family = Literal["sgd", "dana-constant", "dana-decaying"]
FAMILIES = ("sgd", "dana-constant", "dana-decaying")

IVA_BORDER = 1 - 1 / math.sqrt(2)


def phase(alpha: float, beta: float) -> str:
    """Name of the phase: Ia, Ib, Ic, II, III, IVa or IVb."""
    check_exponents(alpha, beta)
    if alpha > 0.5:
        return "Ia" if beta < 0.5 else "II" if beta < alpha else "III"
    if beta < 0.5:
        return "Ib"
    return "Ic" if alpha < 0.25 else "IVb" if alpha < IVA_BORDER else "IVa"


def _clock(alpha: float, family: Family) -> list[tuple[float, float]]:
    """theta(t) is the largest of d^p t^q over the (p, q) returned."""
    p = -max(0.0, 1 - 2 * alpha)
    plain = (p, 1.0)
    if family == "dana-constant":
        return [plain, (p - 1, 2.0)]
    if family == "sgd" or alpha <= 0.5:
        return [plain]  # below the line kappa = 1 / 2a > 1: the momentum's weight vanishes too fast to matter
    return [plain, (p, 2 - 1 / (2 * alpha))]


def _clock_exponents(alpha: float, beta: float) -> dict[str, tuple[float, float]]:
    """(exponent of d, exponent of 1/theta) of the terms that exist in this phase, apart from F0."""
    terms = {"Fpp": (0.0, (2 * alpha + 2 * beta - 1) / (2 * alpha))}
    if alpha > 0.5 and beta > 0.5:
        terms["Fac"] = (-1.0, 1 - 1 / (2 * alpha))
    if alpha > 0.25:
        terms["Kpp"] = (-max(0.0, 1 - 2 * alpha), 2 - 1 / (2 * alpha))
    return terms


def time_exponents(alpha: float, beta: float, family: Family) -> dict[str, float]:
    """-d log P / d log t of every term of the loss, late (t > d for DANA-constant)."""
    check_exponents(alpha, beta)
    speed = max(q for _, q in _clock(alpha, _checked(family)))
    if family == "dana-constant" and alpha <= 0.5:
        speed = 1.0  # SGD has reached its floor when the momentum would set in
    return {name: power * speed for name, (_, power) in _clock_exponents(alpha, beta).items()}


@dataclass(frozen=True)
class ComputeOptimum:
    """Best loss P ~ f^-loss at compute f = d t, reached with d ~ f^size."""

    loss: float
    size: float


def compute_optimum(alpha: float, beta: float, family: Family) -> ComputeOptimum:
    """Compute-optimal exponents of `family` at (alpha, beta)."""
    check_exponents(alpha, beta)
    clock = _clock(alpha, _checked(family))
    # Each term as a function of u: the least, over the clock's branches, of (d-exponent) u + (t-exponent) (1 - u).
    terms = [[(-2 * alpha + max(0.0, 1 - 2 * beta), 0.0)]]  # F0
    for d, power in _clock_exponents(alpha, beta).values():
        terms.append([(d - power * p, -power * q) for p, q in clock])

    def loss(u: float) -> float:
        return max(min(d * u + t * (1 - u) for d, t in term) for term in terms)

    best = min(_candidates([line for term in terms for line in term]), key=lambda u: (round(loss(u), 12), u))
    return ComputeOptimum(-loss(best), best)


def _candidates(lines: list[tuple[float, float]]) -> list[float]:
    """Where a piecewise linear function made of these lines d u + t (1 - u) can have its minimum on [0, 1]."""
    points = [0.0, 1.0]
    for (d1, t1), (d2, t2) in itertools.combinations(lines, 2):
        slope = (d1 - t1) - (d2 - t2)
        if abs(slope) > 1e-12:
            u = (t2 - t1) / slope
            if 0 < u < 1:
                points.append(u)
    return points


def _checked(family: str) -> Family:
    if family not in FAMILIES:
        raise UserError(f"unknown family '{family}'{nearest(family, FAMILIES)}; known: {', '.join(FAMILIES)}")
    return family  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Frontier:
    """Lower envelope of one algorithm."""

    flops: np.ndarray
    """Compute f = d (t + 1)."""
    risk: np.ndarray
    """Best risk at each f; infinite where no d covers it."""
    best: np.ndarray
    """Which d reaches it (0 where none)."""
    sizes: np.ndarray
    curves: list[Curve]
    """One curve for each d."""

    def interior(self) -> np.ndarray:
        """Mask of the compute whose best d is neither the smallest nor the largest."""
        return (self.best > self.sizes[0]) & (self.best < self.sizes[-1]) & np.isfinite(self.risk)

    def slope(self, share: float = 1.0) -> float:
        """-d log P / d log f by least squares over the last `share` of the interior."""
        inside = np.flatnonzero(self.interior())
        inside = inside[int(len(inside) * (1 - share)) :]
        if len(inside) < 3:
            raise UserError("the frontier has no interior: take more sizes d, or a wider range of compute")
        return -float(np.polyfit(np.log(self.flops[inside]), np.log(self.risk[inside]), 1)[0])


def frontier(
    alpha: float,
    beta: float,
    name: str,
    sizes: Sequence[int],
    *,
    flops: np.ndarray | None = None,
    h: float = 1e-2,
) -> Frontier:
    """Integrate algorithm `name` for every d of `sizes` (v = 4 d) over T = max(1e5, 20 d^2) and take the envelope.

    Args:
        flops: compute at which to evaluate; default 161 points from 10^4 to 20 d_max^3.
        h: accuracy, see `ode`.
    Raises:
        UserError: exponents outside the phases, unknown algorithm, sizes not ascending.
    """
    d = np.asarray(sizes, dtype=np.int64)
    if len(d) < 3 or (np.diff(d) <= 0).any() or d[0] < 2:
        raise UserError("a frontier needs at least three ascending sizes d >= 2")
    spectra = [binned_spectrum(alpha, beta, n, limit_loss(alpha, beta, 4 * n, n)) for n in d.tolist()]
    rows = max(len(s.lam) for s in spectra)
    curves = []
    for n, spectrum in zip(d.tolist(), spectra, strict=True):
        algorithm = standard(name, alpha=alpha, beta=beta, d=n, trace=power_sum(2 * alpha, 4 * n))
        # Modes of multiplicity 0, so that all sizes share one compiled integrator.
        extra = (0, rows - len(spectrum.lam))
        padded = [np.pad(each, extra) for each in (spectrum.rho, spectrum.multiplicity)]
        spectrum = Spectrum(np.pad(spectrum.lam, extra, mode="edge"), padded[0], spectrum.limit, padded[1])
        curves.append(ode(spectrum, algorithm, max(1e5, 20.0 * n * n), h=h))
    flops = np.geomspace(1e4, 20.0 * float(d[-1]) ** 3, 161) if flops is None else flops
    table = np.full((len(d), len(flops)), np.inf)
    for row, n, curve in zip(table, d.tolist(), curves, strict=True):
        t = flops / n - 1
        covered = (t >= 1) & (t <= curve.t[-1])
        row[covered] = curve.at(t[covered])
    best = np.where(np.isfinite(table.min(0)), d[table.argmin(0)], 0)
    return Frontier(flops, table.min(0), best, d, curves)
