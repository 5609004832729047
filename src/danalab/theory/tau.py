"""The tau estimator of Dana-Star: its mean against the activity of a coordinate.

    tau <- (1 - a) tau + a |u| / (|u| + sqrt(v)),      u active with probability P

Its limit is P E[|u| / (|u| + sqrt(P E u^2)) | active]: P / (1 + sqrt(P)) for gradients of one size, else less.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad
from scipy.special import k0

from danalab.errors import UserError, nearest
from danalab.theory.curve import padded, record

KINDS = ("sign", "gauss", "product")
"""Distributions of an active gradient: +-1, N(0, 1), or a product of two N(0, 1) (a linear model at batch 1)."""


def tau_limit(activity: float, kind: str = "sign") -> float:
    """The limit of tau for gradients of `kind` that are active with probability `activity`."""
    _check(activity, kind)
    root = math.sqrt(activity)
    if kind == "sign":
        return activity / (1 + root)

    def share(u: float) -> float:
        density = math.sqrt(2 / math.pi) * math.exp(-(u**2) / 2) if kind == "gauss" else 2 * float(k0(u)) / math.pi
        return u / (u + root) * density

    return activity * sum(quad(share, a, b, limit=200)[0] for a, b in ((0.0, 1.0), (1.0, 40.0)))


def measure_tau(
    activities: Sequence[float],
    kind: str = "sign",
    *,
    steps: int = 20_000,
    coordinates: int = 1000,
    delta: float = 8.0,
    seed: int = 0,
) -> np.ndarray:
    """Mean of tau over `coordinates` independent coordinates after `steps` steps, one value per activity."""
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

    return record(step, lambda s: s[1], (jnp.zeros(shape), jnp.zeros(shape)), times)
