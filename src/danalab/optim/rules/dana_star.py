"""DanaStar and DanaStarMK4: ADana and DanaMK4 with an effective time for each coordinate.

The kernel `dana_star` in `step/backends/kernels.cpp` computes the same. Source: arXiv 2602.05298.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.rules.adana import momentum_kernel_scalars
from danalab.optim.rules.foreach import TensorList, average, subtract_ratio
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import Scalar, effective_time_scalars, step_and_decay


def dana_star_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    tau: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    gain2: Scalar | None = None,
    gain_tau: Scalar | None = None,
    decay_factor: Scalar = 1.0,
    eps: Scalar = 1e-8,
    cautious: Scalar | None = None,
    **terms: Scalar,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of DanaStar (`clipsnr` None) or DanaStarMK4: every coordinate has its own effective time T.

        m, v, r as in `adana_update`          tau <- tau + gain_tau (|g| / (|g| + r) - tau)
        q = max( c / (1 - c), 1 / (1 + t) ),  c = min(tau, 1/2)
        T = max(tau t, 1)          n = sqrt(q) / r
        p <- k (p - lr [ n g + gamma3 (q clip(T^(1-kappa) m n / q) + alpha_offset m n) ])

    tau estimates q / (1 + q), q the probability that a coordinate receives a gradient. gain_tau None: gain.

    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain * (g - m)
    v = v + (gain if gain2 is None else gain2) * (g * g - v)
    size = g.abs()
    tau = tau + (gain if gain_tau is None else gain_tau) * (size / (size + v.sqrt() + eps) - tau)
    return step_and_decay(p, dana_star_direction(g, m, v, tau, eps=eps, **terms), lr, decay_factor, cautious), m, v, tau


def dana_star_direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    tau: Tensor,
    *,
    t: Scalar,
    kappa: Scalar,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    clipsnr: Scalar | None = None,
) -> Tensor:
    """The bracket of `dana_star_update`, from the new state."""
    r = v.sqrt() + eps
    c = torch.clamp(tau, max=0.5)
    q = torch.clamp(c / (1 - c), min=1 / (1 + t))
    n = q.sqrt() / r
    u = m * n
    damped = torch.clamp(tau * t, min=1.0) ** (1 - kappa) * u
    if clipsnr is not None:
        damped = torch.clamp(damped, -clipsnr * q, clipsnr * q)
    return n * g + gamma3 * (damped + alpha_offset * u)


def dana_star_foreach(p: TensorList, g: TensorList, m: TensorList, v: TensorList, tau: TensorList, **s: Any) -> None:
    """`dana_star_update` in place; `p` is in the dtype of the moments."""
    average(m, v, g, s["gain"], s["gain2"])
    root = v.sqrt().add_(s["eps"])
    size = g.abs()
    tau.lerp_(size.div_(size.add(root)), s["gain_tau"])
    del size  # whole lists of temporaries: freed as soon as possible
    # sqrt(q) = 1 / sqrt(1 / c - 1) for c between 1 / (2 + t), where q is 1 / (1 + t), and 1/2.
    root_q = tau.clamp_min(1 / (2 + s["t"])).clamp_max_(0.5).reciprocal_().sub_(1.0).rsqrt_()
    # T^(1-kappa) = t^(1-kappa) max(tau, 1/t)^(1-kappa): the first factor is a number, `long`.
    exponent = 1 - s["kappa"]
    long = s["t"] ** exponent
    step = tau.clamp_min(1 / s["t"]).pow_(exponent)
    if s["clipsnr"] is None:
        step = g.addcmul(step, m, value=s["gamma3"] * long)
    else:
        # The clipped term, q clip(T^(1-kappa) m n / q), is clip(T^(1-kappa) m / scale) scale n, scale = sqrt(q) r.
        scale, bound = root.mul(root_q), s["clipsnr"] / long
        step.mul_(m).div_(scale).clamp_min_(-bound).clamp_max_(bound)
        step = g.addcmul(step, scale, value=s["gamma3"] * long)
    step.add_(m, alpha=s["gamma3"] * s["alpha_offset"])
    root.div_(root_q)  # sqrt(v) / sqrt(q) is 1 / n
    subtract_ratio(p, step, root, s["lr"], s["decay_factor"], s["cautious"])


def _dana_star_kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    own = {"gain3": s["gain_tau"], "momentum": s["gamma3"], "t": s["t"], "exponent": 1 - s["kappa"]}
    return {**momentum_kernel_scalars(s), **own}


DANA_STAR = Rule(
    "dana_star",
    ("exp_avg", "exp_avg_sq", "tau"),
    scalars=effective_time_scalars,
    update=dana_star_update,
    direction=dana_star_direction,
    gains=("gain", "gain2", "gain_tau"),
    aged=True,
    foreach=dana_star_foreach,
    kernel_scalars=_dana_star_kernel_scalars,
)
