"""EMA-Nesterov: gradients at a point ahead of the weights, along the average of their own changes.

    y = theta + b m                                  where the gradient is computed, b = beta lr / peak_lr
    theta' = inner step from y
    m <- gamma m + (1 - gamma) (theta' - theta)

Source: Yau et al. 2026, arXiv 2605.25395.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from danalab.errors import UserError
from danalab.optim.core.checks import is_number
from danalab.optim.core.state import local
from danalab.optim.wrappers.base import Stepped, Wrapper


class EMANesterov(Wrapper):
    """Any optimizer, with a look ahead along the moving average of the changes of its weights.

        optimizer = EMANesterov(Muon(model, lr=0.02))

    Between steps the parameters are y, the point ahead, for the next gradient; b uses the learning rate of the last
    step. As the rate falls to 0, y becomes theta. The outer state of a parameter is `weights` (theta), `trend` (m) and
    `ema_step`.

    Args:
        inner: the optimizer that makes the steps.
        gamma: rate of the average of changes.
        beta: distance of the look ahead at the peak learning rate, in steps of m.
    Raises:
        UserError: a setting out of range, or `inner` is no optimizer.
    Source: Yau et al. 2026, arXiv 2605.25395.
    """

    keys: ClassVar = {"gamma": "ema_gamma", "beta": "ema_beta"}
    moments = ("weights", "trend")
    count = "ema_step"

    def __init__(self, inner: torch.optim.Optimizer, *, gamma: float = 0.99, beta: float = 0.6):
        super().__init__(inner, {"ema_gamma": gamma, "ema_beta": beta})

    def check(self, settings: Mapping[str, Any]) -> None:
        gamma, beta = (settings[key] for key in self.keys.values())
        if not is_number(gamma) or not 0 <= gamma < 1:
            raise UserError(f"EMANesterov: gamma is {gamma!r}; it must be in [0, 1)")
        if not is_number(beta) or not 0 <= beta < float("inf"):
            raise UserError(f"EMANesterov: beta is {beta!r}; it must be finite and not negative")

    def _add_outer(self, group: dict[str, Any]) -> None:
        group.setdefault("peak_lr", float(group["lr"]))
        super()._add_outer(group)

    def after(self, stepped: Stepped) -> None:
        for group, p in stepped:
            state = self.outer_state(p)
            theta, trend = local(state["weights"]), local(state["trend"])
            new = local(p).to(theta.dtype)
            trend.lerp_(new - theta, 1 - group["ema_gamma"])
            theta.copy_(new)
            ahead = group["ema_beta"] * group["lr"] / group["peak_lr"] if group["peak_lr"] else 0.0
            local(p).copy_(torch.add(theta, trend * ahead))
