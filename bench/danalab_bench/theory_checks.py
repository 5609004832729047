"""Formulas that the theory is checked against, by other ways than its own: bench/theory.py and tests/theory."""

import math

import numpy as np
import numpy.typing as npt
from scipy.integrate import quad
from scipy.optimize import root_scalar

from danalab.errors import UserError
from danalab.theory.equivalents import limit_loss, nodes
from danalab.theory.problem import PLRF, Spectrum


def sgd_volterra(
    spectrum: Spectrum, gamma2: float, times: npt.ArrayLike, *, batch: float = 1, dt: float = 0.1
) -> np.ndarray:
    """Risk of SGD at `times` from its Volterra equation by the trapezoid rule (cost (T / dt)^2; for checks)."""
    at = np.asarray(times, float)
    n = round(float(at.max()) / dt) + 1
    if n > 50_000:
        raise UserError(
            f"{n} grid points of the Volterra equation are too many; take a larger dt or a shorter time"
        )
    weight, lam = spectrum.multiplicity, spectrum.lam
    rate = 2 * gamma2 * lam - (1 + 1 / batch) * gamma2**2 * lam**2
    t = dt * np.arange(n)
    decay = np.exp(-np.outer(t, rate))
    forcing = spectrum.limit + 0.5 * decay @ (weight * lam * spectrum.rho)
    kernel = gamma2**2 / batch * (decay @ (weight * lam**2))
    risk = np.empty(n)
    risk[0] = forcing[0]
    for i in range(1, n):
        history = 0.5 * kernel[i] * risk[0] + kernel[i - 1 : 0 : -1] @ risk[1:i]
        risk[i] = (forcing[i] + dt * history) / (1 - 0.5 * dt * kernel[0])
    return np.interp(at, t, risk)


def limit_kappa(alpha: float, ratio: float) -> float:
    """kappa = 1 / int_0^ratio dx / (kappa + x^(2 alpha)), ratio = v / d; tau ~ kappa d^(2 alpha) if 2 alpha > 1."""

    def excess(log_kappa: float) -> float:
        kappa = math.exp(log_kappa)
        # In log x the integrand is one smooth bump for every kappa.
        inside = quad(
            lambda s: math.exp(s) / (kappa + math.exp(2 * alpha * s)), -40, math.log(ratio), limit=400
        )[0]
        return kappa * inside - 1

    return math.exp(root_scalar(excess, bracket=(-12, 12), xtol=1e-13, method="brentq").root)


def limit_loss_continuum(alpha: float, beta: float, v: int, d: int) -> float:
    """`limit_loss` with tau from the integral `limit_kappa` (for 2 alpha > 1; below, the same as `limit_loss`)."""
    if 2 * alpha <= 1 or v == d:
        return limit_loss(alpha, beta, v, d)
    grid = nodes(PLRF(alpha, beta, v, d))
    tau = limit_kappa(alpha, v / d) * d ** (2 * alpha)
    return 0.5 * float(np.sum(grid.target / (1 + tau * grid.level)))
