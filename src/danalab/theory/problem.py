"""The power-law random features model (PLRF): features X = A^T z, target y = <z, c>, risk P = E(X.theta - y)^2 / 2.

    A = diag(j^-alpha) W  [v, d],  W iid N(0, 1/d),  c_j = j^-(alpha+beta),  z ~ N(0, I_v),  j = 1..v.

In the eigenbasis of K = A^T A the loss is `limit + 1/2 sum_j lam_j rho_j`, rho_j the squared distance to the optimum.

Spectra are those of one random draw, of the simple power laws, or binned for a billion modes.
Source: Paquette et al. 2024 (arXiv 2405.15074); Ferbach et al. 2025 (arXiv 2505.16098).
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from danalab.errors import UserError
from danalab.theory_studies import FeaturesFlags

_HEAD = 2000


@dataclass(frozen=True)
class PLRF:
    """Exponents and sizes of the model.

    Raises:
        UserError: see `check_exponents`; v < d; a size that is not positive.
    """

    alpha: float
    """Data exponent: eigenvalues of the Hessian fall like j^(-2 alpha)."""
    beta: float
    """Target exponent: the target's coefficients are j^-(alpha + beta)."""
    v: int
    """Ambient dimension."""
    d: int
    """Parameters."""

    def __post_init__(self) -> None:
        check_exponents(self.alpha, self.beta)
        if self.d < 1:
            raise UserError(f"d = {self.d}: the number of parameters must be at least 1")
        if self.v < self.d:
            raise UserError(
                f"v = {self.v} < d = {self.d}: more parameters than hidden features; take v >= d, say 4 d"
            )

    @property
    def trace(self) -> float:
        """Population trace E Tr K = sum_j j^(-2 alpha)."""
        return power_sum(2 * self.alpha, self.v)

    @property
    def initial_risk(self) -> float:
        """P at theta = 0."""
        return 0.5 * power_sum(2 * (self.alpha + self.beta), self.v)


def model_of(flags: FeaturesFlags) -> PLRF:
    """The model that the flags of a study describe."""
    return PLRF(flags.alpha, flags.beta, flags.v, flags.d)


@dataclass(frozen=True)
class Spectrum:
    """A problem as the loss dynamics need it: one row per mode, or per bin of modes."""

    lam: np.ndarray
    """Eigenvalues of the Hessian K."""
    rho: np.ndarray
    """Squared coordinates of theta_0 - theta* in the eigenbasis."""
    limit: float
    """Irreducible risk P(theta*)."""
    multiplicity: np.ndarray = field(default_factory=lambda: np.ones(1))
    """Number of modes in each row; default one each."""

    def __post_init__(self) -> None:
        lam, rho = np.asarray(self.lam, float), np.asarray(self.rho, float)
        if lam.ndim != 1 or lam.shape != rho.shape or not len(lam):
            raise UserError(
                f"a spectrum needs lam and rho of one equal length, not {lam.shape} and {rho.shape}"
            )
        if not (np.isfinite(lam).all() and (lam >= 0).all() and np.isfinite(rho).all() and (rho >= 0).all()):
            raise UserError("a spectrum needs finite lam >= 0 and rho >= 0")
        if not (math.isfinite(self.limit) and self.limit >= 0):
            raise UserError(
                f"limit = {self.limit}: the irreducible risk (noise) must be finite and not negative"
            )
        weight = np.broadcast_to(np.asarray(self.multiplicity, float), lam.shape).copy()
        for name, value in (("lam", lam), ("rho", rho), ("multiplicity", weight)):
            object.__setattr__(self, name, value)

    @property
    def trace(self) -> float:
        return float(self.multiplicity @ self.lam)

    @property
    def initial_risk(self) -> float:
        return self.limit + 0.5 * float(self.multiplicity @ (self.lam * self.rho))


def check_exponents(alpha: float, beta: float) -> None:
    """Refuse exponents for which the model has no finite loss."""
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise UserError(f"alpha = {alpha}, beta = {beta}: both must be finite numbers")
    if alpha <= 0:
        raise UserError(
            f"alpha = {alpha:g}: the data exponent must be positive (eigenvalues fall like j^-2alpha)"
        )
    if 2 * (alpha + beta) <= 1:
        raise UserError(
            f"alpha = {alpha:g}, beta = {beta:g}: no phase is defined for 2 (alpha + beta) <= 1, the initial loss "
            f"diverges with v; take beta > {0.5 - alpha:g}"
        )


def power_sum_between(exponent: float, first: npt.ArrayLike, last: npt.ArrayLike) -> np.ndarray:
    """sum_{j=first}^{last} j^-exponent for first >= 50 or so (midpoint rule with its first correction)."""
    low, high = np.asarray(first, float) - 0.5, np.asarray(last, float) + 0.5
    power = 1 - exponent
    integral = (high**power - low**power) / power if power else np.log(high / low)
    slope = -exponent * (high ** (-exponent - 1) - low ** (-exponent - 1))
    return integral - slope / 24


def power_sum(exponent: float, n: int) -> float:
    """sum_{j=1}^{n} j^-exponent, for any n up to 1e12 and beyond."""
    head = math.fsum(np.arange(1, min(n, _HEAD) + 1, dtype=float) ** -exponent)
    return head if n <= _HEAD else head + float(power_sum_between(exponent, _HEAD + 1, n))


def binned_powers(n: int, exact: int, per_decade: int, *exponents: float) -> tuple[np.ndarray, ...]:
    """Number of indices in each bin of 1..n, and the sum over it of j^-exponent for each exponent.

    One bin each up to `exact`, then `per_decade` bins per decade.
    """
    first = last = np.arange(1, min(exact, n) + 1)
    if n > exact:
        count = max(1, math.ceil(per_decade * math.log10(n / exact)))
        edges = np.unique(np.round(np.geomspace(exact, n, count + 1)).astype(np.int64))
        first, last = np.concatenate([first, edges[:-1] + 1]), np.concatenate([last, edges[1:]])
    many = last > first
    sums = [first.astype(float) ** -exponent for exponent in exponents]
    for total, exponent in zip(sums, exponents, strict=True):
        total[many] = power_sum_between(exponent, first[many], last[many])
    return (last - first + 1).astype(float), *sums


def available_bytes() -> int:
    """Memory that a new allocation can have now [bytes]."""
    with suppress(OSError, StopIteration), open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(needed: float, what: str, way_out: str) -> None:
    """Refuse a problem that does not fit into memory, before computing."""
    available = available_bytes()
    if needed > 0.9 * available:
        raise UserError(
            f"{what} needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} are available; {way_out}"
        )


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
        8 * (2 * v * d + 4 * d * d),
        f"a draw with v = {v}, d = {d}",
        "take smaller v and d, or a binned spectrum",
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
