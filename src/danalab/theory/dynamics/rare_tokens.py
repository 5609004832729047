"""The fixed point of Adam-like optimizers on a softmax: the probability p of a token against its frequency f.

The gradient of a token's logit is p - 1 when the token arrives and p otherwise; f is the chance that it arrives in a
step. An optimizer that divides by sqrt(v) rests where E[m / sqrt(v)] = 0, not where E[m] = 0: v is large right after an
arrival, when the gradient is negative, and small long after, when it is positive. With kappa = 1 / (f tau), the mean
gap between arrivals in units of the memory tau = 1 / (1 - beta2) of v, m = g, and S the sum of e^(-age / tau),

    periodic arrivals   p / f = kappa / (2 (e^(kappa / 2) - 1))  = 1 - kappa / 4 + ...
    random arrivals     p / f = E[(1 + S)^(-1/2)] / E[S^(-1/2)]  = 1 - kappa / 2, and 0 for kappa >= 2

The last equality follows from the stationary law of S: E[S^(-1/2)] kappa / 2 = E[S^(-1/2)] - E[(1 + S)^(-1/2)]. Three
things are missing in both. Momentum with a memory of tau / r mixes old gradients into m. The gradients p between
arrivals are a part of v, so that p > 0 even for kappa >= 2. And probabilities add up to 1: since a common shift of all
logits changes nothing, the optimizer rests where E[m / sqrt(v)] is one number c for all tokens, and what rare tokens
lose, frequent ones gain. With all three, for each token,

    (1 - f) p / (1 - p) int u^(-1/2) w(u) du - f int u^(-1/2) k_r(u) w(u) du = c,          c such that sum p = 1
    w(u) = exp(-Ein(u) f tau - u tau p^2 / (1 - p)^2)          Ein(u) = int_0^u (1 - e^-y) / y dy
    k_r(u) = r int_0^1 y^(r-1) e^(-u y) dy                     (e^-u without momentum)

Valid for a learning rate so small that p does not move between arrivals. Own derivation.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import exp1, gammainc, gammaln

_U = np.exp(np.linspace(-80.0, 60.0, 3501))  # nodes of the integrals, even in log u


def periodic_ratio(kappa: npt.ArrayLike) -> np.ndarray:
    """p / f of one rare token that arrives exactly every kappa tau steps; no momentum."""
    half = np.asarray(kappa, float) / 2
    return half / np.expm1(half)


def random_ratio(kappa: npt.ArrayLike) -> np.ndarray:
    """p / f of one rare token that arrives at random; no momentum, tau large."""
    return np.maximum(1 - np.asarray(kappa, float) / 2, 0.0)


def equilibrium(
    frequencies: npt.ArrayLike, tau: float, memories: Sequence[float] = (math.inf,), weights: Sequence[float] = (1.0,)
) -> np.ndarray:
    """Probabilities at which an Adam-like optimizer rests, for tokens that arrive at random with these frequencies (sum
    1).

    A step draws one token. `tau`: memory of the second moment [steps]. The update has parts with `weights`, as in g +
    alpha m; `memories` are r of each: memory of v over the memory of that part; inf: the gradient itself.
    """
    f = np.asarray(frequencies, float)
    arrivals = _U**0.5 * np.exp(-np.outer(f * tau, _ein(_U)))
    pushes = np.average([_kernel(r, _U) for r in memories], axis=0, weights=weights)

    def drift(odds: np.ndarray) -> np.ndarray:
        w = arrivals * np.exp(-np.outer(tau * odds**2, _U))
        return (1 - f) * odds * w.sum(axis=1) - f * (w @ pushes)

    def probabilities(c: float) -> np.ndarray:
        low, high = np.full(f.shape, -60.0), np.full(f.shape, 20.0)
        for _ in range(60):  # drift grows with p: bisection in log(p / (1 - p))
            middle = (low + high) / 2
            above = drift(np.exp(middle)) > c
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return 1 / (1 + np.exp(-low))

    top = float(np.abs(drift(f / (1 - f))).max()) + 1e-30
    while probabilities(top).sum() < 1:
        top *= 2
    c = brentq(lambda c: probabilities(c).sum() - 1, -top, top, xtol=1e-12 * top)
    return probabilities(float(c))  # pyright: ignore[reportArgumentType]


def _ein(u: np.ndarray) -> np.ndarray:
    """int_0^u (1 - e^-y) / y dy."""
    series = u - u**2 / 4 + u**3 / 18
    return np.where(u < 1e-3, series, exp1(np.maximum(u, 1e-3)) + np.log(u) + np.euler_gamma)


def _kernel(r: float, u: np.ndarray) -> np.ndarray:
    """k_r(u)."""
    if math.isinf(r):
        return np.exp(-u)
    return np.where(u < 1e-6, 1.0, np.exp(gammaln(r + 1) - r * np.log(np.maximum(u, 1e-6))) * gammainc(r, u))
