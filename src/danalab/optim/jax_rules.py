"""The updates of the Dana family and of DanaMuon as pure functions of one array; t = 1, 2, ... counts its updates.

    a = delta / (delta + t),   m <- (1-b) m + b g,   v <- (1-c) v + c g^2,   s = sqrt(v) + eps
    b = `gain` = a, or delta / (delta + t (lr / peak_lr)^momentum_cooldown), or by age (`danalab.optim.rules.age`)
    c = a, or for a constant beta2 with Adam's correction (1-beta2) / (1-beta2^t)
    ADana, Dana-MK4:            step = g/s + gamma3 sign(m) (min((1+t)^(1-kappa) |m|/s, clipsnr) + alpha_offset |m|/s)
    Dana-Star, Dana-Star-MK4:   step = n g + gamma3 sign(m) (q min(T^(1-kappa) |m| n/q, clipsnr) + alpha_offset |m| n)
        tau <- (1-a) tau + a |g|/(|g|+s),  h = min(tau, 1/2),  q = max(h/(1-h), 1/(1+t)),
        n = sqrt(q)/s,  T = max(tau t, 1)

theta <- theta - lr step. An infinite `clipsnr` is no clipping. Scalars may be traced: changing them recompiles nothing.
Source: the log-time optimizers of arXiv 2602.05298, appendix on the algorithms.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Moments(NamedTuple):
    """State of one array; `tau` is None for the members without it."""

    m: jax.Array
    v: jax.Array
    tau: jax.Array | None


def zero_moments(shape: tuple[int, ...], dtype: Any, with_tau: bool) -> Moments:
    """The state before the first step."""
    zero = jnp.zeros(shape, dtype)
    return Moments(zero, zero, zero if with_tau else None)


def dana_step(
    g: jax.Array,
    state: Moments,
    t: Any,
    *,
    delta: Any,
    kappa: Any,
    eps: Any,
    gamma3: Any,
    clipsnr: Any,
    gain: Any = None,
    fresh: Any = None,
    alpha_offset: Any = 1.0,
    beta2: Any = None,
) -> tuple[jax.Array, Moments]:
    """`step` and the new state; by the rule with tau if the state has tau.

    `fresh`: share of g in the step, whose weights have the same sum; see `danalab.optim.rules.scalars.with_fresh`.
    """
    average = delta / (delta + t)
    gain = average if gain is None else gain
    m = (1 - gain) * state.m + gain * g
    gain_v = average if beta2 is None else (1 - beta2) / (1 - beta2**t)
    v = (1 - gain_v) * state.v + gain_v * g**2
    s, scale = jnp.sqrt(v) + eps, 1.0
    if fresh is not None:
        fresh, damping = jnp.maximum(fresh, 1e-6), (t + (state.tau is None)) ** (1 - kappa) + alpha_offset
        scale, gamma3 = fresh * (1 + gamma3 * damping), (1 - fresh) / (fresh * damping)
    if state.tau is None:
        u = jnp.abs(m) / s
        damped = jnp.minimum((1 + t) ** (1 - kappa) * u, clipsnr)
        return scale * (g / s + gamma3 * jnp.sign(m) * (damped + alpha_offset * u)), Moments(m, v, None)
    tau = (1 - average) * state.tau + average * jnp.abs(g) / (jnp.abs(g) + s)
    q = activity(tau, t)
    n = jnp.sqrt(q) / s
    u = jnp.abs(m) * n
    damped = jnp.minimum(jnp.maximum(tau * t, 1) ** (1 - kappa) * u / q, clipsnr)
    return scale * (n * g + gamma3 * jnp.sign(m) * (q * damped + alpha_offset * u)), Moments(m, v, tau)


def activity(tau: jax.Array, t: Any) -> jax.Array:
    """q, the estimate of how often a coordinate gets a gradient; never below once in 1 + t steps."""
    bounded = jnp.minimum(tau, 0.5)
    return jnp.maximum(bounded / (1 - bounded), 1 / (1 + t))


def muon_step(
    g: jax.Array, state: Moments, t: Any, *, gain: Any, kappa: Any, rms: Any, chain: Sequence[Any], fresh: Any = None
) -> tuple[jax.Array, Moments]:
    """rms sqrt(max(rows, columns)) O(g + t^(1-kappa) m) of matrices [..., rows, columns], and the new state.

    `fresh`: share of g, in place of that one.
    """
    m = (1 - gain) * state.m + gain * g
    weight = t ** (1 - kappa) if fresh is None else 1 / jnp.maximum(fresh, 1e-6) - 1
    return rms * max(g.shape[-2:]) ** 0.5 * orthogonalize(g + weight * m, chain), state._replace(m=m)


def orthogonalize(x: jax.Array, chain: Sequence[tuple[float, float, float]]) -> jax.Array:
    """Approximately U V^T of each matrix U S V^T; `chain`: see `danalab.optim.optimizers.matrix.newton_schulz`."""
    if x.shape[-2] > x.shape[-1]:
        return orthogonalize(x.mT, chain).mT
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    for a, b, c in chain:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x
