"""The update rules as pure functions of tensors: what the eager path, the compiled graph, the tests and the docs share.

Each takes one parameter and its state and returns the new ones; nothing is changed in place. Scalars are numbers, or
0-dim tensors where the clock lives on the device. The per-step scalars come from `log_time_scalars`, `adam_scalars`:

    gain   a(t) = delta / (delta + t)                 weight of the new gradient in the averages; beta(t) = 1 - a(t)
    alpha(t)    = (1 + t)^(1 - kappa)                 damping of the long average
    lambda(t)   = weight_decay / (1 + t / wd_ts)      independent weight decay
    keep   k(t) = 1 - (lr / peak_lr) lambda(t)        what remains of a parameter after the decay

Source: arXiv 2602.05298 (ADana, the Dana family); Loshchilov and Hutter 2019 (AdamW).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Scalar = Any  # a number, or a 0-dim tensor where the clock lives on the device


def adana_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    alpha: Scalar,
    keep: Scalar = 1.0,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    clipsnr: Scalar | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of ADana (`clipsnr` None) or DanaMK4.

        m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps          u = m / r
        p <- k (p - lr [ g/r + gamma3 (clip(alpha u) + alpha_offset u) ])

    Args:
        p, g: parameter and gradient, any shape, any floating dtype.
        m, v: first and second moment, same shape, float32 or float64; arithmetic is done in their dtype.
        clipsnr: bound of |alpha u|; None = no bound.
    Returns:
        The new (p, m, v); p in the dtype of the moments, to be rounded once by the caller.
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain * (g - m)
    v = v + gain * (g * g - v)
    step = adana_direction(g, m, v, alpha=alpha, eps=eps, gamma3=gamma3, alpha_offset=alpha_offset, clipsnr=clipsnr)
    return keep * (p - lr * step), m, v


def adana_direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    alpha: Scalar,
    eps: Scalar,
    gamma3: Scalar,
    alpha_offset: Scalar,
    clipsnr: Scalar | None,
) -> Tensor:
    """What `adana_update` subtracts, before the learning rate: the bracket, from the new moments."""
    r = v.sqrt() + eps
    if clipsnr is None:
        return (g + gamma3 * (alpha + alpha_offset) * m) / r
    u = m / r
    return g / r + gamma3 * (torch.clamp(alpha * u, -clipsnr, clipsnr) + alpha_offset * u)


def dana_star_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    tau: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    t: Scalar,
    kappa: Scalar,
    keep: Scalar = 1.0,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    clipsnr: Scalar | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of DanaStar (`clipsnr` None) or DanaStarMK4: every coordinate has its own clock, tau t.

        m, v, r as in `adana_update`          tau <- tau + a (|g| / (|g| + r) - tau)
        q = max( c / (1 - c), 1 / (1 + t) ),  c = min(tau, 1/2)
        T = max(tau t, 1)          n = sqrt(q) / r
        p <- k (p - lr [ n g + gamma3 (q clip(T^(1-kappa) m n / q) + alpha_offset m n) ])

    tau estimates q / (1 + q), q the probability that a coordinate receives a gradient.

    Returns:
        The new (p, m, v, tau); see `adana_update` for dtypes.
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain * (g - m)
    v = v + gain * (g * g - v)
    size = g.abs()
    tau = tau + gain * (size / (size + v.sqrt() + eps) - tau)
    step = dana_star_direction(
        g, m, v, tau, t=t, kappa=kappa, eps=eps, gamma3=gamma3, alpha_offset=alpha_offset, clipsnr=clipsnr
    )
    return keep * (p - lr * step), m, v, tau


def dana_star_direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    tau: Tensor,
    *,
    t: Scalar,
    kappa: Scalar,
    eps: Scalar,
    gamma3: Scalar,
    alpha_offset: Scalar,
    clipsnr: Scalar | None,
) -> Tensor:
    """What `dana_star_update` subtracts, before the learning rate: the bracket, from the new state."""
    r = v.sqrt() + eps
    c = torch.clamp(tau, max=0.5)
    q = torch.clamp(c / (1 - c), min=1 / (1 + t))
    n = q.sqrt() / r
    u = m * n
    damped = torch.clamp(tau * t, min=1.0) ** (1 - kappa) * u
    if clipsnr is not None:
        damped = torch.clamp(damped, -clipsnr * q, clipsnr * q)
    return n * g + gamma3 * (damped + alpha_offset * u)


def adamw_decaying_wd_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Scalar,
    gain1: Scalar,
    gain2: Scalar,
    correction1: Scalar,
    correction2: Scalar,
    keep: Scalar = 1.0,
    eps: Scalar = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam followed by independent weight decay.

        m <- m + (1-beta1) (g - m)          v <- v + (1-beta2) (g^2 - v)
        p <- k (p - lr m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + eps))

    `gain1`, `gain2` are 1 - beta; `correction1`, `correction2` are 1 - beta^t.
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain1 * (g - m)
    v = v + gain2 * (g * g - v)
    step = adamw_direction(g, m, v, correction1=correction1, correction2=correction2, eps=eps)
    return keep * (p - lr * step), m, v


def adamw_direction(
    g: Tensor, m: Tensor, v: Tensor, *, correction1: Scalar, correction2: Scalar, eps: Scalar
) -> Tensor:
    """What `adamw_decaying_wd_update` subtracts, before the learning rate, from the new moments."""
    return (m / correction1) / (v.sqrt() / correction2**0.5 + eps)


def log_time_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of step t (from 1) of `adana_update` for a parameter group."""
    return {
        "lr": group["lr"],
        "gain": group["delta"] / (group["delta"] + t),
        "alpha": (1 + t) ** (1 - group["kappa"]),
        "keep": keep_factor(group, t),
        **{name: group[name] for name in ("eps", "gamma3", "alpha_offset")},
        "clipsnr": group.get("clipsnr"),
    }


