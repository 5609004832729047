"""The power-law random features model (PLRF): features X = A^T z, target y = <z, c>, risk P = E(X.theta - y)^2 / 2.

    A = diag(j^-alpha) W  [v, d],  W iid N(0, 1/d),  c_j = j^-(alpha+beta),  z ~ N(0, I_v),  j = 1..v.

In the eigenbasis of K = A^T A the loss is `limit + 1/2 sum_j lam_j rho_j`, rho_j the squared distance to the optimum.
Source: Paquette et al. 2024 (arXiv 2405.15074); Ferbach et al. 2025 (arXiv 2505.16098).
"""

import math
from dataclasses import dataclass, field

import numpy as np

from danalab.errors import UserError
from danalab.theory.problem.sums import power_sum


def check_exponents(alpha: float, beta: float) -> None:
    """Refuse exponents for which the model has no finite loss."""
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise UserError(f"alpha = {alpha}, beta = {beta}: both must be finite numbers")
    if alpha <= 0:
        raise UserError(f"alpha = {alpha:g}: the data exponent must be positive (eigenvalues fall like j^-2alpha)")
    if 2 * (alpha + beta) <= 1:
        raise UserError(
            f"alpha = {alpha:g}, beta = {beta:g}: no phase is defined for 2 (alpha + beta) <= 1, the initial loss "
            f"diverges with v; take beta > {0.5 - alpha:g}"
        )


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
                f"v = {self.v} < d = {self.d}: more parameters than hidden features; take v >= d (v = 4 d is usual)"
            )

    @property
    def trace(self) -> float:
        """Population trace E Tr K = sum_j j^(-2 alpha)."""
        return power_sum(2 * self.alpha, self.v)

    @property
    def initial_risk(self) -> float:
        """P at theta = 0."""
        return 0.5 * power_sum(2 * (self.alpha + self.beta), self.v)


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
            raise UserError(f"a spectrum needs lam and rho of one equal length, not {lam.shape} and {rho.shape}")
        if not (np.isfinite(lam).all() and (lam >= 0).all() and np.isfinite(rho).all() and (rho >= 0).all()):
            raise UserError("a spectrum needs finite lam >= 0 and rho >= 0")
        if not (math.isfinite(self.limit) and self.limit >= 0):
            raise UserError(f"limit = {self.limit}: the irreducible risk (noise) must be finite and not negative")
        object.__setattr__(self, "lam", lam)
        object.__setattr__(self, "rho", rho)
        object.__setattr__(
            self, "multiplicity", np.broadcast_to(np.asarray(self.multiplicity, float), lam.shape).copy()
        )

    @property
    def trace(self) -> float:
        return float(self.multiplicity @ self.lam)

    @property
    def initial_risk(self) -> float:
        return self.limit + 0.5 * float(self.multiplicity @ (self.lam * self.rho))
