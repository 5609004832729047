"""AdamW with independent, decaying weight decay: the baseline with ADana's decay and nothing else of it.

    m <- m + (1 - beta1) (g - m)          v <- v + (1 - beta2) (g^2 - v)
    p <- p - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
    p <- p (1 - (lr / peak_lr) lambda(t))          lambda(t) = weight_decay / (1 + t / wd_ts)

Source: Loshchilov and Hutter 2019, arXiv 1711.05101; arXiv 2602.05298 for the decay.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .base import Optimizer, Rule, decay_factor


def adamw_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Any,
    gain: Any,
    gain2: Any,
    correction1: Any,
    correction2: Any,
    eps: Any = 1e-8,
    decay_factor: Any = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step: the new p, m and v; gains are 1 - beta, corrections 1 - beta^t, numbers or 0-dim tensors."""
    m = m + gain * (g - m)
    v = v + gain2 * (g * g - v)
    step = (m / correction1) / (v.sqrt() / correction2**0.5 + eps)
    return decay_factor * (p - lr * step), m, v


def adam_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of step t but for the decay."""
    beta1, beta2 = group["betas"][:2]
    return {
        "lr": float(group["lr"]),
        "gain": 1 - beta1,
        "gain2": 1 - beta2,
        "correction1": 1 - beta1**t,
        "correction2": 1 - beta2**t,
        "eps": group["eps"],
    }


def adamw_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `adamw_update` in step t."""
    return {**adam_scalars(group, t), "decay_factor": decay_factor(group, t)}


class AdamWDecayingWD(Optimizer):
    """AdamW with independent, decaying weight decay.

    Args:
        params: parameters, groups, or a model, whose norms, biases and embeddings then do not decay.
        lr: learning rate.
        betas: rates of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: independent weight decay, lambda(0).
        wd_ts: time scale on which it falls [steps]; none = constant.
        omega: in place of weight_decay: lambda(t) = omega / (wd_ts + t).
        horizon: length of the run, with omega: wd_ts is a tenth of it [steps].
        fused: one pass over memory, by C++ on a CPU and torch.compile on a GPU; none = where they can be had.
        maximize: ascend in place of descending.
        stochastic_rounding: round 16-bit parameters at random; "moments" = keep the moments in bfloat16, too.
    """

    rule = Rule(adamw_update, adamw_scalars, ("exp_avg", "exp_avg_sq"), kernel="adamw")
    decay_bound = 1.0

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
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
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            fused=fused,
            maximize=maximize,
            stochastic_rounding=stochastic_rounding,
        )
