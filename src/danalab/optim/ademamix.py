"""AdEMAMix: Adam with a second, slow momentum mixed in; weight decay is coupled, or independent and decaying.

    m <- m + (1-beta1) (g - m)      s <- s + (1-beta3(t)) (g - s)      v <- v + (1-beta2) (g^2 - v)
    u  = (m / (1-beta1^t) + gamma3 alpha(t) s) / (sqrt(v / (1-beta2^t)) + eps)
    AdEMAMix:             p <- p (1 - lr weight_decay) - lr u
    AdEMAMixDecayingWD:   p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts)) - lr u

    alpha(t) = alpha min(t / alpha_warmup, 1)          h(beta) = ln(1/2) / ln(beta + 1e-8) - 1, a half-life
    beta3(t) = the rate whose h lies min(t / beta3_warmup, 1) of the way from h(beta1) to h(beta3)

The slow momentum starts at zero without bias correction; the warmups phase it in. In the scaling ladder
alpha = steps^(1-kappa), beta3 = 1 - delta / steps, and both warmups last the whole run.

Source: Pagliardini, Ablin and Grangier 2024, arXiv 2409.03137; arXiv 2602.05298 for the decay.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .adamw import adam_scalars
from .base import Optimizer, Rule, decay_factor


def ademamix_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    slow: Tensor,
    *,
    lr: Any,
    gain: Any,
    gain2: Any,
    gain3: Any,
    correction1: Any,
    correction2: Any,
    weight: Any,
    eps: Any = 1e-8,
    decay_factor: Any = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step: the new p, m, v and s; gains 1 - beta, corrections 1 - beta^t, `weight` gamma3 alpha(t)."""
    m = m + gain * (g - m)
    v = v + gain2 * (g * g - v)
    slow = slow + gain3 * (g - slow)
    step = (m / correction1 + weight * slow) / (v.sqrt() / correction2**0.5 + eps)
    return decay_factor * p - lr * step, m, v, slow


def mixing_weight(group: Mapping[str, Any], t: int) -> float:
    """alpha(t): weight of the slow momentum in step t."""
    warmup = group["alpha_warmup"]
    return group["alpha"] * (1.0 if warmup is None else min(t / warmup, 1.0))


def slow_rate(group: Mapping[str, Any], t: int) -> float:
    """beta3(t): rate of the slow momentum in step t; exactly beta3 once it has warmed up."""
    beta1, _, beta3 = group["betas"]
    warmup = group["beta3_warmup"]
    if warmup is None or t >= warmup:
        return beta3
    first, last = (math.log(0.5) / math.log(min(beta + 1e-8, 1 - 1e-12)) - 1 for beta in (beta1, beta3))
    return 0.5 ** (1 / (first + (last - first) * t / warmup + 1))


def coupled_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `ademamix_update` in step t where weight decay is multiplied by the learning rate."""
    return {
        **adam_scalars(group, t),
        "gain3": 1 - slow_rate(group, t),
        "weight": group["gamma3"] * mixing_weight(group, t),
        "decay_factor": 1 - float(group["lr"]) * group["weight_decay"],
    }


def decaying_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The same with independent, decaying weight decay."""
    return {**coupled_scalars(group, t), "decay_factor": decay_factor(group, t)}


MOMENTS = ("exp_avg", "exp_avg_sq", "exp_avg_slow")


class AdEMAMix(Optimizer):
    """Adam with a slow momentum beside the fast one; weight decay is multiplied by the learning rate.

    Args:
        params: parameters, groups, or a model, whose norms, biases and embeddings then do not decay.
        lr: learning rate.
        betas: rates of the fast momentum, the second moment and the slow momentum.
        eps: added to the root of the second moment.
        alpha: weight of the slow momentum.
        alpha_warmup: steps over which alpha grows from 0 [steps]; none = it does not.
        beta3_warmup: steps over which the slow rate grows from the fast one [steps]; none = it does not.
        gamma3: factor of the slow momentum.
        weight_decay: weight decay, times the learning rate.
        fused: one pass over memory, by C++ on a CPU and torch.compile on a GPU; none = where they can be had.
        maximize: ascend in place of descending.
        stochastic_rounding: round 16-bit parameters at random; "moments" = keep the moments in bfloat16, too.
    """

    rule = Rule(ademamix_update, coupled_scalars, MOMENTS, kernel="ademamix")
    betas = 3

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: float = 1e-8,
        alpha: float = 2.0,
        alpha_warmup: float | None = None,
        beta3_warmup: float | None = None,
        gamma3: float = 1.0,
        weight_decay: float = 0.0,
        fused: bool | None = None,
        maximize: bool = False,
        stochastic_rounding: bool | str = False,
    ):
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            alpha=alpha,
            alpha_warmup=alpha_warmup,
            beta3_warmup=beta3_warmup,
            gamma3=gamma3,
            weight_decay=weight_decay,
            fused=fused,
            maximize=maximize,
            stochastic_rounding=stochastic_rounding,
        )


class AdEMAMixDecayingWD(Optimizer):
    """AdEMAMix with ADana's weight decay: independent, decaying, and applied before the update.

    Args:
        params: parameters, groups, or a model, whose norms, biases and embeddings then do not decay.
        lr: learning rate.
        betas: rates of the fast momentum, the second moment and the slow momentum.
        eps: added to the root of the second moment.
        alpha: weight of the slow momentum.
        alpha_warmup: steps over which alpha grows from 0 [steps]; none = it does not.
        beta3_warmup: steps over which the slow rate grows from the fast one [steps]; none = it does not.
        gamma3: factor of the slow momentum.
        weight_decay: independent weight decay, lambda(0).
        wd_ts: time scale on which it falls [steps]; none = constant.
        omega: in place of weight_decay: lambda(t) = omega / (wd_ts + t).
        horizon: length of the run, with omega: wd_ts is a tenth of it [steps].
        fused: one pass over memory, by C++ on a CPU and torch.compile on a GPU; none = where they can be had.
        maximize: ascend in place of descending.
        stochastic_rounding: round 16-bit parameters at random; "moments" = keep the moments in bfloat16, too.
    """

    rule = Rule(ademamix_update, decaying_scalars, MOMENTS, kernel="ademamix")
    betas = 3
    decay_bound = 1.0

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: float = 1e-8,
        alpha: float = 2.0,
        alpha_warmup: float | None = None,
        beta3_warmup: float | None = None,
        gamma3: float = 1.0,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        stochastic_rounding: bool | str = False,
    ):
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            alpha=alpha,
            alpha_warmup=alpha_warmup,
            beta3_warmup=beta3_warmup,
            gamma3=gamma3,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            fused=fused,
            maximize=maximize,
            stochastic_rounding=stochastic_rounding,
        )
