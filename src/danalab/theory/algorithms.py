"""The algorithms of the theory as schedules of one momentum method (g the batch gradient at step t = 0, 1, ...):

    y <- (1 - Delta(t)) y + gamma1(t) g,     theta <- theta - gamma2(t) g - gamma3(t) y      (the new y).

SGD, SGD with momentum, DANA-constant and DANA-decaying differ in the four schedules alone, all of them power laws.
Source: Ferbach et al. 2025 (arXiv 2505.16098), section 2; AdEMAMix after Pagliardini et al. 2024 (arXiv 2409.03137).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from danalab.errors import UserError, nearest
from danalab.optimizer_facts import DELTA


class Rates(NamedTuple):
    """The four coefficients at one time."""

    gamma1: Any
    gamma2: Any
    gamma3: Any
    forget: Any
    """Delta: the share of the momentum that is forgotten."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PowerLaw:
    """s(t) = max(initial (1 + t / time_scale)^exponent, floor)."""

    initial: Any
    exponent: Any = 0.0
    time_scale: Any = 1.0
    floor: Any = 0.0

    def __call__(self, t: Any) -> Any:
        return jnp.maximum(self.initial * (1 + t / self.time_scale) ** self.exponent, self.floor)


def forgetting(delta: float) -> PowerLaw:
    """Logarithmic time: Delta(t) = delta / (delta + t)."""
    return PowerLaw(1.0, -1.0, delta)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Momentum:
    """Power-law schedules. With `ema` the momentum is an average (gamma1 = Delta), as in ADana, not a sum."""

    gamma1: PowerLaw
    gamma2: PowerLaw
    gamma3: PowerLaw
    forget: PowerLaw
    ema: bool = field(default=False, metadata={"static": True})

    def at(self, t: Any) -> Rates:
        forget = self.forget(t)
        return Rates(forget if self.ema else self.gamma1(t), self.gamma2(t), self.gamma3(t), forget)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WarmedUpAdEMAMix:
    """Slow average whose half-life and weight warm up over `horizon` steps; gamma1 = 1 / (1 + t)."""

    gamma2: Any
    horizon: Any
    """T_m [steps]."""
    weight: Any
    """Final weight of the slow average."""
    delta: Any
    start: Any = 0.9
    """beta3 at the beginning."""

    def at(self, t: Any) -> Rates:
        share = jnp.minimum(t / self.horizon, 1.0)
        beta3 = between_half_lives(share, self.start, 1 - self.delta / self.horizon)
        return Rates(1 / (1 + t), self.gamma2, self.gamma2 * share * self.weight, 1 - beta3)


Algorithm = Momentum | WarmedUpAdEMAMix
"""Has `Rates` at each time; a registered pytree, so that compiled functions take it."""


def between_half_lives(share: Any, start: Any, end: Any) -> Any:
    """The decay factor whose half-life is at `share` of the way from that of `start` to that of `end`."""
    lives = [math.log(0.5) / jnp.log(beta + 1e-8) - 1 for beta in (start, end)]
    return 0.5 ** (1 / ((1 - share) * lives[0] + share * lives[1] + 1))


def sgd(gamma2: float, delta: float = DELTA) -> Momentum:
    """Plain SGD with step `gamma2`; the momentum is tracked but not used."""
    return Momentum(PowerLaw(1.0), PowerLaw(gamma2), PowerLaw(0.0), forgetting(delta))


def sgd_momentum(gamma2: float, gamma3: float, forget: float = 0.1) -> Momentum:
    """Constant momentum: in the long run SGD with step gamma2 + gamma3 / forget."""
    return Momentum(PowerLaw(1.0), PowerLaw(gamma2), PowerLaw(gamma3), PowerLaw(forget))


def dana_constant(gamma2: float, gamma3: float, delta: float) -> Momentum:
    """Logarithmic-time momentum with a constant weight, of order gamma2 / d."""
    return Momentum(PowerLaw(1.0), PowerLaw(gamma2), PowerLaw(gamma3), forgetting(delta))


def dana_decaying(gamma2: float, gamma3: float, kappa: float, delta: float) -> Momentum:
    """Logarithmic-time momentum with weight gamma3 (1 + t)^-kappa."""
    return Momentum(PowerLaw(1.0), PowerLaw(gamma2), PowerLaw(gamma3, -kappa), forgetting(delta))


def dana_average(gamma2: float, gamma3: float, kappa: float, delta: float) -> Momentum:
    """ADana's form: the momentum is an average, its weight grows like (1 + t)^(1 - kappa)."""
    return Momentum(PowerLaw(1.0), PowerLaw(gamma2), PowerLaw(gamma3, 1 - kappa), forgetting(delta), ema=True)


ALGORITHMS = {
    "sgd": "SGD",
    "sgd-m": "SGD with momentum",
    "dana-constant": "DANA-constant",
    "dana-decaying": "DANA-decaying",
    "ademamix": "AdEMAMix-like",
}
"""Names for `standard` -> names in figures."""


def critical_kappa(alpha: float, batch_exponent: float = 0.0) -> float:
    """The strongest stable decay of the momentum's weight, kappa = (1 - h) / (2 alpha) for a batch of d^h."""
    return (1 - batch_exponent) / (2 * alpha)


def default_delta(alpha: float, beta: float) -> float:
    """4 + (alpha + beta) / alpha: safely above the loss exponents that delta bounds (r^2 decays like t^-delta)."""
    return 4 + (alpha + beta) / alpha


def standard(
    name: str,
    *,
    alpha: float,
    beta: float,
    d: int,
    trace: float,
    batch: int = 1,
) -> Algorithm:
    """The algorithm `name` (a key of `ALGORITHMS`) with the settings of the theory.

    gamma2 = min(1, batch / trace) / 2; gamma3 = gamma2 batch / (2 d) (constant), gamma2 (1 + t)^-kappa / 2 with kappa =
    1 / (2 alpha) (decaying). SGD-M gives a tenth of the step to the
    gradient and nine tenths to the momentum (Delta = 0.1), the same total step as SGD.

    UserError: unknown name.
    """
    gamma2, delta = 0.5 * min(1.0, batch / trace), default_delta(alpha, beta)
    if name == "sgd":
        return sgd(gamma2, delta)
    if name == "sgd-m":
        return sgd_momentum(0.1 * gamma2, 0.09 * gamma2)
    if name == "dana-constant":
        return dana_constant(gamma2, 0.5 * gamma2 * batch / d, delta)
    if name == "dana-decaying":
        return dana_decaying(gamma2, 0.5 * gamma2, critical_kappa(alpha), delta)
    if name == "ademamix":
        horizon = float(d) ** alpha
        if horizon <= delta:
            raise UserError(f"ademamix: d^alpha = {horizon:g} must exceed delta = {delta:g}; take a larger d")
        return WarmedUpAdEMAMix(gamma2, horizon, 0.5 * horizon ** (1 - 1 / (2 * alpha)), delta)
    raise UserError(f"unknown algorithm '{name}'{nearest(name, ALGORITHMS)}; known: {', '.join(ALGORITHMS)}")


def stacked(algorithms: Sequence[Any]) -> Any:
    """Algorithms of one kind as a single one with a leading axis, for `jax.vmap`."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(x, float) for x in leaves]), *algorithms)
