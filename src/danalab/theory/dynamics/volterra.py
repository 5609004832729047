"""The loss as a Volterra equation P(t) = F(t) + int_0^t K(t - s) P(s) ds, and the stability of its kernel.

For SGD the kernel is explicit. For the others, freezing the schedules gives a quasi-static kernel norm N: stable below
one, noise floor limit / (1 - N).
"""

import numpy as np
import numpy.typing as npt

from danalab.errors import UserError
from danalab.theory.dynamics.algorithms import Algorithm, Rates
from danalab.theory.dynamics.drift import drift, solve3
from danalab.theory.precision import in_float64
from danalab.theory.problem.model import Spectrum


def sgd_kernel_norm(spectrum: Spectrum, gamma2: float, batch: float = 1) -> float:
    """|K|_1 = (gamma2 / B) sum_j lam_j / (2 - (1 + 1/B) gamma2 lam_j); SGD is stable if and only if it is below one."""
    room = 2 - (1 + 1 / batch) * gamma2 * spectrum.lam
    if (room <= 0).any():
        return float("inf")  # a single mode diverges
    return float(gamma2 / batch * (spectrum.multiplicity @ (spectrum.lam / room)))


@in_float64
def kernel_norm(spectrum: Spectrum, algorithm: Algorithm, t: float, batch: float = 1) -> float:
    """Quasi-static kernel norm with the schedules frozen at time t: sum_j w_j lam_j [-Omega_j^-1 lam_j Gam]_1."""
    rates = Rates(*(float(r) for r in algorithm.at(t)))
    return _frozen_norm(spectrum, rates, batch)


def _frozen_norm(spectrum: Spectrum, rates: Rates, batch: float) -> float:
    lam = spectrum.lam
    if rates.gamma3 == 0:
        return sgd_kernel_norm(spectrum, rates.gamma2, batch)
    omega, gamma = drift(rates, lam, batch)
    response = solve3(omega, (-lam * gamma[0], -lam * gamma[1], -lam * gamma[2]))[0]
    return float("inf") if (response < 0).any() else float(spectrum.multiplicity @ (lam * response))


def noise_floor(spectrum: Spectrum, algorithm: Algorithm, t: float = 1e12, batch: float = 1) -> float:
    """Risk at which the noise of the gradients balances the descent: limit / (1 - N(t)); infinite if N >= 1."""
    norm = kernel_norm(spectrum, algorithm, t, batch)
    return spectrum.limit / (1 - norm) if norm < 1 else float("inf")


def sgd_volterra(
    spectrum: Spectrum, gamma2: float, times: npt.ArrayLike, *, batch: float = 1, dt: float = 0.1
) -> np.ndarray:
    """Risk of SGD at `times` from its Volterra equation by the trapezoid rule (cost (T / dt)^2; for checks)."""
    at = np.asarray(times, float)
    n = round(float(at.max()) / dt) + 1
    if n > 50_000:
        raise UserError(f"{n} grid points of the Volterra equation are too many; take a larger dt or a shorter time")
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
