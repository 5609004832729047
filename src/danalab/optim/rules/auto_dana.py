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

from danalab.optim.rules.foreach import TensorList, average, subtract
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import (
    Scalar,
    average_gain,
    cautious,
    decay_factor,
    momentum_gain,
    step_and_decay,
    with_fresh,
)


def auto_dana_update(
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
    """One step of AutoDana, with log2_time = log2(1 + t), span = kappa_max - kappa_min, floor = z^2 N(t), and the
    damping where there is no signal, alpha = (1 + t)^(1 - kappa_max).
    """
    p, g = p.to(m.dtype), g.to(m.dtype)
    m = m + gain * (g - m)
    v = v + (gain if gain2 is None else gain2) * (g * g - v)
    return step_and_decay(p, auto_dana_direction(g, m, v, **terms), lr, decay_factor, cautious), m, v


def auto_dana_direction(
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    log2_time: Scalar,
    span: Scalar,
    alpha: Scalar,
    floor: Scalar,
    eps: Scalar = 1e-8,
    gamma3: Scalar = 1.0,
    alpha_offset: Scalar = 1.0,
) -> Tensor:
    """The bracket of `auto_dana_update`, from the new moments."""
    r = v.sqrt() + eps
    u = m / r
    growth = torch.exp2(log2_time * (span * signal_share(u, floor)))
    return g / r + gamma3 * (alpha * growth + alpha_offset) * u


def noise_floor(t: Any, delta: Any, age: Any = None) -> Any:
    """N(t): mean of (m / r)^2 after t gradients that are independent noise; or where the momentum has a mean age."""
    if age is not None:
        return 1 / (1 + 2 * age)
    return delta**2 / ((2 * delta - 1) * t + delta**2)


def signal_share(u: Tensor, floor: Any) -> Tensor:
    """w = max(0, 1 - floor / u^2), 0 where u is 0: the share of the power of m that is signal."""
    squares = u * u
    return torch.where(squares > floor, 1 - floor / squares, 0.0)


def auto_dana_foreach(p: TensorList, g: TensorList, m: TensorList, v: TensorList, **s: Any) -> None:
    """`auto_dana_update` in place; `p` is in the dtype of the moments."""
    average(m, v, g, s["gain"], s["gain2"])
    root = v.sqrt().add_(s["eps"])
    ratio = m.div(root)
    # 1 - floor / u^2, held at 0 from below; a u of 0 gives minus infinity there, and floor / 0 no NaN as floor > 0.
    share = ratio.mul(ratio).reciprocal_().mul_(-s["floor"]).add_(1.0).clamp_min_(0.0)
    share.mul_(s["log2_time"] * s["span"] * math.log(2)).exp_()
    share.mul_(s["gamma3"] * s["alpha"]).add_(s["gamma3"] * s["alpha_offset"]).mul_(ratio)
    subtract(p, share.addcdiv_(g, root), s["lr"], s["decay_factor"], s["cautious"])


def _scalars(group: Mapping[str, Any], t: Scalar) -> dict[str, Scalar]:
    alpha = (1 + t) ** (1 - group["kappa_max"])
    scalars = {
        "lr": group["lr"],
        "gain": momentum_gain(group, t),
        "gain2": average_gain(group, t),
        "log2_time": torch.log2(1 + t) if isinstance(t, Tensor) else math.log2(1 + t),
        "span": group["kappa_max"] - group["kappa_min"],
        "alpha": alpha,
        "floor": group["significance"] ** 2 * noise_floor(t, group["delta"], group.get("ages", (None, None))[1]),
        "decay_factor": decay_factor(group, t),
        "cautious": cautious(group),
        **{name: group[name] for name in ("eps", "gamma3", "alpha_offset")},
    }
    return with_fresh(group, scalars, alpha)


def _kernel_scalars(s: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gain1": s["gain"],
        "gain2": s["gain2"],
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
    gains=("gain", "gain2"),
    aged=True,
    foreach=auto_dana_foreach,
    kernel_scalars=_kernel_scalars,
)
