"""The logarithmic-time optimizers ADana and DanaMK4, which bounds the signal-to-noise ratio of the damped momentum.

The kernel `adana` in `step/backends/kernels.cpp` computes the same. Source: arXiv 2602.05298.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.rules.foreach import TensorList, average, subtract_ratio
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import Scalar, log_time_scalars, step_and_decay


def adana_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    gain2: Scalar | None = None,
    decay_factor: Scalar = 1.0,
    cautious: Scalar | None = None,
    **terms: Scalar,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of ADana (`clipsnr` None) or DanaMK4.

        m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps          u = m / r
        p <- k (p - lr [ g/r + gamma3 (clip(alpha u) + alpha_offset u) ])

    `cautious` 1: k acts only where the step moves p towards zero; see `step_and_decay`.
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain * (g - m)
    v = v + (gain if gain2 is None else gain2) * (g * g - v)
    return step_and_decay(p, adana_direction(g, m, v, **terms), lr, decay_factor, cautious), m, v


def adana_direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    alpha: Scalar,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    clipsnr: Scalar | None = None,
) -> Tensor:
    """The bracket of `adana_update`, from the new moments. `clipsnr` bounds |alpha u|."""
    r = v.sqrt() + eps
    if clipsnr is None:
        return (g + gamma3 * (alpha + alpha_offset) * m) / r
    u = m / r
    return g / r + gamma3 * (torch.clamp(alpha * u, -clipsnr, clipsnr) + alpha_offset * u)


def adana_foreach(p: TensorList, g: TensorList, m: TensorList, v: TensorList, **s: Any) -> None:
    """`adana_update` in place; `p` is in the dtype of the moments."""
    average(m, v, g, s["gain"], s["gain2"])
    root = v.sqrt().add_(s["eps"])
    gamma3, offset, clip = s["gamma3"], s["alpha_offset"], s["clipsnr"]
    if clip is None:
        step = m.mul(gamma3 * (s["alpha"] + offset)).add_(g)
    else:
        # clip(alpha m/r) = clip(alpha m, bound +- clip r) / r: one division at the end serves all three terms.
        bound = root.mul(clip)
        step = m.mul(s["alpha"]).clamp_max_(bound)
        step.clamp_min_(bound.neg_()).mul_(gamma3).add_(m, alpha=gamma3 * offset).add_(g)
    subtract_ratio(p, step, root, s["lr"], s["decay_factor"], s["cautious"])


def momentum_kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    """The kernels' numbers of the averages and of the momentum terms that do not depend on a coordinate."""
    clip = -1.0 if s["clipsnr"] is None else s["gamma3"] * s["clipsnr"]
    return {"gain1": s["gain"], "gain2": s["gain2"], "offset": s["gamma3"] * s["alpha_offset"], "clip": clip}


def _adana_kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    # Without a clip the two momentum terms are one.
    alpha = s["alpha"] + (s["alpha_offset"] if s["clipsnr"] is None else 0.0)
    return {**momentum_kernel_scalars(s), "momentum": s["gamma3"] * alpha}


ADANA = Rule(
    "adana",
    ("exp_avg", "exp_avg_sq"),
    scalars=log_time_scalars,
    update=adana_update,
    direction=adana_direction,
    gains=("gain", "gain2"),
    aged=True,
    foreach=adana_foreach,
    kernel_scalars=_adana_kernel_scalars,
)
