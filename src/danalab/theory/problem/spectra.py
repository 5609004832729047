"""Spectra of the PLRF: of one random draw, by the simple power laws, and binned for a billion modes."""

import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from danalab.errors import UserError
from danalab.theory.problem.model import PLRF, Spectrum, binned_powers, check_exponents, power_sum


def available_bytes() -> int:
    """Memory that a new allocation can have now [bytes]."""
    with suppress(OSError, StopIteration), open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(needed: float, what: str, way_out: str) -> None:
    """Refuse a problem that does not fit into memory, before computing."""
    available = available_bytes()
    if needed > 0.9 * available:
        raise UserError(f"{what} needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} are available; {way_out}")


@dataclass(frozen=True)
class Draw:
    """One random W, reduced to K and theta*, which determine training on Gaussian data."""

    model: PLRF
    spectrum: Spectrum
    """Eigenvalues in descending order."""
    root: np.ndarray
    """Symmetric square root of K [d, d]."""
    optimum: np.ndarray
    """theta* [d]."""


def draw(model: PLRF, seed: int = 0) -> Draw:
    """Draw W ~ N(0, 1/d) and solve the least-squares problem in float64.

    UserError: v x d does not fit into memory; a negative seed.
    """
    v, d = model.v, model.d
    if seed < 0:
        raise UserError(f"seed = {seed}: must be 0 or more")
    check_memory(
        8 * (2 * v * d + 4 * d * d), f"a draw with v = {v}, d = {d}", "take smaller v and d, or a binned spectrum"
    )
    j = np.arange(1, v + 1, dtype=float)
    A = j[:, None] ** -model.alpha * (np.random.default_rng(seed).standard_normal((v, d)) / np.sqrt(d))
    c = j ** -(model.alpha + model.beta)
    lam, basis = np.linalg.eigh(A.T @ A)
    lam, basis = lam[::-1], basis[:, ::-1]
    coordinates = (basis.T @ (A.T @ c)) / lam
    optimum = basis @ coordinates
    # The residual itself, not |c|^2 - |q|^2: that difference loses all digits once the limit is small.
    limit = 0.5 * float(np.sum((c - A @ optimum) ** 2))
    root = (basis * np.sqrt(lam)) @ basis.T
    return Draw(model, Spectrum(lam.copy(), coordinates**2, limit), root, optimum)


def _feature_learning_shift(alpha: float, beta: float, d: int) -> float:
    # The weight that random features spread evenly over all modes; it exists above both lines only.
    return power_sum(2 * beta, d) / d if alpha > 0.5 and beta > 0.5 else 0.0


def power_law_spectrum(alpha: float, beta: float, d: int, limit: float = 0.0) -> Spectrum:
    """lam_j = j^(-2 alpha), rho_j = j^(-2 beta) + c_beta / d for j = 1..d: within some 20% of a random draw."""
    check_exponents(alpha, beta)
    check_memory(8 * 40 * d, f"a spectrum of {d} modes", "take binned_spectrum")
    j = np.arange(1, d + 1, dtype=float)
    return Spectrum(j ** (-2 * alpha), j ** (-2 * beta) + _feature_learning_shift(alpha, beta, d), limit)


def binned_spectrum(
    alpha: float, beta: float, d: int, limit: float = 0.0, *, exact: int = 100, per_decade: int = 40
) -> Spectrum:
    """`power_law_spectrum` with the modes past `exact` gathered in logarithmic bins; d = 10^9 takes 400 rows.

    A row keeps the sums of lam and of lam rho over its bin.
    """
    check_exponents(alpha, beta)
    count, lam, weighted = binned_powers(d, exact, per_decade, 2 * alpha, 2 * (alpha + beta))
    return Spectrum(lam / count, weighted / lam + _feature_learning_shift(alpha, beta, d), limit, count)
