"""Scalars of a step, shared by the element-wise rules; a rule passes them to its update by name.

    gain           delta / (delta + t s^c)                    weight of the new gradient in the momentum
    gain2          a(t), or (1 - beta2) / (1 - beta2^t)       in the second moment, or for a constant beta2
    gain_tau       a(t)                                       in tau
    alpha          alpha(t) = (1 + t)^(1 - kappa)             damping of the long average
    decay_rate     lambda(t) = weight_decay / (1 + t / wd_ts) independent weight decay
    decay_factor   k(t) = 1 - (lr / peak_lr) lambda(t)        multiplies the parameter
    cautious       1, or None: decay all coordinates          decay only those that the update moves towards zero

a(t) = delta / (delta + t), beta(t) = 1 - a(t), s = lr / peak_lr, c is `momentum_cooldown`. With a constant beta2 the
second moment is Adam's: the correction of the bias is part of the gain.
t = 1, 2, ... counts the updates of a parameter. Source: arXiv 2602.05298; Loshchilov and Hutter 2019 (AdamW).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.optim.rules.age import gain_of

Scalar = Any
"""A number, or a 0-dim tensor where the step count is kept on the device."""


def log_time_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of ADana's step t (from 1) for a parameter group."""
    alpha = (1 + t) ** (1 - group["kappa"])
    return {**with_fresh(group, _common(group, t), alpha), "alpha": alpha}


def effective_time_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of DanaStar's step t (from 1) for a parameter group; the damping is each coordinate's own."""
    common = with_fresh(group, _common(group, t), t ** (1 - group["kappa"]))
    return {**common, "gain_tau": average_gain(group, t), "t": t, "kappa": group["kappa"]}


def _common(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    beta2 = group.get("beta2")
    return {
        "lr": group["lr"],
        "gain": momentum_gain(group, t),
        "gain2": average_gain(group, t) if beta2 is None else (1 - beta2) / (1 - beta2**t),
        "decay_factor": decay_factor(group, t),
        "cautious": cautious(group),
        **{name: group[name] for name in ("eps", "gamma3", "alpha_offset")},
        "clipsnr": group.get("clipsnr"),
    }


def average_gain(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """a(t): weight of a new value in an average over the last 1/delta of the run."""
    return group["delta"] / (group["delta"] + t)


def momentum_gain(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """Weight of the new gradient in the momentum: a(t s^c), a memory that shrinks with the learning rate; or by age."""
    if group.get("age") is not None:
        return gain_of(group, t)
    cooldown = group.get("momentum_cooldown")  # checkpoints of earlier versions have none
    return average_gain(group, t * schedule_factor(group) ** cooldown if cooldown else t)


def with_fresh(group: Mapping[str, Any], scalars: dict[str, Scalar], alpha: Scalar) -> dict[str, Scalar]:
    """Scalars by which an update has the share `fresh` of the new gradient; the sum of its weights stays as it is.

    lr (g + w m) = lr (1 + w) (f g + (1 - f) m) at f = 1 / (1 + w), w = gamma3 (alpha + alpha_offset).
    """
    if group.get("fresh") is None:
        return scalars
    fresh, damping = max(group["fresh"], 1e-6), alpha + scalars["alpha_offset"]
    weight = 1 + scalars["gamma3"] * damping
    return {**scalars, "lr": scalars["lr"] * fresh * weight, "gamma3": (1 - fresh) / (fresh * damping)}


def adam_scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    """Scalars of Adam's step t (from 1), with independent weight decay."""
    beta1, beta2 = group["betas"]
    return {
        "lr": group["lr"],
        "gain1": 1 - beta1,
        "gain2": 1 - beta2,
        "correction1": 1 - beta1**t,
        "correction2": 1 - beta2**t,
        "decay_factor": decay_factor(group, t),
        "cautious": cautious(group),
        "eps": group["eps"],
    }


def decay_rate(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """lambda(t): independent weight decay of step t, before the schedule factor.

    With a `decay_bound` it is at most that times the peak learning rate, and half a weight: in short runs omega / wd_ts
    alone shrinks weights faster than the optimizer rebuilds them (bench/decay_law.py).
    """
    wd_ts, bound = group.get("wd_ts"), group.get("decay_bound")
    rate = group["weight_decay"] / (1 + t / wd_ts) if wd_ts is not None else group["weight_decay"]
    return rate if bound is None else at_most(rate, min(bound * group["peak_lr"], 0.5))


def schedule_factor(group: Mapping[str, Any]) -> Scalar:
    """s = lr / peak_lr, at most 1; 0 for a group that was built with learning rate 0."""
    return at_most(group["lr"] / group["peak_lr"], 1.0) if group["peak_lr"] else 0.0


def at_most(value: Scalar, bound: float) -> Scalar:
    """The smaller of the two."""
    return torch.clamp(value, max=bound) if isinstance(value, Tensor) else min(value, bound)


def decay_factor(group: Mapping[str, Any], t: Scalar) -> Scalar:
    """k(t): the factor that weight decay applies to a parameter in step t."""
    return 1 - schedule_factor(group) * scaled_decay(group, decay_rate(group, t))


def coupled_decay_factor(group: Mapping[str, Any]) -> Scalar:
    """The same where weight decay is multiplied by the learning rate."""
    return 1 - group["lr"] * scaled_decay(group, group["weight_decay"])


def scaled_decay(group: Mapping[str, Any], decay: Scalar) -> Scalar:
    """A weight decay, with `scaled_decay` once more times lr / peak_lr. Source: arXiv 2607.23777."""
    return decay * schedule_factor(group) if group.get("scaled_decay") else decay


def cautious(group: Mapping[str, Any]) -> float | None:
    """Scalar `cautious` of a step: 1 or None, as the compiled back end takes it."""
    return 1.0 if group.get("cautious_decay") else None


def step_and_decay(
    p: Tensor, direction: Tensor, lr: Scalar, decay_factor: Scalar, cautious: Scalar | None = None
) -> Tensor:
    """k (p - lr u); or p - lr u - (1 - k) p on coordinates with u p > 0, and p - lr u on the others, if `cautious`.

    Source: arXiv 2510.12402 (cautious weight decay).
    """
    if cautious is None:
        return decay_factor * (p - lr * direction)
    return shrink(p, direction, decay_factor) - lr * direction


def shrink(p: Tensor, direction: Tensor, decay_factor: Scalar) -> Tensor:
    """p, times the decay factor where the update moves it towards zero."""
    return torch.where(direction.sign() * p > 0, decay_factor * p, p)  # the sign: a product u p may underflow
