"""AdEMAMix: Adam with a second, slow momentum mixed in, with coupled or independent weight decay.

    h(beta)  = ln(1/2) / ln(beta + 1e-8) - 1          half-life of an average, less one step
    alpha(t) = alpha min(t / alpha_warmup, 1)
    beta3(t) = the rate whose h lies min(t / beta3_warmup, 1) of the way from h(beta1) to h(beta3)

Source: Pagliardini, Ablin and Grangier 2024, arXiv 2409.03137.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from danalab.optim.rules.adamw_decaying_wd import adam_kernel_scalars
from danalab.optim.rules.foreach import TensorList, average, decay, subtract_ratio
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import Scalar, adam_scalars, coupled_decay_factor, decay_factor, shrink


def ademamix_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    slow: Tensor,
    *,
    lr: Scalar,
    gain1: Scalar,
    gain2: Scalar,
    gain3: Scalar,
    decay_factor: Scalar = 1.0,
    cautious: Scalar | None = None,
    **terms: Scalar,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of AdEMAMix; weight decay enters as a factor of the parameter.

        m <- m + (1-beta1) (g - m)      s <- s + (1-beta3(t)) (g - s)      v <- v + (1-beta2) (g^2 - v)
        p <- k p - lr (m / (1-beta1^t) + weight s) / (sqrt(v / (1-beta2^t)) + eps)

    `correction1`, `correction2` are 1 - beta^t, `weight` is gamma3 alpha(t).
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain1 * (g - m)
    slow = slow + gain3 * (g - slow)
    v = v + gain2 * (g * g - v)
    step = ademamix_direction(g, m, v, slow, **terms)
    decayed = decay_factor * p if cautious is None else shrink(p, step, decay_factor)
    return decayed - lr * step, m, v, slow


def ademamix_direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    slow: Tensor,
    *,
    correction1: Scalar,
    correction2: Scalar,
    weight: Scalar,
    eps: Scalar = 1e-8,
) -> Tensor:
    """The update of `ademamix_update` before the learning rate, from the new averages."""
    return (m / correction1 + weight * slow) / (v.sqrt() / correction2**0.5 + eps)


def ademamix_foreach(p: TensorList, g: TensorList, m: TensorList, v: TensorList, slow: TensorList, **s: Any) -> None:
    """`ademamix_update` in place; `p` is in the dtype of the averages."""
    average(m, v, g, s["gain1"], s["gain2"])
    slow.lerp_(g, s["gain3"])
    root = v.sqrt().add_(s["eps"] * s["correction2"] ** 0.5)
    step = m.mul(1 / s["correction1"]).add_(slow, alpha=s["weight"])
    decay(p, s["decay_factor"], step if s["cautious"] else None)
    subtract_ratio(p, step, root, s["lr"] * s["correction2"] ** 0.5)


def mixing_weight(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """alpha(t): weight of the slow momentum in step t."""
    return group["alpha"] * _share(group["alpha_warmup"], t)


def slow_rate(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """beta3(t): rate of the slow momentum in step t; exactly beta3 once it has warmed up."""
    beta1, _, beta3 = group["betas"]
    warmup = group["beta3_warmup"]
    if warmup is None:
        return beta3
    first, last = _half_life(beta1), _half_life(beta3)
    warm = 0.5 ** (1 / (first + (last - first) * _share(warmup, t) + 1))
    if isinstance(t, Tensor):
        return torch.where(t < warmup, warm, beta3)
    return warm if t < warmup else beta3


def _share(warmup: float | None, t: Scalar) -> Scalar:
    if warmup is None:
        return 1.0
    return torch.clamp(t / warmup, max=1.0) if isinstance(t, Tensor) else min(t / warmup, 1.0)


def _half_life(beta: float) -> float:
    return math.log(0.5) / math.log(min(beta + 1e-8, 1 - 1e-12)) - 1


def _scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    return {
        **adam_scalars({**group, "betas": group["betas"][:2]}, t),
        "gain3": 1 - slow_rate(group, t),
        "weight": group["gamma3"] * mixing_weight(group, t),
    }


def coupled_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of step t (from 1) of `ademamix_update` where weight decay is multiplied by the learning rate."""
    return {**_scalars(group, t), "decay_factor": coupled_decay_factor(group)}


def decaying_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of step t (from 1) of `ademamix_update` with independent, decaying weight decay."""
    return {**_scalars(group, t), "decay_factor": decay_factor(group, t)}


def _kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    return {**adam_kernel_scalars(s), "gain3": s["gain3"], "offset": s["weight"]}


_rule = partial(
    Rule,
    "ademamix",
    ("exp_avg", "exp_avg_sq", "exp_avg_slow"),
    update=ademamix_update,
    direction=ademamix_direction,
    foreach=ademamix_foreach,
    gains=("gain1", "gain2", "gain3"),
    kernel_scalars=_kernel_scalars,
)
ADEMAMIX = _rule(scalars=coupled_scalars)
ADEMAMIX_DECAYING_WD = _rule(scalars=decaying_scalars)