def effective_time_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of step t (from 1) of `dana_star_update` for a parameter group."""
    scalars = log_time_scalars(group, t)
    del scalars["alpha"]  # each coordinate has its own
    return {**scalars, "t": t, "kappa": group["kappa"]}


def adam_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of step t (from 1) of `adamw_decaying_wd_update` for a parameter group."""
    beta1, beta2 = group["betas"]
    return {
        "lr": group["lr"],
        "gain1": 1 - beta1,
        "gain2": 1 - beta2,
        "correction1": 1 - beta1**t,
        "correction2": 1 - beta2**t,
        "keep": keep_factor(group, t),
        "eps": group["eps"],
    }


def decay_rate(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """lambda(t): independent weight decay of step t, before the schedule factor."""
    wd_ts = group.get("wd_ts")
    return group["weight_decay"] / (1 + t / wd_ts) if wd_ts is not None else group["weight_decay"]


def schedule_factor(group: Mapping[str, Any]) -> Scalar:
    """s = lr / peak_lr; 0 for a group that was built with learning rate 0."""
    return group["lr"] / group["peak_lr"] if group["peak_lr"] else 0.0


def keep_factor(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """What weight decay leaves of a parameter in step t."""
    return 1 - schedule_factor(group) * decay_rate(group, t)


# A 32-bit integer hash ("lowbias32", C. Wellons): cheap, unbiased to 0.2 bits, the same in torch and in C++.
_MASK = 0xFFFFFFFF


def _hash32(x: Any) -> Any:
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def rounding_seed(t: Scalar, index: int) -> Scalar:
    """Seed of the rounding noise of parameter `index` in step t: the same on every replica and after a resume."""
    t = t.to(torch.int64) if isinstance(t, Tensor) else int(t)
    return _hash32((_hash32(t & _MASK) + index * 0x9E3779B1) & _MASK)


def stochastic_round(x: Tensor, dtype: torch.dtype, seed: Scalar) -> Tensor:
    """Round float32 `x` to bfloat16 or float16, up or down with probabilities that make the mean exact.

    An update smaller than half a unit in the last place is thus not lost but made with a small probability.

    Args:
        x: float32, any shape; infinities and NaN pass through.
        seed: see `rounding_seed`; element i (in memory order) gets noise hash(seed, i).
    """
    dropped = 16 if dtype == torch.bfloat16 else 13  # mantissa bits that the target does not have
    index = torch.arange(x.numel(), device=x.device, dtype=torch.int64)
    noise = (_hash32((index * 0x9E3779B1 + seed) & _MASK) >> (32 - dropped)).as_strided(x.shape, x.stride())
    bits = x.view(torch.int32) + noise.to(torch.int32)
    rounded = (bits & -(1 << dropped)).view(torch.float32)
    if dtype == torch.float16:  # below 2^-14 float16 has a fixed spacing of 2^-24, not a fixed number of bits
        fixed = torch.floor(x * 2.0**24 + noise * 2.0**-dropped) * 2.0**-24
        rounded = torch.where(x.abs() < 2.0**-14, fixed, rounded)
    return torch.where(torch.isfinite(x), rounded, x).to(dtype)
