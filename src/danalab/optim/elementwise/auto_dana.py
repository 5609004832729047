"""AutoDana: ADana that chooses kappa for every coordinate and step from the signal-to-noise ratio of m.

If the gradients of a coordinate were independent noise, m / r would have the variance of the average's weights, which
for beta(t) = 1 - delta / (delta + t) is

    N(t) = delta^2 / ((2 delta - 1) t + delta^2)          (for delta = 8 within 3 % for every t, exact for large t)

while gradients that all agree give |m| / r = 1. The excess over z standard deviations of the noise is signal, and its
share of the power of m determines how fast the momentum grows:

    u = m / r          w = max(0, 1 - z^2 N(t) / u^2)          kappa = kappa_max - (kappa_max - kappa_min) w
    p <- p - lr [ g/r + gamma3 ((1+t)^(1-kappa) + alpha_offset) u ]

w is the positive-part shrinkage that a Wiener filter would apply to m. Pure noise has w = 0 in nearly all coordinates
and kappa = kappa_max, no growing momentum; a gradient that keeps its sign has w -> 1 and kappa -> kappa_min. The rule
needs no additional state and no sums over coordinates, so it is the same on shards.

Source: our own rule; the family is arXiv 2602.05298. The shrinkage is James and Stein's 1961, coordinate by coordinate.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.backends.foreach import TensorList, average, subtract
from danalab.optim.core import LogTimeOptimizer
from danalab.optim.core.rule import Rule
from danalab.optim.core.stats import noise_floor, signal_share
from danalab.optim.elementwise.scalars import Scalar, cautious, decay_factor, step_and_decay
from danalab.optim.settings import AutoDanaSettings, takes


def auto_dana_update(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: Scalar,
    gain: Scalar,
    log2_time: Scalar,
    span: Scalar,
    alpha: Scalar,
    floor: Scalar,
    decay_factor: Scalar = 1.0,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
    cautious: Scalar | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of AutoDana.

        m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps          u = m / r
        p <- k (p - lr [ g/r + gamma3 (alpha 2^(log2_time span w) + alpha_offset) u ]),   w as in `signal_share`

    Args:
        p, g: parameter and gradient, any shape, any floating dtype.
        m, v: first and second moment, same shape, float32 or float64; arithmetic is done in their dtype.
        log2_time: log2(1 + t).
        span: kappa_max - kappa_min.
        alpha: (1 + t)^(1 - kappa_max), the damping where there is no signal.
        floor: z^2 N(t).
    Returns:
        The new (p, m, v); p in the dtype of the moments, to be rounded once by the caller.
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain * (g - m)
    v = v + gain * (g * g - v)
    shared = {"log2_time": log2_time, "span": span, "alpha": alpha, "floor": floor}
    step = auto_dana_direction(g, m, v, eps=eps, gamma3=gamma3, alpha_offset=alpha_offset, **shared)
    return step_and_decay(p, step, lr, decay_factor, cautious), m, v


def auto_dana_direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    log2_time: Scalar,
    span: Scalar,
    alpha: Scalar,
    floor: Scalar,
    eps: Scalar,
    gamma3: Scalar,
    alpha_offset: Scalar,
) -> Tensor:
    """The bracket of `auto_dana_update`, from the new moments."""
    r = v.sqrt() + eps
    u = m / r
    growth = torch.exp2(log2_time * (span * signal_share(u, floor)))
    return g / r + gamma3 * (alpha * growth + alpha_offset) * u


def auto_dana_foreach(p: TensorList, g: TensorList, m: TensorList, v: TensorList, **s: Any) -> None:
    """`auto_dana_update` in place; `p` is in the dtype of the moments."""
    average(m, v, g, s["gain"], s["gain"])
    root = v.sqrt().add_(s["eps"])
    ratio = m.div(root)
    # 1 - floor / u^2, held at 0 from below; a u of 0 gives minus infinity there, and floor / 0 no NaN as floor > 0.
    share = ratio.mul(ratio).reciprocal_().mul_(-s["floor"]).add_(1.0).clamp_min_(0.0)
    share.mul_(s["log2_time"] * s["span"] * math.log(2)).exp_()
    share.mul_(s["gamma3"] * s["alpha"]).add_(s["gamma3"] * s["alpha_offset"]).mul_(ratio)
    subtract(p, share.addcdiv_(g, root), s["lr"], s["decay_factor"], s["cautious"])


def _scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    return {
        "lr": group["lr"],
        "gain": group["delta"] / (group["delta"] + t),
        "log2_time": torch.log2(1 + t) if isinstance(t, Tensor) else math.log2(1 + t),
        "span": group["kappa_max"] - group["kappa_min"],
        "alpha": (1 + t) ** (1 - group["kappa_max"]),
        "floor": group["significance"] ** 2 * noise_floor(t, group["delta"]),
        "decay_factor": decay_factor(group, t),
        "cautious": cautious(group),
        **{name: group[name] for name in ("eps", "gamma3", "alpha_offset")},
    }


def _kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gain1": s["gain"],
        "gain2": s["gain"],
        "momentum": s["gamma3"] * s["alpha"],
        "offset": s["gamma3"] * s["alpha_offset"],
        "t": s["log2_time"],
        "exponent": s["span"],
        "floor": s["floor"],
    }


AUTO_DANA = Rule(
    "auto_dana",
    ("exp_avg", "exp_avg_sq"),
    scalars=_scalars,
    update=auto_dana_update,
    direction=auto_dana_direction,
    gains=("gain",),
    foreach=auto_dana_foreach,
    kernel_scalars=_kernel_scalars,
)


class AutoDana(LogTimeOptimizer):
    """ADana whose kappa is chosen online, for each coordinate, from the signal-to-noise ratio of the momentum.

        a = delta / (delta + t)          m <- m + a (g - m)          v <- v + a (g^2 - v)          r = sqrt(v) + eps
        u = m / r        N(t) = delta^2 / ((2 delta - 1) t + delta^2)        w = max(0, 1 - significance^2 N(t) / u^2)
        kappa = kappa_max - (kappa_max - kappa_min) w
        p <- p - lr [ g/r + gamma3 ((1+t)^(1-kappa) + alpha_offset) u ]
        p <- p (1 - (lr / peak_lr) weight_decay / (1 + t / wd_ts))

    `danalab.optim.elementwise.auto_dana` explains the rule. `collect_stats()` reports the mean kappa.

    Args:
        params: parameters, named parameters, or groups of them; a group may override any setting below.
        lr: learning rate. The value at construction is the group's `peak_lr`, which schedulers do not change.
        kappa_min: kappa of a coordinate whose gradients agree.
        kappa_max: kappa of a coordinate whose gradients are noise.
        significance: multiple of the noise's standard deviation from which m counts as signal.
        delta, eps, gamma3, alpha_offset, weight_decay, wd_ts, omega, horizon, decay_bound: as in `ADana`.
        cautious_decay, scaled_decay: as in `ADana`.
        foreach, fused, capturable, maximize, stochastic_rounding, state_dtype: as in `ADana`.
    Raises:
        UserError: a setting out of range, both forms of weight decay, no parameters, or `fused` without a compiler.
    Source: our own rule for kappa; arXiv 2602.05298 for the family.
    """

    rule = AUTO_DANA

    @takes(AutoDanaSettings)
    def __init__(self, params: Any, settings: dict[str, Any]):
        super().__init__(params, settings)

    def check_group(self, group: Mapping[str, Any]) -> None:
        super().check_group(group)
        if group["kappa_min"] > group["kappa_max"]:
            raise UserError(
                f"{self.name}: kappa_min {group['kappa_min']:g} and kappa_max"
                f" {group['kappa_max']:g} must be in this order"
            )

    def largest_alpha(self, group: Mapping[str, Any], t: Any) -> Any:
        """(1 + t)^(1 - kappa_min)."""
        return (1 + t) ** (1 - group["kappa_min"])
