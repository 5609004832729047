"""Deterministic equivalents of the random features model: the limit of random draws for large d.

With l_j = j^(-2 alpha), the resolvent of K is governed by one scalar, m(z) = 1 - (1/d) sum_j l_j m / (l_j m - z). At
z -> 0 one number tau remains, (1/d) sum_j tau l_j / (1 + tau l_j) = 1, from which the limit loss follows; these
equations were re-derived. Source: Paquette et al. 2024 (arXiv 2405.15074).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import root_scalar

from danalab.theory.problem import PLRF, binned_powers


@dataclass(frozen=True)
class Nodes:
    """l_j with multiplicities (single levels, then logarithmic bins), and the target's share c_j^2 of each node."""

    level: np.ndarray
    count: np.ndarray
    target: np.ndarray


def nodes(model: PLRF, exact: int = 20_000, per_decade: int = 200) -> Nodes:
    """Nodes of the sums over j = 1..v: single levels up to `exact`, bins beyond (error 1e-6 at the default)."""
    exponents = 2 * model.alpha, 2 * (model.alpha + model.beta)
    count, level, target = binned_powers(model.v, exact, per_decade, *exponents)
    return Nodes(level / count, count, target)


def _balance(model: PLRF, power: int) -> float:
    """x with (1/d) sum_j (x l_j / (1 + x l_j))^power = 1."""
    grid = nodes(model)

    def excess(log_x: float) -> float:
        x = math.exp(log_x) * grid.level
        return float(grid.count @ (x / (1 + x)) ** power) / model.d - 1

    # x l_j must be large for some d of the v levels: between the scales of the first and far beyond the last.
    scales = math.log(1 / model.v), 2 * model.alpha * math.log(model.v) + 40
    return math.exp(root_scalar(excess, bracket=scales, xtol=1e-13, method="brentq").root)


def limit_tau(model: PLRF) -> float:
    """tau with (1/d) sum_j tau l_j / (1 + tau l_j) = 1; infinite at v = d, where the features span everything."""
    return math.inf if model.v == model.d else _balance(model, 1)


def limit_loss(alpha: float, beta: float, v: int, d: int) -> float:
    """Irreducible risk P(theta*) of the PLRF, 1/2 sum_j j^(-2 (alpha + beta)) / (1 + tau l_j).

    Args:
        alpha, beta: data and target exponents.
        v, d: hidden dimension and parameters, v >= d.
    Raises:
        UserError: exponents outside the phases, v < d.
    """
    model = PLRF(alpha, beta, v, d)
    tau = limit_tau(model)
    grid = nodes(model)
    return 0.0 if math.isinf(tau) else 0.5 * float(np.sum(grid.target / (1 + tau * grid.level)))


def smallest_eigenvalue(model: PLRF) -> float:
    """Left edge of the spectrum of K: z(u) = 1/u - (1/d) sum l / (l u - 1) at the u < 0 where dz/du = 0."""
    if model.v == model.d:
        return 0.0
    grid, u = nodes(model), -_balance(model, 2)
    return 1 / u - float(grid.count @ (grid.level / (grid.level * u - 1))) / model.d


def resolvent(model: PLRF, x: np.ndarray, relative_height: float = 1e-4) -> np.ndarray:
    """m(z) at z = x (1 + i relative_height), x > 0: Newton's method, followed down from far above the real axis.

    The density is smoothed by as much.
    """
    grid = _thinned(model)
    level, weight = grid.level[:, None], (grid.count / model.d)[:, None]
    x = np.asarray(x, float)
    m = np.ones(x.shape, complex)
    heights = np.geomspace(
        1e3, relative_height * float(x.min()), 60 + int(20 * model.alpha * math.log(model.d))
    )
    for height in heights:
        z = x + 1j * np.maximum(height, relative_height * x)
        for _ in range(3):
            gap = level * m - z
            value = m + np.sum(weight * level * m / gap, axis=0) - 1
            m = m - value / (1 - np.sum(weight * level * z / gap**2, axis=0))
    return m


def _thinned(model: PLRF) -> Nodes:
    # The density at eigenvalue x is smooth in the far levels; 60 bins per decade change it by less than 1e-3.
    return nodes(model, exact=200, per_decade=60)


def density(model: PLRF, x: np.ndarray, relative_height: float = 1e-4) -> tuple[np.ndarray, np.ndarray]:
    """Number of eigenvalues of K per unit of x, and its rho-measure mu(dx)/dx: the initial distance to the optimum that
    modes at x carry (Stieltjes inversion of the two resolvent forms).
    """
    x = np.asarray(x, float)
    m = resolvent(model, x, relative_height)
    z = x * (1 + 1j * relative_height)
    grid = _thinned(model)
    gap = grid.level[:, None] * m - z
    count = np.sum(grid.count[:, None] / gap, axis=0).imag / math.pi
    rho = (np.sum(grid.target[:, None] / gap, axis=0) / z).imag / math.pi
    return np.maximum(count, 0), np.maximum(rho, 0)
