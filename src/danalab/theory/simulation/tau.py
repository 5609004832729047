"""The tau estimator of Dana-Star: tau <- (1 - a) tau + a |u| / (|u| + sqrt(v)), u active with probability P.

Its limit is P E[|u| / (|u| + sqrt(P E u^2)) | active]: P / (1 + sqrt(P)) for gradients of one size, else less.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad
from scipy.special import k0

from danalab.errors import UserError, nearest
from danalab.theory.recording import padded, record

KINDS = ("sign", "gauss", "product")
"""Distributions of an active gradient: +-1, N(0, 1), or a product of two N(0, 1) (a linear model at batch 1)."""


def tau_limit(activity: float, kind: str = "sign") -> float:
    """The limit of tau for gradients of `kind` that are active with probability `activity`.

    Raises:
        UserError: unknown kind, activity outside (0, 1].
    """
    _check(activity, kind)
    root = math.sqrt(activity)
    if kind == "sign":
        return activity / (1 + root)
    density: Callable[[float], float] = (
        (lambda u: 2 * math.exp(-(u**2) / 2) / math.sqrt(2 * math.pi))
        if kind == "gauss"
        else (lambda u: 2 * float(k0(u)) / math.pi)
    )
    value = sum(quad(lambda u: u / (u + root) * density(u), a, b, limit=200)[0] for a, b in ((0.0, 1.0), (1.0, 40.0)))
    return activity * value


def measure_tau(
    activities: Sequence[float],
    kind: str = "sign",
    *,
    steps: int = 20_000,
    coordinates: int = 1000,
    delta: float = 8.0,
    seed: int = 0,
) -> np.ndarray:
    """Mean of tau over `coordinates` independent coordinates after `steps` steps, one value an activity.

    Raises:
        UserError: unknown kind, activity outside (0, 1], sizes not positive.
    """
    for p in activities:
        _check(p, kind)
    if steps < 1 or coordinates < 1 or delta <= 0:
        raise UserError(f"steps = {steps}, coordinates = {coordinates}, delta = {delta:g}: all must be positive")
    p = jnp.asarray(activities, jnp.float32)[:, None]
    tau = _run(p, delta, jax.random.key(seed), padded([steps]), kind=kind, coordinates=coordinates)
    return np.asarray(tau)[0].mean(-1)


def _check(activity: float, kind: str) -> None:
    if kind not in KINDS:
        raise UserError(f"unknown kind '{kind}'{nearest(kind, KINDS)}; known: {', '.join(KINDS)}")
    if not 0 < activity <= 1:
        raise UserError(f"activity = {activity:g}: a probability in (0, 1] is needed")


@partial(jax.jit, static_argnames=("kind", "coordinates"))
def _run(p: Any, delta: Any, key: Any, times: Any, *, kind: str, coordinates: int) -> Any:
    shape = (len(p), coordinates)

    def step(state: tuple[jax.Array, jax.Array], t: jax.Array) -> tuple[jax.Array, jax.Array]:
        v, tau = state
        there, size, other = jax.random.split(jax.random.fold_in(key, t), 3)
        u = jnp.ones(shape) if kind == "sign" else jax.random.normal(size, shape)
        if kind == "product":
            u = u * jax.random.normal(other, shape)
        u = jnp.where(jax.random.uniform(there, shape) < p, jnp.abs(u), 0.0)
        gain = delta / (delta + t + 1)
        v = (1 - gain) * v + gain * u**2
        return v, (1 - gain) * tau + gain * u / (u + jnp.sqrt(v) + 1e-8)

    return record(step, lambda s: s[1], (jnp.zeros(shape), jnp.zeros(shape)), times)[1]


def pooled_cdf(values: np.ndarray, ranks: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Distribution function of a uniformly chosen coordinate of a uniformly chosen expert.

    Args:
        values: order statistics [experts, ranks], ascending along the ranks.
        ranks: their 0-based ranks among `size` coordinates.
    Returns:
        the union of all values, ascending, and the share of coordinates at or below each.
    """
    grid = np.unique(values)
    height = (ranks + 1) / size
    return grid, np.mean([np.interp(grid, row, height, left=0.0, right=1.0) for row in values], axis=0)


def tail_scale(p: np.ndarray) -> np.ndarray:
    """logit base 10 of a probability, continued linearly by one unit below 0.001 and above 0.999."""
    p = np.asarray(p, float)
    inside = np.clip(p, 1e-3, 1 - 1e-3)
    logit = np.log10(inside / (1 - inside))
    return np.where(p < 1e-3, logit - (1e-3 - p) / 1e-3, np.where(p > 1 - 1e-3, logit + (p - (1 - 1e-3)) / 1e-3, logit))
